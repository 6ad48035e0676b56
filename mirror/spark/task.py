"""What a Spark task does: mirror its partitions until its epoch ends, and return a result for each of them.

The rows that Spark moves are assignments and results; record batches go from socket to socket inside this process. A
task is crash-only: killed at any point, its next attempt finds the position in the target's log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice

from pyspark import TaskContext

from mirror.driver.control import ControlAddress, Voice, watch
from mirror.errors import ClusterError, FlowLost, MalformedBatch, WireError
from mirror.journal.entries import loss_entry
from mirror.journal.journal import Journal, JournalPlace
from mirror.journal.offset_maps import OffsetMapStore
from mirror.journal.ownership import OwnershipCheck
from mirror.journal.positions import Standing, StandingLog
from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, Endpoint, TopicPartition
from mirror.observability import logs
from mirror.observability.logs import LogOnce
from mirror.observability.status import NOT_OURS, PartitionStatus
from mirror.replication.assignment import Assignment, LastPosition, Loss
from mirror.replication.offset_map import OffsetRanges
from mirror.replication.partition_writer import PartitionCounters
from mirror.replication.pipeline import Pipeline
from mirror.suspension import Clearance

REPORT_SECONDS = 1.0
#: Rounds of reporting after which a partition that has not moved is reported again.
REPORT_ROUNDS = 10
#: Reports sent straight in one turn of the loop, which moves data as well.
_REPORTS_AT_ONCE = 100
#: How long the last report may take: where others wait for this task, and where it ended because all of its partitions
#: stopped. Nobody hears of these from its results before the other tasks' epoch is over.
LAST_WORD_SECONDS, STOPPED_SECONDS = 1.0, CALL_TIMEOUT
#: How long a task that begins waits for the journal, and the pause between reads of one that could not be read then.
GUARD_SECONDS, RETRY_SECONDS = 2.0, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAssignment:
    """One task's work for one epoch and those behind it in which it goes on: more partitions may join
    (`driver/control.py`). It ends on the stop mark, a retried attempt with all others, and at the latest `most_seconds`
    after its own start, or `seconds` where that is more, or where it does not reach its driver: clocks of machines
    differ, so no time of day is sent. `runs`: by target partition whose offsets move, the last ones that the journal
    has before `place`; that is None where all of it is to be read. `bytes_per_second` is the task's share of the flow's
    bound, None where it has none; `max_delay_ms` is as in the configuration. `claim`: the number of its driver's claim
    of the flow.
    """

    flow: str
    instance: str
    number: int
    source: Endpoint
    target: Endpoint
    assignments: tuple[Assignment, ...]
    seconds: float
    memory_bytes: int
    stop_mark: ControlAddress
    so_far: Mapping[TopicPartition, PartitionCounters]
    runs: Mapping[TopicPartition, OffsetRanges] = field(default_factory=dict)
    place: JournalPlace | None = None
    epoch: int = 0
    bytes_per_second: float | None = None
    max_delay_ms: int = 0
    claim: int = 0
    most_seconds: float = 0.0

    @property
    def journal_offset(self) -> int | None:
        """From where on the journal is to be read; None for all of it."""
        return None if self.place is None else self.place.offset


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What became of one partition in one epoch: where it stands, and the counters to go on from. `is_written`: the
    journal has that, too; it is on the target, which may have been away. `last`: the last position that is known to be
    acknowledged, which the journal may lack: it has those of partitions that began.
    """

    figures: PartitionStatus
    counters: PartitionCounters
    is_written: bool = True
    last: LastPosition | None = None


def relay(tasks: Iterable[TaskAssignment]) -> Iterator[TaskResult]:
    """For `RDD.mapPartitions`."""
    for task in tasks:
        yield from asyncio.run(run_task(task))


async def run_task(task: TaskAssignment) -> list[TaskResult]:
    """Run one task to its end; the results say where each partition stands."""
    async with Cluster(task.source) as source, Cluster(task.target) as target:
        journal = Journal(target, task.flow)

        async def on_loss(loss: Loss) -> None:
            await journal.append([loss_entry(loss)])

        offset_maps = OffsetMapStore(journal, task.runs, task.journal_offset)
        attempt, guard = _attempt(), _Guard(task, journal)
        pipeline = Pipeline(
            task.flow,
            source,
            target,
            await _known_now(task, journal) if attempt else task.assignments,
            task.memory_bytes,
            task.so_far,
            on_loss,
            offset_maps.recall,
            task.bytes_per_second,
            guard.may_go_on,
            task.max_delay_ms,
        )
        journal.clearance = Clearance(pipeline.detector, guard.may_go_on, at_first=True)
        channel = Voice()
        beside: list[asyncio.Task[None]] = []

        def end_unless_held() -> None:
            if channel.frames is None:  # its driver cannot end it later
                pipeline.finish()

        asyncio.get_running_loop().call_later(task.seconds, end_unless_held)

        def alone() -> None:
            beside.append(asyncio.create_task(guard.watch(pipeline.finish, REPORT_SECONDS)))

        marked = watch(task.stop_mark, task.number, pipeline.extend, pipeline.finish, channel, attempt, alone)
        try:
            async with asyncio.timeout(GUARD_SECONDS):
                may_begin = await journal.clearance.given()
        except (ClusterError, WireError, MalformedBatch, TimeoutError):
            may_begin = True  # partitions report that the target is away; the journal is written once that was asked
            beside.append(asyncio.create_task(guard.watch(pipeline.finish, RETRY_SECONDS)))
        if not may_begin:
            marked.cancel()
            await asyncio.wait([marked])
            return [TaskResult(status, PartitionCounters()) for status in pipeline.figures(task.instance)]
        reporter = _Reporter(task, pipeline, offset_maps, journal, channel)
        reporting = asyncio.create_task(reporter.report())
        try:
            await pipeline.run(max(task.seconds, task.most_seconds), task.seconds)
        finally:
            beside += [marked, reporting]
            for work in beside:
                work.cancel()
            await asyncio.wait(beside)
        if not reporting.cancelled():
            reporting.result()  # a fault in the program is raised, not swallowed
        return await reporter.results()


async def _known_now(task: TaskAssignment, journal: Journal) -> tuple[Assignment, ...]:
    """A task that is tried again learns what the attempt before wrote of its copies, unless the journal is away."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            await journal.cluster.refresh([journal.partition.topic])
            entries, _ = await journal.read(task.journal_offset)
    except (ClusterError, WireError, MalformedBatch, TimeoutError) as problem:
        logs.get("mirror.relay").warning("journal_not_read", flow=task.flow, reason=str(problem))
        return task.assignments
    known = Standing()
    for entry in entries:
        with contextlib.suppress(*NOT_OURS):
            known.learn(entry)
    return tuple(known.updated(assignment) for assignment in task.assignments)


@dataclass(slots=True, eq=False)
class _Guard:
    """Whether the task's driver still has the flow, by its journal: a task that Spark begins late, or again, must not
    write for a driver that is gone, nor to topics that were failed over.
    """

    task: TaskAssignment
    journal: Journal
    _ownership: OwnershipCheck = field(init=False)

    def __post_init__(self) -> None:
        self._ownership = OwnershipCheck(self.task.instance, self.task.claim, self.task.place)

    async def may_go_on(self) -> bool:
        """False where a failover stands, or somebody else claimed the flow since. Raises as `Journal.follow` does."""
        return await self._ownership.lost(self.journal) is None

    async def watch(self, finish: Callable[[], None], seconds: float) -> None:
        """Check again and again, and finish the task where it may not go on."""
        while True:
            await asyncio.sleep(seconds)
            with contextlib.suppress(ClusterError, WireError, MalformedBatch):
                if not await self.may_go_on():
                    finish()


@dataclass(frozen=True, slots=True, eq=False)
class _Reporter:
    """Reports how the partitions of a task stand."""

    task: TaskAssignment
    pipeline: Pipeline
    offset_maps: OffsetMapStore
    journal: Journal
    #: To the driver.
    channel: Voice
    standing: StandingLog = field(default_factory=StandingLog)

    async def report(self) -> None:
        """Report runs, positions and live figures every second, and when a partition stops: of those that moved and,
        now and then, of all.

        They go to the journal, where everybody finds them. It is on the target, which may be what is away: while it
        takes nothing, for a second or because it refuses, the driver gets them straight, so that it knows at once what
        waits.
        """
        log, pipeline, instance = logs.get("mirror.relay"), self.pipeline, self.task.instance
        written, straight, blockers = _Reported(), _Reported(), LogOnce()
        unwritten, turns = set[TopicPartition](), cycle(range(REPORT_ROUNDS))
        while True:
            with contextlib.suppress(TimeoutError):  # a stop is reported at once
                async with asyncio.timeout(REPORT_SECONDS):
                    await pipeline.stopped.wait()
            pipeline.stopped.clear()
            unwritten |= pipeline.touched()  # besides, each has its turn
            unwritten.update(islice(pipeline.partitions, next(turns), None, REPORT_ROUNDS))
            moved = written.moved(pipeline.figures(instance, unwritten))
            writing = asyncio.create_task(self._write(pipeline.positions(unwritten), moved))
            try:
                while not (await asyncio.wait([writing], timeout=REPORT_SECONDS))[0]:
                    await _send(self.channel, straight, pipeline.figures(instance))
                writing.result()
            except FlowLost:
                pipeline.finish()
            except (ClusterError, WireError, MalformedBatch) as problem:
                if blockers.is_new(problem):  # the data does not depend on it: say so, go on
                    log.warning("figures_not_written", flow=self.task.flow, reason=str(problem))
                await _send(self.channel, straight, pipeline.figures(instance))
            else:
                blockers.over()
                unwritten.clear()
                written.add(moved)
                straight.add(moved)  # the driver reads it in the journal
            finally:
                writing.cancel()  # it may be of an epoch that ends; and the last word is not to meet it
                await asyncio.wait([writing])

    async def results(self) -> list[TaskResult]:
        """Report for the last time, and return what became of each partition."""
        pipeline, is_written = self.pipeline, False
        all_counters, figures = pipeline.all_counters, pipeline.figures(self.task.instance)
        # The results carry the same figures to the driver, and runs are found again.
        with contextlib.suppress(ClusterError, WireError, TimeoutError):
            async with asyncio.timeout(LAST_WORD_SECONDS if pipeline.is_finishing else STOPPED_SECONDS):
                await self._write(pipeline.positions(pipeline.partitions), figures)
            is_written = True
        return [
            TaskResult(
                status,
                all_counters.get(status.source, PartitionCounters()),
                is_written,
                pipeline.last_of(status.source),
            )
            for status in figures
        ]

    async def _write(
        self, positions: list[tuple[TopicPartition, LastPosition]], figures: list[PartitionStatus]
    ) -> None:
        """Write runs first: a position must not cover more than they do. Where no partition moved, no request was
        worth sending of either.
        """
        task = self.pipeline.task_figures(self.task.instance, self.task.number, self.task.epoch, _attempt())
        stops = self.pipeline.stops()
        await self.offset_maps.record()
        entries = self.standing.changes(positions, stops)
        if figures:
            entries += [(task.key(), task.to_json()), *((status.key(), status.to_json()) for status in figures)]
        await self.journal.append_all(entries)
        self.standing.written(positions, stops)
        await self.pipeline.follow_log_starts(positions)


@dataclass(slots=True, eq=False)
class _Reported:
    """What was reported last of each partition, to somebody."""

    standing: dict[bytes, tuple[object, ...]] = field(default_factory=dict)
    in_round: dict[bytes, int] = field(default_factory=dict)
    rounds: int = 0

    def moved(self, figures: list[PartitionStatus]) -> list[PartitionStatus]:
        """Those that stand elsewhere since, or were not reported for so many rounds; first those that wait longest."""
        self.rounds += 1
        due = [
            status
            for status in figures
            if self.standing.get(status.key()) != _standing(status)
            or self.rounds - self.in_round[status.key()] >= REPORT_ROUNDS
        ]
        return sorted(due, key=lambda status: self.in_round.get(status.key(), 0))

    def add(self, figures: Iterable[PartitionStatus]) -> None:
        for status in figures:
            self.standing[status.key()], self.in_round[status.key()] = _standing(status), self.rounds


async def _send(channel: Voice, straight: _Reported, figures: list[PartitionStatus]) -> None:
    """Send the driver as much as it takes; what it does not take comes first the next time."""
    for count, status in enumerate(straight.moved(figures), start=1):
        if not channel.send(status.to_json()):
            return
        straight.add([status])
        if count % _REPORTS_AT_ONCE == 0:
            await asyncio.sleep(0)


def _standing(figures: PartitionStatus) -> tuple[object, ...]:
    return figures.state, figures.detail, figures.next_offset, figures.log_end


def _attempt() -> int:
    """Which one of Spark's attempts at its task this is."""
    context = TaskContext.get()  # None outside a Spark task
    return context.attemptNumber() if context else 0
