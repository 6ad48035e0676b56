"""Signals while a command starts: they end it at once, though never in the middle of a fork.

PySpark forks to start its JVM. What a handler raises while Python runs its hooks for that is swallowed there, in the
parent and in the child, and may leave the lock of `logging` held for ever. So a signal that comes then waits.
"""

from __future__ import annotations

import logging
import os
import signal
from functools import cache
from types import FrameType
from typing import Final, NoReturn

#: How long a signal waits before it is looked at again, in seconds.
_LATER: Final = 0.05


class _State:
    """Of this process: whether it forks now, and the signal that waits for the end of that."""

    forking = False
    waiting = 0


def end_on_signals() -> None:
    """From now on SIGINT and SIGTERM raise SystemExit with 128 and the signal's number, until somebody else listens."""
    _watch_forks()
    signal.signal(signal.SIGALRM, _again)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ended)


@cache
def _watch_forks() -> None:
    """Hooks that are registered last run first before a fork, and last behind it: the others are in between."""
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)


def _before_fork() -> None:
    _State.forking = True


def _after_fork() -> None:
    _State.forking = False


def _ended(number: int, frame: FrameType | None) -> None:
    in_hook = frame is not None and frame.f_code in (_before_fork.__code__, _after_fork.__code__)
    if _State.forking or in_hook:  # also in the child, until it is another program
        _State.waiting = number
        signal.setitimer(signal.ITIMER_REAL, _LATER)
        return
    _end(number)


def _again(_: int, frame: FrameType | None) -> None:
    if _State.waiting:
        _ended(_State.waiting, frame)


def _end(number: int) -> NoReturn:
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it tells at length that it was interrupted
    raise SystemExit(128 + number)
