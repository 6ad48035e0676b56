"""What the raw figures of `mirror bench` come to: medians, ratios, goals, changes, tables and the page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from proofs import Seen
from typer.testing import CliRunner

from mirror.cli import app
from mirror.errors import ExitCode
from mirror.lab.bench.compare import compare, table
from mirror.lab.bench.page import page
from mirror.lab.bench.result import ComparisonResult
from mirror.lab.bench.summary import CPU, MEMORY, MIRROR, SPEED, Summary, cheaper, short_copies

ROOT = Path(__file__).parents[2]
LATEST = ROOT / "tests/vectors/comparison.json"
MEASURED = ComparisonResult.from_json(LATEST.read_bytes(), str(LATEST))


def part(loads: Sequence[str], arms: Sequence[str], rounds: int = 3, *, more: bool = False) -> ComparisonResult:
    """Some figures of a comparison in five rounds; with `more`, latencies and scaling, too."""
    return replace(
        MEASURED,
        workloads=tuple(one for one in MEASURED.workloads if one.name in loads),
        arms=tuple(one for one in MEASURED.arms if one.name in arms),
        runs=tuple(one for one in MEASURED.runs if one.workload in loads and one.arm in arms and one.round <= rounds),
        latencies=tuple(one for one in MEASURED.latencies if more and one.arm in arms),
        scaling=MEASURED.scaling if more else (),
    )


TWO = part(["1MB-zstd"], ["mirror", "mm2"])


def measured(**values: Sequence[float]) -> Summary:
    """A comparison with these CPU-seconds of the copy by arm, a round each."""
    runs = [
        replace(TWO.runs[0], arm=arm, round=number, copy_cpu_s=seconds)
        for arm, found in values.items()
        for number, seconds in enumerate(found)
    ]
    return Summary(replace(TWO, runs=tuple(runs)))


# --- raw figures ------------------------------------------------------------------------------------------------------


def test_raw_figures_read_back_the_same() -> None:
    assert ComparisonResult.from_json(MEASURED.to_json()) == MEASURED


# --- medians, ratios and goals ----------------------------------------------------------------------------------------


def test_ratios_are_made_round_by_round() -> None:
    """A machine that is ten times slower in the second round makes all arms slower, and no ratio different."""
    times = measured(mirror=(1.0, 10.0, 1.1), mm2=(50.0, 500.0, 55.0, 70.0)).against(CPU, "1MB-zstd", MIRROR)
    assert times is not None
    assert (times.least, times.most) == pytest.approx((50, 50))
    assert times.many == 3, "one arm lacks a round"
    assert measured(mirror=(0.0,), mm2=(50.0,)).against(CPU, "1MB-zstd", MIRROR) is None


def test_the_text_names_figures_in_which_others_are_cheaper() -> None:
    cases = (
        ({"mirror": (1.0, 2.0), "mm2": (5.0, 6.0)}, ""),
        ({"mirror": (9.0, 10.0), "mm2": (5.0, 6.0)}, "MirrorMaker 2, as it comes 14.1, mirror 24.3."),
        ({"mirror": (9.0, 10.0), "mm2": (5.0, 11.0)}, "MirrorMaker 2, as it comes 20.5, mirror 24.3, not in every"),
    )
    for values, text in cases:
        found = "".join(one for one in cheaper(measured(**values)) if one.startswith("CPU of the copy"))
        assert text in found
        assert bool(text) == bool(found)


def test_a_trickle_has_the_cpu_of_the_copy_and_of_both_sides() -> None:
    late = [
        replace(
            MEASURED.latencies[0], arm=arm, rate=4000.0, partitions=100, cores=cores, source_cores=0.3, target_cores=0.2
        )
        for arm, cores in (("mirror", 0.36), ("mm2", 0.28))
    ]
    summary = Summary(replace(TWO, latencies=tuple(late)))
    assert "| 4,000 records/s over 100 partitions | mirror | 0.360 | 0.300 | 0.200 |" in table(summary)
    wanted = (
        "CPU of the copy, cores. 4,000 records/s over 100 partitions: MirrorMaker 2, as it comes 0.280, mirror 0.360."
    )
    assert wanted in list(cheaper(summary))


def test_copies_that_are_too_short_to_be_sure_of_are_named() -> None:
    assert "copies shorter than 10 s: 1 MB batches, zstd (" in short_copies(Summary(TWO))
    longer = tuple(replace(run, copy_s=11.0) for run in TWO.runs)
    assert short_copies(Summary(replace(TWO, runs=longer))) == ""


# --- two comparisons --------------------------------------------------------------------------------------------------


def test_changes_beyond_noise_are_distinguished() -> None:
    old = Summary(TWO)
    assert {(one.verdict, one.ratio) for one in compare(old, old).changes} == {("noise", 1.0)}
    runs = tuple(
        replace(one, copy_s=one.copy_s * (0.2 if one.arm == "mirror" else 5), peak_rss_bytes=2 * one.peak_rss_bytes)
        for one in TWO.runs
    )
    found = compare(old, Summary(replace(TWO, runs=runs, versions={"mirror": "another"})))
    verdicts = {(one.arm.name, one.what): one.verdict for one in found.changes}
    assert verdicts["mirror", SPEED.title] == "better"
    assert verdicts["mm2", SPEED.title] == "worse"
    assert verdicts["mirror", CPU.title] == "noise"
    assert [(one.arm.name, one.what) for one in found.worse] == [("mirror", MEMORY.title)]
    assert any(note.startswith("version of mirror: ") for note in found.notes)


# --- the table and the page -------------------------------------------------------------------------------------------


def test_no_name_becomes_another_column_of_the_table() -> None:
    hostile = replace(TWO, arms=(replace(TWO.arms[0], title="a | b\n<i>*c*"),))
    assert r"a \| b \<i\>\*c\*" in table(Summary(hostile))


HOSTILE = "<script>alert(1)</script> $x^2$ & \x1b[31m \" '"


@pytest.fixture(scope="module")
def drawn() -> str:
    """The page of a comparison whose names are hostile: the only one for which all plots are drawn."""
    plain = part(["1MB-zstd"], ["mirror", "mm2"], rounds=1, more=True)
    return page(
        replace(
            plain,
            arms=tuple(replace(arm, title=HOSTILE, what=HOSTILE, settings=f"{HOSTILE}\n</pre>") for arm in plain.arms),
            workloads=tuple(replace(load, title=HOSTILE) for load in plain.workloads),
            versions={HOSTILE: HOSTILE},
            command=HOSTILE,
            environment=replace(plain.environment, cpu=HOSTILE),
        ),
        "bench.json",
    )


def test_the_page_needs_nothing_from_anywhere_and_names_stay_text(drawn: str) -> None:
    seen = Seen(drawn)
    assert not {"script", "img", "image", "link", "a", "iframe"} & {tag for tag, _ in seen.tags}
    assert "http" not in drawn.replace("http-equiv", "")
    assert "@import" not in drawn
    assert all(found.startswith("#") for found in re.findall(r"url\(([^)]*)\)", drawn))
    links = [item.get(name) for _, item in seen.tags for name in ("href", "src") if name in item]
    assert all((link or "").startswith("#") for link in links)
    assert "\x1b" not in drawn
    assert drawn.count("&lt;script&gt;alert(1)&lt;/script&gt; $x^2$") > 5
    assert "bench.json" in drawn


@pytest.mark.proves("mirror bench page", "mirror bench compare", "mirror bench table")
def test_commands_make_a_page_a_table_and_a_comparison(tmp_path: Path) -> None:
    old, slower, report = tmp_path / "old.json", tmp_path / "slower.json", tmp_path / "new.html"
    old.write_text(TWO.to_json(), encoding="utf-8")
    longer = tuple(replace(one, copy_s=9 * one.copy_s) for one in TWO.runs)
    slower.write_text(replace(TWO, runs=longer).to_json(), encoding="utf-8")
    invoke = CliRunner().invoke
    assert invoke(app, ["bench", "page", str(old), "--report", str(report)]).exit_code == 0
    assert report.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert ComparisonResult.from_json(report.with_suffix(".json").read_bytes()) == TWO
    assert f"| {TWO.workloads[0].title} | mirror |" in invoke(app, ["bench", "table", str(old)]).output
    assert "0 better and 0 worse" in invoke(app, ["bench", "compare", str(old), str(old)]).output
    worse = invoke(app, ["bench", "compare", str(old), str(slower), "--json"])
    assert worse.exit_code == ExitCode.DIFFERENT
    assert {one["verdict"] for one in json.loads(worse.output)["changes"] if one["unit"] == "MB/s"} == {"worse"}
    over = invoke(app, ["bench", "page", str(old), "--report", str(old)])
    assert "give the page another name" in str(over.exception)
