"""Plots of a comparison, drawn by matplotlib as elements of a page.

matplotlib writes colours as numbers. Those in `INK`, `FAINT` and `colour` stand for the page's custom properties
(`--ink`, `--faint`, `--mirror-0` ...) and are exchanged for them, so that one drawing does for dark and light.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import StringIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, cast
from xml.etree.ElementTree import Element, fromstring

from mirror.errors import ConfigError
from mirror.lab.bench.result import (
    MB,
    Arm,
    Axis,
    Kind,
    Latency,
    Metric,
    Point,
    Spread,
    Summary,
    Workload,
    brief,
    figure,
    ranged,
)
from mirror.rendering import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# --- A plot of matplotlib as an element of a page ---------------------------------------------------------------------

#: How wide a plot is in its own units, which are a pixel or a little more on the page.
WIDTH: Final = 360.0
INK: Final = "#010101"
FAINT: Final = "#020202"
#: How many colours of each kind the page knows.
COLOURS: Final[dict[Kind, int]] = {"mirror": 4, "rival": 5, "limit": 2}
_KINDS: Final = tuple(COLOURS)
_SVG: Final = "{http://www.w3.org/2000/svg}"
#: The one names its maker and a vocabulary elsewhere; the other would hold for the whole page.
_DROPPED: Final = (f"{_SVG}metadata", f"{_SVG}style")
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_REFERENCE: Final = re.compile(r"url\(#([^)]+)\)")
_SETTINGS: Final = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.prop_cycle": f"cycler('color', ['{INK}'])",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def colour(arm: Arm, arms: tuple[Arm, ...]) -> str:
    """The colour of an arm for `paint`, the same on the whole page: a hue for each kind, in the order of the arms."""
    alike = [one.name for one in arms if one.kind == arm.kind]
    return f"#03{_KINDS.index(arm.kind):02x}{alike.index(arm.name) % COLOURS[arm.kind]:02x}"


def themed(style: str) -> str:
    """A style with the page's own colours and font in place of those that stand for them."""
    style = re.sub(r"#03(..)(..)", lambda m: f"var(--{_KINDS[int(m[1], 16)]}-{int(m[2], 16)})", style)
    style = style.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    return re.sub(r"'DejaVu Sans'(, [^;]*)?", "inherit", style)


def draw(name: str, label: str, height: float, paint: Callable[[Figure], None]) -> Element:
    """An `svg` element with what `paint` puts on a figure; `height` in units of WIDTH.

    `name` is the plot's own on the page, so that no two have an id in common; `label` is for those who do not see it.
    Raises ConfigError where matplotlib is not installed.
    """
    with _library() as new:
        figure = new(height)
        paint(figure)
        text = StringIO()
        with warnings.catch_warnings():
            # Its own font lacks some signs of foreign names; the reader's has them.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return _tidied(fromstring(text.getvalue()), name, label)  # noqa: S314 - it was written two lines above


def need_library() -> None:
    """Raises ConfigError where matplotlib is not installed: better before a measurement than after it."""
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "plots need matplotlib: `pip install matplotlib`, or `pip install '.[bench]'` in the project's folder"
        )


@contextmanager
def _library() -> Iterator[Callable[[float], Figure]]:
    """Makes figures while matplotlib has our settings, and is not touched beyond that."""
    need_library()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(cast("Any", _SETTINGS)):
        yield lambda height: Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")


def _tidied(root: Element, name: str, label: str) -> Element:
    """Plain names instead of namespaces, ids only where something refers to them, the page's colours and font."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in _DROPPED:
                parent.remove(child)
    ids: dict[str, str] = {}

    def numbered(found: str) -> str:
        # Numbers, since matplotlib's own ids are not the same each time.
        return ids.setdefault(found, f"{name}-{len(ids)}")

    for one in root.iter():
        one.tag = one.tag.removeprefix(_SVG)
        if link := one.attrib.pop(_LINK, None):
            one.set("href", f"#{numbered(link.removeprefix('#'))}")
        for key, value in one.attrib.items():
            one.set(key, themed(_REFERENCE.sub(lambda found: f"url(#{numbered(found[1])})", value)))
    for one in root.iter():
        own = one.attrib.pop("id", "")
        if own in ids:
            one.set("id", ids[own])
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", plain(label))
    return root


# --- The plots of a comparison ----------------------------------------------------------------------------------------

#: Heights in the units of a drawing: of a bar with its space, and of what stands above and below the bars of a panel.
_ROW: Final = 15.0
_AROUND: Final = 34.0
_BELOW: Final = 34.0
#: Names of arms beside bars; the tables have them whole.
_NAME: Final = 30
#: Where the title of a panel is broken.
_TITLE: Final = 42
#: What is quicker is drawn here, since a logarithmic scale has no 0.
_LEAST_MS: Final = 0.01
_STYLES: Final = ("-", "--", "-.", ":")
_MARKERS: Final = "osD^vP"
#: Whose a core-second is -> its colour, none for that of the arm, and how strong it is.
_PARTS: Final = {
    "the copy": ("", 1.0),
    "the copy, in the kernel": ("", 0.6),
    "target's brokers": (INK, 0.45),
    "source's brokers": (INK, 0.22),
    "all else, and nobody": (INK, 0.06),
}
#: What may be changed -> the title of its plot, and what stands at its scale.
AXES: Final[dict[Axis, tuple[str, str]]] = {
    "partitions": ("Speed and CPU by partitions", "partitions"),
    "tasks": ("Speed and CPU by tasks", "tasks"),
    "round_trip_ms": ("Speed and CPU by round trip", "round trip, ms"),
    "loss": ("Speed and CPU by loss of packets", "packets lost, share"),
    "replication": ("Speed and CPU by replicas", "replicas of each partition"),
}


def bars(summary: Summary, metric: Metric, *, logarithmic: bool = False, limit: str = "") -> Element | None:
    """A panel for each workload, a bar for each arm, its range as a whisker; None where nothing was measured.

    The arm `limit` is a line across its panel, since it is no way to copy a topic.
    """
    panels = []
    for load in summary.result.workloads:
        known = [(arm, summary.spread(metric, load.name, arm.name)) for arm in summary.arms(load.name)]
        rows = [(arm, one) for arm, one in known if one is not None and (one.least > 0 or not logarithmic)]
        if rows:
            panels.append((load, rows))
    if not panels:
        return None
    heights = [_AROUND + _ROW * sum(arm.name != limit for arm, _ in rows) for _, rows in panels]
    shares = [sum(arm.name != limit for arm, _ in rows) + 0.3 for _, rows in panels]
    most = max(one.most for _, rows in panels for _, one in rows)
    least = min(one.least for _, rows in panels for _, one in rows)

    def paint(figure_: Figure) -> None:
        axes = figure_.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": shares})
        for axis, (load, rows) in zip(axes[:, 0], panels, strict=True):
            _panel(axis, summary, metric, load, rows, limit)
        last = axes[-1, 0]
        if logarithmic:
            # From a power of ten below the least, with room for the figures behind the longest bar.
            last.set(xscale="log", xlim=(_decade_below(least), most * (most / _decade_below(least)) ** 0.55))
        else:
            last.set(xlim=(0, most * 1.5))
        last.xaxis.set_major_formatter(_tick)
        last.xaxis.minorticks_off()
        last.set_xlabel(f"{metric.unit}, logarithmic scale" if logarithmic else metric.unit)

    label = f"{metric.title}, {metric.unit}, median and range. " + ". ".join(
        f"{load.title}: " + ", ".join(f"{arm.title} {ranged(one)}" for arm, one in rows) for load, rows in panels
    )
    return draw(metric.key, label, sum(heights) + _BELOW, paint)


def _decade_below(value: float) -> float:
    return float(f"1e{f'{value * 0.9:e}'.partition('e')[2]}")


def _panel(
    axis: Axes, summary: Summary, metric: Metric, load: Workload, rows: Sequence[tuple[Arm, Spread]], limit: str
) -> None:
    shown = [(arm, one) for arm, one in rows if arm.name != limit]
    places = range(len(shown))
    axis.barh(
        places,
        [one.median for _, one in shown],
        height=0.66,
        color=[colour(arm, summary.result.arms) for arm, _ in shown],
        xerr=[[one.median - one.least for _, one in shown], [one.most - one.median for _, one in shown]],
        error_kw={"ecolor": INK, "elinewidth": 1.1, "capsize": 2.2},
    )
    line = max((one.most for arm, one in rows if arm.name == limit), default=0.0)
    for place, (arm, one) in zip(places, shown, strict=True):
        times = summary.against(metric, load.name, arm.name) if arm.kind == "mirror" else None
        ahead = f" · {brief(times.median)}×" if times else ""
        # Behind the limit's line where they would meet.
        at = line if 0.5 * line < one.most < line else one.most
        axis.annotate(
            figure(one.median) + ahead, (at, place), (5, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    for arm, one in rows:
        if arm.name == limit:
            axis.axvline(one.median, color=colour(arm, summary.result.arms), linestyle="--", linewidth=1.4)
            axis.axvspan(one.least, one.most, color=colour(arm, summary.result.arms), alpha=0.18, linewidth=0)
            axis.annotate(
                f"limit {figure(one.median)}", (one.median, 1), (3, 1), xycoords=("data", "axes fraction"),
                textcoords="offset points", fontsize=8.5, va="bottom", ha="center",
            )  # fmt: skip
    _dress(axis, load, [arm for arm, _ in shown], 14 if any(arm.name == limit for arm, _ in rows) else 4)


def _dress(axis: Axes, load: Workload, arms: Sequence[Arm], pad: float | None = None) -> None:
    """A panel of a workload with a row for each arm: names, title, and no more lines than are needed."""
    axis.set_yticks(range(len(arms)), [_short(arm) for arm in arms])
    axis.invert_yaxis()
    axis.tick_params(length=0)
    axis.grid(axis="x", alpha=0.6)
    axis.spines["bottom"].set_visible(False)
    axis.set_title("\n".join(wrap(plain(load.title), _TITLE)), pad=pad, loc="left")


def shares(summary: Summary) -> Element | None:
    """Who has the machine's cores while a GB is copied, as a bar for each arm: what is longest is what there is to gain
    from. None where nothing was measured.
    """
    panels = []
    for load in summary.result.workloads:
        known = [(arm, _parts(summary, load, arm)) for arm in summary.arms(load.name)]
        if rows := [(arm, parts) for arm, parts in known if parts]:
            panels.append((load, rows))
    if not panels:
        return None

    def paint(figure_: Figure) -> None:
        heights = [len(rows) + 0.3 for _, rows in panels]
        axes = figure_.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        for axis, (load, rows) in zip(axes[:, 0], panels, strict=True):
            for place, (arm, parts) in enumerate(rows):
                begin = 0.0
                for (_, length), (tone, strength) in zip(parts, _PARTS.values(), strict=True):
                    fill = tone or colour(arm, summary.result.arms)
                    axis.barh(place, length, 0.66, begin, color=fill, alpha=strength, linewidth=0)
                    begin += length
            _dress(axis, load, [arm for arm, _ in rows])
            axis.xaxis.set_major_formatter(_tick)
        axes[-1, 0].set_xlabel(f"core-seconds per GB, {summary.result.environment.cores} cores")
        from matplotlib.patches import Patch

        ours = colour(panels[0][1][0][0], summary.result.arms)
        marks = [Patch(color=tone or ours, alpha=one, label=name) for name, (tone, one) in _PARTS.items()]
        figure_.legend(handles=marks, loc="outside upper left", ncols=2)

    label = "Core-seconds per GB. " + ". ".join(
        f"{load.title}: "
        + "; ".join(
            f"{arm.title}: " + ", ".join(f"{name} {figure(length)}" for name, length in parts) for arm, parts in rows
        )
        for load, rows in panels
    )
    return draw("shares", label, sum(_AROUND + _ROW * len(rows) for _, rows in panels) + 2 * _BELOW, paint)


def _parts(summary: Summary, load: Workload, arm: Arm) -> list[tuple[str, float]]:
    """In the order of `_PARTS`; what is left of the cores' time is idle, or the measurement's and others'."""
    found = summary.shares(load.name, arm.name)
    if found is None:
        return []
    used = found.copy - found.kernel, found.kernel, found.target, found.source
    return list(zip(_PARTS, (*used, max(0.0, found.whole - found.used)), strict=True))


def _short(arm: Arm) -> str:
    title = plain(arm.title)
    return title if len(title) <= _NAME else f"{title[: _NAME - 1]}…"


def latency(summary: Summary, rate: float) -> Element | None:
    """Which share of the records took longer, by milliseconds, all rounds together; None where nothing was measured."""
    arms = summary.waiting(rate)
    curves = [
        (arm, _slower([one for one in summary.result.latencies if (one.arm, one.rate) == (arm.name, rate)]))
        for arm in arms
    ]
    curves = [(arm, curve) for arm, curve in curves if curve]
    if not curves:
        return None

    def paint(figure_: Figure) -> None:
        axis = figure_.subplots()
        for place, (arm, curve) in enumerate(curves):
            axis.plot(
                [at for at, _ in curve],
                [100 * share for _, share in curve],
                color=colour(arm, summary.result.arms),
                linestyle=_STYLES[place % len(_STYLES)],
                linewidth=1.8,
                drawstyle="steps-post",
                label=_short(arm),
            )
        axis.set(
            xscale="log",
            yscale="log",
            ylabel="% of records slower than that",
            xlabel="ms from sending to reading on the target",
        )
        _plain_scales(axis)
        figure_.legend(loc="outside upper left", ncols=2)

    label = f"latency at {figure(rate)} records/s. " + ". ".join(
        f"{arm.title}: half within {ranged(summary.latency(arm.name, rate, lambda one: one.p50_ms))} ms, 99 % within "
        f"{ranged(summary.latency(arm.name, rate, lambda one: one.p99_ms))} ms"
        for arm, _ in curves
    )
    return draw(f"latency-{summary.rates().index(rate)}", label, 230, paint)


def _slower(runs: Sequence[Latency]) -> list[tuple[float, float]]:
    """(milliseconds, share of records that took longer), from the buckets of all runs, down to the last above 0."""
    counts: dict[float, int] = {}
    for run in runs:
        for upper, many in run.buckets:
            bound = max(min(upper, run.max_ms), _LEAST_MS)
            counts[bound] = counts.get(bound, 0) + many
    bounds = sorted(bound for bound, many in counts.items() if many)
    total = left = sum(counts.values())
    curve = [(bounds[0], 1.0)] if bounds else []
    for bound in bounds:
        left -= counts[bound]
        curve.append((bound, left / total if left else curve[-1][1]))
    return curve


def scaling(summary: Summary, axis: Axis) -> Element | None:
    """Speed above CPU per GB by one thing that was changed; None where it was not."""
    arms = [arm for arm in summary.result.arms if summary.curve(axis, arm.name, _speed)]
    if not arms:
        return None
    places = sorted({point.value for point in summary.result.scaling if point.axis == axis})

    def paint(figure_: Figure) -> None:
        upper, lower = figure_.subplots(2, 1, sharex=True)
        for panel, value, unit in ((upper, _speed, "MB/s"), (lower, _cpu, "CPU-s per GB")):
            for place, arm in enumerate(arms):
                _curve(panel, summary, axis, arm, place, places, value)
            most = max(one.most for arm in arms for one in summary.curve(axis, arm.name, value).values())
            panel.set(ylabel=unit, ylim=(0, most * 1.1 or 1))
            panel.grid(axis="y", alpha=0.6)
            panel.tick_params(length=0)
        lower.set_xticks(range(len(places)), [figure(value) if axis == "loss" else f"{value:g}" for value in places])
        lower.set_xlabel(AXES[axis][1])
        figure_.legend(*upper.get_legend_handles_labels(), loc="outside upper left", ncols=2)

    label = f"speed by {AXES[axis][1]}. " + ". ".join(
        f"{arm.title}: "
        + ", ".join(f"{at:g} {ranged(one)} MB/s" for at, one in summary.curve(axis, arm.name, _speed).items())
        for arm in arms
    )
    return draw(f"scaling-{axis}", label, 300, paint)


def _curve(
    panel: Axes,
    summary: Summary,
    axis: Axis,
    arm: Arm,
    place: int,
    places: Sequence[float],
    value: Callable[[Point], float],
) -> None:
    found = summary.curve(axis, arm.name, value)
    panel.errorbar(
        [places.index(at) for at in found],
        [one.median for one in found.values()],
        yerr=[[one.median - one.least for one in found.values()], [one.most - one.median for one in found.values()]],
        color=colour(arm, summary.result.arms),
        marker=_MARKERS[place % len(_MARKERS)],
        markersize=4,
        linestyle=_STYLES[place % len(_STYLES)],
        linewidth=1.6,
        capsize=2.2,
        label=_short(arm),
    )


def _speed(point: Point) -> float:
    return point.bytes_per_s / MB


def _cpu(point: Point) -> float:
    return point.cpu_s_per_gb


def _tick(value: float, _: float) -> str:
    return f"{value:,.10g}"


def _plain_scales(axis: Axes) -> None:
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_formatter(_tick)
        one.minorticks_off()
    axis.grid(alpha=0.6)
    axis.tick_params(length=0)
