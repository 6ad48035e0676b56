"""A target of three brokers with policies for topics, as hosted services have: what a flow makes there fits."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from configured_flow import ConfiguredFlow
from helpers import make_topic, produce
from samerecords import assert_same_records
from syncing import admin_of
from topicadmin import configs_of, configure

from mirror.errors import ExitCode
from mirror.journal.heartbeats import heartbeat_topic
from mirror.journal.journal import journal_topic
from mirror.lab.embedded import Cluster, jars

#: Limits that a hosted service publishes; the brokers themselves would give a topic one replica.
LEAST: Final = {"segment.bytes": 52428800, "segment.ms": 14400000, "retention.ms": 14400000, "replication.factor": 3}
POLICY: Final = Path(__file__).parents[2] / "support" / "TopicPolicy.java"


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if (compiler := shutil.which("javac")) is None:
        pytest.skip("a policy is a Java class, and there is no javac")
    brokers, classes = jars.classpath(), tmp_path_factory.mktemp("policy")
    subprocess.run([compiler, "-cp", brokers, "-d", classes, POLICY], check=True)
    config: dict[str, str | int | bool] = {
        "create.topic.policy.class.name": "TopicPolicy",
        "alter.config.policy.class.name": "TopicPolicy$OfChanges",
        "min.insync.replicas": 2,
        **{f"policy.least.{name}": value for name, value in LEAST.items()},
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jars, "classpath", lambda: os.pathsep.join([brokers, str(classes)]))
        cluster = Cluster.start(nodes=3, name="hosted", config=config)
    with cluster:
        yield cluster


@pytest.mark.proves("mirror plan", "mirror run", "mirror status", "never-silent")
def test_what_a_flow_makes_fits_the_targets_policies(
    own_source: Cluster, hosted: Cluster, tmp_path: Path, topic_name: str
) -> None:
    """A copy that is there goes on as well, and what keeps less than was asked for is refused by name."""
    flow = ConfiguredFlow(own_source, hosted, tmp_path, topic_name)
    make_topic(flow.source, topic_name, configs={"segment.bytes": "16777216", "retention.ms": "7200000"})
    produce(flow.source, topic_name, [b"record"] * 20)
    code, plan = flow.plan()
    assert (code, plan["refused"]) == (ExitCode.CHANGES, [])
    assert [one["replication_factor"] for one in plan["create"]] == [3]
    named = {(one["topic"], one["setting"]): one["target_value"] for one in plan["settings_not_followed"]}
    assert named == {
        (topic_name, "segment.bytes"): "52428800",
        (topic_name, "retention.ms"): "14400000",
        (journal_topic(topic_name), "segment.bytes"): "52428800",
        (journal_topic(topic_name), "segment.ms"): "14400000",
        (heartbeat_topic(topic_name), "segment.ms"): "14400000",
    }
    assert flow.once().exit_code == ExitCode.DONE
    made = admin_of(flow.target).describe([topic_name, journal_topic(topic_name), heartbeat_topic(topic_name)])
    assert [one.replication_factor for one in made.values()] == [3, 3, 3]
    assert configs_of(flow.target, journal_topic(topic_name))["cleanup.policy"] == "compact"

    configure(flow.source, topic_name, segment_ms="60000", max_message_bytes="2000000")
    produce(flow.source, topic_name, [b"record"] * 20)
    assert flow.once().exit_code == ExitCode.DONE
    copy = configs_of(flow.target, topic_name)
    assert (copy["segment.ms"], copy["max.message.bytes"]) == ("14400000", "2000000")
    assert "segment.ms is to be 60000, and is 14400000 on the target" in flow.mirror("status")[1]
    assert assert_same_records(flow.source, flow.target, topic_name, 1) == 40
