"""What a transaction does on any release of Kafka."""

from __future__ import annotations

import asyncio
import warnings

import pytest
from helpers import RECENT_MS, endpoint
from samerecords import read

from mirror.errors import ClusterUnreachable, Fenced
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.log_reader import last_committed
from mirror.kafka.queries import LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset
from mirror.kafka.transactions import Transaction
from mirror.records.header import RawBatch, split

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of kafka-python's own start-up
    from kafka.record.memory_records import MemoryRecordsBuilder


def made(*values: bytes, codec: int = 0) -> RawBatch:
    """A batch by another client."""
    builder = MemoryRecordsBuilder(2, codec, 1 << 24)
    for number, value in enumerate(values):
        builder.append(RECENT_MS + number, None, value, [])
    builder.close()
    (raw,) = split(memoryview(bytes(builder.buffer())))
    return raw


async def settled(cluster: Cluster, topic: str) -> None:
    """Wait until nothing in both partitions is undecided: a client learns of an end before its markers are written."""
    for at in (TopicPartition(topic, 0), TopicPartition(topic, 1)):
        end = await list_offset(cluster, at, LATEST, READ_UNCOMMITTED)
        while await list_offset(cluster, at, LATEST, READ_COMMITTED) < end:
            await asyncio.sleep(0.01)


async def seen(bootstrap: str, topic: str) -> list[list[bytes]]:
    """The values that a consumer of committed records finds in partitions 0 and 1."""

    def found(partition: int) -> list[bytes]:
        return [one[4] for one in read(bootstrap, topic, partition)]

    return [await asyncio.to_thread(found, partition) for partition in (0, 1)]


async def transaction_story(bootstrap: str, topic: str) -> None:
    """Two partitions committed together, an aborted transaction, an old holder, and the next one."""
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Cluster(endpoint(bootstrap, "us")) as cluster:
        first = await Transaction.begin(cluster, topic)
        await first.join([one, other])
        assert await first.append({one: made(b"a", b"b"), other: made(b"x", codec=1)}) == {one: 0, other: 0}
        assert await first.append({one: made(b"c"), other: made(b"y", b"z")}) == {one: 2, other: 1}
        assert await seen(bootstrap, topic) == [[], []]
        await first.commit()
        await settled(cluster, topic)
        assert await seen(bootstrap, topic) == [[b"a", b"b", b"c"], [b"x", b"y", b"z"]]

        aborted = await Transaction.begin(cluster, topic)
        assert (aborted.producer_id, aborted.epoch) > (first.producer_id, first.epoch)
        await aborted.join([one])
        await aborted.append({one: made(b"never seen")})
        await aborted.abort()

        old = await Transaction.begin(cluster, topic)
        await old.join([one])
        await old.append({one: made(b"acknowledged")})
        new = await Transaction.begin(cluster, topic)
        with pytest.raises(Fenced, match=f"EndTxn to commit: .* transactional id {topic}"):
            await old.commit()
        with pytest.raises(Fenced, match=f"another mirror of this flow writes under transactional id {topic}"):
            await old.append({one: made(b"refused")})
        with pytest.raises(ClusterUnreachable, match="not committed, since not all of it was acknowledged"):
            await old.commit()
        await new.join([one])
        await new.append({one: made(b"d")})
        await new.commit()
        await settled(cluster, topic)
        assert await seen(bootstrap, topic) == [[b"a", b"b", b"c", b"d"], [b"x", b"y", b"z"]]
        found = await last_committed(cluster, one)
        assert found
        assert bytes(found.records) == bytes(made(b"d").records)
        assert found.header.base_offset > 3, "behind markers, aborted records and those of the old holder"
