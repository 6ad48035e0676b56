"""Where offsets move, what the target holds beyond the recorded runs is the source's, or somebody else wrote it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from rawbatches import batch, raw

from mirror.errors import PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.records.header import ProducerState, RawBatch
from mirror.replication import offset_map_recovery
from mirror.replication.assignment import LastPosition
from mirror.replication.both_logs import Logs, producer_id
from mirror.replication.offset_map import OffsetMap, OffsetRanges
from mirror.states import State

AT = TopicPartition("orders", 0)
OURS, BACK = producer_id("flow", AT), producer_id("back", AT)
STRANGER = 7


def one(offset: int, value: bytes, producer: int) -> RawBatch:
    """A batch of one record with a key."""
    record = bytes((0, 0, 0, 2)) + b"k" + bytes((2 * len(value),)) + value + bytes(1)
    clock = {"base_timestamp": 1_700_000_000_000, "max_timestamp": 1_700_000_000_000}
    payload = bytes((2 * len(record),)) + record
    return raw(batch(offset, payload=payload, producer_id=producer, producer_epoch=0, base_sequence=0, **clock))


def retraced(
    monkeypatch: pytest.MonkeyPatch, source: list[RawBatch], target: list[RawBatch], last: LastPosition | None
) -> list[int | None]:
    """Where the target's records are from, of which the one before them is recorded."""

    async def batches(cluster: list[RawBatch], *_: object) -> AsyncIterator[tuple[RawBatch, bool]]:
        for each in cluster:
            yield each, False

    async def list_offset(cluster: list[RawBatch], *_: object) -> int:
        return cluster[-1].header.next_offset

    monkeypatch.setattr(offset_map_recovery, "batches", batches)
    monkeypatch.setattr(offset_map_recovery, "list_offset", list_offset)
    runs = OffsetRanges(0, 0)
    runs.add(0, 0, 1)
    offset_map, tail = OffsetMap(runs), target[-1]
    ends = source[-1].header.next_offset, tail.header.next_offset
    logs = Logs(AT, 0, ends[0], 0, ends[1], tail, ProducerState(OURS), last=last, source_epoch=1)
    here, there = cast(Any, source), cast(Any, target)
    asyncio.run(offset_map_recovery._retrace(offset_map, logs, here, there, AT))
    return [offset_map.runs.to_source(each.header.base_offset) for each in target]


@pytest.mark.parametrize(
    ("wrote", "acknowledged", "copied_by", "is_ours"),
    [
        (STRANGER, 1, STRANGER, False),
        (OURS, 1, STRANGER, True),
        (STRANGER, 2, STRANGER, True),
        (STRANGER, None, STRANGER, True),
        (STRANGER, 1, BACK, True),
    ],
    ids=["somebody else", "this flow", "acknowledged", "taken over", "copied back"],
)
def test_a_hole_of_the_source_stands_for_no_record_that_somebody_else_wrote(
    wrote: int, acknowledged: int | None, copied_by: int, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It landed before a batch of ours that is the source's next one, so that something was compared."""
    source = [one(0, b"first", STRANGER), one(9, b"next", copied_by)]
    target = [one(1, b"other", wrote), one(2, b"next", OURS)]
    last = None if acknowledged is None else LastPosition(source_next=acknowledged, target_end=acknowledged)
    if is_ours:
        assert retraced(monkeypatch, source, target, last) == [1, 9]
        return
    with pytest.raises(PartitionStop, match="at offset 1 of the target, the record is not the source's") as stop:
        retraced(monkeypatch, source, target, last)
    assert stop.value.state is State.DIVERGED, stop.value
