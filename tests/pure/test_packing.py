"""Task packing: complete, balanced, and leader by leader where balance allows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import pytest
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


@given(loads(leaders=1), st.integers(1, 12))
def test_one_leader_uses_every_task_within_the_bound_of_lpt(items: list[Load], tasks: int) -> None:
    packed = pack(items, tasks)
    assert len(packed) == min(tasks, len(items))
    total, heaviest = sum(item.weight for item in items), max((item.weight for item in items), default=0)
    assert fullest(packed) <= (total / tasks + heaviest * (1 - 1 / tasks)) * ROUNDING


@given(loads(), st.integers(1, 12))
def test_leaders_cost_at_most_the_tolerance(items: list[Load], tasks: int) -> None:
    total, heaviest = sum(item.weight for item in items), max((item.weight for item in items), default=0)
    assert fullest(pack(items, tasks)) <= TOLERANCE * (total / tasks + heaviest * (1 - 1 / tasks)) * ROUNDING


@given(loads(leaders=1, most=6), st.integers(2, 3))
def test_against_the_best_of_all_assignments(items: list[Load], tasks: int) -> None:
    best = min(
        max(sum(item.weight for item, at in zip(items, choice, strict=True) if at == task) for task in range(tasks))
        for choice in itertools.product(range(tasks), repeat=len(items))
    )
    assert fullest(pack(items, tasks)) <= best * (4 / 3 - 1 / (3 * tasks)) * ROUNDING


@given(loads(), st.integers(1, 8), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(items: list[Load], tasks: int, random: Random) -> None:
    shuffled = list(items)
    random.shuffle(shuffled)
    assert pack(shuffled, tasks) == pack(items, tasks)


def test_the_order_of_the_input_does_not_matter_to_rounding() -> None:
    weights = [(1, 0.1), (1, 0.2), (1, 0.3), (0, 0.3), (0, 0.3), (0, 0.0)]  # 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1
    items = [load(index, leader, weight) for index, (leader, weight) in enumerate(weights)]
    assert pack(items, 3) == pack(items[::-1], 3)


def test_balanced_leaders_get_tasks_of_their_own() -> None:
    items = [load(index, leader=index % 3) for index in range(12)]
    for tasks in (3, 6):
        packed = pack(items, tasks)
        assert len(packed) == tasks
        assert all(len({item.leader for item in task}) == 1 for task in packed)


def test_a_heavier_leader_gets_more_tasks() -> None:
    items = [load(index, leader=0, weight=3) for index in range(6)] + [load(6 + index, leader=1) for index in range(6)]
    packed = pack(items, 4)
    assert sorted(task[0].leader for task in packed) == [0, 0, 0, 1]
    assert fullest(packed) == 6


def test_leaders_outnumbering_tasks_stay_whole() -> None:
    packed = pack([load(index, leader=index % 4) for index in range(8)], 2)
    assert [{item.leader for item in task} for task in packed] == [{0, 2}, {1, 3}]


def test_balance_wins_over_a_leader_that_has_nearly_everything() -> None:
    items = [load(0, 0, 50), load(1, 0, 50), load(2, 1, 1), load(3, 2, 1)]
    packed = pack(items, 2)
    assert fullest(packed) == 51


def test_weightless_partitions_spread_too() -> None:
    assert sorted(len(task) for task in pack([load(index, weight=0) for index in range(8)], 4)) == [2, 2, 2, 2]


def test_nothing_to_pack() -> None:
    assert pack([], 3) == ()


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="0 tasks: at least one"):
        pack([load(0)], 0)
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="t-7 has weight"):
            pack([load(7, weight=weight)], 1)
