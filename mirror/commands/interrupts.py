"""Signals: while a command starts they end it at once, though never in the middle of a fork; later, in a time that is
bounded. A live mirror that starts holds SIGHUP, which asks for the configuration, till it can be served.

PySpark forks to start its JVM. What a handler raises while Python runs its hooks for that is swallowed there, in the
parent and in the child, and may leave the lock of `logging` held for ever. So a signal that comes then waits.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Final, NoReturn

from mirror.observe import logs

#: How long a signal waits before it is looked at again, in seconds.
_LATER: Final = 0.05

#: How long a mirror that was told to end may take for that: what is under way, the journal, consumer groups, Spark.
END_SECONDS: Final = 10.0


class _State:
    """Of this process: whether it forks now, the signal that waits for the end of that, whether it began on a terminal,
    and whether a SIGHUP is held.
    """

    forking = False
    waiting = 0
    has_terminal = False
    held = False


def end_on_signals(*, holds_reloads: bool = False) -> None:
    """From now on SIGINT, SIGTERM and SIGHUP raise SystemExit with 128 and the signal's number, until somebody else
    listens. With `holds_reloads` a SIGHUP waits for `deliver_held`, but for that of a terminal that was closed.
    """
    _watch_forks()
    _State.has_terminal = _State.has_terminal or os.isatty(0)
    signal.signal(signal.SIGALRM, _again)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` wants it
            signal.signal(number, _held if holds_reloads and number == signal.SIGHUP else _ended)


def deliver_held() -> None:
    """Send this process the SIGHUP that was held, if one was: somebody listens now."""
    if _State.held:
        _State.held = False
        os.kill(os.getpid(), signal.SIGHUP)


def end_in_time(kill: Callable[[], None]) -> None:
    """From now on the process ends `END_SECONDS` after the first SIGINT or SIGTERM whatever hangs, and at once at the
    second one; before that `kill` ends other processes. For whoever listens in an event loop, which may be what hangs.
    """
    signals: list[int] = []

    def end_hard(number: int) -> NoReturn:
        logs.get("mirror.run").error("ended_hard", signal=number, reason="told twice" if signals[1:] else "too slow")
        try:
            kill()
        finally:
            os._exit(128 + number)

    def told(number: int, _: FrameType | None) -> None:
        signals.append(number)
        if signals[1:]:
            end_hard(number)
        timer = threading.Timer(END_SECONDS, end_hard, [number])
        timer.daemon = True
        timer.start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, told)


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


def _held(number: int, frame: FrameType | None) -> None:
    if _State.has_terminal and not os.isatty(0):
        _ended(number, frame)
    else:
        _State.held = True


def _again(_: int, frame: FrameType | None) -> None:
    if _State.waiting:
        _ended(_State.waiting, frame)


def _end(number: int) -> NoReturn:
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it tells at length that it was interrupted
    raise SystemExit(128 + number)
