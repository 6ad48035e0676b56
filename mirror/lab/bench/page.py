"""A comparison as one page of HTML: who wins, by how much, and everything behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from mirror.lab.bench.goals import Goal, goals
from mirror.lab.bench.plots import AXES, COLOURS, bars, colour, latency, scaling, shares, themed
from mirror.lab.bench.result import (
    CPU,
    MB,
    MEMORY,
    METRICS,
    MIRROR,
    REPLAY,
    RIVALS,
    SPEED,
    Latency,
    Metric,
    Result,
    Spread,
    Summary,
    Workload,
    brief,
    figure,
)
from mirror.rendering import count, document, duration, number, plain, put_head, put_table, put_text, size, written

# --- How the page of a comparison looks -------------------------------------------------------------------------------

_LIGHT: Final = {
    "mirror": ("#0b62c4", "#0e9aa7", "#6d5bd0", "#4d7c0f"),
    "rival": ("#c2410c", "#d99000", "#a21caf", "#be123c", "#92400e"),
    "limit": ("#4b5563", "#9ca3af"),
}
_DARK: Final = {
    "mirror": ("#58a6ff", "#3ddbd9", "#b3a5ff", "#a3e635"),
    "rival": ("#fb8c4e", "#fbc531", "#e879f9", "#fb7185", "#d6a36a"),
    "limit": ("#c0c6cf", "#8b949e"),
}


def _colours(theme: dict[str, tuple[str, ...]]) -> str:
    assert {kind: len(found) for kind, found in theme.items()} == COLOURS, "a plot may ask for each of them"
    return " ".join(f"--{kind}-{n}: {one};" for kind, found in theme.items() for n, one in enumerate(found))


STYLE: Final = f"""
:root {{ --ink: #1f2328; --faint: #8888; {_colours(_LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6edf3; {_colours(_DARK)} }} }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); gap: 1rem; margin: 1.5rem 0; }}
.tile {{ border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem; min-width: 0; }}
.tile p {{ margin: 0; }} .tile .big {{ font-size: 2.4rem; line-height: 1.2; font-weight: 650; }}
/* A shadow at the edge where a table goes on: phones show no scroll bar. */
.scroll {{ background:
  linear-gradient(to left, Canvas 30%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to left, #8886, transparent) right / 1rem 100% no-repeat scroll; }}
.goals > li:nth-child(odd) {{ font-weight: 600; }}
@media (max-width: 30rem) {{ .goals {{ grid-template-columns: 1fr; gap: 0; }}
  .goals > li:nth-child(even) {{ margin-bottom: .8rem; }} }}
.small {{ font-size: .82rem; opacity: .8; }}
.goals {{ display: grid; grid-template-columns: max-content 1fr; gap: .5rem 1.2rem; list-style: none; padding: 0; }}
.why {{ font-style: italic; }}
.pair {{ margin-top: .5rem; font-size: .82rem; }}
.pair span {{ display: block; height: .55rem; min-width: 2px; border-radius: 1px; }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.5rem 2rem; }}
figure {{ margin: 0; min-width: 0; }} figcaption {{ font-weight: 600; }}
svg {{ display: block; width: 100%; height: auto; max-width: 36rem; stroke-linejoin: round; }}
h3 {{ font-size: 1rem; margin: 1.4rem 0 .3rem; }} pre {{ overflow-x: auto; font-size: .82rem; }}
td span.small {{ display: block; }} summary {{ cursor: pointer; padding: .2rem 0; }}
.wide {{ font-size: .9rem; }}
.wide th {{ vertical-align: bottom; white-space: normal; min-width: 4.2rem; font-size: .8rem; line-height: 1.3; }}
.wide th, .wide td {{ padding-left: .45rem; padding-right: .45rem; }}
.wide th:first-child, .wide td:first-child {{ min-width: 6.5rem; position: sticky; left: 0; background: Canvas; }}
"""


# --- The tables of a comparison's page --------------------------------------------------------------------------------

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


# --- How a comparison was measured, on what, what is not fair about it, and what it leaves out ------------------------

_HOW: Final = """\
In a round, the arms copy each workload one after the other on the same machine; the raw figures name each one's turn.
CPU is that of an arm's whole process tree, JVMs included. Brokers are counted for themselves.
The copy is from the first record on the target to the last. What comes before is the start, shown apart, since a long \
copy makes any start small.
Memory is the peak of the process tree. Resident memory counts a page once for each process that has it; with shared \
pages once, it is what the machine has to give.
Ratios are made within a round, since what lies close in time shares the machine's mood, and their median is taken. \
Ranges are the least and the most of all rounds. A copy that is not equal to its source counts for nothing and is \
named above, and so is what could not be measured.
"""
_NOT_FAIR: Final = """\
Brokers, copies and measurement share one machine and its cores. What needs less CPU leaves more of it to the brokers, \
and is faster for that alone.
MirrorMaker 2 is made for clusters of workers; here it has this machine. Each figure is compared with the better of \
its settings on this page, and others may do better still.
Arms do not promise the same: a loop that consumes and produces keeps no offsets and may repeat records, and the \
replay reads no source at all. What was compared after each run stands beside it in the raw figures.
Records are made up. How much a codec has to do for them is not what it has to do for yours.
"""


def put_how(body: Element, summary: Summary, raw: str) -> None:
    """All of it; `raw` is the name of the file with the raw figures."""
    put_text(body, "h2", "How it was measured")
    _list(body, _HOW.splitlines())
    put_text(body, "h2", "What is not fair, and what was not measured")
    _list(body, (*_NOT_FAIR.splitlines(), *_missing(summary)))
    _machine(body, summary)
    if raw:
        put_text(body, "p", f"All of this was made from {raw}, beside this page: one object for each run.")
    _arms(body, summary)


def _list(body: Element, texts: Sequence[str]) -> None:
    made = SubElement(body, "ul")
    for text in texts:
        put_text(made, "li", text)


def _missing(summary: Summary) -> Iterator[str]:
    """What a reader may look for in vain."""
    names = {arm.name: arm.title for arm in summary.result.arms}
    for name, what in (*((one, "MirrorMaker 2") for one in RIVALS), (REPLAY, "a replay from memory: the limit")):
        if name not in names:
            yield f"Not measured: {name} ({what})."
    for goal in goals(summary):
        if goal.met is None:
            yield f"Not measured: {goal.aim}."
    varied = {point.axis for point in summary.result.scaling}
    if same := [what for axis, (_, what) in AXES.items() if axis not in varied]:
        yield f"Not varied: {'; '.join(same)}."
    for metric in METRICS:
        for load in summary.result.workloads:
            lacking = [arm.title for arm in summary.arms(load.name) if not summary.values(metric, load.name, arm.name)]
            if lacking:
                yield f"Not known, {load.title}: {metric.title} of {', '.join(lacking)}."


def _machine(body: Element, summary: Summary) -> None:
    put_text(body, "h2", "Machine, versions, data")
    result, machine = summary.result, summary.result.environment
    put_table(
        body,
        (),
        [
            ("made", f"{result.made}, in {duration(int(1000 * result.seconds))}, {count(summary.rounds, 'round')}"),
            ("CPU", f"{machine.cpu}, {count(machine.cores, 'core')}"),
            ("memory", size(machine.memory_bytes)),
            ("system", f"{machine.system}, kernel {machine.kernel}"),
            ("Python, Java", f"{machine.python}, {machine.java}"),
            ("load at the beginning", figure(machine.load)),
            *((name, version) for name, version in sorted(result.versions.items())),
            *((load.name, f"{load.title}: {contents(load)}") for load in result.workloads),
        ],
    )
    put_text(body, "p", "To have it again:")
    put_text(body, "pre", result.command)


def _arms(body: Element, summary: Summary) -> None:
    put_text(body, "h2", "The arms and their settings")
    for arm in summary.result.arms:
        fold = SubElement(body, "details")
        put_text(fold, "summary", f"{arm.title} ({arm.name}): {arm.what}")
        shown = SubElement(fold, "pre")
        shown.text = "\n".join(plain(line) for line in arm.settings.splitlines())


# --- A comparison as one page of HTML ---------------------------------------------------------------------------------

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
            parts.append(" times ".join(_amount_and_words(metric, times.median)))
    text = ""
    if parts:
        listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if parts[1:] else parts[0]
        text = f"Beside MirrorMaker 2, mirror copies {load.title} with {listed}."
    limit = summary.times(SPEED, load.name, MIRROR, REPLAY)
    if limit is not None:
        text += (
            f" It reaches {brief(limit.median)} of the speed at which the target takes the same batches from memory."
        )
    return text.strip() or f"{load.title}: mirror was not measured, or nothing to compare it with."


def _amount_and_words(metric: Metric, times: float) -> tuple[str, str]:
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
        text = f"Not equal to the source afterwards: {count(len(wrong), 'copy', 'copies')} ({shown}{more})."
        put_text(body, "p", text, "different")
    for failure in summary.result.failures:
        put_text(body, "p", f"Not measured: {failure}", "note")
    if summary.rounds == 1:
        put_text(body, "p", "One round alone: no range shows how far these figures move by themselves.", "note")
    machine = summary.result.environment
    if machine.load > machine.cores / 4:
        text = (
            f"The machine was busy when this began: a load of {figure(machine.load)} on {count(machine.cores, 'core')}."
        )
        put_text(body, "p", text, "note")


def _tiles(body: Element, summary: Summary) -> None:
    """The figures of the headline, each with what it is made of."""
    load = summary.headline
    if load is None:
        return
    tiles = SubElement(body, "div", {"class": "tiles"})
    for metric in _WORDS:
        rival, times = summary.rival(metric, load.name), summary.against(metric, load.name, MIRROR)
        if rival is not None and times is not None:
            big, words = _amount_and_words(metric, times.median)
            joint = "of" if metric == SPEED else "than"
            _tile(tiles, summary, metric, rival.name, (f"{big}×", f"{words} {joint} {rival.title}"), times)
    limit = summary.times(SPEED, load.name, MIRROR, REPLAY)
    if limit is not None:
        texts = (brief(limit.median), "of the limit: what a bare writer gets into the target from memory")
        _tile(tiles, summary, SPEED, REPLAY, texts, limit)


def _tile(tiles: Element, summary: Summary, metric: Metric, other: str, texts: tuple[str, str], times: Spread) -> None:
    """A big figure, its range, and two bars that begin at 0, so that their lengths are as the figures."""
    assert summary.headline is not None
    tile = SubElement(tiles, "div", {"class": "tile"})
    for text, style in zip(texts, ("big", ""), strict=True):
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
        word, style = _MET[one.met]
        put_text(listed, "li", word, style)
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
