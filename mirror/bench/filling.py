"""Makes a source topic of a given shape, and says what came to lie in it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from mirror.bench.records import create, records
from mirror.bench.shapes import Shape
from mirror.bench.stored import Stored, stored
from mirror.errors import BenchError, ClusterUnreachable

#: Batches of a transaction, so that markers are few beside them.
TRANSACTION_BATCHES: Final = 8
#: What lets a broker's cleaner begin at once; of the source's broker.
CLEANS_AT_ONCE: Final = {"log.cleaner.backoff.ms": 300}
_COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": str(1 << 20),  # what is being written to is never cleaned
    "retention.ms": "-1",
}
_PATIENCE_S: Final = 120.0
_CLEAN_LOOK_S: Final = 1.0
#: Looks at a log that find the same number of records, before its cleaning is taken to be over.
_CLEAN_LOOKS: Final = 4


def fill(bootstrap: str, topic: str, shape: Shape) -> Stored:
    """Create the topic and fill its partitions evenly, batch by batch in turn. The same shape gives the same keys and
    values in the same partitions; timestamps are those of now. Raises ClusterUnreachable, BenchError.
    """
    create(bootstrap, topic, shape.partitions, config=_COMPACTED if shape.compacted else {})
    _Writing(bootstrap, topic, shape).run()
    found = stored(bootstrap, topic, shape.partitions)
    return _cleaned(bootstrap, topic, shape, found) if shape.compacted else found


def values(shape: Shape) -> Iterator[tuple[int, bytes | None, bytes]]:
    """Every record of a shape: its partition, key and value (pure)."""
    pool = records(shape.seed, size=shape.record_bytes)
    run = shape.batch_bytes // len(pool[0]) + 1
    total = shape.megabytes * 1_000_000
    # With two records for each key, on the average, cleaning leaves less than half of them.
    keys = max(1, total // shape.record_bytes // shape.partitions // 2)
    rng = random.Random(shape.seed + 1)
    size = count = 0
    while size < total:
        key = b"%010d" % rng.randrange(keys) if rng.random() < shape.keyed else None
        value = pool[count % len(pool)]
        yield count // run % shape.partitions, key, value
        count, size = count + 1, size + len(value) + len(key or b"")


class _Writing:
    """One producer for the partitions in transactions, one for the others."""

    def __init__(self, bootstrap: str, topic: str, shape: Shape) -> None:
        self._topic, self._shape = topic, shape
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "compression.type": shape.codec,
            "batch.size": shape.batch_bytes,
            "batch.num.messages": 100_000,
            "linger.ms": 500,
            "queue.buffering.max.kbytes": 400_000,
            "queue.buffering.max.messages": 1_000_000,
        }

    def run(self) -> None:
        """Everything, acknowledged. Raises ClusterUnreachable."""
        plain = Producer(self._settings)
        in_transactions = round(self._shape.partitions * self._shape.transactional)
        careful = Producer({**self._settings, "transactional.id": self._topic}) if in_transactions else plain
        if in_transactions:
            careful.init_transactions(_PATIENCE_S)
            careful.begin_transaction()
        runs, last = 0, -1
        for count, (partition, key, value) in enumerate(values(self._shape)):
            if partition != last and partition == 0:
                runs += 1
                if in_transactions and runs % TRANSACTION_BATCHES == 0:
                    careful.commit_transaction(_PATIENCE_S)
                    careful.begin_transaction()
            last = partition
            producer = careful if partition < in_transactions else plain
            while True:
                try:
                    producer.produce(self._topic, value, key, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.05)
            if count % 2_000 == 0:
                producer.poll(0)
        if in_transactions:
            careful.commit_transaction(_PATIENCE_S)
        if left := plain.flush(_PATIENCE_S):
            raise ClusterUnreachable(f"{self._topic}: {left} records were not acknowledged within {_PATIENCE_S:.0f} s")


def _cleaned(bootstrap: str, topic: str, shape: Shape, written: Stored) -> Stored:
    """What is left when the broker's cleaner has done its work; from then on it leaves the topic, and its copies which
    take over its settings, as they are.
    """
    deadline = time.monotonic() + _PATIENCE_S
    found, same = written, 0
    while found.records == written.records or same < _CLEAN_LOOKS:
        if time.monotonic() > deadline:
            raise BenchError(f"{topic}: the broker's cleaner was not done within {_PATIENCE_S:.0f} s")
        time.sleep(_CLEAN_LOOK_S)
        before, found = found, stored(bootstrap, topic, shape.partitions)
        same = same + 1 if found == before else 0
    kept = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[kept])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # its answers come as long as it lives
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result()
    return found
