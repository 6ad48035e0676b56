"""A flow that is ready to run: from a configuration through preflight to the rules of each partition."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from mirror.config import Settings, insecure
from mirror.driver.reconciler import CarriedOut, Reconciler, Refusal, assignments_of
from mirror.driver.scheduling import MOST_TASKS, epoch_length, task_count
from mirror.errors import ExitCode, MirrorError, PreflightError
from mirror.journal.entries import moment, unfollowed_in
from mirror.journal.ownership import OwnershipCheck, refuse_failed_over
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST
from mirror.observability import logs
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import Finding
from mirror.policy.selection import Rekeying, selects
from mirror.replication.assignment import Assignment
from mirror.states import State
from mirror.topics.adoption import Gate
from mirror.topics.apply import ensure_flow_topic, ensure_heartbeats
from mirror.topics.history import History, Own, history_of, read_others, read_own

# --- A flow that is ready to run, and how a run of it ended (values) --------------------------------------------------


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
    settings, own = _opened(settings)
    source, target = Admin(settings.source), Admin(settings.target)
    gate = Gate(source, target, partial(_log_held, settings.flow), keeps, live=take_over and not once)
    on_refusal = refused or partial(_log_refusal, settings.flow)
    whole = gate.plan(settings, history_of(settings, own, source, target))
    ownership = OwnershipCheck(place=own.place)

    def check() -> None:  # the flow may have been failed over while both clusters were compared
        asyncio.run(ownership.refuse_lost(settings))

    reconciler = Reconciler(gate, check, unfollowed_in(own.newest))
    reconciler.record_compaction(whole, settings)
    if refused is None and (not whole.allowed().has_topics or any(not refusal.topic for refusal in whole.refusals)):
        whole.raise_refusals()
    log_advice(settings.flow, whole.advice)
    if start_engine is not None:
        planned = sum(len(whole.source_topics[pair.source].partitions) for pair in whole.allowed().pairs)
        start_engine(task_count(settings.spark.tasks, max(1, planned) if once else MOST_TASKS))
    ensure_flow_topic(target, settings.flow, settings.topics.replication_factor)
    done = reconciler.carry_out(whole, settings)
    if any(isinstance(problem, PreflightError) for problem in done.failures.values()):  # a topic appeared meanwhile
        whole = gate.plan(settings, history_of(settings, own, source, target))
        done = reconciler.carry_out(whole, settings)
    if refused is None and done.failures and not done.plan.has_topics:
        raise next(iter(done.failures.values()))
    for finding in done.findings:
        on_refusal(finding)
    flow = _ready(settings, target, done, once=once)
    return replace(flow, made=frozenset(reconciler.made), until_caught_up=until_caught_up, take_over=take_over)


def _opened(settings: Settings) -> tuple[Settings, Own]:
    """Return the settings for the clusters of now, and the flow's journal. Raises PreflightError for a flow that was
    failed over, and ClusterError, MalformedBatch.
    """
    own = asyncio.run(read_own(settings))
    refuse_failed_over(settings.flow, own.newest)
    settings = settings.keeping_to(Admin(settings.source).cluster_id(), own.cluster_id)
    log = logs.get("mirror.preflight")
    for cluster in (settings.source, settings.target):
        for text in insecure(cluster):
            log.warning("insecure", flow=settings.flow, cluster=cluster.alias, text=text)
    return settings, own


def _ready(settings: Settings, target: Admin, done: CarriedOut, *, once: bool) -> Flow:
    """Return the flow whose plan was carried out."""
    assignments, replicas = assignments_of(target, done.plan, settings), settings.topics.replication_factor
    tasks = task_count(settings.spark.tasks, len(assignments) if once else MOST_TASKS)
    flow = Flow(
        name=settings.flow,
        source=Endpoint.of(settings.source),
        target=Endpoint.of(settings.target),
        assignments=assignments,
        tasks=tasks,
        epoch_seconds=epoch_length(settings.spark.epoch_s, len(assignments), tasks),
        once=once,
        make_journal=partial(_make_journal, settings),
        elsewhere=partial(_elsewhere, settings),
        start=moment(settings.topics.start),
        heartbeats=ensure_heartbeats(target, settings.flow, replicas),
        rekeyed=done.plan.rekeyed,
        refused=done.refused,
        origins=done.plan.history.chains(done.plan.sources),
    )
    return with_settings(flow, settings)


def not_begun(flow: str, assignments: Iterable[Assignment], failures: Mapping[str, MirrorError]) -> tuple[Refusal, ...]:
    """The topics among these that could not be begun, and why, which is logged."""
    left = Counter(
        (assignment.source.topic, assignment.target.topic)
        for assignment in assignments
        if assignment.target.topic in failures
    )
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


def _make_journal(settings: Settings) -> None:
    ensure_flow_topic(Admin(settings.target), settings.flow, settings.topics.replication_factor)


def _elsewhere(settings: Settings) -> History:
    return read_others(settings, Admin(settings.source), Admin(settings.target))


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
