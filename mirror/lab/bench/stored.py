"""A topic's batches as its broker stores them, read by the project's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import fetch_below
from mirror.kafka.queries import LATEST, list_offset
from mirror.records.header import RawBatch, split

_FETCH_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Batches with records for a reader, their records and bytes; markers are left out, but for `end`: the sum of the
    partitions' end offsets.
    """

    batches: int
    records: int
    bytes: int
    end: int


def endpoint(alias: str, bootstrap: str) -> Endpoint:
    """A cluster on loopback by its addresses."""
    addresses = (address.rpartition(":") for address in bootstrap.split(","))
    return Endpoint(alias, tuple((host, int(port)) for host, _, port in addresses))


def stored(bootstrap: str, topic: str, partitions: int) -> Stored:
    """What a topic holds, from its batches' headers. Raises ClusterError, WireError."""

    async def measure() -> Stored:
        batches = records = size = end = 0
        async with Cluster(endpoint("source", bootstrap)) as cluster:
            await cluster.refresh([topic])
            for number in range(partitions):
                at = TopicPartition(topic, number)
                end += await list_offset(cluster, at, LATEST)
                async for raw in _batches(cluster, at):
                    if raw.header.count and not raw.header.is_control:
                        batches, records, size = batches + 1, records + raw.header.count, size + len(raw.data)
        return Stored(batches=batches, records=records, bytes=size, end=end)

    return asyncio.run(measure())


async def _batches(cluster: Cluster, partition: TopicPartition) -> AsyncIterator[RawBatch]:
    at, end = 0, await list_offset(cluster, partition, LATEST)
    while at < end:
        before = at
        for raw in split((await fetch_below(cluster, partition, at, end, max_bytes=_FETCH_BYTES)).records):
            at = raw.header.next_offset
            yield raw
        if at == before:
            return  # compaction left nothing from here to the end, or a transaction is open
