"""What raw figures of a comparison come to: medians, ratios, goals, changes, and the table of docs/benchmarks.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchresults import ARMS, result, run, workload
from hypothesis import given
from hypothesis import strategies as some

from mirror.errors import ConfigError
from mirror.lab.bench.goals import BEGIN, END, compare, goals, table
from mirror.lab.bench.page import headline
from mirror.lab.bench.result import CPU, MEMORY, METRICS, MIRROR, SPEED, Result, Spread, Summary, figure, ranged

ROOT = Path(__file__).parents[2]
FIGURES = some.lists(some.floats(1e-3, 1e6), min_size=1, max_size=9)


def measured(values: dict[str, tuple[float, ...]]) -> Result:
    """A comparison with these CPU-seconds of the copy by arm, a round each."""
    runs = [
        run("1MB-zstd", arm, number, copy_cpu_s=one)
        for arm, found in values.items()
        for number, one in enumerate(found)
    ]
    return replace(result(["1MB-zstd"], list(values), more=False), runs=tuple(runs))


@given(FIGURES)
def test_a_median_lies_within_its_range(values: list[float]) -> None:
    for made in (Spread.of(values), Spread.of_ratios(values)):
        assert made is not None
        assert made.least == min(values) <= made.median <= max(values) == made.most
        assert made.many == len(values)


@given(some.lists(some.tuples(some.floats(1e-3, 1e6), some.floats(1e-3, 1e6)), min_size=1, max_size=6))
def test_ratios_turned_round_are_inverse(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    summary = Summary(measured({"mirror": ours, "mm2": theirs}))
    there, back = (summary.times(CPU, "1MB-zstd", *pair) for pair in ((MIRROR, "mm2"), ("mm2", MIRROR)))
    assert there is not None
    assert back is not None
    assert there.median == pytest.approx(1 / back.median)
    assert (there.least, there.most) == pytest.approx((1 / back.most, 1 / back.least))


@given(some.floats(1e-6, 1e12))
def test_a_figure_keeps_three_digits(value: float) -> None:
    assert float(figure(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


def test_ratios_are_made_round_by_round() -> None:
    # A machine that is ten times slower in the second round makes all arms slower, and no ratio different.
    summary = Summary(measured({"mirror": (1.0, 10.0, 1.1), "mm2": (50.0, 500.0, 55.0)}))
    times = summary.against(CPU, "1MB-zstd", MIRROR)
    assert times is not None
    assert (times.least, times.most) == pytest.approx((50, 50))


def test_each_figure_is_compared_with_the_better_mirrormaker() -> None:
    summary = Summary(result(more=False))
    rivals = {metric.key: summary.rival(metric, "1MB-zstd") for metric in (CPU, SPEED, MEMORY)}
    assert {key: arm and arm.name for key, arm in rivals.items()} == {
        "cpu": "mm2-tuned",
        "speed": "mm2-tuned",
        "memory": "mm2",
    }


def test_a_round_that_one_arm_lacks_and_a_figure_of_nothing_give_no_ratio() -> None:
    summary = Summary(measured({"mirror": (1.0,), "mm2": (50.0, 60.0)}))
    times = summary.against(CPU, "1MB-zstd", MIRROR)
    assert times is not None
    assert times.many == 1
    assert Summary(measured({"mirror": (0.0,), "mm2": (50.0,)})).against(CPU, "1MB-zstd", MIRROR) is None
    still = replace(result(["1MB-zstd"]), runs=(run("1MB-zstd", "mirror", 0, copy_s=0.0),))
    assert Summary(still).spread(SPEED, "1MB-zstd", MIRROR) is None
    assert ranged(None) == "–"


def test_every_metric_is_known_of_a_run_but_what_was_not_measured() -> None:
    summary = Summary(result(["1MB-zstd"], rounds=1))
    unknown = {arm: [one.key for one in METRICS if not summary.values(one, "1MB-zstd", arm)] for arm in ARMS}
    assert {arm: keys for arm, keys in unknown.items() if keys} == {"replay": ["wire_in"]}
    assert summary.values(SPEED, "1MB-zstd", "mirror")[0] == pytest.approx(
        250 / summary.runs("1MB-zstd", "mirror")[0].copy_s
    )


def test_goals_are_met_missed_with_a_reason_or_not_measured() -> None:
    found = {goal.aim: goal for goal in goals(Summary(result()))}
    missed = [goal for goal in found.values() if goal.met is False]
    assert [goal.aim.partition(" ")[0] for goal in missed] == ["rewriting"]
    assert missed[0].measured.startswith("5.")
    assert "codec" in missed[0].why
    assert "40% of them in the system's kernel" in missed[0].why
    assert "that 2 cores had" in missed[0].why
    assert all(goal.met and not goal.why for goal in found.values() if goal not in missed)
    alone = goals(Summary(result(["8KB-lz4"], ["mirror"], more=False)))
    assert [goal.aim for goal in alone if goal.met is not None] == [
        "every copy of the mirror equals its source",
        "the first record on the target within 15 s",
    ]


def test_a_copy_that_is_not_equal_misses_a_goal() -> None:
    made = result(more=False)
    wrong = replace(made, runs=(run("1MB-zstd", "mirror", 0, equal=False, checked="12 are missing"), *made.runs[1:]))
    kept, every = (len(Summary(one).values(CPU, "1MB-zstd", "mirror")) for one in (wrong, made))
    assert kept == every - 1
    first = goals(Summary(wrong))[0]
    assert not first.met
    assert "12 are missing" in first.measured


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ((1.0, 1.1, 1.2), "45 times less CPU"),
        ((100.0, 110.0, 120.0), "2.2 times more CPU"),
        ((40.0, 50.0, 60.0), "as much CPU per GB (no difference"),
    ],
)
def test_the_headline_says_which_way_it_is(ours: tuple[float, ...], expected: str) -> None:
    assert expected in headline(Summary(measured({"mirror": ours, "mm2": (50.0, 50.0, 50.0)})))


def test_the_headline_without_a_rival_or_anything() -> None:
    assert "nothing to compare" in headline(Summary(result(["8KB-lz4"], ["mirror"], more=False)))
    assert headline(Summary(result([], [], more=False))) == "Nothing was measured."


def test_a_comparison_with_itself_is_noise() -> None:
    found = compare(*[Summary(result())] * 2)
    assert {one.verdict for one in found.changes} == {"noise"}
    assert {one.ratio for one in found.changes} == {1.0}
    assert not found.notes


def test_changes_beyond_noise_are_distinguished() -> None:
    old = result(["1MB-zstd"], ["mirror", "mm2"], more=False)
    runs = tuple(
        replace(one, copy_s=one.copy_s * (0.5 if one.arm == "mirror" else 3), peak_rss_bytes=2 * one.peak_rss_bytes)
        for one in old.runs
    )
    found = compare(Summary(old), Summary(replace(old, runs=runs, versions={"mirror": "0.2.0"})))
    verdicts = {(one.arm.name, one.what): one.verdict for one in found.changes}
    assert verdicts["mirror", SPEED.title] == "better"
    assert verdicts["mm2", SPEED.title] == "worse"
    assert verdicts["mirror", CPU.title] == "noise"
    assert [(one.arm.name, one.what) for one in found.worse] == [("mirror", MEMORY.title)]
    assert all(one.least <= one.ratio <= one.most for one in found.changes)
    assert "version of mirror: 0.1.0, now 0.2.0" in found.notes


def test_one_round_says_nothing_about_noise() -> None:
    old = Summary(result(rounds=1, more=False))
    assert {one.verdict for one in compare(old, Summary(result(more=False))).changes} == {"one round"}


def test_other_workloads_are_refused_by_name() -> None:
    old = result(["1MB-zstd"], more=False)
    other = replace(old, workloads=(replace(workload("1MB-zstd"), record_bytes=500, stored_bytes=1),))
    with pytest.raises(ConfigError, match=r"1MB-zstd had record_bytes 400, and now 500$"):
        compare(Summary(old), Summary(other))
    with pytest.raises(ConfigError, match="old one has 1MB-zstd, the new one 8KB-lz4"):
        compare(Summary(old), Summary(result(["8KB-lz4"], more=False)))


def test_what_is_in_one_file_alone_is_reported() -> None:
    found = compare(Summary(result(more=False)), Summary(result(["1MB-zstd"], ["mirror"], more=False)))
    assert any("old file alone: workload 1MB-none, 8KB-lz4, tx-zstd" in note for note in found.notes)
    assert {one.arm.name for one in found.changes} == {"mirror"}


def test_the_table_has_a_row_for_each_arm_of_each_workload() -> None:
    made = result(["1MB-zstd", "8KB-lz4"])
    lines = table(Summary(made)).splitlines()
    assert len(lines) == 2 + 7 + 6 + 2
    assert lines[2].startswith("| 1 MB batches, zstd | mirror | 2")
    assert "(**53×**)" in lines[2]
    assert lines[3].startswith("|  | mirror, rewriting |")
    assert "Medians of 3 rounds, 2026-01-31, Made-up CPU at 3 GHz, 2 cores" in lines[-1]


def test_no_name_becomes_another_column() -> None:
    made = result(["1MB-zstd"], ["mirror"], more=False)
    hostile = replace(made, arms=(replace(made.arms[0], title="a | b\n<i>*c*"),))
    assert r"a \| b \<i\>\*c\*" in table(Summary(hostile))


def test_the_table_of_the_benchmarks_page_is_that_of_the_committed_figures() -> None:
    raw, text = ROOT / "docs/bench/latest.json", (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert (BEGIN in text, END in text) == (raw.exists(),) * 2, "both or none: see `mirror bench table`"
    if raw.exists():
        shown = text.partition(BEGIN)[2].partition(END)[0]
        assert shown.strip() == table(Summary(Result.from_json(raw.read_bytes(), str(raw)))).strip()
