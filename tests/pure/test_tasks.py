"""Which partitions share a task, in which order, and for how long."""

from __future__ import annotations

import pytest

from mirror.driver.scheduling import are_even, computing_task_count, epoch_length, task_count, tasks_of
from mirror.kafka.cluster import Leader, TopicPartition
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment
from mirror.replication.partition_writer import PartitionCounters


def test_a_task_begins_with_what_is_new_and_goes_on_with_what_moves_most() -> None:
    idle, new, busy, other = (TopicPartition(name, 0) for name in ("idle", "new", "busy", "other"))
    assignments = [Assignment(at, at, None, Rules()) for at in (idle, busy, new, other)]
    all_counters = {
        idle: PartitionCounters(),
        busy: PartitionCounters(bytes=10_000),
        other: PartitionCounters(bytes=500),
    }
    leaders = dict.fromkeys((idle, new, busy, other), Leader(1, 0))
    (task,) = tasks_of(assignments, leaders, all_counters, tasks=1)
    assert [one.source for one in task] == [new, busy, other, idle]


@pytest.mark.parametrize(
    ("wanted", "partitions", "tasks", "seconds"),
    [(60, 1, 1, 60), (60, 600, 1, 60), (60, 3000, 1, 300), (60, 3000, 8, 60), (60, 50_000, 8, 625), (2, 0, 1, 2)],
)
def test_an_epoch_is_longer_where_finding_all_positions_takes_long(
    wanted: float, partitions: int, tasks: int, seconds: float
) -> None:
    """Tasks find theirs side by side."""
    assert epoch_length(wanted, partitions, tasks) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([[9, 9], [9, 9]], True),
        ([[90, 9], [9, 9]], True),
        ([[50, 50], [9, 9]], False),
        ([[0, 0, 0], [0]], False),
        ([], True),
    ],
)
def test_tasks_are_even_unless_another_plan_takes_much_from_the_fullest(tasks: list[list[int]], expected: bool) -> None:
    """One partition alone may be most of all, whatever the plan."""
    places = [[TopicPartition(f"task-{task}", index) for index in range(len(held))] for task, held in enumerate(tasks)]
    moved = {at: tasks[task][at.partition] for task, held in enumerate(places) for at in held}
    assert are_even(places, len(tasks), moved) == expected
    assert not are_even(places, len(tasks) + 1, moved) or sum(map(len, tasks)) == len(tasks)


@pytest.mark.parametrize(
    ("cores", "wanted", "parts", "copying", "computing"),
    [
        *((2, None, 50, 1, 2), (1, None, 50, 1, 1), (8, None, 50, 4, 8), (64, None, 50, 8, 8), (8, None, 3, 3, 3)),
        *((2, 6, 50, 6, 6), (2, 6, 4, 4, 4), (None, None, 0, 1, 1)),
    ],
)
def test_a_task_has_two_cores_and_a_task_that_computes_has_one(
    cores: int | None, wanted: int | None, parts: int, copying: int, computing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirror.driver.scheduling.os.cpu_count", lambda: cores)
    assert (task_count(wanted, parts), computing_task_count(wanted, parts)) == (copying, computing)
