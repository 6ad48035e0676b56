"""A flow that is ready to run: from a configuration through preflight to the rules of each partition."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from mirror.config import Settings, insecure
from mirror.driver.scheduling import MOST_TASKS, epoch_length, task_count
from mirror.errors import ExitCode, MirrorError, PreflightError
from mirror.journal.entries import (
    MAKING,
    FirstSeen,
    Unfollowed,
    loss_entry,
    losses_in,
    moment,
    same_id,
    unfollowed_entries,
    unfollowed_in,
)
from mirror.journal.journal import Journal, journal_topic
from mirror.journal.ownership import OwnershipCheck, refuse_failed_over
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST
from mirror.kafka.topic_configs import plain_values
from mirror.observability import logs
from mirror.observability.status import PartitionStatus
from mirror.policy.remedies import Fix
from mirror.policy.rules import MAX_BYTES, Finding, is_compacted
from mirror.policy.rules import refused as refusal
from mirror.policy.selection import Rekeying, selects
from mirror.replication.assignment import COMPACTION, Assignment, Loss, assign, log_loss
from mirror.states import State
from mirror.topics.adoption import Gate
from mirror.topics.apply import (
    apply,
    ensure_flow_topic,
    ensure_heartbeats,
    keep_progress,
    log_setting,
    rules_from,
    rules_of,
)
from mirror.topics.configs import follows
from mirror.topics.history import History, read_history, read_others, read_own, write_own
from mirror.topics.reconcile import TopicPlan

# --- A flow that is ready to run, and how a run of it ended (values) --------------------------------------------------


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
        """The target partitions that nothing is written to."""
        return (TopicPartition(self.target, number) for number in range(self.first, self.partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What to mirror and how: the outcome of configuration and preflight.

    `groups` must match the whole name of a consumer group for it to be followed, every `groups_seconds`.
    `bytes_per_second` bounds what all tasks fetch together, and `max_delay_ms` for how long a record waits for others;
    `heartbeats`: their topic is there; `made`: target topics
    that were created for it just now. `start`: what the first start begins with, as ListOffsets takes it. `rekeyed`:
    what the re-key query does, topic by topic. `refused`: topics that are left out. `origins`: by source topic, the ids
    of the clusters that its records came through before they were on the source. `take_over`: from a
    mirror that runs. `make_journal` makes the flow's journal where it is gone. `follows`: whether a source topic is of
    the flow, under this name on the target. `elsewhere`: asks what other flows' journals say now.
    """

    name: str
    source: Endpoint
    target: Endpoint
    assignments: tuple[Assignment, ...]
    tasks: int
    epoch_seconds: float
    memory_bytes: int = 0
    once: bool = False
    until_caught_up: bool = False
    groups: tuple[re.Pattern[str], ...] = ()
    groups_seconds: float = 1.0
    bytes_per_second: int | None = None
    max_delay_ms: int = 0
    heartbeats: bool = False
    made: frozenset[str] = frozenset()
    start: int = EARLIEST
    rekeyed: tuple[Rekeying, ...] = ()
    refused: tuple[Refusal, ...] = ()
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    take_over: bool = False
    make_journal: Callable[[], object] = dict
    follows: Callable[[str, str], bool] = lambda _source, _target: True
    elsewhere: Callable[[], History] = History


@dataclass(slots=True)
class RunOutcome:
    """How a run ended.

    `contended` names the other mirror, if one took over; `incomplete` says what a bounded run did not copy;
    `interrupted` is the signal that ended it, or 0. `refused`: topics that were left out in the end.
    """

    figures: dict[TopicPartition, PartitionStatus] = field(default_factory=dict)
    contended: str = ""
    incomplete: str = ""
    interrupted: int = 0
    refused: tuple[Refusal, ...] = ()

    @property
    def stops(self) -> list[PartitionStatus]:
        """The partitions in a state that needs a person."""
        return [figures for figures in self.figures.values() if figures.state.is_stop]

    @property
    def exit_code(self) -> int:
        """Data at risk before an interruption before lost access; 0 only where everything asked for was done."""
        if self.contended or any(figures.state is not State.UNAUTHORIZED for figures in self.stops):
            return ExitCode.DATA_AT_RISK
        if self.incomplete and self.interrupted:
            return 128 + self.interrupted
        if self.stops or self.incomplete:
            return ExitCode.CLUSTER
        return ExitCode.PREFLIGHT if self.refused else ExitCode.DONE


# --- From a configuration to a flow that can run ----------------------------------------------------------------------

_MEGABYTE = 1 << 20


def prepare(
    settings: Settings,
    *,
    once: bool = False,
    until_caught_up: bool = False,
    take_over: bool = False,
    keeps: bool = False,
    refused: Callable[[Finding], None] | None = None,
    start_engine: Callable[[int], None] | None = None,
) -> Flow:
    """Check both clusters, create what is missing on the target, and say what to mirror.

    A flow that was failed over is refused before anything is asked of the source, which may be away for good. A topic
    that is refused, or cannot be made, is left out, and `refused` is called with why; without it that is logged. Where
    nothing else is left, or the whole flow is refused, PreflightError is raised; not where `refused` is given.
    `keeps`: no copy gets a setting by which it would keep less. `start_engine` is called with the number of tasks once
    the plan stands and before anything is made on the target, and may raise what keeps the flow from running.
    Both clusters are those that are found now from here on: no task, round or group follows an address to another one.
    Raises PreflightError, ClusterUnreachable, AccessDenied, MalformedBatch.
    """
    own = asyncio.run(read_own(settings))
    refuse_failed_over(settings.flow, own.newest)
    settings = settings.keeping_to(Admin(settings.source).cluster_id(), own.cluster_id)
    log = logs.get("mirror.preflight")
    for cluster in (settings.source, settings.target):
        for text in insecure(cluster):
            log.warning("insecure", flow=settings.flow, cluster=cluster.alias, text=text)
    source, target = Admin(settings.source), Admin(settings.target)
    history = asyncio.run(read_history(settings, own, source.topic_names(), target.topic_names()))
    gate = Gate(source, target, partial(_log_held, settings.flow), keeps, live=take_over and not once)
    on_refusal = refused or partial(_log_refusal, settings.flow)
    whole, ownership = gate.plan(settings, history), OwnershipCheck(place=own.place)

    def still_ours() -> None:  # it may have been failed over while both clusters were compared
        asyncio.run(ownership.refuse_lost(settings))

    if alone := compacted_alone(whole, history.seen):
        record_compaction(target, whole, settings, places_of(whole, alone), still_ours)
    if refused is None and (not whole.allowed().has_topics or any(not one.topic for one in whole.refusals)):
        whole.raise_refusals()
    log_advice(settings.flow, whole.advice)
    if start_engine is not None:
        planned = sum(len(whole.source_topics[pair.source].partitions) for pair in whole.allowed().pairs)
        start_engine(task_count(settings.spark.tasks, max(1, planned) if once else MOST_TASKS))
    ensure_flow_topic(target, settings.flow, replicas := settings.topics.replication_factor)
    keep_progress(target, whole.rekeyed)

    def check() -> None:
        still_ours()
        record_making(source, target, whole.allowed(), settings, history)

    done, made = apply(target, whole.allowed(), check, source), frozenset[str]()
    if any(isinstance(one, PreflightError) for one in done.failures.values()):  # what appeared meanwhile is looked at
        history, made = asyncio.run(read_history(settings, own, source.topic_names(), target.topic_names())), done.made
        whole = gate.plan(settings, history)
        done = apply(target, whole.allowed(), check, source)
    unfollowed, failures = whole.allowed().unfollowed_with(done.unchanged), done.failures
    for one in chain.from_iterable(unfollowed.values()):
        log_setting(settings.flow, one)
    record_unfollowed(settings, unfollowed_in(own.newest), unfollowed, still_ours)
    plan = whole.allowed().without(failures)
    if refused is None and failures and not plan.has_topics:
        raise next(iter(failures.values()))
    failed = (refusal(topic, str(problem), Fix.SELF_EXPLANATORY) for topic, problem in failures.items())
    for finding in (*whole.refusals, *whole.withheld.values(), *failed):
        on_refusal(finding)
    assignments = assignments_of(target, plan, settings)
    tasks = task_count(settings.spark.tasks, len(assignments) if once else MOST_TASKS)
    flow = Flow(
        name=settings.flow,
        source=Endpoint.of(settings.source),
        target=Endpoint.of(settings.target),
        assignments=assignments,
        tasks=tasks,
        epoch_seconds=epoch_length(settings.spark.epoch_s, len(assignments), tasks),
        once=once,
        until_caught_up=until_caught_up,
        take_over=take_over,
        make_journal=lambda: ensure_flow_topic(Admin(settings.target), settings.flow, replicas),
        elsewhere=lambda: read_others(settings, Admin(settings.source), Admin(settings.target)),
        made=made | done.made,
        start=moment(settings.topics.start),
        heartbeats=ensure_heartbeats(target, settings.flow, replicas),
        rekeyed=plan.rekeyed,
        refused=refused_by(whole, failures),
        origins=history.chains(plan.sources),
    )
    return with_settings(flow, settings)


def refused_by(plan: TopicPlan, failures: Mapping[str, MirrorError] = {}) -> tuple[Refusal, ...]:
    """The topics of a plan that are not mirrored, and why: what preflight refuses, or what could not be made."""
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


def not_begun(flow: str, assignments: Iterable[Assignment], failures: Mapping[str, MirrorError]) -> tuple[Refusal, ...]:
    """The topics among these that could not be begun, and why, which is logged."""
    left = Counter((one.source.topic, one.target.topic) for one in assignments if one.target.topic in failures)
    for _, copy in left:
        _log_refusal(flow, str(failures[copy]))
    return tuple(Refusal(topic, copy, many, str(failures[copy])) for (topic, copy), many in left.items())


def log_advice(flow: str, findings: Iterable[Finding]) -> None:
    """Log what preflight advises."""
    for finding in findings:
        logs.get("mirror.preflight").warning("preflight_advice", flow=flow, topic=finding.topic, text=finding.text)


def _log_refusal(flow: str, reason: object) -> None:
    logs.get("mirror.preflight").error("not_mirrored", flow=flow, reason=str(reason))


def _log_held(flow: str, topic: str, why: str) -> None:
    logs.get("mirror.preflight").warning("topic_left_as_it_is", flow=flow, topic=topic, reason=why)


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
        max_delay_ms=settings.limits.max_delay_ms,
        follows=partial(_follows, settings),
    )


def compacted_alone(plan: TopicPlan, seen: Mapping[str, FirstSeen], before: Collection[str] = ()) -> frozenset[str]:
    """The flow's copies that are compacted, or were `before`, and whose sources are not: their cleaner may remove, or
    have removed, what that of their source keeps, whoever sets them back.
    """
    return frozenset(
        pair.target
        for pair in plan.pairs
        if (known := seen.get(pair.target)) is not None
        and (theirs := plan.target_configs.get(pair.target)) is not None
        and (ours := plan.source_configs.get(pair.source)) is not None
        and known.source_topic == pair.source
        and same_id(known.topic_id, plan.source_topics[pair.source].topic_id)
        and same_id(known.target_topic_id, plan.target_topics[pair.target].topic_id)
        and not is_compacted(plain_values(ours))
        and (pair.target in before or is_compacted(plain_values(theirs)))
    )


def places_of(plan: TopicPlan, copies: Collection[str]) -> frozenset[TopicPartition]:
    """The partitions of these copies."""
    return frozenset(
        TopicPartition(copy, one.partition) for copy in copies for one in plan.target_topics[copy].partitions
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
    copies = {at.topic for at in places}
    spans = target.spans(plan.target_topics[copy] for copy in sorted(copies))
    held = [at for at in sorted(places) if (span := spans.get(at)) is None or span.end > span.start]
    if not held:
        return frozenset()

    async def record() -> list[Loss]:
        async with Cluster(Endpoint.of(settings.target)) as cluster:
            journal = Journal(cluster, settings.flow)
            known = losses_in(await journal.newest())
            losses = [
                Loss(
                    TopicPartition(pairs[at.topic].source, at.partition),
                    at,
                    0,
                    0,
                    COMPACTION,
                    topic_id=plan.source_topics[pairs[at.topic].source].topic_id,
                    target_topic_id=plan.target_topics[at.topic].topic_id,
                )
                for at in held
                if not any(one.reason == COMPACTION for one in known.get(at, ()))
            ]
            await journal.append_all(map(loss_entry, losses))
        return losses

    check()
    for loss in asyncio.run(record()):
        log_loss(loss)
    return frozenset(held)


def record_unfollowed(
    settings: Settings,
    before: Mapping[str, tuple[Unfollowed, ...]],
    now: Mapping[str, tuple[Unfollowed, ...]],
    check: Callable[[], None],
) -> None:
    """Have the journal, which says what was so `before`, say which settings do not follow `now`, for `mirror status`.
    `check` is called right before it is written to. Raises ClusterError, and as `check` does.
    """
    if entries := unfollowed_entries(before, now):
        check()
        asyncio.run(write_own(settings, entries))


def record_making(source: Admin, target: Admin, plan: TopicPlan, settings: Settings, history: History) -> None:
    """Put on record what is about to be created, so that a flow back knows from the first moment on where it comes
    from. Nothing is begun while there is no journal. Raises ClusterError.
    """
    sources = {one.target: one.source for one in plan.pairs} | {one.target: one.source for one in plan.rekeyed}
    made = sorted(sources.keys() & {one.topic for one in plan.creations})
    if not made or not target.describe([journal_topic(settings.flow)]):
        return
    source_id = source.cluster_id()
    named = {
        copy: FirstSeen(
            source_topic=sources[copy],
            topic_id=None,
            target_topic_id=None,
            cluster_id=source_id,
            origins=(source_id, *history.chain(sources[copy])),
        )
        for copy in made
    }
    asyncio.run(write_own(settings, [MAKING.entry(copy, one) for copy, one in named.items()]))


def assignments_of(target: Admin, plan: TopicPlan, settings: Settings) -> tuple[Assignment, ...]:
    """What to mirror when a plan was carried out. Raises ClusterError."""
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
