"""The loops over records, compiled by numba.

A kernel gets buffers and fills arrays; it makes no Python object for a record. Signatures are given, so a kernel is
compiled when this module is imported, once for a machine: the result is kept (`folders.kernels`), and every other
process loads it from there. Where nothing can be kept, each process compiles for itself. Importing numba takes half a
second, which is why only what rewrites a batch imports this module, and only when there is one to rewrite.

Positions and sizes are 32-bit: what is opened at a time is capped below 2 GiB (`recipe.LARGEST_RECORD`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from mirror import host

if (_KEPT := host.kernels_folder()) is not None:
    os.environ["NUMBA_CACHE_DIR"] = str(_KEPT)  # numba looks when it is imported

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: What `decode_records` found; the text is for the error.
PROBLEMS: Final = (
    "",
    "a number runs beyond the records section",
    "a number has too many bytes",
    "a length reaches beyond its record",
    "a record's length is not that of its fields",
    "a record begins beyond the records section",
    "bytes follow the last record",
    "an offset delta is out of order",
    "a header has no key",
    "a header count is negative",
)
_CUT, _LONG, _BEYOND, _LENGTH, _START, _REST, _ORDER, _NO_KEY, _COUNT = range(1, len(PROBLEMS))

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_SPACE = types.uint8[::1]
_SMALL = types.int32[::1]
_LARGE = types.int64[::1]
_INT = types.int64
_PAIR = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call] # numba has no types there


def _kernel(signature: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = numba.njit(signature, cache=_KEPT is not None, nogil=True, boundscheck=False)
    return compiled


@_kernel(_PAIR(_BYTES, _INT, _INT))
def _varlong(data: Any, at: int, end: int) -> tuple[int, int]:
    """A zigzag number and the position behind it; a negative position is a problem (Kafka `ByteUtils.readVarlong`)."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    for position in range(at, at + 10):
        if position >= end:
            return 0, -_CUT
        byte = np.uint64(data[position])
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < 0x80:
            number: Any = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
            return number, position + 1
        shift += np.uint64(7)
    return 0, -_LONG


@_kernel(_PAIR(_BYTES, _INT, _INT))
def read_varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """The same for 32 bits: at most five bytes (Kafka `ByteUtils.readVarint`)."""
    number, following = _varlong(data, at, end)
    if following > at + 5 or not -(1 << 31) <= number < 1 << 31:
        return 0, -_LONG
    return number, following


@_kernel(_INT(_INT))
def _varint_size(number: int) -> int:
    zigzag = np.uint64((number << 1) ^ (number >> 63))
    size = 1
    while zigzag >= np.uint64(0x80):
        zigzag >>= np.uint64(7)
        size += 1
    return size


@_kernel(_INT(_SPACE, _INT, _INT))
def _put_varint(out: Any, at: int, number: int) -> int:
    zigzag = np.uint64((number << 1) ^ (number >> 63))
    while zigzag >= np.uint64(0x80):
        out[at] = np.uint8(zigzag & np.uint64(0x7F)) | np.uint8(0x80)
        zigzag >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(zigzag)
    return at + 1


def _memcpy(_: Any, out: Any, at: Any, data: Any, start: Any, size: Any) -> Any:
    """C's, for which numba has no name: what it makes of a slice goes byte by byte, and is ten times slower."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        arrays = [context.make_array(signature.args[which])(context, builder, values[which]) for which in (0, 2)]
        to, source = (builder.gep(one.data, [values[which]]) for one, which in zip(arrays, (1, 3), strict=True))
        cgutils.raw_memcpy(builder, to, source, values[4], 1)  # type: ignore[no-untyped-call] # nor here
        return context.get_dummy_value()

    return types.void(out, at, data, start, size), generate


def _copied(out: Any, at: int, data: Any, start: int, size: int) -> None:
    """Do the same without the compiler (`NUMBA_DISABLE_JIT`)."""
    out[at : at + size] = data[start : start + size]


_copy: Any = _copied if getattr(numba.config, "DISABLE_JIT", False) else intrinsic(_memcpy)


@_kernel(_PAIR(_BYTES, _INT, _INT))
def whole_records(data: Any, limit: int, most: int) -> tuple[int, int]:
    """How many records, up to `most`, a records section begins with that have at most `limit` bytes together, or are
    one, and where the last one ends; nothing behind a record that is cut short, or has no length.
    """
    count = at = 0
    while count < most and at < limit:
        length, following = read_varint(data, at, len(data))
        end = following + length
        if following < 0 or length < 1 or end > len(data) or (count and end > limit):
            break
        at = end
        count += 1
    return count, at


@_kernel(_INT(_SPACE, _INT, _BYTES, _INT, _INT))
def _put_bytes(out: Any, at: int, data: Any, start: int, end: int) -> int:
    _copy(out, at, data, start, end - start)
    return at + end - start


@_kernel(_PAIR(_BYTES, _INT, _INT, _LARGE, _LARGE, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL))
def decode_records(
    data: Any,
    largest_delta: int,
    base_timestamp: int,
    deltas: Any,
    timestamps: Any,
    key_at: Any,
    key_size: Any,
    value_at: Any,
    value_size: Any,
    headers_at: Any,
    headers_end: Any,
    header_count: Any,
) -> tuple[int, int]:
    """Fill the columns from a records section of magic 2; as many records as `deltas` is long.

    Returns the number of a problem (see `PROBLEMS`, 0 for none) and the record that has it. The rules are those of
    Kafka's `DefaultRecord.readFrom`, and that offsets rise within the batch.
    """
    at, size = 0, len(data)
    before = -1
    for i in range(len(deltas)):
        length, at = read_varint(data, at, size)
        if at < 0:
            return -at, i
        end = at + length
        if length < 1 or end > size:
            return _START, i
        at += 1  # attributes: none is in use
        number, at = _varlong(data, at, end)
        if at < 0:
            return -at, i
        timestamps[i] = base_timestamp + number
        number, at = read_varint(data, at, end)
        if at < 0:
            return -at, i
        if number <= before or number > largest_delta:
            return _ORDER, i
        deltas[i] = before = number
        for field in range(2):
            number, at = read_varint(data, at, end)
            if at < 0:
                return -at, i
            if number > end - at:
                return _BEYOND, i
            number = max(number, -1)
            if field == 0:
                key_at[i], key_size[i] = at, number
            else:
                value_at[i], value_size[i] = at, number
            at += max(number, 0)
        number, at = read_varint(data, at, end)
        if at < 0:
            return -at, i
        if number < 0:
            return _COUNT, i
        headers_at[i], header_count[i] = at, number
        for _ in range(number):
            for field in range(2):
                number, at = read_varint(data, at, end)
                if at < 0:
                    return -at, i
                if number > end - at:
                    return _BEYOND, i
                if number < 0 and field == 0:
                    return _NO_KEY, i
                at += max(number, 0)
        if at != end:
            return _LENGTH, i
        headers_end[i] = at
    return (0, 0) if at == size else (_REST, len(deltas) - 1)


@_kernel(_INT(_BYTES, _INT, _LARGE, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL, _SPACE))
def encode_records(
    data: Any,
    base_timestamp: int,
    timestamps: Any,
    key_at: Any,
    key_size: Any,
    value_at: Any,
    value_size: Any,
    headers_at: Any,
    headers_end: Any,
    header_count: Any,
    out: Any,
) -> int:
    """Write a dense records section of magic 2 and return its size; `out` must be long enough (`encoded_bound`)."""
    at = 0
    for i in range(len(timestamps)):
        delta = timestamps[i] - base_timestamp
        keys, values, headers = max(key_size[i], 0), max(value_size[i], 0), headers_end[i] - headers_at[i]
        numbers = _varint_size(delta) + _varint_size(i) + _varint_size(key_size[i]) + _varint_size(value_size[i])
        at = _put_varint(out, at, 1 + numbers + keys + values + _varint_size(header_count[i]) + headers)
        out[at] = 0
        at = _put_varint(out, at + 1, delta)
        at = _put_varint(out, at, i)
        at = _put_varint(out, at, key_size[i])
        at = _put_bytes(out, at, data, key_at[i], key_at[i] + keys)
        at = _put_varint(out, at, value_size[i])
        at = _put_bytes(out, at, data, value_at[i], value_at[i] + values)
        at = _put_varint(out, at, header_count[i])
        at = _put_bytes(out, at, data, headers_at[i], headers_end[i])
    return at


@_kernel(_INT(_SMALL, _SMALL, _SMALL, _SMALL))
def encoded_bound(key_size: Any, value_size: Any, headers_at: Any, headers_end: Any) -> int:
    """Bytes that `encode_records` needs at most: 36 for the numbers of a record, and the rest as it is."""
    total = 0
    for i in range(len(key_size)):
        total += 36 + max(key_size[i], 0) + max(value_size[i], 0) + headers_end[i] - headers_at[i]
    return total


@_kernel(types.void(_BYTES, _SMALL, _SMALL, _SMALL, _SPACE))
def gather_bytes(data: Any, at: Any, size: Any, offsets: Any, out: Any) -> None:
    """Copy one column's bytes together; `offsets` has one more entry than the column (Arrow's binary layout)."""
    for i in range(len(at)):
        _put_bytes(out, offsets[i], data, at[i], at[i] + max(size[i], 0))


@_kernel(types.void(_BYTES, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL, _SMALL))
def split_headers(
    data: Any,
    headers_at: Any,
    headers_end: Any,
    header_count: Any,
    key_at: Any,
    key_size: Any,
    value_at: Any,
    value_size: Any,
) -> None:
    """Where each header of decoded records has its key and its value; a size of -1 is a null. The columns filled have
    as many entries as there are headers in all.
    """
    header = 0
    for i in range(len(headers_at)):
        at, end = headers_at[i], headers_end[i]
        for _ in range(header_count[i]):
            size, begin = read_varint(data, at, end)
            key_at[header], key_size[header] = begin, size
            at = begin + max(size, 0)
            size, begin = read_varint(data, at, end)
            value_at[header], value_size[header] = begin, max(size, -1)
            at = begin + max(size, 0)
            header += 1


@_kernel(types.void(_BYTES, _SMALL, _SMALL, _INT, _SMALL))
def murmur2_partitions(data: Any, at: Any, size: Any, count: int, out: Any) -> None:
    """The partition of each key among `count`, as Kafka's Java client chooses it (`BuiltInPartitioner.partitionForKey`,
    `Utils.murmur2`); -1 for a null, whose size is -1.
    """
    low, mix = np.uint64(0xFFFFFFFF), np.uint64(0x5BD1E995)  # 32-bit numbers in 64: numba widens products anyway
    for i in range(len(at)):
        begin, length = at[i], size[i]
        if length < 0:
            out[i] = -1
            continue
        words = begin + length // 4 * 4
        state = np.uint64(0x9747B28C) ^ np.uint64(length)
        for word in range(begin, words, 4):
            number = np.uint64(data[word]) | np.uint64(data[word + 1]) << np.uint64(8)
            number |= np.uint64(data[word + 2]) << np.uint64(16) | np.uint64(data[word + 3]) << np.uint64(24)
            number = number * mix & low
            number ^= number >> np.uint64(24)
            state = (state * mix & low) ^ (number * mix & low)
        if words < begin + length:
            for byte in range(words, begin + length):
                state ^= np.uint64(data[byte]) << np.uint64(8 * (byte - words))
            state = state * mix & low
        state ^= state >> np.uint64(13)
        state = state * mix & low
        state ^= state >> np.uint64(15)
        out[i] = np.int64(state & np.uint64(0x7FFFFFFF)) % count
