"""What commands print and pages show: numbers for people, tables, states in color, and self-contained HTML.

It is built as a tree and not as text, so that no name or detail, whoever chose it, can become markup.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
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


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the rows of a report: a key of `--json`, a column, or both."""

    #: Key of `--json`; empty for a column alone.
    key: str
    #: The value: a path of attributes, or a function of the row. Empty for the attribute that is called like the key.
    source: str | Callable[[Any], Any] = ""
    #: Title of the column; None for a key alone.
    head: str | None = None
    #: Turns a value into a cell, unless it is None or a cell already.
    show: Callable[[Any], str | Text] = str
    #: What the cell shows of None.
    unknown: str = ""
    #: Layout of the column as in `table`; numbers, sizes and durations go right by themselves.
    layout: str = ""

    def of(self, row: Any) -> Any:
        """Return the field's value in a row, which may be a mapping."""
        if callable(self.source):
            return self.source(row)
        path = self.source or self.key
        return row[path] if isinstance(row, Mapping) else _getter(path)(row)

    def cell(self, row: Any) -> Text:
        """Return the field's cell in a row."""
        value = self.of(row)
        cell = self.unknown if value is None else value if isinstance(value, Text) else self.show(value)
        return cell if isinstance(cell, Text) else Text(plain(cell))

    @property
    def column(self) -> tuple[str, str]:
        """Title and layout of the column."""
        return self.head or "", self.layout or ("right" if self.show in _NUMERIC else "left")


_getter = cache(attrgetter)


def keys(names: str) -> tuple[Field, ...]:
    """Return fields that `--json` alone has: `key` or `key=path.of.attributes`, separated by blanks."""
    return tuple(Field(key, path) for key, _, path in (name.partition("=") for name in names.split()))


def json_of(fields: Sequence[Field], row: Any) -> dict[str, Any]:
    """Return a row for `--json`."""
    return {field.key: field.of(row) for field in fields if field.key}


def json_rows(fields: Sequence[Field], rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Return all rows for `--json`."""
    return [json_of(fields, row) for row in rows]


def json_groups(fields: Sequence[Field], groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows that have names for `--json`."""
    return {name: json_of(fields, row) for name, row in groups.items()}


def table_of(fields: Sequence[Field], rows: Iterable[Any] | Mapping[str, Any], names: str | None = None) -> Table:
    """Return the rows as a table for people. `names`: title of a first column with the keys of a mapping."""
    columns = [field.column for field in fields if field.head is not None]
    made = table(*columns if names is None else [names, *columns])
    add_rows(made, fields, rows)
    return made


def add_rows(shown: Table, fields: Sequence[Field], rows: Iterable[Any] | Mapping[str, Any]) -> None:
    """Add rows to a table of the same fields."""
    for cells in _cells(fields, rows):
        shown.add_row(*cells)


def _cells(fields: Sequence[Field], rows: Iterable[Any] | Mapping[str, Any]) -> Iterator[list[Text]]:
    """Yield the cells of each row; those of a mapping begin with its key."""
    columns = [field for field in fields if field.head is not None]
    named = rows.items() if isinstance(rows, Mapping) else (("", row) for row in rows)
    for name, row in named:
        first = [Text(plain(name))] if isinstance(rows, Mapping) else []
        yield [*first, *(field.cell(row) for field in columns)]


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


_NUMERIC: Final = frozenset((number, size, duration))


def state_text(state: State, *, former: bool = False) -> Text:
    """A state in its colour; one that may no longer hold says so without any colour too."""
    if state.is_stop:
        return Text(state, style="bold red")
    return Text(f"was {state}", style="dim") if former else Text(state, style=_COLOURS[state])


def print_json(value: Any) -> None:
    """One JSON document on one line, for scripts."""
    print(json.dumps(value, separators=(",", ":"), default=str), flush=True)


# --- A report as one page of HTML that needs nothing from anywhere ----------------------------------------------------

#: Class of a cell by the style that its text has on a terminal.
_CLASSES: Final = {"green": "equal", "red": "different", "yellow": "note", "dim": "code"}
#: Colors of shares, one after the other.
_BAR_COLORS: Final = 5
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
.n { text-align: right; white-space: nowrap; } code, .code { font-size: .85em; overflow-wrap: anywhere; }
.bar { display: flex; height: 1.1rem; border-radius: .3rem; overflow: hidden; margin: .5rem 0; }
.s0 { background: #1f77b4; } .s1 { background: #2ca02c; } .s2 { background: #ff7f0e; } .s3 { background: #7f7f7f; }
.s4 { background: #9467bd; } .key { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; }
.equal { color: var(--good); } .different { color: var(--bad); } .note { color: var(--warn); }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: .8rem; }
"""


class Page:
    """A report under way; as a text, the whole page."""

    def __init__(self, title: str, heading: str) -> None:
        self._root = Element("html", lang="en")
        head, self._body = SubElement(self._root, "head"), SubElement(self._root, "body")
        SubElement(head, "meta", charset="utf-8")
        SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
        _put_text(head, "title", title)
        SubElement(head, "style").text = _STYLE
        self.text(heading, tag="h1")

    def __str__(self) -> str:
        return f"<!DOCTYPE html>\n{tostring(self._root, encoding='unicode', method='html')}\n"

    def text(self, text: str | Text, style: str = "", tag: str = "p") -> None:
        """Put a text; that of a terminal keeps its color."""
        if isinstance(text, Text):
            _put_text(self._body, tag, text.plain, _class_of(text))
        else:
            _put_text(self._body, tag, text, style)

    def footer(self, text: str) -> None:
        """Put the last line."""
        _put_text(SubElement(self._body, "footer"), "p", text)

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Put names with their values as a table."""
        table = _put_head(self._body, ())
        for name, value in pairs:
            row = SubElement(table, "tr")
            _put_text(row, "th", name)
            _put_text(row, "td", value)

    def fields(
        self,
        title: str,
        fields: Sequence[Field],
        rows: Sequence[Any] | Mapping[str, Any],
        names: str | None = None,
        shares: Sequence[float] = (),
    ) -> None:
        """Put the rows as a table under a title; nothing where there is none. `names` is as in `table_of`. `shares`
        from 0 to 1: draw them as a bar, whose colors the rows explain.
        """
        if not rows:
            return
        self.text(title, tag="h2")
        if shares:
            bar = SubElement(self._body, "div", {"class": "bar"})
            for index, share in enumerate(shares):
                SubElement(bar, "span", {"class": f"s{index % _BAR_COLORS}", "style": f"width:{100 * share:.3f}%"})
        heads = [
            *([] if names is None else [(names, "left")]),
            *(field.column for field in fields if field.head is not None),
        ]
        numeric = {head for head, layout in heads if layout == "right"}
        table = _put_head(self._body, [head for head, _ in heads], numeric)
        for index, cells in enumerate(_cells(fields, rows)):
            line = SubElement(table, "tr")
            for (_, layout), cell in zip(heads, cells, strict=True):
                text = ", ".join(cell.plain.split("\n"))
                _put_text(line, "td", text, "n" if layout == "right" else _class_of(cell))
            if shares:
                key = Element("span", {"class": f"key s{index % _BAR_COLORS}"})
                key.tail, line[0].text = f" {line[0].text}", None
                line[0].insert(0, key)


def _class_of(text: Text) -> str:
    """Return the class of an element for a text that has a style on a terminal."""
    return _CLASSES.get(str(text.style), "")


def _put_head(parent: Element, head: Sequence[str], numbers: Collection[str] = ()) -> Element:
    """Return a table with its head, for rows of any kind."""
    table = SubElement(SubElement(parent, "div", {"class": "scroll"}), "table")
    if head:
        row = SubElement(table, "tr")
        for text in head:
            _put_text(row, "th", text, "n" if text in numbers else "")
    return table


def _put_text(parent: Element, tag: str, text: str, style: str = "") -> None:
    """Put an element with a text in which nothing is left that is not printable."""
    SubElement(parent, tag, {"class": style} if style else {}).text = plain(text)
