"""What waits for a target: batches where they belong, gaps in between, stamps that follow from what is before."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from fakebroker import in_loop
from rawbatches import batch, legacy, raw
from recordoracle import Record, encoded
from waiting import until_true

from mirror.errors import PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.protocol import LIST_OFFSETS
from mirror.policy.rules import Rules
from mirror.records.header import ProducerState, RawBatch, parse_header
from mirror.replication.assignment import Assignment, LastPosition, Loss
from mirror.replication.classifier import ABORTED, CONTROL_MARKER, OWN_PRODUCER
from mirror.replication.cursor import Arrival, Cursor
from mirror.replication.decide import Position
from mirror.replication.observe import FENCE
from mirror.replication.offset_map import OffsetMap, OffsetRanges
from mirror.replication.partition_writer import LONGEST_GAP, Gap, PartitionWriter, PendingBatch
from mirror.replication.pipeline import Pipeline
from mirror.replication.writer import Writer
from mirror.states import State

AT = TopicPartition("orders", 3)


def partition_writer(next_offset: int = 100, stamp: ProducerState = ProducerState(7 << 20, 4, 50)) -> PartitionWriter:  # noqa: B008 -- a frozen value
    return PartitionWriter(AT, AT, Position(next_offset, stamp, True, -1))


def data(offset: int, count: int = 10) -> RawBatch:
    return raw(batch(offset, count=count))


def encoded_records(count: int) -> bytes:
    return encoded([Record(offset, offset, None, b"value") for offset in range(count)])


def stamps(writing: PartitionWriter) -> list[tuple[int, int, int]]:
    """Offset, epoch and sequence of every batch; offset, epoch and -1 of every marker."""
    found = []
    for waiting in writing.queue:
        if isinstance(waiting, PendingBatch):
            header = parse_header(waiting.header + bytes(waiting.raw.records))
            found.append((waiting.raw.header.base_offset, header.producer_epoch, header.base_sequence))
        else:
            count = waiting.next_offset - waiting.first
            found += [(waiting.first + n, waiting.stamp.then(n).epoch, -1) for n in range(count)]
    return found


@pytest.mark.parametrize("is_moved", [False, True])
def test_no_leader_epoch_is_said_to_reach_over_what_is_of_none_that_is_known(is_moved: bool) -> None:
    """What is left out may be of a later one: the source would seem to be cut back."""
    position = Position(100, ProducerState(7 << 20, 4, 50), True, 3, last=LastPosition(source_next=100, target_end=100))
    writing = PartitionWriter(AT, AT, position, offset_map=OffsetMap() if is_moved else None)
    if writing.offset_map is not None:
        writing.offset_map.restart(OffsetRanges(100, 100), [])

    def reached() -> tuple[int, int, int]:
        while writing.queue:
            out = writing.queue.popleft()
            if isinstance(out, PendingBatch):
                writing.landed(out)
            else:
                writing.marked(out, out.next_offset - out.first)
        assert writing.last is not None
        return writing.last.source_next, writing.last.source_epoch, writing.last.epoch_until

    writing.append(raw(batch(100, count=10, leader_epoch=3)), OWN_PRODUCER)
    writing.fill(115, epoch=3)
    writing.fill(120)
    assert reached() == (120, 3, 115)
    writing.append(raw(batch(120, count=10, leader_epoch=3)), OWN_PRODUCER)
    writing.lose(Loss(AT, AT, 130, 140, "too_large"))
    assert reached() == (140, 3, 130)
    writing.append(raw(batch(145, count=5, leader_epoch=5)), OWN_PRODUCER)
    assert reached() == (150, 5, 150)


def test_batches_in_a_row_count_sequences_up() -> None:
    writing = partition_writer()
    writing.append(data(100), OWN_PRODUCER)
    writing.append(data(110), OWN_PRODUCER)
    writing.fill(90)  # what is there already is not filled again
    assert stamps(writing) == [(100, 4, 50), (110, 4, 60)]
    assert (writing.tail.next_offset, writing.flight.held) == (120, 2 * len(data(0).data))
    writing.forget()
    assert (writing.flight.held, len(writing.queue)) == (0, 0)


def test_a_missing_offset_becomes_a_gap_and_the_batch_behind_it_begins_an_epoch() -> None:
    writing = partition_writer()
    writing.append(data(100), OWN_PRODUCER)
    writing.append(data(112), OWN_PRODUCER)
    writing.append(data(122), OWN_PRODUCER)
    first = 4 + FENCE
    behind = [(110, first, -1), (111, first + 1, -1), (112, first + 2, 0), (122, first + 2, 10)]
    assert stamps(writing) == [(100, 4, 50), *behind]


def test_only_the_first_gap_is_fenced_off_from_what_a_dead_mirror_sent() -> None:
    writing = partition_writer()
    for offset in (101, 112, 123):
        writing.append(data(offset), OWN_PRODUCER)
    assert [epoch - 4 - FENCE for _, epoch, _ in stamps(writing)] == [0, 1, 2, 3, 4, 5]


def test_gaps_in_a_row_are_one() -> None:
    writing = partition_writer()
    writing.fill(103, ABORTED)
    writing.fill(104, CONTROL_MARKER)
    (gap,) = writing.queue
    assert isinstance(gap, Gap)
    assert (gap.first, gap.next_offset) == (100, 104)
    assert gap.verdicts == {"DROP/aborted": 1, "DROP/control": 1}
    writing.append(data(104), OWN_PRODUCER)
    assert stamps(writing)[3:] == [(103, 7 + FENCE, -1), (104, 8 + FENCE, 0)]


def test_a_gap_under_way_is_not_made_longer() -> None:
    writing = partition_writer()
    writing.fill(103)
    writing.flight.is_filling = True
    writing.fill(105)
    assert [(gap.first, gap.next_offset) for gap in writing.queue if isinstance(gap, Gap)] == [(100, 103), (103, 105)]
    epochs = [epoch for _, epoch, _ in stamps(writing)]
    assert epochs == sorted(set(epochs)), "every marker has an epoch of its own"


def test_a_gap_that_is_too_long_stops_the_partition() -> None:
    writing = partition_writer()
    with pytest.raises(PartitionStop, match=f"{LONGEST_GAP + 1} offsets in a row hold no record") as stop:
        writing.append(data(101 + LONGEST_GAP), OWN_PRODUCER)
    assert (stop.value.state, stop.value.offset) == (State.REFUSED, 100)


@pytest.mark.parametrize(
    ("rules", "first", "again"),
    [
        (Rules(coalesce_bytes=10_000), data(100), data(100)),
        (Rules(coalesce_bytes=10_000), data(100), raw(batch(100, count=20, payload=encoded_records(20)))),
        (Rules(), raw(legacy(100, 1)), raw(batch(100, count=20, payload=encoded_records(20)))),
    ],
)
def test_a_source_that_repeats_what_waits_for_others(rules: Rules, first: RawBatch, again: RawBatch) -> None:
    """What waits is not queued yet, and must count as taken all the same: each offset is written once."""
    writing = PartitionWriter(AT, AT, Position(100, ProducerState(7 << 20, 4, 50), True, -1), rules)

    async def relayed() -> None:
        nothing: Any = None
        pipeline: Any = Pipeline("flow", nothing, nothing, [Assignment(AT, AT, None, rules)], 1 << 26)
        pipeline._writer.finish()  # it shall queue, and not send
        partition_task, cursor = pipeline._partition_tasks[AT], Cursor(AT, None, 100)
        partition_task.partition_writer, partition_task.cursor = writing, cursor
        for raws in ((first,), (again,)):
            await pipeline._relay(Arrival(cursor, raws))
        cursor.log.readable_until = 0  # nothing more is to come
        await pipeline._relay(Arrival(cursor))
        assert not partition_task.detail

    asyncio.run(relayed())
    queued = [
        (out.raw.header.base_offset, out.raw.header.next_offset)
        for out in writing.queue
        if isinstance(out, PendingBatch)
    ]
    assert queued[0] == (100, first.header.next_offset)
    assert [begin for begin, _ in queued[1:]] == [end for _, end in queued[:-1]]
    assert queued[-1][1] == again.header.next_offset


@in_loop
async def test_an_answer_without_the_partition_leaves_a_gap_unsettled() -> None:
    """Nothing is sent before the log's end was read again; an error here would end the task."""
    target: Any = SimpleNamespace(leader=lambda _: SimpleNamespace(node=1, epoch=0))
    schema = LIST_OFFSETS.schema(LIST_OFFSETS.newest, "response")
    answer = schema.ListOffsetsResponse(throttle_time=timedelta(0), topics=())
    connection: Any = SimpleNamespace(
        version=lambda api: api.newest,
        send=lambda *_: asyncio.ensure_future(asyncio.sleep(0, answer)),
        expect=lambda *_: None,
        request_timeout=None,
    )
    writing, channel = partition_writer(), SimpleNamespace(node=1)
    writing.fill(102)
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    (gap,) = writing.queue
    assert isinstance(gap, Gap)
    writer = Writer(target, lambda _: None, asyncio.ensure_future, 1 << 20)
    writer._fill(writing, gap, channel, connection)  # type: ignore[arg-type] # a stand-in
    assert (
        await until_true(lambda: failures or (writing.doubt and writing.doubt.why)) == "an answer without the partition"
    )
