"""Targets: records of the logs that brokers keep for themselves."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final
from uuid import UUID

from brokerlogs import metadata_record, offset_key, offset_value, partition_record

from mirror.errors import BadRecords
from mirror.segments.broker_messages import (
    TOPIC_RESOURCE,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    PartitionRecord,
    PartitionRecord1,
    RemoveTopicRecord,
    TopicRecord,
    decode,
    decode_key,
    decode_value,
)
from mirror.segments.cluster_logs import ClusterTopics

_ID: Final = UUID(int=7)


def metadata(data: bytes) -> None:
    """Values of the metadata log, each behind a byte of its size: what is read reads the same when written again."""
    cluster, made = ClusterTopics(), set[str]()
    while data:
        value, data = data[1 : 1 + data[0]], data[1 + data[0] :]
        try:
            message = decode(value)
        except BadRecords:
            continue
        if message is None:
            continue
        if not isinstance(message, PartitionRecord) or isinstance(message, PartitionRecord1):
            assert decode(metadata_record(message)) == message
        cluster.learn(message)
        if isinstance(message, TopicRecord):
            made.add(message.name)
    assert cluster.topics.keys() <= made
    assert not cluster.removed & {one.topic_id for one in cluster.topics.values()}


def commits(data: bytes) -> None:
    """A key behind a byte of its size, and a value."""
    if not data:
        return
    key, value = data[1 : 1 + data[0]], data[1 + data[0] :]
    try:
        about = decode_key(key)
    except BadRecords:
        about = None
    if isinstance(about, tuple):
        assert key[2:] == offset_key(about[0], *about[1])[2:]
    try:
        found = decode_value(value)
    except BadRecords:
        return
    assert found.committed.offset >= 0
    again = offset_value(found.committed.offset, found.committed.metadata, 4, found.topic_id)
    assert decode_value(again) == found


def metadata_values(_: Random) -> Iterator[bytes]:
    """Seeds for `metadata`."""
    log = (
        *(TopicRecord("orders", _ID), partition_record(_ID, 3, [1, 2])),
        *(ConfigRecord(TOPIC_RESOURCE, "orders", "retention.ms", value) for value in ("1", None)),
        *(BeginTransactionRecord(), RemoveTopicRecord(_ID), EndTransactionRecord()),
    )
    values = [metadata_record(message) for message in log]
    yield b"".join(bytes([len(value)]) + value for value in values)
    yield from (bytes([len(value)]) + value for value in values)


def stored_commits(_: Random) -> Iterator[bytes]:
    """Seeds for `commits`."""
    key = offset_key("group", "orders", 3)
    for version in range(5):
        yield bytes([len(key)]) + key + offset_value(17, "text", version, _ID)
