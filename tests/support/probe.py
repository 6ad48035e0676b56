"""One topic of a real broker, and the requests that no client library would send: any bytes in any shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, NamedTuple

from helpers import endpoint, make_topic

from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, TopicPartition
from mirror.kafka.connection import Connection
from mirror.kafka.fetch import fetch_at
from mirror.kafka.produce import markers_request, produce_of, read_produce
from mirror.kafka.protocol import DESCRIBE_PRODUCERS, PRODUCE, WRITE_TXN_MARKERS
from mirror.kafka.queries import LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset, log_end
from mirror.records.header import RawBatch, split

_MARKERS_VERSION: Final = 1
FETCHED_BYTES: Final = 8 << 20


class Answer(NamedTuple):
    """What a broker says to one batch: its error code, and the base offset it gave the batch, or -1."""

    code: int
    offset: int


class Ends(NamedTuple):
    """Where a partition's log ends, and how far a consumer of each isolation level may read."""

    log_end: int
    high_watermark: int
    last_stable: int


class Remembered(NamedTuple):
    """What DescribeProducers says of one producer id; times in ms."""

    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int


class Probe:
    """Requests about one topic, each to the leader of the partition, with the answer's code instead of an exception."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic

    async def produce(
        self, entries: Sequence[tuple[int, bytes]], transactional_id: str | None = None
    ) -> dict[int, Answer]:
        """One request with these (partition, record set) entries in this order, repeated ones included; what was
        answered by partition.
        """
        connection = await self.leader(entries[0][0])
        schema = PRODUCE.schema(connection.version(PRODUCE), "request")
        data = tuple(schema.PartitionProduceData(index=at, records=sent) for at, sent in entries)
        topic_ids = {self.topic: self.cluster.topic_id(self.topic)}
        request = schema.ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout=timedelta(seconds=CALL_TIMEOUT),
            topic_data=(schema.TopicProduceData(topic_id=topic_ids[self.topic], partition_data=data),),
        )
        answer = await connection.call(PRODUCE, request, CALL_TIMEOUT)
        return {
            ack.partition.partition: Answer(int(ack.error_code), ack.base_offset)
            for ack in read_produce(produce_of(answer), topic_ids)
        }

    async def send(self, batch: bytes, partition: int = 0) -> Answer:
        """One batch in a request of its own."""
        return (await self.produce([(partition, batch)]))[partition]

    async def mark(self, *markers: tuple[int, int], partition: int = 0) -> dict[int, int]:
        """One WriteTxnMarkers request with these (producer id, epoch) in this order: the code by producer id."""
        request = markers_request(_MARKERS_VERSION, TopicPartition(self.topic, partition), markers)
        answer = await (await self.leader(partition)).call(WRITE_TXN_MARKERS, request, CALL_TIMEOUT)
        codes = [
            (item.producer_id, part) for item in answer.markers for topic in item.topics for part in topic.partitions
        ]
        assert len({producer_id for producer_id, _ in codes}) == len(codes), "one code for each id and partition"
        return {producer_id: int(part.error_code) for producer_id, part in codes}

    async def stored(self, partition: int = 0) -> tuple[RawBatch, ...]:
        """Every batch of the partition as the broker has it."""
        at = TopicPartition(self.topic, partition)
        found: list[RawBatch] = []
        while True:  # a fetch ends where a segment does
            offset = found[-1].header.next_offset if found else 0
            fetched = await fetch_at(self.cluster, at, offset, max_bytes=FETCHED_BYTES, isolation=READ_UNCOMMITTED)
            if offset >= fetched.high_watermark:
                return tuple(found)
            found += split(fetched.records)

    async def ends(self, partition: int = 0) -> Ends:
        """The three ends of the partition."""
        at = TopicPartition(self.topic, partition)
        return Ends(
            await log_end(self.cluster, at),
            await list_offset(self.cluster, at, LATEST),
            await list_offset(self.cluster, at, LATEST, READ_COMMITTED),
        )

    async def remembered(self) -> dict[int, Remembered]:
        """DescribeProducers by producer id."""

        def build(version: int, _epoch: int) -> Any:
            schema = DESCRIBE_PRODUCERS.schema(version, "request")
            return schema.DescribeProducersRequest(
                topics=(schema.TopicRequest(name=self.topic, partition_indexes=(0,)),)
            )

        part = await self.cluster.call_leader(
            TopicPartition(self.topic, 0),
            DESCRIBE_PRODUCERS,
            build=build,
            read=lambda answer: answer.topics[0].partitions[0],
            doing="DescribeProducers",
        )
        return {
            item.producer_id: Remembered(
                item.producer_epoch, item.last_sequence, item.last_timestamp, item.coordinator_epoch
            )
            for item in part.active_producers
        }

    async def leader(self, partition: int = 0) -> Connection:
        """The connection that every request of this probe goes through."""
        return await self.cluster.connection(self.cluster.leader(TopicPartition(self.topic, partition)).node)


@asynccontextmanager
async def probing(
    bootstrap: str, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> AsyncIterator[Probe]:
    """A probe of a topic made for it; `bootstrap` is the address of one broker."""
    make_topic(bootstrap, topic, partitions, configs)
    async with probing_existing(bootstrap, topic) as probe:
        yield probe


@asynccontextmanager
async def probing_existing(bootstrap: str, topic: str) -> AsyncIterator[Probe]:
    """A probe of a topic that is there already."""
    async with Cluster(endpoint(bootstrap)) as cluster:
        await cluster.refresh([topic])
        for partition in cluster.topics[topic].leaders:
            await log_end(cluster, TopicPartition(topic, partition))  # a leader is known before it knows that it leads
        yield Probe(cluster, topic)
