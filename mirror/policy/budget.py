"""How many bytes a second may be fetched: the flow's bound, shared out over lanes, which keep to it by `wire/rate.py`
(pure).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: The part of a bound that is shared out evenly, so that a partition that wakes up is not starved until the next plan.
_EVENLY: Final = 0.2


def shares(rate: float, demands: Sequence[float]) -> list[float]:
    """What each lane gets of a bound: a part evenly, the rest by what it has to move; they add up to the bound."""
    evenly, wanted = rate / len(demands), sum(demands)
    if not wanted:
        return [evenly] * len(demands)
    return [_EVENLY * evenly + (1 - _EVENLY) * rate * demand / wanted for demand in demands]
