"""Consumer groups from outside: which there are, who coordinates them, what they have committed, and a commit.

Everything is asked in bulk, since a cluster may have thousands of groups: ListGroups lists the groups of one broker,
which is also their coordinator; FindCoordinator (4) and OffsetFetch (8) take many groups a request (KIP-699, KIP-709).
Brokers of Kafka 2.8 take one, and so does every OffsetCommit: such requests are sent ahead of each other's answers.

What a broker refuses for one group is part of the answer. WireError is raised for a request that failed as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, TopicPartition, refusal
from mirror.kafka.protocol import (
    DESCRIBE_SHARE_GROUP_OFFSETS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    Api,
)

#: Where a cluster keeps what groups commit: the leader of a partition coordinates the groups in it.
OFFSETS_TOPIC: Final = "__consumer_offsets"
#: Connections of their own: a commit that waits for replicas must not hold up the journal, nor the other way round.
PURPOSE: Final = "groups"
#: Groups in one request, where the broker takes several.
GROUPS_PER_REQUEST: Final = 500
#: Requests under way on one connection, where it takes one group at a time.
IN_FLIGHT: Final = 64
_GROUP_KEY: Final = 0
#: A commit by nobody: no member id and no generation. The broker takes it only while the group has no members.
_NO_GENERATION: Final = -1
_NO_EPOCH: Final = -1
_MANY_COORDINATORS: Final = 4
_MANY_FETCHES: Final = 8


class Committed(NamedTuple):
    """A committed offset, the next record to be read, and the text that was committed with it. `epoch`: the leader
    epoch that a consumer named with it, of the log that it was committed in; -1 for none.
    """

    offset: int
    metadata: str = ""
    epoch: int = -1


Offsets = Mapping[TopicPartition, Committed]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it. `kind` is KIP-848's type, empty before Kafka 3.8."""

    group: str
    kind: str
    protocol: str
    state: str

    @property
    def commits(self) -> bool:
        """It is a consumer group of either protocol, or offsets committed without one (protocol type ""). Share and
        streams groups, Connect's workers and kinds yet to come are not.
        """
        return self.kind.lower() in ("", "classic", "consumer") and self.protocol in ("", "consumer")

    @property
    def is_unfollowed(self) -> bool:
        """It reads topics from where it stands, which is not followed (KIP-932, KIP-1071)."""
        return self.is_share or self.kind.lower() == "streams"

    @property
    def is_share(self) -> bool:
        """It has no committed offsets, but records that it may still get, from a first one on (KIP-932)."""
        return self.kind.lower() == "share"

    @property
    def has_members(self) -> bool:
        """Somebody may be consuming."""
        return self.state.lower() not in ("empty", "dead")


@dataclass(frozen=True, slots=True)
class GroupRefusal:
    """A broker's code for one group, or one partition of it."""

    group: str
    code: Any
    partition: TopicPartition | None = None


@dataclass(slots=True)
class Coordinators:
    """Broker by group, and the groups whose coordinator was not named."""

    nodes: dict[str, int] = field(default_factory=dict)
    refused: list[GroupRefusal] = field(default_factory=list)


@dataclass(slots=True)
class FetchedOffsets:
    """Committed offsets by group, with an empty mapping for one that has none, and the groups that were refused."""

    offsets: dict[str, dict[TopicPartition, Committed]] = field(default_factory=dict)
    refused: list[GroupRefusal] = field(default_factory=list)


async def list_groups(cluster: Cluster, node: int) -> list[ListedGroup]:
    """The groups that one broker coordinates, of those that the principal may DESCRIBE: others are left out silently.

    Raises WireError, AccessDenied, BrokerError, the last with code 14 while the coordinator loads its groups.
    """
    answer = await cluster.call(node, LIST_GROUPS, PURPOSE)
    if answer.error_code:
        raise refusal(answer.error_code, f"{cluster}: ListGroups at broker {node}")
    typed = answer.__version__ >= 5
    return [
        ListedGroup(group.group_id, group.group_type if typed else "", group.protocol_type, group.group_state)
        for group in answer.groups
    ]


async def coordinators(cluster: Cluster, node: int, groups: Iterable[str]) -> Coordinators:
    """Who coordinates each group, asked of any broker. Raises WireError."""
    version = (await cluster.connection(node, PURPOSE)).version(FIND_COORDINATOR)
    asked = sorted(groups)
    request = FIND_COORDINATOR.request(version)
    found = Coordinators()
    if version < _MANY_COORDINATORS:
        one_each = [request(key=group, key_type=_GROUP_KEY) for group in asked]
        answers = await _each(cluster, node, FIND_COORDINATOR, one_each)
        answered: list[tuple[str, Any]] = list(zip(asked, answers, strict=True))
    else:
        several = [request(key_type=_GROUP_KEY, coordinator_keys=part) for part in _parts(asked)]
        answers = await _each(cluster, node, FIND_COORDINATOR, several)
        answered = [(part.key, part) for answer in answers for part in answer.coordinators]
    for group, part in answered:
        if part.error_code:
            found.refused.append(GroupRefusal(group, part.error_code))
        else:
            found.nodes[group] = int(part.node_id)
    return found


async def fetch_offsets(cluster: Cluster, node: int, groups: Iterable[str]) -> FetchedOffsets:
    """Everything that groups of one coordinator have committed, a transaction's offsets once it is committed.

    A group with an error for any partition is refused whole, so that what is not known is not taken for nothing.
    Raises WireError.
    """
    version = (await cluster.connection(node, PURPOSE)).version(OFFSET_FETCH)
    asked = sorted(groups)
    request = OFFSET_FETCH.request(version)
    if version < _MANY_FETCHES:
        one_each = [request(group_id=group, topics=None) for group in asked]
        answered: list[tuple[str, Any]] = list(
            zip(asked, await _each(cluster, node, OFFSET_FETCH, one_each), strict=True)
        )
    else:
        named = OFFSET_FETCH.schema(version, "request").OffsetFetchRequestGroup
        several = [
            request(groups=tuple(named(group_id=group, topics=None) for group in part)) for part in _parts(asked)
        ]
        answers = await _each(cluster, node, OFFSET_FETCH, several)
        answered = [(part.group_id, part) for answer in answers for part in answer.groups]
    found = FetchedOffsets()
    for group, part in answered:
        codes = [part.error_code, *(inner.error_code for topic in part.topics for inner in topic.partitions)]
        if code := next(filter(None, codes), None):
            cluster.disowned(node, code, group)
            found.refused.append(GroupRefusal(group, code))
        else:
            found.offsets[group] = {
                TopicPartition(topic.name, inner.partition_index): Committed(
                    inner.committed_offset, inner.metadata or "", int(inner.committed_leader_epoch)
                )
                for topic in part.topics
                for inner in topic.partitions
                if inner.committed_offset >= 0
            }
    return found


async def fetch_share_offsets(cluster: Cluster, node: int, groups: Iterable[str]) -> FetchedOffsets:
    """The same of share groups: of each partition the first offset that one may still get. Raises WireError."""
    version = (await cluster.connection(node, PURPOSE)).version(DESCRIBE_SHARE_GROUP_OFFSETS)
    named = DESCRIBE_SHARE_GROUP_OFFSETS.schema(version, "request").DescribeShareGroupOffsetsRequestGroup
    request = DESCRIBE_SHARE_GROUP_OFFSETS.request(version)
    several = [
        request(groups=tuple(named(group_id=group, topics=None) for group in part)) for part in _parts(sorted(groups))
    ]
    found = FetchedOffsets()
    for answer in await _each(cluster, node, DESCRIBE_SHARE_GROUP_OFFSETS, several):
        for part in answer.groups:
            codes = [part.error_code, *(inner.error_code for topic in part.topics for inner in topic.partitions)]
            if code := next(filter(None, codes), None):
                found.refused.append(GroupRefusal(part.group_id, code))
            else:
                found.offsets[part.group_id] = {
                    TopicPartition(topic.topic_name, inner.partition_index): Committed(inner.start_offset)
                    for topic in part.topics
                    for inner in topic.partitions
                    if inner.start_offset >= 0
                }
    return found


async def commit_offsets(
    cluster: Cluster, node: int, commits: Mapping[str, Offsets], may_go: Callable[[], bool] = lambda: True
) -> list[GroupRefusal]:
    """Commit for groups of one coordinator that have no members; what was refused, empty where all was taken.

    The committed leader epoch is left open: it would be one of the log that the offset came from. `may_go` as in
    `Connection.send`. Raises WireError: then each of the commits may have been made or not.
    """
    version = (await cluster.connection(node, PURPOSE)).version(OFFSET_COMMIT)
    requests = [_commit_request(version, group, offsets) for group, offsets in commits.items()]
    answers = await _each(cluster, node, OFFSET_COMMIT, requests, may_go)
    return [
        GroupRefusal(group, part.error_code, TopicPartition(topic.name, part.partition_index))
        for group, answer in zip(commits, answers, strict=True)
        for topic in answer.topics
        for part in topic.partitions
        if part.error_code
    ]


def _commit_request(version: int, group: str, offsets: Offsets) -> Any:
    schema = OFFSET_COMMIT.schema(version, "request")
    topics: dict[str, list[Any]] = {}
    for partition, committed in offsets.items():
        topics.setdefault(partition.topic, []).append(
            schema.OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=_NO_EPOCH,
                committed_metadata=committed.metadata,
            )
        )
    return schema.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=_NO_GENERATION,
        member_id="",
        group_instance_id=None,
        topics=tuple(
            schema.OffsetCommitRequestTopic(name=name, partitions=tuple(parts)) for name, parts in topics.items()
        ),
    )


async def _each(
    cluster: Cluster, node: int, api: Api, requests: Sequence[Any], may_go: Callable[[], bool] = lambda: True
) -> list[Any]:
    """The answers to requests of one kind, in their order, a bounded number of them under way at a time."""
    connection = await cluster.connection(node, PURPOSE)
    answers: list[Any] = []
    for begin in range(0, len(requests), IN_FLIGHT):
        some = requests[begin : begin + IN_FLIGHT]
        under_way = [connection.call(api, request, CALL_TIMEOUT, may_go) for request in some]
        answers += await asyncio.gather(*under_way)
    return answers


def _parts(groups: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for begin in range(0, len(groups), GROUPS_PER_REQUEST):
        yield tuple(groups[begin : begin + GROUPS_PER_REQUEST])
