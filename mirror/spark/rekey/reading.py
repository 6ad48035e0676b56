"""The first step of a micro-batch: ranges of source partitions, fetched, and decoded as far as somebody looks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from mirror.errors import ClusterUnreachable
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.log_reader import ReadLog, driven
from mirror.kafka.queries import EARLIEST, epoch_end, list_offset
from mirror.records.compare import is_a_mirrors_padding
from mirror.records.header import RawBatch, parse_header
from mirror.spark.datasource.rows import binary, header_lists, times
from mirror.spark.rekey.expressions import RECORD
from mirror.spark.rekey.microbatch import RekeyStop, Work
from mirror.states import State

if TYPE_CHECKING:
    from mirror.records.columns import Records

#: Columns of the rows that leave this step besides those that expressions look at. The first row of each portion of a
#: source batch says how many rows there are of it; that of the first portion has the batch's bytes as stored.
CARRIED: Final = {"source_partition": "int", "batch": "binary", "rows": "int"}


def sound_batches(work: Work, partition: int, begin: int, until: int) -> Iterator[RawBatch]:
    """The committed batches that hold offsets from `begin` to before `until`, without markers, what is empty, and what
    another mirror pads the source with.

    Raises RekeyStop where one is damaged, or the source has no longer what was planned; ClusterError.
    """
    return driven(_batches(work, TopicPartition(work.plan.rule.source, partition), begin, until))


async def _batches(work: Work, partition: TopicPartition, begin: int, until: int) -> AsyncGenerator[RawBatch, None]:
    async with Cluster(work.source) as cluster:
        await cluster.refresh([partition.topic])
        _check_topic(work, cluster, partition, begin)
        start = await list_offset(cluster, partition, EARLIEST)
        if start > begin:  # the driver knows whether that may be passed over
            detail = f"the source deleted offsets {begin} to {start - 1} before they were re-keyed"
            raise RekeyStop(State.RETENTION_GAP, partition.partition, begin, detail)
        log = ReadLog(cluster, partition, until, until)
        async for raw in log.committed(begin):
            if not is_a_mirrors_padding(raw):  # the source is a copy, which begins with it for a moment
                yield raw
        if log.damage:
            raise RekeyStop(State.CORRUPT, partition.partition, max(log.at, begin), str(log.damage))
        _check_topic(work, cluster, partition, begin)  # whoever reads on after an error reads by what is there then
        epoch = work.plan.epochs[partition.partition]
        if (
            epoch not in {-1, cluster.leader(partition).epoch}
            and 0 <= (await epoch_end(cluster, partition, epoch)).end < until
        ):
            # what was read is of the log that took its place; the driver finds out where that begins
            raise ClusterUnreachable(
                f"{cluster}: the log of {partition} was cut back below {until} after that was planned"
            )


def _check_topic(work: Work, cluster: Cluster, partition: TopicPartition, begin: int) -> None:
    if work.plan.source_id is not None and cluster.topic_id(partition.topic) != work.plan.source_id:
        raise RekeyStop(State.RECREATED, partition.partition, begin, "the source topic was deleted and made anew")


def packed(work: Work) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `map_in_arrow` over the numbers of the plan's ranges, where no expression has to see a record: slices."""

    def step(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from mirror.spark.rekey.packing import Packer  # noqa: PLC0415 -- loads the compiler

        for partition, begin, until in _ranges(work, numbers):
            packer = Packer(work, partition)
            for raw in sound_batches(work, partition, begin, until):
                for wanted in packer.wanted(raw):
                    packer.take(raw, wanted)
                    yield from packer.drain()
            yield from packer.drain(all_of_it=True)

    return step


def rows(work: Work, used: frozenset[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The same where expressions look at the columns `used`: a row for each record."""

    def step(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from mirror.spark.rekey.packing import Packer  # noqa: PLC0415 -- loads the compiler

        for partition, begin, until in _ranges(work, numbers):
            packer = Packer(work, partition)
            for raw in sound_batches(work, partition, begin, until):
                data: memoryview | None = raw.data
                for wanted in packer.wanted(raw):
                    yield _columns(work, partition, data, wanted, used)
                    data = None

    return step


def row_schema(used: frozenset[str]) -> str:
    """What `rows` gives, in Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in (CARRIED | _seen(used)).items())


def repacked(work: Work) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What comes of `rows` once the expressions were evaluated, as columns of `CARRIED` and `MADE`: slices."""

    def step(judged: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from mirror.spark.rekey.packing import Packer  # noqa: PLC0415 -- loads the compiler

        packer, current = None, None
        for partition, raw, made in _regrouped(judged):
            if packer is None or packer.partition != partition:
                if packer is not None:
                    yield from packer.drain(all_of_it=True)
                packer = Packer(work, partition)
            if raw is not current:
                current, wanted = raw, packer.wanted(raw)
            packer.take(raw, next(wanted), made)
            yield from packer.drain()
        if packer is not None:
            yield from packer.drain(all_of_it=True)

    return step


def _regrouped(judged: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, RawBatch, pa.StructArray]]:
    """Portions of source batches, by these, with what was made of their records: Spark hands rows on in pieces of its
    own.
    """
    raw, partition, missing, parts = None, -1, 0, list[Any]()
    for batch in judged:
        partitions, stored, counts, made = batch.columns
        at = 0
        while at < len(made):
            if not missing:
                partition, missing = partitions[at].as_py(), counts[at].as_py()
                if stored[at].is_valid:
                    data = memoryview(stored[at].as_buffer())
                    raw = RawBatch(parse_header(data), data)
            step = min(missing, len(made) - at)
            parts.append(made.slice(at, step))
            at, missing = at + step, missing - step
            if not missing:
                assert raw is not None
                yield partition, raw, pa.concat_arrays(parts)
                parts = []


def _seen(used: frozenset[str]) -> dict[str, str]:
    return {name: kind for name, kind in RECORD.items() if name in used}


def _columns(
    work: Work, partition: int, data: memoryview | None, wanted: Records, used: frozenset[str]
) -> pa.RecordBatch:
    from mirror.records.columns import column, header_columns  # noqa: PLC0415 -- loads the compiler

    count = len(wanted)
    columns: dict[str, pa.Array] = {
        "source_partition": pa.array(np.full(count, partition, np.int32)),
        "batch": _on_top(pa.array([data], pa.binary()), count),
        "rows": _on_top(pa.array([count], pa.int32()), count),
    }
    makers: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: pa.repeat(work.plan.rule.source, count),
        "partition": lambda: columns["source_partition"],
        "offset": lambda: pa.array(wanted.offsets),
        "timestamp": lambda: times(pa.array(wanted.timestamps)),
        "key": lambda: binary(*column(wanted, "key")),
        "value": lambda: binary(*column(wanted, "value")),
        "headers": lambda: header_lists(*header_columns(wanted)),
    }
    for name in _seen(used):
        columns[name] = makers[name]()
    return pa.RecordBatch.from_pydict(columns)


def _on_top(array: pa.Array, count: int) -> pa.Array:
    """A column whose first value is given, and the others are null."""
    return pa.concat_arrays([array, pa.nulls(count - 1, array.type)])


def _ranges(work: Work, numbers: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, int]]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield work.plan.ranges[number]
