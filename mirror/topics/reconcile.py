"""What a flow wants of the topics of its target, what is there, and what is to be done about the difference.

    desired    which topics of the source the settings choose, and what these are like (`DesiredTopics`)
    observed   what the target and the journals have (`ObservedTopics`), and what the target takes of what is asked
    actions    which topics are created, grown and set, and why others are refused (`TopicPlan`)

`observe` asks both clusters and writes nothing, `decide` is pure, and `apply.py` carries a plan out. `adoption.Gate`
says what may be changed of the target's topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mirror.config import Settings
from mirror.errors import MirrorError, PreflightError
from mirror.journal.entries import FirstSeen, Unfollowed, same_id
from mirror.kafka.admin import Admin, Creation, Growth, TopicInfo
from mirror.kafka.topic_configs import ConfigChange, ConfigValue, TopicConfigs, by_topic, plain_values
from mirror.names import first_of
from mirror.policy.remedies import Fix
from mirror.policy.rules import (
    NEEDS_ALTER,
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
from mirror.policy.selection import Rekeying, TopicPair, select
from mirror.topics.configs import changes_to, configs_for, disputes, unknown
from mirror.topics.fitting import Creations, broker_defaults, fit_changes, fit_creations, replicas_of
from mirror.topics.history import NO_HISTORY, History, copies_of_others, hidden_topics
from mirror.topics.naming import hidden_findings, moved_findings, name_findings, selection_findings
from mirror.topics.rekeyed import RekeyPlan, missing, plan_rekeyed, unanswered
from mirror.topics.same_cluster import circle_findings, same_cluster
from mirror.topics.state import DesiredTopics, ObservedTopics, begun_as, left_alone

_UNFILLED = f"a topic with transactions will stop at the first of them: to fill the offsets of markers {NEEDS_ALTER}"


# --- Actions ----------------------------------------------------------------------------------------------------------


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
    #: What journals said.
    history: History = NO_HISTORY
    #: The settings by which it was planned.
    source_configs: TopicConfigs = field(default_factory=dict)
    target_configs: TopicConfigs = field(default_factory=dict)
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
        """Return the source topics that are copied or re-keyed."""
        return [*(pair.source for pair in self.pairs), *(rekeying.source for rekeying in self.rekeyed)]

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
        """Return the findings that forbid to start."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.REFUSE)

    @property
    def advice(self) -> tuple[Finding, ...]:
        """Return the other findings."""
        return tuple(finding for finding in self.findings if finding.severity is not Severity.REFUSE)

    def begun_as(self, pair: TopicPair) -> FirstSeen | None:
        """Return as what the source topic was first seen, if it was recreated since and its copy is still that of the
        first; else None.
        """
        return begun_as(pair, self.source_topics, self.target_topics, self.history)

    def shortened(self, topic: str) -> str:
        """Return what is to be said of a copy that deletes more once it is changed; empty where it does not."""
        configs = self.target_configs.get(topic, {})
        return shortened(
            plain_values(configs), _changed(configs, (change for change in self.changes if change.topic == topic))
        )

    def allowed(self) -> TopicPlan:
        """Return the plan without the topics that preflight refuses; of no topic where it refuses the whole flow."""
        refused = {finding.topic for finding in self.refusals}
        pairs = tuple(pair for pair in self.pairs if not {"", pair.source, pair.target} & refused)
        rekeyed = tuple(rule for rule in self.rekeyed if not {"", rule.source, *rule.own_topics} & refused)
        left = {pair.target for pair in pairs}.union(*(rule.own_topics for rule in rekeyed))
        creations = tuple(creation for creation in self.creations if creation.topic in left)
        plan = replace(self, pairs=pairs, rekeyed=rekeyed, creations=creations, findings=self.advice)
        return plan._changing(left.__contains__)

    def leaving(self, topics: Collection[str]) -> TopicPlan:
        """Return the plan without changes to these existing target topics."""
        return self._changing(lambda topic: topic not in topics)

    def _changing(self, may_change: Callable[[str], bool]) -> TopicPlan:
        return replace(
            self,
            growths=tuple(growth for growth in self.growths if may_change(growth.topic)),
            changes=tuple(change for change in self.changes if may_change(change.topic)),
            unfollowed=tuple(setting for setting in self.unfollowed if may_change(setting.topic)),
        )

    def unfollowed_with(self, unchanged: Mapping[str, MirrorError]) -> dict[str, tuple[Unfollowed, ...]]:
        """By target topic, the settings that do not follow once this was carried out, and left topics `unchanged`."""
        found: dict[str, tuple[Unfollowed, ...]] = {}
        for unfollowed in self.unfollowed:
            found[unfollowed.topic] = (*found.get(unfollowed.topic, ()), unfollowed)
        for topic, every in by_topic(self.changes).items():
            if (why := unchanged.get(topic)) is not None:
                more = (
                    Unfollowed(topic, change.name, change.after or "", change.before or "", str(why))
                    for change in every
                )
                found[topic] = (*found.get(topic, ()), *more)
        return found

    def refusing(self, findings: Iterable[Finding]) -> TopicPlan:
        """Return the plan with more findings; changes to topics that one of them refuses are none of it."""
        more = tuple(findings)
        topics = {finding.topic for finding in more if finding.severity is Severity.REFUSE}
        return replace(self.leaving(topics), findings=(*self.findings, *more))

    def without(self, failures: Mapping[str, MirrorError]) -> TopicPlan:
        """Return the plan without the target topics that could not be made as it says."""
        return self.refusing(
            refused(topic, str(problem), Fix.SELF_EXPLANATORY) for topic, problem in failures.items()
        ).allowed()

    def raise_refusals(self) -> None:
        """`PreflightError` that lists every refusal, if there is one."""
        if self.refusals:
            lines = "\n".join(f"  {finding}" for finding in self.refusals)
            raise PreflightError(f"preflight refused the plan:\n{lines}")


NO_TOPICS: Final = TopicPlan()


def _changed(configs: Mapping[str, ConfigValue], changes: Iterable[ConfigChange]) -> dict[str, str]:
    """Return a topic's configs after changes; a default that is not known here leaves a setting as it is."""
    return plain_values(configs) | {change.name: change.after for change in changes if change.after is not None}


# --- Observe ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsObservation:
    """Both states of a flow's topics, and what the target takes of what makes the one the other."""

    desired: DesiredTopics
    observed: ObservedTopics
    #: What re-keyed topics need.
    rekeyed: RekeyPlan
    #: The topics that are to be created, as the target would create them.
    fit: Creations
    #: The changes of settings, as the target takes them.
    changes: tuple[ConfigChange, ...]
    #: Settings of copies that do not follow.
    unfollowed: tuple[Unfollowed, ...]
    #: Advice on settings that the source's brokers do not agree on.
    disputes: tuple[Finding, ...]


def observe(
    source: Admin, target: Admin, settings: Settings, history: History = NO_HISTORY, *, keeps: bool = False
) -> TopicsObservation:
    """Ask both clusters about a flow's topics. `keeps`: no copy gets a setting by which it would keep less. Writes
    nothing; raises ClusterError when a cluster cannot be read.
    """
    desired, observed = _states(source, target, settings, history)
    readable = observed.readable(desired.pairs, desired)
    following = [
        pair
        for pair in readable
        if pair.rekeying is None and pair.target in observed.topics and not _begun_as(pair, desired, observed)
    ]

    def changes() -> Iterator[ConfigChange]:
        for pair in following:
            configs = observed.configs[pair.target], desired.configs[pair.source]
            yield from changes_to(pair.target, *configs, settings.sync, settings.topics.append_time, keeps=keeps)

    changed = {change.topic for change in changes()}
    changing = [pair for pair in readable if pair.target not in observed.topics or pair.target in changed]
    now = source.topic_configs_now([pair.source for pair in changing])
    desired = replace(desired, configs={**desired.configs, **now})
    now = target.topic_configs_now([pair.target for pair in changing if pair.target in observed.topics])
    observed = replace(observed, configs={**observed.configs, **now})
    taken, unfollowed = fit_changes(target, changes())
    for pair in following:
        configs = observed.configs[pair.target], desired.configs[pair.source]
        unfollowed += unknown(pair.target, *configs, settings.sync)
    rekeyed = plan_rekeyed(desired, observed, [pair for pair in readable if pair.rekeying is not None])
    return TopicsObservation(
        desired=desired,
        observed=observed,
        rekeyed=rekeyed,
        fit=fit_creations(
            target,
            [*_creations(readable, desired, observed), *rekeyed.creations],
            settings.topics.replication_factor,
            {pair.target for pair in readable},
        ),
        changes=tuple(taken),
        unfollowed=tuple(unfollowed),
        disputes=tuple(disputes(changing, desired.configs, settings)),
    )


def _states(source: Admin, target: Admin, settings: Settings, history: History) -> tuple[DesiredTopics, ObservedTopics]:
    source_topics, target_topics = source.topics(), target.topics()
    selection = select({name: len(info.partitions) for name, info in source_topics.items()}, settings.topics)
    desired = DesiredTopics(
        settings=settings, cluster_id=source.cluster_id(), topics=source_topics, selection=selection
    )
    findings = tuple(_cluster_findings(source, target, desired, target_topics, history))
    barred = dict[str, MirrorError](), dict[str, MirrorError]()
    pairs = desired.pairs
    desired = replace(
        desired, configs=source.topic_configs((pair.source for pair in pairs), barred[0]), denied=barred[0]
    )
    written = set[str]().union(*(pair.own_topics for pair in pairs))
    progress = {pair.rekeying.progress for pair in pairs if pair.rekeying is not None}
    existing = (written - progress) & target_topics.keys()
    configs = target.topic_configs(existing, barred[1])
    observed = ObservedTopics(
        history=history,
        topics=target_topics,
        configs=configs,
        denied=barred[1],
        hidden=target.denied(written - target_topics.keys()),
        hidden_sources=tuple(hidden_topics(settings, source, history.seen, source_topics, target_topics).values()),
        unread=frozenset(existing - configs.keys()),
        may_fill=settings.topics.offsets == "translate" or target.may_write_markers(),
        findings=findings,
    )
    readable = observed.readable(pairs, desired)
    computed = [pair for pair in readable if pair.rekeying is not None]
    copies = [target_topics[pair.target] for pair in computed if pair.target in target_topics]
    may_create = bool(computed) or (settings.sync.topics and any(p.target not in target_topics for p in readable))
    return desired, replace(
        observed,
        filled=frozenset(topic for (topic, _), span in target.spans(copies).items() if span.end)
        if copies
        else frozenset(),
        brokers=target.brokers(),
        defaults=broker_defaults(target) if may_create else {},
    )


def _cluster_findings(
    source: Admin, target: Admin, desired: DesiredTopics, target_topics: Mapping[str, TopicInfo], history: History
) -> Iterator[Finding]:
    """Say where the source is another cluster than the flow's copies come from, which says nothing of what became of
    their topics, and where both clusters are one.
    """
    for seen, made, fix in (
        (history.seen, "mirrored", Fix.OTHER_SOURCE),
        (history.rekeyed, "re-keyed", Fix.OTHER_REKEYED),
    ):
        others = copies_of_others(desired.settings, seen, desired.cluster_id)
        copies = [target_topics[name] for name in others if name in target_topics]
        copies = [copy for copy in copies if same_id(seen[copy.name].target_topic_id, copy.topic_id)]
        spans = target.spans(copies) if copies else {}
        if held := sorted({topic for (topic, _), span in spans.items() if span.end > 0}):
            clusters = first_of(sorted({others[name] for name in held}))
            text = f"{first_of(held)}: {made} from cluster {clusters}, and the source is cluster {desired.cluster_id}"
            yield refused("", text, fix)
    if (same := same_cluster(source, target, desired.topics, target_topics)) is not None:
        yield same


# --- Decide (pure) ----------------------------------------------------------------------------------------------------


def decide(seen: TopicsObservation, leave: Collection[str] = ()) -> TopicPlan:
    """Return what is to be done. Nothing is changed of the target topics to `leave`.

    Source topics that the flow mirrored under another id into the target topics of now may have another number of
    partitions: their pairs have the target's, so that each of these stops by name. So have those of topics to `leave`.
    """
    desired, observed = seen.desired, seen.observed
    recreated = {pair.target for pair in desired.copied if _begun_as(pair, desired, observed)}
    frozen = recreated | {*leave}
    pairs = tuple(left_alone(pair, observed.topics) if pair.target in frozen else pair for pair in desired.copied)
    copies = {pair.target: observed.topics[pair.target] for pair in pairs if pair.target in observed.topics}
    readable = observed.readable(pairs, desired)
    growths = tuple(
        Growth(topic=pair.target, before=partitions, partitions=pair.partitions)
        for pair in readable
        if desired.settings.sync.topics and pair.target in copies.keys() - frozen
        if (partitions := len(copies[pair.target].partitions)) < pair.partitions
    )
    created = {creation.topic: creation for creation in seen.fit.made}
    plan = TopicPlan(
        pairs=pairs,
        rekeyed=tuple(_as_created(rule, created) for rule in seen.rekeyed.rekeyings),
        rekeyed_pairs=tuple(desired.rekeyed),
        creations=seen.fit.made,
        growths=growths,
        changes=tuple(change for change in seen.changes if change.topic not in frozen),
        history=observed.history,
        source_topics={pair.source: desired.topics[pair.source] for pair in pairs},
        target_topics=copies,
        source_configs=desired.configs,
        target_configs={copy: observed.configs[copy] for copy in copies if copy in observed.configs},
        unread=frozenset(desired.unread | observed.unread),
        unfollowed=tuple(
            unfollowed for unfollowed in (*seen.unfollowed, *seen.fit.unfollowed) if unfollowed.topic not in frozen
        ),
    )
    findings = (
        *_selection_findings(desired, observed),
        *(finding for finding in seen.disputes if finding.topic not in frozen),
        *_fitting_findings(plan, [pair for pair in readable if pair.target not in recreated], seen),
        *seen.fit.findings,
        *hidden_findings(desired, observed),
        *seen.rekeyed.findings,
    )
    return replace(plan, findings=findings)


def _selection_findings(desired: DesiredTopics, observed: ObservedTopics) -> Iterator[Finding]:
    yield from observed.findings
    yield from selection_findings(desired.selection, desired.topics, desired.settings)
    yield from circle_findings(desired.selection, desired.settings, observed.history)
    if not observed.may_fill:
        yield advised("", Fix.GRANT_MARKERS.text(_UNFILLED, {}))
    yield from name_findings(desired.selection, observed.topics)
    yield from moved_findings(desired, observed)
    yield from unanswered(desired.unread, desired.settings.source, desired.denied)
    yield from unanswered(observed.unread, desired.settings.target, observed.denied)


def _fitting_findings(plan: TopicPlan, pairs: Iterable[TopicPair], seen: TopicsObservation) -> Iterator[Finding]:
    """Say how these copies will fit their sources, once the plan is carried out. Of a copy whose source was recreated
    nothing is said: it might be emptied to fit another topic's settings.
    """
    observed, offsets = seen.observed, seen.desired.settings.topics.offsets
    created = {creation.topic: creation for creation in plan.creations}
    changed, grown = by_topic(plan.changes), {growth.topic: growth.partitions for growth in plan.growths}
    for pair in pairs:
        topic = pair.target
        if (existing := observed.topics.get(topic)) is not None:
            fitting = _changed(observed.configs[topic], changed.get(topic, ()))
            shape = grown.get(topic, len(existing.partitions)), existing.replication_factor
        elif (creation := created.get(topic)) is not None:
            fitting, shape = {**observed.defaults, **creation.configs}, (pair.partitions, creation.replication_factor)
        else:
            yield missing(topic)
            continue
        source_values = plain_values(plan.source_configs[pair.source])
        yield from preflight(source_values, fitting, pair, *shape, offsets=offsets, may_fill=observed.may_fill)
        if existing is not None and (warning := shortened(plain_values(observed.configs[topic]), fitting)):
            yield advised(topic, warning)


def _creations(pairs: Iterable[TopicPair], desired: DesiredTopics, observed: ObservedTopics) -> Iterator[Creation]:
    """Yield the copies that are to be created, as they should be."""
    topics, sync = desired.settings.topics, desired.settings.sync
    for pair in pairs:
        if pair.rekeying is None and sync.topics and pair.target not in observed.topics:
            replicas = desired.topics[pair.source].replication_factor
            yield Creation(
                topic=pair.target,
                partitions=pair.partitions,
                replication_factor=replicas_of(
                    topics.replication_factor, replicas, observed.defaults, observed.brokers
                ),
                configs=configs_for(desired.configs[pair.source], observed.defaults, sync, topics.append_time),
            )


def _as_created(rekeying: Rekeying, created: Mapping[str, Creation]) -> Rekeying:
    """Return the rule as it fits those of its topics that are to be created."""
    made = (created[topic].configs for topic in rekeying.record_topics if topic in created)
    limits = (Rules.from_configs(configs).max_message_bytes for configs in made)
    return replace(rekeying, max_bytes=min((rekeying.max_bytes, *limits)))


def _begun_as(pair: TopicPair, desired: DesiredTopics, observed: ObservedTopics) -> bool:
    return begun_as(pair, desired.topics, observed.topics, observed.history) is not None


def plan_topics(source: Admin, target: Admin, settings: Settings, history: History = NO_HISTORY) -> TopicPlan:
    """Observe and decide. Raises as `observe` does."""
    return decide(observe(source, target, settings, history))
