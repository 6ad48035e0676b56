"""The stop mark: how the driver tells lanes, on any machine, to end their epoch now, or what to mirror as well; and how
lanes tell the driver what they cannot tell the journal.

Each lane holds a connection to the driver. The mark is the end of that connection, so a lane also stops when the driver
dies, and no lane outlives its driver to write on behalf of nobody.

Decision: both sides prove that they know the epoch's token, which is never sent. Partitions come pickled, as lanes do
through Spark, and nothing may be unpickled that comes from whoever listens where a driver was.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import pickle
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mirror.assignment import Assignment
from mirror.observe import logs

_TOKEN_BYTES: Final = 16
_NUMBER_BYTES: Final = 4
_PROOF: Final = "sha256"
_PROOF_BYTES: Final = 32
#: What a proof is for, so that none serves for the other.
_LANE, _MORE = b"lane", b"more"
#: What a lane says: that it took something, or a report.
_TAKEN, _TOLD = b"+", b"="
_CONNECT_SECONDS: Final = 5.0
#: How long a lane may take to say that it has taken what was handed to it.
_TAKEN_SECONDS: Final = 3.0
#: Reports that may lie in a lane for a driver that does not read them.
_UNSENT_BYTES: Final = 1 << 20

#: Given partitions to mirror as well; false where they were not taken.
Take = Callable[[tuple[Assignment, ...]], bool]
#: Given a lane's report.
Hear = Callable[[bytes], None]


def deaf(_: bytes) -> None:
    """Where nobody watches but by the journal."""


@dataclass(frozen=True, slots=True)
class MarkAddress:
    """Where lanes hold on to. The token keeps strangers from holding connections open, and from handing out work."""

    host: str
    port: int
    token: bytes

    def hello(self, lane: int) -> bytes:
        """How a lane begins."""
        number = lane.to_bytes(_NUMBER_BYTES)
        return _proof(self.token, _LANE, number) + number


@dataclass(slots=True, eq=False)
class _Line:
    """The driver's end of a lane's connection; the lane is -1 until it has said which one it is."""

    writer: asyncio.StreamWriter
    lane: int = -1
    handed: int = 0
    taken: int = 0
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def hand(self, frame: bytes) -> None:
        self.handed += 1
        self.writer.write(frame)


class _Switchboard:
    """The lines of an epoch's lanes, and what was handed to each."""

    def __init__(self, token: bytes, hear: Hear) -> None:
        self.lines: set[_Line] = set()
        self.handed: dict[int, list[bytes]] = {}
        self.marked = False
        self.has_met = False
        self._token, self._hear = token, hear

    async def hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its end."""
        if self.marked:
            writer.close()
            return
        line = _Line(writer)
        self.lines.add(line)  # before it is known: the mark must not miss a lane that is just coming
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                proof, number = await reader.readexactly(_PROOF_BYTES), await reader.readexactly(_NUMBER_BYTES)
            if hmac.compare_digest(proof, _proof(self._token, _LANE, number)):
                line.lane, self.has_met = int.from_bytes(number), True
                for frame in self.handed.get(line.lane, ()):  # its task is tried again
                    line.hand(frame)
                while said := await reader.read(1):  # until the lane ends
                    if said == _TAKEN:
                        line.taken += 1
                        line.heard.set()
                    else:
                        size = int.from_bytes(await reader.readexactly(_NUMBER_BYTES))
                        self._hear(await reader.readexactly(size))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # a stranger, or a lane that is gone: either way there is nobody to tell
        finally:
            self.lines.discard(line)
            line.heard.set()
            writer.close()


class StopMark:
    """The driver's side."""

    def __init__(self, server: asyncio.Server, address: MarkAddress, board: _Switchboard) -> None:
        self._server, self.address, self._board = server, address, board

    @classmethod
    async def open(cls, bind: str, host: str = "", hear: Hear = deaf) -> StopMark:
        """Listen on a free port of the address `bind`, which lanes know as `host`. `hear` gets what lanes tell."""
        token = secrets.token_bytes(_TOKEN_BYTES)
        board = _Switchboard(token, hear)
        server = await asyncio.start_server(board.hold, bind, 0)
        return cls(server, MarkAddress(host or bind, server.sockets[0].getsockname()[1], token), board)

    @property
    def was_reached(self) -> bool:
        """Some lane has begun, and has got as far as here."""
        return self._board.has_met

    async def hand(self, lane: int, more: tuple[Assignment, ...]) -> bool:
        """Let a lane mirror these partitions as well, and every further attempt of its task; false where it does not
        say in time that it does: it may not have begun, or be ending.
        """
        payload = pickle.dumps(more)
        frame = len(payload).to_bytes(_NUMBER_BYTES) + _proof(self.address.token, _MORE, payload) + payload
        line = next((line for line in self._board.lines if line.lane == lane), None)
        if line is None or self._board.marked:
            return False
        self._board.handed.setdefault(lane, []).append(frame)
        line.hand(frame)
        due = line.handed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKEN_SECONDS):
                while line.taken < due and line in self._board.lines:
                    line.heard.clear()
                    await line.heard.wait()
        return line.taken >= due

    def set(self) -> None:
        """End the epoch: every lane, and every lane that has yet to connect."""
        self._board.marked = True
        self._server.close()
        for line in tuple(self._board.lines):
            line.writer.close()

    async def close(self) -> None:
        """Set the mark, and wait until the port is free."""
        self.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._server.wait_closed()


@dataclass(slots=True, eq=False)
class Voice:
    """How a lane tells its driver something, while it holds on to it."""

    writer: asyncio.StreamWriter | None = None

    def tell(self, report: bytes) -> None:
        """Nobody waits for it: what does not get through is told again by whoever reports."""
        if self.writer is not None and self.writer.transport.get_write_buffer_size() < _UNSENT_BYTES:
            self.writer.write(_TOLD + len(report).to_bytes(_NUMBER_BYTES) + report)


async def until_marked(address: MarkAddress, lane: int, take: Take, voice: Voice | None = None) -> None:
    """Return when the mark is set or the driver is gone: its end of the connection closes, nobody listens any more, or
    somebody else does. Until then `take` gets what the driver hands to this lane, and `voice` reaches the driver.

    Raises OSError where the driver cannot be reached from here at all.
    """
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port)
    except ConnectionRefusedError:
        return
    voice = voice or Voice()
    try:
        writer.write(address.hello(lane))
        voice.writer = writer
        while True:
            size, proof = await reader.readexactly(_NUMBER_BYTES), await reader.readexactly(_PROOF_BYTES)
            payload = await reader.readexactly(int.from_bytes(size))
            if not hmac.compare_digest(proof, _proof(address.token, _MORE, payload)):
                return
            if take(pickle.loads(payload)):  # noqa: S301 -- whoever wrote it knows the token
                writer.write(_TAKEN)
    except (ConnectionError, asyncio.IncompleteReadError):
        return
    finally:
        voice.writer = None
        writer.close()


def watch(
    address: MarkAddress, lane: int, take: Take, marked: Callable[[], None], voice: Voice | None = None
) -> asyncio.Task[None]:
    """Let `take` have what is handed to the lane, and call `marked` when the mark is set. A lane that cannot reach the
    driver says so and runs to its deadline.
    """

    async def wait() -> None:
        try:
            await until_marked(address, lane, take, voice)
        except OSError as problem:
            where = f"{address.host}:{address.port}"
            logs.get("mirror.stopmark").warning("driver_not_reached", address=where, reason=str(problem))
        else:
            marked()

    return asyncio.create_task(wait())


def _proof(token: bytes, kind: bytes, said: bytes) -> bytes:
    return hmac.digest(token, kind + said, _PROOF)
