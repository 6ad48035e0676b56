"""The demonstration's parts: the records that it writes, what it concludes and shows."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from mirror.lab.commands.demo import Narrator, show
from mirror.lab.demo.copying import Cost, Line, Result
from mirror.lab.demo.processes import Usage, UsageTally
from mirror.lab.demo.producers import pool
from mirror.lab.embedded.node import Identity

DRIVER, WORKER = Identity(pid=1, started=10.0), Identity(pid=2, started=11.0)


def test_records_are_the_same_every_time_and_like_those_of_an_application() -> None:
    records = pool(count=1000)
    assert records == pool(count=1000) != pool(seed=8, count=1000)
    text = b"".join(record.value for record in records)
    assert 350 < len(text) / len(records) < 450
    assert 2 < len(text) / len(zlib.compress(text)) < 6
    assert all(str(json.loads(record.value)["user"]).encode() == record.key for record in records)


def test_a_counters_keeps_what_ended_processes_used() -> None:
    counters = UsageTally()
    counters.add({DRIVER: Usage(cpu_s=1.0, rss=100, pss=80)})
    counters.add({DRIVER: Usage(cpu_s=2.0, rss=100), WORKER: Usage(cpu_s=5.0, rss=50)})
    counters.add({DRIVER: Usage(cpu_s=3.0, rss=90, pss=70)})
    assert (counters.cpu_s, counters.peak_rss, counters.peak_pss) == (8.0, 150, 80)


LINE = Line(
    topic="gzip",
    partitions=2,
    wanted="gzip",
    written=160_000,
    codecs=("gzip",),
    records=160_000,
    batches=240,
    bytes=22_400_000,
    judged=240,
    passed=240,
    identical=240,
    offsets_equal=True,
    hidden=0,
    lag=0,
    different=0,
)

COST = Cost(
    start_s=10.2,
    start_cpu_s=9.4,
    backlog_s=4.0,
    backlog_cpu_s=0.6,
    backlog_bytes=200_000_000,
    record_bytes=363_000_000,
    peak_rss=788_000_000,
    peak_pss=670_000_000,
    stop_s=1.3,
    exit_code=0,
)


def result_of(*lines: Line, cost: Cost = COST, misfits: Sequence[str] = ()) -> Result:
    """What a run found."""
    return Result(
        lines=lines, cost=cost, misfits=tuple(misfits), seconds={"brokers": 5.2, "filling": 9.9}, downloads=2.0
    )


@pytest.mark.parametrize(
    ("change", "objection"),
    [
        ({"records": 159_999}, "gzip: 160,000 records were written, 159,999 were compared"),
        ({"codecs": ("lz4",)}, "gzip: written with gzip, stored with lz4"),
        ({"lag": 3}, "gzip: 3 records are not mirrored"),
        ({"identical": 239}, "gzip: 239 of 240 batches are identical"),
        ({"offsets_equal": False}, "gzip: the offsets differ"),
        ({"passed": 239}, "gzip: 239 of 240 verdicts did without decompression"),
    ],
)
def test_a_topic_that_does_not_hold_is_objected_to(change: dict[str, Any], objection: str) -> None:
    line = replace(LINE, **change)
    assert objection in result_of(LINE, line).objections
    assert result_of(LINE, line).as_dict()["ok"] is False


@pytest.mark.parametrize(
    ("cost", "objection"),
    [
        (replace(COST, exit_code=137), "the mirror ended with exit code 137 after SIGTERM"),
        (replace(COST, stop_s=5.1), "the mirror took 5.1 s to stop, 5 are allowed"),
    ],
)
def test_a_mirror_that_does_not_end_well_is_objected_to(cost: Cost, objection: str) -> None:
    assert result_of(LINE, cost=cost).objections == (objection,)


def shown(result: Result, width: int) -> str:
    """As a file would get it."""
    out = io.StringIO()
    show(result, Console(file=out, width=width, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_keeps_every_figure_whole(width: int) -> None:
    names = ("gzip", "java", "live", "lz4", "none", "snappy", "zstd")
    lines = [replace(LINE, topic=name, records=240_000, written=240_000) for name in names]
    text = shown(result_of(*lines), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    rows = [row.split() for row in text.splitlines()]
    assert ["topic", "codec", "parts", "records", "batches", "MB", "compressed", "bytes", "equal"] in rows
    assert ["snappy", "gzip", "2", "240,000", "240", "22.4", "100", "%", "yes", "yes"] in rows
    assert ["all", "14", "1,680,000", "1,680", "156.8", "100", "%", "yes", "yes"] in rows
    flowing = " ".join(text.split())
    for figure in ("50 MB/s", "3.0 CPU-s/GB", "788 MB", "670 MB", "15 s", "2 s of it downloads"):
        assert figure in flowing
    assert (
        "Proof: all 1,680 batches of 14 partitions are on the target, with the same bytes, at the same offsets"
        in flowing
    )


def test_what_does_not_hold_stands_in_the_table_and_under_it() -> None:
    line = replace(LINE, identical=239, passed=2399, judged=2400, offsets_equal=False)
    text = shown(result_of(line), 100)
    rows = [row.split() for row in text.splitlines()]
    assert ["gzip", "gzip", "2", "160,000", "240", "22.4", "99.9", "%", "NO", "NO"] in rows
    assert "Proof" not in text
    assert "  gzip: the offsets differ" in text.splitlines()


def test_a_file_gets_plain_lines_and_progress_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("mirror.lab.commands.demo.time.monotonic", lambda: clock[0])
    out = io.StringIO()
    with Narrator(Console(file=out, width=160, highlight=False)) as narrator:
        clock[0] += 1.25
        narrator.step("brokers are up")
        for done in range(8):
            clock[0] += 1.0
            narrator.progress("filling", done, 8)
        narrator.step("filled")
    assert out.getvalue().splitlines() == [
        "   1.2 s brokers are up",
        "   6.2 s filling: 4 of 8 records",
        "   9.2 s filled",
    ]
