"""What a restore makes of its jobs: Spark's are played here."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rawbatches import batch
from replicas import replica

from mirror.config import SparkSettings
from mirror.errors import EngineLost
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.policy.rules import Rules
from mirror.replication.assignment import Assignment
from mirror.segments.restore import Restored
from mirror.spark import restore
from mirror.spark.restore import Portion, restore_on_spark, restored

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
