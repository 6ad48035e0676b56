"""One connection to one broker: frames, pipelined requests, answers matched by correlation id, deadlines.

One buffer serves a connection for life and grows only as bytes arrive, so a length that lies costs nothing:

    - A frame longer than `limit`, or of negative length, is refused from its four length bytes alone.
    - The buffer grows only when it is full of received bytes, and then at most doubles; one that grew beyond
      `KEPT_SIZE` is given back when it is empty.
    - A frame is a view of the buffer: it is valid until the next call of `buffer()`.

- Answers come in the order of the requests (a broker serves one request of a connection at a time); any other order
  breaks the connection.
- Once broken, for whatever reason, a connection stays broken: every request in flight fails with the same
  ConnectionLost.
- A request is encoded and handed to the transport whole, or not at all.
- While the connection authenticates anew, requests are held and then sent in their order: a broker takes nothing else
  in the middle of that (KIP-368).
- A broker that throttles a client answers at once, says for how long, and reads nothing more from the connection until
  then (KIP-219): that time is nobody's hanging, so it extends every deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

from mirror import __version__, clock
from mirror.errors import (
    ClosedByPeer,
    ConnectionLost,
    FrameTooLarge,
    MirrorError,
    NotAuthenticated,
    TlsRefused,
    UnsupportedVersion,
    WireError,
)
from mirror.kafka.addresses import Address, addresses_of, connected, served
from mirror.kafka.auth import PLAINTEXT, Security, authenticate, is_alert, refusal
from mirror.kafka.protocol import (
    API_VERSIONS,
    LENGTH_BYTES,
    Api,
    Buffer,
    HotRequest,
    Versions,
    correlation_of,
    decode,
    decode_versions,
    encode,
)

# --- Bytes from a socket into frames ----------------------------------------------------------------------------------

FIRST_SIZE: Final = 256 * 1024
#: Twice what a fetch answer usually holds.
KEPT_SIZE: Final = 32 * 1024 * 1024


class FrameReader:
    """Feed it by writing into `buffer()` and saying how much with `received(n)`, which yields the frames now whole."""

    __slots__ = ("_buffer", "_end", "_limit", "_start")

    def __init__(self, limit: int, first_size: int = FIRST_SIZE) -> None:
        self._limit = limit
        self._buffer = bytearray(max(first_size, 2 * LENGTH_BYTES))
        self._start = 0  # first byte not yet given out
        self._end = 0  # first byte not yet received

    @property
    def capacity(self) -> int:
        """Bytes held for the buffer."""
        return len(self._buffer)

    def buffer(self) -> memoryview:
        """Room for at least one more byte."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEPT_SIZE:
                self._buffer = bytearray(FIRST_SIZE)
        wanted = self._pending_size()
        if (self._start and self._start + wanted > len(self._buffer)) or self._end == len(self._buffer):
            held = self._buffer[self._start : self._end]
            if len(held) == len(self._buffer):
                self._buffer = bytearray(min(wanted, 2 * len(held)))  # a new one, frames may still be viewed
            self._buffer[: len(held)] = held
            self._start, self._end = 0, len(held)
        return memoryview(self._buffer)[self._end :]

    def received(self, count: int) -> Iterator[memoryview]:
        """Yield the frames that `count` more bytes complete, without their lengths. Raises FrameTooLarge."""
        self._end += count
        while (size := self._pending_size()) and self._end - self._start >= size:
            body = memoryview(self._buffer)[self._start + LENGTH_BYTES : self._start + size].toreadonly()
            self._start += size
            yield body

    def _pending_size(self) -> int:
        """Bytes of the frame under way with its length, or 0 while the length itself is not whole."""
        if self._end - self._start < LENGTH_BYTES:
            return 0
        length = int.from_bytes(self._buffer[self._start : self._start + LENGTH_BYTES], "big", signed=True)
        if not 0 <= length <= self._limit:
            raise FrameTooLarge(length, self._limit)
        return LENGTH_BYTES + length


# --- One connection to one broker -------------------------------------------------------------------------------------

#: Largest answer believed. A fetch answer may exceed what was asked for by one batch; brokers cap a request at 100 MiB.
FRAME_LIMIT: Final = 128 * 1024 * 1024
SOCKET_BUFFER: Final = 4 * 1024 * 1024
CLIENT_ID: Final = "mirror"
#: Longest time to be muted that is believed, in seconds. A produce quota mutes for as long as it takes to even out.
LONGEST_MUTE: Final = 600.0
#: Buffers below this are joined into one send; larger ones are sent as the views they are.
JOIN_BELOW: Final = 64 * 1024
#: A session is renewed after a share of its life between these, not by all connections at once.
RENEWED_AFTER: Final = (0.8, 0.9)
#: Seconds that a renewal may take.
RENEWAL_TIMEOUT: Final = 20.0
#: Seconds that a server of lines has to answer one.
_LINE_SECONDS: Final = 0.5
#: What a close may mean by the number of the request that it answers: the first asks for the versions, which every
#: listener says.
_WHEN_CLOSED: Final = {
    1: " before its first answer: if it does so each time, it asks for TLS (security.protocol), has as many connections"
    " as it takes (max.connections, max.connections.per.ip), or is no broker",
    2: " at the first request: if it does so each time, its listener asks for SASL (security.protocol)",
}


class _Held(NamedTuple):
    request: Any
    future: asyncio.Future[Any]
    decode: Callable[[memoryview], Any]
    may_go: Callable[[], bool]


def throttled_seconds(answer: Any) -> float:
    """For how long the broker that gave an answer mutes the connection; 0 where it does not."""
    throttle = getattr(answer, "throttle_time", None)  # not every API has it, nor every version
    return throttle.total_seconds() if throttle else 0.0


class _Due(NamedTuple):
    future: asyncio.Future[Any]
    api: Api
    timeout: float
    at: float


class _InFlight(NamedTuple):
    correlation_id: int
    future: asyncio.Future[Any]
    decode: Callable[[memoryview], Any]


class Connection(asyncio.BufferedProtocol):
    """Open one with `Connection.open`, send with `call`. Not for use from two event loops.

    `request_timeout` is how many seconds a request may wait for its answer, where somebody set that.
    """

    def __init__(
        self, address: tuple[str, int], security: Security, client_id: str, request_timeout: float | None
    ) -> None:
        self.address, self.request_timeout = address, request_timeout
        self.versions = Versions({})
        self._security, self._client_id = security, client_id
        self._held: deque[_Held] | None = None
        self._renew_at = math.inf
        self._renewal: asyncio.Task[None] | None = None
        self._frames = FrameReader(FRAME_LIMIT)
        self._in_flight: deque[_InFlight] = deque()
        self._correlation_id = 0
        self._transport: asyncio.Transport | None = None
        self._lost: ConnectionLost | None = None
        self._muted_until = 0.0
        self._due: deque[_Due] = deque()
        self._peer = ""
        self.opened_at = clock.monotonic()
        self._alarm: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        address: tuple[str, int],
        security: Security = PLAINTEXT,
        timeout: float = 10.0,
        client_id: str = CLIENT_ID,
        request_timeout: float | None = None,
    ) -> Connection:
        """Connect, secure, and learn the broker's versions, within `timeout` seconds; to look up its name has a time of
        its own (`kafka/addresses.py`).

        Raises ConnectionLost, TlsRefused, NotAuthenticated.
        """
        self = cls(address, security, client_id, request_timeout)
        try:
            found = await addresses_of(address[0])
            async with asyncio.timeout(timeout):
                await self._connect(found)
                await self._authenticate()
        except BaseException as problem:
            self._served(well=False)
            if isinstance(problem, TimeoutError):
                await self._end_line()
            error = self._as_error(problem, timeout)
            self.close()
            raise error from problem
        self._served(well=True)
        return self

    async def _connect(self, addresses: tuple[Address, ...]) -> None:
        loop = asyncio.get_running_loop()
        context = self._security.tls()
        host, port = self.address
        link = await connected(addresses, port)
        try:
            self._peer = link.getpeername()[0]
        except OSError:  # reset since
            link.close()
            raise
        try:
            await loop.create_connection(
                lambda: self, sock=link, ssl=context, server_hostname=host if context else None
            )
        except OSError as problem:
            if context and (text := refusal(problem, in_handshake=True)):
                raise TlsRefused(f"{self}: {text}") from problem
            raise
        request = API_VERSIONS.request(API_VERSIONS.newest)(
            client_software_name=CLIENT_ID, client_software_version=__version__
        )
        self.versions = await self._put(request, loop.create_future(), decode_versions)

    async def _end_line(self) -> None:
        """End the line that a server other than Kafka's, such as an HTTP one, may wait for: its answer names it."""
        if self._transport is not None and self._in_flight:
            self._transport.write(b"\r\n\r\n")
            await asyncio.sleep(_LINE_SECONDS)

    def _served(self, *, well: bool) -> None:
        """Remember for the next connect whether this address of the name is of use."""
        served(self.address[0], self._peer, well=well)

    def _as_error(self, problem: BaseException, timeout: float) -> BaseException:
        match problem:
            case ConnectionLost():
                return problem
            case NotAuthenticated():
                return NotAuthenticated(f"{self}: {problem}")
            case TimeoutError():
                return self._lost or ConnectionLost(f"{self}: no answer within {timeout:g} s")
            case OSError() | WireError() | ValueError() | OverflowError():  # the last two: an address no socket takes
                return ConnectionLost(f"{self}: {problem}")
            case _:
                return problem

    @property
    def is_open(self) -> bool:
        """False once the connection broke or was closed."""
        return self._lost is None

    @property
    def is_muted(self) -> bool:
        """The broker reads nothing from it now, for a quota."""
        return asyncio.get_running_loop().time() < self._muted_until

    @property
    def is_idle(self) -> bool:
        """Nobody waits for an answer, and the broker reads what is sent."""
        return not self._in_flight and self._held is None and not self.is_muted

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return len(self._in_flight)

    @property
    def unsent(self) -> int:
        """Bytes of requests that the socket has not taken yet: asyncio keeps a copy of them."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def version(self, api: Api) -> int:
        """The version of `api` spoken on this connection. Raises UnsupportedVersion."""
        try:
            return self.versions.common(api)
        except UnsupportedVersion as problem:
            raise UnsupportedVersion(f"{self}: {problem}") from problem

    def send(self, api: Api, request: Any, may_go: Callable[[], bool] = lambda: True) -> asyncio.Future[Any]:
        """Send now, or as soon as the session is renewed; the future holds the response, or ConnectionLost.

        `request` must be of the version spoken here. `may_go` is asked when all is ready to be sent, and nothing is
        where it says no.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        is_hot = isinstance(request, HotRequest)
        decoder = request.read if is_hot else partial(decode, api.response(request.__version__))
        if self._held is not None:
            self._held.append(_Held(request, future, decoder, may_go))
            return future
        if self._renew_at <= loop.time():
            self._renew_at = math.inf
            self._renewal = loop.create_task(self._renew())
        return self._put(request, future, decoder, may_go)

    async def call(self, api: Api, request: Any, timeout: float, may_go: Callable[[], bool] = lambda: True) -> Any:
        """Send, if `may_go` as in `send`, and wait at most `timeout` seconds, or `request_timeout` if that is less; a
        late answer breaks the connection, since it says that the broker hangs.

        Raises ConnectionLost.
        """
        timeout = min(timeout, self.request_timeout or timeout)
        future = self.send(api, request, may_go)
        self.expect(future, api, timeout)
        return await future

    def expect(self, future: asyncio.Future[Any], api: Api, timeout: float) -> None:
        """Break the connection unless `future`, which `send` gave, is done within `timeout` seconds, not counting those
        for which the broker mutes it.
        """
        loop = asyncio.get_running_loop()
        while self._due and self._due[0].future.done():
            self._due.popleft()
        at = loop.time() + timeout
        self._due.append(_Due(future, api, timeout, at))
        if self._alarm is None or at < self._alarm.when():
            self._set_alarm(at)

    def _set_alarm(self, time: float) -> None:
        """One timer serves all requests: one for each would cost as much as the deadline is worth."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(time, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._alarm = None
        # done already, where the loop was busy and comes to the answer and to this in the same round
        self._due = deque(due for due in self._due if not due.future.done())
        ends = [(max(due.at, self._muted_until + due.timeout), due) for due in self._due]
        if not ends:
            return
        end, first = min(ends, key=lambda ending: ending[0])
        if asyncio.get_running_loop().time() < end:
            self._set_alarm(end)
        else:
            self._served(well=False)
            self._break(ConnectionLost(f"{self}: no answer to {first.api.name} within {first.timeout:.3g} s"))

    def close(self) -> None:
        """Close; requests in flight fail. May be called twice."""
        self._break(ConnectionLost(f"{self}: closed here"))

    async def _authenticate(self) -> None:
        """Say who we are, where that is asked for; what is sent meanwhile is held."""
        proof = await self._security.proof(self.address[0])
        if proof is None:
            return

        async def ask(api: Api, **fields: Any) -> Any:
            request = api.request(self.version(api))(**fields)
            response = api.response(request.__version__)
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            return await self._put(request, future, lambda frame: decode(response, frame))

        self._held = held = deque[_Held]()
        try:
            lifetime = await authenticate(ask, proof)
        except NotAuthenticated as refused:
            if self._security.was_old(proof):  # the next connection comes with another one
                raise ConnectionLost(f"{self}: {refused}; it was kept, and another one is asked for") from refused
            raise
        self._held = None
        self._renew_at = asyncio.get_running_loop().time() + lifetime * random.uniform(*RENEWED_AFTER)
        for waiting in held:
            if not waiting.future.done():
                self._put(*waiting)

    async def _renew(self) -> None:
        """Before the session ends; a broker closes a connection that asks for something else after that."""
        try:
            async with asyncio.timeout(RENEWAL_TIMEOUT):
                await self._authenticate()
        except (MirrorError, TimeoutError) as problem:
            why = f"no answer within {RENEWAL_TIMEOUT:g} s" if isinstance(problem, TimeoutError) else problem
            self._break(ConnectionLost(f"{self}: the session could not be renewed: {why}"))
        except BaseException:
            self.close()  # what is held must not wait for ever
            raise

    def _put(
        self,
        request: Any,
        future: asyncio.Future[Any],
        decoder: Callable[[memoryview], Any],
        may_go: Callable[[], bool] = lambda: True,
    ) -> asyncio.Future[Any]:
        if self._lost is not None or self._transport is None:
            future.set_exception(self._lost or ConnectionLost(f"{self}: not connected"))
            return future
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts = encode(request, self._correlation_id, self._client_id)
        if not may_go():
            future.set_exception(ConnectionLost(f"{self}: this process was suspended, and nothing was sent"))
            return future
        self._in_flight.append(_InFlight(self._correlation_id, future, decoder))
        self._write(parts)
        return future

    def _write(self, parts: list[Buffer]) -> None:
        assert self._transport is not None
        for is_small, group in groupby(parts, key=lambda part: len(part) < JOIN_BELOW):
            if is_small:
                self._transport.write(b"".join(group))
            else:
                for part in group:
                    self._transport.write(part)

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
            if isinstance(problem, FrameTooLarge) and is_alert(problem.size):
                self._break(TlsRefused(f"{self}: it speaks TLS: set security.protocol to SSL or SASL_SSL"))
            self._break(ConnectionLost(f"{self}: {problem}"))

    def eof_received(self) -> bool:
        """asyncio: the broker closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the socket is gone."""
        if text := refusal(exc, in_handshake=False):
            self._break(TlsRefused(f"{self}: {text}"))
        closed = exc or "closed by the broker"
        if exc is None or isinstance(exc, ConnectionResetError):  # a reset is what a broker with too many sends, too
            closed = f"{closed}{_WHEN_CLOSED.get(self._correlation_id, '')}"
        self._break(ClosedByPeer(f"{self}: {closed}"))

    def _answer(self, frame: memoryview) -> None:
        correlation_id = correlation_of(frame)
        if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
            raise ConnectionLost(f"an answer to request {correlation_id}, which is not the next in flight")
        waiting = self._in_flight[0]
        answer = None if waiting.future.done() else waiting.decode(frame)
        self._in_flight.popleft()  # only now: what cannot be decoded fails with all that is in flight
        if muted := throttled_seconds(answer):
            self._muted_until = asyncio.get_running_loop().time() + min(muted, LONGEST_MUTE)
        if not waiting.future.done():
            waiting.future.set_result(answer)

    def _break(self, lost: ConnectionLost) -> None:
        if self._lost is None:
            self._lost = lost
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        waiting = [*self._in_flight, *(self._held or ())]
        self._in_flight.clear()
        self._held = None
        for future in (request.future for request in waiting):
            if not future.done():
                future.set_exception(self._lost)
                with contextlib.suppress(asyncio.CancelledError):
                    future.exception()  # whoever waits still gets it; nobody need wait

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"
