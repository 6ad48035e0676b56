"""One replica of a partition as a broker left it in its data folder: every batch looked at once, and indexed.

A1  a replica ends at its first bytes that are no sound batch. What follows is not part of the log for a broker
    either (Kafka `LogSegment.recover`)
A2  offsets below the log's start were deleted, and are not given out (KIP-107)
A3  no CRC covers a batch's base offset and leader epoch. Where offsets leap and then fall back, the batch that leapt
    lies, and the replica ends before it; an epoch that falls back was none
A4  what is read is a view of the file: nothing is copied, and an index entry stands for `GRAIN` bytes
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from mirror.batch.control import ABORT, COMMIT, marker_type
from mirror.batch.header import RawBatch, parse_header
from mirror.batch.segment import SPAN, DamageKind, Walk
from mirror.errors import BadRecords, ConfigError
from mirror.reading.segments import Mapped, offset_of, segments_of
from mirror.reading.sidecars import high_watermark_of, history_of, log_start_of, topic_id_of

#: Bytes of a segment that one index entry stands for, at least.
GRAIN: Final = 16 * 1024
#: Of a base offset, which a batch begins with.
_OFFSET_BYTES: Final = 8


@dataclass(slots=True)
class _Segment:
    """The sound part of one file. At `positions[n]` begins a batch, and no offset there or behind is below
    `leasts[n]`. `identity` is the file's, which another one by its name does not have.
    """

    path: Path
    identity: tuple[int, int]
    leasts: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("q"))
    size: int = 0
    end: int = 0

    def mapped(self) -> Mapped:
        """The file as memory, once more. Raises ConfigError where it is not what it was."""
        mapped = Mapped.of(self.path)
        if mapped.identity != self.identity or len(mapped.data) < self.size:
            raise ConfigError(f"{self.path}: was replaced or cut while it was read; stop its broker, and begin again")
        return mapped

    def position_of(self, offset: int, data: memoryview) -> int:
        """Where the first batch begins that reaches beyond an offset; the size of the sound part where none does."""
        at = max(0, bisect_right(self.leasts, offset) - 1)
        position = self.positions[at] if self.positions else 0
        while position < self.size and (header := parse_header(data, position)).next_offset <= offset:
            position += header.size
        return position


@dataclass(frozen=True, slots=True)
class Turn:
    """A point in the life of a transaction: its first batch of data (`aborted` None), or its marker, by which it was
    aborted or not.
    """

    offset: int
    producer_id: int
    aborted: bool | None = None


class Turns:
    """Turns in the order of a log. A log may have millions, so each takes no more than its numbers do."""

    def __init__(self) -> None:
        self._offsets, self._producers, self._kinds = array("q"), array("q"), array("b")

    def __iter__(self) -> Iterator[Turn]:
        for offset, producer_id, kind in zip(self._offsets, self._producers, self._kinds, strict=True):
            yield Turn(offset, producer_id, None if kind < 0 else bool(kind))

    def append(self, turn: Turn) -> None:
        """One more, behind all others."""
        self._offsets.append(turn.offset)
        self._producers.append(turn.producer_id)
        self._kinds.append(-1 if turn.aborted is None else turn.aborted)

    def cut(self, end: int) -> None:
        """Forget those at an offset and behind it."""
        upto = bisect_left(self._offsets, end)
        for column in (self._offsets, self._producers, self._kinds):
            del column[upto:]


@dataclass(slots=True, kw_only=True)
class Replica:
    """What a folder holds: offsets from `start` to before `end`. `epochs`: (leader epoch, first offset) of its batches,
    rising. `history`: the same as the broker wrote it down, which may tell of more than is sound. `committed`: below
    that the broker knew all to be on every replica in sync. `damage` is empty where the last file ends well; `beyond`
    are the bytes behind it, other files included, and `is_torn` says that there is no sound batch among them: a crash
    leaves that. `gaps`: offsets between two files that are in neither, which compaction leaves, and a file that is
    missing.
    """

    folder: Path
    topic_id: UUID | None
    start: int
    end: int
    epochs: list[tuple[int, int]] = field(default_factory=list)
    history: list[tuple[int, int]] = field(default_factory=list)
    turns: Turns = field(default_factory=Turns)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    committed: int = 0
    damage: str = ""
    beyond: int = 0
    is_torn: bool = False
    _segments: list[_Segment] = field(default_factory=list)
    _last: tuple[_Segment, Mapped] | None = None  # that was read: each that is mapped holds a descriptor

    def read(self, offset: int, most: int, before: int) -> memoryview:
        """Bytes from the batch on that holds an offset, or the next one; at most so many, but one batch at least, and
        no batch that begins at `before` or later. Empty where there is none. Raises ConfigError where a file is not
        there any more, or is another one.
        """
        for number in range(self._segment_of(offset), len(self._segments)):
            segment = self._segments[number]
            mapped = self._mapped(segment)
            position = segment.position_of(offset, mapped.data)
            if position < segment.size:
                break
        else:
            return memoryview(b"")
        data = mapped.data
        if (first := parse_header(data, position)).base_offset >= before:
            return memoryview(b"")
        upto = segment.size if segment.end <= before else segment.position_of(before - 1, data)
        if upto < segment.size and segment.end > before:  # the batch that holds the offset before it belongs to it
            upto += parse_header(data, upto).size
        mapped.passed(position)
        return data[position : min(upto, position + max(most, first.size))]

    def batch_at(self, offset: int) -> RawBatch | None:
        """The batch that holds an offset, or the next one."""
        found = self.read(offset, 0, self.end)
        return RawBatch(parse_header(found), found) if found else None

    def _mapped(self, segment: _Segment) -> Mapped:
        if self._last is None or self._last[0] is not segment:
            self._last = segment, segment.mapped()
        return self._last[1]

    def _segment_of(self, offset: int) -> int:
        """The first one that may reach beyond an offset."""
        return bisect_right(self._segments, offset, key=lambda segment: segment.end)


def scan(folder: Path) -> Replica:
    """Look at all of a partition's folder. Raises ConfigError where it is not one, or cannot be read."""
    try:
        return _scanned(folder)
    except OSError as problem:
        raise ConfigError(f"{folder}: cannot be read: {problem}") from problem


def _scanned(folder: Path) -> Replica:
    paths = list(segments_of(folder))
    named = [offset_of(path) for path in paths]
    if None in named:
        raise ConfigError(f"{paths[named.index(None)]}: not named as a broker names segments; name a data folder")
    bases = [base for base in named if base is not None]
    found = Replica(folder=folder, topic_id=topic_id_of(folder), start=bases[0], end=bases[0])
    found.history, found.committed = history_of(folder), high_watermark_of(folder)
    open_since: dict[int, int] = {}
    for number, (path, base) in enumerate(zip(paths, bases, strict=True)):
        if base < found.end:
            found.damage = f"{path.name} begins below offset {found.end}, where the file before it ends"
            found.beyond = _sizes(paths[number:])
            break
        if base > found.end:
            found.gaps.append((found.end, base))
        walk = _look(path, base, found, open_since)
        if walk.damage is not None:
            found.damage = f"{path.name}: {walk.damage}"
            found.beyond = walk.rest + _sizes(paths[number + 1 :])
            is_last = number + 1 == len(paths) and found.end == walk.next_offset
            found.is_torn = is_last and walk.resume() is None
            break
    found.start = max(found.start, min(log_start_of(folder), found.end))  # A2
    return found


def _look(path: Path, base: int, found: Replica, open_since: dict[int, int]) -> Walk:
    mapped = Mapped.of(path)
    segment = _Segment(path, mapped.identity)
    walk = Walk(mapped.data, base, base + SPAN - 1)
    indexed = -GRAIN
    due, last = found.end, None
    for raw in walk:
        due, last, begin = max(found.end, base), raw, walk.position - len(raw.data)
        if begin - indexed >= GRAIN:
            segment.leasts.append(found.end if segment.positions else base)
            segment.positions.append(begin)
            indexed = begin
        found.end = walk.next_offset
        _note(raw, found, open_since)
        mapped.passed(walk.position)
    found.end = max(found.end, base)
    segment.size = walk.position
    if last and walk.damage and walk.damage.kind is DamageKind.ORDER and _leapt(mapped, walk, last, due):  # A3
        found.end, segment.size = due, walk.position - len(last.data)
        _forget(found)
    segment.end = found.end
    found._segments.append(segment)
    return walk


def _leapt(mapped: Mapped, walk: Walk, last: RawBatch, due: int) -> bool:
    """Whether the last batch leaves offsets out to which the one behind it falls back."""
    falls_to = int.from_bytes(mapped.data[walk.position : walk.position + _OFFSET_BYTES], "big", signed=True)
    return due <= falls_to and due < last.header.base_offset


def _forget(found: Replica) -> None:
    """What was noted of a batch that lies behind the end now."""
    while found.epochs and found.epochs[-1][1] >= found.end:
        found.epochs.pop()
    found.turns.cut(found.end)


def _note(raw: RawBatch, found: Replica, open_since: dict[int, int]) -> None:
    """The leader epoch of a batch, and what it says of a transaction."""
    header = raw.header
    if header.magic == 2:
        while found.epochs and found.epochs[-1][0] > header.partition_leader_epoch:
            found.epochs.pop()  # A3
        if not found.epochs or header.partition_leader_epoch > found.epochs[-1][0]:
            found.epochs.append((header.partition_leader_epoch, header.base_offset))
    if not header.is_transactional:
        return
    if not header.is_control:
        if header.producer_id not in open_since:
            open_since[header.producer_id] = header.base_offset
            found.turns.append(Turn(header.base_offset, header.producer_id))
        return
    try:
        kind = marker_type(raw) if header.count else COMMIT  # emptied by compaction, after all that it ended
    except BadRecords:
        kind = None
    if kind in (ABORT, COMMIT):
        open_since.pop(header.producer_id, None)
        found.turns.append(Turn(header.base_offset, header.producer_id, kind == ABORT))


def _sizes(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
