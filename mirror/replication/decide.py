"""Decide from what was observed of both logs where a partition goes on, or why it stops.

`EQUAL_OFFSETS` and `MOVED_OFFSETS` are the tables of cases. The first row that applies decides. A row that needs a fact
that costs requests returns a `Question`: the caller observes that (`replication/observe.py`) and decides again.

    P1  the mirror is the only writer of a mirrored partition; what is in the target's log was put there by this flow
    P2  a batch's verdict and bytes are a function of the source log, so every writer of the flow appends the same
        batches
    P3  the stamp of a batch follows from the target's log below it: the last batch, data or marker, says which
        producer id, epoch and sequence come next (`header.ProducerState`). Two writers then send the same batch under
        the same number, and the leader keeps one
    P4  in `preserve`, position = the target's log end offset, once all in-sync replicas have it (a shorter high
        watermark could still be cut back)
    P5  nothing is written unless the last data batch in the target equals its source batch, or all those that were
        joined in it, and the source has no record where the target has none behind it. All batches behind the last
        acknowledged position are compared, as far as `_BEHIND_BYTES` reach: where batches are alike, the last one does
        not show that another program wrote there. Losses on record are no difference
    P6  the source's log is the one that was mirrored: the leader epoch of the last acknowledged batch, as the journal
        keeps it (`LastPosition`), reaches at least as far as it did then (OffsetForLeaderEpoch, KIP-101); or all that
        is behind its end in both logs is the same, as where a flow back brought the source what it had lost
    P7  where nothing can be compared, because either log has deleted it, or it is damaged in the source's by now,
        the copy is believed only where its end is the position that the journal keeps, or lies behind it by batches and
        markers of this flow alone, stamped one after the other, and in the same leader epoch of the source; or by
        markers of this flow alone, where the source's records are on record as lost. Else the copy is `Unconfirmed`,
        and a person decides
    P8  a target that ends below the acknowledged position has lost records. They are copied again where the source
        still has them; else that is TARGET_LOST
    P9  a copy that was begun with offsets that move is none with equal offsets: where the journal keeps that its end
        goes with another offset of the source, no record is compared, and none is written
    P10 where what the flow wrote is not the source's, the target is to blame if the source kept the leader epoch that
        was mirrored, and the target's leader has nothing of the one in which it acknowledged: an old leader came back
    P11 a copy whose last batch the target gave a time of its own, where nobody asked for that, is no copy of its source
        if the journal does not know that batch yet: whoever wrote it was killed before it could say so

Decision: the stamp is read from the batch at the log's end. A leader that is asked a moment later may name one batch
more, which a zombie appended in between, and the next batch would go in twice. Where the log holds no batch, the leader
is asked between two reads of the log's end that agree. A log that ends with a marker is read twice, too: a broker goes
on with a dead mirror's request for a thousand markers for up to half a second.

Decision: the producer id is computed, not asked for with InitProducerId: so even two mirrors that start together on an
empty partition carry the same id. A broker takes any id on a partition where it is unknown (Kafka
`ProducerAppendInfo.checkSequence`), ids are distinguished per partition log only, and coordinators count up from 0 and
will not reach 2^52. The 20 low bits are left to `ProducerState.then`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirror.errors import ClusterUnreachable, MalformedBatch, PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.records.compare import is_our_padding, shows_create_times
from mirror.records.header import APPEND_TIME, SEQUENCES, ProducerState
from mirror.replication.assignment import LastPosition, outside
from mirror.replication.observe import Comparison, Observation, Question
from mirror.states import RESOLVED_BY, Remedy, State

#: What resolves a copy that is not its source's.
ANOTHER_COPY: Final = (Remedy.RENAME, Remedy.BEGIN_ANEW)


@dataclass(frozen=True, slots=True)
class Position:
    """Decides to go on: with which offset, and with which stamp of the next batch."""

    next_offset: int  # of the source; in `preserve` of the target as well
    stamp: ProducerState  # of the next batch
    known: bool  # the target's leader remembers the producer
    last_epoch: int  # the source leader epoch of the last mirrored batch, or -1
    begin: int = -1  # where the target must be made to begin first: below is padding, or nothing; -1 where it does
    lost_until: int = -1  # where the source goes on, which lost the records from `next_offset` up to there; or -1
    target_offset: int = -1  # where the next batch goes in the target; -1 where that is `next_offset`
    target_lost: tuple[int, int] | None = None  # source offsets of records that the target had acknowledged, and lost
    target_epoch: int = -1  # the target's leader epoch in which this was read
    last: LastPosition | None = None  # what the journal is to keep of the copy, without the topics' ids
    stamped: bool = False  # the target's last batch is this flow's, and has its broker's time
    is_empty: bool = False  # the target holds no record, whatever the journal says
    log_start: int = 0  # where the source's log begins

    @property
    def end(self) -> int:
        """Return where the target's log ends."""
        return self.next_offset if self.target_offset < 0 else self.target_offset


class Unconfirmed(PartitionStop):
    """The stop for a copy of which nothing can be compared with the source, and whose end is not the position that the
    journal keeps. A person may confirm that the target's end `target_end` goes with the source's `offset`, which
    is -1 where that is not known.
    """

    def __init__(self, source: TopicPartition, offset: int, target_end: int, detail: str) -> None:
        accept = (Remedy.ACCEPT_COPY,) if offset >= 0 else ()
        detail = f"nothing confirms the copy: {detail}"
        super().__init__(State.DIVERGED, *source, offset, detail, *accept, Remedy.BEGIN_ANEW)
        self.target_end = target_end


#: To observe more, to go on, to stop, or to try again later.
Decision = Question | Position | PartitionStop | MalformedBatch | ClusterUnreachable


class Row(NamedTuple):
    """A row of a table: a case, the rule that it keeps, and its decision, None where it does not apply."""

    case: str
    rule: str
    decide: Callable[[Observation], Decision | None]


def decide(facts: Observation, table: tuple[Row, ...]) -> Decision:
    """Return the decision of the first row that applies. The last row of a table always does."""
    decisions = (row.decide(facts) for row in table)
    decision = next(decision for decision in decisions if decision is not None)
    return _checked(facts, decision) if isinstance(decision, PartitionStop) else decision


def _checked(facts: Observation, stop: PartitionStop) -> Decision:
    """Name the right side: a copy that another program wrote to looks like a source that was cut back."""
    if stop.state is not State.TRUNCATED or not facts.tail_is_ours:
        return stop
    if Question.WRITTEN not in facts.asked:
        return Question.WRITTEN
    return _foreign(facts, stop.offset, stop.detail) if facts.holds_others else stop


# --- The rows ---------------------------------------------------------------------------------------------------------


def _begun_otherwise(facts: Observation) -> Decision | None:
    last = facts.last
    if last is None or not last.is_moved:
        return None
    what = f"offset {last.target_end} of the target goes with offset {last.source_next} of the source"
    return begun_otherwise(facts, last.target_end, f"{what}, as the journal keeps it", "translate")


def _reopened(facts: Observation) -> Decision | None:
    """Nothing is mirrored before a transaction has ended: the source was cut back."""
    if facts.open_from < 0:
        return None
    detail = f"offsets up to {facts.next_source - 1} were mirrored; the source's last stable offset is"
    detail = f"{detail} {facts.open_from}: a transaction is open there that had ended"
    return truncated(facts, facts.next_source, detail)


def _was_cut(facts: Observation) -> bool:
    return facts.last is not None and facts.kept_until is not None and facts.kept_until < facts.last.epoch_until


def _may_be_restored(facts: Observation) -> Decision | None:
    is_long = facts.readable >= facts.end > max(facts.start, facts.target_start)
    return Question.RESTORED if _was_cut(facts) and is_long and Question.RESTORED not in facts.asked else None


def _source_cut(facts: Observation) -> Decision | None:
    last, kept = facts.last, facts.kept_until
    if last is None or kept is None or not _was_cut(facts):
        return None
    what = f"leader epoch {last.source_epoch} of the source ends at {kept}"
    if kept < 0:
        what = f"the source has no record of leader epoch {last.source_epoch}"
    detail = f"{what}, and was mirrored up to {last.epoch_until}: the source's log was cut back or replaced"
    return truncated(facts, last.source_next, detail)


def _longer_than_source(facts: Observation) -> Decision | None:
    end, last = facts.end, facts.last
    if end <= facts.readable:
        return None
    detail = f"the target's log ends at {end}, the source's at {facts.readable}"
    is_ours = facts.tail_is_ours or (facts.tail is None and end == facts.since)
    is_ours = is_ours or (last is not None and last.target_end == end)
    # without an election since the last acknowledged batch the source has kept all that it had
    was_not_cut = last is not None and 0 <= facts.source_epoch == last.source_epoch
    return truncated(facts, end, detail) if is_ours and not was_not_cut else _foreign(facts, end, detail)


def _target_lost(facts: Observation) -> Decision | None:
    lost = target_loss(facts, facts.next_source)
    if lost is None or lost[0] >= facts.start or _is_accepted(facts, lost[0]):
        return None
    detail = (
        f"the target's log ends at {facts.end}, and had acknowledged the source's offsets up to {lost[1] - 1}: the"
        f" target lost its tail, and the source deleted offsets {lost[0]} to {facts.start - 1}"
    )
    return stop_at(facts, State.TARGET_LOST, lost[0], detail)


def _unaligned(facts: Observation) -> Decision | None:
    """The target is to begin where the flow does in the source."""
    if not is_unaligned(facts):
        return None
    if (unknown := stamp_unknown(facts)) is not None:
        return unknown
    stamp, is_known = stamp_of(facts)
    return Position(
        *(facts.end, stamp, is_known, -1, facts.begin),
        target_lost=target_loss(facts, facts.end),
        target_epoch=facts.target_epoch,
        is_empty=True,
    )


def _padded_over(facts: Observation) -> Decision | None:
    tail = facts.tail
    if tail is None or facts.end <= facts.begin or not is_our_padding(tail, facts.own):
        return None
    return _padded_twice(facts, facts.end)


def _retention_gap(facts: Observation) -> Decision | None:
    """The source has deleted as well what another program's records could be compared with, if one wrote behind the
    last acknowledged position: the gap would seem to begin behind these.
    """
    first, last = facts.next_source, facts.last
    if first >= facts.start or _is_accepted(facts, first):
        return None
    if last is not None and last.target_end < facts.end and facts.tail is not None and not facts.tail_is_ours:
        return _beyond_acknowledged(facts, last)
    detail = f"the source deleted offsets {first} to {facts.start - 1} before they were mirrored"
    return stop_at(facts, State.RETENTION_GAP, first, detail)


def _compared(facts: Observation) -> Decision | None:
    return None if Question.COMPARISON in facts.asked else Question.COMPARISON


def _damaged(facts: Observation) -> Decision | None:
    """A batch that was damaged once it was mirrored stops nothing."""
    return None if facts.comparison.is_kept else facts.comparison.damage


def _differs(facts: Observation) -> Decision | None:
    return unlike(facts, facts.comparison) if facts.comparison.difference else facts.stop


def stamp_unknown(facts: Observation) -> Decision | None:
    if Question.PRODUCERS not in facts.asked:
        return Question.PRODUCERS
    if not facts.has_grown:
        return None
    return ClusterUnreachable(f"{facts.clusters[1]}: {facts.target}: the log grew while its position was read")


def _padding_returned(facts: Observation) -> Decision | None:
    if facts.target_start >= facts.begin:
        return None
    if Question.PADDING not in facts.asked:
        return Question.PADDING
    return _padded_twice(facts, facts.padding_end) if facts.padding_end > facts.begin else None


def _agrees(facts: Observation) -> Decision | None:
    """Both logs show that the copy is its source's, or it has not begun."""
    has_begun = facts.end > facts.begin if facts.tail is None else not facts.is_empty
    has_begun = has_begun or (facts.last is not None and facts.last.batch is not None)
    return _goes_on(facts) if facts.comparison.epoch is not None or not has_begun else None


def _other_batch_mirrored(facts: Observation) -> Decision | None:
    batch = facts.last.batch if facts.last is not None else None
    if batch is None or batch.source_crc is None or batch.source_base < facts.start:
        return None
    if Question.MIRRORED_BATCH not in facts.asked:
        return Question.MIRRORED_BATCH
    detail = f"the batch mirrored last, at offset {batch.source_base}, had CRC {batch.source_crc:08x}"
    detail = f"{detail}, and the source has {facts.instead} there by now"
    return truncated(facts, facts.end, detail) if facts.instead else None


def _never_acknowledged(facts: Observation) -> Decision | None:
    if facts.last is not None:
        return None
    detail = f"its log ends at {facts.end}, no record of it can be compared, and the journal keeps no position of it"
    return Unconfirmed(facts.source, facts.next_source, facts.end, detail)


def _shorter_than_acknowledged(facts: Observation) -> Decision | None:
    """The beginning of what was acknowledged is believed, unless an old leader may be back."""
    last, kept, first = facts.last, facts.target_kept, facts.next_source
    if last is None or facts.end >= last.target_end:
        return None
    if facts.tail is not None and not facts.tail_is_ours:
        return _foreign(facts, first, f"the target's last batch, below offset {facts.end}, is not ours")
    if not last.is_moved or kept is None or kept.epoch >= last.target_epoch:
        return None
    detail = f"the target has nothing of leader epoch {last.target_epoch}, in which it acknowledged"
    detail = f"{detail} up to offset {last.target_end}: its log may be another one"
    return Unconfirmed(facts.source, first, facts.end, detail)


def _longer_than_acknowledged(facts: Observation) -> Decision | None:
    """More is believed by the number that comes next, or by each number, in the same leader epoch of the source."""
    last, first = facts.last, facts.next_source
    if last is None or facts.end <= last.target_end:
        return None
    is_ours = last.stamp is not None and distance(last.stamp, stamp_of(facts)[0]) == facts.end - last.target_end
    is_same_epoch = facts.kept_until is not None and facts.kept_until >= first
    if is_ours and is_same_epoch:
        return None
    if first != facts.end or last.is_moved:
        return _beyond_acknowledged(facts, last)
    if Question.WRITTEN not in facts.asked:
        return Question.WRITTEN
    is_lost = not outside(facts.losses, last.target_end, min(facts.end, facts.comparison.begin))
    is_filled = facts.are_markers and is_lost
    return None if is_filled or (facts.are_in_order and is_same_epoch) else _beyond_acknowledged(facts, last)


def _goes_on(facts: Observation) -> Decision:
    first, tail, last = facts.next_source, facts.tail, position_to_keep(facts)
    stamp, is_known = stamp_of(facts)
    return Position(
        *(first, stamp, is_known),
        last_epoch=last.source_epoch if last.epoch_until == first else -1,
        begin=facts.padding_end if facts.padding_end > facts.target_start else -1,
        lost_until=facts.start if first < facts.start else -1,
        target_offset=-1 if facts.moved_to < 0 else facts.end,
        target_lost=target_loss(facts, first),
        target_epoch=facts.target_epoch,
        last=last,
        stamped=tail is not None and facts.tail_is_ours and bool(tail.header.attributes & APPEND_TIME),
        is_empty=facts.is_empty,
        log_start=facts.start,
    )


#: The cases in which nothing can be compared: what the journal keeps decides.
_UNCOMPARED: Final = (
    Row("nothing was acknowledged", "P7", _never_acknowledged),
    Row("the source has another batch than the one mirrored last", "P6", _other_batch_mirrored),
    Row("the target is shorter than acknowledged", "P7", _shorter_than_acknowledged),
    Row("the target is longer than acknowledged", "P7", _longer_than_acknowledged),
    Row("the journal confirms the copy", "P7", _goes_on),
)
#: The cases of a copy with its source's offsets (`topics.offsets: preserve`).
EQUAL_OFFSETS: Final = (
    Row("the copy was begun with offsets that move", "P9", _begun_otherwise),
    Row("the source has opened a transaction again", "P6", _reopened),
    Row("the source was cut back, and may have the same again", "P6", _may_be_restored),
    Row("the source was cut back", "P6", _source_cut),
    Row("the target is longer than the source", "P5", _longer_than_source),
    Row("the target lost records that the source has deleted", "P8", _target_lost),
    Row("the target holds no record yet, and must begin later", "P4", _unaligned),
    Row("the target is padded over records of the source", "P5", _padded_over),
    Row("the source has deleted records before they were mirrored", "P4, P7", _retention_gap),
    Row("the ends of both logs are to be compared", "P5", _compared),
    Row("a batch that is compared is damaged", "P7", _damaged),
    Row("the ends of both logs differ", "P5, P10", _differs),
    Row("the next stamp is not known", "P3", stamp_unknown),
    Row("padding has come back, or covers records", "P4", _padding_returned),
    Row("both logs agree", "P4", _agrees),
    *_UNCOMPARED,
)
#: The cases of a copy whose offsets move (`topics.offsets: translate`). Comparing completes the offset map,
#: so that it comes before the rows that ask for the source offset of the target's end.
MOVED_OFFSETS: Final = (
    *map(
        {row.decide: row for row in EQUAL_OFFSETS}.__getitem__,
        (_reopened, _source_cut, _compared, _differs, _target_lost, _retention_gap, stamp_unknown, _agrees),
    ),
    *_UNCOMPARED,
)


# --- What rows have in common -----------------------------------------------------------------------------------------


def is_unaligned(facts: Observation) -> bool:
    """Return True if the target holds nothing, or nothing but padding, never held more, and is to begin behind that."""
    tail, end, last = facts.tail, facts.end, facts.last
    if tail is not None:
        return end <= facts.begin and is_our_padding(tail, facts.own)
    # Deleted padding leaves an empty log, as expired records do: the journal distinguishes both.
    held_none = end == 0 or (last is not None and last.held_none(end))
    return end < facts.begin and (held_none or end < facts.since)


def _is_accepted(facts: Observation, first: int) -> bool:
    """Return True if the source may have deleted what came from offset `first` on."""
    accepted, until = facts.accepted or (first, first)
    return accepted <= first and facts.start <= until


def target_loss(facts: Observation, offset: int) -> tuple[int, int] | None:
    """Return the source offsets of acknowledged records that the target has no more, where its end is source `offset`.
    Where it has nothing left, they begin where the copy did.
    """
    last = facts.last
    if last is None or facts.end >= last.target_end or last.batch is None:
        return None
    first = max(offset, last.begins) if facts.end == 0 or is_unaligned(facts) else offset
    return (first, last.source_next) if first < last.source_next else None


def stamp_of(facts: Observation) -> tuple[ProducerState, bool]:
    """Return the stamp of the next batch, and whether the target's leader knows the producer (P3)."""
    if facts.tail is not None and facts.tail_is_ours:
        header = facts.tail.header
        stamp = ProducerState(header.producer_id, header.producer_epoch, header.base_sequence)
        stamp = stamp.then() if header.is_control else stamp.after(header.last_offset_delta)
        return stamp, any(producer.producer_id == stamp.producer_id for producer in facts.producers)
    if not facts.producers:
        return facts.own, False
    newest = max(facts.producers, key=lambda producer: (producer.producer_id, producer.epoch))
    stamp = ProducerState(newest.producer_id, newest.epoch, newest.last_sequence)
    return (stamp.after(0) if newest.last_sequence >= 0 else stamp.then()), True


def distance(before: tuple[int, int, int], stamp: ProducerState) -> int:
    """Return the records between two stamps of one producer and epoch, -1 for others."""
    producer, epoch, sequence = before
    if (producer, epoch) != (stamp.producer_id, stamp.epoch):
        return -1
    return (stamp.sequence - sequence) % SEQUENCES


def position_to_keep(facts: Observation) -> LastPosition:
    """Return what the journal is to keep of a copy that is in order. The leader epoch that it kept before says more
    where that reaches further.
    """
    last, batch, epoch = facts.last, facts.comparison.batch, facts.comparison.reaches or facts.comparison.epoch
    if last is not None and last.source_next <= facts.next_source and last.epoch_until > (epoch[1] if epoch else -1):
        epoch = last.source_epoch, last.epoch_until
    kept = last.batch if last is not None and last.target_end <= facts.end else None
    if batch is None or (kept is not None and kept.base == batch.base and batch.source_crc is None):
        batch = kept or batch
    stamp, _ = stamp_of(facts)
    return LastPosition(
        source_next=facts.next_source,
        target_end=facts.end,
        source_epoch=epoch[0] if epoch else -1,
        epoch_until=epoch[1] if epoch else -1,
        target_epoch=facts.target_epoch,
        stamp=(stamp.producer_id, stamp.epoch, stamp.sequence),
        batch=batch,
        begins=facts.begins if facts.begins >= 0 else facts.target_start,
    )


# --- The stops --------------------------------------------------------------------------------------------------------


def stop_at(facts: Observation, state: State, offset: int, detail: str, *remedies: Remedy) -> PartitionStop:
    """Return the stop at a source offset, with all remedies of its state where none is given."""
    return PartitionStop(state, *facts.source, offset, detail, *(remedies or RESOLVED_BY[state]))


def truncated(facts: Observation, offset: int, detail: str) -> PartitionStop:
    """Return the stop for a source that was cut back below what was mirrored."""
    return stop_at(facts, State.TRUNCATED, offset, detail)


def _foreign(facts: Observation, offset: int, detail: str) -> PartitionStop:
    detail = f"{detail}; somebody else wrote to the target, or the source topic is another one"
    return stop_at(facts, State.DIVERGED, offset, detail, *ANOTHER_COPY)


def unlike(facts: Observation, found: Comparison) -> PartitionStop:
    """Return the stop for the difference between both logs. Where this flow wrote the batch and the source has seen
    elections since, one of these was unclean, most likely.
    """
    last, offset, detail, source = facts.last, found.offset, found.difference, found.source_batch
    written = found.target_batch or facts.tail
    is_ours = written is not None and not written.header.is_control and facts.own.is_kin(written.header.producer_id)
    if is_ours and source is not None and written is not None and shows_create_times(written, source):
        return unstamped(facts.source, offset, written.header.base_offset)
    epoch = source.header.partition_leader_epoch if source is not None else 0
    if is_ours and epoch > 0:
        return cut(facts, offset, detail, f"the source was cut back, and went on in leader epoch {epoch}")
    if facts.tail_is_ours and last is not None and last.target_end >= facts.end:
        return cut(facts, offset, detail, "the target has what was mirrored, the source another log by now")
    return _foreign(facts, offset, detail)


def cut(facts: Observation, offset: int, detail: str, source_log: str) -> PartitionStop:
    """Return the stop where what this flow wrote is not the source's: one of both logs is another one by now (P10)."""
    last, kept = facts.last, facts.target_kept
    has_kept = last is not None and facts.kept_until is not None and offset <= last.epoch_until
    if last is None or kept is None or not has_kept or kept.epoch >= last.target_epoch:
        return truncated(facts, offset, f"{detail}; {source_log}")
    acknowledged = f"it acknowledged up to offset {last.target_end} in leader epoch {last.target_epoch}"
    has = f"and has none of that: its epoch {kept.epoch} reaches up to offset {kept.end}"
    what = f"{acknowledged}, {has}, as where an old leader of the target comes back. The source kept its log"
    detail = f"{detail}; the target's log is another one: {what}"
    return stop_at(facts, State.DIVERGED, offset, detail, *ANOTHER_COPY)


def _beyond_acknowledged(facts: Observation, last: LastPosition) -> Unconfirmed:
    detail = f"its log ends at {facts.end}, the journal keeps {last.target_end}"
    others = "" if facts.tail is None or facts.tail_is_ours else "; the last of them is not this mirror's"
    detail = f"{detail}, and no record in between can be compared{others}"
    return Unconfirmed(facts.source, facts.next_source, facts.end, detail)


def begun_otherwise(facts: Observation, offset: int, detail: str, offsets: str) -> PartitionStop:
    """Return the stop for a copy that was begun with other `offsets` than it is to have now."""
    detail = f"{detail}: the copy was begun with topics.offsets: {offsets}"
    return stop_at(facts, State.REFUSED, offset, detail, Remedy.AS_BEGUN).knowing(offsets=offsets)


def _padded_twice(facts: Observation, end: int) -> PartitionStop:
    """Return the stop for padding over records that were never mirrored, as two mirrors at a time may leave it."""
    detail = f"the target has padding up to offset {end}, and the source has records from {facts.begin} on"
    return stop_at(facts, State.DIVERGED, facts.begin, detail, Remedy.BEGIN_ANEW)


def unstamped(source: TopicPartition, offset: int, landed: int) -> PartitionStop:
    """Return the stop for a copy whose records have their producers' times, and those of the source its broker's."""
    detail = (
        f"the target kept the producers' create times of the batch at offset {landed}, which the source's broker had"
        " given its own: message.timestamp.type=CreateTime was set on the copy while the mirror ran"
    )
    return PartitionStop(State.DIVERGED, *source, offset, detail, *ANOTHER_COPY)
