"""What is to be mirrored of a flow, partition by partition, and what was lost of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from mirror.errors import PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.observability import logs
from mirror.observability.status import NO_CONTACT, Contact
from mirror.policy.rules import Rules
from mirror.policy.selection import TopicPair
from mirror.records.header import RawBatch
from mirror.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatch:
    """The last data batch of a copy.

    `base` and `next_offset`: its offsets on the target. `source_base`: its base offset on the source.
    `crc`: its CRC-32C on the target, None where the broker stamps batches itself.
    `source_crc`: the CRC-32C of the source's batch, None where the copy was rewritten.
    `base_timestamp`, `max_timestamp` (ms) and `count` as on the target.
    """

    base: int
    next_offset: int
    source_base: int
    crc: int | None
    source_crc: int | None
    count: int
    base_timestamp: int
    max_timestamp: int

    @classmethod
    def of(cls, target_batch: RawBatch, source_base: int, source_crc: int | None) -> LastBatch:
        """Return a batch of the target as the journal keeps it."""
        header = target_batch.header
        return cls(
            base=header.base_offset,
            next_offset=header.next_offset,
            source_base=source_base,
            crc=header.crc,
            source_crc=source_crc,
            count=header.count,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPosition:
    """The last position of a copy that its task knew to be acknowledged, as the journal keeps it.

    `source_next`: the next offset to copy from the source. `target_end`: the target's log end that goes with it.
    `source_epoch`: the leader epoch of the last source batch that is accounted for, -1 where none is known;
    `epoch_until`: up to which source offset that epoch reaches at least, so that OffsetForLeaderEpoch of it answers no
    less while the source keeps its log (KIP-101).
    `target_epoch`: the target's leader epoch, as far as known, when it acknowledged.
    `stamp`: producer id, producer epoch and sequence of what is appended next.
    `batch`: the last data batch, None where none is known. `was_accepted`: a person confirmed it (`mirror accept`).
    `begins`: the source offset below which the copy held nothing, or nothing any more, when its task began: that the
    source deleted what lies below is no loss of the target's.
    """

    source_next: int
    target_end: int
    source_epoch: int = -1
    epoch_until: int = -1
    target_epoch: int = -1
    source_topic_id: UUID | None = None
    target_topic_id: UUID | None = None
    stamp: tuple[int, int, int] | None = None
    batch: LastBatch | None = None
    was_accepted: bool = False
    begins: int = 0

    @property
    def is_moved(self) -> bool:
        """Its offset on the target is not the one on the source."""
        return self.source_next != self.target_end

    def held_none(self, end: int) -> bool:
        """A copy whose empty log ends at this offset never held a record: what it held below was padding."""
        return self.batch is None and not self.was_accepted and end <= self.begins

    def is_of(self, source_topic_id: UUID | None, target_topic_id: UUID | None) -> bool:
        """It is about these two topics, not of others by their names."""
        return (self.source_topic_id, self.target_topic_id) == (source_topic_id, target_topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStop:
    """A stop that a task met before. One that `stands` is not checked again: neither growth of the source nor
    expired evidence lifts it, but a person, a policy, or another target topic by that name.

    `offset` is the source's next one to copy, or -1. `detail` and `advice` are for people.
    """

    state: State
    offset: int
    detail: str
    advice: str = ""
    source_topic_id: UUID | None = None
    target_topic_id: UUID | None = None
    stands: bool = True

    @property
    def text(self) -> str:
        """What happened, and what to do."""
        return ". ".join(part for part in (self.detail, self.advice) if part)

    def concerns(self, target_topic_id: UUID | None) -> bool:
        """Whether it stands for the copy in the target topic with this id; None where that cannot be asked now."""
        return self.stands and target_topic_id in (None, self.target_topic_id)

    def bars(self, target_topic_id: UUID | None, *, continues_on_loss: bool) -> bool:
        """Whether it keeps a task of that copy from beginning: the policy goes on behind what the target lost."""
        return self.concerns(target_topic_id) and not (continues_on_loss and self.state is State.TARGET_LOST)

    def raised(self, source: TopicPartition) -> PartitionStop:
        """The same as an error."""
        return PartitionStop(self.state, *source, self.offset, self.detail, advice=self.advice)


#: What a person, a policy or another target topic lifts, and nothing else.
STANDING: frozenset[State] = frozenset({State.TRUNCATED, State.DIVERGED, State.TARGET_LOST})


@dataclass(frozen=True, slots=True)
class Assignment:
    """Names one partition to mirror, and what is known of its copy."""

    source: TopicPartition
    target: TopicPartition
    topic_id: UUID | None
    rules: Rules
    until: int | None = None  # where a bounded copy ends; None follows the source for ever
    until_ms: int = 0  # when the source ended there (Unix ms)
    accepted: tuple[int, int] | None = None  # offsets between which records may be lost before they were mirrored
    since: int = 0  # the flow began at this offset of the source, and the target was empty then
    last: LastPosition | None = None  # as the journal keeps it
    stop: KnownStop | None = None  # as the journal keeps it
    #: Source offsets, from and to before, that are on record as lost, as far as the copy's end may lie behind them.
    losses: tuple[tuple[int, int], ...] = ()
    target_topic_id: UUID | None = None  # the topic that the journal names: nothing is written to another one
    caught_up_ms: int = 0  # when the copy last had all that the source had (Unix ms); 0 where that is not known
    contact: Contact = NO_CONTACT  # when a task last had the source before it
    tombstones_ms: int | None = (
        None  # how long the source has kept tombstones since, at the least; None if not compacted
    )
    waits_for: str = ""  # why it waited by its last report
    may_lack: bool = False  # it is on record that the copy may lack deletions

    @property
    def place(self) -> tuple[TopicPartition, TopicPartition]:
        """From where to where: what distinguishes one partition to mirror from another, whatever else of it changes."""
        return self.source, self.target


TOMBSTONES, COMPACTION = "tombstones", "compaction"
#: Reasons for which records may be missing, nobody knows which: the range of such a loss is empty.
POSSIBLE = frozenset({TOMBSTONES, COMPACTION})
#: Why records are lost: the source deleted them before they were mirrored, they are damaged there, the target does not
#: take records of their size, or the target lost them; or what the cleaner of one side alone has removed.
_REASONS: Mapping[str, str] = {
    "retention": "the source deleted them before they were mirrored",
    "damage": "they are damaged in the source's log",
    "too_large": "they are larger than the target takes",
    "target": "the target lost them after they were mirrored, and the source has them no more",
    TOMBSTONES: "keys deleted on the source may live on in the copy: tombstones may have gone before they came over",
    COMPACTION: "the copy was compacted, and its source was not: it may lack records that the source has kept",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that are not mirrored, and will not be: offsets from `first` up to `next_offset`. `detail`: what was
    found there, in words. `topic_id` is the source topic's and `target_topic_id` the copy's, None where not known.
    """

    source: TopicPartition
    target: TopicPartition
    first: int
    next_offset: int
    reason: str = "retention"
    detail: str = ""
    topic_id: UUID | None = None
    target_topic_id: UUID | None = None


#: Called with a loss.
OnLoss = Callable[[Loss], Awaitable[None]]


def log_loss(loss: Loss) -> None:
    """One event, when the mirror has gone on behind it."""
    logs.get(__name__).error(
        "records_lost",
        topic=loss.source.topic,
        partition=loss.source.partition,
        first_offset=loss.first,
        last_offset=max(loss.first, loss.next_offset - 1),
        reason=f"{_REASONS[loss.reason]}: {loss.detail}" if loss.detail else _REASONS[loss.reason],
    )


def outside(losses: Sequence[tuple[int, int]], first: int, end: int) -> list[tuple[int, int]]:
    """The offsets from `first` to before `end` without those that are lost, which are in offset order."""
    left = []
    for lost, following in losses:
        if first < min(lost, end):
            left.append((first, min(lost, end)))
        first = max(first, following)
    return [*left, (first, end)] if first < end else left


def assign(
    pairs: Iterable[TopicPair], topic_ids: Mapping[str, UUID | None], rules: Mapping[str, Rules]
) -> tuple[Assignment, ...]:
    """Every partition of the selected topics; `topic_ids` by source name, `rules` by target name."""
    return tuple(
        Assignment(
            source=TopicPartition(pair.source, index),
            target=TopicPartition(pair.target, index),
            topic_id=topic_ids.get(pair.source),
            rules=rules[pair.target],
        )
        for pair in pairs
        for index in range(pair.partitions)
    )
