"""Seeded JSON-like records of about 400 bytes, and topics full of them in batches of a chosen uncompressed size."""

from __future__ import annotations

import json
import random
import string
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

NO_LIMIT = str(2**63 - 1)


def records(seed: int, count: int = 20_000, vocabulary: int = 600) -> list[bytes]:
    """Records that compress about three to one with zstd, as event logs do; four to one with 50 words."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9))) for _ in range(vocabulary)]
    return [
        json.dumps(
            {
                "user": rng.randrange(1_000_000),
                "event": rng.choice(words),
                "page": "/" + "/".join(rng.choices(words, k=3)),
                "at": 1_700_000_000_000 + index * 13,
                "session": f"{rng.getrandbits(48):012x}",
                "properties": {word: rng.randrange(100) for word in rng.choices(words, k=9)},
                "text": " ".join(rng.choices(words, k=24)),
            }
        ).encode()
        for index in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Filled:
    """A topic that was filled."""

    topic: str
    records: int
    uncompressed: int


def create(bootstrap: str, topic: str, partitions: int) -> None:
    """A topic that takes batches as they come."""
    config = {"compression.type": "producer", "message.timestamp.after.max.ms": NO_LIMIT}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
        created.result()


def fill(
    bootstrap: str,
    topic: str,
    *,
    megabytes: int,
    partitions: int,
    codec: str = "zstd",
    batch: int = 1_000_000,
    seed: int = 1,
) -> Filled:
    """Create a topic and fill its partitions evenly with `megabytes` of records in batches of `batch` bytes,
    uncompressed.
    """
    create(bootstrap, topic, partitions)
    pool = records(seed)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "batch.size": batch,
            "batch.num.messages": 100_000,
            "linger.ms": 500,
            "queue.buffering.max.kbytes": 400_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    count = size = 0
    run = batch // len(pool[0]) + 1
    while size < megabytes * 1_000_000:
        record = pool[count % len(pool)]
        try:
            producer.produce(topic, record, partition=count // run % partitions)
        except BufferError:
            producer.poll(0.05)
            continue
        count += 1
        size += len(record)
        if count % 2_000 == 0:
            producer.poll(0)
    producer.flush()
    return Filled(topic, count, size)
