"""Both logs of one partition, as they are when its position is read, and which stop it means where they do not agree.

What a stop says is decided here alone, so that it names the same side wherever both logs are compared (P5 to P10
in `replication/position.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, replace
from typing import Final

from mirror.errors import MalformedBatch, OpenTransaction, PartitionStop
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.log_reader import batch_at
from mirror.kafka.queries import EARLIEST, LATEST, EpochEnd, epoch_end, list_offset, replicated_end
from mirror.records.compare import is_our_padding, shows_create_times
from mirror.records.header import APPEND_TIME, ERAS, FIRST_ID, ProducerState, RawBatch, crc_holds, is_a_mirrors
from mirror.replication.assignment import LastPosition, outside
from mirror.states import RESOLVED_BY, Remedy, State

#: What resolves a copy that is not its source's.
ANOTHER_COPY: Final = (Remedy.RENAME, Remedy.BEGIN_ANEW)


class Unconfirmed(PartitionStop):
    """The stop for a copy of which nothing can be compared with the source, and whose end is not the position that the
    journal keeps. A person may confirm: that the target's end `target_end` goes with the source's `offset`, which
    is -1 where that is not known.
    """

    def __init__(self, source: TopicPartition, offset: int, target_end: int, detail: str) -> None:
        accept = (Remedy.ACCEPT_COPY,) if offset >= 0 else ()
        detail = f"nothing confirms the copy: {detail}"
        super().__init__(State.DIVERGED, *source, offset, detail, *accept, Remedy.BEGIN_ANEW)
        self.target_end = target_end


def producer_id(flow: str, target: TopicPartition) -> int:
    """The flow's first producer id for one target partition: between 2^52 and 2^53, exact in any tool that reads
    JSON, and a multiple of `ERAS`.
    """
    digest = hashlib.sha256(f"{flow}\0{target.topic}\0{target.partition}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") % (FIRST_ID // ERAS)) * ERAS + FIRST_ID


@dataclass(frozen=True, slots=True)
class Logs:
    """Both logs of a partition as they were when its position was read: where the source's begins and ends, and the
    target's; `tail` is the target's last batch. `own` is what the flow's producer begins with. `since` is where the
    flow began in the source, with an empty target; 0 where that was its first record. `last` is what the journal keeps
    of the copy; `losses` are the source's offsets, from and to before, that are on record as lost, and `way_back`
    those that a flow back left out. `kept_until` is
    where the leader epoch of that ends in the source now, None where that is not known. `target_epoch` is the
    leader epoch in which the target's end was read, `source_epoch` the source's of now. `target_kept` is what the
    target has of the leader epoch in which it acknowledged last, None where that is not known, or no leader was elected
    since. `clusters`: what both are called.
    """

    source: TopicPartition
    start: int
    readable: int
    target_start: int
    end: int
    tail: RawBatch | None
    own: ProducerState
    since: int = 0
    last: LastPosition | None = None
    losses: tuple[tuple[int, int], ...] = ()
    kept_until: int | None = None
    target_epoch: int = -1
    source_epoch: int = -1
    clusters: tuple[str, str] = ("the source", "the target")
    target_kept: EpochEnd | None = None
    way_back: tuple[tuple[int, int], ...] = ()

    @property
    def was_not_cut(self) -> bool:
        """No leader of the source was elected since the last acknowledged batch: it has kept all that it had."""
        return self.last is not None and 0 <= self.source_epoch == self.last.source_epoch

    @property
    def begin(self) -> int:
        """Where a copy without a record begins: where the flow began in the source, or the source begins by now."""
        return max(self.since, self.start)

    @property
    def is_empty(self) -> bool:
        """The target holds nothing, or nothing but padding."""
        return self.tail is None or is_our_padding(self.tail, self.own)

    @property
    def is_unaligned(self) -> bool:
        """The target holds nothing, or nothing but padding, never held more, and is to begin behind that."""
        if self.tail is not None:
            return self.end <= self.begin and is_our_padding(self.tail, self.own)
        # Deleted padding leaves an empty log, as expired records do: the journal distinguishes both.
        held_none = self.end == 0 or (self.last is not None and self.last.held_none(self.end))
        return self.end < self.begin and (held_none or self.end < self.since)

    @property
    def tail_is_ours(self) -> bool:
        """This flow wrote the target's last batch."""
        return self.tail is not None and self.own.is_kin(self.tail.header.producer_id)

    def was_left_out(self, source: RawBatch | None) -> bool:
        """A mirror's marker of the source, where a flow back left out what the copy has."""
        if source is None or not self.way_back or not source.header.is_control:
            return False
        at = source.header.base_offset
        return is_a_mirrors(source.header.producer_id) and not outside(self.way_back, at, at + 1)

    def may_be_alone(self, ours: RawBatch, upcoming: RawBatch | None) -> bool:
        """Whether the target's batch lies where a flow back left records out, and the source has none: its next one,
        `upcoming`, lies behind.
        """
        first, following = ours.header.base_offset, ours.header.next_offset
        if not self.way_back or outside(self.way_back, first, following):
            return False
        return upcoming is None or (upcoming.header.magic == 2 and upcoming.header.base_offset >= following)

    def may_be_gone(self, ours: RawBatch | None, at: int, upcoming: RawBatch | None) -> bool:
        """Whether the target's record at its offset `at`, in a batch, may have been the source's, where that has a hole
        before its next batch, `upcoming`: not what somebody else wrote behind the last acknowledged position. A source
        that is a copy as well may hold as a mirror's what others wrote here, as behind a flow back.
        """
        if self.last is None or at < self.last.target_end:
            return True
        if ours is not None and self.own.is_kin(ours.header.producer_id):
            return True
        return upcoming is not None and is_a_mirrors(upcoming.header.producer_id)

    def keeps(self, ours: RawBatch | None) -> bool:
        """Whether the target's batch is sound, and what was acknowledged last, whatever its source batch is by now."""
        kept = self.last.batch if self.last is not None else None
        if ours is None or kept is None or not kept.crc:
            return False
        return (ours.header.base_offset, ours.header.crc) == (kept.base, kept.crc) and crc_holds(ours)

    @property
    def is_stamped(self) -> bool:
        """This flow wrote the target's last batch, and the target's broker gave it a time."""
        return self.tail is not None and self.tail_is_ours and bool(self.tail.header.attributes & APPEND_TIME)

    @property
    def is_begun(self) -> bool:
        """The copy holds, or held, more than padding: it does not just begin where the source does, or the flow."""
        if self.last is not None and self.last.batch is not None:
            return True
        if self.tail is None:
            return self.end > self.begin
        return not is_our_padding(self.tail, self.own)

    def check_way(self) -> None:
        """Raises PartitionStop where the copy was begun with offsets that move, and is to have equal ones (P9)."""
        last = self.last
        if last is None or not last.is_moved:
            return
        what = f"offset {last.target_end} of the target goes with offset {last.source_next} of the source"
        raise self.begun_otherwise(last.target_end, f"{what}, as the journal keeps it", "translate")

    def begun_otherwise(self, at: int, detail: str, offsets: str) -> PartitionStop:
        """The stop for a copy that was begun with other `offsets` than it is to have now."""
        detail = f"{detail}: the copy was begun with topics.offsets: {offsets}"
        return self.stop(State.REFUSED, at, detail, Remedy.AS_BEGUN).knowing(offsets=offsets)

    @property
    def was_cut(self) -> bool:
        """The source was cut back below what was mirrored (P6)."""
        return self.last is not None and self.kept_until is not None and self.kept_until < self.last.epoch_until

    def with_another_epoch(self) -> Logs:
        """The same, where what was mirrored is in the source by another leader epoch than that which was kept (P6): the
        one kept would have the next fetch, too, say that the source was cut back.
        """
        assert self.last is not None
        return replace(self, last=replace(self.last, source_epoch=-1, epoch_until=-1), kept_until=None)

    def check_source_epoch(self) -> None:
        """Raises PartitionStop where the source was cut back below what was mirrored (P6)."""
        last, kept = self.last, self.kept_until
        if last is not None and kept is not None and self.was_cut:
            what = f"leader epoch {last.source_epoch} of the source ends at {kept}"
            if kept < 0:
                what = f"the source has no record of leader epoch {last.source_epoch}"
            detail = f"{what}, and was mirrored up to {last.epoch_until}: the source's log was cut back or replaced"
            raise self.truncated(last.source_next, detail)

    def target_loss(self, at: int) -> tuple[int, int] | None:
        """The source offsets of acknowledged records that the target has no more, where its end is source offset `at`
        (P8). Where it has nothing left, they begin where the copy did.
        """
        last = self.last
        if last is None or self.end >= last.target_end or last.batch is None:
            return None
        first = max(at, last.begins) if self.end == 0 or self.is_unaligned else at
        return (first, last.source_next) if first < last.source_next else None

    def target_lost(self, at: int, lost: tuple[int, int]) -> PartitionStop:
        """The stop where these cannot be copied again."""
        detail = (
            f"the target's log ends at {self.end}, and had acknowledged the source's offsets up to {lost[1] - 1}: the"
            f" target lost its tail, and the source deleted offsets {at} to {self.start - 1}"
        )
        return self.stop(State.TARGET_LOST, at, detail, *RESOLVED_BY[State.TARGET_LOST])

    def is_accepted(self, at: int, accepted: tuple[int, int] | None) -> bool:
        """Whether the source may have deleted what came from offset `at` on, by the offsets `accepted`."""
        first, until = accepted or (at, at)
        return first <= at and self.start <= until

    def retention_gap(self, at: int) -> PartitionStop:
        """The stop where that is not accepted."""
        return self.stop(
            State.RETENTION_GAP,
            at,
            f"the source deleted offsets {at} to {self.start - 1} before they were mirrored",
            *RESOLVED_BY[State.RETENTION_GAP],
        )

    def padded_twice(self, end: int) -> PartitionStop:
        """The stop for padding over records that were never mirrored, as two mirrors at a time may leave it."""
        detail = f"the target has padding up to offset {end}, and the source has records from {self.begin} on"
        return self.stop(State.DIVERGED, self.begin, detail, Remedy.BEGIN_ANEW)

    def truncated(self, at: int, detail: str) -> PartitionStop:
        """The stop for a source that was cut back below what was mirrored."""
        return self.stop(State.TRUNCATED, at, detail, *RESOLVED_BY[State.TRUNCATED])

    def reopened(self, at: int, opened: OpenTransaction) -> Exception:
        """What an open transaction means: nothing is mirrored before one has ended, so that the source was cut back."""
        if opened.cluster != self.clusters[0]:
            return opened
        detail = f"offsets up to {at - 1} were mirrored; the source's last stable offset is {opened.stable}"
        return self.truncated(at, f"{detail}: a transaction is open there that had ended")

    def unlike(self, at: int, detail: str, source: RawBatch | None, ours: RawBatch | None = None) -> PartitionStop:
        """The stop where the target's last batch is not the source's, `source`. Where we wrote it and the topic
        has seen elections since, one of these was unclean, most likely. `ours`: the batch, where markers may follow it.

        Raises MalformedBatch where one of both batches is damaged, on its disk or on the way: this stop would stand.
        """
        for cluster, raw in zip(self.clusters, (source, self.tail), strict=True):
            if raw is not None and 0 <= raw.header.magic <= 2 and not crc_holds(raw):
                raise MalformedBatch(f"{cluster}: CRC mismatch", 0, raw.header.base_offset)
        written = ours or self.tail
        is_ours = written is not None and not written.header.is_control and self.own.is_kin(written.header.producer_id)
        if is_ours and source is not None and written is not None and shows_create_times(written, source):
            return unstamped(self.source, at, written.header.base_offset)
        epoch = source.header.partition_leader_epoch if source is not None else 0
        if is_ours and epoch > 0:
            return self.cut(at, detail, f"the source was cut back, and went on in leader epoch {epoch}")
        if self.tail_is_ours and self.last is not None and self.last.target_end >= self.end:
            return self.cut(at, detail, "the target has what was mirrored, the source another log by now")
        return self.foreign(at, detail)

    def cut(self, at: int, detail: str, source_log: str) -> PartitionStop:
        """The stop where what we wrote is not the source's: one of both logs is another one by now. It is the target's
        where the source has kept the leader epoch that was mirrored up to there, as `check_source_epoch` found, and the
        target has nothing of the one in which it acknowledged (P10).
        """
        last, kept = self.last, self.target_kept
        has_kept = last is not None and self.kept_until is not None and at <= last.epoch_until
        if last is None or kept is None or not has_kept or kept.epoch >= last.target_epoch:
            return self.truncated(at, f"{detail}; {source_log}")
        acknowledged = f"it acknowledged up to offset {last.target_end} in leader epoch {last.target_epoch}"
        has = f"and has none of that: its epoch {kept.epoch} reaches up to offset {kept.end}"
        what = f"{acknowledged}, {has}, as where an old leader of the target comes back. The source kept its log"
        return self.stop(State.DIVERGED, at, f"{detail}; the target's log is another one: {what}", *ANOTHER_COPY)

    def foreign(self, at: int, detail: str) -> PartitionStop:
        """The stop for a copy with records that are not the source's."""
        detail = f"{detail}; somebody else wrote to the target, or the source topic is another one"
        return self.stop(State.DIVERGED, at, detail, *ANOTHER_COPY)

    def unconfirmed(self, at: int, detail: str) -> Unconfirmed:
        """The stop for a copy that nothing confirms (P7)."""
        return Unconfirmed(self.source, at, self.end, detail)

    def check_end(self, at: int) -> None:
        """Raises Unconfirmed where somebody else wrote behind the last acknowledged position, and the source has
        deleted all that this could be compared with: else the gap would seem to begin behind it.
        """
        last = self.last
        if last is not None and last.target_end < self.end and self.tail is not None and not self.tail_is_ours:
            raise self.beyond_acknowledged(at, last)

    def beyond_acknowledged(self, at: int, last: LastPosition) -> Unconfirmed:
        """The stop for a copy with records behind the last acknowledged position that nothing confirms (P7)."""
        detail = f"its log ends at {self.end}, the journal keeps {last.target_end}"
        others = "" if self.tail is None or self.tail_is_ours else "; the last of them is not this mirror's"
        return self.unconfirmed(at, f"{detail}, and no record in between can be compared{others}")

    def stop(self, state: State, offset: int, detail: str, *remedies: Remedy) -> PartitionStop:
        """The stop at a source offset."""
        return PartitionStop(state, *self.source, offset, detail, *remedies)


def unstamped(source: TopicPartition, offset: int, landed: int) -> PartitionStop:
    """The stop for a copy whose records have their producers' times, and those of the source its broker's."""
    detail = (
        f"the target kept the producers' create times of the batch at offset {landed}, which the source's broker had"
        " given its own: message.timestamp.type=CreateTime was set on the copy while the mirror ran"
    )
    return PartitionStop(State.DIVERGED, *source, offset, detail, *ANOTHER_COPY)


async def read_logs(
    flow: str,
    source: Cluster,
    source_partition: TopicPartition,
    target: Cluster,
    target_partition: TopicPartition,
    since: int = 0,
    last: LastPosition | None = None,
    losses: tuple[tuple[int, int], ...] = (),
    way_back: tuple[tuple[int, int], ...] = (),
) -> Logs:
    """Raises MalformedBatch for what cannot be read, and ClusterUnreachable, AccessDenied, BrokerError."""
    end = await replicated_end(target, target_partition)
    target_epoch = target.leader(target_partition).epoch
    start, readable, target_start, kept, target_kept, tail = await asyncio.gather(
        list_offset(source, source_partition, EARLIEST),
        list_offset(source, source_partition, LATEST),
        list_offset(target, target_partition, EARLIEST),
        _kept_until(source, source_partition, last),
        _target_kept(target, target_partition, last),
        _tail(target, target_partition, end),
    )
    if tail is None and end > target_start and await list_offset(target, target_partition, EARLIEST) < end:
        raise MalformedBatch(f"{target}: nothing can be read at offset {end - 1}, the last of the log", 0, end - 1)
    own = ProducerState(producer_id(flow, target_partition))
    tail = tail if end > target_start else None
    source_epoch = source.leader(source_partition).epoch
    return Logs(
        source_partition,
        start,
        readable,
        target_start,
        end,
        tail,
        own,
        since,
        last,
        losses,
        kept,
        target_epoch,
        source_epoch,
        (str(source), str(target)),
        target_kept,
        way_back,
    )


async def _tail(target: Cluster, partition: TopicPartition, end: int) -> RawBatch | None:
    return await batch_at(target, partition, end - 1, below=end) if end else None


async def _target_kept(target: Cluster, partition: TopicPartition, last: LastPosition | None) -> EpochEnd | None:
    """What the target has of the leader epoch in which it acknowledged last; None where that is not known, or no leader
    was elected since.
    """
    if last is None or not 0 <= last.target_epoch < target.leader(partition).epoch:
        return None
    kept = await epoch_end(target, partition, last.target_epoch)
    return kept if kept.end >= 0 else None


async def _kept_until(source: Cluster, partition: TopicPartition, last: LastPosition | None) -> int | None:
    """Where the leader epoch of the last acknowledged batch ends in the source now; None where that is unknown:
    nothing was acknowledged, or a leader has forgotten its epochs. One that never had that epoch kept nothing.
    """
    if last is None or last.source_epoch < 0:
        return None
    found = await epoch_end(source, partition, last.source_epoch)
    if found.end < 0:
        return None if source.leader(partition).epoch >= last.source_epoch else -1
    if found.epoch < last.source_epoch and await is_of_another(source, partition, last.source_epoch, last.epoch_until):
        return -1
    return found.end


async def is_of_another(source: Cluster, partition: TopicPartition, epoch: int, until: int) -> bool:
    """Whether what the source holds where a leader epoch reached, `until` an offset, is of another one: a leader that
    never had that epoch came back. Of a hole nobody knows: compaction may have taken all that was of it.
    """
    at = until - 1
    try:
        found = await batch_at(source, partition, at, below=until)
    except MalformedBatch:
        return False  # whoever reads on meets it
    if found is None or found.header.base_offset > at:
        return False
    return found.header.partition_leader_epoch not in (-1, epoch)
