"""A live partition read batch by batch, with the end of each transaction; and its last batch.

Up to the last stable offset it is read as the mirror reads it, committed, with the broker's own word on aborted
transactions. Behind that, up to the high watermark, it is read uncommitted, and every transaction there is undecided.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from mirror.errors import BadRecords, BrokerError, MalformedBatch
from mirror.kafka.cluster import OFFSET_OUT_OF_RANGE, Cluster, TopicPartition
from mirror.kafka.fetch import Fetched, fetch_below
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset
from mirror.records.header import RawBatch, crc_holds, split
from mirror.records.segment import Damage, DamageKind, Walk
from mirror.records.transactions import Aborted, Outcome, Outcomes

# --- A live partition, read batch by batch with what became of each batch's transaction -------------------------------

T = TypeVar("T")

FETCH_BYTES: Final = 4 * 1024 * 1024
#: The same where single batches are looked at.
_READ_BYTES: Final = 1 << 20


class ReadLog:
    """A partition from an offset on. `at` is the next offset to fetch; `damage` says why reading ended early.

    It passes over what a later batch shows to be a hole, and at the end over what `fetch_below` says holds nothing.
    """

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
            try:
                fetched = await self._fetch(decided=decided)
            except MalformedBatch as problem:
                self.damage = Damage(DamageKind.ORDER, 0, problem.detail)
                return
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

    async def _fetch(self, *, decided: bool) -> Fetched:
        isolation, end = (READ_COMMITTED, min(self._stable, self._end)) if decided else (READ_UNCOMMITTED, self._end)
        return await fetch_below(
            self._cluster, self._partition, self.at, end, max_bytes=FETCH_BYTES, isolation=isolation
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


async def batches(
    cluster: Cluster, partition: TopicPartition, offset: int, end: int, isolation: int
) -> AsyncIterator[tuple[RawBatch, bool]]:
    """The batches that hold offsets from `offset` to before `end`; for a committed read, whether each was aborted."""
    while offset < end:
        fetched = await fetch_below(cluster, partition, offset, end, max_bytes=_READ_BYTES, isolation=isolation)
        aborted, before = Aborted(fetched.aborted), offset
        with _damage_of(cluster):
            found = [(raw, aborted.covers(raw)) for raw in split(fetched.records)]
        for raw, is_aborted in found:
            if raw.header.last_offset < offset:
                continue
            if raw.header.base_offset >= end:
                return
            yield raw, is_aborted
            offset = raw.header.next_offset
        if offset == before:
            return


async def batch_at(
    cluster: Cluster, partition: TopicPartition, offset: int, isolation: int = READ_UNCOMMITTED, below: int = 0
) -> RawBatch | None:
    """The batch that holds `offset`, or the next one; None where the log ends before, or begins later. The log is known
    to end at `below` at least.
    """
    try:
        fetched = await fetch_below(cluster, partition, offset, below, isolation=isolation, may_be_open=True)
    except BrokerError as problem:
        if problem.code == OFFSET_OUT_OF_RANGE:
            return None
        raise
    with _damage_of(cluster):
        return next((raw for raw in split(fetched.records) if raw.header.last_offset >= offset), None)


@contextmanager
def _damage_of(cluster: Cluster) -> Iterator[None]:
    """Say of which cluster the batches are that cannot be read."""
    try:
        yield
    except (MalformedBatch, BadRecords) as damage:
        position = damage.position if isinstance(damage, MalformedBatch) else 0
        raise MalformedBatch(f"{cluster}: {damage.detail}", position, damage.offset) from damage


# --- The last batch of a partition, found from its end backwards ------------------------------------------------------

#: Offsets that are looked at first for the last committed batch; each further look, where only markers and aborted
#: records are, takes twice as many.
FIRST_STEP: Final = 16


async def last_batch(
    cluster: Cluster, partition: TopicPartition, oldest: int, end: int, isolation: int, step: int, further: int
) -> RawBatch | None:
    """The last batch with records that holds offsets from `oldest` to before `end`; for a committed read, of those that
    were committed. The last `step` offsets are looked at first, then `further` times as many before them, and so on.
    """
    before = end
    while before > oldest:
        begin, found = max(oldest, before - step), None
        async for raw, is_aborted in batches(cluster, partition, begin, before, isolation):
            if not (raw.header.is_control or is_aborted or not raw.header.count):
                found = raw
        if found is not None:
            return found
        before, step = begin, step * further
    return None


async def last_committed(cluster: Cluster, partition: TopicPartition) -> RawBatch | None:
    """The last batch with records that a consumer of committed data sees, as its broker stores it and with a sound CRC;
    None where there is none.

    What is behind an open transaction does not count yet. For a partition that one transactional id writes to, nothing
    is open once `Transaction.begin` has returned: by then the markers of all earlier ones are in the log.
    Raises ClusterUnreachable, AccessDenied, MalformedBatch, and BrokerError, with code 1 where the partition's oldest
    records were deleted meanwhile.
    """
    end = await list_offset(cluster, partition, LATEST, READ_COMMITTED)
    start = await list_offset(cluster, partition, EARLIEST)
    found = await last_batch(cluster, partition, start, end, READ_COMMITTED, FIRST_STEP, 2)
    if found is not None and not crc_holds(found):
        raise MalformedBatch(f"{cluster}: {partition}: the CRC does not hold", 0, found.header.base_offset)
    return found
