"""Segment files as a broker leaves them: found in a partition's folder, in order, and mapped as memory.

A file is mapped and walked, never read whole; pages behind the walk are given back. Should somebody cut a file short
meanwhile, the system ends the program with SIGBUS.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirror.batch.header import LAST_OFFSET
from mirror.batch.segment import SPAN, Walk
from mirror.errors import ConfigError
from mirror.policy.outcomes import Glance
from mirror.reading.opened import opened

SUFFIX: Final = ".log"
#: Behind the suffix: what a cleaner wrote in place of other segments, and what it was still writing.
_SWAP: Final = ".swap"
_CLEANED: Final = ".cleaned"
#: Digits of a base offset in a segment's name (Kafka `LogFileUtils.filenamePrefixFromOffset`).
_NAME_DIGITS: Final = 20
#: Bytes of a file that may stay mapped behind the walk.
_WINDOW: Final = 32 * 1024 * 1024


def segments_of(path: Path) -> Sequence[Path]:
    """The file itself, or a folder's segments in order of their offsets. Raises ConfigError where there are none."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise ConfigError(f"{path}: no segments (*{SUFFIX}) in this folder; name the folder of one partition")
    if swaps := _swaps_in(path):
        begin, end = offset_of(swaps[0]) or 0, _end_of(swaps[-1])
        replaced = {offset_of(one) for one in swaps}  # one may be empty, for all of it was cleaned away
        kept = [one for one in found if (base := offset_of(one)) not in replaced and not begin <= (base or 0) < end]
        found = sorted([*kept, *swaps])
    return found


def _swaps_in(folder: Path) -> Sequence[Path]:
    """Segments that a cleaner had finished when its broker crashed: its recovery puts them in place of those that begin
    among their offsets, which may be deleted in part. Where a cleaner was still writing, its other ones are not valid
    from there on (Kafka `LogLoader.load`).
    """
    unfinished = [base for one in folder.glob(f"*{SUFFIX}{_CLEANED}") if (base := offset_of(one)) is not None]
    named = ((offset_of(one), one) for one in sorted(folder.glob(f"*{SUFFIX}{_SWAP}")))
    return [one for base, one in named if base is not None and base < min(unfinished, default=LAST_OFFSET)]


def _end_of(segment: Path) -> int:
    """Behind its last sound batch."""
    base = offset_of(segment) or 0
    walk = Walk(Mapped.of(segment).data, base, base + SPAN - 1)
    for _ in walk:
        pass
    return walk.next_offset


def offset_of(path: Path) -> int | None:
    """The base offset in a segment's name, None where the name is not a broker's."""
    digits = path.name[:_NAME_DIGITS]
    named = len(digits) == _NAME_DIGITS and digits.isascii() and digits.isdigit()
    return offset if named and (offset := int(digits)) <= LAST_OFFSET - SPAN else None


@dataclass(slots=True)
class Mapped:
    """A file as memory; the mapping lasts as long as a view of it. `identity`: device and inode."""

    data: memoryview
    identity: tuple[int, int] = (-1, -1)
    _map: mmap.mmap | None = None
    _released: int = 0

    @classmethod
    def of(cls, path: Path) -> Mapped:
        """Map a file. Raises ConfigError where it is no file, or may not be read."""
        try:
            with opened(path) as file:
                return cls.of_file(file.fileno())
        except (OSError, ValueError) as problem:
            raise ConfigError(f"{path}: cannot be read: {problem}") from problem

    @classmethod
    def of_file(cls, descriptor: int) -> Mapped:
        """Map an open file, which may be closed then. Raises OSError, ValueError."""
        found = os.fstat(descriptor)
        identity = found.st_dev, found.st_ino
        if not found.st_size:
            return cls(memoryview(b""), identity)
        mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        return cls(memoryview(mapping), identity, mapping)

    def passed(self, position: int) -> None:
        """Give back the pages before `position`, a window at a time; they would come again if they were looked at."""
        if self._map is not None and position - self._released >= _WINDOW:
            upto = position - position % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, self._released, upto - self._released)
            self._released = upto


def glance_over(glance: Glance, mapped: Mapped) -> None:
    """Look over a whole segment for how transactions ended, giving back its pages."""
    position = 0
    while position < len(mapped.data):
        position = glance.over(mapped.data, position, position + _WINDOW)
        mapped.passed(position)
