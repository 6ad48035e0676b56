"""What commands print and pages show: numbers for people, tables, states in color, and self-contained HTML.

It is built as a tree and not as text, so that no name or detail, whoever chose it, can become markup.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mirror.states import State

# --- Small helpers for what commands print ----------------------------------------------------------------------------

#: Columns that a file or pipe gets: nobody looks at its edges, so nothing should be cut there.
FILE_WIDTH: Final = 160
#: What Kafka's own commands end with: a line that has one is to be copied whole, so the terminal alone may break it.
COMMAND: Final = ".sh "
_STEPS: Final = ((1000, "ms"), (60, "s"), (60, "min"), (48, "h"))
_COLOURS: Final = {
    State.CAUGHT_UP: "green",
    State.MIRRORING: "cyan",
    State.STARTING: "yellow",
    State.PADDING: "yellow",
    State.UNAVAILABLE: "yellow",
    State.PAUSED: "yellow",
}


def console() -> Console:
    """Where results go: stdout, as wide as the terminal."""
    sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if sized else FILE_WIDTH)


def table(*columns: str | tuple[str, str]) -> Table:
    """An empty table; a column is a name, or a name and `right` or `no_wrap`. Plain ones shrink first."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
    for column in columns:
        name, how = column if isinstance(column, tuple) else (column, "left")
        if how == "right":
            made.add_column(name, justify="right", no_wrap=True)
        else:
            made.add_column(name, no_wrap=how == "no_wrap", overflow="fold")
    return made


def number(value: int) -> str:
    """With separators: 1,234,567."""
    return f"{value:,}"


def count(value: int, one: str, many: str = "") -> str:
    """A number with its noun: 1 batch, 2 batches."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def size(value: int) -> str:
    """Bytes in decimal units with three or four digits: 999 B, 12.3 kB, 1.2 GB."""
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.95 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"


def plain(text: str) -> str:
    """A text of somebody else's, safe to show: what would steer a terminal, or cannot be encoded, is spelt out."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def duration(milliseconds: int) -> str:
    """The largest unit that fits: 340 ms, 2.1 s, 14 s, 3 min, 5 h, 9 d."""
    amount = float(max(0, milliseconds))
    for most, unit in _STEPS:
        if amount < most:
            return f"{amount:.1f} s" if unit == "s" and amount < 10 else f"{amount:.0f} {unit}"
        amount /= 24 if unit == "h" else most
    return f"{amount:.0f} d"


def state_text(state: State, *, former: bool = False) -> Text:
    """A state in its colour; one that may no longer hold says so without any colour too."""
    if state.is_stop:
        return Text(state, style="bold red")
    return Text(f"was {state}", style="dim") if former else Text(state, style=_COLOURS[state])


def print_json(value: Any) -> None:
    """One JSON document on one line, for scripts."""
    print(json.dumps(value, separators=(",", ":"), default=str), flush=True)


# --- A report as one page of HTML that needs nothing from anywhere ----------------------------------------------------

#: Columns that hold them.
_NUMBERS: Final = frozenset(
    {"batches", "share", "partitions", "records", "bytes", "lag", "from", "to before"}
    | {"share of bytes", "mean", "ratio", "from B", "to before B"}
)
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --good: #3fb950; --bad: #f85149; --warn: #d29922; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { border-left: .4rem solid var(--good); padding: .6rem 1rem; font-size: 1.15rem; }
.verdict.bad { border-color: var(--bad); } .verdict.warn { border-color: var(--warn); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
.n { text-align: right; white-space: nowrap; } code { font-size: .85em; overflow-wrap: anywhere; }
.bar { display: flex; height: 1.1rem; border-radius: .3rem; overflow: hidden; margin: .5rem 0; }
.s0 { background: #1f77b4; } .s1 { background: #2ca02c; } .s2 { background: #ff7f0e; } .s3 { background: #7f7f7f; }
.s4 { background: #9467bd; } .key { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; }
.equal { color: var(--good); } .different { color: var(--bad); } .note { color: var(--warn); }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: .8rem; }
"""


def document(title: str, heading: str, style: str = "") -> tuple[Element, Element]:
    """An empty page, and its body with a heading; `style` is added to that of all pages."""
    root = Element("html", lang="en")
    head, body = SubElement(root, "head"), SubElement(root, "body")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    put_text(head, "title", title)
    SubElement(head, "style").text = _STYLE + style
    put_text(body, "h1", heading)
    return root, body


def written(root: Element) -> str:
    """The page as text."""
    return f"<!DOCTYPE html>\n{tostring(root, encoding='unicode', method='html')}\n"


def put_table(parent: Element, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table of texts; without a head, the first column is one."""
    table = put_head(parent, head)
    for cells in rows:
        row = SubElement(table, "tr")
        for index, cell in enumerate(cells):
            style = "n" if head and head[index] in _NUMBERS else ""
            put_text(row, "td" if head or index else "th", cell, style)


def put_head(parent: Element, head: Sequence[str], numbers: Collection[str] = _NUMBERS) -> Element:
    """A table with its head, for rows of any kind."""
    table = SubElement(SubElement(parent, "div", {"class": "scroll"}), "table")
    if head:
        row = SubElement(table, "tr")
        for text in head:
            put_text(row, "th", text, "n" if text in numbers else "")
    return table


def put_text(parent: Element, tag: str, text: str, style: str = "") -> Element:
    """An element with a text in which nothing is left that is not printable."""
    made = SubElement(parent, tag, {"class": style} if style else {})
    made.text = plain(text)
    return made
