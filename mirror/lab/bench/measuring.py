"""Measures a process that copies a topic from outside: time, CPU and memory.

CPU is that of its whole process tree; it is taken at the moments of the first and the last record, which are known to
some hundredths of a second. The first one is that of the last sample of which nothing was there: so a copy's time is
never too short.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import psutil

from mirror.errors import BenchError
from mirror.lab.bench.content import Topics
from mirror.lab.bench.result import Measured
from mirror.lab.demo.processes import Bound, Tree
from mirror.lab.demo.producers import Ends
from mirror.lab.embedded import Cluster

#: Between samples of the log ends, and of all processes.
_TICK_S: Final = 0.02
_PROCESSES_S: Final = 0.25
#: Reading the ends of many partitions takes time: so many times as long nothing is read.
_REST: Final = 4.0
#: Seconds in which log ends must show what a process that has ended wrote.
_LAST_SAMPLE_S: Final = 5.0
#: Seconds within which something must move.
TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyGoal:
    """Says what a copy is to reach."""

    topics: Topics  # on the target
    end: int  # the sum of log ends at which all records are there


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """When, and what had been used until then."""

    at: float
    cpu_s: float = 0.0
    kernel_s: float = 0.0
    java_s: float = 0.0
    source_s: float = 0.0
    target_s: float = 0.0


class Watch:
    """One process that copies from `source` to `target`."""

    def __init__(
        self,
        process: Bound,
        began: float,
        source: Cluster,
        target: Cluster,
        goal: CopyGoal,
        beside: Sequence[int] = (),
    ) -> None:
        """`began`: `time.monotonic()` when it was started. Processes `beside` count as in `Tree`."""
        self._process, self._began, self.goal, self._target = process, began, goal, target
        self._source_cpu, self._target_cpu = BrokerCpu(source), BrokerCpu(target)
        self.tree = Tree(process.pid, beside)
        self._ends = Ends(target.bootstrap)
        self._empty = self._last = _Moment(at=began)
        self._first: _Moment | None = None
        self._seen = 0
        self._moved = self._counted = began
        self._sampled_at = float("-inf")  # a process that ends at once is seen, too

    def measure(self, *, ends_itself: bool, on_progress: Callable[[int], None] = lambda _: None) -> Measured:
        """Until it has ended, or, where it does not by itself, until everything is on the target. Raises BenchError.

        `on_progress` gets the sum of the log ends.
        """
        while self._process.exit_code is None:
            self._sample()
            on_progress(self._seen)
            if self._complete and not ends_itself:
                break
            if time.monotonic() - self._moved > TIMEOUT_S:
                raise BenchError(
                    f"no headway within {TIMEOUT_S:.0f} s: {self._seen:,} of {self.goal.end:,} records are there:\n"
                    + self._process.tail()
                )
            time.sleep(max(_TICK_S, _REST * (time.monotonic() - self._counted)))
        ended = time.monotonic()
        if code := self._process.exit_code:
            raise BenchError(f"it ended with {code}:\n{self._process.tail()}")
        self._count()
        deadline = time.monotonic() + _LAST_SAMPLE_S
        while not self._complete and time.monotonic() < deadline:  # brokers may not list a new topic yet
            time.sleep(_TICK_S)
            self._count()
        if not self._complete or self._first is None:
            raise BenchError(f"it ended with {self._seen:,} of {self.goal.end:,} records:\n{self._process.tail()}")
        first, last = self._first, self._last
        return Measured(
            wall_s=max(ended, last.at) - self._began,
            start_s=first.at - self._began,
            copy_s=last.at - first.at,
            cpu_s=self.tree.cpu_s,
            start_cpu_s=first.cpu_s,
            copy_cpu_s=last.cpu_s - first.cpu_s,
            copy_kernel_cpu_s=last.kernel_s - first.kernel_s,
            copy_java_cpu_s=last.java_s - first.java_s,
            copy_source_cpu_s=last.source_s - first.source_s,
            copy_target_cpu_s=last.target_s - first.target_s,
            java_cpu_s=self.tree.java_cpu_s,
            source_broker_cpu_s=last.source_s,
            target_broker_cpu_s=last.target_s,
            peak_rss_bytes=self.tree.counters.peak_rss,
            peak_pss_bytes=self.tree.counters.peak_pss,
        )

    @property
    def _complete(self) -> bool:
        return self._seen >= self.goal.end

    def _sample(self) -> None:
        now = time.monotonic()
        find = now - self._sampled_at >= _PROCESSES_S
        if find:
            self._sampled_at = now
        self.tree.sample(find=find)
        self._counted = time.monotonic()
        self._count()

    def _count(self) -> None:
        asked = time.monotonic()
        topics = self.goal.topics
        found = self._ends.of(dict.fromkeys(topics.names, topics.partitions), growing=True)
        end = sum(found.values())
        if end > self._seen:
            self._seen = end
            now = time.monotonic()
            self.tree.sample(find=self._first is None)
            self._last = self._moment(now)
            self._moved = now
            self._first = self._first or self._empty
        elif not end and (
            len(found) == topics.partitions * len(topics.names) or not on_disk(self._target, self.goal.topics.names)
        ):
            # Brokers list a new topic late: what they do not list is empty only where nothing is on disk.
            self._empty = self._moment(asked)

    def _moment(self, at: float) -> _Moment:
        """As of the last sample of the processes, and of now for the brokers."""
        return _Moment(
            at=at,
            cpu_s=self.tree.cpu_s,
            kernel_s=self.tree.kernel_s,
            java_s=self.tree.java_cpu_s,
            source_s=self._source_cpu.used,
            target_s=self._target_cpu.used,
        )


class BrokerCpu:
    """CPU-seconds of a cluster's brokers from now on."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes = [handle for node in cluster.nodes if node.process and (handle := node.process.handle())]
        self._before = cpu_of(self._nodes)

    @property
    def used(self) -> float:
        """Up to now."""
        return cpu_of(self._nodes) - self._before


def cpu_of(processes: Iterable[psutil.Process]) -> float:
    """CPU-seconds since their starts."""
    return sum(times.user + times.system for process in processes for times in [process.cpu_times()])


def on_disk(cluster: Cluster, topics: Sequence[str]) -> int:
    """Bytes of topics' logs as one replica has them."""
    sizes: dict[str, int] = {}
    for node, topic in product(cluster.nodes, topics):
        for folder in node.data.glob(f"{topic}-*"):
            sizes[folder.name] = max(sizes.get(folder.name, 0), sum(log.stat().st_size for log in folder.glob("*.log")))
    return sum(sizes.values())


def settle() -> None:
    """Write back what others left in memory: it must not slow down what is measured next."""
    os.sync()
