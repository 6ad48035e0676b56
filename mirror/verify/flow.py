"""All partitions of a flow, a few at a time, over connections of their own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from mirror.errors import PartitionStop
from mirror.policy.runs import RunIndex
from mirror.retracing import complete
from mirror.verify.compare import Bounds, compare
from mirror.verify.moved import moved_batches, moved_bounds
from mirror.verify.reader import Answer, Fetch, Reader
from mirror.verify.report import Pair, PartitionReport, with_stray
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition
from mirror.wire.fetch import fetch_at
from mirror.wire.queries import EARLIEST, LATEST, READ_COMMITTED, list_offset

FETCH_BYTES: Final = 4 * 1024 * 1024
PARTITIONS_AT_ONCE: Final = 3


@dataclass(frozen=True, slots=True)
class Moves:
    """Where the offsets of a flow moved to, by target partition, as far as its journal tells."""

    flow: str
    indexes: dict[TopicPartition, RunIndex]


#: Told how many offsets were compared since it was last called, and how many there are in all.
Watch = Callable[[int, int], None]


async def verify_partitions(
    source: Endpoint,
    target: Endpoint,
    pairs: Sequence[Pair],
    watch: Watch | None = None,
    moves: Moves | None = None,
) -> list[PartitionReport]:
    """A report for each pair, in their order. Every topic must exist. `moves`: where offsets moved to.

    Raises ClusterUnreachable, AccessDenied, BrokerError.
    """
    if not pairs:
        return []
    ours, theirs = {pair.source.topic for pair in pairs}, {pair.target.topic for pair in pairs}
    async with Cluster(source) as one, Cluster(target) as other:
        await asyncio.gather(one.refresh(ours), other.refresh(theirs))
        bounds = await bounds_of(one, other, pairs)
        stops = await asyncio.gather(*(_catch_up(moves, one, other, pair) for pair in pairs)) if moves else ()
        strays = {pair: stop for pair, stop in zip(pairs, stops, strict=False) if stop is not None}
    total = sum(b.end - b.begin for b in bounds)
    reports: dict[Pair, PartitionReport] = {}
    waiting = deque(sorted(zip(pairs, bounds, strict=True), key=lambda each: each[1].begin - each[1].end))

    def read(offsets: int) -> None:
        if watch:
            watch(offsets, total)

    async def work() -> None:
        # connections of its own: a broker serves one request of a connection at a time
        async with Cluster(source) as one, Cluster(target) as other:
            await asyncio.gather(one.refresh(ours), other.refresh(theirs))
            while waiting:
                pair, at = waiting.popleft()
                begin, end, moved = at.begin, at.target_end, None
                if moves:
                    index = moves.indexes[pair.target]
                    at, moved = moved_bounds(at, index), partial(moved_batches, index=index)
                    begin, end = index.to_target(at.begin), min(end, index.end)
                left = Reader(_fetch_from(one, pair.source), at.begin, at.end, _start_of(one, pair.source), read)
                there = _fetch_from(other, pair.target), begin, end, _start_of(other, pair.target)
                report = await compare(pair, at, left, Reader(*there, moved=moved))
                reports[pair] = with_stray(report, strays[pair]) if pair in strays else report

    workers = [asyncio.create_task(work()) for _ in range(min(PARTITIONS_AT_ONCE, len(pairs)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
    return [reports[pair] for pair in pairs]


async def _catch_up(moves: Moves, source: Cluster, target: Cluster, pair: Pair) -> PartitionStop | None:
    """Find out where everything on the target is from; what it has that is from nowhere, as a mirror would tell it."""
    index = moves.indexes.setdefault(pair.target, RunIndex())
    try:
        await complete(index, moves.flow, source, pair.source, target, pair.target)
    except PartitionStop as stop:
        return stop
    return None


async def bounds_of(source: Cluster, target: Cluster, pairs: Sequence[Pair]) -> list[Bounds]:
    """Starts and ends of now, the target's first (V1)."""

    async def of(cluster: Cluster, partition: TopicPartition) -> tuple[int, int, int]:
        return await asyncio.gather(
            list_offset(cluster, partition, EARLIEST),
            list_offset(cluster, partition, LATEST, READ_COMMITTED),
            list_offset(cluster, partition, LATEST),
        )

    theirs = await asyncio.gather(*(of(target, pair.target) for pair in pairs))
    ours = await asyncio.gather(*(of(source, pair.source) for pair in pairs))
    return [Bounds(start, end, *there) for (start, end, _), there in zip(ours, theirs, strict=True)]


def _fetch_from(cluster: Cluster, partition: TopicPartition) -> Fetch:
    async def fetch(offset: int) -> Answer:
        found = await fetch_at(cluster, partition, offset, max_bytes=FETCH_BYTES, isolation=READ_COMMITTED)
        return Answer(found.records, found.aborted)

    return fetch


def _start_of(cluster: Cluster, partition: TopicPartition) -> Callable[[], Awaitable[int]]:
    return lambda: list_offset(cluster, partition, EARLIEST)
