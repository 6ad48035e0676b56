"""Ranges of partitions: what is read apart, about equal in bytes, so that one huge partition is spread like many.

A partition is cut behind batches of its source, found by one small fetch for each cut, so that each batch of the source
lies in one range alone. A batch of the target may lie across a cut, where the mirror joined batches: of that, either
range compares the records that are its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mirror.batch.header import RawBatch, split
from mirror.errors import BrokerError, MalformedBatch
from mirror.policy.runs import RunIndex
from mirror.verify.compare import Bounds
from mirror.verify.report import Mark, Pair
from mirror.wire.cluster import OFFSET_OUT_OF_RANGE, Cluster, Endpoint, TopicPartition
from mirror.wire.fetch import fetch_at

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
    bounds: Bounds
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
    indexes: Mapping[TopicPartition, RunIndex] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        """How many are compared."""
        return sum(one.offsets for one in self.ranges)


def shared_out(ranges: Iterable[Range]) -> Iterator[tuple[Range, ...]]:
    """The largest first, small ones together."""
    together: list[Range] = []
    size = 0
    for one in sorted(ranges, key=lambda each: (-each.size, each.number)):
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
    return (end - begin) * sum(one.header.size for one in sample) // max(1, offsets)


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
    return next((one.header.next_offset for one in found if one.header.last_offset >= offset), 0)


async def _batches_at(cluster: Cluster, partition: TopicPartition, offset: int, size: int) -> Sequence[RawBatch]:
    """Nothing where the log begins later by now, or holds what is no batch: the comparison will tell."""
    try:
        return list(split((await fetch_at(cluster, partition, offset, max_bytes=size)).records))
    except MalformedBatch:
        return []
    except BrokerError as problem:
        if problem.code != OFFSET_OUT_OF_RANGE:
            raise
        return []
