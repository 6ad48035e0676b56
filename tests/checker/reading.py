"""Dumps of a topic, by kafka-python: every record of every partition, as readers of both kinds get it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

COMMITTED: Final = "read_committed"
UNCOMMITTED: Final = "read_uncommitted"
_POLL_MS: Final = 300
#: Polls in a row that may bring nothing before a reader is taken to be stuck: 15 s.
_IDLE_POLLS: Final = 50


class Record(NamedTuple):
    """One record as a consumer gets it. `timestamp` in ms since 1970; `timestamp_type` 0 is CreateTime, 1 LogAppendTime."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def content(self) -> tuple[object, ...]:
        """All but the offset."""
        return self[1:]


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

    def over(self, before: Dump) -> Dump:
        """This dump, with the oldest records from one that was taken before they were deleted.

        The log's start stays that of now.
        """
        return Dump(
            start=self.start,
            end=self.end,
            stable=self.stable,
            committed=_over(self.committed, before.committed, self.start),
            uncommitted=_over(self.uncommitted, before.uncommitted, self.start),
            error=self.error,
        )


def dump(bootstrap: str, topic: str) -> dict[int, Dump]:
    """All partitions of a topic; records up to the high watermark (uncommitted) and the last stable offset (committed)."""
    committed, stable, _, errors = _read(bootstrap, topic, COMMITTED)
    uncommitted, ends, starts, more = _read(bootstrap, topic, UNCOMMITTED)
    return {
        partition: Dump(
            start=starts[partition],
            end=ends[partition],
            stable=stable[partition],
            committed=tuple(committed[partition]),
            uncommitted=tuple(uncommitted[partition]),
            error=errors.get(partition) or more.get(partition, ""),
        )
        for partition in ends
    }


def _over(now: Sequence[Record], before: Sequence[Record], start: int) -> tuple[Record, ...]:
    return (*(record for record in before if record.offset < start), *now)


def _read(
    bootstrap: str, topic: str, isolation: str
) -> tuple[dict[int, list[Record]], dict[int, int], dict[int, int], dict[int, str]]:
    """Records, ends, starts and errors by partition."""
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
        at = [TopicPartition(topic, partition) for partition in sorted(consumer.partitions_for_topic(topic) or ())]
        starts, ends = consumer.beginning_offsets(at), consumer.end_offsets(at)
        found: dict[int, list[Record]] = {one.partition: [] for one in at}
        errors: dict[int, str] = {}
        for one in at:  # one after the other, so that an error belongs to one partition
            consumer.assign([one])
            consumer.seek(one, starts[one])
            try:
                _read_partition(consumer, one, ends[one], found[one.partition])
            except (KafkaError, AssertionError) as problem:  # kafka-python asserts what its CRC check needs
                errors[one.partition] = f"{isolation} at offset {_behind(found[one.partition])}: {problem!r}"
        by_number = ({one.partition: int(offset) for one, offset in told.items()} for told in (ends, starts))
        return found, *by_number, errors
    finally:
        consumer.close()


def _read_partition(consumer: Any, at: Any, end: int, found: list[Record]) -> None:
    idle = 0
    while consumer.position(at) < end:
        arrived: Mapping[Any, Sequence[Any]] = consumer.poll(timeout_ms=_POLL_MS, max_records=10_000)
        before = len(found)
        for told in arrived.get(at, ()):
            headers = tuple((str(name), value) for name, value in told.headers)
            found.append(Record(told.offset, told.timestamp, told.timestamp_type, told.key, told.value, headers))
        idle = idle + 1 if len(found) == before else 0
        if idle > _IDLE_POLLS:
            raise KafkaError(f"nothing more came, and the log ends at {end}")


def _behind(found: Sequence[Record]) -> int:
    return found[-1].offset + 1 if found else 0
