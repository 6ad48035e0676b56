"""Where a start of the flow would begin in its source (`topics.start`), for the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from mirror.admin.history import History
from mirror.admin.topics import TopicPlan
from mirror.config import Settings
from mirror.offsets.starts import Copy, moment, settled
from mirror.policy.selection import TopicPair
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition
from mirror.wire.queries import EARLIEST


@dataclass(frozen=True, slots=True)
class Beginning:
    """A source topic of which some first records would not be mirrored: where its partitions begin, in their order."""

    topic: str
    offsets: tuple[int, ...]


async def planned_starts(settings: Settings, plan: TopicPlan, history: History) -> dict[TopicPartition, int]:
    """By source partition, the offset below which nothing is mirrored: as the first start settled it, or as one of now
    would. Raises as `settled` does; a partition without a leader is left out.
    """
    if history.seen:
        return {
            TopicPartition(pair.source, number): offset
            for pair in plan.pairs
            for number, offset in enumerate(_recorded(pair, plan, history))
        }
    if (when := moment(settings.topics.start)) == EARLIEST:
        return {}
    copies = list(_copies(plan))
    one, other = Endpoint.of(settings.source), Endpoint.of(settings.target)
    async with Cluster(one) as source, Cluster(other) as target:
        await source.refresh({at.topic for at, _ in copies})
        await target.refresh(plan.target_topics)
        return await settled(source, target, copies, when)


def beginnings(starts: Mapping[TopicPartition, int]) -> Iterator[Beginning]:
    """By topic, where not all partitions begin with their first record."""
    for topic, places in groupby(sorted(starts), key=lambda at: at.topic):
        offsets = tuple(starts[at] for at in places)
        if any(offsets):
            yield Beginning(topic, offsets)


def _recorded(pair: TopicPair, plan: TopicPlan, history: History) -> tuple[int, ...]:
    seen, copy = history.seen.get(pair.target), plan.target_topics.get(pair.target)
    if seen is None or copy is None or (seen.source_topic, seen.target_topic_id) != (pair.source, copy.topic_id):
        return ()
    return seen.since


def _copies(plan: TopicPlan) -> Iterator[Copy]:
    for pair in plan.pairs:
        there = plan.target_topics.get(pair.target)
        existing = len(there.partitions) if there else 0
        for one in plan.source_topics[pair.source].partitions[: pair.partitions]:
            if one.leader >= 0:
                copy = TopicPartition(pair.target, one.partition)
                yield TopicPartition(pair.source, one.partition), copy if one.partition < existing else None
