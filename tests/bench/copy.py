"""`mirror run --once` between two one-broker clusters: start-up, CPU per GB of batches, speed, memory.

CPU per GB of batches is the slope between a small copy and one four times larger, each from its first record to its
last, since start-up costs ten times a small copy and varies by more than that. Speed is compared in the same run with
a replay of the same batches from memory by the same writer in as many processes, taken turn and turn about.

    python -m tests.bench.copy [--megabytes 2000] [--rounds 3] [--codec zstd] [--batch 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Confluent

from mirror.batch.header import RawBatch, split
from mirror.batch.restamp import Stamp
from mirror.classifier import OWN_PRODUCER
from mirror.demo.usage import Tree
from mirror.embedded import Cluster as Brokers
from mirror.embedded import Spec, start_many
from mirror.position import Position, producer_id
from mirror.sink import Sink
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition
from mirror.wire.fetch import fetch_at
from mirror.wire.queries import LATEST, list_offset
from mirror.writer import Writer

from .workload import create, fill

PARTITIONS = 4
LANES = 2


@dataclass(slots=True)
class Copy:
    """One copy. Seconds, bytes of batches; the first record's figures count from the start of the process."""

    gigabytes: float
    wall: float
    cpu: float
    first_record_wall: float
    first_record_cpu: float
    copying: float
    copying_cpu: float
    peak_rss_mb: float
    peak_pss_mb: float


class Trees:
    """The mirror's processes, and those of a Spark cluster that has run before: what these take from now on."""

    def __init__(self, beside: Sequence[int]) -> None:
        self._trees = [Tree(pid) for pid in beside]
        self._before = sum(tree.sample() for tree in self._trees)

    def add(self, pid: int) -> None:
        """One more, of which all counts."""
        self._trees.append(Tree(pid))

    def sample(self) -> float:
        """CPU-seconds of all since then."""
        return sum(tree.sample() for tree in self._trees) - self._before

    def peaks(self) -> tuple[int, int]:
        """Bytes, resident and with shared pages once: the sum of each tree's own peak."""
        tallies = [tree.tally for tree in self._trees]
        return sum(one.peak_rss for one in tallies), sum(one.peak_pss or 0 for one in tallies)


def mirrored(
    source: Brokers,
    target: Brokers,
    topic: str,
    size: int,
    folder: Path,
    *,
    prefix: str = "",
    spark: Mapping[str, Any] | None = None,
    beside: Sequence[int] = (),
) -> Copy:
    """One `mirror run --once` of one topic, measured from outside; `prefix`: of the copy's name. `spark`: the
    configuration's section, and `beside`: processes of the cluster that it names, which count as well.
    """
    config = folder / f"{prefix}{topic}.yaml"
    settings = {
        "name": f"bench-{prefix}{topic}",
        "source": {"alias": "a", "bootstrap.servers": source.bootstrap},
        "target": {"alias": "b", "bootstrap.servers": target.bootstrap},
        "topics": {"include": [topic], "naming": {"prefix": prefix} if prefix else "identity"},
        "spark": spark or {},
    }
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    topic = prefix + topic
    os.sync()  # what was written to fill the source must not slow the copy down
    tree = Trees(beside)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "mirror", "run", str(config), "--once"], stderr=subprocess.PIPE, text=True
    )
    tree.add(process.pid)
    output = [""]
    reading = threading.Thread(target=lambda: output.__setitem__(0, process.stderr.read() if process.stderr else ""))
    reading.start()
    consumer = Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": "bench", "log_level": 0, "logger": _quiet()}
    )
    cpu = first_wall = first_cpu = last = last_cpu = 0.0
    seen = 0
    sampled = 0.0
    while process.poll() is None:
        now = time.perf_counter() - began
        if now - sampled > 0.2:
            sampled, cpu = now, max(cpu, tree.sample())
        end = _end(consumer, topic) if now > 1.0 else 0
        if end > seen:
            if not seen:
                first_wall, first_cpu = now, tree.sample()
            seen, last, last_cpu = end, now, cpu
        time.sleep(0.01)
    wall = time.perf_counter() - began
    reading.join()
    consumer.close()
    if process.returncode:
        raise SystemExit(f"mirror ended with {process.returncode}:\n{output[0]}")
    rss, pss = tree.peaks()
    return Copy(
        size / 1e9,
        wall,
        cpu,
        first_wall,
        first_cpu,
        last - first_wall,
        last_cpu - first_cpu,
        rss / 1e6,
        pss / 1e6,
    )


def _quiet() -> object:
    import logging

    logger = logging.getLogger("bench")
    logger.disabled = True
    return logger


def _end(consumer: Consumer, topic: str) -> int:
    total = 0
    for partition in range(PARTITIONS):
        try:
            _, high = consumer.get_watermark_offsets(Confluent(topic, partition), timeout=2)
        except Exception:  # the topic is not there yet
            return 0
        total += max(0, high)
    return total


def loaded(bootstrap: str, topic: str) -> dict[int, list[RawBatch]]:
    """Every batch of a topic, in memory."""

    async def load() -> dict[int, list[RawBatch]]:
        async with Cluster(endpoint("a", bootstrap)) as cluster:
            await cluster.refresh([topic])
            return {p: [raw async for raw in _batches(cluster, TopicPartition(topic, p))] for p in range(PARTITIONS)}

    return asyncio.run(load())


async def _batches(cluster: Cluster, partition: TopicPartition) -> AsyncIterator[RawBatch]:
    at, end = 0, await list_offset(cluster, partition, LATEST)
    while at < end:
        for raw in split((await fetch_at(cluster, partition, at, max_bytes=4 << 20)).records):
            at = raw.header.next_offset
            yield raw


def endpoint(alias: str, bootstrap: str) -> Endpoint:
    """A cluster of one broker on loopback."""
    host, port = bootstrap.split(":")
    return Endpoint(alias, ((host, int(port)),))


def replayed(target: str, topic: str, batches: dict[int, list[RawBatch]]) -> float:
    """Seconds for the product's writer to append batches from memory, in as many processes as the mirror has lanes."""
    create(target, topic, PARTITIONS)
    context = multiprocessing.get_context("fork")
    ready, go = context.Barrier(LANES + 1), context.Barrier(LANES + 1)
    workers = [
        context.Process(
            target=_replay_lane,
            args=(target, topic, {p: b for p, b in batches.items() if p % LANES == lane}, ready, go),
        )
        for lane in range(LANES)
    ]
    for worker in workers:
        worker.start()
    ready.wait()
    os.sync()
    began = time.perf_counter()
    go.wait()
    for worker in workers:
        worker.join()
    return time.perf_counter() - began


def _replay_lane(target: str, topic: str, batches: dict[int, list[RawBatch]], ready: Barrier, go: Barrier) -> None:
    async def replay() -> None:
        async with Cluster(endpoint("b", target)) as cluster, asyncio.TaskGroup() as tasks:
            await cluster.refresh([topic])
            moved = asyncio.Event()
            writer = Writer(cluster, lambda _: moved.set(), tasks.create_task, 8 << 20)
            sinks = []
            for p, raws in batches.items():
                at = TopicPartition(topic, p)
                sink = Sink(at, at, Position(0, Stamp(producer_id("bench", at)), False, -1))
                writer.begin(sink)
                sinks.append((sink, iter(raws)))
            ready.wait()
            go.wait()
            while sinks:
                for sink, raws_left in tuple(sinks):
                    assert not sink.unsettled, sink.unsettled
                    while writer.room(sink.source) > 0:
                        if (raw := next(raws_left, None)) is None:
                            if sink.is_idle:
                                sinks.remove((sink, raws_left))
                            break
                        writer.carry_out(OWN_PRODUCER, (raw,), sink)
                writer.flush()
                if sinks:
                    moved.clear()
                    await moved.wait()

    asyncio.run(replay())


def main() -> None:
    """Run it and print a summary and, last, the raw figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000, help="uncompressed size of the larger copy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", default="zstd")
    parser.add_argument("--batch", type=int, default=1_000_000, help="uncompressed bytes in a batch")
    options = parser.parse_args()
    specs = [Spec(name="bench-source", jit="full"), Spec(name="bench-target", jit="full")]
    source, target = start_many(specs)
    small: list[Copy] = []
    large: list[Copy] = []
    replays: list[float] = []
    with source, target, tempfile.TemporaryDirectory() as folder:
        batches: dict[int, list[RawBatch]] = {}
        for round_ in range(options.rounds):
            for copies, megabytes in ((small, options.megabytes // 4), (large, options.megabytes)):
                topic = f"copy-{megabytes}-{round_}"
                fill(
                    source.bootstrap,
                    topic,
                    megabytes=megabytes,
                    partitions=PARTITIONS,
                    codec=options.codec,
                    batch=options.batch,
                )
                batches = loaded(source.bootstrap, topic)
                size = sum(len(raw.data) for raws in batches.values() for raw in raws)
                copies.append(mirrored(source, target, topic, size, Path(folder)))
                print(f"mirror {copies[-1]}", file=sys.stderr)
            replays.append(replayed(target.bootstrap, f"replay-{round_}", batches))
            print(f"replay {size / 1e6:.0f} MB in {replays[-1]:.2f} s", file=sys.stderr)
    slopes = [(b.copying_cpu - a.copying_cpu) / (b.gigabytes - a.gigabytes) for a, b in zip(small, large, strict=True)]
    ratios = [replay / copy.copying for copy, replay in zip(large, replays, strict=True)]
    both = small + large
    middle = statistics.median
    print(f"batches of the larger copy  {large[0].gigabytes * 1000:.0f} MB")
    first = f"{middle(c.first_record_wall for c in both):.1f} s, {middle(c.first_record_cpu for c in both):.1f} CPU-s"
    copying = f"{middle(c.wall for c in large):.1f} s, copying {middle(c.copying for c in large):.1f} s"
    print(f"start to first record       {first}")
    print(f"CPU per GB of batches       {middle(slopes):.2f} CPU-s (each: {', '.join(f'{s:.2f}' for s in slopes)})")
    print(f"wall of the larger copy     {copying}")
    memory = f"{max(c.peak_rss_mb for c in large):.0f} MB, shared pages once {max(c.peak_pss_mb for c in large):.0f} MB"
    print(f"peak resident memory        {memory}")
    print(f"speed beside a replay       {middle(ratios):.2f} (each: {', '.join(f'{r:.2f}' for r in ratios)})")
    print(
        json.dumps(
            {"small": [asdict(c) for c in small], "large": [asdict(c) for c in large], "replay_seconds": replays}
        )
    )


if __name__ == "__main__":
    main()
