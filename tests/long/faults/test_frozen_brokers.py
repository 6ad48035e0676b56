"""A failover whose source or target freezes in its midst."""

from __future__ import annotations

from typing import Any

import pytest
from failovers import Flow
from groupoffsets import commit, committed
from waiting import until

from mirror.commands.failover import _FailoverRun
from mirror.errors import ClusterUnreachable, ExitCode
from mirror.groups.gap import GROUPS_STAY
from mirror.journal.ownership import KEY, ending
from mirror.kafka.produce import ProduceRequest
from mirror.lab.embedded import Cluster


@pytest.fixture
def flow(own_source: Cluster, own_target: Cluster, topic_name: str) -> Flow:
    """A hundred records, mirrored, and a group that stands at 40."""
    made = Flow(own_source.bootstrap, own_target.bootstrap, topic_name).mirrored(100)
    commit(made.source, topic_name, topic_name, 40)
    return made


def test_a_source_that_goes_away_in_the_midst_is_asked_no_more(
    flow: Flow, own_source: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its questions would cost a timeout, one behind the other: minutes, in the worst hour."""
    check, follow = _FailoverRun.check, _FailoverRun.follow
    asked = list[bool]()

    async def freezing(*args: Any, reached: bool) -> None:
        if reached:
            own_source.suspend(0)
        await check(*args, reached=reached)

    async def following(*args: Any, reached: bool) -> None:
        asked.append(reached)
        await follow(*args, reached=reached)

    monkeypatch.setattr(_FailoverRun, "check", freezing)
    monkeypatch.setattr(_FailoverRun, "follow", following)
    try:
        done = flow.fail_over(ExitCode.DATA_AT_RISK, source_s=5.0)
    finally:
        own_source.resume(0)
    assert asked[-1] is False, "what was begun is done without it"
    assert "no broker answered" in done["source_problem"]
    assert done["warnings"] == [GROUPS_STAY]
    assert done["partitions"][0]["position"] == 100


def test_a_failover_whose_record_gets_no_answer_says_so(
    flow: Flow, own_target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target freezes as the record is on its way, and takes it as it goes on: the flow is failed over then."""

    def freezing(*args: Any) -> ProduceRequest:
        own_target.suspend(0)
        return ProduceRequest(*args)

    def recording(*args: Any) -> Any:
        patch.setattr("mirror.kafka.produce.ProduceRequest", freezing)
        return ending(*args)

    with monkeypatch.context() as patch:
        patch.setattr("mirror.commands.failover.record.ending", recording)
        try:
            with pytest.raises(ClusterUnreachable, match="Nobody knows whether the flow is failed over now"):
                flow.fail_over()
        finally:
            own_target.resume(0)
    until(lambda: KEY in flow.journal())
    flow.fail_over()
    assert committed(flow.target, flow.topic, flow.topic) == 40
