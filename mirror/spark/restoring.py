"""Partitions copied from files by tasks of Spark: each one job of one task, as many at a time as there are slots.

A task looks its partition's files over, and then is a lane whose source is these files: what it appends, and under
which numbers, is what a live lane would. So a task may die and be tried again, a copy that was interrupted goes on, and
a live mirror goes on behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark import SparkContext

from mirror.assignment import Assignment
from mirror.config import SparkSettings
from mirror.errors import ClusterError, ConfigError, EngineLost, WireError
from mirror.observe.figures import Figures
from mirror.offsets.journal import Journal
from mirror.offsets.ledgers import Ledgers
from mirror.pipeline import Pipeline
from mirror.reading.archive import PartitionLog, load
from mirror.reading.shelf import Shelf
from mirror.spark.plan import task_count
from mirror.spark.session import close_context, first_line, open_context, slots_of
from mirror.wire.cluster import Cluster, Endpoint

#: Without an append for so many seconds a partition is given up: its target does not answer.
PATIENCE: Final = 120.0
_LOOK_SECONDS: Final = 0.5
_A_YEAR: Final = 365 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """One partition to restore: where its replicas' folders are, and where it goes. `bytes_per_second` bounds what all
    that are copied at a time read together; None where the flow has no bound.
    """

    flow: str
    alias: str
    target: Endpoint
    assignment: Assignment
    folders: tuple[str, ...]
    memory_bytes: int
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What became of a partition. `start`, `stable` and `end` are offsets of what its files hold, `notes` what is
    to be said of them; `figures` is None where there was nothing to begin with, and `problem` says why.
    """

    assignment: Assignment
    start: int = 0
    stable: int = 0
    end: int = 0
    folders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    at_risk: bool = False
    figures: Figures | None = None
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """All that is readable as committed is on the target."""
        return self.figures is not None and not self.figures.state.is_stop and self.figures.next_offset >= self.stable


def restored(portions: Iterable[Portion]) -> Iterator[Restored]:
    """For `RDD.mapPartitions`."""
    for portion in portions:
        try:
            log = load(map(Path, portion.folders))
        except ConfigError as problem:
            yield Restored(assignment=portion.assignment, folders=portion.folders, at_risk=True, problem=str(problem))
            continue
        yield asyncio.run(_copied(portion, log))


async def _copied(portion: Portion, log: PartitionLog) -> Restored:
    mine = replace(portion.assignment, topic_id=log.topic_id, until=log.stable)
    async with Shelf(portion.alias, {mine.source: log}) as source, Cluster(portion.target) as target:
        ledgers = Ledgers(Journal(target, portion.flow), {}, None)
        pipeline = Pipeline(
            portion.flow,
            source,
            target,
            [mine],
            portion.memory_bytes,
            recall=ledgers.recall,
            bytes_per_second=portion.bytes_per_second,
        )
        tending = asyncio.create_task(_tend(pipeline, ledgers))
        try:
            await pipeline.run(time.time() + _A_YEAR)
        finally:
            tending.cancel()
            await asyncio.wait([tending])
        problem = ""
        try:
            await ledgers.record()
        except (ClusterError, WireError) as lost:
            problem = f"where offsets moved to is not recorded: {lost}"
        (figures,) = pipeline.figures("restore")
    return Restored(
        assignment=mine,
        start=log.start,
        stable=log.stable,
        end=log.end,
        folders=tuple(map(str, log.folders)),
        notes=log.notes,
        at_risk=log.at_risk,
        figures=figures,
        problem=problem,
    )


async def _tend(pipeline: Pipeline, ledgers: Ledgers) -> None:
    """Record where offsets move to, and end what does not get on."""
    reached, since = -1, time.monotonic()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        with contextlib.suppress(ClusterError, WireError):  # tried again, and at the end once more
            await ledgers.record()
        now = sum(figures.next_offset for figures in pipeline.figures("restore"))
        if now > reached:
            reached, since = now, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            pipeline.finish()


def restore_on_spark(
    settings: SparkSettings, flow: str, portions: Sequence[Portion], done: Callable[[Restored], None]
) -> None:
    """Restore all portions; `done` is told of each as it ends.

    Raises ConfigError as `open_context` does, and EngineLost where Spark gives a portion up.
    """
    context = open_context(settings, flow, task_count(settings.lanes, len(portions)))
    try:
        slots = slots_of(context, settings, len(portions))
        with ThreadPoolExecutor(slots, "restore") as threads:
            jobs = {threads.submit(_job, context, flow, _sharing(portion, slots)): portion for portion in portions}
            try:
                for job in as_completed(jobs):
                    for found in job.result():
                        done(found)
            except Exception as failure:  # whatever Spark raises
                threads.shutdown(wait=False, cancel_futures=True)
                context.cancelAllJobs()
                at = jobs[job].assignment.source
                text = f"Spark gave up {at}: {first_line(failure)}. Nothing is lost: start the restore again"
                raise EngineLost(text) from failure
    finally:
        close_context(context)


def _sharing(portion: Portion, slots: int) -> Portion:
    """With the share of the bound that each of so many has that run at a time."""
    bound = portion.bytes_per_second
    return replace(portion, bytes_per_second=None if bound is None else bound / slots)


def _job(context: SparkContext, flow: str, portion: Portion) -> list[Restored]:
    """In a thread of its own: Spark's job properties belong to the thread that submits."""
    context.setJobGroup(f"mirror-restore-{flow}", f"restore {portion.assignment.source}", interruptOnCancel=True)
    found: list[Restored] = context.parallelize([portion], 1).mapPartitions(restored).collect()
    return found
