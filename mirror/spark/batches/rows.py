"""Raw batches to Arrow columns: the facts of `mirror inspect --json`, one row for each batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mirror.batch.control import marker_name
from mirror.batch.declared import declared_size
from mirror.batch.header import APPEND_TIME, DELETE_HORIZON, TRANSACTIONAL, RawBatch
from mirror.batch.segment import Damage
from mirror.classifier import Action, classify
from mirror.errors import BadRecords
from mirror.policy.outcomes import Outcome
from mirror.policy.rules import Rules
from mirror.spark.batches.options import Detail, Sizes

#: A time as Spark has it.
TIME: Final = pa.timestamp("us", tz="UTC")
#: Column, Spark's type, Arrow's.
COLUMNS: Final = (
    ("topic", "string", pa.string()),
    ("partition", "int", pa.int32()),
    ("file", "string", pa.string()),
    ("position", "long", pa.int64()),
    ("base_offset", "long", pa.int64()),
    ("last_offset", "long", pa.int64()),
    ("records", "int", pa.int32()),
    ("holes", "long", pa.int64()),
    ("codec", "string", pa.string()),
    ("bytes", "long", pa.int64()),
    ("uncompressed", "long", pa.int64()),
    ("magic", "int", pa.int32()),
    ("transactional", "boolean", pa.bool_()),
    ("outcome", "string", pa.string()),
    ("control", "string", pa.string()),
    ("append_time", "boolean", pa.bool_()),
    ("delete_horizon", "boolean", pa.bool_()),
    ("producer_id", "long", pa.int64()),
    ("producer_epoch", "int", pa.int32()),
    ("base_sequence", "int", pa.int32()),
    ("leader_epoch", "int", pa.int32()),
    ("base_timestamp", "long", pa.int64()),
    ("max_timestamp", "long", pa.int64()),
    ("crc_holds", "boolean", pa.bool_()),
    ("verdict", "string", pa.string()),
    ("reason", "string", pa.string()),
    ("damage", "string", pa.string()),
    ("data", "binary", pa.binary()),
    ("base_time", "timestamp", TIME),
    ("max_time", "timestamp", TIME),
)
#: The columns that are computed from others, at the end.
_TIMES: Final = (("base_time", "base_timestamp"), ("max_time", "max_timestamp"))
_GIVEN: Final = COLUMNS[: -len(_TIMES)]
SCHEMA: Final = pa.schema([(name, kind) for name, _, kind in COLUMNS])
DDL: Final = ", ".join(f"{name} {kind}" for name, kind, _ in COLUMNS)

#: Rows, and bytes of data, of one record batch of Arrow.
MOST_ROWS: Final = 4096
MOST_BYTES: Final = 8 << 20
#: 31 December 9999, in ms: what lies behind has no date.
_LAST_DATE: Final = 253_402_300_799_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where batches come from. `next_offset` is where a mirror of this log would begin."""

    topic: str | None = None
    partition: int | None = None
    file: str | None = None
    next_offset: int = 0

    def __str__(self) -> str:
        return self.file or f"{self.topic}-{self.partition}"


class Rows:
    """Give it batches of one log in order; it gives Arrow's record batches when they are `full`, and at the end."""

    def __init__(self, place: Place, rules: Rules, detail: Detail) -> None:
        self._place, self._rules, self._detail = place, rules, detail
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Enough for a record batch."""
        return len(self._rows) >= MOST_ROWS or self._bytes >= MOST_BYTES

    def take(self, raw: RawBatch, outcome: Outcome, position: int | None = None, damage: Damage | None = None) -> None:
        """Add a batch; with `damage`, the one that its CRC does not hold for."""
        header, place = raw.header, self._place
        verdict = classify(
            header,
            self._rules,
            next_offset=place.next_offset,
            aborted=outcome is Outcome.ABORTED,
            crc_holds=damage is None,
        )
        refused = verdict.action is Action.REFUSE
        base = header.base_timestamp if header.magic == 2 else header.max_timestamp
        if self._detail.data:
            self._bytes += len(raw.data)
        self._rows.append(
            (
                *(place.topic, place.partition, place.file, position),
                header.base_offset if header.stated_records is not None else None,
                header.last_offset,
                *(header.stated_records, header.holes, header.codec_name, header.size),
                None if refused else self._uncompressed(raw),
                header.magic,
                bool(header.attributes & TRANSACTIONAL),
                outcome or None,
                marker_name(raw),
                bool(header.attributes & APPEND_TIME),
                bool(header.attributes & DELETE_HORIZON),
                *map(_known, (header.producer_id, header.producer_epoch, header.base_sequence)),
                header.partition_leader_epoch if header.magic == 2 else None,
                *map(_known, (base, header.max_timestamp)),
                *(damage is None, verdict.action, verdict.reason),
                damage and str(damage),
                raw.data if self._detail.data else None,
            )
        )

    def flag(self, damage: Damage) -> None:
        """Add a row for bytes that are no batch."""
        if damage.batch is not None:
            self.take(damage.batch, Outcome.NONE, damage.position, damage)
            return
        told = {
            "topic": self._place.topic,
            "partition": self._place.partition,
            "file": self._place.file,
            "position": damage.position,
            "damage": str(damage),
        }
        self._rows.append(tuple(told.get(name) for name, _, _ in _GIVEN))

    def drain(self) -> pa.RecordBatch:
        """What was taken since, as columns."""
        columns = list(zip(*self._rows, strict=True)) or [()] * len(_GIVEN)
        made = {name: pa.array(values, kind) for values, (name, _, kind) in zip(columns, _GIVEN, strict=True)}
        for name, given in _TIMES:
            made[name] = times(made[given])
        self._rows, self._bytes = [], 0
        return pa.RecordBatch.from_arrays([made[name] for name in SCHEMA.names], schema=SCHEMA)

    def _uncompressed(self, raw: RawBatch) -> int | None:
        sizes = self._detail.sizes
        if raw.header.magic != 2 or sizes is Sizes.NONE:
            return None
        if sizes is Sizes.STATED:
            return declared_size(raw.header.codec, raw.records)
        from mirror.batch.codecs import uncompressed_size  # noqa: PLC0415 -- who measures nothing needs no codecs

        try:
            return uncompressed_size(raw.header.codec, raw.records)
        except BadRecords:
            return None


def _known(value: int) -> int | None:
    return None if value < 0 else value


def times(milliseconds: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as times, null where there is none (-1) and where no calendar has one."""
    values = milliseconds.fill_null(-1).to_numpy(zero_copy_only=False)
    known = (values >= 0) & (values <= _LAST_DATE)
    return pa.array(np.where(known, values, 0) * 1000, pa.int64(), mask=~known).cast(TIME)
