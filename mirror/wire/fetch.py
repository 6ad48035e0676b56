"""Fetch: what to ask of a source broker, and its answer partition by partition.

Versions 12 (topic names) to 18 (topic ids from 13 on). Every ask carries the leader epoch that the client believes
in and the epoch of the last batch it has, so that a stale leader and a truncated log are told by the broker
(KIP-320, KIP-595). Sessions are not used: (0, -1) asks for everything each time, and a lane has few partitions.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any, Final

from mirror.errors import MalformedFrame
from mirror.wire.cluster import Cluster, TopicPartition
from mirror.wire.protocol import FETCH
from mirror.wire.queries import READ_COMMITTED

_BY_ID: Final = 13


@dataclass(frozen=True, slots=True)
class Ask:
    """One partition's part of a fetch request. `last_epoch` is -1 where no batch was fetched before."""

    partition: TopicPartition
    topic_id: uuid.UUID | None
    leader_epoch: int
    offset: int
    last_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """One partition's part of a fetch answer. `records` is the record set as stored; its tail may be partial."""

    partition: TopicPartition
    error_code: Any
    high_watermark: int
    last_stable_offset: int
    log_start: int
    diverging: tuple[int, int] | None
    aborted: tuple[tuple[int, int], ...]
    records: memoryview


def fetch_request(
    version: int,
    asks: Sequence[Ask],
    *,
    max_wait_ms: int,
    max_bytes: int,
    min_bytes: int = 1,
    isolation: int = READ_COMMITTED,
) -> Any:
    """A request in kio's schema for `version`. The order of the asks is kept: brokers fill an answer in that order."""
    schema = FETCH.schema(version, "request")
    topics = []
    for (name, topic_id), group in groupby(asks, key=lambda ask: (ask.partition.topic, ask.topic_id)):
        partitions = tuple(
            schema.FetchPartition(
                partition=ask.partition.partition,
                current_leader_epoch=ask.leader_epoch,
                fetch_offset=ask.offset,
                last_fetched_epoch=ask.last_epoch,
                partition_max_bytes=ask.max_bytes,
            )
            for ask in group
        )
        named = {"topic_id": topic_id} if version >= _BY_ID else {"topic": name}
        topics.append(schema.FetchTopic(partitions=partitions, **named))
    return schema.FetchRequest(
        max_wait=timedelta(milliseconds=max_wait_ms),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=tuple(topics),
        forgotten_topics_data=(),
    )


def read_fetch(answer: Any, asks: Sequence[Ask]) -> Iterator[Fetched]:
    """The partitions of an answer, named by the asks that it answers; what was not asked for is left out."""
    by_id = answer.__version__ >= _BY_ID
    names = {(ask.topic_id if by_id else ask.partition.topic): ask.partition.topic for ask in asks}
    asked = {ask.partition for ask in asks}
    for topic in answer.responses:
        name = names.get(topic.topic_id if by_id else topic.topic)
        for part in topic.partitions:
            partition = TopicPartition(name or "", part.partition_index)
            if partition not in asked:
                continue
            asked.discard(partition)  # a hostile answer may name one twice
            diverging = part.diverging_epoch
            yield Fetched(
                partition=partition,
                error_code=part.error_code,
                high_watermark=part.high_watermark,
                last_stable_offset=part.last_stable_offset,
                log_start=part.log_start_offset,
                diverging=(diverging.epoch, diverging.end_offset) if diverging.end_offset >= 0 else None,
                aborted=tuple(
                    (aborted.producer_id, aborted.first_offset) for aborted in part.aborted_transactions or ()
                ),
                records=memoryview(part.records or b""),
            )


async def fetch_at(
    cluster: Cluster, partition: TopicPartition, offset: int, *, max_bytes: int = 1, isolation: int = READ_COMMITTED
) -> Fetched:
    """One partition from `offset` on, not waiting for more; with `max_bytes` 1, the one batch that holds the offset,
    whole.

    Raises as `Cluster.call_leader` does: BrokerError 1 where the offset is out of range.
    """
    asks: list[Ask] = []

    def build(version: int, epoch: int) -> Any:
        asks[:] = [Ask(partition, cluster.topic_id(partition.topic), epoch, offset, -1, max_bytes)]
        return fetch_request(version, asks, max_wait_ms=0, max_bytes=max_bytes, isolation=isolation)

    def read(answer: Any) -> Any:
        for fetched in read_fetch(answer, asks):
            return fetched
        if answer.error_code:
            return answer
        raise MalformedFrame(f"a fetch answer without {partition}")

    found: Fetched = await cluster.call_leader(
        partition, FETCH, build=build, read=read, doing=f"Fetch at offset {offset}"
    )
    return found
