"""The rate limit: bytes per second that may be fetched, as a token bucket, shared out over tasks.

A bucket may go into debt, since a broker always gives one whole batch; what follows waits for it. So a reader is above
its rate for a moment and at it in the long run. It begins empty: what a former one left is not given twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# --- A bound on the bytes per second that are fetched -----------------------------------------------------------------

#: Seconds of its rate that a bucket holds; and the part of that which is worth a request.
_HELD_SECONDS: Final = 0.5
_WORTHWHILE: Final = 0.5


@dataclass(slots=True)
class Bucket:
    """`rate` in bytes per second; `now` is in seconds of any clock, the same one throughout."""

    rate: float
    _balance: float = 0.0
    _at: float | None = None

    def left(self, now: float) -> int:
        """Bytes that may be asked for now; 0 where that is not worth a request yet."""
        self._fill(now)
        return max(1, int(self._balance)) if self._balance >= self._enough else 0

    def wait(self, now: float) -> float:
        """Seconds until there is enough for a request."""
        self._fill(now)
        return max(0.0, self._enough - self._balance) / self.rate

    def spend(self, size: int) -> None:
        """So many bytes came."""
        self._balance -= size

    @property
    def _enough(self) -> float:
        return self.rate * _HELD_SECONDS * _WORTHWHILE

    def _fill(self, now: float) -> None:
        if self._at is not None:
            self._balance = min(self._balance + (now - self._at) * self.rate, self.rate * _HELD_SECONDS)
        self._at = now


# --- How many bytes a second may be fetched ---------------------------------------------------------------------------

#: The part of a bound that is shared out evenly, so that a partition that wakes up is not starved until the next plan.
_EVENLY: Final = 0.2


def shares(rate: float, demands: Sequence[float]) -> list[float]:
    """What each task gets of a bound: a part evenly, the rest by what it has to move; they add up to the bound."""
    evenly, wanted = rate / len(demands), sum(demands)
    if not wanted:
        return [evenly] * len(demands)
    return [_EVENLY * evenly + (1 - _EVENLY) * rate * demand / wanted for demand in demands]
