"""`readStream`: batches as they arrive, each in one micro-batch.

An offset of Spark's is the next offset of each partition. Only what is decided is read, up to the last stable offset,
so that each batch's outcome is known; a range is read again as it was, since brokers do not change what is decided.
Partitions that are added are read from their beginning.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mirror.errors import ConfigError
from mirror.policy.rules import Rules
from mirror.spark.batches.options import Options
from mirror.spark.batches.plan import Extent, chosen, extents, rules_of, slice_of
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition
from mirror.wire.queries import list_offset

#: How long to wait where nothing is new: Spark asks again after 10 ms.
_PAUSE: Final = 0.2


class BatchStream(DataSourceStreamReader):
    """A growing read of a cluster's topics."""

    def __init__(self, options: Options) -> None:
        """Raises ConfigError for files, and for an end, which a stream does not have."""
        if options.path is not None:
            raise ConfigError("kafka-batches: files are read by spark.read, a stream is of a cluster")
        self._options, self._endpoint = options, Endpoint.of(options.cluster).bounded(options.bytes_per_second)
        self._rules: Mapping[str, Rules] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 -- Spark's name
        """Where the logs begin, or what is wanted of them does."""
        return {_key(one): one.start for one in asyncio.run(self._extents(from_start=True))}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802 -- Spark's; no limits
        """The last stable offsets of now; of no partition behind where it was."""
        found = asyncio.run(self._extents())
        latest = start | {_key(one): max(one.stable, start.get(_key(one), 0)) for one in found}
        if latest == start:
            time.sleep(_PAUSE)
        return dict(sorted(latest.items()))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """A range of each partition that has something new."""
        missing = {_partition(key).topic for key in end} - self._rules.keys()
        if missing:
            self._rules = {**self._rules, **rules_of(self._options, sorted(missing))}
        made = []
        for key, until in end.items():
            begin = start.get(key, 0)
            if begin < until:
                partition = _partition(key)
                extent = Extent(partition, 0, until, until)
                rules, wanted = self._rules[partition.topic], self._options.wanted
                made.append(slice_of(self._options, self._endpoint, extent, wanted, rules, begin, until))
        return [InputPartition(one) for one in made]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        return iter(partition.value.read())

    async def _extents(self, *, from_start: bool = False) -> list[Extent]:
        wanted = self._options.wanted
        async with Cluster(self._endpoint) as cluster:
            found = await extents(cluster, chosen(self._options, wanted), wanted)
            if not from_start:
                return found
            return [await self._begun(cluster, one) for one in found]

    async def _begun(self, cluster: Cluster, extent: Extent) -> Extent:
        """From the first offset that is wanted."""
        wanted, start = self._options.wanted, extent.start
        if wanted.since is not None:
            at = await list_offset(cluster, extent.partition, max(0, wanted.since))
            start = max(start, at if at >= 0 else extent.stable)
        return replace(extent, start=max(start, min(wanted.first, extent.stable)))


def _key(extent: Extent) -> str:
    """A topic's name holds no colon (Kafka `Topic.validate`)."""
    return f"{extent.partition.topic}:{extent.partition.partition}"


def _partition(key: str) -> TopicPartition:
    topic, _, number = key.partition(":")
    return TopicPartition(topic, int(number))
