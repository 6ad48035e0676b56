"""Fetch and Produce in terms of the mirror's values, in every version, and answers that name what was not asked."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from entities import answer, encoded, sample
from fakebroker import FakeBroker, FakeCluster, FakeTopic, in_loop, scripted
from fetching import Part, by_id, fetched
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from rawbatches import batch

from mirror.errors import PartitionStop
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import Ask, FetchAnswer, Fetched, FetchRequest, asked_by_name, fetch_of, plain_fetch, read_fetch
from mirror.kafka.produce import Ack, ProduceRequest, plain_produce, produce_of, read_produce
from mirror.kafka.protocol import FETCH, PRODUCE, Api, HotRequest, decode, encode
from mirror.kafka.retry import Backoff
from mirror.replication import fetcher as fetchers
from mirror.replication.cursor import Cursor
from mirror.replication.fetcher import DAMAGE_TRIES, Fetcher
from mirror.states import State

ORDERS, CLICKS, STRANGE = (uuid.UUID(int=number) for number in (1, 2, 3))
IDS = {"orders": ORDERS, "clicks": CLICKS}
NAMES = {topic_id: name for name, topic_id in IDS.items()}
ASKS = (
    Ask(TopicPartition("orders", 0), ORDERS, 5, 100, 4, 1000),
    Ask(TopicPartition("orders", 3), ORDERS, 6, 0, -1, 2000),
    Ask(TopicPartition("clicks", 0), CLICKS, 7, 7, 7, 3000),
)
FETCHES = range(FETCH.oldest, FETCH.newest + 1)
PRODUCES = range(PRODUCE.oldest, PRODUCE.newest + 1)


def read_back(request: HotRequest) -> Any:
    """What a broker reads."""
    body = b"".join(encode(request, 1, "mirror"))[4:]
    kind = request.api.request(request.version)
    _, start = entity_reader(kind.__header_schema__)(body, 0)
    value, size = entity_reader(kind)(body, start)
    assert start + size == len(body)
    assert encoded(value) == body[start:], "as kio writes it"
    return value


def fetch_answer(version: int, parts: Sequence[Part]) -> FetchAnswer:
    """Read an answer that kio writes."""
    return FetchRequest(version, ASKS, 0, 0).read(memoryview(answer(fetched(version, parts))))


@pytest.mark.parametrize("version", FETCHES)
def test_a_fetch_request(version: int) -> None:
    request = read_back(FetchRequest(version, ASKS, 500, 10_000))
    topics = [NAMES[t.topic_id] if by_id(version) else t.topic for t in request.topics]
    assert topics == ["orders", "clicks"]
    asked = [
        (p.partition, p.current_leader_epoch, p.fetch_offset, p.last_fetched_epoch, p.partition_max_bytes)
        for topic in request.topics
        for p in topic.partitions
    ]
    assert asked == [(0, 5, 100, 4, 1000), (3, 6, 0, -1, 2000), (0, 7, 7, 7, 3000)]
    assert (request.max_wait, request.min_bytes, request.max_bytes) == (timedelta(seconds=0.5), 1, 10_000)
    assert request.isolation_level == 1, "read_committed"
    assert (request.session_id, request.session_epoch) == (0, -1), "no session"
    assert (request.rack_id, request.forgotten_topics_data) == ("", ())
    assert getattr(request, "replica_id", -1) == -1


@pytest.mark.parametrize("version", FETCHES)
def test_a_fetch_answer(version: int) -> None:
    schema = FETCH.schema(version, "response")
    aborted = (schema.AbortedTransaction(producer_id=9, first_offset=50),) * 2
    diverging = schema.EpochEndOffset(epoch=2, end_offset=77)
    parts: list[Part] = [
        ("orders", ORDERS, 3, {"records": None, "error_code": ErrorCode(6)}),
        ("orders", ORDERS, 0, {"aborted_transactions": aborted}),
        ("clicks", CLICKS, 0, {"diverging_epoch": diverging}),
    ]
    one, two, three = read_fetch(fetch_answer(version, parts), asked_by_name(ASKS))
    assert [str(f.partition) for f in (one, two, three)] == ["orders-3", "orders-0", "clicks-0"]
    assert (one.error_code, bytes(one.records), one.aborted, one.diverging) == (6, b"", (), None)
    assert (two.error_code, bytes(two.records), two.aborted) == (0, b"records", ((9, 50), (9, 50)))
    assert (two.high_watermark, two.last_stable_offset, two.log_start) == (1000, 900, 10)
    assert three.diverging == (2, 77)


@pytest.mark.parametrize("version", FETCHES)
def test_a_fetch_answer_cannot_name_what_was_not_asked_nor_one_twice(version: int) -> None:
    parts = [
        ("orders", ORDERS, 0, {"records": b"first"}),
        ("orders", ORDERS, 0, {"records": b"again"}),
        ("orders", ORDERS, 1, {}),
        ("orders", ORDERS, -1, {}),
        ("clicks", CLICKS, 3, {}),
        ("strange", STRANGE, 0, {}),
        ("", uuid.UUID(int=0), 0, {}),
    ]
    found = list(read_fetch(fetch_answer(version, parts), asked_by_name(ASKS)))
    assert [(str(f.partition), bytes(f.records)) for f in found] == [("orders-0", b"first")]


@pytest.mark.parametrize("version", PRODUCES)
def test_a_produce_request(version: int) -> None:
    batches = {
        TopicPartition("orders", 0): (b"head-0", memoryview(b"payload-0")),
        TopicPartition("clicks", 1): (b"head-1", memoryview(b"payload-1")),
        TopicPartition("orders", 2): (b"head-2", memoryview(bytes(10_000))),
    }
    request = read_back(ProduceRequest(version, batches, IDS))
    found = {
        (NAMES[topic.topic_id] if by_id(version) else topic.name, part.index): part.records
        for topic in request.topic_data
        for part in topic.partition_data
    }
    assert found == {tuple(partition): b"".join(parts) for partition, parts in batches.items()}
    assert len(request.topic_data) == 2, "a topic is named once"
    assert sum(len(topic.partition_data) for topic in request.topic_data) == 3, "and a partition too"
    assert (request.transactional_id, request.acks, request.timeout) == (None, -1, timedelta(seconds=30))
    assert read_back(ProduceRequest(version, batches, IDS, "flow/0")).transactional_id == "flow/0"


def acked(version: int, parts: Sequence[Part]) -> Any:
    """A produce answer with one topic entry for each part."""
    schema = PRODUCE.schema(version, "response")
    template = sample(schema.PartitionProduceResponse, Random(2))
    topics = []
    for name, topic_id, index, other in parts:
        values: dict[str, Any] = {
            "index": index,
            "error_code": ErrorCode(0),
            "base_offset": 42,
            "log_append_time": template.log_append_time,
            "log_start_offset": 0,
            "record_errors": (),
            "error_message": None,
        }
        part = schema.PartitionProduceResponse(**{**values, **other})
        named = {"topic_id": topic_id} if by_id(version) else {"name": name}
        topics.append(schema.TopicProduceResponse(partition_responses=(part,), **named))
    answer = schema.ProduceResponse(responses=tuple(topics), throttle_time=timedelta(0))
    value, _ = entity_reader(type(answer))(encoded(answer), 0)
    return value


@pytest.mark.parametrize("version", PRODUCES)
def test_a_produce_answer(version: int) -> None:
    error = PRODUCE.schema(version, "response").BatchIndexAndErrorMessage
    wrong = tuple(error(batch_index=i, batch_index_error_message=text) for i, text in enumerate((None, "second")))
    refused = tuple(error(batch_index=i, batch_index_error_message=f"record {i}") for i in range(1000))
    parts: list[Part] = [
        ("orders", ORDERS, 0, {}),
        ("orders", ORDERS, 1, {"error_code": ErrorCode(87), "record_errors": refused, "error_message": "invalid"}),
        ("clicks", CLICKS, 0, {"error_code": ErrorCode(6), "base_offset": -1, "record_errors": wrong}),
        ("strange", STRANGE, 5, {}),
    ]
    parts[1][3]["log_append_time"] = None
    parts[2][3]["log_append_time"] = datetime.fromtimestamp(1_700_000_000, UTC)
    first, second, third, strange = read_produce(
        ProduceRequest(version, {}, IDS).read(memoryview(answer(acked(version, parts)))), IDS
    )
    sampled = sample(PRODUCE.schema(version, "response").PartitionProduceResponse, Random(2)).log_append_time
    assert first == Ack(TopicPartition("orders", 0), 0, "", 42, round(sampled.timestamp() * 1000))
    assert second == Ack(TopicPartition("orders", 1), 87, "invalid record 0", 42)
    assert third == Ack(TopicPartition("clicks", 0), 6, "", -1, 1_700_000_000_000)
    assert strange.partition not in {TopicPartition(name, 5) for name in IDS}


PLAIN_FETCH: list[Part] = [("orders", ORDERS, 3, {}), ("clicks", CLICKS, 0, {"records": None})]
PLAIN_PRODUCE: list[Part] = [("orders", ORDERS, 3, {}), ("clicks", CLICKS, 0, {"log_append_time": None})]


def test_plain_answers_need_no_schema() -> None:
    transactions = [
        FETCH.schema(version, "response").AbortedTransaction(producer_id=9, first_offset=5) for version in FETCHES
    ]
    for version, aborted in zip(FETCHES, transactions, strict=True):
        held = [
            *PLAIN_FETCH,
            ("", uuid.UUID(int=0), 0, {}),
            ("orders", ORDERS, 4, {"aborted_transactions": (aborted, aborted)}),
        ]
        whole = fetched(version, held)
        assert plain_fetch(version, memoryview(answer(whole))) == fetch_of(whole)
    for version in PRODUCES:
        acks = acked(version, PLAIN_PRODUCE)
        assert plain_produce(version, memoryview(answer(acks))) == produce_of(acks)


def agrees(version: int, frame: bytes, plain: Any, of: Any, api: Api) -> None:
    """Ask that what is read by hand is what kio reads: bytes that kio refuses are nothing plain."""
    found = plain(version, memoryview(frame))
    if found is not None:
        assert found == of(decode(api.response(version), memoryview(frame)))


@given(st.randoms(use_true_random=False), st.sampled_from(FETCHES), st.sampled_from(PRODUCES))
def test_what_is_read_by_hand_is_what_kio_reads(random: Random, fetch: int, produce: int) -> None:
    for version, api, plain, of, sound in (
        (fetch, FETCH, plain_fetch, fetch_of, fetched(fetch, PLAIN_FETCH)),
        (produce, PRODUCE, plain_produce, produce_of, acked(produce, PLAIN_PRODUCE)),
    ):
        agrees(version, answer(sample(api.response(version), random)), plain, of, api)
        frame = bytearray(answer(sound))
        frame[random.randrange(len(frame))] = random.randrange(256)
        agrees(version, bytes(frame[: random.randrange(len(frame) + 1)]), plain, of, api)
        agrees(version, bytes(frame), plain, of, api)


@in_loop
async def test_an_error_of_the_whole_answer_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[None]()

    class Counted(Backoff):
        def next(self) -> float:
            waits.append(None)
            return 0.0

    monkeypatch.setattr(fetchers, "Backoff", Counted)
    async with FakeBroker({FETCH.key: lambda call: fetched(call.version, [], error=-1)}) as broker:
        scripted(broker, FakeCluster({1: broker.address}, {"orders": FakeTopic()}))
        async with Cluster(Endpoint("test", (broker.address,))) as cluster:
            await cluster.refresh(["orders"])
            tasks: list[asyncio.Task[None]] = []

            def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
                tasks.append(asyncio.create_task(work))
                return tasks[-1]

            fetcher = Fetcher(cluster, lambda _: 1 << 20, spawn, 1 << 20)
            fetcher.start(Cursor(TopicPartition("orders", 0), cluster.topic_id("orders"), 0))
            await broker.called(FETCH, 4)
            assert len(waits) >= 3
            fetcher.finish()
            await asyncio.gather(*tasks, return_exceptions=True)


@in_loop
@pytest.mark.parametrize("more", [b"", batch(10)[:-1] + b"!"], ids=["alone", "damage behind it"])
async def test_a_source_that_gives_only_what_it_gave_before(more: bytes) -> None:
    """It would be asked for ever, as fast as it answers."""
    source: Any = None
    fetcher = Fetcher(source, lambda _: 1 << 20, asyncio.ensure_future, 1 << 20)
    cursor = Cursor(TopicPartition("orders", 0), None, 10)
    answer = Fetched(cursor.partition, 0, 20, 20, 0, None, (), memoryview(batch(0, count=10) + more))
    for _ in range(DAMAGE_TRIES - 1):
        fetcher._take(cursor, answer, 0)
        assert cursor.retries.not_before > asyncio.get_running_loop().time()
    with pytest.raises(PartitionStop) as stop:
        fetcher._take(cursor, answer, 0)
    assert stop.value.state is State.CORRUPT
    assert stop.value.offset == 10
