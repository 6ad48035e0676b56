"""Questions about a cluster and its topics as a whole, which any broker answers.

librdkafka's DescribeCluster and DescribeTopics end the process by an assertion where an answer names no broker, as one
of a broker does that has only just started (`rd_kafka_admin_response_parse`, 2.16); so these are asked by the wire.

All raise ClusterUnreachable, AccessDenied and BrokerError.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from mirror.errors import ClusterUnreachable, ConnectionLost, WireError
from mirror.wire.cluster import CALL_TIMEOUT, DENIED, UNKNOWN_TOPIC, Cluster, refusal
from mirror.wire.connection import Connection
from mirror.wire.protocol import DESCRIBE_CLUSTER, METADATA

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
#: How rights are told that were not asked for.
_NOT_ASKED: Final = -(2**31)
#: The newest version of Metadata that tells of the rights on the cluster; newer brokers have a request for that alone.
_TELLS_CLUSTER_RIGHTS: Final = 10


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
    connection = await _some_connection(cluster, timeout)
    api, version = DESCRIBE_CLUSTER, 0
    if DESCRIBE_CLUSTER.key in connection.versions.ranges:
        version = connection.version(api)
        request = api.request(version)(include_cluster_authorized_operations=True)
    else:
        api, version = METADATA, min(connection.version(METADATA), _TELLS_CLUSTER_RIGHTS)
        request = api.request(version)(
            topics=(),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=False,
        )
    answer = await _asked(cluster, connection, api, request, timeout)
    if code := getattr(answer, "error_code", 0):
        raise refusal(code, f"{cluster}: DescribeCluster")
    return _rights(answer.cluster_authorized_operations) or frozenset()


async def described(
    cluster: Cluster, topics: Iterable[str], *, rights: bool = False, timeout: float = CALL_TIMEOUT
) -> list[Described]:
    """The topics of these names that exist, with what we may do to each where `rights` asks for that."""
    connection = await _some_connection(cluster, timeout)
    version = connection.version(METADATA)
    named = METADATA.schema(version, "request").MetadataRequestTopic
    older: dict[str, Any] = {"include_cluster_authorized_operations": False} if version <= 10 else {}
    request = METADATA.request(version)(
        topics=tuple(named(topic_id=None, name=name) for name in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=rights,
        **older,
    )
    answer = await _asked(cluster, connection, METADATA, request, timeout)
    if not answer.brokers:
        raise ClusterUnreachable(f"{cluster}: its metadata names no broker: the cluster is starting, or cut off")
    return [_described(cluster, topic) for topic in answer.topics if topic.error_code not in UNKNOWN_TOPIC]


def _described(cluster: Cluster, topic: Any) -> Described:
    if topic.error_code in DENIED or (topic.error_code and not topic.partitions):
        raise refusal(topic.error_code, f"{cluster}: topic {topic.name}")
    partitions = (Replicas(one.partition_index, one.leader_id, tuple(one.replica_nodes)) for one in topic.partitions)
    return Described(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(sorted(partitions, key=lambda one: one.partition)),
        rights=_rights(topic.topic_authorized_operations),
    )


def _rights(bits: int) -> frozenset[str] | None:
    if bits == _NOT_ASKED:
        return None
    return frozenset(name for code, name in _OPERATIONS.items() if bits >> code & 1)


async def _some_connection(cluster: Cluster, timeout: float) -> Connection:
    """One that answered a moment ago, and so will likely answer again."""
    await cluster.refresh(timeout=timeout)
    problem: WireError | None = None
    for node in cluster.nodes:
        try:
            return await cluster.connection(node)
        except ConnectionLost as lost:
            problem = lost
    raise ClusterUnreachable(f"{cluster}: {problem}")


async def _asked(cluster: Cluster, connection: Connection, api: Any, request: Any, timeout: float) -> Any:
    try:
        return await connection.call(api, request, timeout)
    except ConnectionLost as lost:
        raise ClusterUnreachable(f"{cluster}: {lost}") from lost
