"""Messages that brokers write to logs of their own, declared as kio declares those of the wire, which it has alone.

The value of a record of `__cluster_metadata` is a frame version (1), the number and the version of a message, each an
unsigned varint, and the message (Kafka `AbstractApiMessageSerde`, `MetadataRecordSerde`). A key of `__consumer_offsets`
begins with its kind as an int16: 0 and 1 are offsets of a group, 17 says that a group is a streams group (KIP-1071);
others say of members what nobody needs any more. A value begins with its version, 0 to 4; null deletes the key (Kafka
`CoordinatorRecordSerde`). kio reads annotations, so they are no strings here.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple
from uuid import UUID

from kio.schema.leader_change_message.v0.data import LeaderChangeMessage
from kio.schema.leader_change_message.v1.data import LeaderChangeMessage as LeaderChangeMessage1
from kio.schema.voters_record.v0.data import VotersRecord
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.constants import EntityType
from kio.static.primitive import i16

from mirror.errors import BadRecords, MalformedFrame
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import Committed
from mirror.kafka.protocol import read_varint, readable
from mirror.segments.files import MOST_PARTITIONS

_INT8, _INT16, _INT32, _INT64 = ({"kafka_type": f"int{bits}"} for bits in (8, 16, 32, 64))
_TEXT: Final = {"kafka_type": "string"}
_ID: Final = {"kafka_type": "uuid"}


class _Stored:
    """What kio asks of a message."""

    __type__: ClassVar = EntityType.data
    __version__: ClassVar = i16(0)
    __flexible__: ClassVar = True


# --- The metadata log -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicRecord(_Stored):
    """A topic was created."""

    name: str = field(metadata=_TEXT)
    topic_id: UUID | None = field(metadata=_ID)


@dataclass(frozen=True, slots=True)
class PartitionRecord(_Stored):
    """A topic has this partition, or it was changed as a whole."""

    partition_id: int = field(metadata=_INT32)
    topic_id: UUID | None = field(metadata=_ID)
    replicas: tuple[int, ...] = field(default=(), metadata=_INT32)
    isr: tuple[int, ...] = field(default=(), metadata=_INT32)
    removing_replicas: tuple[int, ...] = field(default=(), metadata=_INT32)
    adding_replicas: tuple[int, ...] = field(default=(), metadata=_INT32)
    leader: int = field(default=-1, metadata=_INT32)
    leader_epoch: int = field(default=0, metadata=_INT32)
    partition_epoch: int = field(default=0, metadata=_INT32)
    #: Others that have all that was committed, and may be elected (KIP-966).
    eligible: tuple[int, ...] | None = field(default=None, metadata={**_INT32, "tag": 1})

    @property
    def in_sync(self) -> frozenset[int]:
        """Return the brokers whose replicas have all that was committed."""
        return frozenset((*self.isr, *(self.eligible or ())))


@dataclass(frozen=True, slots=True)
class PartitionRecord1(PartitionRecord):
    """The same with the folder of each replica (KIP-858), in version 1 and later."""

    directories: tuple[UUID | None, ...] = field(default=(), metadata=_ID)


#: Of a change that elects nobody (Kafka `LeaderConstants.NO_LEADER_CHANGE`).
NO_LEADER_CHANGE: Final = -2


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord(_Stored):
    """A partition was changed in part; None for what stays."""

    partition_id: int = field(metadata=_INT32)
    topic_id: UUID | None = field(metadata=_ID)
    isr: tuple[int, ...] | None = field(default=None, metadata={**_INT32, "tag": 0})
    leader: int = field(default=NO_LEADER_CHANGE, metadata={**_INT32, "tag": 1})
    eligible: tuple[int, ...] | None = field(default=None, metadata={**_INT32, "tag": 6})


#: Kafka `ConfigResource.Type.TOPIC`.
TOPIC_RESOURCE: Final = 2


@dataclass(frozen=True, slots=True)
class ConfigRecord(_Stored):
    """A configuration was given a value; None: it was taken back."""

    resource_type: int = field(metadata=_INT8)
    resource_name: str = field(metadata=_TEXT)
    name: str = field(metadata=_TEXT)
    value: str | None = field(metadata=_TEXT)


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord(_Stored):
    """A topic was deleted, its partitions and configurations with it."""

    topic_id: UUID | None = field(metadata=_ID)


@dataclass(frozen=True, slots=True)
class BeginTransactionRecord(_Stored):
    """A metadata transaction begins (KIP-866)."""


@dataclass(frozen=True, slots=True)
class EndTransactionRecord(_Stored):
    """It ends, and what is in it counts."""


@dataclass(frozen=True, slots=True)
class AbortTransactionRecord(_Stored):
    """It ends, and what is in it counts for nothing."""


_FRAME_VERSION: Final = 1
#: Kafka `MetadataRecordType` by number: the message's versions, up to the newest that can be read here (Kafka 4.3).
_MESSAGES: Final[dict[int, tuple[type[_Stored], ...]]] = {
    2: (TopicRecord,),
    3: (PartitionRecord, PartitionRecord1, PartitionRecord1),
    4: (ConfigRecord,),
    5: (PartitionChangeRecord,) * 3,
    9: (RemoveTopicRecord,),
    23: (BeginTransactionRecord,),
    24: (EndTransactionRecord,),
    25: (AbortTransactionRecord,),
}
#: Kafka `ControlRecordType`: who leads, and who votes.
_LEADER_CHANGE, _VOTERS = 2, 6


def decode(value: bytes) -> Any:
    """Return what a record of the log says of topics; None where it says nothing of them.

    Raises BadRecords where the value is not one that a controller wrote, or is of a newer version than is known here.
    """
    try:
        frame, position = read_varint(memoryview(value), 0)
        number, position = read_varint(memoryview(value), position)
        version, position = read_varint(memoryview(value), position)
    except (IndexError, MalformedFrame) as problem:
        raise BadRecords(f"a message of {len(value)} bytes ends before it begins") from problem
    if frame != _FRAME_VERSION:
        raise BadRecords(f"frame version {frame}, and {_FRAME_VERSION} is the only one")
    if (versions := _MESSAGES.get(number)) is None:
        return None
    if version >= len(versions):
        raise BadRecords(f"version {version} of message {number}, and {len(versions) - 1} is the newest known here")
    message = _read(versions[version], value, position)
    if isinstance(message, PartitionRecord | PartitionChangeRecord) and not 0 <= message.partition_id < MOST_PARTITIONS:
        raise BadRecords(f"partition {message.partition_id} of topic {message.topic_id}")
    return message


def decode_voters(key: bytes, value: bytes) -> list[int]:
    """Return who votes by a control record that says it; nobody by another one. Raises BadRecords."""
    kind, version = int.from_bytes(key[2:4], "big"), int.from_bytes(value[:2], "big")
    if kind not in (_LEADER_CHANGE, _VOTERS):
        return []
    change = LeaderChangeMessage1 if version else LeaderChangeMessage
    message = _read(VotersRecord if kind == _VOTERS else change, value)
    return [voter.voter_id for voter in message.voters]


def _read(entity: Any, data: bytes, position: int = 0) -> Any:
    """Read one message that takes all bytes. Raises BadRecords."""
    try:
        body, end = readable(entity, memoryview(data), position)
        message, _ = entity_reader(entity)(body, 0)
    except (MalformedFrame, SerialError) as problem:
        raise BadRecords(str(problem)) from problem
    if end < len(data):
        raise BadRecords(f"{len(data) - end} bytes behind the end of a message")
    return message


# --- The log of group offsets -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _StreamsKey(_Stored):
    """The key of what a streams group is."""

    __flexible__: ClassVar = False
    kind: int = field(metadata=_INT16)
    group: str = field(metadata=_TEXT)


@dataclass(frozen=True, slots=True)
class _OffsetKey(_StreamsKey):
    """The key of a group's offset (Kafka `OffsetCommitKey`)."""

    topic: str = field(metadata=_TEXT)
    partition: int = field(metadata=_INT32)


@dataclass(frozen=True, slots=True)
class _Value0(_Stored):
    """A group's offset (Kafka `OffsetCommitValue`, `LegacyOffsetCommitValue`), in versions 0 and 2."""

    __flexible__: ClassVar = False
    version: int = field(metadata=_INT16)
    offset: int = field(metadata=_INT64)
    metadata: str = field(metadata=_TEXT)
    commit_timestamp: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True)
class _Value1(_Value0):
    expire_timestamp: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True)
class _Value3(_Stored):
    __flexible__: ClassVar = False
    version: int = field(metadata=_INT16)
    offset: int = field(metadata=_INT64)
    leader_epoch: int = field(metadata=_INT32)
    metadata: str = field(metadata=_TEXT)
    commit_timestamp: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True)
class _Value4(_Value3):
    __flexible__: ClassVar = True
    topic_id: UUID | None = field(default=None, metadata={**_ID, "tag": 0})


_VALUES: Final = (_Value0, _Value1, _Value0, _Value3, _Value4)
_LEGACY, _OFFSET, _STREAMS = 0, 1, 17


class Commit(NamedTuple):
    """Says what is committed for one partition."""

    committed: Committed
    #: Of the topic that it was committed for; None where that is not said (before Kafka 4.1).
    topic_id: UUID | None


def decode_key(key: bytes) -> tuple[str, TopicPartition] | str | None:
    """Return the group and the partition that a key is about; the group alone if the key says that it is a streams
    group; None for a key about something else. Raises BadRecords.
    """
    kind = int.from_bytes(key[:2], "big", signed=True)
    if len(key) >= 2 and kind == _STREAMS:
        return str(_read(_StreamsKey, key).group)
    if len(key) >= 2 and kind not in (_LEGACY, _OFFSET):
        return None
    message = _read(_OffsetKey, key)
    if message.partition < 0:
        raise BadRecords(f"partition {message.partition} of topic {message.topic}")
    return message.group, TopicPartition(message.topic, message.partition)


def decode_value(value: bytes) -> Commit:
    """Return what a value says. Raises BadRecords where a coordinator did not write it, or one that is newer than is
    known.
    """
    version = int.from_bytes(value[:2], "big")
    if version >= len(_VALUES):
        raise BadRecords(f"version {version} of a committed offset, and 0 to {len(_VALUES) - 1} are known here")
    message = _read(_VALUES[version], value)
    if message.offset < 0:
        raise BadRecords(f"offset {message.offset} is committed")
    return Commit(Committed(message.offset, message.metadata), getattr(message, "topic_id", None))
