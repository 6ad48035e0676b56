"""`mirror failover`: all that can get over does, groups go on at their next record, and what is missing is named."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from failovers import Flow, values
from helpers import make_topic, produce
from pair import Shared
from waiting import MovableClock

from mirror.commands.failover import _FailoverRun
from mirror.errors import PreflightError
from mirror.journal.journal import OWNER
from mirror.journal.ownership import KEY, Owner

pytestmark = [pytest.mark.brokers, pytest.mark.proves("mirror failover")]

#: A mirror on another machine, with a claim behind all others.
ELSEWHERE = Owner(instance="elsewhere", host="elsewhere", pid=1, at_ms=0, claim=9)


@pytest.fixture
def flow(source_cluster: Shared, target_cluster: Shared, topic_name: str) -> Flow:
    """One partition with a hundred records, mirrored."""
    made = Flow(source_cluster.bootstrap, target_cluster.bootstrap, topic_name)
    make_topic(made.source, topic_name)
    produce(made.source, topic_name, values(100))
    made.copies()
    return made


@pytest.mark.proves("exactly-once")
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_suspended_failover_goes_on_unless_another_mirror_has_the_flow(
    flow: Flow, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, *, is_taken: bool
) -> None:
    """As on a laptop that slept, or a machine that had too much to do for a moment."""
    produce(flow.source, flow.topic, values(50))
    drain = _FailoverRun.drain

    async def suspended(*args: Any) -> None:
        await drain(*args)
        if is_taken:
            await asyncio.to_thread(flow.append, (OWNER, ELSEWHERE.to_json()))
        clock.move(3600)

    monkeypatch.setattr(_FailoverRun, "drain", suspended)
    if not is_taken:
        assert flow.fail_over()["partitions"][0]["position"] == 150
        return
    with pytest.raises(PreflightError, match=r"another mirror \(pid 1 on elsewhere\) took the flow .* Run it again"):
        flow.fail_over()
    assert KEY not in flow.journal()
