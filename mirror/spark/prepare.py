"""From a configuration to a flow that can run: preflight, the target's topics, the rules of each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from mirror.admin.adoption import Gate
from mirror.admin.client import Admin
from mirror.admin.history import Claim, claims_of_others, read_history, read_own
from mirror.admin.topics import (
    TopicPlan,
    apply,
    ensure_flow_topic,
    ensure_heartbeats,
    rules_from,
    rules_of,
)
from mirror.assignment import Assignment, assign
from mirror.config import Settings, insecure
from mirror.errors import MirrorError, PreflightError
from mirror.observe import logs
from mirror.offsets.failover import refuse_failed_over
from mirror.offsets.starts import moment
from mirror.policy.remedies import Fix
from mirror.policy.rules import Finding, Severity
from mirror.policy.rules import refused as refusal
from mirror.policy.selection import selects
from mirror.spark.flow import Flow, Refusal
from mirror.spark.plan import MOST_LANES, epoch_length, lane_count
from mirror.wire.cluster import Endpoint

_MEGABYTE = 1 << 20


def prepare(
    settings: Settings,
    *,
    once: bool = False,
    until_caught_up: bool = False,
    take_over: bool = False,
    refused: Callable[[Finding], None] | None = None,
) -> Flow:
    """Check both clusters, create what is missing on the target, and say what to mirror.

    A flow that was failed over is refused before anything is asked of the source, which may be away for good. A topic
    that is refused, or cannot be made, is left out, and `refused` is called with why; without it that is logged. Where
    nothing else is left, or the whole flow is refused, PreflightError is raised; not where `refused` is given.
    Raises PreflightError, ClusterUnreachable, AccessDenied, MalformedBatch.
    """
    own = asyncio.run(read_own(settings))
    refuse_failed_over(settings.flow, own.newest)
    log = logs.get("mirror.preflight")
    for cluster in (settings.source, settings.target):
        for text in insecure(cluster):
            log.warning("insecure", flow=settings.flow, cluster=cluster.alias, text=text)
    source, target = Admin(settings.source), Admin(settings.target)
    history = asyncio.run(read_history(settings, own, source.topic_names(), target.topic_names()))
    gate = Gate(source, target, partial(_log_held, settings.flow))
    tell = refused or partial(_log_refusal, settings.flow)
    whole = gate.plan(settings, history)
    if refused is None and (not whole.allowed().has_topics or any(not one.topic for one in whole.refusals)):
        whole.raise_refusals()
    for finding in whole.findings:
        if finding.severity is not Severity.REFUSE:
            log.warning("preflight_advice", flow=settings.flow, topic=finding.topic, text=finding.text)
    ensure_flow_topic(target, settings.flow)
    failures: dict[str, MirrorError] = {}
    made = apply(target, whole.allowed(), failures)
    if any(isinstance(one, PreflightError) for one in failures.values()):  # what appeared meanwhile is looked at
        whole, failures = gate.plan(settings, history), {}
        made |= apply(target, whole.allowed(), failures)
    plan = whole.allowed().without(failures)
    if refused is None and failures and not plan.has_topics:
        raise next(iter(failures.values()))
    failed = (refusal(topic, str(problem), Fix.AS_TOLD) for topic, problem in failures.items())
    for finding in (*whole.refusals, *failed):
        tell(finding)
    assignments = assignments_of(target, plan, settings)
    lanes = lane_count(settings.spark.lanes, len(assignments) if once else MOST_LANES)
    flow = Flow(
        name=settings.flow,
        source=Endpoint.of(settings.source),
        target=Endpoint.of(settings.target),
        assignments=assignments,
        lanes=lanes,
        epoch_seconds=epoch_length(settings.spark.epoch_s, len(assignments), lanes),
        memory_bytes=settings.limits.memory_mb * _MEGABYTE,
        once=once,
        until_caught_up=until_caught_up,
        take_over=take_over,
        make_journal=partial(_make_journal, settings),
        follows=partial(_follows, settings),
        claims=partial(_claims, settings),
        made=made,
        start=moment(settings.topics.start),
        heartbeats=ensure_heartbeats(target, settings.flow),
        rekeyed=plan.rekeyed,
        refused=refused_by(whole, failures),
        origins={one.source: history.chain(one.source) for one in plan.pairs},
    )
    return with_settings(flow, settings)


def refused_by(plan: TopicPlan, failures: Mapping[str, MirrorError] = {}) -> tuple[Refusal, ...]:
    """The topics of a plan that are not mirrored, and why: what preflight refuses, or what could not be made."""
    why = {topic: str(problem) for topic, problem in failures.items()}
    for finding in plan.refusals:
        why.setdefault(finding.topic, finding.text)
    found = [
        Refusal(pair.source, pair.target, pair.partitions, why.get(pair.target) or why.get(pair.source) or why[""])
        for pair in plan.pairs
        if {pair.target, pair.source, ""} & why.keys()
    ]
    told = {"", *(one.source for one in found), *(one.target for one in found)}
    return (*found, *(Refusal(topic, topic, 0, text) for topic, text in sorted(why.items()) if topic not in told))


def _log_refusal(flow: str, finding: Finding) -> None:
    logs.get("mirror.preflight").error("not_mirrored", flow=flow, reason=str(finding))


def _log_held(flow: str, topic: str, why: str) -> None:
    logs.get("mirror.preflight").warning("topic_left_as_it_is", flow=flow, topic=topic, reason=why)


def _make_journal(settings: Settings) -> None:
    ensure_flow_topic(Admin(settings.target), settings.flow)


def _claims(settings: Settings) -> Mapping[str, Claim]:
    return asyncio.run(claims_of_others(settings, Admin(settings.target).topic_names()))


def _follows(settings: Settings, source: str, target: str) -> bool:
    return selects(source, settings.topics) and settings.topics.naming.target_of(source) == target


def with_settings(flow: Flow, settings: Settings) -> Flow:
    """The flow with what of its settings can change while it runs, topics aside."""
    return replace(
        flow,
        memory_bytes=settings.limits.memory_mb * _MEGABYTE,
        groups=settings.groups.include,
        groups_seconds=settings.groups.interval_s,
        bytes_per_second=settings.limits.bytes_per_second,
        follows=partial(_follows, settings),
    )


def assignments_of(target: Admin, plan: TopicPlan, settings: Settings) -> tuple[Assignment, ...]:
    """What to mirror when a plan was carried out. Raises ClusterError."""
    if plan.is_empty:
        rules = {topic: rules_from(configs, settings.topics) for topic, configs in plan.target_configs.items()}
    else:
        rules = rules_of(target, plan.pairs, settings.topics)
    if settings.topics.append_time == "source":  # a copy that stamps records all the same is not taken for one that may
        own = {pair.target for pair in plan.pairs if pair.source not in plan.stamped}
        rules |= {topic: replace(rules[topic], target_append_time=False) for topic in own & rules.keys()}
    topic_ids = {name: info.topic_id for name, info in plan.source_topics.items()}
    return assign((pair for pair in plan.pairs if pair.target in rules), topic_ids, rules)
