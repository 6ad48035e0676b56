"""`kafka-batches`: one row for each raw batch, of segment files and of clusters, and the records in them."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from confluent_kafka import Producer
from guarded import delete_records
from helpers import RECENT_MS, make_topic, produce
from hypothesis import given
from hypothesis import strategies as st
from inspecting import ABORT, lines, marker, transactional
from inspecting import run as inspected
from padded import trimmed
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader
from rawbatches import batch, legacy, raw
from recordoracle import Record, encoded
from releases import NotFetched, release
from transactional import transactions
from typer.testing import CliRunner
from zstandard import ZstdCompressor

from mirror.cli import app
from mirror.commands.census import as_dict, page, ratio, summary_lines
from mirror.errors import BadRecords, BrokerError, ConfigError, ExitCode
from mirror.host import find
from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.records.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, declared_size
from mirror.records.header import APPEND_TIME, DELETE_HORIZON
from mirror.segments.files import entries, largest_timestamp
from mirror.spark.census import Census, Group, Sums, taken
from mirror.spark.datasource import plan, records
from mirror.spark.datasource.options import Wanted, milliseconds, parse
from mirror.spark.datasource.plan import FileSlice, planned
from mirror.spark.datasource.source import BatchStream, narrowed

MANUAL = Path(__file__).parents[3] / "docs" / "batches.md"


def segment(folder: Path, base: int, *batches: bytes) -> Path:
    """A segment file as a broker names it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{base:020}.log"
    path.write_bytes(b"".join(batches))
    return path


def read_files(path: Path, **options: str) -> list[dict[str, Any]]:
    """The rows that tasks would read, in this process."""
    asked = parse({"path": str(path), **options})
    slices = planned(asked, asked.wanted)
    return [row for one in slices for made in one.read() for row in made.to_pylist()]


# --- how large a payload says it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY])
@given(data=st.binary(max_size=100_000))
def test_a_payload_states_its_size(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    assert declared_size(codec, memoryview(packed)) in ({len(data)} if len(packed) >= 8 else {len(data), None})


@pytest.mark.parametrize("size", [0, 10, 255, 256, 65_791, 65_792, 3_000_000])
def test_a_zstd_frame_states_its_size_where_it_has_one(size: int) -> None:
    whole = ZstdCompressor(level=1).compress(bytes(size))
    assert declared_size(ZSTD, memoryview(whole)) == size
    stream = ZstdCompressor(level=1, write_content_size=False).compress(bytes(size))
    assert declared_size(ZSTD, memoryview(stream)) is None


def test_a_raw_snappy_block_and_an_lz4_frame() -> None:
    import cramjam
    import lz4.frame

    assert declared_size(SNAPPY, memoryview(bytes(cramjam.snappy.compress_raw(bytes(70_000))))) == 70_000
    assert declared_size(LZ4, memoryview(compress(LZ4, bytes(70_000)))) is None
    assert declared_size(LZ4, memoryview(lz4.frame.compress(bytes(70_000), store_size=True))) == 70_000


@given(codec=st.integers(0, 7), data=st.binary(max_size=200))
def test_hostile_bytes_state_something_or_nothing(codec: int, data: bytes) -> None:
    for prefix in (b"", b"\x82SNAPPY\0" + bytes(8), b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"):
        assert (declared_size(codec, memoryview(prefix + data)) or 0) >= 0


# --- what is wanted -------------------------------------------------------------------------------------------------

HEADER = raw(batch(100, count=10, base_timestamp=5_000, max_timestamp=6_000)).header
HORIZON = raw(batch(100, attributes=DELETE_HORIZON, base_timestamp=9_000, max_timestamp=6_000)).header


@pytest.mark.parametrize(
    ("wanted", "has"),
    [
        (Wanted(), True),
        (Wanted(first=109), True),
        (Wanted(first=110), False),
        (Wanted(before=101), True),
        (Wanted(before=100), False),
        (Wanted(since=6_000), True),
        (Wanted(since=6_001), False),
        (Wanted(until=5_001), True),
        (Wanted(until=5_000), False),
    ],
)
def test_a_batch_is_wanted_where_it_may_hold_a_wanted_record(wanted: Wanted, has: bool) -> None:
    assert wanted.has(HEADER) is has


def test_a_delete_horizon_is_no_first_time() -> None:
    assert Wanted(until=7_000).has(HORIZON)


WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([EqualTo(("topic",), "a"), In(("topic",), ("a", "b", None))], Wanted(topics=frozenset("a"))),
        ([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], Wanted(topics=frozenset())),
        ([In(("partition",), (1, 2))], Wanted(partitions=frozenset({1, 2}))),
        ([GreaterThanOrEqual(("base_offset",), 5), LessThan(("last_offset",), 9)], Wanted(first=5, before=10)),
        ([EqualTo(("last_offset",), 7)], Wanted(first=7, before=8)),
        ([GreaterThan(("max_time",), WHEN)], Wanted(since=1_769_860_800_000)),
        ([LessThan(("base_timestamp",), 77)], Wanted(until=78)),
        ([LessThan(("max_timestamp",), 77), IsNotNull(("topic",)), EqualTo(("codec",), "zstd")], Wanted()),
        ([EqualTo(("headers", "topic"), "a"), EqualTo(("topic",), None)], Wanted()),
    ],
)
def test_filters_narrow_what_is_read(filters: list[Filter], wanted: Wanted) -> None:
    assert narrowed(Wanted(), filters) == wanted


def test_times_are_iso_or_milliseconds() -> None:
    assert milliseconds("2026-01-31T12:00:00") == milliseconds("2026-01-31T13:00:00+01:00") == 1_769_860_800_000
    assert milliseconds("1769860800000") == 1_769_860_800_000


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "give one of the options path, config, bootstrap.servers"),
        ({"path": "/x", "bootstrap.servers": "h:1"}, "not path and bootstrap.servers together"),
        ({"path": "/x", "topics": "a"}, "unknown option topics; did you mean topic?"),
        ({"path": "/x", "partition": "one"}, "option partition is 'one', which is not numbers"),
        ({"path": "/x", "since": "noon"}, "option since is 'noon', which is not a time"),
        ({"path": "/x", "damage": "ignore"}, "use fail or flag"),
        ({"path": "/x", "sasl.username": "me"}, "sasl.username go with bootstrap.servers alone"),
        ({"path": "/x", "side": "target"}, "side chooses between the clusters of a config"),
        ({"bootstrap.servers": "nowhere"}, "bootstrap.servers"),
        ({"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL"}, "sasl.mechanism: required with SASL_SSL"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        parse(given)


SASL = {
    "bootstrap.servers": "h:1",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "me",
}


def test_a_secret_is_a_reference_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="a secret may not stand") as refused:
        parse({**SASL, "sasl.password": "hunter2"})
    assert "hunter2" not in str(refused.value)
    monkeypatch.setenv("BATCHES_PASSWORD", "hunter2")
    options = parse({**SASL, "sasl.password": "${env:BATCHES_PASSWORD}", "socket.timeout.ms": "2000"})
    assert options.cluster.sasl_password is not None
    assert options.cluster.sasl_password.get_secret_value() == "hunter2"
    assert options.cluster.socket_timeout_ms == 2000
    assert "hunter2" not in repr(options)


# --- files ----------------------------------------------------------------------------------------------------------


def indexed(path: Path, *given: tuple[int, int], zeros: int = 0) -> None:
    """A time index beside a segment."""
    data = b"".join(struct.pack(">qi", *entry) for entry in given) + bytes(12 * zeros)
    path.with_suffix(".timeindex").write_bytes(data)


def test_a_time_index_ends_in_zeros_or_damage(tmp_path: Path) -> None:
    """Its last entry is the one that holds the largest: one that is not whole to its end leaves nothing out."""
    path = segment(tmp_path / "orders-0", 0, batch(0))
    assert (list(entries(path)), largest_timestamp(path)) == ([], None)
    indexed(path, (100, 3), (250, 9), zeros=4)
    assert (list(entries(path)), largest_timestamp(path)) == ([(100, 3), (250, 9)], None)
    indexed(path, (100, 3), (90, 9), (500, 12))
    assert (list(entries(path)), largest_timestamp(path)) == ([(100, 3)], None)
    indexed(path, (100, 3), (250, 9))
    assert largest_timestamp(path) == 250


def named(path: Path, **options: str) -> list[str]:
    """Base offsets of the segments that would be read."""
    asked = parse({"path": str(path), **options})
    slices = planned(asked, asked.wanted)
    return [
        f"{one.place.topic}-{one.place.partition}:{one.base_offset}" for one in slices if isinstance(one, FileSlice)
    ]


def test_files_that_no_broker_named_are_all_read(tmp_path: Path) -> None:
    """None of them says where another one ends."""
    for name in ("one.log", "other.log"):
        (tmp_path / name).write_bytes(batch(0))
    assert named(tmp_path) == ["None-None:0"] * 2


def test_slices_of_many_segments_stay_small(tmp_path: Path) -> None:
    """Each is sent to a task: none names the others."""
    for base in range(300):
        segment(tmp_path / "orders-0", base, b"")
    asked = parse({"path": str(tmp_path)})
    assert max(len(pickle.dumps(one)) for one in planned(asked, asked.wanted)) < 4_000


def test_segments_that_hold_nothing_wanted_are_not_read(tmp_path: Path) -> None:
    for base, largest in ((0, 1_000), (10, 5_000), (20, 3_000)):
        indexed(segment(tmp_path / "orders-0", base, batch(base)), (largest, 0))
    segment(tmp_path / "orders-12", 0, batch(0))
    segment(tmp_path / "my-topic-1", 7, batch(7))
    segment(tmp_path / "__consumer_offsets-3", 0, batch(0))
    segment(tmp_path / "orders-1.3f5d0e-delete", 0, batch(0))
    (tmp_path / "orders-0" / "leader-epoch-checkpoint").write_text("0")
    orders = ["orders-0:0", "orders-0:10", "orders-0:20"]
    odd = "None-None:0"
    assert named(tmp_path) == ["my-topic-1:7", *orders, odd, "orders-12:0"]
    assert named(tmp_path, topic="orders") == [*orders, "orders-12:0"]
    assert named(tmp_path, topic="__consumer_offsets") == ["__consumer_offsets-3:0"]
    assert named(tmp_path, topic="orders", partition="12") == ["orders-12:0"]
    only = {"topic": "orders", "partition": "0"}
    assert named(tmp_path, **only, **{"from": "10", "before": "15"}) == orders[1:2]
    assert named(tmp_path, **only, **{"from": "9", "before": "11"}) == orders[:2]
    assert named(tmp_path, **only, since="1001") == orders[1:]
    assert named(tmp_path, **only, since="9000") == orders[2:], "the last one may be written, its index is behind"


def test_a_folder_without_segments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no segments"):
        read_files(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be read|no segments"):
        read_files(tmp_path / "missing")


def test_a_remote_segment_is_read_like_a_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment(tmp_path / "orders-0", 0, batch(0, count=3), batch(3))
    segment(tmp_path / "orders-0", 4)
    away = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())

    class Away:
        @staticmethod
        def from_uri(address: str) -> tuple[pyarrow.fs.FileSystem, str]:
            return away, address.removeprefix("store://")

    here = read_files(tmp_path / "orders-0")
    monkeypatch.setattr(plan, "FileSystem", Away)
    asked = parse({"path": "store://orders-0"})
    there = [row for one in planned(asked, asked.wanted) for made in one.read() for row in made.to_pylist()]
    assert [{**row, "file": None} for row in there] == [{**row, "file": None} for row in here]
    assert {row["file"] for row in there} == {"store://orders-0/00000000000000000000.log"}


def test_a_transaction_ends_in_a_later_segment(tmp_path: Path) -> None:
    segment(tmp_path / "orders-0", 0, transactional(0, 7), transactional(1, 8), batch(2))
    segment(tmp_path / "orders-0", 3, transactional(3, 7))
    segment(tmp_path / "orders-0", 4, marker(4, 7, ABORT), transactional(5, 7))
    reported = [(row["base_offset"], row["outcome"], row["reason"]) for row in read_files(tmp_path)]
    assert reported == [
        (0, "aborted", "aborted"),
        (1, "undecided", "transactional"),
        (2, None, "own_producer"),
        (3, "aborted", "aborted"),
        (4, None, "control"),
        (5, "undecided", "transactional"),
    ]


DAMAGED = batch(3, payload=b"changed", crc=1)


@pytest.mark.parametrize(
    ("tail", "expected"), [(DAMAGED, "CRC mismatch at byte 78"), (b"x" * 40, "unknown magic at byte 78")]
)
def test_damage_is_named_or_flagged(tmp_path: Path, tail: bytes, expected: str) -> None:
    segment(tmp_path / "orders-0", 0, batch(0, count=3), tail)
    with pytest.raises(BadRecords, match=f"{expected}.*sound up to offset 2"):
        read_files(tmp_path)
    sound, flagged = read_files(tmp_path, damage="flag")
    assert (sound["base_offset"], sound["damage"], sound["crc_holds"]) == (0, None, True)
    assert flagged["damage"].startswith(expected)
    assert (flagged["position"], flagged["topic"], flagged["partition"]) == (78, "orders", 0)
    if tail is DAMAGED:
        assert (flagged["verdict"], flagged["reason"], flagged["crc_holds"]) == ("REFUSE", "bad_crc", False)


def test_old_and_odd_batches_have_rows(tmp_path: Path) -> None:
    far = batch(2, attributes=APPEND_TIME, base_timestamp=-1, max_timestamp=2**62, producer_id=9, producer_epoch=1)
    segment(tmp_path / "orders-0", 0, legacy(0, 0), legacy(1, 1), far, batch(3, count=2, delta=4))
    zero, one, odd, holed = read_files(tmp_path)
    assert (zero["magic"], zero["base_timestamp"], zero["base_time"], zero["records"]) == (0, None, None, 1)
    assert (one["magic"], one["base_timestamp"]) == (1, 1_400_000_000_000)
    assert one["base_time"] == datetime(2014, 5, 13, 16, 53, 20, tzinfo=UTC)
    assert (odd["max_timestamp"], odd["max_time"], odd["base_time"]) == (2**62, None, None)
    assert (odd["append_time"], odd["producer_id"], odd["reason"]) == (True, 9, "append_time")
    assert (holed["holes"], holed["reason"]) == (3, "holes")


def test_bytes_and_sizes_are_given_as_asked(tmp_path: Path) -> None:
    packed = batch(0, attributes=ZSTD, payload=ZstdCompressor(write_content_size=False).compress(bytes(5000)))
    segment(tmp_path / "orders-0", 0, packed)
    fields = {how: read_files(tmp_path, uncompressed=how)[0]["uncompressed"] for how in ("none", "stated", "measured")}
    assert fields == {"none": None, "stated": None, "measured": 5000}
    assert read_files(tmp_path)[0]["data"] is None
    assert read_files(tmp_path, data="true")[0]["data"] == packed


# --- on Spark -------------------------------------------------------------------------------------------------------


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [row.asDict() for row in rows]


@pytest.fixture(scope="module")
def filled(own_source: Cluster) -> str:
    """A topic with three codecs and transactions; its name."""
    topic = "batches-as-rows"
    make_topic(own_source.bootstrap, topic, partitions=2)
    for codec in ("none", "lz4", "zstd"):
        produce(own_source.bootstrap, topic, [b"%s %d" % (codec.encode(), n) for n in range(40)], codec=codec)
    produce(own_source.bootstrap, topic, [b"p1 %d" % n for n in range(10)], partition=1, begin_ms=RECENT_MS + 5_000)
    transactions(own_source.bootstrap, topic, [True, False])
    return topic


def test_what_is_deleted_before_it_is_read(own_source: Cluster, topic_name: str) -> None:
    """A census counts what is there; whoever asks for records is to know that some are gone."""
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, [b"%d" % number for number in range(10)])
    where = {"bootstrap.servers": own_source.bootstrap, "topic": topic_name}
    asked = [parse(where | more) for more in ({}, {"deleted": "skip"})]
    (failing,), (skipping,) = (planned(one, one.wanted) for one in asked)
    produce(own_source.bootstrap, topic_name, [b"later"])
    trimmed(own_source, topic_name, 9)
    with pytest.raises(BrokerError, match="offset_out_of_range"):
        list(failing.read())
    assert sum(made.num_rows for made in skipping.read()) == 1
    trimmed(own_source, topic_name, 11)
    assert sum(made.num_rows for made in skipping.read()) == 0


def of_files(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    return spark.read.format("kafka-batches").options(**options).load(str(cluster.nodes[0].data))


def of_cluster(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    given = {"bootstrap.servers": cluster.bootstrap, **options}
    return spark.read.format("kafka-batches").options(**given).load()


@pytest.mark.spark
@pytest.mark.brokers
def test_rows_say_what_inspect_says(spark: SparkSession, own_source: Cluster, filled: str) -> None:
    found = as_dicts(of_files(spark, own_source, topic=filled, partition="0", uncompressed="none").collect())
    output = lines(inspected(own_source.nodes[0].data / f"{filled}-0", "--json"))
    assert len(found) == len(output) > 12
    for row, line in zip(found, output, strict=True):
        shared = (row.keys() & line.keys()) - {"base_time", "max_time"}
        assert len(shared) > 20
        assert {name: row[name] for name in shared} == {name: line[name] for name in shared}
    live = as_dicts(of_cluster(spark, own_source, topic=filled, partition="0", uncompressed="none").collect())
    elsewhere = {"file": None, "position": None}
    assert [row | elsewhere for row in found] == live


@pytest.mark.spark
@pytest.mark.brokers
def test_filters_change_nothing_but_what_is_read(spark: SparkSession, own_source: Cluster, filled: str) -> None:
    every = of_cluster(spark, own_source, topic=filled).collect()
    cases: dict[str, Callable[[Row], bool]] = {
        "partition = 1": lambda row: row.partition == 1,
        "base_offset >= 40 and last_offset < 80": lambda row: row.base_offset >= 40 and row.last_offset < 80,
        f"max_timestamp >= {RECENT_MS + 5_000}": lambda row: row.max_timestamp >= RECENT_MS + 5_000,
        "topic = 'another' or codec = 'zstd'": lambda row: row.codec == "zstd",
        "topic = 'not there'": lambda _: False,
    }
    for text, holds in cases.items():
        for read in (of_cluster, of_files):
            batches = read(spark, own_source, topic=filled, pushdown="true")
            found = batches.where(text).select("partition", "last_offset").collect()
            wanted = [(row.partition, row.last_offset) for row in every if holds(row)]
            assert sorted(map(tuple, found)) == sorted(wanted), text


@pytest.mark.spark
def test_a_dataframe_serves_several_queries(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "orders-0", 0, batch(0, count=3), batch(3))
    batches = spark.read.format("kafka-batches").load(str(tmp_path))
    assert batches.where("base_offset = 3").count() == 1
    assert batches.count() == 2


@pytest.mark.spark
def test_folders_that_a_broker_left_aside_are_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "orders-0", 0, batch(0, count=3))
    for number, why in enumerate(("delete", "future", "stray"), 1):
        segment(tmp_path / f"orders-{number}.{number:032x}-{why}", 0, batch(0, count=5))
    found = spark.read.format("kafka-batches").load(str(tmp_path)).collect()
    assert [(row.topic, row.partition, row.records) for row in found] == [("orders", 0, 3)]
    named = spark.read.format("kafka-batches").load(str(tmp_path / f"orders-1.{1:032x}-delete")).collect()
    assert [(row.topic, row.records) for row in named] == [(None, 5)]


@pytest.mark.spark
@pytest.mark.brokers
def test_options_choose_offsets_and_times(spark: SparkSession, own_source: Cluster, filled: str) -> None:
    asked = {"topic": filled, "from": "45", "before": "61"}
    for read in (of_cluster, of_files):
        found = read(spark, own_source, partition="0", **asked).collect()
        assert [(row.base_offset, row.last_offset) for row in found] == [(40, 49), (50, 59), (60, 69)]
        late = read(spark, own_source, topic=filled, since=str(RECENT_MS + 5_000)).collect()
        assert {(row.partition, row.base_offset) for row in late if row.control is None} == {(1, 0)}


@pytest.mark.spark
def test_damage_fails_a_query_by_name(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "orders-0", 0, batch(0, count=3), b"x" * 40)
    read = spark.read.format("kafka-batches")
    with pytest.raises(PySparkException, match=r"unknown magic at byte 78.*sound up to offset 2"):
        read.load(str(tmp_path)).collect()
    assert read.option("damage", "flag").load(str(tmp_path)).where("damage IS NOT NULL").count() == 1
    with pytest.raises(PySparkException, match="unknown option dammage; did you mean damage"):
        spark.read.format("kafka-batches").option("dammage", "flag").load(str(tmp_path)).collect()


@pytest.mark.spark
@pytest.mark.brokers
def test_batches_become_records(spark: SparkSession, own_source: Cluster, topic_name: str) -> None:
    make_topic(own_source.bootstrap, topic_name)
    written: list[tuple[Any, ...]] = [
        (b"k1", b"v1", [("a", b"1"), ("a", None), ("é", b"")], RECENT_MS),
        (None, b"v2", [], RECENT_MS + 1),
        (b"", None, [("last", b"\xff\x00")], RECENT_MS + 2),
    ]
    for codec in ("gzip", "none"):
        producer = Producer({"bootstrap.servers": own_source.bootstrap, "compression.type": codec})
        for key, value, headers, when in written:
            producer.produce(topic_name, key=key, value=value, headers=headers, timestamp=when, partition=0)
        producer.flush(30)
    transactions(own_source.bootstrap, topic_name, [False, True], size=2)
    batches = of_cluster(spark, own_source, topic=topic_name, data="true")
    found = records(batches).orderBy("offset").collect()
    plain = [
        (row.key and bytes(row.key), row.value and bytes(row.value), [tuple(one) for one in row.headers])
        for row in found
    ]
    wanted = [(key, value, headers) for key, value, headers, _ in written]
    wanted[2] = (b"", None, wanted[2][2])
    assert plain[:6] == [*wanted, *wanted]
    assert [bytes(row.value) for row in found[6:]] == [b" 1 0 1", b" 1 1 1"]
    times = [int(row.timestamp.replace(tzinfo=UTC).timestamp() * 1000) for row in found[:3]]
    assert times == [when for *_, when in written]
    assert records(batches, committed=False).count() == len(found) + 2
    with pytest.raises(PySparkException, match="option data=true"):
        records(of_cluster(spark, own_source, topic=topic_name)).collect()
    with pytest.raises(ConfigError, match="have no column control"):
        records(batches.drop("control"))


def begun(stream: DataStreamReader, folder: Path) -> StreamingQuery:
    """A query into memory that has read what is there. Spark waits ten seconds for the Python process that plans it,
    and no setting makes that longer: on a busy machine it is begun again.
    """
    deadline = time.monotonic() + 180
    attempt = 0
    while True:
        attempt += 1
        query = stream.load().writeStream.format("memory").queryName(f"streamed_{attempt}")
        running = query.option("checkpointLocation", str(folder / str(attempt))).start()
        try:
            running.processAllAvailable()
        except StreamingQueryException as failure:
            if "failed to connect back" not in str(failure) or time.monotonic() > deadline:
                raise
            continue
        return running


@pytest.mark.spark
@pytest.mark.brokers
def test_a_stream_reads_each_batch_once(
    spark: SparkSession, own_source: Cluster, topic_name: str, tmp_path: Path
) -> None:
    make_topic(own_source.bootstrap, topic_name, partitions=2)
    produce(own_source.bootstrap, topic_name, [b"%d" % n for n in range(30)])
    stream = spark.readStream.format("kafka-batches").options(
        **{"bootstrap.servers": own_source.bootstrap, "topic": topic_name}
    )
    running = begun(stream, tmp_path)

    def caught_up() -> list[tuple[int, int]]:
        running.processAllAvailable()
        return sorted((row.partition, row.base_offset) for row in spark.table(running.name).collect())

    try:
        assert caught_up() == [(0, 0), (0, 10), (0, 20)]
        produce(own_source.bootstrap, topic_name, [b"%d" % n for n in range(10)], partition=1)
        produce(own_source.bootstrap, topic_name, [b"more"])
        assert caught_up() == [(0, 0), (0, 10), (0, 20), (0, 30), (1, 0)]
    finally:
        running.stop()


@pytest.mark.brokers
def test_a_stream_reads_what_is_new_from_where_its_log_begins(own_source: Cluster, topic_name: str) -> None:
    """A restart reads the same again, though the first records were deleted since."""
    make_topic(own_source.bootstrap, topic_name, partitions=2)
    at, options = TopicPartition(topic_name, 1), {"bootstrap.servers": own_source.bootstrap, "topic": topic_name}
    produce(own_source.bootstrap, topic_name, [b"%d" % n for n in range(30)], partition=1)
    delete_records(own_source, at, 10)
    stream, before = BatchStream(parse(options)), {f"{topic_name}:0": 0}
    first = stream.latestOffset(before, None)

    def bases(start: dict[str, int], end: dict[str, int]) -> list[int]:
        parts = BatchStream(parse(options)).partitions(start, end)
        return [row["base_offset"] for one in parts for rows in stream.read(one) for row in rows.to_pylist()]

    assert bases(before, first) == [10, 20]
    assert stream.latestOffset(first, None) == first
    produce(own_source.bootstrap, topic_name, [b"more"], partition=1)
    second = stream.latestOffset(first, None)
    assert (bases(first, second), sorted(second)) == ([30], [f"{topic_name}:{number}" for number in (0, 1)])
    delete_records(own_source, at, 20)
    with pytest.raises(BrokerError):
        bases(before, first)
    since = BatchStream(parse({**options, "from": "25"})).latestOffset(before, None)
    assert bases(before, since) == [20, 30], "the batch that holds 25, and the next"


@pytest.mark.spark
@pytest.mark.brokers
def test_the_manuals_examples_run(
    spark: SparkSession, own_source: Cluster, filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1):
        copy = tmp_path / f"{filled}-{number}"
        shutil.copytree(own_source.nodes[0].data / copy.name, copy)
    examples = re.findall(r"```python\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    given = {"spark": spark, "DATA": str(tmp_path), "BOOTSTRAP": own_source.bootstrap, "TOPIC": filled}
    shown = []
    for example in examples:
        exec(compile(example, str(MANUAL), "exec"), given)  # noqa: S102 -- the manual is ours
        shown.append(capsys.readouterr().out)
    codecs, verdicts, values = shown
    assert [re.search(rf"{filled}\| +{codec}\| ", codecs) is not None for codec in ("lz4", "none", "zstd")] == [
        True
    ] * 3
    assert "own_producer" in verdicts
    assert values.count("none 1") == 5


@pytest.mark.brokers
def test_kafkas_own_dump_says_the_same(own_source: Cluster, filled: str) -> None:
    try:
        jars = release("kafka-3.9.1")
    except NotFetched as problem:
        pytest.skip(str(problem))
    path = own_source.nodes[0].data / f"{filled}-0" / f"{0:020}.log"
    output = subprocess.run(
        [find(), "-cp", os.pathsep.join(map(str, jars)), "kafka.tools.DumpLogSegments", "--files", str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    ).stdout
    dumped = [
        dict(re.findall(r"(\w+): (\S+)", line)) for line in output.splitlines() if line.startswith("baseOffset: ")
    ]
    assert len(dumped) > 12
    for row, theirs in zip(read_files(path), dumped, strict=True):
        ours = {
            "baseOffset": row["base_offset"],
            "lastOffset": row["last_offset"],
            "count": row["records"],
            "baseSequence": -1 if row["base_sequence"] is None else row["base_sequence"],
            "producerId": -1 if row["producer_id"] is None else row["producer_id"],
            "producerEpoch": -1 if row["producer_epoch"] is None else row["producer_epoch"],
            "partitionLeaderEpoch": row["leader_epoch"],
            "isTransactional": str(row["transactional"]).lower(),
            "isControl": str(row["control"] is not None).lower(),
            "position": row["position"],
            "CreateTime": row["max_timestamp"],
            "size": row["bytes"],
            "magic": row["magic"],
            "compresscodec": row["codec"],
            "isvalid": str(row["crc_holds"]).lower(),
        }
        assert {name: theirs[name] for name in ours} == {name: str(value) for name, value in ours.items()}


# --- the census -----------------------------------------------------------------------------------------------------

#: By hand, and not as `mirror census` does it: no classes of size, nothing folded afterwards.
BY_HAND = """
    SELECT {name}, count(*) AS batches, sum(records) AS records, sum(bytes) AS bytes
    FROM by_hand WHERE damage IS NULL GROUP BY 1
"""


@pytest.mark.spark
@pytest.mark.brokers
def test_a_census_agrees_with_sql_by_hand(spark: SparkSession, own_source: Cluster, filled: str) -> None:
    batches = of_files(spark, own_source, damage="flag").cache()  # a broker that lives deletes and writes
    assert batches.count()
    found = as_dict(Census(taken(spark, batches), 0.5))
    batches.createOrReplaceTempView("by_hand")
    assert len(found["topics"]) >= 1
    for what, name in (("topics", "topic"), ("codecs", "codec"), ("verdicts", "concat(verdict, '/', reason)")):
        wanted = {row[0]: tuple(row[1:]) for row in spark.sql(BY_HAND.format(name=name)).collect()}
        assert {key: (of["batches"], of["records"], of["bytes"]) for key, of in found[what].items()} == wanted
    packed = "SELECT count(*), coalesce(sum(bytes), 0) FROM by_hand WHERE codec <> 'none'"
    for who, of in (("mirrormaker2", packed), ("mirror", f"{packed} AND verdict = 'REWRITE'")):
        (counted,) = spark.sql(of).collect()
        reported = found["decompressed"][who]
        assert (reported["batches"], reported["bytes"]) == tuple(counted)
    smallest = spark.sql("SELECT min(bytes) FROM by_hand").first()
    assert smallest is not None
    assert next(iter(found["sizes"])) == str(1 << smallest[0].bit_length() - 1)
    assert found["sizes"].keys() >= {"64"}
    assert filled in found["small_batches"]
    assert found["overhead"]["headers"] == 61 * found["batches"]
    batches.unpersist()


def typical(base: int, count: int, span: int) -> bytes:
    """A batch whose last offset delta and whose times' distance are the given ones."""
    return batch(base, count=count, base_timestamp=1_760_000_000_000, max_timestamp=1_760_000_000_000 + span)


@pytest.mark.spark
def test_what_the_discarded_format_would_spare(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path / "typical-0", 0, typical(0, 129, 128), typical(129, 16_384, 16_383))
    segment(tmp_path / "tiny-0", 0, typical(0, 1, 0))
    segment(tmp_path / "odd-0", 0, batch(0, count=16_385, base_timestamp=-1, max_timestamp=-1), legacy(16_385, 1))
    batches = spark.read.format("kafka-batches").load(str(tmp_path))
    groups = taken(spark, batches)
    spared = {one.topic: 0 for one in groups}
    for one in groups:
        spared[one.topic] += one.spared
    # 20 bytes in three fields; 2 + 6 + 2 of them are needed, 1 + 6 + 1, and 3 + 10 + 10
    assert spared == {"typical": 2 * 10, "tiny": 12, "odd": -3}
    only = Census(tuple(one for one in groups if one.topic == "typical"), 0.0)
    text = " ".join(summary_lines(only))
    assert "10.0 bytes of a batch's header: 17.5 % of the 57 bytes that Kafka documents, 16.4 % of all 61" in text
    assert "and a byte or two of each record: --records measures" in text
    assert as_dict(only)["overhead"]["kip931"] == {"headers": 20, "attributes": 129 + 16_384}


def test_the_page_needs_nothing_and_hides_nothing() -> None:
    sums = {"batches": 3, "records": 10, "bytes": 3_000, "known": 0, "uncompressed": 0, "headers": 3}
    rest = {"attributes": 10, "spared": 30, "markers": 0, "damaged": 0}
    groups = (
        Group("<b>orders", "zstd", "REWRITE", "holes", 9, **sums, **rest),
        Group("clicks", "none", "RESTAMP", "own_producer", 13, **sums, **rest),
    )
    text = page(Census(groups, 2.0), "data")
    assert "<b>orders" not in text
    assert "&lt;b&gt;orders" in text
    assert not re.search(r"(src|href)=|<script|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count("<rect") == 5
    assert "REWRITE/holes" in text
    assert "smaller than 4.1 kB" in text


@pytest.mark.spark
def test_the_command_takes_a_census_of_a_folder(tmp_path: Path) -> None:
    held_records = [Record(number, number, b"key", b"value" * 9, ()) for number in range(200)]
    held = batch(0, count=200, payload=encoded(held_records), base_timestamp=0, max_timestamp=199)
    segment(tmp_path / "orders-0", 0, held, b"x" * 40)
    segment(tmp_path / "odd-0", 0, batch(0, count=2, payload=b"no records"))
    report = tmp_path / "census.html"
    ended = subprocess.run(
        [sys.executable, "-m", "mirror", "census", str(tmp_path), "--records", "--json", "--report", str(report)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == ExitCode.DATA_AT_RISK, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["batches"], found["records"], found["damaged"]) == (2, 202, 1)
    measured = found["records_measured"]
    assert (measured["orders"]["measured"], measured["orders"]["unread"]) == (200, 0)
    # of two bytes are the deltas from 64 on
    assert (measured["orders"]["values"], measured["orders"]["format"]) == (200 * 45, 200 * 7 + 2 * 136)
    assert (measured["odd"]["measured"], measured["odd"]["unread"]) == (0, 1)
    assert (found["ratio"], found["ratio_share"]) == (1, 1)
    page = report.read_text(encoding="utf-8")
    assert "1 log damaged" in page
    assert "the format takes 8.4 of the 56.4 bytes of a record" in page
    assert "1 batch could not be decoded" in page


def test_a_ratio_says_what_it_rests_on() -> None:
    of = {"batches": 1, "bytes": 161, "known": 40, "uncompressed": 120}
    assert ratio(Sums(**of)) == "3.0 (40 %)"
    assert ratio(Sums(**of | {"known": 100, "uncompressed": 300})) == "3.0"
    assert ratio(Sums(**of | {"known": 0})) == "?"


def test_a_census_of_nothing_is_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["census", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "no segments" in str(result.exception)
