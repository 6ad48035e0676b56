"""Nothing on the target is changed by name alone: a flow writes to its own copies, and to nothing that others fill."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from configured_flow import ConfiguredFlow, flow, values
from helpers import make_topic, produce
from sparkless import InThisProcess
from syncing import admin_of, made_by
from topicadmin import configs_of, configure, delete_records, grow, held, partitions_of, recreate
from waiting import MovableClock
from watchedtask import WatchedTask

from mirror.driver.flow import prepare
from mirror.driver.topic_watcher import Replanner
from mirror.errors import ExitCode, PreflightError
from mirror.journal.entries import COPIES, FirstSeen
from mirror.journal.journal import OWNER
from mirror.journal.ownership import KEY as FAILOVER
from mirror.journal.ownership import FailedOver, Owner
from mirror.journal.positions import POSITIONS
from mirror.kafka.cluster import TopicPartition
from mirror.replication.assignment import LastPosition
from mirror.spark.supervisor import Supervisor
from mirror.states import State

__all__ = ["flow"]

KEPT = {"retention.ms": "-1"}
LONG_AGO_MS = 1_600_000_000_000


def fill(flow: ConfiguredFlow) -> None:
    """A source topic that keeps a hundred old records for ever."""
    make_topic(flow.source, flow.name, configs=KEPT)
    produce(flow.source, flow.name, values(100), begin_ms=LONG_AGO_MS)


def refusals(flow: ConfiguredFlow) -> list[str]:
    refused: list[str] = flow.plan()[1]["refused"]
    return refused


@pytest.mark.proves("nothing-by-name-alone", "mirror accept")
def test_a_foreign_topic_is_refused_and_left_as_it_is(flow: ConfiguredFlow) -> None:
    fill(flow)
    foreign = f"{flow.name}-payroll"
    make_topic(flow.source, foreign, 2, {"retention.ms": "1000"})
    produce(flow.source, foreign, values(20))
    delete_records(flow.source, foreign, 15)
    make_topic(flow.target, foreign, configs=KEPT)
    produce(flow.target, foreign, values(50, "payroll"), begin_ms=LONG_AGO_MS)
    before = configs_of(flow.target, foreign)

    (text,) = refusals(flow)
    assert "50 offsets in 1 of 1 partition, 0 to 49 in partition 0" in text
    assert f"mirror adopt CONFIG {foreign}" in text
    assert flow.once().exit_code == ExitCode.PREFLIGHT, "what is left out is not done"
    assert flow.states() == {(flow.name, 0): "CAUGHT_UP", (foreign, 0): "REFUSED", (foreign, 1): "REFUSED"}
    code, said = flow.mirror("accept", foreign, "--unconfirmed")
    assert (code, "nothing of it is accepted" in said) == (ExitCode.PREFLIGHT, True)
    assert flow.mirror("adopt", foreign, "--ends-only")[0] == ExitCode.DIFFERENT
    assert (configs_of(flow.target, foreign), held(flow.target, foreign)) == (before, (0, 50))
    assert partitions_of(flow.target, foreign) == 1


@pytest.mark.proves("nothing-by-name-alone")
def test_of_two_flows_into_one_topic_the_second_writes_nothing(flow: ConfiguredFlow) -> None:
    """Also where both found it free, before either had named it in its journal."""
    fill(flow)
    second = flow.another("second")
    first_prepared, second_prepared = prepare(flow.settings, once=True), prepare(second.settings, once=True)
    engine: Any = InThisProcess()
    done = asyncio.run(Supervisor(engine, first_prepared, lambda _: None).run())
    assert done.exit_code == ExitCode.DONE
    with pytest.raises(PreflightError, match=f"flow {flow.name} writes to it"):
        asyncio.run(Supervisor(engine, second_prepared, lambda _: None).run())
    with pytest.raises(PreflightError, match=f"flow {flow.name} writes to it"):
        second.once()
    assert (second.seen(), held(flow.target, flow.name)) == ({}, (0, 100))
    assert flow.once().exit_code == ExitCode.DONE, "the first one goes on"


@pytest.mark.proves("nothing-by-name-alone")
def test_a_loop_over_three_clusters_is_refused(flow: ConfiguredFlow) -> None:
    """A flow from a third cluster towards the source names the clusters that its records came through."""
    fill(flow)
    target_id = admin_of(flow.target).cluster_id()
    third = flow.another("third", is_back=True)

    def comes_through(*origins: str) -> None:
        ids: dict[str, Any] = {"topic_id": None, "target_topic_id": None, "cluster_id": "third"}
        seen = FirstSeen(source_topic=flow.name, **ids, origins=origins)
        third.write_journal(COPIES.entry(flow.name, seen))

    comes_through("third", target_id)
    (refusal,) = refusals(flow)
    assert refusal.startswith(f"{flow.name}: comes from cluster us by way of third: flow {third.name} mirrors it")
    with pytest.raises(PreflightError, match="to mirror it back would be a loop"):
        flow.once()
    assert partitions_of(flow.target, flow.name) == 0
    comes_through("third", "fourth")
    assert flow.once().exit_code == ExitCode.DONE
    assert flow.seen()[flow.name].chain == (admin_of(flow.source).cluster_id(), "third", "fourth")


@pytest.mark.proves("nothing-by-name-alone")
@pytest.mark.parametrize("what", ["written to", "mirrored back", "created"])
def test_what_another_flow_named_since_the_start_is_not_begun(
    flow: ConfiguredFlow, clock: MovableClock, what: str
) -> None:
    """No topic's name is new then; it is begun once the other flow has let go of it."""
    fill(flow)
    more = f"{flow.name}-more"
    other = flow.another("other", is_back=what != "written to")
    for one in (flow, other):
        one.write_journal()
    for bootstrap in (flow.source, flow.target) if what != "created" else ():
        make_topic(bootstrap, more)
    flow.topics["exclude"] = [more]
    living = Replanner(flow.settings)
    begun = living.replan((), {}).assignments
    assert [one.source.topic for one in begun] == [flow.name]
    if what == "created":  # a flow names what it creates before it begins, as one that re-keys does
        other.topics = {"include": [f"from.{flow.name}"], "naming": {"rename": {f"from.{flow.name}": more}}}
        other.topics["rules"] = [{"match": ".*", "rekey": "key"}]
        make_topic(other.source, f"from.{flow.name}")
        prepare(other.settings)
    else:
        topic_id = admin_of(other.target).describe([more])[more].topic_id
        named = FirstSeen(
            source_topic=more,
            topic_id=None,
            target_topic_id=topic_id,
            cluster_id=admin_of(other.source).cluster_id(),
        )
        other.write_journal(COPIES.entry(more, named))
    flow.topics["exclude"] = []
    living.settings = flow.settings
    found = living.replan(begun, {})
    assert ([one.source.topic for one in found.assignments], [one.source for one in found.refused]) == (
        [flow.name],
        [more],
    )
    expected = "writes to it" if what == "written to" else "to mirror it back would be a loop"
    assert expected in found.refused[0].reason
    if what == "created":
        assert partitions_of(flow.target, more) == 0
        return
    other.write_journal(COPIES.tombstone(more))
    clock.move(60)  # other flows' journals are read again
    assert [one.source.topic for one in living.replan(begun, {}).assignments] == [flow.name, more]


@pytest.mark.proves("nothing-by-name-alone", "RECREATED", "TRUNCATED", "DIVERGED")
@pytest.mark.parametrize("state", [State.DIVERGED, State.TRUNCATED, State.RECREATED])
def test_a_copy_that_is_not_its_sources_keeps_its_settings_and_partitions(flow: ConfiguredFlow, state: State) -> None:
    """Its broker would delete, by the source's retention, what the copy alone holds."""
    fill(flow)
    assert flow.once().exit_code == ExitCode.DONE
    living = Replanner(flow.settings)
    current = living.replan((), flow.seen(), [flow.name]).assignments
    if state is State.DIVERGED:
        produce(flow.target, flow.name, values(5, "somebody else's"))
    elif state is State.RECREATED:
        recreate(flow.source, flow.name)
    else:
        recreate(flow.source, flow.name)
        produce(flow.source, flow.name, values(50), begin_ms=LONG_AGO_MS)
        seen = made_by(flow.settings, [flow.name])[flow.name]
        ids: Any = {"source_topic_id": seen.topic_id, "target_topic_id": seen.target_topic_id}
        last = LastPosition(source_next=100, target_end=100, **ids)
        at = TopicPartition(flow.name, 0)
        flow.write_journal(COPIES.entry(flow.name, seen), POSITIONS.entry(at, last))
    configure(flow.source, flow.name, retention_ms="1000")
    grow(flow.source, flow.name, 2)
    before = held(flow.target, flow.name)
    for replanner in (living, living, Replanner(flow.settings)):
        found = replanner.replan(current, flow.seen(), [flow.name])
        assert [one.source.partition for one in found.assignments] == [0]
    done = flow.once()
    assert done.exit_code == ExitCode.DATA_AT_RISK
    assert state in {one.state for one in done.figures.values()}
    assert configs_of(flow.target, flow.name)["retention.ms"] == "-1"
    assert (partitions_of(flow.target, flow.name), held(flow.target, flow.name)) == (1, before)


@pytest.mark.proves("nothing-by-name-alone")
@pytest.mark.parametrize("meanwhile", ["copy recreated", "source recreated", "source configured"])
def test_a_start_changes_what_it_planned_only_where_that_holds_still(
    flow: ConfiguredFlow, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """Brokers take settings and partitions by a topic's name, and whoever starts may be suspended behind the plan."""
    fill(flow)
    assert flow.once().exit_code == ExitCode.DONE
    configure(flow.source, flow.name, retention_ms="1000000000000")
    grow(flow.source, flow.name, 3)

    def suspended(*_: object) -> None:
        monkeypatch.undo()
        if meanwhile == "copy recreated":
            recreate(flow.target, flow.name, retention_ms="-1")
            produce(flow.target, flow.name, values(7, "a stranger's"))
        elif meanwhile == "source recreated":
            recreate(flow.source, flow.name, 3, retention_ms="1000000000000")
        else:
            configure(flow.source, flow.name, retention_ms="99999999999999")

    monkeypatch.setattr("mirror.driver.reconciler.record_making", suspended)
    flow.once()
    retention = configs_of(flow.target, flow.name)["retention.ms"]
    if meanwhile == "source configured":
        assert (retention, partitions_of(flow.target, flow.name)) == ("99999999999999", 3)
    else:
        assert (retention == "1000000000000", partitions_of(flow.target, flow.name)) == (False, 1)
    assert held(flow.target, flow.name) == (0, 7 if meanwhile == "copy recreated" else 100)


@pytest.mark.proves("nothing-by-name-alone")
@pytest.mark.parametrize("lost", ["failed over", "taken over"])
def test_a_mirror_that_lost_its_flow_changes_nothing(flow: ConfiguredFlow, lost: str) -> None:
    """It was suspended in the midst of a round; its source is emptied meanwhile, since it is done with."""
    fill(flow)
    assert flow.once().exit_code == ExitCode.DONE
    living, seen = Replanner(flow.settings), flow.seen()
    living.owner = newest = Owner.from_json(flow.journal()[OWNER])
    if lost == "failed over":
        flow.write_journal((FAILOVER, FailedOver.here().to_json()))
    else:
        later = replace(newest, instance="later", claim=(newest.claim or 0) + 1)
        flow.write_journal((OWNER, later.to_json()))
    configure(flow.source, flow.name, retention_ms="1000")
    grow(flow.source, flow.name, 2)
    with pytest.raises(PreflightError, match="failed over" if lost == "failed over" else "took the flow over"):
        living.replan((), seen)
    assert configs_of(flow.target, flow.name)["retention.ms"] == "-1"
    assert (partitions_of(flow.target, flow.name), held(flow.target, flow.name)) == (1, (0, 100))


@pytest.mark.proves("nothing-by-name-alone", "RECREATED")
def test_a_task_writes_nothing_to_a_topic_made_anew_under_its_copys_name(
    flow: ConfiguredFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirror.replication.pipeline._LEADERS_SECONDS", 1.0)
    for bootstrap in (flow.source, flow.target):
        make_topic(bootstrap, flow.name)
    produce(flow.source, flow.name, values(10))
    at = TopicPartition(flow.name, 0)
    with WatchedTask(flow.source, flow.target, [at], names_copies=True) as task:
        task.mirrored(at, 10)
        recreate(flow.target, flow.name)
        produce(flow.source, flow.name, values(10))
        task.until(at, lambda one: "deleted and created again" in one.detail)
        assert held(flow.target, flow.name) == (0, 0)
