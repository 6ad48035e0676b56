"""Spark jobs with a task for each share of the partitions, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pyspark import SparkContext

from mirror import clock
from mirror.background import in_background
from mirror.driver.control import ControlAddress, ControlServer
from mirror.driver.flow import Flow
from mirror.driver.journal_state import JournalState
from mirror.errors import EngineLost
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.retry import Backoff
from mirror.observability import logs
from mirror.replication.assignment import Assignment
from mirror.replication.partition_writer import PartitionCounters
from mirror.spark.compat import rows_of
from mirror.spark.session import LOOPBACK, Engine, asked, failure_text, is_local, may_live
from mirror.spark.task import TaskAssignment, TaskResult, relay

# --- The tasks of an epoch, as Spark takes them to its workers --------------------------------------------------------


def tasks_for(
    flow: Flow,
    number: int,
    packed: Sequence[tuple[Assignment, ...]],
    rates: Sequence[float | None],
    all_counters: Mapping[TopicPartition, PartitionCounters],
    journal_state: JournalState,
) -> TasksFor:
    """Those of epoch `number`: `packed` are the assignments of each, `rates` what each may fetch. What the journal said
    up to now is as of now, whenever the epoch begins.
    """
    last, place = journal_state.runs.last(), journal_state.place

    def tasks(seconds: float, mark: ControlAddress) -> list[TaskAssignment]:
        return [
            TaskAssignment(
                flow=flow.name,
                instance=journal_state.instance,
                claim=journal_state.owner.claim or 0 if journal_state.owner else 0,
                number=index,
                source=flow.source,
                target=flow.target,
                assignments=task,
                seconds=seconds,
                most_seconds=LONGEST_SECONDS,
                memory_bytes=flow.memory_bytes // len(packed),
                stop_mark=mark,
                so_far={
                    assignment.source: all_counters[assignment.source]
                    for assignment in task
                    if assignment.source in all_counters
                },
                runs={assignment.target: last[assignment.target] for assignment in task if assignment.target in last},
                place=place,
                epoch=number,
                bytes_per_second=rates[index],
                max_delay_ms=flow.max_delay_ms,
            )
            for index, task in enumerate(packed)
        ]

    return tasks


# --- One epoch --------------------------------------------------------------------------------------------------------

#: Tasks go on from epoch to epoch for so long, while the plan stays what it is.
LONGEST_SECONDS: Final = 3600.0
#: What the tasks of an epoch whose time is over may take to end before its job is cancelled; and where they are asked
#: to end early.
GRACE_SECONDS: Final = 15.0
STOP_SECONDS: Final = 2.5
CANCEL_SECONDS: Final = 1.0
CANCELS: Final = 3
#: What a call to Spark's JVM may take.
CALL_SECONDS: Final = 10.0
#: Of a cluster, what tasks leave for re-key queries, as those of one machine have it beside them (`session.py`).
SPARE_CORES: Final = 2
#: Epochs in a row whose job may fail as a whole before the run ends, of a bounded copy and where none ever succeeded:
#: tasks that lack a module will lack it the next time, too. Once one has, what hinders them may pass.
FAILED_EPOCHS: Final = 3
#: Seconds until a job that failed is tried again, the first time and at the most.
FAILED_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0

#: What may join an epoch beside the partitions that it began with, for which its tasks shared out memory and work.
JOINING: Final = 1 / 8

#: The tasks of an epoch of so many seconds, or until its stop mark is set.
TasksFor = Callable[[float, ControlAddress], Sequence[TaskAssignment]]
#: Given what each task has: True if the tasks of an epoch that is over are to go on in the next one.
GoesOn = Callable[[Sequence[Collection[TopicPartition]]], Awaitable[bool]]
#: Given a task's number, its report, and the partitions that it has.
HearOf = Callable[[int, bytes, Collection[TopicPartition]], None]

_log = logs.get("mirror.supervisor")


def deaf(_task: int, _report: bytes, _held: Collection[TopicPartition]) -> None:
    """Where nobody watches but by the journal."""


async def _ends(_held: Sequence[Collection[TopicPartition]]) -> bool:
    """Have each epoch begin with new tasks."""
    return False


@dataclass(slots=True, eq=False)
class UnderWay:
    """The epoch that runs: what each task has, by its number, and of how many partitions more it takes."""

    mark: ControlServer
    tasks: list[set[TopicPartition]]
    room: int

    @classmethod
    def of(cls, mark: ControlServer, tasks: Sequence[TaskAssignment]) -> UnderWay:
        """As it begins."""
        held = [{assignment.source for assignment in task.assignments} for task in tasks]
        return cls(mark, held, int(JOINING * sum(map(len, held))))

    async def join(self, more: Sequence[Assignment]) -> bool:
        """Each goes to the task that has fewest, unless one has it already. False where not all are taken."""
        more = [assignment for assignment in more if not any(assignment.source in task for task in self.tasks)]
        if len(more) > self.room:
            return False
        self.room -= len(more)
        shares: dict[int, list[Assignment]] = {}
        for one in more:
            number = min(range(len(self.tasks)), key=lambda task: len(self.tasks[task]))
            self.tasks[number].add(one.source)
            shares.setdefault(number, []).append(one)
        return all(await asyncio.gather(*(self.mark.hand(number, tuple(of)) for number, of in shares.items())))


@dataclass(slots=True, eq=False)
class Epochs:
    """Runs the epochs of a flow; `stopping` ends the one under way. `on_failure` is called with a job that failed, and
    `hear` gets what tasks send straight. `goes_on` is asked when an epoch's time is over.
    """

    context: SparkContext
    flow: str
    seconds: float
    stopping: asyncio.Event
    on_failure: Callable[[], None]
    hear: HearOf = deaf
    goes_on: GoesOn = _ends
    is_bounded: bool = False
    #: A job was given up without having been seen to end, so its tasks may still write.
    may_run_on: bool = field(default=False, init=False)
    engine: Engine = field(init=False)
    _where: tuple[str, str] = field(init=False)
    _failed: int = 0
    _backoff: Backoff = field(init=False)
    _has_succeeded: bool = False
    _slots: int = 1
    _under_way: UnderWay | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """What is asked of Spark's JVM is asked before the event loop runs."""
        conf = self.context.getConf()
        host = conf.get("spark.driver.host") or LOOPBACK
        self._where = conf.get("spark.driver.bindAddress") or host, host
        self.engine, self._backoff = Engine(self.context), Backoff(FAILED_PAUSE, LONGEST_PAUSE)

    async def slots(self, wanted: int, *, is_shared: bool = False) -> int:
        """Of the tasks wanted, as many as can run at a time now: a cluster's executors come and go, and a task that
        waits for another to end would get nothing done. `is_shared`: re-key queries need cores, too, which a task holds
        for a whole epoch.
        """
        if is_local(self.context):
            return wanted
        with contextlib.suppress(TimeoutError):  # as many as the last time
            self._slots = await asked(lambda: int(self.context.defaultParallelism), CALL_SECONDS)
        spare = min(SPARE_CORES, self._slots // 2) if is_shared else 0
        return max(1, min(wanted, self._slots - spare))

    async def join(self, more: Sequence[Assignment]) -> bool:
        """Let the epoch under way mirror these partitions as well; false where there is none, where they are many
        beside its own, or where a task does not take them.
        """
        return self._under_way is not None and await self._under_way.join(more)

    async def run(self, number: int, tasks_for: TasksFor) -> list[TaskResult]:
        """One job; no results where it failed as a whole. One that Spark has no cores for is no failure: a cluster's
        executors may take minutes to come. None where the epoch is to end before it began: the journal as it is known
        by then may say that the flow was lost, and tasks look only at what comes after that.

        Raises EngineLost where Spark is gone, or the first `FAILED_EPOCHS` jobs failed.
        """
        mark = await ControlServer.open(*self._where, self._heard)
        try:
            if self.stopping.is_set():
                return []
            return await self._run(number, tasks_for(self.seconds, mark.address), mark)
        finally:
            await mark.close()

    async def _run(self, number: int, tasks: Sequence[TaskAssignment], mark: ControlServer) -> list[TaskResult]:
        self._under_way = UnderWay.of(mark, tasks)
        job: asyncio.Future[Any] = asyncio.ensure_future(in_background(partial(self._job, number, tasks)))
        job.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # one that ends late
        stopping: asyncio.Future[Any] = asyncio.create_task(self.stopping.wait())
        is_starved = False
        try:
            ends = [job, stopping]
            until = clock.monotonic() + LONGEST_SECONDS
            while not (await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=self.seconds))[0]:
                is_held = mark.reached.issuperset(range(len(tasks)))  # a task that is not, ends by itself
                if not is_held or clock.monotonic() + self.seconds > until:
                    break
                if not await self.goes_on(self._under_way.tasks):
                    break
                self._went_well()
            mark.set()
            if not stopping.done():
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=GRACE_SECONDS)
            await asyncio.wait([job], timeout=STOP_SECONDS)
            if not job.done():
                is_starved = not mark.was_reached
                reason = "no task has begun: Spark has no core for it" if is_starved else "tasks did not end in time"
                _log.warning("epoch_cancelled", flow=self.flow, epoch=number, reason=reason)
                for _ in range(CANCELS):  # a job that is not submitted yet is not cancelled by that
                    cancel = partial(self.context.cancelJobGroup, self._group(number))  # re-key queries go on
                    try:
                        await asked(cancel, CANCEL_SECONDS)
                    except TimeoutError:  # the JVM hangs, and will not cancel a second time either
                        self.may_run_on = True
                        break
                    if (await asyncio.wait([job], timeout=CANCEL_SECONDS))[0]:
                        break
                else:
                    self.may_run_on = True
            results: list[TaskResult] = job.result()
            self._went_well()
            return results
        except Exception as failure:  # whatever Spark raises: the job is lost, the data is not
            if is_starved and await may_live(self.context):
                return []
            if not self.stopping.is_set():  # else it was cut short, by us
                await self._count_failure(number, failure)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._backoff.next()):
                        await self.stopping.wait()
            return []
        finally:
            self._under_way = None
            stopping.cancel()

    def _went_well(self) -> None:
        """Forget the jobs that failed before."""
        self._failed, self._has_succeeded = 0, True
        self._backoff.reset()

    def _heard(self, task: int, report: bytes) -> None:
        held = self._under_way.tasks if self._under_way is not None else []
        self.hear(task, report, held[task] if task < len(held) else ())

    def _group(self, number: int) -> str:
        return f"mirror-{self.flow}-epoch-{number}"

    def _job(self, number: int, tasks: Sequence[TaskAssignment]) -> list[TaskResult]:
        """In a thread of its own: Spark's job properties belong to the thread that submits."""
        self.engine.mend_scratch()
        self.context.setJobGroup(self._group(number), f"{self.flow}: epoch {number}, {len(tasks)} tasks", True)
        results: list[TaskResult] = rows_of(self.context, tasks).mapPartitions(relay).collect()
        return results

    async def _count_failure(self, number: int, failure: Exception) -> None:
        if not await may_live(self.context):
            raise EngineLost("Spark's JVM died. Nothing is lost: start the mirror again") from failure
        self._failed += 1
        self.on_failure()
        _log.error("epoch_failed", flow=self.flow, epoch=number, reason=failure_text(failure), in_a_row=self._failed)
        if self._failed >= FAILED_EPOCHS and (self.is_bounded or not self._has_succeeded):
            raise EngineLost(
                f"the jobs of {FAILED_EPOCHS} epochs in a row failed, the last one with: {failure_text(failure)}."
                " Nothing is lost: mend that, and start the mirror again"
            ) from failure
