"""What the writing side counts, how it fills its requests, and what it sends when."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from fakebroker import in_loop
from kio.schema.errors import ErrorCode
from rawbatches import batch, raw

from mirror.journal.offset_maps import map_entries
from mirror.kafka.cluster import Leader, TopicPartition
from mirror.kafka.produce import Ack
from mirror.kafka.protocol import LIST_OFFSETS, PRODUCE, WRITE_TXN_MARKERS, Api
from mirror.lab.bench import replay
from mirror.lab.bench.stored import loaded
from mirror.lab.bench.workloads import Shape, create, fill
from mirror.lab.embedded import Cluster
from mirror.records.header import ProducerState
from mirror.replication import writer as writing
from mirror.replication.classifier import LEGACY, OWN_PRODUCER
from mirror.replication.offset_map import OffsetMap, OffsetRange
from mirror.replication.partition_writer import PartitionWriter
from mirror.replication.position import Position
from mirror.replication.writer import FRESH, IN_FLIGHT, LARGE, REQUEST_BYTES, Writer
from mirror.states import State

AT = TopicPartition("orders", 0)


class Target:
    """A cluster of one leader, over connections that answer when they are asked to: what was sent is in `sent`, as the
    api and what it holds, markers as how many; `over` has the purposes of its connections.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = Leader(1, 0)
        self.sent: list[tuple[Api, Any]] = []
        self.over: list[str] = []
        self.misled: set[str] = set()
        self.answers: list[asyncio.Future[Any]] = []
        self.changed: list[PartitionWriter] = []
        for name, stand_in in (
            ("produce_request", lambda _version, batches, _ids: dict(batches)),
            ("markers_request", lambda _version, _partition, stamps: len([*stamps])),
            ("list_offsets_request", lambda *_: None),
            ("read_produce", lambda answer, _ids: answer),
            ("read_markers", lambda _: None),
            ("_of", lambda _, answer: answer),
            ("throttled_seconds", lambda _: 0.0),
        ):
            monkeypatch.setattr(writing, name, stand_in)
        here: Any = self
        self.writer = Writer(here, self.changed.append, asyncio.ensure_future, 1 << 30)

    def leader(self, _: TopicPartition) -> Leader:
        return self.now

    def disowned(self, *_: object) -> None:
        """Who answers is the leader."""

    def is_misled(self, _: int, connection: Any) -> bool:
        return connection.purpose in self.misled

    def topic_id(self, _: str) -> None:
        return None

    async def connection(self, _: int, purpose: str) -> Any:
        self.misled.discard(purpose)
        return SimpleNamespace(
            purpose=purpose,
            is_open=True,
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
        one = PartitionWriter(at, at, Position(0, ProducerState(1 << 52), known, -1))
        self.writer.begin(one)
        for offset in offsets:
            one.append(raw(batch(offset, count=10, payload=bytes(size))), OWN_PRODUCER)
        self.writer.detector.beat()  # kernels may have been compiled meanwhile
        one.heard_at, one.suspensions = time.monotonic(), self.writer.detector.suspensions
        return one

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
    one = target.partition_writer(*range(0, 100, 10), size=REQUEST_BYTES // 10)
    await target.flush()
    assert len(target.sent) == len(one.in_flight) == IN_FLIGHT == 5
    await target.answer(0, 0)
    assert (len(target.sent), len(one.in_flight)) == (6, 5)


@in_loop
async def test_the_first_batch_goes_alone_where_the_leader_does_not_know_the_producer(target: Target) -> None:
    one = target.partition_writer(0, 10, 20, known=False)
    await target.flush()
    assert len(one.in_flight) == 1
    await target.flush()
    assert len(target.sent) == 1, "not before it is acknowledged"
    await target.answer(0, 0)
    assert (one.known, len(one.in_flight)) == (True, 2)


@in_loop
async def test_a_batch_that_lands_elsewhere_is_the_last_one(target: Target) -> None:
    one = target.partition_writer(0, 10, 20, known=False)
    await target.flush()
    await target.answer(0, 3)
    assert one.stop is not None
    assert one.stop.state is State.FENCED
    assert (len(target.sent), len(one.queue), target.writer.all_counters[AT].records) == (1, 0, 0)
    assert target.changed == [one]


@in_loop
async def test_what_is_not_clear_is_decided_by_the_logs_end_alone(target: Target) -> None:
    one = target.partition_writer(0, 10, 20, 30, size=REQUEST_BYTES // 3)
    await target.flush()
    await target.answer(0, 0, error=7)  # a timeout: the leader may have it
    for number in (1, 2):
        await target.answer(number, 10 * number)
    target.answers[3].set_exception(ConnectionError("cut"))
    await target.flush()
    assert "the target answered" in one.in_doubt
    assert (len(target.sent), one.acked, one.is_idle, target.writer.room(AT)) == (4, 0, True, 0)
    assert target.writer.all_counters[AT].records == 0, "not one of them counts"
    target.writer.resolve(one, 20)
    assert (target.writer.all_counters[AT].records, one.unconfirmed) == (20, [])


@in_loop
async def test_bytes_are_held_and_nothing_counts_before_the_ack(target: Target) -> None:
    one = target.partition_writer(0, 10)
    held = target.writer.holds()
    await target.flush()
    assert (target.writer.holds(), one.acked, target.writer.all_counters[AT].records) == (held, 0, 0)
    await target.answer(0, 0)
    assert (target.writer.holds(), one.acked, target.writer.all_counters[AT].records) == (held // 2, 10, 10)


@in_loop
async def test_a_run_is_recorded_once_its_batch_is_acknowledged(target: Target) -> None:
    offset_map = OffsetMap()
    one = PartitionWriter(AT, AT, Position(0, ProducerState(1 << 52), True, -1, target_offset=0), offset_map=offset_map)
    target.writer.begin(one)
    for offset in (0, 12):
        one.append(raw(batch(offset, count=10)), OWN_PRODUCER)
    await target.flush()
    assert map_entries(AT, offset_map) == []
    await target.answer(0, 0)
    assert [*offset_map.runs] == [OffsetRange(0, 0, 10)]
    await target.answer(1, 10)
    assert [*offset_map.runs] == [OffsetRange(0, 0, 10), OffsetRange(12, 10, 10)]


@in_loop
async def test_a_task_that_ends_counts_what_is_acknowledged_and_sends_nothing_more(target: Target) -> None:
    one = target.partition_writer(0, 10, known=False)
    await target.flush()
    target.writer.finish()
    await target.answer(0, 0)
    assert (len(target.sent), one.is_idle) == (1, True)
    counters = target.writer.all_counters[AT]
    assert (counters.records, counters.batches, one.acked) == (10, 1, 10)


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
    one = PartitionWriter(AT, AT, Position(0, ProducerState(1 << 52), True, -1, target_epoch=3 if now.epoch else -1))
    target.writer.begin(one)
    one.append(raw(batch(0, count=10)), OWN_PRODUCER)
    await target.flush()
    one.append(raw(batch(10, count=10)), OWN_PRODUCER)
    target.writer._queued[AT] = one
    target.now = now
    await target.flush()
    assert (one.in_doubt, len(target.sent), len(one.queue)) == (why, 1, 0)
    target.writer.check_leaders()
    await target.answer(0, 0)
    assert (one.acked, len(one.unconfirmed)) == (0, 1), "what the former leader says of it does not count"


@in_loop
async def test_a_partition_stays_on_its_connection_while_batches_are_in_flight(target: Target) -> None:
    target.partition_writer(at=TopicPartition("orders", 1))  # it has the first connection's turn
    one = target.partition_writer(0)
    await target.flush()
    for offset in (10, 20):
        one.append(raw(batch(offset, count=10, payload=bytes(3 * LARGE))), OWN_PRODUCER)
    await target.flush()
    assert target.over == ["produce-0"] * 3
    for number in range(3):
        await target.answer(number, 10 * number)
    one.append(raw(batch(30, count=10, payload=bytes(3 * LARGE))), OWN_PRODUCER)
    target.writer._queued[AT] = one
    await target.flush()
    assert target.over[3:] == ["produce-1"], "nothing is in flight, and it has large batches"
    await target.answer(3, 30)
    one.append(raw(batch(40, count=10, payload=bytes(3 * LARGE))), OWN_PRODUCER)
    target.writer._queued[AT] = one
    former, target.misled = target.writer._channels[1, 1].connection, {"produce-1"}
    await target.flush()
    assert target.over[4:] == ["produce-1"]
    assert target.writer._channels[1, 1].connection is not former, "K5: it led to another broker"


@in_loop
async def test_markers_go_alone_and_the_first_of_them_by_itself(target: Target) -> None:
    one = target.partition_writer(0, 13)  # offsets 10 to 12 are missing
    one.seen_at = asyncio.get_running_loop().time()
    for _ in range(2):
        await target.flush()
    assert target.apis == [PRODUCE], "what is before them is not acknowledged"
    await target.answer(0, 0)
    assert target.sent[1:] == [(WRITE_TXN_MARKERS, 1), (LIST_OFFSETS, None)]
    target.answers[1].set_result(None)
    await target.flush()
    assert len(target.sent) == 3, "the log's end is not known yet"
    target.answers[2].set_result(SimpleNamespace(offset=11, error_code=0))
    await target.flush()
    assert target.sent[3:] == [(WRITE_TXN_MARKERS, 2), (LIST_OFFSETS, None)]
    target.answers[3].set_result(None)
    target.answers[4].set_result(SimpleNamespace(offset=13, error_code=0))
    await target.flush()
    assert target.apis[5:] == [PRODUCE]
    assert (one.acked, target.writer.all_counters[AT].filled) == (13, 3)


@in_loop
async def test_markers_that_are_more_or_fewer_than_were_sent_are_noticed(target: Target) -> None:
    one = target.partition_writer(2)
    one.seen_at = asyncio.get_running_loop().time()
    await target.flush()
    target.answers[0].set_result(None)
    target.answers[1].set_result(SimpleNamespace(offset=2, error_code=0))
    await target.flush()
    assert one.in_doubt == "the target's log ends at 2 behind markers up to 1"
    assert (len(target.sent), one.acked) == (2, 0)


@in_loop
async def test_markers_that_the_target_never_takes_stop_the_partition(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FRESH", 3600.0)
    monkeypatch.setattr(writing, "read_markers", lambda _: ErrorCode.invalid_request)
    one = target.partition_writer(2)
    one.seen_at = asyncio.get_running_loop().time()
    await target.flush()
    target.answers[0].set_result(None)
    target.answers[1].set_result(SimpleNamespace(offset=0, error_code=0))
    await target.flush()
    assert one.stop is not None
    assert one.stop.state is State.REFUSED
    assert "invalid_request" in str(one.stop)


@in_loop
async def test_a_mirror_that_was_frozen_reads_the_logs_end_before_it_sends_markers(target: Target) -> None:
    one = target.partition_writer(2)
    one.seen_at = asyncio.get_running_loop().time() - FRESH - 0.001
    await target.flush()
    assert target.sent == [(LIST_OFFSETS, None)]
    target.answers[0].set_result(SimpleNamespace(offset=0, error_code=0))
    await target.flush()
    assert target.sent[1] == (WRITE_TXN_MARKERS, 1)


@in_loop
async def test_a_frozen_mirror_whose_successor_wrote_sends_no_marker(target: Target) -> None:
    one = target.partition_writer(2)
    await target.flush()
    target.answers[0].set_result(SimpleNamespace(offset=1, error_code=0))
    await target.flush()
    assert target.apis == [LIST_OFFSETS]
    assert one.in_doubt == "the target's log ends at 1 behind markers up to 0"


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
    partition_writer.unconfirmed.append(partition_writer.queue.popleft())  # type: ignore[arg-type] # a batch
    writer.resolve(partition_writer, 1)
    assert writer.all_counters[AT].latency_ms == latency_ms


@pytest.mark.parametrize(("batch_bytes", "connections", "a_request"), [(4_000, {0}, 3.0), (400_000, {0, 1}, 1.0)])
def test_small_batches_share_requests_and_large_ones_are_spread(
    batch_bytes: int,
    connections: set[int],
    a_request: float,
    topic_name: str,
    source_cluster: Cluster,
    target_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Writer] = []

    class Seen(Writer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(replay, "Writer", Seen)
    shape = Shape(name=topic_name, codec="none", batch_bytes=batch_bytes, megabytes=batch_bytes // 4_000 or 1)
    fill(source_cluster.bootstrap, topic_name, shape)
    batches = loaded(source_cluster.bootstrap, topic_name, shape.partitions)
    create(target_cluster.bootstrap, topic_name, shape.partitions)
    go: Any = threading.Barrier(1)
    asyncio.run(replay._replay(target_cluster.bootstrap, topic_name, batches, go))
    writer = made[0]
    many, requests = sum(map(len, batches.values())), sum(writer.took.counts)
    assert sum(counters.batches for counters in writer.all_counters.values()) == many > 20
    assert many / requests >= a_request
    assert {number for _, number in writer._channels} == connections


@in_loop
async def test_a_batch_behind_one_that_was_refused_must_not_be_in_the_log(target: Target) -> None:
    one = target.partition_writer(0, 10, 20, size=REQUEST_BYTES // 3)
    await target.flush()
    await target.answer(0, -1, error=32)
    refused = one.stop
    assert refused is not None
    assert refused.state is State.REFUSED
    await target.answer(1, 0)  # the leader forgot the producer in between
    misplaced = one.stop
    assert misplaced is not None
    assert misplaced.state is State.DIVERGED
    assert "offset 10 landed at offset 0" in misplaced.detail


@in_loop
async def test_the_first_batch_goes_alone_where_the_leader_may_have_forgotten_the_producer(target: Target) -> None:
    one = target.partition_writer(0, 10, 20)
    one.heard_at -= 2 * FRESH
    await target.flush()
    assert (one.known, len(one.in_flight)) == (False, 1)
    await target.answer(0, 0)
    assert (one.known, len(one.in_flight)) == (True, 2)
