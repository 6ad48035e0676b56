"""A broker that crashes and comes back without the end of a log, while a mirror runs or a transaction is open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from crashcut import crash_and_cut, crash_and_cut_all
from helpers import RECENT_MS, make_topic, mirror_once, produce, remove_topics, settings_between
from samerecords import assert_same_records, read
from waiting import DEADLINE_S
from watchedtask import WatchedTask

from mirror.journal.journal import journal_topic
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.policy.rules import Rules
from mirror.states import State


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """A source and a target whose brokers crash."""
    source, target = start_many([Spec(name="crashed-source"), Spec(name="crashed-target")])
    with source, target:
        yield source, target


@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_a_live_mirror_copies_again_what_the_target_lost(
    pair: tuple[Cluster, Cluster], topic_name: str, offsets: str
) -> None:
    """Of old records the broker has forgotten the producer, and would take a batch at any offset."""
    source, target = (one.bootstrap for one in pair)
    at, month_ago = TopicPartition(topic_name, 0), RECENT_MS - 30 * 86_400_000
    for bootstrap in (source, target):
        make_topic(bootstrap, topic_name, configs={"retention.ms": "-1"})
    produce(source, topic_name, (b"%d" % number for number in range(1000)), begin_ms=month_ago)
    with WatchedTask(source, target, [at], rules=Rules(offsets=offsets)) as task:  # type: ignore[arg-type]
        task.until(at, lambda one: one.state is State.CAUGHT_UP and one.next_offset == 1000)
        crash_and_cut(pair[1], topic_name, below=600)
        produce(source, topic_name, (b"%d" % number for number in range(1000, 1100)), begin_ms=month_ago + 1000)
        found = task.until(at, lambda one: one.state.is_stop or one.next_offset == 1100)
    assert (found.state.is_stop, found.target_lost) == (False, 400)
    assert assert_same_records(source, target, topic_name, 1) == 1100


def test_a_source_that_was_cut_into_a_transaction_that_had_ended_is_truncated(
    pair: tuple[Cluster, Cluster], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is behind is hidden for ever, though the log has grown beyond the copy, and no journal names that."""
    source, target = (one.bootstrap for one in pair)
    at = TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    client = Producer({"bootstrap.servers": source, "transactional.id": topic_name, "log_level": 0})
    client.init_transactions(DEADLINE_S)
    for end in (client.commit_transaction, client.abort_transaction):
        client.begin_transaction()
        client.produce(topic_name, b"x", partition=0)
        client.flush(DEADLINE_S)  # one that is aborted would not be sent
        end(DEADLINE_S)
    assert mirror_once(source, target, [topic_name], topic_name)[at].state is State.CAUGHT_UP
    crash_and_cut_all(pair[0], {at: 3}, waits=False)
    produce(source, topic_name, [b"later"] * 9)
    remove_topics(Admin(settings_between(source, target, [topic_name]).target), journal_topic(topic_name))
    monkeypatch.setattr("mirror.kafka.fetch.EMPTY_SECONDS", 1.0)
    found = mirror_once(source, target, [topic_name], topic_name)[at]
    assert found.state is State.TRUNCATED, found
    assert "the source's last stable offset is 2: a transaction is open there that had ended" in found.detail
    assert len(list(read(target, topic_name, 0))) == 1
