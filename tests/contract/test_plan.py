"""`mirror plan`: what a start would do, what is refused and why. It writes nothing."""

from __future__ import annotations

import re

import pytest
from configured_flow import ConfiguredFlow, flow
from groupoffsets import commit, committed
from helpers import make_topic, produce
from pair import Shared
from syncing import delete_topics
from topicadmin import configure, delete_records, grow, held, partitions_of, recreate

from mirror.errors import ExitCode
from mirror.states import State

__all__ = ["flow"]


@pytest.mark.proves("mirror plan")
def test_a_plan_names_what_a_start_would_do_until_nothing_is_left_to_do(
    flow: ConfiguredFlow, source_cluster: Shared, target_cluster: Shared
) -> None:
    make_topic(flow.source, flow.name, 2, {"retention.ms": "7200000", "segment.ms": "3600000"})
    produce(flow.source, flow.name, [b"x"] * 30)
    delete_records(flow.source, flow.name, 20)
    flow.topics["naming"] = {"prefix": "eu."}
    copy = f"eu.{flow.name}"

    code, plan = flow.plan()
    assert code == ExitCode.CHANGES
    ids = source_cluster.cluster_id, target_cluster.cluster_id
    assert (plan["source"]["cluster_id"], plan["target"]["cluster_id"]) == ids
    assert [(one["topic"], one["partitions"]) for one in plan["create"]] == [(copy, 2)]
    assert plan["own_topics"] == [f"mirror.{flow.name}.offsets", f"mirror.{flow.name}.heartbeats"]
    assert [(one["topic"], one["partition"], one["offsets"]) for one in plan["padding"]] == [(copy, 0, 20)]
    printed = flow.mirror("plan")[1]
    assert f"+ create {copy}: 2 partitions, 1 replica" in printed
    assert f"~ {copy}: pad 20 offsets in 1 partition, about 0 ms, 0.0 s of broker CPU and 16 B of disk" in printed
    assert partitions_of(flow.target, copy) == 0, "planning writes nothing"

    assert flow.once().exit_code == ExitCode.DONE
    produce(flow.source, flow.name, [b"y"] * 5)
    code, plan = flow.plan()
    assert (code, plan["changes"]) == (ExitCode.DONE, False)
    extent = {"source": flow.name, "target": copy, "source_offsets": 15, "target_offsets": 10, "behind": 5}
    assert plan["copies"] == [extent]
    assert flow.mirror("plan")[1].endswith("nothing to do\n")

    grow(flow.source, flow.name, 3)
    configure(flow.source, flow.name, segment_ms=None, retention_ms="3600000")
    code, plan = flow.plan()
    assert code == ExitCode.CHANGES
    assert plan["add_partitions"] == [{"topic": copy, "before": 2, "partitions": 3}]
    assert {(one["name"], one["before"], one["after"]) for one in plan["configs"]} == {
        ("segment.ms", "3600000", None),
        ("retention.ms", "7200000", "3600000"),
    }


@pytest.mark.proves("mirror plan", "RECREATED")
def test_a_recreated_topic_is_refused_with_what_to_do_and_a_deleted_one_is_named(flow: ConfiguredFlow) -> None:
    recreated, deleted = f"{flow.name}-recreated", f"{flow.name}-deleted"
    for topic in (recreated, deleted):
        make_topic(flow.source, topic)
    assert flow.once().exit_code == ExitCode.DONE
    delete_topics(flow.source, deleted)
    recreate(flow.source, recreated)

    code, plan = flow.plan()
    (refusal,) = plan["refused"]
    assert (code, refusal.startswith(f"{recreated}: RECREATED: ")) == (ExitCode.PREFLIGHT, True)
    assert f"mirror adopt CONFIG {recreated}" in refusal
    assert f"kafka-topics.sh --bootstrap-server {flow.target} --delete --topic {recreated}" in refusal
    assert any(text.startswith(f"{deleted}: the source topic was deleted") for text in plan["advice"])

    delete_topics(flow.target, recreated)
    code, plan = flow.plan()
    assert (code, plan["refused"]) == (ExitCode.CHANGES, [])
    assert flow.once().exit_code == ExitCode.DATA_AT_RISK, "the other's copy is left, and its source is gone"
    assert flow.states() == {(recreated, 0): State.CAUGHT_UP, (deleted, 0): State.RECREATED}


@pytest.mark.proves("mirror plan", "mirror accept", "RETENTION_GAP")
def test_a_stop_is_refused_until_its_loss_is_accepted(flow: ConfiguredFlow) -> None:
    make_topic(flow.source, flow.name)
    produce(flow.source, flow.name, [b"x"] * 50)
    assert flow.once().exit_code == ExitCode.DONE
    produce(flow.source, flow.name, [b"x"] * 50)
    delete_records(flow.source, flow.name, 80)
    assert [one.state for one in flow.once().stops] == [State.RETENTION_GAP]
    code, plan = flow.plan()
    (refusal,) = plan["refused"]
    assert (code, refusal.startswith(f"{flow.name}-0: RETENTION_GAP: ")) == (ExitCode.PREFLIGHT, True)
    assert f"mirror accept CONFIG {flow.name}" in refusal
    assert flow.mirror("accept", flow.name)[0] == ExitCode.DONE
    assert flow.plan()[0] == ExitCode.DONE
    assert flow.once().exit_code == ExitCode.DONE
    assert held(flow.target, flow.name)[1] == 100


@pytest.mark.proves("mirror plan", "never-silent")
def test_a_plan_names_what_is_left_out_and_groups_of_any_name(flow: ConfiguredFlow) -> None:
    make_topic(flow.source, flow.name)
    make_topic(flow.source, f"{flow.name}-tmp")
    produce(flow.source, flow.name, [b"x"] * 3)
    groups = [f"{flow.name}{rest}" for rest in ("\nline", "\x1b[31m", " ü/'\"", "x" * 500)]
    for group in groups:
        commit(flow.source, group, flow.name, 2)
    flow.topics["exclude"], flow.groups = [".*-tmp"], [f"{flow.name}.*"]
    plan = flow.plan()[1]
    assert plan["left_out"] == [{"reason": 'topics.exclude has ".*-tmp"', "topics": [f"{flow.name}-tmp"]}]
    assert plan["groups"] == sorted(groups)
    printed = flow.mirror("plan")[1]
    assert f'left out, since topics.exclude has ".*-tmp": 1 topic: {flow.name}-tmp' in printed
    assert "\x1b" not in printed
    assert flow.once().exit_code == ExitCode.DONE
    assert [committed(flow.target, group, flow.name) for group in groups] == [2] * 4


@pytest.mark.proves("never-silent")
def test_the_port_of_a_controller_is_named(flow: ConfiguredFlow, source_cluster: Shared) -> None:
    properties = (source_cluster.data.parent / "server.properties").read_text()
    (flow.source,) = re.findall(r"^controller.quorum.voters=0@(\S+)$", properties, re.MULTILINE)
    code, problem = flow.mirror("plan")
    assert code == ExitCode.CLUSTER
    assert f"{flow.source}: a KRaft controller listens there" in problem
