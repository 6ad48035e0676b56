"""The records of two runs of batches, held against each other where the batches themselves are not the same.

Importing this loads the compiler of `mirror.records.kernels`, so whoever compares imports it where it is needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from crc32c import crc32c

from mirror.errors import BadRecords
from mirror.records.columns import Records, encode, headers, key, value
from mirror.records.header import APPEND_TIME, RawBatch
from mirror.records.rewrite import portions
from mirror.verify.report import NOTHING, DifferenceKind, covering

_ONE: Final = "a record"

#: Called with a difference: its offset, its kind, and what the source and the target have there.
Report = Callable[[int, DifferenceKind, str, str], None]
#: Called with an accepted loss that was met, and how many records of the source lie there that the target has not.
Lose = Callable[[tuple[int, int], int], None]


@dataclass(slots=True)
class Run:
    """One side: the records of its batch at hand that were not matched yet. Records from `end` on do not count.

    `rows`: the portion of these at hand.
    `more`: the portions that follow, which are opened when these are matched.
    `at`: the offset behind the portion at hand.
    `base`, `until`: base offset and last offset of the batch.
    `count`: its records, as its header states them.
    `floor`: records below it do not count either.
    """

    end: int
    rows: Records | None = None
    more: Iterator[Records] | None = None
    at: int = -1
    base: int = -1
    until: int = -1
    count: int = 0
    floor: int = 0

    @property
    def first(self) -> int | None:
        """Offset of the first record left."""
        return int(self.rows.offsets[0]) if self.rows is not None and len(self.rows) else None

    def cut(self, floor: int) -> None:
        """Leave out what lies below `floor`."""
        self.floor = floor
        if self.rows is not None:
            self.rows = self.rows.rows(int(np.searchsorted(self.rows.offsets, floor)), len(self.rows))

    def take(self, raw: RawBatch) -> int:
        """Put a batch at hand; how many records its first portion has. Raises BadRecords."""
        self.base = self.at = raw.header.base_offset
        self.until, self.count = raw.header.last_offset, max(0, raw.header.count)
        self.more = portions(raw)
        self.rows = None
        first = next(self.more)
        self._put(first)
        return len(first)

    def open(self) -> None:
        """Put the next portion at hand where nothing is left of the last one. Raises BadRecords."""
        while self.first is None and self.more and (part := next(self.more, None)) is not None:
            self._put(part)

    def _put(self, part: Records) -> None:
        first, last = np.searchsorted(part.offsets, (self.floor, self.end)).tolist()
        self.rows = part.rows(first, max(first, last))
        self.at = int(part.offsets[-1]) + 1 if len(part) else self.at

    def drop(self) -> None:
        """Match nothing more of the batch at hand."""
        self.rows = self.more = None


class Matching:
    """A stretch under comparison: batches are added in offset order, and their records matched as far as both sides go.

    Reported are the first record on one side only, after which nothing more is matched, and the first with another
    content, after which only offsets are.
    """

    def __init__(
        self, source: Run, target: Run, report: Report, lost: Sequence[tuple[int, int]], lose: Lose, *, own_clock: bool
    ) -> None:
        """`source` and `target` are fresh runs. Records of the source at offsets `lost`, from and to before, which the
        target has not, are passed to `lose` and are no difference. `own_clock`: a target that stamps records itself is
        to do so; else that is no difference only where the source does, too.
        """
        self._source, self._target, self._report = source, target, report
        self._lost, self._lose = lost, lose
        self._own_clock, self._stamps = own_clock, {True: False, False: False}  # by whether it is the source's side
        self._is_over = self._has_content_difference = self._has_lost = False

    @property
    def timed(self) -> bool:
        """Times are compared."""
        return not (self._stamps[False] and (self._own_clock or self._stamps[True]))

    @property
    def is_equal(self) -> bool:
        """Nothing was reported, and nothing is lost."""
        return not (self._is_over or self._has_content_difference or self._has_lost)

    def add(self, raw: RawBatch, floor: int, *, is_source: bool) -> int:
        """The next batch of one side; how many records it has, 0 where that was not looked at.

        Records below `floor` are left out, of both sides.
        """
        run = self._source if is_source else self._target
        if self._is_over:
            return 0
        self._cut(floor)
        self._report_single(run)  # the other side has gone beyond what was left of the last batch
        try:
            count = run.take(raw)
        except BadRecords as problem:
            self._add_unreadable(run, problem)
            return 0
        self._stamps[is_source] = bool(raw.header.attributes & APPEND_TIME)
        self._open(run)
        self._match()
        return count

    def finish(self, floor: int, *, source_goes_on: bool, target_goes_on: bool) -> None:
        """No more batches: what is left is on one side only, unless the other goes on and could not be read."""
        self._cut(floor)
        for run, other, goes_on in (
            (self._source, self._target, target_goes_on),
            (self._target, self._source, source_goes_on),
        ):
            if run.first is not None and not (goes_on and run.first > other.until):
                self._report_single(run)

    def _cut(self, floor: int) -> None:
        for run in (self._source, self._target):
            run.cut(floor)
            self._open(run)

    def _open(self, run: Run) -> None:
        try:
            run.open()
        except BadRecords as problem:
            self._add_unreadable(run, problem)

    def _add_unreadable(self, run: Run, problem: BadRecords) -> None:
        """A batch cannot be read, or not to its end: an accepted loss, or the end of the comparison."""
        is_source = run is self._source
        if is_source and (lost := covering(self._lost, max(run.at, run.floor), run.until)):
            self._has_lost = True
            run.drop()
            self._lose(lost, run.count)
            return
        sides = (problem.detail, "") if is_source else ("", problem.detail)
        self._end(run.base, DifferenceKind.UNDECODABLE, *sides)

    def _match(self) -> None:
        while not self._is_over and (source := self._source.rows) is not None and (target := self._target.rows):
            most = min(len(source), len(target))
            unlike = np.flatnonzero(source.offsets[:most] != target.offsets[:most])
            count = int(unlike[0]) if len(unlike) else most
            if count:
                ours, theirs = source.rows(0, count), target.rows(0, count)
                self._compare(ours, theirs)
                self._source.rows = source.rows(count, len(source))
                self._target.rows = target.rows(count, len(target))
            if not len(unlike):
                self._open(self._source)
                self._open(self._target)
                if self._source.first is None or self._target.first is None:
                    return
                continue
            both = int(source.offsets[count]), int(target.offsets[count])
            if both[0] > both[1]:
                self._report_single(self._target)
            elif not self._pass_lost(both[1]):
                self._report_single(self._source)

    def _pass_lost(self, before: int | None = None) -> bool:
        """Leave out the source's next records that are known to be lost, up to offset `before`; whether any were."""
        rows, first = self._source.rows, self._source.first
        lost = covering(self._lost, first, first) if first is not None else None
        if rows is None or lost is None:
            return False
        until = lost[1] if before is None else min(lost[1], before)
        count = int(np.searchsorted(rows.offsets, until))
        self._source.rows = rows.rows(count, len(rows))
        self._open(self._source)
        self._has_lost = True
        self._lose(lost, count)
        return True

    def _compare(self, ours: Records, records: Records) -> None:
        """Records at the same offsets."""
        one, other = _content(ours, self.timed), _content(records, self.timed)
        if one != other and not self._has_content_difference:
            self._has_content_difference = True
            self._report(*_first_unlike(ours, records, self.timed))

    def _report_single(self, run: Run) -> None:
        while run is self._source and not self._is_over and self._pass_lost():
            pass
        if run.first is not None and not self._is_over:
            if run is self._source:
                self._end(run.first, DifferenceKind.MISSING, _ONE, NOTHING)
            else:
                self._end(run.first, DifferenceKind.EXTRA, NOTHING, _ONE)

    def _end(self, offset: int, kind: DifferenceKind, source: str, target: str) -> None:
        self._is_over = True
        self._source.drop()
        self._target.drop()
        self._report(offset, kind, source, target)


def _content(rows: Records, timed: bool) -> bytes:
    """All that a consumer gets of some records, in one form whatever the batches were."""
    section = encode(rows if timed else rows.with_timestamp(0), 0)
    return b"".join((rows.offsets.tobytes(), section))


def _first_unlike(ours: Records, records: Records, timed: bool) -> tuple[int, DifferenceKind, str, str]:
    """Where and in what two runs of records differ whose offsets are the same, but not the contents."""

    def differ(count: int) -> bool:
        return _content(ours.rows(0, count), timed) != _content(records.rows(0, count), timed)

    at = bisect_left(range(1, len(ours) + 1), True, key=differ)
    offset = int(ours.offsets[at])
    for kind, field in ((DifferenceKind.KEY, key), (DifferenceKind.VALUE, value)):
        if field(ours, at) != field(records, at):
            return offset, kind, _text(field(ours, at)), _text(field(records, at))
    if timed and ours.timestamps[at] != records.timestamps[at]:
        return offset, DifferenceKind.TIMESTAMP, str(ours.timestamps[at]), str(records.timestamps[at])
    return offset, DifferenceKind.HEADERS, _headers_text(ours, at), _headers_text(records, at)


def _text(field: bytes | None) -> str:
    """A field without its content, which may be nobody's business."""
    return "null" if field is None else f"{len(field)} bytes with CRC {crc32c(field):08x}"


def _headers_text(rows: Records, at: int) -> str:
    section = rows.data[rows.headers_at[at] : rows.headers_end[at]]
    return f"{len(headers(rows, at))} in {_text(section.tobytes())}"
