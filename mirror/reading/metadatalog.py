"""Which topics a lost cluster had, and their settings: its KRaft metadata log, out of the data folders of its nodes.

`__cluster_metadata-0` lies in the `metadata.log.dir` of each controller and broker, or in the first of its `log.dirs`.
The value of each record is a frame version (1), the number and the version of a message, each an unsigned varint, and
the message (Kafka `AbstractApiMessageSerde`, `MetadataRecordSerde`). A snapshot `<end offset>-<epoch>.checkpoint` holds
what all records below that offset amount to (KIP-630), and the log below it may be gone.

T1  of several replicas of the log one is taken as of any partition's: what a later leader epoch cut off is left out
T2  of a metadata transaction (KIP-866) nothing counts unless its end is there
T3  a removed topic takes its settings along, as in a controller (Kafka `ReplicationControlManager`); which ids were
    removed is known as far back as the log goes, and not from a snapshot
T4  a record that cannot be read is left out and told. One of a kind that says nothing of topics is passed over unread
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from mirror.batch.control import marker_type
from mirror.batch.header import RawBatch
from mirror.batch.segment import Walk
from mirror.errors import BadRecords, ConfigError
from mirror.reading.archive import PartitionLog, load
from mirror.reading.fields import Fields, batches_of, pairs_of
from mirror.reading.segments import Mapped
from mirror.reading.sidecars import MOST_PARTITIONS
from mirror.wire.cluster import TopicPartition

#: Where a cluster keeps what it knows of itself.
METADATA: Final = TopicPartition("__cluster_metadata", 0)
#: Kafka `Snapshots`: 20 digits of the end offset, 10 of the epoch. One that is being written ends in `.part`.
_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_FRAME_VERSION: Final = 1
#: Kafka `ControlRecordType.SNAPSHOT_FOOTER`: without it a snapshot is not whole.
_SNAPSHOT_FOOTER: Final = 4
#: Kafka `MetadataRecordType` by number.
_TOPIC, _PARTITION, _CONFIG, _REMOVE_TOPIC = 2, 3, 4, 9
_BEGIN, _END, _ABORT = 23, 24, 25
#: The newest version of each message that can be read here (Kafka 4.3).
_NEWEST: Final = {_TOPIC: 0, _PARTITION: 2, _CONFIG: 0, _REMOVE_TOPIC: 0, _BEGIN: 0, _END: 0, _ABORT: 0}
#: Kafka `ConfigResource.Type.TOPIC`.
_OF_TOPIC: Final = 2


class TopicMade(NamedTuple):
    """A topic was created."""

    name: str
    topic_id: UUID


class PartitionMade(NamedTuple):
    """A topic has this partition, or it was changed as a whole."""

    topic_id: UUID
    partition: int


class ConfigSet(NamedTuple):
    """A setting of a topic was given a value; None: it was taken back."""

    topic: str
    name: str
    value: str | None


class TopicRemoved(NamedTuple):
    """A topic was deleted, its partitions and settings with it."""

    topic_id: UUID


class Transaction(NamedTuple):
    """A metadata transaction begins (`ended` None), or ends with what is in it counting or not."""

    ended: bool | None


Message = TopicMade | PartitionMade | ConfigSet | TopicRemoved | Transaction


def decode(value: bytes) -> Message | None:
    """What a record of the log says of topics; None where it says nothing of them.

    Raises BadRecords where the value is not one that a controller wrote, or is of a newer version than is known here.
    """
    fields = Fields(value)
    if (frame := fields.varint()) != _FRAME_VERSION:
        raise BadRecords(f"frame version {frame}, and {_FRAME_VERSION} is the only one")
    kind, version = fields.varint(), fields.varint()
    if kind not in _NEWEST:
        return None
    if version > _NEWEST[kind]:
        raise BadRecords(f"version {version} of message {kind}, and {_NEWEST[kind]} is the newest known here")
    found = _message(kind, fields)
    if kind != _PARTITION:  # of which only the beginning was read: replicas, leaders and folders are gone
        fields.tags()
        fields.end()
    return found


def _message(kind: int, fields: Fields) -> Message | None:
    match kind:
        case 2:
            return TopicMade(fields.string(flexible=True), fields.uuid())
        case 3:
            partition, topic_id = fields.int32(), fields.uuid()
            if not 0 <= partition < MOST_PARTITIONS:
                raise BadRecords(f"partition {partition} of topic {topic_id}")
            return PartitionMade(topic_id, partition)
        case 4:
            of, resource = fields.int8(), fields.string(flexible=True)
            name, value = fields.string(flexible=True), fields.nullable_string(flexible=True)
            return ConfigSet(resource, name, value) if of == _OF_TOPIC else None
        case 9:
            return TopicRemoved(fields.uuid())
        case _:
            return Transaction(None if kind == _BEGIN else kind == _END)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopic:
    """A topic as the cluster last knew it.

    topic_id: its id.
    partitions: how many it had.
    configs: what was set on the topic itself; anything else was its brokers' default.
    """

    topic_id: UUID
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopics:
    """All topics of a cluster, as its metadata log had them in the end.

    topics: by name.
    removed: ids of topics that are known to be deleted (T3).
    gone: the names that these had.
    end: the offset behind the last record of the log that was read.
    notes: what could not be read, in words.
    """

    topics: Mapping[str, KnownTopic] = field(default_factory=dict)
    removed: frozenset[UUID] = frozenset()
    gone: frozenset[str] = frozenset()
    end: int = 0
    notes: tuple[str, ...] = ()


class Replay:
    """Builds `ClusterTopics` from messages in the log's order."""

    def __init__(self) -> None:
        self._names: dict[UUID, str] = {}
        self._ids: dict[str, UUID] = {}
        self._partitions: dict[UUID, int] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self._removed: set[UUID] = set()
        self._gone: set[str] = set()
        self._pending: list[Message] | None = None

    def learn(self, message: Message) -> None:
        """One more message (T2)."""
        if isinstance(message, Transaction):
            pending, self._pending = self._pending or [], [] if message.ended is None else None
            if message.ended:
                for one in pending:
                    self._apply(one)
        elif self._pending is not None:
            self._pending.append(message)
        else:
            self._apply(message)

    def _apply(self, message: Message) -> None:
        match message:
            case TopicMade(name, topic_id):
                self._names[topic_id], self._ids[name] = name, topic_id
                self._removed.discard(topic_id)
            case PartitionMade(topic_id, partition):
                self._partitions[topic_id] = max(self._partitions.get(topic_id, 0), partition + 1)
            case ConfigSet(topic, name, None):
                self._configs.get(topic, {}).pop(name, None)
            case ConfigSet(topic, name, str(value)):
                self._configs.setdefault(topic, {})[name] = value
            case TopicRemoved(topic_id):
                self._removed.add(topic_id)
                self._partitions.pop(topic_id, None)
                if (gone := self._names.pop(topic_id, None)) is not None and self._ids.get(gone) == topic_id:
                    self._gone.add(gone)
                    del self._ids[gone]
                    self._configs.pop(gone, None)
            case _:
                pass

    def found(self, end: int = 0, notes: Iterable[str] = ()) -> ClusterTopics:
        """What all messages so far amount to; of a transaction without an end nothing (T2)."""
        topics = {
            name: KnownTopic(
                topic_id=topic_id,
                partitions=self._partitions.get(topic_id, 0),
                configs=dict(sorted(self._configs.get(name, {}).items())),
            )
            for name, topic_id in sorted(self._ids.items())
        }
        removed, gone = frozenset(self._removed), frozenset(self._gone)
        return ClusterTopics(topics=topics, removed=removed, gone=gone, end=end, notes=tuple(notes))


def topics_in(folders: Sequence[Path]) -> ClusterTopics | None:
    """What the replicas of a cluster's metadata log tell, each in one of these folders; None where they tell nothing.

    The newest snapshot that is whole is read, and the log from there on; without one the log alone, where it has its
    first record. Raises ConfigError where a file changes meanwhile.
    """
    notes: list[str] = []
    log: PartitionLog | None = None
    try:
        log = load(folders, skips_damage=True)
        notes += log.notes
    except ConfigError as problem:
        notes.append(f"the cluster's metadata log cannot be read: {problem}")
    end, replay = 0, Replay()
    for upto, path in sorted(_snapshots(folders), reverse=True):
        try:
            batches = list(_snapshot_batches(path))
        except (BadRecords, ConfigError) as problem:
            notes.append(f"{path} is left out: {problem}")
            continue
        end = upto
        notes += _learn(replay, batches, str(path))
        break
    if log is not None and log.start <= end:
        notes += _learn(replay, batches_of(log, end), "the cluster's metadata log")
        end = max(end, log.end)
    elif log is not None and end == 0:
        return None  # records below the log's start are in no file
    elif log is not None:
        notes.append(f"the cluster's metadata log begins at offset {log.start}, behind its snapshot's end at {end}")
    return replay.found(end, dict.fromkeys(notes)) if end else None


def _snapshots(folders: Iterable[Path]) -> Iterator[tuple[int, Path]]:
    """End offset and path of each snapshot."""
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if named := _SNAPSHOT.fullmatch(path.name):
                yield int(named[1]), path


def _snapshot_batches(path: Path) -> Iterator[RawBatch]:
    """Raises BadRecords where the snapshot is not whole, and ConfigError where it cannot be read."""
    walk, is_whole = Walk(Mapped.of(path).data), False
    for raw in walk:
        is_whole = raw.header.is_control and marker_type(raw) == _SNAPSHOT_FOOTER
        yield raw
    if walk.damage is not None or not is_whole:
        raise BadRecords(str(walk.damage or "it has no end"))


def _learn(replay: Replay, batches: Iterable[RawBatch], where: str) -> Iterator[str]:
    """Replay the records of data batches; notes on those that cannot be read (T4)."""
    unread, first = 0, ""
    for raw in batches:
        if raw.header.is_control:
            continue
        try:
            for one in pairs_of(raw):
                try:
                    if one.value is not None and (message := decode(one.value)) is not None:
                        replay.learn(message)
                except BadRecords as problem:
                    unread, first = unread + 1, first or f"offset {one.offset}: {problem}"
        except BadRecords as problem:
            unread, first = unread + 1, first or str(problem)
    if unread:
        yield f"{unread} records of {where} cannot be read, and are left out; the first is {first}"
