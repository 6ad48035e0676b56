"""The tables of a comparison's page: every figure with its range, for those who doubt a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from mirror.bench.plots import AXES
from mirror.bench.result import Latency, Workload
from mirror.bench.summary import CPU, MB, METRICS, SPEED, Metric, Spread, Summary, figure
from mirror.commands.htmlpage import put_head, put_text
from mirror.commands.tables import count, number, size

#: The measures that a comparison is about.
_AIMS: Final = (SPEED, CPU)
_LATENCY: Final[tuple[tuple[str, Callable[[Latency], float]], ...]] = (
    ("p50", lambda one: one.p50_ms),
    ("p90", lambda one: one.p90_ms),
    ("p99", lambda one: one.p99_ms),
    ("max", lambda one: one.max_ms),
    ("added p50", lambda one: one.added_p50_ms),
    ("added p99", lambda one: one.added_p99_ms),
)


def put_figures(body: Element, summary: Summary) -> None:
    """All that was measured: medians, with the least and the most of all rounds below."""
    put_text(body, "h2", "All figures")
    put_text(
        body,
        "p",
        "Medians, and below them the least and the most. GB and MB are 10^9 and 10^6 bytes of batches as they are "
        "stored. × is how many times better than MirrorMaker 2, round by round, in that of its settings which does "
        "better in the column.",
    )
    for load in summary.result.workloads:
        _workload(body, summary, load)
    for rate in summary.rates():
        _latency(body, summary, rate)
    _scaling(body, summary)


def _workload(body: Element, summary: Summary, load: Workload) -> None:
    arms = list(summary.arms(load.name))
    if not arms:
        return
    put_text(body, "h3", load.title)
    put_text(body, "p", contents(load), "small")
    known = [metric for metric in METRICS if any(summary.values(metric, load.name, arm.name) for arm in arms)]
    # What was aimed at first: whoever looks on a phone, or without scrolling, sees no more than that.
    first, others = [metric for metric in known if metric in _AIMS], [metric for metric in known if metric not in _AIMS]
    heads = [*(_head(metric) for metric in first), "CPU ×", "speed ×", "equal", *map(_head, others)]
    table = _table(body, ("", *heads))
    for arm in arms:
        row = SubElement(table, "tr")
        put_text(row, "td", arm.title)
        for metric in first:
            _put_spread(row, summary.spread(metric, load.name, arm.name))
        for metric in (CPU, SPEED):
            _put_spread(row, summary.against(metric, load.name, arm.name))
        runs = summary.runs(load.name, arm.name).values()
        equal = sum(run.equal for run in runs)
        put_text(row, "td", f"{equal} of {len(runs)}", f"n {'equal' if equal == len(runs) else 'different'}")
        for metric in others:
            _put_spread(row, summary.spread(metric, load.name, arm.name))


def _head(metric: Metric) -> str:
    return f"{metric.title}, {metric.unit}".replace("CPU-s", "CPU\N{NON-BREAKING HYPHEN}s")


def contents(load: Workload) -> str:
    """What lies in a workload's topic, in one line."""
    parts = [
        count(load.records, "record"),
        f"{number(load.record_bytes)} B each",
        f"{number(load.batches)} batches of at most {size(load.batch_bytes)} before compression",
        f"{size(load.uncompressed_bytes)} of records, {size(load.stored_bytes)} stored",
        f"codec {load.codec}",
        count(load.partitions, "partition"),
        f"{100 * load.keyed:.0f} % with keys",
    ]
    if load.transactional:
        parts.append(f"{100 * load.transactional:.0f} % in transactions")
    if load.compacted:
        parts.append("compacted")
    return f"{', '.join(parts)}; seed {load.seed}"


def _latency(body: Element, summary: Summary, rate: float) -> None:
    put_text(body, "h3", f"Latency at {figure(rate)} records/s, in milliseconds")
    put_text(
        body,
        "p",
        "From sending a record to reading it on the target; added is less what a consumer of the source sees of it.",
        "small",
    )
    table = _table(body, ("", *(name for name, _ in _LATENCY)))
    for arm in summary.waiting(rate):
        row = SubElement(table, "tr")
        put_text(row, "td", arm.title)
        for _, value in _LATENCY:
            _put_spread(row, summary.latency(arm.name, rate, value))


def _scaling(body: Element, summary: Summary) -> None:
    for axis, (title, unit) in AXES.items():
        values = sorted({point.value for point in summary.result.scaling if point.axis == axis})
        if not values:
            continue
        put_text(body, "h3", title)
        table = _table(body, (unit, *(f"{value:g}" for value in values)))
        for arm in summary.result.arms:
            for name, value in (
                ("MB/s", lambda point: point.bytes_per_s / MB),
                ("CPU-s per GB", lambda point: point.cpu_s_per_gb),
            ):
                curve = summary.curve(axis, arm.name, value)
                if curve:
                    row = SubElement(table, "tr")
                    put_text(row, "td", f"{arm.title}, {name}")
                    for at in values:
                        _put_spread(row, curve.get(at))


def _table(body: Element, heads: Sequence[str]) -> Element:
    table = put_head(body, heads, frozenset(heads[1:]))
    table.set("class", "wide")
    return table


def _put_spread(row: Element, spread: Spread | None) -> None:
    if spread is None:
        put_text(row, "td", "–", "n")
        return
    cell = put_text(row, "td", figure(spread.median), "n")
    if spread.many > 1:
        put_text(cell, "span", f"{figure(spread.least)} to {figure(spread.most)}", "small")
