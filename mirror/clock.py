"""The clocks of this process, in one place: whatever expires, beats or is dated asks here.

Code calls them as `clock.monotonic()`, by the module's name, so that a test can move all of them at once.
"""

from __future__ import annotations

import time
from typing import Final

#: Counts a machine's sleep where the system has such a clock.
_SINCE_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Return the time of day in ms since 1970."""
    return int(time.time() * 1000)


def monotonic() -> float:
    """Return seconds that only grow, for durations and deadlines within this process."""
    return time.monotonic()


def since_boot() -> float:
    """Return the seconds since the machine began, its sleep included where the system counts that."""
    return time.clock_gettime(_SINCE_BOOT)
