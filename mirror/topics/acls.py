"""ACLs of source topics and of followed groups, as they are to be on the target.

- Nobody but the mirror may write to a copy, or change it: of what is allowed, only rights to read and to describe go
  over, and ALL becomes READ. What is denied is denied on the copy as far as it is a right to read or to describe: a
  denied WRITE, ALTER or ALL could lock out the mirror, or whoever uses the copy after a failover.
- An ACL on the target names one copy, or one group. One for a prefix, or for every topic, is laid out over the copies
  that it concerns, so that nothing else on that cluster is opened or closed, whatever the copies are called.
- What this flow gave it takes back when the source has it no more; nothing else is taken away. What it gave is in its
  journal (`acl/<kind>/<name>`) before it is given. What it denied it takes back of a copy that it may not read, too:
  that may be why. A topic or a group that leaves the flow keeps what it has, and so do all while the source is another
  cluster than the one that copies come from.
- Principals are the source cluster's words: `sync.acl_principals` says which of them mean somebody on the target, and
  whom. Without it every principal keeps its name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from mirror.config import Settings
from mirror.errors import MirrorError
from mirror.journal.journal import Change
from mirror.journal.kinds import TopicKind
from mirror.kafka.admin import Admin
from mirror.names import first_of
from mirror.observability.json_record import Codec
from mirror.policy.selection import TopicPair
from mirror.topics.history import write_own

EVERYTHING: Final = "*"
#: What a right that is allowed or denied on the source becomes; others are left behind.
_CARRIED: Final = {
    AclOperation.ALL: AclOperation.READ,
    AclOperation.READ: AclOperation.READ,
    AclOperation.DESCRIBE: AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}
_KINDS: Final = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP}
#: By `<kind>/<name>`: principal, host, operation, and whether it is allowed.
GIVEN: Final = TopicKind(b"acl/", Codec[list[tuple[str, str, str, bool]]](list[tuple[str, str, str, bool]]))

#: By the principal's pattern or name on the source, its name on the target; None keeps the name.
Principals = Mapping[re.Pattern[str], str | None]


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One rule for one topic or group of the target.

    kind: `topic` or `group`
    name: the topic's or the group's
    principal, host: as Kafka writes them
    operation: Kafka's name for it, in capitals
    allowed: ALLOW; else DENY
    """

    kind: str
    name: str
    principal: str
    host: str
    operation: str
    allowed: bool

    def __str__(self) -> str:
        verb = "allow" if self.allowed else "deny"
        where = self.name if self.kind == "topic" else f"group {self.name}"
        return f"{where}: {verb} {self.operation} to {self.principal} from {self.host}"

    @property
    def resource(self) -> tuple[str, str]:
        """Kind and name."""
        return self.kind, self.name


@dataclass(frozen=True, slots=True)
class AclPlan:
    """What `plan_acls` found.

    missing: rules that the source has and the target has not
    revoked: rules that this flow gave, and the source has no more
    blocker: what keeps ACLs from being compared; empty where nothing does
    """

    missing: tuple[Acl, ...] = ()
    revoked: tuple[Acl, ...] = ()
    blocker: str = ""

    @property
    def topics(self) -> frozenset[str]:
        """The target topics whose rules would change."""
        return frozenset(acl.name for acl in (*self.missing, *self.revoked) if acl.kind == "topic")

    def leaving(self, topics: Collection[str], unreadable: Collection[str] = ()) -> AclPlan:
        """The plan without changes to these target topics; of those that are `unreadable`, what was denied is taken
        back all the same.
        """

        def is_left(acl: Acl) -> bool:
            return acl.kind != "topic" or acl.name not in topics

        return replace(
            self,
            missing=tuple(filter(is_left, self.missing)),
            revoked=tuple(acl for acl in self.revoked if is_left(acl) or (acl.name in unreadable and not acl.allowed)),
        )

    def giving_alone(self, others: Collection[str], source_id: str) -> AclPlan:
        """The plan where copies come from `others`, the ids of clusters that the source is not: what these had given is
        not for another one to take back.
        """
        if not self.revoked or not others:
            return self
        why = f"copies come from cluster {first_of(sorted(others))}, and the source is cluster {source_id}"
        return replace(self, revoked=(), blocker=f"ACLs that the source lacks are not taken back: {why}")


def plan_acls(
    source: Admin,
    target: Admin,
    pairs: Iterable[TopicPair],
    groups: Collection[str] = (),
    given: Collection[Acl] = (),
    principals: Principals | None = None,
) -> AclPlan:
    """Compare the ACLs of topics and followed `groups` with those of their copies; `given`: what the flow gave so far.

    Writes nothing. Raises ClusterError, and AccessDenied where ACLs may not be described (DESCRIBE on the cluster).
    """
    for admin in (source, target):
        if not admin.has_authorizer():
            return AclPlan(blocker=f"cluster {admin.settings.alias} has no authorizer, so no ACL is mirrored")
    copies = [("topic", pair.source, pair.target) for pair in pairs] + [("group", name, name) for name in groups]
    asked, theirs = list[AclBinding](), set[Acl]()
    for kind in sorted({kind for kind, _, _ in copies}):
        every = _filter(kind)
        asked += source.acls(every)
        theirs |= {
            _rule(kind, acl.name, acl.principal, acl)
            for acl in target.acls(every)
            if acl.resource_pattern_type is ResourcePatternType.LITERAL
        }
    ours = set(wanted(asked, copies, principals))
    in_flow = {(kind, copy) for kind, _, copy in copies}
    gone = {acl for acl in given if acl.resource in in_flow and acl not in ours}
    return AclPlan(tuple(sorted(ours - theirs)), tuple(sorted(gone & theirs)))


def wanted(
    rules: Iterable[AclBinding], copies: Iterable[tuple[str, str, str]], principals: Principals | None = None
) -> Iterator[Acl]:
    """Yield what the ACLs of the source come to on the target; `copies` are kind, name there and name here."""
    every = list(rules)
    for kind, name, copy in copies:
        for acl_binding in every:
            if (
                acl_binding.restype is not _KINDS[kind]
                or not _concerns(acl_binding, name)
                or acl_binding.operation not in _CARRIED
            ):
                continue
            if (principal := _principal(acl_binding.principal, principals)) is not None:
                yield _rule(kind, copy, principal, acl_binding, _CARRIED[acl_binding.operation])


def create_acls(target: Admin, missing: Iterable[Acl], failures: dict[str, MirrorError] | None = None) -> None:
    """Create what `plan_acls` found missing; `failures` learns by name what could not be. Raises ClusterError, and
    AccessDenied (ALTER on the cluster) without these.
    """
    target.create_acls([AclBinding(*_binding(acl)) for acl in missing], failures)


def delete_acls(target: Admin, revoked: Iterable[Acl]) -> None:
    """Delete what `plan_acls` found revoked, rule by rule. Raises as `create_acls` does."""
    target.delete_acls([AclBindingFilter(*_binding(acl)) for acl in revoked])


def given_in(journal: Mapping[bytes, bytes]) -> set[Acl]:
    """What a flow gave, as the newest records of its journal say; records that no mirror wrote are passed over."""
    given = set[Acl]()
    for resource, rules in GIVEN.newest(journal).items():
        kind, _, name = resource.partition("/")
        with contextlib.suppress(KeyError):
            if kind in _KINDS:
                given |= {
                    Acl(kind, name, principal, host, AclOperation[operation].name, is_allowed)
                    for principal, host, operation, is_allowed in rules
                }
    return given


def given_entries(given: Collection[Acl], resources: Iterable[tuple[str, str]]) -> list[Change]:
    """The journal's records of what was given for these topics and groups."""
    entries = list[Change]()
    for kind, name in sorted(set(resources)):
        rules = sorted(acl for acl in given if acl.resource == (kind, name))
        fields = [(rule.principal, rule.host, rule.operation, rule.allowed) for rule in rules]
        entries.append(GIVEN.change(f"{kind}/{name}", fields or None))
    return entries


async def record_given(settings: Settings, given: Collection[Acl], resources: Iterable[tuple[str, str]]) -> None:
    """Write what was given for these topics and groups into the journal. Raises as `Journal.append` does."""
    await write_own(settings, given_entries(given, resources))


def _principal(name: str, principals: Principals | None) -> str | None:
    """Return who that is on the target; None where nobody is."""
    if principals is None:
        return name
    for pattern, other in principals.items():
        if pattern.fullmatch(name):
            return other or name
    return None


def _filter(kind: str) -> AclBindingFilter:
    anything: Any = None  # which the client's own types leave out
    return AclBindingFilter(
        _KINDS[kind],
        anything,
        ResourcePatternType.ANY,
        anything,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def _binding(acl: Acl) -> tuple[Any, ...]:
    return (
        _KINDS[acl.kind],
        acl.name,
        ResourcePatternType.LITERAL,
        acl.principal,
        acl.host,
        AclOperation[acl.operation],
        AclPermissionType.ALLOW if acl.allowed else AclPermissionType.DENY,
    )


def _concerns(rule: AclBinding, name: str) -> bool:
    if rule.resource_pattern_type is ResourcePatternType.PREFIXED:
        return name.startswith(rule.name)
    return rule.name in (name, EVERYTHING)


def _rule(kind: str, name: str, principal: str, acl_binding: AclBinding, operation: AclOperation | None = None) -> Acl:
    allowed = acl_binding.permission_type is AclPermissionType.ALLOW
    return Acl(kind, name, principal, acl_binding.host, AclOperation(operation or acl_binding.operation).name, allowed)
