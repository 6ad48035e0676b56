"""A batch as `mirror inspect` shows it: a row for people, an object for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from mirror.batch.control import marker_type
from mirror.batch.header import (
    APPEND_TIME,
    DELETE_HORIZON,
    TRANSACTIONAL,
    BatchHeader,
    RawBatch,
)
from mirror.classifier import Action, Verdict
from mirror.commands.tables import duration, number, table
from mirror.errors import BadRecords
from mirror.policy.outcomes import Outcome

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Kafka `ControlRecordType`, by its number.
_MARKERS: Final = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)
_COLOURS: Final = {Action.PASS: "green", Action.RESTAMP: "green", Action.REWRITE: "yellow", Action.REFUSE: "bold red"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One batch and what is known of it.

    `position` is the byte of its file where it begins, None where it came from a broker. `uncompressed` is the size of
    its records in bytes without compression, None where nobody asked or it does not decompress.
    """

    raw: RawBatch
    verdict: Verdict
    outcome: Outcome
    crc_holds: bool
    position: int | None
    uncompressed: int | None

    def as_dict(self) -> dict[str, Any]:
        """The batch for `--json`: sizes in bytes, times in ms since 1970 and as ISO text, null where there is none."""
        raw, header = self.raw, self.raw.header
        base_timestamp = header.base_timestamp if header.magic == 2 else header.max_timestamp
        return {
            "position": self.position,
            "base_offset": _base_offset(header),
            "last_offset": header.last_offset,
            "records": header.stated_records,
            "holes": holes(header),
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
        }

    def cells(self, ratio: bool) -> list[str | Text]:
        """The batch for people, one cell for each column of `batch_table`."""
        raw, header = self.raw, self.raw.header
        base, last, records = _base_offset(header), header.last_offset, header.stated_records
        base_timestamp = header.base_timestamp if header.magic == 2 else header.max_timestamp
        cells: list[str | Text] = [
            "-" if self.position is None else number(self.position),
            number(last) if base in (None, last) else f"{number(base)}-{number(last)}",
            "?" if records is None else number(records),
            number(gone) if (gone := holes(header)) else "",
            header.codec_name,
            number(header.size),
            f"{header.size / records:.0f}" if records else "",
        ]
        if ratio:
            cells.append(ratio_text(self.uncompressed, len(raw.records)))
        return [
            *cells,
            ", ".join(_flags(self)),
            f"{header.producer_id}/{header.producer_epoch}/{header.base_sequence}" if header.producer_id >= 0 else "",
            str(header.partition_leader_epoch) if header.magic == 2 else "",
            iso(base_timestamp) or "",
            f"+{duration(span)}" if (span := header.max_timestamp - base_timestamp) > 0 else "",
            Text("holds", "green") if self.crc_holds else Text("FAILS", "bold red"),
            Text(str(self.verdict), _COLOURS.get(self.verdict.action, "")),
        ]


def batch_table(*, ratio: bool) -> Table:
    """An empty table for `Seen.cells`."""
    return table(
        ("byte", "right"),
        ("offsets", "right"),
        ("records", "right"),
        ("holes", "right"),
        ("codec", "no_wrap"),
        ("size", "right"),
        ("B/rec", "right"),
        *([("ratio", "right")] if ratio else []),
        "flags",
        ("id/epoch/seq", "no_wrap"),
        ("leader", "right"),
        ("first time", "no_wrap"),
        ("span", "right"),
        ("CRC", "no_wrap"),
        ("verdict", "no_wrap"),
    )


def holes(header: BatchHeader) -> int:
    """Offsets of the batch that hold no record."""
    return header.last_offset_delta + 1 - header.count if header.magic == 2 else 0


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


def marker_name(raw: RawBatch) -> str | None:
    """What a control batch says: COMMIT, ABORT, another of Kafka's names; None for a batch of data."""
    if not raw.header.is_control:
        return None
    try:
        kind = marker_type(raw)
    except BadRecords:
        return "unreadable"
    return _MARKERS[kind] if 0 <= kind < len(_MARKERS) else f"type {kind}"


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
