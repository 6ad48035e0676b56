"""The control channel: authenticated connections by which the driver and its tasks talk.

The proof is over the kind, which one of its side's frames it is, and what it says, so that whoever is in between can
make none up, change none, leave none out and send none again.

Each task holds a connection to the driver. The mark is the end of that connection, so a task also stops when the driver
dies, and no task outlives its driver to write on behalf of nobody: where the driver's machine is cut off or suspended,
which ends no connection, the task misses its signs of life, and ends `SILENT_SECONDS` after the last one.

Decision: both sides prove that they know the epoch's token, which is never sent, over random bytes of both, and so for
each frame: what was overheard is of no use. Partitions come pickled, as tasks do through Spark, and
nothing may be unpickled that comes from whoever listens where a driver was.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import pickle
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from mirror.observability import logs
from mirror.replication.assignment import Assignment

# --- Frames on a connection of two sides that share a key -------------------------------------------------------------

PROOF_BYTES: Final = 32
_PROOF: Final = "sha256"
_SIZE_BYTES: Final = 4
_COUNT_BYTES: Final = 8


class Unproven(ConnectionError):
    """What came is of nobody who knows the key."""


def proof(key: bytes, *said: bytes) -> bytes:
    """What only somebody who knows the key can say of this."""
    return hmac.digest(key, b"".join(said), _PROOF)


@dataclass(slots=True, eq=False)
class Frames:
    """One side's end. A kind is one byte, and each side has kinds of its own."""

    key: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _sent: int = 0
    _got: int = 0

    @property
    def unsent(self) -> int:
        """Bytes that wait for the other side to read."""
        return self.writer.transport.get_write_buffer_size()

    def write(self, kind: bytes, said: bytes = b"") -> None:
        """Send one, which waits for nobody."""
        sealed = proof(self.key, kind, self._sent.to_bytes(_COUNT_BYTES), said)
        self._sent += 1
        self.writer.write(kind + len(said).to_bytes(_SIZE_BYTES) + sealed + said)

    async def read(self, kinds: Collection[bytes], most: int) -> tuple[bytes, bytes]:
        """The next one, of one of `kinds`, with at most so many bytes: no more is ever held of what is not proven.

        Raises Unproven; IncompleteReadError and OSError as a StreamReader does.
        """
        kind = await self.reader.readexactly(1)
        size = int.from_bytes(await self.reader.readexactly(_SIZE_BYTES))
        if kind not in kinds or size > most:
            raise Unproven(f"a frame of kind {kind!r} with {size} bytes")
        sealed, said = await self.reader.readexactly(PROOF_BYTES), await self.reader.readexactly(size)
        if not hmac.compare_digest(sealed, proof(self.key, kind, self._got.to_bytes(_COUNT_BYTES), said)):
            raise Unproven("a frame without its proof")
        self._got += 1
        return kind, said


# --- The stop mark ----------------------------------------------------------------------------------------------------

_TOKEN_BYTES: Final = 16
_NONCE_BYTES: Final = 16
_NUMBER_BYTES: Final = 4
#: A task's own random bytes, which task it is, and which attempt at it.
_HELLO_BYTES: Final = _NONCE_BYTES + 2 * _NUMBER_BYTES
#: What a proof of the token is for, so that none serves for another.
_TASK, _LINE, _WELCOME = b"task", b"line", b"welcome"
#: Kinds of frames: work for a task, a sign of life; from a task, that it took work, or a report.
_MORE, _ALIVE, _TAKEN, _REPORT = b"m", b".", b"+", b"="
#: How often a driver gives a sign of life, and without how many seconds of it a task ends. A driver that plans for
#: thousands of partitions may be busy for seconds; a mirror that waits for its turn waits for longer
#: (`journal/ownership.py`).
ALIVE_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 8.0
#: How long whoever comes may take to say who it is, and how many may at a time: of more, the first is shown out.
_HELLO_SECONDS: Final = 1.0
_MOST_STRANGERS: Final = 256
#: How long a task waits to be let in, how often it tries, and the pause between.
_CONNECT_SECONDS: Final = 5.0
_TRIES: Final = 5
_PAUSE: Final = 0.2
#: How long a task may take to say that it has taken what was handed to it.
_TAKEN_SECONDS: Final = 3.0
#: Reports that may lie in a task for a driver that does not read them.
_UNSENT_BYTES: Final = 1 << 20
LARGEST_REPORT: Final = 1 << 16
LARGEST_WORK: Final = 1 << 24

#: Given partitions to mirror as well; false where they were not taken.
Take = Callable[[tuple[Assignment, ...]], bool]
#: Given a task's number, and its report.
Hear = Callable[[int, bytes], None]


def deaf(_task: int, _report: bytes) -> None:
    """Where nobody watches but by the journal."""


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """Where tasks hold on to. The token keeps strangers from holding connections open, and from handing out work."""

    host: str
    port: int
    token: bytes = field(repr=False)


def _hello(task: int, attempt: int) -> bytes:
    """How a task answers the driver's greeting; its proof follows."""
    return secrets.token_bytes(_NONCE_BYTES) + task.to_bytes(_NUMBER_BYTES) + attempt.to_bytes(_NUMBER_BYTES)


@dataclass(slots=True, eq=False)
class _Line:
    """The driver's end of the connection of one attempt at a task."""

    frames: Frames
    task: int
    attempt: int
    handed: int = 0
    taken: int = 0
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    async def of(cls, token: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Line:
        """Greet whoever came. Raises Unproven, and as a StreamReader does."""
        greeting = secrets.token_bytes(_NONCE_BYTES)
        writer.write(greeting)
        hello, proven = await reader.readexactly(_HELLO_BYTES), await reader.readexactly(PROOF_BYTES)
        if not hmac.compare_digest(proven, proof(token, _TASK, greeting, hello)):
            raise Unproven("a stranger")
        key = proof(token, _LINE, greeting, hello)
        writer.write(proof(key, _WELCOME))
        task, attempt = hello[_NONCE_BYTES:-_NUMBER_BYTES], hello[-_NUMBER_BYTES:]
        return cls(Frames(key, reader, writer), int.from_bytes(task), int.from_bytes(attempt))

    def hand(self, payload: bytes) -> None:
        self.handed += 1
        self.frames.write(_MORE, payload)


class _Switchboard:
    """The lines of an epoch's tasks, and what was handed to each."""

    def __init__(self, token: bytes, hear: Hear) -> None:
        self.lines: dict[_Line, None] = {}  # in the order in which they came
        self.strangers: dict[asyncio.StreamWriter, None] = {}  # the same, until they have said who they are
        self.handed: dict[int, list[bytes]] = {}
        self.marked = False
        self.has_met = False
        self.held: set[asyncio.Task[None]] = set()
        self._token, self._hear = token, hear

    def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection. No coroutine: its task, cancelled before the first step, would close nothing."""
        if self.marked:
            writer.close()
            return
        self.strangers[writer] = None  # the mark must not miss a task that is just coming
        if len(self.strangers) > _MOST_STRANGERS:
            first = next(iter(self.strangers))
            del self.strangers[first]
            first.transport.abort()
        held = asyncio.create_task(self._hold(reader, writer))
        self.held.add(held)
        held.add_done_callback(self.held.discard)

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its end."""
        line = None
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                line = await _Line.of(self._token, reader, writer)
            self._let_in(line)
            while True:  # until the task ends
                kind, said = await line.frames.read((_TAKEN, _REPORT), LARGEST_REPORT)
                if kind == _TAKEN:
                    line.taken += 1
                    line.heard.set()
                else:
                    self._hear(line.task, said)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # a stranger, or a task that is gone: either way nobody listens
        finally:
            self.strangers.pop(writer, None)
            if line is not None:
                self.lines.pop(line, None)
                line.heard.set()
            writer.close()

    def _let_in(self, line: _Line) -> None:
        """The same attempt that comes again is one whose connection broke without our knowing, or that Spark runs anew:
        the former line is of nobody who should go on.
        """
        for former in [known for known in self.lines if (known.task, known.attempt) == (line.task, line.attempt)]:
            del self.lines[former]
            former.frames.writer.transport.abort()
        self.strangers.pop(line.frames.writer, None)
        self.lines[line] = None
        self.has_met = True
        for payload in self.handed.get(line.task, ()):  # its task is tried again
            line.hand(payload)


class ControlServer:
    """The driver's side."""

    def __init__(self, server: asyncio.Server, address: ControlAddress, board: _Switchboard) -> None:
        self._server, self.address, self._board = server, address, board
        self._living = asyncio.create_task(self._live())

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            for line in self._board.lines:
                if line.frames.unsent < _UNSENT_BYTES:
                    line.frames.write(_ALIVE)

    @classmethod
    async def open(cls, bind: str, host: str = "", hear: Hear = deaf) -> ControlServer:
        """Listen on a free port of the address `bind`, which tasks know as `host`. `hear` gets what tasks report."""
        token = secrets.token_bytes(_TOKEN_BYTES)
        board = _Switchboard(token, hear)
        server = await asyncio.start_server(board.meet, bind, 0)
        return cls(server, ControlAddress(host or bind, server.sockets[0].getsockname()[1], token), board)

    @property
    def was_reached(self) -> bool:
        """Some task has begun, and has got as far as here."""
        return self._board.has_met

    @property
    def reached(self) -> set[int]:
        """The numbers of the tasks that hold a connection now."""
        return {line.task for line in self._board.lines}

    async def hand(self, task: int, more: tuple[Assignment, ...]) -> bool:
        """Let a task mirror these partitions as well, and each further attempt at it; false where it does not
        say in time that it does: it may not have begun, or be ending.
        """
        payload = pickle.dumps(more)
        line = next((line for line in reversed(self._board.lines) if line.task == task), None)  # its newest attempt
        if line is None or self._board.marked or len(payload) > LARGEST_WORK:
            return False
        self._board.handed.setdefault(task, []).append(payload)
        line.hand(payload)
        due = line.handed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKEN_SECONDS):
                while line.taken < due and line in self._board.lines:
                    line.heard.clear()
                    await line.heard.wait()
        return line.taken >= due

    def set(self) -> None:
        """End the epoch: every task, those included that have yet to connect."""
        if self._board.marked:
            return
        self._board.marked = True
        self._living.cancel()
        loop = asyncio.get_running_loop()
        for listening in self._server.sockets:
            loop.remove_reader(listening)
        loop.call_soon(self._server.close)  # at once, it would lose the socket of who was just accepted (Python 3.11)
        for writer in (*self._board.strangers, *(line.frames.writer for line in self._board.lines)):
            writer.close()

    async def close(self) -> None:
        """Set the mark, and wait until every line is closed and the port is free."""
        self.set()
        await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.gather(self._server.wait_closed(), *self._board.held, return_exceptions=True)


@dataclass(slots=True, eq=False)
class Voice:
    """How a task sends its driver reports, while it holds on to it."""

    frames: Frames | None = None

    def send(self, report: bytes) -> bool:
        """Whether it was taken; that it arrives nobody waits for. False while the driver is not there or does not read:
        then it is to be sent again. One beyond `LARGEST_REPORT` is left to journal and result: no later try would do.
        """
        if self.frames is None or self.frames.unsent >= _UNSENT_BYTES:
            return False
        if len(report) <= LARGEST_REPORT:
            self.frames.write(_REPORT, report)
        return True


async def until_marked(
    address: ControlAddress, task: int, take: Take, channel: Voice | None = None, attempt: int = 0
) -> None:
    """Return when the mark is set or the driver is gone: its end of the connection closes, it is silent for
    `SILENT_SECONDS`, nobody listens any more, or somebody else does. Until then `take` gets what the driver hands to
    this task, and `channel` reaches the driver.

    Raises OSError where the driver cannot be reached from here at all.
    """
    channel = channel or Voice()
    for tried in range(_TRIES):
        if tried:
            await asyncio.sleep(_PAUSE)
        try:
            reader, writer = await asyncio.open_connection(address.host, address.port)
        except ConnectionRefusedError:
            return
        try:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    frames = await _let_in(address.token, task, attempt, reader, writer)
            except Unproven:
                return
            except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                continue  # no mark: a driver with much to do shows out whom it does not know yet
            channel.frames = frames
            while True:
                async with asyncio.timeout(SILENT_SECONDS):
                    kind, payload = await frames.read((_MORE, _ALIVE), LARGEST_WORK)
                if kind == _MORE and take(pickle.loads(payload)):  # noqa: S301 -- whoever wrote it knows the token
                    frames.write(_TAKEN)
        except TimeoutError:
            logs.get("mirror.stopmark").warning("driver_silent", task=task, seconds=SILENT_SECONDS)
            return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            channel.frames = None
            writer.close()


async def _let_in(
    token: bytes, task: int, attempt: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Frames:
    """Say who we are, and hear that the driver knows. Raises Unproven, and as a StreamReader does."""
    greeting, hello = await reader.readexactly(_NONCE_BYTES), _hello(task, attempt)
    writer.write(hello + proof(token, _TASK, greeting, hello))
    key = proof(token, _LINE, greeting, hello)
    if not hmac.compare_digest(await reader.readexactly(PROOF_BYTES), proof(key, _WELCOME)):
        raise Unproven("not the driver")
    return Frames(key, reader, writer)


def watch(
    address: ControlAddress,
    task: int,
    take: Take,
    marked: Callable[[], None],
    channel: Voice | None = None,
    attempt: int = 0,
    alone: Callable[[], None] = lambda: None,
) -> asyncio.Task[None]:
    """Let `take` have what is handed to the task, and call `marked` when the mark is set. A task that cannot reach the
    driver says so, calls `alone`, and runs until its time is over.
    """

    async def wait() -> None:
        try:
            await until_marked(address, task, take, channel, attempt)
        except OSError as problem:
            where = f"{address.host}:{address.port}"
            logs.get("mirror.stopmark").warning("driver_not_reached", address=where, reason=str(problem))
            alone()
        else:
            marked()

    return asyncio.create_task(wait())
