"""Readers that share no code with the mirror: two decoders of record sets, and three consumers of topics."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aiokafka.record import MemoryRecords as AiokafkaRecords
from confluent_kafka import Consumer, KafkaError, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.record import MemoryRecords as KafkaPythonRecords
from waiting import DEADLINE_S

from mirror.host import find
from mirror.lab.embedded.jars import RESOURCES, classpath
from vectors.corpus import Row

Partition = tuple[str, int]
Rows = dict[Partition, list[Row]]
_TIMEOUT_S: Final = DEADLINE_S


# --- decoders: bytes in, records out; control batches are left out, as consumers do


def kafka_python_rows(data: bytes) -> Iterator[Row]:
    """What kafka-python decodes; it checks no CRC on this path, so that is done first."""
    records = KafkaPythonRecords(data)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        if not getattr(batch, "is_control_batch", False):
            yield from _as_rows(batch)


def aiokafka_rows(data: bytes) -> Iterator[Row]:
    """What aiokafka decodes. Batch by batch: its compiled reader takes the magic of a set's first batch for all."""
    for part in cut(data):
        batch = AiokafkaRecords(part).next_batch()
        assert batch is not None
        assert batch.validate_crc()
        if not getattr(batch, "is_control_batch", False):
            yield from _as_rows(batch)


def cut(data: bytes) -> Iterator[bytes]:
    """The batches of a record set: all magics have the length at the same place."""
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position + 8)
        yield data[position : position + 12 + length]
        position += 12 + length


DECODERS: Final[Mapping[str, Callable[[bytes], Iterator[Row]]]] = {
    "kafka-python": kafka_python_rows,
    "aiokafka": aiokafka_rows,
}


def markers(data: bytes) -> tuple[str, ...]:
    """The control records of a record set, as kafka-python reads them."""
    records, found = KafkaPythonRecords(data), []
    while (batch := records.next_batch()) is not None:
        if getattr(batch, "is_control_batch", False):
            found += ["commit" if record.commit else "abort" if record.abort else "other" for record in batch]
    return tuple(found)


def _as_rows(records: Iterable[Any]) -> Iterator[Row]:
    for record in records:
        yield _row(record.offset, record.timestamp, record.key, record.value, record.headers)


def _row(offset: int, timestamp: int | None, key: Any, value: Any, headers: Iterable[tuple[str, Any]] | None) -> Row:
    return Row(
        offset,
        -1 if timestamp is None else timestamp,
        None if key is None else bytes(key),
        None if value is None else bytes(value),
        tuple((name.encode(), None if content is None else bytes(content)) for name, content in headers or ()),
    )


# --- consumers: every record from each partition's beginning to its end, isolation read_uncommitted


def read_by_java(bootstrap: str, partitions: Sequence[Partition]) -> Rows:
    """The Java consumer of Kafka 4.3, all partitions in one process of its own."""
    with tempfile.TemporaryDirectory(prefix="mirror-reader-") as folder:
        names = Path(folder) / "partitions"
        names.write_text("".join(f"{topic} {number}\n" for topic, number in partitions), encoding="ascii")
        found = Path(folder) / "records"
        run_java("RecordReader", classpath(), Path(folder), bootstrap, "read_uncommitted", str(names), str(found))
        lines = found.read_text(encoding="ascii").splitlines()
    rows: Rows = {partition: [] for partition in partitions}
    for line in lines:
        topic, number, rest = line.split(" ", 2)
        rows[topic, int(number)].append(Row.of_line(rest))
    return rows


def read_by_librdkafka(bootstrap: str, partitions: Sequence[Partition]) -> Rows:
    """librdkafka through confluent-kafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "vectors",
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
            "check.crcs": True,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    rows: Rows = {partition: [] for partition in partitions}
    reading = set(partitions)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in partitions])
        deadline = time.monotonic() + _TIMEOUT_S
        while reading:
            assert time.monotonic() < deadline, f"no end of {sorted(reading)[:5]}"
            messages: list[Any] = consumer.consume(1000, timeout=0.2)
            for message in messages:
                partition = message.topic(), message.partition()
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    reading.discard(partition)
                else:
                    kind, timestamp = message.timestamp()
                    content = message.key(), message.value(), message.headers()
                    rows[partition].append(_row(message.offset(), timestamp if kind else -1, *content))
    finally:
        consumer.close()
    return rows


def read_by_kafka_python(bootstrap: str, partitions: Sequence[Partition]) -> Rows:
    """kafka-python."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_uncommitted",
        auto_offset_reset="none",
        enable_auto_commit=False,
        check_crcs=True,
    )
    rows: Rows = {partition: [] for partition in partitions}
    try:
        places = [KafkaPythonPartition(topic, number) for topic, number in partitions]
        consumer.assign(places)
        for place, offset in consumer.beginning_offsets(places).items():
            consumer.seek(place, offset)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < end for place, end in ends.items()):
            for place, records in consumer.poll(timeout_ms=5_000, max_records=10_000).items():
                rows[place.topic, place.partition] += _as_rows(records)
    finally:
        consumer.close()
    return rows


CONSUMERS: Final[Mapping[str, Callable[[str, Sequence[Partition]], Rows]]] = {
    "java": read_by_java,
    "librdkafka": read_by_librdkafka,
    "kafka-python": read_by_kafka_python,
}


def run_java(name: str, jars: str, folder: Path, *arguments: str) -> None:
    """Compile and run the class `name` of this folder with the clients on the class path `jars`.

    Janino of PySpark's jars compiles, so no JDK is needed.
    """
    spec = importlib.util.find_spec("pyspark")  # looked up, not imported: that takes a second
    assert spec is not None
    assert spec.origin is not None
    spark = Path(spec.origin).parent / "jars"
    compiler = [*spark.glob("janino-*.jar"), *spark.glob("commons-compiler-*.jar")]
    command = [find(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    command += [f"-Djava.io.tmpdir={folder}", f"-Dlog4j2.configurationFile={RESOURCES / 'log4j2.properties'}"]
    command += ["-cp", os.pathsep.join([jars, *map(str, compiler)]), "org.codehaus.janino.SimpleCompiler"]
    command += [str(Path(__file__).with_name(f"{name}.java")), name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
