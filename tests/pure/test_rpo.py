"""What a failover makes of what it finds: the RPO, its account, and how long it waits for a mirror that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scraped import report
from waiting import DEADLINE_S, MovableClock

from mirror import clock as mirror_clock
from mirror.commands.failover_view import FailoverReport, account_entry, account_in, as_dict, rendered
from mirror.errors import ClusterUnreachable, PartitionStop, PreflightError
from mirror.failover.account import _compared, _exposure, _placed, doubts_of, ends_of
from mirror.failover.drain import _stretches
from mirror.failover.rpo import AcceptedLoss, JournalSnapshot, PartitionRpo, RecoveryPoint
from mirror.groups.decide import GroupStanding
from mirror.journal.entries import COPIES, FirstSeen
from mirror.journal.journal import ENDED, OWNER, Entry, Journal, JournalPlace, News
from mirror.journal.ownership import ACCOUNT, FailedOver, Garbled, Owner, ending, refuse_failed_over
from mirror.journal.ownership import KEY as FAILED_OVER
from mirror.journal.positions import POSITIONS, standing_in
from mirror.kafka.cluster import Cluster, Endpoint, Leader, Topic, TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.rendering import console
from mirror.replication.assignment import Assignment, LastPosition
from mirror.replication.partition_writer import PartitionCounters
from mirror.spark.task import TaskAssignment, TaskResult
from mirror.states import Remedy, State

ORDERS = TopicPartition("orders", 0)


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
        ({"end": None}, 0, None, False),
        ({"state": State.PADDING}, 0, None, False),
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


def test_what_a_flow_lost() -> None:
    late, lost = exposure(end=100, lost_from_ms=2500), exposure(end=None, lag=7, seen_ms=4000)
    assert RecoveryPoint.of([exposure(), late]) == RecoveryPoint(10, 2.5, True)
    assert RecoveryPoint.of([late, lost]) == RecoveryPoint(17, 4.0, False)
    assert RecoveryPoint.of([late, exposure(end=100)]) == RecoveryPoint(20, None, True)
    assert RecoveryPoint.of([exposure(state=State.RECREATED)]) == RecoveryPoint(90, None, False)
    assert RecoveryPoint.of([]) == RecoveryPoint(0, 0.0, True)


# --- the account


def account(**more: Any) -> FailoverReport:
    fields: dict[str, Any] = {
        "flow": "eu-to-us",
        "source": "eu",
        "target": "us",
        "rehearsal": False,
        "exposures": (exposure(),),
        "exposed": (),
        "source_problem": "",
        "groups": {GroupStanding.SYNCED: 3},
        "warnings": (),
        "steps": {"drain": 0.5},
        "seconds": 1.25,
    }
    return FailoverReport(**{**fields, **more})


def printed(one: FailoverReport) -> str:
    out = console()
    with out.capture() as captured:
        out.print(rendered(one))
    return " ".join(captured.get().split())


def test_an_account_says_what_got_over_and_what_did_not() -> None:
    assert "eu-to-us: failed over to us: RPO 0 records, 0 ms; RTO 1.2 s" in printed(account())
    away = account(exposures=(exposure(end=None, lag=7, seen_ms=4000),), source_problem="no broker answered")
    assert "orders-0 CAUGHT_UP 90 unknown at least 7 4.0 s" in printed(away)
    assert "the source is away: no broker answered" in printed(away)
    diverged = account(exposures=(exposure(position=160, end=150, state=State.DIVERGED),))
    assert "orders-0: it is not known how many records are missing, since the target holds other" in printed(diverged)
    assert "RPO at least 150 records, an unknown time" in printed(diverged)
    assert [one.is_whole for one in (account(), away, diverged)] == [True, False, False]
    assert not account(warnings=("the mirror did not say that it ended",)).is_whole


def test_an_account_of_a_rehearsal_is_of_what_a_failover_would_leave() -> None:
    one = account(rehearsal=True, exposed=(exposure(end=100, lost_from_ms=2500),))
    assert "rehearsed, nothing was changed: RPO 10 records, 2.5 s had eu been lost" in printed(one)
    assert one.is_whole, "all of that gets over"
    unsure = account(rehearsal=True, exposures=(exposure(end=None, lag=0),), exposed=(exposure(),))
    assert not unsure.is_whole, "a failover would end with 4"


def test_an_accepted_loss_is_named_and_an_exit_code_of_its_own() -> None:
    lost = exposure(losses=(AcceptedLoss(40, 55, "retention"),))
    one = account(exposures=(lost,))
    assert (one.is_whole, one.lacks_losses_alone, as_dict(one)["whole"]) == (False, True, False)
    assert "orders-0: accepted loss, offsets 40 to 54 (15): reason retention" in printed(one)
    more = account(exposures=(lost, exposure(end=100)))
    assert (more.is_whole, more.lacks_losses_alone) == (False, False)
    deletions = exposure(losses=(AcceptedLoss(0, 0, "tombstones"),), end=100, open_from=90)
    for rehearsal in (True, False):
        text = printed(account(rehearsal=rehearsal, exposures=(deletions,), exposed=(deletions,)))
        assert ("`mirror accept CONFIG orders`" in text) == rehearsal, "a flow that is over refuses that"


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
def test_what_keeps_a_failover_from_being_whole_is_printed(one: PartitionRpo, rehearsal: bool) -> None:
    reported = account(exposures=(one,), exposed=(exposure(partition=one.partition),), rehearsal=rehearsal)
    text = printed(reported)
    assert reported.is_whole or "note: " in text or (not rehearsal and (one.records or one.end is None)), text


def test_an_account_is_kept_without_what_is_whole_where_it_is_large() -> None:
    lacking = exposure(partition=9999, end=100, lost_from_ms=2500)
    small = account(exposures=(exposure(), lacking), warnings=("orders is paused",))
    key, value = account_entry(small)
    assert account_in({key: value or b""}) == small
    large = account(exposures=(*(exposure(partition=number) for number in range(9999)), lacking))
    key, value = account_entry(large)
    assert value is not None
    assert len(value) < 1000, "a broker takes a megabyte"
    again = account_in({key: value})
    assert again is not None
    assert (again.exposures, again.rpo) == ((lacking,), large.rpo)
    assert account_in({}) is account_in({key: b"torn"}) is None, "what is printed is then all there is"


# --- the record of a failover


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
    journal = {FAILED_OVER: value}
    assert isinstance(FailedOver.standing(journal), Garbled)
    with pytest.raises(PreflightError, match=r"cannot be read .* mirror failover CONFIG --undo"):
        refuse_failed_over("eu-to-us", journal)


def test_a_record_of_a_failover_is_read_back() -> None:
    for known in (FailedOver.here(), FailedOver.here(["pid 1 on elsewhere"])):
        assert FailedOver.standing({FAILED_OVER: known.to_json()}) == known
    older = b'{"at_ms": 1, "host": "h", "pid": 2}'
    assert FailedOver.from_json(older) == FailedOver(at_ms=1, host="h", pid=2)
    assert FailedOver.standing({}) is None


def test_a_failover_lets_go_of_the_topics_that_the_flow_made() -> None:
    """Else a flow that runs again would delete what applications own by now, once its source is deleted (failback)."""
    made = FirstSeen(source_topic="a", topic_id=uuid4(), target_topic_id=uuid4(), cluster_id="c", made=True, since=(7,))
    found = replace(made, source_topic="b", made=False)
    known = {COPIES.key(name): seen.to_json() for name, seen in {"eu.a": made, "eu.b": found}.items()}
    reported = ending(known | {b"topic/eu.c": b"somebody else's"})
    assert [key for key, _ in reported] == [b"topic/eu.a", ACCOUNT, FAILED_OVER]
    assert reported[1][1] is None, "an account is of one failover"
    after = {key: value for key, value in reported if value is not None}
    assert COPIES.newest(after) == {"eu.a": replace(made, made=False)}
    assert FailedOver.standing(after) is not None


# --- what is known of a source that is away


def status_of(topic: str, next_offset: int, state: State = State.MIRRORING) -> PartitionStatus:
    more = {"target_topic": topic, "state": state, "next_offset": next_offset, "log_end": 100, "lag_records": 0}
    return report(topic=topic, at_ms=mirror_clock.now_ms(), **more)


def entry_of(topic: str, next_offset: int, state: State = State.MIRRORING) -> tuple[bytes, bytes]:
    one = status_of(topic, next_offset, state)
    return one.key(), one.to_json()


@pytest.mark.parametrize(("ahead_ms", "seconds"), [(-20_000, 20), (500, 0), (7_200_000, None)])
def test_a_report_of_the_future_does_not_say_how_long_ago_the_source_was_seen(
    ahead_ms: int, seconds: int | None
) -> None:
    """The clock of the mirror's machine is ahead of ours, and the source is away: it was any time ago."""
    one = replace(status_of("orders", 150), at_ms=mirror_clock.now_ms() + ahead_ms, log_end=150, lag_ms=0)
    known: Any = SimpleNamespace(contact={ORDERS: one})
    found = asyncio.run(_exposure(None, None, None, known, one, 150))
    assert (None if found.seconds is None else round(found.seconds), found.records) == (seconds, 0)


def test_what_a_flow_lost_is_known_for_as_long_as_its_source_is_away() -> None:
    """The journal was compacted since: of each partition it has the newest report, of a task that never began."""
    now = mirror_clock.now_ms()
    one = replace(status_of("orders", -1, State.UNAVAILABLE), log_end=5000, contact_ms=now - 20_000)
    position = POSITIONS.entry(ORDERS, LastPosition(source_next=1000, target_end=1000))
    known = JournalSnapshot(cast(Journal, Journaling([(one.key(), one.to_json()), position])))
    asyncio.run(known.read())
    for answer in (1000, ClusterUnreachable("the target does not answer for it")):
        placed = _placed(known.figures[ORDERS], standing_in(known.newest).positions.popitem()[1])
        found = asyncio.run(_exposure(None, None, None, known, placed, answer))
        assert (found.records, found.is_certain, round(found.seen_ms or 0, -3)) == (4000, False, 20_000)


@pytest.mark.parametrize(("unlike", "reason"), [(0, ""), (1, ""), (9, "other records")])
def test_a_difference_that_nobody_can_judge_is_none_that_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, unlike: int, reason: str
) -> None:
    """A broker that may know better is silent, and the copy was reported to be its source's. It is looked for again."""
    left = [unlike]

    async def compared(*_: object) -> Any:
        cause = PartitionStop(State.DIVERGED, "orders", 0, 7, "other records", Remedy.RENAME) if left[0] else None
        left[0] = max(0, left[0] - 1)
        raise ClusterUnreachable("no answer") from cause

    async def there(_: object) -> None:
        pass

    monkeypatch.setattr("mirror.failover.account.resume", compared)
    one = replace(status_of("orders", 150, State.CAUGHT_UP), verified=True)
    cluster: Any = SimpleNamespace(require=there, topic_id=lambda _: None)
    known: Any = SimpleNamespace(journal=SimpleNamespace(cluster=cluster))
    settings: Any = SimpleNamespace(flow="a", topics=SimpleNamespace(offsets="preserve"))
    found = asyncio.run(_compared(settings, cluster, known, one, 0, None, ()))
    assert (found.reason if found else "").partition(";")[0] == reason


def test_leaders_that_do_not_answer_are_waited_for_once(monkeypatch: pytest.MonkeyPatch, clock: MovableClock) -> None:
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
        clock.move(4)

    async def compare(_s: object, _c: object, _k: object, one: PartitionStatus, *_: object) -> None:
        compared.append(TopicPartition(one.topic, one.partition))
        source.silent = frozenset({2, 3})

    monkeypatch.setattr("mirror.failover.account.list_offset", offset_of)
    monkeypatch.setattr("mirror.failover.account._compared", compare)
    monkeypatch.setattr("mirror.failover.account._COMPARED_AT_ONCE", 1)
    monkeypatch.setattr("mirror.failover.account._LEADER_SECONDS", 0.0)
    monkeypatch.setattr(Cluster, "refresh", refresh)
    source, target = (Cluster(Endpoint(alias, (("localhost", 9092),))) for alias in ("eu", "us"))
    led = {number: Leader(node, 0) for number, node in enumerate((1, 2, -1, 3))}
    source.topics["orders"] = Topic("orders", None, led)
    source.silent = frozenset({2})
    assert asyncio.run(ends_of(source, there)) == {there[0]: 7, there[3]: 7}
    assert refreshed, "they were waited for"
    refreshed.clear()
    assert asyncio.run(ends_of(source, there)) == {there[0]: 7, there[3]: 7}
    assert not refreshed, "a second time"
    assert set(asked) == {there[0], there[3]}

    one = status_of("orders", 150, State.UNAVAILABLE)
    known: Any = SimpleNamespace(
        journal=SimpleNamespace(cluster=target), newest={}, figures={at: replace(one, partition=at[1]) for at in there}
    )
    settings: Any = SimpleNamespace(topics=SimpleNamespace(rules=()))
    doubts = asyncio.run(doubts_of(settings, source, known))
    assert compared == [there[0]]
    assert {at for at, doubt in doubts.items() if doubt} == {*there[1:]}
    source.silent = frozenset()
    assert asyncio.run(ends_of(source, there)) == {there[0]: 7, there[1]: 7, there[3]: 7}, "those that came back"


# --- how long a mirror that runs is waited for


class Journaling:
    """A journal that says something new each time it is read, as once a second."""

    def __init__(self, *reads: Sequence[tuple[bytes, bytes | None]], clock: MovableClock | None = None) -> None:
        self.reads, self.clock = iter(reads), clock
        self.partition, self.flow = TopicPartition("journal", 0), "eu-to-us"
        self.cluster = SimpleNamespace(topics={"journal"}, refresh=self.refresh)

    async def refresh(self, _: list[str]) -> None:
        """The topic is there."""

    async def follow(self, _: JournalPlace | None) -> News:
        """The next round; nothing new when all were given."""
        if self.clock:
            self.clock.move(1)
        return News([Entry(0, key, value) for key, value in next(self.reads, [])], JournalPlace(1, None, 0))


def test_a_copy_on_which_no_task_has_reported_yet_is_not_forgotten() -> None:
    """The mirror was lost in its first second: what it had begun is missing from where it began."""
    begun = FirstSeen(source_topic="late", topic_id=uuid4(), target_topic_id=uuid4(), cluster_id="c", since=(0, 7))
    journal = Journaling([entry_of("orders", 5), COPIES.entry("eu.late", begun)])
    leaders = dict.fromkeys(range(2), Leader(1, 0))
    journal.cluster.topics = {"journal": None, "eu.late": Topic("eu.late", None, leaders)}
    known = JournalSnapshot(cast(Journal, journal), lambda topic: "eu.late" if topic == "late" else topic)
    asyncio.run(known.read())
    found = {(at.topic, at.partition): (one.next_offset, one.state) for at, one in known.figures.items()}
    starting = {("late", 0): (0, State.STARTING), ("late", 1): (7, State.STARTING)}
    assert found == {("orders", 0): (5, State.MIRRORING)} | starting


Reads = Sequence[Sequence[tuple[bytes, bytes | None]]]
RUNNING = (OWNER, replace(Owner.here("one"), host="elsewhere").to_json())
BEGUN = [RUNNING, entry_of("busy", 100), entry_of("stuck", 5)]


def moving() -> Iterator[list[tuple[bytes, bytes]]]:
    return ([RUNNING, entry_of("busy", 100 + read), entry_of("stuck", 5)] for read in range(1000))


@pytest.mark.parametrize(
    ("reads", "left"),
    [
        ([*moving()], ["stuck"]),
        ([BEGUN, [(ENDED, b'{"instance": "one"}')]], ["stuck"]),
        ([BEGUN, [(entry_of("stuck", 5)[0], None)]], []),
        ([[*BEGUN, entry_of("stuck", 5, State.DIVERGED)]], []),
        ([BEGUN, [], [entry_of("stuck", 100)]], []),
        (
            [
                [RUNNING, entry_of("busy", 10), entry_of("stuck", 90)],
                *([entry_of("busy", read * 5), entry_of("stuck", -1)] for read in range(3, 19)),
                [entry_of("busy", 100), entry_of("stuck", 100)],
            ],
            [],
        ),
    ],
    ids=["one moves for ever", "the mirror ended", "mirrored no more", "stopped", "reached", "away for a moment"],
)
def test_partitions_that_a_running_mirror_leaves_behind(
    reads: Reads, left: list[str], clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two topics with a hundred records each, in which nothing may stand still for ten seconds."""
    monkeypatch.setattr("mirror.failover.rpo.POLL_SECONDS", 0.0)
    ends = {TopicPartition(topic, 0): 100 for topic in ("busy", "stuck")}

    async def behind() -> list[TopicPartition]:
        async with asyncio.timeout(DEADLINE_S):
            known = JournalSnapshot(cast(Journal, Journaling(*reads, clock=clock)))
            return await known.reaching(ends, 10)

    assert [at.topic for at in asyncio.run(behind())] == left


def test_a_drain_goes_on_for_as_long_as_any_partition_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot begin any more, its leader being away, was far ahead of the others."""
    stretches = 0

    async def stretch(_: TaskAssignment) -> list[TaskResult]:
        nonlocal stretches
        stretches += 1
        reports = [
            status_of("stuck", 500 if stretches == 1 else -1),
            status_of("busy", min(10 * stretches, 50)),
        ]
        return [TaskResult(report, PartitionCounters()) for report in reports]

    async def nothing() -> dict[bytes, bytes]:
        return {}

    monkeypatch.setattr("mirror.failover.drain.run_task", stretch)
    at = [TopicPartition(topic, 0) for topic in ("busy", "stuck")]
    wanted = [Assignment(source=one, target=one, topic_id=None, rules=Rules(), until=1000) for one in at]
    flow: Any = SimpleNamespace(name="eu-to-us", source=None, target=None, memory_bytes=1, bytes_per_second=None)
    journal: Any = SimpleNamespace(newest=nothing)
    mark: Any = None
    asyncio.run(_stretches(flow, Owner.here("one"), wanted, journal, standing_in({}), mark, asyncio.Event()))
    assert stretches == 6, "the first one in which nothing moved is the last"
