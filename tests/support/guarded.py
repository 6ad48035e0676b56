"""Clusters with rights, and topics that go silent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from acls import every_acl, put_acls
from confluent_kafka import TopicPartition as Confluent
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from helpers import stored_batches
from watchedtask import TIMEOUT

from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster, Spec, start_many

#: A broker that asks for rights where a topic has an ACL, and for none where it has none. Of one node alone: without
#: super users, controllers may not vote before the authorizer has read the log that they vote about.
GUARDED: Mapping[str, str | bool] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": True,
}


@contextmanager
def guarded_pair(name: str) -> Iterator[tuple[Cluster, Cluster]]:
    """A source and a target that ask for rights."""
    with ExitStack() as stack:
        specs = [Spec(name=f"{name}-{side}", config=GUARDED) for side in ("source", "target")]
        source, target = (stack.enter_context(one) for one in start_many(specs))
        yield source, target


def create(cluster: Cluster, topic: str, replicas: list[list[int]], configs: dict[str, str] | None = None) -> None:
    """A topic with replicas of one's choice, once it has leaders."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(topic, num_partitions=len(replicas), replica_assignment=replicas, config=configs or {})
    client.create_topics([new])[topic].result(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while True:
        found = client.list_topics(timeout=10).topics.get(topic)
        if found and len(found.partitions) == len(replicas) and all(p.leader >= 0 for p in found.partitions.values()):
            return
        assert time.monotonic() < deadline, f"{topic} was not created"


def delete(cluster: Cluster, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    client.delete_topics([topic])[topic].result(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while topic in client.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline, f"{topic} was not deleted"


def delete_records(cluster: Cluster, at: TopicPartition, before: int) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for deleted in client.delete_records([Confluent(*at, before)]).values():
        deleted.result(TIMEOUT)


def acl(topic: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission
    )


def take_away(cluster: Cluster, topic: str, operation: AclOperation) -> None:
    """One right on a topic; all others stay."""
    everything = acl(topic, AclOperation.ALL, AclPermissionType.ALLOW)
    denied = acl(topic, operation, AclPermissionType.DENY)
    put_acls(
        AdminClient({"bootstrap.servers": cluster.bootstrap}),
        every_acl(ResourceType.TOPIC, topic),
        [everything, denied],
    )


def give_back(cluster: Cluster, topic: str) -> None:
    """Every right on a topic."""
    put_acls(AdminClient({"bootstrap.servers": cluster.bootstrap}), every_acl(ResourceType.TOPIC, topic), [])


def flip_a_stored_bit(cluster: Cluster, at: TopicPartition, batch: int) -> int:
    """In the middle of a batch, in the file from which its leader serves it; the batch's base offset."""
    found = stored_batches(cluster.bootstrap, *at)
    log = Path(cluster.nodes[0].folder) / "data" / f"{at}" / ("0" * 20 + ".log")
    where = sum(len(one.data) for one in found[:batch]) + len(found[batch].data) // 2
    with log.open("r+b") as file:
        file.seek(where)
        byte = file.read(1)[0]
        file.seek(where)
        file.write(bytes([byte ^ 1]))
    return int(found[batch].header.base_offset)
