"""The high watermarks of many partitions at once: one ListOffsets request for each leader."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from mirror.errors import WireError
from mirror.wire.cluster import CALL_TIMEOUT, Cluster, TopicPartition
from mirror.wire.groups import PURPOSE
from mirror.wire.protocol import LIST_OFFSETS
from mirror.wire.queries import LATEST, READ_UNCOMMITTED

_CONSUMER = -1


async def high_watermarks(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The high watermark of each partition whose leader answered; the others are left out.

    Leaders are looked up anew where one is not known or did not answer, for the next time. Raises ClusterUnreachable,
    AccessDenied.
    """
    unknown = {at.topic for at in partitions if at.topic not in cluster.topics}
    if unknown:
        await cluster.refresh(unknown)
    by_leader: dict[int, list[TopicPartition]] = {}
    for at in partitions:
        by_leader.setdefault(cluster.leader(at).node, []).append(at)
    by_leader.pop(-1, None)
    found: dict[TopicPartition, int] = {}
    asked = (_ask(cluster, node, led) for node, led in by_leader.items())
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(answer, dict):
            found |= answer
        elif not isinstance(answer, WireError):
            raise answer
    if len(found) < len(partitions):
        await cluster.refresh()
    return found


async def _ask(cluster: Cluster, node: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    version = (await cluster.connection(node, PURPOSE)).version(LIST_OFFSETS)
    schema = LIST_OFFSETS.schema(version, "request")
    topics: dict[str, list[Any]] = {}
    for at in partitions:
        topics.setdefault(at.topic, []).append(
            schema.ListOffsetsPartition(
                partition_index=at.partition, current_leader_epoch=cluster.leader(at).epoch, timestamp=LATEST
            )
        )
    answer = await cluster.call(
        node,
        LIST_OFFSETS,
        PURPOSE,
        replica_id=_CONSUMER,
        isolation_level=READ_UNCOMMITTED,
        topics=tuple(schema.ListOffsetsTopic(name=name, partitions=tuple(parts)) for name, parts in topics.items()),
        **({"timeout": timedelta(seconds=CALL_TIMEOUT)} if version >= 10 else {}),
    )
    return {
        TopicPartition(topic.name, part.partition_index): int(part.offset)
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code
    }
