"""Batches to records: decompressed and decoded in tasks, into Arrow columns, with no Python object for a record.

An Arrow UDF and not `mapInArrow`, which asks for pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.functions import arrow_udf

from mirror.batch.header import RawBatch, parse_header
from mirror.errors import BadRecords, ConfigError
from mirror.spark.batches.rows import TIME, times

if TYPE_CHECKING:
    from mirror.batch.records import Column

_DDL: Final = (
    "array<struct<offset: bigint, timestamp: timestamp, key: binary, value: binary,"
    " headers: array<struct<key: string, value: binary>>>>"
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
    decoded = arrow_udf(_decoded, _DDL)  # type: ignore[call-overload] # its kind follows from the type hints
    listed = wanted.select("topic", "partition", decoded("topic", "partition", "data").alias("found"))
    return listed.selectExpr("topic", "partition", "inline(found)")


def _decoded(topics: pa.Array, partitions: pa.Array, data: pa.Array) -> pa.Array:
    """A list of records for each batch."""
    parts = []
    for topic, partition, one in zip(topics, partitions, data, strict=True):
        if not one.is_valid:
            raise ConfigError("records() needs the bytes of batches: read them with option data=true")
        parts.append(_records(f"{topic}-{partition}", memoryview(one.as_buffer())))
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.concat_arrays(parts or [pa.array([], _RECORD)]))


def _records(where: str, data: memoryview) -> pa.Array:
    from mirror.batch.records import column, header_columns  # noqa: PLC0415 -- loads the compiler
    from mirror.batch.rewrite import read  # noqa: PLC0415 -- likewise

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
    buffers = [pa.py_buffer(one) for one in (valid, offsets, gathered)]
    return pa.Array.from_buffers(kind or pa.binary(), len(known), buffers)
