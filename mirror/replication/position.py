"""Where a partition stands, read from the target's log alone.

    P1  the mirror is the only writer of a mirrored partition; what is in the target's log was put there by this flow
    P2  a batch's verdict and bytes are a function of the source log, so every writer of the flow appends the same
        batches
    P3  what a batch is stamped with follows from the target's log below it: the last batch, data or marker, says
        which producer id, epoch and sequence come next (`restamp.Stamp`). Two writers then send the same batch under
        the same number, and the leader keeps one
    P4  in `preserve`, position = the target's log end offset, once all in-sync replicas have it (a shorter high
        watermark could still be cut back)
    P5  the last data batch in the target equals its source batch, or all those that were joined in it, and the source
        has no record where the target has none behind it, or nothing is written. Where the target was a source before
        (a failback), its last records do (what the journal has on record as lost, the source may still have; what it
        has on record as left out by the flow back, the target alone may have). So does
        every batch behind the last acknowledged position, as far as `_BEHIND_BYTES` reach: where batches are alike, the
        last one does not show that somebody else wrote there, or that one of ours took the place of another
    P6  the source's log is the one that was mirrored: the leader epoch of the last acknowledged batch, as the journal
        keeps it (`LastPosition`), reaches at least as far as it did then (OffsetForLeaderEpoch, KIP-101); or all that
        is behind its end in both logs is the same, as where a flow back brought the source what it had lost
    P7  where there is nothing to compare, because either log has deleted it, or it is damaged in the source's by now,
        the copy is believed only where its end is the position that the journal keeps, or lies behind it by batches and
        markers of ours alone, stamped one after the other, and in the same leader epoch of the source; or by markers
        of ours alone, where the source's records are on record as lost: whoever fills a loss may be killed, or doubt,
        at any of them. Else the copy is `Unconfirmed`, and a person decides
    P8  a target that ends below the acknowledged position has lost records. They are copied again where the source
        still has them; else that is TARGET_LOST
    P9  a copy that was begun with offsets that move is none with equal offsets: where the journal keeps that its end
        goes with another offset of the source, no record is compared, and none is written
    P10 where what the flow wrote is not the source's, the target is to blame if the source kept the leader epoch that
        was mirrored, and the target's leader has nothing of the one in which it acknowledged: an old leader came back
    P11 a copy whose last batch the target gave a time of its own, where nobody asked for that, is no copy of its source
        if the journal does not know that batch yet: whoever wrote it was killed before it could say so

Decision: the stamp is read from the batch at the log's end, and is not asked of the leader. A number that the leader
names a moment after the log's end was read could be one batch further, if a zombie appended in between, and the batch
would go in twice. Where the log holds no batch, the leader is asked between two reads of the log's end that agree.

Decision: a log that ends with a marker is read twice. A broker goes on with a dead mirror's request for a thousand
markers for up to half a second, and whoever began in its midst would take the rest for somebody else's.

Decision: the producer id is computed, not asked for with InitProducerId. A broker takes any id on a partition where
it is unknown (Kafka `ProducerAppendInfo.checkSequence`), ids are distinguished per partition log only, and coordinators
count up from 0 and will not reach 2^52. So even two mirrors that start together on an empty partition carry the same
id, which ids handed out by a coordinator could not give. The 20 low bits are left to `ProducerState.then`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mirror.errors import BadRecords, ClusterUnreachable, MalformedBatch, OpenTransaction, PartitionStop
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.log_reader import batch_at, batches, last_batch
from mirror.kafka.queries import (
    EARLIEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    epoch_end,
    list_offset,
    producers,
    replicated_end,
)
from mirror.records.compare import Joined, batch_difference, is_our_padding, marker_difference
from mirror.records.header import (
    DELETE_HORIZON,
    SEQUENCES,
    ProducerState,
    RawBatch,
    crc_holds,
    is_a_mirrors,
)
from mirror.replication.assignment import STANDING, LastBatch, LastPosition, outside
from mirror.replication.both_logs import Logs, read_logs
from mirror.states import Remedy, State

#: Markers in one request.
MARKERS: Final = 1000
#: Epochs by which the first marker of a partition writer is ahead: of every marker that a dead mirror has on its way,
#: so that those which come later are refused.
FENCE: Final = MARKERS + 1
#: Pause between two reads of a log that ends with a marker; a broker writes several markers in a millisecond.
_MARKERS_PAUSE: Final = 0.2
#: How far the markers at a log's end are looked through at first, and by how much further each time: two mirrors that
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
#: What resolves a batch that cannot be read of either log.
DAMAGED: Final = (Remedy.SOUND_LEADER, Remedy.BEGIN_ANEW, Remedy.INSPECT)


@dataclass(frozen=True, slots=True)
class Position:
    """Where to go on: the next offset of the source, in `preserve` the target's as well, and the next batch's stamp.

    `known` says that the leader remembers the producer. `last_epoch` is the source leader epoch of the last mirrored
    batch, or -1. `begin` is where the target must be made to begin first, since all before it is padding or missing,
    and -1 where nothing is to be done. `lost_until` is where the source goes on, where it lost the records from
    `next_offset` up to there; -1 where not. `target_offset` is where the next batch goes in the target if that is not
    at `next_offset`, the source's. `target_lost` are the source offsets, from and to before, of records that the target
    had acknowledged and has no more. `target_epoch` is the target's leader epoch in which this was read. `last` is what
    was found of the copy, as the journal is to keep it; without the topics' ids. `stamped`: the target's last batch is
    ours, and has its broker's time. `is_empty`: the target holds no record, whatever the journal says. `log_start`:
    where the source's log begins.
    """

    next_offset: int
    stamp: ProducerState
    known: bool
    last_epoch: int
    begin: int = -1
    lost_until: int = -1
    target_offset: int = -1
    target_lost: tuple[int, int] | None = None
    target_epoch: int = -1
    last: LastPosition | None = None
    stamped: bool = False
    is_empty: bool = False
    log_start: int = 0

    @property
    def end(self) -> int:
        """Where the target's log ends."""
        return self.next_offset if self.target_offset < 0 else self.target_offset


def located(stop: PartitionStop, source: Cluster, target: Cluster, target_topic: str) -> PartitionStop:
    """The stop, whose advice names both clusters and the copy; unless it says where to look, at the source."""
    if not stop.knows("side"):
        stop.knowing(**inspecting("source", stop.topic, stop.offset))
    return stop.knowing(source=source.endpoint.servers, target=target.endpoint.servers, target_topic=target_topic)


def corrupt(
    damage: MalformedBatch, target: Cluster, partition: TopicPartition, target_topic: str, at: int = -1
) -> PartitionStop:
    """The stop of a source partition for what cannot be read of one of both logs while its position is looked for: the
    text of the damage begins with the cluster's name.
    """
    is_copy = str(damage).startswith(f"{target}:")
    where = inspecting(*("target", target_topic) if is_copy else ("source", partition.topic), damage.offset)
    return PartitionStop(State.CORRUPT, *partition, at, str(damage), *DAMAGED).knowing(**where)


def inspecting(side: str, topic: str, offset: int) -> dict[str, object]:
    """Where `Remedy.INSPECT` sends a person."""
    return {"side": side, "damaged": topic, "begin": f" --from {offset}" if offset >= 0 else ""}


async def resume(
    flow: str,
    source: Cluster,
    source_partition: TopicPartition,
    target: Cluster,
    target_partition: TopicPartition,
    accepted: tuple[int, int] | None = None,
    since: int = 0,
    last: LastPosition | None = None,
    losses: tuple[tuple[int, int], ...] = (),
    way_back: tuple[tuple[int, int], ...] = (),
) -> Position:
    """The position of one partition, with the check that both logs agree up to there (P5 to P8).

    What the source lost before it was mirrored is passed over where it lies between the offsets `accepted`. Below
    `since` nothing is mirrored. `last` is what the journal keeps of this copy of this source topic, and the offsets
    `losses` are on record there as lost. Of offsets `way_back` the target alone may have records: a flow back left them
    out.
    Raises PartitionStop (DIVERGED, TRUNCATED, TARGET_LOST, RETENTION_GAP, REFUSED), and as `read_logs` does.
    """
    logs = await read_logs(flow, source, source_partition, target, target_partition, since, last, losses, way_back)
    logs.check_way()
    try:
        if logs.was_cut and await _is_restored(logs, source, target, target_partition):
            logs = logs.with_another_epoch()
        logs.check_source_epoch()
        return await _found(logs, source, target, target_partition, accepted)
    except OpenTransaction as opened:
        raise logs.reopened(logs.end, opened) from opened
    except PartitionStop as stop:
        raise await judged(stop, logs, source, target, target_partition) from stop


async def _found(
    logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition, accepted: tuple[int, int] | None
) -> Position:
    """The same as `resume`, whoever made the target longer than the source."""
    start, readable, target_start, end = logs.start, logs.readable, logs.target_start, logs.end
    tail, own, ours, last = logs.tail, logs.own, logs.tail_is_ours, logs.last
    if end > readable:
        detail = f"the target's log ends at {end}, the source's at {readable}"
        is_ours = ours or (tail is None and end == logs.since) or (last is not None and last.target_end == end)
        if is_ours and not logs.was_not_cut:
            raise logs.truncated(end, detail)
        raise logs.foreign(end, detail)
    lost = logs.target_loss(end)
    is_accepted = logs.is_accepted(end, accepted)
    if lost is not None and lost[0] < start and not logs.is_accepted(lost[0], accepted):
        raise logs.target_lost(lost[0], lost)
    if logs.is_unaligned:
        stamp, known = await next_stamp(target, target_partition, own, end, tail)
        return Position(
            end,
            stamp,
            known,
            last_epoch=-1,
            begin=logs.begin,
            target_lost=lost,
            target_epoch=logs.target_epoch,
            is_empty=True,
        )
    if tail is not None and end > logs.begin and is_our_padding(tail, own):
        raise logs.padded_twice(end)
    if end < start and not is_accepted:
        logs.check_end(end)
        raise logs.retention_gap(end)
    data, compared_from = await _last_data(target, target_partition, logs), start
    try:
        batch, epoch = await _compared(logs, source, target, target_partition, data)
    except MalformedBatch:
        if not logs.keeps(data[0]):
            raise
        batch, epoch, compared_from = None, None, end
    await _compare_behind(logs, source, target, target_partition)
    stamp, known = await next_stamp(target, target_partition, own, end, tail if ours else None)
    if epoch is None and logs.is_begun:
        await confirm(logs, source, target, target_partition, stamp, end, compared_from)
    begin = target_start
    if target_start < logs.begin:
        begin = await _padding_end(target, target_partition, target_start, own)
    if begin > max(target_start, logs.begin):
        raise logs.padded_twice(begin)
    found = found_position(logs, end, stamp, batch, epoch, target_start)
    return Position(
        end,
        stamp,
        known,
        last_epoch=found.source_epoch if found.epoch_until == end else -1,
        begin=begin if begin > target_start else -1,
        lost_until=start if end < start else -1,
        target_lost=lost,
        target_epoch=logs.target_epoch,
        last=found,
        stamped=logs.is_stamped,
        is_empty=logs.is_empty,
        log_start=start,
    )


async def _is_restored(logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition) -> bool:
    """Whether a source that was cut back below what was mirrored has the same again behind the cut, as a flow back puts
    it there: every batch that the target has, or all those that were joined in it, and no other. What cannot be read
    says that it has not, as does a hole. What either side has deleted by now is not compared, if something is left.
    Where the source has nothing of that leader epoch, nobody knows where it was cut: an old leader may have written
    something else in an older one. All that both have is compared then, beginning with the end.
    """
    start = max(logs.start, logs.target_start)
    if logs.kept_until is None or logs.readable < logs.end or start >= logs.end:
        return False
    cut = max(0, logs.kept_until)
    end = max(cut, logs.end - _MOST_BACK)
    sides = logs, source, target, target_partition
    try:
        return await _is_same(*sides, end, start) and (end == cut or await _is_same(*sides, cut, start))
    except (MalformedBatch, BadRecords):
        return False


async def _is_same(
    logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition, at: int, start: int
) -> bool:
    """Whether both have the same batches for a reader from offset `at` on, as far as neither has deleted them; from
    before its `start`, at least one.
    """
    has_compared, begin = at >= start, max(at, start)
    first = await batch_at(target, target_partition, begin, below=logs.end)
    if first is not None:
        begin = max(start, min(begin, first.header.base_offset))
    theirs = _read(logs, source, logs.source, begin)
    upcoming = await anext(theirs, None)
    async for ours in _read(logs, target, target_partition, begin):
        pieces: list[RawBatch] = []
        while upcoming is not None and upcoming.header.base_offset <= ours.header.last_offset:
            pieces.append(upcoming)
            upcoming = await anext(theirs, None)
        if not _is_made_of(ours, pieces):
            return False
        has_compared = True
    return has_compared and upcoming is None


async def _read(logs: Logs, cluster: Cluster, partition: TopicPartition, begin: int) -> AsyncIterator[RawBatch]:
    """The batches with records for a reader from an offset to the end of the copy, but for padding of ours."""
    async for raw, is_aborted in batches(cluster, partition, begin, logs.end, READ_COMMITTED):
        if not (is_aborted or raw.header.is_control or is_our_padding(raw, logs.own)):
            yield raw


def _is_made_of(ours: RawBatch, pieces: Sequence[RawBatch]) -> bool:
    """Whether these batches of the source, and nothing else, are in one of the target."""
    if len(pieces) == 1 and not batch_difference(ours, pieces[0], may_be_rewritten=False):
        return True
    at = ours.header.base_offset
    joined = Joined(ours)
    for one in pieces:
        if one.header.base_offset != at or not one.header.is_dense or joined.difference(one):
            return False
        at = one.header.next_offset
    return ours.header.is_dense and at == ours.header.next_offset


async def judged(
    stop: PartitionStop, logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition
) -> PartitionStop:
    """The stop that names the right side: a copy that somebody else wrote to looks like a source that was cut back.

    Raises ClusterUnreachable where either log was deleted from while both were compared, or where a broker is silent
    that may lead by now, and hold what another lacks: what was missing then says nothing, and the stop would stand.
    """
    if stop.state not in STANDING:
        return stop
    try:
        await asyncio.gather(source.require_all(), target.require_all())
    except ClusterUnreachable as silent:
        raise silent from stop
    start, target_start = await asyncio.gather(
        list_offset(source, logs.source, EARLIEST), list_offset(target, target_partition, EARLIEST)
    )
    if (start, target_start) != (logs.start, logs.target_start):
        raise ClusterUnreachable(f"{logs.source}: records were deleted while both logs were compared") from stop
    if stop.state == State.TRUNCATED and await _holds_others(logs, target, target_partition):
        return logs.foreign(stop.offset, stop.detail)
    return stop


async def _holds_others(logs: Logs, target: Cluster, partition: TopicPartition) -> bool:
    """Whether somebody else wrote behind what was acknowledged, and batches of ours landed behind that (W4)."""
    if not logs.tail_is_ours:
        return False
    acknowledged = logs.last.target_end if logs.last is not None else logs.readable
    oldest = max(logs.target_start, acknowledged, logs.end - _MOST_BACK)
    async for raw, _ in batches(target, partition, oldest, logs.end, READ_UNCOMMITTED):
        if not logs.own.is_kin(raw.header.producer_id):
            return True
    return False


def found_position(
    logs: Logs, at: int, stamp: ProducerState, batch: LastBatch | None, epoch: tuple[int, int] | None, begins: int
) -> LastPosition:
    """What the journal is to keep of a copy that was found in order, where source offset `at` comes next, and that
    `begins` at another. `epoch`: a leader epoch of the source and up to where it reaches; what was kept before says
    more where it reaches further.
    """
    last = logs.last
    if last is not None and last.source_next <= at and last.epoch_until > (epoch[1] if epoch else -1):
        epoch = last.source_epoch, last.epoch_until
    kept = last.batch if last is not None and last.target_end <= logs.end else None
    if batch is None or (kept is not None and kept.base == batch.base and batch.source_crc is None):
        batch = kept or batch
    return LastPosition(
        source_next=at,
        target_end=logs.end,
        source_epoch=epoch[0] if epoch else -1,
        epoch_until=epoch[1] if epoch else -1,
        target_epoch=logs.target_epoch,
        stamp=(stamp.producer_id, stamp.epoch, stamp.sequence),
        batch=batch,
        begins=begins,
    )


async def _last_data(target: Cluster, partition: TopicPartition, logs: Logs) -> tuple[RawBatch | None, int]:
    """The last batch of the target with records for a reader, None where it has none any more; and the offset from
    which on markers are known to follow it. Padding of ours counts as none.
    """
    if logs.tail is None:
        return None, logs.end
    if not logs.tail.header.is_control:
        return logs.tail, logs.end
    isolation = READ_UNCOMMITTED if logs.tail_is_ours else READ_COMMITTED
    oldest = max(logs.target_start, logs.end - _MOST_BACK)
    found = await last_batch(target, partition, oldest, logs.end, isolation, _READ_BACK, _FURTHER)
    if found is not None and found.header.is_transactional:  # a former source's, for ours are not: it may be aborted
        before = found.header.next_offset
        found = await last_batch(target, partition, oldest, before, READ_COMMITTED, _READ_BACK, _FURTHER)
    if found is not None:
        return found, found.header.next_offset
    kept = logs.last.batch if logs.last is not None and logs.last.target_end <= logs.end else None
    if kept is None or kept.base < logs.target_start:
        return None, oldest
    # all behind it was acknowledged as markers; those that came later were looked through
    found = await batch_at(target, partition, kept.base, below=logs.end)
    if found is None or (found.header.base_offset, found.header.crc) != (kept.base, kept.crc or found.header.crc):
        return None, oldest
    return found, found.header.next_offset


async def _compared(
    logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition, data: tuple[RawBatch | None, int]
) -> tuple[LastBatch | None, tuple[int, int] | None]:
    """Compare the target's last data batch and the gap behind it (P5). The batch, as the journal is to keep it, and the
    leader epoch of the source up to an offset; None for the epoch where there was nothing to compare.

    Raises PartitionStop where the two logs differ.
    """
    ours, following = data
    end, start = logs.end, logs.start
    # what the target alone has says nothing: the batch before it does
    while ours is not None and await _is_alone(logs, source, ours):
        base = ours.header.base_offset
        oldest = max(logs.target_start, base - _MOST_BACK)
        ours = await last_batch(target, target_partition, oldest, base, READ_COMMITTED, _READ_BACK, _FURTHER)
        following = ours.header.next_offset if ours is not None else oldest
    if difference := await gap_difference(source, logs.source, max(start, following), end, logs.losses):
        detail = f"the target has no record from offset {max(start, following)} to {end - 1}: {difference}"
        raise logs.unlike(end, detail, None)
    if ours is None or is_our_padding(ours, logs.own):
        # where neither log has a record for a reader, all that the source holds below the target's end was compared
        return None, _EMPTY if logs.tail is not None and following <= logs.target_start <= start < end else None
    header = ours.header
    if header.last_offset < start:
        return kept_batch(ours, header.base_offset, None), None
    first = max(start, header.base_offset)
    source_batch = await batch_at(source, logs.source, first, READ_COMMITTED, below=first + 1)
    if logs.was_left_out(source_batch):
        source_batch = await _behind_left_out(logs, source, first, header.next_offset)
    head = source_batch.header if source_batch is not None else None
    if head is not None and head.magic == 2 and head.base_offset > header.last_offset:
        epoch = await _compared_below(logs, source, target, target_partition, header.base_offset)
        is_ours = logs.own.is_kin(header.producer_id)  # nothing below verifies a batch of somebody else (P7)
        return kept_batch(ours, header.base_offset, None), epoch if is_ours else None
    if header.base_offset < start and (source_batch is None or source_batch.header.base_offset != header.base_offset):
        return kept_batch(ours, header.base_offset, None), None
    may_be_rewritten = logs.own.is_kin(header.producer_id) or _is_a_mirrors(source_batch)
    if difference := batch_difference(ours, source_batch, may_be_rewritten=may_be_rewritten):
        where = f"the target's last batch with records, at offset {header.base_offset}"
        raise logs.unlike(end, f"{where}, is not the source's: {difference}", source_batch, ours)
    assert source_batch is not None
    is_same = source_batch.header.base_offset == header.base_offset and source_batch.header.count == header.count
    batch = kept_batch(ours, header.base_offset, source_batch.header.crc if is_same else None)
    difference, last = await joined_difference(source, logs.source, ours, source_batch, logs.was_left_out)
    if difference:
        raise logs.unlike(
            end, f"the target's last batch with records, at offset {header.base_offset}: {difference}", last
        )
    return batch, (last.header.partition_leader_epoch, min(end, last.header.next_offset))


async def _is_alone(logs: Logs, source: Cluster, ours: RawBatch) -> bool:
    """Whether the target alone has all of its batch, where a flow back left records out (P5)."""
    first, following = ours.header.base_offset, ours.header.next_offset
    if first < logs.start or not logs.may_be_alone(ours, None):
        return False
    return logs.may_be_alone(ours, await _behind_left_out(logs, source, first, following))


async def _behind_left_out(logs: Logs, source: Cluster, first: int, end: int) -> RawBatch | None:
    """The first batch of the source from offset `first` to before `end` but for markers of what was left out."""
    async for raw, _ in batches(source, logs.source, first, end, READ_COMMITTED):
        if not logs.was_left_out(raw):
            return raw
    return None


async def _compare_behind(logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition) -> None:
    """Compare the batches behind the last acknowledged position, but for the last one (P5). What cannot be read says
    nothing, nor does a hole of the source over a batch of ours, as compaction leaves one. The copy may have been
    written to as a source of its own, and been mirrored back: what was aborted there is a gap, for which the source
    has markers.

    Raises PartitionStop where the two logs differ, and OpenTransaction.
    """
    last = logs.last
    if last is None or logs.tail is None or last.target_end >= logs.tail.header.base_offset:
        return
    begin, size = max(last.target_end, logs.start, logs.target_start), 0
    source_batches = batches(source, logs.source, begin, logs.end, READ_COMMITTED)
    try:
        upcoming = await anext(source_batches, None)
        async for ours, is_aborted in batches(target, target_partition, begin, logs.end, READ_COMMITTED):
            header = ours.header
            if (size := size + len(ours.data)) > _BEHIND_BYTES:
                return
            if header.base_offset < begin or is_our_padding(ours, logs.own):
                continue
            if is_aborted:
                first, following = header.base_offset, header.next_offset
                if difference := await gap_difference(source, logs.source, first, following, logs.losses):
                    raise logs.unlike(logs.end, f"aborted at offset {first} of the target: {difference}", None, ours)
                continue
            while upcoming is not None and (
                upcoming[0].header.last_offset < header.base_offset or logs.was_left_out(upcoming[0])
            ):
                upcoming = await anext(source_batches, None)
            source_batch, is_unread = upcoming or (None, False)
            if header.is_control:
                held = None if source_batch is None or is_unread or not crc_holds(source_batch) else source_batch
                spans = outside(logs.losses, header.base_offset, header.next_offset)
                if difference := next(filter(None, (marker_difference(*span, held) for span in spans)), ""):
                    raise logs.unlike(logs.end, f"at offset {header.base_offset}: {difference}", source_batch, ours)
                continue
            is_ours = logs.own.is_kin(header.producer_id)
            if logs.may_be_alone(ours, source_batch):
                continue
            if is_ours and (source_batch is None or source_batch.header.base_offset > header.last_offset):
                continue
            may_be_rewritten = is_ours or _is_a_mirrors(source_batch)
            difference = batch_difference(ours, source_batch, may_be_rewritten=may_be_rewritten)
            if not difference and source_batch is not None:
                difference, source_batch = await joined_difference(
                    source, logs.source, ours, source_batch, logs.was_left_out
                )
            if difference:
                where = f"the target's batch at offset {header.base_offset}, behind what was acknowledged"
                raise logs.unlike(logs.end, f"{where}, is not the source's: {difference}", source_batch, ours)
    except (MalformedBatch, BadRecords):
        return


async def joined_difference(
    source: Cluster,
    partition: TopicPartition,
    ours: RawBatch,
    first: RawBatch,
    was_left_out: Callable[[RawBatch], bool] = lambda _: False,
) -> tuple[str, RawBatch]:
    """Where a batch of ours, at the source's offsets, was made of several in a row: what differs from those behind the
    `first`, or the empty string; and the last one that was compared. Those that `was_left_out` names are passed over.
    """
    last, end = first, ours.header.next_offset
    if last.header.next_offset >= end:
        return "", last
    joined = Joined(ours)
    async for raw, is_aborted in batches(source, partition, last.header.next_offset, end, READ_COMMITTED):
        if was_left_out(raw):
            continue
        last = raw
        if is_aborted:
            return f"the source has an aborted transaction at offset {raw.header.base_offset}", last
        if difference := joined.difference(raw):
            return difference, last
    return "", last


async def _compared_below(
    logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition, base: int
) -> tuple[int, int] | None:
    """Where the source has a hole over all of the target's last batch, at `base`, as compaction leaves one: compare the
    last records that it has below that. The same as `_compared`.
    """
    oldest = max(logs.start, logs.target_start, base - _READ_BACK * _FURTHER)
    theirs = await last_batch(source, logs.source, oldest, base, READ_COMMITTED, _READ_BACK, _FURTHER)
    if theirs is None or theirs.header.base_offset < oldest:
        return None
    at = theirs.header.base_offset
    ours = await batch_at(target, target_partition, at, below=at + 1)
    if ours is None or ours.header.is_control or ours.header.base_offset > theirs.header.last_offset:
        return None
    if difference := batch_difference(ours, theirs, may_be_rewritten=True):
        raise logs.unlike(logs.end, f"the target's batch at offset {at} is not the source's: {difference}", theirs)
    return theirs.header.partition_leader_epoch, theirs.header.next_offset


def kept_batch(ours: RawBatch, source_base: int, source_crc: int | None) -> LastBatch:
    """A batch of the target as the journal keeps it."""
    header = ours.header
    return LastBatch(
        base=header.base_offset,
        next_offset=header.next_offset,
        source_base=source_base,
        crc=header.crc,
        source_crc=source_crc,
        count=header.count,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
    )


async def confirm(
    logs: Logs,
    source: Cluster,
    target: Cluster,
    target_partition: TopicPartition,
    stamp: ProducerState,
    at: int,
    compared_from: int,
) -> None:
    """Believe a copy of which nothing can be compared, by what the journal keeps of it (P7). Its end goes with source
    offset `at`. `stamp` is that of the next batch. From `compared_from` on, the source has no record where the target
    has none.

    Raises Unconfirmed where that does not say enough, and PartitionStop where it says that a log is another one.
    """
    last, end = logs.last, logs.end
    if last is None:
        raise logs.unconfirmed(
            at, f"its log ends at {end}, no record of it can be compared, and the journal keeps no position of it"
        )
    await _check_last_batch(logs, source)
    if last.target_epoch >= 0 and end >= last.target_end:
        kept = await epoch_end(target, target_partition, last.target_epoch)
        if 0 <= kept.end < last.target_end:
            detail = (
                f"leader epoch {last.target_epoch} of the target ends at {kept.end}, acknowledged was {last.target_end}"
            )
            raise logs.unconfirmed(at, f"{detail}: the target lost its tail, and what took its place is gone, too")
    if end == last.target_end:
        return
    if end < last.target_end:
        if logs.tail is None or logs.tail_is_ours:
            there = logs.target_kept
            if last.is_moved and there is not None and there.epoch < last.target_epoch:  # an old leader may be back
                detail = f"the target has nothing of leader epoch {last.target_epoch}, in which it acknowledged"
                raise logs.unconfirmed(at, f"{detail} up to offset {last.target_end}: its log may be another one")
            return  # the beginning of what was acknowledged
        raise logs.foreign(at, f"the target's last batch, below offset {end}, is not ours")
    more = end - last.target_end
    is_ours = last.stamp is not None and distance(last.stamp, stamp) == more
    same_epoch = logs.kept_until is not None and logs.kept_until >= at
    if is_ours and same_epoch:
        return
    if at == end and not last.is_moved:
        are_markers, are_in_order = await _written_since(logs, target, target_partition, last)
        is_lost = not outside(logs.losses, end - more, min(end, compared_from))
        if (are_markers and is_lost) or (are_in_order and same_epoch):
            return
    raise logs.beyond_acknowledged(at, last)


async def _written_since(
    logs: Logs, target: Cluster, partition: TopicPartition, last: LastPosition
) -> tuple[bool, bool]:
    """Whether all that the target has behind the last acknowledged position are markers of ours; and whether they are
    batches and markers of ours, each with the stamp that follows from what is below it (P3). Neither where something is
    missing, or too long to be read.
    """
    at, due = last.target_end, None if last.stamp is None else ProducerState(*last.stamp)
    if due is None:  # the marker below says what comes next
        at -= 1
    if at < logs.target_start:
        return False, False
    are_markers = are_in_order = True
    size = 0
    async for raw, _ in batches(target, partition, at, logs.end, READ_UNCOMMITTED):
        header = raw.header
        size += len(raw.data)
        if header.base_offset != at or not logs.own.is_kin(header.producer_id) or size > _BEHIND_BYTES:
            return False, False
        stamp = ProducerState(header.producer_id, header.producer_epoch, max(0, header.base_sequence))
        if header.is_control:
            are_in_order &= due is None or stamp in (due, due.then(), due.then(FENCE))
            due = stamp.then()
        else:
            are_markers, are_in_order = False, are_in_order and stamp == due
            due = stamp.after(header.last_offset_delta)
        at = header.next_offset
    return are_markers and at == logs.end, are_in_order and at == logs.end


def distance(before: tuple[int, int, int], stamp: ProducerState) -> int:
    """Records between two stamps of one producer and epoch, -1 for others."""
    producer, epoch, sequence = before
    if (producer, epoch) != (stamp.producer_id, stamp.epoch):
        return -1
    return (stamp.sequence - sequence) % SEQUENCES


async def _check_last_batch(logs: Logs, source: Cluster) -> None:
    """Raises PartitionStop where the source has another batch than the last one that the journal keeps."""
    batch = logs.last.batch if logs.last is not None else None
    if batch is None or batch.source_crc is None or batch.source_base < logs.start:
        return
    try:
        stored = await batch_at(source, logs.source, batch.source_base, READ_COMMITTED, below=batch.source_base + 1)
    except MalformedBatch:
        return  # it became damaged since: that shows no other log
    if stored is not None and (stored.header.base_offset != batch.source_base or stored.header.count != batch.count):
        return  # compacted since, or gone
    if stored is not None and stored.header.attributes & DELETE_HORIZON:
        return  # a cleaner wrote all of it anew, to note when its tombstones go (Kafka `MemoryRecords.filterTo`)
    if stored is None or stored.header.crc != batch.source_crc:
        has = "no batch" if stored is None else f"one with CRC {stored.header.crc:08x}"
        detail = f"the batch mirrored last, at offset {batch.source_base}, had CRC {batch.source_crc:08x}"
        raise logs.truncated(logs.end, f"{detail}, and the source has {has} there by now")


async def next_stamp(
    target: Cluster, partition: TopicPartition, own: ProducerState, end: int, tail: RawBatch | None
) -> tuple[ProducerState, bool]:
    """What comes after `tail`, a batch of ours at the log's end, and whether the leader knows the producer (P3)."""
    found = [p for p in await producers(target, partition) if own.is_kin(p.producer_id)]
    is_marker = tail is not None and tail.header.is_control
    if is_marker:
        await asyncio.sleep(_MARKERS_PAUSE)
    if (tail is None or is_marker) and await replicated_end(target, partition) != end:
        raise ClusterUnreachable(f"{target}: {partition}: the log grew while its position was read")
    if tail is not None:
        last = tail.header
        stamp = ProducerState(last.producer_id, last.producer_epoch, last.base_sequence)
        stamp = stamp.then() if is_marker else stamp.after(last.last_offset_delta)
        return stamp, any(p.producer_id == stamp.producer_id for p in found)
    if not found:
        return own, False
    newest = max(found, key=lambda p: (p.producer_id, p.epoch))
    stamp = ProducerState(newest.producer_id, newest.epoch, newest.last_sequence)
    return (stamp.after(0) if newest.last_sequence >= 0 else stamp.then()), True


async def gap_difference(
    source: Cluster, partition: TopicPartition, first: int, end: int, losses: Sequence[tuple[int, int]] = ()
) -> str:
    """What is wrong with a target that has no record of the source's from `first` to before `end`, or the empty
    string; what is on record as lost is nothing wrong.

    Of a long gap the first `_GAP_BYTES` are read, and its last offsets.
    """
    size = 0
    async for raw, is_aborted in batches(source, partition, first, end, READ_COMMITTED):
        if not crc_holds(raw):  # damaged, and left out as a loss: there are no records to compare
            continue
        for begin, until in outside(losses, first, end):
            if difference := marker_difference(begin, until, None if is_aborted else raw):
                return difference
        size += len(raw.data)
        if size > _GAP_BYTES and raw.header.next_offset < end - _READ_BACK:
            return await gap_difference(source, partition, end - _READ_BACK, end, losses)
    return ""


def _is_a_mirrors(raw: RawBatch | None) -> bool:
    """Whether a mirror wrote the batch, of whatever flow: only such a one may hold the records in other batches."""
    return raw is not None and is_a_mirrors(raw.header.producer_id)


async def _padding_end(target: Cluster, partition: TopicPartition, start: int, own: ProducerState) -> int:
    """Where the padding with which a log starts ends; `start` where there is none.

    A broker notes once a minute where its logs begin (Kafka `LogManager.checkpointLogStartOffsets`): one that crashes
    before brings padding back that was deleted.
    """
    at = start
    while (first := await batch_at(target, partition, at)) is not None:
        if not is_our_padding(first, own):
            break
        at = first.header.next_offset
    return at
