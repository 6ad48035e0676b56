"""What a failover leaves behind, partition by partition: the recovery point objective, RPO (pure).

Records are told as offsets, so they are at most as many: a transaction's marker takes one, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mirror.states import State

#: Stops after which the target's end says nothing of what got over, and why.
UNLIKE: Final[Mapping[State, str]] = {
    State.RECREATED: "the source topic is another one than was mirrored",
    State.DIVERGED: "the target holds other records than the source",
    State.CONTENDED: "somebody else wrote to the target",
    State.TARGET_LOST: "the target lost records that had got over",
    State.TRUNCATED: "the source lost records that got over, and may hold others in their place",
}
#: Those of them after which nothing that the source holds is known to be on the target.
_NOTHING_KNOWN: Final = frozenset({State.RECREATED, State.DIVERGED})


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Source offsets from `first` to before `next_offset` that are not on the target, which a person or a policy
    accepted, and why they were lost.
    """

    first: int
    next_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """One source partition at a failover. Offsets are the source's.

    The target holds everything below `position`, None where it could not be asked, for the reason `problem`. `end` is
    where the source ends, None where nobody can say any more; `lag` is then what was missing when that was last known,
    `seen_ms` ago. `lost_from_ms`: how long ago the first record that did not get over was written, None where that is
    not known or all got over. `losses`: what was left out for good, below `position`. `open_from`: where the source
    ends for a reader of committed records, if a transaction is open there: nothing behind it is copied before it ends,
    neither records of its own nor those of others, which are acknowledged. `doubted`: why nobody vouches that the copy
    holds the source's records, where no state says so; else empty.
    """

    topic: str
    partition: int
    target_topic: str
    position: int | None
    end: int | None
    state: State
    lag: int = 0
    seen_ms: int | None = None
    lost_from_ms: int | None = None
    problem: str = ""
    losses: tuple[AcceptedLoss, ...] = ()
    open_from: int | None = None
    doubted: str = ""

    @property
    def doubt(self) -> str:
        """Why it is not known how many records did not get over, even where the source tells its end; else empty."""
        if self.position is None:
            return self.problem
        if self.state in UNLIKE:
            return UNLIKE[self.state]
        if self.doubted:
            return self.doubted
        if self.end is not None and self.position > self.end:
            return "the target holds more than the source"
        return ""

    @property
    def is_certain(self) -> bool:
        """`records` is a bound, and not just what is known."""
        return self.end is not None and not self.doubt

    @property
    def records(self) -> int:
        """At most how many records did not get over; where that is not certain, as far as is known: all that the
        source holds where none of it is known to be on the target.
        """
        if self.end is None:
            return self.lag
        if self.position is None or self.state in _NOTHING_KNOWN or self.doubted:
            return self.end
        return max(0, self.end - self.position)

    @property
    def seconds(self) -> float | None:
        """How far back what did not get over reaches: 0 for nothing, None where nobody knows."""
        if self.doubt:
            return None
        if self.end is None:
            return None if self.seen_ms is None else self.seen_ms / 1000
        if not self.records:
            return 0.0
        return None if self.lost_from_ms is None else self.lost_from_ms / 1000

    @property
    def is_over(self) -> bool:
        """Everything got over, for certain, but for losses that were accepted."""
        return self.is_certain and not self.records and not self.state.is_stop

    @property
    def is_whole(self) -> bool:
        """Everything got over, for certain."""
        return self.is_over and not self.losses


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The RPO of a flow: at most `records`, and `seconds` back, None where that is not known for a partition."""

    records: int
    seconds: float | None
    certain: bool

    @classmethod
    def of(cls, exposures: Iterable[Exposure]) -> RecoveryPoint:
        """Of all partitions together: `certain` where it is for each; else `records` is what is known."""
        every = list(exposures)
        times = [one.seconds for one in every]
        known = [one for one in times if one is not None]
        return cls(
            records=sum(one.records for one in every),
            seconds=max(known, default=0.0) if len(known) == len(times) else None,
            certain=all(one.is_certain for one in every),
        )
