"""One log under `mirror inspect`: batches go in, rows and totals come out, as text or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from mirror.batch.header import RawBatch
from mirror.batch.recipe import Recipe
from mirror.classifier import TOO_LARGE, Action, classify
from mirror.commands.batches import Seen, batch_table, columns_of
from mirror.commands.tables import console, count, number, size
from mirror.commands.totals import LogTotals, totals_notes, totals_table
from mirror.errors import BadRecords
from mirror.policy.outcomes import Outcome
from mirror.policy.rules import Rules

if TYPE_CHECKING:
    from mirror.batch.rewrite import Unfit

#: Rows that are laid out together; the next ones get a head of their own, so that any number of rows can be shown.
PAGE_ROWS: Final = 500
#: Columns of a terminal from which on it gets every column of the table.
WIDE: Final = 150
#: Columns that a table may take.
WIDEST: Final = 500
#: Rows of a log that people get unless they ask for more.
USUAL_ROWS: Final = 50
#: Batches with a record that is too large, of those that people get by name.
_NAMED: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to show. `first` is the least offset of interest; `limit` bounds the rows of each log, None for the usual.
    `wide`: every column, however narrow the terminal. Nothing is decompressed but for `ratio`, and what is too large
    for the target, which may have a record that is too large alone.
    """

    first: int = 0
    limit: int | None = None
    summary: bool = False
    as_json: bool = False
    ratio: bool = False
    wide: bool = False

    @property
    def rows(self) -> int:
        """Rows to show of each log."""
        if self.summary:
            return 0
        return self.limit or (sys.maxsize if self.as_json else USUAL_ROWS)


class LogView:
    """Give it the batches of one log in order, then `close` it.

    `title` names the log for people, `identity` for scripts. `next_offset` is where a mirror of this log would begin.
    """

    def __init__(self, wish: Wish, title: str, identity: Mapping[str, Any], rules: Rules, next_offset: int = 0) -> None:
        self._wish, self._title, self._identity, self._rules = wish, title, identity, rules
        self._next_offset = next_offset
        self._left = wish.rows
        self._page: Table | None = None
        self._columns = columns_of(every=wish.wide or console().width >= WIDE, ratio=wish.ratio)
        self._uncompressed = _measure() if wish.ratio else None
        self._unwritable: list[Unfit] = []
        self.totals = LogTotals()

    @property
    def is_full(self) -> bool:
        """Every row that was asked for is shown; more batches change the totals alone."""
        return not self._wish.summary and not self._left

    def take(self, raw: RawBatch, outcome: Outcome, position: int | None = None, *, crc_holds: bool = True) -> None:
        """Count a batch, and show it where that is wished."""
        if self._wish.first and raw.header.last_offset < self._wish.first:
            return
        verdict = classify(
            raw.header,
            self._rules,
            next_offset=self._next_offset,
            aborted=outcome is Outcome.ABORTED,
            crc_holds=crc_holds,
        )
        uncompressed = None
        if self._uncompressed and raw.header.magic == 2 and verdict.action is not Action.REFUSE:
            try:
                uncompressed = self._uncompressed(raw)
            except BadRecords:
                self.totals.undecodable += 1
        found = None
        if verdict is TOO_LARGE or (self._wish.ratio and verdict.action is Action.REWRITE):
            found = _unwritable(raw, self._rules, self._next_offset)
        if found is not None:
            self._unwritable.append(found)
        self.totals.take(raw, verdict, outcome, uncompressed)
        if self._left:
            self._left -= 1
            self._show(Seen(raw, verdict, outcome, crc_holds, position, uncompressed, found))

    def close(self, told: Mapping[str, Any], notes: list[Text]) -> None:
        """Show the totals. `told` is what scripts get besides them, `notes` what people do."""
        totals = self.totals
        if self._wish.as_json:
            offsets = {
                "first_offset": totals.first_offset if totals.first_offset >= 0 else None,
                "last_offset": totals.last_offset if totals.last_offset >= 0 else None,
            }
            amount = {"unwritable": len(self._unwritable)}
            json_line({"type": "summary", **self._identity, **offsets, **told, **totals.as_dict(), **amount})
            return
        self._flush()
        whole = totals.all
        hidden = whole.batches - self._wish.rows
        if not self._wish.summary and hidden > 0:
            show(Text(f"and {count(hidden, 'batch', 'batches')} more: --limit N, --from OFFSET, --json", "dim"))
        heading = Text(f"{self._title}: ", "bold")
        if whole.batches:
            offsets_text = f"offsets {number(totals.first_offset)} to {number(totals.last_offset)}, "
            heading.append(
                f"{offsets_text}{count(whole.records, 'record')} in {count(whole.batches, 'batch', 'batches')},"
                f" {size(whole.bytes)}",
                "not bold",
            )
        else:
            since = f" from offset {number(self._wish.first)} on" if self._wish.first else ""
            heading.append(f"no batches{since}", "yellow")
        show(heading, *summed_up(totals), *self._unwritable_notes(), *notes, Text())

    def _unwritable_notes(self) -> Iterator[Text]:
        many = len(self._unwritable)
        for one in self._unwritable[:_NAMED]:
            yield Text(f"offset {number(one.first)} would stop the mirror: {one.detail}", "bold red")
        if many > _NAMED:
            more = count(many - _NAMED, "batch would", "batches would")
            yield Text(f"and {more} stop it, too: --json names them", "bold red")

    def _show(self, seen: Seen) -> None:
        if self._wish.as_json:
            json_line({"type": "batch", **self._identity, **seen.as_dict()})
            return
        if self._page is None:
            self._page = batch_table(self._columns)
        self._page.add_row(*seen.cells(self._columns))
        if self._page.row_count >= PAGE_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._page is not None:
            show(self._page)
            self._page = None


def summed_up(totals: LogTotals) -> Iterator[Table | Text]:
    """Totals for people; nothing where there is nothing."""
    if totals.kinds:
        yield totals_table(totals)
    yield from totals_notes(totals)


def show(*parts: Table | Text) -> None:
    """Print tables and lines. A table gets the width it needs: half a number is worse than a folded line.

    Raises BrokenPipeError, where Rich would end the program with code 1.
    """
    out = console()
    usual = out.width
    with out.capture() as captured:
        for part in parts:
            out.width = WIDEST
            out.width = max(usual, out.measure(part).maximum)
            out.print(part, soft_wrap=isinstance(part, Text))
    sys.stdout.write(captured.get())


def _measure() -> Callable[[RawBatch], int]:
    """Bytes of the records of a batch of magic 2 without compression; what is returned raises BadRecords."""
    from mirror.batch.codecs import uncompressed_size  # noqa: PLC0415 -- nobody else needs the codecs

    return lambda raw: uncompressed_size(raw.header.codec, raw.records)


def _unwritable(raw: RawBatch, rules: Rules, next_offset: int) -> Unfit | None:
    from mirror.batch.rewrite import unfit  # noqa: PLC0415 -- loads the compiler, and is seldom needed

    return unfit(raw, Recipe(first_offset=next_offset, codec=rules.codec, max_bytes=rules.max_message_bytes))


def json_line(value: Any) -> None:
    """One JSON object on a line; not flushed, as there may be a million."""
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
