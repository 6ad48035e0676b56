"""Batches that hold nothing, to move the end of an empty log up to where its source begins.

Each says so itself: its first record carries the header `mirror` with the value `padding`. So a tail of padding is told
from mirrored data, whatever the source has lost since. A batch's content follows from its offsets alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from mirror.batch.codecs import ZSTD
from mirror.batch.header import RawBatch
from mirror.batch.records import Records, headers
from mirror.batch.rewrite import build, read
from mirror.errors import BadRecords

#: Records of one batch: a million take 0.9 MB with zstd, and a broker about half a second to look through.
MOST: Final = 1 << 20
_MARK: Final = (b"mirror", b"padding")
#: The mark as magic 2 stores it: both lengths are zigzag numbers of one byte.
_MARKED: Final = b"".join(bytes((2 * len(part),)) + part for part in _MARK)
#: None, so that neither a limit on timestamps nor retention by age applies.
_TIMESTAMP: Final = -1


def padding(first: int, next_offset: int, *, codec: int | None, max_bytes: int) -> RawBatch:
    """A batch for the offsets from `first` on, to before `next_offset` or as far as one of `max_bytes` reaches.

    `codec` is the one that the target fixes, if any. Keys are empty rather than null, which a compacted topic would
    refuse; values are null.
    """
    count = min(next_offset - first, MOST)
    while True:
        made = build(_nothing(first, count), ZSTD if codec is None else codec)
        if made.header.size <= max_bytes or count == 1:
            return made
        count = max(1, min(count // 2, count * max_bytes // made.header.size))


def is_padding(raw: RawBatch) -> bool:
    """Whether a batch of the mirror's own is padding."""
    try:
        found = read(raw)
    except BadRecords:
        return False
    return len(found) > 0 and headers(found, 0) == [_MARK]


def _nothing(first: int, count: int) -> Records:
    found = Records.empty(_MARKED, count)
    found.offsets[:] = np.arange(first, first + count)
    found.timestamps[:] = _TIMESTAMP
    found.value_size[:] = -1
    for column in (
        found.key_at,
        found.key_size,
        found.value_at,
        found.headers_at,
        found.headers_end,
        found.header_count,
    ):
        column[:] = 0
    found.headers_end[0], found.header_count[0] = len(_MARKED), 1
    return found
