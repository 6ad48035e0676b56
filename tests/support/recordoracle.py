"""Records of magic 2 in plain Python, byte by byte from KIP-98's text: what the compiled kernels are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Record:
    """One record; `offset` counts from the batch's base offset, `timestamp` from its base timestamp."""

    offset: int
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = field(default=())


def varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    zigzag &= (1 << 64) - 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encoded(records: Sequence[Record]) -> bytes:
    """A records section, not compressed."""
    out = b""
    for record in records:
        body = b"\0" + varint(record.timestamp) + varint(record.offset) + sized(record.key) + sized(record.value)
        body += varint(len(record.headers)) + b"".join(sized(key) + sized(value) for key, value in record.headers)
        out += varint(len(body)) + body
    return out


def decoded(section: bytes, count: int) -> list[Record]:
    """The records of a section that is sound. ValueError or IndexError for one that is not."""
    position = 0

    def number() -> int:
        nonlocal position
        shift = value = 0
        while True:
            byte = section[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)

    def data() -> bytes | None:
        nonlocal position
        size = number()
        if size < 0:
            return None
        position += size
        if position > len(section):
            raise IndexError
        return section[position - size : position]

    found = []
    for _ in range(count):
        end = number() + position
        position += 1
        timestamp, offset = number(), number()
        key, value = data(), data()
        headers = tuple((data() or b"", data()) for _ in range(number()))
        if position != end:
            raise ValueError(position)
        found.append(Record(offset, timestamp, key, value, headers))
    if position != len(section):
        raise ValueError(position)
    return found
