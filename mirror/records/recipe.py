"""What a rewritten batch must be like. Apart from `rewrite`: whoever only names it need not load the compiler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final, NamedTuple

#: Bytes that a batch which is opened whole may decompress to, unless asked otherwise.
CAP: Final = 64 * 1024 * 1024
#: Bytes of records, without compression, that are opened at a time of a batch that is opened in portions. Batches end
#: where portions do, so another number makes other batches: it is no setting (`records/rewrite.py`).
PORTION: Final = 16 * 1024 * 1024
#: Bytes that one record may have without compression where whoever opens it has no bound of its own. Positions in a
#: portion are 32-bit.
LARGEST_RECORD: Final = 1 << 30
#: The part of a task's memory that one record to be opened may take: it is held as it was, as it is copied and as it is
#: encoded.
_A_RECORD: Final = 1 / 3


def opened_by(memory_bytes: int) -> int:
    """Bytes that a task with so much memory opens of one record, without compression."""
    return min(max(CAP, int(memory_bytes * _A_RECORD)), LARGEST_RECORD)


class Pieces(NamedTuple):
    """Says where the records of a batch come from that closes up over holes: runs of offsets without one, in order."""

    sources: array[int]  # the first offset of each
    places: array[int]  # and the number of its record in the batch
    next_offset: int  # behind the last record


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Records below `first_offset` are left out: they are mirrored already. `codec`: an id for all batches, None keeps
    each one's own. `max_bytes`: what the target takes as one batch; `max_record_bytes`: as one of a single record,
    where that is more. `portion`: bytes of records, without compression,
    that are opened at a time, and the most that one batch is made of; more only where one record has more. `cap`: bytes
    that such a record may have, and what a compressed set of magic 0 or 1, which is opened whole, may decompress to.
    """

    first_offset: int = 0
    codec: int | None = None
    max_bytes: int = 2**31 - 1
    max_record_bytes: int = 0
    portion: int = PORTION
    cap: int = LARGEST_RECORD
