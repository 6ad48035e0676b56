"""The writing side: verdicts carried out on the target, each batch acknowledged at the offset it must have.

A request takes the next batch of every partition that has one: a broker wants one batch of each, and what a request
costs both sides is most of a small batch's cost, so partitions with small batches share one connection to their leader.
Large ones are spread over a few, since a broker serves one request of a connection at a time. A partition stays on one
while anything is in flight, so its batches arrive in order. (W1 is in `replication/partition_writer.py`.)

    W2  at most 5 requests of a connection are in flight, as far back as a broker remembers a producer's batches
        (KIP-98), and more the longer an answer is on its way at the least. A broker serves a connection's requests in
        their order, so none of them meets an unknown sequence; and what it does not remember it refuses when it comes
        once more, so that the log's end decides (W5), once it stands still
    W3  while the leader may not know the producer, one batch is in flight alone: any first sequence would be accepted,
        also behind a batch that it refused. It may have forgotten where nothing was acknowledged for `FRESH` seconds:
        of old data it forgets the producer at every sweep
    W4  an ack at another offset than expected means that somebody else writes: FENCED, and not one batch more
    W5  after an answer that leaves anything unclear, nothing is sent until the log's end was read again
        (`PartitionWriter.doubts`)
    W6  bytes are held until they are acknowledged; nothing counts as mirrored before
    W7  while batches are in flight to one leader, or over one connection, none goes to another: acks are distinguished
        by their order alone, and what overtakes is refused
    W8  markers go out alone: only when everything before them is acknowledged, and nothing follows before they are
        known to be there. A marker has no sequence by which a leader could know it again, so the log's end decides;
        of a single one the answer does, once a marker of this partition writer has fenced off what a dead mirror may
        have sent. That first one goes alone, and is so many epochs ahead that what comes later of a dead mirror is
        refused
    W9  markers go out within `FRESH` seconds of a read of the log's end: a mirror that was frozen checks again, and
        finds what its successor wrote
    W10 where offsets are translated, an ack that names another batch by the same number does not count. Sequences
        count records, so a number means the same batch only while the source has the same records: what a dead mirror
        sent may be gone there, and what we send in its place would be taken for a repetition
    W11 nothing is sent to another topic by the same name, to a leader of another epoch, or while the connection is lost
        that was open before the position was read: a broker that crashed, or was elected, may have lost what was
        acknowledged, and of old data it has forgotten the producer, so that it would take a batch at any offset
    W12 times are data: where a broker says that it put its own into a batch, nothing more is sent; nor where it says
        that it did not, and the source's broker had, so that the copy shows the producers' times. The answer to a
        repetition has the time of the batch that it repeats (Kafka `UnifiedLog.append`), which is ours
    W13 nothing is sent by a process that was suspended before it knows that the flow is still its own, nor, where that
        was for longer than its lease, before it has read the position again: another mirror may have copied all of it
        meanwhile, and of old data a leader has forgotten the producer, so that it would take it twice
    W14 what was in flight behind a batch that failed must not be in the log. A leader that forgot the producer in
        between took it, where the failed one belonged: the copy is spoilt, and that stop stands. The check of the last
        batch alone would not see it where batches are alike
    W15 a broker closes a connection, and says nothing, over which a request comes that is larger than it takes
        (`socket.request.max.bytes`). So a batch in a request that was on its way then, and is larger than any that this
        broker has answered, goes alone over a connection of its own, where it is nobody else's trouble; after
        `CLOSINGS` closings there the batch is what the target does not take. One that has several records is split
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple
from uuid import UUID

from mirror import clock
from mirror.errors import (
    AccessDenied,
    BadRecords,
    ClosedByPeer,
    ClusterUnreachable,
    PartitionStop,
    RecordTooLarge,
    TooManyBytes,
    UnsupportedVersion,
    WireError,
)
from mirror.kafka.cluster import AUTHORIZATION_ERRORS, Cluster, Leader, TopicPartition
from mirror.kafka.connection import Connection, throttled_seconds
from mirror.kafka.produce import ACK_TIMEOUT, Ack, ProduceRequest, markers_request, read_markers, read_produce
from mirror.kafka.protocol import LIST_OFFSETS, PRODUCE, WRITE_TXN_MARKERS
from mirror.kafka.queries import LATEST, list_offsets_request
from mirror.observability.status import Histogram
from mirror.policy.remedies import grant, grant_markers
from mirror.policy.rules import NO_LIMIT
from mirror.records.header import APPEND_TIME, HEADER_BYTES, BatchHeader, RawBatch
from mirror.records.recipe import CAP, Recipe
from mirror.replication.assignment import Loss
from mirror.replication.classifier import ALREADY_MIRRORED, UNREADABLE, Action, Verdict
from mirror.replication.decide import unstamped
from mirror.replication.fetcher import Spawn
from mirror.replication.observe import MARKERS
from mirror.replication.partition_writer import (
    CLOSINGS,
    Gap,
    PartitionCounters,
    PartitionWriter,
    PendingBatch,
    stamped,
)
from mirror.states import Remedy, State
from mirror.suspension import SuspensionDetector

# --- A connection to one target broker, opened when there is something to send ----------------------------------------

#: Connections to a leader that partitions with large batches are spread over, and the one for batches that go alone.
CONNECTIONS: Final = 2
ALONE: Final = CONNECTIONS
#: Requests of a connection that may be in flight, however near or far its broker is.
IN_FLIGHT: Final = 5
MOST_IN_FLIGHT: Final = 200
#: Requests that a connection carries in a second where the broker is farther than that.
REQUESTS_A_SECOND: Final = 2500


def channel_purpose(number: int) -> str:
    """What a cluster knows the connection by over which batches go to a broker; each has a few."""
    return f"produce-{number}"


class Channel:
    """`connection` is None until it was opened for the first time; `in_flight` counts requests. The quickest answer
    took `round_trip_s`.
    """

    def __init__(self, target: Cluster, node: int, number: int) -> None:
        self._target, self.node, self._purpose = target, node, channel_purpose(number)
        self.is_alone = number == ALONE
        self._opening: asyncio.Task[None] | None = None
        self.connection: Connection | None = None
        self.in_flight = 0
        self.round_trip_s = float("inf")

    @property
    def window(self) -> int:
        """Tell how many requests may be in flight (W2)."""
        if self.is_alone:
            return 1
        far = self.round_trip_s * REQUESTS_A_SECOND if self.round_trip_s < float("inf") else 0
        return min(MOST_IN_FLIGHT, max(IN_FLIGHT, round(far)))

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


class SentRequest(NamedTuple):
    """Holds a Produce request whose answer is due."""

    channel: Channel
    connection: Connection
    partition_writers: Sequence[PartitionWriter]  # each has the oldest of its batches in it that is in flight
    topic_ids: Mapping[str, UUID | None]
    size: int  # bytes
    sent_at: float  # monotonic


class SentMarkers(NamedTuple):
    """Holds markers for a gap whose answer is due, or the question for the log's end behind them, or both."""

    partition_writer: PartitionWriter
    gap: Gap
    markers: int  # how many
    marked: asyncio.Future[Any] | None
    asked: asyncio.Future[Any] | None
    sent_at: float  # monotonic


# --- The writing side -------------------------------------------------------------------------------------------------

REQUEST_BYTES: Final = 1024 * 1024
#: While a connection has so much that its socket does not take, more would be held twice, and arrive no sooner.
UNSENT_BYTES: Final = REQUEST_BYTES
#: Batches of this many bytes and more, on the average of those that wait, are large.
LARGE: Final = 128 * 1024
#: Bytes of a partition in a request besides its batch, at most: a topic's name has up to 249.
AROUND: Final = 300
#: Requests up to this size are taken by any broker.
ANY_TAKES: Final = 64 * 1024
#: Longer than the leader may wait for its followers.
ANSWER_TIMEOUT: Final = ACK_TIMEOUT + 10

#: The target will never take this batch: too large, list too large, bad timestamp, unsupported, invalid, policy, no
#: zstd (Kafka `Errors`).
_NEVER: Final = frozenset({10, 18, 32, 35, 42, 44, 76, 87})
#: What a compacted topic says to records without a key, which were written before its source was compacted.
_INVALID_RECORD: Final = 87
#: Damage on the way or inside the batch, an error that the broker cannot name: worth another try, not many.
_DOUBTFUL: Final = frozenset({-1, 2})


_SUSPENDED: Final = "this process was suspended, and the position is read again"
#: Seconds that a read of the log's end holds good for sending markers.
FRESH: Final = 2.0


class Writer:
    """Give it partition_writers with `begin`; `on_change(partition_writer)` is called when a partition writer was
    acknowledged, stopped, or came in doubt with nothing in flight. `took` has the seconds from each produce request
    to its acks; `throttled_s` are those for which brokers muted us. `detector` has to beat while the process runs. A
    record to be rewritten may have `opens` bytes without compression.
    """

    #: By a broker's address, bytes of the smallest batch over which it closed connections (W15), for tasks to come.
    _cut: ClassVar[dict[tuple[str, int], int]] = {}

    def __init__(
        self,
        target: Cluster,
        on_change: Callable[[PartitionWriter], None],
        spawn: Spawn,
        partition_bytes: int,
        opens: int = CAP,
    ) -> None:
        self._target, self._opens = target, opens
        self._spawn = spawn
        self._on_change = on_change
        self._partition_bytes = partition_bytes
        self._partition_writers: dict[TopicPartition, PartitionWriter] = {}
        self._busy: dict[TopicPartition, PartitionWriter] = {}  # with something to send, or not acknowledged
        self._flushing: asyncio.Handle | None = None
        self._turns: dict[TopicPartition, int] = {}
        self._channels: dict[tuple[int, int], Channel] = {}
        self._taken: dict[int, int] = {}  # by broker, bytes of the largest request since it last closed a connection
        self.all_counters: dict[TopicPartition, PartitionCounters] = {}
        self.took, self.throttled_s = Histogram(), 0.0
        self._finished = False
        self.detector = SuspensionDetector()
        #: Asked behind each suspension; nothing is sent while it says no, and `flush` is to be called when it does not.
        self.may_go: Callable[[], bool] = lambda: True
        self._flushed_at = 0  # how often the process had been suspended when partition writers were looked through last

    def begin(self, partition_writer: PartitionWriter) -> None:
        """Write a partition from its position on; replaces its former partition writer, which must be idle."""
        self._partition_writers[partition_writer.source] = partition_writer
        self.queue(partition_writer)
        self._turns.setdefault(partition_writer.source, len(self._turns))
        counters = self.all_counters.setdefault(partition_writer.source, PartitionCounters())
        if partition_writer.offset_map is not None and partition_writer.position.lost_until >= 0:
            counters.lost += partition_writer.position.lost_until - partition_writer.position.next_offset

    def finish(self) -> None:
        """Send nothing more: forget what is queued, and leave what is in flight to be acknowledged."""
        self._finished = True
        for partition_writer in self._partition_writers.values():
            partition_writer.forget()
        for channel in self._channels.values():
            channel.close()

    def resolve(self, partition_writer: PartitionWriter, end: int) -> None:
        """The log's end decides the fate of what a partition writer in doubt had sent: count what is below it."""
        for out in partition_writer.flight.unconfirmed:
            if out.end <= end:
                self.all_counters[partition_writer.source].add(out, clock.now_ms())
        partition_writer.flight.unconfirmed.clear()

    def holds(self) -> int:
        """Bytes of batches that wait for the target, or for its acks."""
        return sum(partition_writer.flight.held for partition_writer in self._busy.values())

    def room(self, source: TopicPartition) -> int:
        """Bytes that a partition's writer still takes, negative where it holds more than its share; 0 for one that is
        stopped or in doubt.
        """
        partition_writer = self._partition_writers.get(source)
        return (
            self._partition_bytes - partition_writer.flight.held
            if partition_writer and not partition_writer.doubt
            else 0
        )

    def carry_out(self, verdict: Verdict, raws: tuple[RawBatch, ...], partition_writer: PartitionWriter) -> None:
        """Queue, skip or refuse one batch, or several that become one; `flush` sends. Raises PartitionStop for what
        must not be written.
        """
        for _ in self.carrying_out(verdict, raws, partition_writer):
            pass

    def carrying_out(
        self, verdict: Verdict, raws: tuple[RawBatch, ...], partition_writer: PartitionWriter
    ) -> Iterator[None]:
        """The same, with a pause behind each batch that is made anew: there may be more of them than memory holds."""
        if partition_writer.doubt or verdict is ALREADY_MIRRORED:
            return
        self.queue(partition_writer)
        match verdict.action:
            case Action.RESTAMP:
                partition_writer.append(raws[0], verdict)
            case Action.DROP:
                self._drop(verdict, raws[0], partition_writer)
            case Action.REWRITE:
                yield from self._rewrite(verdict, raws, partition_writer)
            case Action.REFUSE:
                detail = f"REFUSE for reason {verdict.reason}"
                if verdict in UNREADABLE:
                    raise _unreadable(partition_writer, raws[0], detail)
                raise partition_writer.refuse(raws[0].header.base_offset, detail, Remedy.UPGRADE)

    def queue(self, partition_writer: PartitionWriter) -> None:
        """Have the next flush, and `holds`, look at a partition writer."""
        self._busy[partition_writer.source] = partition_writer

    def fill(self, until: int, partition_writer: PartitionWriter) -> None:
        """Let nothing follow below an offset of the source. Raises PartitionStop as `PartitionWriter.fill` does."""
        self.queue(partition_writer)
        partition_writer.fill(until)

    def lose(self, loss: Loss, partition_writer: PartitionWriter) -> None:
        """Let markers take the offsets of a loss behind what is queued, or pass them over where offsets move."""
        self.queue(partition_writer)
        if partition_writer.offset_map is not None:
            self.all_counters[partition_writer.source].lost += loss.next_offset - loss.first
        partition_writer.lose(loss)

    def _drop(self, verdict: Verdict, raw: RawBatch, partition_writer: PartitionWriter) -> None:
        until = raw.header.next_offset
        partition_writer.fill(until, verdict, len(raw.data), raw.header.partition_leader_epoch)
        if partition_writer.offset_map is not None:  # no marker's answer will count it
            counters = self.all_counters[partition_writer.source]
            if until > counters.dropped_until:
                counters.dropped_until = until
                counters.verdicts[str(verdict)] += 1
                counters.verdict_bytes[str(verdict)] += len(raw.data)

    def _rewrite(
        self, verdict: Verdict, raws: tuple[RawBatch, ...], partition_writer: PartitionWriter
    ) -> Iterator[None]:
        from mirror.records.rewrite import pieces, rewritten  # noqa: PLC0415 -- half a second, for partitions that need it

        try:
            recipe = self._recipe(partition_writer)
            for made, offsets in rewritten(raws, recipe, closes_up=partition_writer.offset_map is not None):
                partition_writer.append(made, verdict, pieces(offsets), raws[-1].header.partition_leader_epoch)
                yield
                if partition_writer.doubt:
                    return
                self.queue(partition_writer)
        except TooManyBytes as large:
            raise partition_writer.refuse(
                partition_writer.tail.next_offset, large.detail, Remedy.RAISE_MEMORY
            ) from large
        except RecordTooLarge as record:
            raise _too_large(partition_writer, record) from record
        except BadRecords as damage:
            number = next((place for place, raw in enumerate(raws) if raw.header.base_offset == damage.offset), 0)
            if number:
                yield from self._rewrite(verdict, raws[:number], partition_writer)
                if partition_writer.doubt:
                    return
            raise _unreadable(partition_writer, raws[number], damage.detail) from damage
        partition_writer.fill(raws[-1].header.next_offset, epoch=raws[-1].header.partition_leader_epoch)

    def _recipe(self, partition_writer: PartitionWriter) -> Recipe:
        """Return what a rewritten batch must be like to come next."""
        rules = partition_writer.rules
        return Recipe(
            first_offset=partition_writer.tail.next_offset,
            codec=rules.codec,
            max_bytes=rules.max_message_bytes,
            max_record_bytes=rules.max_record_bytes,
            cap=self._opens,
        )

    def flush(self) -> None:
        """Send what can be sent when the loop comes round, once for all who ask: there may be thousands of partition
        writers.
        """
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        if self._finished:
            return
        self.detector.beat()
        self._flushed_at = self.detector.suspensions
        if not self.may_go():
            return
        waiting: dict[tuple[int, int], list[PartitionWriter]] = {}
        in_doubt: list[PartitionWriter] = []
        self._busy = {
            source: partition_writer
            for source, partition_writer in self._busy.items()
            if (partition_writer.queue or partition_writer.flight.held)
            and self._partition_writers[source] is partition_writer
        }
        now = clock.monotonic()
        for partition_writer in self._busy.values():
            if not partition_writer.queue:
                continue
            if partition_writer.flight.is_quiet and now - partition_writer.leader.heard_at > FRESH:  # W3
                partition_writer.leader.knows = False
            if partition_writer.may_send:
                leader = self._target.leader(partition_writer.target)
                node = leader.node
                if moved := self._moved(partition_writer, leader):  # W7, W11, W13
                    partition_writer.doubts(moved)
                    in_doubt.append(partition_writer)
                    continue
                if not partition_writer.flight.batches:  # W7
                    partition_writer.flight.connection = self._connection_for(partition_writer, leader)
                waiting.setdefault((node, partition_writer.flight.connection), []).append(partition_writer)
        for key, partition_writers in waiting.items():
            channel = self._channels.get(key)
            if channel is None:
                channel = self._channels[key] = Channel(self._target, *key)
            connection = channel.connection
            if connection is None or not connection.is_open or self._target.is_misled(key[0], connection):
                channel.open(self._spawn, self.flush, partial(self._unreachable, key))
                continue
            for partition_writer in partition_writers:
                if isinstance(partition_writer.queue[0], Gap):
                    self._fill(partition_writer, partition_writer.queue[0], channel, connection)
            left = partition_writers
            while left and channel.in_flight < channel.window and connection.unsent < UNSENT_BYTES:
                left = self._send(channel, connection, left)
        for partition_writer in in_doubt:
            self._on_change(partition_writer)

    def _connection_for(self, partition_writer: PartitionWriter, leader: Leader) -> int:
        if partition_writer.goes_alone(self._cut.get(self._target.address(leader.node), NO_LIMIT)):
            return ALONE
        return self._turns[partition_writer.source] % CONNECTIONS if partition_writer.mean_size >= LARGE else 0

    def _is_awake(self) -> bool:
        """Asked at the last moment: what was made before a suspension is not sent behind it (W13)."""
        self.detector.beat()
        return self.detector.suspensions == self._flushed_at

    def check(self, partition_writer: PartitionWriter) -> None:
        """Raises ClusterUnreachable where the position has to be read again before anything is sent."""
        self.detector.beat()
        is_old = partition_writer.premises.suspensions != self.detector.suspensions
        moved = self._moved(partition_writer, self._target.leader(partition_writer.target))
        if moved := _SUSPENDED if is_old else moved:
            raise ClusterUnreachable(f"{self._target}: {partition_writer.target}: {moved}")

    def _moved(self, partition_writer: PartitionWriter, leader: Leader) -> str:
        """Why nothing may be sent to the leader known now before the position was read again (W7, W11, W13)."""
        if partition_writer.premises.suspensions < self.detector.lapsed:
            return _SUSPENDED
        if leader.node < 0:
            return "the target partition has no leader"
        if partition_writer.flight.batches and leader.node != partition_writer.flight.node:
            return "its leader moved"
        if (
            partition_writer.premises.topic_id is not None
            and self._target.topic_id(partition_writer.target.topic) != partition_writer.premises.topic_id
        ):
            return "the target topic was deleted, or is another one by now"
        return _reconnected(partition_writer, leader)

    async def session(self, target: TopicPartition) -> tuple[int, Connection]:
        """The leader of a partition and a connection to it, open before its position is read (W11). Raises
        ClusterUnreachable, AccessDenied, WireError.
        """
        leader = self._target.leader(target)
        try:
            if leader.node >= 0:
                return leader.node, await self._target.connection(leader.node, channel_purpose(0))
        except WireError:
            pass  # it may be another one by now
        await self._target.refresh((target.topic,))
        leader = self._target.leader(target)
        if leader.node < 0:
            raise ClusterUnreachable(f"{self._target}: {target}: no leader")
        return leader.node, await self._target.connection(leader.node, channel_purpose(0))

    def check_leaders(self) -> None:
        """Doubt every partition writer whose topic or leader, by what is known now, is not what it was when its
        position was read (W11), and all where the process was suspended for long since (W13).
        """
        for partition_writer in tuple(self._partition_writers.values()):
            leader = self._target.leader(partition_writer.target)
            if not partition_writer.doubt and leader.node >= 0 and (moved := self._moved(partition_writer, leader)):
                self.doubt(partition_writer, moved)

    def _unreachable(self, key: tuple[int, int], problem: str) -> None:
        """No connection: every partition writer that waits for it must ask again where its leader is."""
        for partition_writer in tuple(self._partition_writers.values()):
            if (
                partition_writer.may_send
                and (self._target.leader(partition_writer.target).node, partition_writer.flight.connection) == key
            ):
                self.doubt(partition_writer, problem)

    def doubt(self, partition_writer: PartitionWriter, why: str) -> None:
        """Send nothing more through a partition writer until its position was read again."""
        partition_writer.doubts(why)
        self._on_change(partition_writer)

    def _send(
        self, channel: Channel, connection: Connection, partition_writers: Iterable[PartitionWriter]
    ) -> list[PartitionWriter]:
        """Send one request with the next batch of each partition that has one, up to a size. Return those that may have
        more to send; who did not fit goes first.
        """
        batches: dict[TopicPartition, tuple[Any, ...]] = {}
        sent: list[PartitionWriter] = []
        left: list[PartitionWriter] = []
        size, most = 0, 0 if channel.is_alone else REQUEST_BYTES
        for partition_writer in partition_writers:
            out = partition_writer.queue[0] if partition_writer.may_send else None
            if not isinstance(out, PendingBatch):
                continue
            most = min(most, partition_writer.rules.max_request_bytes)
            data = out.raw.data
            if size and size + len(data) + AROUND > most:
                left.append(partition_writer)
                continue
            partition_writer.queue.popleft()
            flight = partition_writer.flight
            flight.batches.append(out)
            flight.node, flight.until = channel.node, out.end
            batches[partition_writer.target] = (out.header, data[HEADER_BYTES:])
            size += len(data) + AROUND
            sent.append(partition_writer)
        if not sent:
            return []
        topic_ids = {partition.topic: self._target.topic_id(partition.topic) for partition in batches}
        channel.in_flight += 1
        request = ProduceRequest(connection.version(PRODUCE), batches, topic_ids)
        future = connection.send(PRODUCE, request, self._is_awake)
        connection.expect(future, PRODUCE, connection.request_timeout or ANSWER_TIMEOUT)
        request_sent = SentRequest(channel, connection, sent, topic_ids, size, clock.monotonic())
        future.add_done_callback(partial(self._answered, request_sent))
        return left + [partition_writer for partition_writer in sent if partition_writer.queue]

    def _answered(self, request: SentRequest, answer: asyncio.Future[Any]) -> None:
        """Take the acks of a request, or doubt what it held."""
        channel = request.channel
        channel.in_flight -= 1
        if problem := answer.exception():
            if isinstance(problem, ClosedByPeer):
                self._closed(request)
            self._return_in_flight(request.partition_writers, str(problem))
        else:
            self._taken[channel.node] = max(request.size, self._taken.get(channel.node, ANY_TAKES))
            if request.size > self._cut.get(request.connection.address, NO_LIMIT):
                del self._cut[request.connection.address]
            heard_at, now_ms = clock.monotonic(), clock.now_ms()
            self.took.add(heard_at - request.sent_at)
            channel.round_trip_s = min(channel.round_trip_s, heard_at - request.sent_at)
            self.throttled_s += (muted_s := throttled_seconds(answer.result()))
            by_target = {}
            for partition_writer in request.partition_writers:
                partition_writer.leader.muted_until = heard_at + muted_s
                by_target[partition_writer.target] = partition_writer
            for ack in read_produce(answer.result(), request.topic_ids):
                if acknowledged := by_target.pop(ack.partition, None):
                    self._acknowledged(acknowledged, ack, request.sent_at, now_ms)
            self._return_in_flight(by_target.values(), "an answer without the partition")
        self.flush()

    def _closed(self, request: SentRequest) -> None:
        """Note that the broker closed the connection over which a request was on its way (W15)."""
        if request.size <= self._taken.pop(request.channel.node, ANY_TAKES):
            return
        for partition_writer in request.partition_writers:
            if not partition_writer.doubt:  # else an earlier batch of its was on its way, too
                batch = partition_writer.closed_on(is_alone=request.channel.is_alone)
                if batch.is_too_large:
                    address = request.connection.address
                    self._cut[address] = min(batch.size, self._cut.get(address, NO_LIMIT))

    def _fill(self, partition_writer: PartitionWriter, gap: Gap, channel: Channel, connection: Connection) -> None:
        """Markers for a gap, or the first of them, and the question for the log's end right behind, unless the answer
        to one marker is enough (W8); the question alone where the last read was too long ago (W9).
        """
        now = clock.monotonic()
        try:
            version = connection.version(WRITE_TXN_MARKERS)
        except UnsupportedVersion as lack:
            detail = f"{lack}; without control markers there are no equal offsets"
            _stop(partition_writer, partition_writer.refuse(gap.first, detail, Remedy.OTHER_FLOW))
            self._on_change(partition_writer)
            return
        fresh = now - partition_writer.leader.seen_at <= FRESH
        count = min(gap.next_offset - gap.first, MARKERS if partition_writer.leader.is_fenced else 1) if fresh else 0
        partition_writer.flight.is_filling, partition_writer.flight.node = True, channel.node
        partition_writer.flight.until = gap.first + count
        marked = asked = None
        if count:
            stamps = ((stamp.producer_id, stamp.epoch) for stamp in map(gap.stamp.then, range(count)))
            request = markers_request(version, partition_writer.target, stamps)
            marked = connection.send(WRITE_TXN_MARKERS, request, self._is_awake)
        if marked is None or count > 1 or not partition_writer.leader.is_fenced:
            epoch = self._target.leader(partition_writer.target).epoch
            question = list_offsets_request(connection.version(LIST_OFFSETS), {partition_writer.target: epoch}, LATEST)
            asked = connection.send(LIST_OFFSETS, question)

        behind = asked or marked
        assert behind is not None, "neither markers nor the question were sent"
        last_api = LIST_OFFSETS if asked else WRITE_TXN_MARKERS
        connection.expect(behind, last_api, connection.request_timeout or ANSWER_TIMEOUT)
        sent = SentMarkers(partition_writer, gap, count, marked, asked, now)
        behind.add_done_callback(lambda _: self._markers_answered(sent))

    def _markers_answered(self, sent: SentMarkers) -> None:
        """Count markers that are in the log, or doubt them, or stop."""
        partition_writer, gap, _, marked, asked, _ = sent
        partition_writer.flight.is_filling = False
        problem = (marked.exception() if marked else None) or (asked.exception() if asked else None)
        code = read_markers(marked.result()) if marked and not problem else None
        answer = _of(partition_writer.target, asked.result()) if asked and not problem else None
        counts, stop = code in _DOUBTFUL, None
        if code in AUTHORIZATION_ERRORS or code in _NEVER:
            stop = self._without_markers(partition_writer, gap, code)
        code = code or (answer.error_code if answer else None)
        if problem or (asked and not answer):
            partition_writer.doubts(str(problem or "an answer without the partition"), counts=counts, stop=stop)
        elif code:
            partition_writer.doubts(f"the target answered {code.name}", counts=counts, stop=stop)
        elif answer and answer.offset != partition_writer.flight.until:
            partition_writer.doubts(
                f"the target's log ends at {answer.offset} behind markers up to {partition_writer.flight.until}"
            )
        elif not partition_writer.doubt:
            self._filled(sent)
        self._on_change(partition_writer)
        self.flush()

    def _without_markers(self, partition_writer: PartitionWriter, gap: Gap, code: Any) -> PartitionStop:
        """Return the stop of a partition whose target takes no markers."""
        detail = f"the target answered {code.name} to control markers"
        if code in _NEVER:
            return partition_writer.refuse(gap.first, detail, Remedy.SEE_BROKER)
        right = grant_markers(self._target.endpoint)
        remedies = Remedy.GRANT, Remedy.OTHER_FLOW
        return partition_writer.refuse(gap.first, detail, *remedies, state=State.UNAUTHORIZED, grant=right)

    def _filled(self, sent: SentMarkers) -> None:
        partition_writer, gap, count = sent.partition_writer, sent.gap, sent.markers
        partition_writer.leader.seen_at = sent.sent_at
        partition_writer.leader.heard_at = clock.monotonic()
        partition_writer.leader.is_fenced = partition_writer.leader.is_fenced or bool(count)
        partition_writer.leader.knows = partition_writer.leader.knows or bool(count)
        counters = self.all_counters[partition_writer.source]
        counters.filled += count
        counters.lost += max(0, min(gap.first + count, gap.lost_until) - gap.first)
        partition_writer.marked(gap, count)
        if gap.first == gap.next_offset:
            counters.verdicts.update(gap.verdicts)
            counters.verdict_bytes.update(gap.verdict_bytes)
            if partition_writer.queue:  # forgotten where the task ends meanwhile
                partition_writer.queue.popleft()

    def _acknowledged(self, partition_writer: PartitionWriter, ack: Ack, sent_at: float, now_ms: int) -> None:
        flight, leader = partition_writer.flight, partition_writer.leader
        out = flight.batches.popleft()
        flight.held -= len(out.raw.data)
        is_there = ack.base_offset == out.target_offset and not ack.error_code and not partition_writer.doubt
        if is_there and _has_its_time(partition_writer, ack, out.raw.header):
            leader.knows = True
            leader.seen_at = leader.heard_at = sent_at
            partition_writer.landed(out)
            self.all_counters[partition_writer.source].add(out, now_ms)
        else:
            self._refused(partition_writer, out, ack)
        self._on_change(partition_writer)

    def _refused(self, partition_writer: PartitionWriter, out: PendingBatch, ack: Ack) -> None:
        """Find what an ack means that is not the one which was due: a stop, or a doubt."""
        header = out.raw.header
        doubt = partition_writer.doubt
        if doubt and not ack.error_code and ack.base_offset != out.target_offset:  # W14
            if doubt.stop is None or doubt.stop.state not in (State.FENCED, State.DIVERGED):  # the first one says why
                misplaced = partition_writer.misplaced(header.base_offset, ack.base_offset, doubt.why)
                partition_writer.doubt = replace(doubt, stop=misplaced)
        elif doubt:
            # an earlier batch failed; what became of this one is read from the log's end (W5)
            partition_writer.flight.unconfirmed.append(out)
        elif ack.error_code in _NEVER:
            detail = f"the target answered {ack.error_code.name} {ack.message}".rstrip()
            keyless = partition_writer.rules.compacted and ack.error_code == _INVALID_RECORD
            remedy = Remedy.TAKE_KEYLESS if keyless else Remedy.FIT_TARGET
            refusal = partition_writer.refuse(header.base_offset, detail, remedy)
            _stop(partition_writer, refusal)
        elif ack.error_code in AUTHORIZATION_ERRORS:
            detail = f"the target answered {ack.error_code.name}"
            right = grant(self._target.endpoint, partition_writer.target.topic, "WRITE")
            stop = partition_writer.refuse(
                header.base_offset, detail, Remedy.GRANT, state=State.UNAUTHORIZED, grant=right
            )
            _stop(partition_writer, stop)
        elif ack.error_code:
            target = partition_writer.target
            self._target.disowned(self._target.leader(target).node, ack.error_code, target)
            partition_writer.flight.unconfirmed.append(out)
            counts = ack.error_code in _DOUBTFUL
            partition_writer.doubts(f"the target answered {ack.error_code.name}", counts=counts)
        elif ack.base_offset != out.target_offset:  # W4
            detail = f"a batch landed at offset {ack.base_offset}"
            _stop(partition_writer, partition_writer.contended(header.base_offset, detail))
        elif _repeats_another(partition_writer, ack, header.max_timestamp):  # W10, or W12 where the log has this one
            partition_writer.doubts(f"the target has another batch at offset {ack.base_offset}", is_mistimed=True)
        elif _has_own_time(partition_writer, ack, header.max_timestamp):  # W12
            _stop(partition_writer, stamped(partition_writer.source, header.base_offset, ack.base_offset))
        else:  # W12
            _stop(partition_writer, unstamped(partition_writer.source, header.base_offset, ack.base_offset))

    def _return_in_flight(self, partition_writers: Iterable[PartitionWriter], problem: str) -> None:
        """Doubt what a request held that was not answered."""
        for partition_writer in partition_writers:
            out = partition_writer.flight.batches.popleft()
            partition_writer.flight.held -= len(out.raw.data)
            partition_writer.flight.unconfirmed.append(out)
            self.doubt(partition_writer, problem)


def _stop(partition_writer: PartitionWriter, stop: PartitionStop) -> None:
    partition_writer.doubts(stop.detail, stop=stop)


def _reconnected(partition_writer: PartitionWriter, leader: Leader) -> str:
    """Return why the target may have lost records since the position was read; empty if it cannot have (W11)."""
    if leader.epoch != partition_writer.position.target_epoch >= 0:
        return f"the target's leader epoch was {partition_writer.position.target_epoch} and is {leader.epoch}"
    if partition_writer.premises.session is not None and not partition_writer.premises.session.is_open:
        return "the connection to the target's leader was lost"
    return ""


def _has_its_time(partition_writer: PartitionWriter, ack: Ack, header: BatchHeader) -> bool:
    """Return True if a batch has the time in the target's log that the rules ask for (W12)."""
    if ack.append_time_ms == -1:
        return not (header.attributes & APPEND_TIME and partition_writer.rules.target_append_time)
    return not _has_own_time(partition_writer, ack, header.max_timestamp)


def _has_own_time(partition_writer: PartitionWriter, ack: Ack, max_timestamp: int) -> bool:
    """Return True if the target gave a batch the time of its append, which the rules do not ask for (W12)."""
    return ack.append_time_ms not in (-1, max_timestamp) and not partition_writer.rules.target_append_time


def _unreadable(partition_writer: PartitionWriter, raw: RawBatch, detail: str) -> PartitionStop:
    """The stop for what is left of a batch whose records cannot be read."""
    header = raw.header
    # a compressed set of magic 0 or 1 has its last offset alone
    first = (
        max(partition_writer.tail.next_offset, header.base_offset)
        if header.magic == 2
        else partition_writer.tail.next_offset
    )
    return partition_writer.unwritable(first, header.next_offset, "damage", detail, Remedy.ACCEPT_DAMAGE)


def _too_large(partition_writer: PartitionWriter, record: RecordTooLarge) -> PartitionStop:
    """The stop for a record that is larger alone than the target takes."""
    rules, detail = partition_writer.rules, record.detail
    remedies: tuple[Remedy, ...] = Remedy.RAISE_SIZE, Remedy.ACCEPT_DAMAGE
    if rules.max_record_bytes:
        detail = (
            f"{detail.partition(',')[0]}, and the target closed the connection {CLOSINGS} times over a request of"
            f" {rules.max_record_bytes + 1} that was alone on it, as brokers do beyond socket.request.max.bytes"
        )
        remedies = (Remedy.RAISE_REQUEST,)
    elif rules.bound_by_requests:
        detail += f", since its brokers have socket.request.max.bytes={rules.max_request_bytes}"
        remedies = Remedy.RAISE_REQUEST, Remedy.ACCEPT_DAMAGE
    return partition_writer.unwritable(record.offset, record.offset + 1, "too_large", detail, *remedies)


def _of(partition: TopicPartition, answer: Any) -> Any:
    """A ListOffsets answer's part about one partition, None where there is none."""
    parts = (part for topic in answer.topics if topic.name == partition.topic for part in topic.partitions)
    return next((part for part in parts if part.partition_index == partition.partition), None)


def _repeats_another(partition_writer: PartitionWriter, ack: Ack, max_timestamp: int) -> bool:
    """A leader took a batch for a repetition of one with other timestamps. Not detected by one that stamps batches
    itself, nor of batches without timestamps.
    """
    return partition_writer.offset_map is not None and _has_own_time(partition_writer, ack, max_timestamp)
