"""`mirror inspect` over segment files: what it shows of each batch, what it counts, and what it calls damage."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
from inspecting import ABORT, COMMIT, lines, marker, run, transactional
from rawbatches import batch, legacy

from mirror.commands.inspect import inspect_files
from mirror.commands.inspect_topic import parse_target
from mirror.commands.inspect_view import USUAL_ROWS, InspectOptions
from mirror.errors import ConfigError, ExitCode
from mirror.records.codecs import compress
from mirror.records.header import APPEND_TIME, CONTROL, DELETE_HORIZON, TRANSACTIONAL
from mirror.segments.files import offset_of

LOG = [batch(0, count=3), batch(3, count=2, payload=b"another"), batch(5, payload=b"the last one")]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "orders-0" / f"{0:020}.log"
    path.parent.mkdir()
    path.write_bytes(b"".join(LOG))
    return path


# --- rows and totals --------------------------------------------------------------------------------------------------


def test_each_batch_is_shown_with_all_that_its_header_says(segment: Path) -> None:
    attributes = 4 | APPEND_TIME | DELETE_HORIZON
    one = batch(10, count=3, delta=4, attributes=attributes, producer_id=70, producer_epoch=2, base_sequence=30)
    segment.write_bytes(batch(0) + one)
    first, second = lines(run(segment, "--json"))
    assert second == {
        "type": "batch",
        "file": str(segment),
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


def test_messages_before_magic_2_are_shown_as_far_as_they_say(segment: Path) -> None:
    wrapper = bytearray(legacy(4, 1))
    wrapper[17] = 1
    wrapper[12:16] = zlib.crc32(wrapper[16:]).to_bytes(4, "big")
    segment.write_bytes(legacy(0, 0) + legacy(1, 1) + wrapper)
    result = lines(run(segment, "--json"))
    shown = [(t["magic"], t["base_offset"], t["last_offset"], t["records"], t["codec"], t["base_time"]) for t in result]
    assert shown == [
        (0, 0, 0, 1, "none", None),
        (1, 1, 1, 1, "none", "2014-05-13T16:53:20.000Z"),
        (1, None, 4, None, "gzip", "2014-05-13T16:53:20.000Z"),
    ]
    assert {(t["verdict"], t["reason"]) for t in result} == {("REWRITE", "legacy_magic")}


def test_transactions_and_markers_are_shown_with_their_ends(segment: Path) -> None:
    log = [transactional(0, 7), transactional(1, 8), batch(2), marker(3, 8, COMMIT), marker(5, 7, ABORT)]
    empty = batch(22, count=0, delta=0, attributes=CONTROL | TRANSACTIONAL, payload=b"", producer_id=3)
    segment.write_bytes(b"".join([*log, marker(20, 9, 2), marker(21, 9, 77), empty]))
    assert [(t["outcome"], t["control"], t["verdict"]) for t in lines(run(segment, "--json"))] == [
        ("aborted", None, "DROP"),
        ("committed", None, "RESTAMP"),
        (None, None, "RESTAMP"),
        (None, "COMMIT", "DROP"),
        (None, "ABORT", "DROP"),
        (None, "LEADER_CHANGE", "DROP"),
        (None, "type 77", "DROP"),
        (None, "unreadable", "DROP"),
    ]
    assert "1 aborted, 1 committed" in run(segment).stdout


def test_people_get_a_few_rows_and_all_the_totals(segment: Path) -> None:
    segment.write_bytes(b"".join(batch(n) for n in range(USUAL_ROWS + 20)))
    text = run(segment).stdout
    assert "and 20 batches more" in text
    assert f"{USUAL_ROWS + 20} records in {USUAL_ROWS + 20} batches" in text
    assert [text.count("holds"), run(segment, "--limit", "60").stdout.count("holds")] == [USUAL_ROWS, 60]
    assert run(segment, "--summary").stdout.count("holds") == 0
    assert len(lines(run(segment, "--json"))) == USUAL_ROWS + 20
    assert [one["base_offset"] for one in lines(run(segment, "--json", "--from", "30", "--limit", "2"))] == [30, 31]
    assert "no batches from offset 99 on" in run(segment, "--from", "99").stdout


def test_a_batch_is_shown_from_any_of_its_offsets_on(segment: Path) -> None:
    assert [one["base_offset"] for one in lines(run(segment, "--json", "--from", "4"))] == [3, 5]


def test_totals_count_by_codec_and_by_verdict(segment: Path) -> None:
    log = [batch(0, count=4), batch(4, count=2, attributes=4), batch(6, count=1, delta=2), marker(9, 1, COMMIT)]
    segment.write_bytes(b"".join(log))
    (total,) = lines(run(segment, "--json", "--summary"), "summary")
    sizes = {name: (t["batches"], t["records"], t["holes"]) for name, t in total["codecs"].items()}
    assert sizes == {"none": (3, 6, 2), "zstd": (1, 2, 0)}
    verdicts = {name: t["batches"] for name, t in total["verdicts"].items()}
    assert verdicts == {"RESTAMP/own_producer": 2, "REWRITE/holes": 1, "DROP/control": 1}
    assert total["as_stored"] == pytest.approx(2 / 3, abs=1e-6)
    assert (total["batches"], total["first_offset"], total["last_offset"], total["next_offset"]) == (4, 0, 9, 10)


def test_ratios_are_known_where_they_are_asked_for(segment: Path) -> None:
    """What does not decompress then is data at risk."""
    records = b"a" * 5000
    segment.write_bytes(batch(0, attributes=4, payload=compress(4, records)) + batch(1, payload=records))
    assert [one["uncompressed"] for one in lines(run(segment, "--json"))] == [None, None]
    result = run(segment, "--json", "--ratio")
    assert [one["uncompressed"] for one in lines(result)] == [5000, 5000]
    (total,) = lines(result, "summary")
    assert (total["codecs"]["none"]["ratio"], total["codecs"]["zstd"]["ratio"] > 10) == (1.0, True)
    segment.write_bytes(batch(0, attributes=4))
    assert [run(segment).exit_code, run(segment, "--ratio").exit_code] == [ExitCode.DONE, ExitCode.DATA_AT_RISK]
    assert "1 batch with a CRC that holds cannot be decompressed" in run(segment, "--ratio").stdout


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"".join(LOG), "sound to its end"), (b"".join(LOG) + bytes(5000), "5,000 bytes of zeros"), (b"", "no batches")],
)
def test_a_sound_file_ends_well(segment: Path, data: bytes, text: str) -> None:
    segment.write_bytes(data)
    result = run(segment)
    assert (result.exit_code, text in result.stdout) == (ExitCode.DONE, True)


def test_a_batch_that_would_stop_the_mirror_is_data_at_risk(segment: Path) -> None:
    """Its checksum holds, and it counts more records than it has offsets."""
    segment.write_bytes(LOG[0] + batch(3, count=5, delta=1))
    result = run(segment, "--json")
    shown = lines(result)[-1]
    assert (result.exit_code, shown["verdict"], shown["reason"]) == (4, "REFUSE", "impossible_header")


def test_a_damaged_file_names_what_is_sound_and_what_is_lost(segment: Path) -> None:
    data = bytearray(b"".join([*LOG, batch(6)]))
    begin, third = len(LOG[0]), len(LOG[0]) + len(LOG[1])
    data[begin + 63] ^= 1
    segment.write_bytes(data)
    result = run(segment)
    assert (result.exit_code, "REFUSE/bad_crc" in result.stdout) == (ExitCode.DATA_AT_RISK, True)
    assert f"CRC mismatch at byte {begin}" in result.stdout
    assert f"the next sound batch is at byte {third}, base offset 5" in result.stdout
    result = run(segment, "--json")
    assert [one["crc_holds"] for one in lines(result)] == [True, False]
    (summary,) = lines(result, "summary")
    assert (summary["next_offset"], summary["sound_bytes"]) == (3, begin)
    damage = summary["damage"]
    assert (damage["kind"], damage["position"], damage["bytes"]) == ("CRC mismatch", begin, len(data) - begin)
    assert damage["sound_again"] == {"position": third, "base_offset": 5}


def test_a_cut_file_may_be_one_that_is_being_written(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes()[:-3])
    result = run(segment)
    assert result.exit_code == ExitCode.DATA_AT_RISK
    assert all(text in result.stdout for text in ("partial batch", "sound up to offset 4", "read it again"))


def test_a_folder_is_read_in_the_order_of_its_segments(segment: Path) -> None:
    """One that is damaged does not hide the next; one that begins in another is out of order."""
    for offset in (6, 100):
        segment.with_name(f"{offset:020}.log").write_bytes(batch(offset) + batch(offset + 1))
    segment.with_name(f"{0:020}.index").write_bytes(b"not a segment")
    result = run(segment.parent, "--json")
    assert (result.exit_code, len(lines(result, "summary"))) == (ExitCode.DONE, 3)
    assert [one["base_offset"] for one in lines(result)] == [0, 3, 5, 6, 7, 100, 101]
    segment.write_bytes(segment.read_bytes()[:-3])
    result = run(segment.parent, "--json")
    assert result.exit_code == ExitCode.DATA_AT_RISK
    assert [one["base_offset"] for one in lines(result)] == [0, 3, 6, 7, 100, 101]
    segment.with_name(f"{4:020}.log").write_bytes(batch(4))
    assert "base offset 4 where 5 or more is due" in run(segment.parent).stdout


# --- names ------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("target", "meant"), [("orders", ("orders", None)), ("orders:0", ("orders", 0)), ("a.b-c_d:12", ("a.b-c_d", 12))]
)
def test_a_topic_is_named_with_or_without_a_partition(target: str, meant: tuple[str, int | None]) -> None:
    assert parse_target(target) == meant


@pytest.mark.parametrize("target", ["", ":1", "orders:", "orders:-1", "orders:1:2", "orders:²", "orders:9999999999"])
def test_other_names_are_refused(target: str) -> None:
    with pytest.raises(ConfigError):
        parse_target(target)


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


def test_a_name_of_a_file_steers_no_terminal(segment: Path) -> None:
    for name, data in ((b"a\x1b[2J.log", LOG[1]), (b"b\xff.log", LOG[2])):
        Path(os.fsdecode(os.fsencode(segment.parent) + b"/" + name)).write_bytes(data)
    result = run(segment.parent)
    assert "/a\\x1b[2J.log" in result.stdout
    assert "/b\\udcff.log" in result.stdout
