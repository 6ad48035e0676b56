"""Whether a source topic is still the one that the flow began to mirror.

A topic that was deleted and created again has another id (KIP-516). Its offsets begin anew, so a position says nothing
about it: shorter it looks like a log that was cut back, longer like one that somebody else wrote. Hence the id is asked
before the position is.
"""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import UUID

from mirror.errors import PartitionStop
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.retry import Backoff
from mirror.states import Remedy, State

#: A broker that has not heard of a topic yet denies it for a moment; one that is gone is denied each time.
MISSING_TRIES: Final = 4
DELETED: Final = "the source topic was deleted"


def other_topic(source: Cluster, topic: str, topic_id: UUID | None) -> str:
    """What became of the topic with this id, by the metadata known now; empty where it is still there.

    None stands for a cluster without ids.
    """
    known = source.topics.get(topic)
    if known is None:
        return DELETED
    return "" if topic_id in (None, known.topic_id) else made_anew(topic_id, known.topic_id)


def made_anew(before: UUID | None, now: UUID | None) -> str:
    """What is said of a topic whose id is another one."""
    return f"the source topic was recreated: its id was {before} and is {now}"


def recreated(partition: TopicPartition, offset: int, detail: str) -> PartitionStop:
    """The stop for a partition whose topic is another one, or gone; `offset` is the next one to mirror, or -1."""
    return PartitionStop(State.RECREATED, *partition, offset, detail, *remedies_for(detail))


def remedies_for(detail: str) -> tuple[Remedy, ...]:
    """What resolves the stop: of a topic that is gone there is nothing to mirror, and the copy has its only records."""
    return (Remedy.EXCLUDE,) if detail == DELETED else (Remedy.RENAME, Remedy.ADOPT, Remedy.BEGIN_ANEW)


async def what_became_of(source: Cluster, topic: str, topic_id: UUID | None) -> str:
    """The same by metadata that is asked for now; a topic counts as deleted when several answers in a row lack it.

    Raises ClusterUnreachable, and AccessDenied where the topic may not be described.
    """
    backoff = Backoff()
    for _ in range(MISSING_TRIES):
        await source.refresh((topic,))
        if topic in source.topics:
            break
        await asyncio.sleep(backoff.next())
    return other_topic(source, topic, topic_id)
