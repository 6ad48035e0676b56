"""Ranges of partitions, about equal in bytes, and the file in which an interrupted proof is kept.

A partition is cut behind batches of its source, found by one small fetch for each cut, so that each batch of the source
lies in one range alone. A batch of the target may lie across a cut, where the mirror joined batches: of that, either
range compares the records that are its own.

The first line is the proof's plan, each further line a range that is finished, with its report and so its digests. A
line that was cut short, because the process died while it was written, counts as not written. Whatever the file is
about must be what is to be proved: another flow, clusters or topics are refused, and so is a topic made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from pydantic import TypeAdapter, ValidationError

from mirror.errors import BrokerError, ConfigError, MalformedBatch
from mirror.kafka.cluster import OFFSET_OUT_OF_RANGE, Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import fetch_at
from mirror.records.header import RawBatch, split
from mirror.replication.offset_map import OffsetRangeIndex
from mirror.verify.compare import LogBounds
from mirror.verify.report import Mark, Pair, PartitionReport, Unread

# --- Ranges of partitions ---------------------------------------------------------------------------------------------

#: Bytes of the source in one range, as estimated: half a second's reading, and what an interrupted proof repeats.
RANGE_BYTES: Final = 128 << 20
#: Ranges of small partitions that are read one after the other, over the same connections.
MOST_IN_A_SHARE: Final = 64
_SAMPLE_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Range:
    """Part of one partition, `number` counts within its proof. `bounds` are in offsets of the source; the target is
    read from `target_begin` to before `target_end`, in its own. `size` is the source's bytes, as estimated. `losses`
    are the source's offsets, from and to before, whose loss was accepted.
    """

    number: int
    pair: Pair
    bounds: LogBounds
    target_begin: int
    target_end: int
    size: int
    losses: tuple[tuple[int, int], ...] = ()

    @property
    def offsets(self) -> int:
        """How many are compared."""
        return self.bounds.end - self.bounds.begin


@dataclass(frozen=True, slots=True)
class Share:
    """Ranges that one task compares, and all that it needs for that: it is pickled. `indexes` are those of its
    partitions whose offsets moved, by target.
    """

    source: Endpoint
    target: Endpoint
    ranges: tuple[Range, ...]
    indexes: Mapping[TopicPartition, OffsetRangeIndex] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        """How many are compared."""
        return sum(range_.offsets for range_ in self.ranges)


def shared_out(ranges: Iterable[Range]) -> Iterator[tuple[Range, ...]]:
    """The largest first, small ones together."""
    together: list[Range] = []
    size = 0
    for one in sorted(ranges, key=lambda range_: (-range_.size, range_.number)):
        if together and (size + one.size > RANGE_BYTES or len(together) == MOST_IN_A_SHARE):
            yield tuple(together)
            together, size = [], 0
        together.append(one)
        size += one.size
    if together:
        yield tuple(together)


async def measured(source: Cluster, partition: TopicPartition, begin: int, end: int) -> int:
    """About how many bytes lie between two offsets, by a sample from their middle; 0 where nothing comes back.

    Raises as `fetch_at` does.
    """
    sample = await _batches_at(source, partition, begin + (end - begin) // 2, _SAMPLE_BYTES) if end > begin else []
    if not sample:
        return 0
    offsets = sample[-1].header.next_offset - sample[0].header.base_offset
    return (end - begin) * sum(raw.header.size for raw in sample) // max(1, offsets)


async def cuts(source: Cluster, partition: TopicPartition, begin: int, end: int, size: int) -> list[int]:
    """Offsets, `begin` and `end` among them, between which lie ranges of about `RANGE_BYTES`, where `size` bytes lie
    there in all. Raises as `fetch_at` does.
    """
    pieces = max(1, -(-size // RANGE_BYTES))
    wanted = [begin + (end - begin) * piece // pieces for piece in range(1, pieces)]
    found = await asyncio.gather(*(_behind(source, partition, offset) for offset in wanted))
    return [begin, *sorted({cut for cut in found if begin < cut < end}), end]


async def holds(cluster: Cluster, partition: TopicPartition, mark: Mark) -> bool:
    """Whether a log still has the batch that was read there, of the same leader epoch. Raises as `fetch_at` does."""
    found = next(iter(await _batches_at(cluster, partition, mark.offset, 1)), None)
    if found is None:
        return False
    header = found.header
    return Mark(header.base_offset, header.crc, header.partition_leader_epoch) == mark


async def _behind(source: Cluster, partition: TopicPartition, offset: int) -> int:
    """The offset behind the batch that holds `offset`, or is the next; 0 where there is none."""
    found = await _batches_at(source, partition, offset, 1)
    return next((raw.header.next_offset for raw in found if raw.header.last_offset >= offset), 0)


async def _batches_at(cluster: Cluster, partition: TopicPartition, offset: int, size: int) -> Sequence[RawBatch]:
    """Nothing where the log begins later by now, or holds what is no batch: the comparison will show it."""
    try:
        return list(split((await fetch_at(cluster, partition, offset, max_bytes=size)).records))
    except MalformedBatch:
        return []
    except BrokerError as problem:
        if problem.code != OFFSET_OUT_OF_RANGE:
            raise
        return []


# --- What a proof has done so far, in a file --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subject:
    """What a proof is about: the flow, both clusters' ids, and of every topic pair the names, ids and partitions."""

    flow: str
    source_id: str
    target_id: str
    topics: tuple[tuple[str, str, str, str, int], ...]


@dataclass(frozen=True, slots=True)
class ProofPlan:
    """A proof as it was begun, at `begun_ms` (Unix time): its ends are fixed, but for partitions that were `unread`."""

    subject: Subject
    begun_ms: int
    ranges: tuple[Range, ...]
    unread: tuple[Unread, ...] = ()


_PLAN: Final = TypeAdapter(ProofPlan)
#: A range by its number, and what was found.
_FINISHED: Final = TypeAdapter(tuple[int, PartitionReport])


@dataclass(slots=True)
class SavedProof:
    """A proof's file, open for what is finished next. `finished` is what it held: `resumed` ranges."""

    path: Path
    plan: ProofPlan
    finished: dict[int, PartitionReport] = field(default_factory=dict)
    _file: IO[bytes] | None = None

    @property
    def resumed(self) -> int:
        """How many ranges were finished by the run that was interrupted."""
        return len(self.finished)

    def add(self, number: int, report: PartitionReport) -> None:
        """One more range is finished. Raises ConfigError where that cannot be written."""
        self._write(_FINISHED.dump_json((number, report)))

    def close(self) -> None:
        """Close the file, which stays: whoever has the report safe removes it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: bytes) -> None:
        try:
            if self._file is None:
                self._file = self.path.open("ab")
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as problem:
            with contextlib.suppress(OSError):  # it would flush what could not be written, and fail of it again
                self.close()
            raise ConfigError(f"{self.path}: {problem.strerror}: the proof cannot be kept there") from problem


def begin_saved(path: Path, plan: ProofPlan) -> SavedProof:
    """A new file for a new proof. Raises ConfigError where it cannot be written."""
    saved = SavedProof(path, plan)
    saved._write(_PLAN.dump_json(plan))
    return saved


def resume_saved(path: Path, subject: Subject) -> SavedProof | None:
    """The proof that was interrupted, or None where there is no such file, or not even the plan in it.

    Raises ConfigError for a file that is none of these, or about something else.
    """
    try:
        *lines, torn = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from problem
    if not lines and (not torn or torn.startswith(b'{"subject":')):
        path.unlink()
        return None
    try:
        plan = _PLAN.validate_json(lines[0] if lines else torn)
        finished = dict(map(_FINISHED.validate_json, lines[1:]))
    except ValidationError as problem:
        raise ConfigError(f"{path} is no unfinished proof of this version: name another file") from problem
    if plan.subject != subject:
        raise ConfigError(
            f"{path} is the unfinished proof of {_difference(plan.subject, subject)}: name another file, or remove it"
        )
    if torn:
        os.truncate(path, path.stat().st_size - len(torn))
    return SavedProof(path, plan, finished)


def _difference(recorded: Subject, wanted: Subject) -> str:
    if recorded.flow != wanted.flow:
        return f"flow {recorded.flow}, not {wanted.flow}"
    if (recorded.source_id, recorded.target_id) != (wanted.source_id, wanted.target_id):
        return "other clusters"
    others = sorted({topic[0] for topic in set(recorded.topics) ^ set(wanted.topics)})
    return f"other topics, or others by their ids ({', '.join(others[:3])})"
