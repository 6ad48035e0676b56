"""A live partition, read batch by batch with what became of each batch's transaction.

Up to the last stable offset it is read as the mirror reads it, committed, with the broker's own word on aborted
transactions. Behind that, up to the high watermark, it is read uncommitted, and every transaction there is undecided.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Final, TypeVar

from mirror.batch.header import RawBatch
from mirror.batch.segment import Damage, DamageKind, Walk
from mirror.policy.outcomes import Outcome, Outcomes
from mirror.wire.cluster import Cluster, TopicPartition
from mirror.wire.fetch import Fetched, fetch_below
from mirror.wire.queries import READ_COMMITTED, READ_UNCOMMITTED

T = TypeVar("T")

FETCH_BYTES: Final = 4 * 1024 * 1024


class Log:
    """A partition from an offset on. `at` is the next offset to fetch; `damage` says why reading ended early."""

    def __init__(self, cluster: Cluster, partition: TopicPartition, stable: int, end: int) -> None:
        self._cluster, self._partition, self._stable, self._end = cluster, partition, stable, end
        self.at = 0
        self.damage: Damage | None = None

    async def batches(self, begin: int) -> AsyncIterator[tuple[RawBatch, Outcome]]:
        """Batches up to the end, or to a damaged one. Raises as `fetch_below` does: what is empty below the end is not
        taken for the end of a log whose leader was just elected.
        """
        self.at = begin
        while self.at < self._end and not self.damage:
            before = self.at
            decided = before < self._stable
            fetched = await self._fetch(READ_COMMITTED if decided else READ_UNCOMMITTED)
            outcomes = Outcomes(fetched.aborted)
            walk = Walk(fetched.records)
            for raw in walk:
                outcome = outcomes.of(raw) if decided else _undecided(raw)
                if raw.header.last_offset < before:
                    continue
                if _first(raw, before) >= self._end:
                    return
                self.at = raw.header.next_offset
                yield raw, outcome
                if self.at >= self._end:  # damage behind the end is nobody's business here
                    return
            if walk.damage and not (walk.damage.kind is DamageKind.PARTIAL and walk.position):
                self.damage = walk.damage
            elif self.at == before:  # compaction left nothing up to there
                self.at = self._stable if decided else self._end

    async def committed(self, begin: int) -> AsyncGenerator[RawBatch, None]:
        """Those of them that a consumer of committed records gets records of. Raises as `batches` does."""
        async for raw, outcome in self.batches(begin):
            if outcome is not Outcome.ABORTED and not raw.header.is_control and raw.header.stated_records != 0:
                yield raw

    async def _fetch(self, isolation: int) -> Fetched:
        return await fetch_below(
            self._cluster, self._partition, self.at, self._end, max_bytes=FETCH_BYTES, isolation=isolation
        )


def driven(read: AsyncGenerator[T, None]) -> Iterator[T]:
    """What an asynchronous generator yields, in a loop of its own, for who has none: a task of Spark."""
    with asyncio.Runner() as runner:

        async def upcoming() -> T | None:
            return await anext(read, None)

        try:
            loop = runner.get_loop()  # not `runner.run`: what that does about SIGINT costs more than a small batch
            while (found := loop.run_until_complete(upcoming())) is not None:
                yield found
        finally:
            runner.run(read.aclose())


def _first(raw: RawBatch, before: int) -> int:
    """The first offset that a batch may hold a record of: a compressed set of magic 0 or 1 is stored by its last."""
    header = raw.header
    return min(before, header.base_offset) if header.magic < 2 and header.codec else header.base_offset


def _undecided(raw: RawBatch) -> Outcome:
    header = raw.header
    return Outcome.UNDECIDED if header.is_transactional and not header.is_control else Outcome.NONE
