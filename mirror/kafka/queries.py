"""Questions that a partition's leader answers: ListOffsets, OffsetForLeaderEpoch, DescribeProducers; for one or many.

All raise ClusterUnreachable, AccessDenied and BrokerError as `Cluster.call_leader` does. Besides, which versions
brokers speak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from mirror import clock
from mirror.errors import ClusterUnreachable, ConnectionLost, WireError
from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, TopicPartition
from mirror.kafka.groups import PURPOSE
from mirror.kafka.protocol import DELETE_RECORDS, DESCRIBE_PRODUCERS, LEADER_EPOCH, LIST_OFFSETS, Api

# --- Small questions about one partition ------------------------------------------------------------------------------

EARLIEST: Final = -2
LATEST: Final = -1
#: Where the leader's own log begins: what lies below is in remote storage (KIP-405).
EARLIEST_LOCAL: Final = -4
#: The record with the newest timestamp, and the version from which on brokers know it (KIP-734).
_NEWEST, _KNOWS_NEWEST = -3, 7
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
_CONSUMER: Final = -1
#: The version from which on brokers know `EARLIEST_LOCAL`; before that none has remote storage.
_KNOWS_LOCAL: Final = 8
#: Pause between two reads of a high watermark that lags the log end, in seconds.
_SETTLE_PAUSE: Final = 0.05
#: Seconds without growth after which a log is at rest, and how often that is looked at.
_STILL_SECONDS: Final = 0.2
_MOST_LOOKS: Final = 50


@dataclass(frozen=True, slots=True)
class Producer:
    """What a partition's leader remembers of one producer (KIP-664)."""

    producer_id: int
    epoch: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class Dated:
    """A record's offset, and its timestamp in ms since 1970."""

    offset: int
    timestamp: int


def list_offsets_request(
    version: int, epochs: Mapping[TopicPartition, int], when: int, isolation: int = READ_UNCOMMITTED
) -> Any:
    """The request behind `list_offset`, for all partitions of `epochs`, which are those of the leader asked."""
    schema = LIST_OFFSETS.schema(version, "request")
    parts: dict[str, list[Any]] = {}
    for partition, epoch in epochs.items():
        parts.setdefault(partition.topic, []).append(
            schema.ListOffsetsPartition(partition_index=partition.partition, current_leader_epoch=epoch, timestamp=when)
        )
    topics = tuple(schema.ListOffsetsTopic(name=name, partitions=tuple(of)) for name, of in parts.items())
    late = {"timeout": timedelta(seconds=CALL_TIMEOUT)} if version >= 10 else {}
    return schema.ListOffsetsRequest(replica_id=_CONSUMER, isolation_level=isolation, topics=topics, **late)


def _only_part(answer: Any) -> Any:
    """What the answer says of the one partition that was asked about. Raises IndexError where nothing is."""
    return answer.topics[0].partitions[0]


async def list_offset(cluster: Cluster, partition: TopicPartition, when: int, isolation: int = READ_UNCOMMITTED) -> int:
    """The log start (`EARLIEST`, `EARLIEST_LOCAL`), or what a consumer may read up to (`LATEST`): high watermark, or
    last stable offset when committed.
    """
    return int((await _listed(cluster, partition, when, isolation)).offset)


async def first_since(cluster: Cluster, partition: TopicPartition, when: int) -> Dated | None:
    """The first record by offset, below the high watermark, whose timestamp is `when` (ms since 1970, not negative) or
    later; None where there is none.

    Brokers answer exactly, inside compressed batches too, and count markers and records of aborted transactions (Kafka
    `FileRecords.searchForTimestamp`, `Partition.fetchOffsetForTimestamp`). They look into one segment alone, the first
    that has such a time, and find none where all of that lies below the log's start (`UnifiedLog`).
    """
    part = await _listed(cluster, partition, when, READ_UNCOMMITTED)
    return Dated(int(part.offset), int(part.timestamp)) if part.offset >= 0 else None


async def begin_since(cluster: Cluster, partition: TopicPartition, when: int, start: int, end: int) -> int:
    """Where a log from `start` to `end` is to be read for all records whose timestamp is `when` (ms since 1970, not
    negative) or later: the first of them; `end` where there is none. `start` where a broker does not say: it finds
    none as well where its first segment of that time has only deleted ones (`first_since`).
    """
    found = await list_offset(cluster, partition, when)
    if found >= 0:
        return max(start, found)
    return start if start < end and await may_have_since(cluster, partition, when) else end


async def may_have_since(cluster: Cluster, partition: TopicPartition, when: int) -> bool:
    """Whether a record may be of that time or later, by the newest of all (KIP-734). A broker before Kafka 3.0 does not
    say, nor one whose newest is not below the high watermark yet (`Partition.fetchOffsetForTimestamp`): where records
    come in, some are of now.
    """
    knows = True

    def build(version: int, epoch: int) -> Any:
        nonlocal knows
        knows = version >= _KNOWS_NEWEST
        return list_offsets_request(version, {partition: epoch}, _NEWEST if knows else LATEST, READ_UNCOMMITTED)

    part = await cluster.call_leader(partition, LIST_OFFSETS, build=build, read=_only_part, doing="ListOffsets")
    newest = int(part.timestamp) if part.timestamp >= 0 else clock.now_ms()
    return not knows or newest >= when


async def _listed(cluster: Cluster, partition: TopicPartition, when: int, isolation: int) -> Any:
    def build(version: int, epoch: int) -> Any:
        asked = EARLIEST if when == EARLIEST_LOCAL and version < _KNOWS_LOCAL else when
        return list_offsets_request(version, {partition: epoch}, asked, isolation)

    return await cluster.call_leader(partition, LIST_OFFSETS, build=build, read=_only_part, doing="ListOffsets")


async def log_end(cluster: Cluster, partition: TopicPartition) -> int:
    """The log end offset: the next one the leader will give out, whether or not its followers have caught up.

    ListOffsets gives a client the high watermark only. OffsetForLeaderEpoch for the leader's own epoch gives the
    true end (Kafka `Partition.lastOffsetForLeaderEpoch`); where it is undefined, the log holds nothing newer than
    the high watermark.
    """

    newest, replicated = await epoch_end(cluster, partition), await list_offset(cluster, partition, LATEST)
    return max(newest.end, replicated)


class EpochEnd(NamedTuple):
    """The newest leader epoch that a log has records of and that is not above the one asked for, and where it ends."""

    epoch: int
    end: int


async def epoch_end(cluster: Cluster, partition: TopicPartition, asked: int | None = None) -> EpochEnd:
    """Behind the last record that the log has of leader epoch `asked`, the leader's own where it is None, or of one
    before it; -1 for both where the leader knows of no such epoch (Kafka `LeaderEpochFileCache.endOffsetFor`). Below
    what was read of that epoch once, the log was cut back (KIP-101); so it was where another epoch is answered, and the
    one asked for had records: this leader never had them (KIP-320).
    """

    def build(version: int, epoch: int) -> Any:
        schema = LEADER_EPOCH.schema(version, "request")
        part = schema.OffsetForLeaderPartition(
            partition=partition.partition,
            current_leader_epoch=epoch,
            leader_epoch=epoch if asked is None else asked,
        )
        topics = (schema.OffsetForLeaderTopic(topic=partition.topic, partitions=(part,)),)
        return schema.OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)

    part = await cluster.call_leader(
        partition, LEADER_EPOCH, build=build, read=_only_part, doing="OffsetForLeaderEpoch"
    )
    return EpochEnd(int(part.leader_epoch), int(part.end_offset))


async def producers(cluster: Cluster, partition: TopicPartition) -> tuple[Producer, ...]:
    """The producers that the leader remembers, the idempotent ones only: nothing is kept for records without a
    producer id.
    """

    def build(version: int, _epoch: int) -> Any:
        schema = DESCRIBE_PRODUCERS.schema(version, "request")
        topics = (schema.TopicRequest(name=partition.topic, partition_indexes=(partition.partition,)),)
        return schema.DescribeProducersRequest(topics=topics)

    part = await cluster.call_leader(
        partition, DESCRIBE_PRODUCERS, build=build, read=_only_part, doing="DescribeProducers"
    )
    return tuple(Producer(p.producer_id, p.producer_epoch, p.last_sequence) for p in part.active_producers)


async def delete_records(
    cluster: Cluster, partition: TopicPartition, before: int, check: Callable[[], None] = lambda: None
) -> int:
    """Delete every record below `before`; the new log start. The topic is known by its name, so metadata are read
    right before, and `check` is called each time before that is sent, and raises where it must not be. Raises
    ClusterUnreachable where the log begins before that all the same.
    """

    def build(version: int, _epoch: int) -> Any:
        check()
        schema = DELETE_RECORDS.schema(version, "request")
        part = schema.DeleteRecordsPartition(partition_index=partition.partition, offset=before)
        topics = (schema.DeleteRecordsTopic(name=partition.topic, partitions=(part,)),)
        return schema.DeleteRecordsRequest(topics=topics, timeout=timedelta(seconds=CALL_TIMEOUT))

    await cluster.refresh((partition.topic,))
    part = await cluster.call_leader(partition, DELETE_RECORDS, build=build, read=_only_part, doing="DeleteRecords")
    if part.low_watermark < before:
        raise ClusterUnreachable(f"{cluster}: {partition}: begins at {part.low_watermark}, where it was given {before}")
    return int(part.low_watermark)


async def replicated_end(cluster: Cluster, partition: TopicPartition) -> int:
    """The log end, once every in-sync replica has it. Raises ClusterUnreachable where that does not come about
    in time.
    """
    deadline = clock.monotonic() + CALL_TIMEOUT
    while True:
        newest, replicated = await asyncio.gather(
            epoch_end(cluster, partition), list_offset(cluster, partition, LATEST)
        )
        if replicated >= newest.end:
            return replicated
        if clock.monotonic() > deadline:
            raise ClusterUnreachable(
                f"{cluster}: {partition}: replicas hold {replicated} of {newest.end} offsets; is a broker down?"
            )
        await asyncio.sleep(_SETTLE_PAUSE)


async def resting_end(cluster: Cluster, partition: TopicPartition) -> int:
    """Return the log end once it has not grown for a moment: a broker still takes what it has of a connection
    that is lost. Raises as `replicated_end` does.
    """
    end = await replicated_end(cluster, partition)
    for _ in range(_MOST_LOOKS):
        await asyncio.sleep(_STILL_SECONDS)
        before, end = end, await replicated_end(cluster, partition)
        if end == before:
            break
    return end


# --- Where many partitions begin or end, at once ----------------------------------------------------------------------


async def listed(
    cluster: Cluster, partitions: Collection[TopicPartition], when: int, isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """As `queries.list_offset`, of each partition whose leader answered; the others are left out, as are those that may
    not be described.

    Leaders are looked up anew where one is not known or did not answer, for the next time. Raises ClusterUnreachable,
    NotAuthenticated.
    """
    unknown = {partition.topic for partition in partitions if partition.topic not in cluster.topics}
    if unknown:
        await cluster.learn(unknown)
    by_leader: dict[int, list[TopicPartition]] = {}
    for topic_partition in partitions:
        by_leader.setdefault(cluster.leader(topic_partition).node, []).append(topic_partition)
    by_leader.pop(-1, None)
    found: dict[TopicPartition, int] = {}
    asked = (_ask(cluster, node, led, when, isolation) for node, led in by_leader.items())
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(answer, dict):
            found |= answer
        elif not isinstance(answer, WireError):
            raise answer
    if len(found) < len(partitions):
        await cluster.refresh()
    return found


async def ends_and_starts(
    cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """The high watermark and the log start of each partition, as `listed` has them."""
    ends = await listed(cluster, partitions, LATEST)
    starts = await listed(cluster, list(ends), EARLIEST)
    return {partition: (ends[partition], start) for partition, start in starts.items()}


async def every_listed(
    cluster: Cluster, partitions: Collection[TopicPartition], when: int, isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """As `listed`, and where a leader did not answer, as after an election, `list_offset` asks again, and raises."""
    found = await listed(cluster, partitions, when, isolation)
    silent = [partition for partition in partitions if partition not in found]
    again = await asyncio.gather(*(list_offset(cluster, partition, when, isolation) for partition in silent))
    return found | dict(zip(silent, again, strict=True))


async def _ask(
    cluster: Cluster, node: int, partitions: Sequence[TopicPartition], when: int, isolation: int
) -> dict[TopicPartition, int]:
    connection = await cluster.connection(node, PURPOSE)
    epochs = {partition: cluster.leader(partition).epoch for partition in partitions}
    request = list_offsets_request(connection.version(LIST_OFFSETS), epochs, when, isolation)
    answer = await connection.call(LIST_OFFSETS, request, CALL_TIMEOUT)
    for topic in answer.topics:
        for part in topic.partitions:
            cluster.disowned(node, part.error_code, TopicPartition(topic.name, part.partition_index))
    return {
        TopicPartition(topic.name, part.partition_index): int(part.offset)
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code
    }


async def newest_version(cluster: Cluster, api: Api) -> int:
    """The newest version of an API that one of the brokers takes, -1 where it has none: so old is the cluster, but
    while it is upgraded. Raises ClusterUnreachable, AccessDenied.
    """
    lost: ConnectionLost | None = None
    for node in cluster.nodes:
        try:
            return (await cluster.connection(node)).versions.ranges.get(api.key, (0, -1))[1]
        except ConnectionLost as problem:
            lost = problem
    raise ClusterUnreachable(f"{cluster}: {lost}")
