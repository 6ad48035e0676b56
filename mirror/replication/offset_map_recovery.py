"""Where a partition stands whose offsets move (`translate`), and runs that were not recorded, found again.

    - Position = the target's log end, carried over to the source by the runs: by those recorded, and from where these
      end by what both logs hold.
    - The target holds the source's records in their order, so each of its records is the next one of the source, or one
      that the source has deleted since, and then an offset is missing there, below the last stable one and where no
      marker or aborted record is, and behind the last acknowledged position it is one that a mirror wrote, here or in
      the source; anything else was written by somebody else.
    - The target's last batch equals what the source has at its offsets, and the source has no record between that and
      where the flow goes on there, or nothing is written.
    - A target whose first records are gone, and of which nothing is recorded, begins with the first record of the
      source that equals its own first, or with some that the source has deleted, too.

Records are distinguished by all that a consumer gets of them. Where the source has lost one of several that are equal
in all of that, timestamps included, what is left may be taken for the lost one, which a reader does not see either.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from mirror.errors import BadRecords, ClusterUnreachable, MalformedBatch, OpenTransaction, PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.log_reader import batch_at, batches
from mirror.kafka.queries import LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset
from mirror.policy.rules import NO_LIMIT
from mirror.records.compare import batch_difference, records_difference
from mirror.records.header import APPEND_TIME, RawBatch, is_a_mirrors
from mirror.records.recipe import LARGEST_RECORD
from mirror.replication.assignment import LastBatch, LastPosition
from mirror.replication.decide import (
    ANOTHER_COPY,
    MOVED_OFFSETS,
    Position,
    Unconfirmed,
    begun_otherwise,
    cut,
    distance,
    stamp_of,
    stamp_unknown,
    stop_at,
    target_loss,
    truncated,
    unlike,
)
from mirror.replication.observe import Comparison, Observation, Observer, Question
from mirror.replication.offset_map import OffsetMap, OffsetRangeIndex, OffsetRanges
from mirror.replication.position import settle
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


async def complete(index: OffsetRangeIndex, observer: Observer, *, confirmed: bool = False) -> None:
    """Let an index cover all that the target holds, as a mirror that starts now would find it; nothing is written. A
    copy that nothing confirms is as good as another where its records alone are asked for, unless it is to be
    `confirmed`.

    Raises as `resume_translated` does; what was found before that is learned.
    """
    offset_map = OffsetMap()
    try:
        with contextlib.suppress(*(() if confirmed else (Unconfirmed,))):
            await resume_translated(observer, looking(index, offset_map))
    finally:
        found, gone = offset_map.pending()
        for begin in gone:
            index.learn(begin, None)
        for runs in (*found, offset_map.runs):
            index.learn(runs.begin, runs)


async def resume_translated(observer: Observer, recall: Recall) -> tuple[Position, OffsetMap]:
    """Return the position of one partition, with the check of its last batch (P6 to P8 in
    `replication/decide.py`), and its offset map, complete up to there.

    Raises PartitionStop (DIVERGED, TRUNCATED, TARGET_LOST, RETENTION_GAP), and as `Observer.observe` does.
    """
    # The journal is read before the log's end: of what another mirror appends meanwhile, it must not name more.
    await recall(observer.target_partition, NO_LIMIT)
    facts = await observer.observe()
    offset_map = await recall(observer.target_partition, facts.end)
    known = (getattr(observer, field.name) for field in fields(Observer))
    return await settle(MapObserver(*known, offset_map=offset_map), facts, MOVED_OFFSETS), offset_map


@dataclass(frozen=True, slots=True)
class MapObserver(Observer):
    """Completes the offset map of a copy from both logs, as it compares them."""

    offset_map: OffsetMap = field(kw_only=True)  # as far as it is recorded at first

    async def _comparison(self, facts: Observation) -> dict[str, Any]:
        try:
            batch, epoch = await self._completed(facts)
        except PartitionStop as stop:
            return {"stop": stop}
        except OpenTransaction as opened:
            if opened.cluster != facts.clusters[0]:
                raise
            return {"open_from": opened.stable, "moved_to": self.offset_map.runs.next_source}
        runs, reaches = self.offset_map.runs, None
        following = runs.next_source
        if following > facts.start:
            before = await batch_at(self.source, self.source_partition, following - 1, below=following)
            if before is not None and before.header.next_offset == following:
                reaches = before.header.partition_leader_epoch, following
        found = Comparison(batch=batch, epoch=epoch, begin=following, reaches=reaches)
        return {"comparison": found, "moved_to": following, "begins": _begin_of(runs, facts)}

    async def _completed(self, facts: Observation) -> tuple[LastBatch | None, tuple[int, int] | None]:
        """Complete the offset map. Return the target's last batch, if it was compared, and a leader epoch of the source
        and up to where it reaches; None for that where nothing was compared. Raises PartitionStop.
        """
        offset_map, since = self.offset_map, facts.since
        if not facts.end:
            if since > facts.readable:
                detail = f"the flow begins at offset {since}; the source's log ends at {facts.readable}"
                raise truncated(facts, since, detail)
            acknowledged, _ = target_loss(facts, since) or (facts.begin, -1)  # that is not passed over
            offset_map.restart(OffsetRanges(min(facts.begin, acknowledged)), [])
            return None, None
        if facts.end < offset_map.runs.begin:
            none_below = f"the journal names none below {offset_map.runs.begin}"
            raise _other_copy(facts, -1, f"the target ends at offset {facts.end}, and {none_below}")
        offset_map.cut(facts.end)
        if not len(offset_map.runs):  # those that are recorded say themselves where they are from
            offset_map.runs.pass_over(since)
        if offset_map.runs.next_source > facts.readable:
            raise _truncated(facts, offset_map.runs)
        await self._check_gap(facts)
        await self._go_on_from_last(facts)
        runs = offset_map.runs
        if facts.end != runs.next_target:
            from_the_first = not len(runs) and facts.target_start
            compared = await (self._retrace_from_the_first(facts) if from_the_first else self._retrace(facts))
        elif facts.tail is None or facts.tail_is_ours:
            return await self._check_tail(facts)
        else:  # its records may be the source's all the same, in other batches
            begin = max(runs.begin, facts.tail.header.base_offset)
            first = runs.to_source(begin)
            assert first is not None, "the runs end with the log"
            compared = await replace(self, offset_map=OffsetMap(OffsetRanges(first, begin)))._retrace(facts)
        return None, (-1, -1) if compared else None

    async def _go_on_from_last(self, facts: Observation) -> None:
        """Go on, where the target has deleted records before it was recorded where they came from, from the journal's
        last position. Raises Unconfirmed where that does not say enough.
        """
        runs, last = self.offset_map.runs, facts.last
        if facts.target_start <= runs.next_target or (not len(runs) and last is None):
            return  # nothing is missing, or the first records that are left have to show it
        if last is not None and last.source_next >= runs.next_source and last.target_end <= facts.end:
            if facts.target_start <= last.target_end:
                self.offset_map.restart(OffsetRanges(last.source_next, last.target_end), [])
                return
            if (following := await self._counted(facts, last)) is not None:
                self.offset_map.restart(OffsetRanges(following, facts.end), [])
                return
        detail = (
            f"offsets {runs.next_target} to {facts.target_start - 1} were deleted before it was recorded where they"
        )
        raise Unconfirmed(facts.source, -1, facts.end, f"{detail} came from")

    async def _counted(self, facts: Observation, last: LastPosition) -> int | None:
        """Return where the target's end is from, if all that it holds, or held, behind the last position is this
        flow's: so many records of the source follow that. None where that is unknown.
        """
        if last.stamp is None or facts.kept_until is None or facts.start > last.source_next:
            return None
        seen = await self.ask(facts, Question.PRODUCERS)
        if isinstance(unknown := stamp_unknown(seen), ClusterUnreachable):
            raise unknown
        left = facts.end - last.target_end
        if distance(last.stamp, stamp_of(seen)[0]) != left:
            return None
        offset = last.source_next
        source_records, _ = await self._source_records(offset)
        while left and await source_records.more():
            count = min(left, source_records.left)
            offset = source_records.offset_of(count - 1) + 1
            source_records.pass_by(count)
            left -= count
        return offset if not left and offset <= facts.kept_until else None

    async def _check_gap(self, facts: Observation) -> None:
        """Raise PartitionStop where the source has a record between the last one that was mirrored and where the flow
        goes on.
        """
        runs = self.offset_map.runs
        if not len(runs):
            return
        last, following = runs.to_source(runs.next_target - 1), runs.next_source
        first = max(facts.start, last + 1) if last is not None else following
        if difference := await self.gap_difference(first, following):
            detail = f"nothing was mirrored of offsets {first} to {following - 1}: {difference}"
            raise truncated(facts, following, f"{detail}; the source's log was cut back or replaced")

    async def _check_tail(self, facts: Observation) -> tuple[LastBatch | None, tuple[int, int] | None]:
        """Raise PartitionStop where the target's last batch is not what the source has where it came from. Return
        the same as `_completed`.
        """
        try:
            return await self._tail_compared(facts)
        except MalformedBatch:
            if not facts.keeps(facts.tail):
                raise
            return None, None

    async def _tail_compared(self, facts: Observation) -> tuple[LastBatch | None, tuple[int, int] | None]:
        runs, tail = self.offset_map.runs, facts.tail
        if tail is None or not len(runs):
            return None, None
        header = tail.header
        first, last = runs.to_source(max(header.base_offset, runs.begin)), runs.to_source(header.last_offset)
        if first is None or last is None or first < facts.start:
            return None, None
        compared: RawBatch | None
        compared = source_batch = await self.source_at(first)
        if header.base_offset >= runs.begin and last - first == header.last_offset_delta:
            difference, compared = await self.difference(facts, tail.at(first), source_batch)
        elif source_batch is None:
            difference = "the source has no batch there"
        else:
            difference = _moved_difference(runs, tail, source_batch)
        if difference:
            where = f"the target's last batch, at offset {header.base_offset}, is not the source's at {first}"
            raise unlike(facts, facts.unlike(first, f"{where}: {difference}", compared))
        assert source_batch is not None
        assert compared is not None
        if source_batch.header.magic == 2 and source_batch.header.base_offset > last:
            return None, None  # compaction left a hole, or another log has one
        is_same = (source_batch.header.base_offset, source_batch.header.count) == (first, header.count)
        batch = LastBatch.of(tail, first, source_batch.header.crc if is_same else None)
        return batch, (compared.header.partition_leader_epoch, compared.header.next_offset)

    async def _source_records(self, begin: int) -> tuple[_Records, int]:
        """Return the source's records from an offset to the last stable one, and that."""
        stable = await list_offset(self.source, self.source_partition, LATEST, READ_COMMITTED)
        return _Records(self.source_batches(begin, stable), begin, self.losses), stable

    def _target_records(self, begin: int, end: int) -> _Records:
        return _Records(batches(self.target, self.target_partition, begin, end, READ_UNCOMMITTED), begin)

    async def _retrace(self, facts: Observation) -> int:
        """Add to the offset map what the target holds beyond it. Return how many of these records the source still
        has. Raises PartitionStop where they are not the source's.
        """
        runs, compared = self.offset_map.runs, 0
        begin = runs.next_target
        # a batch of which the source deleted the first records still has them inside
        source_records, stable = await self._source_records(max(runs.next_source, facts.start))
        target_records = self._target_records(begin, facts.end)
        try:
            while await target_records.more():
                goes_on = await source_records.more()
                self._check_marker(facts, target_records.marker)
                if target_records.offset != self.offset_map.runs.next_target:
                    cleaned = "the target's cleaner took records before the journal said where they came from"
                    detail = f"no record is there, the next one is at {target_records.offset}: {cleaned}"
                    raise self._diverged(facts, detail)
                count = _alike(source_records, target_records) if goes_on else 0
                if count:
                    compared += count
                    self.offset_map.add(source_records.offset, target_records.offset, count)
                    source_records.pass_by(count)
                else:
                    count, free = 1, source_records.free(self.offset_map.runs.next_source)
                    upcoming = source_records.raw if goes_on else None
                    is_hole = (source_records.offset if goes_on else stable) > free
                    self._check_gone(facts, target_records, upcoming, is_hole, stable)
                    self.offset_map.add(free, target_records.offset, 1)
                target_records.pass_by(count)
            self._check_marker(facts, target_records.marker)
        except BadRecords as damage:
            raise self._diverged(facts, f"a batch cannot be read: {damage.detail}") from damage
        return compared

    def _check_marker(self, facts: Observation, marker: RawBatch | None) -> None:
        """Raise PartitionStop where the target has a control marker: offsets that move need none."""
        if marker is None:
            return
        if facts.own.is_kin(marker.header.producer_id):
            detail = f"the target has a control marker of this flow at offset {marker.header.base_offset}"
            raise begun_otherwise(facts, self.offset_map.runs.next_source, detail, "preserve")
        what = "its records were written in transactions, or with equal offsets"
        raise self._diverged(facts, f"a control marker is there: {what}")

    def _check_gone(
        self,
        facts: Observation,
        target_records: _Records,
        upcoming: RawBatch | None,
        is_hole: bool,
        stable: int,
    ) -> None:
        """Raise PartitionStop unless the target's record may be one that the source has deleted."""
        runs = self.offset_map.runs
        is_foreign = not _may_be_gone(facts, target_records.raw, target_records.offset, upcoming)
        if is_hole and not is_foreign:
            return
        if upcoming is None and not is_foreign and facts.tail_is_ours:
            raise _truncated(facts, runs, stable)  # what was committed never is not, but after a cut
        there = f"at offset {runs.next_target} of the target, the record is not the source's"
        detail = f"{there} at offset {runs.next_source}"
        foreign = target_records.raw if is_foreign else None
        raise unlike(facts, facts.unlike(runs.next_source, detail, upcoming, foreign))

    def _diverged(self, facts: Observation, detail: str) -> PartitionStop:
        runs = self.offset_map.runs
        return _other_copy(facts, runs.next_source, f"at offset {runs.next_target} of the target, {detail}")

    async def _retrace_from_the_first(self, facts: Observation) -> int:
        """Do the same where nothing is recorded, and the target has deleted its first records. Raises PartitionStop as
        well where the source has none of those that are left.
        """
        try:
            origin = await self._origin(facts)
        except BadRecords as damage:
            raise _other_copy(facts, -1, f"a batch cannot be read: {damage.detail}") from damage
        self.offset_map.restart(OffsetRanges(origin or facts.since, facts.target_start), [])
        compared = 0
        if origin is not None or facts.start:  # it may be one that the source has deleted since
            compared = await self._retrace(facts)
        if self.offset_map.runs.next_source <= max(origin or 0, facts.begin):
            detail = f"the journal does not say where offset {facts.target_start}, the target's first, came from"
            raise _other_copy(facts, -1, f"{detail}, and nor does the source")
        return compared

    async def _origin(self, facts: Observation) -> int | None:
        """Return where the source has the target's first record; None where it has none like it. Raises BadRecords."""
        target_records = self._target_records(facts.target_start, facts.end)
        if not await target_records.more() or target_records.raw is None:
            return None
        if target_records.raw.header.attributes & APPEND_TIME:
            return None
        content, stamp, _ = next(target_records.following())
        offset = await list_offset(self.source, self.source_partition, stamp, READ_COMMITTED) if stamp >= 0 else -1
        if offset < 0:
            return None
        source_records, _ = await self._source_records(max(offset, facts.since))
        while await source_records.more():
            assert source_records.raw is not None
            if source_records.raw.header.max_timestamp >= stamp:
                for source_content, source_stamp, source_offset in source_records.following():
                    if source_content == content and source_stamp == stamp:
                        return source_offset
            source_records.pass_by(source_records.left)
        return None


def _other_copy(facts: Observation, offset: int, detail: str) -> PartitionStop:
    return stop_at(facts, State.DIVERGED, offset, detail, *ANOTHER_COPY)


def _begin_of(runs: OffsetRanges, facts: Observation) -> int:
    """Return the source offset that the copy begins with, by runs that end where it does (`LastPosition.begins`)."""
    if (begin := runs.to_source(facts.target_start)) is None:  # the last runs do not say
        return facts.last.begins if facts.last is not None else facts.since
    return begin if facts.end else max(begin, facts.start)  # what was lost of it before is on record


def _truncated(facts: Observation, runs: OffsetRanges, stable: int | None = None) -> PartitionStop:
    """Return the stop for a source that ends before what was mirrored, or in a transaction that had been committed."""
    more = ", and more" if runs.next_target < facts.end else ""
    ends = f"log ends at {facts.readable}" if stable in (None, facts.readable) else f"last stable offset is {stable}"
    detail = f"offsets up to {runs.next_source - 1} were mirrored{more}"
    if stable is None:
        return truncated(facts, runs.next_source, f"{detail}; the source's {ends}")
    return cut(facts, runs.next_source, detail, f"the source's {ends}")


def _may_be_gone(facts: Observation, target_batch: RawBatch | None, offset: int, upcoming: RawBatch | None) -> bool:
    """Return True if the target's record at its `offset` may have been the source's, which has a hole before its next
    batch, `upcoming`: not what somebody else wrote behind the last acknowledged position. A source that is a copy as
    well may hold as a mirror's what others wrote to this copy, as behind a flow back.
    """
    if facts.last is None or offset < facts.last.target_end:
        return True
    if target_batch is not None and facts.own.is_kin(target_batch.header.producer_id):
        return True
    return upcoming is not None and is_a_mirrors(upcoming.header.producer_id)


def _moved_difference(runs: OffsetRanges, tail: RawBatch, source_batch: RawBatch) -> str:
    """Return what differs from a batch whose records were closed up."""
    from mirror.records.rewrite import read  # noqa: PLC0415 -- loads the compiler, and is seldom needed

    try:
        target_records, source_records = read(tail, LARGEST_RECORD), read(source_batch, LARGEST_RECORD)
    except BadRecords as damage:
        return f"one of them cannot be read: {damage.detail}"
    begin = max(0, runs.begin - tail.header.base_offset)
    target_records = target_records.rows(begin, len(target_records)).relocated(runs.to_source)
    return records_difference(target_records, source_records, timed=not tail.header.attributes & APPEND_TIME)


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
                lost = [loss for loss in self._losses if loss[0] <= header.last_offset and header.base_offset < loss[1]]
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


def _alike(records: _Records, ours: _Records) -> int:
    """How many records at hand are the same on both sides and, in the source, at offsets in a row."""
    assert records.raw is not None
    assert ours.raw is not None
    whole = records.is_whole and ours.is_whole
    if whole and not batch_difference(ours.raw.at(records.offset), records.raw, may_be_rewritten=False):
        return ours.left
    timed = not ours.raw.header.attributes & APPEND_TIME
    count, offset = 0, records.offset
    for (mine, stamp, _), (its, its_stamp, its_offset) in zip(ours.following(), records.following(), strict=False):
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
