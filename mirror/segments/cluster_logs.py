"""What brokers keep in logs of their own: KRaft metadata and committed group offsets.

kio has the messages of the wire, and not those that brokers write to `__cluster_metadata` and `__consumer_offsets`.
Their fields are encoded in the same ways (Kafka `ByteBufferAccessor`, KIP-482): big-endian numbers, strings behind an
int16 length (-1: null), and in flexible versions behind an unsigned varint of length + 1 (0: null).

`__cluster_metadata-0` lies in the `metadata.log.dir` of each controller and broker, or in the first of its `log.dirs`.
The value of each record is a frame version (1), the number and the version of a message, each an unsigned varint, and
the message (Kafka `AbstractApiMessageSerde`, `MetadataRecordSerde`). A snapshot `<end offset>-<epoch>.checkpoint` holds
what all records below that offset amount to (KIP-630), and the log below it may be gone.

T1  of several replicas of the log one is taken, as of any partition
T2  of a metadata transaction (KIP-866) nothing counts unless its end is there
T3  a removed topic takes its settings along, as in a controller (Kafka `ReplicationControlManager`); which ids were
    removed is known as far back as the log goes, and not from a snapshot
T4  a record that cannot be read is left out and reported. One of a kind that says nothing of topics is passed over
    unread
T5  which replicas have all that was committed, a controller writes down before anything is committed without the others
    (KIP-497, KIP-966): those in sync, and those that may be elected. A change of leader begins a new leader epoch
    (Kafka `PartitionRegistration.merge`)
T6  who votes on the metadata, the newest leader says (Kafka `LeaderChangeMessage`), below a snapshot as well, or the
    snapshot (KIP-853), or a node's `quorum-state` (before that). What was committed, a majority of them has: so many of
    their logs as meet any majority lack none of it, and fewer may; so may any where nobody says who votes, and where
    something of the log behind the snapshot is missing or cannot be read

A key begins with its kind as an int16: 0 and 1 are offsets of a group (group, topic, partition), 17 says that a group
is a streams group (KIP-1071); others say of members what nobody needs any more. A value begins with its version, 0 to
4, of which 4 is flexible; null deletes the key (Kafka `CoordinatorRecordSerde`, `OffsetCommitKey`, `OffsetCommitValue`,
`LegacyOffsetCommitValue`).

C1  of each key the last record counts. Offsets of a transaction count from its marker on and only if that commits it,
    unless a later record than theirs counts already (KIP-98, Kafka `OffsetMetadataManager.replayEndTransactionMarker`)
C2  a transaction without an end counts for nothing, and is reported
C3  a log ends at its first damage, so that an older offset may count: a group then reads some records again. What may
    lack anything is not whole, as a topic's partition, but for offsets that compaction leaves out
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from mirror.errors import BadRecords, ConfigError
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import OFFSETS_TOPIC, Committed
from mirror.records.header import ABORT, COMMIT, RawBatch, marker_type
from mirror.records.rewrite import read
from mirror.records.segment import Walk
from mirror.segments.files import MOST_PARTITIONS, Mapped, voters_of
from mirror.segments.replica import Replica, scan
from mirror.segments.replica_sets import load, taken

# --- What brokers keep in logs of their own ---------------------------------------------------------------------------

#: Bytes of a log that are looked at together.
_CHUNK: Final = 4 << 20
_INT8, _INT16, _INT32, _INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
#: Bytes of an unsigned varint of 32 bits.
_VARINT_BYTES: Final = 5
_UUID_BYTES: Final = 16


class Pair(NamedTuple):
    """One record: its offset, its key and its value."""

    offset: int
    key: bytes | None
    value: bytes | None


def batches_of(log: Replica, begin: int = 0) -> Iterator[RawBatch]:
    """The sound batches of a log that reach beyond an offset, control batches and those of open and aborted
    transactions included. Raises ConfigError where a file changes meanwhile.
    """
    at = max(begin, log.start)
    while data := log.read(at, _CHUNK, log.end):
        walk = Walk(data)
        for raw in walk:
            if raw.header.next_offset > at:
                yield raw
        if walk.next_offset <= at:
            return
        at = walk.next_offset


def pairs_of(raw: RawBatch) -> Iterator[Pair]:
    """The records of a batch of data, of any magic. Raises BadRecords where it is not what its header says."""
    found = read(raw)
    data = found.data.tobytes()
    columns = (found.offsets, found.key_at, found.key_size, found.value_at, found.value_size)
    for offset, key_at, key_size, value_at, value_size in zip(*(one.tolist() for one in columns), strict=True):
        key = None if key_size < 0 else data[key_at : key_at + key_size]
        yield Pair(offset, key, None if value_size < 0 else data[value_at : value_at + value_size])


class Fields:
    """The fields of a message, taken one after another. Each of these raises BadRecords where the bytes end before the
    field does, or are none of its kind.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int8(self) -> int:
        """A byte with a sign."""
        return self._number(_INT8)

    def int16(self) -> int:
        """Two bytes with a sign."""
        return self._number(_INT16)

    def int32(self) -> int:
        """Four bytes with a sign."""
        return self._number(_INT32)

    def int64(self) -> int:
        """Eight bytes with a sign."""
        return self._number(_INT64)

    def uuid(self) -> UUID:
        """An id of 16 bytes."""
        return UUID(bytes=self._taken(_UUID_BYTES))

    def varint(self) -> int:
        """An unsigned varint below 2^32."""
        found = 0
        for number in range(_VARINT_BYTES):
            byte = self._taken(1)[0]
            found |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                if found >= 1 << 32:
                    break
                return found
        raise BadRecords(f"a varint beyond 32 bits at byte {self._at}")

    def string(self, *, flexible: bool) -> str:
        """Text that is there."""
        found = self.nullable_string(flexible=flexible)
        if found is None:
            raise BadRecords(f"null where a string is due at byte {self._at}")
        return found

    def nullable_string(self, *, flexible: bool) -> str | None:
        """Text, or null."""
        size = self.varint() - 1 if flexible else self.int16()
        if size < 0:
            if size < -1:
                raise BadRecords(f"a string of {size} bytes at byte {self._at}")
            return None
        try:
            return self._taken(size).decode()
        except UnicodeDecodeError as problem:
            raise BadRecords(f"a string that is no UTF-8 before byte {self._at}") from problem

    def int32s(self) -> tuple[int, ...]:
        """An array of a flexible version; null counts as empty."""
        return tuple(self.int32() for _ in range(self.varint() - 1))

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a flexible message, by their tags."""
        found: dict[int, bytes] = {}
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            found[tag] = self._taken(size)
        return found

    def end(self) -> None:
        """Raises BadRecords where bytes are left."""
        if left := len(self._data) - self._at:
            raise BadRecords(f"{left} bytes behind the end of a message")

    def _number(self, of: Struct) -> int:
        (found,) = of.unpack(self._taken(of.size))
        return int(found)

    def _taken(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise BadRecords(f"a message of {len(self._data)} bytes ends inside a field of {size} at byte {begin}")
        return self._data[begin : self._at]


# --- Which topics a lost cluster had, and their settings --------------------------------------------------------------

#: Where a cluster keeps what it knows of itself.
METADATA: Final = TopicPartition("__cluster_metadata", 0)
#: Kafka `Snapshots`: 20 digits of the end offset, 10 of the epoch. One that is being written ends in `.part`.
_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_FRAME_VERSION: Final = 1
_THE_LOG: Final = "the cluster's metadata log"
#: Kafka `ControlRecordType`: who leads, the end without which a snapshot is not whole, and who votes.
_LEADER_CHANGE, _SNAPSHOT_FOOTER, _VOTERS = 2, 4, 6
#: Kafka `MetadataRecordType` by number.
_TOPIC, _PARTITION, _CONFIG, _PARTITION_CHANGE, _REMOVE_TOPIC = 2, 3, 4, 5, 9
_BEGIN, _END, _ABORT = 23, 24, 25
#: The newest version of each message that can be read here (Kafka 4.3).
_NEWEST: Final = {
    _TOPIC: 0,
    _PARTITION: 2,
    _CONFIG: 0,
    _PARTITION_CHANGE: 2,
    _REMOVE_TOPIC: 0,
    _BEGIN: 0,
    _END: 0,
    _ABORT: 0,
}
#: Tagged fields of both messages about partitions.
_MADE_ELIGIBLE, _CHANGED_ISR, _CHANGED_LEADER, _CHANGED_ELIGIBLE = 1, 0, 1, 6
#: Kafka `ConfigResource.Type.TOPIC`.
_OF_TOPIC: Final = 2


class TopicMade(NamedTuple):
    """A topic was created."""

    name: str
    topic_id: UUID


class PartitionMade(NamedTuple):
    """A topic has this partition, or it was changed as a whole. `in_sync`: the brokers of replicas that have all that
    was committed; `eligible`: those of others that have it as well (T5).
    """

    topic_id: UUID
    partition: int
    in_sync: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()
    leader_epoch: int = 0


class PartitionChanged(NamedTuple):
    """The same was changed in part; None for what stays. `elects`: its leader changed, and so its leader epoch."""

    topic_id: UUID
    partition: int
    in_sync: tuple[int, ...] | None = None
    eligible: tuple[int, ...] | None = None
    elects: bool = False


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


Message = TopicMade | PartitionMade | PartitionChanged | ConfigSet | TopicRemoved | Transaction


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
    found = _message(kind, version, fields)
    tags = fields.tags()
    fields.end()
    match found:
        case PartitionMade() if tagged := tags.get(_MADE_ELIGIBLE):
            return found._replace(eligible=Fields(tagged).int32s())
        case PartitionChanged():

            def brokers(tag: int) -> tuple[int, ...] | None:
                return Fields(tags[tag]).int32s() if tag in tags else None

            elects = _CHANGED_LEADER in tags
            return found._replace(in_sync=brokers(_CHANGED_ISR), eligible=brokers(_CHANGED_ELIGIBLE), elects=elects)
        case _:
            return found


def _message(kind: int, version: int, fields: Fields) -> Message | None:
    match kind:
        case 2:
            return TopicMade(fields.string(flexible=True), fields.uuid())
        case 3:
            partition, topic_id = _partition(fields)
            _, in_sync = fields.int32s(), fields.int32s()
            fields.int32s(), fields.int32s(), fields.int32()  # those that leave and come, the leader
            leader_epoch, _ = fields.int32(), fields.int32()
            for _ in range(fields.varint() - 1 if version else 0):
                fields.uuid()  # the folder of each replica (KIP-858)
            return PartitionMade(topic_id, partition, in_sync, (), leader_epoch)
        case 4:
            of, resource = fields.int8(), fields.string(flexible=True)
            name, value = fields.string(flexible=True), fields.nullable_string(flexible=True)
            return ConfigSet(resource, name, value) if of == _OF_TOPIC else None
        case 5:
            partition, topic_id = _partition(fields)
            return PartitionChanged(topic_id, partition)
        case 9:
            return TopicRemoved(fields.uuid())
        case _:
            return Transaction(None if kind == _BEGIN else kind == _END)


def _partition(fields: Fields) -> tuple[int, UUID]:
    partition, topic_id = fields.int32(), fields.uuid()
    if not 0 <= partition < MOST_PARTITIONS:
        raise BadRecords(f"partition {partition} of topic {topic_id}")
    return partition, topic_id


class InSync(NamedTuple):
    """Who had all of a partition that was committed (T5)."""

    #: The brokers whose replicas were in sync, or may be elected.
    brokers: frozenset[int]
    #: The leader epoch as of which they were.
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopic:
    """A topic as the cluster last knew it.

    topic_id: its id.
    partitions: how many it had.
    configs: what was set on the topic itself; anything else was its brokers' default.
    in_sync: by partition, who had it whole.
    """

    topic_id: UUID
    partitions: int
    configs: Mapping[str, str]
    in_sync: Mapping[int, InSync] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopics:
    """All topics of a cluster, as its metadata log had them in the end.

    topics: by name.
    removed: ids of topics that are known to be deleted (T3).
    gone: the names that these had.
    end: the offset behind the last record of the log that was read.
    notes: what could not be read, in words.
    voters: the nodes that voted on the metadata (T6); empty where that is not known.
    is_whole: of the log behind the snapshot no record is known to be missing, or cannot be read.
    """

    topics: Mapping[str, KnownTopic] = field(default_factory=dict)
    removed: frozenset[UUID] = frozenset()
    gone: frozenset[str] = frozenset()
    end: int = 0
    notes: tuple[str, ...] = ()
    voters: frozenset[int] = frozenset()
    is_whole: bool = True

    def may_lack(self, nodes: Collection[int]) -> bool:
        """Whether the logs of these nodes may lack what was committed, so that all this is older than it (T6)."""
        fewest = max(1, len(self.voters) - len(self.voters) // 2)  # to meet any majority
        return not self.is_whole or len(self.voters.intersection(nodes)) < fewest


class MetadataReplay:
    """Builds `ClusterTopics` from messages in the log's order. `voters` and `is_whole`: as in `ClusterTopics`."""

    def __init__(self, voters: frozenset[int] = frozenset()) -> None:
        self.voters, self.is_whole = voters, True
        self._names: dict[UUID, str] = {}
        self._ids: dict[str, UUID] = {}
        self._partitions: dict[UUID, dict[int, PartitionMade]] = {}
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
                if self._ids.get(former := self._names.get(topic_id, name)) == topic_id:  # no log of Kafka's has this
                    del self._ids[former]
                self._names[topic_id], self._ids[name] = name, topic_id
                self._removed.discard(topic_id)
            case PartitionMade(topic_id, partition):
                self._partitions.setdefault(topic_id, {})[partition] = message
            case PartitionChanged(topic_id, partition):
                if (before := self._partitions.get(topic_id, {}).get(partition)) is not None:
                    self._partitions[topic_id][partition] = before._replace(
                        in_sync=before.in_sync if message.in_sync is None else message.in_sync,
                        eligible=before.eligible if message.eligible is None else message.eligible,
                        leader_epoch=before.leader_epoch + message.elects,
                    )
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
                partitions=1 + max(self._partitions.get(topic_id, {}), default=-1),
                configs=dict(sorted(self._configs.get(name, {}).items())),
                in_sync={
                    number: InSync(frozenset((*one.in_sync, *one.eligible)), one.leader_epoch)
                    for number, one in sorted(self._partitions.get(topic_id, {}).items())
                },
            )
            for name, topic_id in sorted(self._ids.items())
        }
        return ClusterTopics(
            topics=topics,
            removed=frozenset(self._removed),
            gone=frozenset(self._gone),
            end=end,
            notes=tuple(notes),
            voters=self.voters,
            is_whole=self.is_whole,
        )


def topics_in(folders: Sequence[Path]) -> ClusterTopics | None:
    """What the replicas of a cluster's metadata log say, each in one of these folders; None where they say nothing.

    The newest snapshot that is whole is read, and the log from there on; without one the log alone, where it has its
    first record. Raises ConfigError where a file changes meanwhile.
    """
    notes: list[str] = []
    log: Replica | None = None
    is_whole = True
    try:
        replicas = [scan(folder) for folder in folders]
        log, is_whole = taken(replicas), all(one.is_torn or not one.damage for one in replicas)
        notes += log.notes
    except ConfigError as problem:
        notes.append(f"{_THE_LOG} cannot be read: {problem}")
    end, snapshot, where = 0, list[RawBatch](), ""
    for until, path in sorted(_snapshots(folders), reverse=True):
        try:
            end, snapshot, where = until, list(_snapshot_batches(path)), str(path)
            break
        except (BadRecords, ConfigError) as problem:
            notes.append(f"{path} is left out: {problem}")
    _, voters = max(map(voters_of, folders), key=itemgetter(0), default=(-1, frozenset[int]()))
    replay = MetadataReplay(voters)
    if log is not None:  # what it says of voters alone, since the snapshot has no more of it
        below = takewhile(lambda raw: raw.header.base_offset < end, batches_of(log))
        notes += _learn(replay, (raw for raw in below if raw.header.is_control), _THE_LOG)
    notes += _learn(replay, snapshot, where)
    if log is not None and log.start <= end:
        notes += _learn(replay, batches_of(log, end), _THE_LOG)
        replay.is_whole &= is_whole
        end = max(end, log.end)
    elif log is not None and end == 0:
        return None  # records below the log's start are in no file
    else:
        replay.is_whole = False
        if log is not None:
            notes.append(f"{_THE_LOG} begins at offset {log.start}, behind its snapshot's end at {end}")
    return replay.found(end, dict.fromkeys(notes)) if end else None


def _snapshots(folders: Iterable[Path]) -> Iterator[tuple[int, Path]]:
    """End offset and path of each snapshot."""
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if named := _SNAPSHOT.fullmatch(path.name):
                yield int(named[1]), path


def _snapshot_batches(path: Path) -> Iterator[RawBatch]:
    """Raises BadRecords where the snapshot is not whole, and ConfigError where it cannot be read."""
    walk, is_whole = Walk(Mapped.checked(path).data), False
    for raw in walk:
        is_whole = raw.header.is_control and marker_type(raw) == _SNAPSHOT_FOOTER
        yield raw
    if walk.damage is not None or not is_whole:
        raise BadRecords(str(walk.damage or "it has no end"))


def _learn(replay: MetadataReplay, batches: Iterable[RawBatch], where: str) -> Iterator[str]:
    """Replay the records of data batches; notes on those that cannot be read (T4)."""
    unread, first = 0, ""
    for raw in batches:
        try:
            if raw.header.is_control:
                replay.voters = _voters(raw) or replay.voters
                continue
            for one in pairs_of(raw):
                try:
                    if one.value is not None and (message := decode(one.value)) is not None:
                        replay.learn(message)
                except BadRecords as problem:
                    unread, first = unread + 1, first or f"offset {one.offset}: {problem}"
        except BadRecords as problem:
            unread, first = unread + 1, first or str(problem)
    if unread:
        replay.is_whole = False
        yield f"{unread} records of {where} cannot be read, and are left out; the first is {first}"


def _voters(raw: RawBatch) -> frozenset[int]:
    """Who votes by a control batch that says it; nobody by another one. Raises BadRecords where it cannot be read."""
    found: list[int] = []
    for one in pairs_of(raw):  # a snapshot's first batch has several
        key, fields = Fields(one.key or b""), Fields(one.value or b"")
        key.int16()
        if (kind := key.int16()) not in (_LEADER_CHANGE, _VOTERS):
            continue
        version = fields.int16()
        if kind == _LEADER_CHANGE:
            fields.int32()
        for _ in range(fields.varint() - 1):
            found.append(fields.int32())
            if version or kind == _VOTERS:
                fields.uuid()  # the voter's folder (KIP-853)
            if kind == _VOTERS:
                for _ in range(fields.varint() - 1):  # its addresses
                    fields.string(flexible=True), fields.string(flexible=True), fields.int16(), fields.tags()
                fields.int16(), fields.int16(), fields.tags()
            fields.tags()
    return frozenset(found)


# --- What consumer groups had committed to a lost cluster -------------------------------------------------------------

_LEGACY, _OFFSETS, _STREAMS = 0, 1, 17
_FIRST_WITH_EPOCH, _WITH_EXPIRY, _FIRST_FLEXIBLE, _NEWEST_VALUE = 3, 1, 4, 4
_TOPIC_ID_TAG: Final = 0
_NO_ID: Final = UUID(int=0)


class Commit(NamedTuple):
    """What is committed for one partition. `topic_id`: of the topic that it was committed for, None where that is not
    said (before Kafka 4.1).
    """

    committed: Committed
    topic_id: UUID | None


def decode_key(key: bytes) -> tuple[str, TopicPartition] | None:
    """The group and the partition that a key is about; None for a key about something else. Raises BadRecords."""
    fields = Fields(key)
    if fields.int16() not in (_LEGACY, _OFFSETS):
        return None
    group, topic, partition = fields.string(flexible=False), fields.string(flexible=False), fields.int32()
    fields.end()
    if partition < 0:
        raise BadRecords(f"partition {partition} of topic {topic}")
    return group, TopicPartition(topic, partition)


def decode_value(value: bytes) -> Commit:
    """What a value says. Raises BadRecords where a coordinator did not write it, or one that is newer than is known."""
    fields = Fields(value)
    version = fields.int16()
    if not 0 <= version <= _NEWEST_VALUE:
        raise BadRecords(f"version {version} of a committed offset, and 0 to {_NEWEST_VALUE} are known here")
    is_flexible = version >= _FIRST_FLEXIBLE
    offset = fields.int64()
    if offset < 0:
        raise BadRecords(f"offset {offset} is committed")
    if version >= _FIRST_WITH_EPOCH:
        fields.int32()
    metadata = fields.string(flexible=is_flexible)
    fields.int64()
    if version == _WITH_EXPIRY:
        fields.int64()
    topic_id = None
    if is_flexible and (stored := fields.tags().get(_TOPIC_ID_TAG)) is not None:
        if len(stored) != _UUID_BYTES:
            raise BadRecords(f"a topic id of {len(stored)} bytes")
        topic_id = UUID(bytes=stored)
    fields.end()
    return Commit(Committed(offset, metadata), None if topic_id == _NO_ID else topic_id)


@dataclass(slots=True)
class GroupOffsets:
    """What groups had committed.

    groups: by group and partition.
    undecided: by group, the partitions for which a transaction without an end had offsets (C2).
    streams: those that are streams groups.
    notes: what was left out, in words.
    is_whole: nothing else that groups had committed is known to be missing, or may be (C3).
    """

    groups: dict[str, dict[TopicPartition, Commit]] = field(default_factory=dict)
    undecided: dict[str, set[TopicPartition]] = field(default_factory=dict)
    streams: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    is_whole: bool = True


class _Stored(NamedTuple):
    """The last value of a key, and its record's offset."""

    offset: int
    value: bytes


class GroupReplay:
    """Builds the last value of each key from batches in a log's order (C1)."""

    def __init__(self) -> None:
        self.latest: dict[bytes, _Stored] = {}
        #: By producer id, what its open transaction has put under which keys; None deletes.
        self.open: dict[int, dict[bytes, _Stored]] = {}
        self.problems: list[str] = []

    def learn(self, raw: RawBatch) -> None:
        """One more batch."""
        header = raw.header
        try:
            if header.is_control:
                self._end(header.producer_id, marker_type(raw) if header.count else COMMIT)
                return
            pending = self.open.setdefault(header.producer_id, {}) if header.is_transactional else None
            for offset, key, value in pairs_of(raw):
                if key is None:
                    continue
                into = self.latest if pending is None else pending
                if value is None:
                    into.pop(key, None)
                else:
                    into[key] = _Stored(offset, value)
        except BadRecords as problem:
            self.problems.append(str(problem))

    def _end(self, producer_id: int, kind: int) -> None:
        if kind not in (ABORT, COMMIT):
            return
        for key, stored in self.open.pop(producer_id, {}).items():
            if kind == COMMIT and ((known := self.latest.get(key)) is None or known.offset < stored.offset):
                self.latest[key] = stored


def offsets_in(partitions: Mapping[int, Sequence[Path]]) -> GroupOffsets:
    """What groups had committed, of the replicas of each partition of `__consumer_offsets` by its number. Raises
    ConfigError where a file changes meanwhile.
    """
    found = GroupOffsets()
    for number, folders in sorted(partitions.items()):
        where = f"{OFFSETS_TOPIC}-{number}"
        try:
            log = load(folders)
        except ConfigError as problem:
            found.notes.append(f"{where} cannot be read: {problem}")
            found.is_whole = False
            continue
        replay = GroupReplay()
        for raw in batches_of(log):
            replay.learn(raw)
        found.notes += (f"{where}: {note}" for note in (*log.remarks, *log.lacks, *replay.problems))
        found.is_whole &= not log.lacks and not replay.problems
        _add(found, where, replay.latest, {key for pending in replay.open.values() for key in pending})
    return found


def _add(found: GroupOffsets, where: str, latest: Mapping[bytes, _Stored], undecided: Iterable[bytes]) -> None:
    unread = 0
    for key, stored in latest.items():
        try:
            if (about := decode_key(key)) is not None:
                found.groups.setdefault(about[0], {})[about[1]] = decode_value(stored.value)
            elif (fields := Fields(key)).int16() == _STREAMS:
                found.streams.add(fields.string(flexible=False))
        except BadRecords:
            unread += 1
    for group, at in _keys(undecided):
        found.undecided.setdefault(group, set()).add(at)
    if unread:
        found.is_whole = False
        found.notes.append(f"{where}: {unread} committed offsets cannot be read, and are left out")


def _keys(stored: Iterable[bytes]) -> Iterator[tuple[str, TopicPartition]]:
    for key in stored:
        try:
            if (about := decode_key(key)) is not None:
                yield about
        except BadRecords:
            continue
