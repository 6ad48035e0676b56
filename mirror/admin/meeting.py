"""The first word with a cluster, by the wire, before librdkafka speaks to it.

librdkafka tries a wrong password or an unknown certificate again and again until its deadline, and then says that no
broker answered. The wire says at once what is wrong, and it is what copies later: both must get in.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from mirror.config import ClusterSettings
from mirror.wire.cluster import Cluster, Endpoint


def meet(settings: ClusterSettings, timeout: float) -> None:
    """Connect once, for at most `timeout` seconds. Raises ClusterUnreachable, NotAuthenticated."""

    async def greet() -> None:
        async with Cluster(Endpoint.of(settings)) as cluster:
            await cluster.refresh(timeout=timeout)

    with ThreadPoolExecutor(max_workers=1) as pool:  # whoever asks may have an event loop of its own
        pool.submit(asyncio.run, greet()).result()
