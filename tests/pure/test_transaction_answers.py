"""Transactions, and the last committed batch, by what brokers answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest
from fakebroker import Call, FakeBroker, FakeCluster, FakeTopic, in_loop, offers, scripted
from fetching import fetched
from kio.schema.errors import ErrorCode
from one_cluster import a_cluster, end_offset
from rawbatches import batch, raw
from waiting import MovableClock

from mirror.errors import BrokerError, ClusterUnreachable, Fenced
from mirror.kafka import transactions
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.log_reader import last_committed
from mirror.kafka.protocol import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    PRODUCE,
    Api,
)
from mirror.kafka.queries import LATEST
from mirror.kafka.retry import Backoff
from mirror.kafka.transactions import Transaction
from mirror.records.header import RawBatch, split

ORDERS: Final = TopicPartition("orders", 0)


def made(*values: bytes) -> RawBatch:
    return raw(batch(count=len(values), payload=b"".join(values)))


class Scripted:
    """A broker that is coordinator and leader; `codes` are answered first, by API and in turn, None by hanging up."""

    def __init__(self, codes: dict[Api, list[int | None]] | None = None) -> None:
        self.codes = {api: list(given) for api, given in (codes or {}).items()}
        self.broker = FakeBroker()
        self.metadata = FakeCluster({}, {"orders": FakeTopic()})

    @asynccontextmanager
    async def cluster(self) -> AsyncIterator[Cluster]:
        answers: dict[Api, Callable[[Call, ErrorCode], Any]] = {
            FIND_COORDINATOR: self._found,
            INIT_PRODUCER_ID: self._begun,
            ADD_PARTITIONS_TO_TXN: self._joined,
            PRODUCE: self._appended,
            END_TXN: self._ended,
        }

        def script(api: Api) -> Callable[[Call], Any]:
            def run(call: Call) -> Any:
                given = self.codes.get(api)
                code = given.pop(0) if given else 0
                if code is None:
                    return call.hang_up()
                return answers[api](call, ErrorCode(code))

            return run

        async with self.broker as broker:
            broker.script |= {api.key: script(api) for api in answers}
            self.metadata.brokers = {1: broker.address}
            scripted(broker, self.metadata)
            async with Cluster(Endpoint("us", (broker.address,))) as cluster:
                yield cluster

    def _found(self, call: Call, code: ErrorCode) -> Any:
        schema = call.schema()
        fields = {"node_id": 1, "host": "elsewhere", "port": 1, "error_code": code, "error_message": None}
        if call.version >= 4:
            (key,) = call.request.coordinator_keys
            assert (key, call.request.key_type) == ("flow/0", 1)
            return schema.FindCoordinatorResponse(
                throttle_time=timedelta(0), coordinators=(schema.Coordinator(key=key, **fields),)
            )
        assert (call.request.key, call.request.key_type) == ("flow/0", 1)
        return schema.FindCoordinatorResponse(throttle_time=timedelta(0), **fields)

    def _begun(self, call: Call, code: ErrorCode) -> Any:
        assert call.request.transactional_id == "flow/0"
        return call.schema().InitProducerIdResponse(
            throttle_time=timedelta(0), error_code=code, producer_id=-1 if code else 7, producer_epoch=-1 if code else 3
        )

    def _joined(self, call: Call, code: ErrorCode) -> Any:
        schema = call.schema()
        assert call.request.v3_and_below_producer_id == 7
        codes = [ErrorCode(55), code] if code else [code, code]
        results = tuple(
            schema.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    schema.AddPartitionsToTxnPartitionResult(partition_index=at, partition_error_code=codes[number % 2])
                    for number, at in enumerate((*topic.partitions, -1))
                ),
            )
            for topic in call.request.v3_and_below_topics
        )
        return schema.AddPartitionsToTxnResponse(throttle_time=timedelta(0), results_by_topic_v3_and_below=results)

    def _appended(self, call: Call, code: ErrorCode) -> Any:
        schema = call.schema()
        assert (call.request.transactional_id, call.request.acks) == ("flow/0", -1)
        return schema.ProduceResponse(
            responses=tuple(
                schema.TopicProduceResponse(
                    name=topic.name,
                    partition_responses=tuple(
                        schema.PartitionProduceResponse(
                            index=part.index,
                            error_code=code,
                            base_offset=-1 if code else 40,
                            log_append_time=None,
                            log_start_offset=0,
                            record_errors=(),
                            error_message=None,
                        )
                        for part in topic.partition_data
                    ),
                )
                for topic in call.request.topic_data
            ),
            throttle_time=timedelta(0),
        )

    def _ended(self, call: Call, code: ErrorCode) -> Any:
        assert (call.request.producer_id, call.request.producer_epoch) == (7, 3)
        return call.schema().EndTxnResponse(throttle_time=timedelta(0), error_code=code)

    def produced(self) -> list[bytes]:
        """The record sets that came, in their order."""
        return [
            bytes(part.records)
            for call in self.broker.of(PRODUCE)
            for topic in call.request.topic_data
            for part in topic.partition_data
        ]


@pytest.mark.parametrize("newest", [3, 4])
@in_loop
async def test_what_passes_is_tried_again(newest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "Backoff", lambda **_: Backoff(first=0.001, longest=0.01))
    coordinator = Scripted(
        {
            FIND_COORDINATOR: [15, None],
            INIT_PRODUCER_ID: [14, 16, 51, 51, None],
            ADD_PARTITIONS_TO_TXN: [51, 16, 3],
            PRODUCE: [6, 19, None, 3, 51],
            END_TXN: [51, None, 14, 15],
        }
    )
    coordinator.broker.script[18] = offers(find_coordinator=newest)
    async with coordinator.cluster() as cluster:
        transaction = await Transaction.begin(cluster, "flow/0")
        assert (transaction.producer_id, transaction.epoch) == (7, 3)
        await transaction.join([ORDERS])
        assert await transaction.append({ORDERS: made(b"a", b"b")}) == {ORDERS: 40}
        first = coordinator.produced()
        assert len(first) == 6
        assert len(set(first)) == 1, "the same bytes each time"
        coordinator.codes[PRODUCE] = [46]
        assert await transaction.append({ORDERS: made(b"c")}) == {ORDERS: -1}
        sequences = [
            next(iter(split(memoryview(data)))).header.base_sequence for data in (first[0], coordinator.produced()[-1])
        ]
        assert sequences == [0, 2]
        await transaction.commit()
        assert [call.request.committed for call in coordinator.broker.of(END_TXN)] == [True] * 5
        assert len(coordinator.broker.of(FIND_COORDINATOR)) == 11, (
            "asked anew, but for a transaction that is about to end"
        )
        assert {call.version for call in coordinator.broker.of(PRODUCE)} == {11}, (
            "no newer one: those begin by themselves"
        )


@pytest.mark.parametrize("code", [47, 90])
@pytest.mark.parametrize("api", [ADD_PARTITIONS_TO_TXN, PRODUCE, END_TXN], ids=lambda api: api.name)
@in_loop
async def test_whoever_is_fenced_says_so(api: Api, code: int) -> None:
    coordinator = Scripted({api: [code]})
    async with coordinator.cluster() as cluster:
        with pytest.raises(Fenced, match="writes under transactional id flow/0") as caught:
            await whole(cluster)
        assert caught.value.transactional_id == "flow/0"
        assert len(coordinator.broker.of(api)) == 1


@in_loop
async def test_what_no_retry_cures_is_not_committed() -> None:
    coordinator = Scripted({PRODUCE: [0, 10]})
    async with coordinator.cluster() as cluster:
        transaction = await Transaction.begin(cluster, "flow/0")
        await transaction.join([ORDERS])
        await transaction.append({ORDERS: made(b"a")})
        with pytest.raises(
            BrokerError, match=r"Produce to orders-0 under transactional id flow/0: .* 10 message_too_l"
        ):
            await transaction.append({ORDERS: made(b"b")})
        with pytest.raises(ClusterUnreachable, match="abort it"):
            await transaction.commit()
        assert not coordinator.broker.of(END_TXN)
        await transaction.abort()
        assert [call.request.committed for call in coordinator.broker.of(END_TXN)] == [False]


@pytest.mark.parametrize(
    ("api", "says"),
    [
        (PRODUCE, "Produce to orders-0: no answer within 60 s"),
        (END_TXN, "EndTxn to commit of transactional id flow/0: no clear answer within 60 s"),
    ],
    ids=["produce", "end"],
)
@in_loop
async def test_what_has_no_answer_for_too_long_is_not_committed(
    api: Api, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovableClock(monkeypatch)
    coordinator = Scripted()
    async with coordinator.cluster() as cluster:
        coordinator.broker.script[api.key] = partial(hang_up_later, clock)
        transaction = await Transaction.begin(cluster, "flow/0")
        await transaction.join([ORDERS])
        with pytest.raises(ClusterUnreachable, match=says):
            await append_and_commit(transaction)
        if api is PRODUCE:
            with pytest.raises(ClusterUnreachable, match="not all of it was acknowledged"):
                await transaction.commit()


def hang_up_later(clock: MovableClock, call: Call) -> Any:
    """The broker takes 30 seconds, and then gives no answer."""
    clock.move(30)
    return call.hang_up()


async def append_and_commit(transaction: Transaction) -> None:
    await transaction.append({ORDERS: made(b"a")})
    await transaction.commit()


async def whole(cluster: Cluster) -> Transaction:
    transaction = await Transaction.begin(cluster, "flow/0")
    await transaction.join([ORDERS])
    await append_and_commit(transaction)
    return transaction


@in_loop
async def test_nothing_is_asked_for_a_transaction_of_no_partition() -> None:
    """Or of one that it could not join."""
    coordinator = Scripted()
    async with coordinator.cluster() as cluster:
        for end in (Transaction.commit, Transaction.abort):
            transaction = await Transaction.begin(cluster, "flow/0")
            await transaction.join([])
            assert await transaction.append({}) == {}
            await end(transaction)
        assert not coordinator.broker.of(END_TXN)
        coordinator.codes |= {ADD_PARTITIONS_TO_TXN: [17], END_TXN: [48]}
        transaction = await Transaction.begin(cluster, "flow/0")
        with pytest.raises(BrokerError, match="17"):
            await transaction.join([ORDERS])
        await transaction.abort()


# --- the last batch that was committed


@asynccontextmanager
async def answering(*answers: tuple[int, bytes]) -> AsyncIterator[Cluster]:
    """A cluster whose partition ends at offset 5, and whose fetches are answered in turn with (last stable offset,
    records), the last one again and again.
    """
    left = list(answers)

    def fetch(call: Call) -> Any:
        stable, data = left.pop(0) if len(left) > 1 else left[0]
        given = {"last_stable_offset": stable, "records": data}
        return fetched(call.version, [("orders", metadata.topics["orders"].topic_id, 0, given)])

    def offsets(call: Call) -> Any:
        return end_offset(5 if call.request.topics[0].partitions[0].timestamp == LATEST else 0)(call)

    async with a_cluster() as (cluster, metadata, (broker,)):
        broker.script |= {FETCH.key: fetch, LIST_OFFSETS.key: offsets}
        yield cluster


@in_loop
async def test_a_leader_that_has_not_settled_is_asked_again() -> None:
    raw = made(*[b"a"] * 5)
    async with answering((0, b""), (3, b""), (5, bytes(raw.data))) as cluster:
        found = await last_committed(cluster, ORDERS)
        assert found
        assert found.data == raw.data


@in_loop
async def test_a_hole_up_to_the_end_is_none() -> None:
    async with answering((5, bytes(made(b"a", b"b").data)), (5, b"")) as cluster:
        found = await last_committed(cluster, ORDERS)
        assert found
        assert found.header.count == 2
