"""What consumer groups had committed to a lost cluster: `__consumer_offsets`, out of the data folders of its brokers.

A key begins with its kind as an int16: 0 and 1 are offsets of a group (group, topic, partition), others say of members
what nobody needs any more. A value begins with its version, 0 to 4, of which 4 is flexible; null deletes the key (Kafka
`CoordinatorRecordSerde`, `OffsetCommitKey`, `OffsetCommitValue`, `LegacyOffsetCommitValue`).

C1  of each key the last record counts. Offsets of a transaction count from its marker on and only if that commits it,
    unless a later record than theirs counts already (KIP-98, Kafka `OffsetMetadataManager.replayEndTransactionMarker`)
C2  a transaction without an end counts for nothing, and is told; so does one that damage may have ended
C3  what is damaged is left out, so that an older offset may count: a group then reads some records again
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from mirror.batch.control import ABORT, COMMIT, marker_type
from mirror.batch.header import RawBatch
from mirror.errors import BadRecords, ConfigError
from mirror.reading.archive import load
from mirror.reading.fields import Fields, batches_of, pairs_of
from mirror.wire.cluster import TopicPartition
from mirror.wire.groups import Committed

#: Where a cluster keeps what groups commit.
OFFSETS_TOPIC: Final = "__consumer_offsets"
_LEGACY, _OFFSETS = 0, 1
_FIRST_WITH_EPOCH, _WITH_EXPIRY, _FIRST_FLEXIBLE, _NEWEST = 3, 1, 4, 4
_TOPIC_ID_TAG: Final = 0
_UUID_BYTES: Final = 16
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
    if not 0 <= version <= _NEWEST:
        raise BadRecords(f"version {version} of a committed offset, and 0 to {_NEWEST} are known here")
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
    notes: what was left out, in words.
    """

    groups: dict[str, dict[TopicPartition, Commit]] = field(default_factory=dict)
    undecided: dict[str, set[TopicPartition]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _Stored(NamedTuple):
    """The last value of a key, and its record's offset."""

    offset: int
    value: bytes


class Replay:
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

    def forget_open(self) -> set[bytes]:
        """Damage stands here, which may have ended any transaction: the keys of those that are open (C2)."""
        keys = {key for pending in self.open.values() for key in pending}
        self.open.clear()
        return keys

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
            log = load(folders, skips_damage=True)
        except ConfigError as problem:
            found.notes.append(f"{where} cannot be read: {problem}")
            continue
        replay, undecided = Replay(), set[bytes]()
        lost = sorted(hole.first for hole in log.lost)
        for raw in batches_of(log):
            while lost and lost[0] <= raw.header.base_offset:
                lost.pop(0)
                undecided |= replay.forget_open()
            replay.learn(raw)
        undecided |= replay.forget_open()
        found.notes += (f"{where}: {hole.detail}" for hole in log.lost)
        found.notes += (f"{where}: {problem}" for problem in replay.problems)
        _add(found, where, replay.latest, undecided)
    return found


def _add(found: GroupOffsets, where: str, latest: Mapping[bytes, _Stored], undecided: Iterable[bytes]) -> None:
    unread = 0
    for key, stored in latest.items():
        try:
            if (about := decode_key(key)) is not None:
                found.groups.setdefault(about[0], {})[about[1]] = decode_value(stored.value)
        except BadRecords:
            unread += 1
    for group, at in _keys(undecided):
        found.undecided.setdefault(group, set()).add(at)
    if unread:
        found.notes.append(f"{where}: {unread} committed offsets cannot be read, and are left out")


def _keys(stored: Iterable[bytes]) -> Iterator[tuple[str, TopicPartition]]:
    for key in stored:
        try:
            if (about := decode_key(key)) is not None:
                yield about
        except BadRecords:
            continue
