"""A connection to one target broker, opened when there is something to send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mirror.errors import AccessDenied, WireError
from mirror.fetcher import Spawn
from mirror.wire.cluster import Cluster
from mirror.wire.connection import Connection
from mirror.wire.protocol import PRODUCE


def channel_purpose(number: int) -> str:
    """What a cluster knows the connection by over which batches go to a broker; each has a few."""
    return f"produce-{number}"


class Channel:
    """`connection` is None until it was opened for the first time; `in_flight` counts requests."""

    def __init__(self, target: Cluster, node: int, number: int) -> None:
        self._target, self.node, self._purpose = target, node, channel_purpose(number)
        self._opening: asyncio.Task[None] | None = None
        self.connection: Connection | None = None
        self.in_flight = 0

    def open(self, spawn: Spawn, ready: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Connect in the background, unless that is under way."""
        if self._opening is None or self._opening.done():
            self._opening = spawn(self._open(ready, failed))

    def close(self) -> None:
        """Give up connecting."""
        if self._opening is not None:
            self._opening.cancel()

    async def _open(self, ready: Callable[[], None], failed: Callable[[str], None]) -> None:
        try:
            connection = await self._target.connection(self.node, self._purpose)
            connection.version(PRODUCE)
            self.connection = connection
        except (WireError, AccessDenied) as problem:
            failed(str(problem))
        else:
            asyncio.get_running_loop().call_soon(ready)
