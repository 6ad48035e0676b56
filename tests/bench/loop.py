"""What one writes to re-key a topic without a framework: consume, take a field of the JSON value as key, produce.

In transactions of a second that hold the consumer's offsets, as Kafka Streams does it with exactly-once semantics. It
ends behind the last record that is there when it starts.

    python -m tests.bench.loop BOOTSTRAP FROM TO FIELD CODEC
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition


def main() -> None:
    """Re-key everything that is there."""
    bootstrap, source, target, field, codec = sys.argv[1:]
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"rekey-{target}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "max.partition.fetch.bytes": 8 << 20,
            "fetch.max.bytes": 64 << 20,
            "queued.max.messages.kbytes": 128 << 10,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"rekey-{target}",
            "partitioner": "murmur2",
            "compression.type": codec,
            "batch.size": 1 << 20,
            "batch.num.messages": 100_000,
            "linger.ms": 50,
            "queue.buffering.max.kbytes": 256 << 10,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    numbers = sorted(consumer.list_topics(source, 20).topics[source].partitions)
    consumer.assign([TopicPartition(source, number, 0) for number in numbers])
    producer.init_transactions()
    open_, began = set(numbers), 0.0
    while open_:
        message: Any
        for message in consumer.consume(10_000, 0.5):
            if (problem := message.error()) is not None:
                if problem.code() != KafkaError._PARTITION_EOF:
                    raise SystemExit(str(problem))
                open_.discard(message.partition())
                continue
            if not began:
                producer.begin_transaction()
                began = time.monotonic()
            value = message.value()
            key, at = str(json.loads(value)[field]), message.timestamp()[1]
            while True:
                try:
                    producer.produce(target, value, key, timestamp=at, headers=message.headers())
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
        if began and (time.monotonic() - began > 1.0 or not open_):
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
            producer.commit_transaction()
            began = 0.0
    consumer.close()


if __name__ == "__main__":
    main()
