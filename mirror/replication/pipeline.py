"""The story, one page: raw batches come from the fetcher, get their verdict, and go to the writer.

    for raw in fetcher:
        verdict = classify(raw.header, rules)
        writer.carry_out(verdict, raw)

Around that loop each partition has a partition task. It finds the position in the target's log, starts fetcher and
writer there, and sleeps; when the writer is no longer sure what was appended, the partition task reads the position
again and starts over. A partition that must not go on stops in a named state while the others run. Nothing is cleaned
up and nothing is remembered: a task may die at any point.

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
    NotAuthenticated,
    PartitionStop,
    WireError,
)
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.queries import delete_records, replicated_end, resting_end
from mirror.kafka.rate_limit import Bucket
from mirror.kafka.retry import Backoff
from mirror.observability import logs
from mirror.observability.status import PartitionStatus, TaskStatus
from mirror.policy.remedies import grant_named
from mirror.policy.rules import NO_LIMIT
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
    outside,
)
from mirror.replication.classifier import Verdict, classify
from mirror.replication.cursor import Arrival, Cursor
from mirror.replication.damage import Damaged, may_take_more
from mirror.replication.fetcher import Fetcher
from mirror.replication.offset_map import OffsetMap
from mirror.replication.offset_map_recovery import Recall, resume_translated, unrecorded
from mirror.replication.partition_task import PartitionTask
from mirror.replication.partition_writer import PartitionCounters, PartitionWriter, Unwritable, stamped
from mirror.replication.position import DAMAGED, Position, corrupt, located, resume
from mirror.replication.startup_limiter import StartupLimiter
from mirror.replication.topic_identity import other_topic, recreated, what_became_of
from mirror.replication.writer import IN_FLIGHT, Writer
from mirror.states import Remedy, State
from mirror.suspension import Clearance, always

DRAIN_SECONDS: Final = 2.0
DOUBTFUL_TRIES: Final = 3
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
        self._on_loss, self._recall = on_loss, recall
        self._partition_tasks = {assignment.source: PartitionTask(assignment) for assignment in assignments}
        self._tasks = asyncio.TaskGroup()
        self._keeping: list[asyncio.Task[None]] = []
        self._has_begun = False
        self._moved = asyncio.Event()
        self._touched = set(self._partition_tasks)
        self.stopped = asyncio.Event()  # set at each stop
        self.is_finishing = False
        self._writer = Writer(target, self._changed, self._spawn, share)
        self.detector = self._writer.detector
        self._clearance = Clearance(self.detector, may_go_on)
        self._writer.may_go = lambda: not self._clearance.is_due
        self._writer.all_counters.update(deepcopy(dict(so_far or {})))
        bucket = Bucket(bytes_per_second) if bytes_per_second else None
        self._held = held = int(memory_bytes * _BATCHES)
        self._opens = opened_by(memory_bytes)
        self._fetcher = Fetcher(
            source, self._writer.room, self._spawn, share, bucket, held, self._writer.holds, max_delay_ms / 1000
        )

    async def run(self, seconds: float) -> None:
        """Mirror for `seconds` by this machine's own clock, until `finish`, or until the end of the work (L1).

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
            await self._mirror(loop, seconds)
        finally:
            loop.set_exception_handler(None)  # there is no task left to report a fault

    async def _mirror(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        async with self._tasks:
            timer = loop.call_later(seconds, self.finish)
            self._keeping += [self._spawn(self._watch_leaders()), self._spawn(self._watch_for_suspensions())]
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
            one.source: PartitionTask(one, is_new=False)
            for one in assignments
            if one.source not in self._partition_tasks
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

    def touched(self) -> set[TopicPartition]:
        """Return the source partitions that may stand elsewhere than at the last call: all but those that had all then,
        and of which nothing was heard since.
        """
        touched, self._touched = self._touched, set()
        return touched | {at for at, one in self._partition_tasks.items() if not one.is_at_rest}

    def positions(self, partitions: Iterable[TopicPartition]) -> list[tuple[TopicPartition, LastPosition]]:
        """By target partition, the last acknowledged positions of source partitions, for the journal."""
        tasks = map(self._partition_tasks.__getitem__, partitions)
        known = ((one.assignment.target, one.position) for one in tasks if one.partition_writer is not None)
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
        one = self._partition_tasks[source]
        return one.assignment.last if one.target_topic_id is None else one.position  # it may not have met the target

    def stops(self) -> dict[TopicPartition, KnownStop | None]:
        """By target partition, stops that stand from now on, and None for what stood and does no longer."""
        met = {one.assignment.target: one.stop for one in self._partition_tasks.values() if one.stop is not None}
        return {one.assignment.target: None for one in self._partition_tasks.values() if one.lifted} | met

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
            self._partition_tasks[at].figures(self._flow, instance, now, counters.get(at) or PartitionCounters())
            for at in (self._partition_tasks if partitions is None else partitions)
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
                    raw.header, partition_writer.rules, next_offset=partition_writer.due, aborted=aborted.covers(raw)
                )
                for together in partition_writer.coalescer.offer(verdict, raw):
                    if not await self._carry_out(partition_task, partition_writer, *together):
                        return
            if cursor.has_all or arrival.stop or until is not None:
                for together in partition_writer.coalescer.rest():
                    if not await self._carry_out(partition_task, partition_writer, *together):
                        return
            if arrival.stop:
                raise arrival.stop
            if until is not None and not partition_writer.in_doubt:  # compaction may have taken what was before it
                self._writer.fill(until, partition_writer)
        except BadRecords as damage:
            self._stop(partition_task, self._stop_for(partition_task, State.CORRUPT, str(damage), *DAMAGED))
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
                raws = tuple(raw for raw in raws if raw.header.next_offset > partition_writer.next_offset)
            else:
                break
        return True

    async def _may_take_more(self, partition_task: PartitionTask, partition_writer: PartitionWriter) -> bool:
        """Whether a record that is too large by the rules may soon not be; nothing follows where that is not known."""
        mine = partition_task.assignment
        try:
            return await may_take_more(self._source, mine.source.topic, self._target, mine.target.topic, mine.rules)
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
                        loss, topic_id=partition_task.assignment.topic_id, target_topic_id=partition_writer.topic_id
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
        mine = partition_task.assignment
        loss = Loss(mine.source, mine.target, damaged.first, damaged.next_offset, "damage", damaged.detail)
        try:
            for together in partition_writer.coalescer.rest():
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
        mine = partition_task.assignment
        loss = Loss(mine.source, mine.target, hole, hole, TOMBSTONES, "", mine.topic_id, partition_writer.topic_id)
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
                self._stop(partition_task, self._damaged(partition_task, damage))
            except AccessDenied as denied:
                self._stop(partition_task, self._denied(partition_task, denied))
            except (ClusterError, WireError) as problem:
                partition_task.waits(str(problem))
                await asyncio.sleep(backoff.next())
            else:
                before = partition_task.partition_writer.acked if partition_task.partition_writer else 0
                await partition_task.in_doubt.wait()
                if partition_task.partition_writer and partition_task.partition_writer.acked > before:
                    backoff.reset()
                    partition_task.doubts = 0
                await asyncio.sleep(backoff.next())

    async def _begin(self, partition_task: PartitionTask) -> None:
        """Find the position, and start reading and writing there."""
        mine, former = partition_task.assignment, partition_task.partition_writer
        suspensions = await self._awake()
        partition_task.meets(self._target.topic_id(mine.target.topic))
        if (known := partition_task.standing_stop()) is not None:
            raise known
        if became := await self._what_became_of(partition_task):
            at = await replicated_end(self._target, mine.target)
            if mine.rules.translates:  # there are other offsets
                at = (await self._recall(mine.target, at)).runs.next_source
            raise recreated(mine.source, at, became)
        node, session = await self._writer.session(mine.target)
        partition_task.meets(self._target.topic_id(mine.target.topic))
        if mine.target_topic_id not in (None, partition_task.target_topic_id):  # the gate has not seen this one yet
            what = "the topic was deleted and created again; the mirror looks at the new one before it writes to it"
            raise ClusterUnreachable(f"{self._target}: {mine.target}: {what}")
        if former is not None and len(former.unconfirmed) > IN_FLIGHT:
            await resting_end(self._target, mine.target)  # W2
        position, offset_map = await self._position(partition_task)
        target_lost, found_end = position.target_lost, position.end  # what is padded from here on is our own
        cut_off = former.cut_off if former is not None else None
        made = partial(
            PartitionWriter,
            mine.source,
            mine.target,
            rules=partition_task.cuts(cut_off),
            opens=self._opens,
            suspensions=suspensions,
            session=session,
            topic_id=partition_task.target_topic_id,
            suspect=former.suspect if former is not None else None,
            cut_off=None if cut_off is None or cut_off.is_too_large else cut_off,
        )
        gone = await self._gone(partition_task, position)
        while position.begin >= 0:
            await self._align(partition_task, made(position))
            position, offset_map = await self._position(partition_task)
            gone = gone or await self._gone(partition_task, position)
        if self._target.leader(mine.target).node != node:
            raise ClusterUnreachable(f"{self._target}: {mine.target}: the leader moved while the position was read")
        partition_writer = made(position, offset_map=offset_map)
        self._writer.check(partition_writer)
        if former is not None:
            self._follows(former, partition_writer, partition_task, found_end)
        if target_lost is not None:
            self._target_lost(partition_task, target_lost, gone, position.lost_until)
        if position.lost_until >= 0:
            await self._lose_until(partition_task, position, partition_writer, "target" if target_lost else "retention")
        partition_task.in_doubt.clear()
        partition_task.partition_writer, partition_task.last = partition_writer, None
        partition_task.cursor = Cursor(
            mine.source,
            mine.topic_id,
            partition_writer.next_offset,
            position.last_epoch,
            mine.until,
            log_start=position.log_start,
        )
        partition_task.cursor.skips = (0, NO_LIMIT) if mine.rules.skips_damage else mine.accepted
        partition_task.resumed(
            position.next_offset,
            partition_writer.next_offset,
            is_empty=position.is_empty,
            was_cut=target_lost is not None,
        )
        self._writer.begin(partition_writer)
        self._fetcher.start(partition_task.cursor)
        self._writer.flush()
        self._changed(partition_writer)

    def _follows(
        self, former: PartitionWriter, partition_writer: PartitionWriter, partition_task: PartitionTask, end: int
    ) -> None:
        """Let a partition writer take the place of one in doubt, whose fate the end of the log decides. Raises
        PartitionStop where somebody else wrote, and where it was the doubt of too many in a row.
        """
        partition_task.sent = max(partition_task.sent, former.sent)
        if end > partition_task.sent:
            detail = f"the log ends at {end}, this mirror wrote up to {partition_task.sent}"
            raise partition_writer.contended(partition_writer.position.next_offset, detail)
        self._writer.resolve(former, end)
        partition_task.doubts += former.doubtful
        if partition_task.doubts >= DOUBTFUL_TRIES:
            raise self._stop_for(partition_task, State.REFUSED, former.in_doubt, Remedy.SEE_BROKER)

    async def _lose_until(
        self, partition_task: PartitionTask, position: Position, partition_writer: PartitionWriter, reason: str
    ) -> None:
        """Pass over what the source has no more, once that is on record."""
        mine = partition_task.assignment
        loss = Loss(mine.source, mine.target, position.next_offset, position.lost_until, reason)
        if self._on_loss is not None:
            await self._on_loss(replace(loss, topic_id=mine.topic_id, target_topic_id=partition_writer.topic_id))
        partition_task.leaves_out(loss)
        partition_writer.lose(loss)

    async def _gone(self, partition_task: PartitionTask, position: Position) -> Loss | None:
        """What the target lost below where its log is to begin now, once that is on record: the source has it no more,
        and when the log begins there, nothing shows that it was copied. What a source deleted behind `topics.start`
        before the first record was copied goes on record, too, and stops nothing.
        """
        mine, lost = partition_task.assignment, position.target_lost
        if lost is None and position.is_empty and mine.since:
            await self._begins_later(partition_task, max(position.begin, position.next_offset))
        if lost is None or lost[0] >= position.begin:
            return None
        ids = mine.topic_id, partition_task.target_topic_id
        gone = Loss(mine.source, mine.target, lost[0], min(position.begin, lost[1]), "target", "", *ids)
        if self._on_loss is not None:
            await self._on_loss(gone)
        return gone

    async def _begins_later(self, partition_task: PartitionTask, begin: int) -> None:
        """Put on record what the source deleted between the flow's start in it and where its copy begins."""
        mine = partition_task.assignment
        ids = mine.topic_id, partition_task.target_topic_id
        for first, until in outside(partition_task.losses, mine.since, begin):
            loss = Loss(mine.source, mine.target, first, until, "retention", "", *ids)
            if self._on_loss is not None:
                await self._on_loss(loss)
            self._writer.all_counters.setdefault(mine.source, PartitionCounters()).lost += until - first
            partition_task.leaves_out(loss)
            log_loss(loss)

    def _target_lost(
        self, partition_task: PartitionTask, lost: tuple[int, int], gone: Loss | None, lost_until: int
    ) -> None:
        """Report records that the target had acknowledged and lost, of source offsets from and to before, of which
        those that are `gone`, or below `lost_until`, are not copied again.
        """
        mine, (first, following) = partition_task.assignment, lost
        counters = self._writer.all_counters.setdefault(mine.source, PartitionCounters())
        counters.target_lost += following - first
        logs.get("mirror.pipeline").error(
            "target_lost_records",
            topic=mine.target.topic,
            partition=mine.target.partition,
            first_offset=first,
            last_offset=following - 1,
            offsets=following - first,
            reason="the target's log ends below what it had acknowledged; what the source still has is copied again",
        )
        kept = min(max(first, lost_until), following)
        if gone is not None:
            kept, counters.lost = gone.next_offset, counters.lost + gone.next_offset - gone.first
            log_loss(gone)
        again = "copied again" if kept == first else "the source has none of them any more"
        if first < kept < following:
            again = f"copied again from {kept} on: the source has those before no more"
        partition_task.add_note(
            f"the target lost acknowledged records (source offsets {first} to {following - 1}), {again}"
        )

    async def _what_became_of(self, partition_task: PartitionTask) -> str:
        """What became of the source topic, asked for now, or known since the task looked as it began."""
        topic, topic_id = partition_task.assignment.source.topic, partition_task.assignment.topic_id
        is_new, partition_task.is_new = partition_task.is_new, False
        if is_new and topic in self._source.topics:
            return other_topic(self._source, topic, topic_id)
        return await what_became_of(self._source, topic, topic_id)

    async def _position(self, partition_task: PartitionTask) -> tuple[Position, OffsetMap | None]:
        mine = partition_task.assignment
        last = partition_task.position
        accepted = (0, NO_LIMIT) if mine.rules.continues_on_loss else mine.accepted
        logs = self._flow, self._source, mine.source, self._target, mine.target
        more = mine.since, last, partition_task.losses
        try:
            if mine.rules.translates:
                found, offset_map = await resume_translated(*logs, accepted, self._recall, *more)
            else:
                found, offset_map = await resume(*logs, accepted, *more, mine.way_back), None
            former = partition_task.partition_writer
            is_new = last is not None and last.target_end < found.end  # whoever wrote it did not get to report the stop
            may_stamp = mine.rules.target_append_time or mine.rules.may_stamp
            if found.stamped and not may_stamp and (is_new or (former and former.mistimed)):
                raise stamped(mine.source, found.next_offset, found.end - 1)
            if mine.rules.mistimes:  # what was written before is reported no more, and no more is written like it
                why = "its source has CreateTime" if mine.rules.may_stamp else "topics.append_time is source"
                detail = f"the copy has message.timestamp.type=LogAppendTime, and {why}"
                raise PartitionStop(State.REFUSED, *mine.source, found.next_offset, detail, Remedy.KEEP_TIMES)
            return found, offset_map
        except PartitionStop as stop:  # the topic may have been deleted or recreated while its log was read
            if became := await what_became_of(self._source, mine.source.topic, mine.topic_id):
                raise recreated(mine.source, stop.offset, became) from stop
            raise

    async def _align(self, partition_task: PartitionTask, partition_writer: PartitionWriter) -> None:
        """Let the target begin where the source does, or the flow in it, from the writer's position on."""
        from mirror.replication.log_start import Alignment, align  # noqa: PLC0415 -- loads the compiler, and is seldom needed

        position = partition_writer.position

        def moved(at: int) -> None:
            where = f"padding up to offset {position.begin}, where the copy begins"
            partition_task.detail = f"{where}: {at} offsets so far"

        partition_task.state, partition_task.begins = State.PADDING, position.begin
        moved(position.next_offset)
        mine = partition_task.assignment
        alignment = Alignment(mine.source, mine.target, mine.rules, position.begin)
        await align(self._target, alignment, position, moved, partial(self._writer.check, partition_writer))
        if position.is_empty and position.target_lost is None:  # the log alone would not show that it held nothing else
            partition_task.last = LastPosition(
                source_next=position.begin,
                target_end=position.begin,
                source_topic_id=mine.topic_id,
                target_topic_id=partition_writer.topic_id,
                begins=position.begin,
            )

    def _changed(self, partition_writer: PartitionWriter) -> None:
        """An ack, a doubt or a stop: whatever follows from it."""
        self._moved.set()
        self._touched.add(partition_writer.source)
        partition_task = self._partition_tasks[partition_writer.source]
        cursor = partition_task.cursor
        if partition_task.partition_writer is not partition_writer or cursor is None:
            return
        if partition_writer.stop is not None:
            self._stop(partition_task, partition_writer.stop)
        elif partition_writer.in_doubt:
            if not partition_task.finished:
                partition_task.waits(partition_writer.in_doubt)
            self._fetcher.stop(partition_writer.source)
            if partition_writer.is_quiet:
                partition_task.in_doubt.set()
        elif not partition_task.finished:
            while (loss := partition_writer.passed) is not None:
                log_loss(loss)
            # a position behind the source's end is none
            caught_up = cursor.written_until >= partition_writer.acked >= cursor.readable_until >= 0
            partition_task.state, partition_task.detail = (State.CAUGHT_UP if caught_up else State.MIRRORING), ""
            has_all = cursor.until is not None and partition_writer.acked >= cursor.until
            if has_all and not cursor.unrelayed and partition_writer.is_idle:
                partition_task.state = State.CAUGHT_UP
                self._finished(partition_task)
        self._fetcher.nudge()
        self._finish_when_done()

    def _finished(self, partition_task: PartitionTask) -> None:
        partition_task.finished = True
        self._fetcher.stop(partition_task.assignment.source)
        partition_task.in_doubt.set()

    def _stop(self, partition_task: PartitionTask, stop: PartitionStop) -> None:
        self._touched.add(partition_task.assignment.source)
        partition_task.stopped(located(stop, self._source, self._target, partition_task.assignment.target.topic))
        self.stopped.set()
        self._finished(partition_task)
        self._finish_when_done()

    def _finish_when_done(self) -> None:
        if all(partition_task.is_done for partition_task in self._partition_tasks.values()):
            self._end()

    def _damaged(self, partition_task: PartitionTask, damage: MalformedBatch) -> PartitionStop:
        mine, writer = partition_task.assignment, partition_task.partition_writer
        return corrupt(damage, self._target, mine.source, mine.target.topic, writer.acked if writer else -1)

    def _denied(self, partition_task: PartitionTask, problem: AccessDenied) -> PartitionStop:
        if isinstance(problem, NotAuthenticated):
            return self._stop_for(partition_task, State.UNAUTHORIZED, str(problem), Remedy.MEND_LOGIN)
        mine, source, target = partition_task.assignment, self._source.endpoint, self._target.endpoint
        right = grant_named(problem, source, target, mine.source, mine.target)
        return self._stop_for(partition_task, State.UNAUTHORIZED, str(problem), Remedy.GRANT, grant=right)

    def _stop_for(
        self, partition_task: PartitionTask, state: State, detail: str, *remedies: Remedy, **values: object
    ) -> PartitionStop:
        at = partition_task.partition_writer.acked if partition_task.partition_writer else -1
        return PartitionStop(state, *partition_task.assignment.source, at, detail, *remedies).knowing(**values)

    async def _drained(self) -> None:
        while not all(
            partition_task.partition_writer is None or partition_task.partition_writer.is_idle
            for partition_task in self._partition_tasks.values()
        ):
            self._moved.clear()
            await self._moved.wait()
