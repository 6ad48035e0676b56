"""What the writing side counts, how it fills its requests, and what it sends when."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from fakebroker import in_loop
from kio.schema.errors import ErrorCode
from rawbatches import batch, raw
from waiting import MovableClock

from mirror import clock
from mirror.errors import ClosedByPeer, PartitionStop
from mirror.journal.offset_maps import map_entries
from mirror.kafka.cluster import Leader, TopicPartition
from mirror.kafka.produce import Ack
from mirror.kafka.protocol import LIST_OFFSETS, PRODUCE, WRITE_TXN_MARKERS, Api
from mirror.records.header import HEADER_BYTES, ProducerState
from mirror.replication import writer as writing
from mirror.replication.classifier import LEGACY, OWN_PRODUCER
from mirror.replication.decide import Position
from mirror.replication.observe import FENCE
from mirror.replication.offset_map import OffsetMap, OffsetRange
from mirror.replication.partition_writer import CutOff, PartitionWriter
from mirror.replication.writer import IN_FLIGHT, LARGE, REQUEST_BYTES, Writer
from mirror.states import State
from mirror.suspension import SuspensionDetector

AT = TopicPartition("orders", 0)


def why_of(partition: PartitionWriter) -> str:
    """Why nothing more is sent, empty where nothing is in doubt."""
    return partition.doubt.why if partition.doubt else ""


def stop_of(partition: PartitionWriter) -> PartitionStop:
    """The stop that a doubt brought."""
    assert partition.doubt is not None
    assert partition.doubt.stop is not None
    return partition.doubt.stop


class Target:
    """A cluster of one leader, over connections that answer when they are asked to: what was sent is in `sent`, as the
    api and what it holds, markers by their epochs; `over` has the purposes of its connections.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = Leader(1, 0)
        self.sent: list[tuple[Api, Any]] = []
        self.over: list[str] = []
        self.misled: set[str] = set()
        self.answers: list[asyncio.Future[Any]] = []
        self.changed: list[PartitionWriter] = []
        for name, stand_in in (
            ("ProduceRequest", lambda _version, batches, _ids: dict(batches)),
            ("markers_request", lambda _version, _partition, stamps: [epoch for _, epoch in stamps]),
            ("list_offsets_request", lambda *_: None),
            ("read_produce", lambda answer, _ids: answer),
            ("read_markers", lambda _: None),
            ("_of", lambda _, answer: answer),
            ("throttled_seconds", lambda _: 0.0),
        ):
            monkeypatch.setattr(writing, name, stand_in)
        monkeypatch.setattr(writing, "FRESH", 3600.0)  # no test takes so long
        here: Any = self
        self.writer = Writer(here, self.changed.append, asyncio.ensure_future, 1 << 30)
        self.writer.detector = SuspensionDetector(lambda: (0.0, 0.0))

    def leader(self, _: TopicPartition) -> Leader:
        return self.now

    def disowned(self, *_: object) -> None:
        """Who answers is the leader."""

    def address(self, node: int) -> tuple[str, int]:
        return "broker", node

    def is_misled(self, _: int, connection: Any) -> bool:
        return connection.purpose in self.misled

    def topic_id(self, _: str) -> None:
        return None

    async def connection(self, _: int, purpose: str) -> Any:
        self.misled.discard(purpose)
        return SimpleNamespace(
            purpose=purpose,
            is_open=True,
            address=("broker", 1),
            unsent=0,
            request_timeout=None,
            version=lambda api: api.newest,
            send=partial(self._send, purpose),
            expect=lambda *_: None,
        )

    def _send(self, purpose: str, api: Api, request: Any, *_: Any) -> asyncio.Future[Any]:
        self.sent.append((api, request))
        self.over.append(purpose)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    def partition_writer(
        self, *offsets: int, known: bool = True, at: TopicPartition = AT, size: int = 100
    ) -> PartitionWriter:
        """A partition from offset 0 on with batches of ten records at these offsets."""
        partition = PartitionWriter(at, at, Position(0, ProducerState(1 << 52), known, -1))
        self.writer.begin(partition)
        for offset in offsets:
            partition.append(raw(batch(offset, count=10, payload=bytes(size), crc=0)), OWN_PRODUCER)
        return partition

    async def append(self, partition: PartitionWriter, offset: int, size: int = 100) -> None:
        partition.append(raw(batch(offset, count=10, payload=bytes(size), crc=0)), OWN_PRODUCER)
        self.writer.queue(partition)
        await self.flush()

    async def read_end(self, number: int, offset: int) -> None:
        """Answer a question for the log's end, and the markers that were sent with it."""
        api, _ = self.sent[number - 1]
        if number and api is WRITE_TXN_MARKERS:
            self.answers[number - 1].set_result(None)
        self.answers[number].set_result(SimpleNamespace(offset=offset, error_code=0))
        await self.flush()

    def records(self) -> int:
        """How many count as copied."""
        return self.writer.all_counters[AT].records

    async def flush(self) -> None:
        self.writer.flush()
        for _ in range(5):  # a connection is opened first
            await asyncio.sleep(0)

    async def answer(self, number: int, base_offset: int, error: int = 0) -> None:
        """To a produce request of one batch."""
        acks = [Ack(at, ErrorCode(error), "", base_offset) for at in self._batches(number)]
        self.answers[number].set_result(acks)
        await self.flush()

    def _batches(self, number: int) -> Mapping[TopicPartition, Any]:
        api, batches = self.sent[number]
        assert api is PRODUCE
        found: Mapping[TopicPartition, Any] = batches
        return found

    @property
    def apis(self) -> list[Api]:
        return [api for api, _ in self.sent]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(monkeypatch)


@in_loop
async def test_a_connection_has_five_requests_in_flight_at_most(target: Target) -> None:
    partition = target.partition_writer(*range(0, 100, 10), size=REQUEST_BYTES // 10)
    await target.flush()
    assert len(target.sent) == len(partition.flight.batches) == IN_FLIGHT == 5
    await target.answer(0, 0)
    assert (len(target.sent), len(partition.flight.batches)) == (6, 5)


@in_loop
async def test_more_are_in_flight_the_farther_a_broker_is(target: Target, clock: MovableClock) -> None:
    partition = target.partition_writer(*range(0, 1000, 10), size=REQUEST_BYTES // 10)
    await target.flush()
    clock.move(0.01)
    await target.answer(0, 0)
    window = len(partition.flight.batches)
    assert window >= 25  # real time goes on, too
    clock.move(10.0)
    await target.answer(1, 10)
    assert len(partition.flight.batches) == window, "what waited for others is no distance"


@pytest.mark.parametrize("known", [False, True])
@in_loop
async def test_the_first_batch_goes_alone_where_the_leader_does_not_know_the_producer(
    target: Target, *, known: bool
) -> None:
    """Or may have forgotten it, since it was heard of long ago."""
    partition = target.partition_writer(0, 10, 20, known=known)
    partition.leader.heard_at -= 2 * writing.FRESH if known else 0
    for _ in range(2):
        await target.flush()
    assert (partition.leader.knows, len(partition.flight.batches), len(target.sent)) == (False, 1, 1), (
        "not before it is acknowledged"
    )
    await target.answer(0, 0)
    assert (partition.leader.knows, len(partition.flight.batches)) == (True, 2)


@in_loop
async def test_small_batches_share_a_request(target: Target) -> None:
    for number in range(3):
        target.partition_writer(0, at=TopicPartition("orders", number))
    await target.flush()
    ((api, batches),) = target.sent
    assert (api, len(batches)) == (PRODUCE, 3)


@in_loop
async def test_a_batch_that_lands_elsewhere_is_the_last_one(target: Target) -> None:
    partition = target.partition_writer(0, 10, 20, known=False)
    await target.flush()
    await target.answer(0, 3)
    assert stop_of(partition).state is State.FENCED
    assert (len(target.sent), len(partition.queue), target.records()) == (1, 0, 0)
    assert target.changed == [partition]


@in_loop
async def test_what_is_not_clear_is_decided_by_the_logs_end_alone(target: Target) -> None:
    partition = target.partition_writer(0, 10, 20, 30, size=REQUEST_BYTES // 3)
    await target.flush()
    await target.answer(0, 0, error=7)  # a timeout: the leader may have it
    for number in (1, 2):
        await target.answer(number, 10 * number)
    target.answers[3].set_exception(ConnectionError("cut"))
    await target.flush()
    assert "the target answered" in why_of(partition)
    assert (len(target.sent), partition.acknowledged.source_next, partition.is_idle, target.writer.room(AT)) == (
        4,
        0,
        True,
        0,
    )
    assert target.records() == 0, "not one of them counts"
    target.writer.resolve(partition, 20)
    assert (target.records(), partition.flight.unconfirmed) == (20, [])


@in_loop
async def test_bytes_are_held_and_nothing_counts_before_the_ack(target: Target) -> None:
    partition = target.partition_writer(0, 10)
    held = target.writer.holds()
    await target.flush()
    assert (target.writer.holds(), partition.acknowledged.source_next, target.records()) == (held, 0, 0)
    await target.answer(0, 0)
    assert (target.writer.holds(), partition.acknowledged.source_next, target.records()) == (held // 2, 10, 10)


@in_loop
async def test_a_run_is_recorded_once_its_batch_is_acknowledged(target: Target) -> None:
    offset_map = OffsetMap()
    partition = PartitionWriter(
        AT, AT, Position(0, ProducerState(1 << 52), True, -1, target_offset=0), offset_map=offset_map
    )
    target.writer.begin(partition)
    for offset in (0, 12):
        partition.append(raw(batch(offset, count=10)), OWN_PRODUCER)
    await target.flush()
    assert map_entries(AT, offset_map) == []
    await target.answer(0, 0)
    assert [*offset_map.runs] == [OffsetRange(0, 0, 10)]
    await target.answer(1, 10)
    assert [*offset_map.runs] == [OffsetRange(0, 0, 10), OffsetRange(12, 10, 10)]


@in_loop
async def test_a_task_that_ends_counts_what_is_acknowledged_and_sends_nothing_more(target: Target) -> None:
    partition = target.partition_writer(0, 10, known=False)
    await target.flush()
    target.writer.finish()
    await target.answer(0, 0)
    assert (len(target.sent), partition.is_idle) == (1, True)
    counters = target.writer.all_counters[AT]
    assert (counters.records, counters.batches, partition.acknowledged.source_next) == (10, 1, 10)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (Leader(2, 0), "its leader moved"),
        (Leader(1, 4), "the target's leader epoch was 3 and is 4"),
        (Leader(-1, -1), "the target partition has no leader"),
    ],
)
@in_loop
async def test_nothing_goes_to_another_leader_while_batches_are_in_flight(
    target: Target, now: Leader, why: str
) -> None:
    target.now = Leader(1, 3)
    partition = PartitionWriter(
        AT, AT, Position(0, ProducerState(1 << 52), True, -1, target_epoch=3 if now.epoch else -1)
    )
    target.writer.begin(partition)
    partition.append(raw(batch(0, count=10)), OWN_PRODUCER)
    await target.flush()
    target.now = now
    await target.append(partition, 10)
    assert (why_of(partition), len(target.sent), len(partition.queue)) == (why, 1, 0)
    target.writer.check_leaders()
    await target.answer(0, 0)
    assert (partition.acknowledged.source_next, len(partition.flight.unconfirmed)) == (0, 1), (
        "what the former leader says of it does not count"
    )


@in_loop
async def test_a_partition_stays_on_its_connection_while_batches_are_in_flight(target: Target) -> None:
    target.partition_writer(at=TopicPartition("orders", 1))  # it has the first connection's turn
    partition = target.partition_writer(0)
    await target.flush()
    for offset in (10, 20):
        await target.append(partition, offset, 3 * LARGE)
    assert target.over == ["produce-0"] * 3
    for number in range(3):
        await target.answer(number, 10 * number)
    await target.append(partition, 30, 3 * LARGE)
    assert target.over[3:] == ["produce-1"], "nothing is in flight, and it has large batches"
    await target.answer(3, 30)
    former, target.misled = target.writer._channels[1, 1].connection, {"produce-1"}
    await target.append(partition, 40, 3 * LARGE)
    assert target.over[4:] == ["produce-1"]
    assert target.writer._channels[1, 1].connection is not former, "K5: it led to another broker"


@in_loop
async def test_markers_go_alone_and_the_first_of_them_by_itself(target: Target) -> None:
    partition = target.partition_writer(0, 13)  # offsets 10 to 12 are missing
    partition.leader.seen_at = clock.monotonic()
    for _ in range(2):
        await target.flush()
    assert target.apis == [PRODUCE], "what is before them is not acknowledged"
    await target.answer(0, 0)
    assert target.sent[1:] == [(WRITE_TXN_MARKERS, [FENCE]), (LIST_OFFSETS, None)]
    await target.read_end(2, 11)
    assert target.sent[3:] == [(WRITE_TXN_MARKERS, [FENCE + 1, FENCE + 2]), (LIST_OFFSETS, None)]
    await target.read_end(4, 13)
    assert target.apis[5:] == [PRODUCE]
    assert (partition.acknowledged.source_next, target.writer.all_counters[AT].filled) == (13, 3)


@in_loop
async def test_markers_that_are_more_or_fewer_than_were_sent_are_noticed(target: Target) -> None:
    partition = target.partition_writer(2)
    partition.leader.seen_at = clock.monotonic()
    await target.flush()
    await target.read_end(1, 2)
    assert why_of(partition) == "the target's log ends at 2 behind markers up to 1"
    assert (len(target.sent), partition.acknowledged.source_next) == (2, 0)


@in_loop
async def test_markers_that_the_target_never_takes_stop_the_partition(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "read_markers", lambda _: ErrorCode.invalid_request)
    partition = target.partition_writer(2)
    partition.leader.seen_at = clock.monotonic()
    await target.flush()
    await target.read_end(1, 0)
    assert stop_of(partition).state is State.REFUSED
    assert "invalid_request" in str(stop_of(partition))


@pytest.mark.parametrize("end", [0, 1], ids=["as it was", "a successor wrote"])
@in_loop
async def test_a_mirror_that_was_frozen_reads_the_logs_end_before_it_sends_markers(target: Target, end: int) -> None:
    partition = target.partition_writer(2)
    partition.leader.seen_at = clock.monotonic() - writing.FRESH - 1
    await target.flush()
    assert target.apis == [LIST_OFFSETS]
    await target.read_end(0, end)
    assert target.sent[1:2] == ([] if end else [(WRITE_TXN_MARKERS, [FENCE])])
    assert why_of(partition) == ("the target's log ends at 1 behind markers up to 0" if end else "")


@pytest.mark.parametrize(("timestamp", "latency_ms"), [(-1, None), (940_000, 60_000), (1_000_001, 0)])
def test_records_without_timestamps_have_no_latency(
    timestamp: int, latency_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Magic 0 has none: they are not half a century late."""
    monkeypatch.setattr("mirror.clock.now_ms", lambda: 1_000_000)
    nothing: Any = None
    writer = Writer(nothing, nothing, nothing, 1 << 20)
    partition_writer = PartitionWriter(AT, AT, Position(0, ProducerState(1 << 52), True, -1))
    writer.begin(partition_writer)
    partition_writer.append(raw(batch(0, base_timestamp=timestamp, max_timestamp=timestamp)), LEGACY)
    partition_writer.flight.unconfirmed.append(partition_writer.queue.popleft())  # type: ignore[arg-type] # a batch
    writer.resolve(partition_writer, 1)
    assert writer.all_counters[AT].latency_ms == latency_ms


@in_loop
async def test_a_batch_behind_one_that_was_refused_must_not_be_in_the_log(target: Target) -> None:
    partition = target.partition_writer(0, 10, 20, size=REQUEST_BYTES // 3)
    await target.flush()
    await target.answer(0, -1, error=32)
    assert stop_of(partition).state is State.REFUSED
    await target.answer(1, 0)  # the leader forgot the producer in between
    misplaced = stop_of(partition)
    assert misplaced.state is State.DIVERGED
    assert "offset 10 landed at offset 0" in misplaced.detail


@in_loop
async def test_what_a_target_closes_the_connection_over_goes_alone(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has answered a request of that size closed the connection for another reason (W15)."""
    monkeypatch.setattr(Writer, "_cut", {})

    async def closed(partition: PartitionWriter) -> str:
        """The connection that the batch went over; what it is sent by next begins where that one did."""
        await target.flush()
        target.answers[-1].set_exception(ClosedByPeer("closed by the broker"))
        await target.flush()
        assert partition.doubt
        return target.over[-1]

    size, over = 200_000 + HEADER_BYTES, list[str]()
    cut_off: CutOff | None = None
    for closings in range(3):
        large = target.partition_writer(0, size=200_000)
        large.flight.cut_off = cut_off
        over.append(await closed(large))
        cut_off = large.flight.cut_off
        assert cut_off == CutOff(0, size, closings)
        assert cut_off.is_too_large is (closings == 2)
    assert over == ["produce-0", "produce-2", "produce-2"]
    assert Writer._cut == {("broker", 1): size}
    other = target.partition_writer(0, at=TopicPartition("orders", 1), size=200_000)
    await target.flush()
    assert target.over[-1] == "produce-2", "another one that is as large does not try its neighbors' connection first"
    target.answers[-1].set_result([Ack(other.target, ErrorCode(0), "", 0)])
    await target.flush()
    assert Writer._cut == {}
    await target.append(other, 10, size=200_000)
    target.answers[-1].set_exception(ClosedByPeer("closed by the broker"))
    await target.flush()
    assert other.flight.cut_off is None
