"""Part of a log, as one task reads it: a segment file, or a range of a live partition."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

import pyarrow as pa

from mirror.batch.header import LAST_OFFSET
from mirror.batch.segment import SPAN, Damage, Walk
from mirror.errors import BadRecords
from mirror.policy.outcomes import Glance, Outcomes
from mirror.policy.rules import Rules
from mirror.reading.partition import Log, driven
from mirror.reading.segments import Mapped, glance_over
from mirror.spark.batches.files import following, opened
from mirror.spark.batches.options import Detail
from mirror.spark.batches.rows import Place, Rows
from mirror.spark.batches.wanted import Wanted
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """One segment. Unless it is the last of its partition, or was asked for alone, a transaction may end in those that
    follow; a slice does not list them, since together all slices would as often as the square of their number.
    """

    place: Place
    base_offset: int
    is_last: bool
    rules: Rules
    wanted: Wanted
    detail: Detail

    def read(self) -> Iterator[pa.RecordBatch]:
        """Rows up to the last sound batch. Raises BadRecords behind it where it is damaged, unless that is flagged."""
        address = self.place.file or ""
        mapped = opened(address)
        outcomes = self._outcomes(mapped)
        rows = Rows(self.place, self.rules, self.detail)
        walk = Walk(mapped.data, self.base_offset, min(self.base_offset + SPAN - 1, LAST_OFFSET))
        begin = 0
        for raw in walk:
            outcome = outcomes.of(raw)
            if self.wanted.has(raw.header):
                rows.take(raw, outcome, begin)
                if rows.full:
                    yield rows.drain()
            begin = walk.position
            mapped.passed(begin)
        yield from _ended(rows, self.place, self.detail, walk.damage, walk.next_offset)

    def _outcomes(self, mapped: Mapped) -> Outcomes:
        """How this segment's transactions ended, in it or in a later one."""
        glance = Glance()
        glance_over(glance, mapped)
        waiting = glance.open
        if not waiting or self.is_last:
            return glance.outcomes()
        for address in following(self.place.file or "", self.base_offset):
            if not waiting:
                break
            glance_over(glance, opened(address))
            still = glance.open
            waiting = {producer: first for producer, first in waiting.items() if still.get(producer) == first}
        return glance.outcomes()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """A range of a live partition: offsets from `begin` to before `end`; transactions are decided below `stable`."""

    place: Place
    endpoint: Endpoint
    partition: TopicPartition
    begin: int
    end: int
    stable: int
    rules: Rules
    wanted: Wanted
    detail: Detail

    def read(self) -> Iterator[pa.RecordBatch]:
        """The same, in a loop of its own. Raises ClusterError, too."""
        return driven(self._batches())

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        async with Cluster(self.endpoint) as cluster:
            await cluster.refresh([self.partition.topic])
            log = Log(cluster, self.partition, self.stable, self.end)
            rows = Rows(self.place, self.rules, self.detail)
            async for raw, outcome in log.batches(self.begin):
                if self.wanted.has(raw.header):
                    rows.take(raw, outcome)
                    if rows.full:
                        yield rows.drain()
            for made in _ended(rows, self.place, self.detail, log.damage, log.at):
                yield made


def _ended(
    rows: Rows, place: Place, detail: Detail, damage: Damage | None, next_offset: int
) -> Iterator[pa.RecordBatch]:
    if damage and detail.flags:
        rows.flag(damage)
    yield rows.drain()
    if damage and not detail.flags:
        raise BadRecords(
            f"{place}: {damage}; sound up to offset {next_offset - 1}. Option damage=flag gives the rows before it,"
            " and one for the damage"
        )
