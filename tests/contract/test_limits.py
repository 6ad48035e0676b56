"""What bounds a copy: the flow's own limit, and quotas of brokers."""

from __future__ import annotations

import random
from functools import partial

import pytest
import watchedtask
from copies import Pair
from helpers import make_topic, produce
from pair import Shared
from quotas import quota
from waiting import MovableClock
from watchedtask import WatchedTask

from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.states import State


@pytest.fixture
def pair(source_cluster: Shared, target_cluster: Shared) -> Pair:
    return source_cluster.bootstrap, target_cluster.bootstrap


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
def test_a_quota_that_lets_nothing_through_is_named(
    pair: Pair, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is larger than the quota ever allows: a partition that had all before does not stay caught up."""
    at = TopicPartition(topic_name, 0)
    monkeypatch.setattr(watchedtask, "Endpoint", partial(Endpoint, client_id=topic_name))  # the quota is of that alone
    for bootstrap in pair:
        make_topic(bootstrap, topic_name)
    produce(pair[0], topic_name, [b"first"])
    with WatchedTask(*pair, [at]) as task:
        task.until(at, lambda one: one.state is State.CAUGHT_UP)
        with quota(pair[0], topic_name, "consumer_byte_rate", 10_000.0):
            produce(pair[0], topic_name, large(500_000))
            found = task.until(at, lambda one: one.state is State.UNAVAILABLE)
    assert "consumer_byte_rate" in found.detail
    assert (found.next_offset, found.lag_records) == (1, None)
