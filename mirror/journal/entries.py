"""Entries of the journal: topic records, start offsets, losses, and pauses.

The position is the target's log end, and says nothing about a source topic that was deleted and created again; its id
does (KIP-516). A target topic that was created anew begins anew, whatever the source was.

B1  it is decided once, at the flow's first start and before any task runs or anything is reported, and kept with what
    the topic was first seen as, or by itself for one that is re-keyed: who dies before the first append begins at the
    same offset
B2  a target that holds anything already, or did, says itself where to go on
B3  what the flow sees later, topics and partitions alike, is mirrored from its first record: nothing that is
    written before a mirror has noticed a topic may be missed

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
start/<target topic>                       where a re-keyed topic begins (B1), until its first plan is on record
settings/<target topic>                    settings of a copy that do not follow its source's, and why, while that lasts
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal, NamedTuple, Self, TypeVar
from uuid import UUID

from pydantic import BeforeValidator

from mirror import clock
from mirror.journal.journal import Entry
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, begin_since, list_offset, replicated_end
from mirror.observability.status import NOT_OURS, Count, Int64, parsed, reader
from mirror.replication.assignment import POSSIBLE, Assignment, Loss

T = TypeVar("T")


def newest_of(journal: Mapping[bytes, bytes], prefix: bytes, read: Callable[[str, bytes], T]) -> dict[str, T]:
    """Return what `read` makes of the newest records whose keys begin with `prefix`, by the rest of the keys; records
    that are none of ours are passed over: anybody may write there, and the supervisor says so.
    """
    found = dict[str, T]()
    for key, value in journal.items():
        if key.startswith(prefix):
            with contextlib.suppress(*NOT_OURS):
                name = key[len(prefix) :].decode()
                found[name] = read(name, value)
    return found


def id_in(value: object) -> UUID | None:
    """Return the id of a topic in a record. Raises ValueError for what is none."""
    return UUID(str(value)) if value else None


#: The id of a topic, which a record leaves empty where its cluster has none.
_Id = Annotated[UUID | None, BeforeValidator(lambda value: value or None)]


# --- As which topic a flow first saw a source topic, in its journal under `topic/<target topic>` ----------------------

#: What the keys of all of them begin with.
PREFIX: Final = b"topic/"
#: The same of those that are re-keyed: what is said of copies, which have their source's offsets, is not so of them.
REKEYED: Final = b"rekeyed/"
#: The same before the target topic is created.
MAKING: Final = b"making/"


#: What a record does not name where there is nothing to say.
_LEFT_OUT: Final = frozenset({"compared", "compared_ms", "deleted_ms"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSeen:
    """The source topic and both topics' ids when mirroring began; None for an id that a cluster does not have.

    `made`: the flow created the target topic. `since`: by partition, the source offset below which nothing is mirrored;
    those that are not named are mirrored from their first record. `adopted`: the flow did not create
    the target topic: it was empty when the flow began it, or `mirror adopt` took it over, which is `compared` and says
    nothing of where the flow began. `compared_ms`: when all its records were found on the source (Unix ms); 0 where
    only its ends were looked at. `origins`: the ids of the clusters that the data came through, the source's own first;
    see `chain`. `deleted_ms`: when the flow deleted the copy, since its source was gone (Unix ms); 0 where it did not.
    """

    source_topic: str
    topic_id: _Id
    target_topic_id: _Id
    cluster_id: str | None
    made: bool = False
    since: tuple[Count, ...] = ()
    adopted: bool = False
    compared: bool = False
    compared_ms: Count = 0
    origins: tuple[str, ...] = ()
    deleted_ms: Count = 0

    @staticmethod
    def key(target_topic: str) -> bytes:
        """The record's key."""
        return PREFIX + target_topic.encode()

    @staticmethod
    def rekeyed_key(target_topic: str) -> bytes:
        """The key of a record of a topic that is re-keyed."""
        return REKEYED + target_topic.encode()

    @staticmethod
    def making_key(target_topic: str) -> bytes:
        """The key of a record of a topic that is about to be created."""
        return MAKING + target_topic.encode()

    @classmethod
    def read(cls, value: bytes) -> FirstSeen:
        """From the journal. Raises one of `NOT_OURS` where it is not one of ours."""
        return _read_first_seen(value)

    def to_json(self) -> bytes:
        """For the journal."""
        fields = {name: value for name, value in asdict(self).items() if value or name not in _LEFT_OUT}
        ids = {name: str(fields[name] or "") for name in ("topic_id", "target_topic_id")}
        return json.dumps(fields | ids).encode()

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


_read_first_seen: Final = reader(FirstSeen, "a topic as it was first seen")


def same_id(one: UUID | str | None, other: UUID | str | None) -> bool:
    """Whether two ids of topics or clusters may be those of the same one: None is an id that is not known, and never
    another one.
    """
    return one is None or other is None or one == other


def seen_in(journal: Mapping[bytes, bytes]) -> dict[str, FirstSeen]:
    """By target topic, as what its source was first seen, as the newest records of a journal say; without topics that
    are re-keyed.
    """
    return newest_of(journal, PREFIX, lambda _, value: FirstSeen.read(value))


def rekeyed_in(journal: Mapping[bytes, bytes]) -> dict[str, FirstSeen]:
    """The same of topics that are re-keyed."""
    return newest_of(journal, REKEYED, lambda _, value: FirstSeen.read(value))


def making_in(journal: Mapping[bytes, bytes]) -> dict[str, FirstSeen]:
    """The same of topics that the flow was about to create."""
    return newest_of(journal, MAKING, lambda _, value: FirstSeen.read(value))


def mirrored_cluster(journal: Mapping[bytes, bytes]) -> str | None:
    """The id of the cluster that all copies of a flow were mirrored from, or re-keyed; None where that is not known of
    any, or these are several.
    """
    seen = (*seen_in(journal).values(), *rekeyed_in(journal).values())
    ids = {one.cluster_id for one in seen if one.cluster_id and not one.deleted_ms}
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
    """By source partition, the offset below which nothing is to be mirrored; 0 where all is (B2).

    Raises ClusterUnreachable, AccessDenied, BrokerError where a single partition cannot be asked: to begin it
    elsewhere than was asked for could not be mended later.
    """

    async def of(one: TopicPartition, other: TopicPartition | None) -> int:
        if when == EARLIEST or (other is not None and await replicated_end(target, other)):
            return 0
        return await _offset_at(source, one, when)

    asked = list(copies)
    found = await asyncio.gather(*(of(*copy) for copy in asked))
    return {one: offset for (one, _), offset in zip(asked, found, strict=True)}


async def _offset_at(source: Cluster, at: TopicPartition, when: int) -> int:
    """The first offset at or after a moment, 0 for that of the log itself: what a source deletes of its first records
    before they are mirrored is no loss. The log's end where there is none, which for the latest is where a reader of
    committed records begins: no transaction is mirrored in part.
    """
    start = await list_offset(source, at, EARLIEST)
    if when == LATEST:
        found = await list_offset(source, at, LATEST, READ_COMMITTED)
    else:
        end = await list_offset(source, at, LATEST)  # asked before: what is appended in between may be of that time
        found = await begin_since(source, at, when, start, end)
    return found if found > start else 0


def starts_in(records: Mapping[bytes, bytes], target: Cluster) -> dict[TopicPartition, int]:
    """By target partition, where its copy began, as the newest records of a journal say; without those that began with
    the first record, and those whose target topic is another one by now. `target` knows the topics that matter.
    """
    return {
        TopicPartition(topic, number): offset
        for topic, seen in seen_in(records).items()
        if seen.target_topic_id == target.topic_id(topic)
        for number, offset in enumerate(seen.since)
        if offset
    }


_START: Final = b"start/"


@dataclass(frozen=True, slots=True)
class PendingStart:
    """Where a re-keyed topic begins that has no plan yet."""

    #: The source topic.
    source_topic: str
    #: Its id.
    topic_id: _Id
    #: The time, as ListOffsets takes it.
    when: Int64
    #: By partition, which offset that was at the flow's first start, 0 for the log's start; empty where it could not be
    #: asked.
    since: tuple[Count, ...] = ()


_read_start: Final = reader(PendingStart, "where a topic begins")


def start_entry(target: str, start: PendingStart | None) -> tuple[bytes, bytes | None]:
    """The record of where a re-keyed topic begins; None: its plans say it."""
    key = _START + target.encode()
    if start is None:
        return key, None
    return key, json.dumps(asdict(start) | {"topic_id": str(start.topic_id or "")}).encode()


def pending_starts(known: Mapping[bytes, bytes]) -> dict[str, PendingStart]:
    """By target topic, the same as the newest records of a journal say."""
    return newest_of(known, _START, lambda _, value: _read_start(value))


# --- Records that the source lost before they were mirrored, as the journal names them --------------------------------

_ACCEPT = "accept/"
_LOSS = "loss/"
#: Why records were lost, where a record does not say.
RETENTION: Final = "retention"


class Accepted(NamedTuple):
    """One target partition and the offsets, from and to before, between which losses are accepted, of the source topic
    with this id; None where its cluster has no ids.
    """

    target: TopicPartition
    offsets: tuple[int, int]
    topic_id: UUID | None

    def covers(self, loss: Loss, topic_id: UUID | None) -> bool:
        """Whether a loss of the topic with that id was accepted already, as a whole."""
        first, until = self.offsets
        return topic_id == self.topic_id and first <= loss.first and loss.next_offset <= until


class Lost(NamedTuple):
    """Source offsets, from and to before, whose records never came to a target partition, and why; of the source topic
    and the copy with these ids, None where the record does not say.
    """

    first: int
    next_offset: int
    reason: str = RETENTION
    topic_id: UUID | None = None
    target_topic_id: UUID | None = None

    def concerns(self, topic_id: UUID | None, target_topic_id: UUID | None) -> bool:
        """Whether it is a loss of the source topic and the copy with these ids."""
        return same_id(self.topic_id, topic_id) and same_id(self.target_topic_id, target_topic_id)


def loss_entry(loss: Loss) -> tuple[bytes, bytes]:
    """The record of a loss."""
    fields = {
        "topic": loss.source.topic,
        "first": loss.first,
        "next": loss.next_offset,
        "reason": loss.reason,
        "detail": loss.detail,
        "topic_id": str(loss.topic_id) if loss.topic_id else None,
        "target_topic_id": str(loss.target_topic_id) if loss.target_topic_id else None,
        "at_ms": clock.now_ms(),
    }
    return _loss_key(loss.target, loss), json.dumps(fields).encode()


def _loss_key(target: TopicPartition, lost: Loss | Lost) -> bytes:
    """Of what nobody knows to be lost, there is one record for each reason."""
    name = lost.reason if lost.reason in POSSIBLE else lost.first
    return f"{_LOSS}{target.topic}/{target.partition}/{name}".encode()


def forgotten_entry(target: TopicPartition, lost: Lost) -> tuple[bytes, None]:
    """The record that takes a loss back, of which nobody knows that it was one."""
    return _loss_key(target, lost), None


def loss_target(record: Entry) -> TopicPartition | None:
    """The target partition of a record that is about a loss, or takes one back; None for another record. Raises one of
    `NOT_OURS` for a garbled key.
    """
    if not record.key.startswith(_LOSS.encode()):
        return None
    topic, partition, _ = record.key.decode()[len(_LOSS) :].rsplit("/", 2)
    return TopicPartition(topic, int(partition))


def losses_in(known: Mapping[bytes, bytes]) -> dict[TopicPartition, tuple[Lost, ...]]:
    """By target partition and in offset order, what the newest records of a journal say was lost of the source topics
    and copies of now, re-keyed ones as well; records that are none of ours are passed over. A copy that was begun anew
    began behind what the former one lacked, or has it.
    """
    found: dict[TopicPartition, list[Lost]] = {}
    seen, rekeyed = seen_in(known), rekeyed_in(known)  # what was copied as it is once may have both records
    for key, value in known.items():
        with contextlib.suppress(*NOT_OURS):
            if (recorded := read_loss(Entry(0, key, value))) is not None:
                target, lost = recorded
                named = [now for of in (seen, rekeyed) if (now := of.get(target.topic)) is not None]
                if not named or any(lost.concerns(one.topic_id, one.target_topic_id) for one in named):
                    found.setdefault(target, []).append(lost)
    return {target: tuple(sorted(lost, key=lambda one: one.first)) for target, lost in found.items()}


def read_loss(record: Entry) -> tuple[TopicPartition, Lost] | None:
    """The target partition and the loss that a record is about; None where it is about something else. Raises one of
    `NOT_OURS` where it is not one that `loss_entry` made.
    """
    if (target := loss_target(record)) is None or record.value is None:
        return None
    fields = parsed(record.value)
    first, following = int(fields["first"]), int(fields["next"])
    ids = (id_in(fields.get(name)) for name in ("topic_id", "target_topic_id"))
    lost = Lost(first, following, str(fields.get("reason", RETENTION)), *ids)  # version 0.1.0 wrote no ids
    if not 0 <= lost.first < lost.next_offset + (lost.reason in POSSIBLE):
        raise ValueError("a loss must have offsets that follow each other")
    return target, lost


def accept_entry(loss: Loss, topic_id: UUID | None) -> tuple[bytes, bytes]:
    """The record that accepts a loss of the source topic with this id."""
    fields = {
        "first": loss.first,
        "upto": loss.next_offset,
        "reason": loss.reason,
        "topic_id": str(topic_id) if topic_id else None,
        "at_ms": clock.now_ms(),
    }
    return f"{_ACCEPT}{loss.target.topic}/{loss.target.partition}".encode(), json.dumps(fields).encode()


def read_accepted(record: Entry) -> Accepted | None:
    """What a record accepts; None where it is about something else. Raises one of `NOT_OURS` where it is not one that
    `accept_entry` made.
    """
    if not record.key.startswith(_ACCEPT.encode()) or record.value is None:
        return None
    topic, _, partition = record.key.decode()[len(_ACCEPT) :].rpartition("/")
    fields = parsed(record.value)
    offsets = int(fields["first"]), int(fields["upto"])
    return Accepted(TopicPartition(topic, int(partition)), offsets, id_in(fields["topic_id"]))


def accepted_for(one: Assignment, accepted: Mapping[TopicPartition, Accepted]) -> tuple[int, int] | None:
    """What is accepted of a partition: nothing where the topic that it was accepted of was another one."""
    found = accepted.get(one.target)
    return found.offsets if found is not None and found.topic_id == one.topic_id else None


# --- Settings of copies that do not follow their sources' -------------------------------------------------------------

_SETTINGS: Final = b"settings/"


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


def unfollowed_in(known: Mapping[bytes, bytes]) -> dict[str, tuple[Unfollowed, ...]]:
    """By target topic, what the newest records of a journal say."""

    def read(topic: str, value: bytes) -> tuple[Unfollowed, ...]:
        return tuple(Unfollowed(topic, *map(str, fields)) for fields in parsed(value))

    return newest_of(known, _SETTINGS, read)


def unfollowed_entries(
    before: Mapping[str, tuple[Unfollowed, ...]], now: Mapping[str, tuple[Unfollowed, ...]]
) -> list[tuple[bytes, bytes | None]]:
    """The records by which the journal says what is so `now`, and not what was `before`."""
    return [
        (_SETTINGS + topic.encode(), json.dumps([one[1:] for one in now[topic]]).encode() if topic in now else None)
        for topic in sorted(before.keys() | now.keys())
        if before.get(topic) != now.get(topic)
    ]


# --- Paused topics ----------------------------------------------------------------------------------------------------

_PAUSE: Final = b"pause/"


class Pause(NamedTuple):
    """What a record says of a source topic: that it is paused, or resumed."""

    topic: str
    is_paused: bool


def pause_entry(topic: str) -> tuple[bytes, bytes]:
    """The record that pauses a topic."""
    return _PAUSE + topic.encode(), json.dumps({"at_ms": clock.now_ms()}).encode()


def resume_entry(topic: str) -> tuple[bytes, None]:
    """The record that lets it go on."""
    return _PAUSE + topic.encode(), None


def read_pause(record: Entry) -> Pause | None:
    """What a record says; None where it is about something else. Raises ValueError for a name that is none."""
    if not record.key.startswith(_PAUSE):
        return None
    return Pause(record.key[len(_PAUSE) :].decode(), record.value is not None)


def paused_in(known: Mapping[bytes, bytes]) -> frozenset[str]:
    """The paused source topics, as the newest records of a journal say."""
    return frozenset(newest_of(known, _PAUSE, lambda topic, _: topic))
