"""Control channels of a driver in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fakebroker import HOST

from mirror.driver.control import ControlServer
from mirror.replication.assignment import Assignment


@asynccontextmanager
async def mark() -> AsyncIterator[ControlServer]:
    opened = await ControlServer.open(HOST)
    try:
        yield opened
    finally:
        await opened.close()


def none(_: tuple[Assignment, ...]) -> bool:
    """Nothing is handed to this task."""
    raise AssertionError


async def ended(*tasks: asyncio.Task[None]) -> None:
    """Wait until these tasks have ended."""
    await asyncio.gather(*tasks)


async def known(opened: ControlServer, *tasks: int) -> None:
    """Wait until these tasks have said who they are."""
    while sorted(line.task for line in opened._board.lines) != sorted(tasks):
        await asyncio.sleep(0.001)
