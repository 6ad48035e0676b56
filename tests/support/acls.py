"""ACLs that tests put in the place of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from waiting import DEADLINE_S, until

_ANY: Final[Any] = None  # any name, principal or host, which the client's own types leave out


def every_acl(kind: ResourceType = ResourceType.ANY, name: str = "") -> AclBindingFilter:
    """The filter for all ACLs, or for those about one resource."""
    return AclBindingFilter(
        kind, name or _ANY, ResourcePatternType.ANY, _ANY, _ANY, AclOperation.ANY, AclPermissionType.ANY
    )


def put_acls(admin: AdminClient, old: AclBindingFilter, new: Sequence[AclBinding]) -> None:
    """Replace the ACLs that a filter lets through by others that it lets through; returns when the broker knows."""
    for removed in admin.delete_acls([old]).values():
        removed.result(DEADLINE_S)
    if new:
        for made in admin.create_acls(list(new)).values():
            made.result(DEADLINE_S)
    until(lambda: len(admin.describe_acls(old).result(DEADLINE_S)) == len(new))
