"""The topics of a flow on the target: what is missing, what does not fit, and making it so.

`plan_topics` looks and writes nothing; `apply` creates what the plan says, and refuses a plan with refusals. A topic
that the mirror creates keeps the source's semantics: what decides which records exist and what they look like (clean-up
policy, retention, timestamps, largest batch) is copied as it is *in effect*, because the clusters' defaults may differ;
other settings are copied where the source topic has them set. Settings about a cluster's own safety and throttling are
never copied. Three are forced: batches must keep the codec they come with, and be accepted however old or early.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirror.admin.client import Admin, ConfigValue, Creation, TopicInfo
from mirror.config import Settings, TopicSettings
from mirror.errors import AccessDenied, BrokerError, ClusterUnreachable, PreflightError
from mirror.observe import logs
from mirror.policy.rules import NEEDS_ALTER, NO_LIMIT, Finding, Rules, Severity, preflight
from mirror.policy.selection import Selection, TopicPair, select, selects

COPIED_IN_EFFECT = frozenset(
    {"cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type", "max.message.bytes"}
)
COPIED_IF_SET = frozenset(
    {
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "preallocate",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)
AFTER_MAX, BEFORE_MAX = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
_BROKER_NAMES: Mapping[str, str] = {
    AFTER_MAX: "log.message.timestamp.after.max.ms",
    BEFORE_MAX: "log.message.timestamp.before.max.ms",
    "min.insync.replicas": "min.insync.replicas",
    "segment.bytes": "log.segment.bytes",
}

FLOW_TOPIC_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": "8388608",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "producer",
}
#: A day of heartbeats is some megabytes.
HEARTBEAT_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "86400000",
    "segment.ms": "3600000",
    "compression.type": "producer",
}
_FLOW_TOPIC_REPLICAS = 3
_VISIBLE_WITHIN_S = 30.0
_POLL_S = 0.05

log = logs.get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What a flow copies (`pairs`), must create first (`creations`), and what preflight found.

    `source_topics` holds the selected topics as they were, with ids, leaders and replicas.
    """

    pairs: tuple[TopicPair, ...]
    creations: tuple[Creation, ...]
    findings: tuple[Finding, ...]
    source_topics: Mapping[str, TopicInfo]

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """The findings that forbid to start."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.REFUSE)

    def raise_refusals(self) -> None:
        """`PreflightError` that lists every refusal, if there is one."""
        if self.refusals:
            lines = "\n".join(f"  {finding}" for finding in self.refusals)
            raise PreflightError(f"preflight refused the plan:\n{lines}")


def plan_topics(
    source: Admin, target: Admin, settings: Settings, recreated: Collection[str] = frozenset()
) -> TopicPlan:
    """Compare both clusters with the settings. Writes nothing; `ClusterError` when a cluster cannot be read.

    Source topics that are `recreated` may have another number of partitions: their pairs have the target's, so that
    each of these stops by name.
    """
    source_topics, target_topics = source.topics(), target.topics()
    selection = select({name: len(info.partitions) for name, info in source_topics.items()}, settings.topics)
    findings = list(_selection_findings(selection, source_topics, settings))
    offsets = settings.topics.offsets
    may_fill = offsets == "translate" or target.may_write_markers()
    if not may_fill:
        text = f"a topic with transactions will stop at the first of them: to fill the offsets of markers {NEEDS_ALTER}"
        findings.append(Finding(severity=Severity.ADVISE, topic="", text=text))
    if source.cluster_id() == target.cluster_id():
        findings += _loop_findings(selection, settings)

    source_configs = source.topic_configs(pair.source for pair in selection.pairs)
    target_configs = target.topic_configs(pair.target for pair in selection.pairs if pair.target in target_topics)
    pairs = tuple(
        replace(pair, partitions=len(target_topics[pair.target].partitions))
        if pair.source in recreated and pair.target in target_topics
        else pair
        for pair in selection.pairs
    )
    new = [pair for pair in pairs if pair.target not in target_topics]
    brokers, defaults = target.brokers(), _broker_defaults(target) if new and settings.sync.topics else {}
    creations: list[Creation] = []
    for pair in pairs:
        ours = source_configs.get(pair.source, {})
        if (existing := target_topics.get(pair.target)) is not None:
            theirs = _values(target_configs.get(pair.target, {}))
            partitions, replicas = len(existing.partitions), existing.replication_factor
        elif settings.sync.topics:
            replicas = min(source_topics[pair.source].replication_factor, brokers)
            configs = _configs_for(ours if settings.sync.configs else {}, defaults)
            creation = Creation(
                topic=pair.target, partitions=pair.partitions, replication_factor=replicas, configs=configs
            )
            creations.append(creation)
            theirs, partitions = {**defaults, **configs}, pair.partitions
        else:
            findings.append(
                _refuse(pair.target, "does not exist and sync.topics is false; create it, or set that to true")
            )
            continue
        findings += preflight(
            _values(ours),
            theirs,
            pair,
            target_partitions=partitions,
            target_replicas=replicas,
            offsets=offsets,
            may_fill=may_fill,
        )
    return TopicPlan(
        pairs=pairs,
        creations=tuple(creations),
        findings=tuple(findings),
        source_topics={pair.source: source_topics[pair.source] for pair in selection.pairs},
    )


def apply(target: Admin, plan: TopicPlan) -> None:
    """Create what the plan says and return when every created partition has a leader.

    `PreflightError` for a plan with refusals; nothing is created then. A topic that appeared since is left as it is:
    plan again to have it checked.
    """
    plan.raise_refusals()
    _create(target, plan.creations)


def ensure_flow_topic(target: Admin, flow: str) -> str:
    """Create the flow's compacted topic unless it is there; its name."""
    return _ensure(target, f"mirror.{flow}.offsets", FLOW_TOPIC_CONFIGS)


def ensure_heartbeats(target: Admin, flow: str) -> bool:
    """Create the flow's topic of heartbeats unless it is there; false, with a warning that names the right, where the
    mirror may not: it copies all the same.
    """
    name = f"mirror.{flow}.heartbeats"
    try:
        _ensure(target, name, HEARTBEAT_CONFIGS)
    except (AccessDenied, BrokerError) as problem:
        servers = target.settings.bootstrap_servers
        log.warning(
            "heartbeats_off",
            flow=flow,
            reason=str(problem),
            grant=f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal User:PRINCIPAL"
            f" --operation Create --operation Describe --operation Write --topic {name}",
        )
        return False
    return True


def _ensure(target: Admin, name: str, configs: Mapping[str, str]) -> str:
    if not target.describe([name]):
        replicas = min(_FLOW_TOPIC_REPLICAS, target.brokers())
        _create(target, [Creation(topic=name, partitions=1, replication_factor=replicas, configs=configs)])
    return name


def rules_of(target: Admin, pairs: Iterable[TopicPair], settings: TopicSettings) -> dict[str, Rules]:
    """The classifier's rules for each target topic, from the configs in effect now.

    Asks again for a while: a topic just created may not be known to the broker that happens to answer. Raises
    ClusterUnreachable where it stays unknown.
    """
    names = {pair.target for pair in pairs}
    deadline = time.monotonic() + _VISIBLE_WITHIN_S
    configs = target.topic_configs(names)
    while unknown := names - configs.keys():
        if time.monotonic() > deadline:
            raise ClusterUnreachable(
                f"cluster {target.settings.alias}: no configs of {', '.join(sorted(unknown))} after"
                f" {_VISIBLE_WITHIN_S:.0f} s; check the brokers' logs, then start again"
            )
        time.sleep(_POLL_S)
        configs = target.topic_configs(names)
    return {name: rules_from(found, settings) for name, found in configs.items()}


def rules_from(configs: Mapping[str, ConfigValue], settings: TopicSettings) -> Rules:
    """The rules that follow from one target topic's configs and what the flow's settings want."""
    return Rules.from_configs(
        _values(configs),
        offsets=settings.offsets,
        recompress=settings.recompress,
        coalesce_bytes=settings.coalesce_bytes,
        continues_on_loss=settings.on_data_loss == "continue",
    )


def _create(target: Admin, creations: Sequence[Creation]) -> None:
    existed = target.create_topics(creations)
    for creation in creations:
        event = "topic_appeared" if creation.topic in existed else "topic_created"
        log.info(event, cluster=target.settings.alias, topic=creation.topic, partitions=creation.partitions)
    waiting = {creation.topic: creation.partitions for creation in creations}
    deadline = time.monotonic() + _VISIBLE_WITHIN_S
    while waiting:
        for topic, found in target.describe(waiting).items():
            if topic in existed and len(found.partitions) != waiting[topic]:
                raise PreflightError(f"{topic}: somebody else created it just now, with another number of partitions")
            if len(found.partitions) == waiting[topic] and all(one.leader >= 0 for one in found.partitions):
                del waiting[topic]
        if waiting and time.monotonic() > deadline:
            names = ", ".join(waiting)
            raise ClusterUnreachable(
                f"cluster {target.settings.alias}: {names} created, but no leaders after {_VISIBLE_WITHIN_S:.0f} s;"
                " check the brokers' logs, then start again"
            )
        if waiting:
            time.sleep(_POLL_S)


def _broker_defaults(target: Admin) -> dict[str, str]:
    """What a new topic gets on this cluster unless told otherwise, as topic configs."""
    try:
        broker = _values(target.broker_configs())
    except AccessDenied as error:  # preflight then knows less; the broker still refuses what does not fit
        log.warning("broker_configs_hidden", cluster=target.settings.alias, reason=str(error))
        return dict.fromkeys((AFTER_MAX, BEFORE_MAX), str(NO_LIMIT))
    return {topic: broker[name] for topic, name in _BROKER_NAMES.items() if name in broker}


def _configs_for(ours: Mapping[str, ConfigValue], defaults: Mapping[str, str]) -> dict[str, str]:
    configs = {
        name: found.value
        for name, found in sorted(ours.items())
        if name in COPIED_IN_EFFECT or (name in COPIED_IF_SET and not found.is_default)
    }
    configs["compression.type"] = "producer"
    configs |= {name: str(NO_LIMIT) for name in (AFTER_MAX, BEFORE_MAX) if name in defaults}  # unknown before Kafka 3.6
    return configs


def _selection_findings(
    selection: Selection, source_topics: Mapping[str, TopicInfo], settings: Settings
) -> Iterator[Finding]:
    where = f"on cluster {settings.source.alias}"
    for name in selection.missing:
        near = difflib.get_close_matches(name, source_topics, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        yield _refuse(name, f"no such topic {where}{hint}")
    for clash in selection.clashes:
        yield _refuse(clash.target, f"would be the copy of {' and '.join(clash.sources)}; change topics.naming")
    for pair in selection.illegal:
        yield _refuse(pair.source, f"its name on the target, {pair.target}, is not legal; change topics.naming")
    for name in selection.internal:
        yield _advise(name, "is internal to Kafka and is never mirrored; exclude it")
    for name in sorted(settings.topics.naming.rename.keys() - {pair.source for pair in selection.pairs}):
        yield _advise(name, "is in topics.naming.rename and is not among the mirrored topics")
    if not selection.pairs and not selection.missing:
        yield _refuse("", f"no topic {where} matches topics.include and escapes topics.exclude")


def _loop_findings(selection: Selection, settings: Settings) -> Iterator[Finding]:
    for pair in selection.pairs:
        if selects(pair.target, settings.topics):
            yield _refuse(
                pair.target,
                "source and target are the same cluster, and the copy would itself be mirrored;"
                " check bootstrap.servers, or exclude the copies and choose another naming",
            )


def _refuse(topic: str, text: str) -> Finding:
    return Finding(severity=Severity.REFUSE, topic=topic, text=text)


def _advise(topic: str, text: str) -> Finding:
    return Finding(severity=Severity.ADVISE, topic=topic, text=text)


def _values(configs: Mapping[str, ConfigValue]) -> dict[str, str]:
    return {name: found.value for name, found in configs.items()}
