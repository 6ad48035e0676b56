"""The control channel: the mark ends every task, work reaches the task that it is for, and strangers get nowhere."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
from fakebroker import HOST, in_loop
from marks import ended, known, mark, none
from waiting import MovableClock, until_true

from mirror.driver import control
from mirror.driver.control import ControlAddress, ControlServer, Frames, Take, Voice, proof, until_marked, watch
from mirror.kafka.cluster import TopicPartition
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment


@pytest.fixture(autouse=True)
def nobody_hurries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ends for want of time unless a test moves the clock."""
    for name in ("_HELLO_SECONDS", "_CONNECT_SECONDS", "_TAKEN_SECONDS"):
        monkeypatch.setattr(control, name, 1000.0)
    monkeypatch.setattr(control, "SILENT_SECONDS", 100_000.0)
    monkeypatch.setattr(control, "_PAUSE", 0.01)


def joining(opened: ControlServer, task: int, take: Take = none, attempt: int = 0) -> asyncio.Task[None]:
    """A task that holds on to the driver."""
    return asyncio.create_task(until_marked(opened.address, task, take, attempt=attempt))


async def ends(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection ends."""
    came = bytearray()
    with suppress(ConnectionResetError):
        while some := await reader.read(1 << 16):
            came += some
    return bytes(came)


@in_loop
async def test_setting_the_mark_ends_every_task() -> None:
    """Whether it holds on, is just saying who it is, or comes only then."""
    async with mark() as opened:
        marked = list[str]()
        tasks = [joining(opened, task) for task in range(3)]
        tasks.append(watch(opened.address, 3, none, lambda: marked.append("marked")))
        reader, writer = await asyncio.open_connection(opened.address.host, opened.address.port)
        greeting, hello = await reader.readexactly(16), control._hello(4, 0)
        said = hello + proof(opened.address.token, b"task", greeting, hello)
        writer.write(said[:3])
        await known(opened, *range(4))
        assert not any(task.done() for task in tasks)
        opened.set()
        await ended(*tasks, joining(opened, 5))
        assert marked == ["marked"]
        writer.write(said[3:])
        assert await ends(reader) == b""
        writer.close()


@in_loop
async def test_a_task_ends_with_its_driver(free_port: int, clock: MovableClock) -> None:
    """Whether the process is gone, the machine silent, or there never was one."""
    await ended(asyncio.create_task(until_marked(ControlAddress(HOST, free_port, bytes(16)), 0, none)))
    async with mark() as opened:
        task = joining(opened, 0)
        await known(opened, 0)
        next(iter(opened._board.lines)).frames.writer.transport.abort()
        await ended(task)
        opened._living.cancel()
        channel = Voice()
        task = asyncio.create_task(until_marked(opened.address, 0, none, channel))
        await until_true(lambda: channel.frames)
        clock.move(control.SILENT_SECONDS)
        await ended(task)


@in_loop
async def test_a_stranger_is_shown_out_and_the_tasks_stay(clock: MovableClock) -> None:
    """Whether it says something wrong or nothing."""
    async with mark() as opened:
        task = joining(opened, 0)
        await known(opened, 0)
        stranger = ControlAddress(opened.address.host, opened.address.port, bytes(16))
        await ended(asyncio.create_task(until_marked(stranger, 0, none)))
        reader, writer = await asyncio.open_connection(opened.address.host, opened.address.port)
        assert len(await reader.readexactly(16)) == 16, "the greeting"
        clock.move(control._HELLO_SECONDS)
        assert await ends(reader) == b""
        writer.close()
        await known(opened, 0)
        opened.set()
        await ended(task)


@in_loop
async def test_strangers_do_not_use_up_what_a_driver_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first are shown out for the next, so that a task gets in among any number of them."""
    monkeypatch.setattr(control, "_MOST_STRANGERS", 3)
    async with mark() as opened:
        came = [await asyncio.open_connection(opened.address.host, opened.address.port) for _ in range(20)]
        for reader, _ in came[:17]:
            await ends(reader)
        task = joining(opened, 0)
        await known(opened, 0)
        assert len(opened._board.strangers) <= 3
        opened.set()
        await ended(task)
        for _, writer in came:
            writer.close()


@in_loop
async def test_a_task_that_is_shown_out_before_it_is_known_comes_again() -> None:
    """That is no mark: a driver with much to do may have taken it for a stranger."""
    async with mark() as opened:
        came = 0

        def at_first_busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal came
            came += 1
            if came < 3:
                writer.close()
            else:
                opened._board.meet(reader, writer)

        server = await asyncio.start_server(at_first_busy, HOST, 0)
        address = ControlAddress(HOST, server.sockets[0].getsockname()[1], opened.address.token)
        task = asyncio.create_task(until_marked(address, 0, none))
        await known(opened, 0)
        server.close()
        opened.set()
        await ended(task)


# --- what is handed to tasks ------------------------------------------------------------------------------------------

AT = TopicPartition("orders", 0)
MORE = (Assignment(AT, AT, None, Rules(), since=7),)


def taking(into: list[Assignment], *, takes: bool = True) -> Take:
    def take(more: tuple[Assignment, ...]) -> bool:
        into.extend(more)
        return takes

    return take


@in_loop
async def test_what_is_handed_to_a_task_comes_to_it_alone() -> None:
    async with mark() as opened:
        got: dict[int, list[Assignment]] = {0: [], 1: []}
        tasks = [joining(opened, task, taking(got[task])) for task in got]
        await known(opened, 0, 1)
        assert await opened.hand(1, MORE)
        assert got == {0: [], 1: [*MORE]}
        assert await opened.hand(1, MORE)
        assert got == {0: [], 1: [*MORE, *MORE]}
        opened.set()
        await ended(*tasks)
        assert not await opened.hand(1, MORE), "the epoch is over"


@in_loop
async def test_a_task_that_is_tried_again_gets_the_same() -> None:
    async with mark() as opened:
        first, again = list[Assignment](), list[Assignment]()
        task = joining(opened, 3, taking(first))
        await known(opened, 3)
        assert await opened.hand(3, MORE)
        task.cancel()
        await known(opened)
        task = joining(opened, 3, taking(again))
        await until_true(lambda: again)
        assert (*first,) == (*again,) == MORE
        opened.set()
        await ended(task)


@in_loop
async def test_a_task_that_is_not_there_or_ending_takes_nothing(clock: MovableClock) -> None:
    async with mark() as opened:
        assert not await opened.hand(0, MORE), "it has not begun"
        got = list[Assignment]()
        task = joining(opened, 1, taking(got, takes=False))
        await known(opened, 1)
        handing = asyncio.create_task(opened.hand(1, MORE))
        await until_true(lambda: got)
        clock.move(control._TAKEN_SECONDS)
        assert not await handing, "it does not want it"
        assert not task.done()
        handing = asyncio.create_task(opened.hand(1, MORE))
        await asyncio.sleep(0)
        task.cancel()
        assert not await handing, "it ended meanwhile"


@asynccontextmanager
async def standing_in(said: bytes, token: bytes) -> AsyncIterator[ControlAddress]:
    """Somebody who listens where a driver was, and says this to whoever comes."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say, HOST, 0)
    yield ControlAddress(HOST, server.sockets[0].getsockname()[1], token)
    server.close()
    await server.wait_closed()


@in_loop
async def test_nothing_is_taken_from_whoever_listens_where_the_driver_was() -> None:
    """The task ends: whether a stranger makes something up, or repeats all that a driver said before."""
    payload = pickle.dumps(MORE)
    made_up = bytes(16) + bytes(32) + b"m" + len(payload).to_bytes(4) + bytes(32) + payload
    async with standing_in(made_up, bytes(16)) as address:
        await ended(asyncio.create_task(until_marked(address, 0, none)))
    async with mark() as opened, overheard(opened) as (address, said):
        got = list[Assignment]()
        task = asyncio.create_task(until_marked(address, 0, taking(got)))
        await known(opened, 0)
        assert await opened.hand(0, MORE)
        assert tuple(got) == MORE
        opened.set()
        await ended(task)
    async with standing_in(said[0].of_driver, opened.address.token) as address:
        await ended(asyncio.create_task(until_marked(address, 0, none)))


# --- what strangers make of it ----------------------------------------------------------------------------------------


@dataclass
class Conversation:
    """What both sides of a line said."""

    of_driver: bytes = b""
    of_task: bytes = b""


@asynccontextmanager
async def overheard(opened: ControlServer) -> AsyncIterator[tuple[ControlAddress, list[Conversation]]]:
    """An address that leads to the driver, and all that goes over it."""
    said: list[Conversation] = []
    running: list[asyncio.Task[None]] = []

    async def pipe(ends: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        driver = await asyncio.open_connection(opened.address.host, opened.address.port)
        said.append(heard := Conversation())

        async def one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, side: str) -> None:
            with suppress(ConnectionError):
                while some := await reader.read(1 << 16):
                    setattr(heard, side, getattr(heard, side) + some)
                    writer.write(some)
            writer.close()

        await asyncio.gather(one_way(ends[0], driver[1], "of_task"), one_way(driver[0], ends[1], "of_driver"))

    server = await asyncio.start_server(lambda *ends: running.append(asyncio.create_task(pipe(ends))), HOST, 0)
    try:
        yield ControlAddress(HOST, server.sockets[0].getsockname()[1], opened.address.token), said
    finally:
        server.close()
        for one in running:
            one.cancel()
        if running:
            await asyncio.wait(running)


@in_loop
async def test_what_a_task_said_before_lets_nobody_in() -> None:
    """Neither its hello nor that it took something: partitions that nobody copies must not count as taken."""
    async with mark() as opened, overheard(opened) as (address, said):
        task = asyncio.create_task(until_marked(address, 0, lambda _: True))
        await known(opened, 0)
        assert await opened.hand(0, MORE)
        task.cancel()
        await known(opened)
        reader, writer = await asyncio.open_connection(opened.address.host, opened.address.port)
        writer.write(said[0].of_task)
        assert len(await ends(reader)) == 16, "shown out behind the greeting"
        assert not opened._board.lines
        assert not await opened.hand(0, MORE)
        writer.close()
        assert opened.address.token not in said[0].of_task + said[0].of_driver
        assert str(opened.address.token) not in repr(opened.address)


@asynccontextmanager
async def knowing(opened: ControlServer, task: int) -> AsyncIterator[Frames]:
    """The task's end of a line, by hand."""
    reader, writer = await asyncio.open_connection(opened.address.host, opened.address.port)
    try:
        yield await control._let_in(opened.address.token, task, 0, reader, writer)
    finally:
        writer.close()


@in_loop
async def test_a_line_is_closed_at_the_first_frame_that_is_not_proven() -> None:
    heard: list[tuple[int, bytes]] = []
    opened = await ControlServer.open(HOST, hear=lambda task, report: heard.append((task, report)))
    try:
        for wrong in (
            b"+++++" + bytes(40),  # no proof
            b"?" + bytes(4 + 32),  # no kind of a task's
            b"m" + bytes(4 + 32),  # one of the driver's
            b"=" + b"\xff" * 4,  # more than a report may be: not waited for
        ):
            async with knowing(opened, 0) as frames:
                await known(opened, 0)
                frames.writer.write(wrong)
                await ends(frames.reader)
                await known(opened)
        async with knowing(opened, 0) as frames:  # the same once more
            sent = bytearray()
            write = frames.writer.write

            def noting(data: bytes) -> None:
                sent.extend(data)
                write(data)

            frames.writer.write = noting  # type: ignore[assignment,method-assign] # to listen in
            frames.write(b"=", b"report")
            write(bytes(sent))
            await ends(frames.reader)
        assert heard == [(0, b"report")]
    finally:
        await opened.close()


@in_loop
async def test_an_attempt_has_one_line_and_the_newest_attempt_gets_what_is_handed_out() -> None:
    async with mark() as opened:
        async with knowing(opened, 0) as former:
            await known(opened, 0)
            got = list[Assignment]()
            task = joining(opened, 0, taking(got))
            await ends(former.reader)
            await known(opened, 0)
            again = list[Assignment]()
            other = joining(opened, 0, taking(again), attempt=1)
            await known(opened, 0, 0)
            assert await opened.hand(0, MORE)
            assert (got, tuple(again)) == ([], MORE)
        opened.set()
        await ended(task, other)
