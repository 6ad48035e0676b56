"""Questions about a cluster as a whole: what brokers of several releases answer, and answers that name no broker."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from fakebroker import Call, FakeBroker, FakeCluster, FakeTopic, in_loop, offers, scripted
from kio.schema.errors import ErrorCode
from waiting import DEADLINE_S, MovableClock

from mirror.config import ClusterSettings
from mirror.errors import AccessDenied, BrokerError, ClusterUnreachable
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint, cluster_rights, described
from mirror.kafka.protocol import API_VERSIONS, DESCRIBE_CLUSTER, METADATA

#: READ and ALTER, by their bits.
BITS = 1 << 3 | 1 << 7


def rights(error: int = 0) -> Any:
    """A script for DescribeCluster."""

    def script(call: Call) -> Any:
        return call.schema().DescribeClusterResponse(
            throttle_time=timedelta(0),
            error_code=ErrorCode(error),
            cluster_id="fake",
            brokers=(),
            cluster_authorized_operations=BITS,
        )

    return script


@asynccontextmanager
async def a_cluster() -> AsyncIterator[tuple[Cluster, FakeBroker, FakeCluster]]:
    async with FakeBroker({DESCRIBE_CLUSTER.key: rights()}) as broker:
        metadata = FakeCluster({1: broker.address}, {"orders": FakeTopic({1: (-1, 0), 0: (1, 0)})})
        scripted(broker, metadata)
        async with Cluster(Endpoint("test", (broker.address,))) as cluster:
            yield cluster, broker, metadata


@in_loop
async def test_rights_on_the_cluster() -> None:
    async with a_cluster() as (cluster, broker, _):
        assert await cluster_rights(cluster) == {"READ", "ALTER"}
        (call,) = broker.of(DESCRIBE_CLUSTER)
        assert call.request.include_cluster_authorized_operations
        broker.script[DESCRIBE_CLUSTER.key] = rights(31)
        with pytest.raises(AccessDenied, match="DescribeCluster: cluster_authorization_failed"):
            await cluster_rights(cluster)


@in_loop
async def test_a_broker_without_describe_cluster_gives_them_with_its_metadata() -> None:
    async with a_cluster() as (cluster, broker, metadata):
        broker.script[API_VERSIONS.key] = offers([METADATA], metadata=10)

        def answering(call: Call) -> Any:
            answer = metadata(call)
            object.__setattr__(answer, "cluster_authorized_operations", BITS)
            return answer

        broker.script[METADATA.key] = answering
        assert await cluster_rights(cluster) == {"READ", "ALTER"}
        assert broker.of(METADATA)[-1].request.include_cluster_authorized_operations


@in_loop
async def test_topics_are_described_and_absent_ones_left_out() -> None:
    async with a_cluster() as (cluster, broker, metadata):
        (orders,) = await described(cluster, ["orders", "absent"])
        assert (orders.name, orders.topic_id) == ("orders", metadata.topics["orders"].topic_id)
        assert [(one.partition, one.leader) for one in orders.partitions] == [(0, 1), (1, -1)]
        assert orders.rights is None
        metadata.topics["orders"].error = 29
        with pytest.raises(AccessDenied, match="topic orders: topic_authorization_failed"):
            await described(cluster, ["orders"])
        metadata.topics["orders"] = FakeTopic({}, error=-1)
        with pytest.raises(BrokerError, match="topic orders"):
            await described(cluster, ["orders"])
        broker.script[METADATA.key] = lambda _: None


def admin_of(broker: FakeBroker) -> Admin:
    host, port = broker.address
    return Admin(ClusterSettings.model_validate({"alias": "eu", "bootstrap.servers": f"{host}:{port}"}))


@in_loop
async def test_administration_outlives_metadata_without_a_broker(clock: MovableClock) -> None:
    """librdkafka ends the process over it."""

    def nobody(call: Call) -> Any:
        clock.move(1000)  # nothing is asked twice
        return FakeCluster({})(call)

    async with a_cluster() as (_, broker, metadata):
        admin = admin_of(broker)
        asks = [admin.cluster_id, admin.brokers, admin.rights, admin.topic_names, lambda: admin.describe(["orders"])]
        assert await asyncio.to_thread(admin.brokers) == 1
        broker.script[METADATA.key] = nobody
        for ask in asks:
            with pytest.raises(ClusterUnreachable, match=r"^cluster eu .*: cannot .*its metadata names no broker"):
                await asyncio.to_thread(ask)
        broker.script[METADATA.key] = metadata
        assert (await asyncio.to_thread(admin.describe, ["orders"])).keys() == {"orders"}
        assert await asyncio.to_thread(admin.rights) == {"READ", "ALTER"}


@in_loop
async def test_a_forked_process_asks_by_a_loop_of_its_own() -> None:
    """Its parent's has no thread there, and would never answer."""
    async with a_cluster() as (_, broker, _metadata):
        admin = admin_of(broker)
        assert await asyncio.to_thread(admin.brokers) == 1
        child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(admin_of(broker).brokers()))
        child.start()
        await asyncio.to_thread(child.join, DEADLINE_S)
        assert child.exitcode == 1, "the number of brokers"
        assert await asyncio.to_thread(admin.brokers) == 1
