"""Messages as brokers write them to logs of their own, encoded here once more from Kafka's description of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from pair import AnyCluster, Shared

from mirror.segments.cluster_logs import (
    ConfigSet,
    Message,
    PartitionChanged,
    PartitionMade,
    TopicMade,
    TopicRemoved,
    Transaction,
)


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


def metadata_record(message: Message) -> bytes:
    """The value of a record of the metadata log."""
    match message:
        case TopicMade(name, topic_id):
            kind, version, body = 2, 0, compact(name) + topic_id.bytes
        case PartitionMade(topic_id, partition, in_sync, eligible, leader_epoch):
            body = struct.pack(">i", partition) + topic_id.bytes + brokers(in_sync) * 2 + b"\1\1"
            body += struct.pack(">iii", 1, leader_epoch, 9) + varint(len(in_sync) + 1) + bytes(16 * len(in_sync))
            return varint(1) + varint(3) + varint(2) + body + tagged({1: brokers(eligible)} if eligible else {})
        case PartitionChanged(topic_id, partition, in_sync, eligible, elects):
            tags = {} if in_sync is None else {0: brokers(in_sync), 2: brokers(in_sync)}
            tags |= {1: struct.pack(">i", 1)} if elects else {}
            tags |= {} if eligible is None else {6: brokers(eligible)}
            body = struct.pack(">i", partition) + topic_id.bytes
            return varint(1) + varint(5) + varint(2) + body + tagged(tags)
        case ConfigSet(topic, name, value):
            kind, version, body = 4, 0, b"\2" + compact(topic) + compact(name) + compact(value)
        case TopicRemoved(topic_id):
            kind, version, body = 9, 0, topic_id.bytes
        case Transaction(ended):
            kind, version, body = 23 if ended is None else 24 if ended else 25, 0, b""
    return varint(1) + varint(kind) + varint(version) + body + b"\0"


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
