"""Waiting for what must come about, and moving the clocks of the mirror past what would only take time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Final, TypeVar

import pytest

from mirror import clock

Value = TypeVar("Value")

#: Seconds that anything may take on a machine with far too much to do: the one deadline of all tests.
DEADLINE_S: Final = 180.0


def until(condition: Callable[[], Value], otherwise: Callable[[], object] = str) -> Value:
    """Return what `condition` gives as soon as that is true; `otherwise` describes what stood still."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.05)
    return found


async def until_true(condition: Callable[[], Value]) -> Value:
    """Do the same in an event loop."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return found


class MovableClock:
    """The clocks of the mirror in this process: they go on by themselves, and a test moves them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        moved = SimpleNamespace(
            time=lambda: time.time() + self._ahead_s,
            monotonic=lambda: time.monotonic() + self._ahead_s,
            clock_gettime=lambda which: time.clock_gettime(which) + self._ahead_s,
        )
        patch.setattr(clock, "time", moved)

    def move(self, seconds: float) -> None:
        """Let time pass at once: what expires by then has expired, and the process looks suspended."""
        self._ahead_s += seconds
