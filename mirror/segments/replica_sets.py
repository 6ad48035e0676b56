"""Partitions in the data folders of brokers that are gone: found, and of several replicas the one to believe.

M1  a record counts only up to where a later leader epoch began: whatever the history of the replica that knows the
    newest epoch says of a newer epoch's first offset, records of older epochs from there on were cut back when that
    leader was elected, or would have been (KIP-101). What another one's history has beside that was never followed: a
    leader that died at once has an entry for its epoch, and removes it only when it comes back
M2  of what is left the longest replica is taken, whole; of several, that which lacks least. Where it lacks the first
    records, for a file that is lost, another one lends them if both hold the same batch where it begins
M3  a transaction without an end stops the copy before its first record, as it stops a consumer: whether it was
    committed is known to nobody but its coordinator. So does one whose marker may be among what is damaged, or in a
    file that is missing: a log that no cleaner went through has all offsets
M4  what is damaged in one replica, or was in a file between two that it has, is taken from another, if both hold the
    same batches before and behind it. What is damaged in all ends the log, or is left out of it where that is wanted:
    those offsets and no more
M5  of a log that a cleaner went through, a replica that needs nothing of another one is taken before one that does, and
    what is lent is named: it may have values whose deletions are forgotten in the one that gets them
M6  what was deleted, by retention or because somebody asked for it, stays deleted: the log begins where the brokers
    that know the newest epoch wrote down that it does, whatever older files hold. A follower's own retention may have
    gone further than its leader's, and nobody in sync less far: the least of those counts. Where nobody knows who was
    in sync, or one history alone says it of files that are there, the least counts, too, and is reported: a copy can
    be deleted from, and nothing put in front of it. A history that begins behind records without a leader epoch is
    younger than these, and says nothing of them
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Final
from uuid import UUID

from mirror.errors import ConfigError
from mirror.kafka.cluster import TopicPartition
from mirror.records.header import DELETE_HORIZON, BatchHeader, RawBatch
from mirror.segments.files import PARTITION_FOLDER, SUFFIX, committed_in, log_start_of, offset_of, topic_id_of
from mirror.segments.replica import Hole, Replica, Turn, scan

#: A folder at the top of a file system, for root alone.
_OF_THE_DISK: Final = "lost+found"
#: What a partition's folder ends with while it is being deleted.
_DELETED: Final = "-delete"


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


def partition_counts(folders: Iterable[Path]) -> dict[str, int]:
    """Topics of which data folders' checkpoints know committed records, with their highest partition's number + 1. A
    folder is a broker's, or one with brokers' folders in it: beside a partition's that is named alone none is looked
    for. What was being deleted is passed over. Raises ConfigError as `partitions_in` does.
    """
    counts: dict[str, int] = {}
    for data in dict.fromkeys(one for folder in folders for one in (folder, *_folders_in(folder))):
        if not (committed := committed_in(data)):
            continue
        deleted = {path.name.rpartition(".")[0] for path in _folders_in(data) if path.name.endswith(_DELETED)}
        for (topic, number), offset in committed.items():
            if offset and f"{topic}-{number}" not in deleted:
                counts[topic] = max(counts.get(topic, 0), number + 1)
    return counts


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
class OffsetSpan:
    """Offsets from `begin` to before `end`, of one replica."""

    replica: Replica
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """A partition from `start` to before `end`, readable as committed up to `stable`.

    `aborted`: producer id, first offset and marker's offset of each aborted transaction. `notes` say in words what was
    left out, and why; `at_risk` that it may be more than what a crash leaves at the end of a log. `lost`: what is left
    out of it for damage, though sound batches follow; `is_cut`: a replica ends in more than a crash leaves. `oldest_ms`
    as in `Replica`. `epochs`: leader epochs and where each begins, oldest first; empty where the files do not say.
    `asides`: those notes that compaction, an open transaction or what may have been deleted explains; `lacks`: it is at
    risk for another reason.
    `doubts`: from these offsets on something is missing that may have ended transactions.
    """

    stretches: tuple[OffsetSpan, ...]
    topic_id: UUID | None
    start: int
    stable: int
    aborted: tuple[tuple[int, int, int], ...]
    notes: tuple[str, ...]
    at_risk: bool
    oldest_ms: int | None = None
    lost: tuple[Hole, ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()
    is_cut: bool = False
    lacks: bool = False
    asides: frozenset[str] = frozenset()
    doubts: tuple[int, ...] = ()

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
            at = max(offset, stretch.begin)
            if at < stretch.end and (found := stretch.replica.read(at, most, min(before, stretch.end))):
                return found
        return memoryview(b"")


@dataclass(frozen=True, slots=True)
class _Composed:
    """A log with one replica for most of it: its sound stretches, and what is damaged in all replicas. `gaps`: how many
    offsets are in none of its files, nor lent by another one's; those that were lent count where a cleaner went (M5).
    `own_start`: where it begins without what was lent.
    """

    best: Replica
    end: int
    stretches: tuple[OffsetSpan, ...]
    lost: tuple[Hole, ...]
    gaps: int = 0
    own_start: int = 0

    @property
    def start(self) -> int:
        """The first offset, damaged or not."""
        firsts = [stretch.begin for stretch in self.stretches] + [hole.first for hole in self.lost]
        return min(firsts, default=self.end)

    @property
    def sound_end(self) -> int:
        """Where the first damage begins, or the end."""
        return min((hole.first for hole in self.lost), default=self.end)

    def cut(self) -> _Composed:
        """The same up to its first damage."""
        end = self.sound_end
        kept = [replace(one, end=min(one.end, end)) for one in self.stretches if one.begin < end]
        return _Composed(self.best, end, tuple(kept) or (OffsetSpan(self.best, end, end),), ())


def merged(replicas: Sequence[Replica], *, in_sync: Collection[Path] = (), skips_damage: bool = False) -> PartitionLog:
    """One log of the replicas of a partition: up to the first damage, or with what is damaged left out where it
    `skips_damage`. `in_sync`: the folders of those that were in the end, where that is known. Raises ConfigError where
    they are not of the same topic.
    """
    ids = {replica.topic_id for replica in replicas if replica.topic_id}
    if len(ids) > 1:
        text = ", ".join(f"{replica.folder} of id {replica.topic_id}" for replica in replicas)
        raise ConfigError(f"replicas of different topics by one name: {text}. Name the folders of one of them")
    newest = max(map(_newest_epoch, replicas))
    leading = [replica for replica in replicas if _newest_epoch(replica) == newest]
    history = sorted({one for replica in leading for one in (*replica.history, *replica.epochs)})
    every = [(replica, _valid_end(replica, history)) for replica in replicas]
    current = [replica for replica in leading if replica.folder in in_sync]
    believed = current or leading
    written = _written_start(believed, replicas, is_decided=bool(current))
    begins = written.offset
    whole = _longest([_composed(replica, begins, end, every) for replica, end in every], skips_damage=skips_damage)
    log = whole if skips_damage else whole.cut()
    best, end, stretches = log.best, log.end, log.stretches
    start = log.start
    doubts = _doubts(stretches, log.lost)
    open_from, aborted = _transactions(_turns(stretches), doubts, end)
    stable = max(start, open_from)
    asides = [one for stretch in stretches for one in _gaps(stretch)]
    asides += _lent_notes(log, replicas)
    asides += _doubted_notes(written, start, end)
    if stable < end:
        asides.append(_open_note(stable, end, doubts))
    known = [replica.committed for replica in replicas if replica.committed is not None]
    committed = max(known, default=0)
    notes = [
        *_notes(best, whole.end, end),
        *(_damage_note(hole) for hole in log.lost),
        *asides,
        *(_unlike(other, at) for other, at in every),
        *(_deleted_note(other, begins) for other, at in every if at >= end),
    ]
    if not skips_damage and whole.lost:
        notes.append(_behind_note(whole.best, whole.lost[0]))
    if committed > end:
        where = "file of the newest leader epoch" if any(at < other.end for other, at in every) else "file"
        text = f"were committed, a broker's checkpoint says, and are in no {where}"
        notes.append(f"offsets {end} to {committed - 1} {text}")
    if is_short := (due := begins if written.is_known else max(begins, best.lacks_from)) < start:
        text = f"offsets {due} to {start - 1} were not deleted, a broker's checkpoint says, and are in no file"
        notes.append(f"{best.folder}: {text}: the first ones are missing, or are in remote storage")
    if not known:
        notes.append(
            f"{best.folder}: no replication-offset-checkpoint can be read beside it, so nobody knows whether records"
            f" behind offset {end} are missing. Name the brokers' data folders whole"
        )
    first = min(replica.start for replica in replicas)
    if headless := not (written.is_known or best.history) and start > 0 and first >= start > begins:
        notes.append(
            f"{best.folder}: its leader-epoch-checkpoint is missing, so nobody knows whether records before offset"
            f" {start} were deleted, or their files are missing"
        )
    newer = min(replica.start for replica in believed) if best.history else best.start
    if unknown := not written.is_known and max(first, begins) < newer:
        text = f"offsets {max(first, begins)} to {newer - 1} are in older files alone"
        why = "deleted by retention, or files are missing. Its leader-epoch-checkpoint does not say it"
        notes.append(f"{best.folder}: {text}: {why}")
    cut = bool(best.damage and not best.is_torn) or end < best.end
    lacks = cut or bool(log.lost) or committed > end or is_short or unknown or headless or not known
    times = [stretch.replica.oldest_ms for stretch in stretches if stretch.replica.oldest_ms is not None]
    return PartitionLog(
        stretches,
        next(iter(ids), None),
        start,
        stable,
        aborted,
        tuple(dict.fromkeys(filter(None, notes))),
        lacks or bool(asides),
        min(times, default=None),
        log.lost,
        _epochs_of(best, end),
        cut or any(one.damage and not one.is_torn for one in replicas),
        lacks,
        frozenset(asides),
        doubts,
    )


def _longest(composed: Iterable[_Composed], *, skips_damage: bool) -> _Composed:
    """The longest log, as damage counts; of several, that which lacks least, then that of the newest epoch (M2)."""

    def reaches(one: _Composed) -> tuple[int, ...]:
        reach = (one.end, -_missing(one.lost)) if skips_damage else (one.sound_end,)
        return *reach, -one.gaps - one.own_start, _newest_epoch(one.best)

    return max(composed, key=reaches)


def _epochs_of(best: Replica, end: int) -> tuple[tuple[int, int], ...]:
    """By leader epoch, where it begins: as the broker wrote it down, and as the batches say."""
    begins: dict[int, int] = {}
    for epoch, offset in sorted((*best.history, *best.epochs)):
        if epoch >= 0 and offset < end:
            begins.setdefault(epoch, offset)
    return tuple(begins.items())


def load(folders: Iterable[Path], *, in_sync: Collection[Path] = (), skips_damage: bool = False) -> PartitionLog:
    """Read all replicas of one partition. Raises ConfigError as `scan` and `merged` do."""
    return merged([scan(folder) for folder in folders], in_sync=in_sync, skips_damage=skips_damage)


@dataclass(frozen=True, slots=True)
class _WrittenStart:
    """Where the log begins, as brokers wrote it down (M6).

    is_known: one did; else it begins at `offset` or later.
    doubted_until: what is from there to before this one may have been deleted.
    witness: the replica whose history says so.
    """

    offset: int
    is_known: bool = False
    doubted_until: int = 0
    witness: Replica | None = None


def _written_start(believed: Sequence[Replica], replicas: Sequence[Replica], *, is_decided: bool) -> _WrittenStart:
    """What the brokers of some replicas wrote down; `is_decided`: these are known to have been in sync."""
    least = max(min(log_start_of(one.folder), one.start) for one in believed)
    wrote = [(one.log_start, one) for one in believed if one.log_start is not None and not _is_younger(one, replicas)]
    if not wrote:
        return _WrittenStart(least)
    (said, first), (until, witness) = min(wrote, key=itemgetter(0)), max(wrote, key=itemgetter(0))
    # a broker that lost its history writes one anew, from where it is on: no other one has the same
    is_agreed = any(one.start >= said for _, one in wrote) or sum(one.log_start == said for one in replicas) > 1
    if is_decided:
        until, witness = said, first
    return _WrittenStart(max(least, said if is_agreed else first.start), True, until, witness)


def _is_younger(replica: Replica, replicas: Iterable[Replica]) -> bool:
    """Whether a history began when its log had records already, which are older than leader epochs (M6)."""
    first = replica.history[0]
    for other in replicas:
        if other.history[:1] == [first] and not any(epoch >= 0 and at < first[1] for epoch, at in other.epochs):
            head = other.batch_at(other.start)
            if head is not None and head.header.base_offset < first[1]:
                return True
    return False


def _composed(best: Replica, begins: int, end: int, every: Sequence[tuple[Replica, int]]) -> _Composed:
    """What one replica has between two offsets, with what it lacks from others (M2, M4)."""
    own_start = max(best.start, begins)
    parts = [OffsetSpan(best, min(own_start, end), end)]
    if begins < best.start and (lender := _lender(best, every)):
        parts.insert(0, OffsetSpan(lender, max(lender.start, begins), best.start))
    is_cleaned = any(replica.is_cleaned for replica, _ in every)
    sound: list[OffsetSpan] = []
    lost: list[Hole] = []
    gaps = 0
    for part in parts:
        at = part.begin
        for hole in _absent(part.replica):
            first, end_offset = max(hole[0], at), min(hole[1], part.end)
            if end_offset <= first:
                continue
            damage = next((one for one in part.replica.holes if (one.first, one.next_offset) == hole), None)
            lent, left = _healed(part.replica, first, end_offset, every)
            if damage is None and (left or is_cleaned):  # compaction leaves such gaps, too; M5
                gaps += end_offset - first
            else:
                gaps += sum(min(gap[1], one.end) - max(gap[0], one.begin) for one in lent for gap in _gaps_in(one))
            if damage is None and left:
                continue
            if at < first:
                sound.append(OffsetSpan(part.replica, at, first))
            sound += lent
            if damage is not None:
                lost += (replace(damage, first=begin, next_offset=until) for begin, until in left)
            at = end_offset
        if at < part.end or not sound:
            sound.append(OffsetSpan(part.replica, at, part.end))
    return _Composed(best, end, tuple(sorted(sound, key=lambda one: one.begin)), tuple(lost), gaps, own_start)


def _absent(replica: Replica) -> list[tuple[int, int]]:
    """Offsets, from and to before, that are damaged in a replica, or between two of its files."""
    return sorted({*replica.gaps, *((hole.first, hole.next_offset) for hole in replica.holes)})


def _healed(
    damaged: Replica, first: int, end_offset: int, every: Iterable[tuple[Replica, int]]
) -> tuple[list[OffsetSpan], list[tuple[int, int]]]:
    """What others hold of offsets that are damaged in one replica, and what is left (M4). Those between two files of
    another one are asked of all others first, and then are a part of what that one lends.
    """
    lent: list[OffsetSpan] = []
    left = [(first, end_offset)]
    alike = [(one, end) for one, end in every if one is not damaged and _is_alike(damaged, one, first, end_offset)]
    holes = [[(hole.first, hole.next_offset) for hole in one.holes] for one, _ in alike]
    missing = [_absent(one) for one, _ in alike]
    for (other, end), absent in zip([*alike, *alike], [*missing, *holes], strict=True):
        still: list[tuple[int, int]] = []
        for begin, until in left:
            at = begin
            for one in _sound_in(other, absent, begin, min(until, end)):
                lent.append(one)
                if at < one.begin:
                    still.append((at, one.begin))
                at = one.end
            if at < until:
                still.append((at, until))
        left = still
    return lent, left


def _is_alike(damaged: Replica, other: Replica, first: int, until: int) -> bool:
    """Whether another replica holds the same batch right before damage and right behind it; the one before is enough
    where the other one ends early, and no leader epoch began in the damage, whose records an older one lacks.
    """
    before = damaged.batch_at(first - 1) if first > damaged.start else None
    behind = damaged.batch_at(until)
    if before is not None and not _is_same_batch(before, other.batch_at(first - 1)):
        return False
    counterpart = other.batch_at(until)
    if behind is not None and counterpart is not None:
        return _is_same_batch(behind, counterpart)
    if before is None:
        return False
    return behind is None or before.header.partition_leader_epoch == behind.header.partition_leader_epoch


def _is_same_batch(one: RawBatch, other: RawBatch | None) -> bool:
    """Whether two replicas hold the same batch. A cleaner takes records out of one replica's before another's, and then
    its offsets, epochs and producer stay as they were.
    """
    if other is None or bytes(one.data) == bytes(other.data):
        return other is not None
    ours, theirs = one.header, other.header
    # A delete horizon stands in the base timestamp's place.
    has_horizon = (ours.attributes | theirs.attributes) & DELETE_HORIZON != 0
    is_same_time = has_horizon or ours.base_timestamp == theirs.base_timestamp
    return ours.count != theirs.count and is_same_time and _named(ours) == _named(theirs)


def _named(header: BatchHeader) -> tuple[int, ...]:
    """What a batch is known by, whatever a cleaner has left of it."""
    writer = header.producer_id, header.producer_epoch, header.base_sequence
    return header.magic, header.base_offset, header.last_offset, header.partition_leader_epoch, *writer


def _sound_in(other: Replica, absent: Iterable[tuple[int, int]], first: int, end_offset: int) -> Iterator[OffsetSpan]:
    """Stretches of a replica between two offsets, without what is `absent`, that end where its batches do."""
    at = max(first, other.start)
    inside = [one for one in absent if one[0] < end_offset and one[1] > first]
    for begin, until in (*inside, (end_offset, end_offset)):
        end = min(begin, end_offset)
        if at < end and _is_whole(other.batch_at(at), other.batch_at(end - 1), at, end):
            yield OffsetSpan(other, at, end)
        at = max(at, until)


def _is_whole(head: RawBatch | None, tail: RawBatch | None, first: int, until: int) -> bool:
    """Whether no batch reaches over either end of a stretch that begins and ends with these."""
    if head is None or tail is None or head.header.base_offset < first:
        return False
    return tail.header.next_offset <= until or tail.header.base_offset >= until


def _missing(lost: Iterable[Hole]) -> int:
    return sum(hole.next_offset - hole.first for hole in lost)


def _newest_epoch(replica: Replica) -> int:
    return max((epoch for epoch, _ in (*replica.history, *replica.epochs)), default=-1)


def _valid_end(replica: Replica, history: Sequence[tuple[int, int]]) -> int:
    """Where a newer epoch of the partition's history cuts a replica off (M1), or its own end. Behind the last batch of
    an epoch nothing is of that epoch: what is damaged or missing there may be of the next one.
    """
    runs, reaches = replica.epochs or [(-1, replica.start)], replica.reaches or [replica.end]
    # from the last entry to the first: the least offset of it and all that are newer
    least = [*accumulate((offset for _, offset in reversed(history)), min)][::-1]
    for number, (epoch, first) in enumerate(runs):
        until = reaches[number]
        above = bisect_right(history, epoch, key=lambda one: one[0])
        newer = least[above] if above < len(least) else until
        if newer < until:
            return max(newer, first if number else replica.start)
    return replica.end


def _lender(best: Replica, others: Iterable[tuple[Replica, int]]) -> Replica | None:
    """Who has the first records that the best replica lacks (M2): the one that has most of them."""
    seam = best.batch_at(best.start)
    found: Replica | None = None
    for other, end in others:
        if seam is None or not other.start < best.start < end:
            continue
        counterpart = other.batch_at(best.start)
        if (
            counterpart is None
            or bytes(counterpart.data) != bytes(seam.data)
            or counterpart.header.base_offset < best.start
        ):
            continue
        if found is None or other.start < found.start:
            found = other
    return found


def _turns(stretches: Sequence[OffsetSpan]) -> Iterator[Turn]:
    """Those of a log. What began before its start may go on behind that, and end there."""
    for number, stretch in enumerate(stretches):
        begin = stretch.begin if number else 0
        yield from (turn for turn in stretch.replica.turns if begin <= turn.offset < stretch.end)


def _doubts(stretches: Iterable[OffsetSpan], lost: Iterable[Hole]) -> tuple[int, ...]:
    """Where records begin to be missing that may have ended transactions (M3)."""
    gaps = (first for one in stretches if not one.replica.is_cleaned for first, _ in _gaps_in(one))
    return tuple(sorted({*gaps, *(hole.first for hole in lost if hole.may_end_transactions)}))


def _transactions(
    turns: Iterable[Turn], doubts: Iterable[int], end: int
) -> tuple[int, tuple[tuple[int, int, int], ...]]:
    """Where what is committed ends (M3), and the aborted transactions."""
    begun: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    doubtful, stable = deque(doubts), end
    for turn in (*turns, Turn(end, -1)):
        while doubtful and doubtful[0] <= turn.offset:
            doubtful.popleft()
            stable = min((stable, *begun.values()))
            begun.clear()
        if turn.offset == end:
            break
        if turn.aborted is None:
            begun.setdefault(turn.producer_id, turn.offset)
        elif (first := begun.pop(turn.producer_id, None)) is not None and turn.aborted:
            aborted.append((turn.producer_id, first, turn.offset))
    return min((stable, *begun.values())), tuple(aborted)


def _notes(best: Replica, valid: int, end: int) -> Iterator[str]:
    if valid < best.end:
        yield f"{best.folder}: offsets {valid} to {best.end - 1} are of an older leader epoch, and are left out"
    if best.damage and end == best.end:
        what = "the last batch was not written whole" if best.is_torn else "damaged"
        yield f"{best.folder}: {what} behind offset {best.end - 1}: {best.damage} ({best.beyond:,} bytes are left out)"


def _damage_note(hole: Hole) -> str:
    """What is to be said of damage that is left out, and all behind it is not."""
    if hole.first == hole.next_offset:
        return ""
    return f"offsets {hole.first} to {hole.next_offset - 1} are damaged, and are left out: {hole.detail}"


def _behind_note(best: Replica, hole: Hole) -> str:
    """What is to be said of damage at which the copy ends."""
    return (
        f"{best.folder}: damaged behind offset {hole.first - 1}: {hole.detail} ({hole.beyond:,} bytes are left out). "
        f"Sound batches follow from offset {hole.next_offset} on: --skip-damage leaves out offsets {hole.first} to "
        f"{hole.next_offset - 1} alone"
    )


def _open_note(stable: int, end: int, doubts: Iterable[int]) -> str:
    left_out = f"{end - stable:,} offsets are left out"
    if any(first > stable for first in doubts):
        text = "may have its end among what is damaged or missing"
        return f"a transaction that begins at offset {stable} {text}: {left_out}"
    return f"a transaction that begins at offset {stable} has no end: {left_out}"


def _gaps(stretch: OffsetSpan) -> Iterator[str]:
    """What is to be said of offsets between the files of a stretch."""
    for first, until in _gaps_in(stretch):
        text = f"offsets {first} to {until - 1} are in no file: compacted away, or a file is missing"
        yield f"{stretch.replica.folder}: {text}"


def _gaps_in(stretch: OffsetSpan) -> Iterator[tuple[int, int]]:
    gaps = stretch.replica.gaps
    yield from (one for one in gaps if stretch.begin < one[1] and one[0] < stretch.end)


def _lent_notes(log: _Composed, replicas: Iterable[Replica]) -> Iterator[str]:
    """What is to be said of stretches that are from another replica than the rest (M5)."""
    if not any(replica.is_cleaned for replica in replicas):
        return
    for lent in log.stretches:
        if lent.replica is not log.best and lent.begin < lent.end:
            text = f"offsets {lent.begin} to {lent.end - 1} are from there, and the rest from {log.best.folder}"
            why = "both were compacted, each for itself: keys that were deleted may have values again"
            yield f"{lent.replica.folder}: {text}; {why}. Name one of both alone to have it as it is"


def _deleted_note(other: Replica, begins: int) -> str:
    """What is to be said of a replica that has what was deleted in another one."""
    if other.start >= begins:
        return ""
    text = "were deleted, a broker's checkpoint says, and are left out"
    return f"{other.folder}: offsets {other.start} to {begins - 1} {text}"


def _doubted_notes(written: _WrittenStart, start: int, end: int) -> Iterator[str]:
    """What is to be said of what may have been deleted, and is restored (M6)."""
    if written.witness is not None and start < (until := min(written.doubted_until, end)):
        text = f"offsets {start} to {until - 1} were deleted there, its leader-epoch-checkpoint says"
        why = "nothing here says that all replicas had deleted them. Delete them on the target if they are to be gone"
        yield f"{written.witness.folder}: {text}, and are restored all the same: {why}"


def _unlike(other: Replica, valid: int) -> str:
    """What is to be said of a replica that was not taken."""
    if valid < other.end:
        return f"{other.folder}: offsets {valid} to {other.end - 1} are of an older leader epoch, and are left out"
    return ""
