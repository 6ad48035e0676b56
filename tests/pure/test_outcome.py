"""When a bounded run may say that it is done, with the epochs' results given (no Spark, no brokers)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from fakebroker import HOST
from sparkless import InThisProcess

from mirror.driver.flow import Flow, Outcome
from mirror.driver.journal_state import JournalState
from mirror.driver.topic_watcher import NewPlan
from mirror.errors import ExitCode
from mirror.journal.journal import Journal
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.observability.logs import Log
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment, KnownStop
from mirror.replication.partition_writer import PartitionCounters
from mirror.spark.supervisor import IDLE_PAUSE, Supervisor
from mirror.spark.task import TaskResult
from mirror.states import State

NOWHERE = Endpoint("nowhere", (("127.0.0.1", 1),))
AT = TopicPartition("orders", 0)
#: Seconds that anything may take.
TIMEOUT = 120.0


def figures(state: State, offset: int, partition: int = 0) -> PartitionStatus:
    return PartitionStatus(
        flow="f",
        instance="i",
        topic="orders",
        partition=partition,
        target_topic="orders",
        state=state,
        next_offset=offset,
        log_end=1000,
        lag_records=0,
        at_ms=1,
    )


class Scripted(Supervisor):
    """Epochs with given results instead of Spark jobs."""

    def __init__(self, epochs: Sequence[Sequence[PartitionStatus]], *, is_written: bool = True, **flow: Any) -> None:
        assignments = (Assignment(AT, AT, None, Rules(), 1000),)
        given = Flow(
            name="f",
            source=NOWHERE,
            target=NOWHERE,
            assignments=assignments,
            tasks=1,
            epoch_seconds=0.01,
            memory_bytes=1,
        )
        super().__init__(cast(Any, InThisProcess()), replace(given, **flow), lambda _: None)
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

    def outcome(self) -> Outcome:
        async def run() -> None:
            await self._epochs()
            self._conclude()

        asyncio.run(run())
        return self._outcome


def test_done_is_done() -> None:
    outcome = Scripted([[figures(State.MIRRORING, 500)], [figures(State.CAUGHT_UP, 1000)]], once=True).outcome()
    assert outcome.exit_code == ExitCode.DONE
    assert not outcome.incomplete


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


def test_epochs_that_failed_as_a_whole_say_nothing_about_headway() -> None:
    epochs = [[figures(State.MIRRORING, 500)], [], [], [], [figures(State.CAUGHT_UP, 1000)]]
    assert Scripted(epochs, once=True).outcome().exit_code == ExitCode.DONE


def test_an_epoch_that_failed_says_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = list[tuple[Any, Any]]()

    def log(_: object, level: str, event: str, fields: dict[str, Any]) -> None:
        if event == "epoch_ended":
            logged.append((fields["lag_records"], fields["lag_unknown"]))

    monkeypatch.setattr(Log, "_emit", log)
    Scripted([[figures(State.CAUGHT_UP, 500)], [], [figures(State.CAUGHT_UP, 600)]]).outcome()
    assert logged[:3] == [(0, 0), (None, 1), (0, 0)]


def test_a_stop_is_over_and_reported_by_its_code() -> None:
    outcome = Scripted([[figures(State.CORRUPT, 500)]], once=True).outcome()
    assert outcome.exit_code == ExitCode.DATA_AT_RISK


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


def test_lost_rights_are_known_by_theirs() -> None:
    assert Scripted([[figures(State.UNAUTHORIZED, 500)]], once=True).outcome().exit_code == ExitCode.CLUSTER


def test_a_signal_before_the_end() -> None:
    outcome = Scripted([[figures(State.MIRRORING, 500)]], once=True).outcome()
    assert outcome.exit_code == 128 + signal.SIGTERM


def test_a_signal_ends_a_live_mirror_in_good_order() -> None:
    assert Scripted([[figures(State.CAUGHT_UP, 500)]]).outcome().exit_code == ExitCode.DONE


def test_a_signal_before_everything_caught_up() -> None:
    outcome = Scripted([[figures(State.MIRRORING, 500)]], until_caught_up=True).outcome()
    assert outcome.exit_code == 128 + signal.SIGTERM


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


# --- a source that is silent ------------------------------------------------------------------------------------------


class Unpatched(Scripted):
    """Asks for leaders as it does outside of tests."""

    async def _refreshed(self) -> None:
        await Supervisor._refreshed(self)


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[Endpoint, asyncio.Event]]:
    """A broker that takes connections and answers nothing, and whether somebody came."""
    asked, over = asyncio.Event(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):
            asked.set()
        await over.wait()
        writer.close()

    server = await asyncio.start_server(hold, HOST, 0)
    try:
        yield Endpoint("eu", ((HOST, server.sockets[0].getsockname()[1]),)), asked
    finally:
        over.set()
        server.close()


@pytest.mark.parametrize(
    "other", [(), (Assignment(TopicPartition("new", 0), TopicPartition("new", 0), None, Rules()),)]
)
def test_a_silent_source_does_not_hold_up_an_end(
    other: tuple[Assignment, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for leaders after an epoch, and for new topics before the next: a failover waits for neither."""

    async def readable(*_: object) -> bool:
        return True

    async def run() -> None:
        async with silent() as (source, asked):
            mirror = Unpatched([[figures(State.MIRRORING, 5)]], source=source, epoch_seconds=1000.0)
            if other:
                mirror._next = NewPlan((*mirror._assignments, *other))
                monkeypatch.setattr(JournalState, "read", readable)  # its cluster is nowhere
            ending = asyncio.create_task(mirror._epochs())
            async with asyncio.timeout(TIMEOUT):
                await asked.wait()
            mirror._stop()
            done, _ = await asyncio.wait([ending], timeout=TIMEOUT)
            under_way = mirror._source._refreshing
            assert done
            ending.result()
            assert under_way is not None
            assert not under_way.done(), "it was not waited for"
            under_way.cancel()
            await asyncio.wait([under_way])
            mirror._source.close()
            assert len(mirror.left) == (1 if other else 0)

    asyncio.run(run())
