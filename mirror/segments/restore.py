"""What a restore needs on the target: topics for the partitions found in files, their rules, and groups.

K1  nothing that is restored expires by itself: a topic that is missing is made so that it deletes nothing and takes
    every batch as it is (`KEEPING`), until somebody sets what it had
K2  a topic on the target that holds records is written to only where the flow's journal names it as the copy of that
    very topic, and no other flow's does (`topics/adoption.py`)
K3  a topic that is there and would delete what is restored, for its age or for its size, is refused before anything
    is written: a log's end never goes back, so records that expired once can never be put back at their offsets

The files stand in for a source cluster, so that a group is put where a running mirror would put it (`groups/sync.py`):
never behind the copy's end, never below its start, never back, never onto a group with members. Who does not go on
where it stood is found by asking the target afterwards.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from mirror import clock
from mirror.config import Settings
from mirror.groups.gap import FURTHER, UNFOLLOWED_SHARE, UNFOLLOWED_STREAMS, OffsetGap
from mirror.groups.side import Blocker
from mirror.groups.sync import Skip, sync_of
from mirror.journal.entries import same_id
from mirror.journal.journal import Journal
from mirror.journal.offset_maps import Indexes
from mirror.kafka.admin import Admin, Creation, TopicInfo
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.groups import Committed
from mirror.kafka.topic_configs import ConfigValue, plain_values
from mirror.names import first_of
from mirror.observability.status import PartitionStatus
from mirror.policy.remedies import Fix, delete_topic, set_configs
from mirror.policy.rules import NO_LIMIT, Finding, Rules, advised, refused
from mirror.policy.selection import TopicPair, select
from mirror.replication.assignment import Assignment
from mirror.segments.cluster_logs import GroupOffsets, KnownTopic
from mirror.segments.file_cluster import Bounds, FileCluster
from mirror.topics.adoption import CopyStanding, is_empty, standing_of
from mirror.topics.apply import NO_HISTORY, TopicPlan, broker_defaults
from mirror.topics.configs import any_time
from mirror.topics.fitting import fit_creations
from mirror.topics.history import History
from mirror.topics.naming import naming_findings, reserved_findings

# --- What a restore needs on the target -------------------------------------------------------------------------------

#: Of a topic that is made here, where the target has as many brokers.
_REPLICAS: Final = 3
#: What keeps each record that is restored, however old, large or often its key (K1).
UNLIMITED: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
KEEPING: Final[Mapping[str, str]] = {
    **UNLIMITED,
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": str(2**31 - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What files hold of a topic: its number of partitions, the oldest timestamp in ms since 1970 (None where records
    have none), and the bytes of its largest partition. `mixed`: words for folders of different topics by this name.
    `topic_id`: the topic's, None where its brokers had no ids. `known`: what the lost cluster's metadata log says of
    it.
    """

    partitions: int
    oldest_ms: int | None = None
    bytes: int = 0
    mixed: str = ""
    topic_id: UUID | None = None
    known: KnownTopic | None = None


def plan_restoration(
    target: Admin,
    topics: Mapping[str, Found],
    settings: Settings,
    history: History = NO_HISTORY,
    left: Mapping[str, Sequence[str]] = {},
    cluster_id: str | None = None,
) -> TopicPlan:
    """The plan for topics of which there are files, of a cluster of this id; `left`: why others were left out. Writes
    nothing; raises ClusterError when the target cannot be read.
    """
    selection = select({name: found.partitions for name, found in topics.items()}, settings.topics)
    wanted = {pair.target for pair in selection.pairs}
    existing = target.describe(wanted)
    configs = target.topic_configs(existing)
    defaults = broker_defaults(target)
    replicas = min(_REPLICAS, target.brokers())
    findings = [
        *(
            refused(
                name, "; ".join(left.get(name, ["there are no files of it in these folders"])), Fix.SELF_EXPLANATORY
            )
            for name in selection.missing
        ),
        *naming_findings(selection),
        *reserved_findings(wanted),
        *(
            refused(
                pair.target,
                f"different topics by one name: {mixed}; name the folders of one of them",
                Fix.SELF_EXPLANATORY,
            )
            for pair in selection.pairs
            if (mixed := topics[pair.source].mixed)
        ),
        *(
            _too_few(pair, len(found.partitions))
            for pair in selection.pairs
            if (found := existing.get(pair.target)) and len(found.partitions) < pair.partitions
        ),
    ]
    findings += [
        refused(
            pair.target,
            "is re-keyed by its rule, and files are copied as they are; leave the rule out, or the topic",
            Fix.SELF_EXPLANATORY,
        )
        for pair in selection.pairs
        if pair.rekeying is not None
    ]
    findings += _foreign(target, selection.pairs, topics, existing, history, cluster_id or "")
    if not selection.pairs and not selection.missing:
        findings.append(
            refused(
                "", "no topic in these folders matches topics.include and escapes topics.exclude", Fix.SELECT_TOPICS
            )
        )
    for pair in selection.pairs:
        if pair.target in configs:
            findings += _findings(pair.target, configs[pair.target], topics[pair.source], Endpoint.of(target.settings))
    fit = fit_creations(
        target,
        [
            Creation(
                topic=pair.target,
                partitions=pair.partitions,
                replication_factor=replicas,
                configs={**KEEPING, **any_time(defaults)},
            )
            for pair in selection.pairs
            if pair.target not in existing
        ],
        settings.topics.replication_factor,
    )
    return TopicPlan(
        pairs=tuple(selection.pairs),
        creations=fit.made,
        findings=(*findings, *fit.findings),
        unfollowed=fit.unfollowed,
        target_topics=existing,
        target_configs=configs,
    )


def as_made(target: Admin, creation: Creation, found: Iterable[str]) -> dict[str, ConfigValue]:
    """The settings of a topic that is to be made, as far as they are known before: where the target has no topic that
    shows which it knows, it is taken to know those that were `found`. Raises ClusterError.
    """
    others = target.topic_configs(target.topic_names()[:1])
    shown = {name: one.value for configs in others.values() for name, one in configs.items()}
    known = (shown or dict.fromkeys(found, "")) | broker_defaults(target)
    own = {name: ConfigValue(value=value, is_default=False) for name, value in creation.configs.items()}
    return {name: ConfigValue(value=value, is_default=True) for name, value in known.items()} | own


def _foreign(
    target: Admin,
    pairs: Sequence[TopicPair],
    topics: Mapping[str, Found],
    existing: Mapping[str, TopicInfo],
    history: History,
    cluster_id: str,
) -> Iterator[Finding]:
    """The refusals of topics on the target that are not this flow's to write to (K2)."""
    spans = target.spans(existing.values())
    for pair in pairs:
        if (theirs := existing.get(pair.target)) is None:
            continue
        ours = TopicInfo(name=pair.source, topic_id=topics[pair.source].topic_id, partitions=())
        seen, claim = history.seen.get(pair.target), history.claims.get(pair.target)
        verdict = standing_of(pair, ours, theirs, seen, claim, cluster_id, has_records=not is_empty(theirs, spans))
        match verdict.standing:
            case CopyStanding.CLAIMED:
                text = f"{verdict.reason}: end that flow with `mirror failover`"
            case CopyStanding.FOREIGN | CopyStanding.FROZEN:
                begin = delete_topic(Endpoint.of(target.settings), pair.target)
                text = (
                    f"holds records, and {verdict.reason}: nothing is written to it. Delete it where it may go: {begin}"
                )
            case _:
                continue
        yield refused(pair.target, f"{text}; or give the copy another name (topics.naming)", Fix.SELF_EXPLANATORY)


def _too_few(pair: TopicPair, partitions: int) -> Finding:
    text = f"{partitions:,} of the {pair.partitions:,} partitions in the files are on the target: add the others there"
    return refused(pair.target, text, Fix.SELF_EXPLANATORY)


def _findings(topic: str, configs: Mapping[str, ConfigValue], found: Found, target: Endpoint) -> Iterator[Finding]:
    """What an existing topic would do to the records of files (K3)."""
    plain = plain_values(configs)
    if limit := deletes_by_age(plain, found.oldest_ms):
        yield refused(topic, f"{limit}; keep them first: {set_configs(target, topic, UNLIMITED)}", Fix.SELF_EXPLANATORY)
    kept = int(plain.get("retention.bytes", -1))
    if _deletes(plain) and 0 <= kept < found.bytes:
        text = f"keeps {kept:,} bytes of a partition, and the files have {found.bytes:,}: the oldest would be deleted"
        yield refused(topic, f"{text}; keep them first: {set_configs(target, topic, UNLIMITED)}", Fix.SELF_EXPLANATORY)
    rules = Rules.from_configs(plain)
    age = _age_ms(found.oldest_ms)
    if not rules.target_append_time and age > rules.timestamp_before_max_ms:
        text = f"refuses records that are older than {rules.timestamp_before_max_ms:,} ms, and the files have such"
        command = set_configs(target, topic, {"message.timestamp.before.max.ms": str(NO_LIMIT)})
        yield refused(topic, f"{text}; take them: {command}", Fix.SELF_EXPLANATORY)
    if rules.compacted:
        text = "is compacted: of each key it keeps the newest record alone, whatever its source did"
        yield advised(topic, text)
    if rules.target_append_time:
        text = "stamps records itself, so their times are lost; message.timestamp.type=CreateTime keeps them"
        yield advised(topic, text)


def deletes_by_age(configs: Mapping[str, str], oldest_ms: int | None) -> str:
    """Why a topic with these configs would delete a record of that time at once, or the empty string."""
    kept = int(configs.get("retention.ms", -1))
    stamps = configs.get("message.timestamp.type") == "LogAppendTime"
    if not _deletes(configs) or kept < 0 or stamps or _age_ms(oldest_ms) <= kept:
        return ""
    return (
        f"deletes records after retention.ms={kept}, and the files have some that are {_days(_age_ms(oldest_ms))} old"
    )


def _deletes(configs: Mapping[str, str]) -> bool:
    return "delete" in configs.get("cleanup.policy", "delete")


def _age_ms(timestamp: int | None) -> int:
    return 0 if timestamp is None else max(0, clock.now_ms() - timestamp)


def _days(milliseconds: int) -> str:
    return f"{milliseconds / 86_400_000:.1f} days"


# --- Groups of a lost cluster on the target ---------------------------------------------------------------------------

#: A cluster that has never had a group makes its topic of offsets first, and coordinators move to it.
_WITHIN_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPartition:
    """A partition that was restored, or would be.

    assignment: where it is from and where it goes, with its topic's id.
    bounds: what its files hold.
    figures: what its copy came to; None where nothing is written.
    """

    assignment: Assignment
    bounds: Bounds
    figures: PartitionStatus | None = None


class Beyond(NamedTuple):
    """A group had read further than the files go: it stood at `offset`, and goes on at `end`."""

    group: str
    at: TopicPartition
    offset: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsReport:
    """What becomes of the groups.

    offsets: by group, what it had committed for partitions that are restored, by source partition.
    beyond: who had read what is not in the files.
    undecided: by group, partitions for which a transaction without an end had offsets: what was there before counts.
    former: offsets that were committed for former topics of the same names, which count for nothing.
    gaps: who does not go on at the target where it stood, and why.
    blockers: what kept groups from being put anywhere.
    skips: who passes over records that the target has deleted.
    notes: what of the files could not be read.
    is_stored: the files have all that groups had committed, for all that is known.
    """

    offsets: Mapping[str, Mapping[TopicPartition, Committed]]
    beyond: tuple[Beyond, ...] = ()
    undecided: Mapping[str, Sequence[TopicPartition]]
    former: int = 0
    gaps: tuple[OffsetGap, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    skips: tuple[Skip, ...] = ()
    notes: tuple[str, ...] = ()
    is_stored: bool = True

    @property
    def is_whole(self) -> bool:
        """Every group goes on where it stood, and the files tell that, or further, where it has read on at the target
        since. What one had read was committed: where it is not in the files, they lack it, also where a checkpoint of
        theirs is older.
        """
        known = self.is_stored and not (self.blockers or self.beyond or self.undecided)
        return known and all(gap.cause == FURTHER for gap in self.gaps)


def found_groups(
    stored: GroupOffsets, include: Sequence[re.Pattern[str]], partitions: Sequence[RestoredPartition]
) -> GroupsReport:
    """What the files say of the groups that `include` matches, before anything is committed (pure)."""
    by_source = {one.assignment.source: one for one in partitions}
    offsets: dict[str, dict[TopicPartition, Committed]] = {}
    beyond: list[Beyond] = []
    former = 0
    for group, of in sorted(stored.groups.items()):
        if not any(pattern.fullmatch(group) for pattern in include):
            continue
        for at, commit in sorted(of.items()):
            if (one := by_source.get(at)) is None:
                continue
            known = one.assignment.topic_id
            if commit.topic_id is not None and known is not None and commit.topic_id != known:
                former += 1
                continue
            offsets.setdefault(group, {})[at] = commit.committed
            if commit.committed.offset > one.bounds.stable:
                beyond.append(Beyond(group, at, commit.committed.offset, one.bounds.stable))
    undecided = {
        group: here
        for group, of in sorted(stored.undecided.items())
        if (here := sorted(of & by_source.keys())) and any(pattern.fullmatch(group) for pattern in include)
    }
    streams = {group: offsets.pop(group) for group in sorted(offsets.keys() & stored.streams)}
    unfollowed = [
        Blocker(
            UNFOLLOWED_STREAMS, group, detail=f"it read {first_of([f'{at} at offset {of[at].offset}' for at in of])}"
        )
        for group, of in streams.items()
    ]
    for group, topics in sorted(stored.share.items()):
        shared = [str(at) for at, one in by_source.items() if _reads(topics, at, one.assignment.topic_id)]
        if shared and any(pattern.fullmatch(group) for pattern in include):
            unfollowed.append(Blocker(UNFOLLOWED_SHARE, group, detail=f"it read {first_of(shared)}"))
    return GroupsReport(
        offsets=offsets,
        beyond=tuple(one for one in beyond if one.group not in streams),
        undecided=undecided,
        former=former,
        blockers=tuple(unfollowed),
        notes=tuple(stored.notes),
        is_stored=stored.is_whole,
    )


def _reads(topics: Mapping[str, UUID], at: TopicPartition, topic_id: UUID | None) -> bool:
    """Whether a partition is of one of these topics, and not of a former one by the name."""
    return at.topic in topics and same_id(topic_id, topics[at.topic])


async def restore_groups(
    flow: str,
    alias: str,
    target: Endpoint,
    include: Sequence[re.Pattern[str]],
    report: GroupsReport,
    partitions: Sequence[RestoredPartition],
) -> GroupsReport:
    """Commit what was found, and ask the target what came of it. Raises ClusterError where it cannot be reached."""
    copied = [one for one in partitions if one.figures is not None]
    bounds = {one.assignment.source: one.bounds for one in copied}
    figures = {one.assignment.source: one.figures for one in copied if one.figures is not None}
    async with FileCluster(alias, bounds, report.offsets) as source, Cluster(target) as cluster:
        journal = Journal(cluster, flow)
        await cluster.refresh({one.assignment.target.topic for one in copied} | {journal.partition.topic})
        assignments = [one.assignment for one in copied]
        translates = any(one.rules.translates for one in assignments)
        indexes = Indexes((await journal.read())[0] if translates else ())
        sync = sync_of(source, cluster, include, assignments, (figures,), indexes)
        skips: list[Skip] = []
        deadline, may_go = clock.monotonic() + _WITHIN_SECONDS, sync.detector.since()
        while True:
            result = await sync.sync_once(may_go=may_go)
            skips += result.skips
            if result.is_complete or clock.monotonic() > deadline:
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        # so far the target has all that the files do: nothing is left to read behind its last record
        holds = {at: one.next_offset for at, one in figures.items()}
        gaps, blockers = await sync.gaps({}, holds, {})
    blockers = tuple(dict.fromkeys((*report.blockers, *result.blockers, *blockers)))
    return replace(report, gaps=tuple(gaps), blockers=blockers, skips=tuple(skips))
