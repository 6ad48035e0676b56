"""Partitions in files, as a cluster: whoever reads a source reads them in the same way, without a broker.

It is its own only broker, and answers what a mirror asks of a source. `kio`'s answers stand for themselves: no bytes
are made of them, and records are views of the files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from mirror.errors import ConfigError, ConnectionLost, UnsupportedVersion
from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, Endpoint, Leader, Topic, TopicPartition
from mirror.kafka.fetch import FetchAnswer, FetchRequest, Part
from mirror.kafka.groups import Committed
from mirror.kafka.protocol import FETCH, FIND_COORDINATOR, LEADER_EPOCH, LIST_GROUPS, LIST_OFFSETS, OFFSET_FETCH, Api
from mirror.kafka.queries import EARLIEST, EARLIEST_LOCAL, LATEST, READ_COMMITTED
from mirror.segments.replica import Replica

#: The last version that names topics: those of a broker without ids have none.
_FETCH_VERSION: Final = 12
_NODE: Final = 0
_NONE: Final = ErrorCode.none
#: The last version of ListGroups without types of groups, and the one of the others that takes many groups.
_VERSIONS: Final = {FETCH: _FETCH_VERSION, LIST_GROUPS: 4, OFFSET_FETCH: 8, FIND_COORDINATOR: 4, LEADER_EPOCH: 4}
#: Of files that say nothing of leader epochs: it is below none that a mirror knows.
_ANY_EPOCH: Final = 2**31 - 1
_UNDEFINED: Final = -1

#: By group and partition.
GroupCommits = Mapping[str, Mapping[TopicPartition, Committed]]


class FileCluster(Cluster):
    """A source of logs in files. Use as an async context manager, like any other."""

    def __init__(self, alias: str, logs: Mapping[TopicPartition, Replica], groups: GroupCommits | None = None) -> None:
        """`groups`: what consumer groups have committed."""
        super().__init__(Endpoint(alias, ()))
        self._desk = _Desk(logs, groups or {})
        leaders: dict[str, dict[int, Leader]] = {}
        for topic_partition, log in logs.items():
            newest = log.epochs[-1][0] if log.epochs else _ANY_EPOCH
            leaders.setdefault(topic_partition.topic, {})[topic_partition.partition] = Leader(_NODE, newest)
        ids = {partition.topic: log.topic_id for partition, log in logs.items()}
        self.topics = {name: Topic(name, ids[name], of) for name, of in leaders.items()}

    def __str__(self) -> str:
        return f"the files of cluster {self.endpoint.alias}"

    @property
    def nodes(self) -> tuple[int, ...]:
        """The one that answers."""
        return (_NODE,)

    async def refresh(self, topics: Iterable[str] = (), timeout: float = CALL_TIMEOUT) -> None:
        """There is nothing to learn: files do not move."""

    async def ids_now(self, topics: Collection[str], timeout: float = CALL_TIMEOUT) -> dict[str, UUID | None]:  # noqa: ARG002 -- as the method it replaces
        """As they were in the files."""
        return {name: self.topics[name].topic_id for name in topics if name in self.topics}

    async def describe(self, topic: str, timeout: float = CALL_TIMEOUT) -> Topic | None:  # noqa: ARG002 -- as the method it replaces
        """One that is in the files, or None."""
        return self.topics.get(topic)

    async def connection(self, node: int, purpose: str = "") -> Any:  # noqa: ARG002 -- as the method it replaces
        """What answers in place of a connection."""
        return self._desk


class _Desk:
    """Answers for the logs as a broker would."""

    is_open, request_timeout = True, None

    def __init__(self, logs: Mapping[TopicPartition, Replica], groups: GroupCommits) -> None:
        self._logs, self._groups = logs, groups

    def version(self, api: Api) -> int:
        """The version that is answered. Raises UnsupportedVersion for what files do not say."""
        if api in _VERSIONS:
            return _VERSIONS[api]
        if api is LIST_OFFSETS:
            return api.newest
        raise UnsupportedVersion(f"{api.name}: files do not say")

    async def call(self, api: Api, request: Any, *_: object) -> Any:
        """The answer to a `FetchRequest`, or to a request of `list_offsets_request` or `wire.groups`, as from a
        connection; nobody waits for a file, or writes to it. Raises ConnectionLost where a file is not what it was:
        whoever reads asks again.
        """
        try:
            match api.name:
                case FETCH.name:
                    return self._fetch(request)
                case LIST_OFFSETS.name:
                    return self._list_offsets(request)
                case LEADER_EPOCH.name:
                    return self._epoch_ends(request)
                case LIST_GROUPS.name:
                    return self._list_groups()
                case FIND_COORDINATOR.name:
                    return _coordinators(request)
                case _:
                    return self._fetch_offsets(request)
        except ConfigError as problem:
            raise ConnectionLost(str(problem)) from problem

    def _list_groups(self) -> Any:
        groups = (SimpleNamespace(group_id=group, protocol_type="", group_state="Empty") for group in self._groups)
        return SimpleNamespace(__version__=_VERSIONS[LIST_GROUPS], error_code=_NONE, groups=tuple(groups))

    def _fetch_offsets(self, request: Any) -> Any:
        groups = []
        for group in (asked.group_id for asked in request.groups):
            topics = []
            for partition, committed in self._groups.get(group, {}).items():
                answer = SimpleNamespace(
                    partition_index=partition.partition,
                    error_code=_NONE,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.epoch,
                    metadata=committed.metadata,
                )
                topics.append(SimpleNamespace(name=partition.topic, partitions=(answer,)))
            groups.append(SimpleNamespace(group_id=group, error_code=_NONE, topics=topics))
        return SimpleNamespace(groups=groups)

    def _list_offsets(self, request: Any) -> Any:
        """Files have all of a log on this disk, and nobody asks them for times."""
        topics = []
        for topic in request.topics:
            for part in topic.partitions:
                log = self._logs[TopicPartition(topic.name, part.partition_index)]
                end = log.stable if request.isolation_level == READ_COMMITTED else log.end
                offset = {EARLIEST: log.start, EARLIEST_LOCAL: log.start, LATEST: end}.get(part.timestamp)
                code = ErrorCode.unsupported_version if offset is None else _NONE
                answer = SimpleNamespace(partition_index=part.partition_index, error_code=code, offset=offset)
                topics.append(SimpleNamespace(name=topic.name, partitions=(answer,)))
        return SimpleNamespace(topics=topics)

    def _epoch_ends(self, request: Any) -> Any:
        topics = []
        for topic in request.topics:
            for part in topic.partitions:
                epoch, end = _epoch_end(self._logs[TopicPartition(topic.topic, part.partition)], part.leader_epoch)
                answer = SimpleNamespace(partition=part.partition, error_code=_NONE, leader_epoch=epoch, end_offset=end)
                topics.append(SimpleNamespace(topic=topic.topic, partitions=(answer,)))
        return SimpleNamespace(topics=topics)

    def _fetch(self, request: FetchRequest) -> FetchAnswer:
        left = request.max_bytes
        parts: list[Part] = []
        for ask in request.asks:
            at, log, offset = ask.partition, self._logs[ask.partition], ask.offset
            code, records = _NONE, memoryview(b"")
            before = log.stable if request.isolation == READ_COMMITTED else log.end
            if not log.start <= offset <= log.end:
                code = ErrorCode.offset_out_of_range
            elif left > 0:
                records = log.read(offset, min(ask.max_bytes, left), before)
            aborted = tuple((producer_id, first) for producer_id, first, last in log.aborted if last >= offset)
            parts.append((at.topic, at.partition, code, log.end, log.stable, log.start, None, aborted, records))
            left -= len(records)
        return FetchAnswer(timedelta(0), _NONE, 0, parts)


def _epoch_end(log: Replica, asked: int) -> tuple[int, int]:
    """The newest leader epoch that is not above the one asked for, and where it ends, as Kafka's `LeaderEpochFileCache`
    has it.
    """
    epochs = log.epochs
    if not epochs or asked > epochs[-1][0]:
        return _UNDEFINED, _UNDEFINED
    above = bisect_right(epochs, asked, key=itemgetter(0))
    end = epochs[above][1] if above < len(epochs) else log.end
    return (epochs[above - 1][0] if above else asked), end


def _coordinators(request: Any) -> Any:
    """This one is every group's."""
    found = (SimpleNamespace(key=key, error_code=_NONE, node_id=_NODE) for key in request.coordinator_keys)
    return SimpleNamespace(coordinators=tuple(found))
