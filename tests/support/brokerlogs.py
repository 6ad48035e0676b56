"""Messages as brokers write them to logs of their own, encoded here once more from Kafka's description of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

from pair import AnyCluster, Shared

from mirror.segments.broker_messages import (
    NO_LEADER_CHANGE,
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    PartitionRecord1,
    RemoveTopicRecord,
    TopicRecord,
)


def partition_record(topic_id: UUID, number: int, isr: Sequence[int] = (), **more: Any) -> PartitionRecord1:
    """A partition of which all replicas are in sync."""
    brokers = tuple(isr)
    return PartitionRecord1(number, topic_id, brokers, brokers, directories=(topic_id,) * len(brokers), **more)


def varint(number: int) -> bytes:
    """An unsigned varint."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def compact(text: str | None) -> bytes:
    """A string of a flexible version."""
    return b"\0" if text is None else varint(len(text.encode()) + 1) + text.encode()


def plain(text: str) -> bytes:
    """A string of a version that is not flexible."""
    return struct.pack(">h", len(text.encode())) + text.encode()


def brokers(ids: Sequence[int]) -> bytes:
    """An array of a flexible version."""
    return varint(len(ids) + 1) + struct.pack(f">{len(ids)}i", *ids)


def tagged(fields: Mapping[int, bytes]) -> bytes:
    """The tagged fields at the end of a message."""
    output = b"".join(varint(tag) + varint(len(value)) + value for tag, value in sorted(fields.items()))
    return varint(len(fields)) + output


def metadata_record(message: Any) -> bytes:
    """The value of a record of the metadata log."""
    match message:
        case TopicRecord(name, topic_id):
            return record(2, compact(name) + id_bytes(topic_id))
        case PartitionRecord1():
            body = struct.pack(">i", message.partition_id) + id_bytes(message.topic_id)
            lists = (message.replicas, message.isr, message.removing_replicas, message.adding_replicas)
            body += b"".join(map(brokers, lists))
            body += struct.pack(">iii", message.leader, message.leader_epoch, message.partition_epoch)
            body += varint(len(message.directories) + 1) + b"".join(map(id_bytes, message.directories))
            return record(3, body, {} if message.eligible is None else {1: brokers(message.eligible)}, version=2)
        case PartitionChangeRecord(partition, topic_id, isr, leader, eligible):
            tags = {2: brokers(()), **({} if isr is None else {0: brokers(isr)})}
            tags |= {} if leader == NO_LEADER_CHANGE else {1: struct.pack(">i", leader)}
            tags |= {} if eligible is None else {6: brokers(eligible)}
            return record(5, struct.pack(">i", partition) + id_bytes(topic_id), tags, version=2)
        case ConfigRecord(kind, topic, name, value):
            return record(4, struct.pack(">b", kind) + compact(topic) + compact(name) + compact(value))
        case RemoveTopicRecord(topic_id):
            return record(9, id_bytes(topic_id))
    kinds = {BeginTransactionRecord: 23, EndTransactionRecord: 24, AbortTransactionRecord: 25}
    return record(kinds[type(message)], b"")


def record(kind: int, body: bytes, tags: Mapping[int, bytes] = MappingProxyType({}), version: int = 0) -> bytes:
    """A message of a kind, in its frame."""
    return varint(1) + varint(kind) + varint(version) + body + tagged(tags)


def id_bytes(topic_id: UUID | None) -> bytes:
    """An id, of zeros where there is none."""
    return bytes(16) if topic_id is None else topic_id.bytes


def offset_key(group: str, topic: str, partition: int, kind: int = 1) -> bytes:
    """The key of a group's offset."""
    return struct.pack(">h", kind) + plain(group) + plain(topic) + struct.pack(">i", partition)


def offset_value(offset: int, metadata: str, version: int = 3, topic_id: UUID | None = None) -> bytes:
    """The value of a group's offset."""
    text = compact(metadata) if version >= 4 else plain(metadata)
    found = struct.pack(">hq", version, offset) + (struct.pack(">i", 5) if version >= 3 else b"") + text
    found += struct.pack(">q", 1_700_000_000_000) + (struct.pack(">q", -1) if version == 1 else b"")
    if version >= 4:
        found += b"\0" if topic_id is None else b"\1\0\x10" + topic_id.bytes
    return found


def folders_of(cluster: AnyCluster, topic: str) -> dict[int, list[Path]]:
    """Return the folders of a topic's partitions, by number."""
    found: dict[int, list[Path]] = {}
    for data in [cluster.data] if isinstance(cluster, Shared) else [node.data for node in cluster.nodes]:
        for path in sorted(data.glob(f"{topic}-[0-9]*")):
            if (partition := path.name.removeprefix(f"{topic}-")).isdigit():
                found.setdefault(int(partition), []).append(path)
    return found
