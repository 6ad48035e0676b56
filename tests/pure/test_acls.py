"""Which ACLs a flow gives to its copies, and takes back."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from helpers import settings_between
from hypothesis import given as given_by
from hypothesis import strategies as st

from mirror.config import Settings, SyncSettings
from mirror.driver.topic_watcher import Replanner
from mirror.errors import ClusterUnreachable
from mirror.policy.selection import TopicPair
from mirror.topics.acls import Acl, AclPlan, given_entries, given_in, plan_acls, wanted
from mirror.topics.adoption import Gate

PAIRS = tuple(TopicPair(source=name, target=f"eu.{name}", partitions=1) for name in ("orders", "other"))


def acl(
    name: str,
    operation: str,
    *,
    deny: bool = False,
    prefixed: bool = False,
    user: str = "User:a",
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    permission = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
    return AclBinding(kind, name, pattern, user, "*", AclOperation[operation], permission)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (acl("orders", "READ"), [("eu.orders", "READ", True)]),
        (acl("orders", "WRITE"), []),
        (acl("orders", "ALL"), [("eu.orders", "READ", True)]),
        (acl("orders", "DELETE"), []),
        (acl("orders", "ALL", deny=True), [("eu.orders", "READ", False)]),
        (acl("orders", "WRITE", deny=True), []),
        (acl("orders", "ALTER", deny=True), []),
        (acl("ord", "READ", prefixed=True), [("eu.orders", "READ", True)]),
        (acl("ord", "READ"), []),
        (acl("*", "DESCRIBE"), [("eu.orders", "DESCRIBE", True), ("eu.other", "DESCRIBE", True)]),
        (acl("secret", "READ"), []),
    ],
    ids=str,
)
def test_acls_of_copies(given: AclBinding, expected: list[tuple[str, str, bool]]) -> None:
    copies = [("topic", pair.source, pair.target) for pair in PAIRS]
    assert [(one.name, one.operation, one.allowed) for one in wanted([given], copies)] == expected


def test_acls_of_groups_are_of_groups() -> None:
    rule = acl("app", "READ", prefixed=True, kind=ResourceType.GROUP)
    found = wanted([rule, acl("app-1", "READ")], [("group", "app-1", "app-1"), ("group", "other", "other")])
    assert [str(one) for one in found] == ["group app-1: allow READ to User:a from *"]


def test_principals_by_a_list_and_by_a_map() -> None:
    rules = [acl("orders", "READ", user=name) for name in ("User:a", "User:app-1", "User:x")]
    copies = [("topic", "orders", "orders")]
    listed = SyncSettings.model_validate({"acl_principals": ["User:app-.*"]}).acl_principals
    mapped = SyncSettings.model_validate({"acl_principals": {"User:a": "User:b", "User:app-.*": None}}).acl_principals
    assert [one.principal for one in wanted(rules, copies, listed)] == ["User:app-1"]
    assert [one.principal for one in wanted(rules, copies, mapped)] == ["User:b", "User:app-1"]
    assert [one.principal for one in wanted(rules, copies)] == ["User:a", "User:app-1", "User:x"]


def test_what_the_flow_did_not_give_or_mirrors_no_more_is_not_taken_back() -> None:
    """Nor anything where the source is another cluster than the one that copies come from."""

    def side(*rules: AclBinding) -> Any:
        return SimpleNamespace(has_authorizer=lambda: True, acls=lambda _: rules)

    there = [acl("eu.orders", "READ"), acl("eu.orders", "DESCRIBE"), acl("eu.left", "READ")]
    given = {Acl("topic", name, "User:a", "*", "READ", True) for name in ("eu.orders", "eu.left", "eu.gone")}
    plan = plan_acls(side(), side(*there), PAIRS, given=given)
    assert ([str(one) for one in plan.revoked], plan.missing) == (["eu.orders: allow READ to User:a from *"], ())
    assert plan.giving_alone((), "here") == plan
    elsewhere = plan.giving_alone(("there",), "here")
    assert (elsewhere.revoked, "copies come from cluster there" in elsewhere.blocker) == ((), True)


@given_by(
    st.dictionaries(
        st.binary() | st.sampled_from([b"acl/topic/orders", b"acl/group/app", b"acl/topic", b"acl//"]),
        st.binary() | st.sampled_from([b"[]", b"{}", b"[[1]]", b'[["User:a","*","READ",true]]', b'[["a","b","NO",1]]']),
    )
)
def test_what_was_given_is_read_from_any_journal(journal: dict[bytes, bytes]) -> None:
    given_in(journal)


def test_what_was_given_is_read_as_it_was_written() -> None:
    rules = {
        Acl("topic", "orders", "User:a", "*", "READ", True),
        Acl("group", "app/1", "User:ä", "h", "DESCRIBE", False),
    }
    entries = given_entries(rules, [one.resource for one in rules] + [("topic", "other")])
    assert given_in({key: value for key, value in entries if value is not None}) == rules
    assert (b"acl/topic/other", None) in entries


@pytest.mark.parametrize("fails_at", ["recorded", "created", ""])
def test_what_the_flow_gives_is_on_record_before_it_is_given(fails_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it takes back until it is taken back: who dies in between leaves nothing that nobody knows of."""
    done = list[str]()
    more, less = (Acl("topic", "a", f"User:{name}", "*", "READ", True) for name in ("more", "less"))

    def does(what: str) -> None:
        if what == fails_at:
            raise ClusterUnreachable("away")
        done.append(what)

    async def still_ours(_: Any, __: Any) -> None:
        done.append("asked")

    async def recorded(_: Settings, given: Collection[Acl], __: Any) -> None:
        does("recorded")
        done.extend(sorted(one.principal for one in given))

    for name, stand_in in (
        ("followed_groups", lambda *_: ()),
        ("OwnershipCheck.refuse_lost", still_ours),
        ("record_given", recorded),
        ("create_acls", lambda *_: does("created")),
        ("delete_acls", lambda *_: does("deleted")),
    ):
        monkeypatch.setattr(f"mirror.driver.topic_watcher.{name}", stand_in)
    monkeypatch.setattr(Gate, "acls", lambda *_: (AclPlan(missing=(more,), revoked=(less,)), {}))
    replanner = Replanner(settings_between("a:1", "b:2", ["a"]))
    replanner._given = {less}
    nothing: Any = None
    if fails_at:
        with pytest.raises(ClusterUnreachable):
            replanner._sync_acls(nothing, ())
    else:
        replanner._sync_acls(nothing, ())
    answer = ["asked", "recorded", "User:less", "User:more", "created", "deleted", "recorded", "User:more"]
    assert done == {"recorded": answer[:1], "created": answer[:4], "": answer}[fails_at]
