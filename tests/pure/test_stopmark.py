"""The stop mark reaches every task: those that hold on, those that just come, and those whose driver is gone."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
from fakebroker import HOST, in_loop
from marks import SOON, ended, known, mark, none

from mirror.driver import control
from mirror.driver.control import ControlAddress, ControlServer, Frames, Take, proof, until_marked, watch
from mirror.kafka.cluster import TopicPartition
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment


async def holding(opened: ControlServer, tasks: int) -> None:
    """Wait until so many tasks hold on."""
    while len(opened._board.lines) < tasks:
        await asyncio.sleep(0.001)


def said_by(address: ControlAddress, greeting: bytes, task: int, attempt: int = 0) -> bytes:
    """A task's answer to a greeting."""
    hello = control._hello(task, attempt)
    return hello + proof(address.token, b"task", greeting, hello)


@in_loop
async def test_setting_the_mark_ends_every_task() -> None:
    async with mark() as opened:
        tasks = [asyncio.create_task(until_marked(opened.address, task, none)) for task in range(5)]
        await holding(opened, 5)
        assert not any(task.done() for task in tasks)
        opened.set()
        await ended(*tasks)


@in_loop
async def test_a_task_that_comes_after_the_mark_ends_at_once() -> None:
    async with mark() as opened:
        opened.set()
        await ended(asyncio.create_task(until_marked(opened.address, 0, none)))


@in_loop
async def test_a_task_that_is_just_coming_ends_too() -> None:
    """It was let in before the mark was set, and says who it is only afterwards."""
    async with mark() as opened:
        reader, writer = await asyncio.open_connection(opened.address.host, opened.address.port)
        greeting = await reader.readexactly(16)
        hello = said_by(opened.address, greeting, 0)
        writer.write(hello[:3])
        other = asyncio.create_task(until_marked(opened.address, 1, none))
        await holding(opened, 1)
        opened.set()
        await ended(other)
        writer.write(hello[3:])
        async with asyncio.timeout(SOON):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


@in_loop
async def test_closing_frees_the_port() -> None:
    opened = await ControlServer.open(HOST)
    task = asyncio.create_task(until_marked(opened.address, 0, none))
    await holding(opened, 1)
    await opened.close()
    await ended(task)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), HOST, opened.address.port)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("steps", range(6))
def test_who_comes_while_the_mark_closes_leaves_nothing_behind(steps: int, caplog: pytest.LogCaptureFixture) -> None:
    """At each step of the event loop between the kernel's accept and the task's greeting."""

    async def story() -> socket.socket:
        opened = await ControlServer.open(HOST)
        task = socket.create_connection((HOST, opened.address.port))
        for _ in range(steps):
            await asyncio.sleep(0)
        await opened.close()
        return task

    with warnings.catch_warnings(record=True) as unclosed:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(story()).close()
        gc.collect()
    assert not unclosed
    assert not caplog.records  # asyncio logs what a task of a connection raises, and that it was cancelled


@in_loop
async def test_a_task_that_ends_is_let_go() -> None:
    async with mark() as opened:
        task = asyncio.create_task(until_marked(opened.address, 0, none))
        await holding(opened, 1)
        task.cancel()
        await asyncio.wait([task])
        while opened._board.lines:
            await asyncio.sleep(0.001)


@in_loop
async def test_a_stranger_is_shown_out_and_the_tasks_stay() -> None:
    async with mark() as opened:
        task = asyncio.create_task(until_marked(opened.address, 0, none))
        await holding(opened, 1)
        stranger = ControlAddress(opened.address.host, opened.address.port, bytes(16))
        await ended(asyncio.create_task(until_marked(stranger, 0, none)))
        assert len(opened._board.lines) == 1
        assert not task.done()
        opened.set()
        await ended(task)


@in_loop
async def test_a_stranger_who_says_nothing_is_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_HELLO_SECONDS", 0.05)
    async with mark() as opened:
        reader, writer = await asyncio.open_connection(opened.address.host, opened.address.port)
        async with asyncio.timeout(SOON):
            assert len(await reader.read()) == 16, "the greeting, and then the end"
        writer.close()


@in_loop
async def test_strangers_do_not_use_up_what_a_driver_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first are shown out for the next, so that a task gets in among any number of them."""
    monkeypatch.setattr(control, "_MOST_STRANGERS", 3)
    monkeypatch.setattr(control, "_HELLO_SECONDS", 1000.0)
    async with mark() as opened:
        came = [await asyncio.open_connection(opened.address.host, opened.address.port) for _ in range(20)]
        for reader, _ in came[:17]:
            async with asyncio.timeout(SOON):
                with suppress(ConnectionResetError):
                    await reader.read()
        task = asyncio.create_task(until_marked(opened.address, 0, none))
        await known(opened, 0)
        assert len(opened._board.strangers) <= 3
        opened.set()
        await ended(task)
        for _, writer in came:
            writer.close()


@in_loop
async def test_a_task_that_is_shown_out_before_it_is_known_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no mark: a driver with much to do may have taken it for a stranger."""
    monkeypatch.setattr(control, "_PAUSE", 0.01)
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


@in_loop
async def test_tokens_differ() -> None:
    async with mark() as one, mark() as other:
        assert one.address.token != other.address.token
        assert len(one.address.token) == 16


@in_loop
async def test_watching_calls_back_once() -> None:
    async with mark() as opened:
        calls: list[str] = []
        task = watch(opened.address, 0, none, lambda: calls.append("marked"))
        await holding(opened, 1)
        assert calls == []
        opened.set()
        await ended(task)
        assert calls == ["marked"]


DRIVER = """
import asyncio
from mirror.driver.control import ControlServer

async def main():
    mark = await ControlServer.open("127.0.0.1")
    print(mark.address.port, mark.address.token.hex(), flush=True)
    while not mark._board.lines:
        await asyncio.sleep(0.001)
    print("held", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@in_loop
async def test_tasks_end_when_the_driver_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = asyncio.subprocess.PIPE
    driver = await asyncio.create_subprocess_exec(sys.executable, "-c", DRIVER, env=environment, stdout=pipe)
    try:
        assert driver.stdout
        port, token = (await driver.stdout.readline()).split()
        task = asyncio.create_task(
            until_marked(ControlAddress(HOST, int(port), bytes.fromhex(token.decode())), 0, none)
        )
        assert await driver.stdout.readline() == b"held\n"
        assert not task.done()
        driver.kill()
        await ended(task)
    finally:
        if driver.returncode is None:
            driver.kill()
        await driver.wait()


@in_loop
async def test_a_driver_that_never_was(free_port: int) -> None:
    await ended(asyncio.create_task(until_marked(ControlAddress(HOST, free_port, bytes(16)), 0, none)))


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
        tasks = [asyncio.create_task(until_marked(opened.address, task, taking(got[task]))) for task in got]
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
        task = asyncio.create_task(until_marked(opened.address, 3, taking(first)))
        await known(opened, 3)
        assert await opened.hand(3, MORE)
        task.cancel()
        await known(opened)
        task = asyncio.create_task(until_marked(opened.address, 3, taking(again)))
        while not again:
            await asyncio.sleep(0.001)
        assert (*first,) == (*again,) == MORE
        opened.set()
        await ended(task)


@in_loop
async def test_a_task_that_is_not_there_or_ending_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mark() as opened:
        assert not await opened.hand(0, MORE), "it has not begun"
        got = list[Assignment]()
        task = asyncio.create_task(until_marked(opened.address, 1, taking(got, takes=False)))
        await known(opened, 1)
        monkeypatch.setattr(control, "_TAKEN_SECONDS", 0.05)
        assert not await opened.hand(1, MORE)
        assert tuple(got) == MORE
        monkeypatch.undo()
        handing = asyncio.create_task(opened.hand(1, MORE))
        await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(SOON):
            assert not await handing, "it ended meanwhile"


@in_loop
async def test_nothing_is_taken_from_whoever_listens_where_the_driver_was() -> None:
    """The task ends, as it does when nobody listens."""
    payload = pickle.dumps(MORE)

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(16))
        await reader.readexactly(HELLO_BYTES)
        writer.write(bytes(32) + b"m" + len(payload).to_bytes(4) + bytes(32) + payload)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(stranger, HOST, 0)
    address = ControlAddress(HOST, server.sockets[0].getsockname()[1], bytes(16))
    await ended(asyncio.create_task(until_marked(address, 0, none)))
    server.close()
    await server.wait_closed()


@in_loop
async def test_what_a_driver_said_before_is_nothing_to_another_task() -> None:
    async with mark() as opened, overheard(opened) as (address, said):
        got = list[Assignment]()
        task = asyncio.create_task(until_marked(address, 0, taking(got)))
        await known(opened, 0)
        assert await opened.hand(0, MORE)
        assert tuple(got) == MORE
        opened.set()
        await ended(task)
    (conversation,) = said

    async def again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(conversation.of_driver)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(again, HOST, 0)
    elsewhere = ControlAddress(HOST, server.sockets[0].getsockname()[1], opened.address.token)
    await ended(asyncio.create_task(until_marked(elsewhere, 0, none)))
    server.close()
    await server.wait_closed()


# --- what strangers make of it ----------------------------------------------------------------------------------------

#: Of the task's answer to the greeting.
HELLO_BYTES = 16 + 2 * 4 + 32


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
        async with asyncio.timeout(SOON):
            with suppress(ConnectionResetError):
                assert len(await reader.read()) == 16, "shown out behind the greeting"
        assert not opened._board.lines
        assert not await opened.hand(0, MORE)
        writer.close()


@asynccontextmanager
async def knowing(opened: ControlServer, task: int) -> AsyncIterator[Frames]:
    """The task's end of a line, by hand."""
    reader, writer = await asyncio.open_connection(opened.address.host, opened.address.port)
    try:
        yield await control._let_in(opened.address.token, task, 0, reader, writer)
    finally:
        writer.close()


async def shut(frames: Frames) -> None:
    async with asyncio.timeout(SOON):
        with suppress(ConnectionResetError):
            while await frames.reader.read(1 << 16):
                pass


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
                await shut(frames)
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
            await shut(frames)
        assert heard == [(0, b"report")]
    finally:
        await opened.close()


@in_loop
async def test_an_attempt_has_one_line_and_the_newest_attempt_gets_what_is_handed_out() -> None:
    async with mark() as opened:
        async with knowing(opened, 0) as former:
            await known(opened, 0)
            got = list[Assignment]()
            task = asyncio.create_task(until_marked(opened.address, 0, taking(got)))
            await shut(former)
            await known(opened, 0)
            again = list[Assignment]()
            other = asyncio.create_task(until_marked(opened.address, 0, taking(again), attempt=1))
            await known(opened, 0, 0)
            assert await opened.hand(0, MORE)
            assert (got, tuple(again)) == ([], MORE)
        opened.set()
        await ended(task, other)


@in_loop
async def test_the_token_is_never_sent() -> None:
    async with mark() as opened:
        async with overheard(opened) as (address, said):
            task = asyncio.create_task(until_marked(address, 0, lambda _: True))
            await known(opened, 0)
            assert await opened.hand(0, MORE)
            opened.set()
            await ended(task)
        assert opened.address.token not in said[0].of_task + said[0].of_driver
        assert str(opened.address.token) not in repr(opened.address)
