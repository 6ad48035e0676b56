"""The stop mark reaches every lane: those that hold on, those that just come, and those whose driver is gone."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from fakebroker import HOST, in_loop

from mirror.spark import stopmark
from mirror.spark.stopmark import MarkAddress, StopMark, until_marked, watch

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
    while len(opened._lanes) < lanes:
        await asyncio.sleep(0.001)


async def ended(*lanes: asyncio.Task[None]) -> None:
    async with asyncio.timeout(SOON):
        await asyncio.gather(*lanes)


@in_loop
async def test_setting_the_mark_ends_every_lane() -> None:
    async with mark() as opened:
        lanes = [asyncio.create_task(until_marked(opened.address)) for _ in range(5)]
        await holding(opened, 5)
        assert not any(lane.done() for lane in lanes)
        opened.set()
        await ended(*lanes)


@in_loop
async def test_a_lane_that_comes_after_the_mark_ends_at_once() -> None:
    async with mark() as opened:
        opened.set()
        await ended(asyncio.create_task(until_marked(opened.address)))


@in_loop
async def test_a_lane_that_is_just_coming_ends_too() -> None:
    """It was let in before the mark was set, and says who it is only afterwards."""
    async with mark() as opened:
        reader, writer = await asyncio.open_connection(opened.address.host, opened.address.port)
        writer.write(opened.address.token[:3])
        other = asyncio.create_task(until_marked(opened.address))
        await holding(opened, 1)  # so the first has been accepted
        opened.set()
        await ended(other)
        writer.write(opened.address.token[3:])
        async with asyncio.timeout(SOON):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


@in_loop
async def test_closing_frees_the_port() -> None:
    opened = await StopMark.open(HOST)
    lane = asyncio.create_task(until_marked(opened.address))
    await holding(opened, 1)
    await opened.close()
    await ended(lane)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), HOST, opened.address.port)
    server.close()
    await server.wait_closed()


@in_loop
async def test_a_lane_that_ends_is_let_go() -> None:
    async with mark() as opened:
        lane = asyncio.create_task(until_marked(opened.address))
        await holding(opened, 1)
        lane.cancel()
        await asyncio.wait([lane])
        while opened._lanes:
            await asyncio.sleep(0.001)


@in_loop
async def test_a_stranger_is_shown_out_and_the_lanes_stay() -> None:
    async with mark() as opened:
        lane = asyncio.create_task(until_marked(opened.address))
        await holding(opened, 1)
        stranger = MarkAddress(opened.address.host, opened.address.port, bytes(16))
        await ended(asyncio.create_task(until_marked(stranger)))
        assert len(opened._lanes) == 1
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
        lane = watch(opened.address, lambda: calls.append("marked"))
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
    while not mark._lanes:
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
        lane = asyncio.create_task(until_marked(MarkAddress(HOST, int(port), bytes.fromhex(token.decode()))))
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
    await ended(asyncio.create_task(until_marked(MarkAddress(HOST, free_port, bytes(16)))))
