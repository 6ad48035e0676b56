"""What the driver of a re-keyed topic decides without a broker: how much, when again, and what it reports meanwhile."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from sparkless import idle_flow
from waiting import DEADLINE_S, MovableClock

from mirror import clock as product_clock
from mirror.errors import NotAuthenticated
from mirror.kafka.cluster import Cluster, Endpoint, Leader, Topic, TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.policy.selection import Rekeying
from mirror.spark.rekey import driver as rekey_driver
from mirror.spark.rekey import verify as proof
from mirror.spark.rekey.driver import OVERDUE_SECONDS, Rekeyer
from mirror.spark.rekey.microbatch import MicroBatchPlan, RekeyStop, Work
from mirror.spark.rekey.source import PartStanding
from mirror.states import Remedy, State
from mirror.verify.report import Lack

RULE = Rekeying(source="orders", target="orders-by-user", partitions=5, progress="mirror.a.rekey.orders-by-user")
NOWHERE = Endpoint("any", (("localhost", 1),))
#: Partitions 0 to 4, offsets 5 to 8 of each.
PLAN = MicroBatchPlan(
    number=1,
    after=0,
    begin=dict.fromkeys(range(5), 5),
    until=dict.fromkeys(range(5), 9),
    epochs=dict.fromkeys(range(5), 0),
    slots=3,
    rule=RULE,
    source_id=None,
    target_id=None,
)


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters that are entered and left, and not asked."""

    async def nothing(*_: Any) -> None: ...

    for name in ("__aenter__", "__aexit__"):
        monkeypatch.setattr(Cluster, name, nothing)


def driver_of(*parts: Any) -> Any:
    """Return a driver that has planned, with these partitions and nothing new in them."""
    nowhere: Any = None  # Spark is not asked
    made: Any = Rekeyer(nowhere, idle_flow(memory_bytes=1 << 20), RULE, frozenset())

    async def nothing(*_: Any) -> None: ...

    made._refresh = made._last_word = nothing
    made._newest = 1
    made._target_seen = product_clock.monotonic() + 1000  # the target is not looked at
    made._plans = SimpleNamespace(slots=3)
    made._side.until = lambda number, _: made._parts[number].at
    made._parts.update(enumerate(parts))
    return made


@pytest.mark.parametrize(("partitions", "offsets"), [(1, 20_000), (3, 20_000), (50, 1_200), (5_000, 100)])
def test_a_first_micro_batch_is_no_larger_than_its_slots_can_have_done(partitions: int, offsets: int) -> None:
    driver = driver_of(*[PartStanding(5) for _ in range(partitions)])
    asked = list[int]()

    def until(_: int, most: int) -> int:
        asked.append(most)
        return 5

    driver._side.until = until
    assert asyncio.run(driver._planned()) is None
    assert asked == [offsets] * partitions


def test_a_stop_is_checked_again_after_a_while_unless_the_log_hides_its_cause(clock: MovableClock) -> None:
    states = (State.REFUSED, State.CORRUPT, State.TRUNCATED)
    parts = [PartStanding(5, stop=RekeyStop(state, number, 5, "why")) for number, state in enumerate(states)]
    driver = driver_of(*parts)

    def stops() -> list[bool]:
        assert asyncio.run(driver._planned()) is None
        return [part.stop is not None for part in parts]

    assert stops() == [True, True, True]
    clock.move(61)
    assert stops() == [False, False, True]


def test_a_record_that_exhausts_the_engine_is_searched_for_and_stops_its_partition_alone() -> None:
    """First each partition alone, then quarters of its range, until one record has failed twice."""
    driver = driver_of(PartStanding(5), PartStanding(5))

    def narrowed(ranges: dict[int, tuple[int, int]]) -> None:
        begin, until = ({number: side[at] for number, side in ranges.items()} for at in (0, 1))
        driver._trial = replace(PLAN, begin=begin, until=until)
        driver._failures += 1
        driver._narrow("OutOfMemoryError")

    narrowed({0: (5, 105), 1: (5, 9)})
    assert driver._suspects == {0: 105, 1: 9}
    narrowed({0: (5, 105)})
    assert driver._offsets == 25
    for _ in range(2):
        narrowed({0: (7, 8)})
    stop = driver._parts[0].stop
    assert (stop.state, stop.offset, stop.remedies) == (State.REFUSED, 7, (Remedy.CHANGE_RULE,))
    assert driver._parts[1].stop is None


def test_a_micro_batch_that_takes_very_long_is_named_while_it_does(
    monkeypatch: pytest.MonkeyPatch, clock: MovableClock
) -> None:
    monkeypatch.setattr(rekey_driver, "STILL_SECONDS", 0.01)
    driver = driver_of(*[PartStanding(5, end=9, has_end=True) for _ in range(5)])
    ended, reported = threading.Event(), list[PartitionStatus]()

    def hangs(_: Work) -> list[Any]:
        clock.move(OVERDUE_SECONDS + 1)
        assert ended.wait(DEADLINE_S)
        return []

    async def last_word() -> None:
        reported.extend(driver.figures.values())
        ended.set()

    driver._in_spark, driver._last_word = hangs, last_word
    assert asyncio.run(driver._carry_out(PLAN, asyncio.Event())) == []
    assert {one.state for one in reported} == {State.UNAVAILABLE}
    assert "5 to 8 of partition 0, 5 to 8 of partition 1, 5 to 8 of partition 2 and 2 more" in reported[0].detail
    assert {one.state for one in driver.figures.values()} == {State.MIRRORING}


@pytest.mark.usefixtures("no_cluster")
def test_a_job_that_the_end_cuts_short_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, stopping = driver_of(PartStanding(5, end=9, has_end=True)), asyncio.Event()

    async def lives(_: Any) -> bool:
        return True

    async def go_on(*_: Any) -> None:
        stopping.set()
        raise OSError("job group was cancelled")

    monkeypatch.setattr(rekey_driver, "may_live", lives)
    driver._session, driver._go_on = SimpleNamespace(sparkContext=None), go_on
    asyncio.run(driver.run("here", stopping, tuple))
    assert [one.state for one in driver.figures.values()] == [State.MIRRORING]


@pytest.mark.usefixtures("no_cluster")
def test_a_topic_whose_login_fails_stops_by_name_and_is_tried_again() -> None:
    driver, tried = driver_of(), list[State]()
    driver._flow = replace(driver._flow, epoch_seconds=0.0)

    async def go_on(*_: Any) -> None:
        tried.extend(one.state for one in driver.figures.values())
        if not tried:
            driver._source.topics[RULE.source] = Topic(RULE.source, None, {0: Leader(1, 1), 1: Leader(1, 1)})
            raise NotAuthenticated("cluster any: SASL: who are you")

    driver._go_on = go_on
    asyncio.run(driver.run("here", asyncio.Event(), tuple))
    assert tried == [State.UNAUTHORIZED] * 2
    details = {one.detail for one in driver.figures.values()}
    assert details == {f"cluster any: SASL: who are you. {Remedy.MEND_LOGIN.text()}"}


# --- the extent of a proof --------------------------------------------------------------------------------------------

SUBJECT = proof.RekeySubject(flow="a", rule=RULE, source=NOWHERE, target=NOWHERE)


def test_a_proof_fixes_the_targets_ends_before_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both logs grow by a record with every question: what is on the target is on the source as well."""
    ends = count(1)

    async def refresh(cluster: Cluster, topics: Any) -> None:
        cluster.topics = {topic: Topic(topic, None, {}) for topic in topics}

    async def spans(_: Any, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        return ({0: 0}, {0: next(ends)}) if topic else ({}, {})

    async def done(*_: Any) -> dict[int, int]:
        return {0: 1000}

    async def doubt(*_: Any) -> str:
        return ""

    monkeypatch.setattr(Cluster, "refresh", refresh)
    for name, stand_in in (("_spans", spans), ("_done", done), ("_doubt", doubt)):
        monkeypatch.setattr(proof, name, stand_in)
    extent = asyncio.run(proof.extent_of(SUBJECT, 0.0))
    assert extent is not None
    assert extent.target_end[0] < extent.end[0]


@pytest.mark.parametrize(
    ("losses", "lacking"),
    [({}, [(0, 2, 7)]), ({0: ((2, 5),)}, [(0, 5, 7)]), ({0: ((0, 7),)}, [])],
    ids=["none", "some", "all"],
)
def test_what_the_source_deleted_before_it_was_re_keyed_is_not_verified_unless_on_record_as_lost(
    losses: Any, lacking: list[tuple[int, int, int]]
) -> None:
    nine = {0: 9, 1: 9}
    extent = proof.ComparedExtent(
        begin={0: 7, 1: 0},
        done=nine,
        end=nine,
        written=nine,
        target_end=nine,
        reached={0: 2, 1: 9},
        target_begin={0: 0, 1: 0},
        dead_begin={},
        dead_end={},
        source_id=None,
        target_id=None,
    )
    found = list(proof._behind(replace(SUBJECT, losses=losses), extent))
    assert [(one.partition, one.first, one.next_offset) for one in found] == lacking
    assert all(one.kind is Lack.NOT_VERIFIED for one in found)


def test_a_transaction_that_stays_open_is_named_by_its_report() -> None:
    standing = PartStanding(50, end=50, written=80, held_since=float("-inf"), has_end=True)
    figures = standing.figures(TopicPartition("orders", 0), "by-user", "f", "here")
    assert figures.detail.startswith("a transaction is open on the source from offset 50 on")
    assert (figures.lag_records, figures.log_end) == (30, 80)
    assert replace(standing, held_since=None).figures(TopicPartition("orders", 0), "by-user", "f", "here").detail == ""
