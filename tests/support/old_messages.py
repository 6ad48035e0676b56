"""Messages of magic 0 and 1."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Any

from mirror.records.codecs import GZIP, compress


def message(
    offset: int,
    magic: int,
    its_value: bytes | None = b"value",
    its_key: bytes | None = None,
    *,
    timestamp: int = 1_400_000_000_000,
    attributes: int = 0,
    tail: bytes = b"",
) -> bytes:
    """A message with a valid CRC."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in (its_key, its_value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return summed(offset, body + tail)


def summed(offset: int, body: bytes) -> bytes:
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(offset: int, magic: int, messages: Iterable[bytes], codec: int = GZIP, **fields: Any) -> bytes:
    """A compressed set."""
    attributes = fields.pop("attributes", 0) | codec
    return message(offset, magic, compress(codec, b"".join(messages)), attributes=attributes, **fields)
