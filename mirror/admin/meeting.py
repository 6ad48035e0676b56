"""A cluster by the wire, for administration: the first word, before librdkafka speaks to it, and questions about it.

librdkafka tries a wrong password or an unknown certificate again and again until its deadline, and then says that no
broker answered. The wire says at once what is wrong, and it is what copies later: both must get in. What is asked every
few seconds is asked by the wire as well where librdkafka would end the process over an answer (`wire/metadata.py`).
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mirror.config import ClusterSettings
from mirror.errors import ClusterError, ClusterUnreachable, ConnectionLost
from mirror.wire.cluster import Cluster, Endpoint
from mirror.wire.protocol import Api

T = TypeVar("T")


class _Loop:
    """The event loop of every `Wire`, in a thread that the end of the program does not wait for: whoever asks may have
    an event loop of its own.
    """

    lock = threading.Lock()
    running: asyncio.AbstractEventLoop | None = None


def _loop() -> asyncio.AbstractEventLoop:
    with _Loop.lock:
        if _Loop.running is None:
            _Loop.running = asyncio.new_event_loop()
            threading.Thread(target=_Loop.running.run_forever, daemon=True, name="mirror-admin").start()
        return _Loop.running


def _forked() -> None:
    """A child has no thread but its own."""
    _Loop.lock, _Loop.running = threading.Lock(), None


os.register_at_fork(after_in_child=_forked)


class Wire:
    """One cluster and the connections to it, which stay open for the next question; for use from any thread."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Connects when it is asked something."""
        self.endpoint = Endpoint.of(settings)
        self._cluster = Cluster(self.endpoint)
        weakref.finalize(self, _closed, self._cluster, os.getpid())

    def ask(self, what: str, timeout: float, question: Callable[[Cluster], Awaitable[T]]) -> T:
        """The answer to a question, which is asked in order to do `what`, when a broker has answered within `timeout`
        seconds. Raises ClusterUnreachable, AccessDenied, BrokerError.
        """

        async def asked() -> T:
            await self._cluster.refresh(timeout=timeout)
            return await question(self._cluster)

        answer = asyncio.run_coroutine_threadsafe(asked(), _loop())
        try:
            return answer.result()
        except ClusterError as problem:
            why = str(problem).removeprefix(f"{self.endpoint}: ")
            told = f"{self.endpoint}: cannot {what}: {why}"
            problem.args = (told,)
            raise
        finally:
            answer.cancel()


def _closed(cluster: Cluster, process: int) -> None:
    if os.getpid() == process:  # else the connections are a parent's
        _loop().call_soon_threadsafe(cluster.close)


async def newest_version(cluster: Cluster, api: Api) -> int:
    """The newest version of an API that one of the brokers takes, -1 where it has none: so old is the cluster, but
    while it is upgraded. Raises ClusterUnreachable, AccessDenied.
    """
    lost: ConnectionLost | None = None
    for node in cluster.nodes:
        try:
            return (await cluster.connection(node)).versions.ranges.get(api.key, (0, -1))[1]
        except ConnectionLost as problem:
            lost = problem
    raise ClusterUnreachable(f"{cluster}: {lost}")
