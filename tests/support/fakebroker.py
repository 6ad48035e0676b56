"""A broker that follows a script: real frames on loopback, and a script that says for each API what to answer.

A script gets the call and returns an answer (a value of kio), or None: then it has answered otherwise, or stays silent.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, ParamSpec, Self

import pytest
from entities import APIS, answer
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from waiting import DEADLINE_S

from mirror import clock
from mirror.kafka.protocol import API_VERSIONS, METADATA, Api

HOST: Final = "127.0.0.1"
_BY_KEY: Final = {api.key: api for api in APIS}
_Given = ParamSpec("_Given")


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow the mirror's clock: a test that moves it (fixture `clock`) lets deadlines,
    pauses and sleeps end at once.
    """

    def time(self) -> float:
        return clock.monotonic()


def in_loop(test: Callable[_Given, Coroutine[Any, Any, None]]) -> Callable[_Given, None]:
    """Run a coroutine as a test, until the deadline of all tests at the latest."""

    @functools.wraps(test)
    def run(*args: _Given.args, **kwargs: _Given.kwargs) -> None:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(test(*args, **kwargs))

    timed: Callable[_Given, None] = pytest.mark.timeout(DEADLINE_S)(run)
    return timed


def framed(body: bytes) -> bytes:
    """A frame with its length in front."""
    return len(body).to_bytes(4, "big") + body


@dataclass(eq=False)
class Call:
    """One request as the broker got it, and the ways to answer."""

    api: Api
    version: int
    correlation_id: int
    request: Any
    client_id: str | None
    connection: int
    _writer: asyncio.StreamWriter

    def schema(self) -> Any:
        """kio's module for the answer."""
        return self.api.schema(self.version, "response")

    def answer(self, value: Any, correlation_id: int | None = None) -> None:
        """Answer, under another number if one is given."""
        self.send(framed(answer(value, self.correlation_id if correlation_id is None else correlation_id)))

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    def hang_up(self, last: bytes = b"") -> None:
        """Close the connection once everything is sent."""
        self.send(last)
        self._writer.close()

    async def hung_up(self) -> None:
        """Wait until the connection is closed."""
        await self._writer.wait_closed()


Script = Callable[[Call], Any]


@dataclass(eq=False)
class FakeBroker:
    """Use as an async context manager; `script` maps an API's key to what it does, and may be changed at any time."""

    script: dict[int, Script] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    connections: int = 0

    async def __aenter__(self) -> Self:
        self.script.setdefault(API_VERSIONS.key, offers())
        self._serving: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._faults: list[Exception] = []
        self._called = asyncio.Condition()
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.address: tuple[str, int] = (HOST, self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._serving.values():
            writer.close()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()
        if self._faults:
            raise ExceptionGroup("a script failed", self._faults)

    def of(self, api: Api) -> list[Call]:
        """The calls of one API so far."""
        return [call for call in self.calls if call.api is api]

    async def called(self, api: Api, times: int = 1) -> list[Call]:
        """Wait until there were so many calls of an API."""
        async with self._called:
            await self._called.wait_for(lambda: len(self.of(api)) >= times)
        return self.of(api)

    def _follow(self, call: Call) -> None:
        try:
            if (value := self.script[call.api.key](call)) is not None:
                call.answer(value)
        except Exception as fault:
            self._faults.append(fault)
            raise

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._serving[task] = writer
        connection, self.connections = self.connections, self.connections + 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    call = _call(await reader.readexactly(size), connection, writer)
                    self.calls.append(call)
                    self._follow(call)
                    async with self._called:
                        self._called.notify_all()
        finally:
            del self._serving[task]
            writer.close()


def _call(frame: bytes, connection: int, writer: asyncio.StreamWriter) -> Call:
    api, version = _BY_KEY[int.from_bytes(frame[:2], "big")], int.from_bytes(frame[2:4], "big")
    request = api.request(version)
    header, start = entity_reader(request.__header_schema__)(frame, 0)
    value, size = entity_reader(request)(frame, start)
    assert start + size == len(frame), "bytes left over in a request"
    return Call(api, version, header.correlation_id, value, header.client_id, connection, writer)


def offers(apis: Iterable[Api] = APIS, **newest: int) -> Script:
    """ApiVersions: everything that the mirror speaks, or less: `offers(produce=9)`."""
    keys = [(api.key, api.oldest, newest.get(api.name, api.newest)) for api in apis]

    def script(call: Call) -> Any:
        schema = call.schema()
        entries = tuple(schema.ApiVersion(api_key=k, min_version=low, max_version=high) for k, low, high in keys)
        return schema.ApiVersionsResponse(
            error_code=ErrorCode(0), api_keys=entries, throttle_time=timedelta(0), finalized_features_epoch=0
        )

    return script


@dataclass
class FakeTopic:
    """A topic in metadata: partition -> (leader, leader epoch)."""

    leaders: dict[int, tuple[int, int]] = field(default_factory=lambda: {0: (1, 0)})
    topic_id: uuid.UUID = field(default_factory=uuid.uuid4)
    error: int = 0


@dataclass
class FakeCluster:
    """Metadata: the brokers by node id, and the topics, which may be changed at any time."""

    brokers: Mapping[int, tuple[str, int]]
    topics: dict[str, FakeTopic] = field(default_factory=dict)

    def __call__(self, call: Call) -> Any:
        """The script for Metadata."""
        schema = call.schema()
        absent = FakeTopic({}, uuid.UUID(int=0), 3)
        named = [(asked.name, self.topics.get(asked.name)) for asked in call.request.topics]
        whole: dict[str, Any] = {"error_code": ErrorCode(0)} if call.version >= 13 else {}
        return schema.MetadataResponse(
            **whole,
            throttle_time=timedelta(0),
            cluster_id="fake",
            controller_id=min(self.brokers, default=-1),
            brokers=tuple(
                schema.MetadataResponseBroker(node_id=node, host=host, port=port, rack=None)
                for node, (host, port) in self.brokers.items()
            ),
            topics=tuple(self._topic(schema, name, topic or absent) for name, topic in named),
        )

    def _topic(self, schema: Any, name: str, topic: FakeTopic) -> Any:
        return schema.MetadataResponseTopic(
            error_code=ErrorCode(topic.error),
            name=name,
            topic_id=topic.topic_id,
            is_internal=False,
            partitions=tuple(
                schema.MetadataResponsePartition(
                    error_code=ErrorCode(5 if leader < 0 else 0),
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=epoch,
                    replica_nodes=(),
                    isr_nodes=(),
                    offline_replicas=(),
                )
                for index, (leader, epoch) in topic.leaders.items()
            ),
        )


def scripted(broker: FakeBroker, metadata: FakeCluster) -> FakeBroker:
    """The broker with a script for Metadata."""
    broker.script[METADATA.key] = metadata
    return broker
