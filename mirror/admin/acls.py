"""ACLs of source topics, as they are to be for their copies.

A1  nobody but the mirror may write to a copy: of what is allowed, only rights to read and to describe go over; ALL
    becomes READ. What is denied is denied on the copy too
A2  an ACL on the target names one copy. One for a prefix, or for every topic, is laid out over the copies that it
    concerns, so that nothing else on that cluster is opened or closed, whatever the copies are called
A3  nothing is taken away: an ACL that is removed on the source stays on the target until somebody removes it there
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from mirror.admin.client import Admin
from mirror.policy.selection import TopicPair

EVERY_TOPIC: Final = "*"
#: What a right that is allowed on the source becomes (A1); others are left behind.
_ALLOWED: Final = {
    AclOperation.ALL: AclOperation.READ,
    AclOperation.READ: AclOperation.READ,
    AclOperation.DESCRIBE: AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}
_ANY_TOPIC: Final[tuple[Any, ...]] = (
    ResourceType.TOPIC,
    None,
    ResourcePatternType.ANY,
    None,
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


@dataclass(frozen=True, slots=True, order=True)
class TopicAcl:
    """One rule for one topic of the target; the operation by Kafka's name."""

    topic: str
    principal: str
    host: str
    operation: str
    allowed: bool

    def __str__(self) -> str:
        verb = "allow" if self.allowed else "deny"
        return f"{self.topic}: {verb} {self.operation} to {self.principal} from {self.host}"


@dataclass(frozen=True, slots=True)
class AclPlan:
    """The rules that are missing on the target, and what keeps ACLs from being compared; empty where nothing does."""

    missing: tuple[TopicAcl, ...] = ()
    hindrance: str = ""


def plan_acls(source: Admin, target: Admin, pairs: Iterable[TopicPair]) -> AclPlan:
    """Compare the ACLs of topics and of their copies. Writes nothing; raises ClusterError, AccessDenied where ACLs may
    not be described (DESCRIBE on the cluster).
    """
    for admin in (source, target):
        if not admin.has_authorizer():
            return AclPlan(hindrance=f"cluster {admin.settings.alias} has no authorizer, so no ACL is mirrored")
    every = AclBindingFilter(*_ANY_TOPIC)
    ours, theirs = source.acls(every), target.acls(every)
    held = {_rule(one, one.name) for one in theirs if one.resource_pattern_type is ResourcePatternType.LITERAL}
    return AclPlan(tuple(sorted(set(wanted(ours, pairs)) - held)))


def wanted(ours: Iterable[AclBinding], pairs: Iterable[TopicPair]) -> Iterable[TopicAcl]:
    """What the ACLs of the source come to on the target (A1, A2)."""
    rules = list(ours)
    for pair in pairs:
        for one in rules:
            if not _concerns(one, pair.source):
                continue
            if one.permission_type is AclPermissionType.DENY:
                yield _rule(one, pair.target)
            elif one.operation in _ALLOWED:
                yield TopicAcl(pair.target, one.principal, one.host, _ALLOWED[one.operation].name, True)


def create_acls(target: Admin, missing: Iterable[TopicAcl]) -> None:
    """Create what `plan_acls` found missing. Raises ClusterError, AccessDenied (ALTER on the cluster)."""
    target.create_acls(
        [
            AclBinding(
                ResourceType.TOPIC,
                one.topic,
                ResourcePatternType.LITERAL,
                one.principal,
                one.host,
                AclOperation[one.operation],
                AclPermissionType.ALLOW if one.allowed else AclPermissionType.DENY,
            )
            for one in missing
        ]
    )


def _concerns(rule: AclBinding, topic: str) -> bool:
    if rule.resource_pattern_type is ResourcePatternType.PREFIXED:
        return topic.startswith(rule.name)
    return rule.name in (topic, EVERY_TOPIC)


def _rule(one: AclBinding, topic: str) -> TopicAcl:
    allowed = one.permission_type is AclPermissionType.ALLOW
    return TopicAcl(topic, one.principal, one.host, AclOperation(one.operation).name, allowed)
