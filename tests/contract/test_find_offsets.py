"""`mirror offsets find`: a cluster, its segment files and Kafka name the same first record of a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from helpers import RECENT_MS, config_file, make_topic, produce
from pair import Shared
from samerecords import read
from transactional import transactions
from typer.testing import CliRunner

from mirror.cli import app
from mirror.errors import ConfigError, ExitCode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEGIN = RECENT_MS - 100_000
#: A time that no clock here shows yet, and no broker takes.
NEVER = 4_000_000_000_000


def iso(milliseconds: int) -> str:
    return (EPOCH + timedelta(milliseconds=milliseconds)).isoformat()


def answers(*arguments: str | Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["offsets", "find", *map(str, arguments), "--json"])
    assert result.exit_code == ExitCode.DONE, (result.stdout, result.exception)
    partitions: list[dict[str, Any]] = json.loads(result.stdout)["partitions"]
    return partitions


def scatter(bootstrap: str, topic: str, times: Sequence[int], codec: str) -> None:
    """Write one batch with records of these times, in this order."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1_000, "compression.type": codec})
    for time in times:
        producer.produce(topic, b"at %d" % time * 20, partition=0, timestamp=time)
    assert not producer.flush(180)


def kafkas_answer(admin: AdminClient, topic: str, when: int) -> list[tuple[int | None, int | None]]:
    """Return offset and time of partitions 0 and 1, as Kafka's own client gets them."""
    asked = admin.list_offsets({TopicPartition(topic, one): OffsetSpec.for_timestamp(when) for one in (0, 1)})
    found = {at.partition: one.result(180) for at, one in asked.items()}
    return [(found[n].offset, found[n].timestamp) if found[n].offset >= 0 else (None, None) for n in (0, 1)]


@pytest.mark.proves("mirror offsets find")
@pytest.mark.parametrize("stamped_by", ["CreateTime", "LogAppendTime"])
def test_cluster_files_and_kafka_name_the_same_record(
    source_cluster: Shared, topic_name: str, tmp_path: Path, stamped_by: str
) -> None:
    """Out of order, compressed, over several segments, with markers and aborted records; partition 1 is empty."""
    where, topic = source_cluster.bootstrap, topic_name
    configs = {"segment.bytes": str(1 << 20), "retention.ms": "-1", "index.interval.bytes": "1024"}
    make_topic(where, topic, 2, configs | {"message.timestamp.type": stamped_by})
    for number, codec in enumerate(("gzip", "lz4", "zstd")):
        begin = BEGIN + 1_000 * (number if number != 1 else 7)
        scatter(where, topic, [begin + 100, begin + 5, begin + 300, begin, begin + 299], codec)
        produce(where, topic, [bytes(20_000)] * 30, batch=5, begin_ms=begin + 400)
    transactions(where, topic, [True, False])
    scatter(where, topic, [BEGIN + 20_000, BEGIN - 1_000], "zstd")
    folders = [source_cluster.data / f"{topic}-{number}" for number in (0, 1)]
    assert len(list(folders[0].glob("*.log"))) > 1

    stamps = sorted({record[1] for record in read(where, topic, 0, "read_uncommitted")})
    some = {*stamps[:: max(1, len(stamps) // 4)], stamps[-1]}
    admin = AdminClient({"bootstrap.servers": where})
    for when in [0, *sorted({one + by for one in some for by in (0, 1)}), NEVER]:
        kafkas = kafkas_answer(admin, topic, when)
        live = answers(topic, "--time", iso(when), "--bootstrap", where)
        files = answers(topic, "--time", iso(when), "--from", folders[0], "--from", folders[1])
        assert [(one["offset"], one["timestamp"]) for one in live] == kafkas, when
        assert [(one["offset"], one["timestamp"]) for one in files] == kafkas, when
        assert [one["log_end"] for one in live] == [one["log_end"] for one in files], when
    assert (kafkas[0], files[0]["trusted_segments"] > 0) == ((None, None), True)
    config = config_file(tmp_path, where, where.replace("127.0.0.1", "localhost"), [topic], flow=topic)
    for side in ("source", "target"):
        one = answers(f"{topic}:0", "--time", iso(BEGIN), "--config", config, "--side", side)
        assert one == answers(f"{topic}:0", "--time", iso(BEGIN), "--bootstrap", where)
    missing = CliRunner().invoke(app, ["offsets", "find", f"{topic}:7", "--time", "2026-01-31", "--bootstrap", where])
    assert isinstance(missing.exception, ConfigError)
    assert f"no partition 7 of {topic}" in str(missing.exception)
