"""A broker that crashed and lost the tails of its logs, before a failback, and under groups whose offsets moved."""

from __future__ import annotations

import asyncio
from functools import partial

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from crashcut import crash_and_cut, crash_and_cut_all
from failovers import Flow, values
from group_pairs import Pair, commit_all, with_pair
from groupoffsets import consuming
from helpers import make_topic, mirror_once, produce
from topicadmin import delete_records
from transactional import transactions
from waiting import DEADLINE_S

from mirror.commands.verify import verify_flow
from mirror.errors import ExitCode
from mirror.groups.decide import GroupStanding
from mirror.groups.gap import FURTHER, LOST_THERE
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import Committed
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.states import State


def test_a_source_that_lost_its_tail_has_it_again_from_the_flow_back(topic_name: str) -> None:
    """Only where it is the same again. Of the leader epoch that was cut back nothing counts any more, also where the
    source has deleted into the batch that came home, and behind a transaction's marker.
    """
    lossy, standing = start_many([Spec(name=name) for name in ("lossy", "standing")])
    same, others, marked, deleted = (f"{topic_name}-{what}" for what in ("same", "others", "marked", "deleted"))
    with lossy, standing:
        flows = {name: Flow(lossy.bootstrap, standing.bootstrap, name) for name in (same, others, marked, deleted)}
        for name, first in flows.items():
            make_topic(first.source, name)
            produce(first.source, name, values(20))
            if name == marked:
                transactions(first.source, name, [True])
            first.copies()
            first.fail_over()
        crash_and_cut_all(lossy, {(name, 0): 10 for name in flows})
        produce(lossy.bootstrap, others, [b"others"] * 13)
        produce(standing.bootstrap, same, [b"there"] * 3)
        for name, first in flows.items():
            if name != others:
                back = Flow(first.target, first.source, name, f"{name}-back")
                assert back.adopts() == ExitCode.DONE
                back.copies()
                back.fail_over()
            if name == deleted:
                delete_records(lossy.bootstrap, name, 15)
            first.undo()
            for _ in range(3):
                produce(first.source, name, [b"again"] * 5)
                stops = [one.state for one in first.copy().stops]
                assert stops == ([] if name != others else [State.TRUNCATED]), name
        for name in (same, marked):
            assert verify_flow(flows[name].settings).equal


def test_groups_that_read_what_the_target_lost_are_put_back(own_source: Cluster, topic_name: str) -> None:
    """Where offsets moved they stand at those of other records; but for those that read on there since."""
    source, at = own_source.bootstrap, TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    produce(source, topic_name, values(100))
    standing, reading, active = (f"{topic_name}-{name}" for name in ("standing", "reading", "active"))
    with Cluster.start(name="loses") as cluster:
        target = cluster.bootstrap
        copy = partial(mirror_once, source, target, [topic_name], flow=topic_name, offsets="translate")
        between = partial(with_pair, source, target, topic_name, journal_of=topic_name)

        async def read_all(pair: Pair) -> None:
            await commit_all(pair.source, [standing, reading, active], {at: Committed(100)})
            assert await pair.standings() == {"synced": 3}

        async def read_on(pair: Pair) -> None:
            consumer = Consumer({"bootstrap.servers": target, "group.id": reading})
            here = Place(topic_name, 0, 84, leader_epoch=pair.target.leader(at).epoch)
            await asyncio.to_thread(consumer.commit, offsets=[here], asynchronous=False)
            await asyncio.to_thread(consumer.close)
            with consuming(target, active, topic_name) as consumer:
                assert await asyncio.to_thread(consumer.poll, DEADLINE_S)
                found = await pair.sync_once()
                assert found.standings == {GroupStanding.SYNCED: 1, GroupStanding.AHEAD: 1, GroupStanding.ACTIVE: 1}
                gaps, _ = await pair.sync.gaps({}, {at: 130}, {})
                assert [(gap.group, gap.misses, gap.cause) for gap in gaps] == [
                    (active, 20, LOST_THERE.format(80)),
                    (reading, 4, FURTHER),
                ]
            await pair.commit(pair.target, active, topic_name, 80)
            gaps, _ = await pair.sync.gaps({}, {at: 130}, {})
            assert [gap.group for gap in gaps] == [reading]
            assert await pair.committed(pair.target, standing) == {at: Committed(80)}
            assert await pair.standings() == {"synced": 2, "ahead": 1}

        copy()
        between(read_all)
        delete_records(source, topic_name, 70)
        crash_and_cut(cluster, topic_name, below=50)
        copy(on_data_loss="continue")
        produce(source, topic_name, values(30, begin=100))
        copy()
        between(read_on)
