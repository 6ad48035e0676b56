"""`mirror restore`: topics out of the data folders of brokers that are gone: same bytes, same offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from mirror.admin.client import Admin
from mirror.admin.history import read_own
from mirror.admin.restoration import plan_restoration
from mirror.admin.topics import TopicPlan, apply, ensure_flow_topic, rules_of
from mirror.assignment import Assignment, assign
from mirror.commands.tables import console, count, number, plain, print_json, state_text, table
from mirror.config import Settings
from mirror.errors import ExitCode
from mirror.names import first_of
from mirror.observe import logs
from mirror.offsets.failover import refuse_failed_over
from mirror.reading.archive import mixed_in, partitions_in
from mirror.wire.cluster import Endpoint, TopicPartition

if TYPE_CHECKING:
    from mirror.spark.restoring import Restored

_MEGABYTE: Final = 1 << 20


def restore(settings: Settings, folders: Sequence[Path], *, dry_run: bool, as_json: bool) -> int:
    """Copy the flow's topics from `folders` to the target; the exit code.

    The flow writes as `mirror run` would: what is there already is checked and not written again, and a mirror that
    runs afterwards goes on behind it. Raises ConfigError for folders that hold no partition, PreflightError,
    ClusterUnreachable, AccessDenied, EngineLost.
    """
    found = partitions_in(folders)
    target = Admin(settings.target)
    plan = plan_restoration(target, _counts(found), mixed_in(found), settings)
    plan.raise_refusals()
    places = {pair.source: pair for pair in plan.pairs}
    wanted = {at: paths for at, paths in found.items() if at.topic in places}
    missing = _missing(plan, wanted)
    if dry_run:
        _print_plan(plan, wanted, missing, as_json=as_json)
        return ExitCode.CHANGES
    _refuse_ended(settings)
    apply(target, plan)
    ensure_flow_topic(target, settings.flow)
    rules = rules_of(target, plan.pairs, settings.topics)
    every = assign(plan.pairs, {}, rules)
    return _run(settings, [one for one in every if one.source in wanted], wanted, missing, as_json=as_json)


def _run(
    settings: Settings,
    assignments: Sequence[Assignment],
    wanted: Mapping[TopicPartition, Sequence[Path]],
    missing: Sequence[TopicPartition],
    *,
    as_json: bool,
) -> int:
    # Late, since a wrong folder should not wait for PySpark's import.
    from mirror.spark.compiled import ensure_compiled
    from mirror.spark.restoring import Portion, restore_on_spark

    ensure_compiled()
    log = logs.get("mirror.restore")
    target = Endpoint.of(settings.target)
    portions = [
        Portion(
            flow=settings.flow,
            alias=settings.source.alias,
            target=target,
            assignment=one,
            folders=tuple(map(str, wanted[one.source])),
            memory_bytes=settings.limits.memory_mb * _MEGABYTE,
            bytes_per_second=settings.limits.bytes_per_second,
        )
        for one in assignments
    ]
    results: list[Restored] = []

    def done(one: Restored) -> None:
        results.append(one)
        at = one.assignment.source
        records = one.figures.records if one.figures else 0
        log.info("partition_restored", topic=at.topic, partition=at.partition, records=records, whole=one.is_whole)

    restore_on_spark(settings.spark, settings.flow, portions, done)
    results.sort(key=lambda one: one.assignment.source)
    for at in missing:
        log.error("partition_missing", topic=at.topic, partition=at.partition, reason="no replica in these folders")
    if as_json:
        partitions = [_as_dict(one) for one in results]
        print_json({"flow": settings.flow, "partitions": partitions, "missing": [*map(str, missing)]})
    else:
        _print(results, missing)
    if any(one.at_risk or (one.figures is not None and one.figures.state.is_stop) for one in results) or missing:
        return ExitCode.DATA_AT_RISK
    return ExitCode.DONE if all(one.is_whole for one in results) else ExitCode.CLUSTER


def _counts(found: Mapping[TopicPartition, Sequence[Path]]) -> dict[str, int]:
    """Topics with their number of partitions, as far as the folders tell."""
    counts: dict[str, int] = {}
    for at in found:
        counts[at.topic] = max(counts.get(at.topic, 0), at.partition + 1)
    return counts


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


def _print_plan(
    plan: TopicPlan,
    wanted: Mapping[TopicPartition, Sequence[Path]],
    missing: Sequence[TopicPartition],
    *,
    as_json: bool,
) -> None:
    targets = {pair.source: pair.target for pair in plan.pairs}
    made = {one.topic for one in plan.creations}
    if as_json:
        partitions = [
            {"topic": at.topic, "partition": at.partition, "target": targets[at.topic], "replicas": [*map(str, paths)]}
            for at, paths in wanted.items()
        ]
        print_json({"partitions": partitions, "create": sorted(made), "missing": [*map(str, missing)]})
        return
    shown = table("partition", "target topic", ("replicas", "right"), "in")
    for at, paths in wanted.items():
        target = targets[at.topic] + (" (to be created)" if targets[at.topic] in made else "")
        shown.add_row(str(at), target, number(len(paths)), Text("\n".join(plain(str(path)) for path in paths)))
    console().print(shown)
    _print_missing(missing)


def _print(results: Sequence[Restored], missing: Sequence[TopicPartition]) -> None:
    shown = table("partition", "state", ("from", "right"), ("to", "right"), ("records", "right"), ("batches", "right"))
    out = console()
    for one in results:
        figures = one.figures
        shown.add_row(
            str(one.assignment.source),
            _outcome(one),
            number(one.start),
            number(figures.next_offset) if figures else "",
            number(figures.records) if figures else "",
            number(figures.batches) if figures else "",
        )
    out.print(shown)
    for one in results:
        told = [one.problem, *one.notes]
        if one.figures and not one.is_whole:
            told.append(one.figures.detail or f"offsets {one.figures.next_offset} to {one.stable - 1} are not copied")
        for text in filter(None, told):
            style = "red" if one.at_risk else "yellow"
            out.print(Text(f"{one.assignment.source}: {plain(text)}", style), soft_wrap=True)
    _print_missing(missing)
    whole = sum(one.is_whole and not one.at_risk for one in results)
    out.print(f"{number(whole)} of {count(len(results) + len(missing), 'partition')} restored whole")


def _outcome(one: Restored) -> Text:
    if one.figures is None:
        return Text("not restored", "red")
    if not one.is_whole:
        return state_text(one.figures.state)
    return Text("in part", "red") if one.at_risk else Text("restored", "green")


def _print_missing(missing: Sequence[TopicPartition]) -> None:
    if missing:
        names = first_of([*map(str, missing)])
        text = f"no replica in these folders of {names}: name the folders of other brokers, too"
        console().print(Text(text, "red"), soft_wrap=True)


def _as_dict(one: Restored) -> dict[str, Any]:
    figures = one.figures
    return {
        "topic": one.assignment.source.topic,
        "partition": one.assignment.source.partition,
        "target": one.assignment.target.topic,
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
        "at_risk": one.at_risk,
        "folders": [*one.folders],
        "notes": [*one.notes, *filter(None, [one.problem])],
    }
