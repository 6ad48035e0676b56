"""Logs of two sides that are compared without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rawbatches import batch, raw
from recordoracle import Record, encoded

from mirror.errors import BrokerError
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import Fetched
from mirror.records.codecs import compress
from mirror.records.recipe import Recipe
from mirror.records.rewrite import rewrite
from mirror.verify.compare import LogBounds, compare
from mirror.verify.reader import Reader
from mirror.verify.report import DifferenceKind, Pair, PartitionReport

PAIR = Pair(TopicPartition("orders", 0), TopicPartition("eu.orders", 0))
FAR = 1 << 40


def end_of(data: bytes) -> int:
    """The last offset, of a batch whose length may lie."""
    base, magic = int.from_bytes(data[:8]), data[16]
    return base + (int.from_bytes(data[23:27]) if magic == 2 else 0)


def end_after(batches: Sequence[bytes]) -> int:
    return max((end_of(one) + 1 for one in batches), default=0)


def answered(records: bytes, aborted: tuple[tuple[int, int], ...] = ()) -> Fetched:
    """Return what a committed read gives."""
    return Fetched(PAIR.source, 0, FAR, FAR, 0, None, aborted, memoryview(records))


def log_of(
    batches: Sequence[bytes],
    begin: int = 0,
    end: int = FAR,
    *,
    starts: int = 0,
    at_a_time: int = 2,
    aborted: Sequence[tuple[int, int, int]] = (),
) -> Reader:
    """A reader of a log that gives out a few batches at a time, and begins at `starts` when asked; `aborted`
    transactions are (producer, first offset, offset of the marker).
    """

    async def fetch(offset: int) -> Fetched:
        if offset < starts:
            raise BrokerError(1, "OFFSET_OUT_OF_RANGE", "fetch")
        left = [one for one in batches if end_of(one) >= offset]
        index = tuple((producer, first) for producer, first, last in aborted if last >= offset)
        return answered(b"".join(left[:at_a_time]), index)

    async def log_start() -> int:
        return starts

    return Reader(fetch, begin, end, log_start)


def compared(source: Sequence[bytes], target: Sequence[bytes], **more: Any) -> PartitionReport:
    pair = replace(PAIR, own_clock=more.pop("own_clock", False))

    async def run() -> PartitionReport:
        bounds = more.pop("bounds", LogBounds(0, FAR, 0, FAR, FAR))
        left = log_of(source, bounds.begin, min(bounds.end, end_after(source)), **more)
        right = log_of(target, bounds.begin, min(bounds.target_end, end_after(target)))
        return await compare(pair, bounds, left, right)

    return asyncio.run(run())


def kinds(report: PartitionReport) -> list[tuple[int, DifferenceKind]]:
    return [(one.offset, one.kind) for one in report.differences]


def stored(records: Sequence[Record], base: int = 0, codec: int = 0, attributes: int = 0, **fields: Any) -> bytes:
    """A batch with a records section that can be read; there may be holes between the records."""
    payload = compress(codec, encoded(records))
    fields = {"delta": records[-1].offset, "max_timestamp": CLOCK + max(one.timestamp for one in records), **fields}
    return batch(
        base, count=len(records), attributes=codec | attributes, payload=payload, base_timestamp=CLOCK, **fields
    )


def some(*offsets: int) -> list[Record]:
    """Records that only their offsets distinguish."""
    return [Record(one, one * 3 % 7, b"key %d" % one, b"value %d" % one, ((b"h", b"%d" % one),)) for one in offsets]


def remade(*batches: bytes, **recipe: Any) -> list[bytes]:
    """As the mirror rewrites them."""
    return [bytes(one.data) for one in rewrite([raw(one) for one in batches], Recipe(**recipe))]


CLOCK = 1_700_000_000_000
THREE = [batch(0, count=10), batch(10, count=5, payload=b"second", attributes=4), batch(15, count=1, payload=b"third")]


VALUES = [f"value {number:03} ".encode() * 20 for number in range(40)]
