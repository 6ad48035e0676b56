"""The mirror as a process of its own that may be killed: tasks as a Spark task runs them, no Spark.

Processes are forked from one that has imported the mirror already, as Spark's workers are from `mirror.spark.daemon`,
so that one begins within milliseconds. Each claims the journal, reads the source's ends, and runs task after task until
all that it was asked for is mirrored or stopped, as the supervisor does for `mirror run --once`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from forking import Forked
from waiting import DEADLINE_S

from mirror.driver.control import ControlServer
from mirror.driver.flow import Flow
from mirror.errors import ClusterError, WireError
from mirror.journal import positions
from mirror.journal.journal import OWNER, Journal
from mirror.journal.ownership import Owner
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.queries import LATEST, READ_COMMITTED, list_offset
from mirror.observability.status import PartitionStatus
from mirror.replication import fetcher, writer
from mirror.replication.partition_writer import PartitionCounters
from mirror.spark import task
from mirror.spark.task import TaskAssignment, TaskResult
from mirror.states import State

from .points import Strike, arm

#: Imported before the fork: what the mirror needs, the compiled code, and nothing with threads.
PRELOADED: Final = (
    "mirror.spark.task",
    "mirror.replication.log_start",
    "mirror.records.rewrite",
)
EPOCH_SECONDS: Final = 5.0
#: How long an answer is waited for: a request whose answer is lost is then found out in seconds, not in minutes.
TIMEOUT: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one process is to do."""

    flow: Flow
    strike: Strike | None
    report: Path
    log: Path


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one partition stood when a process ended."""

    state: State
    next_offset: int
    until: int
    detail: str

    @property
    def is_copied(self) -> bool:
        """All that was asked for is mirrored."""
        return self.next_offset >= self.until and not self.state.is_stop


class Mirror(Forked):
    """One process. `report` is empty where it was killed."""

    def __init__(self, flow: Flow, folder: Path, strike: Strike | None = None) -> None:
        """Start it; its report and its log go to `folder`."""
        name = uuid.uuid4().hex[:8]
        report, log = folder / f"{name}.json", folder / f"{name}.log"
        self._work = Work(flow=flow, strike=strike, report=report, log=log)
        super().__init__(PRELOADED, _main, self._work)

    @property
    def log(self) -> str:
        """What it wrote."""
        return self._work.log.read_text() if self._work.log.exists() else ""

    @property
    def report(self) -> dict[TopicPartition, Standing]:
        """Where each partition stood at the end."""
        if not self._work.report.exists():
            return {}
        output: list[Any] = json.loads(self._work.report.read_text())
        return {
            TopicPartition(topic, partition): Standing(State(state), next_offset, until, detail)
            for topic, partition, state, next_offset, until, detail in output
        }


def _main(work: Work) -> None:
    with work.log.open("w", buffering=1) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        if work.strike:
            arm(work.strike)
        fetcher.FETCH_TIMEOUT = TIMEOUT  # type: ignore[misc] # only how long one waits
        writer.ANSWER_TIMEOUT = TIMEOUT  # type: ignore[misc] # the same
        found = asyncio.run(_mirrored(work))
        scratch = work.report.with_suffix(".part")
        scratch.write_text(json.dumps(found))
        scratch.replace(work.report)
        sys.stdout.flush()


async def _mirrored(work: Work) -> list[tuple[Any, ...]]:
    flow, deadline = work.flow, time.time() + DEADLINE_S
    instance = uuid.uuid4().hex[:12]
    await _patiently(lambda: _claimed(flow, instance), deadline)
    ends: dict[TopicPartition, int] = await _patiently(lambda: _ends(flow), deadline)
    assignments = tuple(replace(one, until=ends[one.source]) for one in flow.assignments)
    figures: dict[TopicPartition, PartitionStatus] = {}
    all_counters: dict[TopicPartition, PartitionCounters] = {}
    while time.time() < deadline:
        left = tuple(one for one in assignments if not _is_over(figures.get(one.source), one.until or 0))
        if not left:
            break
        answer = await _patiently(lambda: _standing(flow), deadline)
        left = tuple(answer.handed(one) for one in left)
        until = min(deadline, time.time() + EPOCH_SECONDS)
        for result in await _epoch(work, instance, left, until, all_counters):
            at = TopicPartition(result.figures.topic, result.figures.partition)
            figures[at], all_counters[at] = result.figures, result.counters
    return [(*at, str(one.state), one.next_offset, ends[at], one.detail) for at, one in figures.items()]


async def _epoch(
    work: Work,
    instance: str,
    assignments: tuple[Any, ...],
    deadline: float,
    all_counters: Mapping[TopicPartition, PartitionCounters],
) -> list[TaskResult]:
    flow = work.flow
    mark = await ControlServer.open("127.0.0.1")
    try:
        return await task.run_task(  # by its module, where a point may have wrapped it
            TaskAssignment(
                flow=flow.name,
                instance=instance,
                number=0,
                source=flow.source,
                target=flow.target,
                assignments=assignments,
                seconds=max(0.0, deadline - time.time()),
                memory_bytes=flow.memory_bytes,
                stop_mark=mark.address,
                so_far=all_counters,
            )
        )
    finally:
        await mark.close()


async def _standing(flow: Flow) -> positions.Standing:
    """What the journal says of the copies, as a driver hands it to a task."""
    async with Cluster(flow.target) as target:
        return positions.standing_in(await Journal(target, flow.name).newest())


async def _claimed(flow: Flow, instance: str) -> None:
    async with Cluster(flow.target) as target:
        elsewhere = replace(Owner.here(instance), host="tests")  # so that nobody looks at its process
        await Journal(target, flow.name).append([(OWNER, elsewhere.to_json())])


async def _ends(flow: Flow) -> dict[TopicPartition, int]:
    async with Cluster(flow.source) as source:
        return {one.source: await list_offset(source, one.source, LATEST, READ_COMMITTED) for one in flow.assignments}


async def _patiently(ask: Any, deadline: float) -> Any:
    """Ask until there is an answer: whoever starts a mirror by hand would try again, too."""
    while True:
        try:
            return await ask()
        except (ClusterError, WireError):
            if time.time() > deadline:
                raise
            await asyncio.sleep(0.2)


def _is_over(figures: PartitionStatus | None, until: int) -> bool:
    return figures is not None and (figures.state.is_stop or figures.next_offset >= until)
