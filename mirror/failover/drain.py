"""A bounded copy by one task in this process: what a failover still gets over where no mirror runs.

Decision: without Spark. Its start takes eight seconds in which an application waits for its data; one task begins at
once, and copies as fast as the target's broker appends. It runs what a Spark task runs (`spark/task.py`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Sequence
from typing import Final

from mirror.driver.control import ControlAddress, ControlServer
from mirror.driver.flow import Flow
from mirror.driver.journal_state import JournalState
from mirror.driver.reports import Headway
from mirror.driver.start import bounded, recorded
from mirror.errors import MirrorError
from mirror.journal import ownership
from mirror.journal.entries import paused_in
from mirror.journal.journal import Journal
from mirror.journal.ownership import Owner
from mirror.journal.positions import Standing, standing_in
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.queries import EARLIEST
from mirror.observability.metrics import Metrics
from mirror.observability.status import PartitionStatus
from mirror.replication.assignment import Assignment
from mirror.spark.session import LOOPBACK
from mirror.spark.task import TaskAssignment, TaskResult, run_task

#: A stretch in which nothing moved is the last one.
STRETCH_SECONDS: Final = 10.0
WATCH_SECONDS: Final = 1.0


async def drain(flow: Flow, gone: Collection[str] = ()) -> list[str]:
    """Copy up to the source's ends of now, for as long as there is headway; tasks report to the journal how far. Topics
    that are paused are passed over, as a mirror does. It ends where another mirror takes the flow. `gone` are
    instances that are known to have ended. Returns what a person should know of topics that could not begin, which keep
    no other one from being copied, and of other mirrors.

    Raises PreflightError where a mirror runs, ClusterUnreachable, AccessDenied, BrokerError, MalformedBatch.
    """
    instance = uuid.uuid4().hex[:12]
    async with Cluster(flow.source) as source, Cluster(flow.target) as target:
        journal = Journal(target, flow.name)
        await asyncio.gather(
            source.refresh({a.source.topic for a in flow.assignments}),
            target.refresh({a.target.topic for a in flow.assignments} | {journal.partition.topic}),
        )
        taken = await ownership.take(journal, instance, asyncio.Event(), gone=gone)
        assert taken is not None, "nobody stops it"
        known = taken.seen.values
        paused = paused_in(known)
        active = [assignment for assignment in flow.assignments if assignment.source.topic not in paused]
        failures = dict[str, MirrorError]()
        begins = failures, flow.made, EARLIEST, flow.origins, flow.elsewhere
        begun = await recorded(source, journal, active, dict(known), *begins)
        assignments, _ = await bounded(source, flow.name, begun)
        standing = standing_in(known)
        notes = [f"{copy}: what was missing could not be copied: {why}" for copy, why in sorted(failures.items())]
        mark, ended = await ControlServer.open(LOOPBACK), asyncio.Event()

        def end() -> None:
            ended.set()
            mark.set()

        def taken_over(owner: Owner) -> None:
            notes.append(f"another mirror ({owner}) took the flow over, so that no more was copied here")
            end()

        journal_state = JournalState(
            flow.name,
            instance,
            taken_over,
            lambda _: end(),
            Metrics(flow.name),
            make_journal=flow.make_journal,
        )
        journal_state.begin(taken)
        journal.clearance = journal_state.clearance(journal)
        watching = asyncio.create_task(_watch(journal_state, journal))
        try:
            await _stretches(flow, taken.owner, assignments, journal, standing, mark.address, ended)
            if not ended.is_set():
                await journal_state.rewrite(journal)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            await mark.close()
        await ownership.sign_off(journal, instance)
        return notes


async def _watch(journal_state: JournalState, journal: Journal) -> None:
    while True:
        await journal_state.read(journal)
        await asyncio.sleep(WATCH_SECONDS)


async def _stretches(
    flow: Flow,
    owner: Owner,
    assignments: Sequence[Assignment],
    journal: Journal,
    standing: Standing,
    mark: ControlAddress,
    ended: asyncio.Event,
) -> None:
    """One task after another, each with what the last one left, until all is done or nothing moves."""
    results: dict[TopicPartition, TaskResult] = {}
    left, headway, moves = tuple(assignments), Headway(), True
    while left and moves and not ended.is_set():
        task = TaskAssignment(
            flow=flow.name,
            instance=owner.instance,
            claim=owner.claim or 0,
            number=0,
            source=flow.source,
            target=flow.target,
            assignments=tuple(map(standing.handed, left)),
            seconds=STRETCH_SECONDS,
            memory_bytes=flow.memory_bytes,
            bytes_per_second=flow.bytes_per_second,
            stop_mark=mark,
            so_far={partition: result.counters for partition, result in results.items()},
        )
        for task_result in await run_task(task):
            results[task_result.figures.source] = task_result
        moves = headway.made({partition: result.figures for partition, result in results.items()})
        left = tuple(
            a for a in left if a.source not in results or not _is_over(results[a.source].figures, a.until or 0)
        )
        if left:
            standing = standing_in(await journal.newest())


def _is_over(figures: PartitionStatus, until: int) -> bool:
    return figures.is_stopped or (figures.next_offset >= until and not figures.presumed)
