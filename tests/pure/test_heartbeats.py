"""What is said of partitions on which no task reports, in heartbeats and at the end of a copy."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, cast

import pytest
from fakebroker import in_loop
from scraped import report
from sparkless import InThisProcess
from waiting import MovableClock

from mirror.driver.flow import Flow
from mirror.driver.reconciler import Refusal
from mirror.journal import heartbeats
from mirror.journal.heartbeats import STALE_SECONDS, Heart, Heartbeat
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment
from mirror.spark.supervisor import Supervisor
from mirror.states import State

FIGURES = report(flow="f", state=State.CAUGHT_UP, next_offset=5, log_end=5, lag_records=0, lag_ms=0, at_ms=1)


def test_nothing_is_known_before_tasks_report_and_after_they_do_no_more(clock: MovableClock) -> None:
    """It was no lag, where a task had yet to look, and where an executor had gone."""
    nowhere, engine = Endpoint("nowhere", (("127.0.0.1", 1),)), InThisProcess()
    orders, refused = TopicPartition("orders", 0), Refusal("letters", "letters", 2, "why")
    flow = Flow(
        name="f",
        source=nowhere,
        target=nowhere,
        assignments=(Assignment(orders, orders, None, Rules()),),
        tasks=1,
        epoch_seconds=1.0,
        memory_bytes=1,
        until_caught_up=True,
    )
    mirror = Supervisor(cast(Any, engine), flow, lambda _: None)
    state = mirror._journal_state

    def beat() -> tuple[int, int, int | None, int]:
        now = Heartbeat.of("f", "i", mirror._newest())
        return now.partitions, now.stopped, now.lag_records, now.lag_unknown

    assert beat() == (1, 0, None, 1)
    assert not mirror._have_all_caught_up()
    state.receive(FIGURES)
    assert (beat(), state.blind) == ((1, 0, 0, 0), [])
    assert mirror._have_all_caught_up()
    mirror._refused = (refused,)
    assert beat() == (3, 2, 0, 2)
    clock.move(STALE_SECONDS + 1)
    assert state.blind == [orders]
    assert not mirror._have_all_caught_up()
    state.know_ends({})
    assert beat() == (3, 2, None, 3)
    state.know_ends({orders: (12, 0)})
    assert beat() == (3, 2, 7, 2)
    state.receive(replace(FIGURES, state=State.CORRUPT))
    clock.move(STALE_SECONDS + 1)
    assert mirror._have_all_caught_up(), "a task that is gone mends no stop"


@in_loop
async def test_the_lag_of_what_no_task_reports_on_is_unknown(
    clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was 0 when the last task ended, and would be so for as long as none can be started."""
    beats: list[dict[str, Any]] = []
    live = [FIGURES]

    async def append(*_: object, **__: object) -> None:
        clock.move(STALE_SECONDS + 1)
        if len(beats) == 2:
            live[:] = [replace(FIGURES, at_ms=2)]
        if len(beats) == 3:
            raise asyncio.CancelledError

    def encode(entries: list[tuple[bytes, bytes]]) -> bytes:
        beats.append(json.loads(entries[0][1]))
        return b""

    monkeypatch.setattr(heartbeats, "append", append)
    monkeypatch.setattr(heartbeats, "encode", encode)
    monkeypatch.setattr(heartbeats, "INTERVAL_SECONDS", 0.001)
    target: Any = None
    with pytest.raises(asyncio.CancelledError):
        await Heart(target, "f", "i", lambda: live).run()
    said = [(one["lag_records"], one["lag_ms"], one["lag_unknown"]) for one in beats]
    assert said == [(0, 0, 0), (None, None, 1), (0, 0, 0)]
