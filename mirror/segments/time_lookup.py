"""The first record of a time in a partition's folder, exact at record level.

- The first by offset counts, whatever the order of times. Control markers and the records of aborted transactions count
  like any other, as they do where a broker answers ListOffsets (Kafka `FileRecords.searchForTimestamp`). What a broker
  knows besides is not in these files: it gives out nothing at or above the high watermark. It looks into no more than
  one segment (`UnifiedLog.searchOffsetInLocalLog`), and finds nothing where all that is late enough there lies below
  the log's start; this goes on to the next.
- A segment is left out where its time index says that all of it is older, and the log bears that out: the batch that
  the index's last entry names has that time, and no batch behind has a later one than asked for. So an index that was
  cut short does no harm, nor does one that lags behind. That no batch before the entry's has a later time is then taken
  from the index, and the answer says of how many segments.
- Any other segment is read, and what it says counts under a CRC that holds. At its first damage the log ends, as it
  does for a broker that recovers it (`segments/replica.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mirror.errors import BadRecords, MalformedBatch
from mirror.kafka.queries import Dated
from mirror.records.header import split
from mirror.records.rewrite import portions
from mirror.records.segment import SPAN, Walk
from mirror.segments import files
from mirror.segments.files import Mapped, base_of, log_start_of, segments_of


@dataclass(slots=True, kw_only=True)
class Lookup:
    """`first` is the record, None where there is none below `end`, up to which was looked. `trusted`: segments that
    were left out on the word of their time index. `damage` is what ended the search early; `is_torn` says that it is no
    more than what a crash leaves at the end of a log.
    """

    first: Dated | None = None
    end: int = 0
    trusted: int = 0
    damage: str = ""
    is_torn: bool = False


def first_in(folder: Path, when: int, *, believes: bool = True) -> Lookup:
    """The first record of `when` (ms since 1970, not negative) or later that is not below the log's start; every
    segment is read unless it `believes` time indexes.

    Raises ConfigError where the folder is no partition's, or cannot be read.
    """
    paths = segments_of(folder)
    bases = [base_of(path) for path in paths]
    start = max(bases[0], log_start_of(folder))
    found = Lookup()
    for path, base, following in zip(paths, bases, [*bases[1:], None], strict=True):
        if following is not None and following <= start:
            continue  # nothing but deleted records
        mapped, least = Mapped.of(path), max(base, found.end)
        older = _end_if_older(path, mapped.data, base, least, when) if believes else None
        if older is not None:
            found.end = older
            found.trusted += 1
            continue
        walk = Walk(mapped.data, least, base + SPAN - 1)
        try:
            found.first = _first_of(walk, mapped, when, start)
            found.end = walk.next_offset
        except BadRecords as problem:
            found.damage, found.end = f"{path.name}: {problem}", problem.offset
        if walk.damage is not None:
            found.damage = f"{path.name}: {walk.damage}"
            found.is_torn = following is None and walk.resume() is None
        if found.first is not None or found.damage:
            break
    found.end = max(found.end, start)
    return found


def _end_if_older(path: Path, data: memoryview, base: int, least: int, when: int) -> int | None:
    """Return where a segment ends of which its time index says that all is older, and the log bears it out."""
    entry = files.last_entry(path)
    if entry is None or entry[0] >= when:
        return None
    timestamp, named = entry[0], base + entry[1]
    position = files.position_of(path, entry[1])
    is_there = False
    try:
        for raw in split(data[position:]):
            header = raw.header
            if not 0 <= header.magic <= 2 or header.max_timestamp >= when or header.base_offset < least:
                return None
            is_there |= header.base_offset <= named <= header.last_offset and header.max_timestamp == timestamp
            position += len(raw.data)
            least = header.next_offset
    except MalformedBatch:
        return None
    return least if is_there and position == len(data) and least <= base + SPAN else None


def _first_of(walk: Walk, mapped: Mapped, when: int, start: int) -> Dated | None:
    """The first record of that time at or behind an offset. Raises BadRecords for a batch that may hold it, and cannot
    be read.
    """
    for raw in walk:
        may_hold = raw.header.max_timestamp >= when and raw.header.last_offset >= start
        for records in portions(raw) if may_hold else ():
            (late,) = np.nonzero((records.timestamps >= when) & (records.offsets >= start))
            if len(late):
                return Dated(int(records.offsets[late[0]]), int(records.timestamps[late[0]]))
        mapped.passed(walk.position)
    return None
