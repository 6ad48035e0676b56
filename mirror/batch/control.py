"""The one record of a control batch: which end of a transaction it marks (KIP-98, Kafka `ControlRecordType`)."""

from __future__ import annotations

import struct
from typing import Final

from mirror.batch.header import HEADER_BYTES, RawBatch
from mirror.errors import BadRecords

ABORT: Final = 0
COMMIT: Final = 1
#: Kafka `ControlRecordType`, by its number.
_MARKERS: Final = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)

#: Length, attributes, timestamp delta, offset delta, key length: a coordinator writes each in one byte, except for a
#: length that a future marker's value may need two for. Then version and type.
_KEY: Final = struct.Struct(">hh")
_NUMBERS: Final = 5


def marker_type(raw: RawBatch) -> int:
    """`ABORT`, `COMMIT`, or a number that is neither: other kinds of control records are to be skipped.

    Raises BadRecords where the batch holds no such record. Compressed or longer than a marker is: not a marker.
    """
    assert raw.header.is_control
    section, at = raw.data, HEADER_BYTES
    try:
        if raw.header.codec or not raw.header.count:
            raise BadRecords("a control batch without a readable record", raw.header.base_offset)
        for number in range(_NUMBERS):
            at = at + 1 if number == 1 else _behind_varint(section, at)
        _, kind = _KEY.unpack_from(section, at)
    except (IndexError, struct.error) as cut:
        raise BadRecords("a control batch that ends inside its record", raw.header.base_offset) from cut
    return int(kind)


def marker_name(raw: RawBatch) -> str | None:
    """What a control batch says: COMMIT, ABORT, another of Kafka's names; None for a batch of data."""
    if not raw.header.is_control:
        return None
    try:
        kind = marker_type(raw)
    except BadRecords:
        return "unreadable"
    return _MARKERS[kind] if 0 <= kind < len(_MARKERS) else f"type {kind}"


def _behind_varint(section: memoryview, at: int) -> int:
    while section[at] & 0x80:
        at += 1
    return at + 1
