"""For modules of tests that are about to go: use `waiting`."""

from waiting import until

__all__ = ["until"]
