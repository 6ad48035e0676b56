"""A segment's offset index: from which byte on to look for an offset.

An entry is an offset relative to the segment's base and a position in bytes (4 bytes each), big-endian: the batch with
that offset begins there, or behind it where several were appended at once (Kafka `OffsetIndex`, `LogSegment.append`).
The index of the segment that is being written ends in zeros that were reserved.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final

SUFFIX: Final = ".index"
_ENTRY: Final = Struct(">ii")


def position_of(segment: Path, relative: int) -> int:
    """Where to begin to look for a relative offset, by the entries up to where they stop rising; 0 where there is no
    index.
    """
    try:
        data = segment.with_suffix(SUFFIX).read_bytes()
    except OSError:  # it can always be rebuilt, and is often not copied along
        return 0
    before = found = 0
    for offset, position in _ENTRY.iter_unpack(data[: len(data) - len(data) % _ENTRY.size]):
        if not before < offset <= relative or position <= found:
            break
        before, found = offset, position
    return found
