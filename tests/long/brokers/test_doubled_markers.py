"""Markers that two mirrors wrote at once: a broker takes a producer's newest one again, so a gap may get too many."""

from __future__ import annotations

import asyncio

import pytest
from checker import Kind, check
from helpers import make_topic, mirror_once, produce
from transactional import transactions

from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.produce import markers_request, read_markers
from mirror.kafka.protocol import WRITE_TXN_MARKERS
from mirror.lab.embedded import Cluster
from mirror.records.header import ProducerState
from mirror.replication.both_logs import producer_id
from mirror.states import State


def mark(bootstrap: str, at: TopicPartition, count: int) -> None:
    """So many markers, as a mirror writes them on an empty target."""

    async def marked() -> None:
        host, port = bootstrap.split(":")
        async with Wire(Endpoint("us", ((host, int(port)),))) as cluster:
            await cluster.refresh([at.topic])
            connection = await cluster.connection(cluster.leader(at).node)
            stamps = [ProducerState(producer_id("test", at)).then(number + 1) for number in range(count)]
            request = markers_request(
                connection.version(WRITE_TXN_MARKERS), at, [(stamp.producer_id, stamp.epoch) for stamp in stamps]
            )
            assert not read_markers(await connection.call(WRITE_TXN_MARKERS, request, 10))

    asyncio.run(marked())


@pytest.mark.brokers
@pytest.mark.parametrize(
    ("count", "state"),
    [
        (2, State.CAUGHT_UP),  # the gap, no more
        (3, State.DIVERGED),  # over a record
        (11, State.DIVERGED),
        (12, State.DIVERGED),  # over all ten records
        (14, State.DIVERGED),  # and into the next gap, where the last one is right by itself
        (22, State.DIVERGED),
    ],
)
def test_markers_that_reach_over_records_are_noticed(
    count: int, state: State, own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    for bootstrap in (source, target):
        make_topic(bootstrap, topic_name)
    transactions(source, topic_name, [False], size=1, name="one")
    produce(source, topic_name, [b"value %d" % number for number in range(10)])
    transactions(source, topic_name, [False], size=9, name="two")
    produce(source, topic_name, [b"more"] * 5)
    at = TopicPartition(topic_name, 0)
    mark(target, at, count)
    figures = mirror_once(source, target, [topic_name])[at]
    assert figures.state is state, figures
    kinds = {finding.kind for finding in check(source, target, topic_name)}
    assert kinds == (set() if state is State.CAUGHT_UP else {Kind.TAIL_LOST, Kind.LOG_END})
