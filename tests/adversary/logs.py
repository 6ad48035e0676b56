"""One side's partitions, batch by batch: what is committed is made out from the markers in the log itself, and records
are decoded by kafka-python. The mirror's transport fetches the bytes; nothing of what compares is the mirror's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from helpers import endpoint
from kafka.record import MemoryRecords

from mirror.errors import BrokerError, ClusterError
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.fetch import fetch_at
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset

_FETCH_BYTES = 1 << 22
_COMMIT = 1


class Record(NamedTuple):
    """What one record says; its place is not part of it."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def text(self) -> str:
        """As it is named in a finding."""
        return (self.value or self.key or b"null")[:24].decode(errors="replace")


@dataclass(slots=True)
class Log:
    """One partition: where it starts and ends, its last stable offset, and its committed records by offset."""

    start: int
    end: int
    stable: int
    records: dict[int, Record] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Topic:
    """One topic on one side."""

    id: UUID | None
    partitions: dict[int, Log]


class Reader:
    """Reads one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self._endpoint = endpoint(bootstrap)

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the topics that there are."""
        return asyncio.run(self._topics(list(names)))

    def entries(self, topic: str) -> list[tuple[int, bytes, bytes | None]]:
        """Offset, key and value of every record of partition 0, none where there is no such topic."""
        return asyncio.run(self._entries(topic))

    async def _topics(self, names: list[str]) -> dict[str, Topic]:
        async with Cluster(self._endpoint) as cluster:
            await cluster.refresh(names)
            found: dict[str, Topic] = {}
            for name in names:
                if (info := cluster.topics.get(name)) is None:
                    continue
                places = [TopicPartition(name, number) for number in sorted(info.leaders)]
                try:
                    parts = {at.partition: await _log(cluster, at) for at in places}
                except ClusterError:
                    if await cluster.describe(name) is None:  # it was deleted meanwhile
                        continue
                    raise
                found[name] = Topic(cluster.topic_id(name), parts)
            return found

    async def _entries(self, topic: str) -> list[tuple[int, bytes, bytes | None]]:
        async with Cluster(self._endpoint) as cluster:
            await cluster.refresh([topic])
            if topic not in cluster.topics:
                return []
            log = await _log(cluster, TopicPartition(topic, 0))
        return [(offset, one.key or b"", one.value) for offset, one in sorted(log.records.items())]


async def _log(cluster: Cluster, at: TopicPartition) -> Log:
    """Read again where its records are being deleted meanwhile."""
    for _ in range(5):
        with suppress(BrokerError):
            return await _read(cluster, at)
    return await _read(cluster, at)


async def _read(cluster: Cluster, at: TopicPartition) -> Log:
    start = await list_offset(cluster, at, EARLIEST)
    end = await list_offset(cluster, at, LATEST)
    # a transaction that is open may have begun below where the log starts by now
    stable = max(start, await list_offset(cluster, at, LATEST, READ_COMMITTED))
    log, pending, offset = Log(start, end, stable), dict[int, dict[int, Record]](), start
    for _ in range(10_000):
        if offset >= end:
            break
        fetched = await fetch_at(cluster, at, offset, max_bytes=_FETCH_BYTES, isolation=READ_UNCOMMITTED)
        if not fetched.records:
            await asyncio.sleep(0.02)
            continue
        offset = max(offset + 1, _decoded(bytes(fetched.records), log, pending))
    else:
        raise AssertionError(f"{at}: cannot be read to its end {end}")
    return log


def _decoded(data: bytes, log: Log, pending: dict[int, dict[int, Record]]) -> int:
    """Put the records of a record set where they belong; the offset behind it. Records without a value and a key that
    a compaction left out are as if they never were.
    """
    records, following = MemoryRecords(data), -1
    while (batch := records.next_batch()) is not None:
        header: Any = batch
        following = header.base_offset + header.last_offset_delta + 1
        if header.is_control_batch:
            for marker in batch:
                kind = int.from_bytes((marker.key or b"")[2:4], "big")
                held = pending.pop(header.producer_id, {})
                if kind == _COMMIT:
                    log.records |= held
                else:
                    log.aborted |= held.keys()
            continue
        found = {
            one.offset: Record(one.timestamp, one.key, one.value, tuple((str(n), v) for n, v in one.headers))
            for one in batch
            if one.offset >= log.start
        }
        if header.is_transactional:
            pending.setdefault(header.producer_id, {}).update(found)
        else:
            log.records |= found
    return following
