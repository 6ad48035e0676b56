"""The first word with a cluster, by the wire, before librdkafka speaks to it.

librdkafka tries a wrong password or an unknown certificate again and again until its deadline, and then says that no
broker answered. The wire says at once what is wrong, and it is what copies later: both must get in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mirror.config import ClusterSettings
from mirror.errors import ClusterUnreachable, ConnectionLost, NotAuthenticated
from mirror.wire.cluster import Cluster, Endpoint
from mirror.wire.protocol import Api

T = TypeVar("T")


def meet(settings: ClusterSettings, what: str, timeout: float) -> None:
    """Connect once, for at most `timeout` seconds, in order to do `what`.

    Raises ClusterUnreachable, NotAuthenticated.
    """

    async def nothing_more(_: Cluster) -> None:
        pass

    _greeted(settings, what, timeout, nothing_more)


def newest_version(settings: ClusterSettings, api: Api, what: str, timeout: float) -> int:
    """The newest version of an API that one of the brokers takes, -1 where it has none: so old is the cluster, but
    while it is upgraded. Raises as `meet` does.
    """

    async def offered(cluster: Cluster) -> int:
        lost: ConnectionLost | None = None
        for node in cluster.nodes:
            try:
                return (await cluster.connection(node)).versions.ranges.get(api.key, (0, -1))[1]
            except ConnectionLost as problem:
                lost = problem
        raise ClusterUnreachable(f"{cluster}: {lost}")

    return _greeted(settings, what, timeout, offered)


def _greeted(settings: ClusterSettings, what: str, timeout: float, ask: Callable[[Cluster], Awaitable[T]]) -> T:
    endpoint = Endpoint.of(settings)

    async def greet() -> T:
        async with Cluster(endpoint) as cluster:
            await cluster.refresh(timeout=timeout)
            return await ask(cluster)

    try:
        with ThreadPoolExecutor(max_workers=1) as pool:  # whoever asks may have an event loop of its own
            return pool.submit(asyncio.run, greet()).result()
    except (ClusterUnreachable, NotAuthenticated) as problem:
        why = str(problem).removeprefix(f"{endpoint}: ")
        raise type(problem)(f"{endpoint}: cannot {what}: {why}") from problem
