"""The target's side of a partition whose offsets moved, told in the source's offsets, so that both can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mirror.batch.header import RawBatch
from mirror.batch.recipe import LARGEST_RECORD
from mirror.policy.runs import RunIndex
from mirror.verify.compare import Bounds

_UNCOMPRESSED: Final = 0


def moved_bounds(bounds: Bounds, index: RunIndex) -> Bounds:
    """Bounds whose target's part is in its own offsets."""

    def source_of(target: int, otherwise: int) -> int:
        found = index.to_source(target)
        return otherwise if found is None else found

    last = index.last
    end = last.next_source if last is not None else bounds.source_start
    start = source_of(bounds.target_start, bounds.source_start if bounds.target_start else 0)
    if not bounds.target_start:
        # The copy deleted nothing. What the source has before its first record was passed over; what was lost behind
        # that is missing, wherever the source begins now.
        start = min(start, bounds.source_start)
    return replace(
        bounds,
        target_start=start,
        target_end=source_of(bounds.target_end, end),
        target_written=source_of(bounds.target_written, end),
    )


def moved_batches(raw: RawBatch, index: RunIndex) -> Sequence[RawBatch]:
    """A batch of the target at the offsets where its records come from: several where it closes up over holes.

    Raises BadRecords for one of these that cannot be read.
    """
    header = raw.header
    first, last = index.to_source(header.base_offset), index.to_source(header.last_offset)
    if first is None or last is None or header.is_control:
        return (raw,)  # nobody knows where it comes from: as it is, it will be told to be too much
    if last - first == header.last_offset_delta:
        return (raw.at(first),)

    from mirror.batch.rewrite import build, dense, read  # noqa: PLC0415 -- loads the compiler, and is seldom needed

    return tuple(build(run, _UNCOMPRESSED) for run in dense(read(raw, LARGEST_RECORD).relocated(index.to_source)))
