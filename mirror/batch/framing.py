"""What the format of magic 2 costs each record: the bytes of a record that are neither key, value nor headers.

A length, a byte of attributes that nothing uses, a timestamp delta, an offset delta, two lengths and a header count
(Kafka `DefaultRecord.java`); all but the attributes take one byte for each seven bits of a zigzag number. Counted
before compression, and as Kafka's own clients write them, in as few bytes as may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from mirror.batch.header import RawBatch
from mirror.batch.recipe import CAP
from mirror.errors import BadRecords

if TYPE_CHECKING:
    from mirror.batch.records import Records

#: What is counted of a batch, in this order: how many records, then bytes. `kip931` is what the discarded KIP-931 would
#: have spared of them: the attributes, and what that takes off the length.
COUNTED: Final = (
    *("measured", "lengths", "attributes", "timestamp_deltas", "offset_deltas", "key_lengths", "value_lengths"),
    *("header_counts", "keys", "values", "headers", "kip931"),
)
#: Those of them that are the format's.
FORMAT: Final = COUNTED[1:8]


def framing(raw: RawBatch, cap: int = CAP) -> dict[str, int]:
    """The bytes of a batch's records by what they are for, by the names of `COUNTED`; nothing for a marker and for a
    batch of magic 0 or 1.

    Raises BadRecords where the payload does not decompress to at most `cap` bytes, or is not what the header says.
    """
    from mirror.batch.codecs import decompress  # noqa: PLC0415 -- who only counts headers needs no codecs,
    from mirror.batch.records import decode  # noqa: PLC0415 -- nor the compiler

    header = raw.header
    if header.magic != 2 or header.is_control or not header.count:
        return dict.fromkeys(COUNTED, 0)
    try:
        section = decompress(header.codec, raw.records, cap)
        records = decode(section, header.count, header.base_offset, header.base_timestamp, header.last_offset_delta)
    except BadRecords as problem:
        raise problem.at(header.base_offset) from None
    return counted(records, header.base_offset, header.base_timestamp)


def counted(records: Records, base_offset: int, base_timestamp: int) -> dict[str, int]:
    """The same of records that were decoded; their timestamps are those that are stored with them."""
    keys, values = np.maximum(records.key_size, 0), np.maximum(records.value_size, 0)
    headers = records.headers_end - records.headers_at
    fields = [
        varint_sizes(numbers)
        for numbers in (
            records.timestamps - base_timestamp,
            records.offsets - base_offset,
            records.key_size,
            records.value_size,
            records.header_count,
        )
    ]
    bodies = 1 + sum(fields) + keys.astype(np.int64) + values + headers
    lengths = varint_sizes(bodies)
    spared = len(records) + int((lengths - varint_sizes(bodies - 1)).sum())
    sums = (int(one.sum()) for one in (*fields, keys, values, headers))
    return dict(zip(COUNTED, (len(records), int(lengths.sum()), len(records), *sums, spared), strict=True))


def varint_sizes(numbers: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.int64]:
    """Bytes that each number takes as a zigzag variable-length one (Kafka `ByteUtils.sizeOfVarlong`)."""
    wide = numbers.astype(np.int64)
    zigzag = ((wide << 1) ^ (wide >> 63)).view(np.uint64)
    sizes = np.ones(len(wide), np.int64)
    for shift in range(7, 64, 7):
        sizes += zigzag >= np.uint64(1 << shift)
    return sizes
