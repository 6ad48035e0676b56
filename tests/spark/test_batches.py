"""`kafka-batches` on Spark: rows of files and clusters, the records in them, streams, and the census."""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from helpers import RECENT_MS, make_topic, produce
from inspecting import lines
from inspecting import run as inspected
from pair import Shared
from pyspark import SparkContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader
from rawbatches import batch
from recordoracle import Record, encoded
from sparkcontext import context
from transactional import transactions
from typer.testing import CliRunner
from waiting import DEADLINE_S

from mirror.cli import app
from mirror.commands.census import as_dict
from mirror.errors import ConfigError, ExitCode
from mirror.spark.census import Census, taken
from mirror.spark.datasource import records

__all__ = ["context"]

MANUAL = Path(__file__).parents[2] / "docs" / "batches.md"


def segment(folder: Path, *batches: bytes) -> None:
    """Write a partition's first segment as a broker names it."""
    folder.mkdir()
    (folder / f"{0:020}.log").write_bytes(b"".join(batches))


@pytest.fixture(scope="module")
def filled(source_cluster: Shared, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A topic with three codecs and transactions, and a folder with a copy of its partitions' folders."""
    source, topic = source_cluster.bootstrap, f"batches-as-rows-{uuid.uuid4().hex[:8]}"
    make_topic(source, topic, partitions=2)
    for codec in ("none", "lz4", "zstd"):
        produce(source, topic, [b"%s %d" % (codec.encode(), n) for n in range(40)], codec=codec)
    produce(source, topic, [b"p1 %d" % n for n in range(10)], partition=1, begin_ms=RECENT_MS + 5_000)
    transactions(source, topic, [True, False])
    folder = tmp_path_factory.mktemp("data")
    for number in range(2):
        shutil.copytree(source_cluster.data / f"{topic}-{number}", folder / f"{topic}-{number}")
    return topic, folder


def rows(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("kafka-batches").options(**options).load(str(path))


def rows_of_cluster(spark: SparkSession, cluster: Shared, topic: str, **options: str) -> DataFrame:
    given = {"bootstrap.servers": cluster.bootstrap, "topic": topic, **options}
    return spark.read.format("kafka-batches").options(**given).load()


def test_rows_of_files_and_of_a_cluster_say_what_inspect_says(
    spark: SparkSession, source_cluster: Shared, filled: tuple[str, Path]
) -> None:
    topic, folder = filled
    found = [row.asDict() for row in rows(spark, folder, topic=topic, partition="0", uncompressed="none").collect()]
    inspected_lines = lines(inspected(folder / f"{topic}-0", "--json"))
    assert len(found) == len(inspected_lines) > 12
    for row, line in zip(found, inspected_lines, strict=True):
        shared = (row.keys() & line.keys()) - {"base_time", "max_time"}
        assert len(shared) > 20
        assert {name: row[name] for name in shared} == {name: line[name] for name in shared}
    live = rows_of_cluster(spark, source_cluster, topic, partition="0", uncompressed="none").collect()
    assert [row.asDict() for row in live] == [row | {"file": None, "position": None} for row in found]


def test_options_and_filters_choose_what_is_read(
    spark: SparkSession, source_cluster: Shared, filled: tuple[str, Path]
) -> None:
    topic, folder = filled
    everything = rows_of_cluster(spark, source_cluster, topic)
    every = everything.collect()
    chosen = rows_of_cluster(spark, source_cluster, topic, **{"partition": "0", "from": "45", "before": "61"})
    assert [row.base_offset for row in chosen.collect()] == [40, 50, 60]
    late = rows(spark, folder, since=str(RECENT_MS + 5_000)).collect()
    assert {(row.partition, row.base_offset) for row in late if row.control is None} == {(1, 0)}
    cases: dict[str, Callable[[Row], bool]] = {
        "partition = 1": lambda row: row.partition == 1,
        "base_offset >= 40 and last_offset < 80": lambda row: row.base_offset >= 40 and row.last_offset < 80,
        "topic = 'another' or codec = 'zstd'": lambda row: row.codec == "zstd",
    }
    for text, holds in cases.items():
        wanted = sorted((row.partition, row.last_offset) for row in every if holds(row))
        pushed = rows(spark, folder, pushdown="true").where(text)
        assert sorted((row.partition, row.last_offset) for row in pushed.collect()) == wanted, text
    assert everything.where("partition = 1").count() == len([row for row in every if row.partition == 1])
    assert everything.count() == len(every), "a DataFrame serves several queries"


def test_damage_fails_a_query_by_name(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "orders-0", batch(0, count=3), b"x" * 40)
    with pytest.raises(PySparkException, match=r"unknown magic at byte 78.*sound up to offset 2"):
        rows(spark, tmp_path).collect()
    assert rows(spark, tmp_path, damage="flag").where("damage IS NOT NULL").count() == 1


def test_batches_become_records(spark: SparkSession, source_cluster: Shared, topic_name: str) -> None:
    """Those of committed transactions, unless all are asked for."""
    source = source_cluster.bootstrap
    make_topic(source, topic_name)
    written: list[tuple[Any, ...]] = [
        (b"k1", b"v1", [("a", b"1"), ("a", None), ("é", b"")], RECENT_MS),
        (None, b"v2", [], RECENT_MS + 1),
        (b"", None, [("last", b"\xff\x00")], RECENT_MS + 2),
    ]
    for codec in ("gzip", "none"):
        producer = Producer({"bootstrap.servers": source, "compression.type": codec})
        for key, value, headers, when in written:
            producer.produce(topic_name, key=key, value=value, headers=headers, timestamp=when, partition=0)
        assert producer.flush(DEADLINE_S) == 0
    transactions(source, topic_name, [False, True], size=2)
    batches = rows_of_cluster(spark, source_cluster, topic_name, data="true")
    found = records(batches).orderBy("offset").collect()

    def field(value: bytearray | None) -> bytes | None:
        return None if value is None else bytes(value)

    plain = [(field(row.key), field(row.value), [tuple(one) for one in row.headers]) for row in found[:6]]
    assert plain == [(key, value, headers) for key, value, headers, _ in written] * 2
    assert [bytes(row.value) for row in found[6:]] == [b" 1 0 1", b" 1 1 1"]
    times = [int(row.timestamp.replace(tzinfo=UTC).timestamp() * 1000) for row in found[:3]]
    assert times == [when for *_, when in written]
    assert records(batches, committed=False).count() == len(found) + 2
    with pytest.raises(ConfigError, match="have no column control"):
        records(batches.drop("control"))


def begun(stream: DataStreamReader, folder: Path) -> StreamingQuery:
    """Start a query into memory that has read what is there. Spark waits ten seconds for the Python process that plans
    it, and no setting makes that longer: on a busy machine it is begun again.
    """
    deadline = time.monotonic() + DEADLINE_S
    while True:
        name = f"streamed_{uuid.uuid4().hex}"
        query = stream.load().writeStream.format("memory").queryName(name)
        running = query.option("checkpointLocation", str(folder / name)).start()
        try:
            running.processAllAvailable()
        except StreamingQueryException as failure:
            if "failed to connect back" not in str(failure) or time.monotonic() > deadline:
                raise
            continue
        return running


def test_a_stream_reads_each_batch_once(
    spark: SparkSession, source_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    source = source_cluster.bootstrap
    make_topic(source, topic_name, partitions=2)
    produce(source, topic_name, [b"%d" % n for n in range(30)])
    options = {"bootstrap.servers": source, "topic": topic_name}
    running = begun(spark.readStream.format("kafka-batches").options(**options), tmp_path)

    def caught_up() -> list[tuple[int, int]]:
        running.processAllAvailable()
        return sorted((row.partition, row.base_offset) for row in spark.table(running.name).collect())

    try:
        assert caught_up() == [(0, 0), (0, 10), (0, 20)]
        produce(source, topic_name, [b"%d" % n for n in range(10)], partition=1)
        produce(source, topic_name, [b"more"])
        assert caught_up() == [(0, 0), (0, 10), (0, 20), (0, 30), (1, 0)]
    finally:
        running.stop()


def test_the_manuals_examples_run(
    spark: SparkSession, source_cluster: Shared, filled: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    topic, folder = filled
    given = {"spark": spark, "DATA": str(folder), "BOOTSTRAP": source_cluster.bootstrap, "TOPIC": topic}
    shown = []
    for example in re.findall(r"```python\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(example, str(MANUAL), "exec"), given)  # noqa: S102 -- the manual is ours
        shown.append(capsys.readouterr().out)
    codecs, verdicts, values = shown
    assert {codec for codec in ("lz4", "none", "zstd") if re.search(rf"\| +{codec}\| ", codecs)} == {
        *("lz4", "none", "zstd")
    }
    assert "own_producer" in verdicts
    assert values.count("none 1") == 5


# --- the census -------------------------------------------------------------------------------------------------------


def test_a_census_agrees_with_sql_by_hand(spark: SparkSession, filled: tuple[str, Path]) -> None:
    batches = rows(spark, filled[1])
    found = as_dict(Census(taken(spark, batches), 0.5))
    every = batches.collect()

    def by_hand(name: Callable[[Row], str]) -> Iterator[tuple[str, tuple[int, int, int]]]:
        for group in {name(row) for row in every}:
            those = [row for row in every if name(row) == group]
            yield group, (len(those), sum(row.records for row in those), sum(row.bytes for row in those))

    columns: dict[str, Callable[[Row], str]] = {
        "topics": lambda row: row.topic,
        "codecs": lambda row: row.codec,
        "verdicts": lambda row: f"{row.verdict}/{row.reason}",
    }
    for what, name in columns.items():
        counted = {key: (of["batches"], of["records"], of["bytes"]) for key, of in found[what].items()}
        assert counted == dict(by_hand(name)), what
    packed = [row.bytes for row in every if row.codec != "none"]
    reported = found["decompressed"]["mirrormaker2"]
    assert (reported["batches"], reported["bytes"]) == (len(packed), sum(packed))
    assert found["overhead"]["headers"] == 61 * found["batches"]


@pytest.mark.proves("mirror census")
def test_the_census_of_a_folder_measures_records_and_names_damage(context: SparkContext, tmp_path: Path) -> None:
    every = [Record(number, number, b"key", b"value" * 9, ()) for number in range(200)]
    sound = batch(0, count=200, payload=encoded(every), base_timestamp=0, max_timestamp=199)
    (tmp_path / "data").mkdir()
    segment(tmp_path / "data" / "orders-0", sound, b"x" * 40)
    segment(tmp_path / "data" / "odd-0", batch(0, count=2, payload=b"no records"))
    report = tmp_path / "census.html"
    options = ["--records", "--json", "--report", str(report)]
    done = CliRunner().invoke(app, ["census", str(tmp_path / "data"), *options])
    assert done.exit_code == ExitCode.DATA_AT_RISK, done.output
    found = json.loads(done.stdout)
    assert (found["batches"], found["records"], found["damaged"]) == (2, 202, 1)
    measured = found["records_measured"]
    assert (measured["orders"]["measured"], measured["orders"]["unread"]) == (200, 0)
    # of two bytes are the deltas from 64 on
    assert (measured["orders"]["values"], measured["orders"]["format"]) == (200 * 45, 200 * 7 + 2 * 136)
    assert (measured["odd"]["measured"], measured["odd"]["unread"]) == (0, 1)
    assert "1 log damaged" in report.read_text(encoding="utf-8")
