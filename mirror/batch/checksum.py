"""CRC-32C (Castagnoli) as Kafka uses it: one over a batch from its attributes on, one of ours over the records
section.
"""

from __future__ import annotations

from crc32c import crc32c

from mirror.batch.header import CRC_FROM, HEADER_BYTES, RawBatch


def crc_holds(raw: RawBatch) -> bool:
    """Whether the stored CRC matches bytes 21 to the end. Only for magic 2; verified before a header is patched,
    since a CRC computed over a damaged payload would launder the damage."""
    return crc32c(raw.data[CRC_FROM:]) == raw.header.crc


def records_crc(raw: RawBatch) -> int:
    """CRC-32C of the records section alone: equal on both sides of a mirror whatever was done to the header."""
    return crc32c(raw.data[HEADER_BYTES:])
