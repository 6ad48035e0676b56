"""What tasks report, straight to their driver or by the journal, and what the driver makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fakebroker import HOST, in_loop
from marks import ended, known
from scraped import report, value
from waiting import MovableClock, until_true

from mirror.driver import control
from mirror.driver.control import ControlServer, Voice, until_marked
from mirror.driver.journal_state import HEARD_SECONDS, JournalState
from mirror.driver.reports import StopLog
from mirror.errors import AccessDenied, BrokerError, ClusterUnreachable
from mirror.groups.terms import is_verified
from mirror.journal.journal import Entry, JournalPlace, News
from mirror.kafka.cluster import TopicPartition
from mirror.observability import logs
from mirror.observability.metrics import Metrics
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment
from mirror.spark import task as relay
from mirror.states import State


@in_loop
async def test_reports_are_heard_in_their_order_beside_what_is_handed_out() -> None:
    heard: list[tuple[int, bytes]] = []
    opened = await ControlServer.open(HOST, hear=lambda task, report: heard.append((task, report)))
    try:
        channel = Voice()
        assert not channel.send(b"nobody is there yet")
        task = asyncio.create_task(until_marked(opened.address, 7, lambda _: True, channel))
        await known(opened, 7)
        while channel.frames is None:  # the task hears a moment later that it is known
            await asyncio.sleep(0.01)
        reports = [b"+" * 1000, b"", b"=", b"x" * control.LARGEST_REPORT]
        for one in reports:
            assert channel.send(one)
            assert await opened.hand(7, ())
        assert heard == [(7, one) for one in reports]
        assert channel.send(b"x" * (control.LARGEST_REPORT + 1)), "no later try would do"
        assert await opened.hand(7, ())
        assert len(heard) == len(reports)
        opened.set()
        await ended(task)
        assert not channel.send(b"nobody is there any more")
    finally:
        await opened.close()


class Still:
    """As much of a pipeline as is reported on."""

    def __init__(self, partitions: int) -> None:
        self.stopped = asyncio.Event()
        self.standing = {number: report(partition=number) for number in range(partitions)}

    @property
    def partitions(self) -> Collection[TopicPartition]:
        return {TopicPartition("orders", number): None for number in self.standing}.keys()

    def touched(self) -> set[TopicPartition]:
        return set(self.partitions)

    def positions(self, _: Iterable[TopicPartition]) -> list[Any]:
        return []

    def figures(self, _: str, partitions: Iterable[TopicPartition] | None = None) -> list[PartitionStatus]:
        return [self.standing[at.partition] for at in (self.partitions if partitions is None else partitions)]


class Listener:
    """A driver that takes so many reports at a time, and then none until it is asked again."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = self.left = room
        self.reports: list[PartitionStatus] = []

    def send(self, expected: bytes) -> bool:
        if not self.left:
            self.left = self.room
            return False
        self.left -= 1
        self.reports.append(PartitionStatus.from_json(expected))
        return True


Write = Callable[[list[PartitionStatus]], Coroutine[Any, Any, None]]


@asynccontextmanager
async def reporting(
    monkeypatch: pytest.MonkeyPatch, pipeline: Still, driver: Listener, write: Write
) -> AsyncIterator[None]:
    """A task's reports, to a journal that `write` stands for."""

    async def writing(_reporter: Any, _positions: Any, figures: list[Any]) -> None:
        await write(figures)

    monkeypatch.setattr(relay, "REPORT_SECONDS", 0.005)
    monkeypatch.setattr(relay._Reporter, "_write", writing)
    assignment: Any = SimpleNamespace(flow="eu-to-us", instance="one", number=0, epoch=0, claim=1, place=None)
    rest: Any = pipeline, None, None, driver
    task = asyncio.create_task(relay._Reporter(assignment, *rest).report())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@in_loop
async def test_reports_go_around_a_journal_that_refuses_at_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And what hinders it is logged once for each reason, until it is over."""
    pipeline, driver = Still(1), Listener()
    problem: Exception | None = ClusterUnreachable("no broker answered")
    written: list[PartitionStatus] = []

    async def write(figures: list[PartitionStatus]) -> None:
        if problem is not None:
            raise problem
        written.extend(figures)

    def warnings() -> int:
        return output.count("figures_not_written")

    async with reporting(monkeypatch, pipeline, driver, write):
        await until_true(lambda: driver.reports)
        problem = AccessDenied("append to the journal needs WRITE")
        for offset in range(20, 23):
            pipeline.standing[0] = report(next_offset=offset)
            await until_true(lambda: pipeline.standing[0] in driver.reports)
        output = capfd.readouterr().err
        assert warnings() == 2, output
        assert "no broker answered" in output
        assert "needs WRITE" in output
        problem = None
        pipeline.standing[0] = report(next_offset=30)
        await until_true(lambda: written)
        problem = AccessDenied("append to the journal needs WRITE")
        pipeline.standing[0] = last = report(next_offset=31)
        await until_true(lambda: last in driver.reports)
        output = capfd.readouterr().err
        assert warnings() == 1, output


@in_loop
async def test_all_of_many_partitions_get_through_to_a_driver_that_takes_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even where the first ones move all the time."""
    pipeline, driver = Still(1000), Listener(room=60)

    async def write(_: list[PartitionStatus]) -> None:
        for number in range(100):
            before = pipeline.standing[number]
            pipeline.standing[number] = replace(before, next_offset=before.next_offset + 1)
        raise AccessDenied("no")

    async with reporting(monkeypatch, pipeline, driver, write):
        await until_true(lambda: len({one.partition for one in driver.reports}) == 1000)


AT = TopicPartition("orders", 0)

MINUTES = 5 * 60_000


def journal_state(metrics: Metrics | None = None) -> JournalState:
    return JournalState("eu-to-us", "one", lambda _: None, lambda _: None, metrics or Metrics("eu-to-us"))


def learn(expected: JournalState, *reports: PartitionStatus) -> None:
    expected.learn([Entry(offset, one.key(), one.to_json()) for offset, one in enumerate(reports)])


def now_ms() -> int:
    return int(time.time() * 1000)


def test_what_was_heard_stands_over_what_its_task_wrote_before() -> None:
    metrics = Metrics("eu-to-us")
    reported = journal_state(metrics)
    waiting = report(state=State.UNAVAILABLE, lag_records=None)
    older, later = (
        replace(waiting, state=State.MIRRORING, at_ms=waiting.at_ms - 1),
        replace(waiting, state=State.CAUGHT_UP),
    )
    reported.hear(0, waiting.to_json(), {AT})
    learn(reported, older)
    assert reported.live == {AT: waiting}
    assert value(metrics, "mirror_partition_state", state="UNAVAILABLE") == 1
    reported.hear(0, replace(later, instance="another").to_json(), {AT})
    assert reported.live == {AT: waiting}
    learn(reported, later)
    assert reported.live[AT].state is State.CAUGHT_UP
    learn(reported, older)
    assert reported.live[AT].state is State.MIRRORING, "the journal's order is what counts again"


def test_what_was_heard_does_not_stand_for_long(clock: MovableClock) -> None:
    """By our own clock: a task whose clock is ahead may be followed by one whose is not."""
    reported = journal_state()
    reported.hear(0, report(state=State.UNAVAILABLE, at_ms=(1 << 63) - 1).to_json(), {AT})
    corrupt = report(state=State.CORRUPT, at_ms=now_ms())
    learn(reported, corrupt)
    assert reported.live[AT].state is State.UNAVAILABLE
    clock.move(HEARD_SECONDS + 1)
    learn(reported, corrupt)
    assert reported.live[AT].state is State.CORRUPT


def test_a_report_of_a_clock_that_is_ahead_says_nothing_of_times_to_come() -> None:
    """A report arrives as it is made: by so much is its clock ahead. Of a mirror before nobody knows that."""
    reported, ahead = journal_state(), now_ms() + MINUTES
    one = report(state=State.CAUGHT_UP, at_ms=ahead, caught_up_ms=ahead - 1_000)
    asked = Assignment(AT, TopicPartition(one.target_topic, 0), None, Rules())
    learn(reported, one)
    assert reported.live[AT].caught_up_ms == reported.live[AT].at_ms - 1_000
    assert reported.handed(asked).caught_up_ms <= now_ms() - 1_000
    learn(reported, replace(one, instance="before"))
    assert reported.handed(asked).caught_up_ms == ahead - 1_000


def test_the_order_of_the_journal_counts_whatever_clocks_say(capfd: pytest.CaptureFixture[str]) -> None:
    """For all who look at the newest report: metrics, the log, and who follows groups."""
    metrics, stops = Metrics("eu-to-us"), StopLog()
    reported = journal_state(metrics)
    results = {AT: reported.receive(report(state=State.MIRRORING, at_ms=now_ms() + MINUTES))}
    reports = [
        report(state=State.UNAVAILABLE, at_ms=now_ms() + MINUTES),
        report(state=State.CAUGHT_UP, at_ms=now_ms() + 2 * MINUTES),
        report(state=State.PADDING, at_ms=(1 << 63) - 1),
        report(state=State.CORRUPT, at_ms=now_ms() + 1),
        report(state=State.DIVERGED, at_ms=now_ms() - MINUTES),
    ]
    learn(reported, reports[0])
    for one in reports[1:]:
        learn(reported, one)
        stops.log(reported.live.values())
        assert reported.live[AT].state is one.state
        assert reported.live[AT].at_ms <= now_ms()
        assert value(metrics, "mirror_partition_state", state=str(one.state)) == 1
        assert reported.newest(results)[AT].state is one.state or reported.live[AT].at_ms == results[AT].at_ms
    assert not is_verified(reported.live[AT], results[AT])
    assert capfd.readouterr().err.count("partition_stopped") == 2


@pytest.mark.parametrize("garbled", [b"{", b"\xff", report(partition=1).to_json(), report(topic="a\ud800b").to_json()])
def test_what_a_task_cannot_mean_is_reported_once_with_its_name(
    garbled: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    reported = journal_state()
    for _ in range(3):
        reported.hear(12, garbled, {AT})
    assert reported.live == {}
    err = capfd.readouterr().err
    assert err.count("report_unread") == 1, err
    assert "task=12" in err


class Unreadable:
    """A journal that fails with one problem after another."""

    def __init__(self, *problems: Exception) -> None:
        self.problems = list(problems)

    async def follow(self, _: JournalPlace | None) -> News:
        if self.problems:
            raise self.problems.pop(0)
        return News([], JournalPlace(1, None, 0))


@in_loop
async def test_each_reason_why_a_journal_is_not_read_is_reported_once() -> None:
    with pytest.MonkeyPatch.context() as patched:
        said: list[str] = []
        reported = journal_state()
        patched.setattr(
            reported, "_log", SimpleNamespace(warning=lambda event, **of: said.append(f"{event} {of['reason']}"))
        )
        away, denied = ClusterUnreachable("away"), AccessDenied("no READ")
        broken = [BrokerError(code, "WHATEVER", "reading") for code in (3, 5)]
        journal: Any = Unreadable(away, away, denied, away, *broken, broken[0])
        while not await reported.read(journal):
            pass
        journal = Unreadable(away, away)
        while not await reported.read(journal):
            pass
    reasons = ["away", "no READ", str(broken[0]), str(broken[1]), "away"]
    assert said == [f"journal_not_read {reason}" for reason in reasons]


# --- what is logged ---------------------------------------------------------------------------------------------------


STARTING, PADDING, MIRRORING, CAUGHT_UP = State.STARTING, State.PADDING, State.MIRRORING, State.CAUGHT_UP
CORRUPT, UNAUTHORIZED, UNAVAILABLE, RECREATED = (
    State.CORRUPT,
    State.UNAUTHORIZED,
    State.UNAVAILABLE,
    State.RECREATED,
)


@pytest.mark.parametrize(
    ("reports", "logged"),
    [
        # Every epoch meets the stop again, and its reports come in two ways.
        ([(MIRRORING, 100), (CORRUPT, 100), (CORRUPT, 100)] * 4, ["partition_stopped 100"]),
        (
            [(CORRUPT, 100), (UNAUTHORIZED, 100), (UNAUTHORIZED, 130)],
            ["partition_stopped 100", "partition_stopped 100", "partition_stopped 130"],
        ),
        # The copy was deleted as advised.
        ([(RECREATED, 100), (RECREATED, 0), (CAUGHT_UP, 10)], ["partition_stopped 100", "partition_resumed 10"]),
        # The offset is not known yet.
        ([(UNAUTHORIZED, 100), (UNAUTHORIZED, -1), (CORRUPT, -1)], ["partition_stopped 100", "partition_stopped -1"]),
        (
            [(UNAUTHORIZED, 100), (CAUGHT_UP, 100), (MIRRORING, 120), (UNAUTHORIZED, 100)],
            ["partition_stopped 100", "partition_resumed 100", "partition_stopped 100"],
        ),
        (
            [*[(STARTING, 100), (UNAVAILABLE, 100)] * 4, (MIRRORING, 130), (CAUGHT_UP, 140)],
            ["partition_state 100", "partition_resumed 130"],
        ),
        (
            [(PADDING, 100), (UNAVAILABLE, 101), (CORRUPT, 102), (MIRRORING, 103)],
            ["partition_state 100", "partition_state 101", "partition_stopped 102", "partition_resumed 103"],
        ),
        ([(STARTING, 100), (MIRRORING, 101), (CAUGHT_UP, 102)] * 2, []),
    ],
)
def test_what_is_logged_of_reports(
    reports: list[tuple[State, int]], logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(logs.Log, "_emit", lambda _, __, event, fields: found.append(f"{event} {fields['offset']}"))
    stops = StopLog()
    for number, (state, offset) in enumerate(reports):
        stops.log([report(state=state, next_offset=offset, at_ms=number)])
    assert found == logged
    stops.log([report(state=CAUGHT_UP, next_offset=0, at_ms=-1)])
    assert found == logged, "a report that is older than the last one says nothing"
