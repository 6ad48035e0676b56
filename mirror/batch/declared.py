"""How large a compressed payload says it is without compression: read from its framing, with nothing decompressed.

    gzip    the trailer, modulo 2^32 (RFC 1952); of several members, the last one's alone
    snappy  the preamble of a raw block, or of each block in xerial's framing
    lz4     the frame's content size, where its flag is set: Kafka's producers and librdkafka do not set it
    zstd    the frame's content size, where it has one: a stream, as Kafka's producers write, has none

It is a statement, and nothing may be allocated by it.
"""

from __future__ import annotations

from typing import Final

from mirror.batch.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD

#: Magic number, version and least compatible version of xerial's framing.
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = 16
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_SIZE_FLAG: Final = 0x08
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
#: By the two low bits of a frame descriptor's first byte: bytes of a dictionary id.
_ZSTD_DICTIONARY: Final = (0, 1, 2, 4)
#: By its two high bits: bytes of the content size, which for the first is there in a single segment alone.
_ZSTD_SIZE: Final = (1, 2, 4, 8)
_ZSTD_SINGLE: Final = 0x20
#: What a content size of two bytes is less than it says.
_ZSTD_SHIFT: Final = 256
_LEAST: Final = 8


def declared_size(codec: int, data: memoryview) -> int | None:
    """Bytes of a records section without compression as its framing states them, None where it does not."""
    if codec == NONE:
        return len(data)
    if len(data) < _LEAST:
        return None
    if codec == GZIP:
        return int.from_bytes(data[-4:], "little")
    if codec == SNAPPY:
        return _framed(data) if bytes(data[: len(_XERIAL)]) == _XERIAL else _preamble(data)
    if codec == LZ4 and bytes(data[:4]) == _LZ4_MAGIC and data[4] & _LZ4_SIZE_FLAG:
        return int.from_bytes(data[6:14], "little")
    if codec == ZSTD and bytes(data[:4]) == _ZSTD_MAGIC:
        return _zstd(data)
    return None


def _framed(data: memoryview) -> int | None:
    at, total = _XERIAL_HEADER, 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        block = data[at + 4 : at + 4 + size]
        stated = _preamble(block)
        if not size or len(block) < size or stated is None:
            return None
        total += stated
        at += 4 + size
    return total


def _preamble(block: memoryview) -> int | None:
    """A raw block begins with its size as a variable-length number of at most 32 bits."""
    size = 0
    for index in range(min(5, len(block))):
        size |= (block[index] & 0x7F) << 7 * index
        if not block[index] & 0x80:
            return size
    return None


def _zstd(data: memoryview) -> int | None:
    descriptor = data[4]
    single = bool(descriptor & _ZSTD_SINGLE)
    kind = descriptor >> 6
    if not kind and not single:
        return None
    at = 5 + (not single) + _ZSTD_DICTIONARY[descriptor & 3]
    width = _ZSTD_SIZE[kind]
    field = data[at : at + width]
    if len(field) < width:
        return None
    return int.from_bytes(field, "little") + (_ZSTD_SHIFT if width == 2 else 0)
