"""A proof from its plan to its report: both logs of every partition, in ranges compared at the same time.

The ranges are cut once and their ends fixed; whoever compares them, tasks of this process or of Spark, runs `prove`.
A partition that cannot be read, for want of a leader say, is reported as `Unread`, and the others are compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

from mirror import clock
from mirror.errors import BrokerError, ClusterUnreachable, MalformedBatch, PartitionStop
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import fetch_below
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, list_offset, listed
from mirror.observability import logs
from mirror.policy.rules import NO_LIMIT
from mirror.records.header import RawBatch
from mirror.records.recipe import LARGEST_RECORD
from mirror.replication.observe import Observer
from mirror.replication.offset_map import OffsetRangeIndex
from mirror.replication.offset_map_recovery import complete
from mirror.replication.position import corrupt
from mirror.verify.compare import LogBounds, compare
from mirror.verify.ranges import (
    ProofPlan,
    Range,
    SavedProof,
    Share,
    Subject,
    begin_saved,
    cuts,
    holds,
    measured,
    resume_saved,
    shared_out,
)
from mirror.verify.reader import Reader
from mirror.verify.report import Pair, PartitionReport, Unread, joined, with_stray

# --- One partition that cannot be read must not end a proof of the others ---------------------------------------------

Answered = TypeVar("Answered")


async def or_unread(source: Cluster, target: Cluster, pair: Pair, doing: Awaitable[Answered]) -> Answered | Unread:
    """What comes of a question about a partition, or why it cannot be answered, as long as both clusters themselves
    answer. Raises ClusterUnreachable where one does not, and AccessDenied.
    """
    try:
        return await doing
    except (ClusterUnreachable, BrokerError) as problem:
        await asyncio.gather(source.refresh(), target.refresh())
        return Unread(pair, str(problem))


# --- The target's side of a partition whose offsets moved, in the source's offsets ------------------------------------

_UNCOMPRESSED: Final = 0


def moved_bounds(bounds: LogBounds, index: OffsetRangeIndex) -> LogBounds:
    """Bounds whose target's part is in its own offsets."""

    def source_of(target: int, otherwise: int) -> int:
        found = index.to_source(target)
        return otherwise if found is None else found

    last = index.last
    end = last.next_source if last is not None else bounds.source_start
    start = source_of(bounds.target_start, bounds.source_start if bounds.target_start else 0)
    if not bounds.target_start:
        # The copy deleted nothing. What the source has before its first record was passed over; what was lost behind
        # that is missing, wherever the source begins now.
        start = min(start, bounds.source_start)
    return replace(
        bounds,
        target_start=start,
        target_end=source_of(bounds.target_end, end),
        target_written=source_of(bounds.target_written, end),
    )


def moved_batches(raw: RawBatch, index: OffsetRangeIndex) -> Sequence[RawBatch]:
    """A batch of the target at the offsets where its records come from: several where it closes up over holes.

    Raises BadRecords for one of these that cannot be read.
    """
    header = raw.header
    first, last = index.to_source(header.base_offset), index.to_source(header.last_offset)
    if first is None or last is None or header.is_control:
        return (raw,)  # nobody knows where it comes from: as it is, it will be reported as too much
    if last - first == header.last_offset_delta:
        return (raw.at(first),)

    from mirror.records.rewrite import build, dense, read  # noqa: PLC0415 -- loads the compiler, and is seldom needed

    return tuple(build(run, _UNCOMPRESSED) for run in dense(read(raw, LARGEST_RECORD).relocated(index.to_source)))


# --- A proof from its plan to its report ------------------------------------------------------------------------------

#: Seconds between two questions about a target that is waited for.
WAIT_PAUSE: Final = 0.25
#: Ranges of an interrupted proof that are checked again at the same time.
CHECKS_AT_ONCE: Final = 16
_FAR: Final = 1 << 63
FETCH_BYTES: Final = 4 * 1024 * 1024
#: Of one log: where it begins, where it ends for a reader of committed records, and where it ends.
_Ends = tuple[int, int, int]
#: Shares under way in one process: enough for its one core to be busy while brokers answer.
SHARES_AT_ONCE: Final = 3


@dataclass(frozen=True, slots=True)
class Moves:
    """Where the offsets of a flow moved to, by target partition, as far as its journal says."""

    flow: str
    indexes: dict[TopicPartition, OffsetRangeIndex]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a flow beside its logs. By target partition: `since`, the source offset below which the flow
    mirrors nothing, if there is one; `losses`, the source's offsets, from and to before, whose loss was accepted.
    """

    moves: Moves | None = None
    since: Mapping[TopicPartition, int] = field(default_factory=dict)
    losses: Mapping[TopicPartition, tuple[tuple[int, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Waiting:
    """For how many seconds to wait for a mirror to copy what the source holds when the proof begins, and for which
    target partitions that is of use.
    """

    seconds: float
    partitions: Collection[TopicPartition]


#: Answered how many offsets were compared since it was last called, and how many there are in all.
Watch = Callable[[int, int], None]
#: What became of a range.
Found = PartitionReport | Unread
#: Compares a share, counting how many offsets it has read as it goes; what it found of each range, in their order.
Prover = Callable[[Share, Callable[[int], None]], Awaitable[Sequence[Found]]]


#: A report for each partition, and which ones were not verified to their end.
Proved = tuple[list[PartitionReport], tuple[Unread, ...]]


@dataclass(frozen=True, slots=True)
class Proof:
    """What is to be proved: the plan, where its clusters are, where offsets moved to and what is there from nobody
    knows where, by target partition; and which partitions cannot be read now.
    """

    plan: ProofPlan
    source: Endpoint
    target: Endpoint
    indexes: Mapping[TopicPartition, OffsetRangeIndex]
    strays: Mapping[Pair, PartitionStop]
    unread: tuple[Unread, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the source that are to be read, as estimated."""
        return sum(range_.size for range_ in self.plan.ranges)


async def plan_proof(
    source: Endpoint,
    target: Endpoint,
    pairs: Sequence[Pair],
    flow: str,
    known: Known = Known(),
    file: Path | None = None,
    waiting: Waiting = Waiting(0, ()),
) -> tuple[Proof, SavedProof | None]:
    """Fix the ends of every pair and cut it into ranges; or go on with the proof that `file` holds, of which those
    ranges count whose logs are still the ones that were compared. Every topic must exist.

    Raises ClusterUnreachable, AccessDenied, BrokerError, and ConfigError as `resume_saved` does.
    """
    ours, theirs = {pair.source.topic for pair in pairs}, {pair.target.topic for pair in pairs}
    async with Cluster(source) as one, Cluster(target) as other:
        await asyncio.gather(one.refresh(ours), other.refresh(theirs))
        subject = _subject(flow, one, other, pairs)
        former = resume_saved(file, subject) if file is not None else None
        if former is not None:
            await _keep_what_holds(former, one, other)
        planner = Planner(one, other, known, {left.pair: left for left in former.plan.unread} if former else {})
        planner.bounds = await planner.bounds_of([] if former else pairs)
        begun_ms = clock.now_ms()
        await planner.trace([pair for pair in pairs if pair not in planner.unread])
        await planner.wait(waiting)
        asked = [pair for pair in planner.bounds if pair not in planner.unread]
        found = await planner.each({pair: planner.cut(pair) for pair in asked})
    if former is not None:
        return Proof(former.plan, source, target, planner.indexes, planner.strays, (*planner.unread.values(),)), former
    ranges = tuple(replace(range_, number=number) for number, range_ in enumerate(chain.from_iterable(found.values())))
    plan = ProofPlan(subject, begun_ms, ranges, (*planner.unread.values(),))
    kept = begin_saved(file, plan) if file is not None else None
    return Proof(plan, source, target, planner.indexes, planner.strays, plan.unread), kept


@dataclass(slots=True)
class Planner:
    """Asks both clusters for what a plan needs. A partition that cannot be asked about costs no other one its proof."""

    source: Cluster
    target: Cluster
    known: Known
    #: Which partitions cannot be read, and why.
    unread: dict[Pair, Unread] = field(default_factory=dict)
    #: Both logs of each partition, as they were at the start.
    bounds: dict[Pair, LogBounds] = field(default_factory=dict)
    #: What the targets hold from nobody knows where.
    strays: dict[Pair, PartitionStop] = field(default_factory=dict)

    @property
    def indexes(self) -> dict[TopicPartition, OffsetRangeIndex]:
        """Return where offsets moved to, by target partition; nothing where they do not move."""
        return self.known.moves.indexes if self.known.moves else {}

    async def each(self, doing: Mapping[Pair, Awaitable[Answered]]) -> dict[Pair, Answered]:
        """Return what comes of a question about each partition, asked at one time; without those that are unread."""
        asked = (or_unread(self.source, self.target, pair, awaitable) for pair, awaitable in doing.items())
        found = dict(zip(doing, await asyncio.gather(*asked), strict=True))
        self.unread |= {pair: answer for pair, answer in found.items() if isinstance(answer, Unread)}
        return {pair: answer for pair, answer in found.items() if not isinstance(answer, Unread)}

    async def bounds_of(self, pairs: Iterable[Pair]) -> dict[Pair, LogBounds]:
        """Starts and ends of now, the target's first (V1). A source begins where the flow began in it."""
        theirs = await self.each({pair: _ends_of(self.target, pair.target) for pair in pairs})
        ours = await self.each({pair: _ends_of(self.source, pair.source) for pair in theirs})
        bounds: dict[Pair, LogBounds] = {}
        for pair, (start, end, written) in ours.items():
            since = self.known.since.get(pair.target, 0)
            left_out_from = start if start < min(since, end) else -1
            begin = max(start, since)
            bounds[pair] = LogBounds(begin, end, *theirs[pair], source_written=written, left_out_from=left_out_from)
        return bounds

    async def trace(self, pairs: Collection[Pair]) -> None:
        """Find out, where offsets move, where all that the targets hold is from, and what is from nowhere."""
        if self.known.moves:
            found = await self.each({pair: self._catch_up(self.known.moves, pair) for pair in pairs})
            for pair in pairs:
                self.strays.pop(pair, None)
            self.strays |= {pair: stop for pair, stop in found.items() if stop is not None}

    async def _catch_up(self, moves: Moves, pair: Pair) -> PartitionStop | None:
        """Find out where everything on the target is from; what is from nowhere, as a mirror would report it."""
        index = moves.indexes.setdefault(pair.target, OffsetRangeIndex())
        since, losses = self.known.since.get(pair.target, 0), self.known.losses.get(pair.target, ())
        try:
            sides = moves.flow, self.source, pair.source, self.target, pair.target
            await complete(index, Observer(*sides, (0, NO_LIMIT), since, losses=losses))
        except PartitionStop as stop:
            return stop
        except MalformedBatch as damage:
            return corrupt(damage, self.target, pair.source, pair.target.topic)
        return None

    async def wait(self, waiting: Waiting) -> None:
        """Until the targets have got to where the sources ended at first, or the time is over."""
        first = {pair: at.until for pair, at in self.bounds.items()}
        until = clock.monotonic() + waiting.seconds

        def is_behind(pair: Pair) -> bool:
            index, at = self.indexes.get(pair.target), self.bounds[pair]
            return pair not in self.unread and (moved_bounds(at, index) if index is not None else at).lag > 0

        behind = [pair for pair in self.bounds if pair.target in waiting.partitions and is_behind(pair)]
        while behind and clock.monotonic() < until:
            await asyncio.sleep(WAIT_PAUSE)
            found = await self.bounds_of(behind)
            self.bounds |= {pair: replace(at, wanted=first[pair]) for pair, at in found.items()}
            await self.trace(found)
            behind = [pair for pair in behind if is_behind(pair)]

    async def cut(self, pair: Pair) -> list[Range]:
        """The ranges of one partition, not numbered yet."""
        at, index = self.bounds[pair], self.indexes.get(pair.target)
        target_end = at.target_end
        if index is not None:
            at, target_end = moved_bounds(at, index), min(target_end, index.end)
        size = await measured(self.source, pair.source, at.begin, at.end)
        edges = await cuts(self.source, pair.source, at.begin, at.end, size)
        there = [*(edge if index is None else index.to_target(edge) for edge in edges[:-1]), target_end]
        share = size // (len(edges) - 1)
        ranges = []
        for (begin, end), on_target in zip(pairwise(edges), pairwise(there), strict=True):
            lost = tuple(loss for loss in self.known.losses.get(pair.target, ()) if loss[0] < end and loss[1] > begin)
            ranges.append(Range(0, pair, at.within(begin, end), *on_target, share, lost))
        return ranges


async def _ends_of(cluster: Cluster, partition: TopicPartition) -> _Ends:
    start, written = await asyncio.gather(
        list_offset(cluster, partition, EARLIEST), list_offset(cluster, partition, LATEST)
    )
    stable = await list_offset(cluster, partition, LATEST, READ_COMMITTED)  # after: what grew is no transaction
    # a transaction that is open may have begun below where the log starts by now
    return start, max(start, stable), max(stable, written)


async def _keep_what_holds(former: SavedProof, source: Cluster, target: Cluster) -> None:
    """Forget finished ranges of which either log is not the one any more that was compared: its last batch read there
    is another one, or of another leader epoch, or the log begins later by now.
    """
    ranges = {range_.number: range_ for range_ in former.plan.ranges if range_.number in former.finished}
    if not ranges:
        return
    here, there = {range_.pair.source for range_ in ranges.values()}, {range_.pair.target for range_ in ranges.values()}
    begins, target_begins = await asyncio.gather(listed(source, here, EARLIEST), listed(target, there, EARLIEST))
    turns = asyncio.Semaphore(CHECKS_AT_ONCE)

    async def is_same(range_: Range) -> bool:
        report = former.finished[range_.number]
        ours, theirs = report.source_mark, report.target_mark
        if ours is None or theirs is None:
            return False
        if begins.get(range_.pair.source, _FAR) > range_.bounds.begin:
            return False
        if target_begins.get(range_.pair.target, _FAR) > range_.target_begin:
            return False
        async with turns:
            try:
                both = holds(source, range_.pair.source, ours), holds(target, range_.pair.target, theirs)
                return all(await asyncio.gather(*both))
            except (BrokerError, ClusterUnreachable):
                return False  # the comparison will show it

    same = await asyncio.gather(*(is_same(range_) for range_ in ranges.values()))
    changed = [range_ for range_, holds_good in zip(ranges.values(), same, strict=True) if not holds_good]
    for one in changed:
        del former.finished[one.number]
    if changed:
        topics = sorted({str(range_.pair.source) for range_ in changed})
        log = logs.get("mirror.verify")
        log.warning("ranges_compared_again", ranges=len(changed), partitions=topics[:10], reason="a log changed since")


async def run_proof(
    proof: Proof, prover: Prover, at_once: int, kept: SavedProof | None = None, watch: Watch | None = None
) -> Proved:
    """Compare all that is not finished, `at_once` shares at a time; a report for each partition, in the plan's order,
    and which ones were not verified to their end. What differs in such a one is reported all the same.

    Raises as `prover` does; what was finished before that is kept.
    """
    finished = dict(kept.finished) if kept else {}
    unread = {one.pair: one for one in proof.unread}
    total = sum(range_.offsets for range_ in proof.plan.ranges)

    def read(offsets: int) -> None:
        if watch:
            watch(offsets, total)

    read(sum(range_.offsets for range_ in proof.plan.ranges if range_.number in finished))
    left = [one for one in proof.plan.ranges if one.number not in finished and one.pair not in unread]
    together = list(shared_out(left))
    shares = iter([_share(proof, ranges, min(at_once, len(together))) for ranges in together])

    async def work() -> None:
        for share in shares:
            for range_, found in zip(share.ranges, await prover(share, read), strict=True):
                if isinstance(found, Unread):
                    unread[range_.pair] = found
                    continue
                finished[range_.number] = found
                if kept:
                    kept.add(range_.number, found)

    workers = [asyncio.create_task(work()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
    reports = _by_partition(proof, finished)
    whole = [report for report in reports if report.different or report.pair not in unread]
    return whole, tuple(unread[pair] for pair in sorted(unread, key=lambda pair: pair.source))


async def prove(share: Share, read: Callable[[int], None]) -> list[Found]:
    """Compare the ranges of one share, over connections of its own: a broker serves one request of a connection at a
    time. A `Prover`.

    Raises ClusterUnreachable where a whole cluster is away, and AccessDenied.
    """
    async with Cluster(share.source) as one, Cluster(share.target) as other:
        await asyncio.gather(
            one.refresh({part.pair.source.topic for part in share.ranges}),
            other.refresh({part.pair.target.topic for part in share.ranges}),
        )
        return [
            await or_unread(
                one, other, range_.pair, _compare(one, other, range_, share.indexes.get(range_.pair.target), read)
            )
            for range_ in share.ranges
        ]


async def _compare(
    source: Cluster, target: Cluster, part: Range, index: OffsetRangeIndex | None, read: Callable[[int], None]
) -> PartitionReport:
    pair, at = part.pair, part.bounds
    moved = partial(moved_batches, index=index) if index is not None else None
    left = _reader(source, pair.source, at.begin, at.end, on_read=read, losses=part.losses)
    right = _reader(target, pair.target, part.target_begin, part.target_end, moved=moved)
    return await compare(pair, at, left, right, part.losses)


def _reader(cluster: Cluster, partition: TopicPartition, begin: int, end: int, **more: Any) -> Reader:
    given: Any = {"end": end, "max_bytes": FETCH_BYTES, "isolation": READ_COMMITTED, "may_be_open": True}
    fetch = partial(fetch_below, cluster, partition, **given)
    return Reader(fetch, begin, end, partial(list_offset, cluster, partition, EARLIEST), **more)


def _share(proof: Proof, ranges: tuple[Range, ...], at_once: int) -> Share:
    """One of `at_once` that share the bound on bytes per second."""
    targets = {range_.pair.target for range_ in ranges}
    moved = {partition: index for partition, index in proof.indexes.items() if partition in targets}
    source, target = (endpoint.bounded(endpoint.bytes_per_second, at_once) for endpoint in (proof.source, proof.target))
    return Share(source, target, ranges, moved)


def _by_partition(proof: Proof, finished: Mapping[int, PartitionReport]) -> list[PartitionReport]:
    parts: dict[Pair, list[PartitionReport]] = {}
    for range_ in proof.plan.ranges:
        if range_.number in finished:
            parts.setdefault(range_.pair, []).append(finished[range_.number])
    reports = {pair: joined(of_pair) for pair, of_pair in parts.items()}
    return [
        with_stray(report, proof.strays[pair]) if pair in proof.strays else report for pair, report in reports.items()
    ]


def _subject(flow: str, source: Cluster, target: Cluster, pairs: Sequence[Pair]) -> Subject:
    partitions: dict[tuple[str, str], int] = {}
    for pair in pairs:
        names = pair.source.topic, pair.target.topic
        partitions[names] = partitions.get(names, 0) + 1
    topics = tuple(
        (name, str(source.topic_id(name)), other, str(target.topic_id(other)), many)
        for (name, other), many in partitions.items()
    )
    return Subject(flow, source.cluster_id or "", target.cluster_id or "", topics)
