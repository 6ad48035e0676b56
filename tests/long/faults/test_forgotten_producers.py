"""A leader that has forgotten the flow's producer takes any batch: where a copy stands is known by its log alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import Producer
from faults.network import Network, Rule, What
from faults.points import REQUESTS
from helpers import RECENT_MS, make_topic, mirror_once, produce, stored_batches
from probe import probing_existing
from samerecords import assert_same_records, read
from topicadmin import delete_records
from waiting import DEADLINE_S, MovableClock
from watchedtask import WatchedTask

from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.policy.rules import NO_LIMIT
from mirror.replication import writer
from mirror.replication.writer import FRESH
from mirror.states import State


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Cluster]:
    """A target that forgets a producer at once: it goes by timestamps, and these tests' records are an hour old."""
    config = {"producer.id.expiration.ms": 1, "producer.id.expiration.check.interval.ms": 10}
    with Cluster.start(name="forgetful", config=config) as cluster:
        yield cluster


def await_forgotten(cluster: Cluster, topic: str) -> None:
    """Wait until the leader of the one partition knows no producer."""

    async def poll() -> None:
        async with probing_existing(cluster.bootstrap, topic) as probe:
            while await probe.remembered():
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(poll(), DEADLINE_S))


def values(count: int, first: int = 0) -> Iterator[bytes]:
    return (b"%06d" % number + b"." * 300 for number in range(first, first + count))


def test_a_mirror_goes_on_where_the_leader_forgot_it(own_source: Cluster, forgetful: Cluster, topic_name: str) -> None:
    """In one task, which believes that the leader knows it, and from one task to the next."""
    source, target, at = own_source.bootstrap, forgetful.bootstrap, TopicPartition(topic_name, 0)
    for bootstrap in (source, target):
        make_topic(bootstrap, topic_name)
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
@pytest.mark.parametrize("nth", [1, 2])
def test_an_unclear_answer_is_decided_by_the_logs_end(
    what: What, nth: int, own_source: Cluster, forgetful: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is in the log, or is not, and no sequence would distinguish them."""
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
def test_padding_whose_answer_is_lost_is_written_once(
    what: What, own_source: Cluster, forgetful: Cluster, topic_name: str
) -> None:
    source, target = own_source.bootstrap, forgetful.bootstrap
    for bootstrap in (source, target):
        make_topic(bootstrap, topic_name)
    produce(source, topic_name, values(60))
    delete_records(source, topic_name, 50)
    rule = Rule(what, REQUESTS["produce"], 1)
    with Network(target) as network:
        network.disturb(rule)
        figures = mirror_once(source, network.bootstrap, [topic_name])[TopicPartition(topic_name, 0)]
    assert (figures.state, figures.next_offset) == (State.CAUGHT_UP, 60), figures
    assert rule.fired == 1
    assert [one[0] for one in read(target, topic_name, 0)] == list(range(50, 60))


def test_nothing_follows_a_batch_that_the_leader_refused(
    own_source: Cluster, forgetful: Cluster, topic_name: str
) -> None:
    """Else the next one takes its place; where batches are alike, no check of the last one shows it."""
    source, target, at = own_source.bootstrap, forgetful.bootstrap, TopicPartition(topic_name, 0)
    make_topic(source, topic_name, configs={"message.timestamp.after.max.ms": str(NO_LIMIT)})
    make_topic(target, topic_name)
    with WatchedTask(source, target, [at]) as task:
        produce(source, topic_name, values(10), batch=5)
        task.mirrored(at, 10)
        await_forgotten(forgetful, topic_name)
        time.sleep(FRESH)
        tomorrow = int(time.time() * 1000) + 86_400_000
        _produce_at_once(source, topic_name, [tomorrow] * 3 + [RECENT_MS] * 18)
        assert task.stopped(at).state is State.REFUSED
    assert sum(one.header.count for one in stored_batches(target, topic_name)) == 10


def _produce_at_once(bootstrap: str, topic: str, times: Sequence[int]) -> None:
    """Produce equal records, three in a batch; a reader gets all of them together, when they are committed."""
    config = {"transactional.id": topic, "linger.ms": 5000, "batch.num.messages": 3}
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for timestamp in times:
        producer.produce(topic, b"beat" + b"." * 3000, partition=0, timestamp=timestamp)
    producer.commit_transaction(DEADLINE_S)


def test_what_was_queued_before_a_suspension_is_not_sent_behind_it(
    own_source: Cluster, forgetful: Cluster, topic_name: str, clock: MovableClock
) -> None:
    """Another mirror has copied it meanwhile, and the leader would take it a second time."""
    source, target, count = own_source.bootstrap, forgetful.bootstrap, 10_000
    at = TopicPartition(topic_name, 0)
    for bootstrap in (source, target):
        make_topic(bootstrap, topic_name)
    produce(source, topic_name, values(count), batch=2)
    asleep, awake = threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.set()
        awake.wait(DEADLINE_S)

    with WatchedTask(source, target, [at]) as task:
        task.mirrored(at, 500)
        task._loop.call_soon_threadsafe(sleep)
        assert asleep.wait(DEADLINE_S)
        assert task.figures(at).next_offset < count, "it was done before it could be suspended"
        found = mirror_once(source, target, [topic_name])[at]
        assert (found.state, found.next_offset) == (State.CAUGHT_UP, count)
        await_forgotten(forgetful, topic_name)
        clock.move(60)
        awake.set()
        found = task.until(at, lambda one: one.state.is_stop or one.next_offset == count)
    assert stored_batches(target, topic_name)[-1].header.next_offset == count
    assert assert_same_records(source, target, topic_name, 1) == count
