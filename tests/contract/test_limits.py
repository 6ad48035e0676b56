"""What bounds a copy: the flow's own limit, quotas of brokers, and what these take as one request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from copies import Pair
from faults.network import Network
from helpers import endpoint, make_topic, produce
from livemirror import LiveMirror
from pair import Shared
from quotas import quota
from samerecords import assert_same_records
from waiting import MovableClock, until
from watchedtask import WatchedTask

from mirror.config import ClusterSettings
from mirror.journal.journal import Journal, journal_topic
from mirror.journal.ownership import Owner, restate
from mirror.kafka import admin
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.policy.rules import Rules
from mirror.states import Remedy, State

#: Bytes of the largest request that a target takes.
MOST = 400_000


def large(size: int) -> list[bytes]:
    """A record that does not compress."""
    return [random.Random(7).randbytes(size)]


@pytest.mark.proves("MIRRORING")
def test_a_bounded_copy_waits_until_its_debt_is_paid_and_knows_its_lag(
    pair: Pair, topic_name: str, clock: MovableClock
) -> None:
    """A batch that is worth 500 seconds keeps the task from fetching: it must not look as if all were there."""
    at = TopicPartition(topic_name, 0)
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)
    produce(pair[0], topic_name, large(500_000))
    with WatchedTask(*pair, [at], bytes_per_second=1_000.0) as task:
        task.mirrored(at, 1)
        produce(pair[0], topic_name, [b"small"] * 5)
        found = task.until(at, lambda one: one.log_end == 6)
        assert (found.state, found.next_offset, found.lag_records) == (State.MIRRORING, 1, 5)
        clock.move(600)
        task.mirrored(at, 6)


@pytest.mark.proves("never-silent", "UNAVAILABLE", "CAUGHT_UP")
def test_a_quota_that_lets_nothing_through_is_named(pair: Pair, topic_name: str) -> None:
    """A batch is larger than the quota ever allows: a partition that had all before does not stay caught up."""
    at = TopicPartition(topic_name, 0)
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)
    produce(pair[0], topic_name, [b"first"])
    with WatchedTask(*pair, [at], client_id=topic_name) as task:  # the quota is of that alone
        task.until(at, lambda one: one.state is State.CAUGHT_UP)
        with quota(pair[0], topic_name, "consumer_byte_rate", 10_000.0):
            produce(pair[0], topic_name, large(500_000))
            found = task.until(at, lambda one: one.state is State.UNAVAILABLE)
    assert "consumer_byte_rate" in found.detail
    assert (found.next_offset, found.lag_records) == (1, None)


@pytest.mark.proves("never-silent", "MIRRORING")
def test_a_quota_of_the_target_is_named_while_it_is_waited_for(pair: Pair, topic_name: str) -> None:
    at = TopicPartition(topic_name, 0)
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)
    for _ in range(3):
        produce(pair[0], topic_name, large(300_000), batch=1)
    with (
        quota(pair[1], topic_name, "producer_byte_rate", 20_000.0),
        WatchedTask(*pair, [at], client_id=topic_name) as task,
    ):
        found = task.until(at, lambda one: "producer_byte_rate" in one.detail)
    assert found.state is State.MIRRORING


def test_a_mirror_that_a_quota_mutes_still_says_that_it_lives(target_cluster: Shared, topic_name: str) -> None:
    """Whoever stands by would take the flow over after 15 s."""
    bootstrap = target_cluster.bootstrap
    make_topic(bootstrap, journal_topic(topic_name))
    client = replace(endpoint(bootstrap), client_id=topic_name)

    async def say_again() -> list[bool]:
        async with Cluster(client) as target:
            journal, owner = Journal(target, topic_name), Owner.here("this one", claim=1)
            await journal.append([(b"large", large(300_000)[0])])
            return [await restate(journal, owner) for _ in range(3)]

    with quota(bootstrap, topic_name, "producer_byte_rate", 10_000.0):
        assert asyncio.run(say_again()) == [True] * 3


def test_a_quota_of_creations_is_waited_for_and_keeps_nothing_else(
    target_cluster: Shared, topic_name: str, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers take what goes beyond it, and then nothing over the same connection (KIP-599)."""
    bootstrap, waited = target_cluster.bootstrap, list[float]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        clock.move(seconds)

    monkeypatch.setattr(admin, "time", SimpleNamespace(sleep=sleep))
    settings = {"alias": "us", "bootstrap.servers": bootstrap, "client.id": topic_name}
    target = admin.Admin(ClusterSettings.model_validate(settings))
    made = [admin.Creation(topic=f"{topic_name}-{n}", partitions=10, replication_factor=1) for n in range(5)]
    with quota(bootstrap, topic_name, "controller_mutation_rate", 1.0):
        target.create_topics(made[:4])
        assert target.broker_configs()
        assert not waited
        target.create_topics(made[4:])
    assert len(waited) == 1
    assert 10 < waited[0] < 60
    until(lambda: len(target.describe([one.topic for one in made])) == len(made))


# --- a target that closes the connection, without a word, over a request that is larger than it takes (W15)


@pytest.fixture
def network(target_cluster: Shared) -> Iterator[Network]:
    with Network(target_cluster.bootstrap, most=MOST) as found:
        yield found


def produce_batch(bootstrap: str, topic: str, *sizes: int) -> None:
    """Records that do not compress, as one batch."""
    values = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    produce(bootstrap, topic, values, batch=len(sizes))


@pytest.fixture
def cut_pair(source_cluster: Shared, network: Network, topic_name: str) -> Pair:
    """The topic and its neighbor, with small records alone."""
    for name in (topic_name, f"{topic_name}-neighbor"):
        for bootstrap in (source_cluster.bootstrap, network.bootstrap):
            make_topic(bootstrap, name)
        produce(source_cluster.bootstrap, name, [b"small"] * 5)
    return source_cluster.bootstrap, network.bootstrap


@pytest.mark.proves("REWRITE", "same-offsets", "exactly-once")
@pytest.mark.parametrize("sizes", [(90_000,) * 10, (200_000, 390_000, 200_000)])
def test_a_batch_that_the_target_cuts_off_is_split(
    cut_pair: Pair, target_cluster: Shared, topic_name: str, sizes: tuple[int, ...]
) -> None:
    """Also where one of its records has more than the half of what is tried."""
    at = TopicPartition(topic_name, 0)
    produce_batch(cut_pair[0], topic_name, *sizes)
    produce(cut_pair[0], topic_name, [b"after"])
    with WatchedTask(*cut_pair, [at]) as task:
        found = task.mirrored(at, 6 + len(sizes))
    assert found.verdicts["REWRITE/too_large"] > 1
    assert_same_records(cut_pair[0], target_cluster.bootstrap, topic_name, 1)


@pytest.mark.proves("REFUSED", "never-silent")
def test_a_record_that_the_target_cuts_off_stops_its_partition_alone(
    cut_pair: Pair, network: Network, topic_name: str
) -> None:
    """A neighbor on the same leader loses its connection once; another large one goes alone at once."""
    at, neighbor = TopicPartition(topic_name, 0), TopicPartition(f"{topic_name}-neighbor", 0)
    produce_batch(cut_pair[0], topic_name, 900_000)
    with WatchedTask(*cut_pair, [at, neighbor]) as task:
        found = task.until(at, lambda one: one.state.is_stop)
        assert (found.state, found.next_offset) == (State.REFUSED, 5)
        assert "socket.request.max.bytes" in found.detail
        assert "a record takes 900072 bytes" in found.detail
        assert network.closed == 3
        writes = task.writer(neighbor)
        produce(cut_pair[0], neighbor.topic, [b"after"] * 5)
        task.mirrored(neighbor, 10)
    with WatchedTask(*cut_pair, [at, neighbor]) as task:
        task.mirrored(neighbor, 10)
        writes = task.writer(neighbor)
        assert task.until(at, lambda one: one.state.is_stop).state is State.REFUSED
        assert task.writer(neighbor) is writes
    assert network.closed == 5


@pytest.mark.proves("REFUSED")
def test_a_record_that_the_target_cuts_off_is_left_out_where_that_is_allowed(cut_pair: Pair, topic_name: str) -> None:
    at = TopicPartition(topic_name, 0)
    produce_batch(cut_pair[0], topic_name, 900_000)
    produce_batch(cut_pair[0], topic_name, 300_000, 300_000)
    with WatchedTask(*cut_pair, [at], rules=Rules(skips_too_large=True)) as task:
        found = task.mirrored(at, 8)
    assert (found.records, found.lost) == (7, 1)


@pytest.mark.proves("REFUSED", "never-silent")
def test_a_mirror_goes_on_once_the_limit_is_raised(
    source_cluster: Shared, target_cluster: Shared, network: Network, topic_name: str, tmp_path: Path
) -> None:
    live = LiveMirror(source_cluster, replace(target_cluster, bootstrap=network.bootstrap), topic_name, tmp_path)
    live.create()
    produce_batch(live.source, topic_name, 900_000)
    with live.running():
        live.until_stopped(State.REFUSED, Remedy.RAISE_REQUEST)
        network.most = 1 << 30
        live.until(State.CAUGHT_UP)
