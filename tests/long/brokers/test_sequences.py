"""Sequences where they say least: a leader that has forgotten the producer, and counting over 2^31."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import Producer
from faults.network import Network, Rule
from faults.points import REQUESTS
from faults.schedule import What
from helpers import RECENT_MS, make_topic, mirror_once, produce, stored_batches
from padded import read_all, trimmed
from probe import probing
from samerecords import assert_same_records
from sequenced import await_forgotten, forgetful
from watchedtask import WatchedTask

from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.policy.rules import NO_LIMIT
from mirror.records.header import SEQUENCES, ProducerState, restamp
from mirror.replication import writer
from mirror.replication.both_logs import producer_id
from mirror.replication.writer import FRESH
from mirror.states import State

__all__ = ["forgetful"]

pytestmark = pytest.mark.brokers


def values(count: int, first: int = 0) -> Iterator[bytes]:
    return (b"%06d" % number + b"." * 300 for number in range(first, first + count))


def test_a_mirror_goes_on_where_the_leader_forgot_it(own_source: Cluster, forgetful: Cluster, topic_name: str) -> None:
    """In one task, which believes that the leader knows it, and from one task to the next."""
    source, target = own_source.bootstrap, forgetful.bootstrap
    at = TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    make_topic(target, topic_name)
    count = 0
    for _ in range(2):
        with WatchedTask(source, target, [at]) as task:
            for _ in range(3):
                produce(source, topic_name, values(100, count), batch=5)
                count += 100
                assert not task.mirrored(at, count).state.is_stop
                await_forgotten(forgetful, topic_name)
    assert assert_same_records(source, target, topic_name, 1) == count


@pytest.mark.parametrize("what", ["cut-after", "cut-before", "drop"])
@pytest.mark.parametrize("nth", [1, 2, 4], ids=lambda nth: f"request {nth}")
def test_an_unclear_answer_of_a_leader_that_forgot(
    what: What,
    nth: int,
    own_source: Cluster,
    forgetful: Cluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch is in the log, or is not, and no sequence would distinguish them: the log's end does."""
    monkeypatch.setattr(writer, "ANSWER_TIMEOUT", 1.0)
    source, target = own_source.bootstrap, forgetful.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(50))
    mirror_once(source, target, [topic_name])
    await_forgotten(forgetful, topic_name)
    produce(source, topic_name, values(200, 50))
    rule = Rule(what, REQUESTS["produce"], nth)
    with Network(target) as network:
        network.disturb(rule)
        figures = mirror_once(source, network.bootstrap, [topic_name])[TopicPartition(topic_name, 0)]
    assert (figures.state, figures.next_offset, figures.records) == (State.CAUGHT_UP, 250, 200), figures
    assert rule.fired == 1
    assert assert_same_records(source, target, topic_name, 1) == 250


@pytest.mark.parametrize("what", ["cut-after", "cut-before"])
def test_padding_whose_answer_is_lost(what: What, own_source: Cluster, forgetful: Cluster, topic_name: str) -> None:
    """Padding has no timestamps, so that a leader forgets its number as soon as it looks."""
    source, target = own_source.bootstrap, forgetful.bootstrap
    make_topic(source, topic_name)
    make_topic(target, topic_name)
    produce(source, topic_name, values(60))
    trimmed(own_source, topic_name, 50)
    rule = Rule(what, REQUESTS["produce"], 1)
    with Network(target) as network:
        network.disturb(rule)
        figures = mirror_once(source, network.bootstrap, [topic_name])[TopicPartition(topic_name, 0)]
    assert (figures.state, figures.next_offset) == (State.CAUGHT_UP, 60), figures
    assert rule.fired == 1
    assert [offset for offset, _ in read_all(forgetful, topic_name)] == list(range(50, 60))


@pytest.mark.parametrize("before_the_end", [10, 5, 11, 1, 25])
def test_sequences_that_pass_their_end(
    before_the_end: int, own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """Batches of ten records: one that ends with the last sequence, ones that pass it inside, one that begins with it.
    Each is mirrored by a mirror of its own, which goes on right behind the last batch.
    """
    source, target = own_source.bootstrap, own_target.bootstrap
    first = SEQUENCES - before_the_end
    at = TopicPartition(topic_name, 0)
    make_topic(source, topic_name)
    produce(source, topic_name, values(10))
    (raw,) = stored_batches(source, topic_name)
    by_hand = restamp(raw, ProducerState(producer_id("test", at), 0, first)) + bytes(raw.records)

    async def append() -> None:
        async with probing(target, topic_name) as probe:
            assert await probe.send(by_hand) == (0, 0), "a leader takes any first sequence"

    asyncio.run(append())
    for count in (20, 30, 40):
        produce(source, topic_name, values(10, count - 10))
        figures = mirror_once(source, target, [topic_name])[at]
        assert (figures.state, figures.next_offset) == (State.CAUGHT_UP, count), figures
    produce(source, topic_name, values(60, 40))  # and several in one go
    assert mirror_once(source, target, [topic_name])[at].state is State.CAUGHT_UP
    stored = stored_batches(target, topic_name)
    found = [one.header.base_sequence for one in stored]
    assert found == [(first + offset) % SEQUENCES for offset in range(0, 100, 10)]
    assert {one.header.producer_epoch for one in stored} == {0}, "no epoch was begun for it"
    assert assert_same_records(source, target, topic_name, 1) == 100


def test_nothing_follows_a_batch_that_a_leader_refused_and_whose_producer_it_forgot(
    own_source: Cluster, forgetful: Cluster, topic_name: str
) -> None:
    """Else the next one takes its place; where batches are alike, no check of the last one shows it."""
    source, target = own_source.bootstrap, forgetful.bootstrap
    at = TopicPartition(topic_name, 0)
    make_topic(source, topic_name, configs={"message.timestamp.after.max.ms": str(NO_LIMIT)})
    make_topic(target, topic_name)
    with WatchedTask(source, target, [at]) as task:
        produce(source, topic_name, values(10), batch=5)
        task.mirrored(at, 10)
        await_forgotten(forgetful, topic_name)
        time.sleep(FRESH)
        tomorrow = int(time.time() * 1000) + 86_400_000
        _produce_at_once(source, topic_name, [tomorrow, *[RECENT_MS] * 6])
        assert task.stopped(at).state is State.REFUSED
    assert sum(one.header.count for one in stored_batches(target, topic_name)) == 10


def _produce_at_once(bootstrap: str, topic: str, times: Sequence[int]) -> None:
    """A batch of three equal records for each time; a reader gets all of them together, when they are committed."""
    config = {"transactional.id": topic, "linger.ms": 5000, "batch.num.messages": 3}
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    producer.init_transactions(60)
    producer.begin_transaction()
    for timestamp in times:
        for _ in range(3):
            producer.produce(topic, b"beat" + b"." * 3000, partition=0, timestamp=timestamp)
    producer.commit_transaction(60)
