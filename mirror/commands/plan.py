"""`mirror plan`: what a start of the flow would create and change, and why it would be refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from textwrap import wrap
from typing import Any, Final

from rich.console import Console

from mirror.config import Settings
from mirror.errors import ExitCode
from mirror.kafka.admin import Creation
from mirror.kafka.cluster import Cluster, Endpoint
from mirror.names import first_of
from mirror.policy.selection import Rekeying
from mirror.rendering import COMMAND, console, count, duration, json_rows, keys, number, plain, print_json, size
from mirror.topics.plan import Extent, Filling, FlowPlan, plan_flow

#: Copies that differ are shown one by one, up to so many.
_EXTENTS: Final = 20


def plan(settings: Settings, *, as_json: bool) -> ExitCode:
    """Print the plan. Nothing is written anywhere. Raises ClusterError where a cluster cannot be asked."""
    found = plan_flow(settings)
    if found.topics.rekeyed:
        stops = asyncio.run(_rekeyed_stops(settings, found.topics.rekeyed))
        found = replace(found, refusals=(*found.refusals, *stops))
    if as_json:
        print_json(as_dict(found, settings))
    else:
        _print(found, settings, console())
    return exit_code(found)


async def _rekeyed_stops(settings: Settings, rules: Sequence[Rekeying]) -> list[str]:
    """How queries would stop as they start: by the ids, ends and partitions of both topics. Raises ClusterError, and
    ConfigError where the progress is not the mirror's.
    """
    from mirror.spark.rekey.microbatch import RekeyStop, advice_values  # noqa: PLC0415 -- few flows re-key
    from mirror.spark.rekey.plan_log import PlanLog  # noqa: PLC0415 -- the same

    stops: list[str] = []
    async with Cluster(Endpoint.of(settings.source)) as source, Cluster(Endpoint.of(settings.target)) as target:
        await target.refresh({topic for rule in rules for topic in rule.own_topics})
        for rule in (rekeying for rekeying in rules if rekeying.progress in target.topics):
            try:
                await PlanLog(target, rule).check_all(source)
            except RekeyStop as stop:
                text = stop.text(advice_values(rule, source.endpoint, target.endpoint))
                stops.append(f"{rule.source}: {stop.state}: {text}")
    return stops


def exit_code(found: FlowPlan) -> ExitCode:
    """Refused before changes before nothing to do."""
    if found.refusals:
        return ExitCode.PREFLIGHT
    return ExitCode.CHANGES if found.has_changes else ExitCode.DONE


def as_dict(found: FlowPlan, settings: Settings) -> dict[str, Any]:
    """The plan for `--json`; times in seconds."""
    topics = found.topics
    return {
        "flow": found.flow,
        "source": {"alias": settings.source.alias, "cluster_id": found.source_id},
        "target": {"alias": settings.target.alias, "cluster_id": found.target_id},
        "changes": found.has_changes,
        "topics": json_rows(keys("source target partitions"), topics.pairs),
        "rekey": [asdict(rekeying) for rekeying in topics.rekeyed],
        "create": [asdict(creation) for creation in topics.creations],
        "own_topics": [own_topic.topic for own_topic in found.own_topics],
        "add_partitions": [asdict(growth) for growth in topics.growths],
        "configs": [asdict(change) for change in topics.changes],
        "settings_not_followed": [unfollowed._asdict() for unfollowed in found.unfollowed],
        "groups": list(found.groups),
        "acls": [asdict(acl) for acl in found.acls.missing],
        "acls_revoked": [asdict(acl) for acl in found.acls.revoked],
        "beginnings": [asdict(beginning) for beginning in found.beginnings],
        "padding": [asdict(filling) for filling in found.padding],
        "padding_in_all": {
            name: sum(getattr(filling, name) for filling in found.padding)
            for name in ("offsets", "seconds", "bytes", "cpu_s")
        },
        "paused": list(found.paused),
        "left_out": [{"reason": reason, "topics": names} for reason, names in found.left_out.items()],
        "copies": [asdict(extent) for extent in found.extents],
        "gaps_at_most": [asdict(gap) for gap in found.gaps],
        "advice": list(found.advice),
        "refused": list(found.refusals),
        "missing_rights": [asdict(right) for right in found.rights],
    }


def _print(found: FlowPlan, settings: Settings, out: Console) -> None:
    for line in map(plain, _lines(found, settings)):
        for part in folded(line, out.width) if out.is_terminal else [line]:
            out.print(part, markup=False, soft_wrap=True)


def folded(line: str, width: int) -> list[str]:
    """A line in the parts that a terminal holds, cut between words; one with a command to be copied stays whole."""
    if COMMAND in line:
        return [line]
    return wrap(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _lines(found: FlowPlan, settings: Settings) -> Iterator[str]:
    source = _cluster(settings.source.alias, found.source_id)
    yield f"{found.flow}: {source} to {_cluster(settings.target.alias, found.target_id)}"
    topics = found.topics
    if topics.has_topics or not found.rights:
        partitions = sum(pair.partitions for pair in topics.pairs)
        yield f"{count(len(topics.pairs), 'topic')} with {count(partitions, 'partition')} to mirror"
        for rekeying in topics.rekeyed:
            changed = f" by {', '.join(rekeying.expressions)}" if rekeying.expressions else ""
            yield f"> {rekeying.source} goes to {count(rekeying.partitions, 'partition')} of {rekeying.target}{changed}"
        yield from compared(found.extents)
        yield from created(topics.creations)
        for grown in topics.growths:
            yield f"~ {grown.topic}: {grown.before} -> {count(grown.partitions, 'partition')}"
        for change in topics.changes:
            after = "the cluster's default" if change.after is None else change.after
            yield f"~ {change.topic}: {change.name}: {change.before} -> {after}"
    for own in found.own_topics:
        yield f"+ create {own.topic}: the flow's own, {_replicas(own)}"
    yield from (f"+ ACL {acl}" for acl in found.acls.missing)
    yield from (f"- ACL {acl}: the source has it no more" for acl in found.acls.revoked)
    for begun in found.beginnings:
        offsets = ", ".join(map(number, begun.offsets))
        yield f"{begun.topic}: begins at offset {offsets} of its source (topics.start), decided by the first start"
    yield from _padded(found.padding)
    for gap in found.gaps:
        what = f"fill at most {number(gap.offsets)} offsets where compaction left no record; known when they are read"
        yield f"~ {gap.topic}-{gap.partition}: {what}, about {duration(round(gap.seconds * 1000))}"
    for reason, names in found.left_out.items():
        yield f"left out, since {reason}: {count(len(names), 'topic')}: {first_of(names, most=10)}"
    if settings.groups.include:
        named = f": {first_of(found.groups, most=10)}" if found.groups else ""
        yield f"{count(len(found.groups), 'consumer group')} to follow{named}"
    yield from (f"advice: {text}" for text in found.advice)
    yield from (f"refused: {text}" for text in found.refusals)
    if not found.refusals:
        yield "`mirror run` makes these changes" if found.has_changes else "nothing to do"


def compared(extents: Sequence[Extent]) -> Iterator[str]:
    """Both sides of the copies that are there: a line for each of the first that differ, and one for all of them."""
    differing = [extent for extent in extents if extent.behind or extent.source_offsets != extent.target_offsets]
    for one in differing[:_EXTENTS]:
        behind = "" if one.behind is None else f"; {count(one.behind, 'offset')} to copy"
        yield (
            f"  {one.source}: {count(one.source_offsets, 'offset')}, its copy {one.target}"
            f" {number(one.target_offsets)}{behind}"
        )
    if extents:
        other = f", of which {number(len(differing))} hold other offsets than their sources" if differing else ""
        yield f"{count(len(extents), 'copy', 'copies')} there{other}"


def created(creations: Sequence[Creation]) -> Iterator[str]:
    """A line for each topic; settings that several have alike stand once, behind the last: they fill a screen."""
    alike = (
        set.intersection(*(set(creation.configs.items()) for creation in creations)) if len(creations) > 1 else set()
    )
    for made in creations:
        own = _configs(pair for pair in made.configs.items() if pair not in alike)
        yield f"+ create {made.topic}: {count(made.partitions, 'partition')}, {_replicas(made)}{own and f'; {own}'}"
    if alike:
        shared = _configs(pair for pair in creations[0].configs.items() if pair in alike)
        yield f"+ each of these {number(len(creations))} topics with {shared}"


def _replicas(made: Creation) -> str:
    return "the target's default replicas" if made.replication_factor < 0 else count(made.replication_factor, "replica")


def _configs(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in pairs)


def _padded(fillings: Sequence[Filling]) -> Iterator[str]:
    """Say what padding takes: a line for each topic, and one for all."""
    topics = {topic: list(of_topic) for topic, of_topic in groupby(fillings, key=lambda filling: filling.topic)}
    for topic, of_topic in topics.items():
        yield f"~ {topic}: pad {_cost(of_topic)} before its first record"
    if len(topics) > 1:
        yield f"~ in all: pad {_cost(fillings)}"


def _cost(fillings: Sequence[Filling]) -> str:
    offsets, seconds = sum(filling.offsets for filling in fillings), sum(filling.seconds for filling in fillings)
    cpu_s, written = sum(filling.cpu_s for filling in fillings), size(sum(filling.bytes for filling in fillings))
    took = f"about {duration(round(seconds * 1000))}, {cpu_s:,.1f} s of broker CPU and {written} of disk for a while"
    return f"{number(offsets)} offsets in {count(len(fillings), 'partition')}, {took},"


def _cluster(alias: str, cluster_id: str) -> str:
    return f"{alias} (cluster id {cluster_id or 'unknown'})"
