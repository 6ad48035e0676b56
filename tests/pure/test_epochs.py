"""Epochs of which Spark makes nothing: a cluster without cores is waited for, a job that fails is counted."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sparkless import InThisProcess

from mirror.errors import EngineLost
from mirror.spark import jobs, session
from mirror.spark.jobs import FAILED_EPOCHS, Epochs


class Starved(InThisProcess):
    """A cluster with no core to give: its job waits until it is cancelled."""

    master = "spark://127.0.0.1:7077"

    def __init__(self, cores: int = 0) -> None:
        super().__init__()
        self.defaultParallelism = cores
        self._cancelled = threading.Event()

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802 -- Spark's name
        """No other job of the same context is cancelled: re-key queries have theirs there."""
        assert group == self.group
        self._cancelled.set()

    def setJobGroup(self, *given: Any) -> None:  # noqa: N802 -- Spark's name
        self.group = given[0]

    def collect(self) -> list[Any]:
        self._cancelled.wait()
        self._cancelled.clear()
        raise RuntimeError("cancelled")


def epochs(context: Any, seconds: float = 0.1) -> tuple[Epochs, list[None]]:
    """Epochs of so many seconds, and what they said of failures."""
    failures: list[None] = []
    return Epochs(context, "test", seconds, asyncio.Event(), lambda: failures.append(None)), failures


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for."""
    for name in ("GRACE_SECONDS", "STOP_SECONDS", "FAILED_PAUSE"):
        monkeypatch.setattr(jobs, name, 0.01)


def test_a_cluster_that_has_no_cores_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "is_alive", lambda _: True)

    async def run() -> None:
        running, failures = epochs(Starved())
        for number in range(FAILED_EPOCHS + 2):
            assert await running.run(number, lambda *_: []) == []
        assert failures == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answers", "longest", "asked"), [([True, True, False], 3600.0, 3), ([True] * 9, 0.25, 1), ([False], 3600.0, 1)]
)
def test_tasks_go_on_from_epoch_to_epoch(
    answers: list[bool], longest: float, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the plan stays what it is, and not for ever."""
    monkeypatch.setattr(jobs, "LONGEST_SECONDS", longest)
    monkeypatch.setattr(session, "is_alive", lambda _: True)
    monkeypatch.setattr("mirror.clock.monotonic", iter([0.0, *(0.1 * number for number in range(1, 20))]).__next__)
    left = list(answers)

    async def goes_on(_: Any) -> bool:
        return left.pop(0)

    async def run() -> None:
        running, failures = epochs(Starved(), 0.1)
        running.goes_on = goes_on
        assert await running.run(0, lambda *_: []) == []
        assert (len(answers) - len(left), failures) == (asked, [])
        assert running._has_succeeded == answers[0], "jobs that failed before an epoch that was well are forgotten"

    asyncio.run(run())


def test_a_cluster_that_is_gone_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "is_alive", lambda _: False)

    async def run() -> None:
        running, _ = epochs(Starved())
        with pytest.raises(EngineLost, match="JVM died"):
            await running.run(0, lambda *_: [])

    asyncio.run(run())


def test_jobs_that_fail_in_a_row_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "is_alive", lambda _: True)

    class Failing(Starved):
        def collect(self) -> list[Any]:
            raise RuntimeError(
                "An error occurred while calling o7.collect.\n: org.apache.spark.SparkException: Job aborted:"
                " org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
                '  File "relay.py", line 7, in relay\nModuleNotFoundError: no such module\n\n\tat org.apache.Any'
            )

    async def run() -> None:
        running, failures = epochs(Failing(), 1000.0)
        for number in range(FAILED_EPOCHS - 1):
            assert await running.run(number, lambda *_: []) == []
        with pytest.raises(EngineLost, match=r"failed, the last one with: ModuleNotFoundError: no such module\."):
            await running.run(FAILED_EPOCHS, lambda *_: [])
        assert len(failures) == FAILED_EPOCHS

    asyncio.run(run())


@pytest.mark.parametrize(
    ("cores", "wanted", "tasks", "shared"),
    [(4, 2, 2, 2), (2, 4, 2, 1), (0, 4, 1, 1), (8, 8, 8, 6), (8, 2, 2, 2), (4, 4, 4, 2), (3, 3, 3, 2), (1, 4, 1, 1)],
)
def test_tasks_are_as_many_as_there_are_cores_but_for_those_of_re_key_queries(
    cores: int, wanted: int, tasks: int, shared: int
) -> None:
    """Else a micro-batch gets some only between two epochs. One machine runs all tasks."""
    slots = epochs(Starved(cores))[0].slots
    assert asyncio.run(slots(wanted)) == tasks
    assert asyncio.run(slots(wanted, is_shared=True)) == shared
    assert asyncio.run(epochs(InThisProcess())[0].slots(64)) == 64


def test_an_epoch_that_is_to_end_before_it_began_has_no_tasks() -> None:
    """They know the journal up to a place behind the claim by which the flow was lost, and look no further back."""

    async def run() -> None:
        running, failures = epochs(InThisProcess())
        running.stopping.set()
        assert await running.run(0, lambda *_: pytest.fail("tasks were made")) == []
        assert failures == []

    asyncio.run(run())
