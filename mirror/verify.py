"""Proof of equality: both logs of every partition, batch by batch, as the brokers stored them.

Offsets, counts, timestamps, codec and the records section (length and CRC-32C) must be the same on both sides, and every
stored CRC must hold. Nothing is decompressed, so a gigabyte costs seconds.

    V1  ends are fixed before the first batch is read, the target's before the source's: a live mirror makes no difference
    V2  what the source holds beyond the target's end is lag; whatever else is on one side only is a difference, except
        what the source's retention deleted, which is told in a note
    V3  memory is bounded: for each partition under way, one fetch answer of each side and the next one on its way
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from struct import Struct
from typing import Any, Final

from mirror.batch.checksum import crc_holds, records_crc
from mirror.batch.header import APPEND_TIME, CODECS, CONTROL, RawBatch, split
from mirror.errors import BrokerError, MalformedBatch
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition
from mirror.wire.fetch import fetch_at
from mirror.wire.queries import EARLIEST, LATEST, READ_COMMITTED, list_offset

#: Differences kept of each partition; all are counted.
KEPT: Final = 100
FETCH_BYTES: Final = 4 * 1024 * 1024
PARTITIONS_AT_ONCE: Final = 3
_OFFSET_OUT_OF_RANGE: Final = 1
_BEYOND: Final = 1 << 63
#: What the digest covers of each batch besides the CRC of its records; timestamps of arrival may differ and are left out.
_DIGESTED: Final = Struct(">qiiqBI")

#: Told how many offsets were compared since it was last called, and how many there are in all.
Watch = Callable[[int, int], None]
#: Reads a record set from an offset on. Raises BrokerError 1 where the offset is out of range.
Fetch = Callable[[int], Coroutine[Any, Any, memoryview]]


class Kind(StrEnum):
    """In what two partitions differ."""

    TOPIC = "topic"
    MISSING = "missing"
    EXTRA = "extra"
    DELETED = "deleted"
    BATCHING = "batching"
    MAGIC = "magic"
    COUNT = "count"
    BASE_TIMESTAMP = "base timestamp"
    MAX_TIMESTAMP = "max timestamp"
    CODEC = "codec"
    RECORDS = "records"
    STORED_CRC = "stored CRC"
    UNREADABLE = "unreadable"
    OPEN_TRANSACTION = "open transaction"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference; `topic` is the source's name, `partition` and `offset` are -1 where it is about more than one.

    `source` and `target` say what is there, and are empty where there is nothing to say.
    """

    topic: str
    partition: int
    offset: int
    kind: Kind
    source: str
    target: str

    def __str__(self) -> str:
        where = self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"
        at = f" at offset {self.offset}" if self.offset >= 0 else ""
        sides = [f"{text} on the {side}" for text, side in ((self.source, "source"), (self.target, "target")) if text]
        return f"{where}{at}: {self.kind}: {', '.join(sides)}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A partition and its copy."""

    source: TopicPartition
    target: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """What was compared of one partition: the offsets from `begin` to before `end`.

    `batches`, `records`, `bytes` and `codecs` are the source's. `identical` counts the batches that are the same in all
    respects. `different` counts all differences, `differences` holds the first of them. `lag` is in records.
    """

    pair: Pair
    begin: int
    end: int
    batches: int
    records: int
    bytes: int
    codecs: tuple[str, ...]
    identical: int
    offsets_equal: bool
    lag: int
    source_digest: str
    target_digest: str
    different: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both logs as they were at the start. `source_end` is the last stable offset; so is `target_end`, and
    `target_written` is the target's high watermark, larger only while somebody has a transaction open there."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int
    target_written: int

    @property
    def begin(self) -> int:
        """Where both logs begin."""
        return max(self.source_start, self.target_start)

    @property
    def end(self) -> int:
        """Where both logs end."""
        return max(self.begin, min(self.source_end, self.target_end))

    @property
    def lag(self) -> int:
        """Offsets that the source holds beyond the target's end."""
        return max(0, self.source_end - max(self.target_written, self.source_start))


async def verify_partitions(
    source: Endpoint, target: Endpoint, pairs: Sequence[Pair], watch: Watch | None = None
) -> list[PartitionReport]:
    """A report for each pair, in their order. Every topic must exist.

    Raises ClusterUnreachable, AccessDenied, BrokerError.
    """
    if not pairs:
        return []
    ours, theirs = {pair.source.topic for pair in pairs}, {pair.target.topic for pair in pairs}
    async with Cluster(source) as one, Cluster(target) as other:
        await asyncio.gather(one.refresh(ours), other.refresh(theirs))
        bounds = await bounds_of(one, other, pairs)
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
                left = Reader(_fetch_from(one, pair.source), at.begin, at.end, _start_of(one, pair.source), read)
                right = Reader(_fetch_from(other, pair.target), at.begin, at.target_end, _start_of(other, pair.target))
                reports[pair] = await compare(pair, at, left, right)

    workers = [asyncio.create_task(work()) for _ in range(min(PARTITIONS_AT_ONCE, len(pairs)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
    return [reports[pair] for pair in pairs]


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
    async def fetch(offset: int) -> memoryview:
        return (await fetch_at(cluster, partition, offset, max_bytes=FETCH_BYTES)).records

    return fetch


def _start_of(cluster: Cluster, partition: TopicPartition) -> Callable[[], Awaitable[int]]:
    return lambda: list_offset(cluster, partition, EARLIEST)


class Reader:
    """One side of a partition: its batches from `begin` to before `end`, the next fetch under way while these are compared.

    `head` is the batch at hand, None at the end. `start` is where the log began when that was last looked at. `damage`
    says why the log could not be read to its end.
    """

    def __init__(
        self,
        fetch: Fetch,
        begin: int,
        end: int,
        log_start: Callable[[], Awaitable[int]],
        on_read: Callable[[int], None] | None = None,
    ) -> None:
        self.head: RawBatch | None = None
        self.start = begin
        self.damage = ""
        self._fetch, self._log_start, self._on_read = fetch, log_start, on_read
        self._at, self._end = begin, end
        self._ready: deque[RawBatch] = deque()
        self._fetching: asyncio.Task[memoryview] | None = None
        self._ask()

    async def advance(self) -> None:
        """Put the next batch at hand. Raises as a fetch does."""
        while not self._ready and self._fetching is not None:
            await self._receive(self._fetching)
        self.head = self._ready.popleft() if self._ready else None

    async def close(self) -> None:
        """Abandon the fetch under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _ask(self) -> None:
        more = self._at < self._end and not self.damage
        self._fetching = asyncio.create_task(self._fetch(self._at)) if more else None

    async def _receive(self, fetching: asyncio.Task[memoryview]) -> None:
        before = self._at
        try:
            records = await fetching
        except BrokerError as problem:
            if problem.code != _OFFSET_OUT_OF_RANGE:
                raise
            self.start = self._at = max(self._at, await self._log_start())
            if self._at == before:  # not deleted but cut back: the rest is gone, which the comparison will tell
                self._at = self._end
        else:
            try:
                for raw in split(records):
                    if raw.header.base_offset < self._end and last_offset(raw) >= before:
                        self._ready.append(raw)
                    self._at = max(self._at, last_offset(raw) + 1)
            except MalformedBatch as problem:
                self.damage = str(problem)
            if self._at == before:
                self._at = self._end
        if self._on_read:
            self._on_read(min(self._at, self._end) - before)
        self._ask()


def last_offset(raw: RawBatch) -> int:
    """The batch's last offset, of any magic: before 2, the wrapper has its last record's."""
    return max(raw.header.base_offset, raw.header.last_offset)


def codec_name(raw: RawBatch) -> str:
    """The codec as Kafka's settings spell it."""
    codec = raw.header.codec
    return CODECS[codec] if codec < len(CODECS) else f"codec {codec}"


async def compare(pair: Pair, bounds: Bounds, source: Reader, target: Reader) -> PartitionReport:
    """Walk both sides of one partition in lockstep. Raises as a fetch does."""
    comparison = _Comparison(pair, bounds, source, target)
    try:
        await comparison.run()
    finally:
        await asyncio.gather(source.close(), target.close())
    return comparison.report()


@dataclass(slots=True)
class _Side:
    """What was read of one side so far, and what belongs to the stretch being compared."""

    reader: Reader
    batches: int = 0
    records: int = 0
    bytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    first: RawBatch | None = None
    taken: int = 0
    taken_records: int = 0
    taken_until: int = -1

    @property
    def base(self) -> int:
        """Offset of the batch at hand, beyond all others where there is none."""
        return self.reader.head.header.base_offset if self.reader.head else _BEYOND

    @property
    def is_stuck(self) -> bool:
        """The log goes on, and cannot be read."""
        return self.reader.head is None and bool(self.reader.damage)

    def begin(self) -> None:
        """Begin a stretch."""
        self.first, self.taken, self.taken_records = None, 0, 0

    async def take(self) -> RawBatch:
        """Count the batch at hand into the stretch, and go to the next."""
        raw = self.reader.head
        assert raw is not None
        header = raw.header
        records = max(0, header.count)
        self.first = self.first or raw
        self.taken += 1
        self.taken_records += records
        self.taken_until = last_offset(raw)
        self.batches += 1
        self.records += records
        self.bytes += header.size
        digested = (header.base_offset, header.last_offset_delta, header.count, header.base_timestamp, header.codec)
        self.digest.update(_DIGESTED.pack(*digested, records_crc(raw)))
        await self.reader.advance()
        return raw

    def __str__(self) -> str:
        """What the stretch holds."""
        if self.first is None:
            return "nothing"
        if self.taken == 1 and self.first.header.attributes & CONTROL:
            return "a control marker"
        batches = "1 batch" if self.taken == 1 else f"{self.taken} batches"
        records = "1 record" if self.taken_records == 1 else f"{self.taken_records} records"
        return f"{batches} with {records} up to offset {self.taken_until}"


class _Comparison:
    """The walk over one partition."""

    def __init__(self, pair: Pair, bounds: Bounds, source: Reader, target: Reader) -> None:
        self._pair, self._bounds = pair, bounds
        self._source, self._target = _Side(source), _Side(target)
        self._codecs: set[int] = set()
        self._names: dict[int, str] = {}
        self._identical = self._different = self._deleted = 0
        self._offsets_equal = True
        self._differences: list[Difference] = []
        self._notes: list[str] = []

    async def run(self) -> None:
        """Compare everything."""
        self._judge_bounds()
        source, target = self._source, self._target
        await asyncio.gather(source.reader.advance(), target.reader.advance())
        while min(source.base, target.base) < _BEYOND and not (source.is_stuck or target.is_stuck):
            await self._take_stretch()
            self._judge_stretch()
        for side, other in ((source, False), (target, True)):
            if side.is_stuck:
                damage = side.reader.damage
                self._differ(side.taken_until + 1, Kind.UNREADABLE, "" if other else damage, damage if other else "")
                self._offsets_equal = False
        if self._deleted:
            self._notes.append(f"retention deleted {self._deleted} batches on the source while they were compared")

    def report(self) -> PartitionReport:
        """What was found."""
        source, target = self._source, self._target
        return PartitionReport(
            pair=self._pair,
            begin=self._bounds.begin,
            end=self._bounds.end,
            batches=source.batches,
            records=source.records,
            bytes=source.bytes,
            codecs=tuple(self._names[codec] for codec in sorted(self._codecs)),
            identical=self._identical,
            offsets_equal=self._offsets_equal,
            lag=self._bounds.lag,
            source_digest=source.digest.hexdigest(),
            target_digest=target.digest.hexdigest(),
            different=self._different,
            differences=tuple(self._differences),
            notes=tuple(self._notes),
        )

    def _judge_bounds(self) -> None:
        b = self._bounds
        if b.source_start > b.target_start and b.target_end > b.target_start:
            self._notes.append(f"compared from offset {b.begin} on, where the source now begins; the target keeps older records")
        if b.target_start > b.source_start < b.source_end:
            kept = f"offsets {b.source_start} to {min(b.target_start, b.source_end) - 1}"
            self._lose(b.source_start, Kind.DELETED, kept, f"a log that begins at {b.target_start}")
        if 0 < b.target_end < b.source_start:
            self._lose(b.target_end, Kind.DELETED, f"a log that begins at {b.source_start}", f"a log that ends at {b.target_end}")
        if b.target_written > b.target_end:
            self._lose(b.target_end, Kind.OPEN_TRANSACTION, "", f"{b.target_written - b.target_end} offsets not committed yet")

    async def _take_stretch(self) -> None:
        """Take batches of both sides up to where neither has one that reaches further: one of each, where they are equal."""
        source, target = self._source, self._target
        source.begin()
        target.begin()
        end = min(source.base, target.base)
        while True:
            side = source if source.base <= target.base else target
            if side.base > end:
                return
            raw = await side.take()
            end = max(end, last_offset(raw))
            self._check_crc(raw, is_source=side is source)
            if side is source:
                self._codecs.add(raw.header.codec)
                self._names[raw.header.codec] = codec_name(raw)

    def _judge_stretch(self) -> None:
        source, target = self._source, self._target
        s, t = source.first, target.first
        if s is None or t is None:
            if s is None and target.taken_until < source.reader.start:
                self._deleted += target.taken
                return
            kind, there = (Kind.EXTRA, t) if s is None else (Kind.MISSING, s)
            assert there is not None
            self._lose(there.header.base_offset, kind, str(source), str(target))
            return
        start = min(s.header.base_offset, t.header.base_offset)
        span = (s.header.base_offset, source.taken_until) == (t.header.base_offset, target.taken_until)
        self._offsets_equal &= span and source.taken_records == target.taken_records
        if not span or source.taken > 1 or target.taken > 1:
            self._differ(start, Kind.BATCHING, str(source), str(target))
            return
        before = self._different
        self._judge_batch(s, t)
        self._identical += self._different == before

    def _judge_batch(self, s: RawBatch, t: RawBatch) -> None:
        ours, theirs = s.header, t.header
        values = [
            (Kind.MAGIC, ours.magic, theirs.magic),
            (Kind.COUNT, ours.count, theirs.count),
            (Kind.BASE_TIMESTAMP, ours.base_timestamp, theirs.base_timestamp),
            (Kind.CODEC, codec_name(s), codec_name(t)),
        ]
        if not theirs.attributes & APPEND_TIME:  # such a target puts its own clock there
            values.append((Kind.MAX_TIMESTAMP, ours.max_timestamp, theirs.max_timestamp))
        mine, its = records_crc(s), records_crc(t)
        if (len(s.records), mine) != (len(t.records), its):
            values.append((Kind.RECORDS, f"{len(s.records)} bytes, CRC {mine:08x}", f"{len(t.records)} bytes, CRC {its:08x}"))
        for kind, one, other in values:
            if one != other:
                self._differ(ours.base_offset, kind, str(one), str(other))

    def _check_crc(self, raw: RawBatch, *, is_source: bool) -> None:
        if raw.header.magic == 2 and not crc_holds(raw):
            broken = "does not match the bytes"
            self._differ(raw.header.base_offset, Kind.STORED_CRC, broken if is_source else "", "" if is_source else broken)

    def _lose(self, offset: int, kind: Kind, source: str, target: str) -> None:
        self._offsets_equal = False
        self._differ(offset, kind, source, target)

    def _differ(self, offset: int, kind: Kind, source: str, target: str) -> None:
        self._different += 1
        if len(self._differences) < KEPT:
            topic, partition = self._pair.source
            self._differences.append(Difference(topic, partition, offset, kind, source, target))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """The partitions of one topic together; the numbers are the source's."""

    topic: str
    target: str
    partitions: int
    codecs: tuple[str, ...]
    records: int
    batches: int
    bytes: int
    identical: int
    offsets_equal: bool
    lag: int
    different: int

    @property
    def equal(self) -> bool:
        """No difference, and every batch identical."""
        return not self.different


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """All of a flow. `misfits` are the differences between whole topics; `seconds` is how long the comparison took."""

    flow: str
    source: str
    target: str
    partitions: tuple[PartitionReport, ...]
    misfits: tuple[Difference, ...]
    seconds: float

    @property
    def different(self) -> int:
        """How many differences there are, kept or not."""
        return len(self.misfits) + sum(report.different for report in self.partitions)

    @property
    def equal(self) -> bool:
        """True when there is no difference; lag is none."""
        return not self.different

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The differences that were kept, topics first."""
        return (*self.misfits, *(one for report in self.partitions for one in report.differences))

    @property
    def topics(self) -> tuple[TopicReport, ...]:
        """One line for each topic, by name."""
        by_name: dict[str, list[PartitionReport]] = {}
        for report in self.partitions:
            by_name.setdefault(report.pair.source.topic, []).append(report)
        misfits = {one.topic: one for one in self.misfits}
        return tuple(_topic_report(name, by_name.get(name, []), misfits.get(name)) for name in sorted(by_name | misfits))


def _topic_report(name: str, reports: Sequence[PartitionReport], misfit: Difference | None) -> TopicReport:
    return TopicReport(
        topic=name,
        target=reports[0].pair.target.topic if reports else "",
        partitions=len(reports),
        codecs=tuple(dict.fromkeys(codec for report in reports for codec in report.codecs)),
        records=sum(report.records for report in reports),
        batches=sum(report.batches for report in reports),
        bytes=sum(report.bytes for report in reports),
        identical=sum(report.identical for report in reports),
        offsets_equal=bool(reports) and misfit is None and all(report.offsets_equal for report in reports),
        lag=sum(report.lag for report in reports),
        different=sum(report.different for report in reports) + (misfit is not None),
    )
