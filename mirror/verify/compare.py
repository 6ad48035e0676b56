"""The walk over one partition: both sides in lockstep, stretch by stretch.

A stretch is the shortest run of offsets after which batches of both sides end together. Where the logs are equal byte
by byte, it is one batch of each. Only batches with records for a consumer take part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, Self

from crc32c import crc32c

from mirror.records.header import (
    APPEND_TIME,
    CODEC_MASK,
    LENGTH_PREFIX,
    BatchHeader,
    RawBatch,
    crc_holds,
    records_crc,
    same_records,
)
from mirror.verify.reader import Reader, Stored
from mirror.verify.report import (
    KEPT,
    NOTHING,
    Difference,
    DifferenceKind,
    Pair,
    PartitionReport,
    covering,
    digest_of,
    term,
)

_BEYOND: Final = 1 << 63
_SAME_OFFSETS: Final = frozenset(
    {
        DifferenceKind.KEY,
        DifferenceKind.VALUE,
        DifferenceKind.HEADERS,
        DifferenceKind.TIMESTAMP,
        DifferenceKind.STORED_CRC,
    }
)
_TIMED: Final = CODEC_MASK | APPEND_TIME
_FINGERPRINT: Final = Struct(">biqiiqqBI")


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Both logs as they were at the start. `source_end` is the last stable offset; so is `target_end`, and
    `target_written` is the target's high watermark, larger only while somebody has a transaction open there. `wanted`
    is where the source ended when the proof began, if the target was waited for since; -1 otherwise.
    `source_written` is the source's high watermark, larger than `source_end` only while a transaction is open there:
    what lies behind that is on the source, too. `left_out_from`: where the source's log begins, if the flow began later
    (`topics.start`), at `source_start`; else -1.
    """

    source_start: int
    source_end: int
    target_start: int
    target_end: int
    target_written: int
    wanted: int = -1
    source_written: int = -1
    left_out_from: int = -1

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
        """Offsets that the source held when the proof began, beyond the target's end."""
        return max(0, self.until - max(self.target_written, self.source_start))

    @property
    def until(self) -> int:
        """Where the source ended when the proof began."""
        return max(self.source_end, self.source_written) if self.wanted < 0 else self.wanted

    @property
    def open_from(self) -> int | None:
        """Where a transaction is open on the source that holds back what the target lacks; None where none does."""
        return self.source_end if self.source_end < self.until and self.lag else None

    def within(self, begin: int, end: int) -> Self:
        """The same for the offsets from `begin` to before `end`: of how the logs begin and end, only the first range
        and the last one say.
        """
        starts = {} if begin == self.begin else {"source_start": begin, "target_start": begin}
        names = "source_end", "target_end", "target_written", "source_written"
        ends = {} if end == self.end else {**dict.fromkeys(names, end), "wanted": -1}
        return replace(self, **starts, **ends)


async def compare(
    pair: Pair, bounds: LogBounds, source: Reader, target: Reader, lost: Sequence[tuple[int, int]] = ()
) -> PartitionReport:
    """Walk both sides of one partition in lockstep. What the target has not of the source's offsets `lost`, from and to
    before, is no difference but a loss that was accepted. Raises as a fetch does.
    """
    comparison = _Comparison(pair, bounds, source, target, lost)
    try:
        await comparison.run()
    finally:
        await asyncio.gather(source.close(), target.close())
    return comparison.report()


@dataclass(slots=True)
class _Side:
    """What was read of one side so far; `taken` batches of it belong to the stretch at hand, `until` is the last
    offset taken.
    """

    reader: Reader
    batches: int = 0
    records: int = 0
    bytes: int = 0
    hidden: int = 0
    taken: int = 0
    until: int = -1

    @property
    def head(self) -> Stored | None:
        """The batch at hand."""
        return self.reader.head

    @property
    def first(self) -> int:
        """Least offset of the batch at hand, beyond all others where there is none."""
        return self.reader.head.first if self.reader.head else _BEYOND

    @property
    def is_stuck(self) -> bool:
        """The log goes on, and cannot be read."""
        return self.reader.head is None and bool(self.reader.damage)

    def take(self) -> RawBatch:
        """Count the batch at hand."""
        assert self.reader.head is not None
        raw = self.reader.head.raw
        self.taken += 1
        self.until = raw.header.last_offset
        self.batches += 1
        self.records += _records_from(raw.header, self.reader.start)
        self.bytes += raw.header.size
        return raw


class _Comparison:
    """The walk over one partition."""

    def __init__(
        self, pair: Pair, bounds: LogBounds, source: Reader, target: Reader, lost: Sequence[tuple[int, int]]
    ) -> None:
        self._pair, self._bounds, self._lost = pair, bounds, lost
        self._met: dict[tuple[int, int], int] = {}
        self._source, self._target = _Side(source), _Side(target)
        self._source_terms = self._target_terms = 0
        self._codecs: set[str] = set()
        self._as_stored = self._identical = self._own_timestamps = self._rewritten = self._different = 0
        self._offsets_equal, self._own_clock = True, False
        self._extra_until = -1
        self._differences: list[Difference] = []
        self._notes: list[str] = []

    async def run(self) -> None:
        """Compare everything."""
        self._judge_starts()
        source, target = self._source, self._target
        await self._advance(source)
        await self._advance(target)
        while min(source.first, target.first) < _BEYOND and not (source.is_stuck or target.is_stuck):
            if not await self._take_counterparts():
                await self._compare_stretch()
        self._judge_ends()

    def report(self) -> PartitionReport:
        """What was found."""
        source = self._source
        return PartitionReport(
            pair=self._pair,
            begin=self._bounds.begin,
            end=self._bounds.end,
            batches=source.batches,
            hidden=source.hidden,
            records=source.records,
            bytes=source.bytes,
            codecs=tuple(sorted(self._codecs)),
            identical=self._identical,
            as_stored=self._as_stored,
            own_timestamps=self._own_timestamps,
            rewritten=self._rewritten,
            offsets_equal=self._offsets_equal,
            lag=self._bounds.lag,
            source_digest=digest_of(self._source_terms),
            target_digest=digest_of(self._target_terms),
            different=self._different,
            differences=tuple(self._differences),
            notes=tuple(self._notes),
            lost=tuple(sorted(self._met)),
            lost_records=sum(self._met.values()),
            source_mark=source.reader.mark,
            target_mark=self._target.reader.mark,
        )

    def _judge_starts(self) -> None:
        b = self._bounds
        if b.source_start > b.target_start and b.target_end > b.target_start:
            self._notes.append("the source deleted records that the target still has; compared from there on")
        if b.target_start > b.source_start < b.source_end:
            kept = f"offsets {b.source_start} to {min(b.target_start, b.source_end) - 1}"
            self._differ(b.source_start, DifferenceKind.DELETED, kept, "deleted")
        if 0 < b.target_end < b.source_start:
            lost = f"offsets {b.target_end} to {b.source_start - 1} deleted"
            self._differ(b.target_end, DifferenceKind.DELETED, lost, "never written")
        if b.target_written > b.target_end:
            uncommitted = f"{b.target_written - b.target_end} offsets not committed yet"
            self._differ(b.target_end, DifferenceKind.OPEN_TRANSACTION, "", uncommitted)

    def _judge_ends(self) -> None:
        source, target, b = self._source, self._target, self._bounds
        for lost in source.reader.lost:
            self._lose(lost, 0)
        for side in (source, target):
            if side.is_stuck:
                at = max(b.begin, side.until + 1)
                self._differ(at, DifferenceKind.UNREADABLE, *self._sides(side, side.reader.damage))
        if b.target_end > b.source_end > self._extra_until:  # nothing that is seen is there: the logs' ends show it
            ends = f"a log that ends at {b.source_end}", f"a log that ends at {b.target_end}"
            self._differ(b.source_end, DifferenceKind.EXTRA, *ends)
        if self._own_clock:
            self._notes.append("append time: the target's own timestamps, not compared")
        if source.reader.start > b.begin:
            gone = f"offsets {b.begin} to {min(source.reader.start, b.end) - 1}"
            self._notes.append(f"the source deleted {gone} while they were compared")

    async def _advance(self, side: _Side) -> None:
        """Put the next batch with records at hand; those without are counted, and must be whole, too."""
        while True:
            await side.reader.advance()
            head = side.head
            if head is not None and not crc_holds(head.raw):
                header = head.raw.header
                lost = covering(self._lost, header.base_offset, header.last_offset) if side is self._source else None
                if lost is not None:
                    self._lose(lost, max(0, header.count))
                    side.until = header.last_offset
                    continue
                self._differ(header.base_offset, DifferenceKind.STORED_CRC, *self._sides(side, "does not hold"))
            if head is None or head.is_visible:
                return
            side.hidden += 1
            side.until = head.raw.header.last_offset

    async def _take_counterparts(self) -> bool:
        """Take the batches at hand where they are the same."""
        source, target = self._source, self._target
        if source.head is None or target.head is None:
            return False
        one, other = source.head.raw, target.head.raw
        if (one.header.base_offset, one.header.size) != (other.header.base_offset, other.header.size):
            return False
        # where both brokers stamp records, the copy may have been made for that
        may_differ = self._pair.own_clock or one.header.attributes & APPEND_TIME
        timed = not (other.header.attributes & APPEND_TIME and may_differ)
        if _shape(one.header, timed=timed) != _shape(other.header, timed=timed) or not same_records(one, other):
            return False
        self._take_source()
        target.take()
        self._identical += timed
        self._as_stored += timed and one.header.crc == other.header.crc
        self._own_timestamps += not timed
        self._own_clock |= not timed
        await self._advance(source)  # the next answer of either side is under way already
        await self._advance(target)
        return True

    async def _compare_stretch(self) -> None:
        """Take batches of both sides up to where neither has one that reaches further, and compare their records."""
        source, target = self._source, self._target
        source.taken = target.taken = 0
        side, other = (source, target) if source.first <= target.first else (target, source)
        assert side.head is not None
        head = side.head.raw.header
        if head.magic == 2 and head.is_dense and other.first > head.last_offset:
            await self._take_single(side)
            return

        from mirror.verify.matching import Matching, Run  # noqa: PLC0415 -- loads the compiler, and is seldom needed

        runs = Run(self._bounds.end), Run(self._bounds.end)
        matching = Matching(*runs, self._differ, self._lost, self._lose, own_clock=self._pair.own_clock)
        timed, end = True, side.first
        while min(source.first, target.first) <= end:
            side = source if source.first <= target.first else target
            raw = self._take_source() if side is source else side.take()
            end = max(end, raw.header.last_offset)
            found = matching.add(raw, source.reader.start, is_source=side is source)
            timed &= matching.timed
            side.records += found if raw.header.stated_records is None else 0
            await self._advance(side)
        matching.finish(source.reader.start, source_goes_on=source.is_stuck, target_goes_on=target.is_stuck)
        self._own_clock |= not timed
        if matching.is_equal:
            self._rewritten += source.taken if timed else 0
            self._own_timestamps += 0 if timed else source.taken

    async def _take_single(self, side: _Side) -> None:
        """Take a batch without holes where the other side has nothing."""
        raw = self._take_source() if side is self._source else side.take()
        header = raw.header
        first = max(header.base_offset, self._source.reader.start)
        lost = covering(self._lost, first, header.last_offset) if side is self._source else None
        if lost is not None:
            self._lose(lost, header.last_offset - first + 1)
        elif side is self._source or header.last_offset >= self._source.reader.start:
            records = "1 record" if header.count == 1 else f"{header.count} records"
            ours, theirs = self._sides(side, f"1 batch with {records} up to offset {header.last_offset}")
            kind = DifferenceKind.MISSING if side is self._source else DifferenceKind.EXTRA
            self._differ(first, kind, ours or NOTHING, theirs or NOTHING)
        await self._advance(side)

    def _take_source(self) -> RawBatch:
        """Count the source's batch at hand, and add it to the digests."""
        raw = self._source.take()
        found = term(_fingerprint(raw))
        self._source_terms += found
        self._target_terms += found
        self._codecs.add(raw.header.codec_name)
        return raw

    def _sides(self, side: _Side, text: str) -> tuple[str, str]:
        """What to say of the source and of the target where only one of them matters."""
        return (text, "") if side is self._source else ("", text)

    def _lose(self, lost: tuple[int, int], records: int) -> None:
        """So many records of an accepted loss were met, which the target has not."""
        self._met[lost] = self._met.get(lost, 0) + records
        self._target_terms += term(f"lost {lost[0]} to {lost[1]}: {records}".encode())

    def _differ(self, offset: int, kind: DifferenceKind, source: str, target: str) -> None:
        self._different += 1
        self._offsets_equal &= kind in _SAME_OFFSETS
        if kind is DifferenceKind.EXTRA:
            self._extra_until = self._target.until
        self._target_terms += term(f"{kind} at offset {offset}: {source}, {target}".encode())
        if len(self._differences) < KEPT:
            topic, partition = self._pair.source
            self._differences.append(Difference(topic, partition, offset, kind, source, target))


def _shape(header: BatchHeader, *, timed: bool) -> tuple[int, ...]:
    """Return what the headers of two batches have in common that are the same. The transactional bit and the delete
    horizon's may be gone on the target. A target that is not `timed` has a clock of its own.
    """
    base_offset, length, _, magic, _, attributes, delta, base_timestamp, max_timestamp, _, _, _, count = header
    if timed:
        return magic, length, base_offset, delta, count, base_timestamp, max_timestamp, attributes & _TIMED
    return magic, length, base_offset, delta, count, base_timestamp, 0, attributes & CODEC_MASK


def _fingerprint(raw: RawBatch) -> bytes:
    """Return a batch's shape and a checksum of its bytes, which somebody can forge. Before magic 2 these are all that
    follows the length.
    """
    body = records_crc(raw) if raw.header.magic == 2 else crc32c(raw.data[LENGTH_PREFIX:])
    return _FINGERPRINT.pack(*_shape(raw.header, timed=True), body)


def _records_from(header: BatchHeader, start: int) -> int:
    """How many records the header counts, where the log begins inside the batch those behind its `start`; 0 where
    the header does not say.
    """
    if header.magic == 2 and header.base_offset >= start:
        return max(0, header.count)
    hidden = max(0, start - header.base_offset) if header.magic == 2 and header.is_dense else 0
    return max(0, (header.stated_records or 0) - hidden)
