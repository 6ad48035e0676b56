"""The stop mark: how the driver tells lanes, on any machine, to end their epoch now.

Each lane holds a connection to the driver and reads from it; nothing is ever sent but its end. So a lane also stops
when the driver dies, and no lane outlives its driver to write on behalf of nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mirror.observe import logs

_TOKEN_BYTES: Final = 16
_CONNECT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class MarkAddress:
    """Where lanes hold on to. The token keeps strangers from holding connections open."""

    host: str
    port: int
    token: bytes


class StopMark:
    """The driver's side."""

    def __init__(
        self, server: asyncio.Server, address: MarkAddress, lanes: set[asyncio.StreamWriter], marked: asyncio.Event
    ) -> None:
        self._server, self.address, self._lanes, self._marked = server, address, lanes, marked

    @classmethod
    async def open(cls, bind: str, host: str = "") -> StopMark:
        """Listen on a free port of the address `bind`, which lanes know as `host`."""
        token = secrets.token_bytes(_TOKEN_BYTES)
        lanes: set[asyncio.StreamWriter] = set()
        marked = asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if marked.is_set():
                writer.close()
                return
            lanes.add(writer)  # before it is known: the mark must not miss a lane that is just coming
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    known = hmac.compare_digest(await reader.readexactly(_TOKEN_BYTES), token)
                if known:
                    await reader.read(1)  # until the lane ends
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                pass  # a stranger, or a lane that is gone: either way there is nobody to tell
            finally:
                lanes.discard(writer)
                writer.close()

        server = await asyncio.start_server(hold, bind, 0)
        return cls(server, MarkAddress(host or bind, server.sockets[0].getsockname()[1], token), lanes, marked)

    def set(self) -> None:
        """End the epoch: every lane, and every lane that has yet to connect."""
        self._marked.set()
        self._server.close()
        for writer in tuple(self._lanes):
            writer.close()

    async def close(self) -> None:
        """Set the mark, and wait until the port is free."""
        self.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._server.wait_closed()


async def until_marked(address: MarkAddress) -> None:
    """Return when the mark is set or the driver is gone: its end of the connection closes, or nobody listens any more.

    Raises OSError where the driver cannot be reached from here at all.
    """
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port)
    except ConnectionRefusedError:
        return
    try:
        writer.write(address.token)
        await reader.read(1)
    except ConnectionError:
        return
    finally:
        writer.close()


def watch(address: MarkAddress, marked: Callable[[], None]) -> asyncio.Task[None]:
    """Call `marked` when the mark is set. A lane that cannot reach the driver says so and runs to its deadline."""

    async def wait() -> None:
        try:
            await until_marked(address)
        except OSError as problem:
            where = f"{address.host}:{address.port}"
            logs.get("mirror.stopmark").warning("driver_not_reached", address=where, reason=str(problem))
        else:
            marked()

    return asyncio.create_task(wait())
