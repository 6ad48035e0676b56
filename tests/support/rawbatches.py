"""Record batches made by hand from Kafka's field table, and a CRC-32C of our own: the mirror's is held against them."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from hypothesis import strategies as st

from mirror.records.header import RawBatch, split

INT16: Final = st.integers(-(2**15), 2**15 - 1)
INT32: Final = st.integers(-(2**31), 2**31 - 1)
INT64: Final = st.integers(-(2**63), 2**63 - 1)


def _shifted(crc: int) -> int:
    """A byte, bit by bit."""
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


_TABLE: Final = tuple(map(_shifted, range(256)))


def crc32c(data: bytes) -> int:
    """Byte by byte, from the polynomial alone."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def batch(
    base_offset: int = 0,
    *,
    count: int = 1,
    delta: int | None = None,
    attributes: int = 0,
    payload: bytes = b"a records section",
    leader_epoch: int = 0,
    magic: int = 2,
    base_timestamp: int = 1_700_000_000_000,
    max_timestamp: int = 1_700_000_000_999,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    length: int | None = None,
    crc: int | None = None,
) -> bytes:
    """A batch of magic 2 with a valid length and CRC, unless they are given."""
    delta = count - 1 if delta is None else delta
    times = (base_timestamp, max_timestamp)
    summed = struct.pack(">hiqqqhii", attributes, delta, *times, producer_id, producer_epoch, base_sequence, count)
    summed += payload
    body = struct.pack(">ibI", leader_epoch, magic, crc32c(summed) if crc is None else crc) + summed
    return struct.pack(">qi", base_offset, len(body) if length is None else length) + body


def forged(data: bytes, wanted: int) -> bytes:
    """The data with its last four bytes chosen so that its CRC-32C is `wanted`: a linear equation, bit by bit."""
    start = data[:-4]
    zero = crc32c(start + bytes(4))
    solved: dict[int, tuple[int, int]] = {}
    for bit in range(32):
        effect, choice = crc32c(start + (1 << bit).to_bytes(4)) ^ zero, 1 << bit
        while (top := effect.bit_length()) in solved:
            effect, choice = effect ^ solved[top][0], choice ^ solved[top][1]
        solved[top] = effect, choice
    left, chosen = wanted ^ zero, 0
    while left:
        effect, choice = solved[left.bit_length()]
        left, chosen = left ^ effect, chosen ^ choice
    return start + chosen.to_bytes(4)


def legacy(offset: int, magic: int, value: bytes = b"value") -> bytes:
    """A message of magic 0 or 1 without a key."""
    clock = struct.pack(">q", 1_400_000_000_000) if magic else b""
    summed = struct.pack(">bb", magic, 0) + clock + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(summed), zlib.crc32(summed)) + summed


def raw(data: bytes) -> RawBatch:
    """The one batch that `data` is."""
    (only,) = split(memoryview(data))
    return only
