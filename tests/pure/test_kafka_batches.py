"""`kafka-batches` without Spark: its options and filters, and the rows that a task makes of segment files."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from inspecting import transactional
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan
from rawbatches import batch, legacy, raw
from replicas import ABORT, marker
from typer.testing import CliRunner
from zstandard import ZstdCompressor

from mirror.cli import app
from mirror.errors import BadRecords, ConfigError
from mirror.records.codecs import ZSTD
from mirror.records.header import APPEND_TIME, DELETE_HORIZON
from mirror.segments.files import entries, largest_timestamp
from mirror.spark.datasource import plan
from mirror.spark.datasource.options import WantedBatches, milliseconds, parse
from mirror.spark.datasource.plan import FileSlice, planned
from mirror.spark.datasource.source import narrowed


def segment(folder: Path, base: int, *batches: bytes) -> Path:
    """A segment file as a broker names it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{base:020}.log"
    path.write_bytes(b"".join(batches))
    return path


def rows_of(path: Path | str, **options: str) -> list[dict[str, Any]]:
    """Return the rows that tasks would read."""
    asked = parse({"path": str(path), **options})
    return [row for one in planned(asked, asked.wanted) for made in one.read() for row in made.to_pylist()]


# --- options and filters ----------------------------------------------------------------------------------------------

HEADER = raw(batch(100, count=10, base_timestamp=5_000, max_timestamp=6_000)).header
HORIZON = raw(batch(100, attributes=DELETE_HORIZON, base_timestamp=9_000, max_timestamp=6_000)).header


@pytest.mark.parametrize(
    ("wanted", "has"),
    [
        (WantedBatches(), True),
        (WantedBatches(first=109), True),
        (WantedBatches(first=110), False),
        (WantedBatches(before=101), True),
        (WantedBatches(before=100), False),
        (WantedBatches(since=6_000), True),
        (WantedBatches(since=6_001), False),
        (WantedBatches(until=5_001), True),
        (WantedBatches(until=5_000), False),
    ],
)
def test_a_batch_is_wanted_where_it_may_hold_a_wanted_record(wanted: WantedBatches, has: bool) -> None:
    assert wanted.has(HEADER) is has


def test_a_delete_horizon_is_no_first_time() -> None:
    assert WantedBatches(until=7_000).has(HORIZON)


WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([EqualTo(("topic",), "a"), In(("topic",), ("a", "b", None))], WantedBatches(topics=frozenset("a"))),
        ([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], WantedBatches(topics=frozenset())),
        ([In(("partition",), (1, 2))], WantedBatches(partitions=frozenset({1, 2}))),
        ([GreaterThanOrEqual(("base_offset",), 5), LessThan(("last_offset",), 9)], WantedBatches(first=5, before=10)),
        ([GreaterThan(("max_time",), WHEN)], WantedBatches(since=1_769_860_800_000)),
        ([LessThan(("base_timestamp",), 77)], WantedBatches(until=78)),
        ([LessThan(("max_timestamp",), 77), IsNotNull(("topic",)), EqualTo(("codec",), "zstd")], WantedBatches()),
        ([EqualTo(("headers", "topic"), "a"), EqualTo(("topic",), None)], WantedBatches()),
    ],
)
def test_filters_narrow_what_is_read(filters: list[Filter], wanted: WantedBatches) -> None:
    assert narrowed(WantedBatches(), filters) == wanted


def test_times_are_iso_or_milliseconds() -> None:
    assert milliseconds("2026-01-31T12:00:00") == milliseconds("2026-01-31T13:00:00+01:00") == 1_769_860_800_000
    assert milliseconds("1769860800000") == 1_769_860_800_000


SASL = {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me"}


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
        ({"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL"}, "sasl.mechanism: required with SASL_SSL"),
        (SASL | {"sasl.password": "hunter2"}, "a secret may not stand"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)) as refused:
        parse(given)
    assert "hunter2" not in str(refused.value)


def test_a_secret_is_a_reference_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHES_PASSWORD", "hunter2")
    options = parse(SASL | {"sasl.password": "${env:BATCHES_PASSWORD}"})
    assert options.cluster.sasl_password is not None
    assert options.cluster.sasl_password.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(options)


# --- files ------------------------------------------------------------------------------------------------------------


def indexed(path: Path, *given: tuple[int, int], zeros: int = 0) -> None:
    """Write a time index beside a segment."""
    data = b"".join(struct.pack(">qi", *entry) for entry in given) + bytes(12 * zeros)
    path.with_suffix(".timeindex").write_bytes(data)


def test_a_time_index_ends_in_zeros_or_damage(tmp_path: Path) -> None:
    """Its last entry holds the largest time: an index that breaks off before that says nothing."""
    path = segment(tmp_path / "orders-0", 0, batch(0))
    assert (entries(path)[0], largest_timestamp(path)) == ([], None)
    indexed(path, (100, 3), (250, 9), zeros=4)
    assert (entries(path)[0], largest_timestamp(path)) == ([(100, 3), (250, 9)], None)
    indexed(path, (100, 3), (90, 9), (500, 12))
    assert (entries(path)[0], largest_timestamp(path)) == ([(100, 3)], None)
    indexed(path, (100, 3), (250, 9))
    assert largest_timestamp(path) == 250


def named(path: Path, **options: str) -> list[str]:
    """Return the base offsets of the segments that would be read."""
    asked = parse({"path": str(path), **options})
    slices = [one for one in planned(asked, asked.wanted) if isinstance(one, FileSlice)]
    return [f"{one.place.topic}-{one.place.partition}:{one.base_offset}" for one in slices]


def test_segments_that_hold_nothing_wanted_are_not_read(tmp_path: Path) -> None:
    for base, largest in ((0, 1_000), (10, 5_000), (20, 3_000)):
        indexed(segment(tmp_path / "orders-0", base, batch(base)), (largest, 0))
    segment(tmp_path / "orders-12", 0, batch(0))
    segment(tmp_path / "my-topic-1", 7, batch(7))
    segment(tmp_path / "__consumer_offsets-3", 0, batch(0))
    segment(tmp_path / f"orders-1.{1:032x}-delete", 0, batch(0))
    (tmp_path / "orders-0" / "leader-epoch-checkpoint").write_text("0")
    orders = ["orders-0:0", "orders-0:10", "orders-0:20"]
    assert named(tmp_path) == ["my-topic-1:7", *orders, "orders-12:0"]
    assert named(tmp_path, topic="orders") == [*orders, "orders-12:0"]
    assert named(tmp_path, topic="__consumer_offsets") == ["__consumer_offsets-3:0"]
    assert named(tmp_path, topic="orders", partition="12") == ["orders-12:0"]
    only = {"topic": "orders", "partition": "0"}
    assert named(tmp_path, **only, **{"from": "10", "before": "15"}) == orders[1:2]
    assert named(tmp_path, **only, **{"from": "9", "before": "11"}) == orders[:2]
    assert named(tmp_path, **only, since="1001") == orders[1:]
    assert named(tmp_path, **only, since="9000") == orders[2:], "the index of the last one may lag"
    assert named(tmp_path / f"orders-1.{1:032x}-delete") == ["None-None:0"], "whoever names it reads it"


def test_a_folder_without_segments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no segments"):
        rows_of(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be read|no segments"):
        rows_of(tmp_path / "missing")
    result = CliRunner().invoke(app, ["census", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)


def test_a_remote_segment_is_read_like_a_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment(tmp_path / "orders-0", 0, batch(0, count=3), batch(3))
    segment(tmp_path / "orders-0", 4)
    remote = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())

    class Remote:
        @staticmethod
        def from_uri(address: str) -> tuple[pyarrow.fs.FileSystem, str]:
            return remote, address.removeprefix("store://")

    local_rows = rows_of(tmp_path / "orders-0")
    monkeypatch.setattr(plan, "FileSystem", Remote)
    remote_rows = rows_of("store://orders-0")
    assert [row | {"file": None} for row in remote_rows] == [row | {"file": None} for row in local_rows]
    assert {row["file"] for row in remote_rows} == {"store://orders-0/00000000000000000000.log"}


def test_a_transaction_ends_in_a_later_segment(tmp_path: Path) -> None:
    segment(tmp_path / "orders-0", 0, transactional(0, 7), transactional(1, 8), batch(2))
    segment(tmp_path / "orders-0", 3, transactional(3, 7))
    segment(tmp_path / "orders-0", 4, marker(4, 7, ABORT), transactional(5, 7))
    assert [(row["base_offset"], row["outcome"], row["reason"]) for row in rows_of(tmp_path)] == [
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
        rows_of(tmp_path)
    sound, flagged = rows_of(tmp_path, damage="flag")
    assert (sound["base_offset"], sound["damage"], sound["crc_holds"]) == (0, None, True)
    assert flagged["damage"].startswith(expected)
    assert (flagged["position"], flagged["topic"], flagged["partition"]) == (78, "orders", 0)
    if tail is DAMAGED:
        assert (flagged["verdict"], flagged["reason"], flagged["crc_holds"]) == ("REFUSE", "bad_crc", False)


def test_old_and_odd_batches_have_rows(tmp_path: Path) -> None:
    far = batch(2, attributes=APPEND_TIME, base_timestamp=-1, max_timestamp=2**62, producer_id=9, producer_epoch=1)
    segment(tmp_path / "orders-0", 0, legacy(0, 0), legacy(1, 1), far, batch(3, count=2, delta=4))
    zero, one, odd, holed = rows_of(tmp_path)
    assert (zero["magic"], zero["base_timestamp"], zero["base_time"], zero["records"]) == (0, None, None, 1)
    assert (one["magic"], one["base_time"]) == (1, datetime(2014, 5, 13, 16, 53, 20, tzinfo=UTC))
    assert (odd["max_timestamp"], odd["max_time"], odd["base_time"]) == (2**62, None, None)
    assert (odd["append_time"], odd["producer_id"], odd["reason"]) == (True, 9, "append_time")
    assert (holed["holes"], holed["reason"]) == (3, "holes")


def test_bytes_and_sizes_are_given_as_asked(tmp_path: Path) -> None:
    packed = batch(0, attributes=ZSTD, payload=ZstdCompressor(write_content_size=False).compress(bytes(5000)))
    segment(tmp_path / "orders-0", 0, packed)
    fields = {how: rows_of(tmp_path, uncompressed=how)[0]["uncompressed"] for how in ("none", "stated", "measured")}
    assert fields == {"none": None, "stated": None, "measured": 5000}
    assert rows_of(tmp_path)[0]["data"] is None
    assert rows_of(tmp_path, data="true")[0]["data"] == packed
