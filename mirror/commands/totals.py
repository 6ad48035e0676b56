"""What `mirror inspect` adds up: batches, records and bytes by codec and by verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from mirror.batch.header import RawBatch, codec_name
from mirror.classifier import Action, Verdict
from mirror.commands.batches import ratio_text
from mirror.commands.tables import count, number, size, table
from mirror.policy.outcomes import Outcome

#: Verdicts that need no decompression.
_AS_STORED: Final = (Action.PASS, Action.RESTAMP)


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
            stored += sums.bytes if verdict.action in _AS_STORED else 0
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
