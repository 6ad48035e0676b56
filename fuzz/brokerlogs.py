"""Targets: records of the logs that brokers keep for themselves."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final
from uuid import UUID

from brokerlogs import metadata_record, offset_key, offset_value

from mirror.errors import BadRecords
from mirror.segments import cluster_logs
from mirror.segments.cluster_logs import (
    ConfigSet,
    MetadataReplay,
    PartitionMade,
    TopicMade,
    TopicRemoved,
    Transaction,
    decode,
)

_ID: Final = UUID(int=7)


def metadata(data: bytes) -> None:
    """Values of the metadata log, each behind a byte of its size: what is read reads the same when written again."""
    replay, made = MetadataReplay(), set[str]()
    while data:
        value, data = data[1 : 1 + data[0]], data[1 + data[0] :]
        try:
            message = decode(value)
        except BadRecords:
            continue
        if message is None:
            continue
        assert decode(metadata_record(message)) == message
        replay.learn(message)
        if isinstance(message, TopicMade):
            made.add(message.name)
    found = replay.found()
    assert found.topics.keys() <= made
    assert not found.removed & {one.topic_id for one in found.topics.values()}


def commits(data: bytes) -> None:
    """A key behind a byte of its size, and a value."""
    if not data:
        return
    key, value = data[1 : 1 + data[0]], data[1 + data[0] :]
    try:
        about = cluster_logs.decode_key(key)
    except BadRecords:
        about = None
    if about is not None:
        assert key[2:] == offset_key(about[0], *about[1])[2:]
    try:
        found = cluster_logs.decode_value(value)
    except BadRecords:
        return
    assert found.committed.offset >= 0
    again = offset_value(found.committed.offset, found.committed.metadata, 4, found.topic_id)
    assert cluster_logs.decode_value(again) == found


def metadata_values(_: Random) -> Iterator[bytes]:
    """Seeds for `metadata`."""
    log = (
        *(TopicMade("orders", _ID), PartitionMade(_ID, 3), ConfigSet("orders", "retention.ms", "1")),
        *(Transaction(None), ConfigSet("orders", "retention.ms", None), Transaction(True), TopicRemoved(_ID)),
    )
    values = [metadata_record(message) for message in log]
    yield b"".join(bytes([len(value)]) + value for value in values)
    yield from (bytes([len(value)]) + value for value in values)


def stored_commits(_: Random) -> Iterator[bytes]:
    """Seeds for `commits`."""
    key = offset_key("group", "orders", 3)
    for version in range(5):
        yield bytes([len(key)]) + key + offset_value(17, "text", version, _ID)
