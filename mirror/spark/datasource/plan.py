"""Slices for tasks: segment files and ranges of live partitions, and how a task reads one.

A remote segment is copied into a file that has no name and is gone with the task, then mapped like a local one: the
disk holds it, not memory.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pyarrow as pa
from pyarrow import ArrowException
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from mirror.errors import BadRecords, BrokerError, ConfigError
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import OFFSET_OUT_OF_RANGE, Cluster, Endpoint, TopicPartition
from mirror.kafka.log_reader import ReadLog, driven
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, begin_since, list_offset
from mirror.policy.rules import Rules
from mirror.policy.selection import selects
from mirror.records.header import LAST_OFFSET, RawBatch
from mirror.records.segment import SPAN, Damage, Walk
from mirror.records.transactions import Outcome, Outcomes, TransactionScan
from mirror.segments.files import (
    LEFT_ASIDE,
    PARTITION_FOLDER,
    SUFFIX,
    Mapped,
    largest_timestamp,
    offset_of,
    scan_transactions,
)
from mirror.spark.datasource.options import Detail, Options, WantedBatches, folder_of
from mirror.spark.datasource.rows import Place, Rows
from mirror.topics.apply import rules_for
from mirror.verify.ranges import cuts, measured

# --- Segment files on this machine, or wherever Arrow reads (s3://, gs://, abfs://, hdfs://) --------------------------


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A file, with the partition that its folder names, if it does, and the base offset that it is named by."""

    topic: str | None
    partition: int | None
    base_offset: int
    address: str


def found_at(address: str) -> list[list[Segment]]:
    """The segments at an address, those of each partition together and in order. A folder that a broker is deleting,
    moving in or took for astray is passed over unless it is the address; one that goes meanwhile is not missed.

    Raises ConfigError where there are none.
    """
    try:
        files, path = FileSystem.from_uri(address)
        info = files.get_file_info(path)
        inside = FileSelector(path, allow_not_found=True, recursive=True)
        listed = [info] if info.is_file else files.get_file_info(inside)
    except (ArrowException, OSError) as problem:
        raise ConfigError(f"{address}: cannot be read: {problem}") from problem
    prefix = address.partition("://")[0] + "://" if "://" in address else ""
    logs: dict[str, list[Segment]] = {}
    for one in listed:
        name = PurePosixPath(one.path)
        if one.type is not FileType.File or not (info.is_file or name.suffix == SUFFIX):
            continue
        if not info.is_file and name.parent != PurePosixPath(path) and LEFT_ASIDE.fullmatch(name.parent.name):
            continue
        folder = PARTITION_FOLDER.fullmatch(name.parent.name)
        logs.setdefault(str(name.parent), []).append(
            Segment(
                folder[1] if folder else None,
                int(folder[2]) if folder else None,
                offset_of(Path(name)) or 0,
                prefix + one.path,
            )
        )
    if not logs:
        raise ConfigError(f"{address}: no segments (*{SUFFIX}) there; name a broker's data folder, or one in it")
    return [sorted(segments, key=lambda segment: segment.base_offset) for _, segments in sorted(logs.items())]


def following(address: str, base_offset: int) -> list[str]:
    """The segments behind one in its folder, in order. Raises ConfigError where the folder cannot be read."""
    folder = address.rpartition("/")[0]
    found = (segment for segments in found_at(folder) for segment in segments)
    return [
        segment.address
        for segment in found
        if segment.address.rpartition("/")[0] == folder and segment.base_offset > base_offset
    ]


def opened(address: str) -> Mapped:
    """A segment as memory. Raises ConfigError where it cannot be read."""
    files, path = FileSystem.from_uri(address)
    if isinstance(files, LocalFileSystem):
        return Mapped.of(Path(path))
    try:
        with files.open_input_stream(path) as remote, tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(remote, spool, 8 << 20)
            spool.flush()
            return Mapped.of_file(spool.fileno())
    except (ArrowException, OSError) as problem:
        raise ConfigError(f"{address}: cannot be read: {problem}") from problem


def is_older(segments: Sequence[Segment], index: int, since: int) -> bool:
    """Whether a segment's index says that all its records are older than `since`, in ms. Never of the last segment,
    which a broker may be writing, nor of a remote one.
    """
    if index == len(segments) - 1 or "://" in segments[index].address:
        return False
    largest = largest_timestamp(Path(segments[index].address))
    return largest is not None and largest < since


# --- Part of a log, as one task reads it ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """One segment. Unless it is the last of its partition, or was asked for alone, a transaction may end in those that
    follow; a slice does not list them, since together all slices would as often as the square of their number.
    """

    place: Place
    base_offset: int
    is_last: bool
    rules: Rules
    wanted: WantedBatches
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
        scan = TransactionScan()
        scan_transactions(scan, mapped)
        waiting = scan.open
        if not waiting or self.is_last:
            return scan.outcomes()
        for address in following(self.place.file or "", self.base_offset):
            if not waiting:
                break
            scan_transactions(scan, opened(address))
            still = scan.open
            waiting = {producer: first for producer, first in waiting.items() if still.get(producer) == first}
        return scan.outcomes()


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
    wanted: WantedBatches
    detail: Detail

    def read(self) -> Iterator[pa.RecordBatch]:
        """The same, in a loop of its own. Raises ClusterError, too."""
        return driven(self._batches())

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        async with Cluster(self.endpoint) as cluster:
            await cluster.refresh([self.partition.topic])
            log = ReadLog(cluster, self.partition, self.stable, self.end)
            rows = Rows(self.place, self.rules, self.detail)
            async for raw, outcome in self._read(cluster, log):
                if self.wanted.has(raw.header):
                    rows.take(raw, outcome)
                    if rows.full:
                        yield rows.drain()
            for made in _ended(rows, self.place, self.detail, log.damage, log.at):
                yield made

    async def _read(self, cluster: Cluster, log: ReadLog) -> AsyncGenerator[tuple[RawBatch, Outcome], None]:
        """What is there when it is read: retention may delete the first of it at any time."""
        begin = self.begin
        while True:
            try:
                async for batch in log.batches(begin):
                    yield batch
                return
            except BrokerError as problem:
                if not self.detail.skips or problem.code != OFFSET_OUT_OF_RANGE:
                    raise
                begin = await list_offset(cluster, self.partition, EARLIEST)
                if begin <= log.at:  # it was cut back
                    raise


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


# --- What is asked for, as slices for tasks ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogExtent:
    """A partition as it is now: offsets from `start` to before `end`, transactions decided below `stable`."""

    partition: TopicPartition
    start: int
    stable: int
    end: int


def planned(options: Options, wanted: WantedBatches) -> list[FileSlice] | list[LogSlice]:
    """The slices that hold what is `wanted`. Raises ConfigError, and ClusterError."""
    if options.path is not None:
        return [
            of_file
            for segments in found_at(folder_of(options.path))
            for of_file in _of_files(options, wanted, segments)
        ]
    topics = chosen(options, wanted)
    return asyncio.run(_of_cluster(options, wanted, topics, rules_of(options, topics)))


def chosen(options: Options, wanted: WantedBatches) -> Sequence[str]:
    """The topics to read of a cluster: those asked for, else those of the flow, else all but the brokers' own."""
    named = options.wanted.topics
    if named is not None:
        return sorted(filter(wanted.has_topic, named))
    names = [name for name in Admin(options.cluster).topics() if options.wanted.has_topic(name)]
    names = list(filter(wanted.has_topic, names))
    flow = options.flow
    if flow is not None and options.side == "source":
        return sorted(name for name in names if selects(name, flow.topics))
    if flow is not None:
        sources = (name for name in Admin(flow.source).topics() if selects(name, flow.topics))
        return sorted(set(names) & {flow.topics.naming.target_of(name) for name in sources})
    return sorted(names)


def rules_of(options: Options, topics: Sequence[str]) -> Mapping[str, Rules]:
    """By whose rules a topic's batches are judged: those of the flow's target topic, where there is a flow."""
    if options.flow is None or options.side == "target":
        return dict.fromkeys(topics, Rules())
    return {topic: rules_for(options.flow, topic)[0] for topic in topics}


async def extents(cluster: Cluster, topics: Sequence[str], wanted: WantedBatches) -> list[LogExtent]:
    """The partitions asked for, with their ends of now. Raises ConfigError for a topic that is not there."""
    await cluster.refresh(topics)
    if missing := [topic for topic in topics if topic not in cluster.topics]:
        raise ConfigError(f"{cluster}: no topic {', '.join(missing)}")

    async def of(partition: TopicPartition) -> LogExtent:
        start, stable, end = await asyncio.gather(
            list_offset(cluster, partition, EARLIEST),
            list_offset(cluster, partition, LATEST, READ_COMMITTED),
            list_offset(cluster, partition, LATEST),
        )
        return LogExtent(partition, start, stable, end)

    numbers = ((topic, number) for topic in topics for number in sorted(cluster.topics[topic].leaders))
    partitions = [TopicPartition(*number) for number in numbers if wanted.has_partition(number[1])]
    return list(await asyncio.gather(*map(of, partitions)))


def _of_files(options: Options, wanted: WantedBatches, segments: Sequence[Segment]) -> list[FileSlice]:
    first = segments[0]
    asked = options.wanted.has_topic(first.topic) and wanted.has_topic(first.topic)
    if not asked or not wanted.has_partition(first.partition):
        return []
    ends = [segment.base_offset for segment in segments[1:]] + [None]
    return [
        FileSlice(
            place=Place(topic=segment.topic, partition=segment.partition, file=segment.address),
            base_offset=segment.base_offset,
            is_last=end is None,
            rules=Rules(),
            wanted=wanted,
            detail=options.detail,
        )
        for index, (segment, end) in enumerate(zip(segments, ends, strict=True))
        if segment.base_offset < wanted.before
        # files may be named alike, or not as a broker does: where one ends then does not follow from the next one's
        # name
        and (end is None or end > wanted.first or end == segment.base_offset)
        and (wanted.since is None or not is_older(segments, index, wanted.since))
    ]


async def _of_cluster(
    options: Options, wanted: WantedBatches, topics: Sequence[str], rules: Mapping[str, Rules]
) -> list[LogSlice]:
    endpoint = Endpoint.of(options.cluster).bounded(options.bytes_per_second)
    async with Cluster(endpoint) as cluster:
        found = await extents(cluster, topics, wanted)
        return [
            slice_of(options, endpoint, extent, wanted, rules[extent.partition.topic], begin, end)
            for extent in found
            for begin, end in await _ranges(cluster, extent, wanted)
        ]


async def _ranges(cluster: Cluster, extent: LogExtent, wanted: WantedBatches) -> list[tuple[int, int]]:
    """Ranges of one partition about equal in bytes, cut behind batches."""
    partition, begin, end = extent.partition, max(extent.start, wanted.first), min(extent.end, wanted.before)
    if wanted.since is not None:
        begin = await begin_since(cluster, partition, max(0, wanted.since), begin, end)
    if begin >= end:
        return []
    return list(pairwise(await cuts(cluster, partition, begin, end, await measured(cluster, partition, begin, end))))


def slice_of(
    options: Options, endpoint: Endpoint, extent: LogExtent, wanted: WantedBatches, rules: Rules, begin: int, end: int
) -> LogSlice:
    """A range of one partition as a task reads it."""
    partition = extent.partition
    return LogSlice(
        place=Place(topic=partition.topic, partition=partition.partition, next_offset=extent.start),
        endpoint=endpoint,
        partition=partition,
        begin=begin,
        end=end,
        stable=extent.stable,
        rules=rules,
        wanted=wanted,
        detail=options.detail,
    )
