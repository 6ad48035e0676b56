"""What following two thousand groups costs (docs/benchmarks.md): run with -s to see it."""

from __future__ import annotations

import time

from group_pairs import Pair, commit_all, node_of, with_pair
from helpers import make_topic, mirror_once, produce

from mirror.groups.decide import GroupStanding
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import Committed, fetch_offsets
from mirror.lab.embedded import Cluster


def test_two_thousand_groups(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"value"] * 10)
    mirror_once(source, target, [topic_name], flow=topic_name)
    groups = [f"{topic_name}-{number}" for number in range(2000)]
    at = TopicPartition(topic_name, 0)

    async def story(pair: Pair) -> None:
        await commit_all(pair.source, groups, {at: Committed(3)})
        await node_of(pair.target, topic_name)
        for item, committed in (("all anew", 2000), ("nothing has changed", 0), ("two have changed", 2)):
            if committed == 2:
                await commit_all(pair.source, groups[:2], {at: Committed(4)})
            began, busy = time.monotonic(), time.process_time()
            result = await pair.sync_once()
            print(f"{item}: {time.monotonic() - began:.2f} s, {time.process_time() - busy:.2f} CPU-s")
            assert (result.standings, result.committed) == ({GroupStanding.SYNCED: 2000}, committed)
        node = await node_of(pair.target, topic_name)
        found = (await fetch_offsets(pair.target, node, groups)).offsets
        assert [found[group][at].offset for group in groups] == [4, 4, *[3] * 1998]

    with_pair(source, target, topic_name, story)
