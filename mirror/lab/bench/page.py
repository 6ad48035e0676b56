"""A comparison as one page of HTML that needs nothing from anywhere: `page.html` with its places filled in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Final

from mirror.lab.bench.plots import AXES, plots
from mirror.lab.bench.result import ComparisonResult, Workload
from mirror.lab.bench.summary import (
    CPU,
    MB,
    MEMORY,
    METRICS,
    MIRROR,
    RIVALS,
    SPEED,
    TRICKLE,
    Spread,
    Summary,
    brief,
    cheaper,
    figure,
    goals,
    pace_title,
    short_copies,
)
from mirror.rendering import count, duration, number, plain, size

_TEMPLATE: Final = Path(__file__).with_name("page.html")
_MET: Final = {True: "met", False: "missed", None: "not measured"}
#: Behind "3 times", where the mirror is better and where it is worse.
_WORDS: Final = (
    (CPU, "less CPU", "more CPU"),
    (SPEED, "the speed", "the speed"),
    (MEMORY, "less memory", "more memory"),
)


def page(result: ComparisonResult, raw: str = "") -> str:
    """Return the whole page; `raw` is the name of the file with the raw figures.

    Raises ConfigError where the library for plots is missing.
    """
    summary, found = Summary(result), goals(Summary(result))
    # The first goal is equality alone, and the last one needs no rival: without others nothing was compared.
    good = all(goal.met is not False for goal in found) and any(goal.met for goal in found[1:-1])
    counts = ", ".join(f"{sum(goal.met is way for goal in found)} {word}" for way, word in _MET.items())
    drawn = (f"<figure><figcaption>{_text(title)}</figcaption>{svg}</figure>" for title, svg in plots(summary))
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        verdict="verdict" if good else "verdict warn",
        headline=_text(headline(summary)),
        warnings="".join(f'<p class="{style}">{_text(text)}</p>' for style, text in _warnings(summary)),
        goals_title=f"Goals: {counts}",
        goals=_table((), ((goal.aim, _MET[goal.met], goal.measured) for goal in found), "text"),
        cheaper=_list(cheaper(summary)) or "<p>In nothing that was measured.</p>",
        plots="\n".join(drawn),
        figures="\n".join(_figures(summary)),
        missing=_list(_missing(summary)),
        machine=_table((), _machine(summary), "text"),
        command=_text(result.command),
        raw=f"<p>All of this was made from {_text(raw)}, beside this page: one object for each run.</p>" if raw else "",
        arms="\n".join(
            f"<details><summary>{_text(f'{arm.title} ({arm.name}): {arm.what}')}</summary>"
            f"{''.join(f'<pre>{_text(line)}</pre>' for line in arm.settings.splitlines())}</details>"
            for arm in result.arms
        ),
    )


def headline(summary: Summary) -> str:
    """Say what a reader who stops there should know."""
    load, parts = summary.headline, []
    if load is None:
        return "No copy of a topic was measured."
    for metric, better, worse in _WORDS:
        times = summary.against(metric, load.name, MIRROR)
        if times is not None:
            ratio = times.median if metric is SPEED else max(times.median, 1 / times.median)
            unsure = " (no difference beyond the runs' own)" if times.least <= 1 <= times.most else ""
            parts.append(f"{brief(ratio)} times {better if times.median > 1 else worse}{unsure}")
    if not parts:
        return f"{load.title}: mirror was not measured, or nothing to compare it with."
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if parts[1:] else parts[0]
    return f"Beside MirrorMaker 2, mirror copies {load.title} with {listed}."


def _warnings(summary: Summary) -> Iterator[tuple[str, str]]:
    """Show first what makes figures worthless: it must not stand below them."""
    for run in summary.unequal():
        yield "different", f"Not equal to the source: {run.arm}, {run.workload}, round {run.round}. {run.checked}"
    for failure in summary.result.failures:
        yield "note", f"Not measured: {failure}"
    if summary.rounds == 1:
        yield "note", "One round alone: no range shows how far these figures move by themselves."
    if short := short_copies(summary):
        yield "note", short
    machine = summary.result.environment
    if machine.load > machine.cores / 4:
        cores = count(machine.cores, "core")
        yield "note", f"The machine was busy when this began: a load of {figure(machine.load)} on {cores}."


def _figures(summary: Summary) -> Iterator[str]:
    for load in summary.result.workloads:
        arms = list(summary.arms(load.name))
        if not arms:
            continue
        known = [metric for metric in METRICS if any(summary.values(metric, load.name, arm.name) for arm in arms)]
        rows = []
        for arm in arms:
            runs = summary.runs(load.name, arm.name).values()
            times = [summary.against(metric, load.name, arm.name) for metric in (CPU, SPEED)]
            spreads = [summary.spread(metric, load.name, arm.name) for metric in known]
            rows.append((arm.title, f"{sum(run.equal for run in runs)} of {len(runs)}", *times, *spreads))
        yield f'<h3>{_text(load.title)}</h3><p class="small">{_text(contents(load))}</p>'
        heads = (f"{metric.title}, {metric.unit}" for metric in known)
        yield _table(("", "equal", "CPU ×", "speed ×", *heads), rows)
    for pace in summary.paces:
        late = [
            (arm.title, *(Spread.of(summary.late(metric, pace, arm.name).values()) for metric in TRICKLE))
            for arm in summary.live_arms(pace)
        ]
        yield f"<h3>{_text(pace_title(pace))}, one record a batch</h3>"
        yield _table(("", *(f"{metric.title}, {metric.unit}" for metric in TRICKLE)), late)
    for axis, title in AXES.items():
        points = [point for point in summary.result.scaling if point.axis == axis]
        if points:
            yield f"<h3>By {title}</h3>"
            figures = (
                (f"{point.value:g}", figure(point.bytes_per_s / MB), figure(point.cpu_s_per_gb)) for point in points
            )
            yield _table((title, "MB/s", "CPU-s per GB"), figures)


def contents(load: Workload) -> str:
    """Say in one line what lies in a workload's topics."""
    parts = [
        count(load.records, "record"),
        f"{number(load.record_bytes)} B each",
        f"{number(load.batches)} batches of at most {size(load.batch_bytes)} before compression",
        f"{size(load.uncompressed_bytes)} of records, {size(load.stored_bytes)} stored",
        f"codec {load.codec}",
        f"{count(load.topics, 'topic')} with {count(load.partitions, 'partition')}",
        f"{100 * load.keyed:.0f} % with keys",
    ]
    if load.transactional:
        parts.append(f"{100 * load.transactional:.0f} % in transactions")
    if load.compacted:
        parts.append("compacted")
    if load.far:
        parts.append(f"the {load.far} {load.round_trip_ms:g} ms away")
    return f"{', '.join(parts)}; seed {load.seed}"


def _missing(summary: Summary) -> Iterator[str]:
    """What a reader may look for in vain."""
    names = {arm.name for arm in summary.result.arms}
    for name in RIVALS:
        if name not in names:
            yield f"Not measured: {name} (MirrorMaker 2)."
    if not summary.paces:
        yield "Not measured: latency, and CPU at a trickle."
    for metric in METRICS:
        for load in summary.result.workloads:
            lacking = [arm.title for arm in summary.arms(load.name) if not summary.values(metric, load.name, arm.name)]
            if lacking:
                yield f"Not known, {load.title}: {metric.title} of {', '.join(lacking)}."


def _machine(summary: Summary) -> Iterator[tuple[str, str]]:
    result, machine = summary.result, summary.result.environment
    yield "made", f"{result.made}, in {duration(int(1000 * result.seconds))}, {count(summary.rounds, 'round')}"
    yield "CPU", f"{machine.cpu}, {count(machine.cores, 'core')}"
    yield "memory", size(machine.memory_bytes)
    yield "system", f"{machine.system}, kernel {machine.kernel}"
    yield "Python, Java", f"{machine.python}, {machine.java}"
    yield "load at the beginning", figure(machine.load)
    yield from sorted(result.versions.items())


def _text(text: str) -> str:
    """No name of somebody else's becomes markup."""
    return escape(plain(text))


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str | Spread | None]], style: str = "") -> str:
    heads = f"<tr>{''.join(f'<th>{_text(text)}</th>' for text in head)}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table class="{style}">{heads}{body}</table></div>'


def _cell(cell: str | Spread | None) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return _text(cell)
    if cell.many == 1:
        return figure(cell.median)
    return f'{figure(cell.median)}<span class="small">{figure(cell.least)} to {figure(cell.most)}</span>'
