"""Batches as rows: `spark.read.format("kafka-batches")` over clusters and segment files, one row for each raw batch.

from mirror.spark.datasource import records, register

register(spark)
batches = spark.read.format("kafka-batches").load("/var/lib/kafka/data")
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from mirror.spark.compat import VERSION, require
from mirror.spark.datasource.rows import records

__all__ = ["records", "register"]


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let it hand filters down to Python where it can (Spark 4.1).

    Raises ConfigError below 4.0, which has no data sources in Python.
    """
    require("kafka-batches", "4.0")
    from mirror.spark.datasource.source import PUSHDOWN, KafkaBatches  # noqa: PLC0415 -- the API that 3.5 has not

    if VERSION >= (4, 1):
        spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(KafkaBatches)
