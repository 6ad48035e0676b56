"""Records to slices: those of some source batches that go to one target partition, encoded, in the source's order.

Spark moves slices instead of records, which costs it half as much. A source batch that stays as it is travels whole.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from mirror.errors import BadRecords, TooManyBytes
from mirror.records.columns import Records, encode, encode_headers, headers, joined, partitions_of
from mirror.records.header import APPEND_TIME, RawBatch
from mirror.records.rewrite import build, portions
from mirror.spark.datasource.rows import record_batch, schema_of
from mirror.spark.rekey.expressions import IT
from mirror.spark.rekey.microbatch import RekeyStop, Work, slot_of
from mirror.states import Remedy, State

#: Decoded bytes of source batches that are cut into slices together.
GROUP_BYTES: Final = 1 << 20
#: More than what a batch of one record takes besides its key, value and headers.
_AROUND: Final = 128
#: A codec adds less than one byte in so many to what it cannot compress.
_GROWTH: Final = 1024
#: Slices and bytes in one record batch of Arrow.
_MOST_ROWS: Final = 1024
_MOST_BYTES: Final = 4 << 20
#: What stands for a target partition where a slice goes to none, or to the dead-letter topic: these come first.
BURIED: Final = -2
NOWHERE: Final = -1
NO_KEY: Final = "no key"
FAILED: Final = "an expression failed"


class SliceKind(IntEnum):
    """What a slice is: encoded records, a batch as stored, a count of records that were left out, or records for the
    dead-letter topic.
    """

    RECORDS = 0
    BATCH = 1
    COUNTERS = 2
    DEAD = 3


SLICE_DDL: Final = (
    "slot int, kind int, target_partition int, source_partition int, first_offset bigint, records int, codec int,"
    " base_timestamp bigint, max_timestamp bigint, reason string, is_stamped boolean, data binary"
)
SLICE: Final = schema_of(SLICE_DDL)


@dataclass(slots=True)
class _Group:
    """Records of one source partition, of batches of one codec, and the target partition of each. `is_stamped`: their
    times are those at which the source's broker took them.
    """

    codec: int
    is_stamped: bool = False
    parts: list[Records] = field(default_factory=list)
    places: list[np.ndarray] = field(default_factory=list)
    bytes: int = 0


class Packer:
    """Give it the batches of a range in order, with what was made of their records; it gives slices."""

    def __init__(self, work: Work, partition: int) -> None:
        self._work, self._rule, self.partition = work, work.plan.rule, partition
        _, self._begin, self._until = next(range_ for range_ in work.plan.ranges if range_[0] == partition)
        self._group = _Group(-1)
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._left_out: Counter[str] = Counter()
        self._next = self._begin
        self._is_stamped = False  # the batch at hand

    def wanted(self, raw: RawBatch) -> Iterator[Records]:
        """The records of a batch that belong to the range, in portions: a batch may decompress to any size. Raises
        RekeyStop for a payload that cannot be decoded, and for a record that takes more memory than a task has.
        """
        header, first = raw.header, self._next
        self._next = header.next_offset
        # a compressed set of magic 0 or 1 is stored by its last offset
        at = header.base_offset if header.magic == 2 else first
        try:
            for portion in portions(raw, self._work.opens):
                first, last = np.searchsorted(portion.offsets, (self._begin, self._until)).tolist()
                if first < last:
                    at = int(portion.offsets[last - 1]) + 1
                    yield portion.rows(first, last)
                if at >= self._until:
                    return
        except TooManyBytes as problem:
            raise RekeyStop(State.REFUSED, self.partition, at, problem.detail, Remedy.RAISE_MEMORY_ANEW) from None
        except BadRecords as problem:
            raise RekeyStop(State.CORRUPT, self.partition, at, problem.detail) from None

    def take(self, raw: RawBatch, wanted: Records, made: pa.StructArray | None = None) -> None:
        """Add a batch: its `wanted` records, and what the expressions gave for each of them, if there are any. Raises
        RekeyStop at the first record that cannot be re-keyed, where the rule says so.
        """
        self._is_stamped = bool(raw.header.attributes & APPEND_TIME)
        changed, kept = self._changed(wanted, made)
        places = partitions_of(changed, self._rule.partitions)
        keyless = places < 0
        if keyless.any():
            if self._rule.compacted:
                kept = self._leave(changed, kept, keyless, NO_KEY)
            places[keyless] = self._spread(raw.header.base_offset)
        if not kept.all():
            changed, places = changed.taken(np.flatnonzero(kept)), places[kept]
        if not len(changed):
            return
        codec = raw.header.codec if self._rule.codec is None else self._rule.codec
        self._check_sizes(changed, codec)
        if self._is_whole(raw, len(changed), codec) and (places == places[0]).all():
            self._flush()
            self._add(SliceKind.BATCH, int(places[0]), changed, codec, False, bytes(raw.data))
            return
        kind, group = (codec, self._is_stamped), self._group
        if kind != (group.codec, group.is_stamped) or group.bytes >= GROUP_BYTES:
            self._flush()
            self._group = _Group(*kind)
        self._group.parts.append(changed)
        self._group.places.append(places)
        self._group.bytes += len(changed.data)

    def drain(self, *, all_of_it: bool = False) -> Iterator[pa.RecordBatch]:
        """What is ready, once it is worth a record batch."""
        if all_of_it:
            self._flush()
            for reason, count in (+self._left_out).items():
                self._row(SliceKind.COUNTERS, NOWHERE, self._begin, count, 0, -1, -1, reason, False, b"")
            self._left_out.clear()
        if self._rows and (all_of_it or len(self._rows) >= _MOST_ROWS or self._bytes >= _MOST_BYTES):
            rows, self._rows, self._bytes = self._rows, [], 0
            yield record_batch(SLICE, zip(*rows, strict=True))

    def _is_whole(self, raw: RawBatch, count: int, codec: int) -> bool:
        """Nothing of the batch changes, and a broker takes it as it is."""
        header = raw.header
        return (
            self._rule.keeps_records
            and header.magic == 2
            and header.is_dense
            and not header.attributes & APPEND_TIME  # restamped, its records would show other times
            and count == header.count
            and codec == header.codec
            and header.size <= self._rule.max_bytes
        )

    def _changed(self, wanted: Records, made: pa.StructArray | None) -> tuple[Records, np.ndarray]:
        """The records with what is new of them, and which of them are kept."""
        if made is None:
            return wanted, np.ones(len(wanted), bool)
        failed = made.is_null().to_numpy(zero_copy_only=False)
        made = pc.struct_field(made, IT)
        filtered = ~failed & ~pc.struct_field(made, "keep").fill_null(False).to_numpy(zero_copy_only=False)
        self._left_out["filtered"] += int(filtered.sum())
        kept = self._leave(wanted, ~filtered, failed, FAILED)
        if self._rule.rekey is not None:
            keyless = kept & pc.struct_field(made, "key").is_null().to_numpy(zero_copy_only=False)
            kept = self._leave(wanted, kept, keyless, NO_KEY)
        data, new = [wanted.data], dict[str, Any]()
        size = len(wanted.data)
        for name in ("key", "value"):
            if (self._rule.rekey if name == "key" else self._rule.value) is not None:
                at, sizes, held = _located(pc.struct_field(made, name), size)
                new |= {f"{name}_at": at, f"{name}_size": sizes}
                data.append(held)
                size += len(held)
        if self._rule.headers is not None:
            held, begin, end, count = encode_headers(map(_pairs, pc.struct_field(made, "headers").to_pylist()), size)
            new |= {"headers_at": begin, "headers_end": end, "header_count": count}
            data.append(np.frombuffer(held, np.uint8))
        return (replace(wanted, data=np.concatenate(data), **new) if new else wanted), kept

    def _leave(self, records: Records, kept: np.ndarray, bad: np.ndarray, reason: str) -> np.ndarray:
        """What is kept besides the bad ones, with which the rule's policy deals."""
        if not (bad := bad & kept).any():
            return kept
        if self._rule.on_bad_record == "stop":
            offset = int(records.offsets[np.flatnonzero(bad)[0]])
            detail = f"{reason} ({self._rule.expressions or 'its key'})"
            raise RekeyStop(State.REFUSED, self.partition, offset, detail, Remedy.CHANGE_RULE)
        if self._rule.on_bad_record == "drop":
            self._left_out["bad-record"] += int(bad.sum())
        else:
            self._bury(records.taken(np.flatnonzero(bad)), reason)
        left: np.ndarray = kept & ~bad
        return left

    def _bury(self, bad: Records, reason: str) -> None:
        """Records as they were, with where they come from in their headers."""
        names = (b"mirror.topic", b"mirror.partition", b"mirror.offset", b"mirror.reason")
        texts = ((self._rule.source, str(self.partition), str(offset), reason) for offset in bad.offsets.tolist())
        encoded = (zip(names, map(str.encode, text), strict=True) for text in texts)
        pairs = ([*headers(bad, index), *each] for index, each in enumerate(encoded))
        held, begin, end, count = encode_headers(pairs, len(bad.data))
        data = np.concatenate([bad.data, np.frombuffer(held, np.uint8)])
        buried = replace(bad, data=data, headers_at=begin, headers_end=end, header_count=count)
        self._check_sizes(buried, 0)
        self._add(SliceKind.DEAD, BURIED, buried, 0, self._is_stamped)

    def _check_sizes(self, records: Records, codec: int) -> None:
        """Raises RekeyStop at the first record that takes more than a batch, even alone; no slot has begun yet."""
        most = self._rule.max_bytes
        safe = most - _AROUND - most // _GROWTH
        if len(records.data) <= safe:
            return
        sizes = (
            np.maximum(records.key_size, 0)
            + np.maximum(records.value_size, 0)
            + records.headers_end
            - records.headers_at
        )
        for index in np.flatnonzero(sizes > safe).tolist():
            if (size := build(records.rows(index, index + 1), codec).header.size) > most:
                detail = (
                    f"a record takes {size} bytes alone, more than the {most} of a batch of"
                    f" {self._rule.writes_records_to}"
                )
                at = int(records.offsets[index])
                raise RekeyStop(State.REFUSED, self.partition, at, detail, Remedy.RAISE_REKEYED)

    def _spread(self, base_offset: int) -> int:
        """Where records without a key go: those of a batch together, batches evenly, and again to the same place."""
        return int(crc32c(struct.pack(">iq", self.partition, base_offset))) % self._rule.partitions

    def _flush(self) -> None:
        group, self._group = self._group, _Group(-1)
        if not group.parts:
            return
        every, places = joined(group.parts), np.concatenate(group.places)
        order = np.argsort(places, kind="stable")
        edges = np.flatnonzero(np.diff(places[order])) + 1
        for rows in np.split(order, edges):
            self._add(SliceKind.RECORDS, int(places[rows[0]]), every.taken(rows), group.codec, group.is_stamped)

    def _add(
        self, kind: SliceKind, place: int, held: Records, codec: int, is_stamped: bool, data: bytes | None = None
    ) -> None:
        base = int(held.timestamps[0])
        if data is None:
            data = bytes(encode(held, base))
        newest = int(held.timestamps.max())
        self._row(kind, place, int(held.offsets[0]), len(held), codec, base, newest, "", is_stamped, data)

    def _row(
        self,
        kind: SliceKind,
        place: int,
        first: int,
        count: int,
        codec: int,
        base: int,
        newest: int,
        reason: str,
        is_stamped: bool,
        data: bytes,
    ) -> None:
        slot = slot_of(place, self._work.slots) if kind in (SliceKind.RECORDS, SliceKind.BATCH) else 0
        about = (first, count, codec, base, newest, reason, is_stamped, data)
        self._rows.append((slot, kind, place, self.partition, *about))
        self._bytes += len(data)


def _located(column: Any, at: int) -> tuple[Any, Any, Any]:
    """Where each value of a binary column is in a buffer that has the column's bytes at `at`, their sizes, -1 for a
    null, and these bytes.
    """
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    held = np.frombuffer(column.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    sizes = np.diff(offsets)
    sizes[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return (offsets[:-1] - offsets[0] + at).astype(np.int32), sizes.astype(np.int32), held


def _pairs(listed: list[dict[str, Any]] | None) -> list[tuple[bytes, bytes | None]]:
    return [(one["key"] or b"", one["value"]) for one in listed or ()]
