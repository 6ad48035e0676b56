"""Transactions on real brokers, and logs that a cleaner cleaned."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from helpers import RECENT_MS, wait_for_markers
from samerecords import read
from waiting import DEADLINE_S, until


def transactions(
    bootstrap: str, topic: str, outcomes: list[bool], *, size: int = 5, name: str = "", **more: Any
) -> None:
    """One transaction for each outcome (committed or not), `size` records each."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}{name}", **more})
    producer.init_transactions(DEADLINE_S)
    for number, committed in enumerate(outcomes):
        producer.begin_transaction()
        for index in range(size):
            value = b"%s %d %d %d" % (name.encode(), number, index, committed)
            while True:
                try:
                    producer.produce(topic, value, key=b"k%d" % index, partition=0, timestamp=RECENT_MS + number)
                    break
                except BufferError:  # its queue is full
                    producer.poll(0.1)
        producer.flush(DEADLINE_S)
        if committed:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
    wait_for_markers(bootstrap, topic)


#: Cleaned as soon as a segment is closed.
CLEANED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "100",
}


def write_over(bootstrap: str, topic: str) -> Producer:
    """2,000 records of 300 keys, in batches of a hundred; the producer."""
    client, random = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1000, "compression.type": "lz4"}), Random(5)
    for number in range(2000):
        client.produce(topic, b"%d" % number, key=b"%d" % random.randrange(300), partition=0)
        if number % 100 == 99:
            client.flush(DEADLINE_S)
    return client


def wait_until_cleaned(bootstrap: str, topic: str, client: Producer) -> None:
    """Until each key has one record, so that the cleaner has nothing left to do."""

    def is_cleaned() -> bool:
        client.produce(topic, b"last", key=uuid4().bytes, partition=0)  # rolls a segment
        client.flush(DEADLINE_S)
        keys = [record[3] for record in read(bootstrap, topic, 0)]
        return len(set(keys)) == len(keys)

    until(is_cleaned, lambda: "the cleaner did not run")
