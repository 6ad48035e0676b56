"""`mirror failover` and the way back: nothing missed, nothing read twice, and what is lost is named by its offsets."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, Timer
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions
from groupoffsets import commit, committed
from helpers import config_file, make_topic, mirror_once, produce
from hypothesis import given
from hypothesis import strategies as st
from running import forked, values, wait_for
from samerecords import assert_same_records, read
from sparkless import run_once
from syncing import admin_of, delete_topics
from transactional import transactions
from typer.testing import CliRunner

from mirror import config
from mirror.cli import app
from mirror.commands import failover
from mirror.commands.failover_view import FailoverReport, account_entry, account_in, as_dict, rendered
from mirror.config import Settings
from mirror.driver.control import until_marked
from mirror.driver.flow import prepare
from mirror.driver.journal_state import JournalState
from mirror.driver.start import recorded
from mirror.driver.topic_watcher import Replanner
from mirror.errors import ClusterUnreachable, ConfigError, ExitCode, PartitionStop, PreflightError
from mirror.failover.account import UNCHECKED, _compared, _exposure, _placed, doubts_of, ends_of
from mirror.failover.drain import _stretches, drain
from mirror.failover.rpo import AcceptedLoss, JournalSnapshot, PartitionRpo, RecoveryPoint
from mirror.groups.decide import Standing
from mirror.groups.gap import GROUPS_STAY
from mirror.journal.entries import FirstSeen, loss_entry, pause_entry, seen_in
from mirror.journal.journal import ENDED, OWNER, Entry, Journal, News
from mirror.journal.journal import Place as JournalPlace
from mirror.journal.ownership import ACCOUNT, FailedOver, Garbled, Owner, ending, refuse_failed_over
from mirror.journal.ownership import KEY as FAILED_OVER
from mirror.journal.positions import position_entry, standing_in
from mirror.kafka.admin import Admin, Span
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, Leader, Topic, TopicPartition
from mirror.kafka.topic_configs import ConfigChange
from mirror.lab.embedded import Cluster
from mirror.observability.metrics import Metrics
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.rendering import console
from mirror.replication.assignment import Assignment, LastPosition, Loss
from mirror.replication.partition_writer import PartitionCounters
from mirror.spark.task import TaskAssignment, TaskResult
from mirror.states import Remedy, State
from mirror.suspension import beating
from mirror.topics.history import read_own

#: Seconds that nothing here takes.
DEADLINE: Final = 180.0

# --- what is lost, pure ---------------------------------------------------------------------------------------------


def exposure(**more: Any) -> PartitionRpo:
    fields = {
        "topic": "orders",
        "partition": 0,
        "target_topic": "orders",
        "position": 90,
        "end": 90,
        "state": State.CAUGHT_UP,
    }
    return PartitionRpo(**{**fields, **more})


@pytest.mark.parametrize(
    ("more", "records", "seconds", "whole"),
    [
        ({}, 0, 0.0, True),
        ({"position": 95}, 0, None, False),
        ({"end": 100, "lost_from_ms": 2500}, 10, 2.5, False),
        ({"end": 100}, 10, None, False),
        ({"end": None, "lag": 7, "seen_ms": 4000}, 7, 4.0, False),
        ({"end": None, "seen_ms": 4000}, 0, 4.0, False),
        ({"end": None}, 0, None, False),
        ({"state": State.RECREATED, "end": 40}, 40, None, False),
        ({"state": State.DIVERGED, "position": 160, "end": 150}, 150, None, False),
        ({"state": State.TRUNCATED, "end": 100, "lost_from_ms": 2500}, 10, None, False),
        ({"state": State.FENCED}, 0, None, False),
        ({"state": State.CORRUPT}, 0, 0.0, False),
        ({"position": None, "problem": "no broker answered"}, 90, None, False),
        ({"position": None, "problem": "no broker answered", "end": None, "lag": 7}, 7, None, False),
        ({"state": State.DIVERGED, "end": None, "lag": 7, "seen_ms": 4000}, 7, None, False),
    ],
)
def test_what_a_partition_lost(more: dict[str, Any], records: int, seconds: float | None, whole: bool) -> None:
    one = exposure(**more)
    assert (one.records, one.seconds, one.is_whole) == (records, seconds, whole)


@pytest.mark.parametrize(("ahead_ms", "seconds"), [(-20_000, 20.0), (500, 0.0), (7_200_000, None)])
def test_a_report_of_the_future_does_not_say_how_long_ago_the_source_was_seen(
    ahead_ms: int, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the mirror's machine is ahead of ours, and the source is away: it was any time ago."""
    monkeypatch.setattr("mirror.clock.now_ms", lambda: 1_700_000_000_000)
    one = PartitionStatus.from_json(figures("orders", 150)[1])
    one = replace(one, at_ms=1_700_000_000_000 + ahead_ms, log_end=150, lag_ms=0)
    known: Any = SimpleNamespace(contact={TopicPartition("orders", 0): one})
    found = asyncio.run(_exposure(None, None, None, known, one, 150))
    assert (found.seconds, found.records) == (seconds, 0)


@pytest.mark.parametrize(("ahead_ms", "seconds"), [(-20_000, 20.0), (7_200_000, None)])
def test_what_a_flow_lost_is_known_for_as_long_as_its_source_is_away(
    ahead_ms: int, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal was compacted since: of each partition it has the newest report, of a task that never began."""
    now = 1_700_000_000_000
    monkeypatch.setattr("mirror.clock.now_ms", lambda: now)
    one = PartitionStatus.from_json(figures("orders", -1, State.UNAVAILABLE)[1])
    one = replace(one, at_ms=now, log_end=5000, contact_ms=now + ahead_ms)
    position = position_entry(TopicPartition("orders", 0), LastPosition(source_next=1000, target_end=1000))
    known = JournalSnapshot(cast(Journal, Journaling([(one.key(), one.to_json()), position])))
    asyncio.run(known.read())
    for answer in (1000, ClusterUnreachable("the target does not answer for it")):
        placed = _placed(known.figures[TopicPartition("orders", 0)], standing_in(known.newest).positions.popitem()[1])
        found = asyncio.run(_exposure(None, None, None, known, placed, answer))
        assert (found.records, found.is_certain) == (4000, False)
        assert found.seen_ms == (None if seconds is None else seconds * 1000)


@pytest.mark.parametrize(("unlike", "reason"), [(0, ""), (1, ""), (9, "other records")])
def test_a_difference_that_nobody_can_judge_is_none_that_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, unlike: int, reason: str
) -> None:
    """A broker that may know better is silent, and the copy was reported to be its source's. It is looked for again."""
    left = [unlike]

    async def compared(*_: object) -> Any:
        if left[0]:
            left[0] -= 1
            raise ClusterUnreachable("no answer") from PartitionStop(
                State.DIVERGED, "orders", 0, 7, "other records", Remedy.RENAME
            )
        raise ClusterUnreachable("no answer")

    async def there(_: object) -> None:
        pass

    monkeypatch.setattr("mirror.failover.account.resume", compared)
    one = replace(PartitionStatus.from_json(figures("orders", 150)[1]), state=State.CAUGHT_UP, verified=True)
    cluster: Any = SimpleNamespace(require=there, topic_id=lambda _: None)
    known: Any = SimpleNamespace(journal=SimpleNamespace(cluster=cluster))
    settings: Any = SimpleNamespace(flow="a", topics=SimpleNamespace(offsets="preserve"))
    found = asyncio.run(_compared(settings, cluster, known, one, 0, None, (), ()))
    assert (found.reason if found else "").partition(";")[0] == reason


def test_leaders_that_do_not_answer_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata still names the brokers that died with a majority of the controllers: each question to one of them, of
    which 32 go at a time, would cost ten seconds. One that falls silent while copies are compared costs no more.
    """
    there = [TopicPartition("orders", number) for number in range(4)]
    asked, compared, refreshed = list[TopicPartition](), list[TopicPartition](), list[int]()

    async def offset_of(_cluster: object, at: TopicPartition, *_: object) -> int:
        asked.append(at)
        return 7

    async def refresh(*_: object) -> None:
        refreshed.append(1)

    async def compare(_s: object, _c: object, _k: object, one: PartitionStatus, *_: object) -> None:
        compared.append(TopicPartition(one.topic, one.partition))
        source.silent = frozenset({2, 3})

    monkeypatch.setattr("mirror.failover.account.list_offset", offset_of)
    monkeypatch.setattr("mirror.failover.account._compared", compare)
    monkeypatch.setattr("mirror.failover.account._COMPARED_AT_ONCE", 1)
    monkeypatch.setattr("mirror.failover.account.CALL_TIMEOUT", 0.2)
    monkeypatch.setattr("mirror.failover.account._LEADER_SECONDS", 0.05)
    monkeypatch.setattr(Wire, "refresh", refresh)
    source, target = (Wire(Endpoint(alias, (("localhost", 9092),))) for alias in ("eu", "us"))
    led = {number: Leader(node, 0) for number, node in enumerate((1, 2, -1, 3))}
    source.topics["orders"] = Topic("orders", None, led)
    source.silent = frozenset({2})
    assert asyncio.run(ends_of(source, there)) == {there[0]: 7, there[3]: 7}
    assert refreshed, "they were waited for"
    refreshed.clear()
    assert asyncio.run(ends_of(source, there)) == {there[0]: 7, there[3]: 7}
    assert not refreshed, "a second time"
    assert set(asked) == {there[0], there[3]}

    one = PartitionStatus.from_json(figures("orders", 150, State.UNAVAILABLE)[1])
    known: Any = SimpleNamespace(
        journal=SimpleNamespace(cluster=target), newest={}, figures={at: replace(one, partition=at[1]) for at in there}
    )
    settings: Any = SimpleNamespace(topics=SimpleNamespace(rules=()))
    doubts = asyncio.run(doubts_of(settings, source, known))
    assert compared == [there[0]]
    assert {at: doubt and doubt.reason.partition(":")[0] for at, doubt in doubts.items()} == {
        there[0]: None,
        **dict.fromkeys(there[1:], "both logs could not be compared"),
    }
    asked.clear()
    source.silent = frozenset()
    assert asyncio.run(ends_of(source, there)) == {there[0]: 7, there[1]: 7, there[3]: 7}, "those that came back"


def test_what_a_flow_lost() -> None:
    late, lost = exposure(end=100, lost_from_ms=2500), exposure(end=None, lag=7, seen_ms=4000)
    assert RecoveryPoint.of([exposure(), late]) == RecoveryPoint(10, 2.5, True)
    assert RecoveryPoint.of([late, lost]) == RecoveryPoint(17, 4.0, False)
    assert RecoveryPoint.of([late, exposure(end=100)]) == RecoveryPoint(20, None, True)
    assert RecoveryPoint.of([exposure(position=95)]) == RecoveryPoint(0, None, False)
    assert RecoveryPoint.of([exposure(state=State.CORRUPT)]) == RecoveryPoint(0, 0.0, True)
    assert RecoveryPoint.of([exposure(state=State.RECREATED)]) == RecoveryPoint(90, None, False)
    assert RecoveryPoint.of([]) == RecoveryPoint(0, 0.0, True)
    assert (exposure(state=State.PADDING).is_over, exposure().is_over) == (False, True), "readers would find padding"


def test_a_loss_that_was_accepted_is_named_and_keeps_a_failover_from_being_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = exposure(losses=(AcceptedLoss(40, 55, "retention"),))
    assert (lost.is_over, lost.is_whole, lost.records, lost.doubt) == (True, False, 0, "")
    one = account(exposures=(lost,))
    assert (one.is_whole, one.lacks_losses_alone, as_dict(one)["whole"]) == (False, True, False)
    (fields,) = as_dict(one)["accepted_losses"]
    assert fields == {
        "topic": "orders",
        "partition": 0,
        "target_topic": "orders",
        "first": 40,
        "next_offset": 55,
        "reason": "retention",
    }
    assert "orders-0: accepted loss, offsets 40 to 54 (15): reason retention" in printed(one, capsys)
    assert account_in({ACCOUNT: account_entry(one)[1] or b""}) == one
    rehearsed = account(exposures=(lost,), exposed=(exposure(),), rehearsal=True)
    assert (rehearsed.is_whole, rehearsed.lacks_losses_alone) == (False, True)
    more = account(exposures=(lost, exposure(end=100)))
    assert (more.is_whole, more.lacks_losses_alone) == (False, False)


def account(**more: Any) -> FailoverReport:
    fields: dict[str, Any] = {
        "flow": "eu-to-us",
        "source": "eu",
        "target": "us",
        "rehearsal": False,
        "exposures": (exposure(),),
        "exposed": (),
        "source_problem": "",
        "groups": {Standing.SYNCED: 3},
        "warnings": (),
        "steps": {"drain": 0.5},
        "seconds": 1.25,
    }
    return FailoverReport(**{**fields, **more})


def printed(one: FailoverReport, capsys: pytest.CaptureFixture[str]) -> str:
    console().print(rendered(one))
    return " ".join(capsys.readouterr().out.split())


def test_what_is_said_of_a_failover(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(account(), capsys)
    assert "eu-to-us: failed over to us: RPO 0 records, 0 ms; RTO 1.2 s" in text
    assert "consumer groups: 3 synced" in text
    away = account(exposures=(exposure(end=None, lag=7, seen_ms=4000),), source_problem="no broker answered")
    text = printed(away, capsys)
    assert "orders-0 CAUGHT_UP 90 unknown at least 7 4.0 s" in text
    assert "RPO at least 7 records, 4.0 s" in text
    assert "the source is away: no broker answered" in text
    assert (account().is_whole, away.is_whole, as_dict(away)["rpo"]["certain"]) == (True, False, False)
    diverged = account(exposures=(exposure(position=160, end=150, state=State.DIVERGED),))
    text = printed(diverged, capsys)
    assert "orders-0 DIVERGED 160 150 at least 150 unknown" in text
    assert "orders-0: it is not known how many records are missing, since the target holds other records" in text
    assert "RPO at least 150 records, an unknown time" in text
    assert (diverged.is_whole, as_dict(diverged)["partitions"][0]["certain"]) == (False, False)
    assert not account(warnings=("the mirror did not say that it ended",)).is_whole


@given(
    st.builds(
        PartitionRpo,
        topic=st.just("orders"),
        partition=st.integers(0, 1),
        target_topic=st.just("orders"),
        position=st.none() | st.integers(80, 99),
        end=st.none() | st.integers(80, 99),
        state=st.sampled_from(State),
        problem=st.just("no broker answered"),
    ),
    st.booleans(),
)
def test_what_keeps_a_failover_from_being_whole_is_reported(one: PartitionRpo, rehearsal: bool) -> None:
    reported = account(exposures=(one,), exposed=(exposure(partition=one.partition),), rehearsal=rehearsal)
    out = console()
    with out.capture() as captured:
        out.print(rendered(reported))
    text = captured.get()
    assert reported.is_whole or "note: " in text or (not rehearsal and (one.records or one.end is None)), text


def test_an_account_is_kept() -> None:
    lacking = exposure(partition=1, end=100, lost_from_ms=2500)
    reported = account(exposures=(exposure(), lacking), warnings=("orders is paused",))
    key, value = account_entry(reported)
    assert value is not None
    assert account_in({key: value}) == reported
    assert account_in({}) is None
    assert account_in({key: b"torn"}) is None, "what is printed is then all there is"


def test_of_a_large_account_what_is_whole_is_left_out() -> None:
    lacking = exposure(partition=9999, end=100, lost_from_ms=2500)
    reported = account(exposures=(*(exposure(partition=number) for number in range(9999)), lacking))
    key, value = account_entry(reported)
    assert value is not None
    assert len(value) < 1000, "a broker takes a megabyte"
    again = account_in({key: value})
    assert again is not None
    assert (again.exposures, again.rpo) == ((lacking,), reported.rpo)


def test_what_is_said_of_a_rehearsal(capsys: pytest.CaptureFixture[str]) -> None:
    one = account(rehearsal=True, exposed=(exposure(end=100, lost_from_ms=2500),))
    assert "rehearsed, nothing was changed: RPO 10 records, 2.5 s had eu been lost" in printed(one, capsys)
    assert one.is_whole, "all of that gets over"
    assert not account(rehearsal=True, exposures=(exposure(state=State.DIVERGED),)).is_whole
    unsure = account(rehearsal=True, exposures=(exposure(end=None, lag=0),), exposed=(exposure(),))
    assert not unsure.is_whole, "a failover would end with 4"
    assert "orders-0: not whole for certain, since no leader on the source says where it ends" in printed(
        unsure, capsys
    )


def test_a_flow_that_is_over_is_advised_nothing_that_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = exposure(losses=(AcceptedLoss(0, 0, "tombstones"),), end=100, open_from=90)
    for rehearsal in (True, False):
        text = printed(account(rehearsal=rehearsal, exposures=(lacking,), exposed=(lacking,)), capsys)
        assert ("`mirror accept CONFIG orders`" in text) == rehearsal
        assert ("once `mirror failover CONFIG --undo` ran, fail over again" in text) != rehearsal


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b'{"at_ms": 1}',
        b'{"at_ms": -1, "host": "h", "pid": 1}',
        b'{"at_ms": 9e99}',
        b'{"at_ms": 1, "host": "h", "pid": 1, "silent": [2]}',
    ],
)
def test_a_record_of_a_failover_that_cannot_be_read_counts_as_one(value: bytes) -> None:
    journal = {b"failover": value}
    assert isinstance(FailedOver.standing(journal), Garbled)
    with pytest.raises(PreflightError, match=r"cannot be read .* mirror failover CONFIG --undo"):
        refuse_failed_over("eu-to-us", journal)
    ended = list[FailedOver | Garbled]()
    journal_state = JournalState("eu-to-us", "one", lambda _: None, ended.append, Metrics("eu-to-us"))
    journal_state.learn([Entry(0, b"failover", value), Entry(1, b"failover", None)])
    assert ended == [FailedOver.standing(journal)], "a mirror that runs ends, too"


def test_a_record_of_a_failover() -> None:
    for known in (FailedOver.here(), FailedOver.here(["pid 1 on elsewhere"])):
        assert FailedOver.standing({b"failover": known.to_json()}) == known
    older = b'{"at_ms": 1, "host": "h", "pid": 2}'
    assert FailedOver.read(older) == FailedOver(at_ms=1, host="h", pid=2)
    assert FailedOver.standing({}) is None


def test_a_failover_lets_go_of_the_topics_that_the_flow_made() -> None:
    """Else a flow that runs again would delete what applications own by now, once its source is deleted (failback)."""
    made = FirstSeen(source_topic="a", topic_id=uuid4(), target_topic_id=uuid4(), cluster_id="c", made=True, since=(7,))
    found = replace(made, source_topic="b", made=False)
    known = {FirstSeen.key(name): seen.to_json() for name, seen in {"eu.a": made, "eu.b": found}.items()}
    reported = ending(known | {b"topic/eu.c": b"somebody else's"})
    keys = [key for key, _ in reported]
    assert keys == [b"topic/eu.a", b"failover/account", b"failover"], "what it let go of before is not written again"
    assert reported[1][1] is None, "an account is of one failover"
    after = {key: value for key, value in reported if value is not None}
    assert seen_in(after) == {"eu.a": replace(made, made=False)}
    assert FailedOver.standing(after) is not None


class Journaling:
    """A journal that says something new each time it is read."""

    def __init__(self, *reads: Sequence[tuple[bytes, bytes | None]]) -> None:
        self.reads = iter(reads)
        self.partition, self.flow = TopicPartition("journal", 0), "eu-to-us"
        self.cluster = SimpleNamespace(topics={"journal"}, refresh=self.refresh)

    async def refresh(self, _: list[str]) -> None:
        """The topic is there."""

    async def follow(self, _: Place | None) -> News:
        """The next round; nothing new when all were given."""
        return News([Entry(0, key, value) for key, value in next(self.reads, [])], JournalPlace(1, None, 0))


def figures(topic: str, next_offset: int, state: State = State.MIRRORING) -> tuple[bytes, bytes]:
    one = PartitionStatus(
        flow="eu-to-us",
        instance="one",
        topic=topic,
        partition=0,
        target_topic=topic,
        state=state,
        next_offset=next_offset,
        log_end=100,
        lag_records=0,
        at_ms=int(time.time() * 1000),
    )
    return one.key(), one.to_json()


def behind(journal: Journaling, idle_seconds: float = DEADLINE) -> list[str]:
    """The topics that a mirror leaves behind, of which each has a hundred records."""
    settings = SimpleNamespace(flow="eu-to-us", target=SimpleNamespace(alias="us"))
    ends = {TopicPartition(topic, 0): 100 for topic in ("busy", "stuck")}

    async def left() -> list[TopicPartition]:
        async with asyncio.timeout(DEADLINE):
            return await JournalSnapshot(cast(Journal, journal)).reaching(cast(Settings, settings), ends, idle_seconds)

    return [at.topic for at in asyncio.run(left())]


RUNNING = (OWNER, replace(Owner.here("one"), host="elsewhere").to_json())


def test_a_topic_that_moves_for_ever_does_not_hide_one_that_is_stuck() -> None:
    moving = ([RUNNING, figures("busy", 100 + read), figures("stuck", 5)] for read in range(1000))
    assert behind(Journaling(*moving), idle_seconds=0.5) == ["stuck"]


def test_a_mirror_that_ended_meanwhile_left_something_behind() -> None:
    before = [RUNNING, figures("busy", 100), figures("stuck", 5)]
    assert behind(Journaling(before, [(ENDED, b'{"instance": "one"}')])) == ["stuck"]


def test_a_partition_that_is_mirrored_no_longer_is_not_waited_for() -> None:
    before, gone = [RUNNING, figures("busy", 100), figures("stuck", 5)], [(figures("stuck", 5)[0], None)]
    assert behind(Journaling(before, gone)) == []
    assert behind(Journaling([*before, figures("stuck", 5, State.DIVERGED)])) == []
    assert behind(Journaling(before, [], [figures("stuck", 100)])) == []


def test_a_partition_that_is_away_for_a_moment_does_not_hide_that_another_one_moves() -> None:
    away = [[figures("busy", read * 10), figures("stuck", -1)] for read in range(2, 9)]
    reads = [[RUNNING, figures("busy", 10), figures("stuck", 90)], *away, [figures("busy", 100), figures("stuck", 100)]]
    assert behind(Journaling(*reads), idle_seconds=0.5) == []


def test_a_copy_goes_on_for_as_long_as_any_partition_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot begin any more, its leader being away, was far ahead of the others."""
    stretches = 0

    async def stretch(_: TaskAssignment) -> list[TaskResult]:
        nonlocal stretches
        stretches += 1
        reports = [figures("stuck", 500 if stretches == 1 else -1), figures("busy", min(10 * stretches, 50))]
        return [TaskResult(PartitionStatus.from_json(value), PartitionCounters()) for _, value in reports]

    async def nothing() -> dict[bytes, bytes]:
        return {}

    monkeypatch.setattr("mirror.failover.drain.run_task", stretch)
    at = {topic: TopicPartition(topic, 0) for topic in ("busy", "stuck")}
    wanted = [Assignment(source=one, target=one, topic_id=None, rules=Rules(), until=1000) for one in at.values()]
    flow = SimpleNamespace(name="eu-to-us", source=None, target=None, memory_bytes=1, bytes_per_second=None)
    journal = SimpleNamespace(newest=nothing)
    asyncio.run(
        _stretches(
            cast(Any, flow),
            Owner.here("one"),
            wanted,
            cast(Any, journal),
            standing_in({}),
            cast(Any, None),
            asyncio.Event(),
        )
    )
    assert stretches == 6, "the first one in which nothing moved is the last"


# --- on brokers -----------------------------------------------------------------------------------------------------


class Flow:
    """A flow between two clusters, its configuration in a file; `back` is the same in the other direction."""

    def __init__(self, folder: Path, source: str, target: str, topic: str, **more: Any) -> None:
        self.source, self.target, self.topic, self.more = source, target, topic, more
        self.logged = ""  # by the last failover
        self.file = config_file(folder, source, target, [topic], flow=topic, **more)
        output = json.loads(self.file.read_text()) | {"groups": {"include": [f"{topic}.*"], "interval_s": 0.5}}
        self.file.write_text(json.dumps(output))

    def mirror_another(self) -> str:
        """Mirror a second topic, of five records; its name."""
        other = f"{self.topic}-b"
        make_topic(self.source, other)
        produce(self.source, other, values(5))
        self.mirrors(self.topic, other)
        self.copy()
        return other

    def mirrors(self, *topics: str) -> None:
        """Have the configuration include these topics."""
        output = json.loads(self.file.read_text())
        output["topics"]["include"] = list(topics)
        self.file.write_text(json.dumps(output))

    def append(self, *entries: tuple[bytes, bytes | None]) -> None:
        """Write to the flow's journal."""

        async def append() -> None:
            settings = config.load(self.file)
            async with Wire(Endpoint.of(settings.target)) as target:
                await Journal(target, settings.flow).append(entries)

        asyncio.run(append())

    def standing(self) -> FailedOver | Garbled | None:
        """What the flow's journal says of a failover."""

        async def read() -> FailedOver | Garbled | None:
            settings = config.load(self.file)
            async with Wire(Endpoint.of(settings.target)) as target:
                return FailedOver.standing(await Journal(target, settings.flow).newest())

        return asyncio.run(read())

    def copy(self) -> None:
        """A bounded copy by one task, which reports to the journal."""
        asyncio.run(drain(prepare(config.load(self.file), once=True)))

    def failover(self, *options: str, code: int = 0) -> Any:
        done = CliRunner().invoke(app, ["failover", str(self.file), "--json", "--log-level", "warning", *options])
        self.logged = done.stderr
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    def back(self) -> tuple[State, str, int]:
        """Mirror in the other direction; how that ended, and at which offset."""
        back = f"{self.topic}-back"
        found = mirror_once(self.target, self.source, [self.topic], back, names_copies=False, **self.more)
        figures = found[TopicPartition(self.topic, 0)]
        return figures.state, figures.detail, figures.next_offset


@pytest.fixture
def flow(own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path) -> Flow:
    """One partition with a hundred records, mirrored."""
    made = Flow(tmp_path, own_source.bootstrap, own_target.bootstrap, topic_name)
    make_topic(made.source, topic_name)
    produce(made.source, topic_name, values(100))
    made.copy()
    return made


def consumed(bootstrap: str, group: str, topic: str, many: int) -> Iterator[bytes]:
    """What a group reads that goes on with its next record."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "error"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while many:
        assert time.monotonic() < deadline, f"{many} records are missing"
        if (message := consumer.poll(0.5)) is not None:
            assert message.error() is None, message.error()
            many -= 1
            yield message.value() or b""
    consumer.close()


def dropped(bootstrap: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    wait_for(lambda: topic not in admin.list_topics(timeout=10).topics, 30, lambda: "it was not deleted")


def expire(bootstrap: str, topic: str, before: int) -> None:
    """Delete the first records of partition 0, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_records([Place(topic, 0, before)]).values()
    deleted.result(20)


def end_of(bootstrap: str, topic: str) -> int:
    return max((record[0] for record in read(bootstrap, topic, 0)), default=-1) + 1


@pytest.mark.brokers
def test_a_failover_and_the_way_back(flow: Flow, free_port: int) -> None:
    """No mirror runs: what is missing is copied, the group goes on at its record, and the flow runs no more. Then
    everything goes back, with what was written on the target meanwhile."""
    produce(flow.source, flow.topic, values(50))
    commit(flow.source, flow.topic, flow.topic, 120)

    rehearsed = flow.failover("--rehearse", code=4)
    assert (rehearsed["rehearsal"], rehearsed["rpo"]["records"], rehearsed["groups"]) == (True, 50, {"held_back": 1})
    assert rehearsed["rpo"]["seconds"] > 3000, "the records say that they are an hour old"
    assert "no mirror runs" in rehearsed["warnings"][0]
    assert end_of(flow.target, flow.topic) == 100, "nothing was copied"
    assert committed(flow.target, flow.topic, flow.topic) < 0, "nothing was committed"

    done = flow.failover()
    assert (done["whole"], done["rpo"]) == (True, {"records": 0, "seconds": 0.0, "certain": True})
    (partition,) = done["partitions"]
    assert (partition["position"], partition["source_end"]) == (150, 150)
    assert done["groups"] == {"synced": 1}
    assert list(consumed(flow.target, flow.topic, flow.topic, 30)) == values(50)[20:], "none missed, none twice"
    again = CliRunner().invoke(app, ["failover", str(flow.file), "--json"])
    assert isinstance(again.exception, PreflightError)
    assert re.search("was failed over at .* --undo", str(again.exception))
    assert json.loads(again.stdout) == done, "from the journal, wherever consumers are by now"
    shown = CliRunner().invoke(app, ["status", str(flow.file)]).stdout
    assert "; failed over at 20" in " ".join(shown.split())
    away = flow.file.with_name("away.yaml")
    away.write_text(flow.file.read_text().replace(flow.source, f"127.0.0.1:{free_port}"))
    for file in (flow.file, away):  # whether or not the source is there
        refused = CliRunner().invoke(app, ["run", str(file), "--once"])
        assert isinstance(refused.exception, PreflightError), refused.exception
        assert "mirror failover CONFIG --undo" in str(refused.exception)

    produce(flow.target, flow.topic, [b"new %d" % number for number in range(20)])
    assert flow.back() == (State.CAUGHT_UP, "", 170)
    assert assert_same_records(flow.source, flow.target, flow.topic, 1) == 170

    undone = CliRunner().invoke(app, ["failover", str(flow.file), "--undo"])
    assert "may run again" in undone.stdout
    flow.copy()  # both sides agree, so the flow of before may go on, too
    produce(flow.source, flow.topic, [b"and back"])
    flow.copy()
    assert assert_same_records(flow.source, flow.target, flow.topic, 1) == 171
    with pytest.raises(ConfigError, match="was not failed over"):
        CliRunner().invoke(app, ["failover", str(flow.file), "--undo"], catch_exceptions=False)


@pytest.mark.brokers
def test_what_was_written_behind_a_failover_and_expired_since_stops_the_flow_that_runs_again(flow: Flow) -> None:
    """Nothing is left to compare, and the source has records of its own at those offsets."""
    flow.failover()
    produce(flow.target, flow.topic, [b"of an application"] * 10)
    expire(flow.target, flow.topic, 110)
    produce(flow.source, flow.topic, values(30))
    undone = CliRunner().invoke(app, ["failover", str(flow.file), "--undo"])
    assert undone.exit_code == 0, undone.output
    outcome = run_once(config.load(flow.file))
    (one,) = outcome.figures.values()
    assert (outcome.exit_code, one.state) == (ExitCode.DATA_AT_RISK, State.DIVERGED), one
    assert not list(read(flow.target, flow.topic, 0)), "nothing was written behind it"


@pytest.mark.brokers
def test_a_flow_that_runs_again_does_not_own_what_it_made(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    flow = Flow(tmp_path, own_source.bootstrap, own_target.bootstrap, topic_name)
    make_topic(flow.source, topic_name)
    settings = config.load(flow.file)
    prepared = prepare(settings, once=True)
    assert prepared.made == {topic_name}

    async def shown(begin: bool = False) -> bool:
        """Whether the flow's journal says that it made the topic; begin as a mirror does that starts."""
        async with Wire(prepared.source) as source, Wire(prepared.target) as target:
            journal = Journal(target, settings.flow)
            if begin:
                await source.refresh({topic_name})
                await target.refresh({topic_name, journal.partition.topic})
                await recorded(source, journal, prepared.assignments, await journal.newest(), prepared.made)
            return seen_in(await journal.newest())[topic_name].made

    assert asyncio.run(shown(begin=True))
    flow.copy()
    assert flow.failover("--rehearse")["rehearsal"]
    assert asyncio.run(shown())
    flow.failover()
    assert not asyncio.run(shown())
    CliRunner().invoke(app, ["failover", str(flow.file), "--undo"], catch_exceptions=False)
    assert not asyncio.run(shown(begin=True)), "a start finds what it knew"


@pytest.mark.brokers
def test_what_never_got_over_is_named_and_stops_the_way_back(flow: Flow, free_port: int) -> None:
    """The source is away, so the RPO is what was known last; when it is back, its records beyond are in the way."""
    produce(flow.source, flow.topic, values(30))
    there = flow.file.read_text()
    flow.file.write_text(there.replace(flow.source, f"127.0.0.1:{free_port}"))
    done = flow.failover(code=4)
    assert (done["source_reachable"], done["rpo"]["certain"], done["rpo"]["records"]) == (False, False, 0)
    assert done["rpo"]["seconds"] > 0, "as long ago as the last report"
    assert "no broker answered" in done["source_problem"]
    assert (done["partitions"][0]["position"], done["partitions"][0]["source_end"]) == (100, None)

    state, detail, _ = flow.back()
    assert state is State.DIVERGED
    assert detail.startswith("the target's log ends at 130, the source's at 100"), detail
    produce(flow.target, flow.topic, [b"new %d" % number for number in range(40)])
    state, detail, _ = flow.back()
    assert state is State.DIVERGED
    assert detail.startswith("the target's log ends at 130, the source's at 100"), "growth lifts nothing"
    dropped(flow.source, flow.topic)
    assert flow.back()[0] is State.CAUGHT_UP, "as the runbook says: the topic is copied anew"
    assert assert_same_records(flow.source, flow.target, flow.topic, 1) == 140


@pytest.mark.brokers
@pytest.mark.parametrize("outcomes", [[True], [True, False], [False, False]])
def test_the_way_back_of_a_topic_that_ends_with_a_transaction(flow: Flow, outcomes: list[bool]) -> None:
    """The old source's log ends with a marker of its own coordinator, the new one's with the mirror's."""
    transactions(flow.source, flow.topic, outcomes)
    flow.failover()
    assert flow.back() == (State.CAUGHT_UP, "", 100 + 6 * len(outcomes))
    produce(flow.target, flow.topic, [b"new"] * 5)
    assert flow.back()[0] is State.CAUGHT_UP
    assert assert_same_records(flow.source, flow.target, flow.topic, 1) == 105 + 5 * sum(outcomes)


@pytest.mark.brokers
def test_aborted_records_of_the_old_source_are_not_taken_for_a_copys_last_ones(flow: Flow) -> None:
    """The old source's log ends with them, and behind these with markers of the way back, for aborted ones alone."""
    transactions(flow.source, flow.topic, [False])
    flow.failover()
    for name in ("new", "newer"):
        transactions(flow.target, flow.topic, [False], name=name)
        state, detail, _ = flow.back()
        assert (state, detail) == (State.CAUGHT_UP, "")
    produce(flow.target, flow.topic, [b"new"] * 5)
    assert flow.back()[0] is State.CAUGHT_UP
    assert assert_same_records(flow.source, flow.target, flow.topic, 1) == 105


@pytest.mark.brokers
def test_a_transaction_that_never_got_over_stops_the_way_back(flow: Flow) -> None:
    """There are others at its offsets by now: plain records, or a transaction that ends where it does."""
    transactions(flow.source, flow.topic, [True], name="old")
    transactions(flow.target, flow.topic, [True], name="new")
    state, detail, _ = flow.back()
    assert state is State.DIVERGED
    assert detail.startswith("the target's last batch with records, at offset 100, is not the source's"), detail
    produce(flow.source, flow.topic, [b"old"])
    transactions(flow.source, flow.topic, [True], name="older")
    produce(flow.target, flow.topic, [b"new"] * 9)
    assert flow.back()[0] is State.DIVERGED


@pytest.mark.brokers
def test_the_way_back_of_batches_that_were_rewritten(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """The new source holds the records in other batches than the old one, whose last batch must be known again."""
    flow = Flow(tmp_path, own_source.bootstrap, own_target.bootstrap, topic_name, coalesce_bytes=30_000)
    make_topic(flow.source, topic_name)
    produce(flow.source, topic_name, values(40), batch=1)
    flow.copy()
    flow.failover()
    produce(flow.target, topic_name, [b"new"] * 5)
    assert flow.back()[0] is State.CAUGHT_UP
    assert assert_same_records(flow.source, flow.target, topic_name, 1) == 45


@pytest.mark.brokers
def test_a_translated_flow_is_failed_over(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    flow = Flow(tmp_path, own_source.bootstrap, own_target.bootstrap, topic_name, offsets="translate")
    make_topic(flow.source, topic_name)
    transactions(flow.source, topic_name, [False, True])
    flow.copy()
    produce(flow.source, topic_name, values(20))
    commit(flow.source, topic_name, topic_name, 17)
    done = flow.failover()
    assert (done["rpo"]["records"], done["partitions"][0]["position"]) == (0, 32)
    assert committed(flow.target, topic_name, topic_name) == 10
    assert list(consumed(flow.target, topic_name, topic_name, 15)) == values(20)[5:]


@pytest.mark.brokers
def test_a_partition_that_was_never_mirrored_is_named(flow: Flow) -> None:
    admin = AdminClient({"bootstrap.servers": flow.source})
    admin.create_partitions([NewPartitions(flow.topic, 2)])[flow.topic].result(20)
    produce(flow.source, flow.topic, values(5), partition=1)
    rehearsed = flow.failover("--rehearse", code=4)
    assert rehearsed["warnings"] == [f"{flow.topic}-1 was never mirrored: nothing of it is on the target"]
    assert rehearsed["rpo"]["records"] == 5


@pytest.mark.brokers
def test_what_somebody_deleted_of_a_copy_is_reported(flow: Flow) -> None:
    """Its end says that all got over. What its own retention may have deleted is everyday, and no news."""
    expire(flow.target, flow.topic, 10)
    rehearsed = flow.failover("--rehearse", code=4)
    (warning,) = rehearsed["warnings"]
    assert warning.startswith(f"{flow.topic}-0: the target deleted offsets 0 to 9, which the source has")
    limit = ConfigEntry("retention.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": flow.target})
    for future in admin.incremental_alter_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, flow.topic, incremental_configs=[limit])]
    ).values():
        future.result(20)
    assert flow.failover("--rehearse")["whole"]


@pytest.mark.brokers
def test_a_copy_that_somebody_made_anew_vouches_for_nothing(flow: Flow, free_port: int) -> None:
    """It has as many records as the source, and nobody follows groups."""
    delete_topics(flow.target, flow.topic)
    make_topic(flow.target, flow.topic)
    produce(flow.target, flow.topic, [b"foreign"] * 100)
    output = json.loads(flow.file.read_text())
    flow.file.write_text(json.dumps(output | {"groups": {"include": []}}))
    rehearsed = flow.failover("--rehearse", code=4)
    assert rehearsed["rpo"] == {"records": 100, "seconds": None, "certain": False}
    assert rehearsed["partitions"][0]["doubt"] == "the target topic is another one than was mirrored to"
    flow.file.write_text(flow.file.read_text().replace(flow.source, f"127.0.0.1:{free_port}"))
    done = flow.failover(code=4)
    assert done["partitions"][0]["doubt"] == "the target topic is another one than was mirrored to"
    assert not done["rpo"]["certain"]


@pytest.mark.brokers
def test_a_copy_that_somebody_wrote_to_is_not_reported_as_whole(flow: Flow) -> None:
    """Its log is longer than the source's, so that nothing seems to be missing."""
    produce(flow.source, flow.topic, values(50))
    produce(flow.target, flow.topic, [b"foreign"] * 60)
    done = flow.failover(code=4)
    assert (done["whole"], done["rpo"]) == (False, {"records": 150, "seconds": None, "certain": False})
    (partition,) = done["partitions"]
    assert (partition["state"], partition["position"], partition["source_end"]) == ("DIVERGED", 160, 150)


@pytest.mark.brokers
def test_what_lies_behind_an_open_transaction_did_not_get_over(flow: Flow) -> None:
    """A reader of committed records sees none of it, and its producers had their acknowledgments all the same."""
    open_one = Producer({"bootstrap.servers": flow.source, "transactional.id": flow.topic})
    open_one.init_transactions(20)
    open_one.begin_transaction()
    for value in values(5):
        open_one.produce(flow.topic, value)
    assert not open_one.flush(20)
    produce(flow.source, flow.topic, values(5))
    done = flow.failover(code=4)
    open_one.abort_transaction(20)
    (partition,) = done["partitions"]
    assert (done["whole"], done["rpo"]["records"]) == (False, 10)
    assert (partition["position"], partition["source_end"], partition["open_transaction_from"]) == (100, 110, 100)


@pytest.mark.brokers
def test_a_copy_that_was_compacted_and_is_so_no_more_is_named_until_somebody_accepts_it(flow: Flow) -> None:
    """Its cleaner may have removed what that of the source, which was set to be compacted for a moment, has kept."""

    def sets(policy: str) -> None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, flow.topic)
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
        for done in client.incremental_alter_configs([resource]).values():
            done.result(20)
        assert run_once(config.load(flow.file)).exit_code == ExitCode.DONE

    client = AdminClient({"bootstrap.servers": flow.source})
    sets("compact")
    assert flow.failover("--rehearse")["whole"]
    sets("delete")
    (loss,) = flow.failover("--rehearse", code=7)["accepted_losses"]
    assert loss["reason"] == "compaction"
    accepted = CliRunner().invoke(app, ["accept", str(flow.file), flow.topic])
    assert accepted.exit_code == ExitCode.DONE, accepted.output
    assert "accepted what may be missing (reason compaction)" in accepted.stdout
    assert flow.failover()["whole"]


@pytest.mark.brokers
def test_a_copy_that_somebody_compacted_and_set_back_is_named_as_well(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a start that refuses it, and by a running mirror that sees it, or that finds both sides set back at once; what
    has no leader or no record then, too, and again once it is over, for what was accepted before.
    """

    def sets(bootstrap: str, policy: str) -> None:
        change = ConfigChange(topic=flow.topic, name="cleanup.policy", before=None, after=policy)
        admin_of(bootstrap).alter_configs([change])

    def takes_it() -> None:
        (loss,) = flow.failover("--rehearse", code=7)["accepted_losses"]
        assert loss["reason"] == "compaction"
        assert CliRunner().invoke(app, ["accept", str(flow.file), flow.topic]).exit_code == ExitCode.DONE
        assert flow.failover("--rehearse")["whole"]

    loaded = config.load(flow.file)
    settings = loaded.model_copy(update={"sync": loaded.sync.model_copy(update={"configs": False})})
    sets(flow.target, "compact")
    with monkeypatch.context() as patched:
        patched.setattr(Admin, "spans", lambda *_: {})  # as while no partition has a leader
        with pytest.raises(PreflightError, match="is compacted and its source is not"):
            prepare(settings)
    sets(flow.target, "delete")
    takes_it()
    replanner, seen = Replanner(settings), seen_in(asyncio.run(read_own(settings)).newest)
    current = replanner.replan((), seen).assignments
    sets(flow.target, "compact")
    with monkeypatch.context() as patched:
        patched.setattr(Admin, "spans", lambda *_: {(flow.topic, 0): Span(start=0, end=0)})
        assert replanner.replan(current, seen).assignments == current, "what was begun goes on"
    assert flow.failover("--rehearse")["whole"], "it holds nothing"
    replanner.replan(current, seen)
    takes_it()
    for _ in range(2):
        replanner.replan(current, seen)
    assert flow.failover("--rehearse")["whole"], "it is recorded once"
    sets(flow.target, "delete")
    replanner.replan(current, seen)
    takes_it()
    for policy in ("compact", "delete"):
        for bootstrap in (flow.source, flow.target):
            sets(bootstrap, policy)
        replanner.replan(current, seen)
    takes_it()


@pytest.mark.brokers
def test_a_rehearsal_names_a_transaction_that_hangs(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And waits for one that ends."""
    monkeypatch.setattr("mirror.commands.failover.IDLE_SECONDS", 3.0)
    open_one = Producer({"bootstrap.servers": flow.source, "transactional.id": flow.topic})
    open_one.init_transactions(20)
    with forked(flow.file, tmp_path / "live.log") as live:
        live.until("spark_started")
        for is_over in (False, True):
            open_one.begin_transaction()
            open_one.produce(flow.topic, b"open")
            assert not open_one.flush(20)
            if is_over:
                ending = Timer(1.0, open_one.commit_transaction)
                ending.start()
            rehearsed = flow.failover("--rehearse", code=0 if is_over else 4)
            if is_over:
                ending.join()
            else:
                open_one.abort_transaction(20)
            assert rehearsed["whole"] == is_over, rehearsed


@pytest.mark.brokers
def test_an_accepted_loss_is_reported_for_as_long_as_the_copy_spans_it(flow: Flow) -> None:
    at = TopicPartition(flow.topic, 0)
    flow.append(loss_entry(Loss(at, at, 20, 30)), loss_entry(Loss(at, at, 40, 55, "damage")))
    for side in (flow.source, flow.target):
        expire(side, flow.topic, 45)
    done = flow.failover(code=7)
    assert (done["whole"], done["rpo"]["records"]) == (False, 0)
    (reported,) = done["accepted_losses"]
    assert (reported["first"], reported["next_offset"], reported["reason"]) == (45, 55, "damage")


@pytest.mark.brokers
def test_a_partition_that_cannot_be_asked_about_does_not_cost_the_account(flow: Flow) -> None:
    """The flow mirrors a topic that is gone from the target, and from the source then: named with its reason."""
    other = flow.mirror_another()
    dropped(flow.target, other)
    for options in (["--rehearse"], []):
        done = flow.failover(*options, code=4)
        one, gone = sorted(done["partitions"], key=lambda partition: partition["topic"])
        assert (one["whole"], one["position"]) == (True, 100)
        assert (gone["whole"], gone["certain"], gone["position"]) == (False, False, None)
        assert gone["rpo_records"] == (5 if options else 0)
        assert gone["doubt"].endswith(f"there is no partition {other}-0")
        assert "no answer within" not in flow.logged  # nobody waits for the leader of what is not there
        if options:
            dropped(flow.source, other)


@pytest.mark.brokers
def test_a_topic_that_was_taken_out_of_the_flow_is_no_part_of_its_failover(flow: Flow) -> None:
    """Once a mirror has read that, and not before: the file of a failover may be another one by mistake."""
    other = flow.mirror_another()
    produce(flow.source, other, values(5))
    flow.mirrors(flow.topic)
    rehearsed = flow.failover("--rehearse", code=4)
    assert [one for one in rehearsed["warnings"] if f"by which it copied {other}, too" in one], "it ended before"
    flow.copy()
    done = flow.failover()
    assert [partition["topic"] for partition in done["partitions"]] == [flow.topic]


@pytest.mark.brokers
def test_a_topic_that_is_refused_does_not_keep_others_from_being_copied(flow: Flow) -> None:
    """It is gone from the source, so preflight would not start the flow."""
    other = flow.mirror_another()
    dropped(flow.source, other)
    produce(flow.source, flow.topic, values(50))
    done = flow.failover(code=4)
    assert any(text.startswith("what was missing could not be copied: ") and other in text for text in done["warnings"])
    one, gone = sorted(done["partitions"], key=lambda partition: partition["topic"])
    assert (one["whole"], one["position"], gone["whole"]) == (True, 150, False)


@pytest.mark.brokers
def test_what_copies_the_rest_lets_no_copy_keep_less(flow: Flow) -> None:
    """The source, which is about to be lost, may have been set to delete what only the copy has then."""
    source, target = admin_of(flow.source), admin_of(flow.target)
    kept = target.topic_configs([flow.topic])[flow.topic]["retention.ms"]
    wanted = {"retention.ms": "3600000", "max.message.bytes": "2000000"}
    source.alter_configs(ConfigChange(topic=flow.topic, name=name, before=None, after=wanted[name]) for name in wanted)
    produce(flow.source, flow.topic, values(50))
    (one,) = flow.failover()["partitions"]
    assert one["position"] == 150
    assert "retention.ms" not in flow.logged
    now = target.topic_configs([flow.topic])[flow.topic]
    assert (now["retention.ms"], now["max.message.bytes"].value) == (kept, "2000000"), "what larger records need"


@pytest.mark.brokers
def test_a_topic_that_rests_is_not_copied_any_further(flow: Flow) -> None:
    """Where no mirror runs, too: it counts in what is lost, with the reason."""
    produce(flow.source, flow.topic, values(50))
    flow.append(pause_entry(flow.topic), (b"pause/\xff", b"{}"))
    done = flow.failover(code=4)
    assert (done["rpo"]["records"], done["partitions"][0]["position"]) == (50, 100)
    (warning,) = done["warnings"]
    assert warning == (
        f"{flow.topic} is paused, so that it was not copied any further; `mirror failover CONFIG --undo`, and then"
        f" `mirror resume CONFIG {flow.topic}` lets it go on"
    )


@pytest.mark.brokers
def test_the_groups_of_a_paused_topic_go_on_where_they_stand(flow: Flow) -> None:
    """All of its records are on the target, so that its offsets mean the same."""
    commit(flow.target, flow.topic, flow.topic, 10)
    commit(flow.source, flow.topic, flow.topic, 90)
    commit(flow.source, f"{flow.topic}-new", flow.topic, 40)
    flow.append(pause_entry(flow.topic))
    rehearsed = flow.failover("--rehearse")
    assert (rehearsed["groups"], rehearsed["group_offsets_not_reached"]) == ({"synced": 2}, [])
    assert committed(flow.target, flow.topic, flow.topic) == 10
    done = flow.failover()
    assert (done["groups"], done["group_offsets_not_reached"]) == ({"synced": 2}, [])
    assert committed(flow.target, flow.topic, flow.topic) == 90
    assert committed(flow.target, f"{flow.topic}-new", flow.topic) == 40


@pytest.mark.brokers
def test_the_groups_of_a_topic_that_rests_in_a_running_mirror_go_on_where_they_stand(
    flow: Flow, tmp_path: Path
) -> None:
    """It reports PAUSED, which vouches for nothing by itself: both logs are compared."""

    def states() -> set[str]:
        shown = CliRunner().invoke(app, ["status", str(flow.file), "--json", "--log-level", "error"])
        return {one["state"] for one in json.loads(shown.stdout)["partitions"]}

    commit(flow.source, flow.topic, flow.topic, 10)
    with forked(flow.file, tmp_path / "live.log") as live:
        wait_for(lambda: committed(flow.target, flow.topic, flow.topic) == 10, 60, lambda: live.log)
        assert CliRunner().invoke(app, ["pause", str(flow.file), flow.topic]).exit_code == 0
        wait_for(lambda: states() == {"PAUSED"}, 60, lambda: live.log)
        commit(flow.source, flow.topic, flow.topic, 90)
        commit(flow.source, f"{flow.topic}-new", flow.topic, 40)
        done = flow.failover()
        assert live.ended() == 0, live.log
    assert done["groups"] == {"synced": 2}
    assert committed(flow.target, flow.topic, flow.topic) == 90
    assert committed(flow.target, f"{flow.topic}-new", flow.topic) == 40


@pytest.mark.brokers
def test_groups_that_do_not_get_where_they_stood_are_named(flow: Flow) -> None:
    """Their topic is paused, and somebody wrote to its copy: nobody knows what an offset means there."""
    commit(flow.target, flow.topic, flow.topic, 10)
    commit(flow.source, flow.topic, flow.topic, 90)
    commit(flow.source, f"{flow.topic}-new", flow.topic, 40)
    flow.append(pause_entry(flow.topic))
    produce(flow.target, flow.topic, [b"foreign"] * 10)
    produce(flow.source, flow.topic, [b"own"] * 30)
    for options in (["--rehearse"], []):
        done = flow.failover(*options, code=4)
        (partition,) = done["partitions"]
        one, new = done["group_offsets_not_reached"]
        assert (one["group"], one["target_offset"], one["reads_again"], one["misses"]) == (flow.topic, 10, 80, 0)
        assert (new["group"], new["target_offset"], new["reads_again"], new["misses"]) == (
            f"{flow.topic}-new",
            None,
            40,
            70,
        )
        assert (one["source_offset"], new["source_offset"]) == (90, 40)
        assert "is not the source's" in one["cause"]
        if not options:
            assert partition["state"] == "DIVERGED"
    assert committed(flow.target, flow.topic, flow.topic) == 10
    again = CliRunner().invoke(app, ["failover", str(flow.file)], terminal_width=1000)
    output = " ".join(again.stdout.split())
    assert (
        f"group {flow.topic}, {flow.topic}-0: stands at 90 on the source, goes on at 10 and reads 80 records again"
        in output
    )
    assert "it reads 40 records again (auto.offset.reset=earliest) or misses 70 (latest)" in output


@pytest.mark.brokers
def test_a_group_ahead_of_its_source_is_named(flow: Flow) -> None:
    """It would miss what lies between; one that was put back on the source would be such a group."""
    commit(flow.target, flow.topic, flow.topic, 70)
    commit(flow.source, flow.topic, flow.topic, 20)
    done = flow.failover(code=4)
    (gap,) = done["group_offsets_not_reached"]
    assert (gap["target_offset"], gap["reads_again"], gap["misses"]) == (70, 0, 50)
    assert committed(flow.target, flow.topic, flow.topic) == 70


@pytest.mark.brokers
def test_groups_behind_the_end_of_a_copy_are_put_back_or_named(flow: Flow, free_port: int) -> None:
    """It lost its tail: they would skip what is written there next. One that read on there is left where it is."""
    produce(flow.source, flow.topic, values(50))
    flow.append(pause_entry(flow.topic))
    there, alone = flow.file.read_text(), f"{flow.topic}-alone"
    for group, source, target in ((flow.topic, 140, 140), (alone, 20, 130)):
        commit(flow.source, group, flow.topic, source)
        commit(flow.target, group, flow.topic, target)

    def named(done: Any) -> list[tuple[Any, ...]]:
        fields = "group", "source_offset", "target_offset", "misses"
        return [tuple(one[name] for name in fields) for one in done["group_offsets_not_reached"]]

    flow.file.write_text(there.replace(flow.source, f"127.0.0.1:{free_port}"))
    away = flow.failover("--rehearse", code=4)
    assert named(away) == [(flow.topic, None, 140, 40), (alone, None, 130, 30)]
    for one in away["group_offsets_not_reached"]:
        assert one["cause"].startswith("it stands behind the end of the copy")
        assert "put it to offset 100" in one["cause"]
    flow.file.write_text(there)
    for options in (["--rehearse"], []):
        done = flow.failover(*options, code=4)
        assert named(done) == [(flow.topic, 140, 100, 0), (alone, 20, 130, 110)]
        assert [one["cause"].partition(",")[0] for one in done["group_offsets_not_reached"]] == [
            "the target ends at offset 100",
            "it stands behind the end of the copy",
        ]
    assert (committed(flow.target, flow.topic, flow.topic), committed(flow.target, alone, flow.topic)) == (100, 130)


@pytest.mark.brokers
def test_no_group_is_put_below_the_log_start_of_the_copy(flow: Flow) -> None:
    """A consumer would fall back on auto.offset.reset there. What it passes over, and the source still has, is
    reported.
    """
    expire(flow.target, flow.topic, 90)
    expire(flow.source, flow.topic, 30)
    commit(flow.source, flow.topic, flow.topic, 40)
    commit(flow.source, f"{flow.topic}-late", flow.topic, 95)
    for options in (["--rehearse"], []):
        done = flow.failover(*options, code=4)
        assert done["groups"] == {"expired": 1, "synced": 1}
        (gap,) = done["group_offsets_not_reached"]
        assert (gap["group"], gap["target_offset"], gap["misses"]) == (flow.topic, 90, 50)
        assert "of which the source still has 50" in gap["cause"]
    assert committed(flow.target, flow.topic, flow.topic) == 90
    assert committed(flow.target, f"{flow.topic}-late", flow.topic) == 95


@pytest.mark.brokers
def test_a_group_misses_nothing_that_the_source_deleted_as_well(flow: Flow) -> None:
    expire(flow.target, flow.topic, 90)
    expire(flow.source, flow.topic, 90)
    commit(flow.source, flow.topic, flow.topic, 10)
    done = flow.failover()
    assert done["groups"] == {"expired": 1}
    assert committed(flow.target, flow.topic, flow.topic) == 90


@pytest.mark.brokers
def test_groups_are_put_on_the_copy_of_now(flow: Flow) -> None:
    """The naming was changed: the journal still names the copy of before, by a name that comes later."""
    there = flow.file.read_text()
    fields = json.loads(there)
    fields["topics"]["naming"] = {"rename": {flow.topic: f"zz.{flow.topic}"}}
    flow.file.write_text(json.dumps(fields))
    flow.copy()
    flow.file.write_text(there)
    produce(flow.source, flow.topic, values(50))
    flow.copy()
    commit(flow.source, flow.topic, flow.topic, 120)
    done = flow.failover()
    (partition,) = done["partitions"]
    assert (partition["target_topic"], partition["position"], done["rpo"]["records"]) == (flow.topic, 150, 0)
    assert committed(flow.target, flow.topic, flow.topic) == 120
    assert committed(flow.target, flow.topic, f"zz.{flow.topic}") < 0


@pytest.mark.brokers
def test_who_waits_for_its_source_does_not_vouch_for_what_was_found_before(flow: Flow) -> None:
    """The partition had stopped, and a task that began since only reports that it waits."""
    produce(flow.target, flow.topic, [b"foreign"] * 60)
    produce(flow.source, flow.topic, values(50))
    commit(flow.source, flow.topic, flow.topic, 140)
    flow.append(figures(flow.topic, -1, State.UNAVAILABLE))
    rehearsed = flow.failover("--rehearse", code=4)
    assert rehearsed["groups"] == {"held_back": 1}
    (gap,) = rehearsed["group_offsets_not_reached"]
    assert (gap["source_offset"], gap["target_offset"]) == (140, None)


@pytest.mark.brokers
@pytest.mark.parametrize("options", [["--rehearse"], []])
def test_what_a_living_mirror_reported_is_compared_all_the_same(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Its task hangs, since before the copy was written to and the source grew: it reported that both are equal."""
    for module in ("mirror.journal.ownership", "mirror.commands.failover"):
        monkeypatch.setattr(f"{module}.LIVENESS_SECONDS", 3.0)
    produce(flow.target, flow.topic, [b"foreign"] * 50)
    produce(flow.source, flow.topic, values(50))
    commit(flow.source, flow.topic, flow.topic, 140)
    owner = Owner(instance="one", host="elsewhere", pid=1, at_ms=0, claim=9)
    flow.append((OWNER, owner.to_json()), figures(flow.topic, 150, State.CAUGHT_UP))
    done = flow.failover(*options, code=4)
    (partition,) = done["partitions"]
    assert (partition["state"], partition["position"]) == ("DIVERGED", 150)
    assert done["groups"] == {"held_back": 1}


@pytest.mark.brokers
def test_a_translated_copy_that_lost_its_records_is_known_by_its_own_log(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """The journal alone would say that all of them got over."""
    flow = Flow(tmp_path, own_source.bootstrap, own_target.bootstrap, topic_name, offsets="translate")
    make_topic(flow.source, topic_name)
    transactions(flow.source, topic_name, [False, True])
    flow.copy()
    commit(flow.source, topic_name, topic_name, 8)
    flow.append(pause_entry(topic_name))
    assert flow.failover("--rehearse")["group_offsets_not_reached"] == []
    dropped(flow.target, topic_name)
    make_topic(flow.target, topic_name)
    done = flow.failover(code=4)
    (partition,) = done["partitions"]
    assert (partition["position"], partition["whole"], done["rpo"]["records"]) == (0, False, 12)
    (gap,) = done["group_offsets_not_reached"]
    assert (gap["source_offset"], gap["target_offset"]) == (8, None)
    assert gap["cause"] == "the target topic is another one than was mirrored to"


@pytest.mark.brokers
def test_a_copy_ends_where_another_mirror_takes_the_flow(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that fill one gap would fill it twice."""
    produce(flow.source, flow.topic, values(50))
    younger = Owner(instance="younger", host="elsewhere", pid=1, at_ms=int(time.time() * 1000))
    tasks = []

    async def slow(task: TaskAssignment) -> list[TaskResult]:
        tasks.append(task)
        await asyncio.to_thread(flow.append, (OWNER, younger.to_json()))
        async with asyncio.timeout(DEADLINE):
            await until_marked(task.stop_mark, task.number, lambda _: False)
        return []

    monkeypatch.setattr("mirror.failover.drain.run_task", slow)
    notes = asyncio.run(drain(prepare(config.load(flow.file), once=True)))
    assert notes == ["another mirror (pid 1 on elsewhere) took the flow over, so that no more was copied here"]
    assert len(tasks) == 1


@pytest.mark.brokers
def test_a_topic_that_cannot_begin_keeps_no_other_one_from_being_copied(flow: Flow) -> None:
    produce(flow.source, flow.topic, values(50))
    make_topic(flow.source, other := f"{flow.topic}-b")
    flow.mirrors(flow.topic, other)
    prepared = prepare(config.load(flow.file), once=True)
    delete_topics(flow.target, other)
    (note,) = asyncio.run(drain(prepared))
    assert note.startswith(f"{other}: what was missing could not be copied: ")
    assert assert_same_records(flow.source, flow.target, flow.topic, 1) == 150


@pytest.mark.brokers
def test_what_fails_behind_the_end_of_the_flow_is_reported_in_the_account(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow was ended, so the exit code must not say that nothing was changed."""

    async def failing(*_: object, **__: object) -> None:
        raise ClusterUnreachable("the target is gone")

    monkeypatch.setattr("mirror.commands.failover._FailoverRun.follow", failing)
    done = flow.failover(code=4)
    assert done["warnings"] == ["could not follow the groups: the target is gone"]
    assert done["partitions"][0]["whole"]


@pytest.mark.brokers
def test_a_target_that_fails_before_the_last_check_does_not_cost_the_account(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare, check_stands = failover._FailoverRun.compare, failover._FailoverRun.check_stands
    compared = list[bool]()

    async def comparing(*args: Any, **more: Any) -> list[PartitionRpo]:
        compared.append(True)
        return await compare(*args, **more)

    async def failing(*args: Any) -> None:
        if compared:
            raise ClusterUnreachable("the target is gone")
        await check_stands(*args)

    with monkeypatch.context() as patch:
        patch.setattr(failover._FailoverRun, "compare", comparing)
        patch.setattr(failover._FailoverRun, "check_stands", failing)
        done = flow.failover(code=4)
    assert done["warnings"] == ["could not check that the failover stands: the target is gone"]
    assert done["partitions"][0]["whole"]
    assert flow.failover()["warnings"] == [], "the next call finishes it"


@pytest.mark.brokers
def test_what_a_source_that_went_away_did_not_show_is_reported(
    flow: Flow, own_source: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ends were known, so that all seemed to have got over."""

    async def gone(*_: object) -> None:
        own_source.suspend(0)
        raise ClusterUnreachable("no broker answered")

    flow.file.write_text(json.dumps(json.loads(flow.file.read_text()) | {"groups": {"include": []}}))
    monkeypatch.setattr(failover._FailoverRun, "miss", gone)
    try:
        done = flow.failover(code=ExitCode.DATA_AT_RISK)
    finally:
        own_source.resume(0)
    (warning,) = done["warnings"]
    assert "what was never mirrored was not looked for" in warning


@pytest.mark.brokers
def test_copies_that_could_not_be_checked_are_in_doubt(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """They counted as compared and found to be right: groups were put on them, and each was whole."""

    async def failing(*_: object, **__: object) -> None:
        raise ClusterUnreachable("no answer")

    commit(flow.source, flow.topic, flow.topic, 40)
    monkeypatch.setattr("mirror.commands.failover.doubts_of", failing)
    done = flow.failover(code=4)
    assert done["warnings"] == ["could not check the copies: no answer"]
    (partition,) = done["partitions"]
    assert (partition["whole"], partition["certain"], partition["doubt"]) == (False, False, UNCHECKED.reason)
    (gap,) = done["group_offsets_not_reached"]
    assert (gap["target_offset"], gap["cause"]) == (None, UNCHECKED.reason)
    assert committed(flow.target, flow.topic, flow.topic) < 0


@pytest.mark.brokers
@pytest.mark.parametrize("where", ["on another machine", "in another container"])
def test_what_a_mirror_that_died_left_is_copied(flow: Flow, where: str) -> None:
    """It was killed a moment ago, so that it is taken for running at first; or it is frozen. A container may have this
    machine's name, and a process there the number of this one.
    """
    produce(flow.source, flow.topic, values(50))
    lost = replace(Owner.here("lost", 9), place="another boot/pid:[4026532001]")
    if where == "on another machine":
        lost = Owner(instance="lost", host="elsewhere", pid=1, at_ms=int(time.time() * 1000) - 10_000)
    flow.append((OWNER, lost.to_json()))
    done = flow.failover(code=ExitCode.DATA_AT_RISK)
    assert (done["rpo"]["records"], done["partitions"][0]["position"]) == (0, 150)
    (warning,) = done["warnings"]
    assert f"({lost}) is silent, and did not say that it ended" in warning


@pytest.mark.brokers
def test_a_failover_that_was_taken_back_while_it_was_frozen_does_no_more(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote its record again, which ended the mirror that had been started since, and moved groups."""
    commit(flow.source, flow.topic, flow.topic, 40)
    proves = failover._FailoverRun._prove_ended

    async def frozen(*about: Any) -> None:
        await proves(*about)
        await asyncio.to_thread(flow.append, (ACCOUNT, None), (FAILED_OVER, None))

    with monkeypatch.context() as patched:
        patched.setattr("mirror.commands.failover._FailoverRun._prove_ended", frozen)
        done = CliRunner().invoke(app, ["failover", str(flow.file)])
    assert isinstance(done.exception, PreflightError), done
    assert "was taken back" in str(done.exception)
    assert flow.standing() is None
    assert committed(flow.target, flow.topic, flow.topic) < 0
    assert flow.failover()["groups"] == {"synced": 1}


@pytest.mark.brokers
def test_a_failover_that_was_interrupted_is_finished_by_the_next_call(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed behind the end of the flow: groups were nowhere, and nobody could put them anywhere any more. A mirror of
    which the first call alone knew that it may be frozen is named by the second one.
    """
    commit(flow.source, flow.topic, flow.topic, 40)
    produce(flow.source, flow.topic, values(50))
    lost = Owner(instance="lost", host="elsewhere", pid=1, at_ms=int(time.time() * 1000) - 10_000)
    flow.append((OWNER, lost.to_json()))

    async def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mirror.commands.failover._FailoverRun.check", killed)
        with beating() as detector, pytest.raises(KeyboardInterrupt):
            asyncio.run(failover._failover(config.load(flow.file), detector, rehearse=False))
    assert committed(flow.target, flow.topic, flow.topic) < 0
    begun = flow.standing()
    rehearsed = CliRunner().invoke(app, ["failover", str(flow.file), "--rehearse"]).exception
    assert isinstance(rehearsed, PreflightError), "there is nothing to rehearse any more"
    done = flow.failover(code=ExitCode.DATA_AT_RISK)
    assert "failover_resumed" in flow.logged
    (silent,) = done["warnings"]
    assert "(pid 1 on elsewhere) is silent, and did not say that it ended" in silent
    assert (done["rpo"]["records"], done["partitions"][0]["position"], done["groups"]) == (0, 150, {"synced": 1})
    assert committed(flow.target, flow.topic, flow.topic) == 40
    assert flow.standing() == begun, "it began then"
    again = CliRunner().invoke(app, ["failover", str(flow.file), "--json"])
    assert isinstance(again.exception, PreflightError)
    assert json.loads(again.stdout) == done, "its account is shown again"


@pytest.mark.brokers
def test_a_source_that_goes_away_in_the_midst_is_asked_no_more(
    flow: Flow, own_source: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its questions would cost a timeout, one behind the other: minutes, in the worst hour."""
    commit(flow.source, flow.topic, flow.topic, 40)
    check, follow = failover._FailoverRun.check, failover._FailoverRun.follow
    asked = list[bool]()

    async def freezing(*args: Any, reached: bool) -> None:
        if reached:
            own_source.suspend(0)
        await check(*args, reached=reached)

    async def following(*args: Any, reached: bool) -> None:
        asked.append(reached)
        await follow(*args, reached=reached)

    monkeypatch.setattr(failover._FailoverRun, "check", freezing)
    monkeypatch.setattr(failover._FailoverRun, "follow", following)
    try:
        done = flow.failover(code=ExitCode.DATA_AT_RISK)
    finally:
        own_source.resume(0)
    assert asked[-1] is False, "what was begun is done without it"
    assert "no broker answered" in done["source_problem"]
    assert done["warnings"] == [GROUPS_STAY]
    assert done["partitions"][0]["position"] == 100


@pytest.mark.brokers
def test_a_failover_whose_record_gets_no_answer_says_so(
    flow: Flow, own_target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target freezes as the record is on its way, and takes it as it goes on: the flow is failed over then."""
    commit(flow.source, flow.topic, flow.topic, 40)

    def freezing(*args: Any) -> Any:
        own_target.suspend(0)
        return ending(*args)

    with monkeypatch.context() as patch:
        patch.setattr("mirror.commands.failover.record.ending", freezing)
        try:
            with pytest.raises(ClusterUnreachable, match="Nobody knows whether the flow is failed over now"):
                flow.failover()
        finally:
            own_target.resume(0)
    wait_for(lambda: isinstance(flow.standing(), FailedOver), 60, lambda: "no record")
    flow.failover()
    assert committed(flow.target, flow.topic, flow.topic) == 40


@pytest.mark.brokers
def test_a_flow_that_never_ran_has_nothing_to_fail_over_to(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    flow = Flow(tmp_path, own_source.bootstrap, own_target.bootstrap, topic_name)
    with pytest.raises(ConfigError, match="never ran"):
        flow.failover()


@pytest.mark.brokers
def test_a_mirror_that_was_lost_in_its_first_second_is_failed_over(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its journal names the copy, and no task has reported: what is missing counts, and is copied. It may be frozen."""
    for module in ("mirror.journal.ownership", "mirror.commands.failover"):
        monkeypatch.setattr(f"{module}.LIVENESS_SECONDS", 1.0)
    elsewhere = Owner(instance="lost", host="elsewhere", pid=1, at_ms=0, claim=9)
    flow.append((PartitionStatus.key_of(flow.topic, 0), None), (OWNER, elsewhere.to_json()))
    produce(flow.source, flow.topic, values(5))
    rehearsed = flow.failover("--rehearse", code=ExitCode.DATA_AT_RISK)
    assert (rehearsed["rpo"]["records"], rehearsed["partitions"][0]["position"]) == (5, 100)
    done = flow.failover(code=ExitCode.DATA_AT_RISK)
    (silent,) = done["warnings"]
    assert "is silent, and did not say that it ended" in silent
    assert (done["rpo"], end_of(flow.target, flow.topic)) == ({"records": 0, "seconds": 0.0, "certain": True}, 105)
    refused = CliRunner().invoke(app, ["run", str(flow.file), "--once"]).exception
    assert isinstance(refused, PreflightError), refused


@pytest.mark.brokers
def test_a_running_mirror_is_failed_over(flow: Flow, tmp_path: Path) -> None:
    """Rehearsed, it goes on; failed over, it gets over what is there and ends in good order."""
    commit(flow.source, flow.topic, flow.topic, 40)
    with forked(flow.file, tmp_path / "live.log") as live:
        live.until("spark_started")
        wait_for(lambda: committed(flow.target, flow.topic, flow.topic) == 40, 90, lambda: live.log)
        produce(flow.source, flow.topic, values(50))
        rehearsed = flow.failover("--rehearse")
        assert (rehearsed["whole"], rehearsed["warnings"], live.process.poll()) == (True, [], None)
        produce(flow.source, flow.topic, values(50))
        commit(flow.source, flow.topic, flow.topic, 190)
        result = subprocess.run(
            [sys.executable, "-m", "mirror", "failover", str(flow.file)], capture_output=True, timeout=120, check=False
        )
        assert result.returncode == 0, (result.stdout, result.stderr)
        assert b"failed over to us: RPO 0 records" in result.stdout
        assert live.ended() == 0, live.log
    assert "flow_failed_over" in live.log
    assert list(consumed(flow.target, flow.topic, flow.topic, 10)) == values(50)[40:]
    again = subprocess.run(
        [sys.executable, "-m", "mirror", "run", str(flow.file)], capture_output=True, timeout=60, check=False
    )
    assert again.returncode == 3
    assert b"failover CONFIG --undo" in again.stderr


@pytest.mark.brokers
def test_copies_are_compared_beside_a_mirror_that_writes(flow: Flow, tmp_path: Path) -> None:
    """A log that grows while it is compared is no other one."""
    is_over = Event()

    def feed() -> None:
        client = Producer({"bootstrap.servers": flow.source, "linger.ms": 5})
        while not is_over.is_set():
            client.produce(flow.topic, b"more", partition=0)
            client.poll(0.002)
        client.flush(20)

    feeding = Thread(target=feed)
    with forked(flow.file, tmp_path / "live.log") as live:
        live.until("spark_started")
        feeding.start()
        try:
            for _ in range(4):
                rehearsed = flow.failover("--rehearse")
                assert rehearsed["whole"], rehearsed
        finally:
            is_over.set()
            feeding.join()


@pytest.mark.brokers
def test_another_cluster_at_the_sources_address_is_not_taken_for_the_source(flow: Flow, tmp_path: Path) -> None:
    """Here the standby itself, as where its name was switched first: all that it holds is all that it asks for. The
    mirror that runs has the right address, and gets over what is missing.
    """
    right = flow.file.read_text()
    flow.file.write_text(json.dumps(json.loads(right) | {"limits": {"bytes_per_second": 200_000}}))
    produce(flow.source, flow.topic, [b"x" * 10_000] * 100)
    commit(flow.source, flow.topic, flow.topic, 150)
    with forked(flow.file, tmp_path / "live.log") as live:
        live.until("spark_started")
        wait_for(lambda: end_of(flow.target, flow.topic) > 100, 90, lambda: live.log)
        flow.file.write_text(right.replace(flow.source, flow.target))
        done = flow.failover(code=4)
        assert live.ended() == 0, live.log
    assert end_of(flow.target, flow.topic) == 200
    assert "answers there, and not one of" in done["source_problem"]
    assert not done["rpo"]["certain"]
    assert done["groups"] == {}, "nobody asks it where groups stand"
    shown = json.loads(CliRunner().invoke(app, ["status", str(flow.file), "--json"]).stdout)
    assert shown["partitions"][0]["lag_records"] is None, "nor how much is left to copy"


@pytest.mark.brokers
def test_a_copy_is_compared_where_the_rest_could_not_be_copied(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the mirror before reported of it was true then: its source topic is another one by now, with as many
    records.
    """
    commit(flow.source, flow.topic, flow.topic, 40)
    flow.copy()
    assert not flow.failover("--rehearse")["group_offsets_not_reached"]
    delete_topics(flow.source, flow.topic)
    make_topic(flow.source, flow.topic)
    produce(flow.source, flow.topic, [b"another"] * 100)
    commit(flow.source, flow.topic, flow.topic, 90)

    def refused(*_: Any, **__: Any) -> Any:
        raise ClusterUnreachable("the source does not give its configs")

    monkeypatch.setattr("mirror.driver.flow.prepare", refused)
    before = committed(flow.target, flow.topic, flow.topic)
    done = flow.failover(code=4)
    (partition,) = done["partitions"]
    assert (partition["state"], partition["doubt"]) == (
        "RECREATED",
        "the source topic is another one than was mirrored",
    )
    assert committed(flow.target, flow.topic, flow.topic) == before < 40, "the offset means other records"
    (gap,) = done["group_offsets_not_reached"]
    assert gap["cause"].startswith("the source topic was recreated")
