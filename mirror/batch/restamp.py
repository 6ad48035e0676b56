"""A new header for an untouched records section.

Only fields that a broker lets a producer choose are written. The result goes in front of `RawBatch.records`, so the
payload is neither copied nor read again except by the CRC.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from mirror.batch.header import (
    APPEND_TIME,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER_BYTES,
    LAYOUT,
    TRANSACTIONAL,
    RawBatch,
)

#: Sequences are 31-bit and wrap from 2147483647 to 0, inside a batch too (Kafka
#: `DefaultRecordBatch.incrementSequence`).
SEQUENCES: Final = 1 << 31

_CLEARED: Final = ~(APPEND_TIME | TRANSACTIONAL | DELETE_HORIZON)
_NO_OFFSET: Final = bytes(8)


def restamp(raw: RawBatch, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """The 61 header bytes that append `raw` under a producer of ours.

    Base offset becomes 0, as a leader demands (Kafka `UnifiedLog.analyzeAndValidateRecords`). The transactional bit
    goes, since the target's coordinator does not know the transaction; the append-time bit goes, since a producer
    may not claim it (`LogValidator.validateTimestamp`); the delete-horizon bit goes, so that the target's cleaner
    sets its own (`Cleaner.shouldRetainRecord`). The CRC is computed anew: verify the old one first.
    """
    h = raw.header
    stamped = bytearray(
        LAYOUT.pack(
            0,
            h.batch_length,
            -1,
            h.magic,
            0,
            h.attributes & _CLEARED,
            h.last_offset_delta,
            h.base_timestamp,
            h.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            h.count,
        )
    )
    crc = crc32c(raw.data[HEADER_BYTES:], crc32c(stamped[CRC_FROM:]))
    stamped[CRC_AT:CRC_FROM] = crc.to_bytes(4, "big")
    return bytes(stamped)


def passed(raw: RawBatch) -> bytes:
    """The 61 header bytes of a batch that needs no change: base offset 0, the rest and the CRC as stored."""
    return _NO_OFFSET + bytes(raw.data[8:HEADER_BYTES])


def next_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """The sequence after a batch: it advances by offsets, not by records (Kafka `DefaultRecordBatch.lastSequence`)."""
    return (base_sequence + last_offset_delta + 1) % SEQUENCES
