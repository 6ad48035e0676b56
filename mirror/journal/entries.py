"""Entries of the journal: topic records, start offsets, losses, and pauses.

The position is the target's log end, and says nothing about a source topic that was deleted and created again; its id
does (KIP-516). A target topic that was created anew begins anew, whatever the source was.

- It is decided once, at the flow's first start and before any task runs or anything is reported, and kept with what the
  topic was first seen as, or by itself for one that is re-keyed: who dies before the first append begins at the same
  offset.
- A target that holds anything already, or did, says itself where to go on.
- What the flow sees later, topics and partitions alike, is mirrored from its first record: nothing that is written
  before a mirror has noticed a topic may be missed.

loss/<target topic>/<partition>/<offset>   what was lost, of a source topic by its id: kept for ever, of no account for
                                           another topic by that name; of a re-keyed topic the partition is the source's
accept/<target topic>/<partition>          what a person accepted, so that the flow goes on behind it; with the
                                           offsets that were looked at, since a later loss is a new one, and the
                                           source topic's id, since another topic of that name loses other records
rekeyed/<target topic>                     as what the source of a re-keyed topic was first seen, as `topic/...` says it
                                           of a copy: written before its first record, so that no other flow takes it
                                           for its own or back to where it came from. Where its query stands, the plans
                                           say (`spark/rekey/`): this decides nothing. A dead-letter topic is named
                                           by its id alone: several topics, and flows, may have one together
making/<target topic>                      the same, without ids of topics, before the flow creates the target topic:
                                           from its first moment on a flow back knows it for a copy. It says nothing of
                                           whose the topic is
start/<target topic>                       where a re-keyed topic begins, until its first plan is on record
settings/<target topic>                    settings of a copy that do not follow its source's, and why, while that lasts
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal, NamedTuple, Self
from uuid import UUID

from pydantic import AfterValidator, Field, PlainSerializer

from mirror import clock
from mirror.journal.journal import Change
from mirror.journal.kinds import PartitionKind, PlaceKind, TopicKind
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, begin_since, list_offset, replicated_end
from mirror.observability.json_record import Codec, Int64, JsonRecord, Offset, TopicId, codec_of
from mirror.observability.status import NOT_OURS
from mirror.replication.assignment import POSSIBLE, Assignment, Loss

# --- As which topic a flow first saw a source topic, in its journal under `topic/<target topic>` ----------------------

#: The id of a topic as text, empty for None.
IdText = Annotated[TopicId, PlainSerializer(lambda topic_id: str(topic_id or ""))]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSeen(JsonRecord):
    """The source topic and both topics' ids when mirroring began; None for an id that a cluster does not have."""

    #: Empty for a dead-letter topic.
    source_topic: str
    topic_id: IdText
    target_topic_id: IdText
    cluster_id: str | None
    #: The flow created the target topic.
    made: bool = False
    #: By partition, the source offset below which nothing is mirrored; the partitions that follow are mirrored from
    #: their first record.
    since: tuple[Offset, ...] = ()
    #: The flow did not create the target topic: it was empty when the flow began it, or `mirror adopt` took it over.
    adopted: bool = False
    #: `mirror adopt` took it over, which says nothing of where the flow began.
    compared: bool = False
    #: When all its records were found on the source (Unix ms); 0 where only its ends were looked at.
    compared_ms: Offset = 0
    #: The ids of the clusters that the data came through, the source's own first; see `chain`.
    origins: tuple[str, ...] = ()
    #: When the flow deleted the copy, since its source was gone (Unix ms); 0 where it did not.
    deleted_ms: Offset = 0

    def omitted(self) -> set[str]:
        """Return what the record does not name where there is nothing to say."""
        return {name for name in ("compared", "compared_ms", "deleted_ms") if not getattr(self, name)}

    @property
    def is_letters(self) -> bool:
        """It is a dead-letter topic, of no one source topic."""
        return not self.source_topic

    @property
    def chain(self) -> tuple[str, ...]:
        """The ids of the clusters that the data came through; a record of version 0.1.0 knows of the source alone."""
        return self.origins or ((self.cluster_id,) if self.cluster_id else ())

    @property
    def hops(self) -> tuple[str, ...]:
        """The chain, and behind it the source topic itself as `cluster id/topic id`: clusters may share an id."""
        known = self.cluster_id and self.topic_id
        return (*self.chain, f"{self.cluster_id}/{self.topic_id}") if known else self.chain

    def is_about(self, other: Self) -> bool:
        """Whether both are of one source topic's name and one target topic."""
        is_one_copy = same_id(self.target_topic_id, other.target_topic_id)
        return self.source_topic == other.source_topic and is_one_copy

    def learned(self, now: Self) -> Self:
        """What is on record from here on of what was seen before, and is seen as `now`; that itself where it is another
        topic, or another cluster's. Ids that were not known then are by now; a copy of version 0.1.0 learns its
        origins.
        """
        if not self.is_about(now) or not same_id(self.cluster_id, now.cluster_id):
            return now
        return replace(
            self,
            topic_id=self.topic_id or now.topic_id,
            target_topic_id=self.target_topic_id or now.target_topic_id,
            cluster_id=self.cluster_id or now.cluster_id,
            origins=now.origins if same_id(self.topic_id, now.topic_id) else self.origins,
            deleted_ms=0,
        )

    def from_another(self, source_id: str | None) -> str:
        """What is said of a copy where the source, with this id, is another cluster than it was mirrored from; empty
        where it is that one, or one of both ids is not known.
        """
        if same_id(self.cluster_id, source_id or None):
            return ""
        return f"its copy was mirrored from cluster {self.cluster_id}, and the source is cluster {source_id}"

    def begins(self, partition: int) -> int:
        """The source offset below which nothing is mirrored of a partition."""
        return self.since[partition] if partition < len(self.since) else 0


def same_id(one: UUID | str | None, other: UUID | str | None) -> bool:
    """Whether two ids of topics or clusters may be those of the same one: None is an id that is not known, and never
    another one.
    """
    return one is None or other is None or one == other


#: Of copies, which have their source's offsets.
COPIES: Final = TopicKind(b"topic/", codec_of(FirstSeen))
#: Of topics that are re-keyed.
REKEYED: Final = TopicKind(b"rekeyed/", codec_of(FirstSeen))
#: The same of both, before the target topic is created.
MAKING: Final = TopicKind(b"making/", codec_of(FirstSeen))


def mirrored_cluster(journal: Mapping[bytes, bytes]) -> str | None:
    """The id of the cluster that all copies of a flow were mirrored from, or re-keyed; None where that is not known of
    any, or these are several.
    """
    seen = (*COPIES.newest(journal).values(), *REKEYED.newest(journal).values())
    ids = {first_seen.cluster_id for first_seen in seen if first_seen.cluster_id and not first_seen.deleted_ms}
    return ids.pop() if len(ids) == 1 else None


# --- Where a flow begins in its source, as `topics.start` asks for it -------------------------------------------------

#: A source partition and its copy; None for one that is not there yet.
Copy = tuple[TopicPartition, TopicPartition | None]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def moment(start: Literal["earliest", "latest"] | datetime) -> int:
    """`topics.start` as ListOffsets takes it: `EARLIEST`, `LATEST`, or the Unix time in ms that no record below it
    reaches. What lies before 1970 is 1970, since negative times mean something else there.
    """
    if isinstance(start, datetime):
        return max(0, -((_EPOCH - start) // _MILLISECOND))
    return LATEST if start == "latest" else EARLIEST


async def start_offsets(
    source: Cluster, target: Cluster, copies: Iterable[Copy], when: int
) -> dict[TopicPartition, int]:
    """By source partition, the offset below which nothing is to be mirrored; 0 where all is.

    Raises ClusterUnreachable, AccessDenied, BrokerError where a single partition cannot be asked: to begin it
    elsewhere than was asked for could not be mended later.
    """

    async def of(partition: TopicPartition, other: TopicPartition | None) -> int:
        if when == EARLIEST or (other is not None and await replicated_end(target, other)):
            return 0
        return await _offset_at(source, partition, when)

    asked = list(copies)
    found = await asyncio.gather(*(of(*copy) for copy in asked))
    return {partition: offset for (partition, _), offset in zip(asked, found, strict=True)}


async def _offset_at(source: Cluster, partition: TopicPartition, when: int) -> int:
    """The first offset at or after a moment, 0 for that of the log itself: what a source deletes of its first records
    before they are mirrored is no loss. The log's end where there is none, which for the latest is where a reader of
    committed records begins: no transaction is mirrored in part.
    """
    start = await list_offset(source, partition, EARLIEST)
    if when == LATEST:
        found = await list_offset(source, partition, LATEST, READ_COMMITTED)
    else:
        end = await list_offset(
            source, partition, LATEST
        )  # asked before: what is appended in between may be of that time
        found = await begin_since(source, partition, when, start, end)
    return found if found > start else 0


def starts_in(records: Mapping[bytes, bytes], target: Cluster) -> dict[TopicPartition, int]:
    """By target partition, where its copy began, as the newest records of a journal say; without those that began with
    the first record, and those whose target topic is another one by now. `target` knows the topics that matter.
    """
    return {
        TopicPartition(topic, number): offset
        for topic, seen in COPIES.newest(records).items()
        if seen.target_topic_id == target.topic_id(topic)
        for number, offset in enumerate(seen.since)
        if offset
    }


@dataclass(frozen=True, slots=True)
class PendingStart:
    """Names where a re-keyed topic begins that has no plan yet."""

    source_topic: str
    topic_id: IdText
    #: As ListOffsets takes it.
    when: Int64
    #: By partition, which offset that was at the flow's first start, 0 for the log's start; empty where it could not be
    #: asked.
    since: tuple[Offset, ...]


#: A tombstone: the plans of the topic say where it begins.
STARTS: Final = TopicKind(b"start/", codec_of(PendingStart))


# --- Records that the source lost before they were mirrored, as the journal names them --------------------------------

#: Why records were lost, where a record does not say.
RETENTION: Final = "retention"


@dataclass(frozen=True, slots=True)
class Accepted:
    """Offsets of the source between which losses are accepted."""

    first: Offset
    next_offset: Annotated[Offset, Field(alias="upto")]
    #: Of this source topic; None where its cluster has no ids.
    topic_id: TopicId
    reason: str = RETENTION

    @property
    def offsets(self) -> tuple[int, int]:
        """Return the first offset, and the one behind the last."""
        return self.first, self.next_offset

    def covers(self, loss: Loss | Lost, topic_id: UUID | None) -> bool:
        """Whether a loss of the topic with that id was accepted already, as a whole."""
        return topic_id == self.topic_id and self.first <= loss.first and loss.next_offset <= self.next_offset


ACCEPTED: Final = PartitionKind(b"accept/", codec_of(Accepted), is_dated=True)


@dataclass(frozen=True, slots=True)
class Lost:
    """Source offsets, from and to before, whose records never came to a target partition, and why."""

    first: Offset
    next_offset: Annotated[Offset, Field(alias="next")]
    reason: str = RETENTION
    #: Of the source topic and the copy with these ids; None where the record does not say, as of version 0.1.0.
    topic_id: TopicId = None
    target_topic_id: TopicId = None
    #: The source topic, and what was found there, for people.
    topic: str = field(default="", compare=False)
    detail: str = field(default="", compare=False)

    def concerns(self, topic_id: UUID | None, target_topic_id: UUID | None) -> bool:
        """Whether it is a loss of the source topic and the copy with these ids."""
        return same_id(self.topic_id, topic_id) and same_id(self.target_topic_id, target_topic_id)


def _in_order(lost: Lost) -> Lost:
    if not lost.first < lost.next_offset + (lost.reason in POSSIBLE):
        raise ValueError("a loss must have offsets that follow each other")
    return lost


#: By the first offset; by the reason where nobody knows what is lost.
LOSSES: Final = PlaceKind(b"loss/", Codec[Lost](Annotated[Lost, AfterValidator(_in_order)]), is_dated=True)


def loss_entry(loss: Loss) -> tuple[bytes, bytes]:
    """Return the record of a loss."""
    ids = loss.topic_id, loss.target_topic_id
    lost = Lost(loss.first, loss.next_offset, loss.reason, *ids, loss.source.topic, loss.detail)
    return LOSSES.entry(_loss_name(loss.target, lost), lost)


def forgotten_entry(target: TopicPartition, lost: Lost) -> tuple[bytes, None]:
    """Return the tombstone of a loss of which nobody knows that it was one."""
    return LOSSES.tombstone(_loss_name(target, lost))


def _loss_name(target: TopicPartition, lost: Lost) -> tuple[TopicPartition, str]:
    return target, lost.reason if lost.reason in POSSIBLE else str(lost.first)


def losses_in(known: Mapping[bytes, bytes]) -> dict[TopicPartition, tuple[Lost, ...]]:
    """Return by target partition and in offset order what the newest records of a journal say was lost of the source
    topics and copies of now, re-keyed ones as well. A copy that was begun anew began behind what the former one lacked,
    or has it.
    """
    found: dict[TopicPartition, list[Lost]] = {}
    seen, rekeyed = COPIES.newest(known), REKEYED.newest(known)  # what was copied as it is once may have both records
    for (target, _), lost in LOSSES.newest(known).items():
        named = [now for of in (seen, rekeyed) if (now := of.get(target.topic)) is not None]
        if not named or any(lost.concerns(first_seen.topic_id, first_seen.target_topic_id) for first_seen in named):
            found.setdefault(target, []).append(lost)
    return {target: tuple(sorted(lost, key=lambda one: one.first)) for target, lost in found.items()}


def accept_entry(loss: Loss, topic_id: UUID | None) -> tuple[bytes, bytes]:
    """Return the record that accepts a loss of the source topic with this id."""
    return ACCEPTED.entry(loss.target, Accepted(loss.first, loss.next_offset, topic_id, loss.reason))


def accepted_for(assignment: Assignment, accepted: Mapping[TopicPartition, Accepted]) -> tuple[int, int] | None:
    """What is accepted of a partition: nothing where the topic that it was accepted of was another one."""
    found = accepted.get(assignment.target)
    return found.offsets if found is not None and found.topic_id == assignment.topic_id else None


# --- Settings of copies that do not follow their sources' -------------------------------------------------------------


class Unfollowed(NamedTuple):
    """A setting of a target topic that does not have the value that its source has, or that the mirror asks for; empty
    for the default.
    """

    topic: str
    setting: str
    source_value: str
    target_value: str
    reason: str

    def __str__(self) -> str:
        wanted, value = self.source_value or "the default", self.target_value or "not set"
        return f"{self.topic}: {self.setting} is to be {wanted}, and is {value} on the target: {self.reason}"


#: By target topic: setting, the source's value, the target's, reason.
SETTINGS: Final = TopicKind(b"settings/", Codec[list[tuple[str, str, str, str]]](list[tuple[str, str, str, str]]))


def unfollowed_in(known: Mapping[bytes, bytes]) -> dict[str, tuple[Unfollowed, ...]]:
    """Return by target topic what the newest records of a journal say."""
    every = SETTINGS.newest(known).items()
    return {topic: tuple(Unfollowed(topic, *fields) for fields in settings) for topic, settings in every}


def unfollowed_entries(
    before: Mapping[str, tuple[Unfollowed, ...]], now: Mapping[str, tuple[Unfollowed, ...]]
) -> list[Change]:
    """Return the records by which the journal says what is so `now`, and not what was `before`."""
    return [
        SETTINGS.change(topic, [unfollowed[1:] for unfollowed in now[topic]] if topic in now else None)
        for topic in sorted(before.keys() | now.keys())
        if before.get(topic) != now.get(topic)
    ]


# --- Paused topics ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pause:
    """Says when a source topic was paused (Unix ms)."""

    at_ms: Int64


#: By source topic. A record pauses the topic, whatever its value; a tombstone resumes it.
PAUSES: Final = TopicKind(b"pause/", codec_of(Pause))


def pause_entry(topic: str) -> tuple[bytes, bytes]:
    """Return the record that pauses a topic."""
    return PAUSES.entry(topic, Pause(clock.now_ms()))


def paused_in(known: Mapping[bytes, bytes]) -> frozenset[str]:
    """Return the paused source topics, as the newest records of a journal say."""
    paused = set[str]()
    for key in known:
        with contextlib.suppress(*NOT_OURS):
            if (topic := PAUSES.name(key)) is not None:
                paused.add(topic)
    return frozenset(paused)
