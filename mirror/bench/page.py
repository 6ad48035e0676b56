"""A comparison as one page of HTML: who wins, by how much, and where the limit is; then everything behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from mirror.bench.drawing import colour, themed
from mirror.bench.goals import Goal, goals
from mirror.bench.pagehow import put_how
from mirror.bench.pagestyle import STYLE
from mirror.bench.pagetables import put_figures
from mirror.bench.plots import AXES, bars, latency, scaling, shares
from mirror.bench.result import Result
from mirror.bench.summary import CPU, MEMORY, MIRROR, REPLAY, SPEED, Metric, Spread, Summary, brief, figure
from mirror.commands.htmlpage import document, put_text, written
from mirror.commands.tables import count

#: Behind "3 times" where it is better and where it is worse, and where nothing can be said.
_WORDS: Final = {
    CPU: ("less CPU per GB", "more CPU per GB", "as much CPU per GB"),
    SPEED: ("the speed", "the speed", "the same speed"),
    MEMORY: ("less memory", "more memory", "as much memory"),
}
_MET: Final = {True: ("met", "equal"), False: ("missed", "different"), None: ("not measured", "note")}


def page(result: Result, raw: str = "") -> str:
    """The whole page; `raw` is the name of the file with the raw figures.

    Raises ConfigError where the library for plots is missing.
    """
    summary = Summary(result)
    root, body = document("mirror bench", "mirror beside MirrorMaker 2", STYLE)
    found = goals(summary)
    # The first one is equality alone, and the last one needs no rival: without others nothing was compared.
    good = all(one.met is not False for one in found) and any(one.met for one in found[1:-1])
    put_text(body, "p", headline(summary), "verdict" if good else "verdict warn")
    _warnings(body, summary)
    _tiles(body, summary)
    _goals(body, found)
    _plots(body, summary)
    put_figures(body, summary)
    put_how(body, summary, raw)
    return written(root)


def headline(summary: Summary) -> str:
    """What a reader who stops there should know."""
    load = summary.headline
    if load is None:
        return "Nothing was measured."
    parts = []
    for metric, (_, _, same) in _WORDS.items():
        times = summary.against(metric, load.name, MIRROR)
        if times is not None and times.least <= 1 <= times.most:
            parts.append(f"{same} (no difference beyond the runs' own)")
        elif times is not None:
            parts.append(" times ".join(_told(metric, times.median)))
    told = ""
    if parts:
        listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if parts[1:] else parts[0]
        told = f"Beside MirrorMaker 2, mirror copies {load.title} with {listed}."
    limit = summary.times(SPEED, load.name, MIRROR, REPLAY)
    if limit is not None:
        told += (
            f" It reaches {brief(limit.median)} of the speed at which the target takes the same batches from memory."
        )
    return told.strip() or f"{load.title}: mirror was not measured, or nothing to compare it with."


def _told(metric: Metric, times: float) -> tuple[str, str]:
    """A ratio and what it is of; for CPU and memory the greater way round, with its word."""
    better, worse, _ = _WORDS[metric]
    if metric == SPEED:
        return brief(times), better
    return brief(max(times, 1 / times)), better if times > 1 else worse


def _warnings(body: Element, summary: Summary) -> None:
    """What makes figures worthless must not stand below them."""
    wrong = list(summary.unequal())
    if wrong:
        shown = "; ".join(f"{run.arm}, {run.workload}, round {run.round}" for run in wrong[:5])
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        told = f"Not equal to the source afterwards: {count(len(wrong), 'copy', 'copies')} ({shown}{more})."
        put_text(body, "p", told, "different")
    for failure in summary.result.failures:
        put_text(body, "p", f"Not measured: {failure}", "note")
    if summary.rounds == 1:
        put_text(body, "p", "One round alone: no range tells how far these figures move by themselves.", "note")
    machine = summary.result.environment
    if machine.load > machine.cores / 4:
        told = (
            f"The machine was busy when this began: a load of {figure(machine.load)} on {count(machine.cores, 'core')}."
        )
        put_text(body, "p", told, "note")


def _tiles(body: Element, summary: Summary) -> None:
    """The figures of the headline, each with what it is made of."""
    load = summary.headline
    if load is None:
        return
    tiles = SubElement(body, "div", {"class": "tiles"})
    for metric in _WORDS:
        rival, times = summary.rival(metric, load.name), summary.against(metric, load.name, MIRROR)
        if rival is not None and times is not None:
            big, words = _told(metric, times.median)
            joint = "of" if metric == SPEED else "than"
            _tile(tiles, summary, metric, rival.name, (f"{big}×", f"{words} {joint} {rival.title}"), times)
    limit = summary.times(SPEED, load.name, MIRROR, REPLAY)
    if limit is not None:
        told = (brief(limit.median), "of the limit: what a bare writer gets into the target from memory")
        _tile(tiles, summary, SPEED, REPLAY, told, limit)


def _tile(tiles: Element, summary: Summary, metric: Metric, other: str, told: tuple[str, str], times: Spread) -> None:
    """A big figure, its range, and two bars that begin at 0, so that their lengths are as the figures."""
    assert summary.headline is not None
    tile = SubElement(tiles, "div", {"class": "tile"})
    for text, style in zip(told, ("big", ""), strict=True):
        put_text(tile, "p", text, style)
    spread = f"ratios of {figure(times.least)} to {figure(times.most)}, " if times.many > 1 else ""
    put_text(tile, "p", f"{spread}{count(times.many, 'round')}", "small")
    arms = {arm.name: arm for arm in summary.result.arms}
    sides = [(arms[name], summary.spread(metric, summary.headline.name, name)) for name in (MIRROR, other)]
    longest = max(one.median for _, one in sides if one is not None)
    for arm, one in sides:
        assert one is not None, "there is a ratio of the two"
        pair = SubElement(tile, "div", {"class": "pair"})
        put_text(pair, "div", f"{arm.title}: {figure(one.median)} {metric.unit}")
        style = f"width:{100 * one.median / longest:.2f}%;background:{colour(arm, summary.result.arms)}"
        SubElement(pair, "span", {"style": themed(style)})


def _goals(body: Element, found: Sequence[Goal]) -> None:
    met, missed, unknown = (sum(one.met is way for one in found) for way in (True, False, None))
    put_text(body, "h2", f"Goals: {met} met, {missed} missed, {unknown} not measured")
    listed = SubElement(body, "ul", {"class": "goals"})
    for one in found:
        told, style = _MET[one.met]
        put_text(listed, "li", told, style)
        place = put_text(listed, "li", one.aim)
        if one.met is not None:
            put_text(place, "div", one.measured, "small")
        if one.why:
            put_text(place, "div", one.why, "small why")


def _plots(body: Element, summary: Summary) -> None:
    drawn = [
        ("CPU of the copy", bars(summary, CPU, logarithmic=True)),
        ("Speed", bars(summary, SPEED, limit=REPLAY)),
        ("Memory", bars(summary, MEMORY)),
        ("Who has the cores meanwhile", shares(summary)),
        *((f"Latency at {figure(rate)} records/s", latency(summary, rate)) for rate in summary.rates()),
        *((title, scaling(summary, axis)) for axis, (title, _) in AXES.items()),
    ]
    put_text(body, "h2", "In pictures")
    put_text(
        body,
        "p",
        "Bars are medians, whiskers reach from the least to the most of all rounds; × is how many times better than "
        "MirrorMaker 2, in that of its settings which does better there.",
    )
    grid = SubElement(body, "div", {"class": "plots"})
    for title, plot in drawn:
        if plot is not None:
            place = SubElement(grid, "figure")
            put_text(place, "figcaption", title)
            place.append(plot)
