"""What one writes to copy a topic without a framework: consume, produce to the same partition, with Kafka's C client.

It ends behind the last record that is there when it comes to it.

    python -m mirror.lab.bench.loop SOURCE TARGET FROM TO CODEC
"""

from __future__ import annotations

import sys
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
    source, target, topic, copy, codec = sys.argv[1:]
    consumer = Consumer({**CONSUMER, "bootstrap.servers": source})
    producer = Producer({**PRODUCER, "bootstrap.servers": target, "compression.type": codec})
    open_ = set(consumer.list_topics(topic, 20).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in sorted(open_)])
    while open_:
        message: Any
        for message in consumer.consume(10_000, 0.5):
            if (problem := message.error()) is not None:
                if problem.code() != KafkaError._PARTITION_EOF:
                    raise SystemExit(str(problem))
                open_.discard(message.partition())
                continue
            _send(producer, copy, message)
        producer.poll(0)
    consumer.close()
    if left := producer.flush(60):
        raise SystemExit(f"{left} records were not acknowledged")


def _send(producer: Producer, topic: str, message: Any) -> None:
    while True:
        try:
            producer.produce(
                topic,
                message.value(),
                message.key(),
                partition=message.partition(),
                timestamp=message.timestamp()[1],
                headers=message.headers(),
            )
            return
        except BufferError:
            producer.poll(0.05)


if __name__ == "__main__":
    main()
