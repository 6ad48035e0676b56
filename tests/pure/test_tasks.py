"""Which partitions share a task, leader by leader where balance allows, in which order, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.driver.scheduling import (
    TOLERANCE,
    Load,
    Task,
    are_even,
    computing_task_count,
    epoch_length,
    pack,
    task_count,
    tasks_of,
)
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


# --- packing ----------------------------------------------------------------------------------------------------------


ROUNDING = 1 + 1e-9


def load(partition: int, leader: int = 0, weight: float = 1.0) -> Load:
    return Load(topic="t", partition=partition, leader=leader, weight=weight)


@st.composite
def loads(draw: st.DrawFn, leaders: int = 4) -> list[Load]:
    shapes = draw(st.lists(st.tuples(st.integers(-1, leaders - 2), st.floats(0, 1e12)), max_size=40))
    return [load(index, leader, weight) for index, (leader, weight) in enumerate(shapes)]


def fullest(tasks: Sequence[Task]) -> float:
    return max((sum(item.weight for item in task) for task in tasks), default=0.0)


@given(loads(), st.integers(1, 12))
def test_each_partition_is_in_one_task_and_no_task_is_empty(items: list[Load], tasks: int) -> None:
    packed = pack(items, tasks)
    assert sorted(item.partition for task in packed for item in task) == list(range(len(items)))
    assert all(packed)
    assert len(packed) <= tasks
    total, heaviest = sum(item.weight for item in items), max((item.weight for item in items), default=0)
    assert fullest(packed) <= TOLERANCE * (total / tasks + heaviest * (1 - 1 / tasks)) * ROUNDING


@given(loads(leaders=1), st.integers(1, 12))
def test_one_leader_uses_every_task_within_the_bound_of_lpt(items: list[Load], tasks: int) -> None:
    packed = pack(items, tasks)
    assert len(packed) == min(tasks, len(items))
    total, heaviest = sum(item.weight for item in items), max((item.weight for item in items), default=0)
    assert fullest(packed) <= (total / tasks + heaviest * (1 - 1 / tasks)) * ROUNDING


@given(loads(), st.integers(1, 8), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(items: list[Load], tasks: int, random: Random) -> None:
    shuffled = list(items)
    random.shuffle(shuffled)
    assert pack(shuffled, tasks) == pack(items, tasks)


def test_balanced_leaders_get_tasks_of_their_own() -> None:
    items = [load(index, leader=index % 3) for index in range(12)]
    for tasks in (3, 6):
        packed = pack(items, tasks)
        assert len(packed) == tasks
        assert all(len({item.leader for item in task}) == 1 for task in packed)
