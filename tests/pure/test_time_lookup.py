"""`mirror offsets find` in segment files: the first record of a time is found as a scan of all records finds it."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch
from recordoracle import Record, encoded
from typer.testing import CliRunner, Result

from mirror.cli import app
from mirror.errors import ExitCode
from mirror.kafka.queries import Dated
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
    true, (timestamp, offset) = packed(entries), entries[-1]
    other_time = TIMES.filter(lambda time: time != timestamp)
    return draw(
        st.sampled_from([true, true, None, true + bytes(12 * 5)])
        | st.integers(0, len(true) - 1).map(lambda size: true[:size])
        | st.binary(max_size=40)
        | other_time.map(lambda time: packed([*entries[:-1], (time, offset)]))
        | st.integers(0, 20).map(lambda other: packed([*entries[:-1], (timestamp, other)]))
    )


@st.composite
def offset_indexes(draw: st.DrawFn, segment: Sequence[Written]) -> bytes | None:
    """The same of the other index: an entry for each batch but the first, one of which may point elsewhere."""
    starts = list(accumulate((len(one.data) for one in segment), initial=0))
    entries = [(one.end - 1 - segment[0].base, at) for one, at in zip(segment[1:], starts[1:], strict=False)]
    if entries and draw(st.integers(0, 3)) == 0:
        entries[draw(st.integers(0, len(entries) - 1))] = draw(st.tuples(st.integers(0, 20), st.integers(0, 400)))
    true = b"".join(struct.pack(">ii", *entry) for entry in entries)
    return draw(st.sampled_from([None, None, true, true + bytes(24), true + b"\1"]))


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
        (10, Dated(7, 20), 2),
        (21, None, 3),
    ],
)
def test_segments_that_are_older_are_left_out(tmp_path: Path, when: int, first: Dated | None, trusted: int) -> None:
    partition = lay_out(tmp_path, LOG)
    indexed(partition, LOG)
    found = first_in(partition, when)
    assert (found.first, found.trusted) == (first, trusted)
    assert found.end == 10 or found.first


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


def test_damage_ends_the_log(tmp_path: Path) -> None:
    """Here with a sound batch behind it."""
    partition = lay_out(tmp_path, LOG)
    path = max(partition.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(LOG[2][0].data) - 1] ^= 1
    path.write_bytes(data)
    found = first_in(partition, 10)
    assert (found.first, found.end, found.is_torn) == (None, 6, False)
    assert "CRC mismatch at byte 0" in found.damage


def test_a_batch_that_cannot_be_read_ends_the_search(tmp_path: Path) -> None:
    """It may hold the record, or not."""
    times: dict[str, Any] = {"base_timestamp": 10, "max_timestamp": 30}
    undecodable = Written(3, batch(3, count=2, attributes=4, payload=b"no zstd", **times), (10, 30), 30)
    partition = lay_out(tmp_path, [[LOG[0][0], undecodable, written(5, [40])]])
    assert first_in(partition, 31).first == Dated(5, 40)
    found = first_in(partition, 30)
    assert (found.first, found.end, found.is_torn) == (None, 3, False)
    assert "(base offset 3)" in found.damage


# --- the command ------------------------------------------------------------------------------------------------------


def iso(milliseconds: int) -> str:
    return (EPOCH + timedelta(milliseconds=milliseconds)).isoformat()


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["offsets", "find", *map(str, arguments)], env={"COLUMNS": "200"})


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
