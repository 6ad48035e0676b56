"""Batches as rows: `spark.read.format("kafka-batches")` over clusters and segment files, one row for each raw batch.

from mirror.spark.datasource import records, register

register(spark)
batches = spark.read.format("kafka-batches").load("/var/lib/kafka/data")
"""

from mirror.spark.datasource.rows import records
from mirror.spark.datasource.source import register

__all__ = ["records", "register"]
