"""Three brokers share the coordination of groups, and one of them dies."""

from __future__ import annotations

import asyncio

from group_pairs import Pair, commit_all, with_pair
from helpers import make_topic
from syncing import admin_of

from mirror.kafka.admin import Creation
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import Committed, coordinators
from mirror.lab.embedded import Cluster


def test_groups_of_a_coordinator_that_died_find_another(own_source: Cluster, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name)
    groups = [f"{topic_name}-{number}" for number in range(40)]
    at = TopicPartition(topic_name, 0)
    with Cluster.start(nodes=3, name="three") as target:
        creation = Creation(topic=topic_name, partitions=1, replication_factor=3)
        assert not admin_of(target.bootstrap).create_topics([creation])

        async def story(pair: Pair) -> None:
            await commit_all(pair.source, groups, {at: Committed(0, "first")})
            assert await pair.standings() == {"synced": 40}
            nodes = (await coordinators(pair.target, pair.target.nodes[0], groups)).nodes
            assert len(set(nodes.values())) == 3
            await asyncio.to_thread(target.kill, 2)
            await commit_all(pair.source, groups, {at: Committed(0, "second")})
            result = await pair.sync.sync_once()
            assert not result.is_complete
            assert await pair.standings() == {"synced": 40}
            for group in groups:
                assert await pair.committed(pair.target, group) == {at: Committed(0, "second")}

        with_pair(own_source.bootstrap, target.bootstrap, topic_name, story)
