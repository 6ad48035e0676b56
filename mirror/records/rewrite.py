"""Batches made anew where the stored bytes cannot be appended as they are, old formats, and padding.

A batch of that time is one message; its layout is in `records/header.py`. Compressed messages are a set inside the
value of a wrapper. The wrapper has the offset of the last message inside. Offsets inside are absolute in magic 0; in
magic 1 they are relative (KIP-31), and absolute ones come out right by the same rule: the last one is the wrapper's. An
append-time wrapper gives its timestamp to all (KIP-32). Compaction leaves holes.

The rules are Kafka's `AbstractLegacyRecordBatch.DeepRecordsIterator` and `LegacyRecord`, with the checks that a broker
makes before it stores a set (`LogValidator.validateRecord`): every CRC, and one magic for wrapper and messages. It is
stricter in two ways, so that nothing is left out in silence: a message cut short at the end of a set is an error, and
so are bytes behind a value.

The same records in the same order, with the same codec unless the recipe names another one; keys, values, headers and
timestamps untouched. What comes out is dense, as a broker demands of a producer (Kafka `LogValidator.validateBatch`),
and carries the source's offsets: a batch with holes becomes one batch for each run without them. Where offsets are
translated, one batch closes up over them.

A batch of any size is rewritten: it is decompressed as a stream, its records are opened in portions, and a batch ends
where a portion does. So what is held is bounded by a portion, whatever the batch decompresses to, and so is what a
reader of the copy has to open. Only one record that is larger than `Recipe.cap` is refused.

The result is a function of the source batches, of the target's codec and largest batch, and of nothing else, so two
writers append the same batches (invariant P2 in `replication/decide.py`). Decision: a portion has a fixed size,
counted from the batch's first record, wherever a writer begins in it; it does not follow the memory that a task has,
which changes with the number of tasks and with a setting. What follows the memory is `Recipe.cap` alone, which decides
whether a record is written, and never where a batch ends. What resume compares (`replication/decide.py`: the last
batch's records, offset by offset, and the position that the journal keeps) does not ask where batches end either, so a
copy that another version made of other portions goes on.

Each says so itself: its first record carries the header `mirror` with the value `padding`. So a tail of padding is
known from mirrored data, whatever the source has lost since. A batch's content follows from its offsets alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
from crc32c import crc32c

from mirror.errors import BadRecords, RecordTooLarge, TooManyBytes
from mirror.records import columns
from mirror.records.codecs import ZSTD, Buffer, compress, decompress
from mirror.records.columns import MOST_RECORDS, Int64s, Records, headers, joined
from mirror.records.header import (
    APPEND_TIME,
    CODEC_MASK,
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    LAYOUT,
    LENGTH_PREFIX,
    MAGIC_AT,
    SMALLEST_LENGTH,
    SMALLEST_LENGTH_V1,
    RawBatch,
    parse_header,
)
from mirror.records.recipe import CAP, LARGEST_RECORD, PORTION, Pieces, Recipe

# --- The records of magic 0 and 1, as Kafka 0.10 and older wrote them -------------------------------------------------

#: By magic: offset, length, CRC, magic, attributes, in magic 1 the timestamp, and the key's length.
_HEAD: Final = (Struct(">qiIbBi"), Struct(">qiIbBqi"))
_SMALLEST: Final = (SMALLEST_LENGTH, SMALLEST_LENGTH_V1)
_SIZE: Final = Struct(">i")

#: Offset, timestamp, key position, key size, value position, value size; positions in bytes of the set.
_Row = tuple[int, int, int, int, int, int]


def read_legacy(raw: RawBatch, cap: int = CAP) -> Records:
    """The records of a message, or of the set that it wraps, as a consumer sees them; none has headers.

    Offsets rise. They end with the header's last offset, unless that is 0: librdkafka left it so in what it produced,
    and the set's own offsets then count.

    Raises BadRecords, with the message's offset, where a CRC is wrong, a length leads nowhere, a set is empty, of
    another magic, compressed twice or out of order, and for a payload that does not decompress to at most `cap` bytes.
    """
    try:
        return _read_legacy(raw, cap)
    except BadRecords as problem:
        raise problem.at(raw.header.base_offset) from None


def _read_legacy(raw: RawBatch, cap: int) -> Records:
    header = raw.header
    row, _ = _message(raw.data, 0, header.magic)
    if not header.codec:
        return _columns(raw.data, array("q", row))
    _, timestamp, _, _, value_at, value_size = row
    if value_size < 0:
        raise BadRecords("a compressed set without a value")
    if header.codec == ZSTD:
        raise BadRecords(f"zstd in magic {header.magic}, which does not have it")
    inner = memoryview(decompress(header.codec, raw.data[value_at : value_at + value_size], cap, magic=header.magic))
    found = _columns(inner, _rows(inner, header.magic))
    _make_absolute(found, header.magic, header.base_offset)
    return found.with_timestamp(timestamp) if header.attributes & APPEND_TIME else found


def _rows(data: memoryview, magic: int) -> array[int]:
    """The messages of a decompressed set, one row after the other."""
    rows = array("q")
    at = 0
    while at < len(data):
        row, following = _message(data, at, magic)
        if data[at + MAGIC_AT + 1] & CODEC_MASK:
            raise BadRecords(f"the message at byte {at} of a compressed set is compressed itself")
        rows.extend(row)
        at = following
    if not rows:
        raise BadRecords("a compressed set without messages")
    return rows


def _message(data: memoryview, at: int, magic: int) -> tuple[_Row, int]:
    """The message at `at` and the position behind it."""
    head = _HEAD[magic]
    if len(data) - at < LENGTH_PREFIX + _SMALLEST[magic]:
        raise BadRecords(f"the message at byte {at} is cut short")
    offset, length, crc, its_magic, _, *timestamp, key_size = head.unpack_from(data, at)
    following = at + LENGTH_PREFIX + length
    if length < _SMALLEST[magic] or following > len(data):
        raise BadRecords(f"the message at byte {at} has length {length}")
    if its_magic != magic:
        raise BadRecords(f"the message at byte {at} has magic {its_magic} inside magic {magic}")
    if crc32(data[at + MAGIC_AT : following]) != crc:
        raise BadRecords(f"the CRC of the message at byte {at} does not hold")
    key_at = at + head.size
    value_at = key_at + max(key_size, 0) + _SIZE.size
    if value_at > following:
        raise BadRecords(f"the message at byte {at} has a key of {key_size} bytes")
    (value_size,) = _SIZE.unpack_from(data, value_at - _SIZE.size)
    if value_at + max(value_size, 0) != following:
        raise BadRecords(f"the message at byte {at} has a value of {value_size} bytes")
    # any negative length is a null (Kafka Utils.sizeDelimited)
    sizes = max(key_size, -1), max(value_size, -1)
    return (offset, timestamp[0] if timestamp else -1, key_at, sizes[0], value_at, sizes[1]), following


def _columns(data: Buffer, rows: array[int]) -> Records:
    table = np.frombuffer(rows, np.int64).reshape(-1, 6)
    found = Records.empty(data, len(table))
    found.offsets[:], found.timestamps[:] = table[:, 0], table[:, 1]
    found.key_at[:], found.key_size[:] = table[:, 2], table[:, 3]
    found.value_at[:], found.value_size[:] = table[:, 4], table[:, 5]
    found.headers_at[:] = found.value_at + np.maximum(found.value_size, 0)
    found.headers_end[:] = found.headers_at
    found.header_count[:] = 0
    return found


def _make_absolute(found: Records, magic: int, wrapper_offset: int) -> None:
    offsets = found.offsets
    if offsets[0] < 0 or not (offsets[1:] > offsets[:-1]).all():
        raise BadRecords("the offsets of a compressed set are out of order")
    last = int(offsets[-1])
    if not wrapper_offset:
        return
    if last > wrapper_offset:
        raise BadRecords(f"a compressed set has offset {last} inside offset {wrapper_offset}")
    if magic:
        offsets += wrapper_offset - last


# --- Batches made anew where the stored bytes cannot be appended as they are ------------------------------------------

_NONE: Final = -1
#: Lengths tried by proportion before the range of what is left is halved.
_GUESSES: Final = 5
#: What records may shrink to so that the first length tried is not too short.
_RATIO: Final = 16


def read(raw: RawBatch, cap: int = CAP) -> Records:
    """The records of a batch of any magic. Raises BadRecords."""
    return columns.read(raw, cap) if raw.header.magic == 2 else read_legacy(raw, cap)


def first_offset(raw: RawBatch, cap: int = CAP) -> int:
    """The first offset that a batch takes. The header of a compressed set of magic 0 or 1 has its last one alone: there
    that of its first record counts, which is read. Raises BadRecords.
    """
    header = raw.header
    return int(read_legacy(raw, cap).offsets[0]) if header.magic < 2 and header.codec else header.base_offset


def portions(raw: RawBatch, cap: int = LARGEST_RECORD, portion: int = PORTION) -> Iterator[Records]:
    """The same of a batch of any size, in portions (`records.portions`); what magic 0 or 1 wraps comes whole, and has
    at most `cap` bytes. Raises BadRecords.
    """
    return columns.portions(raw, cap, portion) if raw.header.magic == 2 else iter((read_legacy(raw, cap),))


def rewrite(raws: Sequence[RawBatch], recipe: Recipe) -> tuple[RawBatch, ...]:
    """The batches of `rewritten`."""
    return tuple(batch for batch, _ in rewritten(raws, recipe))


def rewritten(
    raws: Sequence[RawBatch], recipe: Recipe, *, closes_up: bool = False
) -> Iterator[tuple[RawBatch, Int64s]]:
    """The records of `raws`, batches of one codec in offset order, as the fewest dense batches of each portion that
    fit, each with its records' source offsets. A batch ends at each hole, unless it `closes_up`.

    Base offsets and CRCs are set and producer fields are empty; `restamp` does the rest. Raises BadRecords for a
    payload that is not what its header says, TooManyBytes for a record that has too many bytes to be opened,
    RecordTooLarge for one that fits into no batch: each behind the batches that come before.
    """
    codec = raws[0].header.codec if recipe.codec is None else recipe.codec
    for records in _together(raws, recipe):
        wanted = records.rows(int(np.searchsorted(records.offsets, recipe.first_offset)), len(records))
        for run in (wanted,) if closes_up else dense(wanted):
            yield from fitting(run, codec, recipe.max_bytes, recipe.max_record_bytes)


class Unfit(NamedTuple):
    """Offsets from `first` to before `next_offset` whose records cannot be written; `reason` is that of a loss."""

    first: int
    next_offset: int
    detail: str
    reason: str


def unfit(raw: RawBatch, recipe: Recipe) -> Unfit | None:
    """What of a batch cannot be written: its first record that is too large, with those right behind it that are, too,
    or all of it from where it cannot be read; None where it can be rewritten, by a task with enough memory.
    """
    found: Unfit | None = None
    header = raw.header
    while True:
        try:
            for _ in rewritten([raw], recipe):
                if found is not None:
                    return found  # a record that can be written comes next
        except RecordTooLarge as record:
            if found is not None and record.offset != found.next_offset:
                return found
            first, detail = (found.first, found.detail) if found is not None else (record.offset, record.detail)
            found = Unfit(first, record.offset + 1, detail, "too_large")
            recipe = replace(recipe, first_offset=record.offset + 1)
        except TooManyBytes:
            return found
        except BadRecords as damage:
            first = max(recipe.first_offset, header.base_offset) if header.magic == 2 else recipe.first_offset
            return found or Unfit(first, header.next_offset, damage.detail, "damage")
        else:
            return found


def unreadable(raw: RawBatch) -> Unfit | None:
    """All of a dense batch, where its records cannot be read; None where they can, by a task with enough memory."""
    try:
        for _ in portions(raw):
            pass
    except TooManyBytes:
        return None
    except BadRecords as damage:
        return Unfit(raw.header.base_offset, raw.header.next_offset, damage.detail, "damage")
    return None


def pieces(offsets: Int64s) -> Pieces:
    """Return the runs of offsets without a hole; there is an offset at least."""
    places = np.concatenate(([0], np.flatnonzero(np.diff(offsets) != 1) + 1)).astype(np.int64)
    sources = array("q", offsets[places].tobytes())
    return Pieces(sources, array("q", places.tobytes()), int(offsets[-1]) + 1)


def _together(raws: Sequence[RawBatch], recipe: Recipe) -> Iterator[Records]:
    """Portions, and batches joined as long as they stay below one and `MOST_RECORDS`: small as they are, tiny batches
    may decompress to any size together.
    """
    parts: list[Records] = []
    size = count = 0
    for raw in raws:
        for part in portions(raw, recipe.cap, recipe.portion):
            if parts and (size + len(part.data) > recipe.portion or count + len(part) > MOST_RECORDS):
                yield joined(parts)
                parts, size, count = [], 0, 0
            parts.append(part)
            size, count = size + len(part.data), count + len(part)
    yield joined(parts)


def dense(records: Records) -> Iterator[Records]:
    """Cut where offsets are missing."""
    edges = (*pieces(records.offsets).places, len(records)) if len(records) else ()
    for start, stop in pairwise(edges):
        yield records.rows(start, stop)


def fitting(run: Records, codec: int, max_bytes: int, max_record_bytes: int = 0) -> Iterator[tuple[RawBatch, Int64s]]:
    """Cut where a batch would be too large, each time after as many records as fit."""
    while len(run):
        fits, batch = _longest(run, codec, max_bytes, max_record_bytes)
        yield batch, run.offsets[:fits]
        run = run.rows(fits, len(run))


def _longest(run: Records, codec: int, max_bytes: int, max_record_bytes: int) -> tuple[int, RawBatch]:
    """The longest prefix that fits, and how many records it has. The next length to try follows from the size of the
    last one, kept between what fits and what does not; after `_GUESSES` of them the range is halved each time, since
    records may be chosen so that no guess comes near.

    What is tried first bounds the work: a part takes no more than in proportion to itself, however long the run is.
    """
    fits, batch, fails = 0, None, len(run) + 1
    tried, guesses = _plausible(run, max_bytes), 0
    while True:
        made = build(run.rows(0, tried), codec)
        size = made.header.size
        if size <= max_bytes or (tried == 1 and size <= max_record_bytes):
            fits, batch = tried, made
        elif tried == 1:
            offset, most = int(run.offsets[0]), max(max_bytes, max_record_bytes)
            raise RecordTooLarge(f"a record takes {size} bytes alone, more than the {most} of a batch", offset)
        else:
            fails = tried
        if batch is not None and fails - fits == 1:
            return fits, batch
        guesses += 1
        guess = int(tried * max_bytes / size) if guesses < _GUESSES else (fits + fails) // 2
        tried = min(max(guess, fits + 1), fails - 1)


def _plausible(run: Records, max_bytes: int) -> int:
    """How many records take `_RATIO` times a batch's size before compression; one at least, all at most."""
    limit = min(int(run.key_at[0]) + _RATIO * max_bytes, int(run.headers_end[-1]))
    return max(1, int(np.searchsorted(run.headers_end, np.int32(limit), "right")))


def build(run: Records, codec: int) -> RawBatch:
    """One batch of records, at the offset of the first; where some are missing in between, the others close up."""
    base_timestamp = int(run.timestamps[0])
    payload = compress(codec, columns.encode(run, base_timestamp))
    delta = len(run) - 1
    batch = bytearray(HEADER_BYTES + len(payload))
    LAYOUT.pack_into(
        batch,
        0,
        int(run.offsets[0]),
        HEADER_BYTES - LENGTH_PREFIX + len(payload),
        _NONE,
        2,
        0,
        codec,
        delta,
        base_timestamp,
        int(run.timestamps.max()),
        _NONE,
        _NONE,
        _NONE,
        delta + 1,
    )
    batch[HEADER_BYTES:] = payload
    data = memoryview(batch)
    batch[CRC_AT:CRC_FROM] = crc32c(data[CRC_FROM:]).to_bytes(4, "big")
    return RawBatch(parse_header(batch), data)


# --- Batches that hold nothing, to move the end of an empty log up to where its source begins -------------------------

#: Records of one batch: a million take 0.9 MB with zstd, and a broker about half a second to look through.
MOST: Final = 1 << 20
_MARK: Final = (b"mirror", b"padding")
#: The mark as magic 2 stores it: both lengths are zigzag numbers of one byte.
_MARKED: Final = b"".join(bytes((2 * len(part),)) + part for part in _MARK)
#: None, so that neither a limit on timestamps nor retention by age applies.
_TIMESTAMP: Final = -1


def padding(first: int, next_offset: int, *, codec: int | None, max_bytes: int) -> RawBatch:
    """A batch for the offsets from `first` on, to before `next_offset` or as far as one of `max_bytes` reaches.

    `codec` is the one that the target fixes, if any. Keys are empty rather than null, which a compacted topic would
    refuse; values are null.
    """
    count = min(next_offset - first, MOST)
    while True:
        made = _padding(count, ZSTD if codec is None else codec)
        if made.header.size <= max_bytes or count == 1:
            return made.at(first)
        count = max(1, min(count // 2, count * max_bytes // made.header.size))


@lru_cache(maxsize=2)
def _padding(count: int, codec: int) -> RawBatch:
    """So many offsets of padding: wherever they lie, their bytes are the same, and to make them costs half as much CPU
    as a broker needs to append them. Those that are too large, and those that fit, are asked for in turn.
    """
    return build(_nothing(count), codec)


def is_padding(raw: RawBatch) -> bool:
    """Whether a batch of the mirror's own is padding."""
    try:
        found = read(raw)
    except BadRecords:
        return False
    return len(found) > 0 and headers(found, 0) == [_MARK]


def _nothing(count: int) -> Records:
    found = Records.empty(_MARKED, count)
    found.offsets[:] = np.arange(count)
    found.timestamps[:] = _TIMESTAMP
    found.value_size[:] = -1
    for column in (
        found.key_at,
        found.key_size,
        found.value_at,
        found.headers_at,
        found.headers_end,
        found.header_count,
    ):
        column[:] = 0
    found.headers_end[0], found.header_count[0] = len(_MARKED), 1
    return found
