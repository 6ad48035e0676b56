"""The ledgers of a lane: begun from what the journal holds, and recorded there while the lane runs.

What the target lost is taken back in the journal before anything else may land in its place. Other records may come
there: a source deletes, and a target topic is made anew to begin where the source begins by now. Whoever died before
it recorded those would leave runs that tell of the ones before, and its successor would go on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mirror.observe import logs
from mirror.offsets import runlog
from mirror.offsets.journal import Journal
from mirror.offsets.runlog import Indexes, Recorded
from mirror.policy.runs import Ledger, RunIndex, Runs
from mirror.wire.cluster import TopicPartition
from mirror.wire.queries import EARLIEST, list_offset


class Ledgers:
    """Of the target partitions of one lane. `recall` is what a pipeline asks (`retracing.Recall`)."""

    def __init__(self, journal: Journal, last: Mapping[TopicPartition, Runs], read_until: int | None) -> None:
        """`last`: the newest runs of each partition as the journal had them before offset `read_until`; None where it
        was not read.
        """
        self._journal, self._last, self._read_until = journal, dict(last), read_until
        self._ledgers: dict[TopicPartition, Ledger] = {}
        self._cut_back: set[TopicPartition] = set()
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()
        self._is_read = False

    async def recall(self, target: TopicPartition, end: int) -> Ledger:
        """The ledger of a partition whose log ends at `end`, and neither it nor the journal tells of more than that; an
        empty one where nothing is recorded.

        Raises as `Journal.read` and `Journal.append` do.
        """
        async with self._reading:  # once for all partitions
            if not self._is_read:
                await self._read()
        ledger = self._ledgers.get(target)
        if ledger is None:
            ledger = self._ledgers[target] = Ledger(self._last.pop(target, None))
        if end < ledger.runs.next_target:
            self._cut_back.add(target)
        if target in self._cut_back:
            async with self._writing:
                if ledger.runs.begin > end:
                    await self._go_back(target, ledger, end)
                ledger.cut(end)
                await self._write({target: ledger})
            self._cut_back.discard(target)
        return ledger

    async def record(self) -> None:
        """Write down what was mirrored since the last time. Raises as `Journal.append` does."""
        async with self._writing:
            await self._write(self._ledgers)

    async def _write(self, ledgers: Mapping[TopicPartition, Ledger]) -> None:
        entries = [entry for target, ledger in ledgers.items() for entry in runlog.entries(target, ledger)]
        told = list(ledgers.values())  # others may begin meanwhile
        await self._journal.append_all(entries)
        for ledger in told:
            ledger.recorded()

    async def _read(self) -> None:
        entries, _ = await self._journal.read(self._read_until)
        told = list(runlog.recorded(entries))
        if self._read_until is not None and any(map(self._takes_back, told)):
            entries, _ = await self._journal.read()
            self._read_until = None
        if self._read_until is None:
            self._last = Indexes(entries).last()
        else:
            for recorded in told:
                self._learn(recorded)
        self._is_read = True

    def _takes_back(self, recorded: Recorded) -> bool:
        """Runs that `last` tells of are gone: those before them are asked for."""
        known = self._last.get(recorded.target)
        return recorded.runs is None and known is not None and recorded.begin >= known.begin

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


async def indexes_of(journal: Journal) -> Indexes:
    """Where offsets moved to, as far as a journal tells; nothing where there is none. Raises as `Journal.read` does."""
    return Indexes((await journal.read())[0] if journal.partition.topic in journal.cluster.topics else ())


async def forget_expired(journal: Journal, indexes: Indexes) -> None:
    """Delete from the journal what tells of records that the targets deleted, and let indexes know where these begin;
    not of partitions without a leader, which may be gone for good. Raises as `list_offset` and `Journal.append` do.
    """
    cluster = journal.cluster
    asked = [
        at for at, index in indexes.items() if (index.begin or len(index.pieces) > 1) and cluster.leader(at).node >= 0
    ]
    found = await asyncio.gather(*(list_offset(cluster, at, EARLIEST) for at in asked))
    for at, log_start in zip(asked, found, strict=True):
        indexes[at].log_start = log_start
    await journal.append_all(indexes.expired(dict(zip(asked, found, strict=True))))
