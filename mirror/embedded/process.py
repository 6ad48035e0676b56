"""A process that can be named again later: its id and when it started, so that a reused id is never signalled."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

#: Start times are counted from the boot time, which moves a little when the clock is set.
CLOCK_SLACK_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process, alive or not. `started` is in seconds since the epoch."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The process that has this id now, if any."""
        try:
            return cls(pid=pid, started=psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    @property
    def alive(self) -> bool:
        """True while it runs or is suspended; a zombie is not alive."""
        return self.handle() is not None

    def handle(self) -> psutil.Process | None:
        """psutil's view of it, or None when it is gone."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < CLOCK_SLACK_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens when the process is gone."""
        _send(self.handle(), number)


def stop_all(identities: Iterable[Identity], grace: float) -> None:
    """SIGTERM to all at once, SIGKILL to those that still run after `grace` s; returns when none does."""
    handles = [handle for identity in identities if (handle := identity.handle())]
    for handle in handles:
        _send(handle, signal.SIGTERM)
        _send(handle, signal.SIGCONT)  # a suspended process sees no other signal before this one
    _, stubborn = psutil.wait_procs(handles, timeout=grace)
    for handle in stubborn:
        _send(handle, signal.SIGKILL)
    psutil.wait_procs(stubborn)


def _send(handle: psutil.Process | None, number: signal.Signals) -> None:
    try:
        if handle is not None:
            handle.send_signal(number)
    except psutil.NoSuchProcess:
        return  # it ended by itself, which is what every signal sent here leads to
