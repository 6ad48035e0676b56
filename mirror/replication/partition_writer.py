"""The writing end of one partition: what waits for the target, in offset order.

A queue holds batches and gaps. Where the source has an offset that the mirror does not write (a control marker, an
aborted transaction, a hole that compaction left), the target gets a marker, which takes the offset and is seen by no
consumer. Where offsets are translated there are no gaps: the offset map records where records went.

    W1  a batch is appended only where the target's next offset is the batch's own: nothing missing before it,
        nothing repeated; what is missing is a gap, and is filled first. A partition writer with an offset map passes
        over what is missing instead, and the batch's place is behind the one before
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from uuid import UUID

from mirror import clock
from mirror.errors import PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.connection import Connection
from mirror.observability.status import Histogram
from mirror.policy.rules import Rules
from mirror.records.header import CRC_AT, CRC_FROM, BatchHeader, ProducerState, RawBatch, parse_header, restamp
from mirror.records.recipe import Pieces
from mirror.replication.assignment import LastBatch, LastPosition, Loss
from mirror.replication.classifier import Verdict
from mirror.replication.coalescer import Coalescer
from mirror.replication.decide import Position
from mirror.replication.observe import FENCE
from mirror.replication.offset_map import OffsetMap
from mirror.states import RESOLVED_BY, Remedy, State

#: A broker writes some ten thousand markers a second; a longer gap is not worth its time and space.
LONGEST_GAP: Final = 1_000_000


#: So often a broker closes a connection over a batch that goes alone before that is not sent any more (W15).
CLOSINGS: Final = 2


class Unwritable(PartitionStop):
    """The stop for records that the target will not take, or nobody can read; `loss`: what is left out to go on."""

    def __init__(self, loss: Loss, detail: str, *remedies: Remedy) -> None:
        super().__init__(State.REFUSED, *loss.source, loss.first, detail, *remedies)
        self.loss = loss


@dataclass(frozen=True, slots=True)
class CutOff:
    """The batch at source offset `offset`, of `size` bytes, which was on its way when the target closed the connection;
    `alone`: how often, while nothing else was on that connection (W15 in `writer.py`).
    """

    offset: int
    size: int
    alone: int = 0

    @property
    def is_too_large(self) -> bool:
        """The target does not take a batch of that size."""
        return self.alone >= CLOSINGS


@dataclass(slots=True)
class PartitionCounters:
    """What was acknowledged for one partition since the run began; `filled` are offsets that got a marker.
    `latency_ms` is the last batch's, None where its records have no timestamps; `latency` has those of all batches.
    `verdict_bytes` are those written, and of what was dropped those that were not. Where offsets move, what was
    dropped is counted below source offset `dropped_until`. `target_lost` are records that the target had acknowledged
    and lost.
    """

    records: int = 0
    batches: int = 0
    bytes: int = 0
    filled: int = 0
    lost: int = 0
    target_lost: int = 0
    dropped_until: int = 0
    latency_ms: int | None = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    verdict_bytes: Counter[str] = field(default_factory=Counter)
    latency: Histogram = field(default_factory=Histogram)

    def add(self, out: PendingBatch, now_ms: int) -> None:
        """Count a batch that is in the target's log by now (Unix ms)."""
        size, verdict, newest = len(out.raw.data), out.verdict.name, out.raw.header.max_timestamp
        self.records += out.raw.header.count
        self.batches += 1
        self.bytes += size
        self.verdicts[verdict] += 1
        self.verdict_bytes[verdict] += size
        if newest < 0:
            self.latency_ms = None
        else:
            self.latency_ms = max(0, now_ms - newest)
            self.latency.add(self.latency_ms / 1000)


class PendingBatch(NamedTuple):
    """A batch on its way: its header as sent, the batch, and what to count when it is acknowledged.

    It must land at offset `target_offset` of the target; then the source is mirrored up to `next_offset`. `pieces` say
    where its records come from, None where they are at its own offsets. `epoch` is the source's leader epoch
    of what comes last below `epoch_until`; -1 where that has none. `is_rewritten`: the source has its records in other
    batches.
    """

    header: bytes
    raw: RawBatch
    verdict: Verdict
    target_offset: int
    next_offset: int
    pieces: Pieces | None
    epoch: int = -1
    is_rewritten: bool = False
    epoch_until: int = -1

    @property
    def end(self) -> int:
        """Where the target's log ends once this is in it."""
        return self.target_offset + self.raw.header.count


@dataclass(slots=True)
class Gap:
    """Offsets from `first` up to `next_offset` that markers take; the first marker has the epoch of `stamp`. Below
    `lost_until` were records that the source lost. `epoch` is the source's leader epoch of what comes last below
    `epoch_until`, or next, -1 where it has none: what is behind that may be of a later one.
    """

    first: int
    next_offset: int
    stamp: ProducerState
    lost_until: int = -1
    epoch: int = -1
    epoch_until: int = -1
    verdicts: Counter[str] = field(default_factory=Counter)
    verdict_bytes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Premises:
    """Holds what was so when a position was read: nothing is sent once it is not (W11, W13 in `writer.py`)."""

    topic_id: UUID | None = None  # of the target topic
    session: Connection | None = None  # to its leader, open before
    suspensions: int = 0  # how often the process had been suspended


@dataclass(slots=True)
class Tail:
    """Says where the next batch goes that is queued."""

    next_offset: int  # the source is queued below it
    target_offset: int  # where the batch must be appended
    stamp: ProducerState  # of the batch
    coalescer: Coalescer  # what waits for others to join
    has_gaps: bool = False  # markers were queued
    losses: deque[Loss] = field(default_factory=deque)  # that are queued to be passed over

    @property
    def due(self) -> int:
        """The first offset that is neither queued nor waits for others to join: a source may repeat what it gave."""
        return max(self.next_offset, self.coalescer.next_offset)


@dataclass(slots=True)
class Flight:
    """Holds what was sent to the target, and not acknowledged."""

    until: int  # everything of the target below it was sent
    batches: deque[PendingBatch] = field(default_factory=deque)
    is_filling: bool = False  # markers are on their way
    held: int = 0  # bytes of the batches, and of those that are queued
    node: int = -1  # the broker that they went to
    connection: int = 0  # and which of the connections to it
    unconfirmed: list[PendingBatch] = field(default_factory=list)  # only the log's end shows their fate
    cut_off: CutOff | None = None  # the batch whose size may be why the target closed a connection

    @property
    def is_quiet(self) -> bool:
        """Nothing is under way to the target."""
        return not self.batches and not self.is_filling


@dataclass(slots=True)
class LeaderView:
    """Keeps what the target's leader knows of the producer, and when it was heard (monotonic)."""

    knows: bool  # it has a batch or a marker of the producer
    is_fenced: bool = False  # a marker of ours is in the log: whatever a dead mirror sent has an epoch that is gone
    seen_at: float = float("-inf")  # when that was sent whose answer said where the log ends
    heard_at: float = field(default_factory=clock.monotonic)  # when what was acknowledged last was sent
    muted_until: float = 0.0  # when a quota of the target lets more through


class LandedBatch(NamedTuple):
    """Keeps of a batch in the target's log all but its records."""

    header: bytes  # as it was sent
    source: BatchHeader  # as the source has it, or as it was made anew
    target_offset: int
    is_rewritten: bool

    @property
    def end(self) -> int:
        """Return where the target's log ends with it."""
        return self.target_offset + self.source.count


@dataclass(slots=True)
class Acknowledged:
    """Says where the copy stands by what the target acknowledged."""

    source_next: int  # the source is mirrored below it
    target_end: int  # where the target's log ends
    epoch: int = -1  # the source's leader epoch of the last of that
    epoch_until: int = -1  # which reaches up to this source offset at least
    newest: LandedBatch | None = None  # the last batch of that

    def next_stamp(self, position: Position) -> tuple[int, int, int] | None:
        """Return the stamp of what follows; None behind markers, which count otherwise."""
        if self.newest is None:
            begun = position.last
            return begun.stamp if begun is not None and self.target_end == position.end else None
        if self.target_end != self.newest.end:
            return None
        sent = parse_header(self.newest.header)
        stamp = ProducerState(sent.producer_id, sent.producer_epoch, sent.base_sequence)
        following = stamp.after(sent.last_offset_delta)
        return following.producer_id, following.epoch, following.sequence

    def last_batch(self, *, target_append_time: bool) -> LastBatch | None:
        """Return the last data batch, as the journal keeps it."""
        if self.newest is None:
            return None
        head, header = self.newest.header, self.newest.source
        return LastBatch(
            base=self.newest.target_offset,
            next_offset=self.newest.end,
            source_base=header.base_offset,
            crc=None if target_append_time else int.from_bytes(head[CRC_AT:CRC_FROM], "big"),
            source_crc=None if self.newest.is_rewritten else header.crc,
            count=header.count,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
        )


@dataclass(frozen=True, slots=True)
class WriterDoubt:
    """Says why nothing more is sent before the target's log was read again (W5 in `writer.py`)."""

    why: str
    counts: bool = False  # towards those in a row that stop the partition
    is_mistimed: bool = False  # an ack named another time than the batch has
    stop: PartitionStop | None = None  # the partition does not go on at all


@dataclass(slots=True)
class PartitionWriter:
    """Has what is written of a partition, from one position on."""

    source: TopicPartition  # what is copied
    target: TopicPartition  # its copy
    position: Position  # where it began
    rules: Rules = field(default_factory=Rules)  # how the copy's topic takes batches
    offset_map: OffsetMap | None = None  # of a partition whose offsets move
    premises: Premises = field(default_factory=Premises)  # what must be as it was when the position was read
    tail: Tail = field(init=False)  # where the next batch goes that is queued
    queue: deque[PendingBatch | Gap] = field(default_factory=deque)  # what was not sent yet, in offset order
    flight: Flight = field(init=False)  # what was sent and not acknowledged
    leader: LeaderView = field(init=False)  # what the target's leader knows
    acknowledged: Acknowledged = field(init=False)  # where the copy stands
    doubt: WriterDoubt | None = None  # why nothing more is sent

    def __post_init__(self) -> None:
        position, last = self.position, self.position.last
        epochs = (last.source_epoch, last.epoch_until) if last is not None else ()
        self.tail = Tail(position.next_offset, position.end, position.stamp, Coalescer(self.rules))
        self.flight, self.leader = Flight(position.end), LeaderView(position.known)
        self.acknowledged = Acknowledged(position.next_offset, position.end, *epochs)

    def doubts(
        self, why: str, *, counts: bool = False, is_mistimed: bool = False, stop: PartitionStop | None = None
    ) -> None:
        """Send nothing more through this partition writer: whoever tends the partition reads the log's end and begins a
        new one (W5). The first reason stands, and the first stop. What is queued is forgotten: it is fetched again.
        """
        first = self.doubt or WriterDoubt(why, counts, is_mistimed)
        self.doubt = replace(first, stop=first.stop or stop)
        self.forget()

    @property
    def is_idle(self) -> bool:
        """Everything queued is acknowledged, or nothing more will be sent."""
        return self.flight.is_quiet and (not self.queue or self.doubt is not None)

    @property
    def takes_plain(self) -> bool:
        """Return True if a batch that goes as it is stored may be queued at once: nothing waits for others."""
        return not (self.doubt or self.rules.coalesce_bytes or self.tail.coalescer.next_offset)

    @property
    def may_send(self) -> bool:
        """There is something to send, and nothing speaks against sending it now (W3, W5, W8 in `writer.py`)."""
        if not self.queue or self.doubt or self.flight.is_filling:
            return False
        return not self.flight.batches or (self.leader.knows and isinstance(self.queue[0], PendingBatch))

    def goes_alone(self, cut_bytes: int) -> bool:
        """Return True if a target may close the connection over what is sent next; it did over `cut_bytes`."""
        first = self.queue[0]
        if not isinstance(first, PendingBatch):
            return False
        cut_off = self.flight.cut_off
        is_same = cut_off is not None and cut_off.offset == first.raw.header.base_offset
        return is_same or bool(self.rules.max_record_bytes) or len(first.raw.data) >= cut_bytes

    def closed_on(self, *, is_alone: bool) -> CutOff:
        """The target closed the connection while the first batch in flight may have been what it read."""
        raw, known = self.flight.batches[0].raw, self.flight.cut_off
        offset = raw.header.base_offset
        alone = known.alone if known is not None and known.offset == offset else 0
        self.flight.cut_off = cut_off = CutOff(offset, len(raw.data), alone + is_alone)
        return cut_off

    @property
    def mean_size(self) -> float:
        """Bytes of a batch, on the average of those that are not acknowledged yet."""
        return self.flight.held / max(1, len(self.queue) + len(self.flight.batches))

    def append(
        self,
        raw: RawBatch,
        verdict: Verdict,
        pieces: Pieces | None = None,
        rewritten_from: int | None = None,
    ) -> None:
        """Queue a dense batch, behind a gap where offsets are missing before it (W1). `pieces` say where
        its records come from, unless from its own offsets. `rewritten_from` is the leader epoch of what that was made
        from.
        """
        header, tail = raw.header, self.tail
        epoch = header.partition_leader_epoch if rewritten_from is None else rewritten_from
        if header.base_offset != tail.next_offset or self.offset_map is not None:
            self.fill(header.base_offset, epoch=epoch)
        assert header.base_offset == tail.next_offset, (self.source, header, tail.next_offset)
        head = restamp(raw, tail.stamp)
        tail.stamp = tail.stamp.after(header.last_offset_delta)
        tail.next_offset = until = pieces.next_offset if pieces else header.next_offset
        self.flight.held += len(raw.data)
        is_rewritten = rewritten_from is not None
        self.queue.append(
            PendingBatch(head, raw, verdict, tail.target_offset, until, pieces, epoch, is_rewritten, until)
        )
        tail.target_offset += header.count

    def fill(
        self, until: int, verdict: Verdict | None = None, size: int = 0, epoch: int = -1, longest: int = LONGEST_GAP
    ) -> None:
        """Let markers take the offsets below `until`, where there is a verdict for those of a batch of `size` bytes.
        `epoch` is the source's leader epoch of what is left out, or follows. Raises PartitionStop where there are more
        than `longest`. A partition writer with an offset map passes them over.
        """
        if self.offset_map is not None:
            self._pass_over(until, epoch)
            return
        tail = self.tail
        count = until - tail.next_offset
        if count > longest:
            detail = f"{count} offsets in a row hold no record; up to {LONGEST_GAP} are filled with markers"
            raise self.refuse(tail.next_offset, detail, Remedy.OTHER_FLOW)
        if count > 0:
            last = self.queue[-1] if self.queue else None
            if isinstance(last, Gap) and not self.flight.is_filling:
                last.next_offset = until
            else:
                last = self._gap(until)
            if epoch >= 0:
                last.epoch, last.epoch_until = max(last.epoch, epoch), until
            self._ends_with(last)
            if verdict is not None:
                last.verdicts[str(verdict)] += 1
                last.verdict_bytes[str(verdict)] += size

    def _gap(self, until: int) -> Gap:
        """Queue a gap up to an offset."""
        tail = self.tail
        self.queue.append(gap := Gap(tail.next_offset, until, tail.stamp.then(1 if tail.has_gaps else FENCE)))
        tail.has_gaps = True
        return gap

    def _ends_with(self, gap: Gap) -> None:
        """Let the next batch follow a gap, which is queued last."""
        self.tail.stamp = gap.stamp.then(gap.next_offset - gap.first)
        self.tail.next_offset = self.tail.target_offset = gap.next_offset

    def _pass_over(self, until: int, epoch: int) -> None:
        """Count the offsets below `until` as mirrored as soon as what is before them is."""
        self.tail.next_offset = until = max(self.tail.next_offset, until)
        on_its_way = self.queue or self.flight.batches
        if on_its_way:
            last = on_its_way[-1]
            assert isinstance(last, PendingBatch)  # there are no gaps where there is an offset map
            if epoch >= 0:
                last = last._replace(epoch=max(last.epoch, epoch), epoch_until=until)
            on_its_way[-1] = last._replace(next_offset=until)
        else:
            self._mirrored(until, epoch, until)

    def landed(self, out: PendingBatch) -> None:
        """A batch is in the target's log, and all before it."""
        if self.offset_map is not None:
            header = out.raw.header
            if out.pieces is None:
                self.offset_map.add(header.base_offset, out.target_offset, header.count)
            else:
                self.offset_map.extend(out.pieces, out.target_offset, header.count)
        self.acknowledged.target_end = out.end
        self.acknowledged.newest = LandedBatch(out.header, out.raw.header, out.target_offset, out.is_rewritten)
        self._mirrored(out.next_offset, out.epoch, out.epoch_until)

    def marked(self, gap: Gap, count: int) -> None:
        """The first markers of a gap are in the target's log."""
        gap.first, gap.stamp = gap.first + count, gap.stamp.then(count)
        self.acknowledged.target_end = gap.first
        self._mirrored(gap.first, gap.epoch, min(gap.first, gap.epoch_until))

    def _mirrored(self, until: int, epoch: int, epoch_until: int) -> None:
        acknowledged = self.acknowledged
        acknowledged.source_next = until
        if epoch >= 0:
            acknowledged.epoch, acknowledged.epoch_until = epoch, epoch_until
        if self.offset_map is not None:
            self.offset_map.runs.pass_over(until)

    @property
    def last(self) -> LastPosition | None:
        """Where the copy stands by what is acknowledged, as the journal is to keep it; without the topics' ids."""
        begun, acknowledged = self.position.last, self.acknowledged
        if begun is None:
            return None
        return LastPosition(
            source_next=acknowledged.source_next,
            target_end=acknowledged.target_end,
            source_epoch=acknowledged.epoch,
            epoch_until=acknowledged.epoch_until,
            target_epoch=self.position.target_epoch,
            stamp=acknowledged.next_stamp(self.position),
            batch=acknowledged.last_batch(target_append_time=self.rules.target_append_time) or begun.batch,
            begins=begun.begins,
        )

    def lose(self, loss: Loss) -> None:
        """Let markers take the offsets of a loss, however many these are."""
        self.fill(loss.first)
        if self.offset_map is not None:
            self._pass_over(loss.next_offset, -1)
        elif loss.next_offset > self.tail.next_offset:
            gap = self._gap(loss.next_offset)
            gap.lost_until = loss.next_offset
            self._ends_with(gap)
        self.tail.losses.append(loss)

    @property
    def passed(self) -> Loss | None:
        """A loss that is passed over by now: reported once."""
        losses = self.tail.losses
        return losses.popleft() if losses and self.acknowledged.source_next >= losses[0].next_offset else None

    def forget(self) -> None:
        """Drop what is queued: whoever goes on fetches it again."""
        self.flight.held -= sum(len(out.raw.data) for out in self.queue if isinstance(out, PendingBatch))
        self.queue.clear()

    def refuse(
        self, offset: int, detail: str, *remedies: Remedy, state: State = State.REFUSED, **values: object
    ) -> PartitionStop:
        """The stop for what cannot be written; `values` are for the texts of its remedies."""
        return PartitionStop(state, *self.source, offset, detail, *remedies).knowing(**values)

    def unwritable(self, first: int, next_offset: int, reason: str, detail: str, *remedies: Remedy) -> Unwritable:
        """The same for the records of the source from `first` to before `next_offset`, which may be left out."""
        loss = Loss(self.source, self.target, first, next_offset, reason, detail)
        return Unwritable(loss, detail, *remedies)

    def misplaced(self, offset: int, landed: int, failed: str) -> PartitionStop:
        """The stop for a copy into which the leader took a batch although it had failed the one before."""
        before = f" ({failed})" if failed else ""
        detail = (
            f"the batch of offset {offset} landed at offset {landed} of the target, since one before it failed{before}"
            " and the leader had forgotten the producer: the copy has other records than the source from there on"
        )
        return self.refuse(offset, detail, Remedy.RENAME, Remedy.BEGIN_ANEW, state=State.DIVERGED)

    def contended(self, offset: int, detail: str) -> PartitionStop:
        """The stop for a partition that somebody else writes to."""
        return self.refuse(offset, detail, Remedy.END_WRITER, state=State.FENCED)


def stamped(source: TopicPartition, offset: int, landed: int) -> PartitionStop:
    """The stop for a copy whose records have other times than the source's."""
    detail = (
        f"the target gave the batch at offset {landed} a time of its own, and topics.append_time is source:"
        " somebody set message.timestamp.type=LogAppendTime on the copy"
    )
    return PartitionStop(State.DIVERGED, *source, offset, detail, *RESOLVED_BY[State.DIVERGED])
