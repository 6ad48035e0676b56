"""An independent judge: kafka-python, which shares no code with the mirror, reads both sides record by record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition

COMMITTED: Final = "read_committed"
UNCOMMITTED: Final = "read_uncommitted"


class LogEnds(NamedTuple):
    """Return where the log of a partition starts, where readers of committed records end, and where all others do."""

    start: int
    stable: int
    end: int


@contextmanager
def _consumer(bootstrap: str, isolation: str) -> Iterator[Any]:
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
        yield consumer
    finally:
        consumer.close()


def log_ends(bootstrap: str, topic: str) -> dict[int, LogEnds]:
    """Return the ends of each partition's log; none where there is no such topic."""
    with _consumer(bootstrap, COMMITTED) as committed, _consumer(bootstrap, UNCOMMITTED) as uncommitted:
        at = [TopicPartition(topic, partition) for partition in sorted(committed.partitions_for_topic(topic) or ())]
        starts, stable, ends = committed.beginning_offsets(at), committed.end_offsets(at), uncommitted.end_offsets(at)
    return {one.partition: LogEnds(starts[one], stable[one], ends[one]) for one in at}


def read(bootstrap: str, topic: str, partition: int, isolation: str = COMMITTED) -> Iterator[tuple[Any, ...]]:
    """Every record of a partition, as (offset, timestamp, timestamp type, key, value, headers)."""
    with _consumer(bootstrap, isolation) as consumer:
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


def assert_same_logs(source: str, target: str, topic: str) -> int:
    """Expect the same records, and that logs start and end alike, that no transaction of the target hangs, and that its
    readers of all records get the committed ones alone; return how many there are.
    """
    theirs, ours = log_ends(source, topic), log_ends(target, topic)
    edges = [{number: (one.start, one.end) for number, one in logs.items()} for logs in (theirs, ours)]
    assert edges[0] == edges[1], f"{topic}: the source's logs start and end at {edges[0]}, the target's at {edges[1]}"
    for partition, ends in ours.items():
        assert ends.stable == ends.end, f"{topic}-{partition}: a transaction hangs"
        every, committed = (list(read(target, topic, partition, kind)) for kind in (UNCOMMITTED, COMMITTED))
        assert every == committed, f"{topic}-{partition}: the target has records that were not committed"
    return assert_same_records(source, target, topic, len(ours))
