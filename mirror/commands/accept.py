"""`mirror accept`: go on behind records that the source deleted before they were mirrored.

What is accepted is looked at in both logs now, and named; nothing is written to the topics themselves.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from mirror.admin.client import Admin
from mirror.admin.topics import ensure_flow_topic
from mirror.assignment import Loss
from mirror.commands.tables import count, number, print_json
from mirror.config import Settings
from mirror.errors import ConfigError, ExitCode, PartitionStop
from mirror.offsets.journal import Journal, journal_topic
from mirror.offsets.ledgers import indexes_of
from mirror.offsets.losses import accept_entry, accepted_in
from mirror.offsets.runlog import Indexes
from mirror.offsets.starts import starts_in
from mirror.policy.runs import RunIndex
from mirror.position import settled_end
from mirror.retracing import complete
from mirror.states import State
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition
from mirror.wire.queries import EARLIEST, list_offset


@dataclass(frozen=True, slots=True)
class Open:
    """A loss that a mirror stops for, or will go on behind where it `was_accepted` before."""

    loss: Loss
    was_accepted: bool


def accept(settings: Settings, topic: str, partitions: tuple[int, ...], *, as_json: bool) -> ExitCode:
    """Accept what was lost of a source topic, of some partitions or of all, and say what that is.

    Raises ConfigError for a topic or partition that is not mirrored, ClusterError as queries do.
    """
    found = asyncio.run(_accept(settings, topic, partitions))
    if as_json:
        print_json({"flow": settings.flow, "topic": topic, "losses": [_as_dict(one) for one in found]})
        return ExitCode.DONE
    for loss, was_accepted in ((one.loss, one.was_accepted) for one in found):
        offsets = f"{count(loss.next_offset - loss.first, 'offset')}, {number(loss.first)} to"
        what = f"the loss of {offsets} {number(loss.next_offset - 1)}"
        print(f"{loss.source}: {what}, was accepted before" if was_accepted else f"{loss.source}: accepted {what}")
    if found:
        print("A running mirror goes on behind them within seconds, one that is started at once.")
    else:
        print(f"{topic}: nothing was lost before it was mirrored; there is nothing to accept")
    return ExitCode.DONE


def _as_dict(one: Open) -> dict[str, Any]:
    return {
        "partition": one.loss.source.partition,
        "target": one.loss.target.topic,
        "first_offset": one.loss.first,
        "last_offset": one.loss.next_offset - 1,
        "was_accepted": one.was_accepted,
    }


async def _accept(settings: Settings, topic: str, partitions: tuple[int, ...]) -> list[Open]:
    target_topic = settings.topics.naming.target_of(topic)
    ensure_flow_topic(Admin(settings.target), settings.flow)
    async with Cluster(Endpoint.of(settings.source)) as source, Cluster(Endpoint.of(settings.target)) as target:
        await asyncio.gather(source.refresh([topic]), target.refresh([target_topic, journal_topic(settings.flow)]))
        ours, theirs = source.topics.get(topic), target.topics.get(target_topic)
        if ours is None or theirs is None:
            where = source if ours is None else target
            raise ConfigError(f"{topic if ours is None else target_topic}: no such topic on {where}")
        known = ours.leaders.keys() & theirs.leaders.keys()
        if unknown := sorted(set(partitions) - known):
            raise ConfigError(f"{topic}: has no partition {', '.join(map(str, unknown))}")
        pairs = [
            (TopicPartition(topic, number), TopicPartition(target_topic, number))
            for number in sorted(partitions or known)
        ]
        journal = Journal(target, settings.flow)
        known_there, topic_id = await journal.newest(), source.topic_id(topic)
        since, before = starts_in(known_there, target), accepted_in(known_there)
        if settings.topics.offsets == "translate":
            indexes = await indexes_of(journal)
            losses = [
                await _moved_loss(settings.flow, source, one, target, other, indexes, since.get(other, 0))
                for one, other in pairs
            ]
        else:
            losses = [await _loss(source, one, target, other, since.get(other, 0)) for one, other in pairs]
        found = [
            Open(loss, loss.target in before and before[loss.target].covers(loss, topic_id))
            for loss in losses
            if loss is not None
        ]
        if new := [one.loss for one in found if not one.was_accepted]:
            await journal.append([accept_entry(loss, topic_id) for loss in new])
        return found


async def _loss(
    source: Cluster, one: TopicPartition, target: Cluster, other: TopicPartition, since: int
) -> Loss | None:
    """A target that is empty, or ends before `since`, where the flow began, has lost nothing: it is aligned with where
    its copy begins.
    """
    end, start = await asyncio.gather(settled_end(target, other), list_offset(source, one, EARLIEST))
    return Loss(one, other, end, start) if 0 < end < start and end >= since else None


async def _moved_loss(
    flow: str,
    source: Cluster,
    one: TopicPartition,
    target: Cluster,
    other: TopicPartition,
    indexes: Indexes,
    since: int,
) -> Loss | None:
    """The same where offsets move: what a mirror that starts now would stop for."""
    index = indexes.setdefault(other, RunIndex())
    try:
        await complete(index, flow, source, one, target, other, accepted=None, since=since)
    except PartitionStop as stop:
        if stop.state is not State.RETENTION_GAP:
            raise
        return Loss(one, other, stop.offset, await list_offset(source, one, EARLIEST))
    return None
