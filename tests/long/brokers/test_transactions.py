"""Transactions on real brokers: seen together or never, one holder at a time, each batch once whatever is cut."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final, Literal
from unittest.mock import patch

import pytest
from acls import every_acl, put_acls
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from fakebroker import Call, FakeBroker, FakeCluster, FakeTopic, in_loop, offers, scripted
from fetching import fetched
from helpers import RECENT_MS, make_topic, produce, stored_batches
from kio.schema.errors import ErrorCode
from kraftbroker import KraftBroker
from one_cluster import a_cluster, end_offset
from proxy import Proxy
from releases import NotFetched
from secured import scram, spec
from syncing import delete_topics
from transactional import CLEANED

from mirror.errors import AccessDenied, BrokerError, ClusterUnreachable, Fenced, MalformedBatch
from mirror.kafka import log_reader as last_module
from mirror.kafka import transactions
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.log_reader import FIRST_STEP, last_committed
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
from mirror.kafka.queries import LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset
from mirror.kafka.transactions import Transaction
from mirror.lab.embedded import Cluster as Brokers
from mirror.lab.embedded import start_many
from mirror.records import columns
from mirror.records.header import CODECS, RawBatch, split
from mirror.records.rewrite import build, read

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of kafka-python's own start-up
    from kafka.record.memory_records import MemoryRecordsBuilder

pytestmark = pytest.mark.brokers

ORDERS: Final = TopicPartition("orders", 0)


def made(*values: bytes, key: bytes | None = None, codec: int = 0, first: int = 0, ms: int = RECENT_MS) -> RawBatch:
    """A batch by another client, as it lies in some log from offset `first` on; its timestamps count from `ms`."""
    builder = MemoryRecordsBuilder(2, codec, 1 << 24)
    for number, value in enumerate(values):
        builder.append(ms + number, key, value, [])
    builder.close()
    data = first.to_bytes(8, "big") + bytes(builder.buffer())[8:]
    (raw,) = split(memoryview(data))
    return raw


@asynccontextmanager
async def connected(bootstrap: str) -> AsyncIterator[Cluster]:
    host, port = bootstrap.split(":")
    async with Cluster(Endpoint("us", ((host, int(port)),))) as cluster:
        yield cluster


def seen(bootstrap: str, *partitions: TopicPartition) -> dict[TopicPartition, list[bytes]]:
    """The values that a consumer of committed data finds, up to the end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    found: dict[TopicPartition, list[bytes]] = {at: [] for at in partitions}
    open_ = set(partitions)
    try:
        consumer.assign([Assigned(at.topic, at.partition, OFFSET_BEGINNING) for at in partitions])
        deadline = time.monotonic() + 60
        while open_:
            assert time.monotonic() < deadline, f"no end of {open_}"
            if (message := consumer.poll(0.5)) is None:
                continue
            at = TopicPartition(message.topic() or "", message.partition() or 0)
            if (error := message.error()) is None:
                found[at].append(message.value() or b"")
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_.discard(at)
    finally:
        consumer.close()
    return found


async def settled(cluster: Cluster, *partitions: TopicPartition) -> None:
    """Until nothing there is undecided: a client learns that a transaction ended before its markers are written."""
    async with asyncio.timeout(60):
        for at in partitions:
            end = await list_offset(cluster, at, LATEST, READ_UNCOMMITTED)
            while await list_offset(cluster, at, LATEST, READ_COMMITTED) < end:
                await asyncio.sleep(0.01)


async def write(
    cluster: Cluster, name: str, at: TopicPartition, *batches: RawBatch, committed: bool = True
) -> Transaction:
    """One transaction on one partition, a request for each batch."""
    transaction = await Transaction.begin(cluster, name)
    await transaction.join([at])
    for raw in batches:
        await transaction.append({at: raw})
    await (transaction.commit() if committed else transaction.abort())
    return transaction


async def the_whole_story(bootstrap: str, name: str) -> None:
    """Two partitions committed together, aborted ones, an old holder, the next holder: what any release must do."""
    one, other = TopicPartition(name, 0), TopicPartition(name, 1)
    async with connected(bootstrap) as cluster:
        first = await Transaction.begin(cluster, name)
        await first.join([one, other])
        await first.join([other])
        offsets = [
            await first.append({one: made(b"a", b"b"), other: made(b"x", codec=1, first=70)}),
            await first.append({one: made(b"c"), other: made(b"y", b"z")}),
            await first.append({one: made(b"d")}),
        ]
        assert offsets == [{one: 0, other: 0}, {one: 2, other: 1}, {one: 3}]
        assert seen(bootstrap, one, other) == {one: [], other: []}
        await first.commit()
        await settled(cluster, one, other)
        committed = {one: [b"a", b"b", b"c", b"d"], other: [b"x", b"y", b"z"]}
        assert seen(bootstrap, one, other) == committed

        aborted = await write(cluster, name, one, made(b"never"), made(b"seen"), committed=False)
        assert (aborted.producer_id, aborted.epoch) > (first.producer_id, first.epoch)

        old = await Transaction.begin(cluster, name)
        await old.join([one])
        await old.append({one: made(b"half of it")})
        new = await Transaction.begin(cluster, name)
        with pytest.raises(Fenced, match=f"another mirror of this flow writes under transactional id {name}") as caught:
            await old.append({one: made(b"the other half")})
        assert caught.value.transactional_id == name
        with pytest.raises(Fenced):
            await old.join([other])
        with pytest.raises(ClusterUnreachable, match="not committed, since not all of it was acknowledged"):
            await old.commit()
        with pytest.raises(Fenced):
            await old.abort()
        await new.join([one])
        await new.append({one: made(b"e")})
        await new.commit()
        await settled(cluster, one, other)
        assert seen(bootstrap, one, other) == committed | {one: [*committed[one], b"e"]}
        found = await last_committed(cluster, one)
        assert found
        assert columns.value(read(found), 0) == b"e"
        last = await last_committed(cluster, other)
        assert last
        assert last.header.base_offset == 1


def test_seen_together_or_never(own_target: Brokers, topic_name: str) -> None:
    make_topic(own_target.bootstrap, topic_name, 2)
    asyncio.run(the_whole_story(own_target.bootstrap, topic_name))


@pytest.mark.soak
@pytest.mark.parametrize("version", ["3.3.2", "3.9.1"])
def test_on_older_releases(version: Literal["3.3.2", "3.9.1"]) -> None:
    try:
        broker = KraftBroker(version)
    except NotFetched as problem:
        pytest.skip(str(problem))
    with broker:
        make_topic(broker.bootstrap, "story", 2)
        asyncio.run(the_whole_story(broker.bootstrap, "story"))


def test_a_fenced_holder_cannot_commit_what_was_acknowledged(own_target: Brokers, topic_name: str) -> None:
    bootstrap, at = own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(bootstrap, topic_name)

    async def story() -> None:
        async with connected(bootstrap) as cluster:
            old = await Transaction.begin(cluster, topic_name)
            await old.join([at])
            await old.append({at: made(b"old")})
            await Transaction.begin(cluster, topic_name)
            with pytest.raises(Fenced, match=f"EndTxn to commit: .* transactional id {topic_name}"):
                await old.commit()
            await settled(cluster, at)

    asyncio.run(story())
    assert seen(bootstrap, at) == {at: []}


def test_what_a_topic_was_given_that_was_made_anew_is_not_committed(own_target: Brokers, topic_name: str) -> None:
    """An append finds the topic by its name (T4)."""
    bootstrap, at = own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(bootstrap, topic_name)

    async def story() -> None:
        async with connected(bootstrap) as cluster:
            await cluster.refresh([topic_name])
            transaction = await Transaction.begin(cluster, topic_name)
            await transaction.join([at])
            await asyncio.to_thread(delete_topics, bootstrap, topic_name)
            appending = asyncio.create_task(transaction.append({at: made(b"of the former one")}))
            await asyncio.to_thread(make_topic, bootstrap, topic_name)
            assert await appending == {at: 0}
            with pytest.raises(ClusterUnreachable, match=f"not committed, since topic {topic_name} was deleted"):
                await transaction.commit()
            await transaction.abort()
            await settled(cluster, at)

    asyncio.run(story())
    assert seen(bootstrap, at) == {at: []}


def test_one_that_takes_too_long_is_aborted_by_its_coordinator(own_target: Brokers, topic_name: str) -> None:
    """It looks every ten seconds for such."""
    bootstrap, at = own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(bootstrap, topic_name)

    async def story() -> None:
        async with connected(bootstrap) as cluster:
            slow = await Transaction.begin(cluster, topic_name, timeout_ms=100)
            await slow.join([at])
            await slow.append({at: made(b"late")})
            await settled(cluster, at)
            with pytest.raises(Fenced, match="or this one took longer than its transaction may"):
                await slow.commit()

    asyncio.run(story())
    assert seen(bootstrap, at) == {at: []}


@pytest.mark.parametrize("codec", CODECS)
def test_records_stay_the_bytes_that_the_source_stored(
    own_source: Brokers, own_target: Brokers, topic_name: str, codec: str
) -> None:
    at = TopicPartition(topic_name, 0)
    for side in (own_source, own_target):
        make_topic(side.bootstrap, topic_name)
    produce(own_source.bootstrap, topic_name, [b"value %d " % n * 9 for n in range(300)], batch=100, codec=codec)
    source = stored_batches(own_source.bootstrap, topic_name)
    rebuilt = build(read(source[1]).rows(10, 60), 4)

    async def story() -> None:
        async with connected(own_target.bootstrap) as cluster:
            await write(cluster, topic_name, at, source[2], source[0], rebuilt)
            await settled(cluster, at)

    asyncio.run(story())
    *landed, marker = stored_batches(own_target.bootstrap, topic_name)
    assert marker.header.is_control
    sent = [source[2], source[0], rebuilt]
    assert [bytes(raw.records) for raw in landed] == [bytes(raw.records) for raw in sent]
    assert [raw.header.codec for raw in landed] == [raw.header.codec for raw in sent]
    assert [raw.header.base_sequence for raw in landed] == [0, 100, 200]
    assert all(raw.header.is_transactional for raw in landed)
    values = [columns.value(read(raw), index) for raw in sent for index in range(raw.header.count)]
    assert seen(own_target.bootstrap, at)[at] == values


def test_many_partitions_in_requests_of_a_limited_size(
    own_target: Brokers, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "REQUEST_BYTES", 1000)
    bootstrap, partitions = own_target.bootstrap, [TopicPartition(topic_name, number) for number in range(12)]
    make_topic(bootstrap, topic_name, len(partitions))

    async def story() -> None:
        async with connected(bootstrap) as cluster:
            transaction = await Transaction.begin(cluster, topic_name)
            await transaction.join(partitions)
            sizes = iter((1, 10, 400, 5000) * 12)
            for _ in range(4):
                await transaction.append({at: made(b"." * next(sizes)) for at in partitions})
            await transaction.commit()
            await settled(cluster, *partitions)

    asyncio.run(story())
    assert [len(values) for values in seen(bootstrap, *partitions).values()] == [4] * 12


# --- what is cut


class Cutting(Proxy):
    """Cuts the connection when the broker has answered a request of an API, in place of the answer; once for each."""

    def __init__(self, upstream: str, apis: Iterable[Api]) -> None:
        super().__init__(upstream)
        self.left = [api.key for api in apis]

    def _changed(self, frame: bytes, key: int, version: int) -> bytes:
        if key in self.left:
            self.left.remove(key)
            raise ConnectionResetError
        return super()._changed(frame, key, version)


@pytest.mark.parametrize(
    "apis",
    [[PRODUCE] * 3, [END_TXN] * 2, [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, FIND_COORDINATOR]],
    ids=["produce", "end", "begin"],
)
def test_what_was_cut_is_repeated_and_lands_once(own_target: Brokers, topic_name: str, apis: list[Api]) -> None:
    bootstrap, one, other = own_target.bootstrap, TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    make_topic(bootstrap, topic_name, 2)

    async def story(through: str) -> None:
        async with connected(through) as cluster:
            transaction = await Transaction.begin(cluster, topic_name)
            await transaction.join([one, other])
            assert await transaction.append({one: made(b"a", b"b"), other: made(b"x")}) == {one: 0, other: 0}
            assert await transaction.append({one: made(b"c"), other: made(b"y")}) == {one: 2, other: 1}
            await transaction.commit()
            await settled(cluster, one, other)

    with Cutting(bootstrap, apis) as proxy:
        asyncio.run(story(proxy.bootstrap))
        assert not proxy.left
    assert seen(bootstrap, one, other) == {one: [b"a", b"b", b"c"], other: [b"x", b"y"]}
    assert [raw.header.next_offset for raw in stored_batches(bootstrap, topic_name)] == [2, 3, 4]


# --- what brokers say


class Scripted:
    """A broker that is coordinator and leader; `codes` are answered first, by API and in turn, None by hanging up."""

    def __init__(self, codes: dict[Api, list[int | None]] | None = None) -> None:
        self.codes = {api: list(given) for api, given in (codes or {}).items()}
        self.refuses: set[Api] = set()
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
                if code is None or api in self.refuses:
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
async def test_what_passes_is_tried_again(newest: int) -> None:
    reported = Scripted(
        {
            FIND_COORDINATOR: [15, None],
            INIT_PRODUCER_ID: [14, 16, 51, 51, None],
            ADD_PARTITIONS_TO_TXN: [51, 16, 3],
            PRODUCE: [6, 19, None, 3, 51],
            END_TXN: [51, None, 14, 15],
        }
    )
    reported.broker.script[18] = offers(find_coordinator=newest)
    async with reported.cluster() as cluster:
        transaction = await Transaction.begin(cluster, "flow/0")
        assert (transaction.producer_id, transaction.epoch) == (7, 3)
        await transaction.join([ORDERS])
        assert await transaction.append({ORDERS: made(b"a", b"b")}) == {ORDERS: 40}
        first = reported.produced()
        assert len(first) == 6
        assert len(set(first)) == 1, "the same bytes each time"
        reported.codes[PRODUCE] = [46]
        assert await transaction.append({ORDERS: made(b"c")}) == {ORDERS: -1}
        sequences = [
            next(iter(split(memoryview(one)))).header.base_sequence for one in (first[0], reported.produced()[-1])
        ]
        assert sequences == [0, 2]
        await transaction.commit()
        assert [call.request.committed for call in reported.broker.of(END_TXN)] == [True] * 5
        assert len(reported.broker.of(FIND_COORDINATOR)) == 11, "asked anew, but for a transaction that is about to end"
        assert {call.version for call in reported.broker.of(PRODUCE)} == {11}, "no newer one: those begin by themselves"


@pytest.mark.parametrize("code", [47, 48, 49, 90])
@pytest.mark.parametrize("api", [ADD_PARTITIONS_TO_TXN, PRODUCE, END_TXN], ids=lambda api: api.name)
@in_loop
async def test_whoever_is_fenced_says_so(api: Api, code: int) -> None:
    reported = Scripted({api: [code]})
    async with reported.cluster() as cluster:
        transaction = await Transaction.begin(cluster, "flow/0")

        async def rest() -> None:
            await transaction.join([ORDERS])
            await transaction.append({ORDERS: made(b"a")})
            await transaction.commit()

        with pytest.raises(Fenced, match="writes under transactional id flow/0") as caught:
            await rest()
        assert caught.value.transactional_id == "flow/0"
        assert len(reported.broker.of(api)) == 1


@in_loop
async def test_what_no_retry_cures_is_not_committed() -> None:
    reported = Scripted({PRODUCE: [0, 10]})
    async with reported.cluster() as cluster:
        transaction = await Transaction.begin(cluster, "flow/0")
        await transaction.join([ORDERS])
        await transaction.append({ORDERS: made(b"a")})
        with pytest.raises(
            BrokerError, match=r"Produce to orders-0 under transactional id flow/0: .* 10 message_too_l"
        ):
            await transaction.append({ORDERS: made(b"b")})
        with pytest.raises(ClusterUnreachable, match="abort it"):
            await transaction.commit()
        assert not reported.broker.of(END_TXN)
        await transaction.abort()
        assert [call.request.committed for call in reported.broker.of(END_TXN)] == [False]


@in_loop
async def test_an_end_without_an_answer_is_not_clear() -> None:
    reported = Scripted()
    reported.refuses.add(END_TXN)
    async with reported.cluster() as cluster:
        transaction = await Transaction.begin(cluster, "flow/0", timeout_ms=300)
        await transaction.join([ORDERS])
        await transaction.append({ORDERS: made(b"a")})
        with pytest.raises(ClusterUnreachable, match=r"EndTxn to commit of transactional id flow/0: no clear answer"):
            await transaction.commit()


@in_loop
async def test_a_batch_without_an_answer_is_given_up_and_its_transaction_not_committed() -> None:
    reported = Scripted()
    reported.refuses.add(PRODUCE)
    async with reported.cluster() as cluster:
        transaction = await Transaction.begin(cluster, "flow/0", timeout_ms=300)
        await transaction.join([ORDERS])
        with pytest.raises(ClusterUnreachable, match=r"Produce to orders-0: no answer within 0\.3 s"):
            await transaction.append({ORDERS: made(b"a")})
        with pytest.raises(ClusterUnreachable, match="not all of it was acknowledged"):
            await transaction.commit()


@pytest.mark.parametrize("committed", [True, False])
@in_loop
async def test_nothing_is_asked_for_a_transaction_of_no_partition(*, committed: bool) -> None:
    reported = Scripted()
    async with reported.cluster() as cluster:
        transaction = await Transaction.begin(cluster, "flow/0")
        await transaction.join([])
        assert await transaction.append({}) == {}
        await (transaction.commit() if committed else transaction.abort())
        assert not reported.broker.of(END_TXN)


@in_loop
async def test_an_abort_where_no_partition_joined_has_nothing_to_do() -> None:
    reported = Scripted({ADD_PARTITIONS_TO_TXN: [17], END_TXN: [48]})
    async with reported.cluster() as cluster:
        transaction = await Transaction.begin(cluster, "flow/0")
        with pytest.raises(BrokerError, match="17"):
            await transaction.join([ORDERS])
        await transaction.abort()


# --- rights


def test_what_a_principal_may_not_do(tmp_path: Path) -> None:
    (started,) = start_many([spec("rights", tmp_path)])
    with started as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        make_topic(brokers.bootstrap, "t")

        def allow(*rights: tuple[ResourceType, str, AclOperation]) -> None:
            put_acls(
                admin,
                every_acl(),
                [
                    AclBinding(
                        kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW
                    )
                    for kind, name, operation in rights
                ],
            )

        at = TopicPartition("t", 0)

        async def story() -> None:
            async with Cluster(Endpoint.of(scram(brokers, tmp_path))) as cluster:
                await write(cluster, "flow/0", at, made(b"a"))

        on_id = (ResourceType.TRANSACTIONAL_ID, "flow/0", AclOperation.WRITE)
        allow((ResourceType.TOPIC, "t", AclOperation.WRITE))
        with pytest.raises(AccessDenied, match="needs WRITE on transactional id flow/0") as caught:
            asyncio.run(story())
        assert caught.value.right == "WRITE"
        allow((ResourceType.TRANSACTIONAL_ID, "flow/0", AclOperation.DESCRIBE))
        with pytest.raises(AccessDenied, match="InitProducerId needs WRITE on transactional id flow/0"):
            asyncio.run(story())
        allow(on_id, (ResourceType.TOPIC, "t", AclOperation.READ))
        with pytest.raises(AccessDenied, match="AddPartitionsToTxn needs WRITE on topic t"):
            asyncio.run(story())
        allow(on_id, (ResourceType.TOPIC, "t", AclOperation.WRITE))
        asyncio.run(story())


# --- the last batch that was committed


def test_an_empty_partition_has_no_last_batch(own_target: Brokers, topic_name: str) -> None:
    at = TopicPartition(topic_name, 0)
    make_topic(own_target.bootstrap, topic_name)

    async def story() -> None:
        async with connected(own_target.bootstrap) as cluster:
            assert await last_committed(cluster, at) is None
            await write(cluster, topic_name, at, made(b"a"), made(b"b"), committed=False)
            await settled(cluster, at)
            assert await last_committed(cluster, at) is None

    asyncio.run(story())


def test_the_last_batch_behind_which_there_is_much_of_no_account(own_target: Brokers, topic_name: str) -> None:
    bootstrap, at = own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(bootstrap, topic_name)

    async def story() -> None:
        async with connected(bootstrap) as cluster:
            await write(cluster, topic_name, at, made(b"a"), made(b"b", b"c"))
            for number in range(40):
                await write(cluster, topic_name, at, made(*[b"no"] * (1 + number % 7)), committed=False)
            opened = await Transaction.begin(cluster, f"{topic_name}-2")
            await opened.join([at])
            await opened.append({at: made(*[b"open"] * (2 * FIRST_STEP))})
            assert await list_offset(cluster, at, LATEST, READ_COMMITTED) > 8 * FIRST_STEP
            found = await last_committed(cluster, at)
            assert found
            assert (found.header.base_offset, columns.value(read(found), 1)) == (1, b"c")
            await opened.commit()
            await settled(cluster, at)
            found = await last_committed(cluster, at)
            assert found
            assert found.header.count == 2 * FIRST_STEP

    asyncio.run(story())


@pytest.mark.parametrize(("seed", "first_step"), [(0, 1), (1, 2), (2, FIRST_STEP)])
def test_the_last_batch_is_the_consumer_s(
    own_target: Brokers, topic_name: str, seed: int, first_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_module, "FIRST_STEP", first_step)
    bootstrap, at, random = own_target.bootstrap, TopicPartition(topic_name, 0), Random(seed)
    make_topic(bootstrap, topic_name)

    async def story() -> None:
        async with connected(bootstrap) as cluster:
            last = None
            for number in range(25):
                batches = [
                    made(*[b"%d" % number] * random.choice((1, 1, 2, 5, 40))) for _ in range(random.randrange(1, 4))
                ]
                committed = random.random() < 0.3
                await write(cluster, topic_name, at, *batches, committed=committed)
                await settled(cluster, at)
                last = batches[-1] if committed else last
                found = await last_committed(cluster, at)
                assert (found and bytes(found.records)) == (last and bytes(last.records))
            values = seen(bootstrap, at)[at]
            assert last
            assert values[-1:] == [columns.value(read(last), 0)]

    asyncio.run(story())


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
    async with answering((4, b"")) as cluster:
        with (
            patch("mirror.kafka.fetch.EMPTY_SECONDS", 0.3),
            pytest.raises(ClusterUnreachable, match=r"orders-0: nothing came back for offset 0 .* shows it up to 4"),
        ):
            await last_committed(cluster, ORDERS)


@in_loop
async def test_a_hole_up_to_the_end_is_none() -> None:
    async with answering((5, bytes(made(b"a", b"b").data)), (5, b"")) as cluster:
        found = await last_committed(cluster, ORDERS)
        assert found
        assert found.header.count == 2


@in_loop
async def test_a_last_batch_that_is_damaged() -> None:
    data = bytearray(made(*[b"a"] * 5).data)
    data[-2] ^= 1
    async with answering((5, bytes(data))) as cluster:
        with pytest.raises(MalformedBatch, match="orders-0: the CRC does not hold"):
            await last_committed(cluster, ORDERS)


def test_the_last_batch_of_a_compacted_partition(own_target: Brokers, topic_name: str) -> None:
    bootstrap, at = own_target.bootstrap, TopicPartition(topic_name, 0)
    make_topic(bootstrap, topic_name, configs=CLEANED)

    async def story() -> None:
        async with connected(bootstrap) as cluster:

            async def keyed(value: bytes, key: bytes, *, committed: bool = True) -> None:
                raw = made(value, key=key, ms=time.time_ns() // 1_000_000)  # by whose time a segment is closed
                await write(cluster, topic_name, at, raw, committed=committed)

            for number in range(30):
                await keyed(b"%d" % number, b"k%d" % (number % 3))
            end, deadline = await list_offset(cluster, at, LATEST), time.monotonic() + 60
            while True:
                stored = await asyncio.to_thread(stored_batches, bootstrap, topic_name)
                if sum(1 for raw in stored if _data(raw) and raw.header.base_offset < end) <= 3:
                    break
                assert time.monotonic() < deadline, "the cleaner did not run"
                await keyed(b"again", b"k9")  # closes a segment
                await keyed(b"no", b"k9", committed=False)
                await asyncio.sleep(0.2)
            await settled(cluster, at)
            found = await last_committed(cluster, at)
            assert found
            assert columns.value(read(found), 0) == b"again"

    asyncio.run(story())
    assert seen(bootstrap, at)[at][-1] == b"again"


def _data(raw: RawBatch) -> bool:
    return not raw.header.is_control and bool(raw.header.count)
