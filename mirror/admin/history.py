"""What journals tell before a plan is made: this flow's own, and those of flows that end where this one begins.

Every flow keeps its journal on its target. So a journal on our source is that of a flow towards our source, and it
names the topics there that are copies, with the cluster they come from: to mirror those back would be a loop. A flow
that was ended by `mirror failover` has let go of its topics.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from mirror.admin.client import Admin
from mirror.config import Settings
from mirror.errors import ClusterError
from mirror.offsets.failover import FailedOver
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.journal import Journal, journal_topic
from mirror.policy.selection import selects
from mirror.wire.cluster import Cluster, Endpoint

_JOURNAL: Final = re.compile(re.escape(journal_topic("\0")).replace("\0", "(.+)"))


@dataclass(frozen=True, slots=True)
class Own:
    """The flow's own journal by the newest value of every key, empty where it never ran, and its target's id."""

    newest: Mapping[bytes, bytes]
    cluster_id: str | None


@dataclass(frozen=True, slots=True)
class History:
    """`seen`: by target topic, as what its source was first seen. `copies`: topics of the source that are copies of
    topics of the target, and the flow that makes each. `unread`: journals on the source that cannot be read.
    """

    seen: Mapping[str, FirstSeen] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


def gone_topics(
    settings: Settings, target: Admin, seen: Mapping[str, FirstSeen], source_topics: Collection[str], source_id: str
) -> dict[str, str]:
    """The source's topics of the flow that are there no more, by the name of the copy that the flow filled, where that
    is left. Raises ClusterError.
    """
    left = {
        name: one
        for name, one in seen.items()
        if one.source_topic not in source_topics
        and one.cluster_id == source_id
        and selects(one.source_topic, settings.topics)
    }
    there = target.describe(left) if left else {}
    return {
        name: one.source_topic
        for name, one in sorted(left.items())
        if name in there and one.target_topic_id == there[name].topic_id
    }


async def read_own(settings: Settings) -> Own:
    """Read it whole, which is once at a start. Raises ClusterError, MalformedBatch."""
    async with Cluster(Endpoint.of(settings.target)) as target:
        newest = await Journal(target, settings.flow).newest()
        return Own(newest, target.cluster_id)


async def read_history(settings: Settings, own: Own, source_topics: Collection[str]) -> History:
    """What `own` tells, and the journals among `source_topics`. Raises MalformedBatch for one of these."""
    copies: dict[str, str] = {}
    unread: list[str] = []
    flows = [found.group(1) for found in map(_JOURNAL.fullmatch, source_topics) if found]
    async with Cluster(Endpoint.of(settings.source)) as source:
        for flow in sorted(flows):
            try:
                journal = await Journal(source, flow).newest()
            except ClusterError:
                unread.append(journal_topic(flow))
                continue
            if not isinstance(FailedOver.standing(journal), FailedOver):  # unread, it may run: a loop is worse
                there = seen_in(journal)
                copies |= {name: flow for name, seen in there.items() if seen.cluster_id == own.cluster_id}
    return History(seen_in(own.newest), copies, tuple(unread))
