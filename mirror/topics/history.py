"""What journals say before a plan is made: this flow's own, those of flows that end where this one begins, and those
of other flows into the same target.

Every flow keeps its journal on its target. So a journal on our source is that of a flow towards our source. It names
the topics there that are copies, with the clusters that their records came through: to mirror one to a cluster among
these would be a loop. A journal of another flow on our target names the topics there that this flow writes to. A flow
that was ended by `mirror failover` has let go of its topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from mirror.config import Settings
from mirror.errors import ClusterError, MalformedBatch, PreflightError
from mirror.journal.entries import ACCEPTED, COPIES, MAKING, REKEYED, FirstSeen, losses_in, mirrored_cluster, same_id
from mirror.journal.journal import Change, Journal, JournalPlace, journal_topic, newest
from mirror.journal.ownership import FailedOver
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint, partition_counts
from mirror.names import first_of
from mirror.observability import logs
from mirror.observability.status import has_reports
from mirror.policy.selection import progress_topic, selects
from mirror.replication.topic_identity import what_became_of

_log = logs.get("mirror.failover")

#: Such a journal as anybody's may be, and nobody's is: whoever may not describe it does not see others either.
_ANY: Final = journal_topic("any-other-flow")
#: Journals that are read at a time.
_AT_ONCE: Final = 16
#: What a topic of the source, and a copy, need that are hidden.
GRANT_READ: Final = "grant READ and DESCRIBE_CONFIGS on it"
GRANT_WRITE: Final = "grant READ, WRITE and DESCRIBE_CONFIGS on it"
#: What journals of other flows need.
GRANT_JOURNALS: Final = "grant READ on topics that begin with mirror. there"
_JOURNAL: Final = re.compile(re.escape(journal_topic("\0")).replace("\0", "(.+)"))


@dataclass(frozen=True, slots=True)
class Own:
    """The flow's own journal by the newest value of every key, empty where it never ran, and its target's id; and up to
    where it was read, None where there is none.
    """

    newest: Mapping[bytes, bytes]
    cluster_id: str | None
    place: JournalPlace | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Of a copy on our source: the flow that makes it, and the ids of the clusters that its records came through, each
    also as `cluster id/topic id` with the topic that they were read from.
    """

    flow: str
    clusters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """Of a topic on our target: the other flow that writes to it, and the topic's id; None where that is not known.
    `is_letters`: as a dead-letter topic, which others may have as theirs, too.
    """

    flow: str
    topic_id: UUID | None
    is_letters: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """`seen`: by target topic, as what its source was first seen; `rekeyed`: the same of topics that are re-keyed,
    as it was when the flow started. `origins`: by source topic, where a copy comes from. `claims`: by target topic,
    which other flow writes to it. `target_id`: the id of the target's cluster, None where it is not known. `unread`:
    journals that cannot be read, with what is not known therefore; `silent`: what of that is about journals that are
    there. `has_run`: a mirror of the flow has reported before. `target_topics`: the ids of the target's topics where
    another cluster has its cluster id; else None.
    """

    seen: Mapping[str, FirstSeen] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    target_id: str | None = None
    unread: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    has_run: bool = False
    rekeyed: Mapping[str, FirstSeen] = field(default_factory=dict)
    target_topics: frozenset[str] | None = None

    @property
    def has_begun(self) -> bool:
        """The flow had its first start: `topics.start` is decided, whatever appears since. An adopted copy is none."""
        return self.has_run or any(not seen.compared for seen in self.seen.values())

    @property
    def loops(self) -> Mapping[str, Origin]:
        """The source topics whose records came through the cluster that they would go to."""
        return {topic: origin for topic, origin in self.origins.items() if self._came_through(origin)}

    def _came_through(self, origin: Origin) -> bool:
        if self.target_id not in origin.clusters or self.target_topics is None:
            return self.target_id in origin.clusters
        hops = {cluster.partition("/")[2] for cluster in origin.clusters if cluster.startswith(f"{self.target_id}/")}
        return not hops or not hops.isdisjoint(self.target_topics)  # unknown hops may be the target's

    def chain(self, topic: str) -> tuple[str, ...]:
        """The ids of the clusters that a source topic's records came through before they were on the source."""
        return self.origins[topic].clusters if topic in self.origins else ()

    def chains(self, topics: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the chain of each of these topics."""
        return {topic: self.chain(topic) for topic in topics}


NO_HISTORY: Final = History()


def gone_topics(
    settings: Settings, source: Admin, target: Admin, seen: Mapping[str, FirstSeen], source_topics: Collection[str]
) -> dict[str, str]:
    """The source's topics of the flow that are there no more, by the name of the copy that the flow filled, where that
    is left. Raises ClusterError.
    """
    left = _unlisted(settings, source, seen, source_topics)
    hidden = source.denied({first_seen.source_topic for first_seen in left.values()})
    there = target.describe(left) if left else {}
    return {
        name: first_seen.source_topic
        for name, first_seen in sorted(left.items())
        if first_seen.source_topic not in hidden
        and name in there
        and first_seen.target_topic_id == there[name].topic_id
    }


def hidden_topics(
    settings: Settings,
    source: Admin,
    seen: Mapping[str, FirstSeen],
    source_topics: Collection[str],
    target_topics: Collection[str],
) -> dict[str, str]:
    """The flow's topics that the source does not let it see any more, by the name of the copy: brokers leave them out
    where they list all, as if they were deleted. Those that are re-keyed are known by the topics that hold where the
    queries stand. Raises ClusterError.
    """
    topics, begin = settings.topics, progress_topic(settings.flow, "")
    left = {
        name: first_seen.source_topic for name, first_seen in _unlisted(settings, source, seen, source_topics).items()
    }
    for copy in (target_topic.removeprefix(begin) for target_topic in target_topics if target_topic.startswith(begin)):
        topic = topics.naming.source_of(copy)
        if topic not in source_topics and selects(topic, topics) and topics.naming.target_of(topic) == copy:
            left[copy] = topic
    hidden = source.denied({*left.values()})
    return {name: topic for name, topic in sorted(left.items()) if topic in hidden}


def copies_of_others(settings: Settings, seen: Mapping[str, FirstSeen], source_id: str) -> dict[str, str]:
    """The flow's copies that come from other clusters than the one that the source is now, and those clusters' ids."""
    return {
        name: first_seen.cluster_id
        for name, first_seen in seen.items()
        if first_seen.cluster_id
        and not same_id(first_seen.cluster_id, source_id or None)
        and _is_copy(settings, name, first_seen)
    }


def _is_copy(settings: Settings, name: str, seen: FirstSeen) -> bool:
    """Whether the flow still makes this copy of that source topic."""
    topics = settings.topics
    is_selected = selects(seen.source_topic, topics) and topics.naming.target_of(seen.source_topic) == name
    return is_selected and not seen.deleted_ms


def _unlisted(
    settings: Settings, source: Admin, seen: Mapping[str, FirstSeen], source_topics: Collection[str]
) -> dict[str, FirstSeen]:
    """What the flow mirrored of this source, and the source does not list."""
    left = {
        name: first_seen
        for name, first_seen in seen.items()
        if first_seen.source_topic not in source_topics and _is_copy(settings, name, first_seen)
    }
    source_id = source.cluster_id() if left else ""
    return {name: first_seen for name, first_seen in left.items() if first_seen.cluster_id == source_id}


async def read_own(settings: Settings) -> Own:
    """Read it whole, which is once at a start. Raises ClusterError, MalformedBatch."""
    async with Cluster(Endpoint.of(settings.target)) as target:
        journal = Journal(target, settings.flow)
        await target.refresh([journal.partition.topic])
        if journal.partition.topic not in target.topics:
            return Own({}, target.cluster_id)
        news = await journal.follow(None)
        return Own(newest(news.entries), target.cluster_id, news.place)


async def write_own(settings: Settings, changes: Iterable[Change]) -> None:
    """Append to it. Raises as `Journal.append` does."""
    async with Cluster(Endpoint.of(settings.target)) as target:
        journal = Journal(target, settings.flow)
        await target.refresh([journal.partition.topic])
        await journal.append_all(changes)


async def keeping_to_known(settings: Settings) -> Settings:
    """The same for the clusters that the flow's journal knows: an address that leads to another one by now is an error,
    where a topic of that one would look as if it was made anew. Raises as `read_own` does.
    """
    own = await read_own(settings)
    return settings.keeping_to(mirrored_cluster(own.newest), own.cluster_id)


async def read_history(
    settings: Settings, own: Own, source_topics: Collection[str] | None, target_topics: Collection[str] = ()
) -> History:
    """What `own` says, and the journals among the topics of both clusters. `source_topics`: None where the source is
    gone, and is not asked. Raises MalformedBatch for a journal.
    """
    unread: list[str] = []
    silent: list[str] = []
    where = settings.source.alias, settings.target.alias
    (towards, is_source_hidden, source_id), (beside, is_target_hidden, _) = await asyncio.gather(
        _standing(Endpoint.of(settings.source), None if source_topics is None else flows_of(source_topics)),
        _standing(Endpoint.of(settings.target), [flow for flow in flows_of(target_topics) if flow != settings.flow]),
    )
    for alias, is_hidden, unseen in (
        (where[0], is_source_hidden, "a loop"),
        (where[1], is_target_hidden, "a flow that writes to the same topics"),
    ):
        if is_hidden:
            unread.append(
                f"journals of other flows on cluster {alias} may be hidden, and {unseen} would not be seen:"
                f" {GRANT_JOURNALS}"
            )
    origins: dict[str, Origin] = {}
    claims: dict[str, Claim] = {}
    for flow, journal in towards.items():
        if journal is None:
            silent.append(f"{journal_topic(flow)} on cluster {where[0]} cannot be read, so a loop would not be seen")
            continue
        named = (MAKING.newest(journal), COPIES.newest(journal), REKEYED.newest(journal))
        for topic, seen in (item for found in named for item in found.items()):
            before = origins[topic].clusters if topic in origins else ()
            origins[topic] = Origin(flow, tuple(dict.fromkeys((*before, *seen.hops))))
    for flow, journal in beside.items():
        if journal is None:
            text = "cannot be read, so it is not known which topics that flow writes to"
            silent.append(f"{journal_topic(flow)} on cluster {where[1]} {text}")
            continue
        _add_claims(claims, flow, journal, target_topics)
    is_shared = source_id == own.cluster_id or settings.target.differs_from
    is_asked = is_shared and any(own.cluster_id in origin.clusters for origin in origins.values())
    return History(
        seen=COPIES.newest(own.newest),
        origins=origins,
        claims=claims,
        target_id=own.cluster_id,
        unread=(*unread, *silent),
        silent=tuple(silent),
        has_run=has_reports(own.newest),
        rekeyed=REKEYED.newest(own.newest),
        target_topics=await _topic_ids(Endpoint.of(settings.target), target_topics) if is_asked else None,
    )


async def _topic_ids(where: Endpoint, names: Collection[str]) -> frozenset[str]:
    async with Cluster(where) as cluster:
        await cluster.learn(names)
        return frozenset(str(cluster.topic_id(name)) for name in names)


def history_of(settings: Settings, own: Own, source: Admin, target: Admin) -> History:
    """Return what `own` and the journals of other flows say now. Raises ClusterError, MalformedBatch."""
    return asyncio.run(read_history(settings, own, source.topic_names(), target.topic_names()))


def read_others(settings: Settings, source: Admin, target: Admin) -> History:
    """Return what the journals of other flows say now, on both clusters. Raises ClusterError, MalformedBatch."""
    return history_of(settings, Own({}, target.cluster_id()), source, target)


async def check_flows_back(
    source: Cluster, target: Cluster, copies: Mapping[str, FirstSeen], timeout: float
) -> list[str]:
    """Return what flows back lost that nobody accepted; which journals do not say, is logged. `copies` are what the
    flow from `source` to `target` mirrored; one that was deleted since counts no more, since it is copied anew.

    Raises PreflightError for a flow back that was not failed over, which may lose more; ClusterError for the target.
    """
    journals, unread = dict[str, Mapping[bytes, bytes] | ClusterError](), list[str]()
    try:
        journals = await _journals(source, flows_of(await partition_counts(source, timeout)))
        if source.is_denied(_ANY):  # most often there is none
            unread.append(f"{source} may hide journals from the mirror: {GRANT_JOURNALS}")
    except (ClusterError, MalformedBatch) as problem:
        unread.append(str(problem))
    lost: list[str] = []
    for flow, journal in journals.items():
        if isinstance(journal, ClusterError):
            unread.append(f"{journal_topic(flow)} on {source} cannot be read: {journal}")
            continue
        for copy, seen in copies.items():
            if not _is_flow_back(copy, seen, COPIES.newest(journal).get(seen.source_topic)):
                continue
            if not isinstance(FailedOver.standing(journal), FailedOver):
                raise PreflightError(
                    f"{copy}: flow `{flow}` mirrors it back into {seen.source_topic} on {source}, and was not failed"
                    " over: it may lose records until then. Run `mirror failover` with its configuration first, and"
                    " then this again"
                )
            unaccepted = _unaccepted(journal, seen.source_topic)
            if unaccepted and not await what_became_of(target, copy, seen.target_topic_id):
                lost.append(f"flow `{flow}` lost records of {copy} ({first_of(unaccepted)})")
    if unread:
        reason = "nobody knows whether a flow back lost records, which `mirror verify` shows: "
        _log.warning("way_back_unknown", reason=reason + "; ".join(sorted(unread)))
    return lost


def _is_flow_back(copy: str, seen: FirstSeen, back: FirstSeen | None) -> bool:
    """Return True if `back`, of another flow's journal, mirrors a copy into the source topic of that copy."""
    return (
        back is not None
        and back.source_topic == copy
        and same_id(back.topic_id, seen.target_topic_id)
        and same_id(back.target_topic_id, seen.topic_id)
    )


def _unaccepted(journal: Mapping[bytes, bytes], target_topic: str) -> list[str]:
    """Return the losses of a copy that a policy left out, or that are only possible, in words."""
    accepted = ACCEPTED.newest(journal)
    return [
        f"partition {target.partition} from offset {loss.first}: {loss.reason}"
        for target, losses in sorted(losses_in(journal).items())
        if target.topic == target_topic
        for loss in losses
        if target not in accepted or not accepted[target].covers(loss, loss.topic_id)
    ]


def _add_claims(
    claims: dict[str, Claim], flow: str, journal: Mapping[bytes, bytes], target_topics: Collection[str]
) -> None:
    """Add what a flow claims; a claim as a dead-letter topic, which bars fewer, stands back behind any other."""
    begin = progress_topic(flow, "")
    rekeyed = {
        target_topic.removeprefix(begin): Claim(flow, None)
        for target_topic in target_topics
        if target_topic.startswith(begin)
    }
    seen = (*REKEYED.newest(journal).items(), *COPIES.newest(journal).items())
    found = {
        topic: Claim(flow, first_seen.target_topic_id, first_seen.is_letters) for topic, first_seen in seen
    } | rekeyed
    claims |= {topic: claim for topic, claim in found.items() if not (claim.is_letters and topic in claims)}


def flows_of(topics: Iterable[str]) -> list[str]:
    """The flows whose journals are among the topics of a cluster."""
    return sorted(found.group(1) for found in map(_JOURNAL.fullmatch, topics) if found)


async def _standing(
    where: Endpoint, flows: Sequence[str] | None
) -> tuple[dict[str, Mapping[bytes, bytes] | None], bool, str | None]:
    """The journals of flows that were not failed over, None for one that cannot be read; whether there may be others,
    since the cluster does not list topics by such names; and the cluster's id. Nobody is asked for None.
    """
    if flows is None:
        return {}, False, None
    async with Cluster(where) as cluster:
        found = dict[str, Mapping[bytes, bytes] | None]()
        for flow, journal in (await _journals(cluster, flows)).items():
            if isinstance(journal, ClusterError):
                found[flow] = None
            elif not isinstance(FailedOver.standing(journal), FailedOver):
                found[flow] = journal  # one whose failover cannot be read may run: to go on is worse
        return found, cluster.is_denied(_ANY), cluster.cluster_id


async def _journals(cluster: Cluster, flows: Sequence[str]) -> dict[str, Mapping[bytes, bytes] | ClusterError]:
    """Return the journals of flows by the newest value of every key, or why one cannot be read. Raises ClusterError,
    MalformedBatch.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def read(flow: str) -> Mapping[bytes, bytes] | ClusterError:
        async with turns:
            try:
                return newest((await Journal(cluster, flow).read())[0])
            except ClusterError as problem:
                with contextlib.suppress(ClusterError):
                    if await cluster.describe(journal_topic(flow)) is None:
                        return {}  # it was deleted since it was listed
                return problem

    await cluster.learn([_ANY, *map(journal_topic, flows)])
    found = [flow for flow in flows if journal_topic(flow) in cluster.topics or cluster.is_denied(journal_topic(flow))]
    return dict(zip(found, await asyncio.gather(*map(read, found)), strict=True))
