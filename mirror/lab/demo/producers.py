"""Who writes the records of the demonstration, and what these are.

A pool of them is made once and written over and over: making a record takes fifty times as long as sending it. The pool
is larger than any batch, so no codec profits from the repetition.

The Java producer is a few lines of Java, compiled when they are run by the compiler that Spark uses for its queries: a
machine that runs Spark need not have a JDK.
"""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from mirror.config import ClusterSettings
from mirror.errors import ClusterUnreachable, EmbeddedError
from mirror.kafka.admin import Admin, Creation
from mirror.lab.bench.workloads import records
from mirror.lab.demo.processes import Bound
from mirror.lab.embedded.jars import RESOURCES, classpath, java

# --- Records as an application writes them ----------------------------------------------------------------------------

POOL: Final = 20_000


@dataclass(frozen=True, slots=True)
class Record:
    """One record; the key is the user's number."""

    key: bytes
    value: bytes


def pool(count: int = POOL) -> tuple[Record, ...]:
    """Return `count` records, always the same."""
    return tuple(Record(str(json.loads(value)["user"]).encode(), value) for value in records(7, count))


# --- Who writes the records -------------------------------------------------------------------------------------------

#: Uncompressed, as busy producers are often set up.
BATCH_BYTES: Final = 256 * 1024
LINGER_MS: Final = 100
LIVE_LINGER_MS: Final = 25
_NOT_READY: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,  # metadata knows of a leader that does not know it yet
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
_TICK_S: Final = 0.02
_DEADLINE_S: Final = 30.0
_JAVA_SOURCE: Final = Path(__file__).with_name("JavaProducer.java")


class Stopped(Exception):
    """The demonstration is being broken off."""


@dataclass(slots=True)
class Filler(ABC):
    """Writes `count` records to a topic, those of the `pool` over and over, in a thread of its own; `written` says how
    far it is. It ends early when `stopping` is set.
    """

    bootstrap: str
    topic: str
    codec: str
    pool: Sequence[Record]
    count: int
    stopping: threading.Event
    written: int = field(default=0, init=False)

    @abstractmethod
    def run(self) -> int:
        """Bytes that count. Raises Stopped, EmbeddedError."""


@dataclass(slots=True)
class PlainFiller(Filler):
    """With librdkafka."""

    def run(self) -> int:
        """Bytes of keys and values written. Raises Stopped, EmbeddedError."""
        producer = Producer(
            {
                **_client(self.bootstrap),
                "compression.type": self.codec,
                "batch.size": BATCH_BYTES,
                "batch.num.messages": 100_000,
                "linger.ms": LINGER_MS,
                "queue.buffering.max.messages": 50_000,
            }
        )
        pool, size, left = self.pool, 0, self.count
        while left:
            for record in pool[: min(left, len(pool))]:
                while True:
                    try:
                        producer.produce(self.topic, record.value, record.key)
                        break
                    except BufferError:
                        producer.poll(0.05)
                        if self.stopping.is_set():
                            raise Stopped from None
                size += len(record.key) + len(record.value)
                self.written += 1
            left = self.count - self.written
        _flush(producer, self.topic)
        return size


@dataclass(slots=True)
class JavaFiller(Filler):
    """With the Java producer, idempotence on, in a process of its own, whose files are in `folder`."""

    folder: Path

    def run(self) -> int:
        """Bytes of values written. Raises Stopped, EmbeddedError."""
        lines = self.folder / f"{self.topic}.lines"
        lines.write_bytes(b"\n".join(record.value for record in self.pool))
        settings = {
            "bootstrap.servers": self.bootstrap,
            "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
            "value.serializer": "org.apache.kafka.common.serialization.StringSerializer",
            "enable.idempotence": "true",
            "acks": "all",
            "compression.type": self.codec,
            "batch.size": str(BATCH_BYTES),
            "linger.ms": str(LINGER_MS),
        }
        arguments = [self.topic, str(lines), str(self.count), *(f"{key}={value}" for key, value in settings.items())]
        command = java_program(_JAVA_SOURCE, self.folder, *arguments)
        with Bound(command, self.folder / f"{self.topic}.log", grace=1.0) as process:
            while process.exit_code is None:
                if self.stopping.wait(0.05):
                    raise Stopped
            if process.exit_code != 0:
                raise EmbeddedError(f"the Java producer ended with {process.exit_code}:\n{process.tail()}")
        lines.unlink()
        self.written = self.count
        full, rest = divmod(self.count, len(self.pool))
        return full * _size(self.pool) + _size(self.pool[:rest])


@dataclass(slots=True)
class TransactionalFiller(Filler):
    """With librdkafka, in transactions of `size` records, of which every tenth is aborted; `committed` says how many
    records count.
    """

    size: int = 500
    committed: int = field(default=0, init=False)

    def run(self) -> int:
        """Bytes of keys and values committed. Raises Stopped, EmbeddedError."""
        settings = {"transactional.id": self.topic, "compression.type": self.codec, "batch.size": BATCH_BYTES}
        producer = Producer({**_client(self.bootstrap), **settings})
        try:
            producer.init_transactions(_DEADLINE_S)
            return sum(self._transaction(producer, number) for number in range(-(-self.count // self.size)))
        except KafkaException as problem:
            raise EmbeddedError(f"{self.topic}: {problem.args[0]}") from problem

    def _transaction(self, producer: Producer, number: int) -> int:
        if self.stopping.is_set():
            raise Stopped
        producer.begin_transaction()
        records = [self.pool[index % len(self.pool)] for index in range(min(self.size, self.count - self.written))]
        for record in records:
            producer.produce(self.topic, record.value, record.key)
        self.written += len(records)
        if number % 10 == 9:
            _flush(producer, self.topic)  # what is aborted lies in the log all the same
            producer.abort_transaction(_DEADLINE_S)
            return 0
        producer.commit_transaction(_DEADLINE_S)
        self.committed += len(records)
        return sum(len(record.key) + len(record.value) for record in records)


class Live:
    """Writes `rate` records a second to a topic until it is stopped, with idempotence on."""

    def __init__(self, bootstrap: str, topic: str, codec: str, pool: Sequence[Record], rate: int) -> None:
        self.topic, self.rate, self.written = topic, rate, 0
        self._pool = pool
        self._producer = Producer(
            {
                **_client(bootstrap),
                "compression.type": codec,
                "linger.ms": LIVE_LINGER_MS,
                "enable.idempotence": True,
            }
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, name="live-producer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more, and wait until everything is acknowledged. Raises EmbeddedError."""
        self._stopping.set()
        self._thread.join()
        _flush(self._producer, self.topic)

    def _write(self) -> None:
        began = time.monotonic()
        while not self._stopping.wait(_TICK_S):
            while self.written < (time.monotonic() - began) * self.rate:
                record = self._pool[self.written % len(self._pool)]
                self._producer.produce(self.topic, record.value, record.key)
                self.written += 1
            self._producer.poll(0)


class Ends:
    """The log ends of a cluster's partitions, as its brokers give them."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient(_client(bootstrap))
        self._there: set[str] = set()

    def of(self, partitions: Mapping[str, int], *, growing: bool = False) -> dict[tuple[str, int], int]:
        """By topic and partition, given the topics' numbers of partitions. Raises EmbeddedError.

        A `growing` cluster may have topics that are not there yet, or not ready: they are left out.
        """
        try:
            if growing and not self._there >= partitions.keys():
                self._there = set(self._admin.list_topics(timeout=_DEADLINE_S).topics)
            latest = OffsetSpec.latest()  # type: ignore[no-untyped-call] # the client has no types there
            asked = {
                TopicPartition(topic, partition): latest
                for topic, count in partitions.items()
                if topic in self._there or not growing
                for partition in range(count)
            }
            if not asked:
                return {}
            answers = self._admin.list_offsets(asked, request_timeout=_DEADLINE_S)
            found: dict[tuple[str, int], int] = {}
            for topic_partition, answer in answers.items():
                problem = answer.exception()
                if problem is None:
                    found[topic_partition.topic, topic_partition.partition] = int(answer.result().offset)
                elif not (growing and isinstance(problem, KafkaException) and problem.args[0].code() in _NOT_READY):
                    raise problem
            return found
        except KafkaException as problem:
            raise EmbeddedError(f"cannot read log ends: {problem.args[0]}") from problem


def _client(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "client.id": "mirror-demo", "log_level": 0}


def _flush(producer: Producer, topic: str) -> None:
    if left := producer.flush(_DEADLINE_S):
        raise ClusterUnreachable(f"{topic}: {left} records were not acknowledged within {_DEADLINE_S:.0f} s")


def _size(records: Iterable[Record]) -> int:
    return sum(len(record.value) for record in records)


def java_program(source: Path, folder: Path, *arguments: str) -> list[str]:
    """The command that compiles a Java class by the name of its file and runs it beside Kafka's client; what it leaves
    is in `folder`. Raises EmbeddedError.
    """
    return [
        *(java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
        *(f"-Djava.io.tmpdir={folder}", f"-Dlog4j2.configurationFile={RESOURCES / 'log4j2.properties'}"),
        *("-cp", os.pathsep.join([classpath(), *_compiler()]), "org.codehaus.janino.SimpleCompiler"),
        *(str(source), source.stem, *arguments),
    ]


def _compiler() -> list[str]:
    spec = importlib.util.find_spec("pyspark")  # looked up, not imported: that would take a second
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path()
    found = [*folder.glob("janino-*.jar"), *folder.glob("commons-compiler-*.jar")]
    if len(found) != 2:
        raise EmbeddedError(
            f"no Janino in PySpark's jars folder ({folder}): install pyspark 4.3 from its own distribution"
        )
    return [str(jar) for jar in found]


# --- Records for trying things ----------------------------------------------------------------------------------------

PARTITIONS: Final = 3
CODEC: Final = "zstd"


def fill(cluster: str, bootstrap: str, topics: Sequence[str], records: int) -> Mapping[str, int]:
    """Write `records` to each topic, creating those that are not there; how many each then holds.

    Raises ClusterError, EmbeddedError.
    """
    admin = Admin(ClusterSettings.model_validate({"alias": cluster, "bootstrap.servers": bootstrap}))
    admin.create_topics([Creation(topic=name, partitions=PARTITIONS, replication_factor=1) for name in topics])
    made = pool(count=min(records, POOL))
    for name in topics:
        PlainFiller(bootstrap, name, CODEC, made, records, threading.Event()).run()
    partitions = {name: len(info.partitions) for name, info in admin.describe(topics).items()}
    ends = Ends(bootstrap).of(partitions)
    return {name: sum(ends[name, partition] for partition in range(partitions[name])) for name in partitions}
