"""Files of a partition's folder: segments, their indexes, checkpoints, and how they are opened.

A file is mapped and walked, never read whole; pages behind the walk are given back. Should somebody cut a file short
meanwhile, the system ends the program with SIGBUS. It would for what a bad disk does not give, so a file of a lost
cluster is read through before: then its pages are in memory, or it is copied without those.

All are text of some lines. One that is missing, or not whole, says nothing: the log itself does. A checkpoint says how
many entries it has, and ends each line, so that one cut short is known (Kafka `CheckpointFile`).

An entry is an offset relative to the segment's base and a position in bytes (4 bytes each), big-endian: the batch with
that offset begins there, or behind it where several were appended at once (Kafka `OffsetIndex`, `LogSegment.append`).
The index of the segment that is being written ends in zeros that were reserved.

An entry is a timestamp in ms (8 bytes) and an offset relative to the segment's base (4 bytes), big-endian; every record
up to and including that offset has that timestamp or an earlier one (Kafka `TimeIndex`, KIP-33). A broker writes the
largest timestamp of a segment as its last entry when it rolls to the next one; the index of the segment that is being
written is behind, and ends in zeros that were reserved.
"""

from __future__ import annotations

import base64
import errno
import json
import mmap
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from struct import Struct
from tempfile import TemporaryFile
from typing import BinaryIO, Final
from uuid import UUID

from mirror.errors import ConfigError
from mirror.records.header import LAST_OFFSET
from mirror.records.segment import SPAN, Walk
from mirror.records.transactions import TransactionScan

# --- Files opened as they should be where somebody else may have laid them --------------------------------------------


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading. Raises OSError where it cannot be read or is something else: a pipe, which
    would wait for a writer, or a device, which may have no end.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is no regular file; save a stream to one first")
        yield file


# --- Segment files as a broker leaves them ----------------------------------------------------------------------------

SUFFIX: Final = ".log"
#: Behind the suffix: what a cleaner wrote in place of other segments, and what it was still writing.
_SWAP: Final = ".swap"
_CLEANED: Final = ".cleaned"
#: Digits of a base offset in a segment's name (Kafka `LogFileUtils.filenamePrefixFromOffset`).
_NAME_DIGITS: Final = 20
#: Bytes of a file that may stay mapped behind the walk.
_WINDOW: Final = 32 * 1024 * 1024
#: Bytes of a file that are read through together.
_BLOCK_BYTES: Final = 1 << 20
#: In place of bytes that cannot be read: zeros may be what a broker reserved.
_NO_BATCH: Final = b"\xff"


def segments_of(path: Path) -> Sequence[Path]:
    """The file itself, or a folder's segments in order of their offsets. Raises ConfigError where there are none."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise ConfigError(f"{path}: no segments (*{SUFFIX}) in this folder; name the folder of one partition")
    if swaps := _swaps_in(path):
        begin, end = offset_of(swaps[0]) or 0, _end_of(swaps[-1])
        replaced = {offset_of(swap) for swap in swaps}  # one may be empty, for all of it was cleaned away
        kept = [path for path in found if (base := offset_of(path)) not in replaced and not begin <= (base or 0) < end]
        found = sorted([*kept, *swaps])
    return found


def _swaps_in(folder: Path) -> Sequence[Path]:
    """Segments that a cleaner had finished when its broker crashed: its recovery puts them in place of those that begin
    among their offsets, which may be deleted in part. Where a cleaner was still writing, its other ones are not valid
    from there on (Kafka `LogLoader.load`).
    """
    unfinished = [base for path in folder.glob(f"*{SUFFIX}{_CLEANED}") if (base := offset_of(path)) is not None]
    named = ((offset_of(path), path) for path in sorted(folder.glob(f"*{SUFFIX}{_SWAP}")))
    return [path for base, path in named if base is not None and base < min(unfinished, default=LAST_OFFSET)]


def _end_of(segment: Path) -> int:
    """Behind its last sound batch."""
    base = offset_of(segment) or 0
    walk = Walk(Mapped.checked(segment).data, base, base + SPAN - 1)
    for _ in walk:
        pass
    return walk.next_offset


def offset_of(path: Path) -> int | None:
    """The base offset in a segment's name, None where the name is not a broker's."""
    digits = path.name[:_NAME_DIGITS]
    named = len(digits) == _NAME_DIGITS and digits.isascii() and digits.isdigit()
    return offset if named and (offset := int(digits)) <= LAST_OFFSET - SPAN else None


def base_of(path: Path) -> int:
    """Return the base offset in a segment's name. Raises ConfigError where the name is not a broker's."""
    if (base := offset_of(path)) is None:
        raise ConfigError(f"{path}: not named as a broker names segments; name a data folder")
    return base


@dataclass(slots=True)
class Mapped:
    """A file as memory; the mapping lasts as long as a view of it. `identity`: device and inode. `unread`: what could
    not be read, in words; there it is a copy of the file that has no batch at those bytes.
    """

    data: memoryview
    identity: tuple[int, int] = (-1, -1)
    _map: mmap.mmap | None = None
    _released: int = 0
    unread: str = ""

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

    @classmethod
    def checked(cls, path: Path) -> Mapped:
        """Map a file after reading it through, whatever its disk does not give. Raises ConfigError as `of` does, and
        where that needs a copy and there is no room for one.
        """
        how = "cannot be read"
        try:
            with opened(path) as file:
                if _is_readable(file.fileno()):
                    return cls.of_file(file.fileno())
                how = "its disk is failing, and the temporary folder takes no copy: make room, or set TMPDIR to another"
                with TemporaryFile(prefix="mirror-") as copy:
                    unread = _salvage(file.fileno(), copy.fileno())
                    found = cls.of_file(copy.fileno())
                status = os.fstat(file.fileno())
                found.identity = status.st_dev, status.st_ino
                found.unread = f"{unread:,} bytes cannot be read in this file"
                return found
        except (OSError, ValueError) as problem:
            raise ConfigError(f"{path}: {how}: {problem}") from problem

    def passed(self, position: int) -> None:
        """Give back the pages before `position`, a window at a time; they would come again if they were looked at."""
        if self._map is not None and position - self._released >= _WINDOW:
            until = position - position % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, self._released, until - self._released)
            self._released = until


def _is_readable(descriptor: int) -> bool:
    block = memoryview(bytearray(_BLOCK_BYTES))
    size = os.fstat(descriptor).st_size
    return all(_filled(descriptor, block[: size - at], at) for at in range(0, size, _BLOCK_BYTES))


def _salvage(descriptor: int, copy: int) -> int:
    """Copy a file but for the pages that cannot be read; the bytes of these."""
    size, unread = os.fstat(descriptor).st_size, 0
    for at in range(0, size, mmap.PAGESIZE):
        page = memoryview(bytearray(min(mmap.PAGESIZE, size - at)))
        if not _filled(descriptor, page, at):
            unread += len(page)
            page[:] = _NO_BATCH * len(page)
        os.pwrite(copy, page, at)
    return unread


def _filled(descriptor: int, block: memoryview, at: int) -> bool:
    """Whether bytes of a file can be read, into `block`. Raises OSError for what is no disk's failure."""
    try:
        while block and (got := os.preadv(descriptor, [block], at)):  # what precedes a bad sector comes alone
            block, at = block[got:], at + got
    except OSError as problem:
        if problem.errno != errno.EIO:
            raise
        return False
    return not block


def scan_transactions(scan: TransactionScan, mapped: Mapped) -> None:
    """Read a whole segment for how transactions ended, giving back its pages."""
    position = 0
    while position < len(mapped.data):
        position = scan.over(mapped.data, position, position + _WINDOW)
        mapped.passed(position)


# --- The small files that a broker keeps beside its segments ----------------------------------------------------------

#: A partition's folder: topic and number (Kafka `LocalLog.parseTopicPartitionName`). One that is being deleted, moved
#: in or was found astray has a suffix behind the number.
PARTITION_FOLDER: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>[0-9]{1,9})")

#: A folder of no partition any more, or not yet, by its suffix; a long topic's name is cut for it (Kafka
#: `LocalLog.logDirNameWithSuffixCappedLength`).
LEFT_ASIDE: Final = re.compile(r".+\.[0-9a-f]{32}-(delete|future|stray)")

#: Sixteen bytes in Base64 for URLs, without padding (Kafka `Uuid.toString`).
_ID: Final = re.compile(rb"[A-Za-z0-9_-]{22}")
#: Any text by which an operator formats a cluster; Kafka's own are ids as above.
_CLUSTER_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,249}")
_NO_ID: Final = UUID(int=0)
_VERSION: Final = 0
_LAST_EPOCH = _LAST_NODE = 2**31 - 1
_COMMITTED: Final = "replication-offset-checkpoint"
#: Partitions that one topic may have here: beyond any cluster's.
MOST_PARTITIONS: Final = 1_000_000
#: Bytes of a file about one partition, and of one about all of a broker's, at most: many times what brokers write.
_OF_ONE, _OF_ALL = 4 << 20, 64 << 20


def topic_id_of(folder: Path) -> UUID | None:
    """The topic's id by `partition.metadata` (KIP-516); None where the broker had no ids."""
    for value in _properties(folder / "partition.metadata", b":", b"topic_id"):
        if _ID.fullmatch(value):
            found = UUID(bytes=base64.urlsafe_b64decode(value + b"=="))
            return None if found == _NO_ID else found
    return None


def cluster_id_of(folder: Path) -> str | None:
    """The id of the cluster that a data folder is of, by its `meta.properties`; None where that says nothing."""
    values = _properties(folder / "meta.properties", b"=", b"cluster.id")
    return next((value.decode() for value in values if _CLUSTER_ID.fullmatch(value)), None)


def node_of(folder: Path) -> int | None:
    """The id of the broker that a data folder is of, by its `meta.properties`; None where that says nothing."""
    try:
        values = _properties(folder / "meta.properties", b"=", b"node.id", b"broker.id")
        return next((_number(value, _LAST_NODE) for value in values), None)
    except ValueError:
        return None


def voters_of(folder: Path) -> tuple[int, frozenset[int]]:
    """The leader epoch in the `quorum-state` of a metadata log, and who votes by its node's own settings; -1 and nobody
    where it does not say (from KIP-853 on the log does).
    """
    try:
        state = json.loads(b"".join(_lines(folder / "quorum-state", _OF_ONE)))
        return int(state["leaderEpoch"]), frozenset(int(voter["voterId"]) for voter in state["currentVoters"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return -1, frozenset()


def _properties(path: Path, separator: bytes, *names: bytes) -> Iterator[bytes]:
    """The values that a file of a name and a value a line has by these names, as far as that can be read."""
    with suppress(OSError, ValueError):
        for line in _lines(path, _OF_ONE):
            name, _, value = line.partition(separator)
            if name.strip() in names:
                yield value.strip()


def history_of(folder: Path) -> list[tuple[int, int]]:
    """(leader epoch, first offset) by `leader-epoch-checkpoint`, both rising (KIP-101); nothing where they do not."""
    try:
        entries = _entries(folder / "leader-epoch-checkpoint", _OF_ONE)
        found = [(_number(epoch, _LAST_EPOCH), _number(offset, LAST_OFFSET)) for epoch, offset in entries]
    except (OSError, ValueError):
        return []
    rising = all(entry[0] < later[0] and entry[1] <= later[1] for entry, later in pairwise(found))
    return found if rising else []


def log_start_of(folder: Path) -> int:
    """The partition's first offset by `log-start-offset-checkpoint` of the data folder; 0 where that says nothing."""
    return _offset_in("log-start-offset-checkpoint", folder) or 0


def high_watermark_of(folder: Path) -> int | None:
    """An offset below which all was on every replica in sync, by `replication-offset-checkpoint` of the data folder,
    which a broker writes every few seconds; 0 where that does not name the partition, None where it cannot be read.
    """
    return _offset_in(_COMMITTED, folder)


def committed_in(folder: Path) -> dict[tuple[str, int], int]:
    """High watermarks of all partitions (topic, number) by `replication-offset-checkpoint` of a data folder, those of
    partitions whose folders are lost as well; none where that says nothing.
    """
    found: dict[tuple[str, int], int] = {}
    try:
        for topic, partition, offset in _entries(folder / _COMMITTED, _OF_ALL):
            found[topic.decode("ascii"), _number(partition, MOST_PARTITIONS - 1)] = _number(offset, LAST_OFFSET)
    except (OSError, ValueError):
        return {}
    return found


def _offset_in(checkpoint: str, folder: Path) -> int | None:
    """What a data folder's checkpoint says of a partition's folder in it, 0 where it does not name that; None where it
    cannot be read.
    """
    named = PARTITION_FOLDER.fullmatch(folder.name)
    if named is None:
        return None
    mine = [named["topic"].encode(), b"%d" % int(named["partition"])]
    found = 0
    try:
        for *partition, offset in _entries(folder.parent / checkpoint, _OF_ALL):
            if partition == mine:
                found = _number(offset, LAST_OFFSET)
    except (OSError, ValueError):
        return None
    return found


def _entries(path: Path, most: int) -> Iterator[list[bytes]]:
    """The words of each entry of a checkpoint. Raises OSError, and ValueError where it is not whole: at its end, so
    that what was given till then is not to be believed.
    """
    lines = _lines(path, most)
    if _number(next(lines, b""), _VERSION):
        raise ValueError("another version")
    due = _number(next(lines, b""), most)
    for line in lines:
        if not line.endswith(b"\n"):
            raise ValueError("cut short")
        due -= 1
        yield line.split()
    if due:
        raise ValueError("not as many entries as it says")


def _lines(path: Path, most: int) -> Iterator[bytes]:
    """Raises OSError, and ValueError for a file of more than so many bytes."""
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise ValueError("no broker's")
        return iter(BytesIO(file.read()))


def _number(word: bytes, most: int) -> int:
    """Raises ValueError for what is no number, or beyond `most`."""
    digits = word.strip()
    if not digits.isdigit() or len(digits) > len(str(most)) or (number := int(digits)) > most:
        raise ValueError("not a number that can be here")
    return number


# --- A segment's offset index -----------------------------------------------------------------------------------------

INDEX_SUFFIX: Final = ".index"
_INDEX_ENTRY: Final = Struct(">ii")


def position_of(segment: Path, relative: int) -> int:
    """Where to begin to look for a relative offset, by the entries up to where they stop rising; 0 where there is no
    index.
    """
    try:
        data = segment.with_suffix(INDEX_SUFFIX).read_bytes()
    except OSError:  # it can always be rebuilt, and is often not copied along
        return 0
    before = found = 0
    for offset, position in _INDEX_ENTRY.iter_unpack(data[: len(data) - len(data) % _INDEX_ENTRY.size]):
        if not before < offset <= relative or position <= found:
            break
        before, found = offset, position
    return found


# --- A segment's time index -------------------------------------------------------------------------------------------

TIME_INDEX_SUFFIX: Final = ".timeindex"
_TIME_ENTRY: Final = Struct(">qi")


def entries(segment: Path) -> tuple[list[tuple[int, int]], bytes]:
    """Return (timestamp in ms, relative offset) of a segment's index up to where timestamps no longer rise or offsets
    fall, and the bytes behind these; nothing where it has no index.
    """
    try:
        with opened(segment.with_suffix(TIME_INDEX_SUFFIX)) as index:
            data = index.read()
    except OSError:  # an index can always be rebuilt, and is often not copied along
        return [], b""
    found: list[tuple[int, int]] = []
    before, least = -1, 0
    for timestamp, offset in _TIME_ENTRY.iter_unpack(data[: len(data) - len(data) % _TIME_ENTRY.size]):
        if timestamp <= before or offset < least or not (timestamp or offset):  # the last is what was reserved
            break
        found.append((timestamp, offset))
        before, least = timestamp, offset
    return found, data[len(found) * _TIME_ENTRY.size :]


def largest_timestamp(segment: Path) -> int | None:
    """The largest timestamp, in ms, of a segment that is no longer written; None where no index has it, and where
    one does not hold good to its last entry, which is the one that would.
    """
    found, rest = entries(segment)
    return found[-1][0] if found and not rest else None


def last_entry(segment: Path) -> tuple[int, int] | None:
    """The last entry of an index that looks as a broker leaves one: entries that rise, then zeros at most. None for any
    other, and where there is no entry.
    """
    found, rest = entries(segment)
    return found[-1] if found and not any(rest) and len(rest) % _TIME_ENTRY.size == 0 else None
