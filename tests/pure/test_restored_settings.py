"""What a restore sets on a copy, holds back and leaves, what is said of what is not whole, and of its jobs."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from rawbatches import batch
from replicas import replica

from mirror.config import SparkSettings
from mirror.errors import EngineLost
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.groups import Committed
from mirror.kafka.topic_configs import ConfigValue
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment
from mirror.segments.broker_messages import Commit
from mirror.segments.cluster_logs import GroupOffsets
from mirror.segments.restore import KEEPING, Restored, found_groups
from mirror.spark import restore
from mirror.spark.restore import Portion, restore_on_spark, restored
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


# --- jobs -------------------------------------------------------------------------------------------------------------


AT = [TopicPartition("orders", number) for number in range(6)]
PORTIONS = [
    Portion(
        flow="f",
        alias="a",
        target=Endpoint("b", ()),
        assignment=Assignment(source=at, target=at, topic_id=None, rules=Rules()),
        folders=(f"/disk/{at}",),
        configs={},
        memory_bytes=1,
    )
    for at in AT
]


class Jobs:
    """Stands for Spark with two slots: each partition's job is `work`, which ends when all are cancelled."""

    def __init__(self, patch: pytest.MonkeyPatch, work: Callable[[int], None]) -> None:
        self.began: list[int] = []
        self.cancelled = threading.Event()
        self.is_alive = True
        self._work = work
        context = SimpleNamespace(cancelAllJobs=self.cancelled.set)
        patch.setattr(restore, "open_context", lambda *_: context)
        patch.setattr(restore, "close_context", lambda _: None)
        patch.setattr(restore, "slots_of", lambda *_: 2)
        patch.setattr(restore, "is_alive", lambda _: self.is_alive)
        patch.setattr(restore, "Engine", lambda _: SimpleNamespace(watched=contextlib.nullcontext))
        patch.setattr(restore, "_job", self._job)

    def _job(self, _: Any, __: str, portion: Portion) -> list[Restored]:
        number = portion.assignment.source.partition
        self.began.append(number)
        self._work(number)
        return [Restored(assignment=portion.assignment)]

    def run(self, done: Callable[[Restored], None]) -> None:
        restore_on_spark(SparkSettings(), "f", PORTIONS, done)


def test_a_partition_whose_task_dies_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(number: int) -> None:
        if number == 1:
            raise RuntimeError("Python worker exited unexpectedly (crashed)")

    jobs, found = Jobs(monkeypatch, work), list[Restored]()
    jobs.run(found.append)
    problems = {one.assignment.source.partition: one.problem for one in found if one.problem}
    assert len(found) == len(AT)
    assert list(problems) == [1]
    assert "Spark gave up orders-1: Python worker exited unexpectedly" in problems[1]
    assert next(one for one in found if one.problem).at_risk
    jobs.is_alive = False
    with pytest.raises(EngineLost, match="Spark gave up orders-1"):
        jobs.run(found.append)


def test_ctrl_c_begins_no_partition_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(number: int) -> None:
        if number:
            jobs.cancelled.wait()

    def done(_: Restored) -> None:
        raise KeyboardInterrupt

    jobs = Jobs(monkeypatch, work)
    with pytest.raises(KeyboardInterrupt):
        jobs.run(done)
    assert jobs.cancelled.is_set()
    assert set(jobs.began) <= {0, 1, 2}


def test_a_partition_names_the_replica_that_was_taken(tmp_path: Path) -> None:
    folders = [str(replica(tmp_path / f"{end}", (0, batch(0, count=end)))) for end in (10, 20)]
    for named in (folders, folders[::-1]):
        (found,) = restored([replace(PORTIONS[0], folders=tuple(named), dry_run=True)])
        assert (found.folders, found.stable, found.at_risk) == ((folders[1],), 20, False)
