"""What a restore sets on a copy, holds back and leaves, and what is said of groups and files that are not whole."""

from __future__ import annotations

import re
from uuid import uuid4

from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import Committed
from mirror.kafka.topic_configs import ConfigValue
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment
from mirror.segments.broker_messages import Commit
from mirror.segments.cluster_logs import GroupOffsets
from mirror.segments.restore import KEEPING, Restored, found_groups
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


def test_files_that_end_before_what_a_group_had_read_are_not_whole() -> None:
    """The records were committed, whatever a checkpoint of the high watermark, which may be older, says."""
    at = TopicPartition("orders", 0)
    one = Restored(assignment=Assignment(at, at, None, Rules()), stable=14, end=14)
    for offset, is_whole in ((14, True), (15, False)):
        stored = GroupOffsets({"readers": {at: Commit(Committed(offset), None)}})
        report = found_groups(stored, [re.compile(".*")], [one])
        assert (report.is_whole, len(report.beyond)) == (is_whole, not is_whole)


def test_what_the_files_lack_of_groups_is_not_whole() -> None:
    """Offsets that nobody can read, those of a transaction without an end, and groups that no commit puts anywhere."""
    at, topic_id = TopicPartition("orders", 0), uuid4()
    one = Restored(assignment=Assignment(at, at, topic_id, Rules()), stable=14, end=14)
    commits = {at: Commit(Committed(5), None)}
    stored = {
        "whole": GroupOffsets({"readers": commits}),
        "lacking": GroupOffsets({"readers": commits}, is_whole=False),
        "undecided": GroupOffsets({"readers": commits}, undecided={"readers": {at}}),
        "streams": GroupOffsets({"readers": commits, "flow": {at: Commit(Committed(20), None)}}, streams={"flow"}),
    }
    for name, of in stored.items():
        report = found_groups(of, [re.compile(".*")], [one])
        assert report.is_whole is (name == "whole"), name
        assert report.offsets == {"readers": {at: Committed(5)}}
        named = {"streams": [("flow", "it read orders-0 at offset 20")]}
        assert [(blocker.group, blocker.detail) for blocker in report.blockers] == named.get(name, [])
    assert found_groups(stored["streams"], [re.compile("readers")], [one]).is_whole
