"""`mirror inspect`: a segment is read to its end or to its damage, and a live topic shows what its files hold."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from crc32c import crc32c
from helpers import config_file, make_topic, produce
from hypothesis import example, given
from hypothesis import strategies as st
from inspecting import ABORT, COMMIT, lines, marker, run, transactional
from kafka.record import MemoryRecords
from rawbatches import batch, legacy, raw

from mirror.commands import inspect_view as rows
from mirror.commands.inspect import inspect_files
from mirror.commands.inspect_topic import parse_target
from mirror.commands.inspect_view import USUAL_ROWS, InspectOptions
from mirror.errors import ClusterUnreachable, ConfigError, ExitCode
from mirror.kafka.cluster import Cluster as WireCluster
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.fetch import EMPTY_ANSWERS, Fetched
from mirror.kafka.log_reader import Log
from mirror.kafka.queries import EARLIEST_LOCAL, READ_COMMITTED
from mirror.lab.embedded import Cluster
from mirror.records.codecs import compress
from mirror.records.header import (
    APPEND_TIME,
    CONTROL,
    DELETE_HORIZON,
    LAST_OFFSET,
    TRANSACTIONAL,
    RawBatch,
    crc_holds,
    parse_header,
)
from mirror.records.segment import SPAN, DamageKind, Found, Walk
from mirror.records.transactions import Outcome, Outcomes, TransactionScan
from mirror.segments.files import offset_of

LOG = [batch(0, count=3), batch(3, count=2, payload=b"another"), batch(5, payload=b"the last one")]
SIZE = sum(map(len, LOG))


def walked(data: bytes, least_offset: int = 0) -> tuple[Walk, list[RawBatch]]:
    walk = Walk(memoryview(data), least_offset)
    return walk, list(walk)


# --- the walk ---------------------------------------------------------------------------------------------------------


def test_a_sound_segment_is_walked_to_its_end() -> None:
    walk, found = walked(b"".join(LOG))
    assert [bytes(one.data) for one in found] == LOG
    assert (walk.position, walk.next_offset, walk.rest, walk.zeros, walk.damage) == (SIZE, 6, 0, 0, None)


def test_an_empty_segment_is_sound() -> None:
    walk, found = walked(b"")
    assert (found, walk.position, walk.rest, walk.damage) == ([], 0, 0, None)


@pytest.mark.parametrize("zeros", [1, 16, 17, 61, 3 << 20])
def test_a_tail_of_zeros_is_no_damage(zeros: int) -> None:
    walk, found = walked(b"".join(LOG) + bytes(zeros))
    assert (len(found), walk.zeros, walk.damage) == (3, zeros, None)


def test_zeros_that_something_follows_are_damage() -> None:
    walk, _ = walked(b"".join(LOG) + bytes((2 << 20) + 5) + b"\x01")
    assert (walk.zeros, walk.damage and walk.damage.kind) == (0, DamageKind.LENGTH)


DAMAGED: dict[str, tuple[bytes, DamageKind]] = {
    "cut inside its records": (batch(6)[:-1], DamageKind.PARTIAL),
    "cut inside its header": (batch(6)[:40], DamageKind.PARTIAL),
    "cut inside its length": (batch(6)[:10] + b"\x01", DamageKind.PARTIAL),
    "length 0": (batch(6, length=0), DamageKind.LENGTH),
    "length of less than a header": (batch(6, length=48), DamageKind.LENGTH),
    "negative length": (batch(6, length=-1), DamageKind.LENGTH),
    "length beyond the end": (batch(6, length=2**31 - 1), DamageKind.PARTIAL),
    "message 1 of less than its fields": (legacy(6, 0)[:16] + b"\x01" + legacy(6, 0)[17:], DamageKind.LENGTH),
    "magic 3": (batch(6, magic=3), DamageKind.MAGIC),
    "magic -1": (batch(6, magic=-1), DamageKind.MAGIC),
    "offset that was there": (batch(5), DamageKind.ORDER),
    "negative offset": (batch(-1), DamageKind.ORDER),
    "negative delta": (batch(6, delta=-1), DamageKind.HEADER),
    "offset with none behind it": (batch(2**63 - 1), DamageKind.HEADER),
    "other CRC": (batch(6, crc=1), DamageKind.CRC),
    "message with another CRC": (legacy(6, 1)[:-1] + b"!", DamageKind.CRC),
}


@pytest.mark.parametrize("following", [b"", batch(9, count=2)], ids=["at the end", "in between"])
@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_where_it_begins(case: str, following: bytes) -> None:
    data, kind = DAMAGED[case]
    walk, found = walked(b"".join([*LOG, data, following]))
    assert [bytes(one.data) for one in found] == LOG
    assert walk.damage is not None
    assert (walk.position, walk.next_offset, walk.rest) == (SIZE, 6, len(data) + len(following))
    assert walk.damage.position == SIZE
    if "cut" not in case or not following:  # what is cut takes its missing bytes from what follows
        assert walk.damage.kind is kind
    if walk.damage.kind is DamageKind.CRC:
        assert walk.damage.batch is not None
        assert bytes(walk.damage.batch.data)[: len(data)] == data[: walk.damage.batch.header.size]
    assert walk.resume() == (Found(SIZE + len(data), 9) if following else None)


def test_messages_of_magic_0_and_1_have_a_checksum_too() -> None:
    walk, found = walked(legacy(0, 0) + legacy(1, 1) + batch(2))
    assert ([one.header.magic for one in found], walk.next_offset, walk.damage) == ([0, 1, 2], 3, None)
    broken = bytearray(legacy(0, 0) + legacy(1, 1))
    broken[-1] ^= 1
    walk, found = walked(bytes(broken))
    assert (len(found), walk.damage and walk.damage.kind) == (1, DamageKind.CRC)


def test_offsets_below_the_segments_name_are_out_of_order() -> None:
    walk, found = walked(b"".join(LOG), least_offset=1)
    assert (found, walk.damage and walk.damage.kind) == ([], DamageKind.ORDER)


@given(st.binary(max_size=300), st.binary(max_size=80))
@example(bytes(17), b"\x02")
def test_any_bytes_are_sound_zero_or_named_damage(data: bytes, behind: bytes) -> None:
    begun = LOG[0] + data
    walk, found = walked(begun)
    assert b"".join(bytes(one.data) for one in found) == begun[: walk.position]
    assert all(map(crc_holds, found))
    assert walk.position + walk.rest == len(begun)
    assert (walk.damage is not None) == (walk.rest > 0 and any(begun[walk.position :]))
    assert walk.zeros == (0 if walk.damage else walk.rest)
    if walk.damage:
        assert walk.damage.position == walk.position
        assert walk.damage.detail
        again = walk.resume()
        assert again is None or crc_holds(raw_at(begun, again.position))
    bounded = Walk(memoryview(begun + behind)[: len(begun)])
    assert len(list(bounded)) == len(found)
    assert (bounded.position, str(bounded.damage)) == (walk.position, str(walk.damage))


def raw_at(data: bytes, position: int) -> RawBatch:
    header = parse_header(data, position)
    return RawBatch(header, memoryview(data)[position : position + header.size])


@given(st.integers(0, SIZE - 1), st.integers(1, 255))
def test_a_changed_byte_is_found_in_the_batch_that_has_it(at: int, change: int) -> None:
    data = bytearray(b"".join(LOG))
    data[at] ^= change
    walk, found = walked(bytes(data))
    ends = [sum(map(len, LOG[: i + 1])) for i in range(3)]
    hit = next(i for i, end in enumerate(ends) if at < end)
    inside = at - (ends[hit] - len(LOG[hit]))
    assert [bytes(one.data) for one in found[:hit]] == LOG[:hit]
    if inside >= 16:
        assert walk.damage is not None
        assert (walk.damage.position, len(found)) == (ends[hit] - len(LOG[hit]), hit)
    # a CRC covers neither base offset nor leader epoch; a wrong length shifts everything behind it
    elif 8 <= inside < 12:
        assert walk.damage is not None


@given(st.integers(0, SIZE))
def test_a_cut_file_is_sound_up_to_its_last_whole_batch(size: int) -> None:
    whole = [one for i, one in enumerate(LOG) if sum(map(len, LOG[: i + 1])) <= size]
    data = b"".join(LOG)[:size]
    walk, found = walked(data)
    assert [bytes(one.data) for one in found] == whole
    left = data[walk.position :]
    assert (walk.damage and walk.damage.kind) == (DamageKind.PARTIAL if any(left) else None)


def test_an_offset_that_no_segment_of_the_name_can_hold_is_out_of_order() -> None:
    far = batch(5 + SPAN)
    walk = Walk(memoryview(b"".join([*LOG, far])), 0, SPAN - 1)
    assert (len(list(walk)), walk.damage and walk.damage.kind) == (3, DamageKind.ORDER)
    assert walked(b"".join([*LOG, far]))[0].damage is None


def test_the_search_behind_damage_ends_after_the_bytes_it_may_look_at() -> None:
    data = LOG[0] + b"\xff" * 20 + random.Random(7).randbytes(100_000) + batch(90)
    walk, _ = walked(data)
    assert walk.resume() == Found(len(data) - len(batch(90)), 90)
    assert walk.resume(100_000) is None
    after = Walk(memoryview(data), 0, 89)
    assert (len(list(after)), after.resume()) == (1, None)


def test_nothing_is_found_behind_damage_that_would_be_damage_itself() -> None:
    """A batch behind which there is no offset is none that a walk takes."""
    walk, _ = walked(LOG[0] + b"\xff" * 20 + batch(LAST_OFFSET) + b"\xff")
    assert walk.damage is not None
    assert walk.resume() is None


def test_the_search_behind_damage_sums_up_no_more_than_it_may_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    bait = b"\xff" * 20 + b"".join(batch(n, crc=1, length=50_000) for n in range(1000))  # headers that only look right
    walk, _ = walked(bait + batch(5000) + bytes(60_000))
    assert walk.resume() == Found(len(bait), 5000)
    assert len(bait) < 90_000
    summed: list[int] = []

    def counted(raw: RawBatch) -> bool:
        summed.append(raw.header.size)
        return crc_holds(raw)

    monkeypatch.setattr("mirror.records.segment.crc_holds", counted)
    assert walk.resume(90_000) == Found(len(bait), 5000), "what is too large for it is passed over"
    assert sum(summed) <= 90_000


# --- how transactions ended -------------------------------------------------------------------------------------------


def outcomes_of(log: Sequence[bytes], outcomes: Outcomes) -> list[Outcome]:
    return [outcomes.of(raw(one)) for one in log]


HISTORY = [
    transactional(0, 7),  # aborted
    transactional(1, 8),  # committed
    batch(2),
    marker(3, 8, COMMIT),
    transactional(4, 7),  # aborted
    marker(5, 7, ABORT),
    transactional(6, 7),  # committed, by the producer that aborted before
    marker(7, 7, COMMIT),
    marker(8, 9, ABORT),  # of a transaction that is not here
    transactional(9, 8),  # aborted
    transactional(10, 9),  # no marker
    marker(11, 8, ABORT),
    transactional(12, 9),
]
ENDINGS = [
    *("aborted", "committed", "-", "-", "aborted", "-", "committed"),
    *("-", "-", "aborted", "undecided", "-", "undecided"),
]


def test_a_segments_markers_say_how_its_transactions_ended() -> None:
    scan = TransactionScan()
    scan.over(memoryview(b"".join(HISTORY)))
    assert [one or "-" for one in outcomes_of(HISTORY, scan.outcomes())] == ENDINGS


@given(st.integers(0, len(HISTORY)))
def test_transactions_may_span_segments(cut: int) -> None:
    scan = TransactionScan()
    for part in (HISTORY[:cut], HISTORY[cut:]):
        scan.over(memoryview(b"".join(part)))
    assert [one or "-" for one in outcomes_of(HISTORY, scan.outcomes())] == ENDINGS


def test_the_index_of_a_fetch_answer_says_the_same() -> None:
    outcomes = Outcomes([(8, 9), (7, 0)], {9: 10})
    assert [one or "-" for one in outcomes_of(HISTORY, outcomes)] == ENDINGS
    inside = Outcomes([(7, 0)])  # an answer that begins inside the aborted transaction
    assert outcomes_of(HISTORY[4:7], inside) == [Outcome.ABORTED, Outcome.NONE, Outcome.COMMITTED]


@given(st.binary(max_size=200), st.integers(1, 150))
@example(batch(0, attributes=CONTROL | TRANSACTIONAL, length=49)[:62], 10)
def test_a_scan_over_any_bytes_ends_and_windows_change_nothing(data: bytes, window: int) -> None:
    log = HISTORY[0] + HISTORY[5] + data
    whole, parts = TransactionScan(), TransactionScan()
    assert whole.over(memoryview(log)) == len(log)
    position = 0
    while position < len(log):
        before, position = position, parts.over(memoryview(log), position, position + window)
        assert position > before
    again = [raw(one) for one in HISTORY]
    assert list(map(whole.outcomes().of, again)) == list(map(parts.outcomes().of, again))


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    path.parent.mkdir()
    path.write_bytes(b"".join(LOG))
    return path


def test_each_batch_is_reported_with_all_its_header_says(tmp_path: Path) -> None:
    path = tmp_path / "any.log"
    attributes = 4 | APPEND_TIME | DELETE_HORIZON
    one = batch(10, count=3, delta=4, attributes=attributes, producer_id=70, producer_epoch=2, base_sequence=30)
    path.write_bytes(batch(0) + one)
    first, second = lines(run(path, "--json"))
    assert second == {
        "type": "batch",
        "file": str(path),
        "position": len(batch(0)),
        "base_offset": 10,
        "last_offset": 14,
        "records": 3,
        "holes": 2,
        "codec": "zstd",
        "bytes": len(one),
        "bytes_per_record": round(len(one) / 3, 1),
        "uncompressed": None,
        "magic": 2,
        "transactional": False,
        "outcome": None,
        "control": None,
        "append_time": True,
        "delete_horizon": True,
        "producer_id": 70,
        "producer_epoch": 2,
        "base_sequence": 30,
        "leader_epoch": 0,
        "base_timestamp": 1_700_000_000_000,
        "base_time": "2023-11-14T22:13:20.000Z",
        "max_timestamp": 1_700_000_000_999,
        "max_time": "2023-11-14T22:13:20.999Z",
        "crc_holds": True,
        "verdict": "REWRITE",
        "reason": "holes",
        "unwritable": None,
    }
    assert (first["producer_id"], first["codec"], first["verdict"]) == (None, "none", "RESTAMP")


def test_messages_before_magic_2_are_reported_as_far_as_they_say(tmp_path: Path) -> None:
    wrapper = bytearray(legacy(4, 1))
    wrapper[17] = 1
    wrapper[12:16] = zlib.crc32(wrapper[16:]).to_bytes(4, "big")
    path = tmp_path / "old.log"
    path.write_bytes(legacy(0, 0) + legacy(1, 1) + wrapper)
    result = lines(run(path, "--json"))
    shown = [(t["magic"], t["base_offset"], t["last_offset"], t["records"], t["codec"], t["base_time"]) for t in result]
    assert shown == [
        (0, 0, 0, 1, "none", None),
        (1, 1, 1, 1, "none", "2014-05-13T16:53:20.000Z"),
        (1, None, 4, None, "gzip", "2014-05-13T16:53:20.000Z"),
    ]
    assert {(t["verdict"], t["reason"]) for t in result} == {("REWRITE", "legacy_magic")}
    assert "magic 1" in run(path).stdout


def test_transactions_and_markers_are_shown_with_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(b"".join([*HISTORY[:4], *HISTORY[5:6], marker(20, 9, 2), marker(21, 9, 77)]))
    result = lines(run(path, "--json"))
    assert [(t["outcome"], t["control"], t["verdict"]) for t in result] == [
        ("aborted", None, "DROP"),
        ("committed", None, "RESTAMP"),
        (None, None, "RESTAMP"),
        (None, "COMMIT", "DROP"),
        (None, "ABORT", "DROP"),
        (None, "LEADER_CHANGE", "DROP"),
        (None, "type 77", "DROP"),
    ]
    text = run(path).stdout
    assert "DROP/aborted" in text
    assert "1 aborted, 1 committed" in text


def test_a_control_batch_without_its_record_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(batch(0, count=0, delta=0, attributes=CONTROL | TRANSACTIONAL, payload=b"", producer_id=3))
    (result,) = lines(run(path, "--json"))
    assert (result["control"], result["records"], result["holes"]) == ("unreadable", 0, 1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_timestamp_can_be_shown(timestamp: int) -> None:
    assert (rows.iso(timestamp) is None) == (not 0 <= timestamp < 253_402_300_800_000)


def test_people_get_a_few_rows_and_all_the_totals(tmp_path: Path) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(b"".join(batch(n) for n in range(USUAL_ROWS + 20)))
    text = run(path).stdout
    assert "and 20 batches more" in text
    assert f"{USUAL_ROWS + 20} records in {USUAL_ROWS + 20} batches" in text
    assert text.count("holds") == USUAL_ROWS
    assert run(path, "--limit", "60").stdout.count("holds") == 60
    assert run(path, "--summary").stdout.count("holds") == 0
    assert len(lines(run(path, "--json"))) == USUAL_ROWS + 20
    assert [line["base_offset"] for line in lines(run(path, "--json", "--from", "30", "--limit", "2"))] == [30, 31]
    assert "no batches from offset 99 on" in run(path, "--from", "99").stdout


def test_a_batch_is_shown_from_any_of_its_offsets_on(segment: Path) -> None:
    assert [line["base_offset"] for line in lines(run(segment, "--json", "--from", "4"))] == [3, 5]


def test_totals_count_by_codec_and_by_verdict(tmp_path: Path) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(
        batch(0, count=4) + batch(4, count=2, attributes=4) + batch(6, count=1, delta=2) + marker(9, 1, COMMIT)
    )
    result = run(path, "--json", "--summary")
    assert lines(result) == []
    (reported,) = lines(result, "summary")
    sizes = {name: (t["batches"], t["records"], t["holes"]) for name, t in reported["codecs"].items()}
    assert sizes == {"none": (3, 6, 2), "zstd": (1, 2, 0)}
    verdicts = {name: t["batches"] for name, t in reported["verdicts"].items()}
    assert verdicts == {"RESTAMP/own_producer": 2, "REWRITE/holes": 1, "DROP/control": 1}
    assert reported["as_stored"] == pytest.approx(2 / 3, abs=1e-6)
    assert (reported["batches"], reported["first_offset"], reported["last_offset"], reported["next_offset"]) == (
        4,
        0,
        9,
        10,
    )
    assert "66.7 % of the bytes to copy need no decompression" in run(path, "--summary").stdout


def test_ratios_are_known_where_they_are_asked_for(tmp_path: Path) -> None:
    records = b"a" * 5000
    path = tmp_path / "any.log"
    path.write_bytes(batch(0, attributes=4, payload=compress(4, records)) + batch(1, payload=records))
    assert [line["uncompressed"] for line in lines(run(path, "--json"))] == [None, None]
    result = run(path, "--json", "--ratio")
    assert [line["uncompressed"] for line in lines(result)] == [5000, 5000]
    (reported,) = lines(result, "summary")
    assert (reported["codecs"]["none"]["ratio"], reported["codecs"]["zstd"]["ratio"] > 10) == (1.0, True)
    assert " ratio" in run(path, "--ratio").stdout


def test_a_payload_that_does_not_decompress_is_data_at_risk(tmp_path: Path) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(batch(0, attributes=4))
    assert run(path).exit_code == ExitCode.DONE
    result = run(path, "--ratio")
    assert result.exit_code == ExitCode.DATA_AT_RISK
    assert "1 batch with a CRC that holds cannot be decompressed" in result.stdout


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_batch_that_would_stop_the_mirror_is_data_at_risk(tmp_path: Path) -> None:
    """Its checksum holds, and it counts more records than it has offsets."""
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(LOG[0] + batch(3, count=5, delta=1))
    found = run(path, "--json")
    assert (found.exit_code, lines(found)[-1]["verdict"]) == (ExitCode.DATA_AT_RISK, "REFUSE")
    assert lines(found)[-1]["reason"] == "impossible_header"


def test_a_sound_file_ends_well(segment: Path) -> None:
    result = run(segment)
    assert result.exit_code == ExitCode.DONE
    assert "sound to its end" in result.stdout


def test_reserved_space_is_reported_and_no_damage(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes() + bytes(5000))
    result = run(segment)
    assert result.exit_code == ExitCode.DONE
    assert "5,000 bytes of zeros" in result.stdout


def test_a_damaged_file_names_what_is_sound_and_what_is_lost(segment: Path) -> None:
    data = bytearray(b"".join([*LOG, batch(6)]))
    data[len(LOG[0]) + 63] ^= 1
    segment.write_bytes(data)
    result = run(segment)
    assert result.exit_code == ExitCode.DATA_AT_RISK
    third = len(LOG[0]) + len(LOG[1])
    for text in (
        f"CRC mismatch at byte {len(LOG[0])}",
        f"sound up to offset 2, {len(LOG[0])} bytes",
        f"{len(data) - len(LOG[0])} bytes from there on: the next sound batch is at byte {third}, base offset 5",
        "REFUSE/bad_crc",
    ):
        assert text in result.stdout
    outcome = run(segment, "--json")
    assert outcome.exit_code == ExitCode.DATA_AT_RISK
    assert [line["crc_holds"] for line in lines(outcome)] == [True, False]
    (summary,) = lines(outcome, "summary")
    assert (summary["next_offset"], summary["sound_bytes"]) == (3, len(LOG[0]))
    damage = summary["damage"]
    assert (damage["kind"], damage["position"], damage["bytes"]) == (
        "CRC mismatch",
        len(LOG[0]),
        len(data) - len(LOG[0]),
    )
    assert damage["sound_again"] == {"position": third, "base_offset": 5}


def test_a_cut_file_may_be_one_that_is_being_written(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes()[:-3])
    result = run(segment)
    assert result.exit_code == ExitCode.DATA_AT_RISK
    assert "partial batch" in result.stdout
    assert "sound up to offset 4" in result.stdout
    assert "no sound batch within" in result.stdout
    assert "read it again" in result.stdout


def test_a_folder_is_read_in_the_order_of_its_segments(segment: Path) -> None:
    for offset in (6, 100):
        segment.with_name(f"{offset:020}.log").write_bytes(batch(offset) + batch(offset + 1))
    segment.with_name("00000000000000000000.index").write_bytes(b"not a segment")
    result = run(segment.parent, "--json")
    assert result.exit_code == ExitCode.DONE
    assert [line["base_offset"] for line in lines(result)] == [0, 3, 5, 6, 7, 100, 101]
    assert len(lines(result, "summary")) == 3
    assert "3 segments: 10 records in 7 batches" in run(segment.parent).stdout


def test_one_damaged_segment_does_not_hide_the_next(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes()[:-3])
    segment.with_name(f"{6:020}.log").write_bytes(batch(6))
    result = run(segment.parent, "--json")
    assert result.exit_code == ExitCode.DATA_AT_RISK
    assert [line["base_offset"] for line in lines(result)] == [0, 3, 6]


def test_segments_that_overlap_are_out_of_order(segment: Path) -> None:
    segment.with_name(f"{4:020}.log").write_bytes(batch(4))
    result = run(segment.parent)
    assert result.exit_code == ExitCode.DATA_AT_RISK
    assert "base offset 4 where 6 or more is due" in result.stdout


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("00000000000000000042.log", 42),
        ("00000000000000000042.log.deleted", 42),
        ("orders.log", None),
        ("99999999999999999999.log", None),
        ("0000000000000000004x.log", None),
        ("²0000000000000000042.log", None),
    ],
)
def test_a_segments_name_is_its_base_offset(name: str, offset: int | None) -> None:
    assert offset_of(Path(name)) == offset


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "any.log"
    path.touch()
    result = run(path)
    assert result.exit_code == ExitCode.DONE
    assert "no batches" in result.stdout


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Pages behind the walk are given back, so what stays is a window and not the file."""
    path = tmp_path / "large.log"
    one = bytearray(batch(0, payload=b"") + random.Random(5).randbytes(1 << 20))
    one[8:12] = (len(one) - 12).to_bytes(4, "big")
    one[17:21] = crc32c(one[21:]).to_bytes(4, "big")
    with path.open("wb") as file:
        for offset in range(192):
            one[:8] = offset.to_bytes(8, "big")
            file.write(one)
    code = (
        "import resource, sys; from pathlib import Path; from mirror.commands.inspect import inspect_files;"
        "from mirror.commands.inspect_view import InspectOptions;"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "look = lambda path: inspect_files([Path(path)], InspectOptions(summary=True));"
        "look(sys.argv[1]); before = peak(); look(sys.argv[2]); print(peak() - before)"
    )
    small = tmp_path / "small.log"  # for which all that it takes is loaded
    small.write_bytes(bytes(one))
    command = [sys.executable, "-c", code, str(small), str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "192 batches" in shown.stdout
    assert int(shown.stdout.splitlines()[-1]) < 96 * 1024


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [["--json"], ["--limit", "100000"]], ids=" ".join)
def test_a_reader_that_has_seen_enough_ends_it_quietly(option: list[str], tmp_path: Path) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(b"".join(batch(n, payload=b"") for n in range(3000)))
    command = [sys.executable, "-m", "mirror", "inspect", str(path), *option]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere.log"], "no such file or folder; for a topic, name its cluster by --bootstrap or --config"),
        (["."], "no segments"),
        (["orders", "--config", "flow.yaml", "--bootstrap", "127.0.0.1:1"], "choose one"),
        (["orders", "--bootstrap", "127.0.0.1:1", "--side", "target"], "--side"),
        (["orders:x", "--bootstrap", "127.0.0.1:1"], "orders:x: a topic is named as TOPIC, or as TOPIC:PARTITION"),
        (["orders", "--bootstrap", "127.0.0.1"], "--bootstrap 127.0.0.1"),
        (["orders", "--config", "flow.yaml"], "flow.yaml"),
    ],
)
def test_what_does_not_go_together_is_usage(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert text in str(result.exception)


def test_what_is_no_regular_file_is_not_called_sound(tmp_path: Path) -> None:
    """It has no size, so that nothing of it would be read; and a named pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe.log")
    for path in (tmp_path / "pipe.log", Path("/dev/null")):
        with pytest.raises(ConfigError, match=f"{path}: cannot be read: it is no regular file"):
            inspect_files([path], InspectOptions())


def test_a_name_of_a_file_steers_no_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    folder.mkdir()
    for name, data in zip((b"a\x1b[2J.log", b"b\xff.log"), LOG, strict=False):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(data)
    result = run(folder)
    assert result.exit_code == 0
    assert "/a\\x1b[2J.log" in result.stdout
    assert "/b\\udcff.log" in result.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_may_not_be_read_is_named(segment: Path) -> None:
    segment.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        inspect_files([segment], InspectOptions())


@pytest.mark.parametrize(
    ("target", "meant"), [("orders", ("orders", None)), ("orders:0", ("orders", 0)), ("a.b-c_d:12", ("a.b-c_d", 12))]
)
def test_a_topic_is_named_with_or_without_a_partition(target: str, meant: tuple[str, int | None]) -> None:
    assert parse_target(target) == meant


@pytest.mark.parametrize("target", ["", ":1", "orders:", "orders:-1", "orders:1:2", "orders:²", "orders:9999999999"])
def test_other_names_are_refused(target: str) -> None:
    with pytest.raises(ConfigError):
        parse_target(target)


# --- answers of a broker ----------------------------------------------------------------------------------------------

PARTITION = TopicPartition("orders", 0)


def read_log(monkeypatch: pytest.MonkeyPatch, answers: Sequence[bytes], end: int) -> tuple[Log, list[int]]:
    """What is read of a log whose leader gives these answers, one after the other; the base offsets."""
    given = iter(answers)

    async def fetch_at(_cluster: Any, partition: TopicPartition, _offset: int, **_: Any) -> Fetched:
        answer = next(given)
        known = end if answer else 0  # a leader that was just elected knows of no more for a moment
        return Fetched(partition, 0, known, known, 0, None, (), memoryview(answer))

    async def read() -> tuple[Log, list[int]]:
        log = Log(Stub(), PARTITION, end, end)
        return log, [raw.header.base_offset async for raw, _ in log.batches(0)]

    monkeypatch.setattr("mirror.kafka.fetch.fetch_at", fetch_at)
    return asyncio.run(read())


class Stub(WireCluster):
    """A cluster that is asked nothing."""

    def __init__(self) -> None:
        super().__init__(Endpoint("stub", ()))


def test_answers_that_are_cut_or_empty_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [b"", LOG[0] + LOG[1][:-1], LOG[1] + LOG[2] + batch(6)]
    log, found = read_log(monkeypatch, answers, end=6)
    assert (found, log.at, log.damage) == ([0, 3, 5], 6, None)


def test_damage_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    log, found = read_log(monkeypatch, [LOG[0] + batch(3, crc=1) + batch(4)], end=5)
    assert (found, log.at) == ([0], 3)
    assert log.damage is not None
    assert (log.damage.kind, log.damage.batch is not None) == (DamageKind.CRC, True)


def test_a_leader_that_gives_nothing_for_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror.kafka.fetch.EMPTY_SECONDS", 0.1)
    with pytest.raises(ClusterUnreachable, match=r"orders-0: nothing came back for offset 3 .* ended at 6"):
        read_log(monkeypatch, [LOG[0], *[b""] * 100], end=6)


class Leader:
    """Of a log that ends at `end`, by what it says at once; below `local` its records are in remote storage. It gives
    `answers`, the last one again and again.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: Sequence[bytes], end: int, local: int = 0) -> None:
        self.end, self.local, self.waits = end, local, list[int]()
        self._answers = list(answers)
        monkeypatch.setattr("mirror.kafka.fetch.EMPTY_SECONDS", 0.3)
        monkeypatch.setattr("mirror.kafka.fetch.fetch_at", self._fetched)
        monkeypatch.setattr("mirror.kafka.fetch.list_offset", self._listed)

    async def _fetched(self, *_: Any, max_wait_ms: int, **__: Any) -> Fetched:
        self.waits.append(max_wait_ms)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return Fetched(PARTITION, 0, self.end, self.end, 0, None, (), memoryview(answer))

    async def _listed(self, _cluster: Any, _partition: Any, when: int) -> int:
        assert when == EARLIEST_LOCAL
        return self.local

    def read(self) -> tuple[Log, list[int]]:
        """Its log, and the base offsets that are read of it."""

        async def read() -> tuple[Log, list[int]]:
            log = Log(Stub(), PARTITION, self.end, self.end)
            return log, [raw.header.base_offset async for raw, _ in log.batches(0)]

        return asyncio.run(read())


def test_an_empty_answer_of_a_leader_that_has_all_is_no_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remote storage that is late looks like this: no error, the true end, and nothing."""
    for local in (0, 6):
        leader = Leader(monkeypatch, [b"", LOG[0], b"", LOG[1] + LOG[2]], end=6, local=local)
        log, found = leader.read()
        assert (found, log.at, log.damage) == ([0, 3, 5], 6, None)
        assert [wait > 0 for wait in leader.waits] == [False, True, False, True]


def test_a_hole_up_to_the_end_is_one_that_a_leaders_own_disk_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch, [LOG[0], b""], end=6, local=3)
    log, found = leader.read()
    assert (found, log.at, log.damage, len(leader.waits)) == ([0], 6, None, 1 + EMPTY_ANSWERS)
    with pytest.raises(ClusterUnreachable, match=r"orders-0: nothing came back for offset 3 .* begins at 4 on its own"):
        Leader(monkeypatch, [LOG[0], b""], end=6, local=4).read()


def test_a_hole_up_to_an_open_transaction_does_not_hide_what_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch, [LOG[0], b""], end=6, local=3)

    async def fetched(*_: Any, isolation: int, **more: Any) -> Fetched:
        found = await leader._fetched(**more)
        return replace(
            found, last_stable_offset=5, records=memoryview(LOG[2]) if isolation != READ_COMMITTED else found.records
        )

    async def read() -> list[int]:
        return [raw.header.base_offset async for raw, _ in Log(Stub(), PARTITION, 5, 6).batches(0)]

    monkeypatch.setattr("mirror.kafka.fetch.fetch_at", fetched)
    assert asyncio.run(read()) == [0, 5]


def test_what_precedes_the_offset_that_was_asked_for_is_no_hole_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log, found = Leader(monkeypatch, [LOG[0], LOG[0], LOG[1] + LOG[2]], end=6).read()
    assert (found, log.at, log.damage) == ([0, 3, 5], 6, None)
    log, found = Leader(monkeypatch, [LOG[0]], end=6).read()
    assert (found, log.at) == ([0], 3)
    assert "nothing but what precedes offset 3" in str(log.damage)


# --- real logs -------------------------------------------------------------------------------------------------------


def folder_of(cluster: Cluster, topic: str, partition: int = 0) -> Path:
    return cluster.nodes[0].data / f"{topic}-{partition}"


def without_place(expected: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in one.items() if name not in ("position", "file", "topic", "partition")}
        for one in expected
    ]


@contextmanager
def transaction(cluster: Cluster, name: str) -> Iterator[Producer]:
    """A transaction in which each flush makes a batch; aborted at the end of the block."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "linger.ms": 5_000})
    producer.init_transactions(120)
    producer.begin_transaction()
    try:
        yield producer
    finally:
        producer.abort_transaction(30)


def say(producer: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        producer.produce(topic, value, partition=0)
    assert not producer.flush(30)


@pytest.mark.brokers
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_real_segment_is_read_as_others_read_it(own_source: Cluster, topic_name: str, codec: str) -> None:
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, (b"value %d" % n * 9 for n in range(95)), codec=codec)
    folder = folder_of(own_source, topic_name)
    result = run(folder, "--json", "--ratio")
    assert result.exit_code == ExitCode.DONE, result.stdout
    reported = lines(result)
    reader = MemoryRecords((folder / "00000000000000000000.log").read_bytes())
    theirs = []
    while one := reader.next_batch():
        records = list(one)
        theirs.append((one.base_offset, len(records), records[0].timestamp, max(r.timestamp for r in records)))
    ours = [(t["base_offset"], t["records"], t["base_timestamp"], t["max_timestamp"]) for t in reported]
    assert ours == theirs
    assert (sum(t["records"] for t in reported), {t["codec"] for t in reported}) == (95, {codec})
    assert all(t["uncompressed"] > t["bytes"] - 61 for t in reported) == (codec != "none")


@pytest.mark.brokers
def test_a_live_partition_is_read_with_the_ends_of_its_transactions(own_source: Cluster, topic_name: str) -> None:
    where = own_source.bootstrap
    make_topic(where, topic_name, partitions=2)
    produce(where, topic_name, [b"plain"])  # 0
    with transaction(own_source, f"{topic_name}-a") as first:
        say(first, topic_name, b"kept", b"kept too")  # 1, 2
        first.commit_transaction(30)  # 3
        first.begin_transaction()
        say(first, topic_name, b"regretted")  # 4
        produce(where, topic_name, [b"in between"])  # 5
        say(first, topic_name, b"regretted, too")  # 6
    produce(where, topic_name, [b"behind"])  # 8, after the marker
    with transaction(own_source, f"{topic_name}-b") as second:
        say(second, topic_name, b"open")  # 9
        produce(where, topic_name, [b"at the end"])  # 10
        live = run(f"{topic_name}:0", "--bootstrap", where, "--json")
        assert live.exit_code == ExitCode.DONE, live.output
        reported = lines(live)
        assert [(t["base_offset"], t["records"], t["outcome"], t["control"], t["verdict"]) for t in reported] == [
            (0, 1, None, None, "RESTAMP"),
            (1, 2, "committed", None, "RESTAMP"),
            (3, 1, None, "COMMIT", "DROP"),
            (4, 1, "aborted", None, "DROP"),
            (5, 1, None, None, "RESTAMP"),
            (6, 1, "aborted", None, "DROP"),
            (7, 1, None, "ABORT", "DROP"),
            (8, 1, None, None, "RESTAMP"),
            (9, 1, "undecided", None, "RESTAMP"),
            (10, 1, None, None, "RESTAMP"),
        ]
        (summary,) = lines(live, "summary")
        assert (summary["log_start"], summary["last_stable"], summary["log_end"]) == (0, 9, 11)
        assert (summary["topic"], summary["partition"]) == (topic_name, 0)
        in_file = run(folder_of(own_source, topic_name), "--json")
        assert without_place(lines(in_file)) == without_place(reported)
        inside = run(f"{topic_name}:0", "--bootstrap", where, "--json", "--from", "6")
        assert without_place(lines(inside)) == without_place(reported[5:])
    text = run(topic_name, "--bootstrap", where, "--limit", "3").stdout
    assert f"{topic_name}-0: offsets 0 to 3" in text
    assert "read up to offset 3: --limit N or --from OFFSET for more, --summary for all" in text
    assert f"{topic_name}-1: no batches" in text
    decided = lines(run(topic_name, "--bootstrap", where, "--json"))
    assert [t["outcome"] for t in decided][-3:] == ["aborted", None, None]


@pytest.mark.brokers
def test_verdicts_go_by_the_target_topics_rules(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    make_topic(own_source.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, [b"x" * 2000])
    config = config_file(tmp_path, own_source.bootstrap, own_target.bootstrap, [topic_name])

    def judged(topic: str = topic_name, *more: str) -> tuple[str, str]:
        result = run(topic, "--config", config, "--json", *more)
        assert result.exit_code == ExitCode.DONE, result.output
        (outcome,), (summary,) = lines(result), lines(result, "summary")
        return f"{outcome['verdict']}/{outcome['reason']}", summary["rules"]

    verdict, rules = judged()
    assert (verdict, "does not exist yet" in rules) == ("RESTAMP/own_producer", True)
    make_topic(own_target.bootstrap, topic_name, configs={"max.message.bytes": "1000"})
    assert judged() == ("REWRITE/too_large", f"the rules of {topic_name} on us")
    (outcome,) = lines(run(topic_name, "--config", config, "--json"))
    assert (outcome["unwritable"]["first_offset"], outcome["unwritable"]["last_offset"]) == (0, 0)
    produce(
        own_source.bootstrap,
        topic_name,
        [bytes(1000), random.randbytes(3000), random.randbytes(3000)],
        codec="zstd",
    )
    outcome = lines(run(topic_name, "--config", config, "--json"))[-1]["unwritable"]
    assert (outcome["first_offset"], outcome["last_offset"], outcome["reason"]) == (2, 3, "too_large")
    assert "offset 2 would stop the mirror: a record takes 30" in run(topic_name, "--config", config).stdout
    other = f"{topic_name}-other"
    make_topic(own_source.bootstrap, other)
    produce(own_source.bootstrap, other, [b"x"])
    assert "does not mirror" in judged(other)[1]
    produce(own_target.bootstrap, topic_name, [b"x"])
    assert judged(topic_name, "--side", "target")[0] == "RESTAMP/own_producer"


@pytest.mark.brokers
@pytest.mark.parametrize("partition", ["", ":7"])
def test_a_topic_that_is_not_there_is_usage(own_source: Cluster, topic_name: str, partition: str) -> None:
    if partition:
        make_topic(own_source.bootstrap, topic_name)
    result = run(topic_name + partition, "--bootstrap", own_source.bootstrap)
    assert isinstance(result.exception, ConfigError)
    assert topic_name in str(result.exception)


def test_a_narrow_terminal_gets_the_columns_that_it_holds(tmp_path: Path) -> None:
    """Half a row on the next line is worse than one that is not shown; `--wide` shows all of them."""
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(b"".join(transactional(10**7 + 100 * number, 4711, 100) for number in range(3)))
    few = ["offsets", "records", "codec", "size,", "B", "flags", "verdict"]
    narrow, ratio, wide = run(file, width=80), run(file, "--ratio", width=80), run(file, "--wide", width=80)
    rows = narrow.stdout.splitlines()[:5]
    assert rows[0].split() == few
    assert max(len(row.rstrip()) for row in rows) <= 80
    assert ratio.stdout.splitlines()[0].split() == [*few[:5], "ratio", *few[5:]]
    assert wide.stdout.splitlines()[0] == run(file, width=200).stdout.splitlines()[0]
    assert "id/epoch/seq" in wide.stdout
