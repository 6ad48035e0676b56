"""The groups at a failover: which partitions vouch for their offsets, the last look, and who did not get where he was.

A partition vouches by its lane, which compared both logs as it began, or by being compared here: one that is paused,
that waits, or that no mirror has had since, may hold all that its source does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from mirror.assignment import LastPosition
from mirror.commands.failoverknown import Known
from mirror.config import Settings
from mirror.errors import ClusterError, MalformedBatch, PartitionStop, WireError
from mirror.identity import other_topic
from mirror.observe.figures import Figures
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.groupsync import GroupSync, is_vouched, preserved, translated
from mirror.offsets.standing import standing_in
from mirror.offsets.starts import starts_in
from mirror.policy.recovery import UNLIKE
from mirror.policy.rules import NO_LIMIT
from mirror.policy.runs import RunIndex
from mirror.policy.selection import is_rekeyed
from mirror.position import resume
from mirror.retracing import complete
from mirror.states import State
from mirror.wire.cluster import Cluster, TopicPartition

#: How many partitions are compared at a time.
_COMPARED_AT_ONCE: Final = 32
_SURE: Final = frozenset({State.MIRRORING, State.CAUGHT_UP})
#: Whatever the source deleted: the records that got over are compared all the same.
_ANY_LOSS: Final = (0, NO_LIMIT)


class Doubt(NamedTuple):
    """Why a partition does not vouch for the offsets of its groups; `stop` where the logs say that it must not."""

    reason: str
    stop: State | None = None


async def doubts_of(
    settings: Settings, source: Cluster | None, known: Known, instances: Collection[str]
) -> dict[TopicPartition, Doubt]:
    """By source partition. Those that a lane of one of these instances has copied without a stop need no comparison;
    without a source that can be asked (None) there is none. Both clusters know the topics. Raises nothing that a
    cluster can cause.
    """
    target = known.journal.cluster
    seen = seen_in(known.newest)
    starts = starts_in(known.newest, target)
    standing = standing_in(known.newest)
    turns = asyncio.Semaphore(_COMPARED_AT_ONCE)

    async def of(one: Figures) -> Doubt | None:
        if one.state in UNLIKE:
            return Doubt(UNLIKE[one.state], one.state)
        there = TopicPartition(one.target_topic, one.partition)
        stop = standing.stops.get(there)
        if stop is not None and stop.concerns(target.topic_id(there.topic)):
            return Doubt(stop.detail, stop.state)
        copy, topic_id = seen.get(there.topic), target.topic_id(there.topic)
        if copy is not None and topic_id is not None and copy.target_topic_id != topic_id:
            return Doubt("the target topic is another one than was mirrored to")
        if source is None or (one.state in _SURE and one.instance in instances):
            return None
        async with turns:
            last, losses = standing.positions.get(there), standing.lost_of(there, source.topic_id(one.topic))
            return await _compared(settings, source, known, one, copy, starts.get(there, 0), last, losses)

    asked = {at: one for at, one in known.figures.items() if not is_rekeyed(at.topic, settings.topics)}
    found = await asyncio.gather(*map(of, asked.values()))
    return {at: doubt for at, doubt in zip(asked, found, strict=True) if doubt is not None}


async def _compared(
    settings: Settings,
    source: Cluster,
    known: Known,
    one: Figures,
    seen: FirstSeen | None,
    since: int,
    last: LastPosition | None,
    losses: tuple[tuple[int, int], ...],
) -> Doubt | None:
    """What comparing both logs tells, as a lane that began now would; nothing is written."""
    target = known.journal.cluster
    at, there = TopicPartition(one.topic, one.partition), TopicPartition(one.target_topic, one.partition)
    if became := other_topic(source, at.topic, seen.topic_id if seen else None):
        return Doubt(became, State.RECREATED)
    if last is not None and not last.is_of(source.topic_id(at.topic), target.topic_id(there.topic)):
        last = None
    sides = settings.flow, source, at, target, there
    try:
        await asyncio.gather(source.require(at), target.require(there))
        if settings.topics.offsets == "translate":
            index = known.runs.setdefault(there, RunIndex())
            await complete(index, *sides, _ANY_LOSS, since, last, losses, confirmed=True)
        elif (await resume(*sides, _ANY_LOSS, since, last, losses)).begin >= 0:
            return Doubt("padding stands in for its first records")
    except PartitionStop as stop:
        return Doubt(stop.detail, stop.state)
    except MalformedBatch as damage:
        return Doubt(str(damage), State.CORRUPT)
    except (ClusterError, WireError) as problem:
        # It was compared when its lane began, and has not been found to be unlike since.
        return None if is_vouched(one) else Doubt(f"both logs could not be compared: {problem}")
    return None


def group_sync(
    settings: Settings, source: Cluster, target: Cluster, known: Known, doubts: Mapping[TopicPartition, Doubt]
) -> GroupSync:
    """The sync of the flow as its journal has it; partitions with doubts do not vouch."""
    figures = {at: one for at, one in known.figures.items() if not is_rekeyed(at.topic, settings.topics)}
    pairs = {at: TopicPartition(one.target_topic, one.partition) for at, one in figures.items()}
    seen, origins = seen_in(known.newest), {}
    for one in figures.values():
        known_as = seen.get(one.target_topic)
        origins[one.target_topic] = (one.topic, known_as.topic_id if known_as else source.topic_id(one.topic))
    starts = starts_in(known.newest, target)
    since = {at: starts[there] for at, there in pairs.items() if there in starts}
    common = source, target, settings.groups.include

    def vouched(at: TopicPartition) -> bool:
        return at in figures and at not in doubts

    if settings.topics.offsets == "translate":
        moved = translated(pairs, known.runs)
        return GroupSync(*common, moved, origins, vouched, known.runs.told_until, since)
    return GroupSync(*common, preserved(pairs), origins, vouched, since=since)
