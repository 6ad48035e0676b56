"""A new header for an untouched records section.

Only fields that a broker lets a producer choose are written. The result goes in front of `RawBatch.records`, so the
payload is neither copied nor read again except by the CRC.
"""

from __future__ import annotations

from dataclasses import dataclass
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
#: Epochs are 15-bit; the last one is left alone, since brokers treat it as used up.
LAST_EPOCH: Final = (1 << 15) - 2
#: Ids that one partition's producer may go through: the low bits count them (`Stamp.then`).
ERAS: Final = 1 << 20
#: The least producer id of any flow; the largest is below twice that.
FIRST_ID: Final = 1 << 52

_CLEARED: Final = ~(APPEND_TIME | TRANSACTIONAL | DELETE_HORIZON)
_NO_OFFSET: Final = bytes(8)


def is_a_mirrors(producer_id: int) -> bool:
    """Whether a mirror wrote what has this producer id, of whatever flow."""
    return FIRST_ID <= producer_id < 2 * FIRST_ID


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the next batch of a partition is stamped with.

    Batches in a row count sequences up in one epoch. Each marker takes an epoch of its own, and the batch behind
    markers begins a further one with sequence 0, as a broker demands (Kafka `ProducerAppendInfo.checkSequence`). So a
    marker or a batch that somebody repeats later has an epoch that is gone, and is refused. The last batch of a log,
    data or marker, tells what comes next.
    """

    producer_id: int
    epoch: int = 0
    sequence: int = 0

    def after(self, last_offset_delta: int) -> Stamp:
        """Behind a batch: a sequence advances by offsets, not by records (Kafka `DefaultRecordBatch.lastSequence`)."""
        return Stamp(self.producer_id, self.epoch, (self.sequence + last_offset_delta + 1) % SEQUENCES)

    def then(self, count: int = 1) -> Stamp:
        """The first sequence, `count` epochs on; after the last epoch the next id begins."""
        eras, epoch = divmod(self.epoch + count, LAST_EPOCH + 1)
        return Stamp(self.producer_id + eras, epoch)

    def is_kin(self, producer_id: int) -> bool:
        """Whether an id is one that this partition's producer goes through."""
        return self.producer_id // ERAS == producer_id // ERAS


def restamp(raw: RawBatch, stamp: Stamp, *, transactional: bool = False) -> bytes:
    """The 61 header bytes that append `raw` under a producer of ours.

    Base offset becomes 0, as a leader demands (Kafka `UnifiedLog.analyzeAndValidateRecords`). The transactional bit
    goes, since the target's coordinator does not know the transaction, unless `stamp` is one that it gave out for a
    transaction of its own (`transactional`); the append-time bit goes, since a producer
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
            h.attributes & _CLEARED | (TRANSACTIONAL if transactional else 0),
            h.last_offset_delta,
            h.base_timestamp,
            h.max_timestamp,
            stamp.producer_id,
            stamp.epoch,
            stamp.sequence,
            h.count,
        )
    )
    crc = crc32c(raw.data[HEADER_BYTES:], crc32c(stamped[CRC_FROM:]))
    stamped[CRC_AT:CRC_FROM] = crc.to_bytes(4, "big")
    return bytes(stamped)


def passed(raw: RawBatch) -> bytes:
    """The 61 header bytes of a batch that needs no change: base offset 0, the rest and the CRC as stored."""
    return _NO_OFFSET + bytes(raw.data[8:HEADER_BYTES])
