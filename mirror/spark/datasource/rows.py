"""Raw batches, or their records, to Arrow columns.

An Arrow UDF and not `mapInArrow`, which asks for pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from mirror.errors import BadRecords, ConfigError
from mirror.policy.rules import Rules
from mirror.records.codecs import declared_size
from mirror.records.header import APPEND_TIME, DELETE_HORIZON, TRANSACTIONAL, RawBatch, marker_name, parse_header
from mirror.records.segment import Damage
from mirror.records.transactions import Outcome
from mirror.replication.classifier import Action, classify
from mirror.spark.compat import map_in_arrow
from mirror.spark.datasource.options import Detail, Sizes

if TYPE_CHECKING:
    from mirror.records.columns import Column


# --- Raw batches to Arrow columns -------------------------------------------------------------------------------------

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

_ARROW_TYPES: Final = {name: kind for _, name, kind in COLUMNS} | {"bigint": pa.int64()}


def schema_of(ddl: str) -> pa.Schema:
    """Return Arrow's schema of columns that are declared in Spark's DDL."""
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in map(str.split, ddl.split(","))])


def record_batch(schema: pa.Schema, columns: Iterable[Any]) -> pa.RecordBatch:
    """Return a record batch of these columns; all columns are empty where none is given."""
    values = list(columns) or [()] * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(values, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
        fields = {
            "topic": self._place.topic,
            "partition": self._place.partition,
            "file": self._place.file,
            "position": damage.position,
            "damage": str(damage),
        }
        self._rows.append(tuple(fields.get(name) for name, _, _ in _GIVEN))

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
        from mirror.records.codecs import uncompressed_size  # noqa: PLC0415 -- who measures nothing needs no codecs

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


# --- Batches to records -----------------------------------------------------------------------------------------------

_DDL: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary,"
    " headers array<struct<key: string, value: binary>>"
)
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_RECORD: Final = pa.struct(
    [
        ("offset", pa.int64()),
        ("timestamp", TIME),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(_HEADER)),
    ]
)
_NEEDED: Final = ("topic", "partition", "records", "outcome", "control", "damage", "data")
#: Batches of which nothing is a record: markers, and what is damaged or was emptied.
_HELD: Final = "control IS NULL AND damage IS NULL AND (records IS NULL OR records > 0)"
_COMMITTED: Final = "(outcome IS NULL OR outcome = 'committed')"


def records(batches: DataFrame, *, committed: bool = True) -> DataFrame:
    """The records of batches that were read with option `data`: a row each, with the columns of Spark's own Kafka
    source, and headers.

    Those of aborted and undecided transactions are left out unless `committed` is false, as a consumer's isolation
    level does. A batch that cannot be decoded fails the query, with its partition and offset. Raises ConfigError where
    `batches` are not rows of `kafka-batches`.
    """
    if missing := sorted({*_NEEDED} - set(batches.columns)):
        raise ConfigError(f"records() needs rows of kafka-batches; these have no column {', '.join(missing)}")
    wanted = batches.where(_HELD)
    if committed:
        wanted = wanted.where(_COMMITTED)
    return map_in_arrow(wanted.select("topic", "partition", "data"), _decoded, _DDL)


def _decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row for each record of each batch."""
    for rows in batches:
        for topic, partition, data in zip(*rows.columns, strict=True):
            if not data.is_valid:
                raise ConfigError("records() needs the bytes of batches: read them with option data=true")
            found = _records(f"{topic}-{partition}", memoryview(data.as_buffer()))
            where = [pa.repeat(topic, len(found)), pa.repeat(partition, len(found))]
            names = [field.name for field in _RECORD]
            yield pa.RecordBatch.from_arrays([*where, *found.flatten()], ["topic", "partition", *names])


def _records(where: str, data: memoryview) -> pa.Array:
    from mirror.records.columns import column, header_columns  # noqa: PLC0415 -- loads the compiler
    from mirror.records.rewrite import read  # noqa: PLC0415 -- likewise

    try:
        found = read(RawBatch(parse_header(data), data))
    except BadRecords as problem:
        raise BadRecords(f"{where}: {problem.detail}", problem.offset) from None
    columns = [
        pa.array(found.offsets),
        times(pa.array(found.timestamps)),
        binary(*column(found, "key")),
        binary(*column(found, "value")),
        header_lists(*header_columns(found)),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_RECORD))


def header_lists(offsets: np.ndarray, keys: Column, values: Column) -> pa.Array:
    """The headers of records, as `records.header_columns` has them, as an array of lists."""
    pairs = pa.StructArray.from_arrays([binary(*keys, pa.string()), binary(*values)], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pa.array(offsets), pairs).cast(pa.list_(_HEADER))


def binary(offsets: np.ndarray, gathered: np.ndarray, known: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    """A column as `records.column` has it, as an array of bytes, or of another `kind` with the same layout."""
    valid = np.packbits(known, bitorder="little")
    buffers = [pa.py_buffer(column) for column in (valid, offsets, gathered)]
    return pa.Array.from_buffers(kind or pa.binary(), len(known), buffers)
