"""`mirror offsets find` in segment files: the first record of a time is found as a scan of all records finds it."""

from __future__ import annotations

import asyncio
import json
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch
from recordoracle import Record, encoded
from typer.testing import CliRunner, Result

from mirror.cli import app
from mirror.errors import ConfigError, ExitCode
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.protocol import LIST_OFFSETS
from mirror.kafka.queries import Dated, may_have_since
from mirror.records.codecs import compress
from mirror.records.header import APPEND_TIME, CONTROL, TRANSACTIONAL
from mirror.segments.time_lookup import Lookup, first_in

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Times of made-up records: few, so that many are equal, and asked for from before the first to behind the last.
TIMES = st.integers(0, 12)


@dataclass(frozen=True)
class Written:
    """A batch as it is stored, and the times that a reader sees in it."""

    base: int
    data: bytes
    times: tuple[int, ...]
    largest: int

    @property
    def end(self) -> int:
        return self.base + max(1, len(self.times))


def written(base: int, times: Sequence[int], codec: int = 0, kind: str = "data") -> Written:
    """Records of these times: of a producer, of a transaction, a marker, under an append time, or compacted away."""
    largest = max(times)
    section = encoded([Record(offset, time - times[0], value=b"v") for offset, time in enumerate(times)])
    attributes = {"append": APPEND_TIME, "open": TRANSACTIONAL, "marker": TRANSACTIONAL | CONTROL}.get(kind, 0) | codec
    more: dict[str, Any] = {"base_timestamp": times[0], "max_timestamp": largest}
    if kind == "empty":
        return Written(
            base, batch(base, count=0, delta=len(times) - 1, payload=b"", **more), (-1,) * len(times), largest
        )
    data = batch(base, count=len(times), attributes=attributes, payload=compress(codec, section), **more)
    return Written(base, data, (largest,) * len(times) if kind == "append" else tuple(times), largest)


BATCHES = st.tuples(
    st.lists(TIMES, min_size=1, max_size=4),
    st.sampled_from([0, 0, 1, 2, 3, 4]),
    st.sampled_from(["data", "data", "data", "append", "open", "marker", "empty"]),
)


@st.composite
def logs(draw: st.DrawFn) -> list[list[Written]]:
    """Segments of batches; times in order or not."""
    found, base = [], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 4))):
        segment: list[Written] = []
        for times, codec, kind in draw(st.lists(BATCHES, min_size=1, max_size=4)):
            segment.append(written(base, times, codec, kind))
            base = segment[-1].end
        found.append(segment)
    return found


def time_index(segment: Sequence[Written]) -> list[tuple[int, int]]:
    """(largest time so far, offset relative to the base) as a broker notes it at each batch."""
    first = segment[0].base
    entries, largest = list[tuple[int, int]](), -1
    for one in segment:
        if one.largest > largest:
            largest = one.largest
            entries.append((largest, one.end - 1 - first))
    return entries


def packed(entries: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


@st.composite
def time_indexes(draw: st.DrawFn, segment: Sequence[Written]) -> bytes | None:
    """What stands beside a segment: the truth, a part of it, or a lie. None for nothing."""
    entries = time_index(segment)
    timestamp, offset = entries[-1]
    match draw(st.sampled_from(["true", "true", "none", "reserved", "behind", "cut", "junk", "time", "offset"])):
        case "none":
            return None
        case "reserved":
            return packed(entries) + bytes(12 * 5)
        case "behind":
            return packed(entries[: draw(st.integers(0, len(entries) - 1))])
        case "cut":
            return packed(entries)[: -draw(st.integers(1, 11))]
        case "junk":
            return draw(st.binary(max_size=40))
        case "time":
            return packed([*entries[:-1], (draw(TIMES.filter(lambda time: time != timestamp)), offset)])
        case "offset":
            return packed([*entries[:-1], (timestamp, draw(st.integers(0, 20)))])
        case _:
            return packed(entries)


@st.composite
def offset_indexes(draw: st.DrawFn, segment: Sequence[Written]) -> bytes | None:
    """The same of the other index: an entry for each batch but the first, that may point elsewhere."""
    if draw(st.booleans()):
        return None
    starts = list(accumulate((len(one.data) for one in segment), initial=0))
    entries = [(one.end - 1 - segment[0].base, at) for one, at in zip(segment[1:], starts[1:], strict=False)]
    if draw(st.integers(0, 3)) == 0 and entries:
        entries[draw(st.integers(0, len(entries) - 1))] = draw(st.tuples(st.integers(0, 20), st.integers(0, 400)))
    return b"".join(struct.pack(">ii", *entry) for entry in entries) + draw(st.sampled_from([b"", bytes(24), b"\1"]))


def lay_out(folder: Path, log: Sequence[Sequence[Written]], start: int = 0) -> Path:
    """A partition's folder without indexes, in a broker's data folder that says where the log starts."""
    partition = folder / "orders-0"
    partition.mkdir(parents=True)
    for segment in log:
        (partition / f"{segment[0].base:020}.log").write_bytes(b"".join(one.data for one in segment))
    (folder / "log-start-offset-checkpoint").write_text(f"0\n1\norders 0 {start}\n")
    return partition


def scanned(log: Sequence[Sequence[Written]], when: int, start: int = 0) -> Dated | None:
    """By looking at every record."""
    for one in (one for segment in log for one in segment):
        for offset, time in enumerate(one.times, one.base):
            if time >= when and offset >= start:
                return Dated(offset, time)
    return None


@given(data=st.data(), log=logs(), start=st.integers(0, 12))
def test_files_are_searched_as_a_scan_finds_it(data: st.DataObject, log: list[list[Written]], start: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        partition = lay_out(Path(folder), log, start)
        for segment in log:
            for suffix, drawn in ((".timeindex", time_indexes(segment)), (".index", offset_indexes(segment))):
                if (content := data.draw(drawn)) is not None:
                    (partition / f"{segment[0].base:020}{suffix}").write_bytes(content)
        for when in range(14):
            found = first_in(partition, when)
            wanted = scanned(log, when, start)
            assert (found.first, found.damage) == (wanted, ""), when
            if wanted is None:
                assert found.end == max(start, log[-1][-1].end)
            assert first_in(partition, when, believes=False).first == wanted


LOG = [
    [written(0, [5, 3]), written(2, [9], codec=4)],
    [written(3, [1, 2]), written(5, [7])],
    [written(6, [8, 20, 6], codec=3), written(9, [4])],
]


def indexed(partition: Path, log: Sequence[Sequence[Written]]) -> None:
    for segment in log:
        (partition / f"{segment[0].base:020}.timeindex").write_bytes(packed(time_index(segment)))


@pytest.mark.parametrize(
    ("when", "first", "trusted"),
    [
        (0, Dated(0, 5), 0),
        (5, Dated(0, 5), 0),
        (6, Dated(2, 9), 0),
        (10, Dated(7, 20), 2),
        (20, Dated(7, 20), 2),
        (21, None, 3),
    ],
)
def test_segments_that_are_older_are_left_out(tmp_path: Path, when: int, first: Dated | None, trusted: int) -> None:
    partition = lay_out(tmp_path, LOG)
    indexed(partition, LOG)
    found = first_in(partition, when)
    assert (found.first, found.trusted) == (first, trusted)
    assert found.end == 10 or found.first


def test_an_index_without_its_last_entries_leaves_nothing_out_that_is_wanted(tmp_path: Path) -> None:
    """Also where it is cut between two entries, which does not show."""
    partition = lay_out(tmp_path, LOG)
    (partition / f"{0:020}.timeindex").write_bytes(packed(time_index(LOG[0])[:-1]))
    assert first_in(partition, 6) == Lookup(first=Dated(2, 9), end=3)


def test_what_is_taken_from_an_index_alone_is_reported(tmp_path: Path) -> None:
    """The entry is that of a batch and nothing later follows; that an earlier batch has a later time does not show."""
    partition = lay_out(tmp_path, LOG)
    segment = partition / f"{6:020}.log"
    segment.with_suffix(".timeindex").write_bytes(packed([(4, 3)]))
    segment.with_suffix(".index").write_bytes(struct.pack(">ii", 3, len(LOG[2][0].data)))
    assert first_in(partition, 15) == Lookup(end=10, trusted=1)
    assert first_in(partition, 15, believes=False).first == Dated(7, 20)
    segment.with_suffix(".timeindex").write_bytes(packed([(3, 3)]))
    assert first_in(partition, 15).first == Dated(7, 20), "the batch there has another time"
    segment.with_suffix(".timeindex").write_bytes(packed([(4, 3)]))
    segment.with_suffix(".index").unlink()
    assert first_in(partition, 15).first == Dated(7, 20), "without it all headers are looked at"


def test_a_log_that_starts_behind_the_only_late_record_of_its_first_segment(tmp_path: Path) -> None:
    partition = lay_out(tmp_path, LOG, start=3)
    assert first_in(partition, 9).first == Dated(7, 20)
    assert first_in(lay_out(tmp_path / "b", LOG, start=8), 5).first == Dated(8, 6)


@pytest.mark.parametrize("at", [0, 1])
def test_damage_ends_the_log(tmp_path: Path, at: int) -> None:
    """In the first segment, or in the last one with a sound batch behind it."""
    partition = lay_out(tmp_path, LOG)
    path = sorted(partition.glob("*.log"))[2 * at]
    data = bytearray(path.read_bytes())
    data[len(LOG[2 * at][0].data) - 1] ^= 1
    path.write_bytes(data)
    found = first_in(partition, 10)
    assert (found.first, found.end, found.is_torn) == (None, [0, 6][at], False)
    assert "CRC mismatch at byte 0" in found.damage
    assert path.name in found.damage


def test_a_torn_end_is_none_of_the_log(tmp_path: Path) -> None:
    partition = lay_out(tmp_path, LOG)
    path = max(partition.glob("*.log"))
    path.write_bytes(path.read_bytes() + written(10, [50]).data[:30])
    indexed(partition, LOG)
    found = first_in(partition, 21)
    assert (found.first, found.end, found.trusted, found.is_torn) == (None, 10, 2, True)
    assert "partial batch" in found.damage
    assert first_in(partition, 20).first == Dated(7, 20)


def test_a_batch_that_cannot_be_read_ends_the_search(tmp_path: Path) -> None:
    """It may hold the record, or not."""
    times: dict[str, Any] = {"base_timestamp": 10, "max_timestamp": 30}
    undecodable = Written(3, batch(3, count=2, attributes=4, payload=b"no zstd", **times), (10, 30), 30)
    partition = lay_out(tmp_path, [[LOG[0][0], undecodable, written(5, [40])]])
    assert first_in(partition, 31).first == Dated(5, 40)
    found = first_in(partition, 30)
    assert (found.first, found.end, found.is_torn) == (None, 3, False)
    assert "(base offset 3)" in found.damage


def test_what_was_deleted_is_not_looked_at(tmp_path: Path) -> None:
    """The file may still be there, damaged or not."""
    partition = lay_out(tmp_path, LOG, start=3)
    min(partition.glob("*.log")).write_bytes(b"damaged" * 5)
    assert first_in(partition, 1) == Lookup(first=Dated(3, 1), end=5)


# --- the command ------------------------------------------------------------------------------------------------------


def iso(milliseconds: int) -> str:
    return (EPOCH + timedelta(milliseconds=milliseconds)).isoformat()


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["offsets", "find", *map(str, arguments)], env={"COLUMNS": "200"})


def answers(*arguments: str | Path) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == ExitCode.DONE, (result.stdout, result.exception)
    partitions: list[dict[str, Any]] = json.loads(result.stdout)["partitions"]
    return partitions


def test_a_folder_is_reported_as_text_and_as_json(tmp_path: Path) -> None:
    indexed(partition := lay_out(tmp_path, LOG), LOG)
    result = run("orders", "--time", iso(10), "--from", tmp_path, "--json")
    assert json.loads(result.stdout) == {
        "topic": "orders",
        "time": 10,
        "partitions": [
            {
                "partition": 0,
                "offset": 7,
                "timestamp": 20,
                "log_end": None,
                "folder": str(partition),
                "trusted_segments": 2,
                "damage": None,
            }
        ],
    }
    text = run("orders:0", "--time", iso(10), "--from", tmp_path).stdout
    assert all(part in text for part in ("orders-0", " 7 ", "1970-01-01T00:00:00.020Z", "2 segments left out"))
    text = run("orders", "--time", "2026-01-31", "--from", partition, "--scan").stdout
    assert "none" in text
    assert "the log ends at offset 10" in text
    assert "left out" not in text


@pytest.mark.parametrize(("flipped", "code"), [(True, ExitCode.DATA_AT_RISK), (False, ExitCode.DONE)])
def test_the_exit_code_distinguishes_damage_from_a_torn_end(tmp_path: Path, flipped: bool, code: ExitCode) -> None:
    path = max(lay_out(tmp_path, LOG).glob("*.log"))
    data = bytearray(path.read_bytes())
    if flipped:
        data[70] ^= 1
    path.write_bytes(bytes(data) if flipped else bytes(data[:-1]))
    result = run("orders", "--time", iso(21), "--from", tmp_path)
    assert result.exit_code == code
    assert f"sound below offset {6 if flipped else 9}" in result.stdout
    assert run("orders", "--time", iso(5), "--from", tmp_path).exit_code == ExitCode.DONE, "found before it"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["orders", "--time", "yesterday", "--from", "."], "--time yesterday: must be an ISO time such as 2026-01-31T"),
        (["orders", "--time", "latest", "--from", "."], "--time latest: must be an ISO time"),
        (["orders:x", "--time", "2026-01-31", "--from", "."], "TOPIC:PARTITION"),
        (["orders", "--time", "2026-01-31"], "one of --config, --bootstrap and --from"),
        (["orders", "--time", "2026-01-31", "--from", ".", "--bootstrap", "a:1"], "one of --config, --bootstrap"),
        (["orders", "--time", "2026-01-31", "--bootstrap", "a:1", "--side", "target"], "--side chooses"),
        (["orders", "--time", "2026-01-31", "--bootstrap", "a:1", "--scan"], "--scan is about the files"),
        (["orders", "--time", "2026-01-31", "--bootstrap", "nowhere"], "host:port"),
        (["orders", "--time", "2026-01-31", "--from", "no-such"], "no-such: no such folder"),
    ],
)
def test_what_does_not_go_together_is_usage(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert complaint in str(result.exception)


def test_a_topic_that_is_not_in_the_files_is_usage(tmp_path: Path) -> None:
    lay_out(tmp_path, LOG)
    for topic, complaint in (
        ("order", "no topic order; did you mean orders?"),
        ("orders:3", "no partition 3 of orders"),
    ):
        result = run(topic, "--time", "2026-01-31", "--from", tmp_path)
        assert isinstance(result.exception, ConfigError)
        assert complaint in str(result.exception)


@pytest.mark.parametrize(
    ("newest", "when", "may_have"),
    [(7_000, 7_000, True), (7_000, 7_001, False), (-1, 7_000, True), (-1, 4_000_000_000_000, False)],
)
def test_a_broker_that_does_not_say_what_is_newest_may_have_what_is_no_later_than_now(
    newest: int, when: int, may_have: bool
) -> None:
    """Where records come in, the newest is seldom replicated already, and is not named."""

    async def call_leader(*_: Any, **more: Any) -> Any:
        more["build"](LIST_OFFSETS.newest, 0)
        return SimpleNamespace(timestamp=newest)

    cluster: Any = SimpleNamespace(call_leader=call_leader)
    assert asyncio.run(may_have_since(cluster, TopicPartition("orders", 0), when)) is may_have
