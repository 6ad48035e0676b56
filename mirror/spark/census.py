"""A census of logs by Spark SQL: by topic, codec, verdict, and size, and what the format costs each record.

A length, a byte of attributes that nothing uses, a timestamp delta, an offset delta, two lengths and a header count
(Kafka `DefaultRecord.java`); all but the attributes take one byte for each seven bits of a zigzag number. Counted
before compression, and as Kafka's own clients write them, in as few bytes as may be.

One job reads every header once and brings back a small table of groups; every figure is a sum over that table.

**Overhead of the format** (magic 2). A batch spends 61 bytes on its header, and each record one byte on attributes
that nothing uses. KIP-931, discarded, would have spared that byte behind a flag of the batch; what the format takes of
each record is measured, not assumed. And it would have made three fields of the header variable-length:
last offset delta (4 bytes), base timestamp (8) and, as a delta to that, max timestamp (8). A timestamp of our time
takes 6 bytes then, and a delta from 128 to 16,383 takes 2: 20 bytes become 10. Of the 57 bytes that Kafka's
documentation lists (it leaves out the count) that is 17.5 %, of all 61 it is 16.4 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from mirror.errors import BadRecords
from mirror.records.header import HEADER_BYTES, RawBatch, parse_header
from mirror.records.recipe import CAP
from mirror.spark.compat import map_in_arrow
from mirror.spark.datasource.options import parse
from mirror.spark.datasource.plan import planned
from mirror.spark.datasource.rows import DDL

if TYPE_CHECKING:
    from mirror.records.columns import Records


# --- What the format of magic 2 costs each record ---------------------------------------------------------------------

#: What is counted of a batch, in this order: how many records, then bytes. `kip931` is what the discarded KIP-931 would
#: have spared of them: the attributes, and what that takes off the length.
COUNTED: Final = (
    *("measured", "lengths", "attributes", "timestamp_deltas", "offset_deltas", "key_lengths", "value_lengths"),
    *("header_counts", "keys", "values", "headers", "kip931"),
)
#: Those of them that are the format's.
FORMAT: Final = COUNTED[1:8]


def framing(raw: RawBatch) -> dict[str, int]:
    """The bytes of a batch's records by what they are for, by the names of `COUNTED`; nothing for a marker and for a
    batch of magic 0 or 1.

    Raises BadRecords where the payload does not decompress to at most `CAP` bytes, or is not what the header says.
    """
    from mirror.records.codecs import decompress  # noqa: PLC0415 -- who only counts headers needs no codecs,
    from mirror.records.columns import decode  # noqa: PLC0415 -- nor the compiler

    header = raw.header
    if header.magic != 2 or header.is_control or not header.count:
        return dict.fromkeys(COUNTED, 0)
    try:
        section = decompress(header.codec, raw.records, CAP)
        records = decode(section, header.count, header.base_offset, header.base_timestamp, header.last_offset_delta)
    except BadRecords as problem:
        raise problem.at(header.base_offset) from None
    return counted(records, header.base_offset, header.base_timestamp)


def counted(records: Records, base_offset: int, base_timestamp: int) -> dict[str, int]:
    """The same of records that were decoded; their timestamps are those that are stored with them."""
    keys, values = np.maximum(records.key_size, 0), np.maximum(records.value_size, 0)
    headers = records.headers_end - records.headers_at
    fields = [
        varint_sizes(numbers)
        for numbers in (
            records.timestamps - base_timestamp,
            records.offsets - base_offset,
            records.key_size,
            records.value_size,
            records.header_count,
        )
    ]
    bodies = 1 + sum(fields) + keys.astype(np.int64) + values + headers
    lengths = varint_sizes(bodies)
    spared = len(records) + int((lengths - varint_sizes(bodies - 1)).sum())
    sums = (int(column.sum()) for column in (*fields, keys, values, headers))
    return dict(zip(COUNTED, (len(records), int(lengths.sum()), len(records), *sums, spared), strict=True))


def varint_sizes(numbers: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.int64]:
    """Bytes that each number takes as a zigzag variable-length one (Kafka `ByteUtils.sizeOfVarlong`)."""
    wide = numbers.astype(np.int64)
    zigzag = ((wide << 1) ^ (wide >> 63)).view(np.uint64)
    sizes = np.ones(len(wide), np.int64)
    for shift in range(7, 64, 7):
        sizes += zigzag >= np.uint64(1 << shift)
    return sizes


# --- A census of logs -------------------------------------------------------------------------------------------------

#: Bytes of the three fields that KIP-931 would have made variable-length.
_FIXED: Final = 20
#: A size class below this one is a small batch: 2^12 bytes.
SMALL_CLASS: Final = 12
#: Bytes of the header as Kafka's documentation lists its fields, the count left out.
DOCUMENTED_HEADER: Final = 57

Key = TypeVar("Key")

_VIEW: Final = "mirror_census_batches"


def _varint(value: str) -> str:
    """Bytes of a number in groups of seven bits, as SQL; a negative one takes ten."""
    steps = " ".join(f"WHEN {value} < {1 << 7 * size} THEN {size}" for size in range(1, 9))
    return f"(CASE WHEN {value} < 0 THEN 10 {steps} ELSE 9 END)"


_SPARED: Final = " + ".join(
    map(
        _varint,
        (
            "(last_offset - base_offset)",
            "coalesce(base_timestamp, -1)",
            "(coalesce(max_timestamp - base_timestamp, -1))",
        ),
    )
)
SQL: Final = f"""
    SELECT count(bytes) AS batches,
           coalesce(sum(records), 0) AS records,
           coalesce(sum(bytes), 0) AS bytes,
           coalesce(sum(IF(uncompressed IS NULL, 0, bytes - {HEADER_BYTES})), 0) AS known,
           coalesce(sum(uncompressed), 0) AS uncompressed,
           count(IF(magic = 2, 1, NULL)) AS headers,
           coalesce(sum(IF(magic = 2, records, 0)), 0) AS attributes,
           coalesce(sum(IF(magic = 2, {_FIXED} - ({_SPARED}), 0)), 0) AS spared,
           count(IF(control IS NULL, NULL, 1)) AS markers,
           count(damage) AS damaged,
           coalesce(topic, '') AS topic,
           coalesce(codec, '') AS codec,
           coalesce(verdict, '') AS verdict,
           coalesce(reason, '') AS reason,
           CAST(floor(log2(bytes)) AS INT) AS size_class
    FROM {{batches}}
    GROUP BY ALL
"""  # noqa: S608 -- no part of it is anybody's input


@dataclass(frozen=True, slots=True)
class Sums:
    """Figures of batches."""

    #: Batches that are sound.
    batches: int = 0
    #: Their records.
    records: int = 0
    #: Their bytes.
    bytes: int = 0
    #: Bytes of the records sections of which the size without compression is known.
    known: int = 0
    #: That size.
    uncompressed: int = 0
    #: Headers of magic 2.
    headers: int = 0
    #: Records of magic 2, each with a byte of attributes.
    attributes: int = 0
    #: Bytes that KIP-931 would spare in headers.
    spared: int = 0
    #: Control markers.
    markers: int = 0
    #: Logs that end in damage.
    damaged: int = 0

    @property
    def ratio(self) -> float | None:
        """Tell how many times smaller records are for their compression, where that is known."""
        return self.uncompressed / self.known if self.known else None

    @property
    def ratio_share(self) -> float | None:
        """The share of the bytes of all records sections that the ratio rests on, from 0 to 1."""
        payload = self.bytes - HEADER_BYTES * self.batches
        return min(1.0, self.known / payload) if self.known and payload > 0 else None

    @property
    def mean(self) -> float | None:
        """Bytes of a batch."""
        return self.bytes / self.batches if self.batches else None


@dataclass(frozen=True, slots=True)
class Group(Sums):
    """Batches of one topic, codec, verdict and size class."""

    topic: str = ""
    codec: str = ""
    verdict: str = ""
    reason: str = ""
    #: The power of two that their bytes reach; None for damage.
    size_class: int | None = None


@dataclass(frozen=True, slots=True)
class Framing:
    """What the records of one topic are made of, in bytes before compression; names as in `framing.COUNTED`, of which
    `measured` counts records. `unread` counts batches that could not be decoded.
    """

    topic: str
    unread: int
    measured: int
    lengths: int
    attributes: int
    timestamp_deltas: int
    offset_deltas: int
    key_lengths: int
    value_lengths: int
    header_counts: int
    keys: int
    values: int
    headers: int
    kip931: int

    @property
    def format(self) -> int:
        """Bytes that are neither keys, values nor headers."""
        return sum(getattr(self, name) for name in FORMAT)

    @property
    def bytes(self) -> int:
        """All bytes of the records."""
        return self.format + self.keys + self.values + self.headers


@dataclass(frozen=True, slots=True)
class Census:
    """The groups of a census, and what they add up to. `seconds` is how long it took. `framings`: what records are made
    of, by topic; empty where that was not asked for.
    """

    groups: tuple[Group, ...]
    seconds: float
    framings: tuple[Framing, ...] = ()

    @property
    def whole(self) -> Sums:
        """Everything."""
        return added(self.groups)

    @property
    def by_topic(self) -> Mapping[str, Sums]:
        """Sums by topic, in order of their names."""
        return dict(sorted(_by(self.groups, lambda group: group.topic).items()))

    @property
    def by_codec(self) -> Mapping[str, Sums]:
        """Sums by codec, the largest first."""
        return _largest_first(_by(self._sound, lambda group: group.codec))

    @property
    def by_verdict(self) -> Mapping[str, Sums]:
        """Sums by verdict and reason, the largest first."""
        return _largest_first(_by(self._sound, lambda group: f"{group.verdict}/{group.reason}"))

    @property
    def by_size(self) -> Mapping[int, Sums]:
        """Sums by size class, from the smallest to the largest, those in between included."""
        found = _by(self._sound, lambda group: group.size_class or 0)
        return {size: found.get(size, Sums()) for size in range(min(found), max(found) + 1)} if found else {}

    @property
    def decompressed(self) -> tuple[Sums, Sums]:
        """What MirrorMaker 2 decompresses and compresses again: every compressed batch of data. Then what this mirror
        does: the compressed ones that it rewrites.
        """
        packed = [group for group in self._sound if group.codec != "none" and group.reason != "control"]
        return added(packed), added([group for group in packed if group.verdict == "REWRITE"])

    @property
    def small(self) -> Mapping[str, tuple[int, int]]:
        """Topics of which more than half the data batches are small: how many are, and of how many."""
        found: dict[str, tuple[int, int]] = {}
        for topic, groups in _grouped(self._sound, lambda group: group.topic).items():
            data = sum(group.batches - group.markers for group in groups)
            few = sum(group.batches - group.markers for group in groups if (group.size_class or 0) < SMALL_CLASS)
            if 2 * few > data:
                found[topic] = few, data
        return dict(sorted(found.items()))

    @property
    def _sound(self) -> Sequence[Group]:
        return [group for group in self.groups if group.batches]


def added(groups: Sequence[Group]) -> Sums:
    """The sums of several groups."""
    return Sums(*(sum(getattr(group, field.name) for group in groups) for field in fields(Sums)))


def taken_by(
    context: SparkContext, options: Mapping[str, str], *, records: bool = False
) -> tuple[tuple[Group, ...], tuple[Framing, ...]]:
    """The same, of what options of `kafka-batches` ask for; and, in a job of its own, what the `records` are made of.
    Raises what Spark raises.
    """
    spark = SparkSession(context)
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # the groups are few
    groups = taken(spark, read(spark, options))
    if not records:
        return groups, ()
    return groups, framings(read(spark, {**options, "data": "true", "uncompressed": "none"}))


def read(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Read what `kafka-batches` would for these options, on a Spark without the Data Source API as well."""
    asked = parse(options)
    slices = planned(asked, asked.wanted)

    def rows(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from slices[number].read()

    return map_in_arrow(spark.range(0, len(slices), 1, max(1, len(slices))), rows, DDL)


def framings(batches: DataFrame) -> tuple[Framing, ...]:
    """What the records of rows of `kafka-batches` with their `data` are made of, by topic, in one job."""
    held = batches.where("magic = 2 AND control IS NULL AND damage IS NULL AND records > 0")
    sums = [f"coalesce(sum(found[{number}]), 0) AS {name}" for number, name in enumerate(COUNTED)]
    rows = map_in_arrow(held.select("topic", "data"), _framings, "topic string, found array<bigint>").groupBy("topic")
    summed = rows.agg(*map(expr, ("count(IF(found IS NULL, 1, NULL)) AS unread", *sums)))
    return tuple(Framing(row[0] or "", *row[1:]) for row in summed.orderBy("topic").collect())


def _framings(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The counts of each batch; null for one that cannot be decoded."""
    for rows in batches:
        found: list[list[int] | None] = []
        for data in rows.column("data"):
            held = memoryview(data.as_buffer())
            try:
                found.append(list(framing(RawBatch(parse_header(held), held)).values()))
            except BadRecords:
                found.append(None)
        counts = pa.array(found, pa.list_(pa.int64()))
        yield pa.RecordBatch.from_arrays([rows.column("topic"), counts], ["topic", "found"])


def taken(spark: SparkSession, batches: DataFrame) -> tuple[Group, ...]:
    """The groups of rows of `kafka-batches`, in one job."""
    batches.createOrReplaceTempView(_VIEW)
    try:
        return tuple(Group(*row) for row in spark.sql(SQL.format(batches=_VIEW)).collect())
    finally:
        spark.catalog.dropTempView(_VIEW)


def _grouped(groups: Sequence[Group], key: Callable[[Group], Key]) -> dict[Key, list[Group]]:
    found: dict[Key, list[Group]] = {}
    for group in groups:
        found.setdefault(key(group), []).append(group)
    return found


def _by(groups: Sequence[Group], key: Callable[[Group], Key]) -> dict[Key, Sums]:
    return {name: added(of) for name, of in _grouped(groups, key).items()}


def _largest_first(found: Mapping[str, Sums]) -> dict[str, Sums]:
    return dict(sorted(found.items(), key=lambda item: -item[1].bytes))
