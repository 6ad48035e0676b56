"""The story, one page: raw batches come from the fetcher, get their verdict, and go to the writer.

    for raw in fetcher:
        verdict = classify(raw.header, rules)
        writer.carry_out(verdict, raw)

Batches that go as they are stored take the short way (`Pipeline._carry`), all others the long one. Around that loop
each partition has a partition task. It finds the position in the target's log, starts fetcher and writer there, and
sleeps; when the writer is no longer sure what was appended, the partition task reads the position again and starts
over. A partition that must not go on stops in a named state while the others run. Nothing is cleaned up and nothing is
remembered: a task may die at any point.

    L1  a task ends when its time is over, on the stop mark, or when every partition is done or stopped; then it waits
        for acks, not for data
    L2  what a result counts was acknowledged
    L3  a task that was suspended asks whether it may go on before any of its partitions does
    L4  where a compacted source has a hole behind what was copied when the copy last had all, and that is longer ago
        than the source keeps tombstones, the copy may lack deletions: that goes on record as a loss before what follows
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Final

from mirror import clock
from mirror.errors import (
    AccessDenied,
    BadRecords,
    ClusterError,
    ClusterUnreachable,
    MalformedBatch,
    PartitionStop,
    WireError,
)
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.queries import LATEST, delete_records, listed
from mirror.kafka.rate_limit import Bucket
from mirror.kafka.retry import Backoff
from mirror.observability.status import PartitionStatus, TaskStatus
from mirror.records.header import RawBatch
from mirror.records.recipe import opened_by
from mirror.records.transactions import Aborted
from mirror.replication.assignment import (
    TOMBSTONES,
    Assignment,
    KnownStop,
    LastPosition,
    Loss,
    OnLoss,
    log_loss,
)
from mirror.replication.classifier import Action, Verdict, classify
from mirror.replication.cursor import Arrival, Cursor
from mirror.replication.damage import Damaged, may_take_more
from mirror.replication.fetcher import Fetcher
from mirror.replication.offset_map_recovery import Recall, unrecorded
from mirror.replication.partition_task import Event, PartitionTask
from mirror.replication.partition_writer import PartitionCounters, PartitionWriter, Unwritable
from mirror.replication.position import DAMAGED, located
from mirror.replication.start import Start, stop_for
from mirror.replication.startup_limiter import StartupLimiter
from mirror.replication.writer import Writer
from mirror.states import State
from mirror.suspension import Clearance, always

DRAIN_SECONDS: Final = 2.0
#: Bytes of batches that fetcher and writer may each hold of one partition, at least and at most.
_LEAST_SHARE, _LARGEST_SHARE = 64 * 1024, 4 * 1024 * 1024
#: The part of a task's memory that batches may take; the rest is for what answers are read into and requests sent from.
_BATCHES: Final = 2 / 3
#: Seconds between two checks of who leads the target's partitions, and how much more for each of them; and how often
#: meanwhile the connections to those leaders are checked, which costs no request.
_LEADERS_SECONDS, _SECONDS_A_LEADER, _CHECKS = 10.0, 0.005, 10
#: Seconds between two beats of the detector by which a suspension is noticed.
_BEAT_SECONDS: Final = 1.0
#: How many partitions find their positions at a time, and for how many seconds one keeps its turn.
_BEGIN_AT_ONCE, _BEGIN_TURN = 32, 0.5


class Pipeline:
    """The partitions of one task between two clusters."""

    def __init__(
        self,
        flow: str,
        source: Cluster,
        target: Cluster,
        assignments: Sequence[Assignment],
        memory_bytes: int,
        so_far: Mapping[TopicPartition, PartitionCounters] | None = None,
        on_loss: OnLoss | None = None,
        recall: Recall = unrecorded,
        bytes_per_second: float | None = None,
        may_go_on: Callable[[], Awaitable[bool]] = always,
        max_delay_ms: int = 0,
    ) -> None:
        """`memory_bytes` bounds what is held of batches; `so_far` are the counters to go on counting from; `on_loss` is
        called with records that were lost, before the mirror goes on behind them, and may raise ClusterError;
        `recall` gives the offset maps of partitions whose offsets move; `bytes_per_second` bounds what is fetched.
        `may_go_on` is asked once the process was suspended (L3), and may raise ClusterError and WireError. A record may
        wait for others for `max_delay_ms`.
        """
        share = min(_LARGEST_SHARE, max(_LEAST_SHARE, memory_bytes // (3 * max(1, len(assignments)))))
        self._flow, self._source, self._target = flow, source, target
        self._on_loss = on_loss
        self._partition_tasks = {assignment.source: PartitionTask(assignment) for assignment in assignments}
        self._tasks = asyncio.TaskGroup()
        self._keeping: list[asyncio.Task[None]] = []
        self._has_begun = False
        self._moved = asyncio.Event()
        self._touched = set(self._partition_tasks)
        self.stopped = asyncio.Event()  # set at each stop
        self.is_finishing = False
        self._writer = Writer(target, self._changed, self._spawn, share, opened_by(memory_bytes))
        self.detector = self._writer.detector
        self._clearance = Clearance(self.detector, may_go_on)
        self._writer.may_go = lambda: not self._clearance.is_due
        self._writer.all_counters.update(deepcopy(dict(so_far or {})))
        bucket = Bucket(bytes_per_second) if bytes_per_second else None
        self._held = held = int(memory_bytes * _BATCHES)
        self._fetcher = Fetcher(
            source,
            self._writer.room,
            self._spawn,
            share,
            bucket,
            held,
            self._writer.holds,
            max_delay_ms / 1000,
            self._carry,
        )
        self._start = Start(flow, source, target, self._writer, self._fetcher, on_loss, recall)

    async def run(self, seconds: float, look_seconds: float = float("inf")) -> None:
        """Mirror for `seconds` by this machine's own clock, until `finish`, or until the end of the work (L1). Each
        `look_seconds` look whether somebody else wrote to a copy at rest.

        A cluster that cannot be reached is not an error here: its partitions say that they wait.
        """
        # Once for all partitions; a partition task that lacks its leader asks again, and reports it.
        with contextlib.suppress(ClusterError):
            await asyncio.gather(
                self._source.refresh({a.source.topic for a in self._assignments}),
                self._target.refresh({a.target.topic for a in self._assignments}),
            )
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._callback_failed)
        try:
            await self._mirror(loop, seconds, look_seconds)
        finally:
            loop.set_exception_handler(None)  # there is no task left to report a fault

    async def _mirror(self, loop: asyncio.AbstractEventLoop, seconds: float, look_seconds: float) -> None:
        async with self._tasks:
            timer = loop.call_later(seconds, self.finish)
            self._keeping += [self._spawn(self._watch_leaders()), self._spawn(self._watch_for_suspensions())]
            if look_seconds < seconds:
                self._keeping.append(self._spawn(self._watch_ends(look_seconds)))
            self._begin_all(self._partition_tasks.values())
            async for arrival in self._fetcher:
                await self._relay(arrival)
                self._relayed(arrival)
            timer.cancel()
            self._writer.finish()
            for keeping in self._keeping:
                keeping.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._drained()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A coroutine whose failure ends the task: a fault in the program is raised, not swallowed."""
        return self._tasks.create_task(work)

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "handle" in context:

            async def fail() -> None:
                raise context["exception"]

            self._spawn(fail())
        else:
            loop.default_exception_handler(context)

    def _begin_all(self, partition_tasks: Iterable[PartitionTask]) -> None:
        """Those that come later do not wait for the turns of those before them."""
        self._has_begun = True
        turns = StartupLimiter(_BEGIN_AT_ONCE, _BEGIN_TURN)
        self._keeping += [self._spawn(self._keep(partition_task, turns)) for partition_task in partition_tasks]

    def extend(self, assignments: Iterable[Assignment]) -> bool:
        """Mirror these partitions as well, but for those that are mirrored here; false where the task is ending."""
        if self._fetcher.is_finished:
            return False
        more = {
            assignment.source: PartitionTask(assignment, is_new=False)
            for assignment in assignments
            if assignment.source not in self._partition_tasks
        }
        self._partition_tasks |= more
        self._touched |= more.keys()
        if self._has_begun:  # else they begin with the others
            self._begin_all(more.values())
        return True

    async def _watch_for_suspensions(self) -> None:
        """Ask whether a process that was suspended may go on (L3), and doubt all partitions where that was for long
        (W13): each reads its position again.
        """
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            if self._clearance.is_due:
                self._writer.check_leaders()
                with contextlib.suppress(ClusterError, WireError):  # asked again: nothing is sent until then
                    await self._awake()
                    self._writer.flush()

    async def _awake(self) -> int:
        """How often the process was suspended by now. Raises ClusterUnreachable where it may not go on (L3), and as
        `may_go_on` does.
        """
        if not await self._clearance.given():
            self.finish()
            raise ClusterUnreachable(f"{self._target}: the flow is not this mirror's any more")
        return self.detector.suspensions

    async def _watch_leaders(self) -> None:
        """A partition of the target whose leader changed while nothing was sent may have lost what was acknowledged:
        its position is read again (W11). A leader of the source that lost its controllers answers as if all were well.
        """
        while True:
            for _ in range(_CHECKS):
                await asyncio.sleep((_LEADERS_SECONDS + len(self._partition_tasks) * _SECONDS_A_LEADER) / _CHECKS)
                self._writer.check_leaders()
            with contextlib.suppress(ClusterError):  # whoever sends gets the error
                await self._target.refresh()
                self._writer.check_leaders()
            await self._fetcher.refresh()

    async def _watch_ends(self, seconds: float) -> None:
        """Read the position of a copy at rest again whose log has grown: somebody else writes to it (W4)."""
        while True:
            await asyncio.sleep(seconds)
            writers = (partition_task.partition_writer for partition_task in self._partition_tasks.values())
            resting = {
                writer.target: (writer, writer.acknowledged.target_end)
                for writer in writers
                if writer is not None and writer.is_idle and not writer.doubt
            }
            with contextlib.suppress(ClusterError):  # whoever sends gets the error
                for target, end in (await listed(self._target, resting.keys(), LATEST)).items():
                    writer, known = resting[target]
                    if writer.is_idle and end > known == writer.acknowledged.target_end:
                        self._writer.doubt(writer, f"the target's log ends at {end}, and the copy at {known}")

    def touched(self) -> set[TopicPartition]:
        """Return the source partitions that may stand elsewhere than at the last call: all but those that had all then,
        and of which nothing was heard since.
        """
        touched, self._touched = self._touched, set()
        return touched | {
            source for source, partition_task in self._partition_tasks.items() if not partition_task.is_at_rest
        }

    def positions(self, partitions: Iterable[TopicPartition]) -> list[tuple[TopicPartition, LastPosition]]:
        """By target partition, the last acknowledged positions of source partitions, for the journal."""
        tasks = map(self._partition_tasks.__getitem__, partitions)
        known = (
            (partition_task.assignment.target, partition_task.position)
            for partition_task in tasks
            if partition_task.partition_writer is not None
        )
        return [(target, last) for target, last in known if last is not None]

    async def follow_log_starts(self, recorded: Iterable[tuple[TopicPartition, LastPosition]]) -> None:
        """Delete from copies what their sources have deleted, where that is asked for, up to the positions that are on
        record: whoever reads both logs after a kill finds no more missing than that. What fails is noted.
        """
        positions = dict(recorded)

        async def follow(partition_task: PartitionTask, partition_writer: PartitionWriter, begin: int) -> None:
            target = partition_task.assignment.target
            try:
                await delete_records(self._target, target, begin, partial(self._writer.check, partition_writer))
            except (ClusterError, WireError) as problem:
                partition_task.add_note(f"the copy keeps what its source deleted (sync.log_start): {problem}")
            else:
                partition_task.followed = begin

        due = [
            follow(partition_task, partition_writer, begin)
            for partition_task in self._partition_tasks.values()
            if (partition_writer := partition_task.partition_writer) is not None
            and (begin := partition_task.log_start(positions.get(partition_task.assignment.target))) >= 0
        ]
        await asyncio.gather(*due)

    def last_of(self, source: TopicPartition) -> LastPosition | None:
        """The last position of a partition that is known to be acknowledged, whether or not it was begun here."""
        partition_task = self._partition_tasks[source]
        if partition_task.target_topic_id is None:  # it may not have met the target
            return partition_task.assignment.last
        return partition_task.position

    def stops(self) -> dict[TopicPartition, KnownStop | None]:
        """By target partition, stops that stand from now on, and None for what stood and does no longer."""
        met = {
            partition_task.assignment.target: partition_task.stop
            for partition_task in self._partition_tasks.values()
            if partition_task.stop is not None
        }
        return {
            partition_task.assignment.target: None
            for partition_task in self._partition_tasks.values()
            if partition_task.lifted
        } | met

    def finish(self) -> None:
        """Take nothing more from the source; what is under way is still acknowledged."""
        self.is_finishing = True
        self._end()

    def _end(self) -> None:
        self._fetcher.finish()
        self._moved.set()

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The source partitions of the task, always in the same order."""
        return self._partition_tasks.keys()

    def figures(self, instance: str, partitions: Iterable[TopicPartition] | None = None) -> list[PartitionStatus]:
        """Report where source partitions stand now, or all of them."""
        now, counters = clock.now_ms(), self._writer.all_counters
        return [
            self._partition_tasks[source].figures(
                self._flow, instance, now, counters.get(source) or PartitionCounters()
            )
            for source in (self._partition_tasks if partitions is None else partitions)
        ]

    def task_figures(self, instance: str, task: int, epoch: int, attempt: int) -> TaskStatus:
        """How long requests took since this task began."""
        return TaskStatus(
            instance=instance,
            task=task,
            epoch=epoch,
            attempt=attempt,
            at_ms=clock.now_ms(),
            fetch=self._fetcher.took.copy(),
            produce=self._writer.took.copy(),
            source_throttled_ms=round(self._fetcher.throttled_s * 1000),
            target_throttled_ms=round(self._writer.throttled_s * 1000),
        )

    @property
    def all_counters(self) -> Mapping[TopicPartition, PartitionCounters]:
        """What was acknowledged for each source partition (L2)."""
        return self._writer.all_counters

    @property
    def _assignments(self) -> list[Assignment]:
        return [partition_task.assignment for partition_task in self._partition_tasks.values()]

    def _carry(self, cursor: Cursor, batches: tuple[RawBatch, ...]) -> bool:
        """Queue plain batches, as nearly all are; false where one does not go as it is stored, or may not go yet. Then
        all of them are relayed, which passes over those that were queued.
        """
        partition_task = self._partition_tasks[cursor.partition]
        partition_writer = partition_task.partition_writer
        if cursor is not partition_task.cursor or partition_writer is None or not partition_writer.takes_plain:
            return False
        next_offset = partition_writer.tail.next_offset
        if batches[0].header.base_offset != next_offset or next_offset > partition_task.read_until:
            return False
        for raw in batches:
            verdict = classify(raw.header, partition_writer.rules, next_offset=partition_writer.tail.next_offset)
            if verdict.action is not Action.RESTAMP:
                return False
            partition_writer.append(raw, verdict)
        partition_task.reads(batches, cursor)
        self._touched.add(cursor.partition)
        self._writer.queue(partition_writer)
        self._writer.flush()
        return True

    async def _relay(self, arrival: Arrival) -> None:
        """The heart: verdict by verdict, one partition's part of a fetch answer."""
        cursor = arrival.cursor
        self._touched.add(cursor.partition)
        partition_task = self._partition_tasks[cursor.partition]
        partition_writer = partition_task.partition_writer
        if cursor is not partition_task.cursor or partition_writer is None:
            return
        until = cursor.until if cursor.is_done and cursor.unrelayed == 1 else None
        if until is None and arrival.hole_until >= 0:
            until = arrival.hole_until
        if arrival.trouble and until is None:
            partition_task.waits(arrival.trouble)
            if arrival.astray:
                self._writer.doubt(partition_writer, arrival.trouble)
            return
        if arrival.lost is not None:
            await self._lose(partition_task, partition_writer, arrival.lost)
            return
        hole = partition_task.reads(arrival.batches, cursor, until)
        if hole >= 0 and not await self._miss_tombstones(partition_task, partition_writer, hole):
            return
        try:
            aborted = Aborted(arrival.aborted)
            for raw in arrival.batches:
                verdict = classify(
                    raw.header,
                    partition_writer.rules,
                    next_offset=partition_writer.tail.due,
                    aborted=aborted.covers(raw),
                )
                for together in partition_writer.tail.coalescer.offer(verdict, raw):
                    if not await self._carry_out(partition_task, partition_writer, *together):
                        return
            if cursor.has_all or arrival.stop or until is not None:
                for together in partition_writer.tail.coalescer.rest():
                    if not await self._carry_out(partition_task, partition_writer, *together):
                        return
            if arrival.stop:
                raise arrival.stop
            if until is not None and not partition_writer.doubt:  # compaction may have taken what was before it
                self._writer.fill(until, partition_writer)
        except BadRecords as damage:
            self._stop(partition_task, stop_for(partition_task, State.CORRUPT, str(damage), *DAMAGED))
        except PartitionStop as stop:
            self._stop(partition_task, stop)
        self._writer.flush()

    async def _carry_out(
        self,
        partition_task: PartitionTask,
        partition_writer: PartitionWriter,
        verdict: Verdict,
        raws: tuple[RawBatch, ...],
    ) -> bool:
        """Carry out a verdict; false where nothing may follow, since the partition writer was replaced or the task
        ends.

        Rewriting takes time and memory. Behind each batch that is made, what is ready goes out and acks come in. Where
        more is held than the task may, the next one waits for acks of this partition, and the others with it. Records
        that cannot be written are left out where that is allowed. Raises PartitionStop.
        """
        while raws:
            try:
                for _ in self._writer.carrying_out(verdict, raws, partition_writer):
                    self._writer.flush()
                    await asyncio.sleep(0)
                    while self._writer.room(partition_writer.source) < 0 and self._writer.holds() > self._held:
                        if self._fetcher.is_finished:
                            break
                        self._moved.clear()
                        await self._moved.wait()
                    if partition_writer is not partition_task.partition_writer or self._fetcher.is_finished:
                        return False
            except Unwritable as stop:
                if not partition_task.may_leave_out(stop.loss):
                    raise
                if stop.loss.reason == "too_large" and await self._may_take_more(partition_task, partition_writer):
                    raise
                if not await self._leave_out(partition_task, partition_writer, stop.loss):
                    return False
                raws = tuple(raw for raw in raws if raw.header.next_offset > partition_writer.tail.next_offset)
            else:
                break
        return True

    async def _may_take_more(self, partition_task: PartitionTask, partition_writer: PartitionWriter) -> bool:
        """Whether a record that is too large by the rules may soon not be; nothing follows where that is not known."""
        assignment = partition_task.assignment
        try:
            return await may_take_more(
                self._source, assignment.source.topic, self._target, assignment.target.topic, assignment.rules
            )
        except (ClusterError, WireError) as problem:
            self._writer.doubt(partition_writer, str(problem))
            return False

    async def _leave_out(self, partition_task: PartitionTask, partition_writer: PartitionWriter, loss: Loss) -> bool:
        """Go on behind records that are not mirrored, once the loss is on record; false where nothing may follow. None
        goes on record of a partition writer in doubt: what comes behind it may copy them.
        """
        if not partition_task.goes_on_with(partition_writer):
            return False
        try:
            if self._on_loss is not None:
                await self._on_loss(
                    replace(
                        loss,
                        topic_id=partition_task.assignment.topic_id,
                        target_topic_id=partition_writer.premises.topic_id,
                    )
                )
        except (ClusterError, WireError) as problem:
            self._writer.doubt(partition_writer, str(problem))
        if not partition_task.goes_on_with(partition_writer):
            return False
        partition_task.leaves_out(loss)
        self._writer.lose(loss, partition_writer)
        return True

    async def _lose(self, partition_task: PartitionTask, partition_writer: PartitionWriter, damaged: Damaged) -> None:
        """Go on behind a batch that is damaged in the source, as soon as the loss is on record."""
        assignment = partition_task.assignment
        loss = Loss(assignment.source, assignment.target, damaged.first, damaged.next_offset, "damage", damaged.detail)
        try:
            for together in partition_writer.tail.coalescer.rest():
                if not await self._carry_out(partition_task, partition_writer, *together):
                    return
            await self._leave_out(partition_task, partition_writer, loss)
        except PartitionStop as stop:
            self._stop(partition_task, stop)
        self._writer.flush()

    async def _miss_tombstones(
        self, partition_task: PartitionTask, partition_writer: PartitionWriter, hole: int
    ) -> bool:
        """Put on record that tombstones may have gone from a hole before they were read (L4); false where nothing may
        follow, since that is not on record.
        """
        assignment = partition_task.assignment
        loss = Loss(
            assignment.source,
            assignment.target,
            hole,
            hole,
            TOMBSTONES,
            "",
            assignment.topic_id,
            partition_writer.premises.topic_id,
        )
        try:
            if self._on_loss is not None:
                await self._on_loss(loss)
        except (ClusterError, WireError) as problem:
            self._writer.doubt(partition_writer, str(problem))
            return False
        partition_task.tombstones.may_lack = True  # not before: the hole is found again where it is not on record
        log_loss(loss)
        return partition_task.goes_on_with(partition_writer)

    def _relayed(self, arrival: Arrival) -> None:
        cursor = arrival.cursor
        cursor.unrelayed -= 1
        partition_task = self._partition_tasks[cursor.partition]
        if partition_task.partition_writer is not None and partition_task.cursor is cursor and not arrival.trouble:
            self._changed(partition_task.partition_writer)

    async def _keep(self, partition_task: PartitionTask, turns: StartupLimiter) -> None:
        backoff = Backoff()
        while not partition_task.finished:
            try:
                async with turns.taken():
                    await self._begin(partition_task)
            except PartitionStop as stop:
                self._stop(partition_task, stop)
            except MalformedBatch as damage:
                self._stop(partition_task, self._start.damaged(partition_task, damage))
            except AccessDenied as denied:
                self._stop(partition_task, self._start.denied(partition_task, denied))
            except (ClusterError, WireError) as problem:
                partition_task.waits(str(problem))
                await asyncio.sleep(backoff.next())
            else:
                before = (
                    partition_task.partition_writer.acknowledged.source_next if partition_task.partition_writer else 0
                )
                await partition_task.rests.wait()
                if (
                    partition_task.partition_writer
                    and partition_task.partition_writer.acknowledged.source_next > before
                ):
                    backoff.reset()
                    partition_task.doubts = 0
                await asyncio.sleep(backoff.next())

    async def _begin(self, partition_task: PartitionTask) -> None:
        """Find the position, and start reading and writing there."""
        self._changed(await self._start.start(partition_task, await self._awake()))

    def _changed(self, partition_writer: PartitionWriter) -> None:
        """An ack, a doubt or a stop: whatever follows from it."""
        self._moved.set()
        self._touched.add(partition_writer.source)
        partition_task = self._partition_tasks[partition_writer.source]
        cursor = partition_task.cursor
        if partition_task.partition_writer is not partition_writer or cursor is None:
            return
        if (doubt := partition_writer.doubt) is not None and doubt.stop is not None:
            self._stop(partition_task, doubt.stop)
        elif doubt is not None:
            partition_task.process(Event.DOUBT)
            if not partition_task.finished:
                partition_task.waits(doubt.why)
            self._fetcher.stop(partition_writer.source)
            if partition_writer.flight.is_quiet:
                partition_task.process(Event.QUIET)
        elif not partition_task.finished:
            while (loss := partition_writer.passed) is not None:
                log_loss(loss)
            # a position behind the source's end is none
            caught_up = (
                cursor.log.written_until >= partition_writer.acknowledged.source_next >= cursor.log.readable_until >= 0
            )
            partition_task.state, partition_task.detail = (State.CAUGHT_UP if caught_up else State.MIRRORING), ""
            has_all = cursor.until is not None and partition_writer.acknowledged.source_next >= cursor.until
            if has_all and not cursor.unrelayed and partition_writer.is_idle:
                partition_task.state = State.CAUGHT_UP
                partition_task.process(Event.END)
                self._fetcher.stop(partition_writer.source)
        self._fetcher.nudge()
        if partition_task.finished:
            self._finish_when_done()

    def _stop(self, partition_task: PartitionTask, stop: PartitionStop) -> None:
        self._touched.add(partition_task.assignment.source)
        partition_task.stopped(located(stop, self._source, self._target, partition_task.assignment.target.topic))
        self.stopped.set()
        self._fetcher.stop(partition_task.assignment.source)
        self._finish_when_done()

    def _finish_when_done(self) -> None:
        if all(partition_task.is_done for partition_task in self._partition_tasks.values()):
            self._end()

    async def _drained(self) -> None:
        while not all(
            partition_task.partition_writer is None or partition_task.partition_writer.is_idle
            for partition_task in self._partition_tasks.values()
        ):
            self._moved.clear()
            await self._moved.wait()
