"""One Kafka cluster: metadata, who leads which partition, and a connection to each broker for each purpose.

A broker serves one request of a connection at a time, so whoever must not wait behind a long poll asks for a
connection under a purpose of its own. Connections are made when asked for and made anew when found broken.

    - Metadata never goes back: a leader epoch older than the one known is ignored (KIP-320).
    - At most one refresh runs at a time, and whoever wants one meanwhile shares it.
    - The id of the cluster never changes, and each connection begins with the question for it: an address that leads to
      another cluster, by a name that was switched or a port that was taken, is that of no broker.
    - A broker that lost its controllers answers as before, of leaders, topics and settings that are long gone. So
      brokers are asked how far in the controllers' log they are, and what one says is not believed that is behind where
      another was `BEHIND_SECONDS` ago. That moves twice a second by itself (KIP-835), and ApiVersions has it (Kafka
      `KRaftMetadataCache.features`); a cluster with ZooKeeper does not.
    - A broker does not say which one it is, and addresses are given out again: at that of one another of the same
      cluster may answer. So a connection is made anew, once nothing waits on it, where metadata has another address for
      its broker, and where who answers does not lead what metadata, made anew meanwhile, says again that it leads: once
      in `_SUSPECT_SECONDS`, since it may be late.

librdkafka's DescribeCluster and DescribeTopics end the process by an assertion where an answer names no broker, as one
of a broker does that has only just started (`rd_kafka_admin_response_parse`, 2.16); so these are asked by the wire.

All raise ClusterUnreachable, AccessDenied and BrokerError.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from mirror import __version__, clock
from mirror.config import ClusterSettings
from mirror.errors import (
    AccessDenied,
    BrokerError,
    ClusterError,
    ClusterUnreachable,
    ConnectionLost,
    MalformedFrame,
    NotAuthenticated,
    OtherCluster,
    TlsRefused,
    UnsupportedVersion,
    WireError,
)
from mirror.kafka.addresses import AllFailed, in_turns, resolved
from mirror.kafka.auth import PLAINTEXT, Security
from mirror.kafka.connection import CLIENT_ID, Connection
from mirror.kafka.protocol import (
    API_VERSIONS,
    DELETE_RECORDS,
    DESCRIBE_CLUSTER,
    DESCRIBE_PRODUCERS,
    FETCH,
    LEADER_EPOCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    Api,
)
from mirror.kafka.rate_limit import Bucket
from mirror.kafka.retry import Backoff
from mirror.names import TopicPartition as TopicPartition  # noqa: PLC0414 -- who asks clusters gets it here
from mirror.names import first_of
from mirror.observability import logs

# --- One Kafka cluster ------------------------------------------------------------------------------------------------

T = TypeVar("T")

CALL_TIMEOUT: Final = 10.0
CONNECT_TIMEOUT: Final = 5.0
#: How long a broker is silent before the next one is asked as well.
NEXT_BROKER: Final = 1.0
#: For how long a broker's metadata may be behind another's; how often that is looked at while it is, and how often it
#: is asked for at all.
BEHIND_SECONDS: Final = 1.0
_CATCH_UP_PAUSE, _COMPARED_SECONDS = 0.1, 5.0
#: Connections to a broker that refuses what it leads are made anew so often at most: it may be late, and be the one.
_SUSPECT_SECONDS: Final = 30.0
#: Codes by which a broker says that the principal may not do this (Kafka `Errors`: topic, group, cluster,
#: transactional id, SASL).
AUTHORIZATION_ERRORS: Final = frozenset({29, 30, 31, 53, 58, 65})
_TOPIC_DENIED: Final = 29
#: By which a broker says that it does not lead a partition, or coordinate a group.
NOT_LEADER: Final = 6
NOT_COORDINATOR: Final = 16
UNKNOWN_TOPIC: Final = frozenset({3, 100})
OFFSET_OUT_OF_RANGE: Final = 1
#: What a request of ours needs on the topic it is about (Kafka's table "Authorization primitives", `KafkaApis`).
_NEEDS: Final[Mapping[int, str]] = {
    PRODUCE.key: "WRITE",
    FETCH.key: "READ",
    LIST_OFFSETS.key: "DESCRIBE",
    DELETE_RECORDS.key: "DELETE",
    LEADER_EPOCH.key: "DESCRIBE",
    DESCRIBE_PRODUCERS.key: "READ",
}


def refusal(code: Any, doing: str) -> AccessDenied | BrokerError:
    """The error for a broker's error code (kio's), whatever it is that was `doing`."""
    return (
        AccessDenied(f"{doing}: {code.name}")
        if code in AUTHORIZATION_ERRORS
        else BrokerError(int(code), code.name, doing)
    )


class _NoAnswer(Exception):
    """A broker says that it cannot say yet."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition: `node` is -1 while there is none."""

    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the last metadata answer had it."""

    name: str
    topic_id: uuid.UUID | None
    leaders: Mapping[int, Leader]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a cluster is and how to talk to it. Pickles: tasks carry it, and its secrets, which do not print.

    `request_timeout` is how many seconds a request may wait for its answer; None leaves that to whoever asks.
    `bytes_per_second` bounds what `fetch_at` reads, all partitions together; None leaves it unbounded. `cluster_id` is
    that of the only cluster that may be there; None for whichever is found first. `known`: brokers that were met there,
    for whoever finds none at `bootstrap`.
    """

    alias: str
    bootstrap: tuple[tuple[str, int], ...]
    security: Security = PLAINTEXT
    client_id: str = CLIENT_ID
    request_timeout: float | None = None
    bytes_per_second: float | None = None
    cluster_id: str | None = None
    known: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, settings: ClusterSettings) -> Self:
        """A configured cluster as the wire knows it."""
        return cls(
            settings.alias,
            settings.bootstrap,
            Security.of(settings),
            settings.client_id or CLIENT_ID,
            settings.socket_timeout_ms / 1000 if settings.socket_timeout_ms else None,
            cluster_id=settings.cluster_id,
        )

    @property
    def servers(self) -> str:
        """As in `bootstrap.servers`."""
        return _joined(self.bootstrap)

    def bounded(self, bytes_per_second: float | None, readers: int = 1) -> Self:
        """The same for one of several `readers` that share a bound; itself where there is none."""
        return self if bytes_per_second is None else replace(self, bytes_per_second=bytes_per_second / max(1, readers))

    def __str__(self) -> str:
        return f"cluster {self.alias} ({self.servers})"


class Cluster:
    """Use as an async context manager, inside one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.cluster_id = endpoint.cluster_id  # once it is known it stays
        self.topics: dict[str, Topic] = {}
        self.bucket = Bucket(endpoint.bytes_per_second) if endpoint.bytes_per_second else None
        self._bootstrap = tuple(dict.fromkeys((*endpoint.bootstrap, *endpoint.known)))
        self._brokers: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[int, str], asyncio.Task[Connection]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._wanted: set[str] = set()
        self._answered: frozenset[str] = frozenset()
        self._denied: set[str] = set()
        self._behind = frozenset[int]()
        self._compared = float("-inf")
        self.learned = 0  # counts metadata answers
        self._disowned: dict[object, tuple[int, int]] = {}
        self._suspected: dict[int, float] = {}
        #: Brokers that metadata names, and that did not say how far they are: they may know better.
        self.silent = frozenset[int]()
        #: Brokers, and partitions without one, that were waited for in vain, for whoever waits for each once.
        self.given_up = set[int | TopicPartition]()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection, and give up what is under way."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        for task in self._connections.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            else:
                task.cancel()
        self._connections.clear()

    def __str__(self) -> str:
        return str(self.endpoint)

    @property
    def met(self) -> Endpoint:
        """The endpoint with the brokers that the last metadata answer named, for others who are to find them."""
        return replace(self.endpoint, known=tuple(sorted(self._brokers.values())))

    @property
    def addresses(self) -> str:
        """The brokers that the last metadata answer named, as in `bootstrap.servers`; always in the same order."""
        return _joined(sorted(self._brokers.values()))

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return the brokers that the last metadata answer named, without those that lost their controllers."""
        return tuple(node for node in self._brokers if node not in self._behind) or tuple(self._brokers)

    def address(self, node: int) -> tuple[str, int]:
        """Return where the last metadata answer has a broker; nowhere for one that it does not name."""
        return self._brokers.get(node, ("", 0))

    def leader(self, partition: TopicPartition) -> Leader:
        """The leader known now; node -1 where none is."""
        topic = self.topics.get(partition.topic)
        return topic.leaders.get(partition.partition, Leader(-1, -1)) if topic else Leader(-1, -1)

    def has(self, partition: TopicPartition) -> bool:
        """Whether metadata names the partition, with a leader or without."""
        topic = self.topics.get(partition.topic)
        return topic is not None and partition.partition in topic.leaders

    async def require(self, partition: TopicPartition) -> None:
        """Raise ClusterError for a partition that metadata does not name, whose leader would be waited for in vain."""
        if not self.has(partition):
            await self.refresh((partition.topic,))
        if not self.has(partition):
            raise ClusterError(f"{self}: there is no partition {partition}")

    def topic_id(self, name: str) -> uuid.UUID | None:
        """The id that the topic has now, or None where the topic is not known or its cluster has no ids."""
        topic = self.topics.get(name)
        return topic.topic_id if topic else None

    async def connection(self, node: int, purpose: str = "") -> Connection:
        """An open connection to a broker, one for each purpose. Raises ConnectionLost, AccessDenied."""
        key = (node, purpose)
        task = self._connections.get(key)
        if task is not None and task.done() and _usable(task) and self.is_misled(node, task.result()):
            task.result().close()
        if task is None or (task.done() and not _usable(task)):
            if node not in self._brokers:
                raise ConnectionLost(f"{self}: broker {node} is not in the metadata")
            task = self._connections[key] = asyncio.create_task(self._open_known(self._brokers[node]))
            task.add_done_callback(_retrieve_exception)
        return await asyncio.shield(task)

    def disowned(self, node: int, code: int, what: object) -> None:
        """A broker refused a request about `what`; where it is the wrong one for it, as it was before metadata was made
        anew last, its connections are suspected.
        """
        if code not in (NOT_LEADER, NOT_COORDINATOR):
            return
        before, learned = self._disowned.get(what, (-1, 0))
        now = clock.monotonic()
        is_again = before == node and learned < self.learned
        if is_again and now > self._suspected.get(node, float("-inf")) + _SUSPECT_SECONDS:
            self._suspected[node] = now
        self._disowned[what] = node, self.learned

    def is_misled(self, node: int, connection: Connection) -> bool:
        """Return whether an open connection is to be made anew: it is idle, and may be to another broker."""
        return connection.is_idle and (
            self._brokers.get(node, connection.address) != connection.address
            or connection.opened_at < self._suspected.get(node, float("-inf"))
        )

    async def _open(self, address: tuple[str, int]) -> Connection:
        of = self.endpoint
        try:
            return await Connection.open(address, of.security, CONNECT_TIMEOUT, of.client_id, of.request_timeout)
        except NotAuthenticated as refused:
            raise NotAuthenticated(f"{self}: {refused}") from refused

    async def _open_known(self, address: tuple[str, int]) -> Connection:
        """The same, to a broker of this cluster for certain."""
        try:
            connection = await self._open(address)
        except ConnectionLost as lost:
            if address not in self.endpoint.bootstrap:
                lost.args = (f"{lost} (a broker of {self} advertises this address: check its advertised.listeners)",)
            raise
        try:
            answer = await connection.call(METADATA, _metadata_request(connection, ()), CONNECT_TIMEOUT)
            self._recognize(answer, connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _recognize(self, answer: Any, where: object) -> None:
        """Raises OtherCluster for a metadata answer of another cluster than this one."""
        if None not in (self.cluster_id, answer.cluster_id) and answer.cluster_id != self.cluster_id:
            raise OtherCluster(
                f"{where}: a broker of cluster {answer.cluster_id} answers there, and not one of"
                f" {self.cluster_id}. Mend bootstrap.servers, the brokers' advertised.listeners, or the name; where"
                " that cluster was replaced on purpose, its cluster_id in the configuration, and start the mirror again"
            )
        self.cluster_id = self.cluster_id or answer.cluster_id

    async def call(self, node: int, api: Api, purpose: str = "", timeout: float = CALL_TIMEOUT, **fields: Any) -> Any:
        """Send one request made of `fields` in the version spoken there, and wait for the answer. Raises
        ConnectionLost, AccessDenied.
        """
        connection = await self.connection(node, purpose)
        try:
            request = api.request(connection.version(api))(**fields)
        except WireError as problem:
            raise ConnectionLost(f"{connection}: {problem}") from problem
        return await connection.call(api, request, timeout)

    async def refresh(self, topics: Iterable[str] = (), timeout: float = CALL_TIMEOUT) -> None:
        """Learn brokers, leaders and topic ids, of `topics` and of every topic asked for before.

        Tries the known brokers and the bootstrap addresses in random order, the next one where one is silent for
        `NEXT_BROKER` seconds, until one answers. Metadata without a broker is no answer: so does a broker that has only
        just started, and one that is cut off from its controller. Raises
        ClusterUnreachable, at once where no broker's TLS is to be had; NotAuthenticated; and AccessDenied where one of
        `topics` may not be described.
        """
        asked = frozenset(topics)
        await self.learn(asked, timeout)
        if denied := sorted(asked & self._denied):
            raise AccessDenied(f"{self}: no DESCRIBE right on topic {', '.join(denied)}")

    async def learn(self, topics: Iterable[str], timeout: float = CALL_TIMEOUT) -> None:
        """As `refresh`, but leave out those of `topics` that may not be described, which `is_denied` names."""
        asked = frozenset(topics)
        while True:
            self._wanted |= asked  # whoever shares this may forget them meanwhile
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.create_task(self._refresh(timeout))
                self._refreshing.add_done_callback(_retrieve_exception)
            await asyncio.shield(self._refreshing)
            if asked <= self._answered:
                return

    async def require_all(self) -> None:
        """Raise ClusterUnreachable where a broker that metadata names does not answer: it may know better who leads,
        and hold what others lack.
        """
        if self.silent:
            self._compared = float("-inf")
            await self.refresh()
        if self.silent:
            silent = ", ".join(map(str, sorted(self.silent)))
            raise ClusterUnreachable(f"{self}: no answer from broker {silent}, which may know of other leaders")

    def forget(self, topics: Iterable[str]) -> None:
        """Ask for these no more."""
        for topic in topics:
            self._wanted.discard(topic)
            self.topics.pop(topic, None)

    def is_denied(self, topic: str) -> bool:
        """Whether the last metadata answer refused to describe the topic."""
        return topic in self._denied

    async def _refresh(self, timeout: float) -> None:
        problem: Exception | None = None
        if not self._brokers:  # a lookup has a time of its own
            problem = await resolved(host for host, _ in self._bootstrap)
        deadline = clock.monotonic() + timeout
        backoff = Backoff(first=0.1, longest=1.0)
        while True:
            known: list[int | tuple[str, int]] = [*self.nodes]
            start: list[int | tuple[str, int]] = [*self._bootstrap]
            random.shuffle(known)
            random.shuffle(start)
            try:
                async with asyncio.timeout(max(0.1, deadline - clock.monotonic())):
                    asks = [partial(self._ask_metadata, where) for where in (*known, *start)]
                    answered = await in_turns(asks, NEXT_BROKER, WireError)
                    await self._compare(is_due=not isinstance(answered, int))
                return
            except TimeoutError as silence:
                problem = problem or silence  # what is known says more
            except AllFailed as failed:
                problem = failed.problems[-1]
                if all(isinstance(error, TlsRefused | OtherCluster | UnsupportedVersion) for error in failed.problems):
                    raise ClusterUnreachable(f"{self}: {problem}") from problem
            if clock.monotonic() > deadline:
                raise ClusterUnreachable(
                    f"{self}: no broker answered within {timeout:g} s (last: {str(problem) or 'silence'}). "
                    "Check bootstrap.servers and the network"
                ) from problem
            await asyncio.sleep(backoff.next())

    async def _ask_metadata(self, where: int | tuple[str, int]) -> int | tuple[str, int]:
        """Learn from a broker; which one that was."""
        wanted = frozenset(self._wanted)
        is_kept = isinstance(where, int)
        connection = await (self.connection(where) if isinstance(where, int) else self._open(where))
        if is_kept and connection.is_muted:  # for a quota, which is no silence: it answers on another one
            is_kept, connection = False, await self._open_known(connection.address)
        try:
            answer = await connection.call(METADATA, _metadata_request(connection, wanted), CONNECT_TIMEOUT)
        finally:
            if not is_kept:
                connection.close()
        self._learn(answer, wanted, connection)
        return where

    async def _compare(self, *, is_due: bool) -> None:
        """Ask anew where the answer may be of a broker that is behind the others."""
        if not is_due and clock.monotonic() - self._compared < _COMPARED_SECONDS:
            return
        if len(self._brokers) == 1:
            self._behind = self.silent = frozenset()
            return
        reached = await self._reached(self._brokers)
        furthest = max(reached.values(), default=-1)
        late = {node for node, at in reached.items() if at < furthest}
        deadline = clock.monotonic() + BEHIND_SECONDS
        while late and clock.monotonic() < deadline:
            await asyncio.sleep(_CATCH_UP_PAUSE)
            late -= {node for node, at in (await self._reached(late)).items() if at >= furthest}
        self.silent = frozenset(self._brokers.keys() - reached.keys())
        self._compared = clock.monotonic()
        if late - self._behind:
            logs.get("mirror.cluster").warning(
                "broker_behind",
                cluster=self.endpoint.alias,
                brokers=sorted(late),
                advice="it lost its controllers, and what it says of topics is old: restart it, or mend its network",
            )
        self._behind = frozenset(late)
        if late:
            await in_turns([partial(self._ask_metadata, node) for node in self.nodes], NEXT_BROKER, WireError)

    async def _reached(self, nodes: Iterable[int]) -> dict[int, int]:
        """How far in the controllers' log these brokers are, without those that do not answer; -1 for one that does not
        say.
        """

        async def ask(node: int) -> int | None:
            try:
                async with asyncio.timeout(NEXT_BROKER):
                    connection = await self.connection(node)
                request = API_VERSIONS.request(API_VERSIONS.newest)(
                    client_software_name=CLIENT_ID, client_software_version=__version__
                )
                answer = connection.send(API_VERSIONS, request)
                done, _ = await asyncio.wait({answer}, timeout=NEXT_BROKER)  # who is late may still answer others
                return int(answer.result().finalized_features_epoch) if done else None
            except (WireError, AccessDenied, TimeoutError):
                return None

        asked = list(nodes)
        answers = zip(asked, await asyncio.gather(*map(ask, asked)), strict=True)
        return {node: at for node, at in answers if at is not None}

    async def describe(self, topic: str, timeout: float = CALL_TIMEOUT) -> Topic | None:
        """One topic as a broker knows it now, None where there is none. `refresh` asks for every topic, and learns.

        Raises ClusterUnreachable, AccessDenied.
        """

        def read(answer: Any) -> Topic | None:
            for found in answer.topics:
                if found.error_code in UNKNOWN_TOPIC:
                    return None
                if found.error_code in AUTHORIZATION_ERRORS:
                    raise AccessDenied(f"{self}: no DESCRIBE right on topic {topic}")
                if not found.error_code:
                    return _topic(found)
                raise _NoAnswer(found.error_code.name)
            raise _NoAnswer("an answer without the topic")

        return await self._asked_now([topic], read, topic, timeout)

    async def ids_now(self, topics: Collection[str], timeout: float = CALL_TIMEOUT) -> dict[str, uuid.UUID | None]:
        """The ids that these topics have now, by one broker's answer; without topics that it does not know or may not
        list. Learns nothing. Raises ClusterUnreachable.
        """

        def read(answer: Any) -> dict[str, uuid.UUID | None]:
            return {topic.name: topic.topic_id for topic in answer.topics if not topic.error_code}

        return await self._asked_now(topics, read, first_of(sorted(topics)), timeout)

    async def _asked_now(self, topics: Collection[str], read: Callable[[Any], T], about: str, timeout: float) -> T:
        """What `read` makes of a broker's answer about topics; where it raises _NoAnswer, they are asked for again."""
        deadline, backoff = clock.monotonic() + timeout, Backoff()
        problem = "no broker is known"
        while True:
            for node in random.sample(self.nodes, len(self.nodes)):
                try:
                    connection = await self.connection(node)
                    return read(await connection.call(METADATA, _metadata_request(connection, topics), CONNECT_TIMEOUT))
                except (WireError, _NoAnswer) as lost:
                    problem = str(lost)
            if clock.monotonic() > deadline:
                raise ClusterUnreachable(f"{self}: no answer about {about} within {timeout:g} s (last: {problem})")
            await asyncio.sleep(backoff.next())
            await self.refresh(timeout=max(0.1, deadline - clock.monotonic()))

    def _learn(self, answer: Any, wanted: frozenset[str], where: object) -> None:
        code = getattr(answer, "error_code", None)  # by which it asks to begin at the bootstrap addresses (KIP-1102)
        if code:
            raise ConnectionLost(f"{self}: its metadata is of no use: {code.name}")
        if not answer.brokers:
            raise ConnectionLost(f"{self}: its metadata names no broker: the cluster is starting, or cut off")
        self._recognize(answer, where)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._denied = {topic.name for topic in answer.topics if topic.error_code in AUTHORIZATION_ERRORS}
        for topic in answer.topics:
            if topic.name in self._denied:
                continue
            if topic.error_code in UNKNOWN_TOPIC:
                self.topics.pop(topic.name, None)
            if topic.error_code:
                continue  # an answer with an error has no topic id and no leaders to believe
            before = self.topics.get(topic.name)
            same = before is not None and before.topic_id == topic.topic_id
            leaders: dict[int, Leader] = dict(before.leaders) if before and same else {}
            for partition in topic.partitions:
                known = leaders.get(partition.partition_index)
                if known is None or partition.leader_epoch >= known.epoch:
                    leaders[partition.partition_index] = Leader(partition.leader_id, partition.leader_epoch)
            self.topics[topic.name] = Topic(topic.name, topic.topic_id, leaders)
        self._answered = wanted
        self.learned += 1

    async def call_leader(
        self,
        partition: TopicPartition,
        api: Api,
        *,
        build: Callable[[int, int], Any],
        read: Callable[[Any], Any],
        doing: str,
        timeout: float = CALL_TIMEOUT,
        once: bool = False,
        purpose: str = "",
    ) -> Any:
        """Ask the leader of one partition, again with fresh metadata where it moved or the connection broke.

        `build(version, epoch)` makes the request, `read(answer)` finds the partition's part of the answer, which has
        an `error_code`. Raises ClusterUnreachable after `timeout` seconds, or as soon as a request that may be sent
        only `once` has not been answered well; AccessDenied and BrokerError at once.
        """
        deadline = clock.monotonic() + timeout
        backoff = Backoff()
        problem = "no leader"
        if self.leader(partition).node < 0:
            await self.refresh((partition.topic,), timeout)
        while True:
            asked = False
            leader = self.leader(partition)
            if leader.node >= 0:
                try:
                    left = max(0.1, deadline - clock.monotonic())
                    async with asyncio.timeout(left):
                        connection = await self.connection(leader.node, purpose)
                    request = build(connection.version(api), leader.epoch)
                    asked = True
                    answer = await connection.call(api, request, left)
                    part = _part(read, answer)
                    if not part.error_code:
                        return part
                    self.disowned(leader.node, part.error_code, partition)
                    if part.error_code == _TOPIC_DENIED and (right := _NEEDS.get(api.key)):
                        need = f"needs {right} on topic {partition.topic}"
                        raise AccessDenied(f"{self}: {doing} of {partition} {need}", right)
                    if part.error_code in AUTHORIZATION_ERRORS or not part.error_code.retriable:
                        raise refusal(part.error_code, f"{self}: {doing} of {partition}")
                    problem = f"{int(part.error_code)} {part.error_code.name}"
                except (WireError, TimeoutError) as lost:
                    problem = str(lost) or "no connection in time"
            if once and asked:
                raise ClusterUnreachable(f"{self}: {doing} of {partition}: no clear answer: {problem}")
            if clock.monotonic() > deadline:
                raise ClusterUnreachable(
                    f"{self}: {doing} of {partition}: no answer within {timeout:g} s (last: {problem})"
                )
            await asyncio.sleep(backoff.next())
            await self.refresh((partition.topic,), timeout=max(0.1, deadline - clock.monotonic()))


def _joined(addresses: Iterable[tuple[str, int]]) -> str:
    """As in `bootstrap.servers`."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)


def _metadata_request(connection: Connection, topics: Iterable[str]) -> Any:
    version = connection.version(METADATA)
    named = METADATA.schema(version, "request").MetadataRequestTopic
    fields: dict[str, Any] = {"include_cluster_authorized_operations": False} if version <= 10 else {}
    return METADATA.request(version)(
        topics=tuple(named(topic_id=None, name=name) for name in sorted(topics)),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        **fields,
    )


def _topic(topic: Any) -> Topic:
    leaders = {info.partition_index: Leader(info.leader_id, info.leader_epoch) for info in topic.partitions}
    return Topic(topic.name, topic.topic_id, leaders)


def _part(read: Callable[[Any], Any], answer: Any) -> Any:
    try:
        return read(answer)
    except (LookupError, StopIteration):
        raise MalformedFrame(f"{type(answer).__name__} without the partition that was asked for") from None


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Whoever waits gets the exception; where nobody waits any more, it is not an accident."""
    if not task.cancelled():
        task.exception()


def _usable(task: asyncio.Task[Connection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_open


# --- Questions about a cluster and its topics as a whole, which any broker answers ------------------------------------

#: Kafka's operations by their codes (`AclOperation`), which are the bits of an answer.
_OPERATIONS: Final = {
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
    13: "CREATE_TOKENS",
    14: "DESCRIBE_TOKENS",
    15: "TWO_PHASE_COMMIT",
}
#: How rights are given that were not asked for.
_NOT_ASKED: Final = -(2**31)
#: The newest version of Metadata that lists the rights on the cluster; newer brokers have a request for that alone.
_WITH_CLUSTER_RIGHTS: Final = 10


@dataclass(frozen=True, slots=True)
class Replicas:
    """A partition: its leader, -1 where it has none, and the brokers that have it."""

    partition: int
    leader: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """A topic; its partitions are in order. `rights`: what we may do to it; None where that was not asked for."""

    name: str
    topic_id: uuid.UUID | None
    partitions: tuple[Replicas, ...]
    rights: frozenset[str] | None


async def cluster_rights(cluster: Cluster, timeout: float = CALL_TIMEOUT) -> frozenset[str]:
    """What we may do to the cluster itself, by Kafka's names for operations."""
    connection = await some_connection(cluster, timeout)
    api, version = DESCRIBE_CLUSTER, 0
    if DESCRIBE_CLUSTER.key in connection.versions.ranges:
        version = connection.version(api)
        request = api.request(version)(include_cluster_authorized_operations=True)
    else:
        api, version = METADATA, min(connection.version(METADATA), _WITH_CLUSTER_RIGHTS)
        request = api.request(version)(
            topics=(),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=False,
        )
    answer = await asked_of(cluster, connection, api, request, timeout)
    if code := getattr(answer, "error_code", 0):
        raise refusal(code, f"{cluster}: DescribeCluster")
    return _rights(answer.cluster_authorized_operations) or frozenset()


async def described(cluster: Cluster, topics: Iterable[str], *, rights: bool = False) -> list[Described]:
    """The topics of these names that exist, with what we may do to each where `rights` asks for that."""
    topics_there = await _topic_metadata(cluster, topics, CALL_TIMEOUT, rights=rights)
    return [_described(cluster, topic) for topic in topics_there if topic.error_code not in UNKNOWN_TOPIC]


async def denied(cluster: Cluster, topics: Iterable[str]) -> frozenset[str]:
    """Those of the topics that we may not DESCRIBE, there or not: where all are listed, brokers leave them out."""
    answered = await _topic_metadata(cluster, topics, CALL_TIMEOUT)
    return frozenset(topic.name for topic in answered if topic.error_code in AUTHORIZATION_ERRORS)


async def partition_counts(cluster: Cluster, timeout: float = CALL_TIMEOUT) -> dict[str, int]:
    """How many partitions each topic has that we may see; 0 where it is just being made."""
    return {topic.name: len(topic.partitions) for topic in await _topic_metadata(cluster, None, timeout)}


async def _topic_metadata(
    cluster: Cluster, topics: Iterable[str] | None, timeout: float, *, rights: bool = False
) -> Sequence[Any]:
    """What a broker says of topics; of all where they are None."""
    connection = await some_connection(cluster, timeout)
    version = connection.version(METADATA)
    named = METADATA.schema(version, "request").MetadataRequestTopic
    older: dict[str, Any] = {"include_cluster_authorized_operations": False} if version <= 10 else {}
    request = METADATA.request(version)(
        topics=None if topics is None else tuple(named(topic_id=None, name=name) for name in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=rights,
        **older,
    )
    answer = await asked_of(cluster, connection, METADATA, request, timeout)
    if not answer.brokers:
        raise ClusterUnreachable(f"{cluster}: its metadata names no broker: the cluster is starting, or cut off")
    found: Sequence[Any] = answer.topics
    return found


def _described(cluster: Cluster, topic: Any) -> Described:
    if topic.error_code in AUTHORIZATION_ERRORS or (topic.error_code and not topic.partitions):
        raise refusal(topic.error_code, f"{cluster}: topic {topic.name}")
    replicas = (Replicas(info.partition_index, info.leader_id, tuple(info.replica_nodes)) for info in topic.partitions)
    return Described(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(sorted(replicas, key=lambda placed: placed.partition)),
        rights=_rights(topic.topic_authorized_operations),
    )


def _rights(bits: int) -> frozenset[str] | None:
    if bits == _NOT_ASKED:
        return None
    return frozenset(name for code, name in _OPERATIONS.items() if bits >> code & 1)


async def some_connection(cluster: Cluster, timeout: float) -> Connection:
    """One that answered a moment ago, and so will likely answer again."""
    await cluster.refresh(timeout=timeout)
    problem: WireError | None = None
    for node in cluster.nodes:
        try:
            return await cluster.connection(node)
        except ConnectionLost as lost:
            problem = lost
    raise ClusterUnreachable(f"{cluster}: {problem}")


async def asked_of(cluster: Cluster, connection: Connection, api: Any, request: Any, timeout: float) -> Any:
    try:
        return await connection.call(api, request, timeout)
    except ConnectionLost as lost:
        raise ClusterUnreachable(f"{cluster}: {lost}") from lost
