"""A log under `mirror inspect`: batches go in, rows and totals come out, as text or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections import Counter
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
from mirror.rendering import (
    Field,
    add_rows,
    console,
    count,
    duration,
    json_groups,
    json_of,
    keys,
    number,
    size,
    table_of,
)
from mirror.replication.classifier import TOO_LARGE, Action, Verdict, classify

if TYPE_CHECKING:
    from mirror.records.rewrite import Unfit


# --- A batch as `mirror inspect` shows it -----------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COLORS: Final = {Action.RESTAMP: "green", Action.REWRITE: "yellow", Action.REFUSE: "bold red"}
#: Columns that a terminal of eighty columns holds. A CRC that fails is in the verdict, too.
_FEW: Final = frozenset({"offsets", "records", "codec", "size, B", "ratio", "flags", "verdict"})


@dataclass(frozen=True, slots=True)
class Seen:
    """One batch and what is known of it."""

    #: The batch as stored.
    raw: RawBatch
    #: What a mirror does with it.
    verdict: Verdict
    #: How its transaction ended.
    outcome: Outcome
    #: Its CRC is that of its bytes.
    crc_holds: bool
    #: The byte of its file where it begins; None where it came from a broker.
    position: int | None
    #: Bytes of its records without compression; None where nobody asked or they do not decompress.
    uncompressed: int | None
    #: The first of its records that the target would not take; None where there is none, or it was not opened.
    unwritable: Unfit | None = None

    @property
    def header(self) -> BatchHeader:
        """The batch's header."""
        return self.raw.header

    @property
    def base_offset(self) -> int | None:
        """None for a compressed batch before magic 2: its header has its last offset alone."""
        return self.header.base_offset if self.header.stated_records is not None else None

    @property
    def base_timestamp(self) -> int:
        """Return that of the first record; before magic 2, the only timestamp that the header has."""
        return self.header.base_timestamp if self.header.magic == 2 else self.header.max_timestamp

    @property
    def leader_epoch(self) -> int | None:
        """None before magic 2."""
        return self.header.partition_leader_epoch if self.header.magic == 2 else None

    @property
    def record_bytes(self) -> float | None:
        """Mean bytes of a record; None where its header does not count records, or counts none."""
        return self.header.size / records if (records := self.header.stated_records) else None

    @property
    def flags(self) -> str:
        """Name what is unusual."""
        header, marker = self.header, marker_name(self.raw)
        transactional = "transactional" if header.attributes & TRANSACTIONAL else ""
        flags = (
            f"magic {header.magic}" if header.magic < 2 else "",
            marker or str(self.outcome) or transactional,
            "append time" if header.attributes & APPEND_TIME else "",
            "delete horizon" if header.attributes & DELETE_HORIZON else "",
        )
        return ", ".join(filter(None, flags))


def _has(flag: int) -> Callable[[Seen], bool]:
    return lambda seen: bool(seen.header.attributes & flag)


def _known(name: str) -> Callable[[Seen], int | None]:
    """Return a field of the header; None for a negative one, which says that there is none."""
    return lambda seen: None if (value := getattr(seen.header, name)) < 0 else value


def _offsets(seen: Seen) -> str:
    base, last = seen.base_offset, seen.header.last_offset
    return number(last) if base in (None, last) else f"{number(base)}-{number(last)}"


def _producer(seen: Seen) -> str:
    header = seen.header
    return f"{header.producer_id}/{header.producer_epoch}/{header.base_sequence}" if header.producer_id >= 0 else ""


def _span(seen: Seen) -> str:
    return f"+{duration(span)}" if (span := seen.header.max_timestamp - seen.base_timestamp) > 0 else ""


def some(value: int) -> str:
    """Return a number, and nothing for none."""
    return number(value) if value else ""


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


_UNFIT: Final = (
    *keys("first_offset=first"),
    Field("last_offset", lambda found: found.next_offset - 1),
    *keys("reason detail"),
)
#: Sizes in bytes, times in ms since 1970 and as ISO text.
_BATCH: Final = (
    Field("position", head="byte", show=number, unknown="-"),
    Field("", _offsets, "offsets", layout="right"),
    *keys("base_offset last_offset=header.last_offset"),
    Field("records", "header.stated_records", "records", number, unknown="?"),
    Field("holes", "header.holes", "holes", some, layout="right"),
    Field("codec", "header.codec_name", "codec", layout="no_wrap"),
    Field("bytes", "header.size", "size, B", number),
    Field("bytes_per_record", lambda seen: seen.record_bytes and round(seen.record_bytes, 1)),
    Field("", "record_bytes", "B/rec", "{:.0f}".format, layout="right"),
    Field("", lambda seen: ratio_text(seen.uncompressed, len(seen.raw.records)), "ratio", layout="right"),
    Field("", "flags", "flags"),
    *keys("uncompressed magic=header.magic"),
    Field("transactional", _has(TRANSACTIONAL)),
    Field("outcome", lambda seen: seen.outcome or None),
    Field("control", lambda seen: marker_name(seen.raw)),
    Field("append_time", _has(APPEND_TIME)),
    Field("delete_horizon", _has(DELETE_HORIZON)),
    *(Field(name, _known(name)) for name in ("producer_id", "producer_epoch", "base_sequence")),
    Field("", _producer, "id/epoch/seq", layout="no_wrap"),
    Field("leader_epoch", head="leader", layout="right"),
    Field("base_timestamp", lambda seen: None if seen.base_timestamp < 0 else seen.base_timestamp),
    Field("base_time", lambda seen: iso(seen.base_timestamp), "first time", layout="no_wrap"),
    Field("", _span, "span", layout="right"),
    Field("max_timestamp", _known("max_timestamp")),
    Field("max_time", lambda seen: iso(seen.header.max_timestamp)),
    Field(
        "crc_holds",
        head="CRC",
        show=lambda holds: Text("holds", "green") if holds else Text("FAILS", "bold red"),
        layout="no_wrap",
    ),
    Field("verdict", "verdict.action"),
    Field("", lambda seen: Text(str(seen.verdict), _COLORS.get(seen.verdict.action, "")), "verdict", layout="no_wrap"),
    Field("reason", "verdict.reason"),
    Field("unwritable", lambda seen: seen.unwritable and json_of(_UNFIT, seen.unwritable)),
)


# --- What `mirror inspect` adds up ------------------------------------------------------------------------------------

#: Sums of batches, `records`, offsets that hold no record (`holes`) and bytes, by these names. `known` are the bytes of
#: the records sections of which `uncompressed` is the size without compression. Records of compressed batches before
#: magic 2 are not counted.
Sums = Counter[str]


def _sums_fields(whole: Sums) -> tuple[Field, ...]:
    """Return what is said of a codec or verdict, as a part of the whole."""
    return (
        Field("batches", head="batches", show=number),
        Field("records", head="records", show=number),
        Field("holes", head="holes", show=some, layout="right"),
        Field("bytes", head="size", show=size),
        Field("", lambda sums: f"{100 * sums['bytes'] / whole['bytes']:.1f} %", "share", layout="right"),
        Field(
            "",
            lambda sums: f"{sums['bytes'] / sums['records']:.0f}" if sums["records"] else "",
            "B/rec",
            layout="right",
        ),
        Field("uncompressed", lambda sums: sums["uncompressed"] if sums["known"] else None),
        Field("ratio", lambda sums: round(sums["uncompressed"] / sums["known"], 3) if sums["known"] else None),
        *(
            [Field("", lambda sums: ratio_text(sums["uncompressed"], sums["known"]), "ratio", layout="right")]
            if whole["known"]
            else []
        ),
    )


@dataclass(slots=True)
class LogTotals:
    """Adds up the batches of a log."""

    #: Of the first batch; None where there is none.
    first_offset: int | None = None
    #: Of the last batch; None where there is none.
    last_offset: int | None = None
    #: Sums by codec and verdict.
    kinds: dict[tuple[int, Verdict], Sums] = field(default_factory=dict)
    #: Batches of transactions by how those ended.
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    #: Batches with a CRC that holds that cannot be decompressed.
    undecodable: int = 0

    def take(self, raw: RawBatch, verdict: Verdict, outcome: Outcome, uncompressed: int | None) -> None:
        """Count one batch."""
        header = raw.header
        sums = self.kinds.setdefault((header.codec, verdict), Counter())
        sums["batches"] += 1
        sums["bytes"] += header.size
        if header.magic == 2:
            sums["records"] += header.count
            sums["holes"] += header.holes
        elif not header.codec:
            sums["records"] += 1
        if uncompressed is not None:
            sums["known"] += len(raw.records)
            sums["uncompressed"] += uncompressed
        if outcome:
            self.outcomes[outcome] += 1
        if self.first_offset is None:
            self.first_offset = header.base_offset
        self.last_offset = header.last_offset

    def add(self, other: LogTotals) -> None:
        """Take in the totals of another log."""
        for key, sums in other.kinds.items():
            self.kinds.setdefault(key, Counter()).update(sums)
        self.outcomes.update(other.outcomes)
        self.undecodable += other.undecodable

    @property
    def at_risk(self) -> bool:
        """Some batch cannot be read, or would stop the mirror."""
        return self.undecodable > 0 or any(verdict.action is Action.REFUSE for _, verdict in self.kinds)

    @property
    def all(self) -> Sums:
        """Everything."""
        return _added(self.kinds.values())

    def by_codec(self) -> Mapping[str, Sums]:
        """Sums by codec, the largest first."""
        return _largest_first((codec_name(codec), sums) for (codec, _), sums in self.kinds.items())

    def by_verdict(self) -> Mapping[str, Sums]:
        """Sums by verdict and reason, the largest first."""
        return _largest_first((str(verdict), sums) for (_, verdict), sums in self.kinds.items())

    @property
    def as_stored(self) -> tuple[int, int]:
        """Bytes that a mirror copies as stored, and bytes that it copies at all."""
        amounts = [(verdict.action, sums["bytes"]) for (_, verdict), sums in self.kinds.items()]
        stored = sum(amount for action, amount in amounts if action is Action.RESTAMP)
        return stored, sum(amount for action, amount in amounts if action is not Action.DROP)

    def as_dict(self) -> dict[str, Any]:
        """The totals for `--json`; `as_stored` is the share of the copied bytes that need no decompression."""
        stored, copied = self.as_stored
        fields = _sums_fields(self.all)
        return {
            **json_of(fields, self.all),
            "codecs": json_groups(fields, self.by_codec()),
            "verdicts": json_groups(fields, self.by_verdict()),
            "outcomes": {str(outcome): many for outcome, many in self.outcomes.items()},
            "as_stored": round(stored / copied, 6) if copied else None,
            "undecodable": self.undecodable,
        }


def _added(sums: Iterable[Sums]) -> Sums:
    total = Sums()
    for each in sums:
        total.update(each)  # addition would leave out negative counts, which a damaged header has
    return total


def _largest_first(groups: Iterable[tuple[str, Sums]]) -> Mapping[str, Sums]:
    found: dict[str, Sums] = {}
    for name, sums in groups:
        found[name] = _added((found.get(name, Sums()), sums))
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))


def summed_up(totals: LogTotals) -> Iterator[Table | Text]:
    """Return totals for people: a line for each codec, then one for each verdict, then what the table does not say."""
    if totals.kinds:
        fields = _sums_fields(totals.all)
        made = table_of(fields, totals.by_codec(), "")
        made.add_section()
        add_rows(made, fields, totals.by_verdict())
        yield made
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
        is_wide = options.wide or console().width >= WIDE
        columns = _BATCH if options.ratio else [column for column in _BATCH if column.head != "ratio"]
        self._columns = [column for column in columns if is_wide or column.head in _FEW]
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
        if self._options.ratio and raw.header.magic == 2 and verdict.action is not Action.REFUSE:
            try:
                uncompressed = _uncompressed(raw)
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
            offsets = json_of(keys("first_offset last_offset"), totals)
            amount = {"unwritable": len(self._unwritable)}
            json_line({"type": "summary", **self._identity, **offsets, **more, **totals.as_dict(), **amount})
            return
        self._flush()
        whole = totals.all
        hidden = whole["batches"] - self._options.rows
        if not self._options.summary and hidden > 0:
            show(Text(f"and {count(hidden, 'batch', 'batches')} more: --limit N, --from OFFSET, --json", "dim"))
        heading = Text(f"{self._title}: ", "bold")
        if totals.first_offset is not None and totals.last_offset is not None:
            offsets_text = f"offsets {number(totals.first_offset)} to {number(totals.last_offset)}, "
            heading.append(offsets_text + in_all(whole), "not bold")
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
            json_line({"type": "batch", **self._identity, **json_of(_BATCH, seen)})
            return
        if self._page is None:
            self._page = table_of(self._columns, ())
        add_rows(self._page, self._columns, [seen])
        if self._page.row_count >= PAGE_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._page is not None:
            show(self._page)
            self._page = None


def in_all(sums: Sums) -> str:
    """Return records, batches and bytes in words."""
    return f"{count(sums['records'], 'record')} in {count(sums['batches'], 'batch', 'batches')}, {size(sums['bytes'])}"


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


def _uncompressed(raw: RawBatch) -> int:
    """Return the bytes of the records of a batch of magic 2 without compression. Raises BadRecords."""
    from mirror.records.codecs import uncompressed_size  # noqa: PLC0415 -- nobody else needs the codecs

    return uncompressed_size(raw.header.codec, raw.records)


def _unwritable(raw: RawBatch, rules: Rules, next_offset: int) -> Unfit | None:
    from mirror.records.rewrite import unfit  # noqa: PLC0415 -- loads the compiler, and is seldom needed

    return unfit(raw, Recipe(first_offset=next_offset, codec=rules.codec, max_bytes=rules.max_message_bytes))


def json_line(value: Any) -> None:
    """One JSON object on a line; not flushed, as there may be a million."""
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
