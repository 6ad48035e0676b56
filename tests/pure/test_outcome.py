"""When a bounded run may say that it is done, and what is said where no task reports (no Spark, no brokers)."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from fakebroker import in_loop
from scraped import report
from sparkless import InThisProcess, idle_flow
from waiting import MovableClock

from mirror.driver.flow import RunOutcome
from mirror.driver.reconciler import Refusal
from mirror.errors import ExitCode
from mirror.journal import heartbeats
from mirror.journal.heartbeats import STALE_SECONDS, Heart, Heartbeat
from mirror.journal.journal import Journal
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment, KnownStop
from mirror.replication.partition_writer import PartitionCounters
from mirror.spark.supervisor import IDLE_PAUSE, Supervisor
from mirror.spark.task import TaskResult
from mirror.states import State

AT = TopicPartition("orders", 0)


def figures(state: State, offset: int, partition: int = 0) -> PartitionStatus:
    return report(state=state, next_offset=offset, partition=partition, log_end=1000, lag_records=0)


class Scripted(Supervisor):
    """Epochs with given results instead of Spark jobs."""

    def __init__(self, epochs: Sequence[Sequence[PartitionStatus]], *, is_written: bool = True, **flow: Any) -> None:
        given = idle_flow(Assignment(AT, AT, None, Rules(), 1000), **{"epoch_seconds": 0.01, **flow})
        super().__init__(cast(Any, InThisProcess()), given, lambda _: None)
        self.left = list(epochs)
        self.is_written = is_written
        self.pauses: list[float] = []

    async def _epoch(self, *_: Any) -> list[TaskResult]:
        if not self.left:
            self._interrupt(signal.SIGTERM)
            return []
        return [TaskResult(one, PartitionCounters(), self.is_written) for one in self.left.pop(0)]

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def _refreshed(self) -> None:
        return

    def outcome(self) -> RunOutcome:
        async def run() -> None:
            await self._epochs()
            self._conclude()

        asyncio.run(run())
        return self._outcome


RUNNING, DONE = figures(State.MIRRORING, 500), figures(State.CAUGHT_UP, 1000)
SIGNALED = 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("epochs", "flow", "code"),
    [
        ([[RUNNING], [DONE]], {"once": True}, ExitCode.DONE),
        ([[RUNNING], [], [], [], [DONE]], {"once": True}, ExitCode.DONE),  # epochs that failed say nothing of headway
        ([[figures(State.CORRUPT, 500)]], {"once": True}, ExitCode.DATA_AT_RISK),
        ([[figures(State.UNAUTHORIZED, 500)]], {"once": True}, ExitCode.CLUSTER),
        ([[RUNNING]], {"once": True}, SIGNALED),  # behind the last of these epochs comes a signal
        ([[RUNNING]], {"until_caught_up": True}, SIGNALED),
        ([[RUNNING]], {}, ExitCode.DONE),
    ],
)
def test_how_a_run_ends(epochs: list[list[PartitionStatus]], flow: dict[str, Any], code: int) -> None:
    outcome = Scripted(epochs, **flow).outcome()
    assert (outcome.exit_code, bool(outcome.incomplete)) == (code, code == SIGNALED)


@pytest.mark.proves("STARTING", "never-silent")
@pytest.mark.parametrize(
    "epochs",
    [
        [[figures(State.STARTING, -1)], [figures(State.STARTING, -1)]],
        [[figures(State.MIRRORING, 500)], [figures(State.MIRRORING, 500)], [figures(State.MIRRORING, 500)]],
        [[figures(State.UNAVAILABLE, 500)], [figures(State.UNAVAILABLE, -1)], [figures(State.UNAVAILABLE, 500)]],
    ],
    ids=["never began", "no headway", "a target that comes and goes"],
)
def test_a_bounded_copy_without_headway_ends_and_is_not_done(epochs: list[list[PartitionStatus]]) -> None:
    scripted = Scripted([*epochs, [figures(State.CAUGHT_UP, 1000)]], once=True)
    outcome = scripted.outcome()
    assert outcome.exit_code == ExitCode.CLUSTER
    assert "orders-0 up to offset 1000" in outcome.incomplete
    assert len(scripted.left) == 1, "it gave up before the epoch that would have done it"


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (500, figures(State.MIRRORING, 600), True),
        (500, figures(State.MIRRORING, 500), False),
        (1000, figures(State.CAUGHT_UP, 1000), True),
        (500, figures(State.UNAVAILABLE, 600), False),
        (500, figures(State.REFUSED, 600), False),
        (500, figures(State.STARTING, 600), False),
    ],
)
def test_tasks_go_on_in_the_next_epoch_while_all_is_well(before: int, now: PartitionStatus, expected: bool) -> None:
    """What is stopped or stands still is begun anew, from its logs."""
    scripted = Scripted([])
    scripted._journal_state.receive(figures(State.MIRRORING, before), None)
    scripted._headway.stands_still(scripted._journal_state.live)
    scripted._journal_state.receive(replace(now, at_ms=2), None)

    async def asked() -> bool:
        return await scripted._goes_on([{AT}])

    assert asyncio.run(asked()) == expected
    assert scripted._number == expected
    assert not asyncio.run(scripted._goes_on([{AT}, {TopicPartition("orders", 1)}])), "nothing is known of the other"


def test_a_copy_whose_padding_stands_is_not_done() -> None:
    """That of a source that is empty reaches as far as the source does."""
    padded, done = figures(State.PADDING, 1000), figures(State.CAUGHT_UP, 1000)
    scripted = Scripted([[padded], [done]], once=True)
    assert (scripted.outcome().exit_code, len(scripted.left)) == (ExitCode.DONE, 0)
    assert "orders-0 up to offset 1000" in Scripted([[padded]] * 3, once=True).outcome().incomplete


@pytest.mark.parametrize("offset", [500, 2000])
def test_a_stop_that_no_task_has_checked_since_is_not_over(offset: int) -> None:
    """A task that comes late to its epoch reports what was known, and the copy may have been made anew since."""
    late = replace(figures(State.DIVERGED, offset), presumed=True)
    outcome = Scripted([[late], [figures(State.MIRRORING, 5)], [figures(State.CAUGHT_UP, 1000)]], once=True).outcome()
    assert outcome.exit_code == ExitCode.DONE
    outcome = Scripted([[late]] * 3, once=True).outcome()
    assert (outcome.exit_code, bool(outcome.incomplete)) == (ExitCode.DATA_AT_RISK, True)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_stop_that_the_journal_lacks_is_written_there_soon(*, is_written: bool) -> None:
    """Where the target was away as its task ended, `status` and a mirror that starts would not know of it."""
    stops = [[figures(State.TRUNCATED, 500)]] * 3
    scripted = Scripted(stops, is_written=is_written, epoch_seconds=1000.0)
    assert scripted.outcome().exit_code == ExitCode.DATA_AT_RISK
    assert all(seconds > IDLE_PAUSE if is_written else seconds <= IDLE_PAUSE for seconds in scripted.pauses)
    assert scripted.pauses


def test_a_stop_that_only_the_live_figures_reported_is_not_lost() -> None:
    scripted = Scripted([])
    scripted._journal_state.live[AT] = figures(State.REFUSED, 7)
    assert scripted.outcome().exit_code == ExitCode.DATA_AT_RISK


@pytest.mark.parametrize(
    ("state", "found"),
    [(State.DIVERGED, State.UNAVAILABLE), (State.DIVERGED, None), (State.RETENTION_GAP, None)],
)
def test_a_pause_hides_no_stop_of_a_former_process(
    state: State, found: State | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task looks at it: one that stands is in the journal, and of another one the last report is."""
    written = list[PartitionStatus]()

    async def append_all(_: object, changes: Iterable[tuple[bytes, bytes]]) -> None:
        written.extend(PartitionStatus.from_json(value) for _, value in changes)

    monkeypatch.setattr(Journal, "append_all", append_all)
    scripted, stop = Scripted([], once=True), figures(state, 7)
    scripted._journal_state.paused.add(AT.topic)
    scripted._reports_before = {stop.key(): stop.to_json()}
    if state is State.DIVERGED:
        scripted._journal_state.standing.stops[AT] = KnownStop(state=state, offset=7, detail="why", advice="do this")
        if found:
            scripted._journal_state.live[AT] = figures(found, 7)
    outcome = scripted.outcome()
    assert outcome.exit_code == ExitCode.DATA_AT_RISK
    assert {(one.state, one.next_offset) for one in written} == {(state, 7)}
    scripted = Scripted([], once=True)  # somebody lifted what stood; the task that comes looks again
    scripted._journal_state.paused.add(AT.topic)
    lifted = figures(State.DIVERGED, 7)
    scripted._reports_before = {lifted.key(): lifted.to_json()}
    assert scripted.outcome().figures[AT].state is State.PAUSED


# --- what no task reports on ------------------------------------------------------------------------------------------


FIGURES = report(flow="f", state=State.CAUGHT_UP, next_offset=5, log_end=5, lag_records=0, lag_ms=0, at_ms=1)


def test_nothing_is_known_before_tasks_report_and_after_they_do_no_more(clock: MovableClock) -> None:
    """It was no lag, where a task had yet to look, and where an executor had gone."""
    refused = Refusal("letters", "letters", 2, "why")
    flow = idle_flow(Assignment(AT, AT, None, Rules()), until_caught_up=True)
    mirror = Supervisor(cast(Any, InThisProcess()), flow, lambda _: None)
    state = mirror._journal_state

    def beat() -> tuple[int, int, int | None, int]:
        now = Heartbeat.of("f", "i", mirror._newest())
        return now.partitions, now.stopped, now.lag_records, now.lag_unknown

    assert beat() == (1, 0, None, 1)
    assert not mirror._have_all_caught_up()
    state.receive(FIGURES)
    assert (beat(), state.blind) == ((1, 0, 0, 0), [])
    assert mirror._have_all_caught_up()
    mirror._refused = (refused,)
    assert beat() == (3, 2, 0, 2)
    clock.move(STALE_SECONDS + 1)
    assert state.blind == [AT]
    assert not mirror._have_all_caught_up()
    state.know_ends({})
    assert beat() == (3, 2, None, 3)
    state.know_ends({AT: (12, 0)})
    assert beat() == (3, 2, 7, 2)
    state.receive(replace(FIGURES, state=State.CORRUPT))
    clock.move(STALE_SECONDS + 1)
    assert mirror._have_all_caught_up(), "a task that is gone mends no stop"


@in_loop
async def test_the_lag_of_what_no_task_reports_on_is_unknown(
    clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was 0 when the last task ended, and would be so for as long as none can be started."""
    beats: list[dict[str, Any]] = []
    live = [FIGURES]

    async def append(*_: object, **__: object) -> None:
        clock.move(STALE_SECONDS + 1)
        if len(beats) == 2:
            live[:] = [replace(FIGURES, at_ms=2)]
        if len(beats) == 3:
            raise asyncio.CancelledError

    def encode(entries: list[tuple[bytes, bytes]]) -> bytes:
        beats.append(json.loads(entries[0][1]))
        return b""

    monkeypatch.setattr(heartbeats, "append", append)
    monkeypatch.setattr(heartbeats, "encode", encode)
    monkeypatch.setattr(heartbeats, "INTERVAL_SECONDS", 0.001)
    target: Any = None
    with pytest.raises(asyncio.CancelledError):
        await Heart(target, "f", "i", lambda: live).run()
    said = [(one["lag_records"], one["lag_ms"], one["lag_unknown"]) for one in beats]
    assert said == [(0, 0, 0), (None, None, 1), (0, 0, 0)]
