"""A process that was suspended does nothing that it had decided before: others may have acted meanwhile (Z1)."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from flows import Flow, flow
from group_pairs import with_pair
from groupoffsets import commit, committed
from helpers import make_topic
from samerecords import read
from waiting import DEADLINE_S, MovableClock
from watchedtask import WatchedTask

from mirror.commands import accept as accept_command
from mirror.errors import FlowLost, Suspended
from mirror.journal.journal import Journal, journal_topic
from mirror.kafka import produce
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint
from mirror.records import rewrite
from mirror.replication import log_start
from mirror.states import State
from mirror.suspension import Clearance, SuspensionDetector

__all__ = ["flow"]

#: Seconds that look like a suspension.
SUSPENDED_S = 60.0
#: Seconds for which a busy machine may not run a mirror.
BUSY_S = 7.0


@pytest.mark.proves("exactly-once")
def test_nothing_is_appended_to_a_journal_before_the_flow_is_known_to_be_ours(flow: Flow, clock: MovableClock) -> None:
    make_topic(flow.target.bootstrap, journal_topic(flow.name))
    asked, answer, sleeps = 0, True, 0

    async def may_go_on() -> bool:
        nonlocal asked, sleeps
        asked += 1
        if sleeps:
            sleeps -= 1
            clock.move(SUSPENDED_S)
        return answer

    async def append() -> set[bytes]:
        nonlocal sleeps, answer
        async with Wire(Endpoint.of(flow.settings().target)) as cluster:
            journal = Journal(cluster, flow.name, Clearance(SuspensionDetector(), may_go_on, at_first=True))
            await journal.append([(b"a", b"1")])
            assert asked == 1
            clock.move(SUSPENDED_S)
            sleeps = 1
            await journal.append([(b"b", b"1")])
            assert asked >= 3, "one that sleeps behind its answer asks again"
            clock.move(SUSPENDED_S)
            answer = False
            for _ in range(2):
                with pytest.raises(FlowLost):
                    await journal.append([(b"c", b"1")])
            return {*await journal.newest()}

    assert asyncio.run(append()) == {b"a", b"b"}


@pytest.mark.proves("exactly-once", "never-silent")
def test_no_group_is_moved_behind_a_suspension(
    flow: Flow, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = f"{flow.name}-readers"
    flow.begin(100)
    commit(flow.source.bootstrap, group, flow.name, 60)

    async def rounds(pair: Any) -> None:
        decide = pair.sync._decide

        async def suspended(*args: Any, **options: Any) -> None:
            await decide(*args, **options)
            clock.move(SUSPENDED_S)

        with monkeypatch.context() as sleeping:
            sleeping.setattr(pair.sync, "_decide", suspended)
            result = await pair.sync.sync_once()
            while not any("suspended" in one.detail for one in result.blockers):  # a coordinator begins
                await asyncio.sleep(0.05)
                result = await pair.sync.sync_once()
            assert not result.committed
        assert committed(flow.target.bootstrap, group, flow.name) < 0
        await pair.sync_once()

    with_pair(flow.source.bootstrap, flow.target.bootstrap, flow.name, rounds, group)
    assert committed(flow.target.bootstrap, group, flow.name) == 60


@pytest.mark.proves("exactly-once")
def test_no_padding_is_sent_behind_a_suspension(
    flow: Flow, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another mirror has padded and filled the copy meanwhile."""
    flow.make()
    flow.make(flow.target)
    flow.fill(0, 60)
    flow.expire(flow.source, 50)
    asleep, awake, sent = threading.Event(), threading.Event(), list[int]()
    calls = 0

    def padding(first: int, until: int, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            asleep.set()
            awake.wait(DEADLINE_S)
        return rewrite.padding(first, min(until, first + 10), **more)

    async def watched(*given: Any, **more: Any) -> int:
        landed = await produce.append(*given, **more)
        sent.append(landed)
        return landed

    monkeypatch.setattr(log_start, "padding", padding)
    monkeypatch.setattr(log_start, "append", watched)
    with WatchedTask(flow.source.bootstrap, flow.target.bootstrap, [flow.at], flow=flow.name) as task:
        assert asleep.wait(DEADLINE_S)
        assert flow.copied().next_offset == 60
        before = [*sent]
        clock.move(SUSPENDED_S)
        awake.set()
        task.until(flow.at, lambda one: one.state is State.CAUGHT_UP or one.state.is_stop)
    assert sent == before == [0, 10, 20, 30, 40]
    assert [one[0] for one in read(flow.target.bootstrap, flow.name, 0)] == list(range(50, 60))


@pytest.mark.proves("mirror accept", "never-silent")
@pytest.mark.parametrize("suspensions", [2, 1000])
def test_an_accept_that_was_suspended_looks_again_and_records_nothing_that_may_be_old(
    flow: Flow, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, suspensions: int
) -> None:
    flow.begin(100)
    flow.fill(100, 50)
    flow.expire(flow.source, 150)
    real, looks = accept_command._Trial.settle, 0

    async def suspended(*values: Any, **named: Any) -> None:
        nonlocal looks
        await real(*values, **named)
        looks += 1
        if looks <= suspensions:
            clock.move(SUSPENDED_S)

    with monkeypatch.context() as sleeping:
        sleeping.setattr(accept_command._Trial, "settle", suspended)
        done = flow.command("accept", "CONFIG", flow.name, code=None)
    is_done = suspensions < looks
    assert isinstance(done.exception, Suspended) is not is_done, done.output
    (loss,) = json.loads(flow.accept("--json"))["losses"]
    assert loss["was_accepted"] is is_done


@pytest.mark.proves("MIRRORING", "exactly-once")
def test_a_live_mirror_on_a_busy_machine_keeps_its_positions(flow: Flow, clock: MovableClock) -> None:
    """Nobody takes it for dead within that time: it asks whether the flow is its own, and no log."""
    flow.make()
    flow.make(flow.target)
    flow.fill(0, 10)
    with WatchedTask(flow.source.bootstrap, flow.target.bootstrap, [flow.at], flow=flow.name) as task:
        task.until(flow.at, lambda one: one.state is State.CAUGHT_UP)
        before = task.writer(flow.at)
        for _ in range(3):
            clock.move(BUSY_S)
            flow.fill(task.figures(flow.at).next_offset, 10)
            end = task.figures(flow.at).next_offset + 10
            task.mirrored(flow.at, end)
        assert task.writer(flow.at) is before
        clock.move(SUSPENDED_S)
        task.until(flow.at, lambda _: task.writer(flow.at) is not before)
