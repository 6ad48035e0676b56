"""From a configuration to a flow that can run: preflight, the target's topics, the rules of each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from mirror.admin.client import Admin
from mirror.admin.history import read_history, read_own
from mirror.admin.topics import (
    TopicPlan,
    apply,
    ensure_flow_topic,
    ensure_heartbeats,
    plan_topics,
    rules_from,
    rules_of,
)
from mirror.assignment import Assignment, assign
from mirror.config import Settings, insecure
from mirror.observe import logs
from mirror.offsets.failover import refuse_failed_over
from mirror.offsets.starts import moment
from mirror.policy.rules import Finding
from mirror.spark.flow import Flow
from mirror.spark.plan import MOST_LANES, epoch_length, lane_count
from mirror.wire.cluster import Endpoint

_MEGABYTE = 1 << 20


def prepare(
    settings: Settings,
    *,
    once: bool = False,
    until_caught_up: bool = False,
    refused: Callable[[Finding], None] | None = None,
) -> Flow:
    """Check both clusters, create what is missing on the target, and say what to mirror.

    A flow that was failed over is refused before anything is asked of the source, which may be away for good. One
    refused topic refuses the whole flow; but where `refused` is given, it is called for each refusal, and the flow is
    of what else there is.
    Raises PreflightError, ClusterUnreachable, AccessDenied, MalformedBatch.
    """
    own = asyncio.run(read_own(settings))
    refuse_failed_over(settings.flow, own.newest)
    log = logs.get("mirror.preflight")
    for cluster in (settings.source, settings.target):
        for text in insecure(cluster):
            log.warning("insecure", flow=settings.flow, cluster=cluster.alias, text=text)
    source, target = Admin(settings.source), Admin(settings.target)
    history = asyncio.run(read_history(settings, own, source.topic_names()))
    plan = plan_topics(source, target, settings, history)
    if refused is None:
        plan.raise_refusals()
    else:
        for finding in plan.refusals:
            refused(finding)
        plan = plan.allowed()
    for finding in plan.findings:
        log.warning("preflight_advice", flow=settings.flow, topic=finding.topic, text=finding.text)
    made = apply(target, plan)
    assignments = assignments_of(target, plan, settings)
    ensure_flow_topic(target, settings.flow)
    flow = Flow(
        name=settings.flow,
        source=Endpoint.of(settings.source),
        target=Endpoint.of(settings.target),
        assignments=assignments,
        lanes=lane_count(settings.spark.lanes, len(assignments) if once else MOST_LANES),
        epoch_seconds=epoch_length(settings.spark.epoch_s, len(assignments)),
        memory_bytes=settings.limits.memory_mb * _MEGABYTE,
        once=once,
        until_caught_up=until_caught_up,
        made=made,
        start=moment(settings.topics.start),
        heartbeats=ensure_heartbeats(target, settings.flow),
        rekeyed=plan.rekeyed,
    )
    return with_settings(flow, settings)


def with_settings(flow: Flow, settings: Settings) -> Flow:
    """The flow with what of its settings can change while it runs, topics aside."""
    return replace(
        flow,
        memory_bytes=settings.limits.memory_mb * _MEGABYTE,
        groups=settings.groups.include,
        groups_seconds=settings.groups.interval_s,
        bytes_per_second=settings.limits.bytes_per_second,
    )


def assignments_of(target: Admin, plan: TopicPlan, settings: Settings) -> tuple[Assignment, ...]:
    """What to mirror when a plan was carried out. Raises ClusterError."""
    if plan.is_empty:
        rules = {topic: rules_from(configs, settings.topics) for topic, configs in plan.target_configs.items()}
    else:
        rules = rules_of(target, plan.pairs, settings.topics)
    topic_ids = {name: info.topic_id for name, info in plan.source_topics.items()}
    return assign((pair for pair in plan.pairs if pair.target in rules), topic_ids, rules)
