"""Spark's own Kafka connector from source to sink, as one batch query: what `mirror bench` measures beside the mirror.

python -m mirror.lab.bench.kafka_copy JARS SOURCE TARGET FROM TO CODEC
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    """Copy everything that is there when it starts."""
    jars, source, target, topic, copy, codec = sys.argv[1:]
    session = (
        SparkSession.builder.master("local[*]")
        .appName("kafka-copy")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    records = (
        session.read.format("kafka")
        .option("kafka.bootstrap.servers", source)
        .option("kafka.max.partition.fetch.bytes", str(8 << 20))
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .load()
    )
    (
        records.select("key", "value", "headers", "partition")
        .write.format("kafka")
        .option("kafka.bootstrap.servers", target)
        .option("kafka.compression.type", codec)
        .option("kafka.batch.size", str(1 << 20))
        .option("kafka.linger.ms", "50")
        .option("kafka.buffer.memory", str(128 << 20))
        .option("topic", copy)
        .save()
    )
    session.stop()


if __name__ == "__main__":
    main()
