"""The stop mark reaches every lane: those that hold on, those that just come, and those whose driver is gone."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from fakebroker import HOST, in_loop

from mirror.assignment import Assignment
from mirror.policy.rules import Rules
from mirror.spark import stopmark
from mirror.spark.stopmark import MarkAddress, StopMark, Take, until_marked, watch
from mirror.wire.cluster import TopicPartition

#: Less than a stranger may be silent.
SOON = 3.0


@asynccontextmanager
async def mark() -> AsyncIterator[StopMark]:
    opened = await StopMark.open(HOST)
    try:
        yield opened
    finally:
        await opened.close()


async def holding(opened: StopMark, lanes: int) -> None:
    """Wait until so many lanes hold on."""
    while len(opened._board.lines) < lanes:
        await asyncio.sleep(0.001)


def none(_: tuple[Assignment, ...]) -> bool:
    """Nothing is handed to this lane."""
    raise AssertionError


async def ended(*lanes: asyncio.Task[None]) -> None:
    async with asyncio.timeout(SOON):
        await asyncio.gather(*lanes)


@in_loop
async def test_setting_the_mark_ends_every_lane() -> None:
    async with mark() as opened:
        lanes = [asyncio.create_task(until_marked(opened.address, 0, none)) for _ in range(5)]
        await holding(opened, 5)
        assert not any(lane.done() for lane in lanes)
        opened.set()
        await ended(*lanes)


@in_loop
async def test_a_lane_that_comes_after_the_mark_ends_at_once() -> None:
    async with mark() as opened:
        opened.set()
        await ended(asyncio.create_task(until_marked(opened.address, 0, none)))


@in_loop
async def test_a_lane_that_is_just_coming_ends_too() -> None:
    """It was let in before the mark was set, and says who it is only afterwards."""
    async with mark() as opened:
        reader, writer = await asyncio.open_connection(opened.address.host, opened.address.port)
        hello = opened.address.hello(0)
        writer.write(hello[:3])
        other = asyncio.create_task(until_marked(opened.address, 0, none))
        await holding(opened, 1)  # so the first has been accepted
        opened.set()
        await ended(other)
        writer.write(hello[3:])
        async with asyncio.timeout(SOON):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


@in_loop
async def test_closing_frees_the_port() -> None:
    opened = await StopMark.open(HOST)
    lane = asyncio.create_task(until_marked(opened.address, 0, none))
    await holding(opened, 1)
    await opened.close()
    await ended(lane)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), HOST, opened.address.port)
    server.close()
    await server.wait_closed()


@in_loop
async def test_a_lane_that_ends_is_let_go() -> None:
    async with mark() as opened:
        lane = asyncio.create_task(until_marked(opened.address, 0, none))
        await holding(opened, 1)
        lane.cancel()
        await asyncio.wait([lane])
        while opened._board.lines:
            await asyncio.sleep(0.001)


@in_loop
async def test_a_stranger_is_shown_out_and_the_lanes_stay() -> None:
    async with mark() as opened:
        lane = asyncio.create_task(until_marked(opened.address, 0, none))
        await holding(opened, 1)
        stranger = MarkAddress(opened.address.host, opened.address.port, bytes(16))
        await ended(asyncio.create_task(until_marked(stranger, 0, none)))
        assert len(opened._board.lines) == 1
        assert not lane.done()
        opened.set()
        await ended(lane)


@in_loop
async def test_a_stranger_who_says_nothing_is_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopmark, "_CONNECT_SECONDS", 0.05)
    async with mark() as opened:
        reader, writer = await asyncio.open_connection(opened.address.host, opened.address.port)
        async with asyncio.timeout(SOON):
            assert await reader.read() == b""
        writer.close()


@in_loop
async def test_tokens_differ() -> None:
    async with mark() as one, mark() as other:
        assert one.address.token != other.address.token
        assert len(one.address.token) == 16


@in_loop
async def test_watching_calls_back_once() -> None:
    async with mark() as opened:
        calls: list[str] = []
        lane = watch(opened.address, 0, none, lambda: calls.append("marked"))
        await holding(opened, 1)
        assert calls == []
        opened.set()
        await ended(lane)
        assert calls == ["marked"]


DRIVER = """
import asyncio
from mirror.spark.stopmark import StopMark

async def main():
    mark = await StopMark.open("127.0.0.1")
    print(mark.address.port, mark.address.token.hex(), flush=True)
    while not mark._board.lines:
        await asyncio.sleep(0.001)
    print("held", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@in_loop
async def test_lanes_end_when_the_driver_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = asyncio.subprocess.PIPE
    driver = await asyncio.create_subprocess_exec(sys.executable, "-c", DRIVER, env=environment, stdout=pipe)
    try:
        assert driver.stdout
        port, token = (await driver.stdout.readline()).split()
        lane = asyncio.create_task(until_marked(MarkAddress(HOST, int(port), bytes.fromhex(token.decode())), 0, none))
        assert await driver.stdout.readline() == b"held\n"
        assert not lane.done()
        driver.kill()
        await ended(lane)
    finally:
        if driver.returncode is None:
            driver.kill()
        await driver.wait()


@in_loop
async def test_a_driver_that_never_was(free_port: int) -> None:
    await ended(asyncio.create_task(until_marked(MarkAddress(HOST, free_port, bytes(16)), 0, none)))


# --- what is handed to lanes ------------------------------------------------------------------------------------------

AT = TopicPartition("orders", 0)
MORE = (Assignment(AT, AT, None, Rules(), since=7),)


async def known(opened: StopMark, *lanes: int) -> None:
    """Wait until these lanes have said who they are."""
    while sorted(line.lane for line in opened._board.lines) != sorted(lanes):
        await asyncio.sleep(0.001)


def taking(into: list[Assignment], *, takes: bool = True) -> Take:
    def take(more: tuple[Assignment, ...]) -> bool:
        into.extend(more)
        return takes

    return take


@in_loop
async def test_what_is_handed_to_a_lane_comes_to_it_alone() -> None:
    async with mark() as opened:
        got: dict[int, list[Assignment]] = {0: [], 1: []}
        lanes = [asyncio.create_task(until_marked(opened.address, lane, taking(got[lane]))) for lane in got]
        await known(opened, 0, 1)
        assert await opened.hand(1, MORE)
        assert got == {0: [], 1: [*MORE]}
        assert await opened.hand(1, MORE)
        assert got == {0: [], 1: [*MORE, *MORE]}
        opened.set()
        await ended(*lanes)
        assert not await opened.hand(1, MORE), "the epoch is over"


@in_loop
async def test_a_lane_that_is_tried_again_gets_the_same() -> None:
    async with mark() as opened:
        first, again = list[Assignment](), list[Assignment]()
        lane = asyncio.create_task(until_marked(opened.address, 3, taking(first)))
        await known(opened, 3)
        assert await opened.hand(3, MORE)
        lane.cancel()
        await known(opened)
        lane = asyncio.create_task(until_marked(opened.address, 3, taking(again)))
        while not again:
            await asyncio.sleep(0.001)
        assert (*first,) == (*again,) == MORE
        opened.set()
        await ended(lane)


@in_loop
async def test_a_lane_that_is_not_there_or_ending_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mark() as opened:
        assert not await opened.hand(0, MORE), "it has not begun"
        got = list[Assignment]()
        lane = asyncio.create_task(until_marked(opened.address, 1, taking(got, takes=False)))
        await known(opened, 1)
        monkeypatch.setattr(stopmark, "_TAKEN_SECONDS", 0.05)
        assert not await opened.hand(1, MORE)
        assert tuple(got) == MORE
        monkeypatch.undo()
        handing = asyncio.create_task(opened.hand(1, MORE))
        await asyncio.sleep(0)
        lane.cancel()
        async with asyncio.timeout(SOON):
            assert not await handing, "it ended meanwhile"


@in_loop
async def test_nothing_is_taken_from_whoever_listens_where_the_driver_was() -> None:
    """The lane ends, as it does when nobody listens."""
    payload = pickle.dumps(MORE)
    said = bytes(32) + payload

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(MarkAddress(HOST, 1, bytes(16)).hello(0)))
        writer.write(len(payload).to_bytes(4) + said)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(stranger, HOST, 0)
    address = MarkAddress(HOST, server.sockets[0].getsockname()[1], bytes(16))
    await ended(asyncio.create_task(until_marked(address, 0, none)))
    server.close()
    await server.wait_closed()


@in_loop
async def test_the_token_is_never_sent() -> None:
    async with mark() as opened:
        assert opened.address.token not in opened.address.hello(0)
        assert opened.address.hello(0) != opened.address.hello(1)
