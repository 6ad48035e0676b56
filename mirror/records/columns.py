"""The records of a batch as columns, without a Python object for any of them; headers, and the partition of a key.

A record of magic 2 is (Kafka `DefaultRecord.java`, KIP-82, KIP-98; numbers are zigzag variable-length)

    length, attributes (1 byte, unused), timestamp delta, offset delta, key length (-1: null), key,
    value length (-1: null), value, header count, and for each header: key length, key, value length (-1: null), value

A record of magic 0 or 1 has fixed-length fields and no headers (`records/rewrite.py`); it gets the same columns.

Decision: columns hold positions in the decompressed bytes instead of copies. Rewriting copies each byte once, to its
new place; `column` gathers one into Arrow's layout for whoever wants that.

Whoever writes keyed records with that client, or reads them and expects the records of a key together, counts on it.
librdkafka has the same rule under the name `murmur2_random`, and another one unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mirror.errors import BadRecords, TooManyBytes
from mirror.records import kernels
from mirror.records.codecs import Buffer, chunks, decompress
from mirror.records.header import APPEND_TIME, RawBatch
from mirror.records.recipe import CAP, LARGEST_RECORD, PORTION

# --- The records of a batch as columns, without a Python object for any of them ---------------------------------------

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
#: Offsets, bytes, and which are not null.
Column = tuple[Int32s, Bytes, NDArray[np.bool_]]

#: Length, attributes, two deltas, two lengths and a header count of one byte each.
SMALLEST_RECORD: Final = 7
#: The longest number that begins a record.
_LONGEST_LENGTH: Final = 5
#: A batch of more records is refused where it is opened whole: its columns alone would take more than 160 MB. The
#: default limits of brokers and producers are far below.
MOST_RECORDS: Final = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Columns of equal length, in offset order; positions and sizes are bytes of `data`.

    `offsets` are absolute, `timestamps` in ms (-1: none). A size of -1 is a null. `headers_at` to `headers_end` is
    what follows the header count, as magic 2 stores it.
    """

    data: Bytes
    offsets: Int64s
    timestamps: Int64s
    key_at: Int32s
    key_size: Int32s
    value_at: Int32s
    value_size: Int32s
    headers_at: Int32s
    headers_end: Int32s
    header_count: Int32s

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def empty(cls, data: Buffer, count: int) -> Records:
        """Room for `count` records of `data`, to be filled in. Raises BadRecords where they are too many."""
        if count > MOST_RECORDS:
            raise BadRecords(f"{count} records in a batch, more than {MOST_RECORDS}")
        large, small = np.empty((2, count), np.int64), np.empty((7, count), np.int32)
        return cls(np.frombuffer(data, np.uint8), *large, *small)

    def rows(self, start: int, stop: int) -> Records:
        """Some of the records, as views."""
        return Records(self.data, *(column[start:stop] for column in self._columns()))

    def taken(self, rows: NDArray[np.intp]) -> Records:
        """Those of the records, by their numbers in a rising order."""
        return Records(self.data, *(column[rows] for column in self._columns()))

    def with_timestamp(self, timestamp: int) -> Records:
        """The same records, all with one timestamp."""
        offsets, _, *positions = self._columns()
        return Records(self.data, offsets, np.full(len(self), timestamp, np.int64), *positions)

    def relocated(self, place: Callable[[int], int | None]) -> Records:
        """The same records at other offsets; one for which there is no place stays at its own."""
        placed = (place(offset) for offset in self.offsets.tolist())
        offsets = [old if new is None else new for old, new in zip(self.offsets.tolist(), placed, strict=True)]
        return replace(self, offsets=np.array(offsets, np.int64))

    def moved(self, by: int) -> Records:
        """The same records for a buffer that has `by` bytes more before them."""
        step = np.int32(by)
        return replace(
            self,
            key_at=self.key_at + step,
            value_at=self.value_at + step,
            headers_at=self.headers_at + step,
            headers_end=self.headers_end + step,
        )

    def _columns(self) -> tuple[Any, ...]:
        return (
            *(self.offsets, self.timestamps, self.key_at, self.key_size, self.value_at, self.value_size),
            *(self.headers_at, self.headers_end, self.header_count),
        )


def joined(parts: Sequence[Records]) -> Records:
    """Several batches' records as one. Raises BadRecords where they are too many."""
    if len(parts) == 1:
        return parts[0]
    if sum(map(len, parts)) > MOST_RECORDS:
        raise BadRecords(f"more than {MOST_RECORDS} records in a batch")
    starts = accumulate((len(part.data) for part in parts), initial=0)
    columns = zip(*(part.moved(start)._columns() for part, start in zip(parts, starts, strict=False)), strict=True)
    return Records(np.concatenate([part.data for part in parts]), *map(np.concatenate, columns))


def decode(data: Buffer, count: int, base_offset: int, base_timestamp: int, largest_delta: int = 2**31 - 1) -> Records:
    """The records of a decompressed section of magic 2.

    Raises BadRecords where the bytes do not hold exactly `count` records with rising offsets.
    """
    if not 0 <= count <= len(data) // SMALLEST_RECORD:
        raise BadRecords(f"{count} records do not fit into {len(data)} bytes")
    found = Records.empty(data, count)
    problem, index = kernels.decode_records(found.data, largest_delta, base_timestamp, *found._columns())
    if problem:
        raise BadRecords(f"record {index} of {count}: {kernels.PROBLEMS[problem]}")
    np.add(found.offsets, base_offset, out=found.offsets)
    return found


def read(raw: RawBatch, cap: int = CAP) -> Records:
    """The records of a batch of magic 2 as a consumer sees them: an append-time batch has one timestamp (KIP-32).

    Raises BadRecords, with the batch's base offset, where the payload does not decompress to at most `cap` bytes or
    is not what the header says.
    """
    header = raw.header
    try:
        section = decompress(header.codec, raw.records, cap)
        found = decode(section, header.count, header.base_offset, header.base_timestamp, header.last_offset_delta)
    except BadRecords as problem:
        raise problem.at(header.base_offset) from None
    return found.with_timestamp(header.max_timestamp) if header.attributes & APPEND_TIME else found


def portions(raw: RawBatch, cap: int = LARGEST_RECORD, portion: int = PORTION) -> Iterator[Records]:
    """The same records, of a batch that may decompress to any size: in portions of at most `portion` bytes, or of one
    record, of at most `cap`. Where they end follows from the records' sizes alone.

    Held at a time are a portion twice, and its columns. Raises BadRecords, with the batch's base offset, for a payload
    that is not what the header says, as soon as it comes to that, and TooManyBytes for a larger record.
    """
    try:
        yield read(raw, portion)
        return
    except TooManyBytes:
        pass  # as a stream, from its beginning
    header = raw.header
    try:
        for found in _streamed(raw, cap, portion):
            yield found.with_timestamp(header.max_timestamp) if header.attributes & APPEND_TIME else found
    except BadRecords as problem:
        raise problem.at(header.base_offset) from None


def _streamed(raw: RawBatch, cap: int, portion: int) -> Iterator[Records]:
    header = raw.header
    source, buffer, ended = chunks(header.codec, raw.records), bytearray(), False
    done, before, least = 0, -1, max(portion, _LONGEST_LENGTH)
    needed = least
    while done < header.count:
        while len(buffer) < needed and not ended:
            piece = next(source, None)
            ended = piece is None
            buffer += piece or b""
        count, end = kernels.whole_records(np.frombuffer(buffer, np.uint8), portion, header.count - done)
        needed = least if count else _next_size(buffer, done, header.count, ended=ended)
        if max(needed, end) > max(cap, least):
            raise TooManyBytes(f"a record of {max(needed, end)} bytes without compression, more than {cap}")
        if not count:
            continue
        section = bytes(memoryview(buffer)[:end])
        del buffer[:end]
        found = decode(section, count, header.base_offset, header.base_timestamp, header.last_offset_delta)
        if int(found.offsets[0]) <= before:
            raise BadRecords(f"record {done} of {header.count}: an offset delta is out of order")
        before, done = int(found.offsets[-1]), done + count
        if done == header.count and (buffer or any(map(len, source))):
            raise BadRecords(f"record {done - 1} of {header.count}: bytes follow the last record")
        yield found


def _next_size(buffer: bytearray, number: int, count: int, *, ended: bool) -> int:
    """Bytes of the record that a buffer begins with, and does not hold whole. Raises BadRecords where it never will."""
    length, following = kernels.read_varint(np.frombuffer(buffer, np.uint8), 0, len(buffer))
    if ended or following < 0 or length < 1:
        raise BadRecords(f"record {number} of {count}: a record begins beyond the records section")
    return int(following + length)


def encode(records: Records, base_timestamp: int) -> memoryview:
    """A records section of magic 2 with offset deltas from 0 on, not compressed."""
    _, timestamps, *positions = records._columns()
    bound = kernels.encoded_bound(records.key_size, records.value_size, records.headers_at, records.headers_end)
    section = np.empty(bound, np.uint8)
    size = kernels.encode_records(records.data, base_timestamp, timestamps, *positions, section)
    return section[:size].data


def column(records: Records, which: Literal["key", "value"]) -> Column:
    """One column in Arrow's binary layout: n + 1 offsets, the bytes together, and which of the n are not null."""
    at, size = (records.key_at, records.key_size) if which == "key" else (records.value_at, records.value_size)
    return _gathered(records.data, at, size)


def header_columns(records: Records) -> tuple[Int32s, Column, Column]:
    """All headers in Arrow's layout of a list: n + 1 offsets, and keys and values as `column` has them."""
    offsets = np.zeros(len(records) + 1, np.int32)
    np.cumsum(records.header_count, out=offsets[1:])
    key_at, key_size, value_at, value_size = found = np.empty((4, int(offsets[-1])), np.int32)
    kernels.split_headers(records.data, records.headers_at, records.headers_end, records.header_count, *found)
    return offsets, _gathered(records.data, key_at, key_size), _gathered(records.data, value_at, value_size)


def _gathered(data: Bytes, int32s: Int32s, size: Int32s) -> Column:
    offsets = np.zeros(len(int32s) + 1, np.int32)
    np.cumsum(np.maximum(size, 0), out=offsets[1:])
    gathered = np.empty(int(offsets[-1]), np.uint8)
    kernels.gather_bytes(data, int32s, size, offsets, gathered)
    return offsets, gathered, size >= 0


def key(records: Records, index: int) -> bytes | None:
    """One record's key; for tests and reports, not for every record of a batch."""
    return _field(records, int(records.key_at[index]), int(records.key_size[index]))


def value(records: Records, index: int) -> bytes | None:
    """One record's value, likewise."""
    return _field(records, int(records.value_at[index]), int(records.value_size[index]))


def headers(records: Records, index: int) -> list[tuple[bytes, bytes | None]]:
    """One record's headers, in order, keys that repeat included."""
    section = records.data[records.headers_at[index] : records.headers_end[index]]
    found: list[tuple[bytes, bytes | None]] = []
    at = 0
    for _ in range(int(records.header_count[index])):
        pair: list[bytes | None] = []
        for _ in range(2):
            size, at = kernels.read_varint(section, at, len(section))
            pair.append(None if size < 0 else section[at : at + size].tobytes())
            at += max(size, 0)
        found.append((pair[0] or b"", pair[1]))
    return found


def _field(records: Records, at: int, size: int) -> bytes | None:
    return None if size < 0 else records.data[at : at + size].tobytes()


# --- Record headers to bytes ------------------------------------------------------------------------------------------

Pairs = Sequence[tuple[bytes, bytes | None]]


def encoded(pairs: Pairs) -> bytes:
    """One record's headers as they follow their count; None is a null."""
    out = bytearray()
    for key, value in pairs:
        _put(out, len(key))
        out += key
        _put(out, -1 if value is None else len(value))
        out += value or b""
    return bytes(out)


def encode_headers(every: Iterable[Pairs], at: int) -> tuple[bytes, Int32s, Int32s, Int32s]:
    """The headers of several records together, for a place `at` in a buffer: the bytes, where those of each record
    begin and end, and how many they are.
    """
    listed = list(every)
    parts = [encoded(pairs) for pairs in listed]
    edges = np.array(list(accumulate(map(len, parts), initial=at)), np.int32)
    counts = np.array([len(pairs) for pairs in listed], np.int32)
    return b"".join(parts), edges[:-1], edges[1:], counts


def _put(out: bytearray, number: int) -> None:
    """A zigzag number of variable length."""
    zigzag = (number << 1) ^ (number >> 63)
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


# --- Which partition a record's key belongs to ------------------------------------------------------------------------


def partitions_of(records: Records, count: int) -> Int32s:
    """The partition, from 0 to below `count`, of each record by its key; -1 for one without a key, which a producer
    may put anywhere. An empty key is a key.
    """
    assert count > 0, f"{count} partitions"
    found = np.empty(len(records), np.int32)
    kernels.murmur2_partitions(records.data, records.key_at, records.key_size, count, found)
    return found
