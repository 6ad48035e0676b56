"""When a partition is done, and what a stop at its begin says."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from fakebroker import in_loop
from rawbatches import batch, raw
from waiting import MovableClock, until_true

from mirror.errors import ClusterUnreachable
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.produce import Ack
from mirror.observability.status import Totals
from mirror.policy.rules import Rules
from mirror.records.header import ProducerState
from mirror.replication.assignment import TOMBSTONES, Assignment, Loss
from mirror.replication.classifier import OWN_PRODUCER
from mirror.replication.cursor import Arrival, Cursor
from mirror.replication.decide import Position
from mirror.replication.partition_task import PartitionTask
from mirror.replication.partition_writer import PartitionWriter, PendingBatch
from mirror.replication.pipeline import Pipeline
from mirror.replication.startup_limiter import StartupLimiter
from mirror.states import State

AT = TopicPartition("orders", 0)


def bounded(until: int, offset: int = 0) -> tuple[Pipeline, PartitionTask, PartitionWriter, Cursor]:
    """A bounded copy from this offset on."""
    source, target = Cluster(Endpoint("eu", ())), Cluster(Endpoint("us", ()))
    mine = Assignment(AT, AT, None, Rules(), until=until, until_ms=123_456)
    pipeline = Pipeline("test", source, target, [mine], 1 << 20)
    (partition_task,) = pipeline._partition_tasks.values()
    partition_task.partition_writer = writer = PartitionWriter(
        AT, AT, Position(offset, ProducerState(1 << 52), True, -1)
    )
    partition_task.cursor = cursor = Cursor(AT, None, offset, until=until)
    partition_task.resumed(offset, offset)
    pipeline._writer.begin(writer)
    return pipeline, partition_task, writer, cursor


@pytest.mark.parametrize(("unrelayed", "is_done"), [(1, False), (0, True)])
def test_a_bounded_copy_is_not_done_while_an_answer_waits_to_be_relayed(unrelayed: int, is_done: bool) -> None:
    """Everything is read, and all that was queued is acknowledged; the last answer was not looked at."""
    pipeline, partition_task, writer, cursor = bounded(20, 20)
    cursor.log.readable_until, cursor.unrelayed = 30, unrelayed
    pipeline._changed(writer)
    assert (partition_task.finished, partition_task.state) == (is_done, State.CAUGHT_UP if is_done else State.MIRRORING)


@pytest.mark.proves("FENCED")
@pytest.mark.parametrize(("end", "is_resting", "is_doubted"), [(10, True, False), (13, True, True), (13, False, False)])
@in_loop
async def test_a_copy_at_rest_that_grows_is_read_again(
    end: int, is_resting: bool, is_doubted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else wrote to it, unless what was sent is not acknowledged yet."""
    pipeline, _, writer, _ = bounded(20, 10)
    looks = 0

    async def listed(_: Cluster, partitions: Collection[TopicPartition], __: int) -> dict[TopicPartition, int]:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise asyncio.CancelledError
        assert set(partitions) == ({AT} if is_resting else set())
        return dict.fromkeys(partitions, end)

    monkeypatch.setattr("mirror.replication.pipeline.listed", listed)
    if not is_resting:
        writer.append(raw(batch(10, count=3)), OWN_PRODUCER)
    with pytest.raises(asyncio.CancelledError):
        await pipeline._watch_ends(0.0)
    assert (writer.doubt is not None) == is_doubted


@pytest.mark.parametrize("end", [0, 20])
def test_a_bounded_copy_that_has_nothing_to_fetch_knows_its_lag(end: int) -> None:
    pipeline, _, writer, _ = bounded(end, end)
    pipeline._changed(writer)
    (figures,) = pipeline.figures("here")
    assert (figures.state, figures.log_end, figures.lag_records) == (State.CAUGHT_UP, end, 0)
    assert Totals.of([figures]).lag_unknown == 0


@pytest.mark.parametrize("acked", [10, 30])
def test_a_bounded_copy_that_is_ended_has_what_was_acknowledged_alone(acked: int) -> None:
    """What was read and waits to be sent is forgotten; what is on its way is still acknowledged."""

    async def ended() -> None:
        pipeline, partition_task, writer, cursor = bounded(30)
        partition_task.tombstones.caught_up_ms = 7
        cursor.next_offset = cursor.log.readable_until = 30
        for first in (0, 10, 20):
            writer.append(raw(batch(first, count=10)), OWN_PRODUCER)
        for _ in range(acked // 10):
            out = writer.queue.popleft()
            assert isinstance(out, PendingBatch)
            writer.flight.batches.append(out)
        pipeline.finish()
        pipeline._writer.finish()
        while writer.flight.batches:
            pipeline._writer._acknowledged(writer, Ack(AT, 0, "", writer.flight.batches[0].target_offset, -1), 0.0, 0)
        (figures,) = pipeline.figures("here")
        has_all = acked == 30
        assert (partition_task.finished, figures.next_offset, figures.lag_records) == (has_all, acked, 30 - acked)
        assert figures.state is (State.CAUGHT_UP if has_all else State.MIRRORING)
        assert figures.caught_up_ms == (123_456 if has_all else 7)

    asyncio.run(ended())


def test_a_bounded_copy_reaches_its_end_where_compaction_took_what_was_there() -> None:
    """Else it would be begun again and again, and nothing would come. What was there may have been tombstones (L4)."""

    async def relayed() -> None:
        pipeline, partition_task, writer, cursor = bounded(30)
        partition_task.tombstones.keeps(60_000)
        partition_task.tombstones.caught_up_ms = 1
        cursor.next_offset = 10
        pipeline._fetcher._deliver(Arrival(cursor, (raw(batch(0, count=10)),)))
        cursor.next_offset = 30  # the next batch is behind it
        pipeline._fetcher._deliver(Arrival(cursor))
        for expected in (10, 30):
            arrival = pipeline._fetcher._arrivals.popleft()
            await pipeline._relay(arrival)
            pipeline._relayed(arrival)
            assert (writer.tail.next_offset, partition_task.tombstones.may_lack) == (expected, expected == 30)

    asyncio.run(relayed())


def test_a_hole_that_may_have_held_a_tombstone_goes_on_record_where_the_journal_was_away_at_first() -> None:
    """The same batches come again once the position was read, and what is not on record yet is news still (L4)."""
    asked: list[Loss] = []

    async def on_loss(loss: Loss) -> None:
        asked.append(loss)
        if len(asked) == 1:
            raise ClusterUnreachable("the journal has no leader")

    async def relayed() -> list[bool]:
        source, target = Cluster(Endpoint("eu", ())), Cluster(Endpoint("us", ()))
        mine = Assignment(AT, AT, None, Rules(tombstones_ms=60_000), caught_up_ms=1)
        pipeline = Pipeline("test", source, target, [mine], 1 << 20, on_loss=on_loss)
        (partition_task,) = pipeline._partition_tasks.values()
        sent = []
        for hole in (12, 12, 14):
            position = Position(hole - 2, ProducerState(1 << 52), True, -1)
            partition_task.partition_writer = writer = PartitionWriter(AT, AT, position, mine.rules)
            partition_task.cursor = cursor = Cursor(AT, None, hole - 2)
            partition_task.resumed(hole - 2, hole - 2)
            pipeline._writer.begin(writer)
            await pipeline._relay(Arrival(cursor, (raw(batch(hole - 2, count=2)), raw(batch(hole + 1)))))
            sent.append(bool(writer.queue))
        return sent

    assert asyncio.run(relayed()) == [False, True, True], "nothing goes on before it is on record"
    assert [(loss.first, loss.reason) for loss in asked] == [(12, TOMBSTONES)] * 2, "it is news once"


# --- turns at the start


async def crowd(turns: StartupLimiter, entered: list[int], leave: asyncio.Event) -> None:
    """Three who take a turn each, and keep it until they may leave."""

    async def come(number: int) -> None:
        async with turns.taken():
            entered.append(number)
            await leave.wait()

    await asyncio.gather(*map(come, range(3)))


@in_loop
async def test_so_many_partitions_begin_at_a_time_and_in_their_order() -> None:
    """A turn is given back once, also where its work failed."""
    turns, entered, leave = StartupLimiter(2, 600.0), list[int](), asyncio.Event()
    with pytest.raises(ValueError, match="failed"):
        async with turns.taken():
            raise ValueError("failed")
    coming = asyncio.create_task(crowd(turns, entered, leave))
    for _ in range(5):
        await asyncio.sleep(0)
    assert entered == [0, 1]
    leave.set()
    await coming
    assert entered == [0, 1, 2]


@in_loop
async def test_a_partition_that_takes_long_keeps_no_other_from_beginning(clock: MovableClock) -> None:
    turns, entered, leave = StartupLimiter(1, 600.0), list[int](), asyncio.Event()
    coming = asyncio.create_task(crowd(turns, entered, leave))
    for so_many in (1, 2, 3):
        await until_true(lambda: len(entered) == so_many)  # noqa: B023
        clock.move(600.0)
    leave.set()
    await coming
