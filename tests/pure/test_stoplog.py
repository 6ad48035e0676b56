"""Stops and waits are logged once, whichever way their reports come, and so are their ends."""

from __future__ import annotations

import pytest

from mirror.driver.reports import StopLog
from mirror.observability import logs
from mirror.observability.status import PartitionStatus
from mirror.states import State

STARTING, PADDING, MIRRORING, CAUGHT_UP = State.STARTING, State.PADDING, State.MIRRORING, State.CAUGHT_UP
CORRUPT, UNAUTHORIZED, UNAVAILABLE, RECREATED = (
    State.CORRUPT,
    State.UNAUTHORIZED,
    State.UNAVAILABLE,
    State.RECREATED,
)


def report(state: State, offset: int, at_ms: int) -> PartitionStatus:
    return PartitionStatus(
        flow="f", instance="i", topic="t", partition=0, target_topic="t",
        state=state, next_offset=offset, log_end=500, lag_records=0, at_ms=at_ms,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reports", "logged"),
    [
        # Every epoch meets the stop again, and its reports come in two ways.
        ([(MIRRORING, 100), (CORRUPT, 100), (CORRUPT, 100)] * 4, ["partition_stopped 100"]),
        (
            [(CORRUPT, 100), (UNAUTHORIZED, 100), (UNAUTHORIZED, 130)],
            ["partition_stopped 100", "partition_stopped 100", "partition_stopped 130"],
        ),
        # The copy was deleted as advised.
        ([(RECREATED, 100), (RECREATED, 0), (CAUGHT_UP, 10)], ["partition_stopped 100", "partition_resumed 10"]),
        # The offset is not known yet.
        ([(UNAUTHORIZED, 100), (UNAUTHORIZED, -1), (CORRUPT, -1)], ["partition_stopped 100", "partition_stopped -1"]),
        (
            [(UNAUTHORIZED, 100), (CAUGHT_UP, 100), (MIRRORING, 120), (UNAUTHORIZED, 100)],
            ["partition_stopped 100", "partition_resumed 100", "partition_stopped 100"],
        ),
        (
            [*[(STARTING, 100), (UNAVAILABLE, 100)] * 4, (MIRRORING, 130), (CAUGHT_UP, 140)],
            ["partition_state 100", "partition_resumed 130"],
        ),
        (
            [(PADDING, 100), (UNAVAILABLE, 101), (CORRUPT, 102), (MIRRORING, 103)],
            ["partition_state 100", "partition_state 101", "partition_stopped 102", "partition_resumed 103"],
        ),
        ([(STARTING, 100), (MIRRORING, 101), (CAUGHT_UP, 102)] * 2, []),
    ],
)
def test_what_is_logged_of_reports(
    reports: list[tuple[State, int]], logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(logs.Log, "_emit", lambda _, __, event, fields: found.append(f"{event} {fields['offset']}"))
    stops = StopLog()
    for number, (state, offset) in enumerate(reports):
        stops.log([report(state, offset, number)])
    assert found == logged
    stops.log([report(CAUGHT_UP, 0, -1)])
    assert found == logged, "a report that is older than the last one says nothing"
