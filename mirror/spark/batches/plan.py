"""What is asked for, as slices for tasks: one for each segment, and ranges of about 128 MB of live partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mirror.admin.client import Admin
from mirror.admin.judged import rules_for
from mirror.errors import ConfigError
from mirror.policy.rules import Rules
from mirror.policy.selection import selects
from mirror.spark.batches.files import Segment, found_at, is_older
from mirror.spark.batches.options import Options, folder_of
from mirror.spark.batches.rows import Place
from mirror.spark.batches.slices import FileSlice, LogSlice
from mirror.spark.batches.wanted import Wanted
from mirror.verify.ranges import cuts, measured
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition
from mirror.wire.queries import EARLIEST, LATEST, READ_COMMITTED, list_offset


@dataclass(frozen=True, slots=True)
class Extent:
    """A partition as it is now: offsets from `start` to before `end`, transactions decided below `stable`."""

    partition: TopicPartition
    start: int
    stable: int
    end: int


def planned(options: Options, wanted: Wanted) -> list[FileSlice] | list[LogSlice]:
    """The slices that hold what is `wanted`. Raises ConfigError, and ClusterError."""
    if options.path is not None:
        return [one for segments in found_at(folder_of(options.path)) for one in _of_files(options, wanted, segments)]
    topics = chosen(options, wanted)
    return asyncio.run(_of_cluster(options, wanted, topics, rules_of(options, topics)))


def chosen(options: Options, wanted: Wanted) -> Sequence[str]:
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


async def extents(cluster: Cluster, topics: Sequence[str], wanted: Wanted) -> list[Extent]:
    """The partitions asked for, with their ends of now. Raises ConfigError for a topic that is not there."""
    await cluster.refresh(topics)
    if missing := [topic for topic in topics if topic not in cluster.topics]:
        raise ConfigError(f"{cluster}: no topic {', '.join(missing)}")

    async def of(partition: TopicPartition) -> Extent:
        start, stable, end = await asyncio.gather(
            list_offset(cluster, partition, EARLIEST),
            list_offset(cluster, partition, LATEST, READ_COMMITTED),
            list_offset(cluster, partition, LATEST),
        )
        return Extent(partition, start, stable, end)

    numbers = ((topic, number) for topic in topics for number in sorted(cluster.topics[topic].leaders))
    partitions = [TopicPartition(*one) for one in numbers if wanted.has_partition(one[1])]
    return list(await asyncio.gather(*map(of, partitions)))


def _of_files(options: Options, wanted: Wanted, segments: Sequence[Segment]) -> list[FileSlice]:
    first = segments[0]
    asked = options.wanted.has_topic(first.topic) and wanted.has_topic(first.topic)
    if not asked or not wanted.has_partition(first.partition):
        return []
    ends = [one.base_offset for one in segments[1:]] + [None]
    return [
        FileSlice(
            place=Place(topic=one.topic, partition=one.partition, file=one.address),
            base_offset=one.base_offset,
            is_last=end is None,
            rules=Rules(),
            wanted=wanted,
            detail=options.detail,
        )
        for index, (one, end) in enumerate(zip(segments, ends, strict=True))
        if one.base_offset < wanted.before
        # files may be named alike, or not as a broker does: where one ends is then not told by the next one's name
        and (end is None or end > wanted.first or end == one.base_offset)
        and (wanted.since is None or not is_older(segments, index, wanted.since))
    ]


async def _of_cluster(
    options: Options, wanted: Wanted, topics: Sequence[str], rules: Mapping[str, Rules]
) -> list[LogSlice]:
    endpoint = Endpoint.of(options.cluster).bounded(options.bytes_per_second)
    async with Cluster(endpoint) as cluster:
        found = await extents(cluster, topics, wanted)
        return [
            slice_of(options, endpoint, one, wanted, rules[one.partition.topic], begin, end)
            for one in found
            for begin, end in await _ranges(cluster, one, wanted)
        ]


async def _ranges(cluster: Cluster, extent: Extent, wanted: Wanted) -> list[tuple[int, int]]:
    """Ranges of one partition about equal in bytes, cut behind batches."""
    partition, begin, end = extent.partition, max(extent.start, wanted.first), min(extent.end, wanted.before)
    if wanted.since is not None:
        found = await list_offset(cluster, partition, max(0, wanted.since))
        begin = max(begin, found if found >= 0 else end)
    if begin >= end:
        return []
    return list(pairwise(await cuts(cluster, partition, begin, end, await measured(cluster, partition, begin, end))))


def slice_of(
    options: Options, endpoint: Endpoint, extent: Extent, wanted: Wanted, rules: Rules, begin: int, end: int
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
