"""Groups on a cluster that denies some of them, or takes only short texts with offsets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
from acls import every_acl, put_acls
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from group_pairs import Pair, with_pair
from helpers import make_topic
from waiting import DEADLINE_S

from mirror.groups.decide import GroupStanding
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import Committed
from mirror.lab.embedded import Cluster

SETTINGS: dict[str, str | int | bool] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "offset.metadata.max.bytes": 10,
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    with Cluster.start(name="guarded", config=SETTINGS) as cluster:
        yield cluster


def test_a_long_text_is_given_up_and_the_offset_kept(own_source: Cluster, guarded: Cluster, topic_name: str) -> None:
    for cluster in (own_source, guarded):
        make_topic(cluster.bootstrap, topic_name)

    async def story(pair: Pair) -> None:
        await pair.commit(pair.source, topic_name, topic_name, 0, "more than ten bytes")
        assert await pair.standings() == {"synced": 1}
        assert await pair.committed(pair.target, topic_name) == {TopicPartition(topic_name, 0): Committed(0)}
        assert (await pair.sync_once()).committed == 0, "the broker is not asked again"

    with_pair(own_source.bootstrap, guarded.bootstrap, topic_name, story)


def test_missing_rights_are_named_and_granted_later(own_target: Cluster, guarded: Cluster, topic_name: str) -> None:
    """On one side or the other; groups that may be followed are."""
    other = own_target.bootstrap
    free, denied = f"{topic_name}-free", f"{topic_name}-denied"
    for bootstrap in (guarded.bootstrap, other):
        make_topic(bootstrap, topic_name)
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})

    def right(operation: AclOperation, principal: str = "User:ANONYMOUS") -> AclBinding:
        where = ResourceType.GROUP, denied, ResourcePatternType.LITERAL
        return AclBinding(*where, principal, "*", operation, AclPermissionType.ALLOW)

    def grant(*operations: AclOperation) -> None:
        made_for = [right(AclOperation.READ, "User:somebody"), *map(right, operations)]  # then others have none
        put_acls(admin, every_acl(ResourceType.GROUP, denied), made_for)

    async def blocked(pair: Pair, *causes: str) -> None:
        """A change of rights reaches the broker a moment later."""
        wanted = {(cause, denied) for cause in causes}
        async with asyncio.timeout(DEADLINE_S):
            result = await pair.sync_once()
            while {(one.cause, one.group) for one in result.blockers} != wanted:
                result = await pair.sync_once()
        assert result.standings == (
            {GroupStanding.SYNCED: 1, GroupStanding.BLOCKED: 1} if causes else {GroupStanding.SYNCED: 2}
        )

    async def as_target(pair: Pair) -> None:
        for group in (free, denied):
            await pair.commit(pair.source, group, topic_name, 0)
        for granted in ((), (AclOperation.DESCRIBE,)):
            await asyncio.to_thread(grant, *granted)
            await blocked(pair, "cluster us: grant READ on the group")
        await asyncio.to_thread(grant, AclOperation.READ)
        await blocked(pair)
        assert await pair.committed(pair.target, denied) == {TopicPartition(topic_name, 0): Committed(0)}

    async def as_source(pair: Pair) -> None:
        for group in (free, denied):
            await pair.commit(pair.source, group, topic_name, 0)
        pair.sync.include = (re.compile(re.escape(free)), re.compile(denied))
        await blocked(pair)
        await asyncio.to_thread(grant)
        await blocked(pair, "cluster eu: grant DESCRIBE on the group")

    with_pair(other, guarded.bootstrap, topic_name, as_target)
    with_pair(guarded.bootstrap, other, topic_name, as_source)
