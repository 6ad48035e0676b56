"""An independent judge: kafka-python, which shares no code with the mirror, reads both sides record by record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition


def read(bootstrap: str, topic: str, partition: int, isolation: str = "read_committed") -> Iterator[tuple[Any, ...]]:
    """Every record of a partition, as (offset, timestamp, timestamp type, key, value, headers)."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        auto_offset_reset="none",
        enable_auto_commit=False,
        check_crcs=True,
        fetch_max_bytes=16 << 20,
        max_partition_fetch_bytes=8 << 20,
    )
    try:
        at = TopicPartition(topic, partition)
        consumer.assign([at])
        consumer.seek(at, consumer.beginning_offsets([at])[at])
        end = consumer.end_offsets([at])[at]
        while consumer.position(at) < end:
            for record in consumer.poll(timeout_ms=300, max_records=10_000).get(at, []):
                yield (
                    record.offset,
                    record.timestamp,
                    record.timestamp_type,
                    record.key,
                    record.value,
                    tuple(record.headers),
                )
    finally:
        consumer.close()


def assert_same_records(source: str, target: str, topic: str, partitions: int, *, target_topic: str = "") -> int:
    """Every record once, in order, at its source offset, on both sides alike; how many there are."""
    count = 0
    for partition in range(partitions):
        ours = read(target, target_topic or topic, partition)
        for theirs in read(source, topic, partition):
            mine = next(ours, None)
            assert mine == theirs, f"{topic}-{partition}: source has {theirs[:3]}, target has {mine and mine[:3]}"
            count += 1
        assert next(ours, None) is None, f"{topic}-{partition}: the target has records beyond the source's {count}"
    return count
