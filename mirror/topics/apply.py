"""Carries out plans of topics, and makes and keeps the topics of a flow's own.

`apply` makes what a plan of `reconcile.py` says: topics, partitions and settings; it refuses a plan with refusals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from mirror import clock
from mirror.config import Replicas, Settings, TopicSettings
from mirror.errors import AccessDenied, BrokerError, ClusterError, ClusterUnreachable, MirrorError, PreflightError
from mirror.journal.entries import Unfollowed, same_id
from mirror.journal.heartbeats import heartbeat_topic
from mirror.journal.journal import journal_topic
from mirror.kafka.admin import Admin, Creation
from mirror.kafka.cluster import Endpoint
from mirror.kafka.topic_configs import ConfigChange, ConfigValue, by_topic, plain_values
from mirror.names import first_of
from mirror.observability import logs
from mirror.policy.remedies import allow, set_configs
from mirror.policy.rules import NO_LIMIT, Rules
from mirror.policy.selection import Rekeying, TopicPair, selects
from mirror.topics.configs import IN_EFFECT, OWN_COMPACTED, any_time
from mirror.topics.fitting import Creations, broker_defaults, fit_changes, fit_creations, own_replicas
from mirror.topics.reconcile import TopicPlan

#: A day of heartbeats is some megabytes.
HEARTBEAT_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "86400000",
    "segment.ms": "3600000",
    "compression.type": "producer",
}
_VISIBLE_WITHIN_S = 30.0
_POLL_S = 0.05

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """Says what became of a plan."""

    #: Target topics that were created.
    made: frozenset[str] = frozenset()
    #: By target topic, why it was not made as planned.
    failures: Mapping[str, MirrorError] = field(default_factory=dict)
    #: By target topic, why its settings stay as they are, which keeps nothing else from it.
    unchanged: Mapping[str, MirrorError] = field(default_factory=dict)

    def raise_failures(self) -> None:
        """Raise the first failure, if there is one."""
        for problem in (*self.failures.values(), *self.unchanged.values()):
            raise problem


def apply(
    target: Admin, plan: TopicPlan, check: Callable[[], None] = lambda: None, source: Admin | None = None
) -> Applied:
    """Make what the plan says; return when every new partition has a leader.

    `check` is called right before each kind of change, and raises where nothing may be changed any more; nor is
    anything where this process was suspended behind that. A topic that is another one than was planned for stays,
    and so does the copy of one that is by now another one on the `source`, or gone there. Nothing is created or set
    that rests on settings which are others by now. A topic that appeared since is left as it is,
    and is a failure: plan again to have it checked.

    `PreflightError` for a plan with refusals; nothing is made then. Raises ClusterUnreachable.
    """
    plan.raise_refusals()
    if plan.is_empty:
        return Applied()
    failed, unchanged = dict[str, MirrorError](), dict[str, MirrorError]()
    ids = {name: info.topic_id for name, info in plan.target_topics.items()}
    with asking(target, check) as ask:
        if plan.changes:
            ask()
            names = {topic: {change.name for change in every} for topic, every in by_topic(plan.changes).items()}
            failed |= _outdated(source, target, plan, names)
        changes = [change for change in plan.changes if change.topic not in failed]
        target.alter_configs(changes, unchanged, ids)
        others = [topic for topic, why in unchanged.items() if isinstance(why, PreflightError)]  # by their ids
        failed |= {topic: unchanged.pop(topic) for topic in others}
        for change in changes:
            if change.topic not in failed | unchanged:
                log.info("topic_config_changed", cluster=target.settings.alias, **asdict(change))
        if plan.creations:
            ask()
            failed |= _outdated(
                source, target, plan, {creation.topic: creation.configs.keys() for creation in plan.creations}
            )
        existed = _create(target, [creation for creation in plan.creations if creation.topic not in failed], failed)
        grown = [growth for growth in plan.growths if growth.topic not in failed]
        if grown:
            ask()
            failed |= _without_source(source, plan, {growth.topic for growth in grown})
            grown = [growth for growth in grown if growth.topic not in failed]
        target.create_partitions(grown, failed, ids)
    grown = [growth for growth in grown if growth.topic not in failed]
    for growth in grown:
        log.info("partitions_added", cluster=target.settings.alias, **asdict(growth))
    _await_leaders(target, {growth.topic: growth.partitions for growth in grown}, failed)
    for topic in existed:
        failed.setdefault(topic, PreflightError("somebody else created it just now; it is checked again"))
    made = frozenset(creation.topic for creation in plan.creations).difference(existed, failed)
    return Applied(made, failed, unchanged)


def _outdated(
    source: Admin | None, target: Admin, plan: TopicPlan, names: Mapping[str, Collection[str]]
) -> dict[str, MirrorError]:
    """Those of these target topics that are not to be made as planned, and why: a setting of them or of their sources
    is another one by now, one of these `names` or one that decides which records there are, or the source itself is.
    """
    planned = {pair.target: pair.source for pair in plan.pairs} | {
        rekeying.target: rekeying.source for rekeying in plan.rekeyed
    }
    sides: list[tuple[Admin, Mapping[str, str], Mapping[str, Mapping[str, ConfigValue]]]] = [
        (target, {topic: topic for topic in names if topic in plan.target_topics}, plan.target_configs)
    ]
    if source is not None:
        sides.append((source, {copy: planned[copy] for copy in names if copy in planned}, plan.source_configs))
    failed: dict[str, MirrorError] = {}
    for cluster, topics, before in sides:
        now = cluster.topic_configs_now(sorted(set(topics.values())))
        for copy, topic in topics.items():
            was, found = before.get(topic, {}), now.get(topic, {})
            if others := sorted(key for key in IN_EFFECT.union(names[copy]) if was.get(key) != found.get(key)):
                where = f"{', '.join(others)} of topic {topic} on cluster {cluster.settings.alias}"
                failed[copy] = PreflightError(f"{where} changed since it was looked at; it is checked again")
    return failed | _without_source(source, plan, names.keys())  # the ids behind the settings


def _without_source(source: Admin | None, plan: TopicPlan, topics: Collection[str]) -> dict[str, MirrorError]:
    """Those of these target topics whose source is another one than was planned for, or gone, and that."""
    if source is None:
        return {}
    sources = {pair.target: pair.source for pair in plan.pairs if pair.target in topics}
    now = source.describe(set(sources.values()))
    return {
        topic: PreflightError(f"{name} was deleted{' and made anew' if name in now else ''} since it was looked at")
        for topic, name in sources.items()
        if name not in now or not same_id(now[name].topic_id, plan.source_topics[name].topic_id)
    }


@contextmanager
def asking(target: Admin, check: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """What to call before each kind of order: from `check` on, none is given behind a suspension of this process."""
    with target.beating() as detector:

        def ask() -> None:
            target.keep_to_quota()
            target.may_go = detector.since()
            check()

        yield ask


def own_creations(target: Admin, flow: str, replicas: Replicas, *, heartbeats: bool = True) -> Creations:
    """The topics that the flow keeps for itself and that are not there yet, as the target would create them; without
    that of heartbeats, if those are not wanted. Raises ClusterError.
    """
    wanted = {journal_topic(flow): OWN_COMPACTED} | ({heartbeat_topic(flow): HEARTBEAT_CONFIGS} if heartbeats else {})
    missing = wanted.keys() - target.describe(wanted).keys()
    if not missing:
        return Creations()
    defaults, brokers = broker_defaults(target), target.brokers()
    number, times = own_replicas(replicas, defaults, brokers), any_time(defaults)  # whatever the writer's clock says
    return fit_creations(
        target,
        [
            Creation(topic=name, partitions=1, replication_factor=number, configs={**configs, **times})
            for name, configs in wanted.items()
            if name in missing
        ],
        replicas,
    )


def ensure_flow_topic(target: Admin, flow: str, replicas: Replicas = "target") -> str:
    """Create the flow's compacted topic unless it is there; its name. One that somebody else made, or a broker by
    itself, is set to be compacted: records of a journal must not expire.

    Raises PreflightError where that cannot be done.
    """
    name = journal_topic(flow)
    if target.describe([name]):
        _keep(target, name)
    else:
        _create_own(target, flow, own_creations(target, flow, replicas, heartbeats=False))
    return name


def keep_progress(target: Admin, rekeyed: Iterable[Rekeying]) -> None:
    """The same of what the flow keeps of re-keyed topics, as far as that is there: without its plans a topic cannot go
    on.
    """
    for name in target.describe([rekeying.progress for rekeying in rekeyed]):
        _keep(target, name)


def _keep(target: Admin, journal: str) -> None:
    """Let nothing of a flow's journal expire, and let it take records of machines whose clocks are wrong."""
    try:
        found = plain_values(target.topic_configs([journal]).get(journal, {}))
    except AccessDenied:
        return  # the right to see it is none of those that a flow needs
    limits = {name: after for name, after in any_time(found).items() if int(found[name]) < NO_LIMIT}
    expires = (policy := found.get("cleanup.policy", "compact")) != "compact"
    wanted = {**(OWN_COMPACTED if expires else {}), **limits}
    if not wanted:
        return
    changes = [
        ConfigChange(topic=journal, name=name, before=found.get(name), after=after) for name, after in wanted.items()
    ]
    try:
        taken, left = fit_changes(target, changes)
        target.alter_configs(taken)
        if any(unfollowed.setting == "cleanup.policy" for unfollowed in left):
            raise PreflightError("; ".join(map(str, left)))
    except (AccessDenied, BrokerError, PreflightError) as problem:
        if not expires:  # while clocks agree, nothing is amiss
            command = set_configs(Endpoint.of(target.settings), journal, limits)
            log.info("journal_settings_kept", topic=journal, reason=str(problem), advice=command)
            return
        command = set_configs(Endpoint.of(target.settings), journal, {"cleanup.policy": "compact"})
        raise PreflightError(
            f"{journal} on cluster {target.settings.alias}, the flow's journal, has cleanup.policy={policy}, so what"
            f" it keeps would expire; it cannot be changed ({problem}): {command}"
        ) from problem
    log.warning("journal_settings_changed", topic=journal, before=policy, after="compact", limits=sorted(limits))


def ensure_heartbeats(target: Admin, flow: str, replicas: Replicas = "target") -> bool:
    """Create the flow's topic of heartbeats unless it is there; false, with a warning that says why, and names the
    right if that is missing, where the mirror cannot: it copies all the same.
    """
    try:
        _create_own(target, flow, own_creations(target, flow, replicas))
    except AccessDenied as problem:
        name = heartbeat_topic(flow)
        grant = allow(Endpoint.of(target.settings), "CREATE", "DESCRIBE", "WRITE", topic=name)
        log.warning("heartbeats_off", flow=flow, reason=str(problem), grant=grant)
        return False
    except (BrokerError, PreflightError) as problem:
        log.warning("heartbeats_off", flow=flow, reason=str(problem))
        return False
    return True


def _create_own(target: Admin, flow: str, own: Creations) -> None:
    if own.findings:
        raise PreflightError("; ".join(map(str, own.findings)))
    for unfollowed in own.unfollowed:
        log_setting(flow, unfollowed)
    failures: dict[str, MirrorError] = {}
    _create(target, own.made, failures)
    for problem in failures.values():
        raise problem


def log_setting(flow: str, unfollowed: Unfollowed) -> None:
    """Log that a setting of a topic is not as its source's, or as the mirror asks for."""
    log.warning("setting_not_followed", flow=flow, **unfollowed._asdict())


def rules_of(target: Admin, pairs: Iterable[TopicPair], settings: TopicSettings) -> dict[str, Rules]:
    """The classifier's rules for each target topic, from the configs in effect now.

    Asks again for a while: a topic just created may not be known to the broker that happens to answer. Raises
    ClusterUnreachable where it stays unknown.
    """
    names = {pair.target for pair in pairs}
    deadline = clock.monotonic() + _VISIBLE_WITHIN_S
    configs = target.topic_configs(names)
    while unknown := names - configs.keys():
        if clock.monotonic() > deadline:
            raise ClusterUnreachable(
                f"cluster {target.settings.alias}: no configs of {first_of(sorted(unknown))} after"
                f" {_VISIBLE_WITHIN_S:.0f} s; check the brokers' logs, then start again"
            )
        time.sleep(_POLL_S)
        configs = target.topic_configs(names)
    return {name: rules_from(plain_values(found), settings) for name, found in configs.items()}


def rules_from(configs: Mapping[str, str], settings: TopicSettings) -> Rules:
    """Return the rules that follow from one target topic's configs and what the flow's settings want."""
    rules = Rules.from_configs(configs)
    return replace(
        rules,
        offsets=settings.offsets,
        codec=rules.codec if settings.recompress == "mirror" else None,
        coalesce_bytes=settings.coalesce_bytes or 0,
        continues_on_loss=settings.on_data_loss == "continue",
        skips_damage=settings.on_damage == "skip",
        skips_too_large=settings.on_too_large == "skip",
    )


def _create(target: Admin, creations: Sequence[Creation], failures: dict[str, MirrorError]) -> frozenset[str]:
    """Create topics; return those that were there already."""
    existed = target.create_topics(creations, failures)
    made = [creation for creation in creations if creation.topic not in failures]
    for creation in made:
        event = "topic_appeared" if creation.topic in existed else "topic_created"
        log.info(event, cluster=target.settings.alias, topic=creation.topic, partitions=creation.partitions)
    new = {creation.topic: creation.partitions for creation in made if creation.topic not in existed}
    _await_leaders(target, new, failures)
    return existed


def _await_leaders(target: Admin, partitions: Mapping[str, int], failures: dict[str, MirrorError]) -> None:
    """Return when each of these topics has that many partitions, and each of them a leader: a broker makes some dozens
    in a second, so what counts is the time since the last one. Those that have none then are `failures`.
    """
    waiting = dict(partitions)
    deadline = clock.monotonic() + _VISIBLE_WITHIN_S
    while waiting:
        for topic, found in target.describe(waiting).items():
            if len(found.partitions) >= waiting[topic] and all(partition.leader >= 0 for partition in found.partitions):
                del waiting[topic]
                deadline = clock.monotonic() + _VISIBLE_WITHIN_S
        if waiting and clock.monotonic() > deadline:
            problem = ClusterUnreachable(
                f"cluster {target.settings.alias}: {first_of(list(waiting))} created, but no leaders after"
                f" {_VISIBLE_WITHIN_S:.0f} s; check the brokers' logs, then start again"
            )
            failures |= dict.fromkeys(waiting, problem)
            return
        time.sleep(_POLL_S if waiting else 0)


# --- By whose rules batches of a source topic are judged where nothing is mirrored ------------------------------------

DEFAULT_RULES: Final = "the mirror's default rules"


def rules_for(settings: Settings, topic: str) -> tuple[Rules, str]:
    """The rules of the flow's target topic, and whose they are; the default ones where it has none to give."""
    if not selects(topic, settings.topics):
        return Rules(), f"{DEFAULT_RULES}: the flow does not mirror {topic}"
    name = settings.topics.naming.target_of(topic)
    where = f"{name} on {settings.target.alias}"
    try:
        configs = Admin(settings.target).topic_configs([name]).get(name)
    except ClusterError as problem:
        return Rules(), f"{DEFAULT_RULES}: {where} cannot be read ({problem})"
    if configs is None:
        return Rules(), f"{DEFAULT_RULES}: {where} does not exist yet"
    return rules_from(plain_values(configs), settings.topics), f"the rules of {where}"
