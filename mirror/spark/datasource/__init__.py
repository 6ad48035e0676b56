"""Batches as rows: `spark.read.format("kafka-batches")` over clusters and segment files, one row for each raw batch.

    from mirror.spark.datasource import records, register

    register(spark)
    batches = spark.read.format("kafka-batches").load("/var/lib/kafka/data")

options   what may be asked for         plan     slices of logs, one for each task
wanted    which batches                 pushed   the same from a query's filters
rows      batches to Arrow columns      slices   reading, in a task
source    what Spark calls              stream   the same for `readStream`
records   batches to records            files    segments on any filesystem that Arrow opens
"""

from mirror.spark.datasource.rows import records
from mirror.spark.datasource.source import register

__all__ = ["records", "register"]
