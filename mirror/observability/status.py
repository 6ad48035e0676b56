"""Status records: what tasks, partitions, and groups report on the flow's journal.

They travel as JSON on the flow's compacted topic, keyed by target partition: the newest report of each partition is
what remains there, and `status` works from anywhere. Reading ignores keys it does not know, so that an older `status`
can watch a newer mirror.
"""

from __future__ import annotations

import builtins
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Final, NamedTuple, Self, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from mirror import clock
from mirror.states import State

# --- JSON as it comes back from a topic -------------------------------------------------------------------------------

#: What reading a record may raise that is of another version, or of somebody else's: OverflowError is an infinity's,
#: where a whole number should be.
NOT_OURS: Final = (ValueError, KeyError, TypeError, OverflowError)
#: Kafka's own numbers have 64 bits; larger ones cannot even be shown.
Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
T = TypeVar("T")


def parsed(value: bytes) -> Any:
    """A record's JSON. Raises ValueError for what is none, however deep it is nested, and for text that could not be
    shown: JSON can name halves of a character, which UTF-8 cannot encode.
    """
    try:
        text = value.decode()  # JSONDecodeError, UnicodeDecodeError and UnicodeEncodeError are ValueErrors
        found = json.loads(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def reader(kind: type[T], what: str) -> Callable[[bytes], T]:
    """Return a function that reads a record as a dataclass, whose fields must have the types that are declared; keys
    that it does not know are ignored. It raises ValueError, which begins with `what`.
    """
    adapter = TypeAdapter(kind)

    def read(value: bytes) -> T:
        try:
            return adapter.validate_json(value, strict=True)
        except ValidationError as problem:
            errors = problem.errors(include_url=False)
        if absent := sorted(str(error["loc"][-1]) for error in errors if error["type"] == "missing"):
            raise ValueError(f"{what} lack {', '.join(absent)}")
        place = ".".join(map(str, errors[0]["loc"]))
        raise ValueError(f"{what}: {place} is {errors[0]['input']!r}: {errors[0]['msg']}")

    return read


# --- How long things took, counted by size ----------------------------------------------------------------------------

#: Upper bounds of the buckets in seconds, the bound itself included; a last bucket takes what is longer.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BUCKETS: Final = len(BOUNDS) + 1


@dataclass(slots=True)
class Histogram:
    """Durations, counted by size."""

    #: Durations in each bucket, one more than `BOUNDS` has.
    counts: Annotated[list[Count], Field(min_length=_BUCKETS, max_length=_BUCKETS)] = field(
        default_factory=lambda: [0] * _BUCKETS
    )
    #: Their sum in seconds.
    total: Annotated[float, Field(gt=-(1 << 63), lt=1 << 63)] = 0.0

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
class PartitionStatus:
    """One partition, now.

    `instance`: the process that reports. `next_offset`: the next source offset to copy. `log_end`: the source's end as
    last seen, -1 where it never was. `lag_records`: offsets that the source holds up to its end of now, markers and
    holes among them, None where nobody knows that: a partition that is paused, waits or stopped does not read its
    source, so whoever asks the source fills it in (`with_end`). `lag_ms`: the latency of the last batch that the target
    acknowledged, from its newest record's timestamp to the ack; 0 when caught up, None if unknown. `records`,
    `batches`, `bytes`, `filled` (offsets that control markers took), `lost` (those among them that the source had
    lost), `target_lost` (records that the target had acknowledged and lost), `verdicts` (batches, keyed
    `VERDICT/reason`), `verdict_bytes` (the bytes of those: written, or left out for DROP) and `latency` (of each
    acknowledged batch whose records have timestamps, as in `lag_ms`) count since this instance started. `at_ms`: wall
    clock of the report, Unix ms. `caught_up_ms`: when the copy last had all that the source had; 0 where that is not
    known. `contact_ms`: the time of `contact`, which every report carries on, whatever its state: the journal keeps the
    newest one alone. `tombstones_ms`: how long the source has kept tombstones since, at the least; None where it was
    not compacted. `verified`: since the task began, the copy's last records were found to be the source's. `presumed`:
    the state is a stop that was known before, and the task has not looked at the partition yet.
    """

    flow: str
    instance: str
    topic: str
    partition: Int64
    target_topic: str
    state: State
    detail: str = ""
    next_offset: Int64
    log_end: Int64
    lag_records: Int64 | None
    lag_ms: Int64 | None = None
    records: Int64 = 0
    batches: Int64 = 0
    bytes: Int64 = 0
    filled: Int64 = 0
    lost: Int64 = 0
    target_lost: Int64 = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    verdict_bytes: Mapping[str, int] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    at_ms: Int64
    caught_up_ms: Int64 = 0
    contact_ms: Int64 = 0
    tombstones_ms: Int64 | None = None
    verified: bool = False
    presumed: bool = False

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
        return self.state in _SEEING

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

    def to_json(self) -> builtins.bytes:
        """The record value."""
        counts = {"verdicts": dict(self.verdicts), "verdict_bytes": dict(self.verdict_bytes)}
        return json.dumps(asdict(self) | counts, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: builtins.bytes) -> PartitionStatus:
        """Read a record value. `ValueError` when it is not one; unknown keys are ignored."""
        return _read_partition(data)


_read_partition: Final = reader(PartitionStatus, "figures")


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
        lags = [one.lag_records for one in every if one.lag_records is not None]
        verdicts: Counter[str] = Counter()
        for one in every:
            verdicts.update(one.verdicts)
        return cls(
            partitions=len(every),
            states=Counter(one.state for one in every),
            stopped=sum(one.state.is_stop for one in every),
            lag_records=sum(lags) if lags else None,
            lag_unknown=len(every) - len(lags),
            lag_ms=max((one.lag_ms for one in every if one.lag_ms is not None), default=None),
            records=sum(one.records for one in every),
            batches=sum(one.batches for one in every),
            bytes=sum(one.bytes for one in every),
            filled=sum(one.filled for one in every),
            lost=sum(one.lost for one in every),
            verdicts=verdicts,
        )


_SEEING: Final = frozenset({State.MIRRORING, State.CAUGHT_UP})


# --- What a task as a whole reports beside its partitions -------------------------------------------------------------

TASK_PREFIX: Final = b"task/"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """One task in one epoch, counted since this attempt at it began.

    `attempt` is 0 unless Spark started the task again. `fetch`: from a fetch request to its answer, of answers with
    records; `produce`: from a produce request to its acks; both in seconds. `throttled_ms`: how long the brokers of
    either side muted us for a quota.
    """

    instance: str
    task: Int64
    epoch: Int64
    attempt: Int64 = 0
    at_ms: Int64
    fetch: Histogram = field(default_factory=Histogram)
    produce: Histogram = field(default_factory=Histogram)
    source_throttled_ms: Int64 = 0
    target_throttled_ms: Int64 = 0

    def key(self) -> bytes:
        """The record key on the flow's topic: the newest report of a task replaces the older ones."""
        return TASK_PREFIX + str(self.task).encode()

    def to_json(self) -> bytes:
        """The record value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> TaskStatus:
        """Read a record value. `ValueError` when it is not one; unknown keys are ignored."""
        return _read_task(data)


_read_task: Final = reader(TaskStatus, "figures of a task")


# --- How the consumer groups of a flow stand --------------------------------------------------------------------------

KEY: Final = b"groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """The groups that have committed offsets for mirrored partitions.

    `instance`: the process that reports; `at_ms`: wall clock of the round that read all of them, Unix ms. `groups` is
    the sum of `synced`; `held_back`, until records are mirrored; `ahead`, having consumed on the target; `expired`, at
    the target's log start, since what they would read next is deleted there; `active`, with members there; and
    `blocked`, by what the log says.
    """

    instance: str
    at_ms: Int64
    groups: Int64 = 0
    synced: Int64 = 0
    held_back: Int64 = 0
    ahead: Int64 = 0
    active: Int64 = 0
    blocked: Int64 = 0
    expired: Int64 = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """All but who reports, and when."""
        return self.groups, self.synced, self.held_back, self.ahead, self.active, self.blocked, self.expired

    def to_json(self) -> bytes:
        """The record value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> GroupFigures:
        """Read a record value. `ValueError` when it is not one; unknown keys are ignored."""
        return _read_groups(data)


_read_groups: Final = reader(GroupFigures, "figures of groups")
