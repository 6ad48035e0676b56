"""One partition's life in a task: its state, what it stopped for, and what is reported of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final
from uuid import UUID

from mirror import clock
from mirror.errors import PartitionStop
from mirror.observability.status import Contact, PartitionStatus
from mirror.policy.rules import Rules
from mirror.records.header import RawBatch
from mirror.replication.assignment import STANDING, Assignment, KnownStop, LastPosition, Loss
from mirror.replication.cursor import Cursor
from mirror.replication.open_transactions import held_note
from mirror.replication.partition_writer import CutOff, PartitionCounters, PartitionWriter
from mirror.replication.tombstones import Tombstones, hole_in
from mirror.states import State

#: Seconds for which a partition's report names what its target lost.
NOTED_SECONDS: Final = 600.0
#: Seconds for which a quota may keep a partition from the target without that being named.
MUTED_SECONDS: Final = 2.0


class Phase(Enum):
    """Says where a partition is in its life, whatever state is shown of it."""

    FINDING = "its position is looked for in both logs"
    COPYING = "batches go from its cursor to its writer"
    DOUBTED = "its writer is in doubt, and what is in flight is waited for"
    ENDED = "it stopped, or all of a bounded copy is acknowledged"


class Event(Enum):
    """Moves a partition from one phase to another."""

    BEGUN = "its position was found"
    DOUBT = "its writer came in doubt"
    QUIET = "nothing of a writer in doubt is in flight any more"
    END = "a stop, or the last ack of a bounded copy"


#: The phase that follows; an event that is not named of a phase changes nothing.
_FOLLOWING: Final[Mapping[tuple[Phase, Event], Phase]] = {
    (Phase.FINDING, Event.BEGUN): Phase.COPYING,
    (Phase.FINDING, Event.END): Phase.ENDED,
    (Phase.COPYING, Event.DOUBT): Phase.DOUBTED,
    (Phase.COPYING, Event.END): Phase.ENDED,
    (Phase.DOUBTED, Event.QUIET): Phase.FINDING,
    (Phase.DOUBTED, Event.END): Phase.ENDED,
}


@dataclass(slots=True, eq=False)
class PartitionTask:
    """Keeps what is known of a partition for as long as its task runs."""

    assignment: Assignment
    state: State = State.STARTING
    detail: str = ""
    advice: str = ""
    cursor: Cursor | None = None
    partition_writer: PartitionWriter | None = None
    phase: Phase = Phase.FINDING
    rests: asyncio.Event = field(default_factory=asyncio.Event)  # cleared while it is copying, or in doubt
    doubts: int = 0  # in a row that count towards a stop
    stopped_at: int = -1
    begins: int = -1  # where the copy was made to begin
    sent: int = -1  # up to here something was sent to the target: a broker may still append it
    followed: int = 0  # the target offset below which the copy was deleted since, as its source was
    is_new: bool = True  # it has not begun: what its task learned a moment ago is about it, too
    note: str = ""  # reported beside the state
    noted_until: float = 0.0  # until then (monotonic)
    last: LastPosition | None = None  # the last position that is known to be acknowledged
    stop: KnownStop | None = None  # one that it met
    cut_bytes: int = 0  # size of the smallest batch that the target closed a connection over, again and again
    target_topic_id: UUID | None = None  # known last: a topic that is missing for a moment is still this one
    left_out: list[tuple[int, int]] = field(default_factory=list)  # source offsets, from and to before
    read_until: int = -1  # where the source was read to
    tombstones: Tombstones = field(init=False)
    contact: Contact = field(init=False)

    def __post_init__(self) -> None:
        """A stop that is known, and what is waited for, is reported until it turns out otherwise."""
        mine = self.assignment
        self.contact = mine.contact
        self.tombstones = Tombstones(
            kept_now_ms=mine.rules.tombstones_ms,
            kept_ms=mine.tombstones_ms,
            caught_up_ms=mine.caught_up_ms,
            may_lack=mine.may_lack,
        )
        if (known := self.assignment.stop) is not None:
            self.state, self.detail, self.advice = known.state, known.detail, known.advice
            self.stopped_at = known.offset
        elif mine.waits_for:  # what is away is so until it is found: an alert counts how long
            self.waits(mine.waits_for)

    def process(self, event: Event) -> None:
        """Go over to the phase that follows an event; whoever waits until it `rests` is woken."""
        self.phase = _FOLLOWING.get((self.phase, event), self.phase)
        if self.phase in (Phase.FINDING, Phase.ENDED):
            self.rests.set()
        else:
            self.rests.clear()

    @property
    def finished(self) -> bool:
        """It goes on no more in this task."""
        return self.phase is Phase.ENDED

    @property
    def presumes(self) -> bool:
        """Its state is a stop that is known, and it was not looked at yet."""
        return self.state.is_stop and not self.finished

    @property
    def lifted(self) -> bool:
        """A stop was known that does not stand any more: it went on."""
        known = self.assignment.stop
        return known is not None and known.stands and self.partition_writer is not None

    @property
    def is_done(self) -> bool:
        """Nothing is left to do here: stopped, or a bounded copy whose last batch is acknowledged."""
        return self.finished and (self.partition_writer is None or self.partition_writer.is_idle)

    @property
    def is_at_rest(self) -> bool:
        """It stands where it stood until its cursor or its writer moves: it has all, or ended, and nothing to add."""
        is_held = self.cursor is not None and self.cursor.log.written_until > self.cursor.log.readable_until
        has_all = self.state is State.CAUGHT_UP and not is_held
        return (has_all or self.finished) and clock.monotonic() >= self.noted_until

    def goes_on_with(self, partition_writer: PartitionWriter) -> bool:
        """Whether what follows is this writer's to write: it is not in doubt, and no other took its place."""
        return partition_writer is self.partition_writer and not partition_writer.doubt

    def waits(self, why: str) -> None:
        """It cannot go on for now. A stop that is known stays one: what is away cannot mend it."""
        if not self.state.is_stop:
            self.state, self.detail, self.advice = State.UNAVAILABLE, why, ""

    def meets(self, target_topic_id: UUID | None) -> None:
        """The target topic has this id now; None where that is unknown."""
        self.target_topic_id = target_topic_id or self.target_topic_id

    def may_leave_out(self, loss: Loss) -> bool:
        """Whether a policy, or a person, allows to go on without some records."""
        rules, accepted = self.assignment.rules, self.assignment.accepted
        if rules.skips_too_large if loss.reason == "too_large" else rules.skips_damage:
            return True
        return accepted is not None and accepted[0] <= loss.first and loss.next_offset <= accepted[1]

    def cuts(self, batch: CutOff | None) -> Rules:
        """Return the rules to go on by, once the target closed connections over a batch (W15 in `writer.py`)."""
        if batch is not None and batch.is_too_large:
            self.cut_bytes = min(batch.size, self.cut_bytes or batch.size)
        return self.assignment.rules.below(self.cut_bytes) if self.cut_bytes else self.assignment.rules

    @property
    def losses(self) -> tuple[tuple[int, int], ...]:
        """The source's offsets that are known to be left out of the copy, in offset order."""
        return tuple(sorted({*self.assignment.losses, *self.left_out}))

    def leaves_out(self, loss: Loss) -> None:
        """It goes on behind records that are not mirrored."""
        self.left_out.append((loss.first, loss.next_offset))
        self.read_until = max(self.read_until, loss.next_offset)

    def reads(self, batches: Sequence[RawBatch], cursor: Cursor, until: int | None = None) -> int:
        """The source's next batches are there, as the cursor found its log, and no more `until` an offset where one is
        given: the offset of a hole where it may have lost tombstones, since the copy was behind for longer than it
        keeps them; else -1.
        """
        if not batches and until is None:
            return -1
        hole, read_until = -1, max(self.read_until, batches[-1].header.next_offset if batches else -1)
        if self.tombstones.kept_ms is not None:
            self._acknowledged()
            if self.tombstones.may_miss(clock.now_ms()):
                hole = hole_in(batches, self.read_until)
                if hole < 0 and until is not None and read_until < until:
                    hole = read_until
        self.read_until = max(read_until, until or -1)
        if self.tombstones.kept_ms is not None:
            self._sees_end(cursor)
        return hole

    def _sees_end(self, cursor: Cursor) -> None:
        """Note what is to be acknowledged until the copy has all that the source has now, where all was read."""
        if self.read_until >= cursor.log.readable_until >= 0:
            self.tombstones.sees_end(cursor.log.seen_ms, cursor.log.readable_until)

    def _acknowledged(self) -> None:
        """What was the source's end a moment ago may be on the target by now."""
        if self.partition_writer is not None:
            self.tombstones.acknowledged(self.partition_writer.acknowledged.source_next)

    def standing_stop(self) -> PartitionStop | None:
        """The stop that keeps it from beginning: one that stands for the target topic of now."""
        known, goes_on = self.assignment.stop, self.assignment.rules.continues_on_loss
        bars = known is not None and known.bars(self.target_topic_id, continues_on_loss=goes_on)
        return known.raised(self.assignment.source) if known is not None and bars else None

    def stopped(self, stop: PartitionStop) -> None:
        """It stops."""
        self.state, self.detail, self.advice, self.stopped_at = stop.state, stop.detail, stop.advice, stop.offset
        self.process(Event.END)
        before = self.assignment.stop
        if stop.state in STANDING and not (before is not None and before.concerns(self.target_topic_id)):
            self.stop = KnownStop(
                state=stop.state,
                offset=stop.offset,
                detail=stop.detail,
                advice=stop.advice,
                source_topic_id=self.assignment.topic_id,
                target_topic_id=self.target_topic_id,
            )

    def resumed(self, position: int, begin: int, *, is_empty: bool = False, was_cut: bool = False) -> None:
        """It goes on from a position that was found in order, and reads from `begin` on. A copy that `is_empty` lacks
        no deletions; when another one had all nobody may ever have seen, as of one that was adopted by its ends, or one
        that `was_cut`.
        """
        self.read_until, self.tombstones.seen_end = begin, None
        if is_empty or position <= self.assignment.since:
            self.tombstones.had_all(clock.now_ms())
        elif was_cut:
            self.tombstones.caught_up_ms = 0
        self.state, self.detail, self.advice, self.stopped_at = State.MIRRORING, "", "", -1
        self.process(Event.BEGUN)

    def log_start(self, recorded: LastPosition | None) -> int:
        """The target offset at which the copy is to begin by now, as its source does: not behind the position that is
        `recorded`, nor where it is not known which offset that is. -1 where nothing is to be deleted.
        """
        writer, cursor = self.partition_writer, self.cursor
        if recorded is None or writer is None or cursor is None or not writer.rules.follows_log_start:
            return -1
        runs, begin = writer.offset_map.runs if writer.offset_map is not None else None, cursor.log.start
        if begin >= recorded.source_next:
            begin = recorded.target_end
        elif runs is not None:
            begin = runs.to_target(begin) if runs.source_begin <= begin else -1
        is_sound = self.state.is_well and writer.doubt is None
        return begin if is_sound and begin > self.followed else -1

    def add_note(self, note: str) -> None:
        """Have a note reported beside the state for a while."""
        self.note, self.noted_until = note, clock.monotonic() + NOTED_SECONDS

    @property
    def position(self) -> LastPosition | None:
        """The last position that is known to be acknowledged, of these topics; None where none is."""
        if self.partition_writer is not None and (found := self.partition_writer.last) is not None:
            self.last = replace(
                found, source_topic_id=self.assignment.topic_id, target_topic_id=self.partition_writer.premises.topic_id
            )
        known = self.last or self.assignment.last
        return known if known is not None and known.is_of(self.assignment.topic_id, self.target_topic_id) else None

    def figures(self, flow: str, instance: str, now: int, counters: PartitionCounters) -> PartitionStatus:
        """Where the partition stands at Unix time `now` (ms)."""
        mine, partition_writer, cursor = self.assignment, self.partition_writer, self.cursor
        acked = max(partition_writer.acknowledged.source_next if partition_writer else self.stopped_at, self.begins)
        end = cursor.log.readable_until if cursor else -1
        if end < 0 and cursor is not None and cursor.is_done and self.state is State.CAUGHT_UP:
            end = cursor.until or 0  # nothing was fetched of a bounded copy that had all
        state, detail, advice = self.state, self.detail, self.advice
        if (
            state.is_stop and partition_writer is not None and not partition_writer.is_idle
        ):  # what precedes it is under way
            state, detail, advice = State.MIRRORING, "", ""
        parts = [detail, advice, self.note if clock.monotonic() < self.noted_until else ""]
        muted_s = partition_writer.leader.muted_until - clock.monotonic() if partition_writer is not None else 0.0
        if state is State.MIRRORING and muted_s > MUTED_SECONDS:
            parts.append(f"a quota of the target's brokers (producer_byte_rate) takes nothing for {muted_s:.0f} s")
        is_held = False
        if (
            cursor is not None
            and cursor.until is None
            and state is State.CAUGHT_UP
            and cursor.log.written_until > end >= 0
        ):
            is_held = True
            parts.append(held_note(cursor.log.held_since, end))
            end = cursor.log.written_until  # it is there, and not here
        if state is not State.CAUGHT_UP:
            self._acknowledged()
            if cursor is not None:
                self._sees_end(cursor)
        elif cursor is not None:  # also where nothing was written for long; a suspended process saw nothing meanwhile
            self.tombstones.had_all(cursor.log.seen_ms if cursor.until is None else mine.until_ms)
        is_known = state.is_well and end >= 0 <= acked
        lag_ms = (None if is_held else 0) if state is State.CAUGHT_UP else counters.latency_ms
        if is_known and cursor is not None and (seen_ms := cursor.log.seen_ms or mine.until_ms):
            self.contact = Contact.of(end, seen_ms, lag_ms)
        return PartitionStatus(
            flow=flow,
            instance=instance,
            topic=mine.source.topic,
            partition=mine.source.partition,
            target_topic=mine.target.topic,
            state=state,
            detail=". ".join(part for part in parts if part),
            next_offset=acked,
            log_end=end if end >= 0 else self.contact.end,
            lag_records=max(0, end - acked) if is_known else None,
            lag_ms=lag_ms,
            records=counters.records,
            batches=counters.batches,
            bytes=counters.bytes,
            filled=counters.filled,
            lost=counters.lost,
            target_lost=counters.target_lost,
            verdicts=dict(counters.verdicts),
            verdict_bytes=dict(counters.verdict_bytes),
            latency=counters.latency.copy(),
            at_ms=now,
            caught_up_ms=self.tombstones.caught_up_ms,
            contact_ms=self.contact.at_ms,
            tombstones_ms=self.tombstones.kept_ms,
            verified=partition_writer is not None,
            presumed=self.presumes,
        )
