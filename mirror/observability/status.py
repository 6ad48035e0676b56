"""Status records: what tasks, partitions, and groups report on the flow's journal.

They travel as JSON on the flow's compacted topic, keyed by target partition: the newest report of each partition is
what remains there, and `status` works from anywhere.
"""

from __future__ import annotations

import builtins
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, NamedTuple, Self

from pydantic import Field

from mirror import clock
from mirror.names import TopicPartition
from mirror.observability.json_record import Int64, JsonRecord, Offset
from mirror.states import State

#: What reading a record may raise that is of another version, or of somebody else's.
NOT_OURS: Final = (ValueError, KeyError, TypeError, OverflowError)

# --- How long things took, counted by size ----------------------------------------------------------------------------

#: Upper bounds of the buckets in seconds, the bound itself included; a last bucket takes what is longer.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


_BUCKETS: Final = len(BOUNDS) + 1


@dataclass(slots=True)
class Histogram:
    """Durations, counted by bucket."""

    #: Of each bucket.
    counts: Annotated[list[Offset], Field(min_length=_BUCKETS, max_length=_BUCKETS)] = field(
        default_factory=lambda: [0] * _BUCKETS
    )
    #: The sum of all in seconds.
    total: Annotated[float, Field(gt=-(2**63), lt=2**63, allow_inf_nan=False)] = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def copy(self) -> Self:
        """The same as of now."""
        return type(self)(self.counts.copy(), self.total)

    def since(self, before: Self) -> Self:
        """What came since an earlier round; nothing where it was begun anew meanwhile."""
        grown = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        if min(grown) < 0:
            return type(self)()
        return type(self)(grown, max(0.0, self.total - before.total))

    def join(self, other: Self) -> None:
        """Count everything that `other` counted, too."""
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


# --- The live figures of one partition, as a task reports them every second -------------------------------------------

#: What the keys of all of them begin with.
PREFIX: Final = b"state/"


def has_reports(journal: Iterable[bytes]) -> bool:
    """Whether a mirror of the flow has run before, by the keys of its journal: adopted copies, and topics that are
    re-keyed, leave nothing else there that shows a first start.
    """
    return any(key.startswith(PREFIX) for key in journal)


class Contact(NamedTuple):
    """Where a source partition ended when its task last had it before it, at Unix time `at_ms`, less the latency of
    then: what was written before that got over. -1 and 0 where it never had.
    """

    end: int = -1
    at_ms: int = 0

    @classmethod
    def of(cls, end: int, seen_ms: int, lag_ms: int | None) -> Self:
        """The source was seen at `seen_ms`, with this latency, None for an unknown one."""
        return cls(end, max(1, seen_ms - (lag_ms or 0)))


NO_CONTACT: Final = Contact()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus(JsonRecord):
    """One partition, now. Whatever is counted is counted since this instance started."""

    flow: str
    #: The process that reports.
    instance: str
    topic: str
    partition: Int64
    target_topic: str
    state: State
    detail: str = ""
    #: The next source offset to copy.
    next_offset: Int64
    #: The source's end as last seen, -1 where it never was.
    log_end: Int64
    #: Offsets that the source holds up to its end of now, markers and holes among them; None where nobody knows that: a
    #: partition that is paused, waits or stopped does not read its source, so whoever asks the source fills it in
    #: (`with_end`).
    lag_records: Int64 | None
    #: The latency of the last batch that the target acknowledged, from its newest record's timestamp to the ack; 0 when
    #: caught up, None if unknown.
    lag_ms: Int64 | None = None
    records: Int64 = 0
    batches: Int64 = 0
    bytes: Int64 = 0
    #: Offsets that control markers took.
    filled: Int64 = 0
    #: Those among them that the source had lost.
    lost: Int64 = 0
    #: Records that the target had acknowledged and lost.
    target_lost: Int64 = 0
    #: Batches, by `VERDICT/reason`.
    verdicts: Mapping[str, Int64] = field(default_factory=dict)
    #: The bytes of those: written, or left out for DROP.
    verdict_bytes: Mapping[str, Int64] = field(default_factory=dict)
    #: Of each acknowledged batch whose records have timestamps, as in `lag_ms`.
    latency: Histogram = field(default_factory=Histogram)
    #: Wall clock of the report, Unix ms.
    at_ms: Int64
    #: When the copy last had all that the source had; 0 where that is not known.
    caught_up_ms: Int64 = 0
    #: The time of `contact`, which every report carries on, whatever its state: the journal keeps the newest one alone.
    contact_ms: Int64 = 0
    #: How long the source has kept tombstones since, at the least; None where it was not compacted.
    tombstones_ms: Int64 | None = None
    #: Since the task began, the copy's last records were found to be the source's.
    verified: bool = False
    #: The state is a stop that was known before, and the task has not looked at the partition yet.
    presumed: bool = False

    @property
    def source(self) -> TopicPartition:
        """Return the partition that is copied."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """Return its copy."""
        return TopicPartition(self.target_topic, self.partition)

    @property
    def lag_bytes(self) -> int | None:
        """The lag in bytes as stored, by the mean size of the records that were copied; None while none was."""
        if not self.lag_records:
            return self.lag_records
        return self.lag_records * self.bytes // self.records if self.records else None

    @property
    def is_stopped(self) -> bool:
        """Its task looked, and it stops."""
        return self.state.is_stop and not self.presumed

    @property
    def sees_the_end(self) -> bool:
        """The task that reports it looks at the source's end all the time."""
        return self.state.is_well

    @property
    def contact(self) -> Contact | None:
        """When a task last had the source before it; None where nobody knows. Older mirrors reported no time of it."""
        if self.contact_ms:
            return Contact(self.log_end, self.contact_ms)
        return Contact.of(self.log_end, self.at_ms, self.lag_ms) if self.sees_the_end else None

    def with_end(self, end: int | None, start: int = 0) -> PartitionStatus:
        """The same, where the source ends at `end` by now, and begins at `start`; None where nobody knows.

        Not of a partition whose source topic is another one by now: what that holds is no lag of this copy. Nor of one
        that ends below what was copied: it lost records, and how many others it holds in their place nobody knows.
        """
        if end is None or not 0 <= self.next_offset <= end or self.state is State.RECREATED:
            return self if self.lag_records is None else replace(self, lag_records=None)
        return replace(self, log_end=end, lag_records=max(0, end - max(start, self.next_offset)))

    def carried(self, instance: str, state: State, detail: str) -> PartitionStatus:
        """Return the report of a partition that no task looks at now, from its last one; its counts begin anew."""
        contact = self.contact or NO_CONTACT
        return PartitionStatus(
            flow=self.flow,
            instance=instance,
            topic=self.topic,
            partition=self.partition,
            target_topic=self.target_topic,
            state=state,
            detail=detail,
            next_offset=self.next_offset,
            log_end=contact.end,
            lag_records=None,
            at_ms=clock.now_ms(),
            caught_up_ms=self.caught_up_ms,
            contact_ms=contact.at_ms,
            tombstones_ms=self.tombstones_ms,
        )

    def key(self) -> builtins.bytes:
        """The record key on the flow's topic: the newest report of a target partition replaces the older ones."""
        return self.key_of(self.target_topic, self.partition)

    @staticmethod
    def key_of(target_topic: str, partition: int) -> builtins.bytes:
        """The record key of a target partition."""
        return PREFIX + f"{target_topic}/{partition}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The figures of several partitions together. `lag_records` is the sum of those that are known, None where none
    is, and `lag_unknown` counts the others; `lag_ms` is the worst one known.
    """

    partitions: int
    states: Mapping[State, int]
    stopped: int
    lag_records: int | None
    lag_unknown: int
    lag_ms: int | None
    records: int
    batches: int
    bytes: int
    filled: int
    lost: int
    verdicts: Mapping[str, int]

    @property
    def counts(self) -> dict[str, int | None]:
        """The numbers that every log event about a whole flow names."""
        names = "partitions", "stopped", "records", "batches", "bytes", "lag_records", "lag_unknown"
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, figures: Iterable[PartitionStatus]) -> Totals:
        """Add up one report per partition."""
        every = list(figures)
        lags = [status.lag_records for status in every if status.lag_records is not None]
        verdicts: Counter[str] = Counter()
        for one in every:
            verdicts.update(one.verdicts)
        return cls(
            partitions=len(every),
            states=Counter(status.state for status in every),
            stopped=sum(status.state.is_stop for status in every),
            lag_records=sum(lags) if lags else None,
            lag_unknown=len(every) - len(lags),
            lag_ms=max((status.lag_ms for status in every if status.lag_ms is not None), default=None),
            records=sum(status.records for status in every),
            batches=sum(status.batches for status in every),
            bytes=sum(status.bytes for status in every),
            filled=sum(status.filled for status in every),
            lost=sum(status.lost for status in every),
            verdicts=verdicts,
        )


# --- What a task as a whole reports beside its partitions -------------------------------------------------------------

TASK_PREFIX: Final = b"task/"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus(JsonRecord):
    """One task in one epoch, counted since this attempt at it began."""

    instance: str
    task: Int64
    epoch: Int64
    #: 0 unless Spark started the task again.
    attempt: Int64 = 0
    at_ms: Int64
    #: From a fetch request to its answer, of answers with records.
    fetch: Histogram = field(default_factory=Histogram)
    #: From a produce request to its acks.
    produce: Histogram = field(default_factory=Histogram)
    #: How long the brokers of either side muted us for a quota.
    source_throttled_ms: Int64 = 0
    target_throttled_ms: Int64 = 0

    def key(self) -> bytes:
        """The record key on the flow's topic: the newest report of a task replaces the older ones."""
        return TASK_PREFIX + str(self.task).encode()


# --- How the consumer groups of a flow stand --------------------------------------------------------------------------

KEY: Final = b"groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures(JsonRecord):
    """The groups that have committed offsets for mirrored partitions."""

    #: The process that reports.
    instance: str
    #: Wall clock of the round that read all of them, Unix ms.
    at_ms: Int64
    #: The sum of those below.
    groups: Int64 = 0
    synced: Int64 = 0
    #: Until records are mirrored.
    held_back: Int64 = 0
    #: They have consumed on the target.
    ahead: Int64 = 0
    #: They have members on the target.
    active: Int64 = 0
    #: By what the log says.
    blocked: Int64 = 0
    #: At the target's log start, since what they would read next is deleted there.
    expired: Int64 = 0
