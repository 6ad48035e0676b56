"""Partitions copied from files by tasks of Spark: each one job of one task, as many at a time as there are slots.

A task reads its partition's files, and then mirrors with these files as its source: what it appends, and under
which numbers, is what a live task would. So a task may die and be tried again, a copy that was interrupted goes on, and
a live mirror goes on behind it.

A copy that is there is compared with the files first. What it lacks by the flow's journal, and the files have, is
reported: nothing is put back behind what follows it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark import SparkContext

from mirror import clock
from mirror.config import SparkSettings
from mirror.driver.scheduling import task_count
from mirror.errors import AccessDenied, ClusterError, ConfigError, EngineLost, MalformedBatch, PartitionStop, WireError
from mirror.journal.entries import loss_entry, starts_in
from mirror.journal.journal import Journal
from mirror.journal.offset_maps import OffsetMapStore
from mirror.journal.ownership import Owner, OwnershipCheck
from mirror.journal.positions import standing_in
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST, list_offset
from mirror.policy.remedies import set_configs
from mirror.policy.rules import NO_LIMIT
from mirror.replication.assignment import STANDING, TOMBSTONES, Assignment, KnownStop, Loss
from mirror.replication.observe import Observer
from mirror.replication.offset_map_recovery import resume_translated
from mirror.replication.pipeline import Pipeline
from mirror.replication.position import resume
from mirror.segments.file_cluster import FileCluster
from mirror.segments.replica import Replica
from mirror.segments.replica_sets import load
from mirror.segments.restore import UNLIMITED, Restored, deletes_by_age
from mirror.spark.compat import is_alive, rows_of
from mirror.spark.session import Engine, close_context, failure_text, open_context, slots_of
from mirror.states import State
from mirror.suspension import Clearance

#: Without an append for so many seconds a partition is given up: its target does not answer.
TIMEOUT: Final = 120.0
_POLL_SECONDS: Final = 0.5
_A_YEAR: Final = 365 * 86_400.0
#: How long a broker keeps tombstones unless set otherwise (`delete.retention.ms`).
_TOMBSTONES_MS: Final = 86_400_000
#: What is to be done where a copy is not joined by the files: the source, which a mirror's advice is about, is gone.
_ANOTHER_COPY: Final = "Nothing was written. To restore all the same, name another copy in topics.naming"
#: Why a copy lacks what the files have.
_WENT_ON: Final = "the flow went on behind them (reason {})"
_LACKS_MORE: Final = (
    "Nothing was written. Keep the copy: it may be all that is left of what these files lack. Name the folders of other"
    " brokers, too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """One partition to restore: where its replicas' folders are, and where it goes."""

    flow: str
    #: The name of the source cluster in the configuration.
    alias: str
    target: Endpoint
    assignment: Assignment
    #: Of the replicas of which one may be taken.
    folders: tuple[str, ...]
    #: The target topic's configurations.
    configs: Mapping[str, str]
    memory_bytes: int
    #: Bounds what all portions that are copied at a time read together; None if the flow has no bound.
    bytes_per_second: float | None = None
    #: Read every batch, and write nothing.
    dry_run: bool = False
    #: The target has the topic.
    is_there: bool = False
    #: The claim under which it is written: nothing more is once another one stands, or the flow was failed over.
    owner: Owner | None = None


def restored(portions: Iterable[Portion]) -> Iterator[Restored]:
    """For `RDD.mapPartitions`."""
    for portion in portions:
        try:
            log = load(map(Path, portion.folders))
        except ConfigError as problem:
            yield Restored(assignment=portion.assignment, at_risk=True, problem=str(problem))
            continue
        found = _checked(portion, log)
        if not (found.problem or (portion.dry_run and not portion.is_there)):
            found = asyncio.run((_foreseen if portion.dry_run else _copied)(portion, log, found))
        yield found


def _checked(portion: Portion, log: Replica) -> Restored:
    """What the files say, before anything is written; `problem` says why nothing may be."""
    problem = ""
    if log.start < log.stable and (limit := deletes_by_age(portion.configs, log.oldest_ms)):
        command = set_configs(portion.target, portion.assignment.target.topic, UNLIMITED)
        problem = f"{portion.assignment.target.topic} {limit}; nothing was written. Keep them first: {command}"
    return Restored(
        assignment=replace(portion.assignment, topic_id=log.topic_id, until=log.stable),
        start=log.start,
        stable=log.stable,
        end=log.end,
        folders=(str(log.folder),),
        notes=log.notes,
        at_risk=log.at_risk or bool(problem),
        problem=problem,
    )


async def _foreseen(portion: Portion, log: Replica, found: Restored) -> Restored:
    """What a copy that is on the target already would stop a restore for, and what it lacks."""
    logs = {found.assignment.source: log}
    async with FileCluster(portion.alias, logs) as source, Cluster(portion.target) as target:
        try:
            found = await _compared(portion, log, found, source, target)
        except (ClusterError, WireError, MalformedBatch) as problem:
            return replace(found, at_risk=True, problem=f"the copy cannot be looked at: {problem}")
    if (stop := found.assignment.stop) is not None:
        return replace(found, at_risk=True, problem=f"the copy would be {stop.state}: {stop.detail}. {stop.advice}")
    return found


async def _compared(portion: Portion, log: Replica, found: Restored, source: FileCluster, target: Cluster) -> Restored:
    """What is known once the copy was compared with the files: its assignment has the losses that the journal keeps of
    it, and the `stop` that it would come to. Raises as queries do.
    """
    journal = Journal(target, portion.flow)
    await target.refresh([journal.partition.topic, found.assignment.target.topic])
    records = await journal.newest() if journal.partition.topic in target.topics else {}
    standing, since = standing_in(records), starts_in(records, target).get(found.assignment.target, 0)
    mine = replace(standing.updated(found.assignment), since=since)
    ids = mine.topic_id, target.topic_id(mine.target.topic)
    accepted = (0, NO_LIMIT) if mine.rules.continues_on_loss else None
    if mine.stop is not None and mine.stop.state in STANDING and mine.stop.concerns(ids[1]):
        return replace(found, assignment=replace(mine, stop=replace(mine.stop, advice=_ANOTHER_COPY)))
    last = mine.last if mine.last is not None and mine.last.is_of(*ids) else None
    mine = replace(mine, last=last, stop=None)
    observer = Observer(portion.flow, source, mine.source, target, mine.target, accepted, since, last, mine.losses)
    try:
        if mine.rules.translates:
            recall = OffsetMapStore(journal, {}, None).recall
            position = (await resume_translated(observer, recall))[0]
        else:
            position = await resume(observer)
    except PartitionStop as stop:
        known = KnownStop(
            state=stop.state,
            offset=stop.offset,
            detail=stop.detail,
            advice=_LACKS_MORE if stop.state is State.TRUNCATED else _ANOTHER_COPY,
            source_topic_id=ids[0],
            target_topic_id=ids[1],
        )
        return replace(found, assignment=replace(mine, stop=known))
    before = [lost for lost in standing.losses.get(mine.target, {}).values() if lost.concerns(*ids)]
    if not position.is_empty:  # L4: what a copy has may have been deleted since
        kept_ms = _TOMBSTONES_MS if mine.tombstones_ms is None else mine.tombstones_ms
        mine = replace(mine, rules=replace(mine.rules, tombstones_ms=kept_ms))
    begins = min(position.last.begins if position.last is not None else 0, position.next_offset)
    ranges = [  # nothing can be put in front of a copy, nor into it
        (log.start, min(since, begins), f"the flow began at offset {since}"),
        (max(log.start, since), begins, "the target has deleted them"),
        *(
            (max(loss.first, log.start), min(loss.next_offset, position.next_offset), _WENT_ON.format(loss.reason))
            for loss in sorted(before, key=lambda loss: loss.first)
        ),
    ]
    lacking = [(first, min(until, log.stable), why) for first, until, why in ranges if first < min(until, log.stable)]
    return replace(
        found,
        assignment=mine,
        notes=(*found.notes, *(_lacks(*offsets) for offsets in lacking)),
        at_risk=found.at_risk or bool(lacking),
    )


def _lacks(first: int, until: int, why: str) -> str:
    """What is said of offsets, from and to before, that the files have and the copy cannot get any more."""
    return (
        f"the copy lacks offsets {first} to {until - 1}, which these files have: {why}. To have them, name another copy"
        " in topics.naming, and restore again"
    )


async def _compared_in_time(
    portion: Portion, log: Replica, found: Restored, source: FileCluster, target: Cluster
) -> Restored:
    """The same, asked again for a while: a topic that was made a moment ago may have no leader yet. What cannot be
    read, or asked at all, its task reports.
    """
    deadline = clock.monotonic() + TIMEOUT
    while True:
        try:
            return await _compared(portion, log, found, source, target)
        except (MalformedBatch, AccessDenied):
            return found
        except (ClusterError, WireError) as problem:
            if clock.monotonic() > deadline:
                return replace(found, at_risk=True, problem=f"the copy cannot be looked at: {problem}")
        await asyncio.sleep(_POLL_SECONDS)


async def _copied(portion: Portion, log: Replica, found: Restored) -> Restored:
    logs = {found.assignment.source: log}
    async with FileCluster(portion.alias, logs) as source, Cluster(portion.target) as target:
        journal = Journal(target, portion.flow)
        ownership = OwnershipCheck.of(portion.owner)
        if taken := await taken_over(ownership, journal):
            return replace(found, problem=taken)
        found = await _compared_in_time(portion, log, found, source, target)
        if found.problem:
            return found
        mine = found.assignment
        offset_maps = OffsetMapStore(journal, {}, None)

        missed: list[Loss] = []

        async def may_go_on() -> bool:  # behind a suspension, of which a journal that cannot be read says nothing
            return await ownership.lost(journal) is None

        async def on_loss(loss: Loss) -> None:
            await journal.append([loss_entry(loss)])
            missed.append(loss)

        pipeline = Pipeline(
            portion.flow,
            source,
            target,
            [mine],
            portion.memory_bytes,
            on_loss=on_loss,
            recall=offset_maps.recall,
            bytes_per_second=portion.bytes_per_second,
            may_go_on=may_go_on,
        )
        journal.clearance = Clearance(pipeline.detector, may_go_on)
        with contextlib.suppress(ClusterError, WireError):  # the pipeline waits for it, and says so
            await target.refresh([mine.target.topic])
        began = await _log_start(target, mine.target)
        tending = asyncio.create_task(_tend(pipeline, offset_maps, ownership, journal))
        try:
            await pipeline.run(_A_YEAR)
        finally:
            tending.cancel()
            await asyncio.wait([tending])
        problem = await taken_over(ownership, journal)
        try:
            await offset_maps.record()
        except (ClusterError, WireError) as lost:
            problem = _also(problem, f"where offsets moved to is not recorded: {lost}")
        (figures,) = pipeline.figures("restore")
        if any(loss.reason == TOMBSTONES for loss in missed):
            text = "keys that were deleted on the source may live on in the copy: it was behind for so long that these"
            found = replace(found, at_risk=True, notes=(*found.notes, f"{text} files may have no deletion of them"))
        begins = await _log_start(target, mine.target)
    if not mine.rules.translates:  # a new copy is made to begin where its files do
        began = max(began, min(log.start, log.stable))
    found = replace(found, figures=figures, problem=problem)
    if figures.next_offset <= began:  # nothing was copied that could be gone
        return found
    return _with_expired(found, began, begins)


def _with_expired(found: Restored, began: int, begins: int) -> Restored:
    """Add what the target has deleted since: its log began at offset `began`, and `begins` now (-1 if unknown)."""
    if begins < 0:
        unknown = "where the target's log begins is not known, so records may have been deleted since"
        return replace(found, at_risk=True, problem=_also(found.problem, unknown))
    if not 0 <= began < begins:
        return found
    gone = f"the target has deleted offsets {began} to {begins - 1} since; they cannot be put back at these offsets"
    return replace(found, at_risk=True, expired=begins - began, problem=_also(found.problem, gone))


def _also(problem: str, text: str) -> str:
    return f"{problem}; {text}" if problem else text


async def _log_start(cluster: Cluster, partition: TopicPartition) -> int:
    """The first offset of a partition; -1 where nobody says."""
    try:
        return await list_offset(cluster, partition, EARLIEST)
    except (ClusterError, WireError):
        return -1


async def taken_over(check: OwnershipCheck, journal: Journal) -> str:
    """Why nothing more may be written under a claim; the empty string where it may, as far as the journal can be read:
    whoever writes there reports what does not take records.
    """
    try:
        lost = await check.lost(journal)
    except (ClusterError, WireError, MalformedBatch):
        return ""
    if isinstance(lost, Owner):
        return f"a mirror ({lost}) took the flow over: end it, and restore again; what is there is not written twice"
    if lost is None:
        return ""
    return (
        f"the flow was failed over {lost} meanwhile: its target topics may be in use, so nothing more is written"
        " there. Where nobody has written to them, `mirror failover CONFIG --undo`, and restore again"
    )


async def _tend(pipeline: Pipeline, offset_maps: OffsetMapStore, ownership: OwnershipCheck, journal: Journal) -> None:
    """Record where offsets move to, and end what does not get on, what another owner took, or was failed over."""
    reached, since = -1, clock.monotonic()
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        with contextlib.suppress(ClusterError, WireError):  # tried again, and at the end once more
            await offset_maps.record()
        now = sum(figures.next_offset for figures in pipeline.figures("restore"))
        if now > reached:
            reached, since = now, clock.monotonic()
        elif clock.monotonic() - since > TIMEOUT:
            pipeline.finish()
        if await taken_over(ownership, journal):
            pipeline.finish()


def restore_on_spark(
    settings: SparkSettings, flow: str, portions: Sequence[Portion], done: Callable[[Restored], None]
) -> None:
    """Restore all portions; `done` is called with each as it ends.

    One that Spark gives up is that partition's problem, and the others go on. Raises ConfigError as `open_context`
    does, and EngineLost where Spark itself is gone.
    """
    context = open_context(settings, flow, task_count(settings.tasks, len(portions)))
    try:
        slots = slots_of(context, settings, len(portions))
        with Engine(context).watched(), ThreadPoolExecutor(slots, "restore") as threads:
            jobs = {threads.submit(_job, context, flow, _sharing(portion, slots)): portion for portion in portions}
            try:
                for job in as_completed(jobs):
                    for found in _rows(context, job, jobs[job]):
                        done(found)
            except BaseException:  # Ctrl-C as well: what waits would begin else
                threads.shutdown(wait=False, cancel_futures=True)
                with contextlib.suppress(Exception):  # a JVM that is gone runs none
                    context.cancelAllJobs()
                raise
    finally:
        close_context(context)


def _rows(context: SparkContext, job: Future[list[Restored]], portion: Portion) -> list[Restored]:
    """What a job gave, or why it did not. Raises EngineLost where Spark is gone."""
    try:
        return job.result()
    except Exception as failure:  # whatever Spark raises
        gave_up = f"Spark gave up {portion.assignment.source}: {failure_text(failure)}"
        if not is_alive(context):
            raise EngineLost(f"{gave_up}. Nothing is lost: start the restore again") from failure
        problem = f"{gave_up}. What is copied stays: start the restore again"
        return [Restored(assignment=portion.assignment, at_risk=True, problem=problem)]


def _sharing(portion: Portion, slots: int) -> Portion:
    """With the share of the bound that each of so many has that run at a time."""
    bound = portion.bytes_per_second
    return replace(portion, bytes_per_second=None if bound is None else bound / slots)


def _job(context: SparkContext, flow: str, portion: Portion) -> list[Restored]:
    """In a thread of its own: Spark's job properties belong to the thread that submits."""
    context.setJobGroup(f"mirror-restore-{flow}", f"restore {portion.assignment.source}", interruptOnCancel=True)
    found: list[Restored] = rows_of(context, [portion]).mapPartitions(restored).collect()
    return found
