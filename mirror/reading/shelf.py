"""Partitions in files, as a cluster: whoever reads a source reads them in the same way, without a broker.

It is its own only broker, and answers what a mirror asks of a source. `kio`'s answers stand for themselves: no bytes
are made of them, and records are views of the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from mirror.errors import ConfigError, ConnectionLost, UnsupportedVersion
from mirror.reading.archive import PartitionLog
from mirror.wire.cluster import CALL_TIMEOUT, Cluster, Endpoint, Leader, Topic, TopicPartition
from mirror.wire.protocol import FETCH, LIST_OFFSETS, Api
from mirror.wire.queries import EARLIEST, READ_COMMITTED

#: The last version that names topics: those of a broker without ids have none.
_FETCH_VERSION: Final = 12
_NODE: Final = 0
_NONE: Final = ErrorCode.none


class Shelf(Cluster):
    """A source of logs in files. Use as an async context manager, like any other."""

    def __init__(self, alias: str, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        super().__init__(Endpoint(alias, ()))
        self._desk = _Desk(logs)
        leaders: dict[str, dict[int, Leader]] = {}
        for at in logs:
            leaders.setdefault(at.topic, {})[at.partition] = Leader(_NODE, 0)
        ids = {at.topic: log.topic_id for at, log in logs.items()}
        self.topics = {name: Topic(name, ids[name], of) for name, of in leaders.items()}

    def __str__(self) -> str:
        return f"the files of cluster {self.endpoint.alias}"

    async def refresh(self, topics: Iterable[str] = (), timeout: float = CALL_TIMEOUT) -> None:
        """There is nothing to learn: files do not move."""

    async def connection(self, node: int, purpose: str = "") -> Any:  # noqa: ARG002 -- as the method it replaces
        """What answers in place of a connection."""
        return self._desk


class _Desk:
    """Answers for the logs as a broker would."""

    is_open, patience = True, None

    def __init__(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        self._logs = logs

    def version(self, api: Api) -> int:
        """The version that is answered. Raises UnsupportedVersion for what files cannot tell."""
        if api is FETCH:
            return _FETCH_VERSION
        if api is LIST_OFFSETS:
            return api.newest
        raise UnsupportedVersion(f"{api.name}: files do not tell")

    async def call(self, api: Api, request: Any, timeout: float) -> Any:  # noqa: ARG002 -- nobody waits for a file
        """The answer to a request of `fetch_request` or `list_offsets_request`. Raises ConnectionLost where a file is
        not what it was: whoever reads asks again.
        """
        try:
            return self._fetch(request) if api is FETCH else self._list_offsets(request)
        except ConfigError as problem:
            raise ConnectionLost(str(problem)) from problem

    def _list_offsets(self, request: Any) -> Any:
        is_committed = request.isolation_level == READ_COMMITTED
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                log = self._logs[TopicPartition(topic.name, part.partition_index)]
                offset = log.start if part.timestamp == EARLIEST else log.stable if is_committed else log.end
                parts.append(SimpleNamespace(partition_index=part.partition_index, error_code=_NONE, offset=offset))
            topics.append(SimpleNamespace(name=topic.name, partitions=tuple(parts)))
        return SimpleNamespace(topics=tuple(topics))

    def _fetch(self, request: Any) -> Any:
        left = request.max_bytes
        responses = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                found = self._records(TopicPartition(topic.topic, part.partition), part, request, left)
                left -= len(found.records)
                parts.append(found)
            responses.append(SimpleNamespace(topic=topic.topic, partitions=tuple(parts)))
        return SimpleNamespace(__version__=_FETCH_VERSION, error_code=_NONE, responses=tuple(responses))

    def _records(self, at: TopicPartition, ask: Any, request: Any, left: int) -> Any:
        log, offset = self._logs[at], ask.fetch_offset
        code, records = _NONE, memoryview(b"")
        before = log.stable if request.isolation_level == READ_COMMITTED else log.end
        if not log.start <= offset <= log.end:
            code = ErrorCode.offset_out_of_range
        elif left > 0:
            records = log.read(offset, min(ask.partition_max_bytes, left), before)
        aborted = (one for one in log.aborted if one[2] >= offset)
        return SimpleNamespace(
            partition_index=at.partition,
            error_code=code,
            high_watermark=log.end,
            last_stable_offset=log.stable,
            log_start_offset=log.start,
            diverging_epoch=SimpleNamespace(epoch=-1, end_offset=-1),
            aborted_transactions=tuple(
                SimpleNamespace(producer_id=producer_id, first_offset=first) for producer_id, first, _ in aborted
            ),
            records=records,
        )
