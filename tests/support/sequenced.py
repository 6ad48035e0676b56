"""A target that forgets producers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from probe import probing_existing
from watchedtask import TIMEOUT

from mirror.lab.embedded import Cluster


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Cluster]:
    """A target that forgets a producer at once where its batches are old: it goes by their timestamps (Kafka
    `ProducerStateManager.isProducerExpired`), and these tests' records are an hour old.
    """
    config = {"producer.id.expiration.ms": 1, "producer.id.expiration.check.interval.ms": 10}
    with Cluster.start(name="forgetful", config=config) as cluster:
        yield cluster


def await_forgotten(cluster: Cluster, topic: str) -> None:
    """Until the leader of the one partition knows no producer."""

    async def poll() -> None:
        async with asyncio.timeout(TIMEOUT), probing_existing(cluster.bootstrap, topic) as probe:
            while await probe.remembered():
                await asyncio.sleep(0.01)

    asyncio.run(poll())
