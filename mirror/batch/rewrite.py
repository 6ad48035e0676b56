"""Batches made anew where the stored bytes cannot be appended as they are.

The same records in the same order, with the same codec unless the recipe names another one; keys, values, headers and
timestamps untouched. What comes out is dense, as a broker demands of a producer (Kafka `LogValidator.validateBatch`),
and carries the source's offsets: a batch with holes becomes one batch for each run without them. Where offsets are
translated, one batch closes up over them.

A batch of any size is rewritten: it is decompressed as a stream, its records are opened in portions, and a batch ends
where a portion does. So what is held is bounded by a portion, whatever the batch decompresses to, and so is what a
reader of the copy has to open. Only one record that is larger than `Recipe.cap` is refused.

The result is a function of the source batches, of the target's codec and largest batch, and of nothing else, so two
writers append the same batches (invariant P2 in `position.py`). Decision: a portion has a fixed size, counted from the
batch's first record, wherever a writer begins in it; it does not follow the memory that a task has, which changes with
the number of tasks and with a setting. What follows the memory is `Recipe.cap` alone, which decides whether a record is
written, and never where a batch ends. What resume compares (`position.py`: the last batch's records, offset by offset,
and the position that the journal keeps) does not ask where batches end either, so a copy that another version made of
other portions goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from mirror.batch import legacy, records
from mirror.batch.codecs import compress
from mirror.batch.header import CRC_AT, CRC_FROM, HEADER_BYTES, LAYOUT, LENGTH_PREFIX, RawBatch, parse_header
from mirror.batch.recipe import CAP, LARGEST_RECORD, PORTION, Recipe
from mirror.batch.records import MOST_RECORDS, Int64s, Records, joined
from mirror.errors import BadRecords, RecordTooLarge, TooManyBytes

_NONE: Final = -1
#: Lengths tried by proportion before the range of what is left is halved.
_GUESSES: Final = 5
#: What records may shrink to so that the first length tried is not too short.
_RATIO: Final = 16


def read(raw: RawBatch, cap: int = CAP) -> Records:
    """The records of a batch of any magic. Raises BadRecords."""
    return records.read(raw, cap) if raw.header.magic == 2 else legacy.read(raw, cap)


def portions(raw: RawBatch, cap: int = LARGEST_RECORD, portion: int = PORTION) -> Iterator[Records]:
    """The same of a batch of any size, in portions (`records.portions`); what magic 0 or 1 wraps comes whole, and has
    at most `cap` bytes. Raises BadRecords.
    """
    return records.portions(raw, cap, portion) if raw.header.magic == 2 else iter((legacy.read(raw, cap),))


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
    for every in _together(raws, recipe):
        wanted = every.rows(int(np.searchsorted(every.offsets, recipe.first_offset)), len(every))
        for run in (wanted,) if closes_up else dense(wanted):
            yield from fitting(run, codec, recipe.max_bytes)


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


def pieces(offsets: Int64s) -> tuple[tuple[int, int], ...]:
    """Runs of offsets without a hole, as (first offset, count)."""
    edges = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
    return tuple((int(offsets[start]), stop - start) for start, stop in pairwise(edges))


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


def dense(every: Records) -> Iterator[Records]:
    """Cut where offsets are missing."""
    at = 0
    for _, count in pieces(every.offsets) if len(every) else ():
        yield every.rows(at, at + count)
        at += count


def fitting(run: Records, codec: int, max_bytes: int) -> Iterator[tuple[RawBatch, Int64s]]:
    """Cut where a batch would be too large, each time after as many records as fit."""
    while len(run):
        fits, batch = _longest(run, codec, max_bytes)
        yield batch, run.offsets[:fits]
        run = run.rows(fits, len(run))


def _longest(run: Records, codec: int, max_bytes: int) -> tuple[int, RawBatch]:
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
        if size <= max_bytes:
            fits, batch = tried, made
        elif tried == 1:
            offset = int(run.offsets[0])
            raise RecordTooLarge(f"a record takes {size} bytes alone, more than the {max_bytes} of a batch", offset)
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
    payload = compress(codec, records.encode(run, base_timestamp))
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
