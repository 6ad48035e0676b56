"""`mirror inspect` over segment files: what it shows of each batch, what it counts, and what it calls damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspecting import lines, run
from rawbatches import batch
from replicas import COMMIT, marker

from mirror.errors import ExitCode
from mirror.records.header import APPEND_TIME, DELETE_HORIZON

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


# --- damage -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("data", "code", "texts"),
    [
        (b"".join(LOG), ExitCode.DONE, ["sound to its end"]),
        (b"".join(LOG) + bytes(5000), ExitCode.DONE, ["5,000 bytes of zeros"]),
        (b"", ExitCode.DONE, ["no batches"]),
        # It may be one that is being written.
        (b"".join(LOG)[:-3], ExitCode.DATA_AT_RISK, ["partial batch", "sound up to offset 4", "read it again"]),
        # Its checksum holds, and it counts more records than it has offsets.
        (batch(3, count=5, delta=1), ExitCode.DATA_AT_RISK, ["REFUSE/impossible_header"]),
    ],
    ids=["sound", "zeros", "empty", "cut", "impossible"],
)
def test_how_a_file_ends(segment: Path, data: bytes, code: ExitCode, texts: list[str]) -> None:
    segment.write_bytes(data)
    result = run(segment)
    assert (result.exit_code, [text in result.stdout for text in texts]) == (code, [True] * len(texts))


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
