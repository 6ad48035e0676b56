"""From a configuration to a flow that can run: preflight, the target's topics, the rules of each partition."""

from __future__ import annotations

import asyncio

from mirror.admin.client import Admin
from mirror.admin.topics import TopicPlan, apply, ensure_flow_topic, ensure_heartbeats, plan_topics, rules_of
from mirror.assignment import assign
from mirror.config import Settings, insecure, unserved
from mirror.observe import logs
from mirror.offsets.firstseen import FirstSeen
from mirror.offsets.journal import Journal, journal_topic
from mirror.spark.flow import Flow
from mirror.spark.plan import lane_count
from mirror.wire.cluster import Cluster, Endpoint

_MEGABYTE = 1 << 20


def prepare(settings: Settings, *, once: bool = False, until_caught_up: bool = False) -> Flow:
    """Check both clusters, create what is missing on the target, and say what to mirror.

    Raises PreflightError, ClusterUnreachable, AccessDenied.
    """
    log = logs.get("mirror.preflight")
    for text in unserved(settings):
        log.warning("not_served", flow=settings.flow, text=text)
    for cluster in (settings.source, settings.target):
        for text in insecure(cluster):
            log.warning("insecure", flow=settings.flow, cluster=cluster.alias, text=text)
    source, target = Admin(settings.source), Admin(settings.target)
    plan = plan_topics(source, target, settings)
    if plan.refusals and (recreated := asyncio.run(_recreated(settings, plan))):
        plan = plan_topics(source, target, settings, recreated)
    plan.raise_refusals()
    for finding in plan.findings:
        log.warning("preflight_advice", flow=settings.flow, topic=finding.topic, text=finding.text)
    apply(target, plan)
    ensure_flow_topic(target, settings.flow)
    heartbeats = ensure_heartbeats(target, settings.flow)
    rules = rules_of(target, plan.pairs, settings.topics)
    topic_ids = {name: info.topic_id for name, info in plan.source_topics.items()}
    assignments = assign(plan.pairs, topic_ids, rules)
    return Flow(
        name=settings.flow,
        source=Endpoint.of(settings.source),
        target=Endpoint.of(settings.target),
        assignments=assignments,
        lanes=lane_count(settings.spark.lanes, len(assignments)),
        epoch_seconds=settings.spark.epoch_s,
        memory_bytes=settings.limits.memory_mb * _MEGABYTE,
        once=once,
        until_caught_up=until_caught_up,
        groups=settings.groups.include,
        groups_seconds=settings.groups.interval_s,
        bytes_per_second=settings.limits.bytes_per_second,
        heartbeats=heartbeats,
    )


async def _recreated(settings: Settings, plan: TopicPlan) -> frozenset[str]:
    """The source topics that this flow mirrored under another id into the target topics of now.

    What preflight refuses about them, such as another number of partitions, is then a stop of theirs alone.
    """
    names = {pair.target for pair in plan.pairs} | {journal_topic(settings.flow)}
    async with Cluster(Endpoint.of(settings.target)) as target:
        await target.refresh(names)
        if journal_topic(settings.flow) not in target.topics:
            return frozenset()
        known = {entry.key: entry.value for entry in (await Journal(target, settings.flow).read())[0]}
        found = set[str]()
        for pair in plan.pairs:
            now = FirstSeen(
                source_topic=pair.source,
                topic_id=plan.source_topics[pair.source].topic_id,
                target_topic_id=target.topic_id(pair.target),
                cluster_id=None,
            )
            try:
                seen = FirstSeen.read(known.get(FirstSeen.key(pair.target)) or b"")
            except (ValueError, KeyError, AttributeError, TypeError):  # none, or somebody else's: the supervisor tells
                continue
            if seen.topic_id and seen.is_about(now) and seen.topic_id != now.topic_id:
                found.add(pair.source)
        return frozenset(found)
