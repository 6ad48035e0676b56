"""The first word with a cluster, by the wire, before librdkafka speaks to it.

librdkafka tries a wrong password or an unknown certificate again and again until its deadline, and then says that no
broker answered. The wire says at once what is wrong, and it is what copies later: both must get in.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from mirror.config import ClusterSettings
from mirror.errors import ClusterUnreachable, NotAuthenticated
from mirror.wire.cluster import Cluster, Endpoint


def meet(settings: ClusterSettings, what: str, timeout: float) -> None:
    """Connect once, for at most `timeout` seconds, in order to do `what`.

    Raises ClusterUnreachable, NotAuthenticated.
    """
    endpoint = Endpoint.of(settings)

    async def greet() -> None:
        async with Cluster(endpoint) as cluster:
            await cluster.refresh(timeout=timeout)

    try:
        with ThreadPoolExecutor(max_workers=1) as pool:  # whoever asks may have an event loop of its own
            pool.submit(asyncio.run, greet()).result()
    except (ClusterUnreachable, NotAuthenticated) as problem:
        why = str(problem).removeprefix(f"{endpoint}: ")
        raise type(problem)(f"{endpoint}: cannot {what}: {why}") from problem
