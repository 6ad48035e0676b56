"""The ledgers of a lane: begun from what the journal holds, and recorded there while the lane runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mirror.observe import logs
from mirror.offsets import runlog
from mirror.offsets.journal import Journal
from mirror.offsets.runlog import Indexes, Recorded
from mirror.policy.runs import Ledger, RunIndex, Runs
from mirror.wire.cluster import TopicPartition
from mirror.wire.queries import EARLIEST, list_offset

#: Bytes of records in one batch of the journal.
_BATCH_BYTES: Final = 256 * 1024


class Ledgers:
    """Of the target partitions of one lane. `recall` is what a pipeline asks (`retracing.Recall`)."""

    def __init__(self, journal: Journal, last: Mapping[TopicPartition, Runs], read_until: int | None) -> None:
        """`last`: the newest runs of each partition as the journal had them before offset `read_until`; None where it
        was not read.
        """
        self._journal, self._last, self._read_until = journal, dict(last), read_until
        self._ledgers: dict[TopicPartition, Ledger] = {}
        self._reading = asyncio.Lock()
        self._is_read = False

    async def recall(self, target: TopicPartition, end: int) -> Ledger:
        """The ledger of a partition, its runs beginning at or below `end`; an empty one where none such are recorded.

        Raises as `Journal.read` does.
        """
        async with self._reading:  # once for all partitions
            if not self._is_read:
                await self._read()
        ledger = self._ledgers.get(target)
        if ledger is None:
            ledger = self._ledgers[target] = Ledger(self._last.pop(target, None))
        if ledger.runs.begin > end:
            await self._go_back(target, ledger, end)
        return ledger

    async def record(self) -> None:
        """Write down what was mirrored since the last time. Raises as `Journal.append` does."""
        entries = [entry for target, ledger in self._ledgers.items() for entry in runlog.entries(target, ledger)]
        for batch in _batches(entries):
            await self._journal.append(batch)
        for ledger in self._ledgers.values():
            ledger.recorded()

    async def _read(self) -> None:
        entries, _ = await self._journal.read(self._read_until)
        if self._read_until is None:
            self._last = Indexes(entries).last()
        else:
            for recorded in runlog.recorded(entries):
                self._learn(recorded)
        self._is_read = True

    def _learn(self, recorded: Recorded) -> None:
        """Newer runs than `last`: the same ones as they are now, which may be shorter, or those that follow."""
        known, runs = self._last.get(recorded.target), recorded.runs
        if runs is None or known is None:
            if runs is not None and not runs.begin:
                self._last[recorded.target] = runs
        elif runs.begin in (known.begin, known.next_target):
            self._last[recorded.target] = runs

    async def _go_back(self, target: TopicPartition, ledger: Ledger, end: int) -> None:
        """The target lost more than the last runs tell of: the whole journal has to be asked."""
        entries, _ = await self._journal.read()
        index = Indexes(entries).get(target, RunIndex())
        kept = [runs for runs in index.pieces if runs.begin <= end]
        obsolete = [runs.begin for runs in index.pieces if runs.begin > end]
        logs.get(__name__).warning(
            "target_lost_records", topic=target.topic, partition=target.partition, offset=end, runs=len(obsolete)
        )
        ledger.restart(kept[-1] if kept else Runs(), obsolete)


async def forget_expired(journal: Journal, indexes: Indexes) -> None:
    """Delete from the journal what tells of records that the targets deleted. Raises as `Journal.append` does."""
    log_starts = {
        target: await list_offset(journal.cluster, target, EARLIEST)
        for target, index in indexes.items()
        if len(index.pieces) > 1
    }
    for batch in _batches(indexes.expired(log_starts)):
        await journal.append(batch)


def _batches(entries: Iterable[runlog.Change]) -> Iterator[list[runlog.Change]]:
    """Cut where a batch of the journal would become large."""
    batch: list[runlog.Change] = []
    size = 0
    for key, value in entries:
        if batch and size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((key, value))
        size += len(key) + len(value or b"")
    if batch:
        yield batch
