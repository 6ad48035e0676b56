"""The data source `kafka-batches`: planned on the driver, read by tasks, as a batch or a stream.

An offset of Spark's is the next offset of each partition. Only what is decided is read, up to the last stable offset,
so that each batch's outcome is known; a range is read again as it was, since brokers do not change what is decided.
Partitions that are added are read from where their logs begin when a stream first sees them, which its offsets of that
time hold, too: a log need not begin at 0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from mirror.errors import ConfigError
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import begin_since
from mirror.policy.rules import Rules
from mirror.spark.compat import require
from mirror.spark.datasource.options import Options, WantedBatches, parse
from mirror.spark.datasource.plan import LogExtent, chosen, extents, planned, rules_of, slice_of
from mirror.spark.datasource.rows import DDL

# --- A query's filters as what need not be read -----------------------------------------------------------------------

_Narrow = Callable[[WantedBatches, Any], WantedBatches]


def _milliseconds(value: object) -> int:
    """A time as Kafka has it, rounded down; a number is one already."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000)
    return int(str(value))


_OFFSETS: Final = ("base_offset", "last_offset")
_ABOVE: Final = ("GreaterThan", "GreaterThanOrEqual")
_BELOW: Final = ("LessThan", "LessThanOrEqual")
#: Filters by the names of their classes, which Spark 4.0 does not have yet, columns, and what those on these narrow.
#: A base offset that is greater than a value has a last offset that is, too; nothing else distinguishes the two, and
#: Spark tries again.
_NARROWS: Final[tuple[tuple[tuple[str, ...], tuple[str, ...], _Narrow], ...]] = (
    (("EqualTo",), ("topic",), lambda wanted, value: wanted.of_topics(frozenset([value]))),
    (("EqualTo",), ("partition",), lambda wanted, value: wanted.of_partitions(frozenset([value]))),
    (("In",), ("topic",), lambda wanted, values: wanted.of_topics(frozenset(values))),
    (("In",), ("partition",), lambda wanted, values: wanted.of_partitions(frozenset(values))),
    (("EqualTo",), _OFFSETS, lambda wanted, value: wanted.of_offsets(first=value, before=value + 1)),
    (_ABOVE, _OFFSETS, lambda wanted, value: wanted.of_offsets(first=value)),
    (_BELOW, _OFFSETS, lambda wanted, value: wanted.of_offsets(before=value + 1)),
    (
        ("EqualTo", *_ABOVE),
        ("max_timestamp", "max_time"),
        lambda wanted, value: wanted.of_times(since=_milliseconds(value)),
    ),
    (
        ("EqualTo", *_BELOW),
        ("base_timestamp", "base_time"),
        lambda wanted, value: wanted.of_times(until=_milliseconds(value) + 1),
    ),
)
_TABLE: Final[Mapping[tuple[str, str], _Narrow]] = {
    (kind, column): narrow for kinds, columns, narrow in _NARROWS for kind in kinds for column in columns
}


def narrowed(wanted: WantedBatches, filters: Iterable[Any]) -> WantedBatches:
    """What is left to read where all `filters` hold; one that says nothing about that is passed over."""
    for filter_ in filters:
        column: tuple[str, ...] = getattr(filter_, "attribute", ())
        if len(column) != 1 or (narrow := _TABLE.get((type(filter_).__name__, column[0]))) is None:
            continue
        value: Any = getattr(filter_, "value", None)
        if type(filter_).__name__ == "In":
            value = tuple(each for each in value if each is not None)
        if value is not None:
            wanted = narrow(wanted, value)
    return wanted


# --- `readStream` -----------------------------------------------------------------------------------------------------

#: How long to wait where nothing is new: Spark asks again after 10 ms.
_PAUSE: Final = 0.2
#: Ends the key of where a partition begins that is new in an offset of Spark's.
_BEGIN: Final = ":begin"


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
        return {_key(extent): extent.start for extent in asyncio.run(self._extents({}))}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802 -- Spark's; no limits
        """The last stable offsets of now; of no partition behind where it was."""
        known = {key: at for key, at in start.items() if not key.endswith(_BEGIN)}
        found = asyncio.run(self._extents(known))
        latest = known | {_key(extent): max(extent.stable, known.get(_key(extent), extent.start)) for extent in found}
        if latest == known:
            time.sleep(_PAUSE)
            return start
        begun = {f"{_key(extent)}{_BEGIN}": extent.start for extent in found if _key(extent) not in known}
        return dict(sorted((latest | begun).items()))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """A range of each partition that has something new."""
        until_of = {key: until for key, until in end.items() if not key.endswith(_BEGIN)}
        missing = {_partition(key).topic for key in until_of} - self._rules.keys()
        if missing:
            self._rules = {**self._rules, **rules_of(self._options, sorted(missing))}
        made = []
        for key, until in until_of.items():
            begin = start.get(key, end.get(f"{key}{_BEGIN}", 0))
            if begin < until:
                partition = _partition(key)
                extent = LogExtent(partition, 0, until, until)
                rules, wanted = self._rules[partition.topic], self._options.wanted
                made.append(slice_of(self._options, self._endpoint, extent, wanted, rules, begin, until))
        return [InputPartition(log_slice) for log_slice in made]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        return iter(partition.value.read())

    async def _extents(self, known: Collection[str]) -> list[LogExtent]:
        """All partitions of now; those that are not `known` from the first offset that is wanted."""
        wanted = self._options.wanted
        async with Cluster(self._endpoint) as cluster:
            found = await extents(cluster, chosen(self._options, wanted), wanted)
            return [extent if _key(extent) in known else await self._begun(cluster, extent) for extent in found]

    async def _begun(self, cluster: Cluster, extent: LogExtent) -> LogExtent:
        wanted, start = self._options.wanted, extent.start
        if wanted.since is not None:
            start = await begin_since(cluster, extent.partition, max(0, wanted.since), start, extent.stable)
        return replace(extent, start=max(start, min(wanted.first, extent.stable)))


def _key(extent: LogExtent) -> str:
    """A topic's name holds no colon (Kafka `Topic.validate`)."""
    return f"{extent.partition.topic}:{extent.partition.partition}"


def _partition(key: str) -> TopicPartition:
    topic, _, number = key.partition(":")
    return TopicPartition(topic, int(number))


# --- What Spark calls -------------------------------------------------------------------------------------------------

NAME: Final = "kafka-batches"
#: Off unless asked for, and while it is, a reader that takes filters is refused.
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


class KafkaBatches(DataSource):
    """`spark.read.format("kafka-batches")`; the module `options` lists what it takes."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> str:
        """The columns; the same whatever is asked for."""
        return DDL

    def reader(self, schema: StructType) -> BatchReader:  # noqa: ARG002 -- it is ours
        """Raises ConfigError for an option that is wrong."""
        options = parse(self.options)
        if options.pushdown:
            require("option pushdown of kafka-batches", "4.1")
        return PushedReader(options) if options.pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> BatchStream:  # noqa: ARG002, N802 -- Spark's name, and our schema
        """Raises ConfigError for an option that is wrong, and for files, which do not grow."""
        return BatchStream(parse(self.options))


class BatchReader(DataSourceReader):
    """A bounded read: the slices that hold what is wanted, one for each task."""

    def __init__(self, options: Options) -> None:
        self._options, self._wanted = options, options.wanted

    def partitions(self) -> list[InputPartition]:
        """Raises ConfigError, and ClusterError."""
        return [InputPartition(file_slice) for file_slice in planned(self._options, self._wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Nothing where nothing was planned: Spark then reads one partition that holds None."""
        return iter(()) if partition.value is None else partition.value.read()


class PushedReader(BatchReader):
    """The same, which also leaves out what a query's filters leave out.

    Decision: by an option, since Spark 4.3 keeps what the first query's filters made of a reader for every later query
    of the same DataFrame, which then lacks rows.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 -- Spark's name
        """Narrow what is read. Spark is to apply all filters again."""
        self._wanted = narrowed(self._wanted, filters)
        return filters
