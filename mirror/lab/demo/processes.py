"""Child processes: bound to this one, and what they and their descendants use.

A process is known by its id and its start time, and what it had used when last seen stays counted; sampled some times a
second, the last moments of a short-lived one are all that is missed. Resident memory (RSS) counts a page once for each
process that maps it, so the forked workers' common pages many times; the proportional size (PSS, Linux) counts it once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

from mirror.lab.embedded.node import GUARD, Identity

# --- A process that ends with this one, however this one dies ---------------------------------------------------------


class Bound(AbstractContextManager["Bound"]):
    """A command that runs until it ends, is stopped, or loses its parent. All its output goes to `log`."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        grace: float,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`grace`: seconds from SIGTERM to SIGKILL. `folder` is removed if nobody else is left to do so. `environment`
        is laid over this process's.
        """
        self.log = log
        guarded = [sys.executable, "-S", "-E", str(GUARD), "bound", str(grace), str(folder or ""), *command]
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                guarded,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        assert self._guard.stdout is not None
        with self._guard.stdout as reported:
            self.pid = int(reported.readline())

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self._guard.stdin is not None
        self._guard.stdin.close()

    @property
    def exit_code(self) -> int | None:
        """As a shell gives it; None while it runs."""
        return self._guard.poll()

    def stop(self) -> int:
        """SIGTERM, then SIGKILL after the grace; the exit code, which is 137 if it came to that."""
        if self.exit_code is None:
            self._guard.terminate()
        return self._guard.wait()

    def tail(self, lines: int = 20) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


# --- What a process and all its descendants take ----------------------------------------------------------------------

#: PSS takes the system milliseconds to add up.
_PSS_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One process at one moment: CPU-seconds since its start, those of them in the system's kernel, bytes; `pss` where
    it was looked at.
    """

    cpu_s: float
    kernel_s: float = 0.0
    rss: int
    pss: int | None = None


class UsageTally:
    """Adds up snapshots of a tree of processes (pure)."""

    def __init__(self) -> None:
        self._cpu_s: dict[Identity, float] = {}
        self._kernel_s: dict[Identity, float] = {}
        self.peak_rss = 0
        self.peak_pss: int | None = None

    @property
    def cpu_s(self) -> float:
        """CPU-seconds of every process ever seen."""
        return sum(self._cpu_s.values())

    @property
    def kernel_s(self) -> float:
        """The part of it that the system's kernel took for them."""
        return sum(self._kernel_s.values())

    def cpu_of(self, identities: Iterable[Identity]) -> float:
        """CPU-seconds of these, as far as they were ever seen."""
        return sum(self._cpu_s.get(identity, 0.0) for identity in identities)

    def add(self, snapshot: Mapping[Identity, Usage]) -> None:
        """All processes that run now; those that are missing have ended."""
        for identity, usage in snapshot.items():
            self._cpu_s[identity] = max(usage.cpu_s, self._cpu_s.get(identity, 0.0))
            self._kernel_s[identity] = max(usage.kernel_s, self._kernel_s.get(identity, 0.0))
        self.peak_rss = max(self.peak_rss, sum(usage.rss for usage in snapshot.values()))
        sizes = [usage.pss for usage in snapshot.values() if usage.pss is not None]
        if sizes:
            self.peak_pss = max(self.peak_pss or 0, sum(sizes))


class Tree:
    """A process, its descendants, and those that outlived their parents."""

    def __init__(self, pid: int, beside: Sequence[int] = ()) -> None:
        """Count what processes `beside` take from now on as well: those of a cluster that ran before."""
        self.counters = UsageTally()
        self._roots = beside
        self._seen: dict[Identity, psutil.Process] = {}
        self._java: set[Identity] = set()
        self._pss_at = 0.0
        self._before = (0.0, 0.0, 0.0)
        if beside:
            self.sample()
            self._before = self.cpu_s, self.kernel_s, self.java_cpu_s
        self._roots = (*beside, pid)

    @property
    def cpu_s(self) -> float:
        """CPU-seconds as of the last sample."""
        return self.counters.cpu_s - self._before[0]

    @property
    def kernel_s(self) -> float:
        """The part of it that the system's kernel took for them."""
        return self.counters.kernel_s - self._before[1]

    @property
    def java_cpu_s(self) -> float:
        """The part of it that was spent in Java's virtual machines."""
        return self.counters.cpu_of(self._java) - self._before[2]

    def sample(self, *, find: bool = True) -> float:
        """Sample all of them; CPU-seconds so far. Without `find` only at those that are known, which takes a hundredth
        of the time: new ones, and memory with shared pages once, wait for the next full check.
        """
        with_pss = find and time.monotonic() - self._pss_at >= _PSS_SECONDS
        if with_pss:
            self._pss_at = time.monotonic()
        if find:
            for pid in self._roots:
                self._find(pid)
        snapshot: dict[Identity, Usage] = {}
        for identity, process in tuple(self._seen.items()):
            try:
                snapshot[identity] = _usage(process, with_pss)
            except psutil.Error:
                del self._seen[identity]
        self.counters.add(snapshot)
        return self.cpu_s

    def _find(self, pid: int) -> None:
        try:
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                identity = Identity(pid=process.pid, started=process.create_time())
                self._seen.setdefault(identity, process)
                if process.name() == "java":
                    self._java.add(identity)
        except psutil.NoSuchProcess:
            return  # the tree is coming down: those that were seen before are still looked at


def _usage(process: psutil.Process, with_pss: bool) -> Usage:
    if not process.is_running():
        raise psutil.NoSuchProcess(process.pid)
    with process.oneshot():
        times = process.cpu_times()
        rss = process.memory_info().rss
    return Usage(
        cpu_s=times.user + times.system, kernel_s=times.system, rss=rss, pss=_pss(process) if with_pss else None
    )


def _pss(process: psutil.Process) -> int | None:
    try:
        return getattr(process.memory_full_info(), "pss", None)  # there on Linux alone
    except psutil.Error:
        return None
