"""Where many partitions begin or end, at once: one ListOffsets request for each leader."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from mirror.errors import WireError
from mirror.wire.cluster import CALL_TIMEOUT, Cluster, TopicPartition
from mirror.wire.groups import PURPOSE
from mirror.wire.protocol import LIST_OFFSETS
from mirror.wire.queries import LATEST, READ_UNCOMMITTED, list_offsets_request


async def high_watermarks(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The high watermark of each partition, as `listed` has it."""
    return await listed(cluster, partitions, LATEST)


async def listed(
    cluster: Cluster, partitions: Collection[TopicPartition], when: int, isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """As `queries.list_offset`, of each partition whose leader answered; the others are left out.

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
    asked = (_ask(cluster, node, led, when, isolation) for node, led in by_leader.items())
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(answer, dict):
            found |= answer
        elif not isinstance(answer, WireError):
            raise answer
    if len(found) < len(partitions):
        await cluster.refresh()
    return found


async def _ask(
    cluster: Cluster, node: int, partitions: Sequence[TopicPartition], when: int, isolation: int
) -> dict[TopicPartition, int]:
    connection = await cluster.connection(node, PURPOSE)
    epochs = {at: cluster.leader(at).epoch for at in partitions}
    request = list_offsets_request(connection.version(LIST_OFFSETS), epochs, when, isolation)
    answer = await connection.call(LIST_OFFSETS, request, CALL_TIMEOUT)
    return {
        TopicPartition(topic.name, part.partition_index): int(part.offset)
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code
    }
