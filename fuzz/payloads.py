"""Targets: what lies inside a batch, handed to its reader directly."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from itertools import pairwise
from struct import Struct
from typing import Final

import numpy as np
from recordoracle import decoded

from fuzz.limits import CAP
from mirror.errors import BadRecords, MalformedBatch, TooManyBytes
from mirror.records import codecs
from mirror.records import columns as new
from mirror.records import rewrite as old
from mirror.records.codecs import Buffer, decompress
from mirror.records.columns import Records, partitions_of
from mirror.records.header import CODECS, split

#: In front of a records section: count, base offset, base timestamp.
PLACE: Final = Struct(">HIq")
#: Longer sections are not compared with the oracle, which is slow.
_COMPARED: Final = 256
_INT32S: Final = 1 << 31


class _Guarded:
    """A buffer behind which nothing can be read: compiled loops check no bounds, so a byte too far must be deadly."""

    def __init__(self, size: int) -> None:
        """`size` in bytes, a multiple of a page."""
        self._memory = mmap.mmap(-1, size + mmap.PAGESIZE)
        self._end = size
        behind = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + size
        refused = ctypes.CDLL(None, use_errno=True).mprotect(
            ctypes.c_void_p(behind), ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_int(0)
        )
        assert not refused, ctypes.get_errno()

    def holding(self, data: bytes | memoryview) -> memoryview:
        """A copy of `data` right before the end, as far as there is room."""
        begin = max(self._end - len(data), 0)
        place = memoryview(self._memory)[begin : self._end]
        place[:] = data[: len(place)]
        return place


_guarded: Final = _Guarded(64 * 1024)


def records(data: bytes) -> None:
    """A records section of magic 2 (see `PLACE`): what is accepted is within its bounds, and encodes to the same."""
    if len(data) < PLACE.size:
        return
    count, base_offset, base_timestamp = PLACE.unpack_from(data)
    section = _guarded.holding(data[PLACE.size :])
    try:
        found = new.decode(section, count, base_offset, base_timestamp)
    except BadRecords:
        return
    assert len(found) == count
    assert (np.diff(found.offsets) > 0).all()
    assert not count or base_offset <= found.offsets[0] <= found.offsets[-1] < base_offset + _INT32S
    within(found, len(section))
    assert ((partitions_of(found, 7) < 0) == (found.key_size < 0)).all()
    if len(section) <= _COMPARED:
        for index, record in enumerate(decoded(bytes(section), count)):
            assert found.offsets[index] == base_offset + record.offset
            assert new.key(found, index) == record.key
            assert new.value(found, index) == record.value
            assert tuple(new.headers(found, index)) == record.headers
    if count:
        base = int(found.timestamps[0])
        same(found, new.decode(new.encode(found, base), count, 0, base), offsets=False)


def legacy(data: bytes) -> None:
    """Messages of magic 0 and 1 as they are, CRCs included."""
    try:
        for raw in split(memoryview(data)):
            if raw.header.magic not in (0, 1):
                return
            found = old.read_legacy(raw, CAP)
            assert len(found)
            within(found, len(found.data))
    except (MalformedBatch, BadRecords):
        return


def codec(number: int) -> Callable[[bytes], None]:
    """The target for one codec: a byte whose lowest bit chooses the magic, 0 or 2, and a payload."""

    def check(data: bytes) -> None:
        if not data:
            return
        payload, magic = memoryview(data)[1:], 2 * (data[0] & 1)
        try:
            found = decompress(number, payload, CAP, magic=magic)
        except BadRecords:
            return
        assert len(found) <= CAP
        assert not found or _is_refused(number, payload, len(found) - 1, magic)
        again = decompress(number, codecs.compress(number, found), len(found))
        assert bytes(again) == bytes(found)

    check.__name__, check.__doc__ = CODECS[number], f"A {CODECS[number]} payload, of magic 0 and of magic 2."
    return check


def _is_refused(number: int, payload: Buffer, cap: int, magic: int) -> bool:
    """Whether a sound payload of more than `cap` bytes is given up for that, and for nothing else."""
    try:
        decompress(number, payload, cap, magic=magic)
    except TooManyBytes:
        return True
    return False


def within(found: Records, size: int) -> None:
    """Assert that every position of the columns is within `size` bytes, and that fields follow each other."""
    keys_end = found.key_at + np.maximum(found.key_size, 0)
    values_end = found.value_at + np.maximum(found.value_size, 0)
    positions = (found.key_at, keys_end, found.value_at, values_end, found.headers_at, found.headers_end)
    for one, following in pairwise(positions):
        assert (one <= following).all()
    assert (found.key_at >= 0).all()
    assert (found.headers_end <= size).all()
    assert (found.key_size >= -1).all()
    assert (found.value_size >= -1).all()
    assert (found.header_count >= 0).all()


def same(one: Records, other: Records, *, offsets: bool = True) -> None:
    """Assert that keys, values, headers and timestamps are equal, and offsets where asked for."""
    assert not offsets or np.array_equal(one.offsets, other.offsets)
    assert np.array_equal(one.timestamps, other.timestamps)
    assert np.array_equal(one.header_count, other.header_count)
    for which in ("key", "value"):
        edges, data, present = new.column(one, which)
        its_edges, its_data, its_present = new.column(other, which)
        assert np.array_equal(edges, its_edges)
        assert np.array_equal(data, its_data)
        assert np.array_equal(present, its_present)
    assert _headers(one) == _headers(other)


def _headers(found: Records) -> list[bytes]:
    edges = zip(found.headers_at, found.headers_end, found.header_count, strict=True)
    return [found.data[at:end].tobytes() for at, end, count in edges if count]
