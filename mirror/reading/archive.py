"""Partitions in the data folders of brokers that are gone: found, and of several replicas the one to believe.

M1  a record counts only up to where a later leader epoch began: whatever the history of any replica says of a newer
    epoch's first offset, records of older epochs from there on were cut back when that leader was elected, or would
    have been (KIP-101)
M2  of what is left the longest replica is taken, whole. Where it lacks the first records, for a file that is lost,
    another one lends them if both hold the same batch where it begins
M3  a transaction without an end stops the copy before its first record, as it stops a consumer: whether it was
    committed is known to nobody but its coordinator
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final
from uuid import UUID

from mirror.errors import ConfigError
from mirror.reading.replica import Replica, Turn, scan
from mirror.reading.segments import SUFFIX, offset_of
from mirror.reading.sidecars import PARTITION_FOLDER, log_start_of, topic_id_of
from mirror.wire.cluster import TopicPartition

#: A folder at the top of a file system, for root alone.
_OF_THE_DISK: Final = "lost+found"


def partitions_in(folders: Iterable[Path]) -> dict[TopicPartition, tuple[Path, ...]]:
    """Where the replicas of each partition lie. A folder is a partition's, a broker's with many of these, or one with
    brokers' folders in it.

    Raises ConfigError for one that holds none, and for one that may not be read.
    """
    found: dict[TopicPartition, dict[Path, Path]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder")
        some = False
        inside = list(_folders_in(folder))
        for path in (folder, *inside, *(one for each in inside for one in _folders_in(each))):
            # by the name it goes by, since one that was moved to another disk is linked to; `.` has none
            for place in (path.absolute(), path.resolve()):
                if (named := PARTITION_FOLDER.fullmatch(place.name)) and _has_segments(place):
                    some = True
                    at = TopicPartition(named["topic"], int(named["partition"]))
                    found.setdefault(at, {}).setdefault(path.resolve(), place)
                    break
        if not some:
            raise ConfigError(f"{folder}: no partition's folder (TOPIC-NUMBER, with segments *{SUFFIX}) in it")
    return {at: tuple(places.values()) for at, places in sorted(found.items())}


def _folders_in(folder: Path) -> Iterator[Path]:
    """Raises ConfigError for one that may not be read: what it holds would be missing, and nobody would say so."""
    try:
        yield from (path for path in sorted(folder.iterdir()) if path.is_dir() and path.name != _OF_THE_DISK)
    except OSError as problem:
        raise ConfigError(f"{folder}: cannot be read: {problem}") from problem


def _has_segments(folder: Path) -> bool:
    """Whether a folder is a partition's, and not another one named alike. Raises ConfigError as `_folders_in` does."""
    try:
        return any(path.suffix == SUFFIX and offset_of(path) is not None for path in folder.iterdir())
    except OSError as problem:
        raise ConfigError(f"{folder}: cannot be read: {problem}") from problem


def mixed_in(found: Mapping[TopicPartition, Sequence[Path]]) -> dict[str, str]:
    """Topics of which folders have different ids, for one was deleted and made anew: which folder has which."""
    ids: dict[str, dict[UUID, Path]] = {}
    for at, paths in found.items():
        for path in paths:
            if topic_id := topic_id_of(path):
                ids.setdefault(at.topic, {}).setdefault(topic_id, path)
    return {
        topic: ", ".join(f"{path} of id {topic_id}" for topic_id, path in by_id.items())
        for topic, by_id in ids.items()
        if len(by_id) > 1
    }


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets from `begin` to before `end`, of one replica."""

    replica: Replica
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """A partition from `start` to before `end`, readable as committed up to `stable`; `aborted`: producer id, first
    offset and marker's offset of each aborted transaction. `notes` say in words what was left out, and why; `at_risk`
    that it may be more than what a crash leaves at the end of a log.
    """

    stretches: tuple[Stretch, ...]
    topic_id: UUID | None
    stable: int
    aborted: tuple[tuple[int, int, int], ...]
    notes: tuple[str, ...]
    at_risk: bool

    @property
    def start(self) -> int:
        """The first offset."""
        return self.stretches[0].begin

    @property
    def end(self) -> int:
        """Behind the last offset."""
        return self.stretches[-1].end

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those that it is read from."""
        return tuple(dict.fromkeys(stretch.replica.folder for stretch in self.stretches))

    def read(self, offset: int, most: int, before: int) -> memoryview:
        """Whole batches and perhaps a part of one from an offset on, as `Replica.read` gives them."""
        for stretch in self.stretches:
            if offset < stretch.end and (found := stretch.replica.read(offset, most, min(before, stretch.end))):
                return found
        return memoryview(b"")


def merged(replicas: Sequence[Replica]) -> PartitionLog:
    """One log of the replicas of a partition. Raises ConfigError where they are not of the same topic."""
    ids = {replica.topic_id for replica in replicas if replica.topic_id}
    if len(ids) > 1:
        told = ", ".join(f"{replica.folder} of id {replica.topic_id}" for replica in replicas)
        raise ConfigError(f"replicas of different topics by one name: {told}. Name the folders of one of them")
    history = sorted({one for replica in replicas for one in (*replica.history, *replica.epochs)})
    ends = [_valid_end(replica, history) for replica in replicas]
    best, end = max(zip(replicas, ends, strict=True), key=lambda one: (one[1], -one[0].start))
    stretches = [Stretch(best, min(best.start, end), end)]
    if lender := _lender(best, zip(replicas, ends, strict=True)):
        stretches.insert(0, Stretch(lender, lender.start, best.start))
    start = stretches[0].begin
    open_from, aborted = _transactions(_turns(stretches), end)
    stable = max(start, open_from)
    gaps = [one for stretch in stretches for one in _gaps(stretch)]
    committed = max(replica.committed for replica in replicas)
    notes = [*_notes(best, end), *gaps, *(_unlike(other, at, end) for other, at in zip(replicas, ends, strict=True))]
    if stable < end:
        notes.append(f"a transaction that begins at offset {stable} has no end: {end - stable:,} offsets are left out")
    if committed > end:
        notes.append(f"offsets {end} to {committed - 1} were committed, a broker's checkpoint says, and are in no file")
    cut = bool(best.damage and not best.is_torn) or end < best.end
    at_risk = cut or stable < end or bool(gaps) or committed > end
    return PartitionLog(tuple(stretches), next(iter(ids), None), stable, aborted, tuple(filter(None, notes)), at_risk)


def load(folders: Iterable[Path]) -> PartitionLog:
    """Look at all replicas of one partition. Raises ConfigError as `scan` and `merged` do."""
    return merged([scan(folder) for folder in folders])


def _valid_end(replica: Replica, history: Sequence[tuple[int, int]]) -> int:
    """Where a newer epoch of the partition's history cuts a replica off (M1), or its own end."""
    runs = replica.epochs or [(-1, replica.start)]
    # from the last entry to the first: the least offset of it and all that are newer
    least = [*accumulate((offset for _, offset in reversed(history)), min)][::-1]
    for number, (epoch, first) in enumerate(runs):
        upto = runs[number + 1][1] if number + 1 < len(runs) else replica.end
        above = bisect_right(history, epoch, key=lambda one: one[0])
        newer = least[above] if above < len(least) else upto
        if newer < upto:
            return max(newer, first if number else replica.start)
    return replica.end


def _lender(best: Replica, others: Iterable[tuple[Replica, int]]) -> Replica | None:
    """Who has the first records that the best replica lacks (M2): the one that has most of them."""
    deleted = log_start_of(best.folder)
    seam = best.batch_at(best.start)
    found: Replica | None = None
    for other, end in others:
        if seam is None or not deleted <= other.start < best.start < end:
            continue
        twin = other.batch_at(best.start)
        if twin is None or bytes(twin.data) != bytes(seam.data) or twin.header.base_offset < best.start:
            continue
        if found is None or other.start < found.start:
            found = other
    return found


def _turns(stretches: Sequence[Stretch]) -> Iterator[Turn]:
    """Those of a log. What began before its start may go on behind that, and end there."""
    for number, stretch in enumerate(stretches):
        begin = stretch.begin if number else 0
        yield from (turn for turn in stretch.replica.turns if begin <= turn.offset < stretch.end)


def _transactions(turns: Iterable[Turn], end: int) -> tuple[int, tuple[tuple[int, int, int], ...]]:
    """Where what is committed ends (M3), and the aborted transactions."""
    begun: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    for turn in turns:
        if turn.aborted is None:
            begun.setdefault(turn.producer_id, turn.offset)
        elif (first := begun.pop(turn.producer_id, None)) is not None and turn.aborted:
            aborted.append((turn.producer_id, first, turn.offset))
    return min(begun.values(), default=end), tuple(aborted)


def _notes(best: Replica, end: int) -> Iterator[str]:
    if end < best.end:
        yield f"{best.folder}: offsets {end} to {best.end - 1} are of an older leader epoch, and are left out"
    if best.damage:
        what = "the last batch was not written whole" if best.is_torn else "damaged"
        yield f"{best.folder}: {what} behind offset {best.end - 1}: {best.damage} ({best.beyond:,} bytes are left out)"


def _gaps(stretch: Stretch) -> Iterator[str]:
    """What is to be said of offsets between the files of a stretch."""
    for first, upto in stretch.replica.gaps:
        if stretch.begin < upto and first < stretch.end:
            told = f"offsets {first} to {upto - 1} are in no file: compacted away, or a file is missing"
            yield f"{stretch.replica.folder}: {told}"


def _unlike(other: Replica, valid: int, end: int) -> str:
    """What is to be said of a replica that was not taken."""
    if valid < other.end and valid < end:
        return f"{other.folder}: offsets {valid} to {other.end - 1} are of an older leader epoch, and are left out"
    return ""
