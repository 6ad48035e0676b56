"""Quotas of brokers, which mute the mirror for seconds."""

from __future__ import annotations

from random import Random

import pytest
from copies import copied
from helpers import make_topic, mirror_once, produce, settings_between
from quotas import quota

from mirror.commands.verify import verify_flow
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.connection import CLIENT_ID, Connection
from mirror.lab.embedded import Cluster
from mirror.replication import writer
from mirror.states import State


def payload(count: int, size: int) -> list[bytes]:
    """Records that do not compress."""
    noise = Random(7)
    return [noise.randbytes(size) for _ in range(count)]


def test_no_connection_is_given_up_while_a_quota_mutes_the_mirror_for_longer_than_an_answer_may_take(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[str] = []
    broken = Connection._break

    def noted(self: Connection, why: object) -> None:
        if "no answer" in str(why):
            given_up.append(str(why))
        broken(self, why)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "_break", noted)
    monkeypatch.setattr(writer, "ANSWER_TIMEOUT", 1.0)
    pair = own_source.bootstrap, own_target.bootstrap
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)
    produce(pair[0], topic_name, payload(400, 20_000))
    with quota(pair[1], CLIENT_ID, "producer_byte_rate", 600_000.0):
        assert copied(pair, topic_name).records == 400
    assert given_up == []


def test_a_quota_of_the_source_is_no_silence(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    """The source answers at once, and with nothing in it, until its quota is kept to; then all that is asked for comes,
    of a proof and of a task that looks where its copies end.
    """
    pair, partitions = (own_source.bootstrap, own_target.bootstrap), 4
    make_topic(pair[0], topic_name, partitions)
    for partition in range(partitions):
        produce(pair[0], topic_name, payload(60, 10_000), partition=partition, batch=20)
    mirror_once(*pair, [topic_name], topic_name)
    with quota(pair[0], CLIENT_ID, "consumer_byte_rate", 100_000.0):
        report = verify_flow(settings_between(*pair, [topic_name], topic_name))
        produce(pair[0], topic_name, payload(20, 10_000), batch=20)
        figures = mirror_once(*pair, [topic_name], topic_name)
    assert not report.unread
    assert sum(one.records for one in report.partitions) == partitions * 60
    assert {one.state for one in figures.values()} == {State.CAUGHT_UP}
    assert figures[TopicPartition(topic_name, 0)].next_offset == 80
