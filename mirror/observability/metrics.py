"""Prometheus metrics of a flow and the HTTP endpoint that serves them.

Tasks count anew where Spark starts them again, and forget at most what they had not reported: a counter here goes on
from where it was, and never back. Cardinality is bounded: gauges are by partition, and only of the state that a
partition has; counters and latencies are by topic; what concerns a task's connections is by flow.

Whoever can connect must not be able to use the driver up. A connection that is silent for `SILENCE_SECONDS` is closed,
and where more than `MOST_CONNECTIONS` are open, the oldest one is: whoever asks anew always gets in.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mirror.config import parse_address
from mirror.errors import ConfigError
from mirror.observability import logs
from mirror.observability.status import BOUNDS, Histogram, PartitionStatus, TaskStatus

# --- What the Prometheus endpoint shows of a flow, kept by the driver from the reports of its tasks -------------------

#: What may be started again.
TASK, EPOCH = "task", "epoch"
_SIDES: Final = ("source", "target")


class Metrics(Collector):
    """Give it reports as they come; prometheus-client asks it from its own thread."""

    def __init__(self, flow: str, clock: Callable[[], float] = time.time) -> None:
        """`clock` is Unix time in seconds."""
        self._flow, self._clock = flow, clock
        self._lock = threading.Lock()
        self._newest: dict[tuple[str, int], PartitionStatus] = {}
        self._batches: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._lost: Counter[str] = Counter()
        self._target_lost: Counter[str] = Counter()
        self._latency: dict[str, Histogram] = {}
        self._tasks: dict[int, TaskStatus] = {}
        self._fetch, self._produce = Histogram(), Histogram()
        self._throttled_ms: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter({TASK: 0, EPOCH: 0})
        self._groups_at: float | None = None

    def learn(self, figures: Iterable[PartitionStatus]) -> None:
        """Reports of partitions by this instance; older ones than those known are passed over."""
        with self._lock:
            for status in figures:
                at = status.topic, status.partition
                before = self._newest.get(at)
                if before is not status and (before is None or before.at_ms <= status.at_ms):
                    self._count(status, before)
                    self._newest[at] = status

    def learn_task(self, task: TaskStatus) -> None:
        """A task's report by this instance."""
        with self._lock:
            before = self._tasks.get(task.task)
            known = before is not None and (before.epoch, before.attempt) == (task.epoch, task.attempt)
            same = before if known else None
            self._fetch.join(task.fetch.since(same.fetch) if same else task.fetch)
            self._produce.join(task.produce.since(same.produce) if same else task.produce)
            for side in _SIDES:
                name = f"{side}_throttled_ms"
                self._throttled_ms[side] += _grown(getattr(task, name), getattr(same, name) if same else 0)
            tries = before.attempt if before and before.epoch == task.epoch else 0
            self._restarts[TASK] += max(0, task.attempt - tries)
            self._tasks[task.task] = task

    def epoch_failed(self) -> None:
        """A Spark job failed as a whole, and another one follows."""
        with self._lock:
            self._restarts[EPOCH] += 1

    def groups_followed(self, are_chosen: bool = True) -> None:
        """All consumer groups were looked at just now, or no group is chosen any more: then they have no age."""
        with self._lock:
            self._groups_at = self._clock() if are_chosen else None

    def keep(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Report no more on partitions that are not among these; what was counted of them stays."""
        with self._lock:
            kept = set(partitions)
            self._newest = {at: figures for at, figures in self._newest.items() if at in kept}

    def _count(self, now: PartitionStatus, before: PartitionStatus | None) -> None:
        topic = now.topic
        for verdict, many in now.verdicts.items():
            self._batches[topic, verdict] += _grown(many, before.verdicts.get(verdict, 0) if before else 0)
        for verdict, size in now.verdict_bytes.items():
            self._bytes[topic, verdict] += _grown(size, before.verdict_bytes.get(verdict, 0) if before else 0)
        self._lost[topic] += _grown(now.lost, before.lost if before else 0)
        self._target_lost[topic] += _grown(now.target_lost, before.target_lost if before else 0)
        latency = now.latency.since(before.latency) if before else now.latency
        self._latency.setdefault(topic, Histogram()).join(latency)

    def collect(self) -> Iterator[Metric]:
        """For prometheus-client."""
        with self._lock:
            families = [*self._of_partitions(), *self._of_topics(), *self._of_the_flow()]
        yield from families

    def _of_partitions(self) -> Iterator[Metric]:
        labels = ("flow", "topic", "partition")
        records = GaugeMetricFamily("mirror_records_lag", "Records of the source still to be mirrored", labels=labels)
        size = GaugeMetricFamily(
            "mirror_bytes_lag", "The same in bytes as stored, by the mean size of what was mirrored", labels=labels
        )
        state = GaugeMetricFamily(
            "mirror_partition_state", "1 for the state that a partition is in", labels=(*labels, "state")
        )
        for status in self._newest.values():
            values = self._flow, status.topic, str(status.partition)
            if status.lag_records is not None:
                records.add_metric(values, status.lag_records)
            if (lag_bytes := status.lag_bytes) is not None:
                size.add_metric(values, lag_bytes)
            state.add_metric((*values, str(status.state)), 1)
        return iter((records, size, state))

    def _of_topics(self) -> Iterator[Metric]:
        labels = ("flow", "topic", "verdict", "reason")
        batches = CounterMetricFamily("mirror_batches", "Batches that were dealt with", labels=labels)
        size = CounterMetricFamily("mirror_bytes", "Their bytes: written, or left out for DROP", labels=labels)
        for family, counts in ((batches, self._batches), (size, self._bytes)):
            for (topic, key), many in counts.items():
                verdict, _, reason = key.partition("/")
                family.add_metric((self._flow, topic, verdict, reason), many)
        lost = CounterMetricFamily(
            "mirror_data_loss_records", "Offsets that were lost or left out, and passed over", labels=labels[:2]
        )
        for topic, many in self._lost.items():
            lost.add_metric((self._flow, topic), many)
        target_lost = CounterMetricFamily(
            "mirror_target_lost_records",
            "Source offsets that the target had acknowledged and lost; what the source still has is copied again",
            labels=labels[:2],
        )
        for topic, many in self._target_lost.items():
            target_lost.add_metric((self._flow, topic), many)
        latency = HistogramMetricFamily(
            "mirror_replication_latency_seconds",
            "From the newest record's timestamp to the target's acknowledgement, for each batch",
            labels=labels[:2],
        )
        for topic, found in self._latency.items():
            latency.add_metric((self._flow, topic), *_buckets(found))
        return iter((batches, size, lost, target_lost, latency))

    def _of_the_flow(self) -> Iterator[Metric]:
        for name, text, found in (
            ("mirror_fetch_seconds", "From a fetch request to its answer, of answers with records", self._fetch),
            ("mirror_produce_seconds", "From a produce request to its acknowledgements", self._produce),
        ):
            took = HistogramMetricFamily(name, text, labels=("flow",))
            took.add_metric((self._flow,), *_buckets(found))
            yield took
        throttled = CounterMetricFamily(
            "mirror_throttled_seconds", "How long brokers muted the mirror for a quota", labels=("flow", "cluster")
        )
        for side in _SIDES:
            throttled.add_metric((self._flow, side), self._throttled_ms[side] / 1000)
        yield throttled
        restarts = CounterMetricFamily("mirror_restarts", "What had to be started again", labels=("flow", "what"))
        for what, many in self._restarts.items():
            restarts.add_metric((self._flow, what), many)
        yield restarts
        now = self._clock()
        oldest = min((status.at_ms / 1000 for status in self._newest.values()), default=None)
        ages: Mapping[str, tuple[str, float | None]] = {
            "mirror_group_sync_age_seconds": ("Since nothing kept consumer groups from following", self._groups_at),
            "mirror_report_age_seconds": ("Since the partition that is silent longest reported", oldest),
        }
        for name, (text, since) in ages.items():
            age = GaugeMetricFamily(name, text, labels=("flow",))
            if since is not None:
                age.add_metric((self._flow,), max(0.0, now - since))
            yield age


def _grown(now: int, before: int) -> int:
    """What a count grew by; one that went back is another task's, which began where the epoch did."""
    return max(0, now - before)


def _buckets(found: Histogram) -> tuple[list[tuple[str, float]], float]:
    """As Prometheus wants them: each bucket counts the smaller ones, too."""
    names = (*map(str, BOUNDS), "+Inf")
    return list(zip(names, map(float, accumulate(found.counts)), strict=True)), found.total


# --- The HTTP endpoint where Prometheus finds the figures -------------------------------------------------------------

#: How long a client may send nothing, or take nothing.
SILENCE_SECONDS: Final = 5.0
#: Prometheus and its like ask once in seconds, one connection each.
MOST_CONNECTIONS: Final = 16
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class _Handler(WSGIRequestHandler):
    """Of one connection, which asks once; nothing is logged of it."""

    timeout = SILENCE_SECONDS

    def log_message(self, *_: object) -> None:
        """Scrapes are no events."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, of which there are few."""

    daemon_threads = True

    def __init__(self, *given: Any) -> None:
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._opening = threading.Lock()
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._opening:
            self._open[request] = None
            if len(self._open) > MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):  # its client was faster
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread finds that, and ends
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._opening:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # of a socket: the client was silent, or is gone
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


@contextmanager
def serving(listen: str, metrics: Collector) -> Iterator[None]:
    """Answer on `listen` (host:port) while the context is open. Raises ConfigError where that cannot be listened on."""
    host, port = parse_address(listen)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = _Server6 if family == socket.AF_INET6 else _Server
        server = make_server(host, port, make_wsgi_app(registry), kind, _Handler)
    except OSError as problem:
        raise ConfigError(
            f"metrics.listen: cannot listen on {listen}: {problem.strerror or problem}. Choose another port, or end the"
            " process that has this one: two flows on one machine need two ports"
        ) from problem
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    log = logs.get(__name__)
    log.info("metrics_served", url=f"http://{listen}/metrics")
    if host not in _LOOPBACK:
        log.warning("metrics_exposed", listen=listen, text="whoever reaches this address reads topic names and figures")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
