"""Dumps of a topic, by kafka-python: every record of every partition, as readers of both kinds get it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

COMMITTED: Final = "read_committed"
UNCOMMITTED: Final = "read_uncommitted"
_POLL_MS: Final = 300
#: Polls in a row that may bring nothing before a reader is taken to be stuck: 15 s.
_IDLE_POLLS: Final = 50


class Record(NamedTuple):
    """One record as a consumer gets it. `timestamp` in ms since 1970; `timestamp_type` 1 is LogAppendTime."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Dump:
    """One partition: log start, high watermark, last stable offset, and its records in the order of reading.

    `error` says where and why reading stopped early, and is empty where it did not.
    """

    start: int
    end: int
    stable: int
    committed: tuple[Record, ...]
    uncommitted: tuple[Record, ...]
    error: str = ""


def dump(bootstrap: str, topic: str, *, uncommitted: bool = True) -> dict[int, Dump]:
    """All partitions of a topic: committed records up to the last stable offset, and all up to the high watermark, the
    latter only where `uncommitted` is set.

    Raises kafka-python's errors where the cluster cannot be asked; what cannot be read is named by `Dump.error`.
    """
    with _forgotten_sockets():
        return _dumped(bootstrap, topic, uncommitted)


@contextmanager
def _forgotten_sockets() -> Iterator[None]:
    """kafka-python closes no socket that is still connecting when its client is closed: let it go here, without a
    warning that would hit whatever test runs next.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def _dumped(bootstrap: str, topic: str, uncommitted: bool) -> dict[int, Dump]:
    with _consumer(bootstrap, COMMITTED) as reader:
        at = [TopicPartition(topic, partition) for partition in sorted(reader.partitions_for_topic(topic) or ())]
        starts, stable = reader.beginning_offsets(at), reader.end_offsets(at)
        committed = {one: _read(reader, one, starts[one], stable[one]) for one in at}
    with _consumer(bootstrap, UNCOMMITTED) as reader:
        ends = reader.end_offsets(at)
        every = {one: _read(reader, one, starts[one], ends[one]) if uncommitted else _Read() for one in at}
    return {
        one.partition: Dump(
            start=starts[one],
            end=ends[one],
            stable=stable[one],
            committed=tuple(committed[one].records),
            uncommitted=tuple(every[one].records),
            error=committed[one].error or every[one].error,
        )
        for one in at
    }


@dataclass(slots=True)
class _Read:
    records: list[Record] = field(default_factory=list)
    error: str = ""


@contextmanager
def _consumer(bootstrap: str, isolation: str) -> Iterator[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        isolation_level=isolation,
        auto_offset_reset="none",
        enable_auto_commit=False,
        check_crcs=True,
        fetch_max_wait_ms=50,
        max_partition_fetch_bytes=8 << 20,
        reconnect_backoff_ms=20,
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _read(consumer: Any, at: Any, start: int, end: int) -> _Read:
    """One partition from `start` up to `end`, or up to where it cannot be read."""
    found = _Read()
    consumer.assign([at])
    consumer.seek(at, start)
    idle = 0
    try:
        while consumer.position(at) < end and idle < _IDLE_POLLS:
            before = consumer.position(at)
            for item in consumer.poll(timeout_ms=_POLL_MS, max_records=10_000).get(at, ()):
                headers = tuple((str(name), value) for name, value in item.headers)
                found.records.append(
                    Record(item.offset, item.timestamp, item.timestamp_type, item.key, item.value, headers)
                )
            idle = idle + 1 if consumer.position(at) == before else 0
    except (KafkaError, AssertionError) as problem:  # kafka-python asserts some of what it checks
        found.error = f"after {len(found.records)} records: {problem!r}"
    if idle >= _IDLE_POLLS:
        found.error = f"nothing more comes at offset {consumer.position(at)}, and the log ends at {end}"
    return found
