"""One micro-batch of a re-keyed topic: what is planned, why a task gave up, and the topic that records progress."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Final, Self, TypeVar

from pydantic import Field

from mirror import clock
from mirror.errors import AccessDenied, ClusterUnreachable, ConfigError, MirrorError, NotAuthenticated
from mirror.journal.journal import decode, encode, newest
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.log_reader import ReadLog, last_committed
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, epoch_end, every_listed, list_offset
from mirror.kafka.topic_configs import topic_configs
from mirror.kafka.transactions import awaiting_markers
from mirror.observability.json_record import JsonRecord, codec_of
from mirror.policy.rules import is_compacted, is_stamped
from mirror.policy.selection import Rekeying
from mirror.records.header import RawBatch, parse_header
from mirror.records.recipe import CAP
from mirror.states import REKEYED_BY, Remedy, State

# --- How a task reports to the driver why it gave up-------------------------------------------------------------------

T = TypeVar("T")

_MARK: Final = "mirror-stop:"
_FOUND: Final = re.compile(re.escape(_MARK) + r"(\[.*?\])(?:$|\n)", re.MULTILINE)


class RekeyStop(MirrorError):
    """A source partition cannot be re-keyed from `offset` on, -1 where that is not known. `remedies` are what resolves
    it, by default all that does in its state.
    """

    def __init__(self, state: State, partition: int, offset: int, detail: str, *remedies: Remedy) -> None:
        self.state, self.partition, self.offset, self.detail = state, partition, offset, detail
        self.remedies = remedies or REKEYED_BY[state]
        names = [remedy.name for remedy in self.remedies]
        super().__init__(_MARK + json.dumps([state, partition, offset, detail, names]))

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.state, self.partition, self.offset, self.detail, *self.remedies)

    def text(self, values: Mapping[str, object]) -> str:
        """What is wrong, and what to do."""
        return f"{self.detail}. {self.advice(values)}"

    def advice(self, values: Mapping[str, object]) -> str:
        """What to do."""
        known = {**values, "partition": self.partition}
        return ". ".join(remedy.text(known) for remedy in self.remedies)

    def at(self, partition: int, offset: int) -> RekeyStop:
        """The same of one source partition, where it is that of all."""
        return RekeyStop(self.state, partition, offset, self.detail, *self.remedies)

    @staticmethod
    def found_in(failure: Exception) -> RekeyStop | None:
        """The stop that a failed job ended with, if it was one."""
        found = _FOUND.search(str(failure))
        if found is None:
            return None
        state, partition, offset, detail, names = json.loads(found[1])
        return RekeyStop(State(state), int(partition), int(offset), str(detail), *(Remedy[name] for name in names))


def denied(problem: AccessDenied) -> RekeyStop:
    """The stop of a topic for which the mirror lacks a right, or is not known to a cluster."""
    remedy = Remedy.MEND_LOGIN if isinstance(problem, NotAuthenticated) else Remedy.GRANT_REKEYED
    return RekeyStop(State.UNAUTHORIZED, -1, -1, str(problem), remedy)


def naming_denials(step: Callable[[Iterator[T]], Iterator[T]]) -> Callable[[Iterator[T]], Iterator[T]]:
    """The step of a task, which stops where it lacks a right: what else it fails with is text for the driver."""

    def stepped(given: Iterator[T]) -> Iterator[T]:
        try:
            yield from step(given)
        except AccessDenied as problem:
            raise denied(problem) from problem

    return stepped


def advice_values(rule: Rekeying, source: Endpoint, target: Endpoint) -> dict[str, object]:
    """Return what the advice of any stop of a re-keyed topic names (`RekeyStop.text`)."""
    return {
        "topic": rule.source,
        "damaged": rule.source,
        "side": "source",
        "begin": "",
        "target_topic": rule.target,
        "progress": rule.progress,
        "written_to": rule.writes_records_to,
        "dead_letter": rule.dead_letter,
        "source": source.servers,
        "target": target.servers,
    }


# --- One micro-batch of a re-keyed topic ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchPlan(JsonRecord):
    """Micro-batch `number`, which a slot carries out that has committed number `after` (K3).

    There are `slots`. Of each source partition the records from `begin` to before `until`; none of them is of a
    leader epoch after that in `epochs`. The topic ids are those of source and target when it was planned: another topic
    by the same name has other records. `abandoned`: the plan that this one takes the place of, if no slot had that.
    """

    number: int
    after: int
    begin: Mapping[int, int]
    until: Annotated[Mapping[int, int], Field(alias="upto")]
    epochs: Mapping[int, int]
    slots: int
    rule: Rekeying
    source_id: uuid.UUID | None
    target_id: uuid.UUID | None
    abandoned: MicroBatchPlan | None = None

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """(partition, first offset, offset behind the last), without those that are empty."""
        return tuple(
            (partition, self.begin[partition], until)
            for partition, until in sorted(self.until.items())
            if until > self.begin[partition]
        )

    @classmethod
    def from_json(cls, value: bytes) -> Self:
        """Return the plan of a record. Raises ConfigError for what no mirror wrote."""
        try:
            return codec_of(cls).read(value)
        except ValueError as problem:
            raise ConfigError(f"a plan of the re-key query cannot be read: {problem}") from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What tasks need besides their rows: the plan, both clusters, and how many slots there are. `opens`: bytes
    that one record may have without compression.
    """

    flow: str
    plan: MicroBatchPlan
    source: Endpoint
    target: Endpoint
    slots: int
    opens: int = CAP


# --- The progress topic of a re-keyed topic ---------------------------------------------------------------------------

#: What a slot has that has committed nothing yet.
NOTHING: Final = -1
_NUMBER: Final = b"number"
_PLAN: Final = b"plan"
#: What the markers of transactions that are over may take, as long as their coordinator works.
_MARKER_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.02


def plans_of(rule: Rekeying) -> TopicPartition:
    """Where the plans are."""
    return TopicPartition(rule.progress, 0)


def number_at(rule: Rekeying, slot: int) -> TopicPartition:
    """Where a slot's number is."""
    return TopicPartition(rule.progress, 1 + slot)


def slot_of(partition: int, slots: int) -> int:
    """Which of so many slots writes a target partition."""
    return partition % slots


def transactional_id(rule: Rekeying, slot: int) -> str:
    """The id under which a slot writes."""
    return f"{rule.progress}.{slot}"


@dataclass(frozen=True, slots=True)
class Reached:
    """What a slot has committed.

    number: that of its last micro-batch.
    ends: by target partition, a leader epoch, which none of the slot's records there is newer than, and the offset
        behind the last of them: a log in which that epoch ends before has lost some.
    has_all_ends: a partition that is not among `ends` has no record of the slot. Unknown of what 0.1.0 wrote.
    """

    number: int = NOTHING
    ends: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    has_all_ends: bool = True

    def gap(self, partition: int, at: int) -> tuple[int, int] | None:
        """The offsets from the end of the slot's records in a target partition to before offset `at`, where these are
        more than the marker of its last transaction; None where they are not, or that end is not known.
        """
        if partition not in self.ends:
            return (0, at) if self.has_all_ends and at > 0 else None
        _, end = self.ends[partition]
        return (end, at) if at > end + 1 else None


def numbered(reached: Reached) -> RawBatch:
    """The batch that says how far a slot has come."""
    return _batch(_NUMBER, json.dumps(asdict(reached)).encode())


def reached_in(raw: RawBatch | None) -> Reached:
    """What such a batch says, or none. Raises ConfigError for one that no mirror wrote."""
    if raw is None:
        return Reached()
    try:
        fields = json.loads(_value(raw, _NUMBER))
        if isinstance(fields, int):  # as 0.1.0 wrote it
            return Reached(fields, has_all_ends=False)
        ends = {int(number): (int(epoch), int(end)) for number, (epoch, end) in fields["ends"].items()}
        return Reached(int(fields["number"]), ends, fields.get("has_all_ends", False) is True)
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise ConfigError(f"a slot of the re-key query has no number: {problem!r}") from problem


def committed_ends(
    rule: Rekeying, every: Iterable[TopicPartition], reached: Sequence[Reached]
) -> tuple[dict[TopicPartition, tuple[int, int]], dict[TopicPartition, str]]:
    """Of these target partitions, the `ends` of what slots have committed there, by slot in `reached`; and the
    transactional id of the slot that has.
    """
    ends: dict[TopicPartition, tuple[int, int]] = {}
    writers: dict[TopicPartition, str] = {}
    for partition in every:
        for slot, one in enumerate(reached):
            epoch, end = one.ends.get(partition.partition, (-1, 0))
            if epoch >= 0:
                ends[partition], writers[partition] = (epoch, end), transactional_id(rule, slot)
    return ends, writers


async def lost_of(target: Cluster, partition: TopicPartition, end: int, epoch: int) -> str:
    """What a target partition lost of a slot's records, which had been acknowledged up to before offset `end` and are
    no newer than leader epoch `epoch`: in words, empty where it has them, or nobody knows any more. The leader is asked
    also where that epoch is still its own by all that is known here: metadata may not name a crash yet.
    """
    return lost_behind(partition, (await epoch_end(target, partition, epoch)).end, end)


def lost_behind(partition: TopicPartition, kept: int, end: int) -> str:
    """The same of a log that was cut back to offset `kept`, -1 where that is not known."""
    if not 0 <= kept < end:
        return ""
    what = f"{partition} was cut back to offset {kept}, and had acknowledged those up to {end - 1}"
    return f"the target lost records: {what}"


async def undecided_in(
    target: Cluster, ends: Mapping[TopicPartition, tuple[int, int]], writers: Mapping[TopicPartition, str]
) -> str:
    """What a target has lost of what slots had committed, by their `ends` (`Reached.ends`), where that is what decided
    about it, and maybe more: in words, empty where all of it is decided. `writers`: the transactional id of the slot
    that wrote there.

    Without its marker a transaction that was committed is open, and the next one of its slot would decide about it, too
    (Kafka's ProducerAppendInfo). A slot that somebody began with anew has all its markers, and others get theirs while
    this waits. One that the coordinator still has to write is late, and not lost.

    Raises as `every_listed` and `awaiting_markers` do: a leader that says nothing may be the one that has lost it. And
    ClusterUnreachable where a marker is late.
    """
    deadline = clock.monotonic() + _MARKER_SECONDS
    written = set[TopicPartition]()  # by what their coordinators said before the log was looked at again
    while True:
        stable = await every_listed(target, ends, LATEST, READ_COMMITTED)
        found = [(partition, stable[partition]) for partition, (_, end) in ends.items() if stable[partition] < end]
        if not found:
            return ""
        at, offset = min(found)
        epoch, end = ends[at]
        if lost := await lost_of(target, at, end, epoch):
            return lost
        if at in written:
            what = f"{at} has no marker for those from offset {offset} on, and had acknowledged it"
            return f"the target lost records: {what}"
        if clock.monotonic() > deadline:
            if at in await awaiting_markers(target, writers[at]):
                raise marker_late(target, at, writers[at])
            written.add(at)
        else:
            await asyncio.sleep(POLL_SECONDS)


async def settle_letters(target: Cluster, rule: Rekeying, slots: int) -> None:
    """Wait until what slots have committed to the dead-letter topic is there for readers of committed records, as far
    as the coordinators may be asked. Raises ClusterUnreachable where a marker is late.
    """
    deadline = clock.monotonic() + _MARKER_SECONDS
    names = [transactional_id(rule, slot) for slot in range(slots)] if rule.dead_letter else []
    for name in names:
        with contextlib.suppress(AccessDenied):  # of whoever only reads
            while late := [
                partition for partition in await awaiting_markers(target, name) if partition.topic == rule.dead_letter
            ]:
                if clock.monotonic() > deadline:
                    raise marker_late(target, min(late), name)
                await asyncio.sleep(POLL_SECONDS)


def marker_late(target: Cluster, partition: TopicPartition, transactional_id: str) -> ClusterUnreachable:
    """The error where a partition's leader does not take the marker of what is committed."""
    return ClusterUnreachable(
        f"{target}: {partition}: the coordinator of transactional id {transactional_id} has committed a micro-batch,"
        " and its marker is not written yet: the partition's leader does not take it; it needs min.insync.replicas"
        " in-sync replicas"
    )


async def foreign_in(target: Cluster, partition: TopicPartition, begin: int, end: int) -> str:
    """The first committed record from offset `begin` to before `end` of a target partition, between what its slot has
    committed and what is next: in words, empty where only markers and aborted records are there. Raises as
    `ReadLog.batches` does.
    """
    begin = max(begin, await list_offset(target, partition, EARLIEST))
    log = ReadLog(target, partition, await list_offset(target, partition, LATEST, READ_COMMITTED), end)
    async for raw in log.committed(begin):
        offset = max(begin, raw.header.base_offset)
        return f"the record at offset {offset} of {partition} is not the mirror's, by what its progress topic says"
    return ""


async def misfit_in(target: Cluster, rule: Rekeying) -> RekeyStop | None:
    """The stop where a topic that is to get records would, by its settings of now, give them times of its own, or
    remove what the source keeps.
    """
    if rule.may_stamp and rule.fits_compaction:
        return None
    for topic, configs in (await topic_configs(target, rule.record_topics)).items():
        if not isinstance(configs, tuple):
            continue  # of one whose settings are not to be seen, the acks say whose times it has
        known = {config.name: config.value or "" for config in configs}
        if is_stamped(known) and not rule.may_stamp:
            return stamped(rule, topic, f"{topic} has message.timestamp.type=LogAppendTime")
        if topic == rule.target and is_compacted(known) and not rule.fits_compaction:
            detail = f"{topic} is compacted, and its cleaner removes records that the source keeps"
            return RekeyStop(State.REFUSED, -1, -1, detail, Remedy.KEEP_REPEATED)
    return None


def stamped(rule: Rekeying, topic: str, what: str) -> RekeyStop:
    """The stop where one of the target's topics gives records times that nobody has asked for."""
    remedy = Remedy.KEEP_TIMES if topic == rule.target else Remedy.KEEP_LETTER_TIMES
    return RekeyStop(State.REFUSED, -1, -1, f"{what}, and topics.append_time is source", remedy)


def planned(plan: MicroBatchPlan) -> RawBatch:
    """The batch that holds a plan."""
    return _batch(_PLAN, plan.to_json())


async def last_plan(cluster: Cluster, rule: Rekeying) -> MicroBatchPlan | None:
    """The newest plan, None where there was none yet. Raises ConfigError for what is no plan, and ClusterError."""
    raw = await last_committed(cluster, plans_of(rule))
    return None if raw is None else MicroBatchPlan.from_json(_value(raw, _PLAN))


def _batch(key: bytes, value: bytes) -> RawBatch:
    data = memoryview(encode([(key, value)]))
    return RawBatch(parse_header(data), data)


def _value(raw: RawBatch, key: bytes) -> bytes:
    entries, _, _ = decode(raw.data)
    value = newest(entries).get(key)
    if value is None:
        raise ConfigError(f"a record of the re-key query's progress is not the mirror's: no {key.decode()} in it")
    return value
