"""When a partition is done."""

from __future__ import annotations

from typing import Any

import pytest

from mirror.assignment import Assignment
from mirror.batch.restamp import Stamp
from mirror.fetcher import Cursor
from mirror.pipeline import Pipeline
from mirror.policy.rules import Rules
from mirror.position import Position
from mirror.sink import Sink
from mirror.states import State
from mirror.wire.cluster import TopicPartition

AT = TopicPartition("orders", 0)


@pytest.mark.parametrize(("unrelayed", "is_done"), [(1, False), (0, True)])
def test_a_bounded_copy_is_not_done_while_an_answer_waits_to_be_relayed(unrelayed: int, is_done: bool) -> None:
    """Everything is read, and all that was queued is acknowledged; the last answer was not looked at."""
    nowhere: Any = None
    assignment = Assignment(AT, AT, None, Rules(), until=20)
    pipeline = Pipeline("any", nowhere, nowhere, [assignment], 1 << 26)
    (keeper,) = pipeline._keepers.values()
    keeper.sink = Sink(AT, AT, Position(10, Stamp(1 << 52), True, -1))
    keeper.cursor = Cursor(AT, None, next_offset=20, until=20, readable_until=20, unrelayed=unrelayed)
    pipeline._changed(keeper.sink)
    assert (keeper.finished, keeper.state) == (is_done, State.CAUGHT_UP if is_done else State.MIRRORING)
