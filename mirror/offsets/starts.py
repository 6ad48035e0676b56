"""Where a flow begins in its source, as `topics.start` asks for it.

B1  it is settled once, at the flow's first start and before any lane runs, and kept with what the topic was first
    seen as (`firstseen.py`): who dies before the first append begins at the same offset
B2  a target that holds anything already, or did, says itself where to go on
B3  what the flow sees later, topics and partitions alike, is mirrored from its first record: nothing that is
    written before a mirror has noticed a topic may be missed
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from mirror.offsets.firstseen import seen_in
from mirror.wire.cluster import Cluster, TopicPartition
from mirror.wire.queries import EARLIEST, LATEST, READ_COMMITTED, list_offset, settled_end

#: A source partition and its copy; None for one that is not there yet.
Copy = tuple[TopicPartition, TopicPartition | None]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def moment(start: Literal["earliest", "latest"] | datetime) -> int:
    """`topics.start` as ListOffsets takes it: `EARLIEST`, `LATEST`, or the Unix time in ms that no record below it
    reaches. What lies before 1970 is 1970, since negative times mean something else there.
    """
    if isinstance(start, datetime):
        return max(0, -((_EPOCH - start) // _MILLISECOND))
    return LATEST if start == "latest" else EARLIEST


async def settled(source: Cluster, target: Cluster, copies: Iterable[Copy], when: int) -> dict[TopicPartition, int]:
    """By source partition, the offset below which nothing is to be mirrored; 0 where all is (B2).

    Raises ClusterUnreachable, AccessDenied, BrokerError where a single partition cannot be asked: to begin it
    elsewhere than was wished for could not be mended later.
    """

    async def of(one: TopicPartition, other: TopicPartition | None) -> int:
        if when == EARLIEST or (other is not None and await settled_end(target, other)):
            return 0
        return await _offset_at(source, one, when)

    asked = list(copies)
    found = await asyncio.gather(*(of(*copy) for copy in asked))
    return {one: offset for (one, _), offset in zip(asked, found, strict=True)}


async def _offset_at(source: Cluster, at: TopicPartition, when: int) -> int:
    """The first offset at or after a moment, 0 for that of the log itself: what a source deletes of its first records
    before they are mirrored is no loss. The log's end where there is none, which for the latest is where a reader of
    committed records begins: no transaction is mirrored in part.
    """
    start = await list_offset(source, at, EARLIEST)
    if when == LATEST:
        found = await list_offset(source, at, LATEST, READ_COMMITTED)
    else:
        end = await list_offset(source, at, LATEST)  # asked before: what is appended in between may be of that time
        found = await list_offset(source, at, when)
        found = found if found >= 0 else end
    return found if found > start else 0


def starts_in(records: Mapping[bytes, bytes], target: Cluster) -> dict[TopicPartition, int]:
    """By target partition, where its copy began, as the newest records of a journal tell; without those that began with
    the first record, and those whose target topic is another one by now. `target` knows the topics that matter.
    """
    return {
        TopicPartition(topic, number): offset
        for topic, seen in seen_in(records).items()
        if seen.target_topic_id == target.topic_id(topic)
        for number, offset in enumerate(seen.since)
        if offset
    }
