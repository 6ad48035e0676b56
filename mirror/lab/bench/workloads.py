"""What a comparison copies: shapes of source topics, their records, and how they are filled."""

from __future__ import annotations

import asyncio
import json
import random
import string
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from mirror.errors import BenchError, ClusterUnreachable, ConfigError
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import fetch_below
from mirror.kafka.queries import LATEST, list_offset
from mirror.lab.bench.result import FAR_SIDES, Side, Workload
from mirror.records.header import RawBatch, split

# --- What a comparison copies -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Source topics to be made."""

    name: str
    title: str = ""
    codec: str = "zstd"
    batch_bytes: int = 1_000_000  # before compression
    megabytes: int  # 10^6 bytes of records in all topics, before compression
    record_bytes: int = 400
    topics: int = 1
    partitions: int = 4  # of each topic
    transactional: float = 0.0  # share of the partitions that are written in transactions
    compacted: bool = False  # takes away records that have a younger one with their key: most batches get holes
    keyed: float = 0.5  # share of the records with a key
    seed: int = 1
    far: Side = ""  # the side that is a long link away
    round_trip_ms: float = 0.0  # of that link

    @property
    def topic_names(self) -> list[str]:
        """Their topics."""
        return [self.name] if self.topics == 1 else [f"{self.name}-{number}" for number in range(self.topics)]

    def filled(self, *, records: int, batches: int, uncompressed_bytes: int, stored_bytes: int) -> Workload:
        """Return the workload with what lies in the topics now."""
        asked = {name: value for name, value in asdict(self).items() if name != "megabytes"}
        return Workload(
            **asked,
            records=records,
            batches=batches,
            uncompressed_bytes=uncompressed_bytes,
            stored_bytes=stored_bytes,
        )


_SMALL: Final = Shape(
    name="8KB-lz4",
    title="8 KB batches, lz4, keyed, 16 partitions",
    codec="lz4",
    batch_bytes=8_000,
    megabytes=1600,
    partitions=16,  # producers that write small batches have many
    keyed=1.0,
)
_ROUND_TRIP_MS: Final = 80.0
#: As OpenMessaging's benchmark has them: uncompressed, in batches of 128 KB.
_OPEN_MESSAGING: Final = Shape(
    name="omb-16p-1KB",
    title="OpenMessaging, 1 KB records, 16 partitions",
    codec="none",
    batch_bytes=128_000,
    megabytes=4000,
    record_bytes=1000,
    partitions=16,
    keyed=0,
)
#: By name; the first one is what single figures are given for. The mirror takes at least ten seconds for each, once it
#: has started, on two cores.
SHAPES: Final[Mapping[str, Shape]] = {
    shape.name: shape
    for shape in (
        Shape(name="1MB-zstd", title="1 MB batches, zstd", megabytes=8000),
        Shape(
            name="64KB-lz4-txn",
            title="64 KB batches, lz4, half of the partitions in transactions",
            codec="lz4",
            batch_bytes=64_000,
            megabytes=3000,
            transactional=0.5,
        ),
        _SMALL,
        Shape(
            name="64KB-zstd-compacted",
            title="64 KB batches, zstd, compacted",
            batch_bytes=64_000,
            megabytes=1400,
            compacted=True,
            keyed=1.0,
        ),
        _OPEN_MESSAGING,
        replace(
            _OPEN_MESSAGING,
            name="omb-10t-128B",
            title="OpenMessaging, 128 B records, 10 topics with 100 partitions",
            batch_bytes=4_000,  # so many partitions fill no larger ones
            megabytes=1500,
            record_bytes=128,
            topics=10,
            partitions=100,
        ),
        replace(
            _OPEN_MESSAGING,
            name="omb-16p-1KB-txn",
            title="OpenMessaging, 1 KB records, 16 partitions, in transactions",
            transactional=1.0,
        ),
        *(
            replace(
                _SMALL,
                name=f"8KB-far-{side}",
                title=f"8 KB batches, lz4, 16 partitions, {side} {_ROUND_TRIP_MS:.0f} ms away",
                megabytes=300,
                far=side,
                round_trip_ms=_ROUND_TRIP_MS,
            )
            for side in FAR_SIDES
        ),
        Shape(
            name="64KB-none-small",
            title="64 KB batches, uncompressed, 100-byte records",
            codec="none",
            batch_bytes=64_000,
            megabytes=1500,
            record_bytes=100,
        ),
    )
}
#: What is measured unless somebody names others.
USUAL: Final = tuple(name for name in SHAPES if name != "64KB-none-small")


def chosen(names: Sequence[str], megabytes: int | None = None) -> tuple[Shape, ...]:
    """The shapes of these names, all with as much data as `megabytes` where given. Raises ConfigError."""
    if unknown := [name for name in names if name not in SHAPES]:
        raise ConfigError(f"there is no workload {', '.join(unknown)}: choose from {', '.join(SHAPES)}")
    return tuple(sized(SHAPES[name], megabytes) for name in dict.fromkeys(names))


def sized(shape: Shape, megabytes: int | None) -> Shape:
    """The same with another amount of data, in 10^6 bytes."""
    return shape if megabytes is None else replace(shape, megabytes=megabytes)


# --- Seeded records, JSON as event logs have it, and topics to put them in (pure, but for `create`) -------------------

NO_LIMIT: Final = str(2**63 - 1)
#: Bytes: of a record with next to nothing in it; from which on there are properties; of what does not grow; as usual.
_SMALLEST: Final = 50
_WITH_PROPERTIES: Final = 200
_FIXED: Final = 130
_USUAL: Final = 400


def records(seed: int, count: int = 20_000, vocabulary: int = 600, size: int = 400) -> list[bytes]:
    """Records of about `size` bytes (not below 60) that compress about three to one with zstd, as event logs do; four
    to one with 50 words. The same ones for the same seed.
    """
    rng = random.Random(seed)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9))) for _ in range(vocabulary)]
    return [_record(rng, words, index, size) for index in range(count)]


def _record(rng: random.Random, words: list[str], index: int, size: int) -> bytes:
    made: dict[str, object] = {"user": rng.randrange(1_000_000), "event": rng.choice(words)}
    if size < _WITH_PROPERTIES:
        made |= {"text": " ".join(rng.choices(words, k=max(1, (size - _SMALLEST) // 7)))}
    else:
        share = (size - _FIXED) / (_USUAL - _FIXED)
        made |= {
            "page": "/" + "/".join(rng.choices(words, k=3)),
            "at": 1_700_000_000_000 + index * 13,
            "session": f"{rng.getrandbits(48):012x}",
            "properties": {word: rng.randrange(100) for word in rng.choices(words, k=round(9 * share))},
            "text": " ".join(rng.choices(words, k=round(24 * share))),
        }
    return json.dumps(made).encode()


def create(
    bootstrap: str, topic: str, partitions: int, replicas: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """A topic that takes batches as they come. Raises confluent_kafka's KafkaException."""
    settings = {"compression.type": "producer", "message.timestamp.after.max.ms": NO_LIMIT, **(config or {})}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(topic, partitions, replicas, config=settings)]).values():
        created.result()


# --- Batches as the broker stores them, read by the project's own client ----------------------------------------------

_FETCH_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatches:
    """Batches with records for a reader: markers are left out."""

    batches: int
    records: int
    bytes: int


def endpoint(alias: str, bootstrap: str) -> Endpoint:
    """A cluster on loopback by its addresses."""
    addresses = (address.rpartition(":") for address in bootstrap.split(","))
    return Endpoint(alias, tuple((host, int(port)) for host, _, port in addresses))


def stored(bootstrap: str, topic: str, partitions: int) -> StoredBatches:
    """Return what a topic holds, from its batches' headers. Raises ClusterError, WireError."""

    async def measure() -> StoredBatches:
        batches = records = size = 0
        async with Cluster(endpoint("source", bootstrap)) as cluster:
            await cluster.refresh([topic])
            for number in range(partitions):
                async for raw in _batches(cluster, TopicPartition(topic, number)):
                    if raw.header.count and not raw.header.is_control:
                        batches, records, size = batches + 1, records + raw.header.count, size + len(raw.data)
        return StoredBatches(batches=batches, records=records, bytes=size)

    return asyncio.run(measure())


async def _batches(cluster: Cluster, partition: TopicPartition) -> AsyncIterator[RawBatch]:
    offset, end = 0, await list_offset(cluster, partition, LATEST)
    while offset < end:
        before = offset
        for raw in split((await fetch_below(cluster, partition, offset, end, max_bytes=_FETCH_BYTES)).records):
            offset = raw.header.next_offset
            yield raw
        if offset == before:
            return  # compaction left nothing from here to the end, or a transaction is open


# --- Makes a source topic of a given shape, and says what came to lie in it -------------------------------------------

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
_TIMEOUT_S: Final = 300.0
_CLEAN_POLL_S: Final = 1.0
#: Reads of a log that find the same number of records, before its cleaning is taken to be over.
_CLEAN_POLLS: Final = 4


def fill(bootstrap: str, topic: str, shape: Shape) -> StoredBatches:
    """Create a topic and fill its partitions evenly, batch by batch in turn. The same shape gives the same keys and
    values in the same partitions; timestamps are those of now. Raises ClusterUnreachable, BenchError.
    """
    create(bootstrap, topic, shape.partitions, config=_COMPACTED if shape.compacted else {})
    _Writing(bootstrap, topic, shape).run()
    found = stored(bootstrap, topic, shape.partitions)
    return _cleaned(bootstrap, topic, shape, found) if shape.compacted else found


def values(shape: Shape) -> Iterator[tuple[int, bytes | None, bytes]]:
    """Yield every record of a topic of this shape: its partition, key and value (pure)."""
    pool = records(shape.seed, size=shape.record_bytes)
    run = shape.batch_bytes // len(pool[0]) + 1
    total = shape.megabytes * 1_000_000 // shape.topics
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
            careful.init_transactions(_TIMEOUT_S)
            careful.begin_transaction()
        runs, last = 0, -1
        for count, (partition, key, value) in enumerate(values(self._shape)):
            if partition != last and partition == 0:
                runs += 1
                if in_transactions and runs % TRANSACTION_BATCHES == 0:
                    careful.commit_transaction(_TIMEOUT_S)
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
            careful.commit_transaction(_TIMEOUT_S)
        if left := plain.flush(_TIMEOUT_S):
            raise ClusterUnreachable(f"{self._topic}: {left} records were not acknowledged within {_TIMEOUT_S:.0f} s")


def _cleaned(bootstrap: str, topic: str, shape: Shape, written: StoredBatches) -> StoredBatches:
    """What is left when the broker's cleaner has done its work; from then on it leaves the topic, and its copies which
    take over its settings, as they are.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    found, same = written, 0
    while found.records == written.records or same < _CLEAN_POLLS:
        if time.monotonic() > deadline:
            raise BenchError(f"{topic}: the broker's cleaner was not done within {_TIMEOUT_S:.0f} s")
        time.sleep(_CLEAN_POLL_S)
        before, found = found, stored(bootstrap, topic, shape.partitions)
        same = same + 1 if found == before else 0
    kept = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[kept])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # its answers come as long as it lives
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result()
    return found
