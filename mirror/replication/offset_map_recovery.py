"""Where a partition stands whose offsets move (`translate`), and runs that were not recorded, found again.

    R1  position = the target's log end, carried over to the source by the runs: by those recorded, and from where
        these end by what both logs hold
    R2  the target holds the source's records in their order, so each of its records is the next one of the source, or
        one that the source has deleted since, and then an offset is missing there, below the last stable one and where
        no marker or aborted record is, and behind the last acknowledged position it is one that a mirror wrote, here or
        in the source; anything else was written by somebody else
    R3  the target's last batch equals what the source has at its offsets, and the source has no record between that and
        where the flow goes on there, or nothing is written
    R4  a target whose first records are gone, and of which nothing is recorded, begins with the first record of the
        source that equals its own first, or with some that the source has deleted, too

Records are distinguished by all that a consumer gets of them. Where the source has lost one of several that are equal
in all of that, timestamps included, what is left may be taken for the lost one, which a reader does not see either.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from mirror.errors import BadRecords, MalformedBatch, OpenTransaction, PartitionStop
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.log_reader import batch_at, batches
from mirror.kafka.queries import LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset
from mirror.policy.rules import NO_LIMIT
from mirror.records.compare import batch_difference, records_difference
from mirror.records.header import APPEND_TIME, RawBatch
from mirror.records.recipe import LARGEST_RECORD
from mirror.replication.assignment import LastBatch, LastPosition
from mirror.replication.both_logs import ANOTHER_COPY, Logs, Unconfirmed, read_logs
from mirror.replication.offset_map import OffsetMap, OffsetRangeIndex, OffsetRanges
from mirror.replication.position import (
    Position,
    confirm,
    distance,
    found_position,
    gap_difference,
    joined_difference,
    judged,
    kept_batch,
    next_stamp,
)
from mirror.states import State

if TYPE_CHECKING:
    from mirror.records.columns import Records

#: Gives the offset map of a target partition whose log ends at an offset, as far as its runs are recorded.
Recall = Callable[[TopicPartition, int], Awaitable[OffsetMap]]

#: A record's key, value and headers.
Content = tuple[bytes | None, bytes | None, bytes]


async def unrecorded(_target: TopicPartition, _end: int) -> OffsetMap:
    """The offset map where nothing is ever recorded: each time, everything is retraced."""
    return OffsetMap()


def holding(offset_map: OffsetMap) -> Recall:
    """A recall of this map, wherever the target's log ends."""

    async def recall(_target: TopicPartition, _end: int) -> OffsetMap:
        return offset_map

    return recall


def looking(index: OffsetRangeIndex, offset_map: OffsetMap | None = None) -> Recall:
    """A recall for whoever looks at one partition only, and writes nothing: what is found is in `offset_map`, and what
    a look adds to that or takes from it is nobody else's. A target that lost more than the last runs cover ends in
    earlier ones.
    """
    found = offset_map or OffsetMap()
    if index.last is not None:
        found.restart(index.last.copy(), [])

    async def recall(_target: TopicPartition, end: int) -> OffsetMap:
        if end < found.runs.begin:
            found.go_back(index, end)
        return found

    return recall


async def complete(
    index: OffsetRangeIndex,
    flow: str,
    source: Cluster,
    source_partition: TopicPartition,
    target: Cluster,
    target_partition: TopicPartition,
    accepted: tuple[int, int] | None = (0, NO_LIMIT),
    since: int = 0,
    last: LastPosition | None = None,
    losses: tuple[tuple[int, int], ...] = (),
    *,
    confirmed: bool = False,
) -> None:
    """Let an index cover all that the target holds, as a mirror that starts now would find it; nothing is written. A
    copy that nothing confirms is as good as another here, where its records are being all that is asked, unless it is
    to be `confirmed`. `last` is what the journal keeps of this copy.

    Raises as `resume_translated` does; what was found before that is learned.
    """
    offset_map = OffsetMap()
    partitions = source, source_partition, target, target_partition
    try:
        with contextlib.suppress(*(() if confirmed else (Unconfirmed,))):
            await resume_translated(flow, *partitions, accepted, looking(index, offset_map), since, last, losses)
    finally:
        found, gone = offset_map.pending()
        for begin in gone:
            index.learn(begin, None)
        for runs in (*found, offset_map.runs):
            index.learn(runs.begin, runs)


async def resume_translated(
    flow: str,
    source: Cluster,
    source_partition: TopicPartition,
    target: Cluster,
    target_partition: TopicPartition,
    accepted: tuple[int, int] | None,
    recall: Recall,
    since: int = 0,
    last: LastPosition | None = None,
    losses: tuple[tuple[int, int], ...] = (),
) -> tuple[Position, OffsetMap]:
    """The position of one partition (R1), with the check of its last batch (R3; P6 to P8 in `replication/position.py`),
    and its offset map, complete up to there.

    What the source lost before it was mirrored is passed over where it lies between the offsets `accepted`. Below
    `since` nothing is mirrored. `last` is what the journal keeps of this copy of this source topic, and the offsets
    `losses` are on record there as lost.
    Raises PartitionStop (DIVERGED, TRUNCATED, TARGET_LOST, RETENTION_GAP), and as `read_logs` does.
    """
    # The journal is read before the log's end: of what another mirror appends meanwhile, it must not name more.
    await recall(target_partition, NO_LIMIT)
    logs = await read_logs(flow, source, source_partition, target, target_partition, since, last, losses)
    try:
        logs.check_source_epoch()
        return await _resumed(logs, source, target, target_partition, accepted, recall)
    except PartitionStop as stop:
        raise await judged(stop, logs, source, target, target_partition) from stop


async def _resumed(
    logs: Logs,
    source: Cluster,
    target: Cluster,
    target_partition: TopicPartition,
    accepted: tuple[int, int] | None,
    recall: Recall,
) -> tuple[Position, OffsetMap]:
    """The same by what both logs hold."""
    since = logs.since
    offset_map = await recall(target_partition, logs.end)
    batch: LastBatch | None = None
    epoch: tuple[int, int] | None = None
    compared = 0
    if not logs.end:
        if since > logs.readable:
            raise logs.truncated(since, f"the flow begins at offset {since}; the source's log ends at {logs.readable}")
        acknowledged, _ = logs.target_loss(since) or (logs.begin, -1)  # that is not passed over
        offset_map.restart(OffsetRanges(min(logs.begin, acknowledged)), [])
    elif logs.end < offset_map.runs.begin:
        detail = f"the target ends at offset {logs.end}, and the journal names none below {offset_map.runs.begin}"
        raise logs.stop(State.DIVERGED, -1, detail, *ANOTHER_COPY)
    else:
        offset_map.cut(logs.end)
        if not len(offset_map.runs):  # those that are recorded say themselves where they are from
            offset_map.runs.pass_over(since)
        if offset_map.runs.next_source > logs.readable:
            raise _truncated(logs, offset_map.runs)
        await _check_gap(offset_map.runs, logs, source)
        await _go_on_from_last(offset_map, logs, source, target, target_partition)
        if logs.end == offset_map.runs.next_target:
            if logs.tail is None or logs.tail_is_ours:
                batch, epoch = await _check_tail(offset_map.runs, logs, source)
            else:  # its records may be the source's all the same, in other batches
                begin = max(offset_map.runs.begin, logs.tail.header.base_offset)
                first = offset_map.runs.to_source(begin)
                assert first is not None, "the runs end with the log"
                compared = await _retrace(OffsetMap(OffsetRanges(first, begin)), logs, source, target, target_partition)
        elif not len(offset_map.runs) and logs.target_start:
            compared = await _retrace_from_the_first(offset_map, logs, source, target, target_partition)
        else:
            compared = await _retrace(offset_map, logs, source, target, target_partition)
    at = offset_map.runs.next_source
    lost = logs.target_loss(at)
    if at < logs.start and not logs.is_accepted(at, accepted):
        logs.check_end(at)
        raise logs.target_lost(at, lost) if lost is not None else logs.retention_gap(at)
    before = await batch_at(source, logs.source, at - 1, below=at) if at > logs.start else None
    follows = before is not None and before.header.next_offset == at
    stamp, known = await next_stamp(
        target, target_partition, logs.own, logs.end, logs.tail if logs.tail_is_ours else None
    )
    if epoch is None and not compared and logs.is_begun:
        await confirm(logs, source, target, target_partition, stamp, at, at)
    if before is not None and follows:
        epoch = before.header.partition_leader_epoch, at
    position = Position(
        next_offset=at,
        stamp=stamp,
        known=known,
        last_epoch=before.header.partition_leader_epoch if before is not None and follows else -1,
        lost_until=logs.start if at < logs.start else -1,
        target_offset=logs.end,
        target_lost=lost,
        target_epoch=logs.target_epoch,
        last=found_position(logs, at, stamp, batch, epoch, _begin_of(offset_map.runs, logs)),
        stamped=logs.is_stamped,
        is_empty=logs.is_empty,
        log_start=logs.start,
    )
    return position, offset_map


def _begin_of(runs: OffsetRanges, logs: Logs) -> int:
    """The source offset that the copy begins with, by runs that end where it does (`LastPosition.begins`)."""
    if (begin := runs.to_source(logs.target_start)) is None:  # the last runs do not say
        return logs.last.begins if logs.last is not None else logs.since
    return begin if logs.end else max(begin, logs.start)  # what was lost of it before is on record


async def _go_on_from_last(
    offset_map: OffsetMap, logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition
) -> None:
    """Where the target has deleted records before it was recorded where they came from, the journal's last position
    says where to go on. Raises Unconfirmed where it does not.
    """
    runs, last = offset_map.runs, logs.last
    if logs.target_start <= runs.next_target or (not len(runs) and last is None):
        return  # nothing is missing, or the first records that are left have to show it
    if last is not None and last.source_next >= runs.next_source and last.target_end <= logs.end:
        if logs.target_start <= last.target_end:
            offset_map.restart(OffsetRanges(last.source_next, last.target_end), [])
            return
        if (at := await _counted(last, logs, source, target, target_partition)) is not None:
            offset_map.restart(OffsetRanges(at, logs.end), [])
            return
    detail = f"offsets {runs.next_target} to {logs.target_start - 1} were deleted before it was recorded where they"
    raise logs.unconfirmed(-1, f"{detail} came from")


async def _counted(
    last: LastPosition, logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition
) -> int | None:
    """Where the target's end is from, if all that it holds, or held, behind the last position is ours: so many records
    of the source follow that. None where that is unknown.
    """
    if last.stamp is None or logs.kept_until is None or logs.start > last.source_next:
        return None
    tail = logs.tail if logs.tail_is_ours else None
    stamp, _ = await next_stamp(target, target_partition, logs.own, logs.end, tail)
    left = logs.end - last.target_end
    if distance(last.stamp, stamp) != left:
        return None
    stable = await list_offset(source, logs.source, LATEST, READ_COMMITTED)
    begin = last.source_next
    theirs = _Records(batches(source, logs.source, begin, stable, READ_COMMITTED), begin, logs.losses)
    at = last.source_next
    while left and await theirs.more():
        count = min(left, theirs.left)
        at = theirs.offset_of(count - 1) + 1
        theirs.pass_by(count)
        left -= count
    return at if not left and at <= logs.kept_until else None


async def _check_gap(runs: OffsetRanges, logs: Logs, source: Cluster) -> None:
    """Raises PartitionStop where the source has a record between the last one that was mirrored and where the flow goes
    on (R3).
    """
    if not len(runs):
        return
    last = runs.to_source(runs.next_target - 1)
    first = max(logs.start, last + 1) if last is not None else runs.next_source
    try:
        difference = await gap_difference(source, logs.source, first, runs.next_source, logs.losses)
    except OpenTransaction as opened:
        raise logs.reopened(runs.next_source, opened) from opened
    if difference:
        detail = f"nothing was mirrored of offsets {first} to {runs.next_source - 1}: {difference}"
        raise logs.truncated(runs.next_source, f"{detail}; the source's log was cut back or replaced")


def _truncated(logs: Logs, runs: OffsetRanges, stable: int | None = None) -> PartitionStop:
    """The stop for a source that ends before what was mirrored, or in a transaction that had been committed."""
    more = ", and more" if runs.next_target < logs.end else ""
    ends = f"log ends at {logs.readable}" if stable in (None, logs.readable) else f"last stable offset is {stable}"
    detail = f"offsets up to {runs.next_source - 1} were mirrored{more}"
    if stable is None:
        return logs.truncated(runs.next_source, f"{detail}; the source's {ends}")
    return logs.cut(runs.next_source, detail, f"the source's {ends}")


async def _check_tail(
    runs: OffsetRanges, logs: Logs, source: Cluster
) -> tuple[LastBatch | None, tuple[int, int] | None]:
    """Raises PartitionStop where the target's last batch is not what the source has where it came from (R3). The batch
    as the journal is to keep it, and the leader epoch of the source up to an offset; None where there is nothing to
    compare.
    """
    try:
        return await _tail_compared(runs, logs, source)
    except MalformedBatch:
        if not logs.keeps(logs.tail):
            raise
        return None, None


async def _tail_compared(
    runs: OffsetRanges, logs: Logs, source: Cluster
) -> tuple[LastBatch | None, tuple[int, int] | None]:
    tail = logs.tail
    if tail is None or not len(runs):
        return None, None
    header = tail.header
    first, last = runs.to_source(max(header.base_offset, runs.begin)), runs.to_source(header.last_offset)
    if first is None or last is None or first < logs.start:
        return None, None
    compared: RawBatch | None
    compared = source_batch = await batch_at(source, logs.source, first, READ_COMMITTED, below=first + 1)
    if header.base_offset >= runs.begin and last - first == header.last_offset_delta:
        difference = batch_difference(tail.at(first), source_batch, may_be_rewritten=logs.tail_is_ours)
        if not difference and source_batch is not None:
            difference, compared = await joined_difference(source, logs.source, tail.at(first), source_batch)
    elif source_batch is None:
        difference = "the source has no batch there"
    else:
        difference = _moved_difference(runs, tail, source_batch)
    if difference:
        detail = (
            f"the target's last batch, at offset {header.base_offset}, is not the source's at {first}: {difference}"
        )
        raise logs.unlike(first, detail, compared)
    assert source_batch is not None
    assert compared is not None
    if source_batch.header.magic == 2 and source_batch.header.base_offset > last:
        return None, None  # compaction left a hole, or another log has one
    is_same = (source_batch.header.base_offset, source_batch.header.count) == (first, header.count)
    batch = kept_batch(tail, first, source_batch.header.crc if is_same else None)
    return batch, (compared.header.partition_leader_epoch, compared.header.next_offset)


def _moved_difference(runs: OffsetRanges, tail: RawBatch, source_batch: RawBatch) -> str:
    """The same for a batch whose records were closed up."""
    from mirror.records.rewrite import read  # noqa: PLC0415 -- loads the compiler, and is seldom needed

    try:
        ours, theirs = read(tail, LARGEST_RECORD), read(source_batch, LARGEST_RECORD)
    except BadRecords as damage:
        return f"one of them cannot be read: {damage.detail}"
    ours = ours.rows(max(0, runs.begin - tail.header.base_offset), len(ours)).relocated(runs.to_source)
    return records_difference(ours, theirs, timed=not tail.header.attributes & APPEND_TIME)


async def _retrace(
    offset_map: OffsetMap, logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition
) -> int:
    """Add to the offset map what the target holds beyond it; how many of these records the source still has. Raises
    PartitionStop where they are not the source's (R2).
    """
    compared = 0
    at, begin = offset_map.runs.next_source, offset_map.runs.next_target

    def diverged(detail: str) -> PartitionStop:
        runs = offset_map.runs
        detail = f"at offset {runs.next_target} of the target, {detail}"
        return logs.stop(State.DIVERGED, runs.next_source, detail, *ANOTHER_COPY)

    def marked() -> PartitionStop:
        assert ours.marker is not None
        if logs.own.is_kin(ours.marker.header.producer_id):
            detail = f"the target has a control marker of this flow at offset {ours.marker.header.base_offset}"
            return logs.begun_otherwise(offset_map.runs.next_source, detail, "preserve")
        return diverged("a control marker is there: its records were written in transactions, or with equal offsets")

    # a batch of which the source deleted the first records still has them inside
    start = max(at, logs.start)
    stable = await list_offset(source, logs.source, LATEST, READ_COMMITTED)
    theirs = _Records(batches(source, logs.source, start, stable, READ_COMMITTED), start, logs.losses)
    ours = _Records(batches(target, target_partition, begin, logs.end, READ_UNCOMMITTED), begin)
    try:
        while await ours.more():
            goes_on = await theirs.more()
            if ours.marker:
                raise marked()
            if ours.offset != offset_map.runs.next_target:
                cleaned = "the target's cleaner took records before the journal said where they came from"
                raise diverged(f"no record is there, the next one is at {ours.offset}: {cleaned}")
            count = _alike(theirs, ours) if goes_on else 0
            if count:
                compared += count
                offset_map.add(theirs.offset, ours.offset, count)
                theirs.pass_by(count)
            else:
                count, free = 1, theirs.free(offset_map.runs.next_source)
                source_batch = theirs.raw if goes_on else None
                is_foreign = not logs.may_be_gone(ours.raw, ours.offset, source_batch)
                if is_foreign or (theirs.offset if goes_on else stable) <= free:
                    if (
                        not (is_foreign or goes_on) and logs.tail_is_ours
                    ):  # what was committed never is not, but after a cut
                        raise _truncated(logs, offset_map.runs, stable)
                    there = f"at offset {offset_map.runs.next_target} of the target, the record is not the source's"
                    at = offset_map.runs.next_source
                    raise logs.unlike(at, f"{there} at offset {at}", source_batch, ours.raw if is_foreign else None)
                offset_map.add(free, ours.offset, 1)
            ours.pass_by(count)
        if ours.marker:
            raise marked()
    except BadRecords as damage:
        raise diverged(f"a batch cannot be read: {damage.detail}") from damage
    return compared


async def _retrace_from_the_first(
    offset_map: OffsetMap, logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition
) -> int:
    """The same where nothing is recorded, and the target has deleted its first records. Raises PartitionStop as well
    where the source has none of those that are left.
    """
    try:
        origin = await _origin(logs, source, target, target_partition)
    except BadRecords as damage:
        raise logs.stop(State.DIVERGED, -1, f"a batch cannot be read: {damage.detail}", *ANOTHER_COPY) from damage
    offset_map.restart(OffsetRanges(origin or logs.since, logs.target_start), [])
    compared = 0
    if origin is not None or logs.start:  # it may be one that the source has deleted since
        compared = await _retrace(offset_map, logs, source, target, target_partition)
    if offset_map.runs.next_source <= max(origin or 0, logs.begin):
        detail = f"the journal does not say where offset {logs.target_start}, the target's first, came from"
        raise logs.stop(State.DIVERGED, -1, f"{detail}, and nor does the source", *ANOTHER_COPY)
    return compared


async def _origin(logs: Logs, source: Cluster, target: Cluster, target_partition: TopicPartition) -> int | None:
    """Where the source has the target's first record; None where it has none like it. Raises BadRecords."""
    begin = logs.target_start
    ours = _Records(batches(target, target_partition, begin, logs.end, READ_UNCOMMITTED), begin)
    if not await ours.more() or ours.raw is None or ours.raw.header.attributes & APPEND_TIME:
        return None
    content, stamp, _ = next(ours.following())
    at = await list_offset(source, logs.source, stamp, READ_COMMITTED) if stamp >= 0 else -1
    if at < 0:
        return None
    at = max(at, logs.since)
    stable = await list_offset(source, logs.source, LATEST, READ_COMMITTED)
    theirs = _Records(batches(source, logs.source, at, stable, READ_COMMITTED), at, logs.losses)
    while await theirs.more():
        assert theirs.raw is not None
        if theirs.raw.header.max_timestamp >= stamp:
            for its, its_stamp, its_offset in theirs.following():
                if its == content and its_stamp == stamp:
                    return its_offset
        theirs.pass_by(theirs.left)
    return None


class _Records:
    """One log's records, a batch at a time, from offset `begin` on; of the batch at hand, `left` are to come. Those at
    the offsets `losses`, from and to before, do not count. `marker` is the first control batch that was met.
    """

    def __init__(
        self,
        log: AsyncIterator[tuple[RawBatch, bool]],
        begin: int,
        losses: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._log, self._begin, self._losses = log, begin, losses
        self._rows: Records | None = None
        self._contents: list[Content] = []
        self._taken: list[tuple[int, int]] = []
        self._at = 0
        self.raw: RawBatch | None = None
        self.left = 0
        self.marker: RawBatch | None = None

    async def more(self) -> bool:
        """Whether a record is at hand. Raises BadRecords."""
        while not self.left:
            try:
                raw, is_aborted = await anext(self._log)
            except StopAsyncIteration:
                return False
            self.raw, header = raw, raw.header
            if header.is_control:
                self.marker = self.marker or raw
            self._rows, self._at = None, 0
            if is_aborted or header.is_control:
                self._taken.append((header.base_offset, header.next_offset))
            else:
                self.left = header.count
                lost = [one for one in self._losses if one[0] <= header.last_offset and header.base_offset < one[1]]
                self._taken += lost
                if any(first <= header.base_offset and header.next_offset <= following for first, following in lost):
                    self.left = 0  # what cannot be read is among them
                elif lost or header.magic < 2 or not header.is_dense or header.base_offset < self._begin:
                    self.left = len(self.rows)
        return True

    @property
    def rows(self) -> Records:
        """The records of the batch at hand, as far as they count."""
        from mirror.records.rewrite import read  # noqa: PLC0415 -- loads the compiler, and is seldom needed

        assert self.raw is not None
        if self._rows is None:
            every = read(self.raw, LARGEST_RECORD)
            every = every.rows(int(every.offsets.searchsorted(self._begin)), len(every))
            for first, following in self._losses:
                kept = (every.offsets < first) | (every.offsets >= following)
                every = every if kept.all() else every.taken(kept.nonzero()[0])
            self._rows = every
            self._contents = _contents(self._rows)
        return self._rows

    @property
    def offset(self) -> int:
        """The offset of the record at hand."""
        return self.offset_of(0)

    def offset_of(self, following: int) -> int:
        """The offset of the record that comes so many behind the one at hand, in the same batch."""
        assert self.raw is not None
        at = self._at + following
        return self.raw.header.base_offset + at if self._rows is None else int(self._rows.offsets[at])

    @property
    def is_whole(self) -> bool:
        """The batch at hand is without holes, and none of it was passed by."""
        return self._rows is None and self._at == 0

    def pass_by(self, count: int) -> None:
        """Go on behind `count` records."""
        self._at += count
        self.left -= count
        self._taken.clear()

    def free(self, at: int) -> int:
        """The first offset from `at` on that is taken by no marker and no aborted record, of those between the record
        that was passed by last and the one at hand.
        """
        for first, following in self._taken:
            if first <= at:
                at = max(at, following)
        return at

    def following(self) -> Iterator[tuple[Content, int, int]]:
        """Of every record that is left: its content, timestamp and offset."""
        rows = self.rows
        for at in range(self._at, len(rows)):
            yield self._contents[at], int(rows.timestamps[at]), int(rows.offsets[at])


def _alike(theirs: _Records, ours: _Records) -> int:
    """How many records at hand are the same on both sides and, in the source, at offsets in a row."""
    assert theirs.raw is not None
    assert ours.raw is not None
    whole = theirs.is_whole and ours.is_whole
    if whole and not batch_difference(ours.raw.at(theirs.offset), theirs.raw, may_be_rewritten=False):
        return ours.left
    timed = not ours.raw.header.attributes & APPEND_TIME
    count, offset = 0, theirs.offset
    for (mine, stamp, _), (its, its_stamp, its_offset) in zip(ours.following(), theirs.following(), strict=False):
        if mine != its or (timed and stamp != its_stamp) or its_offset != offset + count:
            break
        count += 1
    return count


def _contents(rows: Records) -> list[Content]:
    """All of each record but offset and timestamp."""
    data = rows.data.tobytes()
    columns = (
        *(rows.key_at, rows.key_size, rows.value_at, rows.value_size),
        *(rows.headers_at, rows.headers_end, rows.header_count),
    )
    return [
        (
            data[key_at : key_at + key_size] if key_size >= 0 else None,
            data[value_at : value_at + value_size] if value_size >= 0 else None,
            data[headers_at:headers_end] if count else b"",
        )
        for key_at, key_size, value_at, value_size, headers_at, headers_end, count in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
