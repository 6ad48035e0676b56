"""Task packing: complete, balanced, and leader by leader where balance allows."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mirror.driver.scheduling import TOLERANCE, Load, Task, pack

ROUNDING = 1 + 1e-9


def load(partition: int, leader: int = 0, weight: float = 1.0) -> Load:
    return Load(topic="t", partition=partition, leader=leader, weight=weight)


@st.composite
def loads(draw: st.DrawFn, leaders: int = 4, most: int = 40) -> list[Load]:
    shapes = draw(st.lists(st.tuples(st.integers(-1, leaders - 2), st.floats(0, 1e12)), max_size=most))
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
