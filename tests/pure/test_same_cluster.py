"""Whether two cluster ids that are equal are those of one cluster, and of which of such clusters a copy comes."""

from __future__ import annotations

from uuid import UUID

import pytest

from mirror.journal.entries import FirstSeen
from mirror.policy.rules import Severity
from mirror.topics.history import History, Origin
from mirror.topics.same_cluster import Observed, sameness

ONE, OTHER, THIRD = (UUID(int=number) for number in (1, 2, 3))


def cluster(alias: str, address: str, topics: dict[str, UUID | None], *differs: str, cluster_id: str = "K") -> Observed:
    return Observed(alias, cluster_id, frozenset({address, f"{alias}:1"}), topics, differs)


A = cluster("a", "x:9", {"orders": ONE, "only-here": OTHER})


@pytest.mark.proves("mirror plan", "never-silent")
@pytest.mark.parametrize(
    ("target", "severity", "why"),
    [
        (cluster("b", "x:9", {"orders": ONE}, cluster_id="L"), None, ""),
        (cluster("b", "x:9", {}), Severity.REFUSE, "both name x:9; check bootstrap.servers, and advertised.listeners"),
        (cluster("b", "x:9", {"orders": OTHER}, "a"), Severity.REFUSE, "both name x:9"),
        (cluster("b", "y:9", {"orders": ONE}), Severity.REFUSE, f"topic orders has the id {ONE} on both"),
        (cluster("b", "y:9", {"orders": ONE}), Severity.REFUSE, "alias in target.differs_from"),
        (cluster("b", "y:9", {"orders": ONE}, "a"), Severity.ADVISE, "differs_from says so"),
        (cluster("b", "y:9", {"orders": ONE}, "c"), Severity.REFUSE, "on both"),
        (cluster("b", "y:9", {"orders": OTHER, "only-here": OTHER}), Severity.ADVISE, "orders has another id on each"),
        (cluster("b", "y:9", {"orders": None}), Severity.ADVISE, "no topic id and no broker's address is the same"),
        (cluster("b", "y:9", {}), Severity.ADVISE, "share the cluster id K, and are two clusters"),
    ],
)
def test_clusters_that_share_an_id_are_distinguished(target: Observed, severity: Severity | None, why: str) -> None:
    found = sameness(A, target)
    assert (found and found.severity) is severity
    assert why in str(found or "")
    if target.differs_from != ("a",):
        return
    turned = sameness(target, A)
    assert (turned and turned.severity) is severity, "either side may say so"


def copied(topic: str, topic_id: UUID | None, cluster_id: str, *origins: str) -> FirstSeen:
    return FirstSeen(
        source_topic=topic, topic_id=topic_id, target_topic_id=None, cluster_id=cluster_id, origins=origins
    )


@pytest.mark.parametrize(
    ("copy", "target_topics", "is_loop"),
    [
        (copied("orders", ONE, "K", "K"), None, True),
        (copied("orders", ONE, "L", "L"), None, False),
        (copied("orders", ONE, "K", "K"), {ONE}, True),
        (copied("orders", ONE, "K", "K"), {OTHER}, False),
        (copied("orders", None, "K", "K"), {OTHER}, True),
        (copied("a.orders", OTHER, "K", "K", f"K/{ONE}"), {ONE}, True),
        (copied("a.orders", OTHER, "K", "K", f"K/{ONE}"), {THIRD}, False),
        (copied("a.orders", OTHER, "L", "L", "K", f"K/{ONE}"), {ONE}, True),
        (copied("a.orders", OTHER, "L", "L", "K", f"K/{ONE}"), {OTHER}, False),
        (copied("a.orders", OTHER, "L", "L", "K"), {OTHER}, True),
    ],
)
def test_where_an_id_is_shared_the_topic_shows_which_cluster_is_meant(
    copy: FirstSeen, target_topics: set[UUID] | None, is_loop: bool
) -> None:
    """`target_topics`: the ids of the target's topics, None where nobody else is known to have its cluster id."""
    ids = None if target_topics is None else frozenset(map(str, target_topics))
    history = History(origins={"copy": Origin("flow", copy.hops)}, target_id="K", target_topics=ids)
    assert ("copy" in history.loops) is is_loop
