"""A plot of matplotlib as an element of a page: scalable, in the page's colours and font, with nothing from anywhere.

matplotlib writes colours as numbers. Those in `INK`, `FAINT` and `colour` stand for the page's custom properties
(`--ink`, `--faint`, `--mirror-0` ...) and are exchanged for them, so that one drawing does for dark and light.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, cast
from xml.etree.ElementTree import Element, fromstring

from mirror.bench.result import Arm, Kind
from mirror.commands.tables import plain
from mirror.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def draw(name: str, told: str, height: float, paint: Callable[[Figure], None]) -> Element:
    """An `svg` element with what `paint` puts on a figure; `height` in units of WIDTH.

    `name` is the plot's own on the page, so that no two have an id in common; `told` is for those who do not see it.
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
    return _tidied(fromstring(text.getvalue()), name, told)  # noqa: S314 - it was written two lines above


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


def _tidied(root: Element, name: str, told: str) -> Element:
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
    root.set("aria-label", plain(told))
    return root
