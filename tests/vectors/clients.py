"""The producers: each carries out scripts, batch by batch, with its own client library."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer
from releases import release

from mirror.lab.embedded.jars import classpath
from vectors.corpus import Header
from vectors.foreign import run_java
from vectors.scripts import Batch, Script

_BATCH_BYTES: Final = 1 << 19
_LINGER_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Job:
    """One partition to fill. `name` goes into transactional ids."""

    name: str
    topic: str
    partition: int
    codec: str
    scripts: tuple[Script, ...]


Write = Callable[[str, Sequence[Job]], None]


def write_java(bootstrap: str, jobs: Sequence[Job]) -> None:
    """The Java producer of Kafka 4.3, in one process."""
    _java("RecordWriter", classpath(), bootstrap, jobs)


def write_old_java(version: str) -> Write:
    """The Java producer of an old release."""

    def write(bootstrap: str, jobs: Sequence[Job]) -> None:
        jars = os.pathsep.join(map(str, release(f"clients-{version}")))
        _java("OldRecordWriter", jars, bootstrap, jobs)

    return write


def _java(name: str, jars: str, bootstrap: str, jobs: Sequence[Job]) -> None:
    lines = "".join(f"{line}\n" for job in jobs for line in _lines(name, bootstrap, job))
    with tempfile.TemporaryDirectory(prefix="mirror-writer-") as folder:
        plan = Path(folder) / "plan"
        plan.write_text(lines, encoding="ascii")
        run_java(name, jars, Path(folder), str(plan))


def _lines(name: str, bootstrap: str, job: Job) -> Iterator[str]:
    for number, script in enumerate(job.scripts):
        settings = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "compression.type": job.codec,
            "batch.size": _BATCH_BYTES,
            "linger.ms": _LINGER_MS,
        }
        if name == "RecordWriter":
            settings |= {"enable.idempotence": str(script.mode != "plain").lower(), "delivery.timeout.ms": 120_000}
        if script.mode == "transactional":
            settings["transactional.id"] = f"{job.name}-{number}"
        yield "\t".join(["open", *(f"{key}={value}" for key, value in settings.items())])
        if script.mode == "transactional":
            yield "init"
        for begins, batch in _with_begins(script):
            if begins:
                yield "begin"
            for record in batch.records:
                headers = ",".join(f"{key.hex()}={_hex(value)}" for key, value in record.headers)
                place = f"{job.topic}\t{job.partition}\t{record.timestamp}"
                yield f"send\t{place}\t{_hex(record.key)}\t{_hex(record.value)}\t{headers}"
            yield "flush"
            if script.pause_s:
                yield f"pause\t{script.pause_s * 1000:.0f}"
            if batch.end:
                yield batch.end
        yield "close"


def write_librdkafka(bootstrap: str, jobs: Sequence[Job], **settings: Any) -> None:
    """librdkafka."""
    failures: list[Any] = []
    for job in jobs:
        for number, script in enumerate(job.scripts):
            config = {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "compression.type": job.codec,
                "linger.ms": _LINGER_MS,
                "message.timeout.ms": 2 * _LINGER_MS,
                "log_level": 0,
                "enable.idempotence": script.mode != "plain",
            }
            if script.mode == "transactional":
                config["transactional.id"] = f"{job.name}-{number}"
                config["transaction.timeout.ms"] = 2 * _LINGER_MS
            producer = Producer({**config, **settings})
            if script.mode == "transactional":
                producer.init_transactions(120)
            for begins, batch in _with_begins(script):
                if begins:
                    producer.begin_transaction()
                for record in batch.records:
                    producer.produce(
                        job.topic,
                        record.value,
                        record.key,
                        job.partition,
                        timestamp=record.timestamp,
                        headers=[(key.decode(), value) for key, value in record.headers],
                        on_delivery=lambda error, _: failures.append(error) if error else None,
                    )
                assert not producer.flush(30)
                time.sleep(script.pause_s)
                if batch.end == "commit":
                    producer.commit_transaction(30)
                elif batch.end == "abort":
                    producer.abort_transaction(30)
    assert not failures, failures[:3]


def write_old_librdkafka(version: str) -> Write:
    """librdkafka that believes in an old broker."""
    believes = {"api.version.request": False, "broker.version.fallback": version, "api.version.fallback.ms": 0}
    return lambda bootstrap, jobs: write_librdkafka(bootstrap, jobs, **believes)


def write_kafka_python(bootstrap: str, jobs: Sequence[Job], api_version: tuple[int, ...] | None = None) -> None:
    """kafka-python."""
    for job in jobs:
        for number, script in enumerate(job.scripts):
            transactional = script.mode == "transactional"
            producer = KafkaProducer(
                bootstrap_servers=bootstrap,
                acks="all",
                compression_type=None if job.codec == "none" else job.codec,
                linger_ms=_LINGER_MS,
                delivery_timeout_ms=3 * _LINGER_MS,
                batch_size=_BATCH_BYTES,
                enable_idempotence=script.mode != "plain",
                transactional_id=f"{job.name}-{number}" if transactional else None,
                api_version=api_version,
            )
            if transactional:
                producer.init_transactions(120)
            for begins, batch in _with_begins(script):
                if begins:
                    producer.begin_transaction()
                futures = [
                    producer.send(
                        job.topic,
                        record.value,
                        record.key,
                        _text_headers(record.headers),
                        job.partition,
                        record.timestamp,
                    )
                    for record in batch.records
                ]
                producer.flush(30)
                for future in futures:
                    future.get(30)
                time.sleep(script.pause_s)
                if batch.end == "commit":
                    producer.commit_transaction()
                elif batch.end == "abort":
                    producer.abort_transaction()
            producer.close()


def write_old_kafka_python(*api_version: int) -> Write:
    """kafka-python that believes in an old broker."""
    return lambda bootstrap, jobs: write_kafka_python(bootstrap, jobs, api_version)


def write_aiokafka(bootstrap: str, jobs: Sequence[Job]) -> None:
    """aiokafka, batches built by hand: its own would be cut by time."""
    asyncio.run(_aiokafka(bootstrap, jobs))


async def _aiokafka(bootstrap: str, jobs: Sequence[Job]) -> None:
    for job in jobs:
        for number, script in enumerate(job.scripts):
            transactional = script.mode == "transactional"
            async with AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks="all",
                compression_type=None if job.codec == "none" else job.codec,
                max_batch_size=_BATCH_BYTES,
                enable_idempotence=script.mode != "plain",
                transactional_id=f"{job.name}-{number}" if transactional else None,
            ) as producer:
                for begins, batch in _with_begins(script):
                    if begins:
                        await producer.begin_transaction()
                    builder = producer.create_batch()
                    for record in batch.records:
                        added = builder.append(
                            key=record.key,
                            value=record.value,
                            timestamp=record.timestamp,
                            headers=_text_headers(record.headers),
                        )
                        assert added is not None, "a script's batch is larger than a producer's"
                    await (await producer.send_batch(builder, job.topic, partition=job.partition))
                    await asyncio.sleep(script.pause_s)
                    if batch.end == "commit":
                        await producer.commit_transaction()
                    elif batch.end == "abort":
                        await producer.abort_transaction()


CLIENTS: Final[Mapping[str, Write]] = {
    "java": write_java,
    "librdkafka": write_librdkafka,
    "kafka-python": write_kafka_python,
    "aiokafka": write_aiokafka,
}
#: By magic: clients of that time, or that take the broker for one, and today's Java client, whose batches the broker
#: converts down.
OLD_CLIENTS: Final[Mapping[int, Mapping[str, Write]]] = {
    0: {
        "java": write_java,
        "java-0.9": write_old_java("0.9.0.1"),
        "librdkafka-0.9": write_old_librdkafka("0.9.0"),
        "kafka-python-0.9": write_old_kafka_python(0, 9),
    },
    1: {
        "java": write_java,
        "java-0.10": write_old_java("0.10.2.2"),
        "librdkafka-0.10": write_old_librdkafka("0.10.0"),
        "kafka-python-0.10": write_old_kafka_python(0, 10),
    },
}


def _with_begins(script: Script) -> Iterator[tuple[bool, Batch]]:
    open_already = script.mode != "transactional"
    for batch in script.batches:
        yield not open_already, batch
        open_already = script.mode != "transactional" or not batch.end


def _text_headers(headers: tuple[Header, ...]) -> list[tuple[str, bytes | None]]:
    return [(key.decode(), value) for key, value in headers]


def _hex(content: bytes | None) -> str:
    return "-" if content is None else content.hex()
