"""What one writes to copy topics without a framework: consume, produce to the same partition, with Kafka's C client.

With FIELD, that field of the JSON value becomes the key, in transactions of a second. It ends behind the last record
that is there when it comes to it.

    python -m mirror.lab.bench.loop SOURCE TARGET PREFIX CODEC FIELD TOPIC...
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

#: Room and batches as MirrorMaker 2 has them where it is tuned.
CONSUMER: Final = {
    "group.id": "mirror-bench-loop",
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "max.partition.fetch.bytes": 8 << 20,
    "fetch.max.bytes": 64 << 20,
    "queued.max.messages.kbytes": 128 << 10,
}
PRODUCER: Final = {
    "enable.idempotence": True,
    "batch.size": 1 << 20,
    "batch.num.messages": 100_000,
    "linger.ms": 50,
    "queue.buffering.max.kbytes": 256 << 10,
    "queue.buffering.max.messages": 1_000_000,
}


def main() -> None:
    """Copy everything that is there."""
    source, target, prefix, codec, field, *topics = sys.argv[1:]
    consumer = Consumer({**CONSUMER, "bootstrap.servers": source})
    keyed = {"transactional.id": f"rekey-{prefix}{topics[0]}", "partitioner": "murmur2"} if field else {}
    producer = Producer({**PRODUCER, **keyed, "bootstrap.servers": target, "compression.type": codec})
    open_ = {(topic, number) for topic in topics for number in consumer.list_topics(topic, 20).topics[topic].partitions}
    consumer.assign([TopicPartition(topic, number, 0) for topic, number in sorted(open_)])
    if field:
        producer.init_transactions()
        producer.begin_transaction()
    began = time.monotonic()
    while open_:
        message: Any
        for message in consumer.consume(10_000, 0.5):
            if (problem := message.error()) is not None:
                if problem.code() != KafkaError._PARTITION_EOF:
                    raise SystemExit(str(problem))
                open_.discard((message.topic(), message.partition()))
                continue
            _send(producer, f"{prefix}{message.topic()}", message, field)
        producer.poll(0)
        if field and (time.monotonic() - began > 1.0 or not open_):
            producer.commit_transaction()
            producer.begin_transaction()
            began = time.monotonic()
    consumer.close()
    if left := producer.flush(60):
        raise SystemExit(f"{left} records were not acknowledged")


def _send(producer: Producer, topic: str, message: Any, field: str) -> None:
    key, place = message.key(), {"partition": message.partition()}
    if field:
        key, place = str(json.loads(message.value())[field]), {}
    while True:
        try:
            producer.produce(
                topic, message.value(), key, timestamp=message.timestamp()[1], headers=message.headers(), **place
            )
            return
        except BufferError:
            producer.poll(0.05)


if __name__ == "__main__":
    main()
