"""Begin a partition: its position is found in both logs, what either side lost goes on record, and reading and
writing start there.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from mirror.errors import AccessDenied, ClusterUnreachable, MalformedBatch, NotAuthenticated, PartitionStop
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection import Connection
from mirror.kafka.queries import replicated_end, resting_end
from mirror.observability import logs
from mirror.policy.remedies import grant_named
from mirror.policy.rules import NO_LIMIT
from mirror.replication.assignment import LastPosition, Loss, OnLoss, log_loss, outside
from mirror.replication.cursor import Cursor, SourceLog
from mirror.replication.decide import Position
from mirror.replication.fetcher import Fetcher
from mirror.replication.observe import Observer
from mirror.replication.offset_map import OffsetMap
from mirror.replication.offset_map_recovery import Recall, resume_translated
from mirror.replication.partition_task import PartitionTask
from mirror.replication.partition_writer import PartitionCounters, PartitionWriter, Premises, stamped
from mirror.replication.position import corrupt, resume
from mirror.replication.topic_identity import other_topic, recreated, what_became_of
from mirror.replication.writer import IN_FLIGHT, Writer
from mirror.states import Remedy, State

DOUBTFUL_TRIES: Final = 3


class Start:
    """Starts the partitions of a task, and starts them anew when their writer is in doubt."""

    def __init__(
        self,
        flow: str,
        source: Cluster,
        target: Cluster,
        writer: Writer,
        fetcher: Fetcher,
        on_loss: OnLoss | None,
        recall: Recall,
    ) -> None:
        """`on_loss` and `recall` are those of the pipeline."""
        self._flow, self._source, self._target = flow, source, target
        self._writer, self._fetcher = writer, fetcher
        self._on_loss, self._recall = on_loss, recall

    async def start(self, partition_task: PartitionTask, suspensions: int) -> PartitionWriter:
        """Find the position, and start reading and writing there. The process was suspended as often as that when its
        clearance was given. Raises PartitionStop, MalformedBatch, ClusterError, WireError.
        """
        mine, former = partition_task.assignment, partition_task.partition_writer
        node, session = await self._admitted(partition_task)
        if former is not None and len(former.flight.unconfirmed) > IN_FLIGHT:
            await resting_end(self._target, mine.target)  # W2
        position, offset_map = await self._position(partition_task)
        target_lost, found_end = position.target_lost, position.end  # what is padded from here on is our own
        rules = partition_task.cuts(former.flight.cut_off if former is not None else None)
        premises = Premises(partition_task.target_topic_id, session, suspensions)
        made = partial(PartitionWriter, mine.source, mine.target, rules=rules, premises=premises)
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
        if position.lost_until >= 0:  # pass over what the source has no more, once that is on record
            span = position.next_offset, position.lost_until
            loss = await self._recorded(partition_task, *span, "target" if target_lost else "retention")
            partition_task.leaves_out(loss)
            partition_writer.lose(loss)
        self._begin(partition_task, partition_writer, was_cut=target_lost is not None)
        return partition_writer

    async def _admitted(self, partition_task: PartitionTask) -> tuple[int, Connection]:
        """Return the target's leader and a session with it, once both topics are those that the flow mirrors."""
        mine = partition_task.assignment
        partition_task.meets(self._target.topic_id(mine.target.topic))
        if (known := partition_task.standing_stop()) is not None:
            raise known
        if became := await self._what_became_of(partition_task):
            offset = await replicated_end(self._target, mine.target)
            if mine.rules.translates:  # there are other offsets
                offset = (await self._recall(mine.target, offset)).runs.next_source
            raise recreated(mine.source, offset, became)
        node, session = await self._writer.session(mine.target)
        partition_task.meets(self._target.topic_id(mine.target.topic))
        if mine.target_topic_id not in (None, partition_task.target_topic_id):  # the gate has not seen this one yet
            what = "the topic was deleted and created again; the mirror looks at the new one before it writes to it"
            raise ClusterUnreachable(f"{self._target}: {mine.target}: {what}")
        return node, session

    def _begin(self, partition_task: PartitionTask, partition_writer: PartitionWriter, *, was_cut: bool) -> None:
        """Read and write from the writer's position on, unless the partition stopped while that was found."""
        if partition_task.finished:
            return
        mine, position = partition_task.assignment, partition_writer.position
        partition_task.partition_writer, partition_task.last = partition_writer, None
        following, epoch = partition_writer.tail.next_offset, position.last_epoch
        cursor = Cursor(mine.source, mine.topic_id, following, epoch, mine.until, log=SourceLog(position.log_start))
        cursor.skips = (0, NO_LIMIT) if mine.rules.skips_damage else mine.accepted
        partition_task.cursor = cursor
        partition_task.resumed(position.next_offset, following, is_empty=position.is_empty, was_cut=was_cut)
        self._writer.begin(partition_writer)
        self._fetcher.start(cursor)
        self._writer.flush()

    def _follows(
        self, former: PartitionWriter, partition_writer: PartitionWriter, partition_task: PartitionTask, end: int
    ) -> None:
        """Let a partition writer take the place of one in doubt, whose fate the end of the log decides. Raises
        PartitionStop where somebody else wrote, and where it was the doubt of too many in a row.
        """
        partition_task.sent = max(partition_task.sent, former.flight.until)
        if end > partition_task.sent:
            detail = f"the log ends at {end}, this mirror wrote up to {partition_task.sent}"
            raise partition_writer.contended(partition_writer.position.next_offset, detail)
        self._writer.resolve(former, end)
        if former.flight.cut_off is not None and not former.flight.cut_off.is_too_large:
            partition_writer.flight.cut_off = former.flight.cut_off
        if former.doubt is not None and former.doubt.counts:
            partition_task.doubts += 1
            if partition_task.doubts >= DOUBTFUL_TRIES:
                raise stop_for(partition_task, State.REFUSED, former.doubt.why, Remedy.SEE_BROKER)

    async def _recorded(self, partition_task: PartitionTask, first: int, following: int, reason: str) -> Loss:
        """Put on record that the source's offsets up to `following` are lost."""
        mine, target_topic_id = partition_task.assignment, partition_task.target_topic_id
        loss = Loss(mine.source, mine.target, first, following, reason, "", mine.topic_id, target_topic_id)
        if self._on_loss is not None:
            await self._on_loss(loss)
        return loss

    async def _gone(self, partition_task: PartitionTask, position: Position) -> Loss | None:
        """Return what the target lost below where its log is to begin now, once that is on record: the source has it no
        more, and when the log begins there, nothing shows that it was copied. What a source deleted behind
        `topics.start` before the first record was copied goes on record, too, and stops nothing.
        """
        since, lost = partition_task.assignment.since, position.target_lost
        if lost is not None:
            begin = min(position.begin, lost[1])
            return await self._recorded(partition_task, lost[0], begin, "target") if lost[0] < position.begin else None
        if not (position.is_empty and since):
            return None
        for first, until in outside(partition_task.losses, since, max(position.begin, position.next_offset)):
            loss = await self._recorded(partition_task, first, until, "retention")
            self._counters(partition_task).lost += until - first
            partition_task.leaves_out(loss)
            log_loss(loss)
        return None

    def _counters(self, partition_task: PartitionTask) -> PartitionCounters:
        return self._writer.all_counters.setdefault(partition_task.assignment.source, PartitionCounters())

    def _target_lost(
        self, partition_task: PartitionTask, lost: tuple[int, int], gone: Loss | None, lost_until: int
    ) -> None:
        """Report records that the target had acknowledged and lost, of source offsets from and to before, of which
        those that are `gone`, or below `lost_until`, are not copied again.
        """
        mine, (first, following) = partition_task.assignment, lost
        counters = self._counters(partition_task)
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
        """Tell what became of the source topic, asked for now, or known since the task looked as it began."""
        topic, topic_id = partition_task.assignment.source.topic, partition_task.assignment.topic_id
        is_new, partition_task.is_new = partition_task.is_new, False
        if is_new and topic in self._source.topics:
            return other_topic(self._source, topic, topic_id)
        return await what_became_of(self._source, topic, topic_id)

    async def _position(self, partition_task: PartitionTask) -> tuple[Position, OffsetMap | None]:
        mine = partition_task.assignment
        last = partition_task.position
        accepted = (0, NO_LIMIT) if mine.rules.continues_on_loss else mine.accepted
        sides = self._flow, self._source, mine.source, self._target, mine.target
        observer = Observer(*sides, accepted, mine.since, last, partition_task.losses)
        try:
            if mine.rules.translates:
                found, offset_map = await resume_translated(observer, self._recall)
            else:
                found, offset_map = await resume(observer), None
            former = partition_task.partition_writer
            is_mistimed = former is not None and former.doubt is not None and former.doubt.is_mistimed
            is_new = last is not None and last.target_end < found.end  # whoever wrote it did not get to report the stop
            may_stamp = mine.rules.target_append_time or mine.rules.may_stamp
            if found.stamped and not may_stamp and (is_new or is_mistimed):
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
        from mirror.replication.log_start import align  # noqa: PLC0415 -- loads the compiler, and is seldom needed

        position = partition_writer.position

        def moved(at: int) -> None:
            where = f"padding up to offset {position.begin}, where the copy begins"
            partition_task.detail = f"{where}: {at} offsets so far"

        partition_task.state, partition_task.begins = State.PADDING, position.begin
        moved(position.next_offset)
        mine = partition_task.assignment
        await align(self._target, mine, position, moved, partial(self._writer.check, partition_writer))
        if position.is_empty and position.target_lost is None:  # the log alone would not show that it held nothing else
            partition_task.last = LastPosition(
                source_next=position.begin,
                target_end=position.begin,
                source_topic_id=mine.topic_id,
                target_topic_id=partition_writer.premises.topic_id,
                begins=position.begin,
            )

    def damaged(self, partition_task: PartitionTask, damage: MalformedBatch) -> PartitionStop:
        """Return the stop for what cannot be read of one of both logs."""
        mine, writer = partition_task.assignment, partition_task.partition_writer
        return corrupt(
            damage, self._target, mine.source, mine.target.topic, writer.acknowledged.source_next if writer else -1
        )

    def denied(self, partition_task: PartitionTask, problem: AccessDenied) -> PartitionStop:
        """Return the stop for a right that is missing."""
        if isinstance(problem, NotAuthenticated):
            return stop_for(partition_task, State.UNAUTHORIZED, str(problem), Remedy.MEND_LOGIN)
        mine, source, target = partition_task.assignment, self._source.endpoint, self._target.endpoint
        right = grant_named(problem, source, target, mine.source, mine.target)
        return stop_for(partition_task, State.UNAUTHORIZED, str(problem), Remedy.GRANT, grant=right)


def stop_for(
    partition_task: PartitionTask, state: State, detail: str, *remedies: Remedy, **values: object
) -> PartitionStop:
    """Return the stop of a partition at what it mirrored last; `values` are for the texts of its remedies."""
    at = partition_task.partition_writer.acknowledged.source_next if partition_task.partition_writer else -1
    return PartitionStop(state, *partition_task.assignment.source, at, detail, *remedies).knowing(**values)
