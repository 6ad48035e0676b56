"""One cluster behind a fake broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from fakebroker import Call, FakeBroker, FakeCluster, FakeTopic, scripted
from kio.schema.errors import ErrorCode

from mirror.kafka.cluster import Cluster, Endpoint
from mirror.kafka.protocol import LIST_OFFSETS


def end_offset(offset: int = 500, error: int = 0) -> Callable[[Call], Any]:
    """A script for ListOffsets."""

    def script(call: Call) -> Any:
        schema = call.schema()
        part = schema.ListOffsetsPartitionResponse(
            partition_index=0, error_code=ErrorCode(error), timestamp=-1, offset=offset, leader_epoch=0
        )
        topics = (schema.ListOffsetsTopicResponse(name="orders", partitions=(part,)),)
        return schema.ListOffsetsResponse(throttle_time=timedelta(0), topics=topics)

    return script


@asynccontextmanager
async def a_cluster(brokers: int = 1) -> AsyncIterator[tuple[Cluster, FakeCluster, list[FakeBroker]]]:
    """A client, what metadata says, and the brokers 1 to `brokers`, of which the first is the bootstrap."""
    running = [FakeBroker() for _ in range(brokers)]
    try:
        for broker in running:
            await broker.__aenter__()
        metadata = FakeCluster(
            {node: broker.address for node, broker in enumerate(running, 1)}, {"orders": FakeTopic()}
        )
        for broker in running:
            scripted(broker, metadata).script[LIST_OFFSETS.key] = end_offset()
        async with Cluster(Endpoint("test", (running[0].address,))) as cluster:
            yield cluster, metadata, running
    finally:
        for broker in running:
            await broker.__aexit__(None, None, None)
