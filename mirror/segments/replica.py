"""One replica of a partition as a broker left it in its data folder: every batch read once, up to the first damage.

- Bytes that are no sound batch are damage, and end the log there, as for a broker that recovers it (Kafka
  `LogSegment.recover`). Bytes that a disk does not return are damage as well. An incomplete last batch, with nothing
  sound behind it, is what a crash leaves.
- Offsets below the log's start were deleted, and are not given out (KIP-107). Where the broker's history of leader
  epochs begins below the first file, that one was not deleted: files are missing, or are in remote storage. Where the
  history alone says that records were deleted, they are restored and reported: a copy can be deleted from, and nothing
  put in front of it.
- No CRC covers a batch's base offset and leader epoch. Where offsets leap and then fall back, the batch that leapt
  lies, and is damage; so does one at the log's end whose offset the broker's checkpoint does not know as committed:
  what is appended follows on, and only compaction leaves offsets out, long before. Leader epochs are those that the
  broker wrote down; without these, those of batches, and one that falls back was none.
- What is read is a view of the file: nothing is copied, and an index entry stands for `GRAIN` bytes.
- A transaction without an end stops the copy before its first record, as it stops a consumer: whether it was committed
  is known to nobody but its coordinator. So does one whose marker may be in a file that is missing: a log that no
  cleaner went through has all offsets.
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from mirror.errors import BadRecords, ConfigError
from mirror.records.header import (
    ABORT,
    COMMIT,
    HEADER_BYTES,
    LAST_OFFSET,
    LENGTH_PREFIX,
    RawBatch,
    marker_type,
    parse_header,
)
from mirror.records.segment import RESYNC_BYTES, SPAN, DamageKind, Walk
from mirror.segments.files import (
    Mapped,
    base_of,
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


@dataclass(slots=True)
class _Segment:
    """The sound part of a file."""

    path: Path
    identity: tuple[int, int]  # of the file: another one by its name does not have it
    end: int  # behind its last offset
    size: int = 0  # bytes of the sound part
    leasts: array[int] = field(default_factory=lambda: array("q"))  # no offset from `positions[n]` on is below the nth
    positions: array[int] = field(default_factory=lambda: array("q"))  # where batches begin

    def add(self, raw: RawBatch, begin: int, least: int) -> None:
        """Add the batch that begins at a byte; no offset from there on is below `least`."""
        if not self.positions or begin - self.positions[-1] >= GRAIN:
            self.leasts.append(least)
            self.positions.append(begin)
        self.size, self.end = begin + len(raw.data), raw.header.next_offset

    def mapped(self) -> Mapped:
        """Map the file once more. Raises ConfigError where it is not what it was."""
        mapped = Mapped.of(self.path)
        if mapped.identity != self.identity or len(mapped.data) < self.size:
            raise ConfigError(f"{self.path}: was replaced or cut while it was read; stop its broker, and begin again")
        return mapped

    def position_of(self, offset: int, data: memoryview) -> int:
        """Where the first batch begins that reaches beyond an offset; the size of the sound part where none does."""
        position = self.positions[max(0, bisect_right(self.leasts, offset) - 1)] if self.positions else 0
        while position < self.size and (header := parse_header(data, position)).next_offset <= offset:
            position += header.size
        return position


@dataclass(slots=True, kw_only=True)
class Replica:
    """Holds what a folder has of a partition: offsets from `start` to before `end`, those before `stable` committed."""

    folder: Path
    topic_id: UUID | None
    start: int
    end: int
    stable: int = 0
    #: Offsets between two files that are in neither.
    gaps: int = 0
    #: Of each aborted transaction: producer id, first offset and the marker's offset.
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    #: By producer id, the first offset of its transaction without an end.
    open_from: dict[int, int] = field(default_factory=dict)
    #: Leader epochs that the replica knows and where each begins, oldest first, also those of which it has no record.
    history: Sequence[tuple[int, int]] = ()
    #: The replicas in sync had all below; None if the checkpoint cannot be read.
    committed: int | None = None
    #: The least of all batches' largest timestamps, in ms; None if no batch has one.
    oldest_ms: int | None = None
    #: Why the log ends where it does; empty if its last file ends well.
    damage: str = ""
    #: The damage is no more than a crash leaves at the end of a log.
    is_torn: bool = False
    #: What is to be said of it, and loses nothing.
    remarks: list[str] = field(default_factory=list)
    #: What compaction, an open transaction or a deletion explains, or a loss.
    doubts: list[str] = field(default_factory=list)
    #: What is missing, or may be.
    lacks: list[str] = field(default_factory=list)
    _segments: list[_Segment] = field(default_factory=list)
    _last: tuple[_Segment, Mapped] | None = None  # that was read: each that is mapped holds a descriptor

    @property
    def notes(self) -> tuple[str, ...]:
        """Return all that is to be said of it."""
        return (*self.remarks, *self.lacks, *self.doubts)

    @property
    def at_risk(self) -> bool:
        """The log may have been more than is here, other than what a crash leaves at its end."""
        return bool(self.lacks or self.doubts)

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """Return the leader epochs of its records and where each begins, oldest first; none where no file says them."""
        return [epoch for epoch in self.history if epoch[0] >= 0 and epoch[1] < self.end]

    @property
    def newest_epoch(self) -> int:
        """Return the newest leader epoch that the replica knows; -1 if none."""
        return self.history[-1][0] if self.history else -1

    def is_cut_off_by(self, other: Replica) -> bool:
        """Return whether a later leader epoch that the other one knows begins before this log's end (KIP-101)."""
        if other.newest_epoch <= self.newest_epoch:  # of a leader that nobody followed
            return False
        return any(epoch > self.newest_epoch and first < self.end for epoch, first in other.history)

    def is_open(self, raw: RawBatch) -> bool:
        """Return whether a batch is of a transaction without an end."""
        header = raw.header
        return header.is_transactional and self.open_from.get(header.producer_id, LAST_OFFSET) <= header.base_offset

    def read(self, offset: int, most: int, before: int) -> memoryview:
        """Bytes from the batch on that holds an offset, or the next one; at most so many, but one batch at least, and
        no batch that begins at `before` or later. Empty where there is none. Raises ConfigError where a file is not
        there any more, or is another one.
        """
        first = bisect_right(self._segments, offset, key=lambda segment: segment.end)
        for segment in self._segments[first:]:
            data = (mapped := self._mapped(segment)).data
            position = segment.position_of(offset, data)
            if position < segment.size:
                break
        else:
            return memoryview(b"")
        if (header := parse_header(data, position)).base_offset >= before:
            return memoryview(b"")
        until = segment.size if segment.end <= before else segment.position_of(before - 1, data)
        if until < segment.size and (last := parse_header(data, until)).base_offset < before:
            until += last.size  # it holds the offset before
        mapped.passed(position)
        return data[position : min(until, position + max(most, header.size))]

    def _mapped(self, segment: _Segment) -> Mapped:
        if self._last is None or self._last[0] is not segment:
            self._last = segment, segment.mapped()
        return self._last[1]


def scan(folder: Path) -> Replica:
    """Read a partition's folder up to its first damage. Raises ConfigError where it is not one, or cannot be read."""
    try:
        paths = list(segments_of(folder))
        bases = [base_of(path) for path in paths]
        replica = Replica(folder=folder, topic_id=topic_id_of(folder), start=bases[0], end=bases[0])
        replica.committed = high_watermark_of(folder)
        scanner = _Scanner(replica)
        for path, base in zip(paths, bases, strict=True):
            if not scanner.take_file(path, base):
                break
        scanner.end()
        replica.is_torn &= path == paths[-1]
        if replica.damage:
            left_out = sum(path.stat().st_size for path in paths) - sum(segment.size for segment in replica._segments)
            _note_damage(replica, left_out)
        return replica
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
        return sum(path.stat().st_size for path in segments_of(folder))
    except OSError as problem:
        raise ConfigError(f"{folder}: cannot be read: {problem}") from problem


@dataclass(frozen=True, slots=True)
class _Pending:
    """A batch of which the next one, or the log's end, is to show whether its offset is true."""

    raw: RawBatch
    segment: _Segment
    begin: int  # byte of the segment


class _Scanner:
    """Reads the files of a replica one after another, up to the first damage."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._pending: _Pending | None = None
        #: The first offset of a transaction whose marker may be between two files.
        self._doubtful = LAST_OFFSET
        #: Leader epochs of batches, and where each begins.
        self._epochs: list[tuple[int, int]] = []
        #: The base offset of the last batch.
        self._last = 0
        self._is_cleaned = False

    def take_file(self, path: Path, base: int) -> bool:
        """Read all batches of a file. Return whether it ends well, so that the next one follows."""
        replica, due = self._replica, self._due
        if base < due:
            self._drop_if_leapt(base)
            replica.damage = f"{path.name} begins below offset {due}, where the file before it ends"
            return False
        self._confirm()
        if base > due:
            self._add_gap(base)
        mapped = Mapped.checked(path)
        walk = Walk(mapped.data, base, base + SPAN - 1)
        segment = _Segment(path, mapped.identity, base)
        replica._segments.append(segment)
        for raw in walk:
            self._confirm()
            begin = walk.position - len(raw.data)
            self._pending = _Pending(raw, segment, begin)
            mapped.passed(begin)
        if walk.damage is None:
            return True
        base_offset = int.from_bytes(mapped.data[walk.position :][:_OFFSET_BYTES], "big", signed=True)
        has_leapt = walk.damage.kind is DamageKind.ORDER and self._drop_if_leapt(base_offset)
        replica.damage = f"{path.name}: {walk.damage}{mapped.unread and f'; {mapped.unread}'}"
        replica.is_torn = not (mapped.unread or has_leapt) and walk.resume() is None
        return False

    def end(self) -> None:
        """Nothing follows: what is known of the log as a whole."""
        replica = self._replica
        last = None if self._pending is None else self._pending.raw.header
        if last and last.magic == 2 and last.base_offset > replica.end and last.next_offset > (replica.committed or 0):
            text = f"the last batch says {last.base_offset} for its offset, which is not known to be committed"
            replica.damage, replica.is_torn, self._pending = text, False, None
        self._confirm()
        history, begins = history_of(replica.folder), log_start_of(replica.folder)
        # an epoch that the last batch alone has is not true: a broker writes it down first
        newer = (
            [epoch for epoch in self._epochs if epoch[0] > history[-1][0] and epoch[1] < self._last] if history else []
        )
        replica.history = tuple([*history, *newer] or self._epochs)
        replica.start = max(replica.start, min(begins, replica.end))
        doubtful = LAST_OFFSET if self._is_cleaned else self._doubtful
        replica.stable = max(replica.start, min((replica.end, doubtful, *replica.open_from.values())))
        # what moves a log's start moves the first entry of its history there as well, at once; the other one later
        _note_start(replica, max(begins, history[0][1]) if history else None)
        _note_open(replica, is_in_gap=doubtful < LAST_OFFSET)
        if history and history[-1][1] > replica.end:
            text = f"offsets {replica.end} to {history[-1][1] - 1} were there, its leader-epoch-checkpoint says"
            replica.lacks.append(f"{replica.folder}: {text}, and cannot be read there")

    @property
    def _due(self) -> int:
        """Return the offset that comes next."""
        return self._replica.end if self._pending is None else self._pending.raw.header.next_offset

    def _drop_if_leapt(self, falls_to: int) -> bool:
        """Drop the last batch where it leaves offsets out, and what is behind it falls back to them or into it;
        what goes on behind it shows no lie of its. Return whether it was dropped.
        """
        end = self._replica.end
        if self._pending is None or self._pending.raw.header.base_offset <= end:
            return False
        if not end <= falls_to < self._pending.raw.header.next_offset:
            return False
        self._pending = None
        return True

    def _confirm(self) -> None:
        """Count the last batch to the log."""
        if self._pending is None:
            return
        replica, raw = self._replica, self._pending.raw
        header = raw.header
        if header.magic == 2:
            self._is_cleaned |= bool(header.holes) or header.base_offset > replica.end
            self._note_epoch(header.partition_leader_epoch, header.base_offset)
            self._last = header.base_offset
        self._pending.segment.add(raw, self._pending.begin, replica.end)
        replica.end = header.next_offset
        if 0 <= header.max_timestamp < (NO_TIME if replica.oldest_ms is None else replica.oldest_ms):
            replica.oldest_ms = header.max_timestamp
        if header.is_transactional:
            self._note_transaction(raw)
        self._pending = None

    def _add_gap(self, base: int) -> None:
        replica = self._replica
        if replica._segments:
            replica.gaps += base - replica.end
            text = f"offsets {replica.end} to {base - 1} are in no file: compacted away, or a file is missing"
            replica.doubts.append(f"{replica.folder}: {text}")
            self._doubtful = min((self._doubtful, *replica.open_from.values()))
        replica.end = base

    def _note_epoch(self, epoch: int, first: int) -> None:
        while self._epochs and self._epochs[-1][0] > epoch:
            self._epochs.pop()
        if not self._epochs or epoch > self._epochs[-1][0]:
            self._epochs.append((epoch, first))

    def _note_transaction(self, raw: RawBatch) -> None:
        header = raw.header
        if not header.is_control:
            self._replica.open_from.setdefault(header.producer_id, header.base_offset)
            return
        try:
            kind = marker_type(raw) if header.count else COMMIT  # emptied by compaction, after all that it ended
        except BadRecords:
            return
        if kind in (ABORT, COMMIT):
            first = self._replica.open_from.pop(header.producer_id, None)
            if first is not None and kind == ABORT:
                self._replica.aborted.append((header.producer_id, first, header.base_offset))


# --- What is to be said of a replica ----------------------------------------------------------------------------------


def _note_damage(replica: Replica, left_out: int) -> None:
    what = "the last batch was not written whole" if replica.is_torn else "damaged"
    text = f"{what} behind offset {replica.end - 1}: {replica.damage} ({left_out:,} bytes are left out)"
    text = f"{replica.folder}: {text}"
    if replica.is_torn:
        replica.remarks.append(text)
    else:
        replica.lacks.append(f"{text}. `mirror inspect {replica.folder}` shows what lies behind")


def _note_start(replica: Replica, written: int | None) -> None:
    """Note what is missing before the log's start, or may be; `written`: where the broker wrote down that it begins."""
    folder, start = replica.folder, replica.start
    if written is None:
        if start > 0:
            replica.lacks.append(
                f"{folder}: its leader-epoch-checkpoint is missing, so nobody knows whether records before offset"
                f" {start} were deleted, or their files are missing"
            )
    elif written < start:
        text = f"offsets {written} to {start - 1} were not deleted, a broker's checkpoint says, and are in no file"
        replica.lacks.append(f"{folder}: {text}: the first ones are missing, or are in remote storage")
    elif start < (until := min(written, replica.end)):
        text = f"offsets {start} to {until - 1} were deleted, its leader-epoch-checkpoint alone says"
        why = "they are restored all the same. Delete them on the target if they are to be gone"
        replica.doubts.append(f"{folder}: {text}: {why}")


def _note_open(replica: Replica, *, is_in_gap: bool) -> None:
    if replica.stable < replica.end:
        text = "may have its end among what is missing" if is_in_gap else "has no end"
        left_out = f"{replica.end - replica.stable:,} offsets are left out"
        notes = replica.lacks if is_in_gap else replica.doubts
        notes.append(f"a transaction that begins at offset {replica.stable} {text}: {left_out}")
