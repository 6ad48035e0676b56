"""What bounds a copy: the flow's own limit, and quotas of brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import pytest
import watchedtask
from copies import Pair
from helpers import make_topic, produce
from pair import Shared
from waiting import MovableClock
from watchedtask import WatchedTask

from mirror.config import parse_address
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.protocol import Api
from mirror.states import State

ALTER_QUOTAS: Final = Api(49, "alter_client_quotas", 1, 1)


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


@contextmanager
def quota(bootstrap: str, client_id: str, name: str, value: float) -> Iterator[None]:
    """A quota for a client id while this is open."""

    async def alter(*, remove: bool) -> None:
        schema = ALTER_QUOTAS.schema(1, "request")
        entity = schema.EntityData(entity_type="client-id", entity_name=client_id)
        entry = schema.EntryData(entity=(entity,), ops=(schema.OpData(key=name, value=value, remove=remove),))
        async with Cluster(Endpoint("any", (parse_address(bootstrap),))) as cluster:
            await cluster.refresh()
            answer = await cluster.call(cluster.nodes[0], ALTER_QUOTAS, entries=(entry,), validate_only=False)
            assert [one.error_code for one in answer.entries] == [0]

    asyncio.run(alter(remove=False))
    try:
        yield
    finally:
        asyncio.run(alter(remove=True))


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
