"""What the writing side counts, and how it fills its requests."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from rawbatches import batch, raw

from mirror.kafka.cluster import TopicPartition
from mirror.lab.bench import replay
from mirror.lab.bench.stored import loaded
from mirror.lab.bench.workloads import Shape, create, fill
from mirror.lab.embedded import Cluster
from mirror.records.header import ProducerState
from mirror.replication.classifier import LEGACY
from mirror.replication.partition_writer import PartitionWriter
from mirror.replication.position import Position
from mirror.replication.writer import Writer

AT = TopicPartition("orders", 0)


@pytest.mark.parametrize(("timestamp", "latency_ms"), [(-1, None), (940_000, 60_000), (1_000_001, 0)])
def test_records_without_timestamps_have_no_latency(
    timestamp: int, latency_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Magic 0 has none: they are not half a century late."""
    monkeypatch.setattr("mirror.replication.writer.time.time", lambda: 1000.0)
    nothing: Any = None
    writer = Writer(nothing, nothing, nothing, 1 << 20)
    sink = PartitionWriter(AT, AT, Position(0, ProducerState(1 << 52), True, -1))
    writer.begin(sink)
    sink.append(raw(batch(0, base_timestamp=timestamp, max_timestamp=timestamp)), LEGACY)
    sink.doubted.append(sink.queue.popleft())  # type: ignore[arg-type] # a batch
    writer.settled(sink, 1)
    assert writer.tallies[AT].latency_ms == latency_ms


@pytest.mark.parametrize(("batch_bytes", "connections", "a_request"), [(4_000, {0}, 3.0), (400_000, {0, 1}, 1.0)])
def test_small_batches_share_requests_and_large_ones_are_spread(
    batch_bytes: int,
    connections: set[int],
    a_request: float,
    topic_name: str,
    source_cluster: Cluster,
    target_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Writer] = []

    class Seen(Writer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(replay, "Writer", Seen)
    shape = Shape(name=topic_name, codec="none", batch_bytes=batch_bytes, megabytes=batch_bytes // 4_000 or 1)
    fill(source_cluster.bootstrap, topic_name, shape)
    batches = loaded(source_cluster.bootstrap, topic_name, shape.partitions)
    create(target_cluster.bootstrap, topic_name, shape.partitions)
    go: Any = threading.Barrier(1)
    asyncio.run(replay._replay(target_cluster.bootstrap, topic_name, batches, go))
    writer = made[0]
    many, requests = sum(map(len, batches.values())), sum(writer.took.counts)
    assert sum(tally.batches for tally in writer.tallies.values()) == many > 20
    assert many / requests >= a_request
    assert {number for _, number in writer._channels} == connections
