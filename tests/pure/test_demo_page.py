"""The demonstration's parts: the records that it writes, what it concludes and shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirror.lab.demo.copying import CopyResult, Cost, Line
from mirror.lab.demo.processes import Usage, UsageTally
from mirror.lab.embedded.node import Identity

DRIVER, WORKER = Identity(pid=1, started=10.0), Identity(pid=2, started=11.0)


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


def result_of(*lines: Line, cost: Cost = COST) -> CopyResult:
    """What a run found."""
    return CopyResult(lines=lines, cost=cost, misfits=(), seconds={"brokers": 5.2, "filling": 9.9}, downloads=2.0)


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
