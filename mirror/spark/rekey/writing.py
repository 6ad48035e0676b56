"""The last step of a micro-batch: a slot's slices to batches, and these with the slot's number in one transaction."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext

from mirror import clock
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.log_reader import last_committed
from mirror.kafka.queries import LATEST, epoch_end, list_offset
from mirror.kafka.transactions import Transaction
from mirror.records.header import RawBatch, parse_header
from mirror.spark.datasource.rows import record_batch, schema_of
from mirror.spark.rekey.microbatch import (
    Reached,
    RekeyStop,
    Work,
    foreign_in,
    last_plan,
    lost_behind,
    lost_of,
    number_at,
    numbered,
    reached_in,
    stamped,
    transactional_id,
    undecided_in,
)
from mirror.states import State

if TYPE_CHECKING:
    from mirror.records.columns import Records

#: Decoded bytes of records that become one batch, as with a producer whose `batch.size` this is.
BATCH_BYTES: Final = 1 << 20
#: What is counted, as the live task's verdicts are: batches of re-keyed records, and those that kept their bytes.
RE_KEYED: Final = "REWRITE/re-keyed"
KEPT_WHOLE: Final = "RESTAMP/kept-whole"
DEAD_LETTER: Final = "DROP/dead-letter"
#: What a slot's share of a micro-batch may take, its input included.
TRANSACTION_MS: Final = 300_000
RESULT_DDL: Final = (
    "source_partition int, verdict string, records bigint, batches bigint, bytes bigint, max_timestamp bigint,"
    " committed_ms bigint"
)
_RESULT: Final = schema_of(RESULT_DDL)


@dataclass(slots=True)
class _Count:
    records: int = 0
    batches: int = 0
    bytes: int = 0
    newest: int = -1


@dataclass(slots=True)
class _Run:
    """Records on their way into one batch of one target partition."""

    place: TopicPartition | None = None
    codec: int = 0
    sources: list[int] = field(default_factory=list)
    parts: list[Records] = field(default_factory=list)
    bytes: int = 0


def written(work: Work) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `map_in_arrow` over sorted slices, one slot a task: results."""

    def step(slices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield asyncio.run(_write(work, context.partitionId(), slices))

    return step


async def _write(work: Work, slot: int, slices: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    async with Cluster(work.target) as cluster:
        rule = work.plan.rule
        await cluster.refresh(sorted(rule.own_topics))
        if work.plan.target_id is not None and cluster.topic_id(rule.target) != work.plan.target_id:
            raise RekeyStop(State.RECREATED, -1, -1, f"the target topic {rule.target} was deleted and made anew")
        transaction = await Transaction.begin(cluster, transactional_id(rule, slot), TRANSACTION_MS)
        latest = await last_plan(cluster, rule)
        if latest is None or latest.number != work.plan.number:  # this task is late: another plan holds now
            detail = f"micro-batch {work.plan.number} was planned anew before slot {slot} began with it"
            raise RekeyStop(State.FENCED, -1, -1, detail)
        done = reached_in(await last_committed(cluster, number_at(rule, slot)))
        if done.number == work.plan.number:
            return _results({})
        if done.number != work.plan.after:
            detail = f"slot {slot} has committed micro-batch {done.number} where {work.plan.after} was expected"
            raise RekeyStop(State.FENCED, -1, -1, detail)
        ends = {TopicPartition(rule.target, number): kept for number, kept in done.ends.items()}
        _check_lost(await undecided_in(cluster, ends, dict.fromkeys(ends, transactional_id(rule, slot))))
        writer = _Writer(work, slot, transaction, cluster, done)
        try:
            for batch in slices:
                for row in batch.to_pylist():
                    await writer.take(row)
            await writer.finish()
        except RekeyStop:  # else readers of committed records wait behind it until somebody begins with the slot
            await transaction.abort()
            raise
        return _results(writer.counts)


class _Writer:
    """Batches of one slot, into one transaction; one is on its way while the next one is made."""

    def __init__(self, work: Work, slot: int, transaction: Transaction, cluster: Cluster, done: Reached) -> None:
        self._work, self._slot, self._transaction = work, slot, transaction
        self._cluster, self._done = cluster, done
        self._landed: dict[TopicPartition, int] = {}
        self._gaps: list[tuple[TopicPartition, int, int]] = []  # offsets before a batch that are not the slot's
        self._run = _Run()
        self._sending: asyncio.Task[Any] | None = None
        self.counts: dict[tuple[int, str], _Count] = {}

    async def take(self, row: dict[str, Any]) -> None:
        """The next slice, in order of target partition, source partition and offset."""
        from mirror.records.columns import decode  # noqa: PLC0415 -- loads the compiler
        from mirror.spark.rekey.packing import SliceKind  # noqa: PLC0415 -- likewise

        assert row["slot"] == self._slot, f"Spark gave slot {self._slot} what is slot {row['slot']}'s"
        kind, rule = SliceKind(row["kind"]), self._work.plan.rule
        if kind is SliceKind.COUNTERS:
            self._count(row, f"DROP/{row['reason']}", row["records"])
            return
        is_dead = kind is SliceKind.DEAD
        place = TopicPartition(rule.dead_letter, 0) if is_dead else TopicPartition(rule.target, row["target_partition"])
        run = self._run
        if place != run.place or row["codec"] != run.codec or run.bytes >= BATCH_BYTES or kind is SliceKind.BATCH:
            await self._flush()
            run = self._run = _Run(place, row["codec"])
        if kind is SliceKind.BATCH:
            data = memoryview(row["data"])
            self._count(row, KEPT_WHOLE, row["records"], 1, len(data))
            await self._send(place, RawBatch(parse_header(data), data))
            return
        part = decode(row["data"], row["records"], row["first_offset"], row["base_timestamp"])
        run.parts.append(part)
        run.bytes += len(row["data"])
        run.sources.append(row["source_partition"])
        self._count(row, DEAD_LETTER if is_dead else RE_KEYED, row["records"])

    async def finish(self) -> None:
        """All that was taken, and the number, are committed.

        Raises RekeyStop where the target lost records of the slot, or others wrote in between: from then on this would
        stand before the slot's end, where nobody looks for it any more.
        """
        await self._flush()
        await self._sent()
        ends = await self._kept_ends()
        for partition, begin, end in self._gaps:
            if found := await foreign_in(self._cluster, partition, begin, end):
                raise RekeyStop(State.DIVERGED, -1, -1, found)
        reached = replace(self._done, number=self._work.plan.number, ends={**self._done.ends, **ends})
        await self._send(number_at(self._work.plan.rule, self._slot), numbered(reached))
        await self._sent()
        await self._transaction.commit()

    async def _kept_ends(self) -> dict[int, tuple[int, int]]:
        """By target partition, what `Reached.ends` says of it from now on.

        Raises RekeyStop where the target lost what the new ends would hide: it is asked here, behind the last
        acknowledgment, since a broker may have crashed at any moment before.
        """
        landed = {
            partition: end for partition, end in self._landed.items() if partition.topic == self._work.plan.rule.target
        }
        # each leader answers with its own epoch: no record that it has acknowledged is newer
        now = await asyncio.gather(*(epoch_end(self._cluster, partition) for partition in landed))
        for (topic_partition, end), kept in zip(landed.items(), now, strict=True):
            _check_lost(lost_behind(topic_partition, kept.end, end))
        before = {
            partition: self._done.ends[partition.partition]
            for partition in landed
            if partition.partition in self._done.ends
        }
        asked = (lost_of(self._cluster, partition, end, epoch) for partition, (epoch, end) in before.items())
        for lost in await asyncio.gather(*asked):
            _check_lost(lost)
        return {
            partition.partition: (kept.epoch, end) for (partition, end), kept in zip(landed.items(), now, strict=True)
        }

    def _count(self, row: dict[str, Any], verdict: str, records: int, batches: int = 0, size: int = 0) -> None:
        count = self.counts.setdefault((row["source_partition"], verdict), _Count())
        count.records += records
        count.batches += batches
        count.bytes += size
        count.newest = max(count.newest, row["max_timestamp"])

    async def _flush(self) -> None:
        from mirror.records.columns import joined  # noqa: PLC0415 -- loads the compiler
        from mirror.records.rewrite import fitting  # noqa: PLC0415 -- likewise

        run, self._run = self._run, _Run()
        if not run.parts or run.place is None:
            return
        shares = Counter(dict.fromkeys(run.sources, 0))
        for source, part in zip(run.sources, run.parts, strict=True):
            shares[source] += len(part)
        most_of_it, whole = shares.most_common(1)[0][0], shares.total()
        most = self._work.plan.rule.max_bytes
        for batch, _ in fitting(joined(run.parts), run.codec, most):
            if run.place.topic == self._work.plan.rule.target:  # counted for that which most records are of
                self.counts[most_of_it, RE_KEYED].batches += 1
                for source, share in shares.items():
                    self.counts[source, RE_KEYED].bytes += batch.header.size * share // whole
            await self._send(run.place, batch)

    async def _send(self, place: TopicPartition, batch: RawBatch) -> None:
        await self._sent()
        await self._transaction.join([place])
        self._sending = asyncio.create_task(self._append(place, batch))

    async def _append(self, place: TopicPartition, batch: RawBatch) -> None:
        transaction, rule = self._transaction, self._work.plan.rule
        offset = (await transaction.append({place: batch}))[place]
        if not rule.may_stamp and (landed := transaction.stamped.get(place)) is not None:
            raise stamped(rule, place.topic, f"{place} gave the batch at offset {landed} a time of its own")
        if offset < 0:  # the leader does not say where it is: at the end of the log
            self._landed[place] = await list_offset(self._cluster, place, LATEST)
            return
        if place.topic == rule.target:
            before = self._landed.get(place)
            _, end = self._done.ends.get(place.partition, (-1, 0))
            _check_lost(lost_behind(place, offset, end if before is None else before))
            gap = self._done.gap(place.partition, offset) if before is None else before < offset and (before, offset)
            if gap:
                self._gaps.append((place, *gap))
        self._landed[place] = offset + batch.header.last_offset_delta + 1

    async def _sent(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            await sending


def _check_lost(lost: str) -> None:
    """Raises RekeyStop where the target lost records, which are these in words."""
    if lost:
        raise RekeyStop(State.TARGET_LOST, -1, -1, lost)


def _results(counts: dict[tuple[int, str], _Count]) -> pa.RecordBatch:
    now = clock.now_ms()
    rows = [
        (partition, verdict, count.records, count.batches, count.bytes, count.newest, now)
        for (partition, verdict), count in counts.items()
    ]
    return record_batch(_RESULT, zip(*rows, strict=True))
