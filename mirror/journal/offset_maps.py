"""Offset maps in the journal: recorded while a task runs, loaded by the next, and looked up.

    key    runs/<target topic>/<partition>/<target offset of the first run>
    value  {"source": of the first run, "target": the same, "runs": [length, skip, length, ...], "next": ...}

    key    cut/<target topic>/<partition>
    value  `Cut`: the target lost its tail; deleted when no group stands in that any more

A `skip` is what the source has between two runs, `next` is the source offset below which all is accounted for. A record
grows under its key until it holds `RUNS_IN_A_RECORD`, so compaction keeps one of each.

    - Runs are recorded after their data is acknowledged. What a dead mirror had not recorded is found again from both
      logs (`replication/offset_map_recovery.py`).

What the target lost is taken back in the journal before anything else may land in its place. Other records may come
there: a source deletes, and a target topic is made anew to begin where the source begins by now. Whoever died before
it recorded those would leave runs that name the ones before, and its successor would go on from there. Groups that had
read what is lost stand at offsets of other records then: the cut is recorded with it, so that they are put back (F5 in
`groups/decide.py`), also after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirror.journal.journal import Change, Entry, Journal
from mirror.journal.kinds import PartitionKind, PlaceKind
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.queries import EARLIEST, list_offset
from mirror.observability.json_record import Codec, Int64, Offset, codec_of
from mirror.observability.logs import get
from mirror.observability.status import NOT_OURS
from mirror.replication.offset_map import Cut, OffsetMap, OffsetRangeIndex, OffsetRanges

# --- Runs in the journal, and the index over them that answers where an offset moved to -------------------------------

_LARGEST: Final = 2**63 - 1
_log = get(__name__)


@dataclass(frozen=True, slots=True)
class RangesRecord:
    """Holds the value of a record of runs."""

    #: Where the first run begins.
    source: Offset
    target: Offset
    #: Length, skip, length, ...
    runs: list[Int64]
    #: The source offset below which all is accounted for.
    next: Int64


#: By the target offset of the first run.
RUNS: Final = PlaceKind(b"runs/", codec_of(RangesRecord))
#: What a target lost of its tail. A tombstone: no group stands in that any more.
CUTS: Final = PartitionKind(b"cut/", Codec[Cut](Cut))


class Recorded(NamedTuple):
    """One record: the runs of a target partition that begin at offset `begin`; None where they are gone."""

    target: TopicPartition
    begin: int
    runs: OffsetRanges | None


def map_entries(target: TopicPartition, offset_map: OffsetMap) -> list[Change]:
    """What is to be recorded of a partition, deletions first."""
    pending, obsolete = offset_map.pending()
    return [
        *(RUNS.tombstone((target, str(begin))) for begin in obsolete),
        *(_entry(target, runs) for runs in pending),
    ]


def read(record: Entry) -> Recorded | None:
    """What a record says of runs; None where it is about something else. Raises one of `NOT_OURS` where it
    is not one that `entries` made.
    """
    if (found := RUNS.read(record)) is None:
        return None
    (target, place), value = found
    first = int(place)
    if value is None:
        return Recorded(target, first, None)
    source, at, numbers = value.source, value.target, value.runs
    if at != first or min(numbers[1::2], default=0) < 0 or not len(numbers) % 2:
        raise ValueError("not the runs of a partition")
    runs = OffsetRanges(source, at)
    for skip, length in zip((0, *numbers[1::2]), numbers[::2], strict=True):
        runs.add(runs.next_source + skip, runs.next_target, length)
    runs.pass_over(value.next)
    if runs.next_source > _LARGEST:
        raise ValueError("offsets beyond 64 bits")
    return Recorded(target, first, runs)


def cut_entry(target: TopicPartition, cut: Cut) -> Change:
    """The record of a tail that a target lost; its deletion where no group stands in that any more."""
    return CUTS.change(target, cut if cut.groups is None or cut.groups else None)


def recorded_cuts(records: Iterable[Entry]) -> Iterator[tuple[TopicPartition, Cut | None]]:
    """What records say of tails that targets lost; those that are none of ours are passed over."""
    for record in records:
        with contextlib.suppress(*NOT_OURS):
            if (recorded := CUTS.read(record)) is not None:
                yield recorded


def recorded_ranges(records: Iterable[Entry]) -> Iterator[Recorded]:
    """What records say of runs; one under such a key that is none is skipped with a warning."""
    for record in records:
        try:
            recorded = read(record)
        except NOT_OURS as problem:
            key = record.key.decode(errors="replace")
            _log.warning("journal_record_unread", key=key, reason=repr(problem))
        else:
            if recorded is not None:
                yield recorded


class Indexes(dict[TopicPartition, OffsetRangeIndex]):
    """By target partition."""

    def __init__(self, records: Iterable[Entry] = ()) -> None:
        """What `records` say, in the order of the journal."""
        super().__init__()
        self.learn(records)

    def learn(self, records: Iterable[Entry]) -> None:
        """More records."""
        every = tuple(records)
        for recorded in recorded_ranges(every):
            self.setdefault(recorded.target, OffsetRangeIndex()).learn(recorded.begin, recorded.runs)
        for target, cut in recorded_cuts(every):
            self.setdefault(target, OffsetRangeIndex()).recorded_cut = cut

    def last(self) -> dict[TopicPartition, OffsetRanges]:
        """The newest runs of each partition."""
        found = ((target, index.last) for target, index in self.items())
        return {target: runs for target, runs in found if runs is not None}

    def entries(self) -> list[Change]:
        """All of it, to be recorded again."""
        return [_entry(target, piece) for target, index in self.items() for piece in index.pieces]

    def known_until(self, target: TopicPartition) -> int:
        """The offset of a target partition up to which the journal says where its records are from."""
        return self[target].end if target in self else 0

    def cut_of(self, target: TopicPartition) -> Cut | None:
        """What a target partition lost of its tail, where that may matter to groups still."""
        return self[target].cut if target in self else None

    def expired(self, log_starts: Mapping[TopicPartition, int]) -> list[Change]:
        """The deletion of what covers nothing from the targets' first offsets on."""
        return [
            RUNS.tombstone((target, str(begin)))
            for target, log_start in log_starts.items()
            if target in self
            for begin in self[target].expired(log_start)
        ]


def _entry(target: TopicPartition, runs: OffsetRanges) -> Change:
    numbers: list[int] = []
    end = None
    for run in runs:
        numbers += [run.length] if end is None else [run.source - end, run.length]
        end = run.source + run.length
    return RUNS.entry((target, str(runs.begin)), RangesRecord(runs.source_begin, runs.begin, numbers, runs.next_source))


# --- The offset maps of a task ----------------------------------------------------------------------------------------


class OffsetMapStore:
    """Of the target partitions of one task. `recall` is what a pipeline asks (`retracing.Recall`)."""

    def __init__(self, journal: Journal, last: Mapping[TopicPartition, OffsetRanges], read_until: int | None) -> None:
        """`last`: the newest runs of each partition as the journal had them before offset `read_until`; None where it
        was not read.
        """
        self._journal, self._last, self._read_until = journal, dict(last), read_until
        self._offset_maps: dict[TopicPartition, OffsetMap] = {}
        self._cut_back: dict[TopicPartition, Cut] = {}
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()
        self._is_read = False

    async def recall(self, target: TopicPartition, end: int) -> OffsetMap:
        """The offset map of a partition whose log ends at `end`, and neither it nor the journal covers more than
        that; an empty one where nothing is recorded.

        Raises as `Journal.read` and `Journal.append` do.
        """
        async with self._reading:  # once for all partitions
            if not self._is_read:
                await self._read()
        offset_map = self._offset_maps.get(target)
        if offset_map is None:
            offset_map = self._offset_maps[target] = OffsetMap(self._last.pop(target, None))
        if end < offset_map.runs.next_target:
            runs, epoch = offset_map.runs, self._journal.cluster.leader(target).epoch
            cut = Cut(end, runs.next_target, runs.next_source, epoch)
            self._cut_back[target] = cut.behind(self._cut_back.get(target))
        if target in self._cut_back:
            async with self._writing:
                entries, _ = await self._journal.read()
                index = Indexes(entries).get(target, OffsetRangeIndex())
                if offset_map.runs.begin > end:
                    lost = len(offset_map.go_back(index, end))
                    _log.warning(
                        "target_lost_records", topic=target.topic, partition=target.partition, offset=end, runs=lost
                    )
                offset_map.cut(end)
                cut = self._cut_back[target].behind(index.cut)
                await self._write({target: offset_map}, cut_entry(target, cut))
            del self._cut_back[target]
        return offset_map

    async def record(self) -> None:
        """Write down what was mirrored since the last time. Raises as `Journal.append` does."""
        async with self._writing:
            await self._write(self._offset_maps)

    async def _write(self, offset_maps: Mapping[TopicPartition, OffsetMap], *first: Change) -> None:
        entries = [*first]
        entries += [entry for target, offset_map in offset_maps.items() for entry in map_entries(target, offset_map)]
        begun = list(offset_maps.values())  # others may begin meanwhile
        await self._journal.append_all(entries)
        for offset_map in begun:
            offset_map.recorded()

    async def _read(self) -> None:
        entries, _ = await self._journal.read(self._read_until)
        ranges = list(recorded_ranges(entries))
        if self._read_until is not None and any(map(self._takes_back, ranges)):
            entries, _ = await self._journal.read()
            self._read_until = None
        if self._read_until is None:
            self._last = Indexes(entries).last()
        else:
            for recorded in ranges:
                self._learn(recorded)
        self._is_read = True

    def _takes_back(self, recorded: Recorded) -> bool:
        """Runs that `last` covers are gone: those before them are asked for."""
        known = self._last.get(recorded.target)
        return recorded.runs is None and known is not None and recorded.begin >= known.begin

    def _learn(self, recorded: Recorded) -> None:
        """Newer runs than `last`: the same ones as they are now, which may be shorter, or those that follow."""
        known, runs = self._last.get(recorded.target), recorded.runs
        if runs is None or known is None:
            if runs is not None and not runs.begin:
                self._last[recorded.target] = runs
        elif runs.begin in (known.begin, known.next_target):
            self._last[recorded.target] = runs


async def indexes_of(journal: Journal) -> Indexes:
    """Where offsets moved to, as far as a journal says; nothing where there is none. Raises as `Journal.read` does."""
    return Indexes((await journal.read())[0] if journal.partition.topic in journal.cluster.topics else ())


async def forget_expired(journal: Journal, indexes: Indexes) -> None:
    """Delete from the journal what names records that the targets deleted, and let indexes know where these begin;
    not of partitions without a leader, which may be gone for good. Raises as `list_offset` and `Journal.append` do.
    """
    cluster = journal.cluster
    asked = [
        partition
        for partition, index in indexes.items()
        if (index.begin or len(index.pieces) > 1) and cluster.leader(partition).node >= 0
    ]
    found = await asyncio.gather(*(list_offset(cluster, partition, EARLIEST) for partition in asked))
    for topic_partition, log_start in zip(asked, found, strict=True):
        indexes[topic_partition].log_start = log_start
    await journal.append_all(indexes.expired(dict(zip(asked, found, strict=True))))
