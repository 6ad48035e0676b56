"""Deletions that a copy may lack: a compacted source forgets a tombstone `delete.retention.ms` after its cleaner has
met it (LogCleaner), and with it the offset. A copy that was behind meanwhile keeps the key (L4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mirror.records.header import RawBatch

#: What clocks of two machines that are in order may differ by, in ms.
_SKEW_MS: Final = 60_000


@dataclass(slots=True, kw_only=True)
class Tombstones:
    """Keeps what a copy may have missed. Times are in ms, and points in time Unix times."""

    kept_now_ms: int | None  # how long the source keeps tombstones by its settings now; None where it is not compacted
    #: The least of that since the copy last had all that the source had; None where it was not compacted.
    kept_ms: int | None = None
    caught_up_ms: int = 0  # when the copy last had all, by the clock of whoever saw it; 0 where nobody knows
    may_lack: bool = False  # it is on record that the copy may lack deletions
    seen_end: tuple[int, int] | None = None  # a time, and the source's end then, of which not all is acknowledged yet

    def __post_init__(self) -> None:
        """What it keeps now counts as well."""
        self.keeps(self.kept_now_ms)

    def keeps(self, kept_ms: int | None) -> None:
        """The source has this setting now."""
        self.kept_now_ms = kept_ms
        if self.kept_ms is None or (kept_ms is not None and kept_ms < self.kept_ms):
            self.kept_ms = kept_ms

    def sees_end(self, at_ms: int, end: int) -> None:
        """The source ended there at this time; one that was seen before counts until it is acknowledged."""
        if self.seen_end is None:
            self.seen_end = at_ms, end

    def acknowledged(self, until: int) -> None:
        """All before this offset of the source is on the target."""
        if self.seen_end is not None and self.seen_end[1] <= until:
            self.had_all(self.seen_end[0])

    def had_all(self, at_ms: int) -> None:
        """The copy had all that the source had at this time, 0 where nobody noted it. What is known from before may be
        of a clock that was ahead.
        """
        self.caught_up_ms, self.seen_end, self.kept_ms = at_ms or self.caught_up_ms, None, self.kept_now_ms

    def may_miss(self, now_ms: int) -> bool:
        """Whether a hole in what is read now may have held a tombstone that nobody has read, and that is news. A time
        that is still to come says nothing of when the copy had all.
        """
        if self.kept_ms is None or self.may_lack:
            return False
        return not -min(self.kept_ms, _SKEW_MS) <= now_ms - self.caught_up_ms <= self.kept_ms


def hole_in(batches: Iterable[RawBatch], due: int) -> int:
    """The first offset of the first hole among batches that begin at `due`, -1 where there is none."""
    for raw in batches:
        if raw.header.base_offset > due:
            return due
        if raw.header.holes:
            return raw.header.base_offset
        due = max(due, raw.header.next_offset)
    return -1
