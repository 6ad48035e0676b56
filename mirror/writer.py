"""The writing side: verdicts carried out on the target, each batch acknowledged at the offset it must have.

Partitions are spread over a few connections to each target leader, since a broker serves one request of a connection
at a time; a partition stays on one, so its batches arrive in order. A request takes the next batch of every
partition that has one.

    W1  a batch is appended only where the target's next offset is the batch's own: nothing missing before it,
        nothing repeated
    W2  at most 5 requests of a connection are in flight, as far back as a broker remembers a producer's batches
        (KIP-98)
    W3  while the leader does not know the producer, one batch is in flight alone: any first sequence would be accepted
    W4  an ack at another offset than expected means that somebody else writes: CONTENDED, and not one batch more
    W5  after an answer that leaves anything unclear, nothing is sent until the log's end was read again
        (`Sink.unsettled`)
    W6  bytes are held until they are acknowledged; nothing counts as mirrored before
    W7  while batches are in flight to one leader, none goes to another: acks are told apart by their order alone
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from mirror.batch.header import RawBatch
from mirror.batch.restamp import next_sequence, passed, restamp
from mirror.classifier import ALREADY_MIRRORED, Action, Verdict
from mirror.errors import AccessDenied, PartitionStop, WireError
from mirror.position import Position
from mirror.states import State
from mirror.wire.cluster import DENIED, Cluster, TopicPartition
from mirror.wire.connection import Connection
from mirror.wire.produce import ACK_TIMEOUT, Ack, produce_request, read_produce
from mirror.wire.protocol import PRODUCE

IN_FLIGHT: Final = 5
REQUEST_BYTES: Final = 1024 * 1024
#: Longer than the leader may wait for its followers.
ANSWER_TIMEOUT: Final = ACK_TIMEOUT + 10

#: The target will never take this batch: too large, list too large, bad timestamp, unsupported, invalid, policy, no
#: zstd (Kafka `Errors`).
_NEVER: Final = frozenset({10, 18, 32, 35, 42, 44, 76, 87})
#: Damage on the way or inside the batch, an error that the broker cannot name: worth another try, not many.
_DOUBTFUL: Final = frozenset({-1, 2})


#: Starts a task whose failure ends the lane.
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Outgoing(NamedTuple):
    """A batch on its way: its header as sent, the untouched batch, and what to count when it is acknowledged."""

    header: bytes
    raw: RawBatch
    verdict: Verdict


@dataclass(slots=True)
class Sink:
    """The writing end of one partition, from one position on.

    `next_offset` is where the next batch to be queued must land; everything below `sent` was sent, everything below
    `acked` is mirrored. `doubted` are the batches sent whose fate only the log's end tells.
    """

    source: TopicPartition
    target: TopicPartition
    position: Position
    next_offset: int = 0
    sequence: int = 0
    sent: int = 0
    acked: int = 0
    known: bool = False
    queue: deque[Outgoing] = field(default_factory=deque)
    in_flight: deque[Outgoing] = field(default_factory=deque)
    doubted: list[Outgoing] = field(default_factory=list)
    held: int = 0
    unsettled: str = ""
    doubtful: bool = False
    node: int = -1
    stop: PartitionStop | None = None

    def __post_init__(self) -> None:
        self.next_offset = self.sent = self.acked = self.position.next_offset
        self.sequence, self.known = self.position.sequence, self.position.known

    @property
    def may_send(self) -> bool:
        """There is a batch to send, and nothing speaks against sending it now (W3, W5)."""
        return bool(self.queue) and not self.unsettled and (self.known or not self.in_flight)

    @property
    def is_idle(self) -> bool:
        """Everything queued is acknowledged, or nothing more will be sent."""
        return not self.in_flight and (not self.queue or bool(self.unsettled))


@dataclass(slots=True)
class Tally:
    """What was acknowledged for one partition since the run began."""

    records: int = 0
    batches: int = 0
    bytes: int = 0
    latency_ms: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)


class Writer:
    """Give it sinks with `begin`; `on_change(sink)` is called when a sink was acknowledged, stopped, or became
    unsettled with nothing in flight.
    """

    def __init__(
        self,
        target: Cluster,
        on_change: Callable[[Sink], None],
        spawn: Spawn,
        partition_bytes: int,
        connections: int = 2,
    ) -> None:
        self._target = target
        self._spawn = spawn
        self._on_change = on_change
        self._partition_bytes = partition_bytes
        self._connections = connections
        self._sinks: dict[TopicPartition, Sink] = {}
        self._turns: dict[TopicPartition, int] = {}
        self._channels: dict[tuple[int, int], _Channel] = {}
        self.tallies: dict[TopicPartition, Tally] = {}
        self._finished = False

    def begin(self, sink: Sink) -> None:
        """Write a partition from its position on; replaces its former sink, which must be idle."""
        self._sinks[sink.source] = sink
        self._turns.setdefault(sink.source, len(self._turns))
        self.tallies.setdefault(sink.source, Tally())

    def finish(self) -> None:
        """Send nothing more: forget what is queued, and leave what is in flight to be acknowledged."""
        self._finished = True
        for sink in self._sinks.values():
            self._forget(sink)
        for channel in self._channels.values():
            channel.close()

    def settled(self, sink: Sink, end: int) -> None:
        """The log's end tells the fate of what an unsettled sink had sent: count what is below it."""
        for out in sink.doubted:
            if out.raw.header.next_offset <= end:
                self._count(sink.source, out)
        sink.doubted.clear()

    def room(self, source: TopicPartition) -> int:
        """Bytes that a partition's sink still takes; 0 for one that is stopped or unsettled."""
        sink = self._sinks.get(source)
        return self._partition_bytes - sink.held if sink and not sink.unsettled else 0

    def carry_out(self, verdict: Verdict, raw: RawBatch, sink: Sink) -> None:
        """Queue, skip or refuse one batch; `flush` sends. Raises PartitionStop for what must not, or can not yet, be
        written.
        """
        if sink.unsettled or verdict is ALREADY_MIRRORED:
            return
        header = raw.header
        if verdict.action not in (Action.PASS, Action.RESTAMP):
            raise self._refuse(
                sink, header.base_offset, f"{verdict.action} for reason {verdict.reason}", _ADVICE[verdict.action]
            )
        if header.base_offset != sink.next_offset:  # W1
            detail = f"offsets {sink.next_offset} to {header.base_offset - 1} do not exist on the source"
            raise self._refuse(sink, sink.next_offset, detail, _ADVICE[Action.DROP])
        if verdict.action is Action.PASS:
            head = passed(raw)
        else:
            head = restamp(raw, producer_id=sink.position.producer_id, producer_epoch=0, base_sequence=sink.sequence)
            sink.sequence = next_sequence(sink.sequence, header.last_offset_delta)
        sink.next_offset = header.next_offset
        sink.held += len(raw.data)
        sink.queue.append(Outgoing(head, raw, verdict))

    def flush(self) -> None:
        """Send what can be sent."""
        if self._finished:
            return
        waiting: dict[tuple[int, int], list[Sink]] = {}
        unsettled: list[Sink] = []
        for sink in self._sinks.values():
            if sink.may_send:
                node = self._target.leader(sink.target).node
                if node < 0 or (sink.in_flight and node != sink.node):  # W7
                    self._unsettle(sink, "the target partition has no leader" if node < 0 else "its leader moved")
                    unsettled.append(sink)
                    continue
                waiting.setdefault((node, self._turns[sink.source] % self._connections), []).append(sink)
        for key, sinks in waiting.items():
            channel = self._channels.get(key)
            if channel is None:
                channel = self._channels[key] = _Channel(self._target, *key)
            if channel.connection is None or not channel.connection.is_open:
                channel.open(self._spawn, self.flush, partial(self._unreachable, key))
                continue
            while channel.in_flight < IN_FLIGHT and self._send(channel, channel.connection, sinks):
                pass

        for sink in unsettled:
            self._on_change(sink)

    def _unreachable(self, key: tuple[int, int], problem: str) -> None:
        """No connection: every sink that waits for it must ask again where its leader is."""
        for sink in tuple(self._sinks.values()):
            at = (self._target.leader(sink.target).node, self._turns[sink.source] % self._connections)
            if sink.may_send and at == key:
                self._lost((sink,), problem)

    def doubt(self, sink: Sink, why: str) -> None:
        """Send nothing more through a sink until its position was read again."""
        self._lost((sink,), why)

    def _send(self, channel: _Channel, connection: Connection, sinks: list[Sink]) -> bool:
        """One request with the next batch of each partition that has one, up to a size; false where there is nothing
        to send.
        """
        batches: dict[TopicPartition, tuple[Any, ...]] = {}
        sent: list[Sink] = []
        size = 0
        for sink in sinks:
            if not sink.may_send or (size and size + len(sink.queue[0].raw.data) > REQUEST_BYTES):
                continue
            out = sink.queue.popleft()
            sink.in_flight.append(out)
            sink.node = channel.node
            sink.sent = out.raw.header.next_offset
            batches[sink.target] = (out.header, out.raw.records)
            size += len(out.raw.data)
            sent.append(sink)
        if not sent:
            return False
        sinks[:] = sinks[len(sent) :] + sinks[: len(sent)]  # whoever did not fit goes first next time
        topic_ids = {partition.topic: self._target.topic_id(partition.topic) for partition in batches}
        channel.in_flight += 1
        future = connection.send(PRODUCE, produce_request(connection.version(PRODUCE), batches, topic_ids))
        timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT, connection.close)

        def answered(answer: asyncio.Future[Any]) -> None:
            timer.cancel()
            channel.in_flight -= 1
            if problem := answer.exception():
                self._lost(sent, str(problem), in_flight=True)
            else:
                by_target = {sink.target: sink for sink in sent}
                for ack in read_produce(answer.result(), topic_ids):
                    if sink := by_target.pop(ack.partition, None):
                        self._acknowledged(sink, ack)
                self._lost(tuple(by_target.values()), "an answer without the partition", in_flight=True)
            self.flush()

        future.add_done_callback(answered)
        return True

    def _acknowledged(self, sink: Sink, ack: Ack) -> None:
        out = sink.in_flight.popleft()
        header = out.raw.header
        sink.held -= len(out.raw.data)
        if sink.unsettled:
            sink.doubted.append(out)  # an earlier batch failed; what became of this one is read from the log's end (W5)
        elif ack.error_code in _NEVER:
            detail = f"the target answered {ack.error_code.name} {ack.message}".rstrip()
            self._stopped(
                sink, self._refuse(sink, header.base_offset, detail, "Compare the two topics' configurations")
            )
        elif ack.error_code in DENIED:
            where = (sink.source.topic, sink.source.partition, header.base_offset)
            stop = PartitionStop(
                State.DENIED,
                *where,
                f"the target answered {ack.error_code.name}",
                f"Grant WRITE on topic {sink.target.topic}",
            )
            self._stopped(sink, stop)
        elif ack.error_code:
            sink.doubted.append(out)
            sink.doubtful = ack.error_code in _DOUBTFUL
            self._unsettle(sink, f"the target answered {ack.error_code.name}")
        elif ack.base_offset != header.base_offset:  # W4
            self._stopped(sink, contended(sink, header.base_offset, f"a batch landed at offset {ack.base_offset}"))
        else:
            sink.known = True
            sink.acked = header.next_offset
            self._count(sink.source, out)
        self._on_change(sink)

    def _count(self, source: TopicPartition, out: Outgoing) -> None:
        tally = self.tallies[source]
        tally.records += out.raw.header.count
        tally.batches += 1
        tally.bytes += len(out.raw.data)
        tally.verdicts[str(out.verdict)] += 1
        tally.latency_ms = max(0, int(time.time() * 1000) - out.raw.header.max_timestamp)

    def _lost(self, sinks: tuple[Sink, ...] | list[Sink], problem: str, in_flight: bool = False) -> None:
        for sink in sinks:
            if in_flight:
                out = sink.in_flight.popleft()
                sink.held -= len(out.raw.data)
                sink.doubted.append(out)
            self._unsettle(sink, problem)
            self._on_change(sink)

    def _unsettle(self, sink: Sink, why: str) -> None:
        """Send nothing more through this sink: whoever tends the partition reads the log's end and begins a new one
        (W5).
        """
        sink.unsettled = sink.unsettled or why
        self._forget(sink)

    def _forget(self, sink: Sink) -> None:
        """Drop what is queued: whoever goes on fetches it again."""
        sink.held -= sum(len(out.raw.data) for out in sink.queue)
        sink.queue.clear()

    def _stopped(self, sink: Sink, stop: PartitionStop) -> None:
        sink.stop = sink.stop or stop
        self._unsettle(sink, stop.detail)

    def _refuse(self, sink: Sink, offset: int, detail: str, advice: str) -> PartitionStop:
        return PartitionStop(State.REFUSED, sink.source.topic, sink.source.partition, offset, detail, advice)


class _Channel:
    """One connection to one target broker, opened when there is something to send."""

    def __init__(self, target: Cluster, node: int, number: int) -> None:
        self._target, self.node, self._purpose = target, node, f"produce-{number}"
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


def contended(sink: Sink, offset: int, detail: str) -> PartitionStop:
    """The stop for a partition that somebody else writes to."""
    advice = "Another mirror of this flow runs, or a producer writes to the target topic: end it"
    return PartitionStop(State.CONTENDED, sink.source.topic, sink.source.partition, offset, detail, advice)


_ADVICE: Final = {
    Action.REWRITE: "Rewriting batches is not supported yet; leave the topic out",
    Action.DROP: "Filling offsets that the mirror does not write is not supported yet; leave the topic out",
    Action.REFUSE: "Check the source's copy of the batch",
}
