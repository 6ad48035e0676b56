"""A stop is logged once, whichever way its figures come, and so is its end."""

from __future__ import annotations

from typing import Any

import pytest

from mirror.driver.reports import StopLog
from mirror.observability import logs
from mirror.observability.status import PartitionStatus
from mirror.states import State


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Event and offset of whatever is logged."""
    found: list[tuple[str, Any]] = []
    monkeypatch.setattr(logs.Log, "_emit", lambda self, level, event, fields: found.append((event, fields["offset"])))
    return found


def at(state: State, offset: int, at_ms: int, partition: int = 0) -> PartitionStatus:
    return PartitionStatus(
        flow="f", instance="i", topic="t", partition=partition, target_topic="t",
        state=state, next_offset=offset, log_end=500, lag_records=0, at_ms=at_ms,
    )  # fmt: skip


def test_a_stop_that_every_epoch_meets_again_is_reported_once(logged: list[tuple[str, Any]]) -> None:
    stops = StopLog()
    for moment in range(0, 50, 10):
        stops.log([at(State.MIRRORING, 100, moment)])  # the next epoch tries it
        stops.log([at(State.CORRUPT, 100, moment + 1)])
        stops.log([at(State.CORRUPT, 100, moment + 1)])  # the same by another way
    assert logged == [("partition_stopped", 100)]


def test_another_state_or_another_offset_is_another_stop(logged: list[tuple[str, Any]]) -> None:
    stops = StopLog()
    stops.log([at(State.CORRUPT, 100, 1), at(State.CORRUPT, 100, 1, partition=1)])
    stops.log([at(State.UNAUTHORIZED, 100, 2)])
    stops.log([at(State.UNAUTHORIZED, 130, 3)])
    assert logged == [("partition_stopped", offset) for offset in (100, 100, 100, 130)]


def test_a_recreated_topic_whose_copy_is_deleted_as_advised_is_reported_once(logged: list[tuple[str, Any]]) -> None:
    stops = StopLog()
    stops.log([at(State.RECREATED, 100, 1)])
    stops.log([at(State.RECREATED, 0, 2)])
    stops.log([at(State.CAUGHT_UP, 10, 3)])
    assert logged == [("partition_stopped", 100), ("partition_resumed", 10)]


def test_a_stop_that_is_met_before_the_offset_is_known_is_reported_once(logged: list[tuple[str, Any]]) -> None:
    stops = StopLog()
    stops.log([at(State.UNAUTHORIZED, 100, 1)])
    stops.log([at(State.UNAUTHORIZED, -1, 2)])
    stops.log([at(State.CORRUPT, -1, 3)])
    assert logged == [("partition_stopped", 100), ("partition_stopped", -1)]


def test_the_end_of_a_stop_is_reported_and_a_later_one_again(logged: list[tuple[str, Any]]) -> None:
    stops = StopLog()
    stops.log([at(State.UNAUTHORIZED, 100, 1)])
    stops.log([at(State.CAUGHT_UP, 100, 2)])
    stops.log([at(State.MIRRORING, 120, 3)])
    stops.log([at(State.UNAUTHORIZED, 100, 4)])
    assert logged == [("partition_stopped", 100), ("partition_resumed", 100), ("partition_stopped", 100)]


def test_what_comes_late_is_passed_over(logged: list[tuple[str, Any]]) -> None:
    """The journal is read a second after the results of an epoch may have come."""
    stops = StopLog()
    stops.log([at(State.CORRUPT, 100, 5)])
    stops.log([at(State.CAUGHT_UP, 100, 4)])
    assert logged == [("partition_stopped", 100)]


def test_a_wait_is_reported_once_over_epochs_and_so_is_its_end(logged: list[tuple[str, Any]]) -> None:
    stops = StopLog()
    for moment in range(0, 50, 10):
        stops.log([at(State.STARTING, 100, moment)])
        stops.log([at(State.UNAVAILABLE, 100, moment + 1)])
        stops.log([at(State.UNAVAILABLE, 100, moment + 2)])
    assert logged == [("partition_state", 100)]
    stops.log([at(State.MIRRORING, 130, 60)])
    stops.log([at(State.CAUGHT_UP, 140, 70)])
    assert logged[1:] == [("partition_resumed", 130)]


def test_each_passing_state_is_reported_and_a_stop_ends_it_without_going_on(logged: list[tuple[str, Any]]) -> None:
    stops = StopLog()
    for moment, state in enumerate((State.PADDING, State.UNAVAILABLE, State.CORRUPT, State.MIRRORING)):
        stops.log([at(state, 100 + moment, moment)])
    events = ["partition_state", "partition_state", "partition_stopped", "partition_resumed"]
    assert logged == list(zip(events, range(100, 104), strict=True))


def test_what_changes_with_every_record_is_not_reported(logged: list[tuple[str, Any]]) -> None:
    stops = StopLog()
    for moment in range(0, 50, 10):
        for more, state in enumerate((State.STARTING, State.MIRRORING, State.CAUGHT_UP)):
            stops.log([at(state, 100 + moment, moment + more)])
    assert logged == []
