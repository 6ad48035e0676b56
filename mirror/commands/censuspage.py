"""The report of `mirror census` as one page of HTML, with plots that are drawn in it."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from mirror import __version__
from mirror.commands.censuswords import FRAMING_HEAD, cells, framing_cells, told, warnings
from mirror.commands.htmlpage import document, put_head, put_table, put_text, written
from mirror.commands.tables import count, number, size
from mirror.spark.census import Census, Sums
from mirror.verify import signoff

_HEAD: Final = ("batches", "records", "bytes", "share", "mean", "ratio")
#: Colours of `htmlpage`, one after the other.
_COLOURS: Final = 5
#: Height of the tallest bar of a plot, and width of one with its gap, in the page's pixels.
_TALL: Final = 160
_WIDE: Final = 44


def page(found: Census, subject: str) -> str:
    """The whole page; `subject` is what was looked at."""
    root, body = document(f"mirror census: {subject}", f"Census of batches: {subject}")
    whole = found.whole
    summary = f"{count(whole.records, 'record')} in {count(whole.batches, 'batch', 'batches')}, {size(whole.bytes)}"
    put_text(body, "p", summary, "verdict bad" if whole.damaged else "verdict")
    for line in told(found):
        put_text(body, "p", line)
    for line in warnings(found):
        put_text(body, "p", line, "note")
    if whole.damaged:
        put_text(body, "p", f"{count(whole.damaged, 'log')} damaged: mirror inspect tells where", "different")
    _shares(body, "Codecs", "codec", found.by_codec, whole)
    _shares(body, "Verdicts: what the mirror does with them", "verdict", found.by_verdict, whole)
    _sizes(body, found)
    put_text(body, "h2", "Topics")
    put_table(body, ("topic", *_HEAD), [(name or "?", *cells(sums, whole)) for name, sums in found.by_topic.items()])
    if found.framings:
        put_text(body, "h2", "Mean bytes of a record, before compression")
        put_table(body, ("topic", *FRAMING_HEAD), [(one.topic or "?", *framing_cells(one)) for one in found.framings])
    foot = SubElement(body, "footer")
    when = signoff.at(int(time.time() * 1000))
    put_text(foot, "p", f"mirror {__version__} on {platform.node()}, {when}, in {found.seconds:.1f} s")
    return written(root)


def _shares(body: Element, title: str, what: str, groups: Mapping[str, Sums], whole: Sums) -> None:
    """A bar of shares of the bytes, and the table that explains it."""
    if not whole.bytes:
        return
    put_text(body, "h2", title)
    bar = SubElement(body, "div", {"class": "bar"})
    for index, sums in enumerate(groups.values()):
        share = f"width:{100 * sums.bytes / whole.bytes:.3f}%"
        SubElement(bar, "span", {"class": f"s{index % _COLOURS}", "style": share})
    table = put_head(body, ("", what, *_HEAD))
    for index, (name, sums) in enumerate(groups.items()):
        row = SubElement(table, "tr")
        SubElement(SubElement(row, "td"), "span", {"class": f"key s{index % _COLOURS}"})
        put_text(row, "td", name)
        for cell in cells(sums, whole):
            put_text(row, "td", cell, "n")


def _sizes(body: Element, found: Census) -> None:
    """Batches by size, as a plot: one bar for each power of two."""
    classes = found.by_size
    if not classes:
        return
    put_text(body, "h2", "Batches by size")
    most = max(sums.batches for sums in classes.values())
    width = str(_WIDE * len(classes))
    drawn = SubElement(
        SubElement(body, "div", {"class": "scroll"}),
        "svg",
        {"width": width, "height": str(_TALL + 40), "role": "img", "aria-label": "batches by size"},
    )
    for index, (power, sums) in enumerate(classes.items()):
        tall = _TALL * sums.batches / most
        left = index * _WIDE
        place = {"x": str(left + 4), "y": f"{20 + _TALL - tall:.1f}", "width": str(_WIDE - 8), "height": f"{tall:.1f}"}
        bar = SubElement(drawn, "rect", place | {"fill": "#1f77b4"})
        words = f"{size(1 << power)} and more: {number(sums.batches)} batches, {size(sums.bytes)}"
        put_text(bar, "title", words)
        middle = str(left + _WIDE // 2)
        look = {"x": middle, "text-anchor": "middle", "font-size": "10", "fill": "currentColor"}
        for label, y in ((size(1 << power), _TALL + 34), (number(sums.batches), 20 + _TALL - tall - 4)):
            SubElement(drawn, "text", look | {"y": f"{y:.1f}"}).text = label
