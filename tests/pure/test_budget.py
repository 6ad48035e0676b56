"""The bound on what is fetched: a task's bucket, and how tasks, readers and re-keying share."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from helpers import settings_between
from hypothesis import given
from hypothesis import strategies as st
from scraped import report
from sparkless import InThisProcess, idle_flow

from mirror.config.models import LimitSettings, TopicRule
from mirror.driver.scheduling import Limits, rates_of
from mirror.driver.topic_watcher import NewPlan
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.rate_limit import Bucket, shares
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.policy.selection import Rekeying, rekeyed_by
from mirror.replication.assignment import Assignment
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.queries import Queries
from mirror.spark.supervisor import Supervisor

RATES = st.floats(1.0, 1e10)


@given(RATES, st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 1 << 24)), max_size=60))
def test_a_bucket_never_gives_more_than_its_rate_but_for_one_answer(
    rate: float, steps: list[tuple[float, int]]
) -> None:
    """Whoever asks, at whatever moments: in the time since the first check no more came than the rate allows, the last
    answer aside, since a broker gives one batch however large it is.
    """
    bucket, now = Bucket(rate), 0.0
    assert bucket.left(now) == 0, "it begins empty"
    came = last = 0
    for passed, batch in steps:
        now += passed
        if asked := bucket.left(now):
            last = max(asked, batch)
            bucket.spend(last)
            came += last
    assert came - last <= rate * now * 1.000001 + 1


@given(RATES, st.integers(1, 1 << 24))
def test_whoever_waits_as_long_as_asked_may_ask(rate: float, batch: int) -> None:
    bucket, now = Bucket(rate), 0.0
    for _ in range(20):
        now += bucket.wait(now) * 1.000001
        assert bucket.left(now)
        bucket.spend(batch)


def test_a_bucket_that_is_used_as_soon_as_it_may_be_gives_its_rate() -> None:
    bucket, now, came = Bucket(1_000_000), 0.0, 0
    bucket.left(now)
    while now < 60:
        now += max(0.001, bucket.wait(now))
        if bucket.left(now):
            bucket.spend(900_000)  # one batch, larger than what may be held
            came += 900_000
    assert came == pytest.approx(60_000_000, rel=0.03)
    assert bucket.left(now + 3600.0) == 500_000, "rest is not saved up"


@given(RATES, st.lists(st.floats(0.0, 1e12), min_size=1, max_size=50))
def test_shares_add_up_and_none_is_nothing(rate: float, demands: list[float]) -> None:
    given_out = shares(rate, demands)
    assert sum(given_out) == pytest.approx(rate)
    assert min(given_out) > 0
    idle, busy, busier = shares(100.0, [0, 10, 30])
    assert idle < busy < busier


def of(topic: str) -> Assignment:
    at = TopicPartition(topic, 0)
    return Assignment(at, at, None, Rules())


def test_re_keying_gets_its_part_of_a_bound() -> None:
    """Of the bound of now, by how many topics there are now: whatever both were at the start."""

    def named(topic: str) -> Rekeying:
        return rekeyed_by(TopicRule(match=re.compile(topic), partitions=3), topic, topic, 3)

    flow = idle_flow(of("a"), of("b"))
    limits = LimitSettings(bytes_per_second=900, memory_mb=64)
    bound = settings_between("a:1", "b:1", ["a"]).model_copy(update={"limits": limits})

    async def story() -> None:
        engine: Any = InThisProcess()
        queries = Queries(lambda rule: Rekeyer(engine, flow, rule, frozenset()))
        mirror = Supervisor(engine, flow, lambda _: None, queries=queries)
        stopped = asyncio.Event()
        stopped.set()
        queries.start(stopped, stopped.set, mirror._journal_state, limits=mirror._rekey_limits)
        mirror.configured(bound)
        assert mirror._rates[0] == 900
        for topic, rates in (("c", (600, 300)), ("d", (450, 225))):
            mirror.rekey(NewPlan((), rekeyed=(named(topic),)))
            assert mirror._rates == pytest.approx(rates)
            assert {one.limits() for one in queries._rekeyers.values()} == {Limits(rates[1], 64 << 20)}
        await queries.cancel()

    asyncio.run(story())


def test_tasks_share_a_bound_by_what_they_have_to_move() -> None:
    def lagging(topic: str, records: int) -> PartitionStatus:
        return report(topic=topic, next_offset=0, log_end=records, lag_records=records, records=10, bytes=1000)

    tasks = [(of("behind"), of("quiet")), (of("busy"),), (of("unknown"),)]
    figures = {TopicPartition(name, 0): lagging(name, lag) for name, lag in (("behind", 30), ("quiet", 0))}
    behind, busy, unknown = rates_of(1000, tasks, figures, {TopicPartition("busy", 0): 1000})
    assert behind is not None
    assert (behind, busy, unknown) == pytest.approx((200 / 3 + 600, 200 / 3 + 200, 200 / 3))
    assert rates_of(None, tasks, figures, {}) == [None] * 3
