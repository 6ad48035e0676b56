"""A batch as `mirror inspect` shows it: a row for people, an object for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from mirror.batch.control import marker_name
from mirror.batch.header import (
    APPEND_TIME,
    DELETE_HORIZON,
    TRANSACTIONAL,
    BatchHeader,
    RawBatch,
)
from mirror.classifier import Action, Verdict
from mirror.commands.tables import duration, number, table
from mirror.policy.outcomes import Outcome

if TYPE_CHECKING:
    from mirror.batch.rewrite import Unfit

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
_COLOURS: Final = {Action.PASS: "green", Action.RESTAMP: "green", Action.REWRITE: "yellow", Action.REFUSE: "bold red"}


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
            "unwritable": self.unwritable and _told(self.unwritable),
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


def _told(found: Unfit) -> dict[str, Any]:
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
