"""What a restore needs on the target: topics for the partitions found in files, their rules, and groups.

- Nothing that is restored expires by itself: a topic that is missing is made so that it deletes nothing and takes every
  batch as it is (`KEEPING`), until somebody sets what it had.
- A topic on the target that holds records is written to only where the flow's journal names it as the copy of that very
  topic, and no other flow's does (`topics/adoption.py`).
- A topic that is there and would delete what is restored, for its age or for its size, is refused before anything is
  written: a log's end never goes back, so records that expired once can never be put back at their offsets.

The files stand in for a source cluster, so that a group is put where a running mirror would put it (`groups/sync.py`):
never behind the copy's end, never below its start, never back, never onto a group with members. Who does not go on
where it stood is found by asking the target afterwards.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from mirror import clock
from mirror.config import Settings
from mirror.groups.gap import FURTHER, UNFOLLOWED_STREAMS, OffsetGap
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
from mirror.segments.file_cluster import FileCluster
from mirror.segments.replica import Replica
from mirror.topics.adoption import CopyStanding, is_empty, standing_of
from mirror.topics.configs import any_time
from mirror.topics.fitting import broker_defaults, fit_creations
from mirror.topics.history import NO_HISTORY, History
from mirror.topics.naming import naming_findings, reserved_findings
from mirror.topics.reconcile import TopicPlan

# --- What a restore needs on the target -------------------------------------------------------------------------------

_NO_FILES: Final = "there are no files of it in these folders"
#: Of a topic that is made here, where the target has as many brokers.
_REPLICAS: Final = 3
#: What keeps each record that is restored, however old, large or often its key.
UNLIMITED: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
KEEPING: Final[Mapping[str, str]] = {
    **UNLIMITED,
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": str(2**31 - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """Says what files hold of a topic."""

    partitions: int
    #: The oldest timestamp, in ms since 1970; None if records have none.
    oldest_ms: int | None = None
    #: Of the largest partition.
    bytes: int = 0
    #: Folders of different topics by this name, in words.
    mixed: str = ""
    #: None if the topic's brokers had no ids.
    topic_id: UUID | None = None
    #: What the lost cluster's metadata log says of the topic.
    known: KnownTopic | None = None


def plan_restoration(
    target: Admin,
    topics: Mapping[str, FoundTopic],
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
    findings = [
        *(_refused(name, "; ".join(left.get(name, [_NO_FILES]))) for name in selection.missing),
        *naming_findings(selection),
        *reserved_findings(wanted),
    ]
    for pair in selection.pairs:
        if mixed := topics[pair.source].mixed:
            text = f"different topics by one name: {mixed}; name the folders of one of them"
            findings.append(_refused(pair.target, text))
        if (there := existing.get(pair.target)) and len(there.partitions) < pair.partitions:
            text = f"{len(there.partitions):,} of the {pair.partitions:,} partitions in the files are on the target"
            findings.append(_refused(pair.target, f"{text}: add the others there"))
        if pair.rekeying is not None:
            text = "is re-keyed by its rule, and files are copied as they are; leave the rule out, or the topic"
            findings.append(_refused(pair.target, text))
    findings += _foreign(target, selection.pairs, topics, existing, history, cluster_id or "")
    if not selection.pairs and not selection.missing:
        text = "no topic in these folders matches topics.include and escapes topics.exclude"
        findings.append(refused("", text, Fix.SELECT_TOPICS))
    for pair in selection.pairs:
        if pair.target in configs:
            findings += _findings(pair.target, configs[pair.target], topics[pair.source], Endpoint.of(target.settings))
    creations = [
        Creation(
            topic=pair.target,
            partitions=pair.partitions,
            replication_factor=min(_REPLICAS, target.brokers()),
            configs={**KEEPING, **any_time(defaults)},
        )
        for pair in selection.pairs
        if pair.target not in existing
    ]
    fit = fit_creations(target, creations, settings.topics.replication_factor)
    return TopicPlan(
        pairs=tuple(selection.pairs),
        creations=fit.made,
        findings=(*findings, *fit.findings),
        unfollowed=fit.unfollowed,
        target_topics=existing,
        target_configs=configs,
    )


def _refused(topic: str, text: str) -> Finding:
    return refused(topic, text, Fix.SELF_EXPLANATORY)


def as_made(target: Admin, creation: Creation, found: Iterable[str]) -> dict[str, ConfigValue]:
    """The settings of a topic that is to be made, as far as they are known before: where the target has no topic that
    shows which it knows, it is taken to know those that were `found`. Raises ClusterError.
    """
    others = target.topic_configs(target.topic_names()[:1])
    shown = {name: config.value for configs in others.values() for name, config in configs.items()}
    known = (shown or dict.fromkeys(found, "")) | broker_defaults(target)
    own = {name: ConfigValue(value=value, is_default=False) for name, value in creation.configs.items()}
    return {name: ConfigValue(value=value, is_default=True) for name, value in known.items()} | own


def _foreign(
    target: Admin,
    pairs: Sequence[TopicPair],
    topics: Mapping[str, FoundTopic],
    existing: Mapping[str, TopicInfo],
    history: History,
    cluster_id: str,
) -> Iterator[Finding]:
    """Yield the refusals of topics on the target that are not this flow's to write to."""
    spans = target.spans(existing.values())
    for pair in pairs:
        if (theirs := existing.get(pair.target)) is None:
            continue
        info = TopicInfo(name=pair.source, topic_id=topics[pair.source].topic_id, partitions=())
        seen, claim = history.seen.get(pair.target), history.claims.get(pair.target)
        verdict = standing_of(pair, info, theirs, seen, claim, cluster_id, has_records=not is_empty(theirs, spans))
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
        yield _refused(pair.target, f"{text}; or give the copy another name (topics.naming)")


def _findings(topic: str, configs: Mapping[str, ConfigValue], found: FoundTopic, target: Endpoint) -> Iterator[Finding]:
    """Yield what an existing topic would do to the records of files."""
    plain = plain_values(configs)
    if limit := deletes_by_age(plain, found.oldest_ms):
        yield _refused(topic, f"{limit}; keep them first: {set_configs(target, topic, UNLIMITED)}")
    kept = int(plain.get("retention.bytes", -1))
    if _deletes(plain) and 0 <= kept < found.bytes:
        text = f"keeps {kept:,} bytes of a partition, and the files have {found.bytes:,}: the oldest would be deleted"
        yield _refused(topic, f"{text}; keep them first: {set_configs(target, topic, UNLIMITED)}")
    rules = Rules.from_configs(plain)
    age = _age_ms(found.oldest_ms)
    if not rules.target_append_time and age > rules.timestamp_before_max_ms:
        text = f"refuses records that are older than {rules.timestamp_before_max_ms:,} ms, and the files have such"
        command = set_configs(target, topic, {"message.timestamp.before.max.ms": str(NO_LIMIT)})
        yield _refused(topic, f"{text}; take them: {command}")
    if rules.compacted:
        yield advised(topic, "is compacted: of each key it keeps the newest record alone, whatever its source did")
    if rules.target_append_time:
        text = "stamps records itself, so their times are lost; message.timestamp.type=CreateTime keeps them"
        yield advised(topic, text)


def deletes_by_age(configs: Mapping[str, str], oldest_ms: int | None) -> str:
    """Why a topic with these configs would delete a record of that time at once, or the empty string."""
    kept = int(configs.get("retention.ms", -1))
    stamps = configs.get("message.timestamp.type") == "LogAppendTime"
    if not _deletes(configs) or kept < 0 or stamps or _age_ms(oldest_ms) <= kept:
        return ""
    days = f"{_age_ms(oldest_ms) / 86_400_000:.1f} days"
    return f"deletes records after retention.ms={kept}, and the files have some that are {days} old"


def _deletes(configs: Mapping[str, str]) -> bool:
    return "delete" in configs.get("cleanup.policy", "delete")


def _age_ms(timestamp: int | None) -> int:
    return 0 if timestamp is None else max(0, clock.now_ms() - timestamp)


# --- Groups of a lost cluster on the target ---------------------------------------------------------------------------

#: A cluster that has never had a group makes its topic of offsets first, and coordinators move to it.
_WITHIN_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Says what became of a partition."""

    assignment: Assignment
    #: The first offset that the replica holds.
    start: int = 0
    #: Before this offset all is committed.
    stable: int = 0
    #: Behind the last offset that the replica holds.
    end: int = 0
    #: The folder of the replica that was taken; empty if none was.
    folders: tuple[str, ...] = ()
    #: What is to be said of the replica and of the copy.
    notes: tuple[str, ...] = ()
    #: Something is missing, or may be.
    at_risk: bool = False
    #: Offsets at the start of the copy that the target has deleted by the time the copy ended.
    expired: int = 0
    #: What the copy came to; None if there was nothing to begin with.
    figures: PartitionStatus | None = None
    #: Why it was not copied, or not all of it.
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """All that is readable as committed is on the target, and nothing of it may be missing."""
        return self.is_copied and not self.at_risk

    @property
    def is_sound(self) -> bool:
        """Nothing of the files is missing or damaged, as far as they say themselves."""
        return not self.at_risk and not self.problem

    @property
    def is_copied(self) -> bool:
        """All that is readable as committed was appended to the target."""
        return self.figures is not None and not self.figures.state.is_stop and self.figures.next_offset >= self.stable


class Beyond(NamedTuple):
    """A group had read further than the files go."""

    group: str
    at: TopicPartition
    offset: int  # where it stood
    end: int  # where it goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsReport:
    """Says what becomes of the groups."""

    #: By group, what it had committed for partitions that are restored, by source partition.
    offsets: Mapping[str, Mapping[TopicPartition, Committed]]
    #: Who had read what is not in the files.
    beyond: tuple[Beyond, ...] = ()
    #: By group, partitions for which a transaction without an end had offsets: what was there before counts.
    undecided: Mapping[str, Sequence[TopicPartition]]
    #: How many offsets were committed for former topics of the same names; they count for nothing.
    former: int = 0
    #: Who does not go on at the target where it stood, and why.
    gaps: tuple[OffsetGap, ...] = ()
    #: What kept groups from being put anywhere.
    blockers: tuple[Blocker, ...] = ()
    #: Who passes over records that the target has deleted.
    skips: tuple[Skip, ...] = ()
    #: What of the files could not be read.
    notes: tuple[str, ...] = ()
    #: The files have all that groups had committed, for all that is known.
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
    stored: GroupOffsets, include: Sequence[re.Pattern[str]], partitions: Sequence[Restored]
) -> GroupsReport:
    """What the files say of the groups that `include` matches, before anything is committed (pure)."""
    by_source = {partition.assignment.source: partition for partition in partitions}

    def is_included(group: str) -> bool:
        return any(pattern.fullmatch(group) for pattern in include)

    offsets: dict[str, dict[TopicPartition, Committed]] = {}
    former = 0
    for group in filter(is_included, sorted(stored.groups)):
        for topic_partition, commit in sorted(stored.groups[group].items()):
            if (restored := by_source.get(topic_partition)) is None:
                continue
            if same_id(commit.topic_id, restored.assignment.topic_id):
                offsets.setdefault(group, {})[topic_partition] = commit.committed
            else:
                former += 1
    streams = {group: offsets.pop(group) for group in sorted(offsets.keys() & stored.streams)}
    return GroupsReport(
        offsets=offsets,
        beyond=tuple(
            Beyond(group, partition, committed.offset, by_source[partition].stable)
            for group, of in offsets.items()
            for partition, committed in of.items()
            if committed.offset > by_source[partition].stable
        ),
        undecided={
            group: here
            for group in filter(is_included, sorted(stored.undecided))
            if (here := sorted(stored.undecided[group] & by_source.keys()))
        },
        former=former,
        blockers=tuple(
            Blocker(
                UNFOLLOWED_STREAMS,
                group,
                detail=f"it read {first_of([f'{partition} at offset {of[partition].offset}' for partition in of])}",
            )
            for group, of in streams.items()
        ),
        notes=tuple(stored.notes),
        is_stored=stored.is_whole,
    )


async def restore_groups(
    settings: Settings, target: Endpoint, report: GroupsReport, partitions: Sequence[Restored]
) -> GroupsReport:
    """Commit what was found, and ask the target what came of it. Raises ClusterError where it cannot be reached."""
    copied = [partition for partition in partitions if partition.figures is not None]
    figures = {restored.assignment.source: restored.figures for restored in copied if restored.figures is not None}
    bounds: dict[TopicPartition, Replica] = {}
    for one in copied:  # what the files hold, without their records
        topic_id = one.assignment.topic_id
        held = Replica(folder=Path(), topic_id=topic_id, start=one.start, stable=one.stable, end=one.end)
        bounds[one.assignment.source] = held
    async with FileCluster(settings.source.alias, bounds, report.offsets) as source, Cluster(target) as cluster:
        journal = Journal(cluster, settings.flow)
        await cluster.refresh({restored.assignment.target.topic for restored in copied} | {journal.partition.topic})
        assignments = [restored.assignment for restored in copied]
        translates = any(assignment.rules.translates for assignment in assignments)
        indexes = Indexes((await journal.read())[0] if translates else ())
        sync = sync_of(source, cluster, settings.groups.include, assignments, (figures,), indexes)
        skips: list[Skip] = []
        deadline, may_go = clock.monotonic() + _WITHIN_SECONDS, sync.detector.since()
        while True:
            result = await sync.sync_once(may_go=may_go)
            skips += result.skips
            if result.is_complete or clock.monotonic() > deadline:
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        # so far the target has all that the files do: nothing is left to read behind its last record
        holds = {partition: status.next_offset for partition, status in figures.items()}
        gaps, blockers = await sync.gaps({}, holds, {})
    blockers = tuple(dict.fromkeys((*report.blockers, *result.blockers, *blockers)))
    return replace(report, gaps=tuple(gaps), blockers=blockers, skips=tuple(skips))
