"""A log under `mirror inspect`: batches go in, rows and totals come out, as text or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from mirror.errors import BadRecords
from mirror.policy.rules import Rules
from mirror.records.header import (
    APPEND_TIME,
    DELETE_HORIZON,
    TRANSACTIONAL,
    BatchHeader,
    RawBatch,
    codec_name,
    marker_name,
)
from mirror.records.recipe import Recipe
from mirror.records.transactions import Outcome
from mirror.rendering import console, count, duration, number, size, table
from mirror.replication.classifier import TOO_LARGE, Action, Verdict, classify

if TYPE_CHECKING:
    from mirror.records.rewrite import Unfit


# --- A batch as `mirror inspect` shows it -----------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: By name, how they are laid out.
_COLUMNS: Final[Mapping[str, str]] = {
    "byte": "right",
    "offsets": "right",
    "records": "right",
    "holes": "right",
    "codec": "no_wrap",
    "size, B": "right",
    "B/rec": "right",
    "ratio": "right",
    "flags": "left",
    "id/epoch/seq": "no_wrap",
    "leader": "right",
    "first time": "no_wrap",
    "span": "right",
    "CRC": "no_wrap",
    "verdict": "no_wrap",
}
_FEW: Final = frozenset({"offsets", "records", "codec", "size, B", "ratio", "flags", "verdict"})
_COLOURS: Final = {Action.RESTAMP: "green", Action.REWRITE: "yellow", Action.REFUSE: "bold red"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One batch and what is known of it.

    `position` is the byte of its file where it begins, None where it came from a broker. `uncompressed` is the size of
    its records in bytes without compression, None where nobody asked or it does not decompress. `unwritable`: the first
    of its records that the target would not take, None where there is none, or it was not opened.
    """

    raw: RawBatch
    verdict: Verdict
    outcome: Outcome
    crc_holds: bool
    position: int | None
    uncompressed: int | None
    unwritable: Unfit | None = None

    def as_dict(self) -> dict[str, Any]:
        """The batch for `--json`: sizes in bytes, times in ms since 1970 and as ISO text, null where there is none."""
        raw, header = self.raw, self.raw.header
        base_timestamp = header.base_timestamp if header.magic == 2 else header.max_timestamp
        return {
            "position": self.position,
            "base_offset": _base_offset(header),
            "last_offset": header.last_offset,
            "records": header.stated_records,
            "holes": header.holes,
            "codec": header.codec_name,
            "bytes": header.size,
            "bytes_per_record": round(header.size / records, 1) if (records := header.stated_records) else None,
            "uncompressed": self.uncompressed,
            "magic": header.magic,
            "transactional": bool(header.attributes & TRANSACTIONAL),
            "outcome": self.outcome or None,
            "control": marker_name(raw),
            "append_time": bool(header.attributes & APPEND_TIME),
            "delete_horizon": bool(header.attributes & DELETE_HORIZON),
            "producer_id": _known(header.producer_id),
            "producer_epoch": _known(header.producer_epoch),
            "base_sequence": _known(header.base_sequence),
            "leader_epoch": header.partition_leader_epoch if header.magic == 2 else None,
            "base_timestamp": _known(base_timestamp),
            "base_time": iso(base_timestamp),
            "max_timestamp": _known(header.max_timestamp),
            "max_time": iso(header.max_timestamp),
            "crc_holds": self.crc_holds,
            "verdict": self.verdict.action,
            "reason": self.verdict.reason,
            "unwritable": self.unwritable and _unfit_fields(self.unwritable),
        }

    def cells(self, columns: Iterable[str]) -> list[str | Text]:
        """The batch for people, one cell for each of the columns."""
        header = self.raw.header
        base, last, records = _base_offset(header), header.last_offset, header.stated_records
        base_timestamp = header.base_timestamp if header.magic == 2 else header.max_timestamp
        producer = f"{header.producer_id}/{header.producer_epoch}/{header.base_sequence}"
        ratio = "?" if self.uncompressed is None else ratio_text(self.uncompressed, len(self.raw.records))
        cells: dict[str, str | Text] = {
            "byte": "-" if self.position is None else number(self.position),
            "offsets": number(last) if base in (None, last) else f"{number(base)}-{number(last)}",
            "records": "?" if records is None else number(records),
            "holes": number(gone) if (gone := header.holes) else "",
            "codec": header.codec_name,
            "size, B": number(header.size),
            "B/rec": f"{header.size / records:.0f}" if records else "",
            "ratio": ratio,
            "flags": ", ".join(_flags(self)),
            "id/epoch/seq": producer if header.producer_id >= 0 else "",
            "leader": str(header.partition_leader_epoch) if header.magic == 2 else "",
            "first time": iso(base_timestamp) or "",
            "span": f"+{duration(span)}" if (span := header.max_timestamp - base_timestamp) > 0 else "",
            "CRC": Text("holds", "green") if self.crc_holds else Text("FAILS", "bold red"),
            "verdict": Text(str(self.verdict), _COLOURS.get(self.verdict.action, "")),
        }
        return [cells[name] for name in columns]


def _unfit_fields(found: Unfit) -> dict[str, Any]:
    return {
        "first_offset": found.first,
        "last_offset": found.next_offset - 1,
        "reason": found.reason,
        "detail": found.detail,
    }


def columns_of(*, every: bool, ratio: bool) -> tuple[str, ...]:
    """The columns to show: every one, or those that a terminal of eighty columns holds; `ratio` where it was asked for.
    A CRC that fails is in the verdict, too.
    """
    return tuple(name for name in _COLUMNS if (every or name in _FEW) and (ratio or name != "ratio"))


def batch_table(columns: Iterable[str]) -> Table:
    """An empty table for `Seen.cells`."""
    return table(*((name, _COLUMNS[name]) for name in columns))


def ratio_text(uncompressed: int | None, size: int) -> str:
    """How many times smaller the records are for their compression."""
    return f"{uncompressed / size:.1f}" if uncompressed is not None and size else "?"


def iso(timestamp: int) -> str | None:
    """A time in ms since 1970 as ISO text in UTC; None where there is none, or none that a calendar has."""
    if timestamp < 0:
        return None
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return None


def _base_offset(header: BatchHeader) -> int | None:
    """None for a compressed batch before magic 2: its header has its last offset alone."""
    return header.base_offset if header.stated_records is not None else None


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _flags(seen: Seen) -> Iterator[str]:
    raw, header = seen.raw, seen.raw.header
    if header.magic < 2:
        yield f"magic {header.magic}"
    if marker := marker_name(raw):
        yield marker
    elif seen.outcome:
        yield str(seen.outcome)
    elif header.attributes & TRANSACTIONAL:
        yield "transactional"
    if header.attributes & APPEND_TIME:
        yield "append time"
    if header.attributes & DELETE_HORIZON:
        yield "delete horizon"


# --- What `mirror inspect` adds up ------------------------------------------------------------------------------------

#: Verdicts that need no decompression.


@dataclass(slots=True)
class Sums:
    """Batches, offsets that hold no record, records and bytes of one kind. `known` are the bytes of those of which
    `uncompressed` is the size without compression. Records of compressed batches before magic 2 are not counted.
    """

    batches: int = 0
    records: int = 0
    holes: int = 0
    bytes: int = 0
    known: int = 0
    uncompressed: int = 0

    def add(self, other: Sums) -> None:
        """Take in another one."""
        self.batches += other.batches
        self.records += other.records
        self.holes += other.holes
        self.bytes += other.bytes
        self.known += other.known
        self.uncompressed += other.uncompressed


@dataclass(slots=True)
class LogTotals:
    """Sums by codec and verdict; first and last offset are -1 where there is no batch."""

    first_offset: int = -1
    last_offset: int = -1
    kinds: dict[tuple[int, Verdict], Sums] = field(default_factory=dict)
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    undecodable: int = 0

    def take(self, raw: RawBatch, verdict: Verdict, outcome: Outcome, uncompressed: int | None) -> None:
        """Count one batch."""
        header = raw.header
        key = (header.codec, verdict)
        sums = self.kinds.get(key)
        if sums is None:
            sums = self.kinds[key] = Sums()
        sums.batches += 1
        sums.bytes += header.size
        if header.magic == 2:
            sums.records += header.count
            sums.holes += header.holes
        elif not key[0]:
            sums.records += 1
        if uncompressed is not None:
            sums.known += len(raw.records)
            sums.uncompressed += uncompressed
        if outcome:
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if self.first_offset < 0:
            self.first_offset = header.base_offset
        self.last_offset = header.last_offset

    def add(self, other: LogTotals) -> None:
        """Take in the totals of another log."""
        for key, sums in other.kinds.items():
            self.kinds.setdefault(key, Sums()).add(sums)
        for outcome, many in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + many
        self.undecodable += other.undecodable

    @property
    def at_risk(self) -> bool:
        """Some batch cannot be read, or would stop the mirror."""
        return self.undecodable > 0 or any(verdict.action is Action.REFUSE for _, verdict in self.kinds)

    @property
    def all(self) -> Sums:
        """Everything."""
        whole = Sums()
        for sums in self.kinds.values():
            whole.add(sums)
        return whole

    def by_codec(self) -> Mapping[str, Sums]:
        """Sums by codec, the largest first."""
        return _largest_first((codec_name(codec), sums) for (codec, _), sums in self.kinds.items())

    def by_verdict(self) -> Mapping[str, Sums]:
        """Sums by verdict and reason, the largest first."""
        return _largest_first((str(verdict), sums) for (_, verdict), sums in self.kinds.items())

    @property
    def as_stored(self) -> tuple[int, int]:
        """Bytes that a mirror copies as stored, and bytes that it copies at all."""
        copied = stored = 0
        for (_, verdict), sums in self.kinds.items():
            copied += sums.bytes if verdict.action is not Action.DROP else 0
            stored += sums.bytes if verdict.action is Action.RESTAMP else 0
        return stored, copied

    def as_dict(self) -> dict[str, Any]:
        """The totals for `--json`; `as_stored` is the share of the copied bytes that need no decompression."""
        stored, copied = self.as_stored
        return {
            **_sums_dict(self.all),
            "codecs": {name: _sums_dict(sums) for name, sums in self.by_codec().items()},
            "verdicts": {name: _sums_dict(sums) for name, sums in self.by_verdict().items()},
            "outcomes": {str(outcome): many for outcome, many in self.outcomes.items()},
            "as_stored": round(stored / copied, 6) if copied else None,
            "undecodable": self.undecodable,
        }


def totals_table(totals: LogTotals) -> Table:
    """The totals for people: a line for each codec, then one for each verdict."""
    ratio = any(sums.known for sums in totals.kinds.values())
    whole = totals.all
    made = table(
        "",
        ("batches", "right"),
        ("records", "right"),
        ("holes", "right"),
        ("size", "right"),
        ("share", "right"),
        ("B/rec", "right"),
        *([("ratio", "right")] if ratio else []),
    )
    for groups in (totals.by_codec(), totals.by_verdict()):
        for name, sums in groups.items():
            made.add_row(name, *_cells(sums, whole, ratio))
        made.add_section()
    return made


def totals_notes(totals: LogTotals) -> Iterator[Text]:
    """What the table does not say: what a mirror needs not decompress, how transactions ended, what did not decode."""
    stored, copied = totals.as_stored
    if copied:
        percent = 100 * stored / copied
        shown = "100" if stored == copied else f"{min(percent, 99.9):.1f}"  # never rounded up to what it is not
        yield Text(f"{shown} % of the bytes to copy need no decompression ({size(stored)} of {size(copied)})")
    if totals.outcomes:
        amounts = (f"{number(many)} {outcome}" for outcome, many in totals.outcomes.items())
        yield Text(f"batches of transactions: {', '.join(amounts)}")
    if totals.undecodable:
        batches = count(totals.undecodable, "batch", "batches")
        yield Text(f"{batches} with a CRC that holds cannot be decompressed", "bold red")


def _largest_first(groups: Iterable[tuple[str, Sums]]) -> Mapping[str, Sums]:
    found: dict[str, Sums] = {}
    for name, sums in groups:
        found.setdefault(name, Sums()).add(sums)
    return dict(sorted(found.items(), key=lambda item: -item[1].bytes))


def _sums_dict(sums: Sums) -> dict[str, Any]:
    return {
        "batches": sums.batches,
        "records": sums.records,
        "holes": sums.holes,
        "bytes": sums.bytes,
        "uncompressed": sums.uncompressed if sums.known else None,
        "ratio": round(sums.uncompressed / sums.known, 3) if sums.known else None,
    }


def _cells(sums: Sums, whole: Sums, ratio: bool) -> list[str]:
    return [
        number(sums.batches),
        number(sums.records),
        number(sums.holes) if sums.holes else "",
        size(sums.bytes),
        f"{100 * sums.bytes / whole.bytes:.1f} %",
        f"{sums.bytes / sums.records:.0f}" if sums.records else "",
        *([ratio_text(sums.uncompressed, sums.known)] if ratio else []),
    ]


# --- One log under `mirror inspect` -----------------------------------------------------------------------------------

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
class InspectOptions:
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

    def __init__(
        self, options: InspectOptions, title: str, identity: Mapping[str, Any], rules: Rules, next_offset: int = 0
    ) -> None:
        self._options, self._title, self._identity, self._rules = options, title, identity, rules
        self._next_offset = next_offset
        self._left = options.rows
        self._page: Table | None = None
        self._columns = columns_of(every=options.wide or console().width >= WIDE, ratio=options.ratio)
        self._uncompressed = _measure() if options.ratio else None
        self._unwritable: list[Unfit] = []
        self.totals = LogTotals()

    @property
    def is_full(self) -> bool:
        """Every row that was asked for is shown; more batches change the totals alone."""
        return not self._options.summary and not self._left

    def take(self, raw: RawBatch, outcome: Outcome, position: int | None = None, *, crc_holds: bool = True) -> None:
        """Count a batch, and show it where that is asked."""
        if self._options.first and raw.header.last_offset < self._options.first:
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
        if verdict is TOO_LARGE or (self._options.ratio and verdict.action is Action.REWRITE):
            found = _unwritable(raw, self._rules, self._next_offset)
        if found is not None:
            self._unwritable.append(found)
        self.totals.take(raw, verdict, outcome, uncompressed)
        if self._left:
            self._left -= 1
            self._show(Seen(raw, verdict, outcome, crc_holds, position, uncompressed, found))

    def close(self, more: Mapping[str, Any], notes: list[Text]) -> None:
        """Show the totals. `more` is what scripts get besides them, `notes` what people do."""
        totals = self.totals
        if self._options.as_json:
            offsets = {
                "first_offset": totals.first_offset if totals.first_offset >= 0 else None,
                "last_offset": totals.last_offset if totals.last_offset >= 0 else None,
            }
            amount = {"unwritable": len(self._unwritable)}
            json_line({"type": "summary", **self._identity, **offsets, **more, **totals.as_dict(), **amount})
            return
        self._flush()
        whole = totals.all
        hidden = whole.batches - self._options.rows
        if not self._options.summary and hidden > 0:
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
            since = f" from offset {number(self._options.first)} on" if self._options.first else ""
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
        if self._options.as_json:
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
    from mirror.records.codecs import uncompressed_size  # noqa: PLC0415 -- nobody else needs the codecs

    return lambda raw: uncompressed_size(raw.header.codec, raw.records)


def _unwritable(raw: RawBatch, rules: Rules, next_offset: int) -> Unfit | None:
    from mirror.records.rewrite import unfit  # noqa: PLC0415 -- loads the compiler, and is seldom needed

    return unfit(raw, Recipe(first_offset=next_offset, codec=rules.codec, max_bytes=rules.max_message_bytes))


def json_line(value: Any) -> None:
    """One JSON object on a line; not flushed, as there may be a million."""
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
