"""Targets: a partition's folder as a broken disk may leave it, segments and the small files beside them.

What is read must stand in the files, in order; what is left out must be for a reason. So each target reads the same
bytes once more, as plainly as can be.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from struct import Struct
from tempfile import TemporaryDirectory
from typing import Final
from uuid import UUID

from mirror.errors import BadRecords, ConfigError
from mirror.records.header import ABORT, COMMIT, LAST_OFFSET, RawBatch, marker_type
from mirror.records.segment import SPAN, Walk
from mirror.records.transactions import Aborted
from mirror.segments.files import entries, history_of, largest_timestamp, log_start_of, topic_id_of
from mirror.segments.replica import Replica, scan
from mirror.segments.replica_sets import taken

#: In front of a partition's two files: base offset of each, where the log starts, and bytes of the first.
FILES: Final = Struct(">QQQH")
_ENTRY: Final = Struct(">qi")
_PLACE: Final = TemporaryDirectory(prefix="fuzz-disks-")
_LARGE: Final = 1 << 20
#: Batches that are read one at a time, each of which is looked for anew from the index entry before it.
_ALONE: Final = 20


def replica(data: bytes) -> None:
    """Two segments, of which a second broker has the second one alone (see `FILES`)."""
    if len(data) < FILES.size:
        return
    first, second, start, size = FILES.unpack_from(data)
    parts = {first: data[FILES.size :][:size]}
    parts[second] = data[FILES.size :][size:] or parts.get(second, b"")
    checkpoint = {"log-start-offset-checkpoint": b"0\n1\norders 0 %d\n" % start}
    try:
        found = scan(_broker("one", parts, checkpoint))
        other = scan(_broker("two", {second: parts[second]}, {}))
    except ConfigError:
        assert max(first, second) > LAST_OFFSET - SPAN
        return
    files = [parts[base] for base in sorted(parts)]
    sound = list(_sound(sorted(parts.items()), found.end))
    assert min(parts) <= found.start <= found.end
    _rising(found)
    _ended_as_reported(found, sound)
    due = [bytes(raw.data) for raw in sound if found.start < raw.header.next_offset]
    for most, count in ((1, _ALONE), (_LARGE, len(due) + 1)):
        read = [bytes(raw.data) for raw in islice(_read(found, found.start, most, found.end), count)]
        assert read == due[:count]
        assert all(any(one in file for file in files) for one in read)
    log = taken([other, found])
    assert log.start <= log.stable <= log.end
    for most, few in ((1, _ALONE), (_LARGE, len(data))):
        ends = [raw.header.next_offset for raw in islice(_read(log, log.start, most, log.stable), few)]
        assert ends == sorted(set(ends))


def sidecars(data: bytes) -> None:
    """One file under the names of all: whatever is written stands in it."""
    names = ("partition.metadata", "leader-epoch-checkpoint")
    folder = _broker("small", {}, {"log-start-offset-checkpoint": data, **{f"orders-0/{name}": data for name in names}})
    if found := topic_id_of(folder):
        assert isinstance(found, UUID)
        assert found.int
    history = history_of(folder)
    numbers = {int(digits) for digits in re.findall(rb"\d{1,100}", data)}
    assert all(epoch < 2**31 and offset <= LAST_OFFSET for epoch, offset in history)
    assert all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(history))
    start = log_start_of(folder)
    assert {start, *(number for one in history for number in one)} <= numbers | {0}
    assert 0 <= start <= LAST_OFFSET
    assert not history or data.endswith(b"\n")


def timeindex(data: bytes) -> None:
    """An index: its entries up to the first that does not belong there."""
    segment = _broker("times", {0: b""}, {f"orders-0/{0:020}.timeindex": data}) / f"{0:020}.log"
    found, _ = entries(segment)
    stored = list(_ENTRY.iter_unpack(data[: len(data) - len(data) % _ENTRY.size]))
    assert found == stored[: len(found)]
    assert all(timestamp >= 0 and 0 <= offset < SPAN for timestamp, offset in found)
    assert all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(found))
    largest = largest_timestamp(segment)
    assert largest is None or (largest == found[-1][0] and len(found) * _ENTRY.size == len(data))


def replicas(sets: Iterable[bytes], random: Random) -> Iterator[bytes]:
    """Seeds for `replica`: a record set as one file, and as two."""
    for record_set in sets:
        walk = Walk(memoryview(record_set))
        ends = [(0, 0), *((walk.position, walk.next_offset) for _ in walk)]
        for cut, base in {ends[-1], random.choice(ends)}:
            yield FILES.pack(0, max(1, base), random.choice((0, 0, base, base + 1)), cut) + record_set


def small_files(_: Random) -> Iterator[bytes]:
    """Seeds for `sidecars`."""
    yield b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw"
    yield b"0\n3\n0 0\n4 17\n5 9000000000\n"
    yield b"0\n2\nother-topic 3 7\norders 0 40\n"


def time_indexes(_: Random) -> Iterator[bytes]:
    """Seeds for `timeindex`: whole, and with room that was reserved."""
    stored = b"".join(_ENTRY.pack(1_700_000_000_000 + 60_000 * number, 100 * number) for number in range(1, 20))
    yield stored
    yield stored + bytes(5 * _ENTRY.size)


def _broker(name: str, parts: Mapping[int, bytes], others: Mapping[str, bytes]) -> Path:
    """A data folder with one partition's segments by base offset, and other files by path; the partition's folder."""
    broker = Path(_PLACE.name) / name
    shutil.rmtree(broker, ignore_errors=True)
    folder = broker / "orders-0"
    folder.mkdir(parents=True)
    for base, data in parts.items():
        (folder / f"{base:020}.log").write_bytes(data)
    for path, data in others.items():
        (broker / path).write_bytes(data)
    return folder


def _sound(files: Iterable[tuple[int, bytes]], before: int) -> Iterator[RawBatch]:
    """The batches of files one after another, up to the first damage and to before an offset."""
    end = -1
    for base, data in files:
        if base < end:
            return
        walk = Walk(memoryview(data), base, base + SPAN - 1)
        yield from (raw for raw in walk if raw.header.base_offset < before)
        if walk.damage:
            return
        end = walk.next_offset


def _read(log: Replica, at: int, most: int, before: int) -> Iterator[RawBatch]:
    """As a fetcher reads: from the offset on that is due, and always further."""
    while data := log.read(at, most, before):
        walk = Walk(data)
        found = list(walk)
        assert walk.damage is None or most > 1
        assert found
        yield from found
        assert walk.next_offset > at
        at = walk.next_offset


def _rising(found: Replica) -> None:
    assert all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(found.epochs))
    assert all(first < found.end for _, first in found.epochs)
    markers = [marker for _, _, marker in found.aborted]
    assert markers == sorted(markers)


def _ended_as_reported(log: Replica, sound: Sequence[RawBatch]) -> None:
    """What the log says of transactions is what its markers say."""
    aborted = Aborted((producer, first) for producer, first, _ in log.aborted)
    assert all(first < marker < log.end for _, first, marker in log.aborted)
    ended = list(_ended(sound))
    for raw, kind in zip(sound, ended, strict=True):
        reported = aborted.covers(raw) if _is_readable(raw) else None
        if raw.header.is_transactional and not raw.header.is_control:
            assert reported is (kind == ABORT)
            assert kind is not None or log.stable <= max(log.start, raw.header.base_offset)


def _ended(sound: Sequence[RawBatch]) -> Iterator[int | None]:
    """How the transaction of each batch ended, None where it did not; of a batch of none, whatever follows."""
    kinds: list[int | None] = []
    ends: dict[int, int | None] = {}
    for raw in reversed(sound):
        header = raw.header
        if header.is_transactional and header.is_control and _is_readable(raw):
            kind = marker_type(raw) if header.count else COMMIT
            if kind in (ABORT, COMMIT):
                ends[header.producer_id] = kind
        kinds.append(ends.get(header.producer_id))
    yield from reversed(kinds)


def _is_readable(raw: RawBatch) -> bool:
    if not raw.header.is_control or not raw.header.count:
        return True
    try:
        marker_type(raw)
    except BadRecords:
        return False
    return True
