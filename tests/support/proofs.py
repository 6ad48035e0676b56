"""Plans of proofs, and reports of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

from compared_logs import log_of, some, stored
from recordoracle import Record

from mirror.kafka.cluster import TopicPartition
from mirror.verify.compare import LogBounds, compare
from mirror.verify.ranges import ProofPlan, Range, Subject
from mirror.verify.report import Pair, PartitionReport, VerifyReport, joined

PAIR = Pair(TopicPartition("orders", 0), TopicPartition("orders", 0))


def in_ranges(source: Sequence[bytes], target: Sequence[bytes], bounds: LogBounds, *cuts: int) -> PartitionReport:
    """Compared in ranges, and put together again."""

    async def run(part: LogBounds, target_end: int) -> PartitionReport:
        return await compare(PAIR, part, log_of(source, part.begin, part.end), log_of(target, part.begin, target_end))

    edges = [bounds.begin, *cuts, bounds.end]
    parts = [bounds.within(begin, end) for begin, end in pairwise(edges)]
    ends = [*edges[1:-1], bounds.target_end]
    return joined([asyncio.run(run(part, end)) for part, end in zip(parts, ends, strict=True)])


MANY = [stored(some(*range(5)), base) for base in range(0, 60, 5)]
CHANGED = [*MANY[:8], stored([*some(0, 1, 2, 3), Record(4, 0, b"key 4", b"another")], 40), *MANY[9:]]
ALL = LogBounds(0, 60, 0, 60, 60)
SUBJECT = Subject("orders", "a", "b", (("orders", "1", "orders", "2", 1),))
PLAN = ProofPlan(
    SUBJECT, 1_700_000_000_000, tuple(Range(n, PAIR, ALL.within(n * 15, n * 15 + 15), 0, 9, 7) for n in range(4))
)


class Seen(HTMLParser):
    """The elements and texts of a page, and whether each element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "br"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def report_of(*parts: PartitionReport, **more: Any) -> VerifyReport:
    fields = {"flow": "eu-to-us", "source": "eu", "target": "us", "misfits": (), "seconds": 1.25, **more}
    return VerifyReport(partitions=parts, source_id="id-eu", target_id="id-us", begun_ms=1_700_000_000_000, **fields)
