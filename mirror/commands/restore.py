"""`mirror restore`: topics out of the data folders of brokers that are gone: same bytes, same offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mirror.admin.client import Admin
from mirror.admin.history import read_history, read_own
from mirror.admin.lostsettings import SettingsPlan, plan_settings
from mirror.admin.restoration import KEEPING, as_made, plan_restoration
from mirror.admin.topics import TopicPlan, apply, ensure_flow_topic, rules_of
from mirror.admin.values import ConfigChange, plain_values
from mirror.assignment import assign
from mirror.commands.lostdisks import Disks, look_over
from mirror.commands.restoreview import Report
from mirror.commands.tables import print_json
from mirror.config import Settings
from mirror.errors import MirrorError
from mirror.observe import logs
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.grouprestore import GroupsReport, RestoredPartition, found_groups, restore_groups
from mirror.offsets.journal import Journal
from mirror.offsets.owner import Owner
from mirror.policy.rules import Rules
from mirror.policy.selection import selects
from mirror.reading.groupoffsets import GroupOffsets
from mirror.reading.shelf import Bounds
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition

if TYPE_CHECKING:
    from mirror.spark.restoring import Restored

_MEGABYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of a restore a person may choose.

    settings: set what the lost cluster had set on its topics.
    groups: commit what its groups had committed.
    skip_damage: leave out what is damaged, and go on behind it.
    take_over: take the flow from a mirror that runs it.
    dry_run: look at everything and write nothing.
    """

    settings: bool = True
    groups: bool = True
    skip_damage: bool = False
    take_over: bool = False
    dry_run: bool = False


def restore(settings: Settings, folders: Sequence[Path], wanted: Wanted, *, as_json: bool) -> int:
    """Copy the flow's topics from `folders` to the target, with their settings and their groups; the exit code.

    The flow writes as `mirror run` would, under its claim: what is there already is checked and not written again, and
    a mirror that runs afterwards goes on behind it. Damage ends a partition, or is left out of it where that is wanted;
    the flow's journal then has the offsets as a loss. A dry run reads every batch as well, and says what a real one
    would find. Raises ConfigError for folders that hold no partition, PreflightError, ClusterUnreachable, AccessDenied,
    EngineLost.
    """
    # Late, since a wrong folder should not wait for PySpark's import.
    disks = look_over(folders, groups=wanted.groups)
    from mirror.spark.holding import held, refuse_held

    target = Admin(settings.target)
    if wanted.dry_run:
        if not wanted.take_over:
            asyncio.run(refuse_held(settings))
        report = _restored(settings, target, disks, wanted, None)
    else:
        _plan(settings, target, disks).raise_refusals()  # before the flow gets a journal
        ensure_flow_topic(target, settings.flow)
        with held(settings, take_over=wanted.take_over) as owner:
            report = _restored(settings, target, disks, wanted, owner)
    if as_json:
        print_json({"flow": settings.flow, **report.as_dict()})
    else:
        report.print()
    return report.exit_code


def _plan(settings: Settings, target: Admin, disks: Disks) -> TopicPlan:
    own = asyncio.run(read_own(settings))
    history = asyncio.run(read_history(settings, own, None, target.topic_names()))
    return plan_restoration(target, disks.topics, settings, history)


def _restored(settings: Settings, target: Admin, disks: Disks, wanted: Wanted, owner: Owner | None) -> Report:
    plan = _plan(settings, target, disks)
    plan.raise_refusals()
    places = {pair.source for pair in plan.pairs}
    if owner is not None:
        apply(target, plan)
        rules_of(target, plan.pairs, settings.topics)  # every new topic is known to the brokers then
        made = asyncio.run(_record(settings, target, plan, disks))
    else:
        made = {one.topic for one in plan.creations}
    partitions = {at: paths for at, paths in disks.partitions.items() if at.topic in places}
    report = Report(
        plan,
        Endpoint.of(settings.target),
        _configs(target, plan),
        partitions,
        [*_missing(plan, partitions), *_lacking(settings, disks)],
        wanted.dry_run,
        notes=disks.notes,
    )
    report.results += _run(settings, report, owner, skip_damage=wanted.skip_damage)
    if wanted.settings and disks.knows_settings:
        report.settings = _settings(target, plan, disks, made)
        if owner is not None and _may_change(settings, owner, report):
            report.unset = _set(target, plan, report)
        elif owner is not None:
            report.unset = {topic: report.taken for topic, one in report.settings.items() if one.changes}
    if wanted.groups and disks.offsets is not None and (owner is None or _may_change(settings, owner, report)):
        report.groups = _groups(settings, disks.offsets, report)
    return report


async def _record(settings: Settings, target: Admin, plan: TopicPlan, disks: Disks) -> set[str]:
    """Name the copies in the flow's journal before anything is written to them, so that a mirror goes on behind them
    even where this is killed; the target topics that the flow has made. Where the disks do not tell which cluster they
    are of, their topics' ids are to tell. What the journal tells of a target topic already, stays.
    """
    made = {one.topic for one in plan.creations}
    there = target.describe({pair.target for pair in plan.pairs})
    async with Cluster(Endpoint.of(settings.target)) as cluster:
        journal = Journal(cluster, settings.flow)
        seen = seen_in(await journal.newest())
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
        await journal.append_all((FirstSeen.key(topic), one.to_json()) for topic, one in fresh.items())
    return {topic for topic, one in (seen | fresh).items() if one.made}


def _may_change(settings: Settings, owner: Owner, report: Report) -> bool:
    """Whether the flow is this restore's still; the report says who has it else, or that it was failed over."""
    from mirror.spark.handover import Watched
    from mirror.spark.restoring import taken_over

    async def asked() -> str:
        async with Cluster(Endpoint.of(settings.target)) as cluster:
            return await taken_over(Watched(Journal(cluster, settings.flow)), owner)

    report.taken = report.taken or asyncio.run(asked())
    return not report.taken


def _settings(target: Admin, plan: TopicPlan, disks: Disks, made: Collection[str]) -> dict[str, SettingsPlan]:
    """What becomes of the settings of each topic that the lost cluster's log knows."""
    now = target.topic_configs({pair.target for pair in plan.pairs})
    creations = {one.topic: one for one in plan.creations}
    replicas = {topic: one.replication_factor for topic, one in target.describe(now).items()}
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


def _set(target: Admin, plan: TopicPlan, report: Report) -> dict[str, str]:
    """Set what is to be set of topics that are there whole; of the others, and those that failed, why it was not."""
    missing = {at.topic for at in report.missing}
    parted = missing | {one.assignment.source.topic for one in report.results if not one.is_whole or one.at_risk}
    sources = {pair.target: pair.source for pair in plan.pairs}
    unset: dict[str, str] = {}
    failures: dict[str, MirrorError] = {}
    changes: list[ConfigChange] = []
    for topic, one in (report.settings or {}).items():
        if one.changes and sources[topic] in parted:
            unset[topic] = "the topic is not there whole, and a restore that is run again sets them then"
        else:
            changes += one.changes
    target.alter_configs(changes, failures)
    for change in changes:
        if change.topic not in failures:
            logs.get("mirror.restore").info("topic_config_changed", **asdict(change))
    return unset | {topic: str(problem) for topic, problem in failures.items()}


def _groups(settings: Settings, stored: GroupOffsets, report: Report) -> GroupsReport:
    partitions = [
        RestoredPartition(
            assignment=one.assignment,
            bounds=Bounds(one.assignment.topic_id, one.start, one.stable, one.end),
            figures=one.figures,
        )
        for one in report.results
    ]
    include = settings.groups.include
    found = found_groups(stored, include, partitions)
    if report.dry_run or not found.offsets:
        return found
    where = settings.source.alias, report.target
    return asyncio.run(restore_groups(settings.flow, *where, include, found, partitions))


def _configs(target: Admin, plan: TopicPlan) -> dict[str, dict[str, str]]:
    """The settings of each target topic, as they are or will be."""
    made = {one.topic: dict(one.configs) for one in plan.creations}
    there = target.topic_configs({pair.target for pair in plan.pairs})
    return made | {name: plain_values(configs) for name, configs in there.items()}


def _run(settings: Settings, report: Report, owner: Owner | None, *, skip_damage: bool) -> list[Restored]:
    from mirror.spark.compiled import ensure_compiled
    from mirror.spark.restoring import Portion, restore_on_spark

    ensure_compiled()
    log = logs.get("mirror.restore")
    rules = {
        name: Rules.from_configs(
            configs,
            offsets=settings.topics.offsets,
            recompress=settings.topics.recompress,
            coalesce_bytes=settings.topics.coalesce_bytes,
        )
        for name, configs in report.configs.items()
    }
    portions = [
        Portion(
            flow=settings.flow,
            alias=settings.source.alias,
            target=report.target,
            assignment=one,
            folders=tuple(map(str, report.wanted[one.source])),
            configs=report.configs[one.target.topic],
            memory_bytes=settings.limits.memory_mb * _MEGABYTE,
            bytes_per_second=settings.limits.bytes_per_second,
            skip_damage=skip_damage,
            dry_run=report.dry_run,
            is_there=one.target.topic in report.plan.target_topics,
            owner=owner,
        )
        for one in assign(report.plan.pairs, {}, rules)
        if one.source in report.wanted
    ]
    results: list[Restored] = []

    def done(one: Restored) -> None:
        results.append(one)
        at = one.assignment.source
        if not report.dry_run:
            records = one.figures.records if one.figures else 0
            log.info("partition_restored", topic=at.topic, partition=at.partition, records=records, whole=one.is_whole)

    restore_on_spark(settings.spark, settings.flow, portions, done)
    for at in report.missing:
        log.error("partition_missing", topic=at.topic, partition=at.partition, reason="no replica in these folders")
    return sorted(results, key=lambda one: one.assignment.source)


def _missing(plan: TopicPlan, found: Mapping[TopicPartition, Sequence[Path]]) -> list[TopicPartition]:
    """Partitions without a folder: below the highest number found, or of a target topic that has more."""
    return [
        at
        for pair in plan.pairs
        for number in range(max(pair.partitions, _on_target(plan, pair.target)))
        if (at := TopicPartition(pair.source, number)) not in found
    ]


def _lacking(settings: Settings, disks: Disks) -> Iterator[TopicPartition]:
    """The partitions of topics of the flow that the lost cluster had, and of which there is no folder at all: one of
    several log.dirs may be missing.
    """
    for topic, count in disks.lacking.items():
        if selects(topic, settings.topics):
            yield from (TopicPartition(topic, number) for number in range(count))


def _on_target(plan: TopicPlan, topic: str) -> int:
    known = plan.target_topics.get(topic)
    return len(known.partitions) if known else 0
