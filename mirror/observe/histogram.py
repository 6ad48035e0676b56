"""How long things took, counted by size: cheap to add to, and histograms of several lanes can be added up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from mirror.observe.jsonrecords import is_of

#: Upper bounds of the buckets in seconds, the bound itself included; a last bucket takes what is longer.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LARGEST: Final = 1 << 63


@dataclass(slots=True)
class Histogram:
    """`counts`: durations in each bucket, one more than `BOUNDS` has; `total`: their sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def copy(self) -> Self:
        """The same as of now."""
        return type(self)(self.counts.copy(), self.total)

    def since(self, before: Self) -> Self:
        """What came since an earlier look; nothing where it was begun anew meanwhile."""
        grown = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        if min(grown) < 0:
            return type(self)()
        return type(self)(grown, max(0.0, self.total - before.total))

    def join(self, other: Self) -> None:
        """Count everything that `other` counted, too."""
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        """From JSON. Raises ValueError where it is no histogram, or one with other buckets."""
        counts, total = value.get("counts"), value.get("total")
        if not isinstance(counts, list) or len(counts) != len(BOUNDS) + 1:
            raise ValueError("a histogram with other buckets")
        if not all(is_of(count, (int,)) and 0 <= count < _LARGEST for count in counts):
            raise ValueError("a histogram's counts must be counts")
        if not (isinstance(total, int | float) and -_LARGEST < total < _LARGEST):
            raise ValueError(f"a histogram's total is {total!r}")
        return cls(counts, float(total))
