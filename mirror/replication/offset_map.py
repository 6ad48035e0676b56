"""Where offsets moved to: runs of records whose source and target offsets are equally far apart (pure).

    source   100 101 102 <marker> 104 105 <aborted: 106 to 109> 110 111
    target    90  91  92           93  94                        95  96
    runs     (100, 90)            (104, 93)                     (110, 95)

A run ends only where the distance changes.

    T1  the target's offsets have no gaps, since nobody else writes there: a run ends where the next one begins, and two
        numbers of eight bytes are all that is kept of it
    T2  both columns rise, so either way a lookup is a search
    T3  a run names records that the target has acknowledged, and stays true while the target holds them: whoever
        writes it twice writes the same
    T4  where a piece is missing, or was overwritten by an older form of itself, the runs up to there hold good and no
        further
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from mirror.records.recipe import Pieces

#: Runs in one record of the journal: some 3 KB, written anew each second while it grows.
RUNS_IN_A_RECORD: Final = 256
_NEVER: Final = (-1, -1, -1)


class OffsetRange(NamedTuple):
    """`length` records, from offset `source` on there and from `target` on here."""

    source: int
    target: int
    length: int


class OffsetRanges:
    """Consecutive runs of one partition. The source is accounted for below `next_source`, which may lie behind the last
    record: markers and the like are passed over. The next record goes to `next_target`.
    """

    __slots__ = ("_sources", "_targets", "next_source", "next_target")

    def __init__(self, next_source: int = 0, next_target: int = 0) -> None:
        """No runs yet."""
        self._sources, self._targets = array("q"), array("q")
        self.next_source, self.next_target = next_source, next_target

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[OffsetRange]:
        edges = pairwise((*self._targets, self.next_target))
        for source, (target, end) in zip(self._sources, edges, strict=True):
            yield OffsetRange(source, target, end - target)

    @property
    def begin(self) -> int:
        """The first target offset that is mapped; `next_target` where there is none."""
        return self._targets[0] if self._targets else self.next_target

    @property
    def source_begin(self) -> int:
        """The source offset of the record at `begin`."""
        return self._sources[0] if self._sources else self.next_source

    def continues(self, source: int, target: int) -> bool:
        """Whether a record at these offsets belongs to the last run."""
        return bool(self._sources) and source - target == self._sources[-1] - self._targets[-1]

    def add(self, source: int, target: int, count: int) -> None:
        """`count` more records. Raises ValueError where they do not come next (T1, T2)."""
        if target != self.next_target or source < self.next_source or count < 1:
            expected = f"{self.next_source} there and {self.next_target} here"
            raise ValueError(f"{count} records from {source} there to {target} here do not follow {expected}")
        if not self.continues(source, target):
            self._sources.append(source)
            self._targets.append(target)
        self.next_source, self.next_target = source + count, target + count

    def extend(self, pieces: Pieces, target: int, first: int, last: int, count: int) -> None:
        """Add pieces of a batch of `count` records at offset `target`, from number `first` to before `last`: none
        belongs to the last run.
        """
        end = pieces.places[last] if last < len(pieces.places) else count
        self._sources += pieces.sources[first:last]
        self._targets.extend(target + place for place in pieces.places[first:last])
        self.next_source = pieces.sources[last - 1] + end - pieces.places[last - 1]
        self.next_target = target + end

    def pass_over(self, until: int) -> None:
        """The source has nothing to mirror below `until`."""
        self.next_source = max(self.next_source, until)

    def to_target(self, source: int) -> int:
        """Where the first record at or behind a source offset is, or will be."""
        if source >= self.next_source:
            return self.next_target
        at = bisect_right(self._sources, source) - 1
        if at < 0:
            return self.begin
        end = self._targets[at + 1] if at + 1 < len(self._targets) else self.next_target
        return min(self._targets[at] + source - self._sources[at], end)

    def to_source(self, target: int) -> int | None:
        """Where the record at a target offset came from, or the next one will; None where that is not known."""
        if target == self.next_target:
            return self.next_source
        if not self.begin <= target < self.next_target:
            return None
        at = bisect_right(self._targets, target) - 1
        return self._sources[at] + target - self._targets[at]

    def copy(self) -> OffsetRanges:
        """The same, to be changed apart from these."""
        runs = OffsetRanges(self.next_source, self.next_target)
        runs._sources, runs._targets = self._sources[:], self._targets[:]
        return runs

    def cut(self, target: int) -> None:
        """Forget what is at `target` and behind it: the target lost it. Raises ValueError below `begin`."""
        if target >= self.next_target:
            return
        source = self.to_source(target)
        if source is None:
            raise ValueError(f"runs from {self.begin} on cannot be cut at {target}")
        kept = bisect_left(self._targets, target)
        del self._sources[kept:], self._targets[kept:]
        if kept:
            source = self._sources[-1] + target - self._targets[-1]
        self.next_source, self.next_target = source, target


@dataclass(frozen=True, slots=True)
class Cut:
    """That a target lost its tail, before anything else lands there.

    `begin`: its end then.
    `end`: its end before, as far as it was recorded.
    `source_end`: the source offset that went with that; -1 where other records are at these offsets by now.
    `epoch`: its leader epoch when that was found.
    `groups`: those that may still stand in what it lost, None for all.
    """

    begin: int
    end: int
    source_end: int
    epoch: int
    groups: frozenset[str] | None = None

    @property
    def is_shifted(self) -> bool:
        """It is known that other records are at these offsets by now."""
        return self.source_end < 0

    def concerns(self, group: str, offset: int, epoch: int) -> bool:
        """Whether a group committed an offset before this, in what was lost; with the leader epoch, -1 for none."""
        is_asked = self.groups is None or group in self.groups
        return is_asked and offset > self.begin and (epoch < self.epoch if epoch >= 0 else offset <= self.end)

    def behind(self, former: Cut | None) -> Cut:
        """The same where a former one may concern groups still."""
        if former is None:
            return self
        furthest = former if former.end >= self.end or former.is_shifted else self
        return Cut(min(self.begin, former.begin), max(self.end, former.end), furthest.source_end, self.epoch)


class OffsetRangeIndex:
    """All runs of one target partition, in the pieces in which they are recorded. `log_start`: where the target was
    last seen to begin; of what lies between that and the first piece, pieces are missing. `recorded_cut`: what is
    recorded of a tail that it lost.
    """

    def __init__(self) -> None:
        self.log_start = 0
        self.recorded_cut: Cut | None = None
        self._last: OffsetRanges | None = None
        self._is_last_known = True
        self._begins: list[int] = []
        self._pieces: dict[int, OffsetRanges] = {}

    def __len__(self) -> int:
        return sum(map(len, self._pieces.values()))

    def __iter__(self) -> Iterator[OffsetRange]:
        return (run for piece in self.pieces for run in piece)

    @property
    def pieces(self) -> tuple[OffsetRanges, ...]:
        """In offset order."""
        return tuple(self._pieces[begin] for begin in self._begins)

    def learn(self, begin: int, runs: OffsetRanges | None) -> None:
        """The piece that begins at target offset `begin`, None where it is gone; in the order of the journal."""
        last, self._is_last_known = self._last if self._is_last_known else None, False
        self._forget(begin)
        if runs is None:
            return
        at = bisect_left(self._begins, begin)
        if at and self._pieces[self._begins[at - 1]].next_target >= runs.next_target:
            return  # an older form of what is known
        self._begins.insert(at, begin)
        self._pieces[begin] = runs
        while at + 1 < len(self._begins) and self._pieces[self._begins[at + 1]].next_target <= runs.next_target:
            self._forget(self._begins[at + 1])  # found again in another piece
        if last is not None and begin == self._begins[-1] and begin in (last.begin, last.next_target):
            self._last, self._is_last_known = runs, True

    def _forget(self, begin: int) -> None:
        if self._pieces.pop(begin, None) is not None:
            del self._begins[bisect_left(self._begins, begin)]

    @property
    def last(self) -> OffsetRanges | None:
        """The newest piece up to which nothing is missing (T4)."""
        if not self._is_last_known:
            self._last, self._is_last_known = None, True
            for piece in self.pieces:
                if self._last is not None and piece.begin > self._last.next_target:
                    break
                self._last = piece
        return self._last

    @property
    def begin(self) -> int:
        """The first target offset that is mapped, 0 where none is."""
        return self._begins[0] if self._begins else 0

    @property
    def end(self) -> int:
        """The target offset up to which it is known where records are from."""
        return self.last.next_target if self.last is not None else 0

    def to_target(self, source: int) -> int:
        """Where the first record at or behind a source offset is, as far as that is known, and never too far."""
        if not self._begins or source < self._pieces[self._begins[0]].source_begin:
            return min(self.begin, self.log_start)
        at = bisect_right(self._begins, source, key=lambda begin: self._pieces[begin].source_begin) - 1
        return self._pieces[self._begins[at]].to_target(source)

    def to_source(self, target: int) -> int | None:
        """Where the record at a target offset came from, or the next one will; None where that is not known."""
        at = bisect_right(self._begins, target) - 1
        found = self._pieces[self._begins[at]].to_source(target) if at >= 0 else None
        if found is None and at + 1 < len(self._begins) and self._begins[at + 1] == target:
            return self._pieces[self._begins[at + 1]].source_begin
        return found

    @property
    def cut(self) -> Cut | None:
        """What the target lost of its tail, as far as that may matter to whoever read it there: None where all of it
        was copied again to the same offsets.
        """
        cut, last = self.recorded_cut, self.last
        if cut is None or cut.is_shifted or last is None or last.next_source < cut.source_end:
            return cut
        return replace(cut, source_end=-1) if self.to_target(cut.source_end) != cut.end else None

    def expired(self, log_start: int) -> list[int]:
        """Where the pieces begin that cover nothing from `log_start` on, the target's first offset. The last stays:
        it says where to go on.
        """
        return [begin for begin in self._begins[:-1] if self._pieces[begin].next_target <= log_start]


class OffsetMap:
    """The runs of one partition as its writer keeps them: the last ones, and those that were not recorded yet."""

    def __init__(self, runs: OffsetRanges | None = None) -> None:
        """`runs` are the last ones recorded."""
        self.runs = runs or OffsetRanges()
        self._full: list[OffsetRanges] = []
        self._obsolete: list[int] = []
        self._recorded = self._standing()
        self._pending = (0, 0, self._recorded)

    def add(self, source: int, target: int, count: int) -> None:
        """`count` records were acknowledged. Raises ValueError where they do not come next."""
        if not self.runs.continues(source, target):
            self._make_room()
        self.runs.add(source, target, count)

    def _make_room(self) -> None:
        """Begin another record where the last one is full."""
        if len(self.runs) >= RUNS_IN_A_RECORD:
            self._full.append(self.runs)
            self.runs = OffsetRanges(self.runs.next_source, self.runs.next_target)

    def extend(self, pieces: Pieces, target: int, count: int) -> None:
        """Add the `count` acknowledged records of a batch at offset `target`. Raises ValueError where they do not come
        next.
        """
        places, done = pieces.places, 1
        self.add(pieces.sources[0], target, places[1] if len(places) > 1 else count)
        while done < len(places):
            self._make_room()
            following = min(len(places), done + RUNS_IN_A_RECORD - len(self.runs))
            self.runs.extend(pieces, target, done, following, count)
            done = following

    def cut(self, target: int) -> None:
        """The target lost what is at `target` and behind it. Raises ValueError below `runs.begin`."""
        begin = self.runs.begin
        self.runs.cut(target)
        if not len(self.runs):
            self._obsolete.append(begin)

    def restart(self, runs: OffsetRanges, obsolete: list[int]) -> None:
        """Go on with earlier runs: the target lost what came later. Records of runs that begin at `obsolete` are to
        go.
        """
        self.runs, self._full = runs, []
        self._obsolete += obsolete
        self._recorded = _NEVER
        self._pending = (0, 0, _NEVER)

    def go_back(self, index: OffsetRangeIndex, end: int) -> list[int]:
        """Go on with those runs in `index` that reach to `end`, where the target ends: it lost more than the last ones
        cover. Where those begin whose records are to go.
        """
        kept = [runs for runs in index.pieces if runs.begin <= end]
        obsolete = [runs.begin for runs in index.pieces if runs.begin > end]
        self.restart(kept[-1].copy() if kept else OffsetRanges(), obsolete)
        return obsolete

    def pending(self) -> tuple[list[OffsetRanges], list[int]]:
        """Runs to be recorded, each list under its `begin`, and where those begin whose records are to go."""
        open_runs = [self.runs] if len(self.runs) and self._standing() != self._recorded else []
        self._pending = (len(self._full), len(self._obsolete), self._standing())
        return [*self._full, *open_runs], list(self._obsolete)

    def recorded(self) -> None:
        """What `pending` gave last is recorded."""
        full, obsolete, self._recorded = self._pending
        del self._full[:full], self._obsolete[:obsolete]
        self._pending = (0, 0, self._recorded)

    def _standing(self) -> tuple[int, int, int]:
        return self.runs.begin, self.runs.next_source, self.runs.next_target
