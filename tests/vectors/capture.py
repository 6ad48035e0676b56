"""Makes the vectors anew: real brokers, foreign producers, and foreign consumers that say what is in them.

    python tests/vectors/capture.py

Takes some minutes, and fetches old releases when they are not in the user's cache. Each vector is the record set of one
partition, read with a plain Fetch, isolation read_uncommitted. It is kept only if all consumers read the same records,
and if the partition has the same bytes after they have read it as before.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders that pytest puts there
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from oldbroker import BROKER, FORMATS, OldBroker

from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import fetch_at
from mirror.kafka.queries import READ_UNCOMMITTED
from mirror.lab.embedded import Cluster as Brokers
from mirror.records.header import APPEND_TIME, CODECS, CONTROL, DELETE_HORIZON, TRANSACTIONAL, RawBatch, split
from vectors import scripts
from vectors.clients import CLIENTS, OLD_CLIENTS, Job, Write
from vectors.corpus import Expected, Row, Vector, save
from vectors.foreign import CONSUMERS, DECODERS, Partition, Rows, markers
from vectors.scripts import COMPACTED, LONG_SHAPES, NULL_SHAPES, OLD_CODECS, OLD_COMPACTED, OLD_SHAPES, SHAPES, Script

_SETTLE_S: Final = 120.0
_FETCH_BYTES: Final = 1 << 20
_KEEP: Final = {"retention.ms": "-1"}
_ANY_TIME: Final = _KEEP | {"message.timestamp.after.max.ms": str(2**63 - 1)}
_COMPACT: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
#: Consumer -> kinds of batches that it gives up on. kafka-python knows the wrong frame checksum of KAFKA-3160, with a
#: library that we do not install.
CANNOT_READ: Final[Mapping[str, set[str]]] = {"kafka-python": {"magic0 lz4"}}
_APPEND_TIME: Final = {"message.timestamp.type": "LogAppendTime"}


@dataclass(slots=True)
class Plan:
    """What is written to one broker: topics with their settings, and jobs by client, one partition each."""

    origin: str
    configs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    jobs: dict[str, list[Job]] = field(default_factory=lambda: defaultdict(list))
    names: dict[Partition, str] = field(default_factory=dict)
    _sizes: Counter[str] = field(default_factory=Counter)

    def add(self, client: str, shape: str, codec: str, what: tuple[Script, ...], topic: str) -> None:
        """Give a shape, written by `client`, the next partition of `topic`."""
        partition = self._sizes[topic]
        self._sizes[topic] += 1
        name = f"{self.origin}/{client}/{shape}/{codec}"
        self.names[topic, partition] = name
        self.jobs[client].append(Job(name, topic, partition, codec, what))

    def create(self, bootstrap: str) -> None:
        """Make the topics."""
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        topics = [
            NewTopic(topic, num_partitions=size, replication_factor=1, config=dict(self.configs[topic]))
            for topic, size in self._sizes.items()
        ]
        for made in admin.create_topics(topics).values():
            made.result(timeout=60)

    def write(self, bootstrap: str, clients: Mapping[str, Write]) -> None:
        """Carry out the jobs."""
        for client, jobs in self.jobs.items():
            began = time.monotonic()
            clients[client](bootstrap, jobs)
            print(f"{self.origin}: {client} wrote {len(jobs)} partitions in {time.monotonic() - began:.1f} s")


def plan_new() -> Plan:
    """Magic 2, as today's broker stores it."""
    plan = Plan("kafka-4.3.0")
    plan.configs = {
        "usual": _ANY_TIME,
        "append-time": _ANY_TIME | _APPEND_TIME,
        "compacted": _ANY_TIME | _COMPACT | {"segment.ms": "60000"},
    }
    for client in CLIENTS:
        for codec in scripts.CODECS:
            for shape, script in SHAPES.items():
                plan.add(client, shape, codec, script, "usual")
            if codec != "none":
                for shape, script in LONG_SHAPES.items():
                    plan.add(client, shape, codec, script, "usual")
            if client != "kafka-python":
                for shape, script in NULL_SHAPES.items():
                    plan.add(client, shape, codec, script, "usual")
            plan.add(client, "append_time", codec, SHAPES["several"], "append-time")
            for shape, script in COMPACTED.items():
                plan.add(client, shape, codec, script, "compacted")
    for codec in scripts.CODECS:
        topic = f"recompressed-{codec}"
        plan.configs[topic] = _ANY_TIME | {"compression.type": "uncompressed" if codec == "none" else codec}
        for sent in ("gzip" if codec == "none" else "none", "zstd" if codec == "lz4" else "lz4"):
            plan.add("java", f"recompressed_to_{codec}", sent, SHAPES["headers"], topic)
    return plan


def plan_old() -> Plan:
    """Magic 0 and 1, as the last release that wrote them stores them."""
    plan = Plan(BROKER)
    for magic, clients in OLD_CLIENTS.items():
        usual = _KEEP | {"message.format.version": FORMATS[magic]}
        plan.configs |= {
            f"magic-{magic}": usual,
            f"magic-{magic}-append-time": usual | _APPEND_TIME,
            f"magic-{magic}-compacted": usual | _COMPACT | {"segment.ms": "100"},
        }
        for client in clients:
            for codec in OLD_CODECS:
                if client == "kafka-python-0.9" and codec == "lz4":
                    continue  # it writes the broken frames of that time only with a library that we do not install
                shapes = OLD_SHAPES if codec == "none" else {**OLD_SHAPES, **LONG_SHAPES}
                for shape, script in shapes.items():
                    plan.add(client, f"magic{magic}_{shape}", codec, script, f"magic-{magic}")
                if magic == 1:
                    plan.add(client, "magic1_append_time", codec, OLD_SHAPES["several"], "magic-1-append-time")
                if client == "java" or client.startswith("librdkafka"):
                    for shape, script in OLD_COMPACTED.items():
                        plan.add(client, f"magic{magic}_{shape}", codec, script, f"magic-{magic}-compacted")
    return plan


def write_mixed(bootstrap: str) -> dict[Partition, str]:
    """A topic that lived through two changes of format: all three magics in one partition, for each codec."""
    plan = Plan(BROKER, {"mixed": _KEEP | {"message.format.version": FORMATS[0]}})
    for codec in OLD_CODECS:
        plan.add("java", "mixed", codec, OLD_SHAPES["several"], "mixed")
    plan.create(bootstrap)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for magic in (0, 1, 2):
        change = ConfigEntry("message.format.version", FORMATS[magic], incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", "mixed", incremental_configs=[change])
        admin.incremental_alter_configs([resource])[resource].result(timeout=30)
        time.sleep(2)  # a changed setting reaches the log a moment after it was acknowledged
        plan.write(bootstrap, CLIENTS)
    return plan.names


def raw_bytes(bootstrap: str, partitions: Sequence[Partition]) -> dict[Partition, bytes]:
    """Each partition from its beginning to its end: Fetch answers end to end, since one never spans two segments."""

    async def fetch() -> dict[Partition, bytes]:
        host, port = bootstrap.split(":")
        async with Cluster(Endpoint("capture", ((host, int(port)),))) as cluster:
            await cluster.refresh({topic for topic, _ in partitions})
            return {
                (topic, number): await _whole(cluster, TopicPartition(topic, number)) for topic, number in partitions
            }

    return asyncio.run(fetch())


async def _whole(cluster: Cluster, partition: TopicPartition) -> bytes:
    data, offset, end = b"", 0, 1
    while offset < end:
        answer = await fetch_at(cluster, partition, offset, max_bytes=_FETCH_BYTES, isolation=READ_UNCOMMITTED)
        batches = list(split(answer.records))
        assert sum(len(raw.data) for raw in batches) == len(answer.records) > 0, f"{partition} was cut"
        data += answer.records
        offset, end = batches[-1].header.next_offset, answer.high_watermark
    return data


def await_cleaned(data: Path) -> None:
    """Wait until the cleaner's checkpoint has reached the active segment of every compacted partition."""
    deadline = time.monotonic() + _SETTLE_S
    while dirty := [name for name in _dirty(data) if "compacted" in name]:
        assert time.monotonic() < deadline, f"not compacted: {dirty[:5]}"
        time.sleep(0.5)


def _dirty(data: Path) -> Iterator[str]:
    checkpoint = data / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text(encoding="ascii").splitlines()[2:] if checkpoint.exists() else []
    cleaned = {f"{topic}-{number}": int(offset) for topic, number, offset in map(str.split, lines)}
    for folder in filter(Path.is_dir, data.iterdir()):
        segments = [int(log.stem) for log in folder.glob("*.log")]
        if segments and cleaned.get(folder.name, 0) < max(segments):
            yield folder.name


def kinds(data: bytes) -> dict[str, int]:
    """How many batches of each kind the headers show."""
    found: Counter[str] = Counter()
    for raw in split(memoryview(data)):
        found.update(_kinds(raw))
    return dict(sorted(found.items()))


def _kinds(raw: RawBatch) -> Iterator[str]:
    header = raw.header
    if header.magic < 2:
        (attributes,) = struct.unpack_from(">b", raw.data, 17)
        yield f"magic{header.magic} {CODECS[attributes & 7]}"
        if attributes & APPEND_TIME:
            yield "append_time"
        return
    yield f"magic2 {CODECS[header.codec]}"
    for bit, name in (
        *((APPEND_TIME, "append_time"), (TRANSACTIONAL, "transactional")),
        *((CONTROL, "control"), (DELETE_HORIZON, "delete_horizon")),
    ):
        if header.attributes & bit:
            yield name
    if header.producer_id >= 0:
        yield "producer_id"
    if header.count == 0:
        yield "empty"
    elif not header.is_dense:
        yield "holes"


def read_alike(bootstrap: str, stored: Mapping[Partition, bytes]) -> dict[Partition, tuple[list[Row], tuple[str, ...]]]:
    """The records that all consumers read which can, and the names of those. Raises AssertionError where two differ."""
    readings: dict[str, Rows] = {}
    for name, consumer in CONSUMERS.items():
        can = [at for at, data in stored.items() if not kinds(data).keys() & CANNOT_READ.get(name, set())]
        began = time.monotonic()
        readings[name] = consumer(bootstrap, can)
        print(f"{name} read {len(can)} partitions in {time.monotonic() - began:.1f} s")
    found = {}
    for partition in stored:
        names = tuple(name for name, rows in readings.items() if partition in rows)
        assert len(names) >= 2, partition
        first, *others = (readings[name][partition] for name in names)
        assert all(other == first for other in others), f"{partition}: {names} read different records"
        found[partition] = first, names
    return found


def unreadable(data: bytes, expected: Sequence[Row]) -> dict[str, str]:
    """The decoders that cannot read the bytes, and why."""
    found = {}
    for name, decode in DECODERS.items():
        try:
            rows = list(decode(data))
        except Exception as problem:  # whatever a foreign decoder raises is what the manifest says
            found[name] = f"{type(problem).__name__}: {problem}"
        else:
            assert rows == expected, f"{name} decodes other records than the consumers read"
    return found


def vectors_of(origin: str, bootstrap: str, names: Mapping[Partition, str]) -> tuple[bytes, list[Vector]]:
    """The file of one origin, and its vectors."""
    partitions = list(names)
    before = raw_bytes(bootstrap, partitions)
    read = read_alike(bootstrap, before)
    assert raw_bytes(bootstrap, partitions) == before, "the log changed while it was read"
    content, vectors = bytearray(), []
    for partition, name in names.items():
        data, (found, readers) = before[partition], read[partition]
        vectors.append(
            Vector(
                name=name,
                file=f"{origin}.bin",
                position=len(content),
                size=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
                kinds=kinds(data),
                markers=markers(data),
                expected=Expected.of(found),
                read_by=readers,
                unreadable=unreadable(data, found),
            )
        )
        content += data
    return bytes(content), vectors


def main() -> None:
    """Write all files of this folder that are not code."""
    origins, files, vectors = {}, {}, []
    plan = plan_new()
    with Brokers.start(name="capture", config={"log.cleaner.backoff.ms": 200}) as brokers:
        plan.create(brokers.bootstrap)
        plan.write(brokers.bootstrap, CLIENTS)
        await_cleaned(brokers.nodes[0].data)
        files["kafka-4.3.0.bin"], found = vectors_of(plan.origin, brokers.bootstrap, plan.names)
        origins["kafka-4.3.0.bin"] = "Apache Kafka 4.3.0, one KRaft broker"
        vectors += found
    plan = plan_old()
    with OldBroker({"log.cleaner.backoff.ms": 200}) as old:
        plan.create(old.bootstrap)
        plan.write(old.bootstrap, {name: write for clients in OLD_CLIENTS.values() for name, write in clients.items()})
        mixed = write_mixed(old.bootstrap)
        await_cleaned(old.data)
        files["kafka-2.8.2.bin"], found = vectors_of(plan.origin, old.bootstrap, plan.names | mixed)
        origins["kafka-2.8.2.bin"] = "Apache Kafka 2.8.2 with ZooKeeper, message.format.version 0.9.0, 0.10.0 and 2.8"
        vectors += found
    save(origins, files, vectors)
    print(f"{len(vectors)} vectors, {sum(map(len, files.values()))} bytes")


if __name__ == "__main__":
    main()
