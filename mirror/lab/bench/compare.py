"""Two comparisons of the same workloads, and the figures of one as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

from mirror.errors import ConfigError
from mirror.lab.bench.result import MeasuredArm, Workload
from mirror.lab.bench.summary import (
    ADDED_P50,
    ADDED_P99,
    CORES,
    CPU,
    MEMORY,
    RECORDS,
    SOURCE,
    SPEED,
    START,
    TARGET,
    TRICKLE,
    Copy,
    Metric,
    Spread,
    Summary,
    brief,
    cheaper,
    figure,
    pace_title,
    short_copies,
)
from mirror.rendering import count, size

#: What a workload's topic came out as, and its title, may differ; what was asked for may not.
_FREE: Final = {"title", "batches", "stored_bytes"}

Verdict = Literal["better", "worse", "noise", "one round"]


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both files."""

    where: str  # workload or trickle
    arm: MeasuredArm
    what: str  # the figure
    unit: str
    old: Spread
    new: Spread
    ratio: float  # new to old of the medians
    least: float  # the same as far as the ranges allow
    most: float
    verdict: Verdict  # noise where the ranges have something in common, `one round` where a side has no range


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]  # what a reader should know of both files before believing any change

    @property
    def worse(self) -> tuple[Change, ...]:
        """Return what of the mirror's own became worse beyond noise."""
        return tuple(change for change in self.changes if change.arm.kind == "mirror" and change.verdict == "worse")


def compare(old: Summary, new: Summary) -> Changes:
    """Compare what both have. Raises ConfigError where workloads of one name are not the same, or none is in both."""
    return Changes(tuple(_changes(old, new, _common(old, new))), tuple(_notes(old, new)))


def _changes(old: Summary, new: Summary, loads: Sequence[Workload]) -> Iterator[Change]:
    for load in loads:
        for arm in new.arms(load.name):
            for metric in (SPEED, CPU, RECORDS, MEMORY, START):
                spreads = (side.spread(metric, load.name, arm.name) for side in (old, new))
                yield from _change(load.title, arm, metric.title, metric.unit, metric.less_is_better, *spreads)
    for pace in new.paces:
        for arm in new.live_arms(pace):
            for measure in (CORES, ADDED_P50, ADDED_P99):
                spreads = (Spread.of(side.late(measure, pace, arm.name).values()) for side in (old, new))
                yield from _change(pace_title(pace), arm, measure.title, measure.unit, True, *spreads)


def _change(
    where: str, arm: MeasuredArm, what: str, unit: str, less_is_better: bool, old: Spread | None, new: Spread | None
) -> Iterator[Change]:
    """Yield nothing where a side lacks the figure, or has one of 0 or below, of which there is no ratio."""
    if old is None or new is None or min(old.least, new.least) <= 0:
        return
    verdict: Verdict = "noise"
    if min(old.many, new.many) == 1:
        verdict = "one round"
    elif old.apart(new):
        verdict = "better" if (new.median < old.median) == less_is_better else "worse"
    ratio, least, most = new.median / old.median, new.least / old.most, new.most / old.least
    yield Change(where, arm, what, unit, old, new, ratio, least, most, verdict)


def _common(old: Summary, new: Summary) -> list[Workload]:
    before = {load.name: load for load in old.result.workloads}
    common = [load for load in new.result.workloads if load.name in before]
    if not common:
        names = (", ".join(load.name for load in side.result.workloads) or "none" for side in (old, new))
        raise ConfigError("no workload is in both files: the old one has {}, the new one {}".format(*names))
    wrong = [
        f"{load.name} had {field.name} {was}, and now {now}"
        for load in common
        for field in fields(Workload)
        if field.name not in _FREE
        and (was := getattr(before[load.name], field.name)) != (now := getattr(load, field.name))
    ]
    if wrong:
        raise ConfigError(f"not the same workloads, so their figures say nothing about each other: {'; '.join(wrong)}")
    return common


def _notes(old: Summary, new: Summary) -> Iterator[str]:
    """Name what is in one file alone, and what else but the code may have made a difference."""
    for side, summary, other in (("old", old, new), ("new", new, old)):
        for what in ("workloads", "arms"):
            names = [{item.name for item in getattr(file.result, what)} for file in (summary, other)]
            if alone := sorted(names[0] - names[1]):
                yield f"in the {side} file alone: {what[:-1]} {', '.join(alone)}"
    before, after = old.result.environment, new.result.environment
    for name in ("cpu", "cores", "memory_bytes", "kernel", "java"):
        if getattr(before, name) != getattr(after, name):
            yield f"another machine or system: {name} was {getattr(before, name)}, and now is {getattr(after, name)}"
    for name in sorted(old.result.versions.keys() | new.result.versions.keys()):
        was, now = (side.result.versions.get(name, "none") for side in (old, new))
        if was != now:
            yield f"version of {name}: {was}, now {now}"
    for run in new.unequal():
        yield f"not equal to its source in the new file: {run.arm}, {run.workload}, round {run.round}"


# --- The figures of a comparison as Markdown --------------------------------------------------------------------------

#: Around them in a document; the file's name says which figures they are.
BEGIN: Final = "<!-- mirror bench table docs/bench/latest.json -->"
END: Final = "<!-- end of the table -->"
_COLUMNS: Final[tuple[tuple[str, Metric[Copy]], ...]] = (
    ("MB/s", SPEED),
    ("CPU-s per GB", CPU),
    ("source's brokers", SOURCE),
    ("target's brokers", TARGET),
    ("memory, MB", MEMORY),
)


def table(summary: Summary) -> str:
    """Return a row for each workload and arm with medians, and how many times better than MirrorMaker 2 the mirror is;
    the same for each trickle; how and where it was measured; and where others are cheaper.
    """
    rows = [("copying", "by", *(head for head, _ in _COLUMNS))]
    for load in summary.result.workloads:
        for place, arm in enumerate(summary.arms(load.name)):
            cells = (_cell(summary, metric, load, arm) for _, metric in _COLUMNS)
            rows.append(("" if place else _plain(load.title), _plain(arm.title), *cells))
    trickles = [("live", "by", *(f"{metric.title}, {metric.unit}" for metric in TRICKLE))]
    for pace in summary.paces:
        for place, arm in enumerate(summary.live_arms(pace)):
            spreads = (Spread.of(summary.late(metric, pace, arm.name).values()) for metric in TRICKLE)
            cells = (figure(spread.median) if spread else "–" for spread in spreads)
            trickles.append(("" if place else pace_title(pace), _plain(arm.title), *cells))
    lines = [*_markdown(rows), "", _below(summary), ""]
    if len(trickles) > 1:
        lines += [*_markdown(trickles), ""]
    lines += [
        "**Where others are cheaper,** by these medians:",
        "",
        *(f"- {_plain(text)}" for text in cheaper(summary)),
    ]
    return "\n".join([*lines, ""])


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"| --- | --- | {' | '.join(['--:'] * (len(rows[0]) - 2))} |", *lines[1:]]


def _cell(summary: Summary, metric: Metric[Copy], load: Workload, arm: MeasuredArm) -> str:
    spread = summary.spread(metric, load.name, arm.name)
    if spread is None:
        return "–"
    wrong = "" if all(run.equal for run in summary.runs(load.name, arm.name).values()) else " (not equal)"
    times = summary.against(metric, load.name, arm.name) if arm.kind == "mirror" else None
    return f"{figure(spread.median)}{f' (**{brief(times.median)}×**)' if times else ''}{wrong}"


def _below(summary: Summary) -> str:
    machine, made = summary.result.environment, summary.result.made.partition("T")[0]
    short = short_copies(summary)
    return (
        f"Medians of {count(summary.rounds, 'round')}, {made}, {_plain(machine.cpu)}, {count(machine.cores, 'core')}, "
        f"{size(machine.memory_bytes)}, brokers on the same machine. Of the brokers, CPU-s per GB meanwhile. × "
        "is how many times better than MirrorMaker 2, in that of its settings which does better there."
        + (f" {_plain(short)}" if short else "")
    )


def _plain(text: str) -> str:
    """No name of somebody else's becomes a column or markup."""
    return "".join(f"\\{char}" if char in r"\`*_{}[]<>|#" else char for char in " ".join(text.split()))
