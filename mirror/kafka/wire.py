"""A cluster by the wire, for administration from any thread: one event loop of the process serves all of them."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
import weakref
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from mirror.config import ClusterSettings
from mirror.errors import ClusterError, ClusterUnreachable, Throttled, WireError
from mirror.kafka.cluster import Cluster, Endpoint, refusal
from mirror.kafka.connection import throttled_seconds
from mirror.kafka.protocol import DELETE_TOPICS

T = TypeVar("T")

DEADLINE_S = 8.0
"""How long one call may take, in seconds."""
#: Answers of DeleteTopics (Kafka `Errors`): done, or gone before; of a broker that is not the one to ask; of one whose
#: quota is used up.
_GONE = (0, 3, 100)
_NOT_CONTROLLER = 41
_THROTTLED: Final = 89


class _Loop:
    """The event loop of every `Wire`, in a thread that the end of the program does not wait for."""

    lock = threading.Lock()
    running: asyncio.AbstractEventLoop | None = None


def _loop() -> asyncio.AbstractEventLoop:
    with _Loop.lock:
        if _Loop.running is None:
            made = asyncio.new_event_loop()
            threading.Thread(target=made.run_forever, daemon=True, name="mirror-admin").start()
            _Loop.running = made  # not where no thread is to be had
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
            message = f"{self.endpoint}: cannot {what}: {why}"
            problem.args = (message,)
            raise
        finally:
            answer.cancel()


def _closed(cluster: Cluster, process: int) -> None:
    if os.getpid() == process:  # else the connections are a parent's
        _loop().call_soon_threadsafe(cluster.close)


async def delete_topic(cluster: Cluster, name: str, topic_id: uuid.UUID, may_go: Callable[[], bool]) -> None:
    """Any broker takes that for its controller; one without KRaft must be the controller itself."""
    problem = "no broker is known"
    for node in cluster.nodes:
        try:
            connection = await cluster.connection(node)
            schema = DELETE_TOPICS.schema(connection.version(DELETE_TOPICS), "request")
            topic = schema.DeleteTopicState(name=None, topic_id=topic_id)
            request = schema.DeleteTopicsRequest(topics=(topic,), timeout=timedelta(seconds=DEADLINE_S))
            answered = await connection.call(DELETE_TOPICS, request, DEADLINE_S, may_go)
            (answer,) = answered.responses
        except WireError as lost:
            problem = str(lost)
            continue
        if answer.error_code in _GONE:
            return
        if answer.error_code == _THROTTLED:
            seconds = throttled_seconds(answered)
            raise Throttled(f"{cluster}: controller_mutation_rate lets topic {name} be deleted in {seconds:.0f} s")
        if answer.error_code != _NOT_CONTROLLER:
            raise refusal(answer.error_code, f"{cluster}: delete topic {name}")
        problem = "it is not the controller"
    raise ClusterUnreachable(f"{cluster}: delete topic {name}: {problem}")
