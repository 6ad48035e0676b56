"""Chunks to records: what is written to the source, by confluent-kafka, with values that occur once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from confluent_kafka import Producer
from helpers import RECENT_MS, make_topic
from topicadmin import delete_records
from waiting import DEADLINE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Batches. `ending` says whether they are a transaction's, and how it ends."""

    batches: int
    records: int
    value_bytes: int
    codec: str
    ending: Literal["", "commit", "abort"] = ""


class Topic:
    """One topic on the source with one partition, written in chunks."""

    def __init__(self, bootstrap: str, name: str, seed: int) -> None:
        """Create it."""
        self.name = name
        self._bootstrap = bootstrap
        self._chance = Random(seed)
        self._producers: dict[str, Producer] = {}
        self._written = 0
        make_topic(bootstrap, name)

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Each chunk after the other, batch by batch."""
        for chunk in chunks:
            producer = self._producer(chunk)
            if chunk.ending:
                producer.begin_transaction()
            for _ in range(chunk.batches):
                for _ in range(chunk.records):
                    self._produce(producer, chunk)
                assert not producer.flush(DEADLINE_S), f"{self.name}: records were not delivered"
            if chunk.ending == "commit":
                producer.commit_transaction(DEADLINE_S)
            elif chunk.ending:
                producer.abort_transaction(DEADLINE_S)

    def trim(self, before: int) -> None:
        """Delete the records before an offset."""
        delete_records(self._bootstrap, self.name, before)

    def _produce(self, producer: Producer, chunk: Chunk) -> None:
        chance, number = self._chance, self._written
        self._written += 1
        value = b"%d " % number + chance.randbytes(chunk.value_bytes // 2) + b"." * (chunk.value_bytes // 2)
        producer.produce(
            self.name,
            value if chance.random() > 0.02 else None,
            chance.choice([b"k%d" % chance.randrange(20), b"n%d" % number]),
            partition=0,
            timestamp=RECENT_MS + chance.randrange(1000),
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
            }
            if chunk.ending:
                settings["transactional.id"] = self.name
            self._producers[kind] = Producer(settings)
            if chunk.ending:
                self._producers[kind].init_transactions(DEADLINE_S)
        return self._producers[kind]
