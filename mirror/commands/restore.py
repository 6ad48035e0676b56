"""`mirror restore`: topics out of the data folders of brokers that are gone: same bytes, same offsets.

- A folder whose topic id the metadata log says was removed is of a deleted topic, and is left out; so is one of another
  id than its topic has there, whether some of that id are here or all of these are missing.
- Folders of two clusters are refused: neither topics nor groups of one name are the same in both. So are those of
  another cluster than the configuration or the flow's journal names.
- A topic whose name the metadata log does not know is restored all the same: the log may end before it was made.
- Which topics and partitions there were, folders do not say, since those of a disk that is lost are not there: the
  metadata log does, and brokers' checkpoints do, which may be newer; but of a topic that the log knows as deleted.
- A replica that had fallen behind does not show what it lacks: of those in the folders one is taken that was in sync by
  the metadata log, and none where none was, or where nobody knows of which broker they are; unless they saw a later
  leader than the log. A partition is not whole if its other replicas may have gone on without those in the folders, of
  which logs of too few controllers say nothing, or if its cluster's metadata log is there and cannot be read. Without
  any, as of ZooKeeper's clusters, that others may have had more is said once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final
from uuid import UUID

from mirror.commands.restore_view import Report
from mirror.config import Settings
from mirror.errors import ConfigError, MirrorError
from mirror.journal.entries import COPIES, FirstSeen, mirrored_cluster, same_id
from mirror.journal.journal import Journal
from mirror.journal.ownership import Owner
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.groups import OFFSETS_TOPIC
from mirror.kafka.topic_configs import plain_values
from mirror.names import INTERNAL_PREFIX, first_of
from mirror.observability import logs
from mirror.policy.selection import selects
from mirror.rendering import print_json
from mirror.replication.assignment import assign
from mirror.segments.cluster_logs import METADATA, ClusterTopics, GroupOffsets, offsets_in, topics_in
from mirror.segments.files import cluster_id_of, history_of, node_of, topic_id_of
from mirror.segments.replica import bytes_of, oldest_of
from mirror.segments.replica_sets import mixed_in, partition_counts, partitions_in
from mirror.segments.restore import (
    KEEPING,
    FoundTopic,
    GroupsReport,
    Restored,
    as_made,
    found_groups,
    plan_restoration,
    restore_groups,
)
from mirror.suspension import beating, look_again
from mirror.topics.apply import apply, ensure_flow_topic, rules_from, rules_of
from mirror.topics.configs import SettingsPlan, plan_settings
from mirror.topics.fitting import fit_changes
from mirror.topics.history import read_history, read_own
from mirror.topics.reconcile import TopicPlan

# --- The disks of a lost cluster as `mirror restore` finds them -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    """Says which replicas of each partition may be taken."""

    #: The folders of those that were in sync; all where nobody knows it, or none of them was.
    folders: dict[TopicPartition, Sequence[Path]] = field(default_factory=dict)
    #: Why no replica of a partition is to be taken.
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    #: Why nobody knows whether the replicas of a partition have all that was committed.
    unconfirmed: dict[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """Says what the folders hold."""

    #: The folders of each partition.
    partitions: Mapping[TopicPartition, Sequence[Path]]
    #: What a scan of the folders, and the metadata log, say of each topic.
    topics: Mapping[str, FoundTopic]
    #: The lost cluster's id; None if no folder says it.
    cluster_id: str | None
    #: The metadata log was found and read.
    knows_settings: bool
    #: What groups had committed; None if that was not asked for, or is not there.
    offsets: GroupOffsets | None
    #: What was left out, and what could not be read.
    notes: Sequence[str]
    #: By topic, what is to be said of folders that were left out.
    left: Mapping[str, Sequence[str]]
    #: Topics of which no folder is here, with how many partitions they had.
    lacking: Mapping[str, int]
    replicas: ReplicaChoice


def scan_folders(folders: Sequence[Path], *, groups: bool) -> Disks:
    """Scan all folders, without the records of topics. Raises ConfigError as `partitions_in` does, and for
    folders of two clusters.
    """
    found: dict[TopicPartition, Sequence[Path]] = {**partitions_in(folders)}
    cluster_id = _cluster_id(path for paths in found.values() for path in paths)
    paths = found.pop(METADATA, ())
    known = topics_in(paths) if paths else None
    notes: list[str] = []
    counts: dict[str, int] = {}
    left: Mapping[str, Sequence[str]] = {}
    if known is not None:
        found, left = _of_now(found, known)
        notes += (*known.notes, *(note for of in left.values() for note in of), *_unknown(found, known))
        counts = {name: topic.partition_count for name, topic in known.topics.items()}
        replicas = _replicas(found, known, {node_of(path.parent) for path in paths})
    else:
        what = "could not be read" if paths else "is not in these folders"
        notes.append(
            f"the lost cluster's metadata log ({METADATA}) {what}: its topics' settings are not known, nor which"
            " replicas were in sync, so that others may have had more records than these. It lies in the"
            " metadata.log.dir of each broker and controller, or in the first of its log.dirs"
        )
        why = "the metadata log in these folders cannot be read, and nobody knows which brokers were in sync"
        replicas = ReplicaChoice({**found}, {}, dict.fromkeys(found if paths else (), f"{why}: records may be missing"))
    for name, count in partition_counts(folders).items():
        if known is None or name not in known.gone | left.keys():  # it may count those of the other one by the name
            counts[name] = max(counts.get(name, 0), count)
    offsets = _offsets(found, replicas, counts.get(OFFSETS_TOPIC, 0), notes) if groups else None
    found = {partition: paths for partition, paths in found.items() if not partition.topic.startswith(INTERNAL_PREFIX)}
    there = {partition.topic for partition in found}
    return Disks(
        partitions=found,
        topics=_topics(found, replicas, known, counts),
        cluster_id=cluster_id,
        knows_settings=known is not None,
        offsets=offsets,
        notes=notes,
        left=left,
        lacking={
            name: count
            for name, count in sorted(counts.items())
            if name not in there and not name.startswith(INTERNAL_PREFIX)
        },
        replicas=replicas,
    )


def _offsets(
    found: Iterable[TopicPartition], replicas: ReplicaChoice, partitions: int, notes: list[str]
) -> GroupOffsets | None:
    """Return what groups had committed; None if nothing is here of it. `notes` get what is missing."""
    here = {partition.partition: partition for partition in found if partition.topic == OFFSETS_TOPIC}
    gone = [f"{OFFSETS_TOPIC}-{number}" for number in range(partitions) if number not in here]
    if gone:
        notes.append(f"no replica in these folders of {first_of(gone)}: what its groups had committed is not known")
    elif not here:
        what = "what consumer groups had committed is not known"
        notes.append(f"no folder of {OFFSETS_TOPIC} is in these folders: {what}")
        return None
    refused = [f"{partition}: {why}" for partition in here.values() if (why := replicas.refused.get(partition))]
    further = [
        f"{partition}: {why}; its groups may have committed further"
        for partition in here.values()
        if (why := replicas.unconfirmed.get(partition))
    ]
    notes += (*refused, *further)
    offsets = offsets_in(
        {number: replicas.folders[partition] for number, partition in here.items() if partition not in replicas.refused}
    )
    offsets.is_whole &= not (gone or refused or further)
    return offsets


def _replicas(
    found: Mapping[TopicPartition, Sequence[Path]], known: ClusterTopics, controllers: Collection[int | None]
) -> ReplicaChoice:
    """Return which replicas may be taken by the metadata log. `controllers`: the nodes whose metadata logs are in
    the folders.
    """
    may_be_old = known.may_lack({node for node in controllers if node is not None})
    why = "the metadata logs here lack something, or do not say which controllers there were"
    if others := sorted(known.voters.difference(controllers)):
        why = f"that is in the metadata logs of controllers {', '.join(map(str, others))}"
    replicas = ReplicaChoice({**found})
    for partition, paths in found.items():
        topic = known.topics.get(partition.topic)
        record = topic.partitions.get(partition.partition) if topic is not None else None
        if record is None or not (in_sync := record.in_sync):
            continue
        brokers = {path: node_of(path.parent) for path in paths}
        if max((epoch for path in paths for epoch, _ in history_of(path)), default=-1) <= record.leader_epoch:
            if not (here := [path for path in paths if brokers[path] in in_sync]):
                replicas.refused[partition] = _refusal(in_sync, brokers)
                continue
            replicas.folders[partition] = here
        if may_be_old and (absent := in_sync.difference(brokers.values())):
            what = f"nobody knows whether brokers {', '.join(map(str, sorted(absent)))} went on without these replicas"
            replicas.unconfirmed[partition] = f"{what}; {why}: records may be missing"
    return replicas


def _refusal(in_sync: Collection[int], brokers: Mapping[Path, int | None]) -> str:
    """Return why none of the replicas in these folders is taken."""
    listed = ", ".join(map(str, sorted(in_sync)))
    what = f"no replica here was in sync in the end, those of brokers {listed} were"
    if nameless := [str(path) for path, node in brokers.items() if node is None]:
        what = (
            f"nobody knows of which broker {first_of(nameless)} is (no meta.properties beside it says it), and those of"
            f" brokers {listed} were in sync in the end"
        )
    return (
        f"{what}: records may be missing, and none is restored. Name the folders of these brokers, too; or"
        f" --from {next(iter(brokers))} alone restores what is there"
    )


def _cluster_id(folders: Iterable[Path]) -> str | None:
    """Raises ConfigError for folders of two clusters."""
    found = {data: cluster_id_of(data) for data in dict.fromkeys(folder.parent for folder in folders)}
    ids = {cluster_id: data for data, cluster_id in found.items() if cluster_id is not None}
    if len(ids) > 1:
        listed = ", ".join(f"{folder} of cluster {cluster_id}" for cluster_id, folder in ids.items())
        raise ConfigError(f"folders of different clusters: {listed}. Name the folders of one of them")
    return next(iter(ids), None)


def _of_now(
    found: Mapping[TopicPartition, Sequence[Path]], known: ClusterTopics
) -> tuple[dict[TopicPartition, Sequence[Path]], dict[str, list[str]]]:
    """Return the folders of topics as they were in the end, and by topic what is to be said of the others."""
    kept: dict[TopicPartition, Sequence[Path]] = {}
    left: dict[str, list[str]] = {}
    for partition, paths in found.items():
        mine = []
        for path in paths:
            topic_id, topic = topic_id_of(path), known.topics.get(partition.topic)
            if topic_id in known.removed:
                why = f"its topic (id {topic_id}) was deleted"
            elif topic_id is not None and topic is not None and topic_id != topic.topic_id:
                why = (
                    f"it is of another topic by this name (id {topic_id}, and {topic.topic_id} in the metadata log): a"
                    f" former one, or one that was made after the log's last record (offset {known.end - 1})"
                )
            else:
                mine.append(path)
                continue
            left.setdefault(partition.topic, []).append(f"{path} is left out: {why}. --from {path} alone restores it")
        if mine:
            kept[partition] = mine
    return kept, left


def _unknown(found: Iterable[TopicPartition], known: ClusterTopics) -> Iterator[str]:
    """Yield what is to be said of topics that the metadata log does not know."""
    for name in sorted({partition.topic for partition in found} - known.topics.keys()):
        if not name.startswith(INTERNAL_PREFIX):
            yield (
                f"{name}: the metadata log does not know it. It was deleted before the log's oldest record, or made"
                f" after its last one (offset {known.end - 1}); exclude it where it should not come back"
            )


def _topics(
    found: Mapping[TopicPartition, Sequence[Path]],
    replicas: ReplicaChoice,
    known: ClusterTopics | None,
    counts: Mapping[str, int],
) -> dict[str, FoundTopic]:
    """What the folders say of each topic, as far as a scan of its segments shows, with as many partitions as there
    were by `counts`.
    """
    mixed = mixed_in(found)
    topics: dict[str, FoundTopic] = {}
    for name, of_topic in groupby(found, key=lambda partition: partition.topic):
        partitions = list(of_topic)
        folders = [path for partition in partitions for path in replicas.folders[partition]]
        ids = map(topic_id_of, (path for partition in partitions for path in found[partition]))
        topics[name] = FoundTopic(
            partitions=max(counts.get(name, 0), 1 + max(partition.partition for partition in partitions)),
            oldest_ms=min((time for time in map(oldest_of, folders) if time is not None), default=None),
            bytes=max(map(bytes_of, folders)),
            mixed=mixed.get(name, ""),
            topic_id=next(filter(None, ids), None),
            known=known.topics.get(name) if known is not None else None,
        )
    return topics


# --- `mirror restore` -------------------------------------------------------------------------------------------------

_MEGABYTE: Final = 1 << 20
#: The ids of target topics, None where a cluster has none.
_Ids = Mapping[str, UUID | None]


def restore(
    settings: Settings,
    folders: Sequence[Path],
    *,
    with_settings: bool = True,
    with_groups: bool = True,
    take_over: bool = False,
    dry_run: bool = False,
    as_json: bool,
) -> int:
    """Copy the flow's topics from `folders` to the target, with their settings and their groups; the exit code.

    The flow writes as `mirror run` would, under its claim: what is there already is checked and not written again, and
    a mirror that runs afterwards goes on behind it. Damage ends a partition. A dry run reads every batch as well, and
    says what a real one would find. Raises ConfigError for folders that hold no partition, PreflightError,
    ClusterUnreachable, AccessDenied, EngineLost.
    """
    # Late, since a wrong folder should not wait for PySpark's import.
    disks = scan_folders(folders, groups=with_groups and bool(settings.groups.include))
    from mirror.journal.ownership import held, refuse_held

    target = Admin(settings.target)
    if dry_run:
        if not take_over:
            asyncio.run(refuse_held(settings))
        report = _restored(settings, target, disks, None, with_settings=with_settings)
    else:
        _plan(settings, target, disks).raise_refusals()  # before the flow gets a journal
        ensure_flow_topic(target, settings.flow, settings.topics.replication_factor)
        with held(settings, take_over=take_over) as owner:
            report = _restored(settings, target, disks, owner, with_settings=with_settings)
    if as_json:
        print_json({"flow": settings.flow, **report.as_dict()})
    else:
        report.print()
    return report.exit_code


def _plan(settings: Settings, target: Admin, disks: Disks) -> TopicPlan:
    """Raises ConfigError for disks of another cluster than the flow copies."""
    own = asyncio.run(read_own(settings))
    wanted = settings.source.cluster_id or mirrored_cluster(own.newest)
    if not same_id(disks.cluster_id, wanted):
        by = "source.cluster_id" if settings.source.cluster_id else "the flow's journal"
        raise ConfigError(
            f"these folders are of cluster {disks.cluster_id}, and flow {settings.flow} copies cluster {wanted} ({by}):"
            " name the folders of that one, or restore these by a flow of their own"
        )
    history = asyncio.run(read_history(settings, own, None, target.topic_names()))
    return plan_restoration(target, disks.topics, settings, history, disks.left, disks.cluster_id)


def _restored(settings: Settings, target: Admin, disks: Disks, owner: Owner | None, *, with_settings: bool) -> Report:
    """Restore, or find what would be without an `owner`."""
    plan = _plan(settings, target, disks)
    plan.raise_refusals()
    places = {pair.source for pair in plan.pairs}
    if owner is not None:
        look_again(lambda: apply(target, plan).raise_failures())
        rules_of(target, plan.pairs, settings.topics)  # every new topic is known to the brokers then
        made, ids = asyncio.run(_record(settings, target, plan, disks))
    else:
        made = {creation.topic for creation in plan.creations}
        ids = {name: info.topic_id for name, info in plan.target_topics.items()}
    partitions = {partition: paths for partition, paths in disks.partitions.items() if partition.topic in places}
    report = Report(
        plan,
        Endpoint.of(settings.target),
        _configs(target, plan),
        partitions,
        _missing(settings, plan, disks, partitions),
        owner is None,
        notes=disks.notes,
    )
    results = _run(settings, report, owner, ids, disks)
    now = target.describe(ids)
    others = {name for name, topic_id in ids.items() if not (name in now and same_id(now[name].topic_id, topic_id))}
    report.results += (
        _noted(restored, disks.replicas.unconfirmed.get(restored.assignment.source, ""), others) for restored in results
    )
    if with_settings and disks.knows_settings:
        report.settings = _settings(target, plan, disks, made)
        report.unset = unset_in_part(report)
        if owner is not None:
            look_again(partial(_set_if_ours, settings, target, owner, report, ids))
    if disks.offsets is not None and (owner is None or _may_change(settings, owner, report)):
        report.groups = _groups(settings, disks.offsets, report)
    return report


def _noted(one: Restored, doubt: str, others: Collection[str]) -> Restored:
    """What became of a partition, with what else is known: why its replicas may lack records, or that its copy went."""
    if one.assignment.target.topic in others:
        gone = f"the target topic {one.assignment.target.topic} was deleted, or made anew, since this restore began"
        problem = f"{one.problem}; {gone}" if one.problem else gone
        one = replace(one, at_risk=True, figures=None, problem=problem)
    if doubt:
        one = replace(one, at_risk=True, notes=(*one.notes, f"{doubt}; name the folders of these brokers, too"))
    return one


async def _record(settings: Settings, target: Admin, plan: TopicPlan, disks: Disks) -> tuple[set[str], _Ids]:
    """Name the copies in the flow's journal before anything is written to them, so that a mirror goes on behind them
    even where this is killed; the target topics that the flow has made, and the ids of all. Where the disks do not say
    which cluster they are of, their topics' ids are to show it. What the journal says of a target topic already, stays.
    """
    made = {creation.topic for creation in plan.creations}
    there = target.describe({pair.target for pair in plan.pairs})
    async with Cluster(Endpoint.of(settings.target)) as cluster:
        journal = Journal(cluster, settings.flow)
        seen = COPIES.newest(await journal.newest())
        fresh = {
            pair.target: FirstSeen(
                source_topic=pair.source,
                topic_id=disks.topics[pair.source].topic_id,
                target_topic_id=there[pair.target].topic_id,
                cluster_id=disks.cluster_id,
                origins=() if disks.cluster_id is None else (disks.cluster_id,),
                made=pair.target in made,
                adopted=pair.target not in made,
            )
            for pair in plan.pairs
            if pair.target in there
            and ((known := seen.get(pair.target)) is None or known.target_topic_id != there[pair.target].topic_id)
        }
        await journal.append_all(COPIES.entry(topic, first_seen) for topic, first_seen in fresh.items())
    return {topic for topic, first_seen in (seen | fresh).items() if first_seen.made}, {
        name: info.topic_id for name, info in there.items()
    }


def _set_if_ours(settings: Settings, target: Admin, owner: Owner, report: Report, ids: _Ids) -> None:
    """Set what the report's plans change, unless somebody took the flow. Raises Suspended."""
    with beating() as detector:
        target.may_go = detector.since()
        may_change = _may_change(settings, owner, report)
        unset = {topic: report.taken for topic, plan in (report.settings or {}).items() if plan.changes}
        report.unset = {**report.unset, **_set(target, report, ids)} if may_change else unset


def _may_change(settings: Settings, owner: Owner, report: Report) -> bool:
    """Whether the flow is this restore's still; the report says who has it else, or that it was failed over."""
    from mirror.journal.ownership import OwnershipCheck
    from mirror.spark.restore import taken_over

    async def asked() -> str:
        async with Cluster(Endpoint.of(settings.target)) as cluster:
            return await taken_over(OwnershipCheck.of(owner), Journal(cluster, settings.flow))

    report.taken = report.taken or asyncio.run(asked())
    return not report.taken


def _settings(target: Admin, plan: TopicPlan, disks: Disks, made: Collection[str]) -> dict[str, SettingsPlan]:
    """What becomes of the settings of each topic that the lost cluster's log knows."""
    now = target.topic_configs({pair.target for pair in plan.pairs})
    creations = {one.topic: one for one in plan.creations}
    replicas = {topic: info.replication_factor for topic, info in target.describe(now).items()}
    found: dict[str, SettingsPlan] = {}
    for pair in plan.pairs:
        if (known := disks.topics[pair.source].known) is None:
            continue
        there, creation = now.get(pair.target), creations.get(pair.target)
        if there is None:  # a dry run: as it would be made
            assert creation is not None
            there = as_made(target, creation, known.configs)
        found[pair.target] = plan_settings(
            pair.target,
            known.configs,
            there,
            KEEPING,
            replicas=replicas.get(pair.target, creation.replication_factor if creation else 1),
            is_own=pair.target in made,
        )
    return found


def unset_in_part(report: Report) -> dict[str, str]:
    """Why what is to be set of a target topic is not, where the topic is not there whole, or would not be."""
    parted = {partition.topic for partition in report.missing} | {
        restored.assignment.source.topic
        for restored in report.results
        if not (restored.is_sound if report.dry_run else restored.is_whole)
    }
    targets = {pair.target for pair in report.plan.pairs if pair.source in parted}
    why = (
        "the topic is not there whole. A restore that finds all of it, in more folders, sets them; where nothing more"
        " is to be found, set them yourself"
    )
    return {topic: why for topic, plan in (report.settings or {}).items() if plan.changes and topic in targets}


def _set(target: Admin, report: Report, ids: _Ids) -> dict[str, str]:
    """Set what is to be set of topics that are there whole; of those that failed, why it was not."""
    failures: dict[str, MirrorError] = {}
    settings = report.settings or {}
    changes, unfollowed = fit_changes(
        target, (change for topic, plan in settings.items() if topic not in report.unset for change in plan.changes)
    )
    target.alter_configs(changes, failures, ids)
    for change in changes:
        if change.topic not in failures:
            logs.get("mirror.restore").info("topic_config_changed", **asdict(change))
    return {one.topic: f"{one.setting}: {one.reason}" for one in unfollowed} | {
        topic: str(problem) for topic, problem in failures.items()
    }


def _groups(settings: Settings, stored: GroupOffsets, report: Report) -> GroupsReport:
    found = found_groups(stored, settings.groups.include, report.results)
    if report.dry_run or not found.offsets:
        return found
    return asyncio.run(restore_groups(settings, report.target, found, report.results))


def _configs(target: Admin, plan: TopicPlan) -> dict[str, dict[str, str]]:
    """The settings of each target topic, as they are or will be."""
    made = {creation.topic: dict(creation.configs) for creation in plan.creations}
    there = target.topic_configs({pair.target for pair in plan.pairs})
    return made | {name: plain_values(configs) for name, configs in there.items()}


def _run(settings: Settings, report: Report, owner: Owner | None, ids: _Ids, disks: Disks) -> list[Restored]:
    from mirror.spark.compiled import ensure_compiled
    from mirror.spark.restore import Portion, restore_on_spark

    ensure_compiled()
    log = logs.get("mirror.restore")
    stopping = settings.topics.model_copy(update={"on_data_loss": "stop", "on_damage": "stop", "on_too_large": "stop"})
    rules = {name: rules_from(configs, stopping) for name, configs in report.configs.items()}
    assignments = [
        assignment for assignment in assign(report.plan.pairs, {}, rules) if assignment.source in report.wanted
    ]
    refused = {partition: why for partition, why in disks.replicas.refused.items() if partition in report.wanted}
    portions = [
        Portion(
            flow=settings.flow,
            alias=settings.source.alias,
            target=report.target,
            assignment=replace(assignment, target_topic_id=ids.get(assignment.target.topic)),
            folders=tuple(map(str, disks.replicas.folders[assignment.source])),
            configs=report.configs[assignment.target.topic],
            memory_bytes=settings.limits.memory_mb * _MEGABYTE,
            bytes_per_second=settings.limits.bytes_per_second,
            dry_run=report.dry_run,
            is_there=assignment.target.topic in report.plan.target_topics,
            owner=owner,
        )
        for assignment in assignments
        if assignment.source not in refused
    ]
    results = [
        Restored(assignment=assignment, at_risk=True, problem=why)
        for assignment in assignments
        if (why := refused.get(assignment.source))
    ]

    def done(restored: Restored) -> None:
        results.append(restored)
        at = restored.assignment.source
        if not report.dry_run:
            records = restored.figures.records if restored.figures else 0
            log.info(
                "partition_restored", topic=at.topic, partition=at.partition, records=records, whole=restored.is_whole
            )

    if portions:
        restore_on_spark(settings.spark, settings.flow, portions, done)
    for at, why in (dict.fromkeys(report.missing, "no replica in these folders") | refused).items():
        log.error("partition_missing", topic=at.topic, partition=at.partition, reason=why)
    return sorted(results, key=lambda one: one.assignment.source)


def _missing(
    settings: Settings, plan: TopicPlan, disks: Disks, found: Collection[TopicPartition]
) -> list[TopicPartition]:
    """Partitions without a folder: below the highest number found, or of a target topic that has more; and those of the
    flow's topics of which there is no folder at all: one of several log.dirs may be missing.
    """
    there = {name: len(info.partitions) for name, info in plan.target_topics.items()}
    counts = {pair.source: max(pair.partitions, there.get(pair.target, 0)) for pair in plan.pairs}
    counts |= {topic: count for topic, count in disks.lacking.items() if selects(topic, settings.topics)}
    every = (TopicPartition(topic, number) for topic, count in counts.items() for number in range(count))
    return [partition for partition in every if partition not in found]
