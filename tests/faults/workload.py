"""Chunks to records: what a schedule says is written, by confluent-kafka, with values that occur once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from waiting import DEADLINE_S, until

from .schedule import Chunk


class Topic:
    """One topic on the source, written in chunks."""

    def __init__(self, bootstrap: str, name: str, partitions: int, configs: dict[str, str], seed: int) -> None:
        """Create it, on its own replicas."""
        self.name = name
        self._bootstrap = bootstrap
        self._chance = Random(seed)
        self._admin = admin(bootstrap)
        self._producers: dict[str, Producer] = {}
        self._written = 0
        create(self._admin, name, partitions, configs)

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Each chunk after the other, batch by batch."""
        for chunk in chunks:
            producer = self._producer(chunk)
            if chunk.ending:
                producer.begin_transaction()
            now = int(time.time() * 1000) - chunk.age_ms
            for _ in range(chunk.batches):
                for _ in range(chunk.records):
                    self._produce(producer, chunk, now)
                assert not producer.flush(DEADLINE_S), f"{self.name}: records were not delivered"
            if chunk.ending == "commit":
                producer.commit_transaction(DEADLINE_S)
            elif chunk.ending:
                producer.abort_transaction(DEADLINE_S)

    def trim(self, partition: int, before: int) -> None:
        """Delete the records before an offset."""
        (deleted,) = self._admin.delete_records([TopicPartition(self.name, partition, before)]).values()
        assert deleted.result(DEADLINE_S).low_watermark >= before

    def configure(self, configs: dict[str, str]) -> None:
        """Set these of the topic's configs."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        asked = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=entries)
        self._admin.incremental_alter_configs([asked])[asked].result(DEADLINE_S)

    def _produce(self, producer: Producer, chunk: Chunk, now: int) -> None:
        chance, number = self._chance, self._written
        self._written += 1
        value = b"%d " % number + chance.randbytes(chunk.value_bytes // 2) + b"." * (chunk.value_bytes // 2)
        producer.produce(
            self.name,
            value if chance.random() > 0.02 else None,
            chance.choice([b"k%d" % chance.randrange(20), b"n%d" % number]),
            partition=chunk.partition,
            timestamp=now + chance.randrange(1000),
            headers=[("number", b"%d" % number), ("number", None)] if chance.random() < 0.3 else None,
        )

    def _producer(self, chunk: Chunk) -> Producer:
        """One for each codec; transactions share one, since each costs a coordinator's time to begin."""
        kind = "transactional" if chunk.ending else chunk.codec
        if kind not in self._producers:
            settings: dict[str, str | int | float | bool] = {
                "bootstrap.servers": self._bootstrap,
                "compression.type": chunk.codec,
                "linger.ms": 1000,  # a batch goes when it is flushed
                "acks": "all",
                "log_level": 0,  # brokers that are killed are no news
            }
            if chunk.ending:
                settings["transactional.id"] = self.name
            self._producers[kind] = Producer(settings)
            if chunk.ending:
                self._producers[kind].init_transactions(DEADLINE_S)
        return self._producers[kind]


def admin(bootstrap: str) -> AdminClient:
    """A client that does not complain of brokers that are killed."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create(admin: AdminClient, name: str, partitions: int, configs: dict[str, str]) -> None:
    """A topic with leaders. Raises KafkaException."""
    admin.create_topics([NewTopic(name, partitions, -1, config=configs)])[name].result(DEADLINE_S)

    def has_leaders() -> bool:
        known = admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions.values()
        return len(known) == partitions and all(one.leader >= 0 for one in known)

    until(has_leaders, lambda: f"{name} has no leaders")


def remove(admin: AdminClient, name: str) -> None:
    """Delete a topic, and wait until it is gone."""
    admin.delete_topics([name])[name].result(DEADLINE_S)
    until(lambda: name not in admin.list_topics(timeout=DEADLINE_S).topics, lambda: f"{name} is not deleted")
