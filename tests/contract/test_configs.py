"""Settings of topics: what a copy is made with, and what follows its source."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from configured_flow import ConfiguredFlow, flow
from confluent_kafka import Producer
from helpers import make_topic, produce
from pair import Shared
from samerecords import assert_same_records, read
from structlog.testing import capture_logs
from syncing import admin_of
from topicadmin import configs_of, configure, held
from waiting import until

from mirror.config import ClusterSettings
from mirror.errors import ExitCode
from mirror.journal.entries import losses_in
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.topic_configs import ConfigChange
from mirror.policy.rules import NO_LIMIT
from mirror.states import State

__all__ = ["flow"]

STAMPS, CREATES = "LogAppendTime", "CreateTime"


@pytest.mark.proves("mirror run")
def test_a_copy_is_made_with_what_decides_which_records_there_are(flow: ConfiguredFlow) -> None:
    """Also with the source's defaults; the safety of a cluster and its codec are its own."""
    travels = {"segment.ms": "3600000", "retention.ms": "-1", "max.message.bytes": "2000000"}
    stays = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true", "compression.type": "gzip"}
    make_topic(flow.source, flow.name, 3, travels | stays)
    assert flow.once().exit_code == ExitCode.DONE
    found = admin_of(flow.target).topic_configs([flow.name])[flow.name]
    assert {name: one.value for name, one in found.items() if not one.is_default} == travels | {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "message.timestamp.after.max.ms": str(NO_LIMIT),
        "message.timestamp.before.max.ms": str(NO_LIMIT),
        "message.timestamp.type": CREATES,
        "retention.bytes": "-1",
    }


@pytest.mark.proves("mirror run")
def test_a_setting_that_the_target_refuses_keeps_none_back_but_those_that_hang_together(flow: ConfiguredFlow) -> None:
    """A retention that is raised follows; compacted without its lag, the copy would lose what its source keeps."""
    flow.sync["configs_exclude"] = ["max[.]compaction.*", "segment[.]bytes"]
    make_topic(flow.source, flow.name, configs={"retention.ms": "500000000000", "segment.ms": "3600000"})
    produce(flow.source, flow.name, [b"record"] * 5)
    assert flow.once().exit_code == ExitCode.DONE
    configure(flow.target, flow.name, max_compaction_lag_ms="30000")
    configure(
        flow.source,
        flow.name,
        retention_ms="99999999999999",
        max_message_bytes="2000000",
        segment_bytes="20000000",
        segment_ms=None,
        min_compaction_lag_ms="60000",
        cleanup_policy="compact",
    )
    assert refused_settings(flow) == ["cleanup.policy", "min.compaction.lag.ms"], "a plan names them before a run"
    assert flow.once().exit_code == ExitCode.DONE
    status = json.loads(flow.mirror("status", "--json")[1])["settings_not_followed"]
    assert sorted(one["setting"] for one in status) == ["cleanup.policy", "min.compaction.lag.ms"]
    assert "min.compaction.lag.ms is to be 60000, and is" in flow.mirror("status")[1]
    copy = configs_of(flow.target, flow.name)
    assert (copy["max.message.bytes"], copy["retention.ms"]) == ("2000000", "99999999999999")
    assert (copy["segment.ms"], copy["segment.bytes"]) == ("604800000", "1073741824"), "reset, and excluded"
    assert copy["cleanup.policy"] == "delete"
    configure(flow.target, flow.name, max_compaction_lag_ms="90000")
    assert flow.once().exit_code == ExitCode.DONE
    assert configs_of(flow.target, flow.name)["cleanup.policy"] == "compact"
    assert held(flow.target, flow.name) == (0, 5)
    assert refused_settings(flow) == json.loads(flow.mirror("status", "--json")[1])["settings_not_followed"] == []


def refused_settings(flow: ConfiguredFlow) -> list[str]:
    """The settings that a plan names as not followed."""
    code, plan = flow.plan()
    assert code in (ExitCode.DONE, ExitCode.CHANGES), plan["refused"]
    return sorted(one["setting"] for one in plan["settings_not_followed"])


@pytest.mark.proves("mirror plan", "mirror run", "mirror status")
def test_replicas_that_the_target_does_not_have_keep_no_topic_from_being_made(flow: ConfiguredFlow) -> None:
    """The target has one broker. What the flow keeps for itself gets as many as there may be."""
    flow.topics["replication_factor"] = 3
    make_topic(flow.source, flow.name)
    produce(flow.source, flow.name, [b"record"] * 5)
    code, plan = flow.plan()
    assert (code, [one["replication_factor"] for one in plan["create"]]) == (ExitCode.CHANGES, [1])
    expected = (flow.name, "replication.factor", "3", "1")
    named = {
        (one["topic"], one["setting"], one["source_value"], one["target_value"])
        for one in plan["settings_not_followed"]
    }
    assert expected in named
    assert any("replication.factor is to be 3, and is 1 on the target: INVALID_REPL" in text for text in plan["advice"])
    with capture_logs() as logged:
        assert flow.once().exit_code == ExitCode.DONE
    events = [one for one in logged if one["event"] == "setting_not_followed" and one["topic"] == flow.name]
    assert [(one["setting"], one["source_value"], one["target_value"]) for one in events] == [expected[1:]]
    assert held(flow.target, flow.name) == (0, 5)
    assert refused_settings(flow) == [], "of a copy that is there, replicas are not looked at"


@pytest.mark.proves("same-bytes", "mirror run")
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_a_copy_stamps_no_more_once_its_source_does_not_and_begins_to_at_a_start(
    flow: ConfiguredFlow, offsets: str
) -> None:
    """Under a task, records on their way would get the times of the wrong side."""
    at, kind = TopicPartition(flow.name, 0), "message.timestamp.type"
    flow.topics |= {"append_time": "target", "offsets": offsets}
    make_topic(flow.source, flow.name, configs={kind: STAMPS})
    produce(flow.source, flow.name, [b"stamped"] * 20)

    def story() -> None:
        until(lambda: held(flow.target, flow.name)[1] == 20)
        assert configs_of(flow.target, flow.name)[kind] == STAMPS
        produce(flow.source, flow.name, [b"on its way"] * 20)
        configure(flow.source, flow.name, message_timestamp_type=CREATES)
        until(lambda: configs_of(flow.target, flow.name)[kind] == CREATES)
        produce(flow.source, flow.name, [b"as its producer says"] * 20)
        until(lambda: held(flow.target, flow.name)[1] == 60)
        configure(flow.source, flow.name, message_timestamp_type=STAMPS, retention_ms="99999999999")
        until(lambda: configs_of(flow.target, flow.name)["retention.ms"] == "99999999999")

    found = flow.while_running(story, epoch_s=600).figures[at]
    assert found.state is State.CAUGHT_UP, found.detail
    assert configs_of(flow.target, flow.name)[kind] == CREATES, "tasks ran"
    ours, copies = (list(read(side, flow.name, 0)) for side in (flow.source, flow.target))
    assert [one[3:] for one in copies] == [one[3:] for one in ours]
    assert [one[1:3] for one in copies[40:]] == [one[1:3] for one in ours[40:]], "times, and their type"
    assert flow.once().exit_code == ExitCode.DONE
    assert configs_of(flow.target, flow.name)[kind] == STAMPS


def is_taken(flow: ConfiguredFlow, value: bytes) -> bool:
    """Whether the source took a record: a limit is shown a moment before it holds."""
    refused: list[Any] = []
    producer = Producer({"bootstrap.servers": flow.source})
    producer.produce(flow.name, value, on_delivery=lambda error, _: refused.append(error) if error else None)
    producer.flush(60)
    return not refused


@pytest.mark.proves("same-bytes", "never-silent")
def test_no_policy_leaves_out_records_for_a_limit_that_is_about_to_follow(flow: ConfiguredFlow) -> None:
    """The source takes larger records, which are there before the copy's limit was raised."""
    flow.topics["on_too_large"] = "skip"
    flow.sync["interval_s"] = 2
    make_topic(flow.source, flow.name, configs={"max.message.bytes": "10000"})
    produce(flow.source, flow.name, [b"small"] * 20)

    def story() -> None:
        until(lambda: held(flow.target, flow.name)[1] == 20)
        configure(flow.source, flow.name, max_message_bytes="200000")
        for _ in range(3):
            until(lambda: is_taken(flow, b"large" * 10_000))
        until(lambda: held(flow.target, flow.name)[1] == 23)

    flow.while_running(story)
    assert losses_in(flow.journal()) == {}
    assert assert_same_records(flow.source, flow.target, flow.name, 1) == 23


@pytest.mark.proves("nothing-by-name-alone", "source-only-read")
def test_orders_go_to_the_cluster_that_was_checked_alone(flow: ConfiguredFlow, target_cluster: Shared) -> None:
    """The address names brokers of both clusters, which have topics of one name; librdkafka takes either."""
    for bootstrap in (flow.source, flow.target):
        make_topic(bootstrap, flow.name, configs={"retention.ms": "-1"})
    both = {"alias": "us", "bootstrap.servers": f"{flow.source},{flow.target}", "cluster_id": target_cluster.cluster_id}

    def is_kept(retention: str) -> bool:
        return configs_of(flow.target, flow.name)["retention.ms"] == retention

    for kept in map(str, range(3_600_000, 3_600_004)):
        change = ConfigChange(topic=flow.name, name="retention.ms", before="-1", after=kept)
        Admin(ClusterSettings.model_validate(both)).alter_configs([change])
        until(partial(is_kept, kept))
    assert configs_of(flow.source, flow.name)["retention.ms"] == "-1"
