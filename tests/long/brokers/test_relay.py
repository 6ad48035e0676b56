"""A task as a task runs it: what it returns when its last words cannot be written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers import make_topic, settings_between

from mirror.driver.control import ControlServer
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment, KnownStop
from mirror.replication.pipeline import Pipeline
from mirror.spark import task
from mirror.spark.task import TaskAssignment, TaskResult, run_task
from mirror.states import State


@pytest.mark.brokers
def test_a_journal_that_does_not_answer_costs_no_result(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is while the target restarts. A task that failed instead would be run again, and its epoch with it."""

    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(task, "_write", hangs)
    (result,) = results_of(own_source, own_target, topic_name)
    assert (result.figures.topic, result.figures.partition) == (topic_name, 0)


@pytest.mark.brokers
def test_a_stop_that_ends_a_task_is_reported_by_a_slow_journal_too(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results come to the driver when the other tasks' epoch is over, which may be minutes later."""
    make_topic(own_source.bootstrap, topic_name)
    reported: list[PartitionStatus] = []

    async def slow(*reports: Any) -> None:
        await asyncio.sleep(task.LAST_WORD_SECONDS * 1.5)
        reported.extend(reports[4])

    monkeypatch.setattr(task, "_write", slow)
    stop = KnownStop(state=State.DIVERGED, offset=0, detail="another record is there")
    results_of(own_source, own_target, topic_name, seconds=60, stop=stop)
    assert [one.state for one in reported] == [State.DIVERGED]


@pytest.mark.brokers
def test_a_fault_of_ours_while_reporting_is_reported(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def figures(*_: Any) -> list[PartitionStatus]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ZeroDivisionError
        return []

    monkeypatch.setattr(task, "REPORT_SECONDS", 0.01)
    monkeypatch.setattr(Pipeline, "figures", figures)
    with pytest.raises(ZeroDivisionError):
        results_of(own_source, own_target, topic_name, seconds=1)


def results_of(
    source: Cluster, target: Cluster, topic: str, seconds: float = 0, stop: KnownStop | None = None
) -> list[TaskResult]:
    """What a task returns that has one partition and ends after so long."""
    settings = settings_between(source.bootstrap, target.bootstrap, [topic])
    at = TopicPartition(topic, 0)

    async def results() -> list[TaskResult]:
        mark = await ControlServer.open("127.0.0.1")
        try:
            return await run_task(
                TaskAssignment(
                    flow=topic,
                    instance="one",
                    number=0,
                    source=Endpoint.of(settings.source),
                    target=Endpoint.of(settings.target),
                    assignments=(Assignment(at, at, None, Rules(), stop=stop),),
                    seconds=seconds,
                    memory_bytes=1 << 20,
                    stop_mark=mark.address,
                    so_far={},
                )
            )
        finally:
            await mark.close()

    return asyncio.run(results())
