"""What the writing side counts."""

from __future__ import annotations

from typing import Any

import pytest
from rawbatches import batch, raw

from mirror.batch.restamp import Stamp
from mirror.classifier import LEGACY
from mirror.position import Position
from mirror.sink import Sink
from mirror.wire.cluster import TopicPartition
from mirror.writer import Writer

AT = TopicPartition("orders", 0)


@pytest.mark.parametrize(("timestamp", "latency_ms"), [(-1, None), (940_000, 60_000), (1_000_001, 0)])
def test_records_without_timestamps_have_no_latency(
    timestamp: int, latency_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Magic 0 has none: they are not half a century late."""
    monkeypatch.setattr("mirror.writer.time.time", lambda: 1000.0)
    nothing: Any = None
    writer = Writer(nothing, nothing, nothing, 1 << 20)
    sink = Sink(AT, AT, Position(0, Stamp(1 << 52), True, -1))
    writer.begin(sink)
    sink.append(raw(batch(0, base_timestamp=timestamp, max_timestamp=timestamp)), LEGACY)
    sink.doubted.append(sink.queue.popleft())  # type: ignore[arg-type] # a batch
    writer.settled(sink, 1)
    assert writer.tallies[AT].latency_ms == latency_ms
