"""A target that was aligned, and whose broker died before it had noted where its log begins: padding is back, and goes
again.

A broker notes log starts once a minute (`log.flush.start.offset.checkpoint.interval.ms`); after a crash it begins with
what it noted last, so records that DeleteRecords took away since then are there again.
"""

from __future__ import annotations

import pytest
from checker import Kind, check
from confluent_kafka import TopicPartition as Watermark
from confluent_kafka.admin import AdminClient
from helpers import make_topic, mirror_once, produce

from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.states import State


def trimmed(cluster: Cluster, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_records([Watermark(topic, 0, before)]).values()
    deleted.result(20)


@pytest.mark.brokers
@pytest.mark.parametrize("later", [0, 50], ids=["the source as it was", "the source begins later meanwhile"])
def test_padding_that_came_back_is_deleted_again(own_source: Cluster, topic_name: str, later: int) -> None:
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, [b"value %d" % number for number in range(300)])
    trimmed(own_source, topic_name, 123)
    with Cluster.start(name="forgetful") as target:
        mirror_once(own_source.bootstrap, target.bootstrap, [topic_name])
        assert check(own_source.bootstrap, target.bootstrap, topic_name) == []
        if later:
            trimmed(own_source, topic_name, 123 + later)
        target.kill(0)
        target.restart(0)
        kinds = {one.kind for one in check(own_source.bootstrap, target.bootstrap, topic_name)}
        assert Kind.LOG_START in kinds, "the broker remembered: nothing is tested"
        produce(own_source.bootstrap, topic_name, [b"value %d" % number for number in range(300, 310)])
        figures = mirror_once(own_source.bootstrap, target.bootstrap, [topic_name])[TopicPartition(topic_name, 0)]
        assert (figures.state, figures.next_offset) == (State.CAUGHT_UP, 310), figures
        found = check(own_source.bootstrap, target.bootstrap, topic_name)
    if later:  # the target keeps what the source had when it was mirrored
        assert [(one.kind, one.first) for one in found] == [(Kind.LOG_START, 123), (Kind.EXTRA, 123)]
    else:
        assert found == []
