"""Small helpers for what commands print: numbers for people, states in colour, plain tables."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mirror.states import State

#: Columns that a file or pipe gets: nobody looks at its edges, so nothing should be cut there.
FILE_WIDTH: Final = 160
#: What Kafka's own commands end with: a line that has one is to be copied whole, so the terminal alone may break it.
COMMAND: Final = ".sh "
_STEPS: Final = ((1000, "ms"), (60, "s"), (60, "min"), (48, "h"))
_COLOURS: Final = {
    State.CAUGHT_UP: "green",
    State.MIRRORING: "cyan",
    State.STARTING: "yellow",
    State.ALIGNING: "yellow",
    State.WAITING: "yellow",
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
