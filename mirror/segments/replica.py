"""One replica of a partition as a broker left it in its data folder: every batch looked at once, and indexed.

A1  bytes that are no sound batch are damage. A broker that recovers cuts its log there (Kafka `LogSegment.recover`);
    here the next sound batch is looked for, and the offsets in between are a `Hole`: from behind the last sound batch
    to before the next one, never more. What is behind the last sound batch of all is no part of the log. What a disk
    does not give is damage as well
A2  offsets below the log's start were deleted, and are not given out (KIP-107). Where the broker's history of leader
    epochs begins below the first file, that one was not deleted: files are missing, or are in remote storage
A3  no CRC covers a batch's base offset and leader epoch. Where offsets leap and then fall back, the batch that leapt
    lies, and is damage; so does one at the log's end whose offset the broker's checkpoint does not know as committed:
    what is appended follows on, and only compaction leaves offsets out, long before. An epoch that falls back was none,
    nor was a newer one of the last batch alone that the broker's history does not have: it is written there first
A4  what is read is a view of the file: nothing is copied, and an index entry stands for `GRAIN` bytes
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from uuid import UUID

from mirror.errors import BadRecords, ConfigError
from mirror.records.header import ABORT, COMMIT, HEADER_BYTES, LENGTH_PREFIX, RawBatch, marker_type, parse_header
from mirror.records.recipe import LARGEST_RECORD
from mirror.records.segment import RESYNC_BYTES, SPAN, DamageKind, Walk
from mirror.segments.files import (
    Mapped,
    high_watermark_of,
    history_of,
    log_start_of,
    offset_of,
    opened,
    segments_of,
    topic_id_of,
)

#: Bytes of a segment that one index entry stands for, at least.
GRAIN: Final = 16 * 1024
#: Later than any timestamp.
NO_TIME: Final = 2**63 - 1
#: Of a base offset, which a batch begins with.
_OFFSET_BYTES: Final = 8


#: Bytes that a transaction's marker takes at most: 78 as coordinators write it today.
_MARKER_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets from `first` to before `next_offset` that a file has damage for, which takes `size` bytes; sound batches
    follow. `beyond` are the bytes from there to the replica's end. `may_end_transactions`: what is damaged may have
    been a transaction's marker.
    """

    first: int
    next_offset: int
    detail: str
    size: int
    beyond: int
    may_end_transactions: bool


@dataclass(slots=True)
class _Segment:
    """A sound part of one file, from byte `begin` to `size`. At `positions[n]` begins a batch, and no offset there or
    behind is below `leasts[n]`. `identity` is the file's, which another one by its name does not have. `salvaged`: what
    could be read of it, where that is not all.
    """

    path: Path
    identity: tuple[int, int]
    begin: int = 0
    leasts: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("q"))
    size: int = 0
    end: int = 0
    salvaged: Mapped | None = None

    def mapped(self) -> Mapped:
        """The file as memory, once more. Raises ConfigError where it is not what it was."""
        if self.salvaged is not None:
            return self.salvaged
        mapped = Mapped.of(self.path)
        if mapped.identity != self.identity or len(mapped.data) < self.size:
            raise ConfigError(f"{self.path}: was replaced or cut while it was read; stop its broker, and begin again")
        return mapped

    def position_of(self, offset: int, data: memoryview) -> int:
        """Where the first batch begins that reaches beyond an offset; the size of the sound part where none does."""
        at = max(0, bisect_right(self.leasts, offset) - 1)
        position = self.positions[at] if self.positions else self.begin
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
        until = bisect_left(self._offsets, end)
        for column in (self._offsets, self._producers, self._kinds):
            del column[until:]


@dataclass(slots=True, kw_only=True)
class Replica:
    """What a folder holds: offsets from `start` to before `end`.

    `epochs`: (leader epoch, first offset) of its batches, rising, and `reaches` behind the last sound batch of each.
    `history`: the same as `epochs` as the broker wrote it down, which may name more than is sound. `committed`:
    below that the broker knew all to be on every replica in sync; None where its checkpoint cannot be read.
    `log_start`: where the log began, as the broker wrote it down, None without a history: below `start` where the first
    file is gone, above it where the history alone says that what precedes it was deleted.
    `oldest_ms`: the least that any batch has for its newest record, None where none has a timestamp. `gaps`: offsets
    between two files that are in neither, which compaction leaves, and a file that is missing. `holes`: offsets that
    are damaged, and sound batches follow. `is_cleaned`: records were taken out between others. `damage` is empty where
    the last file ends well; `beyond` are the bytes behind it, other files included, and `is_torn` says that it is in
    the last file: a crash leaves that.
    """

    folder: Path
    topic_id: UUID | None
    start: int
    end: int
    epochs: list[tuple[int, int]] = field(default_factory=list)
    reaches: list[int] = field(default_factory=list)
    history: list[tuple[int, int]] = field(default_factory=list)
    turns: Turns = field(default_factory=Turns)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    is_cleaned: bool = False
    committed: int | None = None
    log_start: int | None = None
    oldest_ms: int | None = None
    damage: str = ""
    beyond: int = 0
    is_torn: bool = False
    _segments: list[_Segment] = field(default_factory=list)
    _last: tuple[_Segment, Mapped] | None = None  # that was read: each that is mapped holds a descriptor

    @property
    def lacks_from(self) -> int:
        """Where it would begin with all of its files."""
        return self.start if self.log_start is None else min(self.log_start, self.start)

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
        until = segment.size if segment.end <= before else segment.position_of(before - 1, data)
        if until < segment.size and segment.end > before:  # the batch that holds the offset before it belongs to it
            until += parse_header(data, until).size
        mapped.passed(position)
        return data[position : min(until, position + max(most, first.size))]

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
    """Read all of a partition's folder. Raises ConfigError where it is not one, or cannot be read."""
    try:
        return _scanned(folder)
    except OSError as problem:
        raise ConfigError(f"{folder}: cannot be read: {problem}") from problem


def oldest_of(folder: Path) -> int | None:
    """The least timestamp, in ms, that the first batch of any segment has for its newest record, of segments that are
    not below the log's start: what a scan shows of a folder's age. Raises ConfigError as `scan` does.
    """
    paths = list(segments_of(folder))
    bases = [offset_of(path) or 0 for path in paths]
    start, oldest = log_start_of(folder), None
    for path, base, following in zip(paths, bases, [*bases[1:], None], strict=True):
        if following is not None and following <= start:
            continue
        first = next(iter(Walk(_head_of(path), base, base + SPAN - 1)), None)
        if first is not None and 0 <= first.header.max_timestamp < (NO_TIME if oldest is None else oldest):
            oldest = first.header.max_timestamp
    return oldest


def _head_of(path: Path) -> memoryview:
    """A file's first batch; nothing where its disk does not give it, of which a scan says more. Raises ConfigError."""
    try:
        with opened(path) as file:
            head = file.read(HEADER_BYTES)
            size = LENGTH_PREFIX + int.from_bytes(head[_OFFSET_BYTES:LENGTH_PREFIX], "big")
            return memoryview(head + file.read(max(0, min(size, RESYNC_BYTES) - len(head))))
    except OSError as problem:
        if problem.errno == errno.EIO:
            return memoryview(b"")
        raise ConfigError(f"{path}: cannot be read: {problem}") from problem


def bytes_of(folder: Path) -> int:
    """Bytes of all segments. Raises ConfigError as `scan` does."""
    try:
        return _sizes(segments_of(folder))
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
    scanner = _Scanner(found)
    for number, (path, base) in enumerate(zip(paths, bases, strict=True)):
        rest = _sizes(paths[number:])
        if not scanner.may_follow(base):
            detail = f"{path.name} begins below offset {found.end}, where the file before it ends"
            scanner.damaged(_Damaged(found.end, detail, rest, rest))
            break
        scanner.scan_file(path, base, rest)
    scanner.end()
    if left := scanner.left:
        found.damage, found.beyond = left.detail, left.beyond
        found.is_torn = left.path == paths[-1]
    begins = log_start_of(folder)
    found.start = max(found.start, min(begins, found.end))  # A2
    # what moves a log's start moves the first entry of its history there as well, at once; the other one later
    found.log_start = max(begins, found.history[0][1]) if found.history else None
    return found


@dataclass(frozen=True, slots=True)
class _Damaged:
    """Damage behind offset `first` - 1 that no sound batch follows yet: `size` bytes, `beyond` to the replica's end.
    `path` is of a file that ends in it. `is_single`: it is as large as the batch there says to be; of a batch whose
    CRC holds, and whose offset lies, it is known whether it `is_marker`.
    """

    first: int
    detail: str
    size: int
    beyond: int
    path: Path | None = None
    is_single: bool = False
    is_marker: bool | None = None

    def hole(self, until: int) -> Hole:
        """What is missing where the next sound batch begins at an offset."""
        small = self.size <= _MARKER_BYTES and until - self.first <= 1
        may_end = self.is_marker if self.is_marker is not None else small or not self.is_single
        return Hole(self.first, until, self.detail, self.size, self.beyond, may_end)


@dataclass(frozen=True, slots=True)
class _Last:
    """The last batch that was taken: its segment, where it begins there, and the offset that was due."""

    raw: RawBatch
    segment: _Segment
    begin: int
    due: int


class _Scanner:
    """Reads the files of a replica one after another. `left` is the damage at the end of what was read."""

    def __init__(self, found: Replica) -> None:
        self._found = found
        self._open_since: dict[int, int] = {}
        self._last: _Last | None = None
        self.left: _Damaged | None = None

    def may_follow(self, base: int) -> bool:
        """Whether a file of this base offset follows what is there; a last batch that lies by it is dropped (A3)."""
        if base < self._found.end and self._has_leapt(base):
            self._drop(f"a file begins at offset {base} behind it", 0)
        return base >= self._found.end

    def scan_file(self, path: Path, base: int, beyond: int) -> None:
        """All batches of a file; `beyond` are the bytes from its begin to the replica's end."""
        found = self._found
        if base > found.end and self.left is None:
            found.gaps.append((found.end, base))
            self._open_since.clear()  # what goes on behind may be another transaction, and another replica may know
        if self.left is None:
            found.end = base
        mapped = Mapped.checked(path)
        salvaged = mapped if mapped.unread else None
        least, position = base, 0
        while True:
            walk = Walk(mapped.data, least, base + SPAN - 1, position)
            segment = _Segment(path, mapped.identity, position, size=position, end=found.end, salvaged=salvaged)
            found._segments.append(segment)
            self._take(walk, segment, mapped)
            if walk.damage is None:
                return
            of_disk, announced = mapped.unread, walk.announced
            detail = f"{path.name}: {walk.damage}{of_disk and f'; {of_disk}'}"
            falls_to = int.from_bytes(mapped.data[walk.position :][:_OFFSET_BYTES], "big", signed=True)
            if walk.damage.kind is DamageKind.ORDER and self._has_leapt(falls_to):
                self._drop(detail, beyond - segment.size)
                least, position = found.end, walk.position
                continue
            sound = walk.resume()
            size = (sound.position if sound else len(mapped.data)) - walk.position
            is_single = sound is not None and announced == sound.position
            left = beyond - walk.position
            torn = None if sound or of_disk else path
            self.damaged(_Damaged(found.end, detail, size, left, torn, is_single))
            if sound is None:
                return
            least, position = found.end, sound.position

    def end(self) -> None:
        """Nothing follows. Where nothing confirms the offset of the last batch, it is dropped (A3); without a
        checkpoint the offsets before it are reported as missing.
        """
        found, last = self._found, self._last
        if last is None or last.raw.header.magic < 2:
            return
        _unite_last(found, last.raw.header.base_offset)
        if self.left is not None:
            return
        begin, due = last.raw.header.base_offset, last.due
        if begin <= due or found.end <= (found.committed or 0):
            return
        if found.committed:
            self._drop(f"the last batch says {begin} for its offset, which is not known to be committed", 0)
        elif (due, begin) not in found.gaps:
            found.gaps.append((due, begin))

    def damaged(self, damage: _Damaged) -> None:
        """Behind what was read there is damage, or more of it."""
        if before := self.left:
            size = before.size + damage.size
            damage = replace(before, size=size, path=None, is_single=False, is_marker=None)
        self.left = damage

    def _take(self, walk: Walk, segment: _Segment, mapped: Mapped) -> None:
        found, indexed = self._found, -GRAIN
        for raw in walk:
            begin = walk.position - len(raw.data)
            if self.left is not None:
                found.holes.append(self.left.hole(_first_offset(raw)))
                self.left = None
                self._open_since.clear()  # as behind a gap
            elif raw.header.magic == 2 and (raw.header.holes or raw.header.base_offset > found.end):
                found.is_cleaned = True
            self._last = _Last(raw, segment, begin, found.end)
            if begin - indexed >= GRAIN:
                segment.leasts.append(found.end)
                segment.positions.append(begin)
                indexed = begin
            found.end = walk.next_offset
            segment.size, segment.end = walk.position, found.end
            _note(raw, found, self._open_since)
            mapped.passed(walk.position)

    def _has_leapt(self, falls_to: int) -> bool:
        """Whether the last batch leaves offsets out, and what is behind it falls back to them or into it (A3); what
        goes on behind it shows no lie of its.
        """
        last = self._last
        if last is None:
            return False
        header = last.raw.header
        return last.due < header.base_offset and last.due <= falls_to < header.next_offset

    def _drop(self, detail: str, beyond: int) -> None:
        """The last batch lies at another offset than its own: it is damage."""
        last, found = self._last, self._found
        assert last is not None
        found.end, self._last = last.due, None
        last.segment.size, last.segment.end = last.begin, last.due
        _forget(found)
        size = len(last.raw.data)
        lie = _Damaged(last.due, detail, size, beyond + size, None, True, last.raw.header.is_control)
        while found.holes and found.holes[-1].next_offset > last.due:
            hole = found.holes.pop()
            self.damaged(_Damaged(hole.first, hole.detail, hole.size, hole.beyond))
        self.damaged(lie)


def _forget(found: Replica) -> None:
    """What was noted of a batch that lies behind the end now."""
    while found.epochs and found.epochs[-1][1] >= found.end:
        found.epochs.pop()
        found.reaches.pop()
    if found.reaches:
        found.reaches[-1] = min(found.reaches[-1], found.end)
    found.turns.cut(found.end)


def _unite_last(found: Replica, base_offset: int) -> None:
    """The last batch is of the last epoch in the history, where it alone has a newer one (A3)."""
    if not found.history or not found.epochs or found.epochs[-1][1] != base_offset:
        return
    if found.epochs[-1][0] > (epoch := found.history[-1][0]):
        found.epochs.pop()
        reached = found.reaches.pop()
        if not found.epochs or found.epochs[-1][0] != epoch:
            found.epochs.append((epoch, base_offset))
            found.reaches.append(reached)
        found.reaches[-1] = reached


def _note(raw: RawBatch, found: Replica, open_since: dict[int, int]) -> None:
    """The leader epoch of a batch, and what it says of a transaction."""
    header = raw.header
    if header.max_timestamp >= 0 and (found.oldest_ms is None or header.max_timestamp < found.oldest_ms):
        found.oldest_ms = header.max_timestamp
    if header.magic == 2:
        while found.epochs and found.epochs[-1][0] > header.partition_leader_epoch:
            found.epochs.pop()  # A3
            found.reaches.pop()
        if not found.epochs or header.partition_leader_epoch > found.epochs[-1][0]:
            found.epochs.append((header.partition_leader_epoch, header.base_offset))
            found.reaches.append(header.next_offset)
        found.reaches[-1] = header.next_offset
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


def _first_offset(raw: RawBatch) -> int:
    """Where a batch begins; by its last offset where only its records say that, and nobody can read them."""
    from mirror.records.rewrite import first_offset  # noqa: PLC0415 -- loads the compiler, seldom needed

    try:
        return first_offset(raw, LARGEST_RECORD)
    except BadRecords:
        return raw.header.base_offset


def _sizes(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
