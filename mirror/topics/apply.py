"""The topics of a flow on the target: what is missing, what does not fit, and making it so.

`plan_topics` looks and writes nothing; `apply` makes what the plan says: topics, partitions and settings of topics
(`topics/configs.py`), and refuses a plan with refusals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from mirror import clock
from mirror.config import Replicas, Settings, TopicSettings
from mirror.errors import (
    AccessDenied,
    BrokerError,
    ClusterError,
    ClusterUnreachable,
    MirrorError,
    PreflightError,
)
from mirror.journal.entries import FirstSeen, Unfollowed, same_id
from mirror.journal.heartbeats import heartbeat_topic
from mirror.journal.journal import journal_topic
from mirror.kafka.admin import Admin, Creation, Growth, TopicInfo
from mirror.kafka.cluster import Endpoint
from mirror.kafka.topic_configs import MAX_REQUEST, ConfigChange, ConfigValue, by_topic, plain_values
from mirror.names import first_of
from mirror.observability import logs
from mirror.policy.remedies import Fix, allow, set_configs
from mirror.policy.rules import (
    AFTER_MAX,
    BEFORE_MAX,
    NEEDS_ALTER,
    NO_LIMIT,
    Finding,
    Rules,
    Severity,
    advised,
    is_stamped,
    preflight,
    refused,
    shortened,
    tombstones_kept_ms,
)
from mirror.policy.selection import Rekeying, TopicPair, select, selects
from mirror.topics.configs import IN_EFFECT, OWN_COMPACTED, any_time, ask_all, changes_to, configs_for, unknown
from mirror.topics.fitting import (
    DEFAULT_REPLICAS,
    Creations,
    fit_changes,
    fit_creations,
    own_replicas,
    replicas_of,
)
from mirror.topics.history import History, copies_of_others
from mirror.topics.naming import hidden_findings, moved_findings, name_findings, selection_findings
from mirror.topics.rekeyed import Clusters, RekeyPlan, missing, plan_rekeyed, rekeyed_pairs, unanswered
from mirror.topics.same_cluster import circle_findings, same_cluster

_BROKER_NAMES: Mapping[str, str] = {
    AFTER_MAX: "log.message.timestamp.after.max.ms",
    BEFORE_MAX: "log.message.timestamp.before.max.ms",
    "min.insync.replicas": "min.insync.replicas",
    "segment.bytes": "log.segment.bytes",
    MAX_REQUEST: MAX_REQUEST,
    DEFAULT_REPLICAS: DEFAULT_REPLICAS,
}

#: A day of heartbeats is some megabytes.
HEARTBEAT_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "86400000",
    "segment.ms": "3600000",
    "compression.type": "producer",
}
NO_HISTORY = History()
_UNFILLED = f"a topic with transactions will stop at the first of them: to fill the offsets of markers {NEEDS_ALTER}"
_VISIBLE_WITHIN_S = 30.0
_POLL_S = 0.05

log = logs.get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """Says what a flow copies, what it must make for that, and what preflight found."""

    #: What is copied.
    pairs: tuple[TopicPair, ...] = ()
    #: What is re-keyed: those of `rekeyed_pairs` that can be planned.
    rekeyed: tuple[Rekeying, ...] = ()
    rekeyed_pairs: tuple[TopicPair, ...] = ()
    creations: tuple[Creation, ...] = ()
    growths: tuple[Growth, ...] = ()
    changes: tuple[ConfigChange, ...] = ()
    findings: tuple[Finding, ...] = ()
    #: The selected topics as they were, with ids, leaders and replicas; and those of their copies that exist.
    source_topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    target_topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    #: The settings by which it was planned.
    source_configs: Mapping[str, Mapping[str, ConfigValue]] = field(default_factory=dict)
    target_configs: Mapping[str, Mapping[str, ConfigValue]] = field(default_factory=dict)
    #: Topics that were listed, and whose settings no broker had an answer for: they are refused, and worth another try.
    unread: frozenset[str] = frozenset()
    #: By target topic, why a copy that is left as it is lacks the last partitions of its source.
    withheld: Mapping[str, Finding] = field(default_factory=dict)
    #: Copies that are about to be set to stamp records no more.
    retimed: frozenset[str] = frozenset()
    #: Settings that the target does not take, or not with the value that was asked for.
    unfollowed: tuple[Unfollowed, ...] = ()

    @property
    def is_empty(self) -> bool:
        """There is nothing to make."""
        return not (self.creations or self.growths or self.changes)

    @property
    def has_topics(self) -> bool:
        """There is something to copy or to re-key."""
        return bool(self.pairs or self.rekeyed)

    @property
    def sources(self) -> list[str]:
        """The source topics that are copied or re-keyed."""
        return [*(pair.source for pair in self.pairs), *(one.source for one in self.rekeyed)]

    @property
    def compacted(self) -> Mapping[str, int]:
        """Compacted source topics, and for how many ms they keep tombstones."""
        kept = {topic: tombstones_kept_ms(plain_values(configs)) for topic, configs in self.source_configs.items()}
        return {topic: kept_ms for topic, kept_ms in kept.items() if kept_ms is not None}

    @property
    def stamped(self) -> frozenset[str]:
        """Source topics to whose records the source's brokers give a time."""
        return frozenset(topic for topic, found in self.source_configs.items() if is_stamped(plain_values(found)))

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """The findings that forbid to start."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.REFUSE)

    @property
    def advice(self) -> tuple[Finding, ...]:
        """The other findings."""
        return tuple(finding for finding in self.findings if finding.severity is not Severity.REFUSE)

    def shortened(self, topic: str) -> str:
        """What is to be said of a copy that deletes more once it is changed; empty where it does not."""
        configs = self.target_configs.get(topic, {})
        return shortened(plain_values(configs), _changed(configs, (one for one in self.changes if one.topic == topic)))

    def allowed(self) -> TopicPlan:
        """The plan without the topics that preflight refuses; of no topic at all where it refuses the whole flow."""
        refused = {finding.topic for finding in self.refusals}
        pairs = tuple(pair for pair in self.pairs if "" not in refused and not {pair.source, pair.target} & refused)
        rekeyed = tuple(
            one for one in self.rekeyed if "" not in refused and not {one.source, *one.own_topics} & refused
        )
        left = {pair.target for pair in pairs}.union(*(one.own_topics for one in rekeyed))
        return replace(
            self,
            pairs=pairs,
            rekeyed=rekeyed,
            creations=tuple(one for one in self.creations if one.topic in left),
            growths=tuple(one for one in self.growths if one.topic in left),
            changes=tuple(one for one in self.changes if one.topic in left),
            findings=self.advice,
            unfollowed=tuple(one for one in self.unfollowed if one.topic in left),
        )

    def leaving(self, topics: Collection[str]) -> TopicPlan:
        """The plan without changes to these existing target topics."""
        return replace(
            self,
            growths=tuple(one for one in self.growths if one.topic not in topics),
            changes=tuple(one for one in self.changes if one.topic not in topics),
            unfollowed=tuple(one for one in self.unfollowed if one.topic not in topics),
        )

    def unfollowed_with(self, unchanged: Mapping[str, MirrorError]) -> dict[str, tuple[Unfollowed, ...]]:
        """By target topic, the settings that do not follow once this was carried out, and left topics `unchanged`."""
        found: dict[str, tuple[Unfollowed, ...]] = {}
        for one in self.unfollowed:
            found[one.topic] = (*found.get(one.topic, ()), one)
        for topic, every in by_topic(self.changes).items():
            if (why := unchanged.get(topic)) is not None:
                more = (Unfollowed(topic, one.name, one.after or "", one.before or "", str(why)) for one in every)
                found[topic] = (*found.get(topic, ()), *more)
        return found

    def refusing(self, findings: Iterable[Finding]) -> TopicPlan:
        """The plan with more findings; changes to topics that one of them refuses are none of it."""
        more = tuple(findings)
        topics = {one.topic for one in more if one.severity is Severity.REFUSE}
        return replace(self.leaving(topics), findings=(*self.findings, *more))

    def without(self, failures: Mapping[str, MirrorError]) -> TopicPlan:
        """The plan without the target topics that could not be made as it says."""
        return self.refusing(
            refused(topic, str(problem), Fix.SELF_EXPLANATORY) for topic, problem in failures.items()
        ).allowed()

    def raise_refusals(self) -> None:
        """`PreflightError` that lists every refusal, if there is one."""
        if self.refusals:
            lines = "\n".join(f"  {finding}" for finding in self.refusals)
            raise PreflightError(f"preflight refused the plan:\n{lines}")


NO_TOPICS: Final = TopicPlan()


def plan_topics(
    source: Admin,
    target: Admin,
    settings: Settings,
    history: History = NO_HISTORY,
    *,
    leave: Collection[str] = (),
    keeps: bool = False,
) -> TopicPlan:
    """Compare both clusters with the settings. Writes nothing; `ClusterError` when a cluster cannot be read. What may
    be changed of the target's topics is for `adoption.Gate` to say.

    Source topics that the flow mirrored under another id into the target topics of now may have another number of
    partitions: their pairs have the target's, so that each of these stops by name. The same holds for the target topics
    to `leave` as they are, by which nothing is changed. `keeps`: no copy gets a setting by which it would keep less.
    """
    source_topics, target_topics, source_id = source.topics(), target.topics(), source.cluster_id()
    selection = select({name: len(info.partitions) for name, info in source_topics.items()}, settings.topics)
    offsets, sync, barred = settings.topics.offsets, settings.sync, (dict[str, MirrorError](), dict[str, MirrorError]())
    may_fill = offsets == "translate" or target.may_write_markers()
    findings = [
        *_source_findings(source_id, target, settings, history, target_topics),
        *selection_findings(selection, source_topics, settings),
        *circle_findings(selection, settings, history, same_cluster(source, target, source_topics, target_topics)),
        *([] if may_fill else [advised("", Fix.GRANT_MARKERS.text(_UNFILLED, {}))]),
        *name_findings(selection, target_topics),
        *moved_findings(selection, settings, history, source_id, target_topics),
    ]
    copied = [pair for pair in selection.pairs if pair.rekeying is None]
    computed = tuple(rekeyed_pairs(settings.flow, selection.pairs))
    frozen = {pair.target for pair in copied if begun_as(pair, source_topics, target_topics, history)} | {*leave}
    pairs = tuple(_left_alone(pair, target_topics) if pair.target in frozen else pair for pair in copied)
    copies = {pair.target: target_topics[pair.target] for pair in pairs if pair.target in target_topics}
    source_configs = source.topic_configs((pair.source for pair in (*pairs, *computed)), barred[0])
    target_configs = target.topic_configs(copies, barred[1])
    written = set[str]().union(*(pair.own_topics for pair in (*pairs, *computed)))
    hidden = target.denied(written - target_topics.keys())
    unread = {pair.source for pair in (*pairs, *computed)} - source_configs.keys()
    lost = copies.keys() - target_configs.keys()
    findings += (*unanswered(unread, settings.source, barred[0]), *unanswered(lost, settings.target, barred[1]))
    seen = [pair for pair in pairs if pair.target not in hidden | lost and pair.source not in unread]
    rekeyed = [pair for pair in computed if pair.source not in unread and not pair.own_topics & hidden]
    may_create = bool(rekeyed) or (sync.topics and any(pair.target not in copies for pair in seen))
    brokers, defaults = target.brokers(), broker_defaults(target) if may_create else {}
    following = [pair for pair in seen if pair.target in copies.keys() - frozen]

    def changes_of(pair: TopicPair) -> Iterator[ConfigChange]:
        configs = target_configs[pair.target], source_configs[pair.source]
        return changes_to(pair.target, *configs, sync, settings.topics.append_time, keeps=keeps)

    changing = [pair for pair in (*seen, *rekeyed) if pair.target not in target_topics]
    changing += (pair for pair in following if any(changes_of(pair)))
    findings += ask_all(source, target, changing, source_configs, target_configs, settings)
    changes, unfollowed = fit_changes(target, (change for pair in following for change in changes_of(pair)))
    for pair in following:
        unfollowed += unknown(pair.target, target_configs[pair.target], source_configs[pair.source], sync)
    growths = tuple(
        Growth(topic=pair.target, before=many, partitions=pair.partitions)
        for pair in following
        if sync.topics and (many := len(copies[pair.target].partitions)) < pair.partitions
    )
    known = Clusters(source_topics, target_topics, source_configs, defaults, brokers)
    rekey_plan = plan_rekeyed(target, settings, rekeyed, known) if rekeyed else RekeyPlan()
    fit = fit_creations(
        target,
        [*_creations(seen, settings, known), *rekey_plan.creations],
        settings.topics.replication_factor,
        {pair.target for pair in (*seen, *rekeyed)},
    )
    created, changed = {one.topic: one for one in fit.made}, by_topic(changes)
    grown = {one.topic: one.partitions for one in growths}
    for pair in seen:
        if (existing := copies.get(pair.target)) is not None:
            fitting = _changed(target_configs[pair.target], changed.get(pair.target, ()))
            shape = grown.get(pair.target, len(existing.partitions)), existing.replication_factor
        elif (creation := created.get(pair.target)) is not None:
            fitting, shape = {**defaults, **creation.configs}, (pair.partitions, creation.replication_factor)
        else:
            findings.append(missing(pair.target))
            continue
        if begun_as(pair, source_topics, target_topics, history):
            continue  # RECREATED: advice on how the copy could fit another topic's settings might empty it
        source_values = plain_values(source_configs[pair.source])
        findings += preflight(source_values, fitting, pair, *shape, offsets=offsets, may_fill=may_fill)
        findings += _on_change(pair.target, target_configs.get(pair.target), fitting)
    return TopicPlan(
        pairs=pairs,
        rekeyed=tuple(_as_created(one, created) for one in rekey_plan.rekeyings),
        rekeyed_pairs=computed,
        creations=fit.made,
        growths=growths,
        changes=tuple(changes),
        findings=(
            *findings,
            *fit.findings,
            *hidden_findings(selection, source, source_topics, settings, target_topics, history, hidden),
            *rekey_plan.findings,
        ),
        source_topics={pair.source: source_topics[pair.source] for pair in pairs},
        target_topics=copies,
        source_configs=source_configs,
        target_configs=target_configs,
        unread=frozenset(unread | lost | rekey_plan.unread),
        unfollowed=(*unfollowed, *fit.unfollowed),
    )


def _creations(pairs: Iterable[TopicPair], settings: Settings, known: Clusters) -> Iterator[Creation]:
    """The copies that are to be created, as they should be."""
    topics, sync = settings.topics, settings.sync
    for pair in pairs:
        if sync.topics and pair.target not in known.target_topics:
            replicas = known.source_topics[pair.source].replication_factor
            yield Creation(
                topic=pair.target,
                partitions=pair.partitions,
                replication_factor=replicas_of(topics.replication_factor, replicas, known.defaults, known.brokers),
                configs=configs_for(known.source_configs[pair.source], known.defaults, sync, topics.append_time),
            )


def _as_created(rekeying: Rekeying, created: Mapping[str, Creation]) -> Rekeying:
    """The rule as it fits those of its topics that are to be created."""
    made = (created[one].configs for one in rekeying.record_topics if one in created)
    limits = (Rules.from_configs(one).max_message_bytes for one in made)
    return replace(rekeying, max_bytes=min((rekeying.max_bytes, *limits)))


def _on_change(topic: str, before: Mapping[str, ConfigValue] | None, after: Mapping[str, str]) -> Iterator[Finding]:
    if before is not None and (warning := shortened(plain_values(before), after)):
        yield advised(topic, warning)


def _left_alone(pair: TopicPair, target_topics: Mapping[str, TopicInfo]) -> TopicPair:
    """The pair with the partitions of its copy, which is not to be changed."""
    copy = target_topics.get(pair.target)
    return pair if copy is None else replace(pair, partitions=len(copy.partitions))


def begun_as(
    pair: TopicPair, source_topics: Mapping[str, TopicInfo], target_topics: Mapping[str, TopicInfo], history: History
) -> FirstSeen | None:
    """As what the source topic was first seen, where it is another one by now and its copy is still that of the first;
    else None.
    """
    seen, copy = history.seen.get(pair.target), target_topics.get(pair.target)
    if seen is None or copy is None or seen.source_topic != pair.source:
        return None
    is_its_copy = same_id(seen.target_topic_id, copy.topic_id)
    return seen if is_its_copy and not same_id(seen.topic_id, source_topics[pair.source].topic_id) else None


def _changed(configs: Mapping[str, ConfigValue], changes: Iterable[ConfigChange]) -> dict[str, str]:
    """A topic's configs after changes; what goes back to a default that is not known here is left as it is."""
    return plain_values(configs) | {one.name: one.after for one in changes if one.after is not None}


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
    that rests on settings which are others by now (G5 in `adoption.py`). A topic that appeared since is left as it is,
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
            names = {topic: {one.name for one in every} for topic, every in by_topic(plan.changes).items()}
            failed |= _outdated(source, target, plan, names)
        changes = [one for one in plan.changes if one.topic not in failed]
        target.alter_configs(changes, unchanged, ids)
        others = [topic for topic, why in unchanged.items() if isinstance(why, PreflightError)]  # by their ids
        failed |= {topic: unchanged.pop(topic) for topic in others}
        for change in changes:
            if change.topic not in failed | unchanged:
                log.info("topic_config_changed", cluster=target.settings.alias, **asdict(change))
        if plan.creations:
            ask()
            failed |= _outdated(source, target, plan, {one.topic: one.configs.keys() for one in plan.creations})
        existed = _create(target, [one for one in plan.creations if one.topic not in failed], failed)
        grown = [one for one in plan.growths if one.topic not in failed]
        if grown:
            ask()
            failed |= _without_source(source, plan, {one.topic for one in grown})
            grown = [one for one in grown if one.topic not in failed]
        target.create_partitions(grown, failed, ids)
    grown = [one for one in grown if one.topic not in failed]
    for growth in grown:
        log.info("partitions_added", cluster=target.settings.alias, **asdict(growth))
    _await_leaders(target, {one.topic: one.partitions for one in grown}, failed)
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
    planned = {one.target: one.source for one in plan.pairs} | {one.target: one.source for one in plan.rekeyed}
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
            if others := sorted(one for one in IN_EFFECT.union(names[copy]) if was.get(one) != found.get(one)):
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
    for name in target.describe([one.progress for one in rekeyed]):
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
        if any(one.setting == "cleanup.policy" for one in left):
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
    for one in own.unfollowed:
        log_setting(flow, one)
    failures: dict[str, MirrorError] = {}
    _create(target, own.made, failures)
    for problem in failures.values():
        raise problem


def log_setting(flow: str, one: Unfollowed) -> None:
    """Log that a setting of a topic is not as its source's, or as the mirror asks for."""
    log.warning("setting_not_followed", flow=flow, **one._asdict())


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
    made = [one for one in creations if one.topic not in failures]
    for creation in made:
        event = "topic_appeared" if creation.topic in existed else "topic_created"
        log.info(event, cluster=target.settings.alias, topic=creation.topic, partitions=creation.partitions)
    _await_leaders(target, {one.topic: one.partitions for one in made if one.topic not in existed}, failures)
    return existed


def _await_leaders(target: Admin, partitions: Mapping[str, int], failures: dict[str, MirrorError]) -> None:
    """Return when each of these topics has that many partitions, and each of them a leader: a broker makes some dozens
    in a second, so what counts is the time since the last one. Those that have none then are `failures`.
    """
    waiting = dict(partitions)
    deadline = clock.monotonic() + _VISIBLE_WITHIN_S
    while waiting:
        for topic, found in target.describe(waiting).items():
            if len(found.partitions) >= waiting[topic] and all(one.leader >= 0 for one in found.partitions):
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


def broker_defaults(target: Admin) -> dict[str, str]:
    """What a new topic gets on this cluster unless set otherwise, as topic configs."""
    try:
        broker = plain_values(target.broker_configs())
    except AccessDenied as error:  # preflight then knows less; the broker still refuses what does not fit
        log.warning("broker_configs_hidden", cluster=target.settings.alias, reason=str(error))
        return dict.fromkeys((AFTER_MAX, BEFORE_MAX), str(NO_LIMIT))
    return {topic: broker[name] for topic, name in _BROKER_NAMES.items() if name in broker}


def _source_findings(
    source_id: str, target: Admin, settings: Settings, history: History, topics: Mapping[str, TopicInfo]
) -> Iterator[Finding]:
    """The flow's copies of another cluster's topics: this one says nothing of what became of those."""
    for seen, made, fix in (
        (history.seen, "mirrored", Fix.OTHER_SOURCE),
        (history.rekeyed, "re-keyed", Fix.OTHER_REKEYED),
    ):
        others = copies_of_others(settings, seen, source_id)
        there = [topics[name] for name in others if name in topics]
        there = [one for one in there if same_id(seen[one.name].target_topic_id, one.topic_id)]
        spans = target.spans(there) if there else {}
        held = sorted({topic for (topic, _), span in spans.items() if span.end > 0})
        if held:
            clusters = first_of(sorted({others[name] for name in held}))
            text = f"{first_of(held)}: {made} from cluster {clusters}, and the source is cluster {source_id}"
            yield refused("", text, fix)


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
