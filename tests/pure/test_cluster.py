"""A cluster: metadata that never goes back, one refresh at a time, questions that find the leader or say why not."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from fakebroker import HOST, Call, FakeBroker, FakeCluster, FakeTopic, framed, in_loop, offers
from fetching import fetched
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from one_cluster import a_cluster, end_offset
from waiting import MovableClock

from mirror.config import ClusterSettings
from mirror.errors import AccessDenied, BrokerError, ClusterUnreachable, ConnectionLost
from mirror.kafka import cluster as cluster_module
from mirror.kafka import queries
from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, Endpoint, Leader, TopicPartition
from mirror.kafka.fetch import fetch_at
from mirror.kafka.protocol import API_VERSIONS, FETCH, INIT_PRODUCER_ID, LIST_OFFSETS, METADATA, Api
from mirror.kafka.queries import LATEST, list_offsets_request, replicated_end
from mirror.kafka.retry import Backoff

ORDERS = TopicPartition("orders", 0)


def first_part(answer: Any) -> Any:
    return answer.topics[0].partitions[0]


async def end_of(cluster: Cluster, timeout: float = 60.0, read: Callable[[Any], Any] = first_part) -> int:
    """ListOffsets as `queries.list_offset` asks, with another deadline."""

    def build(version: int, _epoch: int) -> Any:
        return LIST_OFFSETS.request(version)(
            replica_id=-1, isolation_level=0, topics=(), **({"timeout": timedelta(0)} if version >= 10 else {})
        )

    part = await cluster.call_leader(ORDERS, LIST_OFFSETS, build=build, read=read, doing="ListOffsets", timeout=timeout)
    return int(part.offset)


# --- metadata


@in_loop
async def test_a_refresh_learns_brokers_leaders_and_ids() -> None:
    async with a_cluster() as (cluster, metadata, _):
        metadata.topics["orders"].leaders = {0: (1, 5), 1: (-1, 6)}
        await cluster.refresh(["orders", "absent"])
        assert cluster.cluster_id == "fake"
        assert cluster.leader(ORDERS) == Leader(1, 5)
        assert cluster.leader(TopicPartition("orders", 1)) == Leader(-1, 6)
        assert cluster.leader(TopicPartition("orders", 2)) == Leader(-1, -1)
        assert cluster.leader(TopicPartition("absent", 0)) == Leader(-1, -1)
        assert cluster.topic_id("orders") == metadata.topics["orders"].topic_id
        assert cluster.topic_id("absent") is None


@in_loop
async def test_a_refresh_asks_for_what_was_asked_before() -> None:
    async with a_cluster() as (cluster, metadata, (broker,)):
        metadata.topics["clicks"] = FakeTopic()
        await cluster.refresh(["orders"])
        await cluster.refresh(["clicks"])
        await cluster.refresh()
        asked = [[topic.name for topic in call.request.topics] for call in broker.of(METADATA) if call.request.topics]
        assert asked == [["orders"], ["clicks", "orders"], ["clicks", "orders"]]
        assert not any(call.request.allow_auto_topic_creation for call in broker.of(METADATA))
        cluster.forget(["orders", "absent"])
        await cluster.refresh()
        assert [topic.name for topic in broker.of(METADATA)[-1].request.topics] == ["clicks"]
        assert cluster.leader(ORDERS).node == -1


@in_loop
async def test_metadata_never_goes_back() -> None:
    """K1: a broker that lags names a leader of long ago."""
    async with a_cluster() as (cluster, metadata, _):
        for leader, epoch, known in [(1, 5, (1, 5)), (2, 4, (1, 5)), (2, 5, (2, 5)), (-1, 6, (-1, 6)), (1, 7, (1, 7))]:
            metadata.topics["orders"].leaders = {0: (leader, epoch)}
            await cluster.refresh(["orders"])
            assert cluster.leader(ORDERS) == Leader(*known)


@in_loop
async def test_a_recreated_topic_begins_with_a_new_epoch_and_a_deleted_one_is_forgotten() -> None:
    async with a_cluster() as (cluster, metadata, _):
        metadata.topics["orders"] = FakeTopic({0: (1, 50), 1: (1, 50)})
        await cluster.refresh(["orders"])
        again = metadata.topics["orders"] = FakeTopic({0: (1, 0)})
        await cluster.refresh()
        assert cluster.topic_id("orders") == again.topic_id
        assert cluster.leader(ORDERS) == Leader(1, 0)
        assert cluster.leader(TopicPartition("orders", 1)) == Leader(-1, -1)
        del metadata.topics["orders"]
        await cluster.refresh()
        assert cluster.topic_id("orders") is None
        assert cluster.leader(ORDERS).node == -1


@in_loop
async def test_metadata_without_a_broker_is_no_answer(clock: MovableClock) -> None:
    """A broker that has only just started gives it: what was known stays, and another broker is asked."""
    async with a_cluster(2) as (cluster, metadata, (empty, sound)):
        await cluster.refresh(["orders"])
        empty.script[METADATA.key] = FakeCluster({})
        for _ in range(5):
            await cluster.refresh()
        assert cluster.nodes == (1, 2)
        sound.script[METADATA.key] = FakeCluster({})
        refreshing = asyncio.create_task(cluster.refresh())
        asked = len(empty.of(METADATA))
        await empty.called(METADATA, asked + 5)  # all have failed once
        clock.move(CALL_TIMEOUT + 1)
        with pytest.raises(ClusterUnreachable, match="its metadata names no broker: the cluster is starting, or cut"):
            await refreshing
        assert cluster.nodes == (1, 2)
        sound.script[METADATA.key] = metadata
        await cluster.refresh()


@in_loop
async def test_silent_brokers_do_not_use_up_the_time_of_a_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of four are silent, and each of them would be for longer than anybody waits here."""
    monkeypatch.setattr(cluster_module, "CONNECT_TIMEOUT", 1e6)
    monkeypatch.setattr(cluster_module, "NEXT_BROKER", 0.05)
    async with a_cluster(4) as (cluster, _, brokers):
        await cluster.refresh(["orders"])
        for broker in brokers[:3]:
            broker.script[METADATA.key] = lambda _: None
        for _ in range(5):
            await cluster.refresh(timeout=1e6)


@in_loop
async def test_those_who_want_a_refresh_at_once_share_it() -> None:
    """K2"""
    async with a_cluster() as (cluster, _, (broker,)):
        await asyncio.gather(*(cluster.refresh(["orders"]) for _ in range(10)))
        assert len(broker.of(METADATA)) == 1


@in_loop
async def test_who_comes_late_with_another_topic_gets_a_refresh_after_it() -> None:
    async with a_cluster() as (cluster, metadata, (broker,)):
        metadata.topics["clicks"] = FakeTopic()
        broker.script[METADATA.key] = lambda call: None
        first = asyncio.create_task(cluster.refresh(["orders"]))
        (held,) = await broker.called(METADATA)
        second = asyncio.create_task(cluster.refresh(["clicks"]))
        await asyncio.sleep(0)
        broker.script[METADATA.key] = metadata
        held.answer(metadata(held))
        await asyncio.gather(first, second)
        assert len([call for call in broker.of(METADATA) if call.request.topics]) == 2
        assert cluster.leader(TopicPartition("clicks", 0)).node == 1


@in_loop
async def test_a_caller_that_gives_up_leaves_the_refresh_to_the_others() -> None:
    async with a_cluster() as (cluster, metadata, (broker,)):
        broker.script[METADATA.key] = lambda call: None
        impatient, patient = (asyncio.create_task(cluster.refresh(["orders"])) for _ in range(2))
        (held,) = await broker.called(METADATA)
        impatient.cancel()
        await asyncio.wait([impatient])
        held.answer(metadata(held))
        await patient
        assert cluster.leader(ORDERS).node == 1


@pytest.mark.parametrize(
    "first",
    [
        lambda call: call.hang_up(),
        lambda call: call.send(framed(b"garbage that is long enough to be an answer")),
        offers([INIT_PRODUCER_ID]),
    ],
    ids=["hangs up", "garbage", "no common version"],
)
@in_loop
async def test_another_bootstrap_broker_is_tried(first: Callable[[Call], Any], free_port: int) -> None:
    async with a_cluster() as (_, _, (sound,)), FakeBroker({API_VERSIONS.key: first}) as bad:
        for _ in range(4):  # the order is random
            bootstrap = ((HOST, free_port), bad.address, sound.address)
            async with Cluster(Endpoint("test", bootstrap)) as cluster:
                await cluster.refresh(["orders"])
                assert cluster.leader(ORDERS).node == 1


@in_loop
async def test_nobody_answers(free_port: int) -> None:
    async with Cluster(Endpoint("eu", ((HOST, free_port),))) as cluster:
        with pytest.raises(ClusterUnreachable, match=f"cluster eu .*127.0.0.1:{free_port}.* within 0.2 s .*bootstrap"):
            await cluster.refresh(["orders"], timeout=0.2)


@in_loop
async def test_a_client_has_the_name_and_the_timeout_that_it_was_given(clock: MovableClock) -> None:
    text = {"alias": "eu", "client.id": "team-x", "socket.timeout.ms": 40_000}
    async with a_cluster() as (_, _, (broker,)):
        settings = ClusterSettings.model_validate({**text, "bootstrap.servers": ":".join(map(str, broker.address))})
        async with Cluster(Endpoint.of(settings)) as cluster:
            await cluster.refresh(["orders"])
            assert {call.client_id for call in broker.calls} == {"team-x"}
            broker.script[LIST_OFFSETS.key] = lambda _: None
            connection = await cluster.connection(1)
            request = list_offsets_request(connection.version(LIST_OFFSETS), {ORDERS: 0}, LATEST)
            asked = asyncio.create_task(connection.call(LIST_OFFSETS, request, 60))
            await broker.called(LIST_OFFSETS)
            clock.move(40)
            with pytest.raises(ConnectionLost, match="no answer to list_offsets within 40 s"):
                await asked


@in_loop
async def test_a_topic_that_is_denied_is_reported_and_does_not_stop_the_others() -> None:
    async with a_cluster() as (cluster, metadata, _):
        metadata.topics["secret"] = FakeTopic(error=29)
        with pytest.raises(AccessDenied, match="DESCRIBE right on topic secret"):
            await cluster.refresh(["orders", "secret"])
        await cluster.refresh(["orders"])
        assert cluster.leader(ORDERS).node == 1


@in_loop
async def test_addresses_that_cannot_be_are_passed_over() -> None:
    async with a_cluster() as (cluster, metadata, (broker,)):
        metadata.brokers = {1: (HOST, 99_999), 2: ("x" * 64 + ".y", 9092), 3: broker.address}
        await cluster.refresh(["orders"])
        await cluster.refresh(["orders"])
        for node in (1, 2, 9):  # metadata does not name the last
            with pytest.raises(ConnectionLost):
                await cluster.connection(node)


# --- connections


@in_loop
async def test_one_connection_for_each_purpose() -> None:
    async with a_cluster() as (cluster, _, (broker,)):
        await cluster.refresh(["orders"])
        both = await asyncio.gather(cluster.connection(1), cluster.connection(1))
        assert both[0] is both[1] is await cluster.connection(1)
        other = await cluster.connection(1, "fetch")
        assert other is not both[0]
        assert broker.connections == 3, "the bootstrap's is a third"


@in_loop
async def test_a_broker_that_moved_is_asked_where_it_is_now() -> None:
    """Two brokers came back with each other's old addresses. Who waits for an answer gets it before."""
    async with a_cluster(2) as (cluster, metadata, (one, two)):
        await cluster.refresh(["orders"])
        busy, idle = await cluster.connection(2, "busy"), await cluster.connection(2, "idle")
        two.script[LIST_OFFSETS.key] = lambda call: None
        request = list_offsets_request(busy.version(LIST_OFFSETS), {ORDERS: 0}, LATEST, 0)
        asking = asyncio.create_task(busy.call(LIST_OFFSETS, request, 20))
        (call,) = await two.called(LIST_OFFSETS)
        metadata.brokers = {1: two.address, 2: one.address}
        await cluster.refresh(["orders"])
        assert (await cluster.connection(2, "idle")).address == one.address
        assert not idle.is_open
        assert await cluster.connection(2, "busy") is busy
        call.answer(end_offset(7)(call))
        assert (await asking).topics[0].partitions[0].offset == 7
        assert (await cluster.connection(2, "busy")).address == one.address


@in_loop
async def test_a_connection_that_leads_to_another_broker_is_made_anew(clock: MovableClock) -> None:
    """Who answers is not the leader, and metadata says again that it is."""

    def late(answer: Any) -> Any:
        if len(broker.of(LIST_OFFSETS)) > asked + 2:
            clock.move(16)
        return first_part(answer)

    async with a_cluster() as (cluster, _, (broker,)):
        await cluster.refresh(["orders"])
        misled = await cluster.connection(1), await cluster.connection(1, "fetch")
        mistaken = {call.connection for call in broker.calls}
        broker.script[LIST_OFFSETS.key] = lambda call: end_offset(error=6 * (call.connection in mistaken))(call)
        assert await end_of(cluster) == 500
        assert (await cluster.connection(1, "fetch")) is not misled[1]
        assert not any(connection.is_open for connection in misled)
        broker.script[LIST_OFFSETS.key], asked = end_offset(error=6), len(broker.of(LIST_OFFSETS))
        other = await cluster.connection(1), await cluster.connection(1, "fetch")
        with pytest.raises(ClusterUnreachable):
            await end_of(cluster, 15.0, late)
        assert await cluster.connection(1, "fetch") is other[1], "it may be the leader, and be late"


@in_loop
async def test_a_connection_that_broke_or_was_never_made_is_made_anew() -> None:
    async with a_cluster() as (cluster, _, (broker,)):
        await cluster.refresh(["orders"])
        (await cluster.connection(1)).close()
        broker.script[API_VERSIONS.key] = lambda call: call.hang_up()
        with pytest.raises(ConnectionLost):
            await cluster.connection(1)
        broker.script[API_VERSIONS.key] = offers()
        assert (await cluster.connection(1)).is_open


# --- questions to a leader


@pytest.mark.parametrize("error", [6, 5, 3, 74, 75, 9], ids=lambda code: ErrorCode(code).name)
@in_loop
async def test_a_stale_leader_then_the_new_one(error: int) -> None:
    async with a_cluster(2) as (cluster, metadata, (one, two)):

        def moved(call: Call) -> Any:
            metadata.topics["orders"].leaders = {0: (2, 1)}
            return end_offset(error=error)(call)

        one.script[LIST_OFFSETS.key] = moved
        assert await end_of(cluster) == 500
        assert (len(one.of(LIST_OFFSETS)), len(two.of(LIST_OFFSETS))) == (1, 1)


@in_loop
async def test_a_connection_that_breaks_is_tried_again() -> None:
    async with a_cluster() as (cluster, _, (broker,)):

        def once(call: Call) -> None:
            broker.script[LIST_OFFSETS.key] = end_offset(77)
            call.hang_up()

        broker.script[LIST_OFFSETS.key] = once
        assert await end_of(cluster) == 77


@in_loop
async def test_a_leader_is_waited_for() -> None:
    async with a_cluster() as (cluster, metadata, (broker,)):
        metadata.topics["orders"].leaders = {0: (-1, 3)}
        asking = asyncio.create_task(end_of(cluster))
        await broker.called(METADATA, 3)
        metadata.topics["orders"].leaders = {0: (1, 4)}
        assert await asking == 500


@pytest.mark.parametrize("error", [29, 30, 31, 53, 58, 65, 42], ids=lambda code: ErrorCode(code).name)
@in_loop
async def test_what_no_retry_cures_is_reported_at_once(error: int) -> None:
    async with a_cluster() as (cluster, _, (broker,)):
        broker.script[LIST_OFFSETS.key] = end_offset(error=error)
        name = ErrorCode(error)
        why = " needs DESCRIBE on topic orders" if name is ErrorCode.topic_authorization_failed else f": .*{name.name}"
        with pytest.raises(
            BrokerError if error == 42 else AccessDenied, match=f"cluster test .*ListOffsets of orders-0{why}"
        ):
            await end_of(cluster)
        assert len(broker.of(LIST_OFFSETS)) == 1


@pytest.mark.parametrize(
    ("read", "reported"),
    [(first_part, r"within 60 s .*6 not_leader_or_follower"), (lambda answer: answer.topics[1], "without the part")],
    ids=["error", "another partition"],
)
@in_loop
async def test_a_wrong_answer_that_stays_is_reported_at_the_deadline(
    read: Callable[[Any], Any], reported: str, clock: MovableClock
) -> None:
    def reading(answer: Any) -> Any:
        clock.move(40)
        return read(answer)

    async with a_cluster() as (cluster, _, (broker,)):
        broker.script[LIST_OFFSETS.key] = end_offset(error=6)
        with pytest.raises(ClusterUnreachable, match=reported):
            await end_of(cluster, read=reading)
        assert len(broker.of(LIST_OFFSETS)) == 2


@pytest.mark.parametrize("api", [LIST_OFFSETS, API_VERSIONS], ids=lambda api: api.name)
@in_loop
async def test_a_silent_leader_is_reported_at_the_deadline(api: Api, clock: MovableClock) -> None:
    """Whether it greets or not."""
    async with a_cluster() as (cluster, _, (broker,)):
        await cluster.refresh(["orders"])
        (await cluster.connection(1)).close()
        broker.script[api.key] = lambda call: None
        asking = asyncio.create_task(end_of(cluster))
        await broker.called(api, len(broker.of(api)) + 1)
        clock.move(61)
        with pytest.raises(ClusterUnreachable):
            await asking


@in_loop
async def test_one_partition_is_fetched_with_its_topic_id_and_again_where_the_answer_has_another() -> None:
    async with a_cluster() as (cluster, metadata, (broker,)):
        own = metadata.topics["orders"].topic_id

        def answers(topic_id: uuid.UUID, **part: Any) -> Callable[[Call], Any]:
            return lambda call: fetched(call.version, [("orders", topic_id, 0, part)])

        def once(call: Call) -> Any:
            broker.script[FETCH.key] = answers(own, records=b"right")
            return answers(uuid.uuid4(), records=b"wrong")(call)

        broker.script[FETCH.key] = once
        found = await fetch_at(cluster, ORDERS, 5)
        assert (found.partition, bytes(found.records)) == (ORDERS, b"right")
        assert {call.request.topics[0].topic_id for call in broker.of(FETCH)} == {own}
        broker.script[FETCH.key] = answers(own, error_code=ErrorCode(1))
        with pytest.raises(BrokerError) as caught:
            await fetch_at(cluster, ORDERS, 5)
        assert caught.value.code == 1, "out of range"


# --- how long to wait


@given(st.integers(0, 2**32), st.floats(0.001, 1.0), st.floats(1.0, 60.0), st.integers(1, 80))
def test_waits_double_up_to_the_longest_with_jitter(seed: int, first: float, longest: float, tries: int) -> None:
    backoff = Backoff(first, longest, Random(seed))
    for turn in range(tries):
        step = min(longest, first * 2**turn)
        assert step / 2 <= backoff.next() <= step
    backoff.reset()
    assert first / 2 <= backoff.next() <= first
    assert backoff.next() != Backoff(first, longest, Random(seed + 1)).next(), "two who wait are not in step"


@in_loop
async def test_an_end_is_believed_once_every_in_sync_replica_has_it(
    clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies above the high watermark a later leader may not have."""
    replicated = [90, 95, 100]

    async def end(*_: Any) -> queries.EpochEnd:
        return queries.EpochEnd(0, 100)

    async def high_watermark(*_: Any) -> int:
        if len(replicated) == 1 and replicated != [100]:
            clock.move(CALL_TIMEOUT)
        return replicated.pop(0) if len(replicated) > 1 else replicated[0]

    monkeypatch.setattr(queries, "epoch_end", end)
    monkeypatch.setattr(queries, "list_offset", high_watermark)
    nowhere = Cluster(Endpoint("us", ()))
    assert await replicated_end(nowhere, ORDERS) == 100
    replicated[:] = [95]
    with pytest.raises(ClusterUnreachable, match="replicas hold 95 of 100 offsets"):
        await replicated_end(nowhere, ORDERS)
