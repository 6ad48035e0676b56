"""What brokers keep in logs of their own: KRaft metadata and committed group offsets.

`__cluster_metadata-0` lies in the `metadata.log.dir` of each controller and broker, or in the first of its `log.dirs`.
A snapshot `<end offset>-<epoch>.checkpoint` holds what all records below that offset amount to (KIP-630), and the log
below it may be gone.

- Of several replicas of the log one is taken, as of any partition.
- Of a metadata transaction (KIP-866) nothing counts unless its end is there.
- A removed topic takes its settings along, as in a controller (Kafka `ReplicationControlManager`); which ids were
  removed is known as far back as the log goes, and not from a snapshot.
- A record that cannot be read is left out and reported. One of a kind that says nothing of topics is passed over
  unread.
- Which replicas have all that was committed, a controller writes down before anything is committed without the others
  (KIP-497, KIP-966): those in sync, and those that may be elected. A change of leader begins a new leader epoch (Kafka
  `PartitionRegistration.merge`).
- Who votes on the metadata, the newest leader says (Kafka `LeaderChangeMessage`), below a snapshot as well, or the
  snapshot (KIP-853), or a node's `quorum-state` (before that). What was committed, a majority of them has: so many of
  their logs as meet any majority lack none of it, and fewer may; so may any where nobody says who votes, and where
  something of the log behind the snapshot is missing or cannot be read.

- Of each key the last record counts, one of a transaction only if its marker commits it (KIP-98, Kafka
  `OffsetMetadataManager.replayEndTransactionMarker`).
- A transaction without an end counts for nothing, and is reported.
- A log ends at its first damage, so that an older offset may count: a group then reads some records again. What may
  lack anything is not whole, as a topic's partition, but for offsets that compaction leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from mirror.errors import BadRecords, ConfigError
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import OFFSETS_TOPIC
from mirror.records.header import RawBatch, marker_type
from mirror.records.rewrite import read
from mirror.records.segment import Walk
from mirror.records.transactions import Aborted
from mirror.segments.broker_messages import (
    NO_LEADER_CHANGE,
    TOPIC_RESOURCE,
    AbortTransactionRecord,
    BeginTransactionRecord,
    Commit,
    ConfigRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode,
    decode_key,
    decode_value,
    decode_voters,
)
from mirror.segments.files import Mapped, voters_of
from mirror.segments.replica import Replica, scan
from mirror.segments.replica_sets import load, taken

# --- What brokers keep in logs of their own ---------------------------------------------------------------------------

#: Bytes of a log that are looked at together.
_CHUNK: Final = 4 << 20


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


def pairs_of(raw: RawBatch) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """The records of a batch of data, of any magic: offset, key and value. Raises BadRecords where it is not what its
    header says.
    """
    found = read(raw)
    data = found.data.tobytes()
    columns = (found.offsets, found.key_at, found.key_size, found.value_at, found.value_size)
    for offset, key_at, key_size, value_at, value_size in zip(*(column.tolist() for column in columns), strict=True):
        key = None if key_size < 0 else data[key_at : key_at + key_size]
        yield offset, key, None if value_size < 0 else data[value_at : value_at + value_size]


# --- Which topics a lost cluster had, and their settings --------------------------------------------------------------

#: Where a cluster keeps what it knows of itself.
METADATA: Final = TopicPartition("__cluster_metadata", 0)
#: Kafka `Snapshots`: 20 digits of the end offset, 10 of the epoch. One that is being written ends in `.part`.
_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_THE_LOG: Final = "the cluster's metadata log"
#: Kafka `ControlRecordType`: the end without which a snapshot is not whole.
_SNAPSHOT_FOOTER: Final = 4


@dataclass(slots=True)
class KnownTopic:
    """A topic as the cluster last knew it."""

    name: str
    topic_id: UUID
    #: What was set on the topic itself; anything else was its brokers' default.
    configs: dict[str, str] = field(default_factory=dict)
    #: By number, with the replicas that were in sync.
    partitions: dict[int, PartitionRecord] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        """Return how many partitions the topic had."""
        return 1 + max(self.partitions, default=-1)


@dataclass(slots=True)
class ClusterTopics:
    """All topics of a cluster, learned from messages in the order of its metadata log."""

    #: The nodes that voted on the metadata; empty where that is not known.
    voters: frozenset[int] = frozenset()
    #: Of the log behind the snapshot no record is known to be missing, or cannot be read.
    is_whole: bool = True
    #: By name.
    topics: dict[str, KnownTopic] = field(default_factory=dict)
    #: Ids of topics that are known to be deleted.
    removed: set[UUID] = field(default_factory=set)
    #: The names that these had.
    gone: set[str] = field(default_factory=set)
    #: The offset behind the last record of the log that was read.
    end: int = 0
    #: What could not be read, in words.
    notes: list[str] = field(default_factory=list)
    _by_id: dict[UUID, KnownTopic] = field(default_factory=dict)
    _pending: list[Any] | None = None  # of a metadata transaction without an end

    def may_lack(self, nodes: Collection[int]) -> bool:
        """Return whether the logs of these nodes may lack what was committed, so that all this is older than it."""
        fewest = max(1, len(self.voters) - len(self.voters) // 2)  # to meet any majority
        return not self.is_whole or len(self.voters.intersection(nodes)) < fewest

    def learn(self, message: Any) -> None:
        """One more message."""
        match message:
            case BeginTransactionRecord():
                self._pending = []
            case EndTransactionRecord() | AbortTransactionRecord():
                pending, self._pending = self._pending or [], None
                for record in pending if isinstance(message, EndTransactionRecord) else ():
                    self._apply(record)
            case _ if self._pending is not None:
                self._pending.append(message)
            case _:
                self._apply(message)

    def _apply(self, message: Any) -> None:
        match message:
            case TopicRecord(name, UUID() as topic_id):
                self._remove(topic_id)  # no log of Kafka's has this
                self.topics[name] = self._by_id[topic_id] = KnownTopic(name, topic_id)
                self.removed.discard(topic_id)
            case PartitionRecord(number, UUID() as topic_id) if topic := self._by_id.get(topic_id):
                topic.partitions[number] = message
            case PartitionChangeRecord(number, UUID() as topic_id) if topic := self._by_id.get(topic_id):
                if (before := topic.partitions.get(number)) is not None:
                    topic.partitions[number] = replace(
                        before,
                        isr=before.isr if message.isr is None else message.isr,
                        eligible=before.eligible if message.eligible is None else message.eligible,
                        leader_epoch=before.leader_epoch + (message.leader != NO_LEADER_CHANGE),
                    )
            case ConfigRecord(resource_type, name) if resource_type == TOPIC_RESOURCE and name in self.topics:
                self.topics[name].configs.pop(message.name, None)
                if message.value is not None:
                    self.topics[name].configs[message.name] = message.value
            case RemoveTopicRecord(UUID() as topic_id):
                self.removed.add(topic_id)
                if (gone := self._remove(topic_id)) is not None:
                    self.gone.add(gone)

    def _remove(self, topic_id: UUID) -> str | None:
        """Forget a topic. Return its name if no other topic has it."""
        topic = self._by_id.pop(topic_id, None)
        if topic is None or self.topics.get(topic.name) is not topic:
            return None
        del self.topics[topic.name]
        return topic.name


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
        log, is_whole = taken(replicas), all(replica.is_torn or not replica.damage for replica in replicas)
        notes += log.notes
    except ConfigError as problem:
        notes.append(f"{_THE_LOG} cannot be read: {problem}")
    paths = [path for folder in folders for path in sorted(folder.iterdir())]
    snapshots = [(int(named[1]), path) for path in paths if (named := _SNAPSHOT.fullmatch(path.name))]
    end, snapshot, where = 0, list[RawBatch](), ""
    for until, path in sorted(snapshots, reverse=True):
        try:
            end, snapshot, where = until, list(_snapshot_batches(path)), str(path)
            break
        except (BadRecords, ConfigError) as problem:
            notes.append(f"{path} is left out: {problem}")
    _, voters = max(map(voters_of, folders), key=itemgetter(0), default=(-1, frozenset[int]()))
    found = ClusterTopics(voters)
    if log is not None:  # what it says of voters alone, since the snapshot has no more of it
        notes += _learn(found, (raw for raw in batches_of(log) if raw.header.is_control), _THE_LOG)
    notes += _learn(found, snapshot, where)
    if log is not None and log.start <= end:
        notes += _learn(found, batches_of(log, end), _THE_LOG)
        found.is_whole &= is_whole
        end = max(end, log.end)
    elif log is not None and end == 0:
        return None  # records below the log's start are in no file
    else:
        found.is_whole = False
        if log is not None:
            notes.append(f"{_THE_LOG} begins at offset {log.start}, behind its snapshot's end at {end}")
    found.end, found.notes = end, [*dict.fromkeys(notes)]
    return found if end else None


def _snapshot_batches(path: Path) -> Iterator[RawBatch]:
    """Raises BadRecords where the snapshot is not whole, and ConfigError where it cannot be read."""
    walk, is_whole = Walk(Mapped.checked(path).data), False
    for raw in walk:
        is_whole = raw.header.is_control and marker_type(raw) == _SNAPSHOT_FOOTER
        yield raw
    if walk.damage is not None or not is_whole:
        raise BadRecords(str(walk.damage or "it has no end"))


def _learn(found: ClusterTopics, batches: Iterable[RawBatch], where: str) -> Iterator[str]:
    """Replay the records of data batches; notes on those that cannot be read."""
    unread, first = 0, ""
    for raw in batches:
        try:
            if raw.header.is_control:
                voters = [decode_voters(key or b"", value or b"") for _, key, value in pairs_of(raw)]
                found.voters = frozenset(chain.from_iterable(voters)) or found.voters
                continue
            for offset, _, value in pairs_of(raw):
                try:
                    if value is not None and (message := decode(value)) is not None:
                        found.learn(message)
                except BadRecords as problem:
                    unread, first = unread + 1, first or f"offset {offset}: {problem}"
        except BadRecords as problem:
            unread, first = unread + 1, first or str(problem)
    if unread:
        found.is_whole = False
        yield f"{unread} records of {where} cannot be read, and are left out; the first is {first}"


# --- What consumer groups had committed to a lost cluster -------------------------------------------------------------


@dataclass(slots=True)
class GroupOffsets:
    """Says what groups had committed."""

    #: By group and partition.
    groups: dict[str, dict[TopicPartition, Commit]] = field(default_factory=dict)
    #: By group, the partitions for which a transaction without an end had offsets.
    undecided: dict[str, set[TopicPartition]] = field(default_factory=dict)
    #: Those that are streams groups.
    streams: set[str] = field(default_factory=set)
    #: What was left out, in words.
    notes: list[str] = field(default_factory=list)
    #: Nothing else that groups had committed is known to be missing, or may be.
    is_whole: bool = True


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
        latest, undecided, problems = dict[bytes, bytes](), set[bytes](), list[str]()
        aborted = Aborted((producer_id, first) for producer_id, first, _ in log.aborted)
        for raw in batches_of(log):
            try:
                if not aborted.covers(raw) and not raw.header.is_control:
                    _learn_commits(raw, latest, undecided if log.is_open(raw) else None)
            except BadRecords as problem:
                problems.append(str(problem))
        found.notes += (f"{where}: {note}" for note in (*log.remarks, *log.lacks, *problems))
        found.is_whole &= not log.lacks and not problems
        _add(found, where, latest, undecided)
    return found


def _learn_commits(raw: RawBatch, latest: dict[bytes, bytes], undecided: set[bytes] | None) -> None:
    """Put the newest value of each key into `latest`, or the keys of an open transaction into `undecided`."""
    for _, key, value in pairs_of(raw):
        if undecided is not None:
            undecided |= {key} if key and value else set()
        elif value is None:
            latest.pop(key or b"", None)
        elif key is not None:
            latest[key] = value


def _add(found: GroupOffsets, where: str, latest: Mapping[bytes, bytes], undecided: Iterable[bytes]) -> None:
    unread = 0
    for key, value in latest.items():
        try:
            match decode_key(key):
                case str(group):
                    found.streams.add(group)
                case (group, at):
                    found.groups.setdefault(group, {})[at] = decode_value(value)
        except BadRecords:
            unread += 1
    for key in undecided:
        with suppress(BadRecords):
            if isinstance(about := decode_key(key), tuple):
                found.undecided.setdefault(about[0], set()).add(about[1])
    if unread:
        found.is_whole = False
        found.notes.append(f"{where}: {unread} committed offsets cannot be read, and are left out")
