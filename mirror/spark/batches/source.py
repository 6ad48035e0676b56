"""What Spark calls: the data source `kafka-batches`, planned on the driver and read by tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from mirror.spark.batches.options import Options, parse
from mirror.spark.batches.plan import planned
from mirror.spark.batches.pushed import narrowed
from mirror.spark.batches.rows import DDL
from mirror.spark.batches.stream import BatchStream

NAME: Final = "kafka-batches"
#: Off in Spark 4.3 unless asked for, and while it is, a reader that takes filters is refused.
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let it hand filters down to Python."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(KafkaBatches)


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
        return [InputPartition(one) for one in planned(self._options, self._wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Nothing where nothing was planned: Spark then reads one partition that holds None."""
        return iter(()) if partition.value is None else partition.value.read()


class PushedReader(BatchReader):
    """The same, which also leaves out what a query's filters leave out.

    Decision: by an option, since Spark 4.3 keeps what the first query's filters made of a reader for every later query
    of the same DataFrame, which then lacks rows.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 -- Spark's name
        """Narrow what is read. Spark is to apply all filters again."""
        self._wanted = narrowed(self._wanted, filters)
        return filters
