"""How late records are on the target at a fixed rate, and how much of that a copy adds to what a consumer of the source
sees. Both consumers are in this process, so both are as late as Python is.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count as numbers
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from mirror.errors import BenchError
from mirror.kafka import cluster as kafka
from mirror.kafka.connection import Connection
from mirror.kafka.produce import ProduceAnswer, ProduceRequest, read_produce
from mirror.kafka.protocol import PRODUCE, to_varint
from mirror.kafka.queries import LATEST, list_offset
from mirror.lab.bench.arms import Arm, Job
from mirror.lab.bench.copies import removed
from mirror.lab.bench.measuring import BrokerCpu
from mirror.lab.bench.result import Latency
from mirror.lab.bench.workloads import Shape, create, endpoint
from mirror.lab.demo.processes import Bound, Tree
from mirror.lab.embedded import Cluster
from mirror.records.codecs import compress
from mirror.records.header import CODECS, HEADER_BYTES, LAYOUT, LENGTH_PREFIX, sealed

#: Seconds for the first record to arrive; for the last one.
_FIRST_S: Final = 120.0
_LAST_S: Final = 30.0
#: Between two samples of CPU.
_METER_S: Final = 0.5
#: What is due within this goes as one request, as if from one producer.
_TICK_S: Final = 0.002
#: Upper bounds of the buckets, in ms; what is later has the largest one's as its own bound.
BOUNDS: Final = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
#: A record has its number behind this, as the field that arms which re-key take.
_HEAD: Final = b'{"user": "'
_DIGITS: Final = 12
_TAIL: Final = b'", "text": "%b"}' % (b"." * 270)


@dataclass(frozen=True, slots=True)
class Pace:
    """A trickle: each record is a batch of its own."""

    rate: float = 1000.0  # records a second
    seconds: float = 60.0  # for which they count
    warm_s: float = 30.0  # before that: JVMs compile what they do all the time
    partitions: int = 100
    codec: str = "lz4"
    read: int = 8  # partitions whose records are timed, at most: readers that keep up with all take what is measured

    @property
    def observed(self) -> int:
        """Return how many partitions are read on both sides."""
        return min(self.read, self.partitions)


class Meter:
    """CPU of a copying process and of both clusters from now on, in cores."""

    def __init__(self, process: Bound, source: Cluster, target: Cluster) -> None:
        self._tree, self._brokers = Tree(process.pid), (BrokerCpu(source), BrokerCpu(target))
        self._before, self._began = self._tree.sample(), time.monotonic()
        self.cores = (0.0, 0.0, 0.0)

    def sample(self) -> None:
        """Take the figures up to now. Processes that end are missed by as much as they took since the last sample."""
        seconds, spent = time.monotonic() - self._began, self._tree.sample() - self._before
        source, target = (brokers.used / seconds for brokers in self._brokers)
        self.cores = spent / seconds, source, target


def measured(arm: Arm, source: Cluster, target: Cluster, run: str, pace: Pace, round_: int) -> Latency:
    """Copy a trickle with one arm, live, for as long as the pace says. Raises BenchError."""
    shape = Shape(name="ticks", codec=pace.codec, batch_bytes=1, megabytes=1, partitions=pace.partitions)
    with tempfile.TemporaryDirectory(prefix="mirror-bench-") as folder:
        job = Job(
            run=run,
            source=source.bootstrap,
            target=target.bootstrap,
            topics=[f"{run}-ticks"],
            shape=shape,
            folder=Path(folder),
            live=True,
        )
        create(source.bootstrap, job.topics[0], pace.partitions)
        if arm.makes_topics:  # readers begin before the arm does
            create(target.bootstrap, job.copies[0], arm.partitions(shape))
        readers = (
            LatencyReader(source.bootstrap, job.topics[0], pace.observed),
            LatencyReader(target.bootstrap, job.copies[0], arm.rekeys.partitions if arm.rekeys else pace.observed),
        )
        try:
            with arm.start(job) as process:
                ticking = Ticking(job.topics[0], pace, process, readers, (source, target))
                sent, cores = asyncio.run(ticking.run())
        finally:
            for reader in readers:
                reader.end()
        removed(source, job.topics)
        removed(target, job.copies)
    found = summary(arm.name, pace.rate, round_, sent, *(reader.arrived for reader in readers))
    own, source_cores, target_cores = cores
    return replace(found, partitions=pace.partitions, cores=own, source_cores=source_cores, target_cores=target_cores)


def summary(
    arm: str,
    rate: float,
    round_: int,
    sent: Mapping[int, float],
    direct: Mapping[int, float],
    copy: Mapping[int, float],
) -> Latency:
    """Return what the moments of the same records come to (pure)."""
    late = sorted((copy[number] - at) * 1e3 for number, at in sent.items())
    added = sorted((copy[number] - direct[number]) * 1e3 for number in sent)
    bounds = (*(bound for bound in BOUNDS if bound < late[-1]), next((b for b in BOUNDS if b >= late[-1]), late[-1]))
    counts = [0] * len(bounds)
    for milliseconds in late:
        counts[bisect_left(bounds, milliseconds)] += 1
    return Latency(
        arm=arm,
        rate=rate,
        round=round_,
        records=len(late),
        p50_ms=at_share(late, 0.5),
        p90_ms=at_share(late, 0.9),
        p99_ms=at_share(late, 0.99),
        max_ms=late[-1],
        added_p50_ms=at_share(added, 0.5),
        added_p99_ms=at_share(added, 0.99),
        buckets=tuple(zip(bounds, counts, strict=True)),
    )


def at_share(ordered: Sequence[float], share: float) -> float:
    """The value that so large a share does not exceed (pure)."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class LatencyReader(threading.Thread):
    """Notes when each numbered record arrives."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.arrived: dict[int, float] = {}
        self._done = threading.Event()
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "mirror-bench-latency", "log_level": 0})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self.start()

    def run(self) -> None:
        """Until the end."""
        while not self._done.is_set():
            message: Any = self._consumer.poll(0.2)
            if message is not None and not message.error():
                self.arrived.setdefault(int(message.value()[len(_HEAD) :][:_DIGITS]), time.perf_counter())
        self._consumer.close()

    def end(self) -> None:
        """Stop, and let go of the connection."""
        self._done.set()
        self.join()


class Ticking:
    """Sends a trickle while a process copies it."""

    def __init__(
        self,
        topic: str,
        pace: Pace,
        process: Bound,
        readers: tuple[LatencyReader, LatencyReader],
        clusters: tuple[Cluster, Cluster],
    ) -> None:
        """`readers` and `clusters`: the source's and the target's."""
        self._topic, self._pace, self._process = topic, pace, process
        self._readers, self._clusters = readers, clusters

    async def run(self) -> tuple[dict[int, float], tuple[float, float, float]]:
        """Return when each record that counts was sent, once all of them have come to both readers; and the cores
        meanwhile, as `Meter` has them. Raises BenchError.
        """
        pace, sent, due = self._pace, dict[int, float](), 0
        meter, metered = None, 0.0
        async with kafka.Cluster(endpoint("source", self._clusters[0].bootstrap)) as cluster:
            await cluster.refresh([self._topic])
            partitions = [kafka.TopicPartition(self._topic, number) for number in range(pace.partitions)]
            await asyncio.gather(*(list_offset(cluster, partition, LATEST) for partition in partitions))  # has a leader
            leader = cluster.leader(partitions[0]).node
            ticker = _Ticker(cluster, await cluster.connection(leader), self._topic, pace)
            number = await self._begun(ticker)
            began = time.perf_counter()
            while (elapsed := time.perf_counter() - began) < pace.warm_s + pace.seconds:
                counts = elapsed >= pace.warm_s
                if counts and time.perf_counter() > metered + _METER_S:
                    meter = meter or Meter(self._process, *self._clusters)
                    meter.sample()
                    metered = time.perf_counter()
                batch = range(number + 1, number + 1 + min(pace.partitions, int(elapsed * pace.rate) - due))
                due, number, now = due + len(batch), number + len(batch), time.perf_counter()
                if counts:
                    sent |= dict.fromkeys((tick for tick in batch if tick % pace.partitions < pace.observed), now)
                ticker.send(batch)
                await asyncio.sleep(_TICK_S if len(batch) < pace.partitions else 0)
            assert meter is not None, "records count for a time"
            meter.sample()
            await self._arrived(sent, ticker)
        return sent, meter.cores

    async def _begun(self, ticker: _Ticker) -> int:
        """Return the first record that arrived; others were sent before it, once a second, to partition 0."""
        deadline = time.monotonic() + _FIRST_S
        for number in numbers(step=ticker.partitions):
            ticker.send([number])
            waited = time.monotonic() + 1.0
            while time.monotonic() < waited:
                if number in self._readers[1].arrived:
                    return number
                await asyncio.sleep(0.05)
            if self._process.exit_code is not None or time.monotonic() > deadline:
                break
        raise BenchError(f"no record arrived:\n{ticker.refused}{self._process.tail()}")

    async def _arrived(self, sent: dict[int, float], ticker: _Ticker) -> None:
        """Wait for the last ones. Raises BenchError."""
        deadline = time.monotonic() + _LAST_S
        while not all(sent.keys() <= reader.arrived.keys() for reader in self._readers):
            if self._process.exit_code is not None or time.monotonic() > deadline:
                missing = len(sent.keys() - self._readers[1].arrived.keys())
                problem = f"{ticker.refused}{self._process.tail()}"
                raise BenchError(f"{missing:,} of {len(sent):,} records did not arrive:\n{problem}")
            await asyncio.sleep(0.05)


class _Ticker:
    """Sends numbered records, each as a batch of its own, to a partition by its number; what is due together goes as
    one request.
    """

    def __init__(self, cluster: kafka.Cluster, leader: Connection, topic: str, pace: Pace) -> None:
        self._topic, self.partitions, self._codec = topic, pace.partitions, CODECS.index(pace.codec)
        self._ids, self._leader = {topic: cluster.topic_id(topic)}, leader
        self.refused = ""  # what the broker said last, if that was an error

    def send(self, numbers: Sequence[int]) -> None:
        """Send the records of these numbers, at most one for a partition."""
        if not numbers:
            return
        batches = {
            kafka.TopicPartition(self._topic, number % self.partitions): (self._batch(number),) for number in numbers
        }
        request = ProduceRequest(self._leader.version(PRODUCE), batches, self._ids)
        self._leader.send(PRODUCE, request).add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[ProduceAnswer]) -> None:
        if problem := answer.exception():
            self.refused = f"{problem}\n"
        else:
            self.refused = "".join(f"{ack}\n" for ack in read_produce(answer.result(), self._ids) if ack.error_code)

    def _batch(self, number: int) -> bytes:
        value = b"%b%0*d%b" % (_HEAD, _DIGITS, number, _TAIL)
        record = b"".join(
            (b"\0\0\0\1", to_varint(2 * len(value)), value, b"\0")
        )  # no times, offset 0, no key, no headers
        section, now = compress(self._codec, to_varint(2 * len(record)) + record), time.time_ns() // 1_000_000
        length = HEADER_BYTES - LENGTH_PREFIX + len(section)
        return sealed(LAYOUT.pack(0, length, -1, 2, 0, self._codec, 0, now, now, -1, -1, -1, 1), section) + section
