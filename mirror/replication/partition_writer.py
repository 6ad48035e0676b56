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
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from mirror import clock
from mirror.errors import PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.connection import Connection
from mirror.observability.status import Histogram
from mirror.policy.rules import Rules
from mirror.records.header import CRC_AT, CRC_FROM, BatchHeader, ProducerState, RawBatch, parse_header, restamp
from mirror.records.recipe import CAP, Recipe
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

    It must land at offset `target_offset` of the target; then the source is mirrored up to `next_offset`. `pieces` are
    its records as (source offset, count), empty where they are at its own offsets. `epoch` is the source's leader epoch
    of what comes last below `epoch_until`; -1 where that has none. `is_rewritten`: the source has its records in other
    batches.
    """

    header: bytes
    raw: RawBatch
    verdict: Verdict
    target_offset: int
    next_offset: int
    pieces: tuple[tuple[int, int], ...]
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


@dataclass(slots=True)
class PartitionWriter:
    """Has what is written of a partition, from one position on."""

    source: TopicPartition
    target: TopicPartition
    position: Position
    rules: Rules = field(default_factory=Rules)
    offset_map: OffsetMap | None = None  # of a partition whose offsets move
    opens: int = CAP  # bytes that a record to be rewritten may have without compression
    suspensions: int = 0  # how often the process had been suspended when the position was read
    next_offset: int = 0  # the source is queued below it
    target_offset: int = 0  # where the next batch to be queued must be appended
    stamp: ProducerState = field(default_factory=lambda: ProducerState(-1))  # of the next batch to be queued
    sent: int = 0  # everything of the target below it was sent
    acked: int = 0  # the source is mirrored below it
    known: bool = False  # the leader knows the producer
    fenced: bool = False  # a marker of ours is in the log: whatever a dead mirror sent has an epoch that is gone
    has_gaps: bool = False  # markers were queued
    coalescer: Coalescer = field(init=False)
    queue: deque[PendingBatch | Gap] = field(default_factory=deque)
    in_flight: deque[PendingBatch] = field(default_factory=deque)
    filling: bool = False  # markers are in flight
    unconfirmed: list[PendingBatch] = field(default_factory=list)  # sent, and only the log's end shows their fate
    held: int = 0  # bytes queued and in flight
    in_doubt: str = ""  # why nothing more is sent before the log's end was read again
    mistimed: bool = False  # an ack named another time than the batch has
    doubtful: bool = False  # the doubt counts towards those in a row that stop the partition
    node: int = -1  # the broker that what is in flight went to
    connection: int = 0  # and which of the connections to it
    seen_at: float = float("-inf")  # when that question was sent whose answer said that the log ends at `acked`
    heard_at: float = field(default_factory=clock.monotonic)  # when what was acknowledged last was sent
    stop: PartitionStop | None = None
    landed_at: int = 0  # where the target's log ends with what is acknowledged
    epoch: int = -1  # the source's leader epoch of the last of that
    epoch_until: int = -1  # which reaches up to this source offset at least
    newest: tuple[bytes, BatchHeader, int, bool] | None = None  # the last batch of that
    session: Connection | None = None  # to the leader, open before the position was read
    topic_id: UUID | None = None  # of the target topic then
    losses: deque[Loss] = field(default_factory=deque)  # that are being passed over
    cut_off: CutOff | None = None  # the batch whose size may be why the target closed a connection
    muted_until: float = 0.0  # when a quota of the target lets more through (monotonic)

    def __post_init__(self) -> None:
        self.next_offset = self.acked = self.position.next_offset
        self.target_offset = self.sent = self.landed_at = self.position.end
        if (last := self.position.last) is not None:
            self.epoch, self.epoch_until = last.source_epoch, last.epoch_until
        self.stamp, self.known = self.position.stamp, self.position.known
        self.coalescer = Coalescer(self.rules)

    @property
    def due(self) -> int:
        """The first offset that is neither queued nor waits for others to join: a source may repeat what it gave."""
        return max(self.next_offset, self.coalescer.next_offset)

    @property
    def is_quiet(self) -> bool:
        """Nothing is under way to the target."""
        return not self.in_flight and not self.filling

    @property
    def is_idle(self) -> bool:
        """Everything queued is acknowledged, or nothing more will be sent."""
        return self.is_quiet and (not self.queue or bool(self.in_doubt))

    @property
    def takes_plain(self) -> bool:
        """Return True if a batch that goes as it is stored may be queued at once: nothing waits for others."""
        return not (self.in_doubt or self.rules.coalesce_bytes or self.coalescer.next_offset)

    @property
    def may_send(self) -> bool:
        """There is something to send, and nothing speaks against sending it now (W3, W5, W8 in `writer.py`)."""
        if not self.queue or self.in_doubt or self.filling:
            return False
        return not self.in_flight or (self.known and isinstance(self.queue[0], PendingBatch))

    def goes_alone(self, cut_bytes: int) -> bool:
        """Return True if a target may close the connection over what is sent next; it did over `cut_bytes`."""
        first = self.queue[0]
        if not isinstance(first, PendingBatch):
            return False
        is_same = self.cut_off is not None and self.cut_off.offset == first.raw.header.base_offset
        return is_same or bool(self.rules.max_record_bytes) or len(first.raw.data) >= cut_bytes

    def closed_on(self, *, is_alone: bool) -> CutOff:
        """The target closed the connection while the first batch in flight may have been what it read."""
        raw, known = self.in_flight[0].raw, self.cut_off
        offset = raw.header.base_offset
        alone = known.alone if known is not None and known.offset == offset else 0
        self.cut_off = CutOff(offset, len(raw.data), alone + is_alone)
        return self.cut_off

    @property
    def mean_size(self) -> float:
        """Bytes of a batch, on the average of those that are not acknowledged yet."""
        return self.held / max(1, len(self.queue) + len(self.in_flight))

    @property
    def recipe(self) -> Recipe:
        """What a rewritten batch must be like to come next."""
        return Recipe(
            first_offset=self.next_offset,
            codec=self.rules.codec,
            max_bytes=self.rules.max_message_bytes,
            max_record_bytes=self.rules.max_record_bytes,
            cap=self.opens,
        )

    def append(
        self,
        raw: RawBatch,
        verdict: Verdict,
        pieces: tuple[tuple[int, int], ...] = (),
        rewritten_from: int | None = None,
    ) -> None:
        """Queue a dense batch, behind a gap where offsets are missing before it (W1). `pieces` are its records as
        (source offset, count) where that is not one run. `rewritten_from` is the leader epoch of what it was made from.
        """
        header = raw.header
        epoch = header.partition_leader_epoch if rewritten_from is None else rewritten_from
        if header.base_offset != self.next_offset or self.offset_map is not None:
            self.fill(header.base_offset, epoch=epoch)
        assert header.base_offset == self.next_offset, (self.source, header, self.next_offset)
        head = restamp(raw, self.stamp)
        self.stamp = self.stamp.after(header.last_offset_delta)
        self.next_offset = sum(pieces[-1]) if pieces else header.next_offset
        self.held += len(raw.data)
        is_rewritten, until = rewritten_from is not None, self.next_offset
        out = PendingBatch(head, raw, verdict, self.target_offset, until, pieces, epoch, is_rewritten, until)
        self.queue.append(out)
        self.target_offset += header.count

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
        count = until - self.next_offset
        if count > longest:
            detail = f"{count} offsets in a row hold no record; up to {LONGEST_GAP} are filled with markers"
            raise self.refuse(self.next_offset, detail, Remedy.OTHER_FLOW)
        if count > 0:
            last = self.queue[-1] if self.queue else None
            if isinstance(last, Gap) and not self.filling:
                last.next_offset = until
            else:
                self.queue.append(last := Gap(self.next_offset, until, self.stamp.then(1 if self.has_gaps else FENCE)))
                self.has_gaps = True
            if epoch >= 0:
                last.epoch, last.epoch_until = max(last.epoch, epoch), until
            self.stamp = last.stamp.then(until - last.first)
            self.next_offset = self.target_offset = until
            if verdict is not None:
                last.verdicts[str(verdict)] += 1
                last.verdict_bytes[str(verdict)] += size

    def _pass_over(self, until: int, epoch: int) -> None:
        """Count the offsets below `until` as mirrored as soon as what is before them is."""
        self.next_offset = max(self.next_offset, until)
        on_its_way = self.queue or self.in_flight
        if on_its_way:
            last = on_its_way[-1]
            assert isinstance(last, PendingBatch)  # there are no gaps where there is an offset map
            if epoch >= 0:
                last = last._replace(epoch=max(last.epoch, epoch), epoch_until=self.next_offset)
            on_its_way[-1] = last._replace(next_offset=self.next_offset)
        else:
            self._mirrored(self.next_offset, epoch, self.next_offset)

    def landed(self, out: PendingBatch) -> None:
        """A batch is in the target's log, and all before it."""
        if self.offset_map is not None:
            target_offset = out.target_offset
            for source, count in out.pieces or ((out.raw.header.base_offset, out.raw.header.count),):
                self.offset_map.add(source, target_offset, count)
                target_offset += count
        self.landed_at = out.end
        self.newest = out.header, out.raw.header, out.target_offset, out.is_rewritten
        self._mirrored(out.next_offset, out.epoch, out.epoch_until)

    def marked(self, gap: Gap, count: int) -> None:
        """The first markers of a gap are in the target's log."""
        gap.first, gap.stamp = gap.first + count, gap.stamp.then(count)
        self.landed_at = gap.first
        self._mirrored(gap.first, gap.epoch, min(gap.first, gap.epoch_until))

    def _mirrored(self, until: int, epoch: int, epoch_until: int) -> None:
        self.acked = until
        if epoch >= 0:
            self.epoch, self.epoch_until = epoch, epoch_until
        if self.offset_map is not None:
            self.offset_map.runs.pass_over(until)

    @property
    def last(self) -> LastPosition | None:
        """Where the copy stands by what is acknowledged, as the journal is to keep it; without the topics' ids."""
        begun = self.position.last
        if begun is None:
            return None
        return LastPosition(
            source_next=self.acked,
            target_end=self.landed_at,
            source_epoch=self.epoch,
            epoch_until=self.epoch_until,
            target_epoch=self.position.target_epoch,
            stamp=self._next_stamp(begun),
            batch=self._last_batch() or begun.batch,
            begins=begun.begins,
        )

    def _next_stamp(self, begun: LastPosition) -> tuple[int, int, int] | None:
        """That of what follows what is acknowledged; None behind markers, which count otherwise."""
        if self.newest is None:
            return begun.stamp if self.landed_at == self.position.end else None
        head, header, target_offset, _ = self.newest
        if self.landed_at != target_offset + header.count:
            return None
        sent = parse_header(head)
        stamp = ProducerState(sent.producer_id, sent.producer_epoch, sent.base_sequence).after(header.last_offset_delta)
        return stamp.producer_id, stamp.epoch, stamp.sequence

    def _last_batch(self) -> LastBatch | None:
        if self.newest is None:
            return None
        head, header, target_offset, is_rewritten = self.newest
        return LastBatch(
            base=target_offset,
            next_offset=target_offset + header.count,
            source_base=header.base_offset,
            crc=None if self.rules.target_append_time else int.from_bytes(head[CRC_AT:CRC_FROM], "big"),
            source_crc=None if is_rewritten else header.crc,
            count=header.count,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
        )

    def lose(self, loss: Loss) -> None:
        """Let markers take the offsets of a loss, however many these are."""
        self.fill(loss.first)
        if self.offset_map is not None:
            self._pass_over(loss.next_offset, -1)
        elif (count := loss.next_offset - self.next_offset) > 0:
            gap = Gap(self.next_offset, loss.next_offset, self.stamp.then(1 if self.has_gaps else FENCE))
            gap.lost_until, self.has_gaps = loss.next_offset, True
            self.queue.append(gap)
            self.stamp = gap.stamp.then(count)
            self.next_offset = self.target_offset = loss.next_offset
        self.losses.append(loss)

    @property
    def passed(self) -> Loss | None:
        """A loss that is passed over by now: reported once."""
        return self.losses.popleft() if self.losses and self.acked >= self.losses[0].next_offset else None

    def forget(self) -> None:
        """Drop what is queued: whoever goes on fetches it again."""
        self.held -= sum(len(out.raw.data) for out in self.queue if isinstance(out, PendingBatch))
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
