"""Ask both logs of a partition what its position depends on.

An `Observer` asks and compares; `replication/decide.py` says what that means. The first observation costs what every
start needs. What only some cases need is a `Question`, which the decision asks for by name.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final

from mirror.errors import BadRecords, ClusterUnreachable, MalformedBatch, OpenTransaction, PartitionStop
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.log_reader import batch_at, batches, last_batch
from mirror.kafka.queries import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    EpochEnd,
    Producer,
    epoch_end,
    list_offset,
    producers,
    replicated_end,
)
from mirror.records.compare import Joined, batch_difference, is_our_padding, marker_difference
from mirror.records.header import (
    DELETE_HORIZON,
    ERAS,
    FIRST_ID,
    ProducerState,
    RawBatch,
    crc_holds,
    is_a_mirrors,
)
from mirror.replication.assignment import LastBatch, LastPosition, outside

#: Markers in one request.
MARKERS: Final = 1000
#: Epochs by which the first marker of a partition writer is ahead: of every marker that a dead mirror has on its way,
#: so that those which come later are refused.
FENCE: Final = MARKERS + 1
#: Pause between two reads of a log that ends with a marker; a broker writes several markers in a millisecond.
_MARKERS_PAUSE: Final = 0.2
#: How far the markers at a log's end are asked through at first, and by how much further each time: two mirrors that
#: write at once notice it after two requests of a thousand at the latest. How far at most.
_READ_BACK, _FURTHER = 2000, 8
_MOST_BACK: Final = 1 << 20
#: Bytes of the source that are read of a gap, of aborted transactions for example; behind them its last offsets only.
_GAP_BYTES: Final = 32 << 20
#: Bytes of the target that are compared behind the acknowledged position: what comes in a second, which is how often
#: positions are recorded.
_BEHIND_BYTES: Final = 32 << 20
#: What is compared of two logs without a record for a reader shows no leader epoch.
_EMPTY: Final = (-1, -1)


class Question(Enum):
    """Names what a decision may ask to be observed next: each costs requests that most starts do not need."""

    RESTORED = auto()  # whether a source that was cut back has the same records again
    COMPARISON = auto()  # whether both logs have the same at the copy's end
    PRODUCERS = auto()  # which producers the target's leader knows, and whether the log grew
    MIRRORED_BATCH = auto()  # what the source has where the last acknowledged batch came from
    WRITTEN = auto()  # who wrote behind the last acknowledged position, and with which numbers
    PADDING = auto()  # where the padding ends with which the target's log begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Holds what comparing the end of the copy with its source showed."""

    batch: LastBatch | None = None  # the target's last data batch, as the journal is to keep it; None where it has none
    #: A leader epoch of the source, and up to which offset it reaches; None where nothing could be compared.
    epoch: tuple[int, int] | None = None
    begin: int = 0  # from which offset of the source on it has no record where the target has none
    difference: str = ""  # the first difference, in words; empty where there is none
    offset: int = -1  # the source offset to name with the difference
    source_batch: RawBatch | None = None  # the source's batch that differs; None where it has none
    target_batch: RawBatch | None = None  # the target's batch that differs, where that is not its last one
    damage: MalformedBatch | None = None  # what could not be read of the last data batch, or of its source's
    #: The leader epoch of the source's batch right before the next one, and that offset; None where that is not known.
    reaches: tuple[int, int] | None = None
    is_kept: bool = False  # the target still holds the batch that was acknowledged last, whatever was damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Holds what is known of both logs of a partition and of its last position."""

    source: TopicPartition  # the source's partition
    target: TopicPartition  # the target's partition
    clusters: tuple[str, str] = ("the source", "the target")  # what both clusters are called
    own: ProducerState  # what the flow's producer begins with
    #: Where the flow began in the source, with an empty target; 0 where that was the source's first record.
    since: int = 0
    accepted: tuple[int, int] | None = None  # the source may have lost records between these offsets
    last: LastPosition | None = None  # the copy's last position in the journal
    losses: tuple[tuple[int, int], ...] = ()  # the source's offsets, from and to before, that are on record as lost
    start: int  # where the source's log begins
    readable: int  # where the source's log ends for a reader: its high watermark
    target_start: int  # where the target's log begins
    end: int  # where the target's log ends, on all in-sync replicas
    moved_to: int = -1  # the source offset that goes with the target's end, where offsets move; -1 where it is the same
    tail: RawBatch | None = None  # the target's last batch; None where its log is empty
    #: Where the source's leader epoch of the last acknowledged batch ends now; None where that is unknown.
    kept_until: int | None = None
    #: What the target has of the leader epoch in which it acknowledged last; None where that is unknown, or no leader
    #: was elected since.
    target_kept: EpochEnd | None = None
    source_epoch: int = -1  # the source's leader epoch of now
    target_epoch: int = -1  # the target's leader epoch in which its end was read

    asked: frozenset[Question] = frozenset()  # what was observed on demand; the fields below hold that
    #: The source's last stable offset, where a transaction is open that had ended before; -1 where none is.
    open_from: int = -1
    comparison: Comparison = Comparison()  # the end of the copy, compared with the source
    stop: PartitionStop | None = None  # what completing an offset map came upon
    begins: int = -1  # the source offset with which a copy begins whose offsets move
    producers: tuple[Producer, ...] = ()  # the flow's producers that the target's leader knows
    has_grown: bool = False  # the target's log has grown since its end was read
    instead: str = ""  # what the source has where the last acknowledged batch came from, where that is another one
    are_markers: bool = False  # all that the target has behind the last acknowledged position are markers of this flow
    #: These batches and markers are this flow's, each with the number that follows from the one before.
    are_in_order: bool = False
    padding_end: int = -1  # where the padding ends with which the target's log begins
    holds_others: bool = False  # another program wrote behind the last acknowledged position

    @property
    def next_source(self) -> int:
        """Return the source offset that goes with the target's end."""
        return self.end if self.moved_to < 0 else self.moved_to

    @property
    def begin(self) -> int:
        """Return where a copy without a record begins: where its flow began, or the source begins by now."""
        return max(self.since, self.start)

    @property
    def tail_is_ours(self) -> bool:
        """This flow wrote the target's last batch."""
        return self.tail is not None and self.own.is_kin(self.tail.header.producer_id)

    @property
    def is_empty(self) -> bool:
        """Return True if the target holds nothing, or nothing but padding."""
        return self.tail is None or is_our_padding(self.tail, self.own)

    def keeps(self, target_batch: RawBatch | None) -> bool:
        """Return True if the target's batch is sound, and the one that was acknowledged last."""
        kept = self.last.batch if self.last is not None else None
        if target_batch is None or kept is None or not kept.crc:
            return False
        header = target_batch.header
        return (header.base_offset, header.crc) == (kept.base, kept.crc) and crc_holds(target_batch)

    def unlike(
        self, offset: int, difference: str, source_batch: RawBatch | None, target_batch: RawBatch | None = None
    ) -> Comparison:
        """Return a difference, unless one of both batches is damaged, on its disk or on the way: then MalformedBatch is
        raised, since a stop for the difference would stand.
        """
        for cluster, raw in zip(self.clusters, (source_batch, self.tail), strict=True):
            if raw is not None and 0 <= raw.header.magic <= 2 and not crc_holds(raw):
                raise MalformedBatch(f"{cluster}: CRC mismatch", 0, raw.header.base_offset)
        return Comparison(difference=difference, offset=offset, source_batch=source_batch, target_batch=target_batch)


@dataclass(frozen=True, slots=True)
class Observer:
    """Asks both logs of one partition, and compares them. What is known of the copy comes from the flow's journal."""

    flow: str  # the flow's name
    source: Cluster  # the source
    source_partition: TopicPartition  # the source's partition
    target: Cluster  # the target
    target_partition: TopicPartition  # the copy
    accepted: tuple[int, int] | None = None  # the source may have lost records between these offsets
    since: int = 0  # where the flow began in the source, with an empty target; 0 for the source's first record
    last: LastPosition | None = None  # the copy's last position
    losses: tuple[tuple[int, int], ...] = ()  # the source's offsets, from and to before, that are on record as lost

    async def observe(self) -> Observation:
        """Return what every start needs.

        Raises MalformedBatch for what cannot be read, and ClusterUnreachable, AccessDenied, BrokerError.
        """
        end = await replicated_end(self.target, self.target_partition)
        target_epoch = self.target.leader(self.target_partition).epoch
        start, readable, target_start, kept, target_kept, tail = await asyncio.gather(
            list_offset(self.source, self.source_partition, EARLIEST),
            list_offset(self.source, self.source_partition, LATEST),
            list_offset(self.target, self.target_partition, EARLIEST),
            self._kept_until(),
            self._target_kept(),
            self._tail(end),
        )
        if tail is None and target_start < end > await list_offset(self.target, self.target_partition, EARLIEST):
            unread = f"{self.target}: nothing can be read at offset {end - 1}, the last of the log"
            raise MalformedBatch(unread, 0, end - 1)
        return Observation(
            source=self.source_partition,
            target=self.target_partition,
            clusters=(str(self.source), str(self.target)),
            own=ProducerState(producer_id(self.flow, self.target_partition)),
            accepted=self.accepted,
            since=self.since,
            last=self.last,
            losses=self.losses,
            start=start,
            readable=readable,
            target_start=target_start,
            end=end,
            tail=tail if end > target_start else None,
            kept_until=kept,
            target_kept=target_kept,
            source_epoch=self.source.leader(self.source_partition).epoch,
            target_epoch=target_epoch,
        )

    async def ask(self, facts: Observation, question: Question) -> Observation:
        """Return the observation with what a decision asked for: the method of that name finds it. Raises as `observe`
        does.
        """
        try:
            found: dict[str, Any] = await getattr(self, f"_{question.name.lower()}")(facts)
        except OpenTransaction as opened:
            if opened.cluster != facts.clusters[0]:
                raise
            found = {"open_from": opened.stable}
        return replace(facts, asked=facts.asked | {question}, **found)

    async def check_stop(self, facts: Observation, stop: PartitionStop) -> None:
        """Raise ClusterUnreachable from a stop that would stand, where either log was deleted from while both were
        compared, or where a broker is silent that may lead by now, and hold what another lacks.
        """
        try:
            await asyncio.gather(self.source.require_all(), self.target.require_all())
        except ClusterUnreachable as silent:
            raise silent from stop
        starts = await asyncio.gather(
            list_offset(self.source, self.source_partition, EARLIEST),
            list_offset(self.target, self.target_partition, EARLIEST),
        )
        if tuple(starts) != (facts.start, facts.target_start):
            gone = f"{self.source_partition}: records were deleted while both logs were compared"
            raise ClusterUnreachable(gone) from stop

    # --- Small questions ----------------------------------------------------------------------------------------------

    async def _tail(self, end: int) -> RawBatch | None:
        return await batch_at(self.target, self.target_partition, end - 1, below=end) if end else None

    async def _target_kept(self) -> EpochEnd | None:
        """Return what the target has of the leader epoch in which it acknowledged last, unless it has that still."""
        last, partition = self.last, self.target_partition
        if last is None or not 0 <= last.target_epoch < self.target.leader(partition).epoch:
            return None
        kept = await epoch_end(self.target, partition, last.target_epoch)
        return kept if kept.end >= 0 else None

    async def _kept_until(self) -> int | None:
        """Return where the leader epoch of the last acknowledged batch ends in the source, None where that is unknown:
        nothing was acknowledged, or a leader has forgotten its epochs. One that never had that epoch kept nothing.
        """
        source, partition, last = self.source, self.source_partition, self.last
        if last is None or last.source_epoch < 0:
            return None
        found = await epoch_end(source, partition, last.source_epoch)
        if found.end < 0:
            return None if source.leader(partition).epoch >= last.source_epoch else -1
        is_older = found.epoch < last.source_epoch
        if is_older and await is_of_another(source, partition, last.source_epoch, last.epoch_until):
            return -1
        return found.end

    async def _producers(self, facts: Observation) -> dict[str, Any]:
        """A log whose last batch does not show the next number must not have grown meanwhile (P3). One that ends with a
        marker may still be growing.
        """
        tail = facts.tail if facts.tail_is_ours else None
        found = await producers(self.target, self.target_partition)
        is_marker = tail is not None and tail.header.is_control
        if is_marker:
            await asyncio.sleep(_MARKERS_PAUSE)
        has_grown = (tail is None or is_marker) and (
            await replicated_end(self.target, self.target_partition) != facts.end
        )
        own = tuple(producer for producer in found if facts.own.is_kin(producer.producer_id))
        return {"producers": own, "has_grown": has_grown}

    async def _mirrored_batch(self, facts: Observation) -> dict[str, Any]:
        """A batch may be compacted since, or gone, or damaged. A cleaner writes all of one anew to note when its
        tombstones go (Kafka `MemoryRecords.filterTo`). None of that shows another log.
        """
        batch = facts.last.batch if facts.last is not None else None
        assert batch is not None
        try:
            stored = await self.source_at(batch.source_base)
        except MalformedBatch:
            return {}
        if stored is None:
            return {"instead": "no batch"}
        header = stored.header
        is_compacted = (header.base_offset, header.count) != (batch.source_base, batch.count)
        is_same = is_compacted or header.attributes & DELETE_HORIZON or header.crc == batch.source_crc
        return {} if is_same else {"instead": f"one with CRC {header.crc:08x}"}

    async def _padding(self, facts: Observation) -> dict[str, Any]:
        """A broker notes once a minute where its logs begin (Kafka `LogManager.checkpointLogStartOffsets`): one that
        crashes before brings padding back that was deleted.
        """
        offset = facts.target_start
        while (first := await batch_at(self.target, self.target_partition, offset)) is not None:
            if not is_our_padding(first, facts.own):
                break
            offset = first.header.next_offset
        return {"padding_end": offset}

    async def _written(self, facts: Observation) -> dict[str, Any]:
        """Read what the target has behind the last acknowledged position. Whether that is in order nobody knows where
        something is missing, or too long to be read.
        """
        last, own = facts.last, facts.own
        acknowledged = offset = last.target_end if last is not None else facts.readable
        due, size = None if last is None or last.stamp is None else ProducerState(*last.stamp), 0
        if due is None:  # the marker below says what comes next
            offset -= 1
        are_markers = are_in_order = is_whole = True
        begin = max(facts.target_start, offset)
        async for raw, _ in batches(self.target, self.target_partition, begin, facts.end, READ_UNCOMMITTED):
            header = raw.header
            if not own.is_kin(header.producer_id):
                return {"holds_others": header.base_offset >= acknowledged}
            if (size := size + len(raw.data)) > _BEHIND_BYTES:
                return {}
            stamp = ProducerState(header.producer_id, header.producer_epoch, max(0, header.base_sequence))
            if header.is_control:
                are_in_order &= due is None or stamp in (due, due.then(), due.then(FENCE))
                due = stamp.then()
            else:
                are_markers, are_in_order = False, are_in_order and stamp == due
                due = stamp.after(header.last_offset_delta)
            is_whole, offset = is_whole and header.base_offset == offset, header.next_offset
        is_whole &= offset == facts.end
        return {"are_markers": are_markers and is_whole, "are_in_order": are_in_order and is_whole}

    # --- Comparing both logs ------------------------------------------------------------------------------------------

    async def source_at(self, offset: int) -> RawBatch | None:
        return await batch_at(self.source, self.source_partition, offset, READ_COMMITTED, below=offset + 1)

    def source_batches(self, begin: int, end: int) -> AsyncIterator[tuple[RawBatch, bool]]:
        return batches(self.source, self.source_partition, begin, end, READ_COMMITTED)

    async def _comparison(self, facts: Observation) -> dict[str, Any]:
        """Compare the end of the copy with its source, and what is behind the last acknowledged position (P5)."""
        last, following = await self._last_data(facts)
        try:
            found = await self._compared(facts, last, following)
        except MalformedBatch as damage:
            found = Comparison(damage=damage, is_kept=facts.keeps(last), begin=facts.end)
        if not found.difference and (found.damage is None or found.is_kept):
            found = await self._compared_behind(facts) or found
        return {"comparison": found}

    async def _last_data(self, facts: Observation) -> tuple[RawBatch | None, int]:
        """Return the last batch of the target with records for a reader, None where it has none any more; and the
        offset from which on markers are known to follow it. Padding of this flow counts as none.
        """
        tail, end = facts.tail, facts.end
        if tail is None or not tail.header.is_control:
            return tail, end
        isolation = READ_UNCOMMITTED if facts.tail_is_ours else READ_COMMITTED
        oldest = max(facts.target_start, end - _MOST_BACK)
        found = await _last_batch(self.target, self.target_partition, oldest, end, isolation)
        if found is not None and found.header.is_transactional:  # a former source's, not ours: it may be aborted
            found = await _last_batch(self.target, self.target_partition, oldest, found.header.next_offset)
        return found, oldest if found is None else found.header.next_offset

    async def _compared(self, facts: Observation, target_batch: RawBatch | None, following: int) -> Comparison:
        """Compare the target's last data batch and the gap behind it. Raises MalformedBatch."""
        start, end = facts.start, facts.end
        first = max(start, following)
        if difference := await self.gap_difference(first, end):
            detail = f"the target has no record from offset {first} to {end - 1}: {difference}"
            return facts.unlike(end, detail, None)
        if target_batch is None or is_our_padding(target_batch, facts.own):
            # where neither log has a record for a reader, all that the source holds below the target's end was compared
            is_all = facts.tail is not None and following <= facts.target_start <= start < end
            return Comparison(epoch=_EMPTY if is_all else None, begin=start)
        header = target_batch.header
        base, first = header.base_offset, max(start, header.base_offset)
        unproved = Comparison(batch=LastBatch.of(target_batch, base, None), begin=start)
        if header.last_offset < start:
            return unproved
        source_batch = await self.source_at(first)
        head = source_batch.header if source_batch is not None else None
        if head is not None and head.magic == 2 and head.base_offset > header.last_offset:
            below = await self._compared_below(facts, base)
            # nothing below verifies a batch of somebody else (P7)
            is_shown = facts.own.is_kin(header.producer_id)
            return below if below.difference else replace(unproved, epoch=below.epoch if is_shown else None)
        if base < start and (head is None or head.base_offset != base):
            return unproved
        difference, last = await self.difference(facts, target_batch, source_batch)
        if difference or last is None or head is None:
            says = f": {difference}" if last is not source_batch else f", is not the source's: {difference}"
            where = f"the target's last batch with records, at offset {base}"
            return facts.unlike(end, where + says, last, target_batch)
        is_same = (head.base_offset, head.count) == (base, header.count)
        batch = LastBatch.of(target_batch, base, head.crc if is_same else None)
        reached = last.header.partition_leader_epoch, min(end, last.header.next_offset)
        return Comparison(batch=batch, epoch=reached, begin=start)

    async def _compared_below(self, facts: Observation, base: int) -> Comparison:
        """Compare the last records that the source has below the target's last batch, at `base`: it has none over all
        of that, as compaction leaves it.
        """
        oldest = max(facts.start, facts.target_start, base - _MOST_BACK)
        source_batch = await _last_batch(self.source, self.source_partition, oldest, base)
        if source_batch is None or source_batch.header.base_offset < oldest:
            return Comparison()
        offset = source_batch.header.base_offset
        target_batch = await batch_at(self.target, self.target_partition, offset, below=offset + 1)
        header = target_batch.header if target_batch is not None else None
        if header is None or header.is_control or header.base_offset > source_batch.header.last_offset:
            return Comparison()
        assert target_batch is not None
        if difference := batch_difference(target_batch, source_batch, may_be_rewritten=True):
            detail = f"the target's batch at offset {offset} is not the source's: {difference}"
            return facts.unlike(facts.end, detail, source_batch)
        return Comparison(epoch=(source_batch.header.partition_leader_epoch, source_batch.header.next_offset))

    async def _compared_behind(self, facts: Observation) -> Comparison | None:
        """Compare the batches behind the last acknowledged position, but for the last one. What cannot be read says
        nothing.
        """
        last, tail = facts.last, facts.tail
        if last is None or tail is None or last.target_end >= tail.header.base_offset:
            return None
        try:
            return (await self._walk(facts, max(last.target_end, facts.start, facts.target_start)))[0]
        except (MalformedBatch, BadRecords):
            return None

    async def _walk(self, facts: Observation, begin: int, *, is_strict: bool = False) -> tuple[Comparison | None, int]:
        """Compare all batches from an offset on, as far as `_BEHIND_BYTES` reach if not `is_strict`. Return the first
        difference, and how many batches of the target are the same. Raises MalformedBatch, BadRecords.
        """
        same, size, source_batches = 0, 0, self.source_batches(begin, facts.end)
        upcoming = await anext(source_batches, None)
        target_batches = batches(self.target, self.target_partition, begin, facts.end, READ_COMMITTED)
        async for target_batch, is_aborted in target_batches:
            header = target_batch.header
            size += len(target_batch.data)
            if not is_strict and size > _BEHIND_BYTES:
                break
            if is_our_padding(target_batch, facts.own) or (header.base_offset < begin and not is_strict):
                continue
            while upcoming is not None and upcoming[0].header.last_offset < header.base_offset:
                upcoming = await anext(source_batches, None)
            unlike = await self._unlike(facts, target_batch, is_aborted, upcoming, is_strict=is_strict)
            if unlike is not None:
                return facts.unlike(facts.end, *unlike, target_batch), same
            same += not (is_aborted or header.is_control)
        return None, same

    async def _unlike(
        self,
        facts: Observation,
        target_batch: RawBatch,
        is_aborted: bool,
        upcoming: tuple[RawBatch, bool] | None,
        *,
        is_strict: bool,
    ) -> tuple[str, RawBatch | None] | None:
        """Return what is wrong with a batch of the target, and the source's batch; None where nothing is. A hole of the
        source over a batch of this flow is a difference only if `is_strict`: compaction leaves one. The copy may have
        been written to as a source of its own, and been mirrored back: what was aborted there is a gap, for which the
        source has markers.
        """
        header, (source_batch, is_source_aborted) = target_batch.header, upcoming or (None, False)
        first, following, shown = header.base_offset, header.next_offset, source_batch
        is_hole = source_batch is None or source_batch.header.base_offset > header.last_offset
        if is_aborted:
            where, shown = f"aborted at offset {first} of the target", None
            difference = await self.gap_difference(first, following)
        elif header.is_control:
            where = f"at offset {first}"
            is_read = source_batch is not None and not is_source_aborted and crc_holds(source_batch)
            held, spans = source_batch if is_read else None, outside(self.losses, first, following)
            difference = next(filter(None, (marker_difference(*span, held) for span in spans)), "")
        elif is_hole and (is_strict or facts.own.is_kin(header.producer_id)):
            return ("the source has no batch there", None) if is_strict else None
        else:
            where = f"the target's batch at offset {first}, behind what was acknowledged, is not the source's"
            difference, shown = await self.difference(facts, target_batch, source_batch)
        return (f"{where}: {difference}", shown) if difference else None

    async def difference(
        self, facts: Observation, target_batch: RawBatch, source_batch: RawBatch | None
    ) -> tuple[str, RawBatch | None]:
        """Return what differs between a batch of the target, at the source's offsets, and those of the source from
        which it was made, in words; the first of these is `source_batch`. And the last one that was compared.
        """
        is_a_mirrors_batch = source_batch is not None and is_a_mirrors(source_batch.header.producer_id)
        may_be_rewritten = facts.own.is_kin(target_batch.header.producer_id) or is_a_mirrors_batch
        difference = batch_difference(target_batch, source_batch, may_be_rewritten=may_be_rewritten)
        end = target_batch.header.next_offset
        if difference or source_batch is None or source_batch.header.next_offset >= end:
            return difference, source_batch
        joined, last = Joined(target_batch), source_batch
        async for raw, is_aborted in self.source_batches(last.header.next_offset, end):
            last = raw
            if is_aborted:
                return f"the source has an aborted transaction at offset {raw.header.base_offset}", last
            if difference := joined.difference(raw):
                return difference, last
        return "", last

    async def gap_difference(self, first: int, end: int) -> str:
        """Return what is wrong with a target that has no record of the source's from `first` to before `end`, or the
        empty string; what is on record as lost is nothing wrong.

        Of a long gap the first `_GAP_BYTES` are read, and its last offsets.
        """
        size = 0
        async for raw, is_aborted in self.source_batches(first, end):
            if not crc_holds(raw):  # damaged, and left out as a loss: there are no records to compare
                continue
            for begin, until in outside(self.losses, first, end):
                if difference := marker_difference(begin, until, None if is_aborted else raw):
                    return difference
            size += len(raw.data)
            if size > _GAP_BYTES and raw.header.next_offset < end - _READ_BACK:
                return await self.gap_difference(end - _READ_BACK, end)
        return ""

    async def _restored(self, facts: Observation) -> dict[str, Any]:
        """Find out whether a source that was cut back below what was mirrored has the same again behind the cut, as a
        flow back puts it there. Neither what cannot be read nor a hole is the same; what either side has deleted by now
        is not compared, if something is left. A source that has nothing of that leader epoch may differ anywhere: all
        is compared then, the end first.

        The leader epoch that the journal keeps then says nothing any more: by that, the next fetch would be refused.
        """
        assert facts.kept_until is not None
        assert facts.last is not None
        start, from_cut = max(facts.start, facts.target_start), max(0, facts.kept_until)
        try:
            for begin in dict.fromkeys((max(from_cut, facts.end - _MOST_BACK), from_cut)):
                unlike, same = await self._walk(facts, max(start, begin), is_strict=True)
                if unlike is not None or (not same and begin < start):
                    return {}
        except (MalformedBatch, BadRecords):
            return {}
        return {"last": replace(facts.last, source_epoch=-1, epoch_until=-1), "kept_until": None}


async def _last_batch(
    cluster: Cluster, partition: TopicPartition, oldest: int, end: int, isolation: int = READ_COMMITTED
) -> RawBatch | None:
    return await last_batch(cluster, partition, oldest, end, isolation, _READ_BACK, _FURTHER)


def producer_id(flow: str, target: TopicPartition) -> int:
    """Return the flow's first producer id for one target partition: between 2^52 and 2^53, exact in any tool that reads
    JSON, and a multiple of `ERAS`.
    """
    digest = hashlib.sha256(f"{flow}\0{target.topic}\0{target.partition}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") % (FIRST_ID // ERAS)) * ERAS + FIRST_ID


async def is_of_another(source: Cluster, partition: TopicPartition, epoch: int, until: int) -> bool:
    """Return True if what the source holds where a leader epoch reached, up to `until`, is of another one: a leader
    that never had that epoch came back. Of a hole nobody knows: compaction may have taken all that was of it.
    """
    offset = until - 1
    try:
        found = await batch_at(source, partition, offset, below=until)
    except MalformedBatch:
        return False  # whoever reads on meets it
    if found is None or found.header.base_offset > offset:
        return False
    return found.header.partition_leader_epoch not in (-1, epoch)
