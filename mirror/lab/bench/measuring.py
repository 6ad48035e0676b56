"""Measures a process that copies a topic from outside: time, CPU, memory, and bytes on connections.

The kernel is asked over netlink, as `ss -ti` asks it, which takes less than a millisecond: so it can be asked again
and again, and what a connection carried between the last answer and its end is next to nothing. All connections to the
brokers' ports count but for those of this process and of the brokers themselves.

Nothing of it is asked for its own figures. CPU is that of its whole process tree; it is taken at the moments of the
first and the last record, which are known to some hundredths of a second. The first one is that of the last sample of
which nothing was there: so a copy's time is never too short.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import psutil

from mirror.errors import BenchError
from mirror.lab.bench.content import Topics
from mirror.lab.bench.result import Measured
from mirror.lab.demo.processes import Bound, Tree
from mirror.lab.demo.producers import Ends
from mirror.lab.embedded import Cluster

# --- Bytes that a copy exchanges with brokers of this machine ---------------------------------------------------------

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_DUMP_REQUEST: Final = 0x301
_DONE: Final = 3
_ERROR: Final = 2
_INFO: Final = 2
#: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK: those that still have counters.
_STATES: Final = sum(1 << state for state in (1, 4, 5, 8, 9))
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBxI48x")
_PORTS: Final = struct.Struct(">HH")
_ATTRIBUTE: Final = struct.Struct("=HH")
#: The share of what must have been carried that has to be seen.
_SEEN: Final = 0.9
#: Where `struct inet_diag_msg` has the ports and the inode, and its size; where `struct tcp_info` has the counters.
_PORTS_AT, _INODE_AT, _MESSAGE_SIZE = 4, 68, 72
_COUNTERS: Final = struct.Struct("=QQ")
_COUNTERS_AT: Final = 120


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of a connection: the local and the remote port, the socket's inode (0 once its process has closed it),
    bytes that the other end has acknowledged and bytes that came from it.
    """

    local: int
    port: int
    inode: int
    sent: int
    received: int


def parsed(answer: bytes) -> Iterator[Connection | None]:
    """The connections in one part of the kernel's answer, and None for its end (pure)."""
    at = 0
    while at + _HEADER.size <= len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, at)
        if kind in (_DONE, _ERROR) or length < _HEADER.size:
            yield None
            return
        if (found := _connection(answer[at + _HEADER.size : at + length])) is not None:
            yield found
        at += (length + 3) & ~3


def _connection(message: bytes) -> Connection | None:
    local, port = _PORTS.unpack_from(message, _PORTS_AT)
    (inode,) = struct.unpack_from("=I", message, _INODE_AT)
    at = _MESSAGE_SIZE
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _INFO and length >= _ATTRIBUTE.size + _COUNTERS_AT + _COUNTERS.size:
            return Connection(local, port, inode, *_COUNTERS.unpack_from(message, at + _ATTRIBUTE.size + _COUNTERS_AT))
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return None


class Traffic:
    """Adds up what goes to and comes from brokers on these `ports`; `brokers` are their processes' ids."""

    def __init__(self, ports: Iterable[int], brokers: Iterable[int]) -> None:
        self._ports, self._others = frozenset(ports), (os.getpid(), *brokers)
        self._counts: dict[tuple[int, int], tuple[int, int]] = {}
        self._foreign: set[tuple[int, int]] = set()

    def sample(self) -> None:
        """Now. Nothing happens where the kernel cannot be asked."""
        if sys.platform != "linux":
            return
        with suppress(OSError):
            for one in (*_asked(socket.AF_INET), *_asked(socket.AF_INET6)):  # Java's are of the second family
                which = one.local, one.port
                if one.port not in self._ports or which in self._foreign:
                    continue
                if which not in self._counts and (not one.inode or self._is_foreign(one.inode)):
                    self._foreign.add(which)
                    continue
                received, sent = self._counts.get(which, (0, 0))
                self._counts[which] = max(received, one.received), max(sent, one.sent)

    def _is_foreign(self, inode: int) -> bool:
        return any(inode in _inodes(pid) for pid in self._others)

    def total(self, least_received: int, least_sent: int) -> tuple[int | None, int | None]:
        """Bytes received and sent so far, given what must have gone either way. A connection may carry something
        between the last sample and its end; where that can be more than a little, the sum is not known.
        """
        received, sent = (sum(pair[way] for pair in self._counts.values()) for way in (0, 1))
        return _known(received, least_received), _known(sent, least_sent)


def _known(counted: int, least: int) -> int | None:
    return max(counted, least) if counted >= _SEEN * least else None


def _asked(family: socket.AddressFamily) -> Iterator[Connection]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _STATES)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, 1, 0) + body)
        while True:
            for found in parsed(kernel.recv(1 << 17)):
                if found is None:
                    return
                yield found


def _inodes(pid: int) -> Iterator[int]:
    with suppress(OSError):  # it has ended
        for name in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(name.readlink())
                if target.startswith("socket:["):
                    yield int(target[8:-1])


# --- Measures a process that copies a topic, whatever it is -----------------------------------------------------------

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
class Goal:
    """What a copy is to reach."""

    topics: Topics  # on the target
    end: int  # the sum of log ends at which all records are there
    stored_bytes: int  # of the source


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
        goal: Goal,
        beside: Sequence[int] = (),
    ) -> None:
        """`began`: `time.monotonic()` when it was started. Processes `beside` count as in `Tree`."""
        self._process, self._began, self.goal, self._target = process, began, goal, target
        self._source_cpu, self._target_cpu = BrokerCpu(source), BrokerCpu(target)
        self.tree = Tree(process.pid, beside)
        self._ends = Ends(target.bootstrap)
        nodes = [node for cluster in (source, target) for node in cluster.nodes]
        self._traffic = Traffic((node.port for node in nodes), (node.process.pid for node in nodes if node.process))
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
        received, sent = self._traffic.total(self.goal.stored_bytes, on_disk(self._target, self.goal.topics.names))
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
            wire_in_bytes=received,
            wire_out_bytes=sent,
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
        self._traffic.sample()

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
            sizes[folder.name] = max(sizes.get(folder.name, 0), sum(one.stat().st_size for one in folder.glob("*.log")))
    return sum(sizes.values())


def settle() -> None:
    """Write back what others left in memory: it must not slow down what is measured next."""
    os.sync()
