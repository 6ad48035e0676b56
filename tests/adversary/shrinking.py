"""Which operations of a schedule are enough: delta debugging over their places (Zeller's ddmin, simple)."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def shrunk(places: Sequence[int], shows: Callable[[Sequence[int]], bool], most: int = 60) -> list[int]:
    """The fewest places found that still show it, with at most so many tries."""
    left, size = list(places), max(1, len(places) // 2)
    tries = 0
    while True:
        at = 0
        while at < len(left) and tries < most:
            less = left[:at] + left[at + size :]
            tries += 1
            if less and shows(less):
                left = less
            else:
                at += size
        if size == 1 or tries >= most:
            return left
        size = max(1, size // 2)
