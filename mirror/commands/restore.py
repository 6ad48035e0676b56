"""`mirror restore`: topics out of the data folders of brokers that are gone: same bytes, same offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from mirror.admin.client import Admin
from mirror.admin.history import read_own
from mirror.admin.restoration import UNLIMITED, Found, plan_restoration
from mirror.admin.topics import TopicPlan, apply, ensure_flow_topic, rules_of
from mirror.admin.values import plain_values
from mirror.assignment import assign
from mirror.commands.tables import console, count, number, plain, print_json, state_text, table
from mirror.config import Settings
from mirror.errors import ExitCode
from mirror.names import first_of
from mirror.observe import logs
from mirror.offsets.failover import refuse_failed_over
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.journal import Journal
from mirror.policy.remedies import set_configs
from mirror.policy.rules import Finding, Rules, Severity
from mirror.reading.archive import mixed_in, partitions_in
from mirror.reading.replica import bytes_of, oldest_of
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition

if TYPE_CHECKING:
    from mirror.spark.restoring import Restored

_MEGABYTE: Final = 1 << 20


def restore(
    settings: Settings, folders: Sequence[Path], *, dry_run: bool, as_json: bool, skip_damage: bool = False
) -> int:
    """Copy the flow's topics from `folders` to the target; the exit code.

    The flow writes as `mirror run` would: what is there already is checked and not written again, and a mirror that
    runs afterwards goes on behind it. Damage ends a partition, or is left out of it where it is to `skip_damage`; the
    flow's journal then has the offsets as a loss. A dry run reads every batch as well, and says what a real one would
    find. Raises ConfigError for folders that hold no partition, PreflightError, ClusterUnreachable, AccessDenied,
    EngineLost.
    """
    found = partitions_in(folders)
    target = Admin(settings.target)
    plan = plan_restoration(target, _topics(found), settings)
    plan.raise_refusals()
    places = {pair.source for pair in plan.pairs}
    wanted = {at: paths for at, paths in found.items() if at.topic in places}
    if not dry_run:
        _refuse_ended(settings)
        apply(target, plan)
        ensure_flow_topic(target, settings.flow)
        rules_of(target, plan.pairs, settings.topics)  # every new topic is known to the brokers then
    report = _Report(
        plan, Endpoint.of(settings.target), _configs(target, plan), wanted, _missing(plan, wanted), dry_run
    )
    report.results += _run(settings, report, skip_damage=skip_damage)
    if not dry_run:
        asyncio.run(_record(settings, target, plan, report.results))
    if as_json:
        print_json({"flow": settings.flow, **report.as_dict()})
    else:
        report.print()
    return report.exit_code


async def _record(settings: Settings, target: Admin, plan: TopicPlan, results: Sequence[Restored]) -> None:
    """Name the copies in the flow's journal, so that a mirror goes on behind them. Which cluster the files are of is
    not known, so their topics' ids are to tell. What the journal tells of a target topic already, stays.
    """
    ids = {one.assignment.source.topic: one.assignment.topic_id for one in results if one.figures is not None}
    made = {one.topic for one in plan.creations}
    there = target.describe({pair.target for pair in plan.pairs if pair.source in ids})
    async with Cluster(Endpoint.of(settings.target)) as cluster:
        journal = Journal(cluster, settings.flow)
        seen = seen_in(await journal.newest())
        await journal.append_all(
            (
                FirstSeen.key(pair.target),
                FirstSeen(
                    source_topic=pair.source,
                    topic_id=ids[pair.source],
                    target_topic_id=there[pair.target].topic_id,
                    cluster_id=None,
                    made=pair.target in made,
                    adopted=pair.target not in made,
                ).to_json(),
            )
            for pair in plan.pairs
            if pair.target in there
            and ((known := seen.get(pair.target)) is None or known.target_topic_id != there[pair.target].topic_id)
        )


def _configs(target: Admin, plan: TopicPlan) -> dict[str, dict[str, str]]:
    """The settings of each target topic, as they are or will be."""
    made = {one.topic: dict(one.configs) for one in plan.creations}
    there = target.topic_configs({pair.target for pair in plan.pairs})
    return made | {name: plain_values(configs) for name, configs in there.items()}


def _run(settings: Settings, report: _Report, *, skip_damage: bool) -> list[Restored]:
    # Late, since a wrong folder should not wait for PySpark's import.
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


def _topics(found: Mapping[TopicPartition, Sequence[Path]]) -> dict[str, Found]:
    """What the folders tell of each topic, as far as a glance at its segments goes."""
    mixed = mixed_in(found)
    topics: dict[str, Found] = {}
    for at, paths in found.items():
        known = topics.get(at.topic, Found(partitions=0))
        times = [known.oldest_ms, *map(oldest_of, paths)]
        topics[at.topic] = Found(
            partitions=max(known.partitions, at.partition + 1),
            oldest_ms=min((time for time in times if time is not None), default=None),
            bytes=max(known.bytes, *map(bytes_of, paths)),
            mixed=mixed.get(at.topic, ""),
        )
    return topics


def _missing(plan: TopicPlan, found: Mapping[TopicPartition, Sequence[Path]]) -> list[TopicPartition]:
    """Partitions without a folder: below the highest number found, or of a target topic that has more."""
    return [
        at
        for pair in plan.pairs
        for number in range(max(pair.partitions, _on_target(plan, pair.target)))
        if (at := TopicPartition(pair.source, number)) not in found
    ]


def _on_target(plan: TopicPlan, topic: str) -> int:
    known = plan.target_topics.get(topic)
    return len(known.partitions) if known else 0


def _refuse_ended(settings: Settings) -> None:
    own = asyncio.run(read_own(settings))
    refuse_failed_over(settings.flow, own.newest)


@dataclass(slots=True)
class _Report:
    """What a restore found and did, for people and for scripts."""

    plan: TopicPlan
    target: Endpoint
    configs: Mapping[str, Mapping[str, str]]
    wanted: Mapping[TopicPartition, Sequence[Path]]
    missing: Sequence[TopicPartition]
    dry_run: bool
    results: list[Restored] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """4 where anything is missing or damaged."""
        is_stopped = any(one.figures is not None and one.figures.state.is_stop for one in self.results)
        if self.missing or is_stopped or any(one.at_risk for one in self.results):
            return ExitCode.DATA_AT_RISK
        if self.dry_run:
            return ExitCode.CHANGES
        return ExitCode.DONE if all(one.is_whole for one in self.results) else ExitCode.CLUSTER

    @property
    def made(self) -> set[str]:
        """Target topics that this restore makes."""
        return {one.topic for one in self.plan.creations}

    @property
    def kept(self) -> dict[str, str]:
        """Target topics of which nothing expires, each with the command that sets what it shall have instead."""
        return {
            pair.target: set_configs(self.target, pair.target, {"retention.ms": "MS", "retention.bytes": "BYTES"})
            for pair in self.plan.pairs
            if UNLIMITED.items() <= self.configs.get(pair.target, {}).items()
        }

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "partitions": [_as_dict(one, self.wanted[one.assignment.source]) for one in self.results],
            "create": sorted(self.made),
            "missing": [*map(str, self.missing)],
            "never_expire": self.kept,
            "advice": [str(finding) for finding in self._advice()],
        }

    def print(self) -> None:
        """The same for people."""
        out = console()
        out.print(self._table())
        for one in self.results:
            for text in filter(None, _notes(one, dry_run=self.dry_run)):
                style = "red" if one.at_risk else "yellow"
                out.print(Text(f"{one.assignment.source}: {plain(text)}", style), soft_wrap=True)
        for finding in self._advice():
            out.print(Text(plain(str(finding)), "yellow"), soft_wrap=True)
        if self.missing:
            names = first_of([*map(str, self.missing)])
            text = f"no replica in these folders of {names}: name the folders of other brokers, too"
            out.print(Text(text, "red"), soft_wrap=True)
        for topic, command in self.kept.items():
            text = (
                f"{topic} keeps every record (retention.ms=-1, retention.bytes=-1) until you set what it had. What is "
                f"older is deleted then: {command}"
            )
            out.print(Text(text), soft_wrap=True)
        whole = sum(one.is_sound if self.dry_run else one.is_whole and not one.at_risk for one in self.results)
        done = "would be restored whole" if self.dry_run else "restored whole"
        out.print(f"{number(whole)} of {count(len(self.results) + len(self.missing), 'partition')} {done}")

    def _advice(self) -> list[Finding]:
        return [finding for finding in self.plan.findings if finding.severity is Severity.ADVISE]

    def _table(self) -> Table:
        if self.dry_run:
            shown = table("partition", "target topic", ("from", "right"), ("to", "right"), ("replicas", "right"), "in")
            for one in self.results:
                at, paths = one.assignment, self.wanted[one.assignment.source]
                topic = at.target.topic + (" (to be created)" if at.target.topic in self.made else "")
                where = Text("\n".join(plain(str(path)) for path in paths))
                shown.add_row(str(at.source), topic, number(one.start), number(one.stable), number(len(paths)), where)
            return shown
        shown = table(
            "partition", "state", ("from", "right"), ("to", "right"), ("records", "right"), ("batches", "right")
        )
        for one in self.results:
            figures = one.figures
            shown.add_row(
                str(one.assignment.source),
                _outcome(one),
                number(one.start),
                number(figures.next_offset) if figures else "",
                number(figures.records) if figures else "",
                number(figures.batches) if figures else "",
            )
        return shown


def _notes(one: Restored, *, dry_run: bool) -> list[str]:
    told = [one.problem, *one.notes]
    if not dry_run and one.figures and not one.is_copied:
        told.append(one.figures.detail or f"offsets {one.figures.next_offset} to {one.stable - 1} are not copied")
    return told


def _outcome(one: Restored) -> Text:
    if one.figures is None:
        return Text("not restored", "red")
    if not one.is_copied:
        return state_text(one.figures.state)
    return Text("in part", "red") if one.at_risk else Text("restored", "green")


def _as_dict(one: Restored, replicas: Sequence[Path]) -> dict[str, Any]:
    figures = one.figures
    return {
        "topic": one.assignment.source.topic,
        "partition": one.assignment.source.partition,
        "target": one.assignment.target.topic,
        "replicas": [*map(str, replicas)],
        "start": one.start,
        "committed_end": one.stable,
        "end": one.end,
        "next_offset": figures.next_offset if figures else None,
        "records": figures.records if figures else 0,
        "batches": figures.batches if figures else 0,
        "bytes": figures.bytes if figures else 0,
        "state": str(figures.state) if figures else None,
        "detail": figures.detail if figures else "",
        "whole": one.is_whole,
        "expired": one.expired,
        "lost": [
            {"first_offset": loss.first, "last_offset": loss.next_offset - 1, "reason": loss.reason}
            for loss in one.lost
        ],
        "at_risk": one.at_risk,
        "folders": [*one.folders],
        "notes": [*one.notes, *filter(None, [one.problem])],
    }
