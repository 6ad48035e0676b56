"""Portions of what is asked of a controller."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mirror.kafka.admin import portions


@given(st.lists(st.integers(0, 9)), st.integers(1, 20))
def test_nothing_is_left_out_and_no_portion_costs_too_much(costs: Sequence[int], limit: int) -> None:
    found = list(portions(costs, lambda cost: cost, limit))
    assert [cost for portion in found for cost in portion] == costs
    assert all(portion and (sum(portion) <= limit or len(portion) == 1) for portion in found)
    assert all(sum(portion) + after[0] > limit for portion, after in pairwise(found))
