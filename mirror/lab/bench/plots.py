"""The plots of a comparison: bars, drawn by matplotlib as SVG for a page.

Text and lines take the page's own color and font, so that one drawing does for dark and light.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from textwrap import wrap
from typing import Any, Final, cast

from mirror.errors import ConfigError
from mirror.lab.bench.result import Axis, MeasuredArm
from mirror.lab.bench.summary import (
    ADDED_P50,
    ADDED_P99,
    CPU,
    MB,
    MEMORY,
    SOURCE,
    SPEED,
    TARGET,
    TRICKLE,
    Copy,
    Metric,
    Spread,
    Summary,
    figure,
    pace_title,
    ranged,
)
from mirror.rendering import plain

#: Inches.
_WIDTH: Final = 5.0
_ROW: Final = 0.21
_PANEL: Final = 0.47
_NAME: Final = 30
#: Stands for the page's own color.
_INK: Final = "#010101"
#: Both do on dark and on light: for the mirror's arms, and for others.
_COLORS: Final = {
    "mirror": ("#2f7fd6", "#12a1ae", "#8171e0", "#5d9a12"),
    "rival": ("#d4661f", "#cf9a10", "#b63ec0", "#cc3f5a", "#a0663a"),
}
#: Of stacked bars: the copy, the target's brokers, the source's.
_STRENGTHS: Final = (1.0, 0.45, 0.2)
_SETTINGS: Final = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
}
#: What may be changed -> what stands at its values.
AXES: Final[dict[Axis, str]] = {
    "partitions": "partitions",
    "tasks": "tasks",
    "round_trip_ms": "ms of round trip",
    "replication": "replicas of each partition",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a panel."""

    name: str
    color: str
    parts: tuple[float, ...]  # lengths of its stacked parts
    spread: Spread  # of the first part

    @property
    def label(self) -> str:
        """Return what is written behind the bar."""
        return " + ".join(figure(part) for part in self.parts)


#: Panels by their titles.
Panels = dict[str, list[Bar]]


def need_library() -> None:
    """Raises ConfigError where matplotlib is not installed: better before a measurement than after it."""
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "plots need matplotlib: `pip install matplotlib`, or `pip install '.[bench]'` in the project's folder"
        )


def plots(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield the title and the SVG of each plot that has something to show. Raises ConfigError without matplotlib."""
    need_library()
    late = {
        f"{metric.title}, {pace_title(pace)}": _bars(
            summary,
            [(arm, Spread.of(summary.late(metric, pace, arm.name).values())) for arm in summary.live_arms(pace)],
        )
        for pace in summary.paces
        for metric in (ADDED_P50, ADDED_P99)
    }
    cores: Panels = {}
    for pace in summary.paces:
        arms = [
            (arm, [Spread.of(summary.late(metric, pace, arm.name).values()) for metric in TRICKLE[:3]])
            for arm in summary.live_arms(pace)
        ]
        cores[pace_title(pace)] = [_stacked(summary, arm, spreads) for arm, spreads in arms if spreads[0]]
    scaling = {
        f"{unit} by {title}": [
            Bar(f"{value:g}", _color(arm, summary), (spread.median,), spread)
            for arm in summary.result.arms
            for value, spread in summary.curve(axis, arm.name, measure).items()
        ]
        for axis, title in AXES.items()
        for unit, measure in (
            ("MB/s", lambda point: point.bytes_per_s / MB),
            ("CPU-s per GB", lambda point: point.cpu_s_per_gb),
        )
    }
    for name, title, unit, panels in (
        ("cpu", "CPU of the copy + target's brokers + source's brokers", CPU.unit, _stacks(summary)),
        ("speed", "Speed", SPEED.unit, _panels(summary, SPEED)),
        ("memory", "Memory", MEMORY.unit, _panels(summary, MEMORY)),
        ("cores", "CPU at a trickle: copy + source's brokers + target's brokers", "cores", cores),
        ("latency", "Latency that the copy adds", ADDED_P50.unit, late),
        ("scaling", "With one thing changed", "", scaling),
    ):
        shown = {panel: bars for panel, bars in panels.items() if bars}
        if shown:
            yield title, _draw(name, title, unit, shown)


def _panels(summary: Summary, metric: Metric[Copy]) -> Panels:
    return {
        load.title: _bars(
            summary, [(arm, summary.spread(metric, load.name, arm.name)) for arm in summary.arms(load.name)]
        )
        for load in summary.result.workloads
    }


def _bars(summary: Summary, spreads: Sequence[tuple[MeasuredArm, Spread | None]]) -> list[Bar]:
    return [Bar(arm.title, _color(arm, summary), (spread.median,), spread) for arm, spread in spreads if spread]


def _stacks(summary: Summary) -> Panels:
    panels: Panels = {}
    for load in summary.result.workloads:
        arms = [
            (arm, [summary.spread(metric, load.name, arm.name) for metric in (CPU, TARGET, SOURCE)])
            for arm in summary.arms(load.name)
        ]
        panels[load.title] = [_stacked(summary, arm, spreads) for arm, spreads in arms if spreads[0]]
    return panels


def _stacked(summary: Summary, arm: MeasuredArm, spreads: Sequence[Spread | None]) -> Bar:
    assert spreads[0] is not None, "the copy's own part is known"
    return Bar(arm.title, _color(arm, summary), tuple(spread.median for spread in spreads if spread), spreads[0])


def _color(arm: MeasuredArm, summary: Summary) -> str:
    alike = [other.name for other in summary.result.arms if other.kind == arm.kind]
    colors = _COLORS[arm.kind]
    return colors[alike.index(arm.name) % len(colors)]


def _draw(name: str, title: str, unit: str, panels: Panels) -> str:
    """Return an `svg` element; ids in it begin with `name`."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(cast("Any", {**_SETTINGS, "svg.hashsalt": name})), warnings.catch_warnings():
        # Its own font lacks some signs of foreign names; the reader's has them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        rows = [len(bars) for bars in panels.values()]
        drawing = Figure(figsize=(_WIDTH, _PANEL * (len(rows) + 1) + _ROW * sum(rows)), layout="constrained")
        axes = drawing.subplots(len(rows), 1, squeeze=False, gridspec_kw={"height_ratios": [row + 0.3 for row in rows]})
        for axis, (panel, bars) in zip(axes[:, 0], panels.items(), strict=True):
            for place, bar in enumerate(bars):
                begin = 0.0
                for part, strength in zip(bar.parts, _STRENGTHS, strict=False):
                    axis.barh(place, part, 0.7, begin, color=bar.color, alpha=strength, linewidth=0)
                    begin += part
                if len(bar.parts) == 1 and bar.spread.many > 1:
                    axis.plot([bar.spread.least, bar.spread.most], [place, place], color=_INK, linewidth=1)
                longest = max(begin, bar.spread.most)
                axis.annotate(bar.label, (longest, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
            axis.set_yticks(range(len(bars)), [plain(bar.name)[:_NAME] for bar in bars])
            axis.set_title("\n".join(wrap(plain(panel), 44)))
            axis.set_xlim(left=min(0.0, *(bar.spread.least for bar in bars)), right=axis.get_xlim()[1] * 1.2)
            axis.invert_yaxis()
            axis.tick_params(length=0)
        axes[-1, 0].set_xlabel(unit)
        text = StringIO()
        drawing.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    label = f"{title}. " + ". ".join(
        f"{panel}: {', '.join(f'{bar.name} {bar.label if bar.parts[1:] else ranged(bar.spread)}' for bar in bars)}"
        for panel, bars in panels.items()
    )
    return _embedded(text.getvalue(), label)


def _embedded(svg: str, label: str) -> str:
    """Leave the element alone of a file: no vocabulary elsewhere, ids only where something refers to them."""
    from html import escape

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1>", svg, count=1).replace("xlink:href", "href")
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if f"#{found[1]}" in svg else "", svg)
    svg = re.sub(r"'DejaVu Sans'(, [^;\"]*)?", "system-ui, sans-serif", svg).replace(_INK, "currentColor")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(plain(label))}" ', 1)
