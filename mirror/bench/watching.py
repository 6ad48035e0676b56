"""Measures a process that copies a topic, whatever it is: from outside, by the clock, the operating system and the
target's log ends.

Nothing of it is asked for its own figures. CPU is that of its whole process tree; it is taken at the moments of the
first and the last record, which are known to some hundredths of a second. The first one is that of the last look at
which nothing was there: so a copy's time is never too short.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from mirror.bench.traffic import Traffic
from mirror.demo.bound import Bound
from mirror.demo.producers import Ends
from mirror.demo.usage import Tree
from mirror.embedded import Cluster
from mirror.errors import BenchError

#: Between looks at the log ends, and between looks at all processes.
_TICK_S: Final = 0.02
_PROCESSES_S: Final = 0.25
#: Looks at the ends of many partitions take their time: so many times as long nothing is looked at.
_REST: Final = 4.0
#: Seconds in which log ends must tell of what a process that has ended wrote.
_LAST_LOOK_S: Final = 5.0
#: Seconds within which something must move.
PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one copy took. Fields are those of `result.Run`."""

    wall_s: float
    start_s: float
    copy_s: float
    cpu_s: float
    start_cpu_s: float
    copy_cpu_s: float
    java_cpu_s: float
    source_broker_cpu_s: float
    target_broker_cpu_s: float
    peak_rss_bytes: int
    peak_pss_bytes: int | None
    wire_in_bytes: int | None
    wire_out_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A topic on the target, its partitions, the sum of log ends at which all records are there, and the bytes that the
    source has stored.
    """

    topic: str
    partitions: int
    end: int
    stored_bytes: int


@dataclass(slots=True)
class _Moment:
    at: float = 0.0
    cpu_s: float = 0.0


class Watch:
    """One process that copies from `source` to `target`."""

    def __init__(
        self,
        process: Bound,
        began: float,
        source: Cluster,
        target: Cluster,
        goal: Goal,
        beside: Sequence[int] = (),
    ) -> None:
        """`began`: `time.monotonic()` when it was started. What the processes `beside` take from now on counts as well:
        those of a Spark cluster that has run before.
        """
        self._process, self._began, self._goal, self._target = process, began, goal, target
        self._brokers = BrokerCpu(source), BrokerCpu(target)
        self._trees = Trees(process.pid, beside)
        self._ends = Ends(target.bootstrap)
        nodes = [node for cluster in (source, target) for node in cluster.nodes]
        self._traffic = Traffic((node.port for node in nodes), (node.process.pid for node in nodes if node.process))
        self._empty = _Moment(began)
        self._first: _Moment | None = None
        self._last = _Moment(began)
        self._seen = 0
        self._moved = self._looked = self._counted = began

    def measure(self, *, ends_itself: bool) -> Measured:
        """Until it has ended, or, where it does not by itself, until everything is on the target. Raises BenchError."""
        while self._process.exit_code is None:
            self._look()
            if self._complete and not ends_itself:
                break
            if time.monotonic() - self._moved > PATIENCE_S:
                raise BenchError(
                    f"no headway within {PATIENCE_S:.0f} s: {self._seen:,} of {self._goal.end:,} records are there:\n"
                    + self._process.tail()
                )
            time.sleep(max(_TICK_S, _REST * (time.monotonic() - self._counted)))
        ended = time.monotonic()
        if code := self._process.exit_code:
            raise BenchError(f"it ended with {code}:\n{self._process.tail()}")
        self._count()
        deadline = time.monotonic() + _LAST_LOOK_S
        while not self._complete and time.monotonic() < deadline:  # brokers may not tell of a new topic yet
            time.sleep(_TICK_S)
            self._count()
        if not self._complete or self._first is None:
            raise BenchError(f"it ended with {self._seen:,} of {self._goal.end:,} records:\n{self._process.tail()}")
        received, sent = self._traffic.total(self._goal.stored_bytes, on_disk(self._target, self._goal.topic))
        return Measured(
            wall_s=max(ended, self._last.at) - self._began,
            start_s=self._first.at - self._began,
            copy_s=self._last.at - self._first.at,
            cpu_s=self._trees.cpu_s,
            start_cpu_s=self._first.cpu_s,
            copy_cpu_s=self._last.cpu_s - self._first.cpu_s,
            java_cpu_s=self._trees.java_cpu_s,
            source_broker_cpu_s=self._brokers[0].used,
            target_broker_cpu_s=self._brokers[1].used,
            peak_rss_bytes=self._trees.peak_rss,
            peak_pss_bytes=self._trees.peak_pss,
            wire_in_bytes=received,
            wire_out_bytes=sent,
        )

    @property
    def _complete(self) -> bool:
        return self._seen >= self._goal.end

    def _look(self) -> None:
        now = time.monotonic()
        find = now - self._looked >= _PROCESSES_S
        if find:
            self._looked = now
        self._trees.sample(find=find)
        self._counted = time.monotonic()
        self._count()
        self._traffic.look()

    def _count(self) -> None:
        found = self._ends.of({self._goal.topic: self._goal.partitions}, growing=True)
        end = sum(found.values())
        if end > self._seen:
            self._seen = end
            self._last = _Moment(time.monotonic(), self._trees.sample(find=self._first is None))
            self._moved = self._last.at
            self._first = self._first or self._empty
            for broker in self._brokers:
                broker.look()
        elif not end:
            self._empty = _Moment(time.monotonic(), self._trees.cpu_s)


class Trees:
    """A process with all that it starts, and others that ran before: of those, what they take from now on."""

    def __init__(self, pid: int, beside: Sequence[int]) -> None:
        self._every = [Tree(one) for one in (*beside, pid)]
        self._before = self._java_before = 0.0
        for tree in self._every[:-1]:
            tree.sample()
        self._before, self._java_before = self.cpu_s, self.java_cpu_s

    def sample(self, *, find: bool = True) -> float:
        """Look at all of them; CPU-seconds so far."""
        for tree in self._every:
            tree.sample(find=find)
        return self.cpu_s

    @property
    def cpu_s(self) -> float:
        """CPU-seconds as of the last look."""
        return sum(tree.tally.cpu_s for tree in self._every) - self._before

    @property
    def java_cpu_s(self) -> float:
        """The part of it that Java's virtual machines took."""
        return sum(tree.java_cpu_s for tree in self._every) - self._java_before

    @property
    def peak_rss(self) -> int:
        """Bytes: the sum of each tree's own peak."""
        return sum(tree.tally.peak_rss for tree in self._every)

    @property
    def peak_pss(self) -> int | None:
        """The same with shared pages once, where the system tells."""
        found = [tree.tally.peak_pss for tree in self._every]
        return sum(size for size in found if size is not None) if any(found) else None


class BrokerCpu:
    """CPU-seconds of a cluster's brokers, between now and the last look."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes = [handle for node in cluster.nodes if node.process and (handle := node.process.handle())]
        self._before = cpu_of(self._nodes)
        self.used = 0.0

    def look(self) -> None:
        """Count up to now."""
        self.used = cpu_of(self._nodes) - self._before


def cpu_of(processes: Iterable[psutil.Process]) -> float:
    """CPU-seconds since their starts."""
    return sum(times.user + times.system for process in processes for times in [process.cpu_times()])


def on_disk(cluster: Cluster, topic: str) -> int:
    """Bytes of a topic's log as one replica has it."""
    sizes: dict[str, int] = {}
    for node in cluster.nodes:
        for folder in (node.folder / "data").glob(f"{topic}-*"):
            sizes[folder.name] = max(sizes.get(folder.name, 0), sum(one.stat().st_size for one in folder.glob("*.log")))
    return sum(sizes.values())


def settle() -> None:
    """Write back what others left in memory: it must not slow down what is measured next."""
    os.sync()
