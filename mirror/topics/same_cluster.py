"""Whether the source and the target are one cluster, and refusals of flows that would copy in a circle.

Clusters with different ids are two. Equal ids prove nothing, since images and charts ship one that everybody who keeps
it shares. Then brokers' addresses and topic ids decide (`sameness`, pure).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from mirror.config import Settings
from mirror.errors import PreflightError
from mirror.kafka.admin import Admin, TopicInfo
from mirror.names import first_of
from mirror.policy.remedies import Fix
from mirror.policy.rules import Finding, Severity, advised, refused
from mirror.policy.selection import Selection
from mirror.topics.history import History


@dataclass(frozen=True, slots=True)
class Observed:
    """What a cluster shows of itself to somebody who asks for its metadata."""

    alias: str
    cluster_id: str
    #: Each broker's host:port.
    addresses: frozenset[str]
    #: Topic ids by name; None where the cluster has none.
    topic_ids: Mapping[str, UUID | None]
    #: Aliases of clusters that a person says are others, whatever their ids.
    differs_from: tuple[str, ...] = ()


def sameness(source: Observed, target: Observed) -> Finding | None:
    """Return the refusal of one cluster as both ends, or advice on two that share an id; None where the ids differ.

    | cluster ids | brokers' addresses | a person says otherwise | topic ids | so |
    |---|---|---|---|---|
    | differ | | | | two clusters |
    | equal | one in common | | | refused: this host reaches one broker by it |
    | equal | none in common | yes | | two clusters |
    | equal | none in common | no | a name with two ids | two clusters |
    | equal | none in common | no | an id in common | refused: one cluster, or a clone, which a person must say |
    | equal | none in common | no | neither | two clusters, as far as can be seen |
    """
    if source.cluster_id != target.cluster_id:
        return None
    if common := sorted(source.addresses & target.addresses):
        what = f"source and target are the same cluster, or advertise the same broker: both name {first_of(common)}"
        return refused("", what, Fix.OTHER_ADDRESS)
    named = target.alias in source.differs_from or source.alias in target.differs_from
    both = {
        name: (source.topic_ids[name], target.topic_ids[name]) for name in source.topic_ids.keys() & target.topic_ids
    }
    unlike = sorted(name for name, (left, right) in both.items() if left and right and left != right)
    alike = sorted(name for name, (left, right) in both.items() if left and left == right)
    if alike and not unlike and not named:
        what = f"source and target are the same cluster: topic {alike[0]} has the id {both[alike[0]][0]} on both"
        return refused("", what, Fix.OTHER_CLUSTER)
    why = "differs_from says so" if named else "no topic id and no broker's address is the same"
    why = f"topic {unlike[0]} has another id on each" if unlike else why
    text = f"source and target share the cluster id {source.cluster_id}, and are two clusters: {why}"
    return advised("", text)


def same_cluster(
    source: Admin, target: Admin, source_topics: Mapping[str, TopicInfo], target_topics: Mapping[str, TopicInfo]
) -> Finding | None:
    """Ask both clusters, which have these topics, and decide (`sameness`). Raises ClusterError."""
    if source.cluster_id() != target.cluster_id():
        return None
    return sameness(_observed(source, source_topics), _observed(target, target_topics))


def _observed(cluster: Admin, topics: Mapping[str, TopicInfo]) -> Observed:
    ids = {name: info.topic_id for name, info in topics.items()}
    settings = cluster.settings
    addresses = frozenset(cluster.addresses().split(","))
    return Observed(settings.alias, cluster.cluster_id(), addresses, ids, settings.differs_from or ())


def refuse_same(source: Admin, target: Admin) -> None:
    """`PreflightError` where both are one cluster: its topics are no copies of themselves."""
    found = same_cluster(source, target, source.topics(), target.topics())
    if found is not None and found.severity is Severity.REFUSE:
        raise PreflightError(str(found))


def loop_finding(source: str, target_alias: str, history: History) -> Finding | None:
    """The refusal of a source topic whose records came through the target, if they did."""
    if (origin := history.loops.get(source)) is None:
        return None
    others = [cluster for cluster in origin.clusters if cluster != history.target_id and "/" not in cluster]
    by_way = f" by way of {first_of(others)}" if others else ""
    return refused(
        source,
        f"comes from cluster {target_alias}{by_way}: flow {origin.flow} mirrors it, and to mirror it back would be a"
        " loop",
        Fix.END_LOOP,
    )


def circle_findings(selection: Selection, settings: Settings, history: History) -> Iterator[Finding]:
    """Refuse topics whose records came through the target, and say which journals may hide such."""
    for pair in selection.pairs:
        if (finding := loop_finding(pair.source, settings.target.alias, history)) is not None:
            yield finding
    for text in history.unread:
        yield advised("", text)
