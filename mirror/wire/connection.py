"""One connection to one broker: pipelined requests, answers matched by correlation id, a deadline on each.

C1  answers come in the order of the requests (a broker serves one request of a connection at a time); any other
order breaks the connection
C2  once broken, for whatever reason, a connection stays broken: every request in flight fails with the same
ConnectionLost
C3  a request is encoded and handed to the transport whole, or not at all
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mirror import __version__
from mirror.errors import ConnectionLost, WireError
from mirror.wire.frames import FrameReader
from mirror.wire.protocol import (
    API_VERSIONS,
    Api,
    Buffer,
    Versions,
    correlation_of,
    decode,
    decode_versions,
    encode,
)
from mirror.wire.security import Plaintext, Security

#: Largest answer believed. A fetch answer may exceed what was asked for by one batch; brokers cap a request at 100 MiB.
FRAME_LIMIT: Final = 128 * 1024 * 1024
SOCKET_BUFFER: Final = 4 * 1024 * 1024
CLIENT_ID: Final = "mirror"
#: Buffers below this are joined into one send; larger ones are sent as the views they are.
JOIN_BELOW: Final = 64 * 1024


def _told(problem: Exception, timeout: float) -> str:
    return f"no answer within {timeout:g} s" if isinstance(problem, TimeoutError) else str(problem)


class _InFlight(NamedTuple):
    correlation_id: int
    future: asyncio.Future[Any]
    decode: Callable[[memoryview], Any]


class Connection(asyncio.BufferedProtocol):
    """Open one with `Connection.open`, send with `call`. Not for use from two event loops."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.versions = Versions({})
        self._frames = FrameReader(FRAME_LIMIT)
        self._in_flight: deque[_InFlight] = deque()
        self._correlation_id = 0
        self._transport: asyncio.Transport | None = None
        self._lost: ConnectionLost | None = None

    @classmethod
    async def open(
        cls, address: tuple[str, int], security: Security | None = None, timeout: float = 10.0
    ) -> Connection:
        """Connect, secure, and learn the broker's versions, within `timeout` seconds.

        Raises ConnectionLost, AccessDenied.
        """
        security = security or Plaintext()
        self = cls(address)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().create_connection(lambda: self, *address, ssl=security.tls())
                request = API_VERSIONS.request(API_VERSIONS.newest)(
                    client_software_name=CLIENT_ID, client_software_version=__version__
                )
                self.versions = await self._send(request, decode_versions)
                await security.authenticate(self)
        except (OSError, TimeoutError, WireError, ValueError, OverflowError) as problem:
            self.close()  # the last two: an address from a broker's metadata that no socket takes
            raise ConnectionLost(f"{self}: {_told(problem, timeout)}") from problem
        except BaseException:
            self.close()
            raise
        return self

    @property
    def is_open(self) -> bool:
        """False once the connection broke or was closed."""
        return self._lost is None

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return len(self._in_flight)

    def version(self, api: Api) -> int:
        """The version of `api` spoken on this connection. Raises UnsupportedVersion."""
        return self.versions.common(api)

    def send(self, api: Api, request: Any) -> asyncio.Future[Any]:
        """Send now; the future holds kio's response, or ConnectionLost. `request` must be of the version spoken
        here.
        """
        response = api.response(request.__version__)
        return self._send(request, lambda frame: decode(response, frame))

    async def call(self, api: Api, request: Any, timeout: float) -> Any:
        """Send and wait at most `timeout` seconds; a late answer breaks the connection, since it says that the
        broker hangs.

        Raises ConnectionLost.
        """
        future = self.send(api, request)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            lost = ConnectionLost(f"{self}: no answer to {api.name} within {timeout:g} s")
            self._break(lost)
            raise lost from None

    def close(self) -> None:
        """Close; requests in flight fail. May be called twice."""
        self._break(ConnectionLost(f"{self}: closed here"))

    def _send(self, request: Any, decoder: Callable[[memoryview], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._lost is not None or self._transport is None:
            future.set_exception(self._lost or ConnectionLost(f"{self}: not connected"))
            return future
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts = encode(request, self._correlation_id, CLIENT_ID)
        self._in_flight.append(_InFlight(self._correlation_id, future, decoder))
        self._write(parts)
        return future

    def _write(self, parts: list[Buffer]) -> None:
        assert self._transport is not None
        small: list[Buffer] = []
        for part in parts:
            if len(part) < JOIN_BELOW:
                small.append(part)
                continue
            if small:
                self._transport.write(b"".join(small))
                small.clear()
            self._transport.write(part)
        if small:
            self._transport.write(b"".join(small))

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the socket is ready."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """asyncio: where to read into."""
        return self._frames.buffer()

    def buffer_updated(self, count: int) -> None:
        """asyncio: bytes came."""
        try:
            for frame in self._frames.received(count):
                self._answer(frame)
        except WireError as problem:
            self._break(ConnectionLost(f"{self}: {problem}"))

    def eof_received(self) -> bool:
        """asyncio: the broker closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the socket is gone."""
        self._break(ConnectionLost(f"{self}: {exc or 'closed by the broker'}"))

    def _answer(self, frame: memoryview) -> None:
        correlation_id = correlation_of(frame)
        if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
            raise ConnectionLost(f"an answer to request {correlation_id}, which is not the next in flight")  # C1
        waiting = self._in_flight[0]
        answer = None if waiting.future.done() else waiting.decode(frame)
        self._in_flight.popleft()  # only now: what cannot be decoded fails with all that is in flight
        if not waiting.future.done():
            waiting.future.set_result(answer)

    def _break(self, lost: ConnectionLost) -> None:
        if self._lost is None:
            self._lost = lost
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        while self._in_flight:
            future = self._in_flight.popleft().future
            if not future.done():
                future.set_exception(self._lost)
                with contextlib.suppress(asyncio.CancelledError):
                    future.exception()  # whoever waits still gets it; nobody need wait

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"
