"""An old leader comes back with records that it alone has, of an older epoch, where a newer one's were mirrored: its
log is as long, or longer, and holds others (P6 in `replication/decide.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from guarded import create
from helpers import make_topic, mirror_once, produce
from topicadmin import delete_records
from waiting import DEADLINE_S, until

from mirror.journal.journal import journal_topic
from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.observability.status import PartitionStatus
from mirror.states import State

BROKERS: dict[str, str | int | bool] = {
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3000,
    "offsets.topic.replication.factor": 3,
    "unclean.leader.election.enable": True,
}
BEGAN_MS = int(time.time() * 1000) - 3_600_000
#: By topic, the second half of a log as either leader has it.
HALVES = {
    "one-byte": (
        [b"%d" % number for number in range(50)],
        [b"x" if number == 5 else b"%d" % number for number in range(50)],
    ),
    "expired": ([b"one %d" % number for number in range(50)], [b"two %d" % number for number in range(50)]),
}


def leads(cluster: Cluster, node: int, in_sync: Sequence[int], topics: Iterable[str] = HALVES) -> bool:
    """Of all topics, with these replicas in sync."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    found = client.list_topics(timeout=DEADLINE_S).topics
    parts = [found[topic].partitions[0] for topic in topics]
    return all(one.leader == node and one.isrs == list(in_sync) for one in parts)


def test_an_old_leader_of_the_source_that_comes_back_is_another_log(own_target: Cluster) -> None:
    """Also where it differs by one byte, and where the copy has expired."""
    with Cluster.start(name="old-source", nodes=3, config=BROKERS) as source:
        ends = source.bootstrap, own_target.bootstrap
        for topic in HALVES:
            create(source, topic, [[1, 2]])
            produce(source.bootstrap, topic, [b"%d" % number for number in range(50)], begin_ms=BEGAN_MS)
        until(lambda: leads(source, 1, [1, 2]))
        source.kill(2)
        until(lambda: leads(source, 1, [1]))
        for topic, (first, _) in HALVES.items():
            produce(source.bootstrap, topic, first, begin_ms=BEGAN_MS + 50)
        source.kill(1)
        source.restart(2)
        until(lambda: leads(source, 2, [2]))
        for topic, (_, second) in HALVES.items():
            produce(source.bootstrap, topic, second, begin_ms=BEGAN_MS + 50)
        for offsets in ("preserve", "translate"):
            naming = {"prefix": f"{offsets}."}
            found = mirror_once(*ends, [*HALVES], offsets, offsets=offsets, naming=naming)
            assert {one.state for one in found.values()} == {State.CAUGHT_UP}
            delete_records(own_target.bootstrap, f"{offsets}.expired", 100)
        source.kill(2)
        source.restart(1)
        until(lambda: leads(source, 1, [1]))
        for offsets in ("preserve", "translate"):
            naming = {"prefix": f"{offsets}."}
            found = mirror_once(*ends, [*HALVES], offsets, offsets=offsets, naming=naming)
            assert {at: one.state for at, one in found.items()} == {
                TopicPartition(topic, 0): State.TRUNCATED for topic in HALVES
            }
            assert all("no record of leader epoch" in one.detail for one in found.values())


@pytest.mark.parametrize("expires", [False, True])
def test_an_old_leader_of_the_target_that_comes_back(expires: bool) -> None:
    """Where offsets move, it has other records at the offsets that were mirrored since: the target is to blame (P10).
    Where the source has nothing left to compare, nobody goes on from there.
    """
    topic, copy, flow = "moved", "x.moved", "old"
    more: dict[str, Any] = {"offsets": "translate", "naming": {"prefix": "x."}}
    source, target = start_many([Spec(name="kept"), Spec(name="old-leaders", nodes=3, config=BROKERS)])
    with source, target:

        def mirrored(**others: Any) -> PartitionStatus:
            found = mirror_once(source.bootstrap, target.bootstrap, [topic], flow, **more, **others)
            return found[TopicPartition(topic, 0)]

        make_topic(source.bootstrap, topic)
        create(target, copy, [[1, 2]])
        create(target, journal_topic(flow), [[0]], {"cleanup.policy": "compact"})
        produce(source.bootstrap, topic, [b"%d" % number for number in range(50)], begin_ms=BEGAN_MS)
        until(lambda: leads(target, 1, [1, 2], [copy]))
        assert mirrored().state is State.CAUGHT_UP
        target.kill(2)
        until(lambda: leads(target, 1, [1], [copy]))
        produce(source.bootstrap, topic, [b"%d" % number for number in range(50, 100)], begin_ms=BEGAN_MS + 50)
        assert mirrored().state is State.CAUGHT_UP
        target.kill(1)
        target.restart(2)
        until(lambda: leads(target, 2, [2], [copy]))
        delete_records(source.bootstrap, topic, 70)
        assert mirrored().state is State.TARGET_LOST
        produce(source.bootstrap, topic, [b"%d" % number for number in range(100, 130)], begin_ms=BEGAN_MS + 100)
        assert mirrored(on_data_loss="continue").state is State.CAUGHT_UP
        if expires:
            delete_records(source.bootstrap, topic, 130)
        target.kill(2)
        target.restart(1)
        until(lambda: leads(target, 1, [1], [copy]))
        found = mirrored(on_data_loss="continue")
    assert found.state is State.DIVERGED, found
    if expires:
        assert "nothing confirms the copy: the target has nothing of leader epoch" in found.detail
        return
    assert "the target's log is another one" in found.detail
    assert "an old leader of the target comes back. The source kept its log" in found.detail
