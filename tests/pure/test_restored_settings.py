"""What a restore sets on a copy, holds back and leaves, and what is said of groups and files that are not whole."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from mirror.commands import restore as command
from mirror.commands.restore_view import Report
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.groups import Committed
from mirror.kafka.topic_configs import ConfigValue
from mirror.policy.rules import Rules
from mirror.policy.selection import TopicPair
from mirror.replication.assignment import Assignment
from mirror.segments.cluster_logs import Commit, GroupOffsets
from mirror.segments.file_cluster import Bounds
from mirror.segments.restore import KEEPING, RestoredPartition, found_groups
from mirror.spark.restore import Restored
from mirror.topics.configs import plan_settings


def now(**values: str) -> dict[str, ConfigValue]:
    """Settings of a copy as a restore makes it, and some by their brokers' default."""
    made = {name: ConfigValue(value=value, is_default=False) for name, value in KEEPING.items()}
    return made | {name: ConfigValue(value=value, is_default=True) for name, value in values.items()}


def test_what_is_set_held_and_left() -> None:
    found = {
        "cleanup.policy": "compact",
        "retention.ms": "7",
        "message.timestamp.type": "LogAppendTime",
        "segment.ms": "9",
        "min.insync.replicas": "2",
        "remote.storage.enable": "true",
        "of.another.kafka": "x",
        "flush.ms": "3",
    }
    there = now(**{"segment.ms": "1", "min.insync.replicas": "1", "remote.storage.enable": "false"})
    there["flush.ms"] = ConfigValue(value="4", is_default=False)  # somebody set it
    plan = plan_settings("orders", found, there, KEEPING, replicas=1, is_own=True)
    assert {one.name: one.after for one in plan.changes} == {"cleanup.policy": "compact", "segment.ms": "9"}
    assert plan.held == {"retention.ms": "7", "message.timestamp.type": "LogAppendTime"}
    assert plan.by_default == ("retention.bytes",)
    assert plan.left.keys() == {"min.insync.replicas", "remote.storage.enable", "of.another.kafka", "flush.ms"}
    foreign = plan_settings("orders", found, there, KEEPING, replicas=3, is_own=False)
    assert (foreign.changes, foreign.by_default) == ((), ())
    assert foreign.held.keys() == found.keys() - {"remote.storage.enable", "of.another.kafka"}


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_is_not_set_of_a_topic_in_part_is_said_with_its_command(
    capsys: pytest.CaptureFixture[str], *, dry_run: bool
) -> None:
    """Also by a dry run, and what may never be whole is not said to come with another restore alone."""
    at = TopicPartition("orders", 0)
    settings = plan_settings("orders", {"cleanup.policy": "compact"}, now(), KEEPING, replicas=1, is_own=True)
    plan: Any = SimpleNamespace(
        pairs=[TopicPair(source="orders", target="orders", partitions=1)], creations=(), findings=(), target_topics={}
    )
    report = Report(plan, Endpoint("target", ()), {}, {at: []}, [], dry_run, settings={"orders": settings})
    mine = Assignment(source=at, target=at, topic_id=None, rules=Rules())
    report.results.append(Restored(assignment=mine, at_risk=True))
    report.unset = command.unset_in_part(report)
    report.print()
    printed = " ".join(capsys.readouterr().out.split())
    done = "would not be set" if dry_run else "not set"
    assert f"orders: {done} as on the lost cluster: cleanup.policy=compact: the topic is not there whole" in printed
    assert re.search(
        "where nothing more is to be found, set them yourself. To set them: kafka-configs.*=compact", printed
    )
    said = report.as_dict()["settings"]["orders"]
    assert (said["applied"], said["not_applied"]) == ({}, {"cleanup.policy": "compact"})


def test_files_that_end_before_what_a_group_had_read_are_not_whole() -> None:
    """The records were committed, whatever a checkpoint of the high watermark, which may be older, says."""
    at = TopicPartition("orders", 0)
    one = RestoredPartition(assignment=Assignment(at, at, None, Rules()), bounds=Bounds(None, 0, 14, 14))
    for offset, is_whole in ((14, True), (15, False)):
        stored = GroupOffsets({"readers": {at: Commit(Committed(offset), None)}})
        report = found_groups(stored, [re.compile(".*")], [one])
        assert (report.is_whole, len(report.beyond)) == (is_whole, not is_whole)


def test_what_the_files_lack_of_groups_is_not_whole() -> None:
    """Offsets that nobody can read, those of a transaction without an end, and groups that no commit puts anywhere."""
    at, topic_id = TopicPartition("orders", 0), uuid4()
    one = RestoredPartition(assignment=Assignment(at, at, topic_id, Rules()), bounds=Bounds(topic_id, 0, 14, 14))
    commits = {at: Commit(Committed(5), None)}
    stored = {
        "whole": GroupOffsets(
            {"readers": commits}, share={"shared": {"clicks": uuid4()}, "former": {"orders": uuid4()}}
        ),
        "lacking": GroupOffsets({"readers": commits}, is_whole=False),
        "undecided": GroupOffsets({"readers": commits}, undecided={"readers": {at}}),
        "share": GroupOffsets({"readers": commits}, share={"shared": {"orders": topic_id}}),
        "streams": GroupOffsets({"readers": commits, "flow": {at: Commit(Committed(20), None)}}, streams={"flow"}),
    }
    for name, of in stored.items():
        report = found_groups(of, [re.compile(".*")], [one])
        assert report.is_whole is (name == "whole"), name
        assert report.offsets == {"readers": {at: Committed(5)}}
        named = {"share": [("shared", "it read orders-0")], "streams": [("flow", "it read orders-0 at offset 20")]}
        assert [(blocker.group, blocker.detail) for blocker in report.blockers] == named.get(name, [])
    assert found_groups(stored["share"], [re.compile("readers")], [one]).is_whole
