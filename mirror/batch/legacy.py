"""The records of magic 0 and 1, as Kafka 0.10 and older wrote them.

A batch of that time is one message; its layout is in `header.py`. Compressed messages are a set inside the value of a
wrapper. The wrapper has the offset of the last message inside. Offsets inside are absolute in magic 0; in magic 1 they
are relative (KIP-31), and absolute ones come out right by the same rule: the last one is the wrapper's. An append-time
wrapper gives its timestamp to all (KIP-32). Compaction leaves holes.

The rules are Kafka's `AbstractLegacyRecordBatch.DeepRecordsIterator` and `LegacyRecord`, with the checks that a broker
makes before it stores a set (`LogValidator.validateRecord`): every CRC, and one magic for wrapper and messages. It is
stricter in two ways, so that nothing is left out in silence: a message cut short at the end of a set is an error, and
so are bytes behind a value.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final
from zlib import crc32

import numpy as np

from mirror.batch.codecs import ZSTD, Buffer, decompress
from mirror.batch.header import (
    APPEND_TIME,
    CODEC_MASK,
    LENGTH_PREFIX,
    MAGIC_AT,
    SMALLEST_LENGTH,
    SMALLEST_LENGTH_V1,
    RawBatch,
)
from mirror.batch.recipe import CAP
from mirror.batch.records import Records
from mirror.errors import BadRecords

#: By magic: offset, length, CRC, magic, attributes, in magic 1 the timestamp, and the key's length.
_HEAD: Final = (Struct(">qiIbBi"), Struct(">qiIbBqi"))
_SMALLEST: Final = (SMALLEST_LENGTH, SMALLEST_LENGTH_V1)
_SIZE: Final = Struct(">i")

#: Offset, timestamp, key position, key size, value position, value size; positions in bytes of the set.
_Row = tuple[int, int, int, int, int, int]


def read(raw: RawBatch, cap: int = CAP) -> Records:
    """The records of a message, or of the set that it wraps, as a consumer sees them; none has headers.

    Offsets rise. They end with the header's last offset, unless that is 0: librdkafka left it so in what it produced,
    and the set's own offsets then count.

    Raises BadRecords, with the message's offset, where a CRC is wrong, a length leads nowhere, a set is empty, of
    another magic, compressed twice or out of order, and for a payload that does not decompress to at most `cap` bytes.
    """
    try:
        return _read(raw, cap)
    except BadRecords as problem:
        raise problem.at(raw.header.base_offset) from None


def _read(raw: RawBatch, cap: int) -> Records:
    header = raw.header
    row, _ = _message(raw.data, 0, header.magic)
    if not header.codec:
        return _columns(raw.data, array("q", row))
    _, timestamp, _, _, value_at, value_size = row
    if value_size < 0:
        raise BadRecords("a compressed set without a value")
    if header.codec == ZSTD:
        raise BadRecords(f"zstd in magic {header.magic}, which does not have it")
    inner = memoryview(decompress(header.codec, raw.data[value_at : value_at + value_size], cap, magic=header.magic))
    found = _columns(inner, _rows(inner, header.magic))
    _make_absolute(found, header.magic, header.base_offset)
    return found.with_timestamp(timestamp) if header.attributes & APPEND_TIME else found


def _rows(data: memoryview, magic: int) -> array[int]:
    """The messages of a decompressed set, one row after the other."""
    rows = array("q")
    at = 0
    while at < len(data):
        row, following = _message(data, at, magic)
        if data[at + MAGIC_AT + 1] & CODEC_MASK:
            raise BadRecords(f"the message at byte {at} of a compressed set is compressed itself")
        rows.extend(row)
        at = following
    if not rows:
        raise BadRecords("a compressed set without messages")
    return rows


def _message(data: memoryview, at: int, magic: int) -> tuple[_Row, int]:
    """The message at `at` and the position behind it."""
    head = _HEAD[magic]
    if len(data) - at < LENGTH_PREFIX + _SMALLEST[magic]:
        raise BadRecords(f"the message at byte {at} is cut short")
    offset, length, crc, its_magic, _, *timestamp, key_size = head.unpack_from(data, at)
    following = at + LENGTH_PREFIX + length
    if length < _SMALLEST[magic] or following > len(data):
        raise BadRecords(f"the message at byte {at} has length {length}")
    if its_magic != magic:
        raise BadRecords(f"the message at byte {at} has magic {its_magic} inside magic {magic}")
    if crc32(data[at + MAGIC_AT : following]) != crc:
        raise BadRecords(f"the CRC of the message at byte {at} does not hold")
    key_at = at + head.size
    value_at = key_at + max(key_size, 0) + _SIZE.size
    if value_at > following:
        raise BadRecords(f"the message at byte {at} has a key of {key_size} bytes")
    (value_size,) = _SIZE.unpack_from(data, value_at - _SIZE.size)
    if value_at + max(value_size, 0) != following:
        raise BadRecords(f"the message at byte {at} has a value of {value_size} bytes")
    # any negative length is a null (Kafka Utils.sizeDelimited)
    sizes = max(key_size, -1), max(value_size, -1)
    return (offset, timestamp[0] if timestamp else -1, key_at, sizes[0], value_at, sizes[1]), following


def _columns(data: Buffer, rows: array[int]) -> Records:
    table = np.frombuffer(rows, np.int64).reshape(-1, 6)
    found = Records.empty(data, len(table))
    found.offsets[:], found.timestamps[:] = table[:, 0], table[:, 1]
    found.key_at[:], found.key_size[:] = table[:, 2], table[:, 3]
    found.value_at[:], found.value_size[:] = table[:, 4], table[:, 5]
    found.headers_at[:] = found.value_at + np.maximum(found.value_size, 0)
    found.headers_end[:] = found.headers_at
    found.header_count[:] = 0
    return found


def _make_absolute(found: Records, magic: int, wrapper_offset: int) -> None:
    offsets = found.offsets
    if offsets[0] < 0 or not (offsets[1:] > offsets[:-1]).all():
        raise BadRecords("the offsets of a compressed set are out of order")
    last = int(offsets[-1])
    if not wrapper_offset:
        return
    if last > wrapper_offset:
        raise BadRecords(f"a compressed set has offset {last} inside offset {wrapper_offset}")
    if magic:
        offsets += wrapper_offset - last
