"""Record headers to bytes, where a record gets others than it came with (KIP-82; Kafka `DefaultRecord.writeTo`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from mirror.batch.records import Int32s

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


def columns(every: Iterable[Pairs], at: int) -> tuple[bytes, Int32s, Int32s, Int32s]:
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
