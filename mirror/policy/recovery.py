"""What a failover leaves behind, partition by partition: the recovery point objective, RPO (pure).

Records are told as offsets, so they are at most as many: a transaction's marker takes one, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """One source partition at a failover. Offsets are the source's.

    The target holds everything below `position`. `end` is where the source ends, None where nobody can say any more;
    `lag` is then what was missing when that was last known, `seen_ms` ago. `lost_from_ms`: how long ago the first
    record that did not get over was written, None where that is not known or all got over. `state` is the partition's,
    by its name.
    """

    topic: str
    partition: int
    target_topic: str
    position: int
    end: int | None
    state: str
    lag: int = 0
    seen_ms: int | None = None
    lost_from_ms: int | None = None

    @property
    def records(self) -> int:
        """At most how many records did not get over; where the source is away, as far as is known."""
        return max(0, self.end - self.position) if self.end is not None else self.lag

    @property
    def seconds(self) -> float | None:
        """How far back what did not get over reaches: 0 for nothing, None where nobody knows."""
        if self.end is None:
            return None if self.seen_ms is None else self.seen_ms / 1000
        if not self.records:
            return 0.0
        return None if self.lost_from_ms is None else self.lost_from_ms / 1000

    @property
    def is_whole(self) -> bool:
        """Everything got over, for certain."""
        return self.end is not None and not self.records


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The RPO of a flow: at most `records`, and `seconds` back, None where that is not known for a partition."""

    records: int
    seconds: float | None
    certain: bool

    @classmethod
    def of(cls, exposures: Iterable[Exposure]) -> RecoveryPoint:
        """Of all partitions together: `certain` where the source told its end for each."""
        every = list(exposures)
        times = [one.seconds for one in every]
        known = [one for one in times if one is not None]
        return cls(
            records=sum(one.records for one in every),
            seconds=max(known, default=0.0) if len(known) == len(times) else None,
            certain=all(one.end is not None for one in every),
        )
