"""The checksums of a batch: CRC-32C (Castagnoli) from the attributes on, CRC-32 in magic 0 and 1, and one of ours over
the records section.
"""

from __future__ import annotations

from zlib import crc32

from crc32c import crc32c

from mirror.batch.header import CRC_FROM, HEADER_BYTES, LENGTH_PREFIX, MAGIC_AT, RawBatch


def crc_holds(raw: RawBatch) -> bool:
    """Whether the stored CRC matches bytes 21 to the end, or 16 to the end in magic 0 and 1.

    Verified before a header is patched or a batch rewritten, since a CRC computed over a damaged payload would launder
    the damage.
    """
    if raw.header.magic in (0, 1):
        return crc32(raw.data[MAGIC_AT:]) == raw.header.crc
    return crc32c(raw.data[CRC_FROM:]) == raw.header.crc


def records_crc(raw: RawBatch) -> int:
    """CRC-32C of the records section of magic 2: equal on both sides of a mirror whatever was done to the header."""
    return crc32c(raw.data[HEADER_BYTES:])


def same_records(one: RawBatch, other: RawBatch) -> bool:
    """Whether two batches of one magic hold the same bytes: the records section, or all after a message's length.

    No checksum tells that where somebody means harm: four bytes of one's choice give any CRC.
    """
    begin = HEADER_BYTES if one.header.magic == 2 else LENGTH_PREFIX
    ours, theirs = one.data[begin:], other.data[begin:]
    # of equal lengths; to compare two views is a hundred times slower
    return len(ours) == len(theirs) and bytes(ours).startswith(theirs)
