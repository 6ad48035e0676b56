"""Two clusters with groups."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from helpers import endpoint

from mirror.groups.sync import GroupSync, SyncResult
from mirror.groups.terms import Terms
from mirror.journal.journal import Journal, journal_topic
from mirror.journal.offset_maps import Indexes
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import Committed, commit_offsets, coordinators, fetch_offsets

Offsets = dict[TopicPartition, Committed]


class Pair:
    """Two clusters, the groups of which are followed, and a way to see and set offsets on both."""

    def __init__(
        self, source: Wire, target: Wire, topics: Mapping[str, str], group: str, indexes: Indexes | None = None
    ) -> None:
        """`indexes`: where offsets moved to; None where they did not."""
        self.source, self.target = source, target
        pairs = {TopicPartition(one, 0): TopicPartition(other, 0) for one, other in topics.items()}
        self.unsound: set[TopicPartition] = set()
        origins = {other: (one, source.topic_id(one)) for one, other in topics.items()}
        copies = {other: target.topic_id(other) for other in topics.values()}
        include = [re.compile(f"{re.escape(group)}.*")]
        terms = Terms(pairs, origins, copies, indexes=indexes)
        self.sync = GroupSync(source, target, include, terms, lambda at: at not in self.unsound)

    async def sync_once(self) -> SyncResult:
        """A round that no coordinator's start is in the way of."""
        while not (result := await self.sync.sync_once()).is_complete:
            await asyncio.sleep(0.05)
        return result

    async def standings(self) -> dict[str, int]:
        result = await self.sync_once()
        assert not result.blockers
        return {str(standing): many for standing, many in result.standings.items() if many}

    async def committed(self, cluster: Wire, group: str) -> dict[TopicPartition, Committed]:
        while group not in (fetched := await fetch_offsets(cluster, await node_of(cluster, group), [group])).offsets:
            assert all(refusal.code.retriable for refusal in fetched.refused), fetched
            await asyncio.sleep(0.05)
        return fetched.offsets[group]

    async def commit(self, cluster: Wire, group: str, topic: str, offset: int, metadata: str = "") -> None:
        await commit_all(cluster, [group], {TopicPartition(topic, 0): Committed(offset, metadata)})


async def node_of(cluster: Wire, group: str) -> int:
    while not (found := await coordinators(cluster, cluster.nodes[0], [group])).nodes:
        await asyncio.sleep(0.05)
    return found.nodes[group]


async def commit_all(cluster: Wire, groups: Sequence[str], offsets: Offsets) -> None:
    """Commit the same for several groups, again while their coordinator is only just starting."""
    commits = dict.fromkeys(groups, offsets)
    while refused := await commit_offsets(cluster, await node_of(cluster, groups[0]), commits):
        assert all(refusal.code.retriable for refusal in refused), refused
        await asyncio.sleep(0.05)


def with_pair(
    source: str,
    target: str,
    topics: Mapping[str, str] | str,
    story: Callable[[Pair], Awaitable[Any]],
    group: str = "",
    journal_of: str = "",
) -> None:
    """Run a story between two clusters (bootstrap addresses); groups are those that begin with the topic's name.
    Offsets moved where the flow is named whose journal says where to.
    """
    named = {topics: topics} if isinstance(topics, str) else topics

    async def run() -> None:
        async with Wire(endpoint(source, "eu")) as one, Wire(endpoint(target, "us")) as other:
            await one.refresh(named.keys())
            await other.refresh([*named.values(), *([journal_topic(journal_of)] if journal_of else [])])
            entries, _ = await Journal(other, journal_of).read() if journal_of else (None, 0)
            indexes = None if entries is None else Indexes(entries)
            await story(Pair(one, other, named, group or next(iter(named)), indexes))

    asyncio.run(run())
