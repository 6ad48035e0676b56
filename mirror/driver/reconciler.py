"""Makes the topics of a flow what they are to be: a start does so once, and a running mirror in rounds.

The plan comes from `adoption.Gate`. What is about to be done is on record in the flow's journal before it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from mirror.config import Settings
from mirror.errors import MirrorError
from mirror.journal.entries import (
    MAKING,
    FirstSeen,
    Unfollowed,
    loss_entry,
    losses_in,
    same_id,
    unfollowed_entries,
    unfollowed_in,
)
from mirror.journal.journal import Journal, journal_topic
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.topic_configs import plain_values
from mirror.policy.remedies import Fix
from mirror.policy.rules import MAX_BYTES, Finding, is_compacted
from mirror.policy.rules import refused as refusal
from mirror.replication.assignment import COMPACTION, Assignment, Loss, assign, log_loss
from mirror.topics.adoption import Gate
from mirror.topics.apply import Applied, apply, keep_progress, log_setting, rules_from, rules_of
from mirror.topics.configs import follows
from mirror.topics.history import read_own, write_own
from mirror.topics.reconcile import TopicPlan


@dataclass(frozen=True, slots=True)
class Refusal:
    """A topic that the flow is to mirror and does not, by both of its names, with as many partitions; 0 where it has no
    copy to report of. `reason` says what to do. Partitions before `first` are mirrored: they had begun.
    """

    source: str
    target: str
    partitions: int
    reason: str
    first: int = 0

    @property
    def places(self) -> Iterator[TopicPartition]:
        """Return the target partitions that nothing is written to."""
        return (TopicPartition(self.target, number) for number in range(self.first, self.partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedOut:
    """Says what became of a plan."""

    #: The plan without the topics that are not as it says.
    plan: TopicPlan
    applied: Applied
    #: Why topics are not mirrored, or not whole.
    findings: tuple[Finding, ...]
    #: The topics that are not mirrored, or not whole.
    refused: tuple[Refusal, ...]

    @property
    def failures(self) -> Mapping[str, MirrorError]:
        """By target topic, why it was not made as planned."""
        return self.applied.failures


@dataclass(slots=True, eq=False)
class Reconciler:
    """Carries out the plans of one flow."""

    gate: Gate
    #: Raises PreflightError where the flow is not this process's any more. Called right before each kind of change.
    check: Callable[[], None]
    #: By target topic, the settings that do not follow, as the journal says; None before it was read.
    unfollowed: Mapping[str, tuple[Unfollowed, ...]] | None = None
    #: Target topics that were created, and that nobody mirrors into yet.
    made: set[str] = field(default_factory=set)
    #: Settings that do not follow, and that were logged.
    _logged: set[Unfollowed] = field(default_factory=set)
    #: Copies that were compacted when the last plan was made.
    _compacted: frozenset[str] = frozenset()
    #: Partitions of copies that are compacted while their sources are not, and that the journal names.
    _on_record: set[TopicPartition] = field(default_factory=set)

    def carry_out(self, whole: TopicPlan, settings: Settings) -> CarriedOut:
        """Make what a plan says on the target. Raises as `apply` does, but for refusals, and as `check` does."""
        source, target, allowed = self.gate.source, self.gate.target, whole.allowed()

        def check() -> None:
            self.check()
            record_making(source, target, allowed, settings)

        keep_progress(target, whole.rekeyed)
        applied = apply(target, allowed, check, source)
        self.made |= applied.made
        self.gate.untimed |= whole.retimed & applied.unchanged.keys()
        self._record_unfollowed(settings, allowed.unfollowed_with(applied.unchanged))
        failed = (refusal(topic, str(problem), Fix.SELF_EXPLANATORY) for topic, problem in applied.failures.items())
        return CarriedOut(
            plan=allowed.without(applied.failures),
            applied=applied,
            findings=(*whole.refusals, *whole.withheld.values(), *failed),
            refused=refused_by(whole, applied.failures),
        )

    def _record_unfollowed(self, settings: Settings, now: Mapping[str, tuple[Unfollowed, ...]]) -> None:
        """Log each setting that does not follow once while that lasts, and have the journal name them for `mirror
        status`.
        """
        if self.unfollowed is None:
            self.unfollowed = unfollowed_in(asyncio.run(read_own(settings)).newest)
            self._logged = set(chain.from_iterable(self.unfollowed.values()))
        unfollowed = set(chain.from_iterable(now.values()))
        for setting in sorted(unfollowed - self._logged):
            log_setting(settings.flow, setting)
        if entries := unfollowed_entries(self.unfollowed, now):
            self.check()
            asyncio.run(write_own(settings, entries))
        self.unfollowed, self._logged = now, unfollowed

    def record_compaction(self, plan: TopicPlan, settings: Settings) -> None:
        """Put copies on record that are compacted while their sources are not: once for each partition while it lasts,
        and once more when it is over, since it may have been accepted in between. So are copies that were compacted at
        the last plan, as their sources were, and neither is now.
        """
        alone, known = compacted_alone(plan, self._compacted), plan.target_configs
        unread = self._compacted - known.keys()
        compacted = unread.union(copy for copy in known if is_compacted(plain_values(known[copy])))
        lasts = alone & compacted | unread
        self._on_record = {partition for partition in self._on_record if partition.topic in lasts}
        if new := places_of(plan, alone) - self._on_record:
            self._on_record |= record_compaction(self.gate.target, plan, settings, new, self.check)
        self._compacted = compacted


def refused_by(plan: TopicPlan, failures: Mapping[str, MirrorError] = {}) -> tuple[Refusal, ...]:
    """Return the topics of a plan that are not mirrored, and why: what preflight refuses, or what could not be made."""
    why = {topic: str(problem) for topic, problem in failures.items()}
    for finding in plan.refusals:
        why.setdefault(finding.topic, finding.text)
    found, reported = list[Refusal](), {""}
    for pair in (*plan.pairs, *plan.rekeyed_pairs):
        names = (pair.target, pair.source, *sorted(pair.own_topics), "")
        if reason := next((why[name] for name in names if name in why), ""):
            found.append(Refusal(pair.source, pair.target, pair.partitions, reason))
            reported.update(names)
        elif (withheld := plan.withheld.get(pair.target)) is not None:
            every = len(plan.source_topics[pair.source].partitions)
            found.append(Refusal(pair.source, pair.target, every, withheld.text, first=pair.partitions))
    return (*found, *(Refusal(topic, topic, 0, text) for topic, text in sorted(why.items()) if topic not in reported))


def compacted_alone(plan: TopicPlan, before: Collection[str]) -> frozenset[str]:
    """Return the flow's copies that are compacted, or were `before`, and whose sources are not: their cleaner may
    remove, or have removed, what that of their source keeps, whoever sets them back.
    """
    return frozenset(
        pair.target
        for pair in plan.pairs
        if (known := plan.history.seen.get(pair.target)) is not None
        and (theirs := plan.target_configs.get(pair.target)) is not None
        and (ours := plan.source_configs.get(pair.source)) is not None
        and known.source_topic == pair.source
        and same_id(known.topic_id, plan.source_topics[pair.source].topic_id)
        and same_id(known.target_topic_id, plan.target_topics[pair.target].topic_id)
        and not is_compacted(plain_values(ours))
        and (pair.target in before or is_compacted(plain_values(theirs)))
    )


def places_of(plan: TopicPlan, copies: Collection[str]) -> frozenset[TopicPartition]:
    """Return the partitions of these copies."""
    return frozenset(
        TopicPartition(copy, partition.partition)
        for copy in copies
        for partition in plan.target_topics[copy].partitions
    )


def record_compaction(
    target: Admin, plan: TopicPlan, settings: Settings, places: Collection[TopicPartition], check: Callable[[], None]
) -> frozenset[TopicPartition]:
    """Put on record that these partitions of copies are or were compacted, and their sources not: nobody expects from
    then on that they lack what these have kept. Those that are on record then: all but what holds nothing, which may
    hold something later. One without a leader may hold something.

    `check` is called right before the journal is written to. Raises ClusterError, and as `check` does.
    """
    pairs = {pair.target: pair for pair in plan.pairs}
    copies = {partition.topic for partition in places}
    spans = target.spans(plan.target_topics[copy] for copy in sorted(copies))
    held = [
        partition for partition in sorted(places) if (span := spans.get(partition)) is None or span.end > span.start
    ]
    if not held:
        return frozenset()

    async def record() -> list[Loss]:
        async with Cluster(Endpoint.of(settings.target)) as cluster:
            journal = Journal(cluster, settings.flow)
            known = losses_in(await journal.newest())
            losses = [
                Loss(
                    TopicPartition(pairs[partition.topic].source, partition.partition),
                    partition,
                    0,
                    0,
                    COMPACTION,
                    topic_id=plan.source_topics[pairs[partition.topic].source].topic_id,
                    target_topic_id=plan.target_topics[partition.topic].topic_id,
                )
                for partition in held
                if not any(lost.reason == COMPACTION for lost in known.get(partition, ()))
            ]
            await journal.append_all(map(loss_entry, losses))
        return losses

    check()
    for loss in asyncio.run(record()):
        log_loss(loss)
    return frozenset(held)


def record_making(source: Admin, target: Admin, plan: TopicPlan, settings: Settings) -> None:
    """Put on record what is about to be created, so that a flow back knows from the first moment on where it comes
    from. Nothing is begun while there is no journal. Raises ClusterError.
    """
    sources = {pair.target: pair.source for pair in plan.pairs} | {
        rekeying.target: rekeying.source for rekeying in plan.rekeyed
    }
    made = sorted(sources.keys() & {creation.topic for creation in plan.creations})
    if not made or not target.describe([journal_topic(settings.flow)]):
        return
    source_id = source.cluster_id()
    named = {
        copy: FirstSeen(
            source_topic=sources[copy],
            topic_id=None,
            target_topic_id=None,
            cluster_id=source_id,
            origins=(source_id, *plan.history.chain(sources[copy])),
        )
        for copy in made
    }
    asyncio.run(write_own(settings, [MAKING.entry(copy, seen) for copy, seen in named.items()]))


def assignments_of(target: Admin, plan: TopicPlan, settings: Settings) -> tuple[Assignment, ...]:
    """Return what to mirror when a plan was carried out. Raises ClusterError."""
    if plan.is_empty:
        known = {topic: plain_values(configs) for topic, configs in plan.target_configs.items()}
        rules = {topic: rules_from(configs, settings.topics) for topic, configs in known.items()}
    else:
        rules = rules_of(target, plan.pairs, settings.topics)
    may_stamp, compacted, stamped = settings.topics.append_time == "target", plan.compacted, plan.stamped
    for pair in plan.pairs:
        of_target = rules[pair.target]
        # a copy that stamps records all the same is not taken for one that may
        is_mistimed = pair.target in plan.retimed if may_stamp else pair.source not in stamped
        rules[pair.target] = replace(
            of_target,
            may_stamp=may_stamp,
            target_append_time=of_target.target_append_time and not is_mistimed,
            mistimes=of_target.target_append_time and is_mistimed,
            size_follows=follows(MAX_BYTES, settings.sync),
            follows_log_start=settings.sync.log_start == "follow" and of_target.deletes,
            tombstones_ms=compacted.get(pair.source),
        )
    return assign(plan.pairs, {name: info.topic_id for name, info in plan.source_topics.items()}, rules)
