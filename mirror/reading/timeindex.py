"""A segment's time index: from when on to look for a time.

An entry is a timestamp in ms (8 bytes) and an offset relative to the segment's base (4 bytes), big-endian; every record
up to and including that offset has that timestamp or an earlier one (Kafka `TimeIndex`, KIP-33). A broker writes the
largest timestamp of a segment as its last entry when it rolls to the next one; the index of the segment that is being
written is behind, and ends in zeros that were reserved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import zip_longest
from pathlib import Path
from struct import Struct
from typing import Final

from mirror.reading.opened import opened

SUFFIX: Final = ".timeindex"
_ENTRY: Final = Struct(">qi")
_NOTHING: Final = (-1, -1)
_RESERVED: Final = (0, 0)
#: Bytes of an index that are read at a time, in whole entries.
_BLOCK: Final = 4096 * _ENTRY.size


def entries(segment: Path) -> Iterator[tuple[int, int]]:
    """(timestamp in ms, relative offset) of a segment's index, timestamps rising and offsets not falling; none where it
    has no index, and up to where entries are no longer so.
    """
    before, least = -1, 0
    for timestamp, offset in _stored(segment):
        if timestamp <= before or offset < least or (timestamp, offset) == _RESERVED:
            return
        yield timestamp, offset
        before, least = timestamp, offset


def largest_timestamp(segment: Path) -> int | None:
    """The largest timestamp, in ms, of a segment that is no longer written; None where no index tells it, and where
    one does not hold good to its last entry, which is the one that would.
    """
    last = _last(segment)
    return last and last[0]


def last_entry(segment: Path) -> tuple[int, int] | None:
    """The last entry of an index that looks as a broker leaves one: entries that rise, then zeros at most. None for any
    other, and where there is no entry.
    """
    return _last(segment, behind=(_RESERVED,))


def _last(segment: Path, behind: Collection[tuple[int, int]] = ()) -> tuple[int, int] | None:
    """The last of `entries`; None where there is none, or where the file holds anything but `behind` after it."""
    last = None
    for entry, stored in zip_longest(entries(segment), _stored(segment)):
        if entry is None and stored not in behind:
            return None
        last = entry or last
    return last


def _stored(segment: Path) -> Iterator[tuple[int, int]]:
    """All that is in the file; a part of an entry at its end counts as one that says nothing."""
    try:
        with opened(segment.with_suffix(SUFFIX)) as index:
            while data := index.read(_BLOCK):
                whole = len(data) - len(data) % _ENTRY.size
                yield from _ENTRY.iter_unpack(data[:whole])
                if whole < len(data):
                    yield _NOTHING
    except OSError:  # an index can always be rebuilt, and is often not copied along
        return
