"""ACLs follow to copies between clusters with authorizers, and what the flow gave is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from acls import every_acl
from certificates import GUARDED
from configured_flow import ConfiguredFlow
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from helpers import make_topic, produce
from waiting import DEADLINE_S, until

from mirror.driver.topic_watcher import Replanner
from mirror.journal.entries import FirstSeen
from mirror.lab.embedded import Cluster, Spec, start_many

AUTHORIZER = {**GUARDED, "allow.everyone.if.no.acl.found": True}
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Cluster, Cluster]]:
    with ExitStack() as stack:
        specs = [Spec(name=name, config=AUTHORIZER) for name in ("guarded-source", "guarded-target")]
        source, target = (stack.enter_context(cluster) for cluster in start_many(specs))
        yield source, target


@pytest.fixture
def flow(guarded: tuple[Cluster, Cluster], tmp_path: Path, topic_name: str) -> ConfiguredFlow:
    found = ConfiguredFlow(*guarded, tmp_path, topic_name)
    found.sync["acls"] = True
    found.write_journal()
    return found


def rule(kind: ResourceType, name: str, user: str, operation: str, *, deny: bool = False) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if name.endswith("-") else ResourcePatternType.LITERAL
    permission = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
    return AclBinding(kind, name, pattern, f"User:{user}", "*", AclOperation[operation], permission)


def give(bootstrap: str, *rules: AclBinding) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept until the answers are there
    for done in admin.create_acls(list(rules)).values():
        done.result(DEADLINE_S)
    for one in rules:
        until(partial(rules_on, bootstrap, one.name, one.restype))


def revoke(bootstrap: str, kind: ResourceType, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_acls([every_acl(kind, name)]).values():
        done.result(DEADLINE_S)
    until(lambda: not rules_on(bootstrap, name, kind))


def rules_on(bootstrap: str, name: Any, kind: Any = TOPIC) -> set[str]:
    """As `USER OPERATION` or `USER not OPERATION`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return {
        f"{one.principal.removeprefix('User:')}"
        f"{' not' if one.permission_type is AclPermissionType.DENY else ''} {one.operation.name}"
        for one in admin.describe_acls(every_acl(kind, name)).result(DEADLINE_S)
    }


def test_acls_follow_to_copies_and_nobody_else_may_write_there(flow: ConfiguredFlow) -> None:
    foreign = f"{flow.name}-foreign"
    flow.topics["naming"] = {"prefix": "eu."}
    for bootstrap, topic in (
        (flow.source, flow.name),
        (flow.source, foreign),
        (flow.target, f"eu.{foreign}"),
    ):
        make_topic(bootstrap, topic)
    produce(flow.target, f"eu.{foreign}", [b"somebody else's"])
    for topic in (flow.name, foreign):
        give(
            flow.source,
            rule(TOPIC, topic, "all", "ALL"),
            rule(TOPIC, topic, "writer", "WRITE"),
            rule(TOPIC, topic, "*", "WRITE", deny=True),
            rule(TOPIC, topic, "nobody", "READ", deny=True),
        )
    give(flow.source, rule(TOPIC, f"{flow.name[:-4]}-", "nowhere", "READ"))
    living = Replanner(flow.settings)
    for _ in range(2):
        living.replan((), {})
    until(lambda: rules_on(flow.target, f"eu.{flow.name}") == {"all READ", "nobody not READ"})
    assert rules_on(flow.target, f"eu.{foreign}") == set(), "its owners could write no more, or others read it"
    assert rules_on(flow.target, flow.name) == set()


def test_what_the_flow_gave_is_taken_back_when_the_source_revokes_it(flow: ConfiguredFlow) -> None:
    """Topics and followed groups; by another process than the one that gave it; what others gave stays."""
    group = f"{flow.name}-app"
    flow.groups = [group]
    make_topic(flow.source, flow.name)
    consumer = Consumer({"bootstrap.servers": flow.source, "group.id": group})
    consumer.commit(offsets=[TopicPartition(flow.name, 0, 0)], asynchronous=False)
    consumer.close()
    give(flow.source, rule(TOPIC, flow.name, "app", "READ"), rule(GROUP, group, "app", "READ"))
    Replanner(flow.settings).replan((), {})
    until(lambda: rules_on(flow.target, flow.name) == rules_on(flow.target, group, GROUP) == {"app READ"})
    give(flow.target, rule(TOPIC, flow.name, "own", "READ"))
    for kind, name in ((TOPIC, flow.name), (GROUP, group)):
        revoke(flow.source, kind, name)
    another = FirstSeen(source_topic=flow.name, topic_id=None, target_topic_id=None, cluster_id="another")
    Replanner(flow.settings).replan((), {flow.name: another})
    assert rules_on(flow.target, group, GROUP) == {"app READ"}, "another cluster than the copies' says nothing of it"
    Replanner(flow.settings).replan((), {})
    until(lambda: rules_on(flow.target, flow.name) == {"own READ"})
    until(lambda: not rules_on(flow.target, group, GROUP))
