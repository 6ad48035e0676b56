"""The walk over one partition: both sides in lockstep, stretch by stretch.

A stretch is the shortest run of offsets after which batches of both sides end together. Where the logs are equal, it is
one batch of each.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from crc32c import crc32c

from mirror.batch.checksum import crc_holds, records_crc
from mirror.batch.header import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LENGTH_PREFIX,
    TRANSACTIONAL,
    RawBatch,
)
from mirror.verify.reader import Reader, codec_name, last_offset
from mirror.verify.report import Difference, Kind, Pair, PartitionReport

#: Differences kept of each partition; all are counted.
KEPT: Final = 100
_BEYOND: Final = 1 << 63
#: What the digest covers: the max timestamp is left out, since append time changes it, and so are the bits that may
#: be cleared.
_DIGESTED: Final = Struct(">qiiqBI")
_KEPT_BITS: Final = CODEC_MASK | APPEND_TIME | CONTROL
_BITS: Final = {
    APPEND_TIME: "append time",
    TRANSACTIONAL: "transactional",
    CONTROL: "control",
    DELETE_HORIZON: "delete horizon",
}
#: The target's coordinator does not know the transaction, and its cleaner sets horizons of its own.
_MAY_BE_CLEARED: Final = TRANSACTIONAL | DELETE_HORIZON


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
        digested = (header.base_offset, header.last_offset_delta, header.count, header.base_timestamp)
        self.digest.update(_DIGESTED.pack(*digested, header.attributes & _KEPT_BITS, _crc(raw)))
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
        self._codecs: set[str] = set()
        self._identical = self._own_timestamps = self._different = self._deleted = 0
        self._two_clocks = False
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
                at = max(self._bounds.begin, side.taken_until + 1)
                self._differ(at, Kind.UNREADABLE, "" if other else damage, damage if other else "")
                self._offsets_equal = False
        if self._two_clocks:
            self._notes.append("append time: the target's own timestamps, not compared")
        if self._deleted:
            self._notes.append(f"the source deleted {self._deleted} batches while they were compared")

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
            codecs=tuple(sorted(self._codecs)),
            identical=self._identical,
            own_timestamps=self._own_timestamps,
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
            self._notes.append("the source deleted records that the target still has; compared from there on")
        if b.target_start > b.source_start < b.source_end:
            kept = f"offsets {b.source_start} to {min(b.target_start, b.source_end) - 1}"
            self._lose(b.source_start, Kind.DELETED, kept, "deleted")
        if 0 < b.target_end < b.source_start:
            lost = f"offsets {b.target_end} to {b.source_start - 1} deleted"
            self._lose(b.target_end, Kind.DELETED, lost, "never written")
        if b.target_start > b.source_end:  # what is beyond the source's end was deleted: only the log's end still tells
            ends = f"a log that ends at {b.source_end}", f"a log that ends at {b.target_end}"
            self._lose(b.source_end, Kind.EXTRA, *ends)
        if b.target_written > b.target_end:
            uncommitted = f"{b.target_written - b.target_end} offsets not committed yet"
            self._lose(b.target_end, Kind.OPEN_TRANSACTION, "", uncommitted)

    async def _take_stretch(self) -> None:
        """Take batches of both sides up to where neither has one that reaches further."""
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
                self._codecs.add(codec_name(raw))

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
        for kind, one, other in _unlike(s, t):
            self._differ(s.header.base_offset, kind, one, other)
        same = self._different == before
        if s.header.attributes & t.header.attributes & APPEND_TIME:
            self._two_clocks = True
            self._own_timestamps += same
        else:
            self._identical += same

    def _check_crc(self, raw: RawBatch, *, is_source: bool) -> None:
        if raw.header.magic == 2 and not crc_holds(raw):
            sides = ("does not hold", "") if is_source else ("", "does not hold")
            self._differ(raw.header.base_offset, Kind.STORED_CRC, *sides)

    def _lose(self, offset: int, kind: Kind, source: str, target: str) -> None:
        self._offsets_equal = False
        self._differ(offset, kind, source, target)

    def _differ(self, offset: int, kind: Kind, source: str, target: str) -> None:
        self._different += 1
        if len(self._differences) < KEPT:
            topic, partition = self._pair.source
            self._differences.append(Difference(topic, partition, offset, kind, source, target))


def _unlike(source: RawBatch, target: RawBatch) -> Iterator[tuple[Kind, str, str]]:
    """In what two batches at the same offsets differ, with what each side has."""
    ours, theirs = source.header, target.header
    if ours.magic != theirs.magic:  # other layouts: nothing else can be held against each other
        yield Kind.MAGIC, str(ours.magic), str(theirs.magic)
        return
    values: list[tuple[Kind, object, object]] = [
        (Kind.COUNT, ours.count, theirs.count),
        (Kind.BASE_TIMESTAMP, ours.base_timestamp, theirs.base_timestamp),
        (Kind.CODEC, codec_name(source), codec_name(target)),
    ]
    cleared = ours.attributes & ~theirs.attributes & _MAY_BE_CLEARED
    values.append((Kind.ATTRIBUTES, _bits(ours.attributes & ~cleared), _bits(theirs.attributes)))
    if not theirs.attributes & APPEND_TIME:  # such a target puts its own clock there
        values.append((Kind.MAX_TIMESTAMP, ours.max_timestamp, theirs.max_timestamp))
    values.append((Kind.RECORDS, _stored(source), _stored(target)))
    yield from ((kind, str(one), str(other)) for kind, one, other in values if one != other)


def _bits(attributes: int) -> str:
    return " and ".join(name for bit, name in _BITS.items() if attributes & bit) or "no flag"


def _body(raw: RawBatch) -> memoryview:
    """The bytes that must be the same: before magic 2, all that follows the length."""
    return raw.records if raw.header.magic == 2 else raw.data[LENGTH_PREFIX:]


def _crc(raw: RawBatch) -> int:
    return records_crc(raw) if raw.header.magic == 2 else crc32c(_body(raw))


def _stored(raw: RawBatch) -> str:
    return f"{len(_body(raw))} bytes with CRC {_crc(raw):08x}"
