"""The driver: one Spark job after another, each as long as the plan stays the same; every task tails its partitions.

- What is true is in the target; the supervisor holds nothing that its successor would need.
- Of two mirrors of a flow one runs, the other stands by (`journal/ownership.py`), unless it is to take over: then it
  writes its claim into the journal, and the one before, when it reads that, ends as FENCED. Where both run all the
  same, they append the same batches under the same numbers, which is harmless (invariant P3 in
  `replication/decide.py`). Nobody stands by with a flow that is prepared: while another mirror runs it, topics are made
  anew, and settings change. Who finds one at work prepares the flow anew when that has ended (`commands/run.py`).
- A partition that stopped is checked again in the next epoch, from its logs, so that mending the cause is enough. What
  must not be mended by waiting is kept in the journal: the topic id under which a source topic was first seen, where it
  began to be mirrored, and the stops that only a person lifts (`assignment.STANDING`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

from pyspark import SparkContext

from mirror import clock
from mirror.config import Settings
from mirror.driver.flow import Flow, RunOutcome, not_begun, with_settings
from mirror.driver.gone_topics import GoneTopics
from mirror.driver.journal_state import JournalState
from mirror.driver.reconciler import Refusal
from mirror.driver.reports import (
    Headway,
    StopLog,
    forget,
    has_caught_up,
    is_under_way,
    left_of,
    left_out,
    log_epoch,
    paused_of,
    paused_report,
    reports_in,
    stopped_before,
    unfinished_of,
    unreported,
    with_places,
)
from mirror.driver.scheduling import Limits, are_even, rates_of, split_rate, tasks_of
from mirror.driver.start import bounded, record_starts, recorded, warn_of_open
from mirror.driver.topic_watcher import NewPlan, TopicWatcher
from mirror.errors import ClusterError, MalformedBatch, MirrorError, PreflightError, WireError
from mirror.groups.follower import GroupFollower
from mirror.groups.sync import sync_of
from mirror.groups.terms import terms_of
from mirror.journal import ownership
from mirror.journal.entries import COPIES, REKEYED, Accepted, FirstSeen, PendingStart, same_id
from mirror.journal.heartbeats import Heart
from mirror.journal.journal import Journal
from mirror.journal.offset_maps import forget_expired
from mirror.journal.ownership import FailedOver, Garbled, Owner, Taken
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, ends_and_starts, listed
from mirror.names import first_of
from mirror.observability import logs
from mirror.observability.metrics import Metrics
from mirror.observability.status import PREFIX as STATE
from mirror.observability.status import PartitionStatus, has_reports
from mirror.replication.assignment import POSSIBLE, Assignment, LastPosition
from mirror.replication.partition_writer import PartitionCounters
from mirror.spark.jobs import Epochs, tasks_for
from mirror.spark.rekey.driver import WATCH_SECONDS
from mirror.spark.rekey.queries import Queries
from mirror.spark.task import TaskResult
from mirror.states import State

_log = logs.get("mirror.supervisor")

# --- Work that a mirror which is to end does not wait for -------------------------------------------------------------


async def unless(stopping: asyncio.Event, work: Coroutine[object, object, object]) -> None:
    """Do it, unless `stopping` is set before it is done: then it is cancelled, and nothing is said. Raises what it
    raises.
    """
    doing, stop = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    try:
        if not stopping.is_set():
            await asyncio.wait([doing, stop], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
    finally:
        for task in (doing, stop):
            task.cancel()
        await asyncio.wait([doing, stop])
        _ = doing.cancelled() or doing.exception()  # looked at: what it met on its way out is of no interest


# --- The driver -------------------------------------------------------------------------------------------------------

#: Rounds of watching after which what is paused is reported again.
REPORT_ROUNDS: Final = 10
#: Between epochs that end at once without having moved anything.
IDLE_PAUSE: Final = 2.0
#: Epochs in which a bounded copy may make no headway before it gives up.
IDLE_EPOCHS: Final = 2
#: Between two questions where the source ends of partitions that nobody copies now, and how long an answer may take.
ENDS_SECONDS: Final = 3.0
ENDS_TIMEOUT: Final = 2.0
#: Epochs without headway after which a warning says so, and again after as many more.
IDLE_WARNING: Final = 3

#: What people did: losses accepted, what stands until they lift it, copies that they confirmed. Stops stand, and losses
#: of which nobody knows whether they are any, by the keys of their records.
Acts = tuple[dict[TopicPartition, Accepted], frozenset[TopicPartition | bytes], dict[TopicPartition, LastPosition]]
Watch = Callable[[Mapping[TopicPartition, PartitionStatus]], None]


class Supervisor:
    """Runs one flow until it is done, stopped, or taken over."""

    def __init__(
        self,
        context: SparkContext,
        flow: Flow,
        watch: Watch,
        metrics: Metrics | None = None,
        topic_watcher: TopicWatcher | None = None,
        queries: Queries | None = None,
        listening: Callable[[], None] = lambda: None,
        begun: Callable[[], object] = lambda: None,
    ) -> None:
        """`watch` is called about once a second; `metrics` learns all that there is to report; `topic_watcher` finds
        what is new while the mirror runs: a bounded copy needs none. `queries` re-key what no task copies. `listening`
        is called when signals end this mirror and nothing else, `begun` when the flow is this mirror's.
        """
        self._listening, self._begun, self._has_terminal = listening, begun, os.isatty(0)
        self._queries = queries or Queries()
        self._flow, self._watch, self._metrics = flow, watch, metrics or Metrics(flow.name)
        self._source, self._target = Cluster(flow.source), Cluster(flow.target)
        self._journal = Journal(self._target, flow.name)
        self._instance = uuid.uuid4().hex[:12]
        self._reporter = flow.name, self._instance  # as reports name it
        self._all_counters: dict[TopicPartition, PartitionCounters] = {}
        self._number = 0  # of the epoch under way
        self._planned: dict[TopicPartition, int] = {}
        self._left_out: dict[TopicPartition, str] = {}
        self._plan(flow.assignments)
        self._topic_watcher = topic_watcher
        self._next: NewPlan | None = None
        self._adopting = asyncio.Lock()
        self._paused = frozenset[str]()
        self._obeyed: Acts = {}, frozenset(), {}  # what the epoch under way knows of
        self._groups: GroupFollower | None = None
        self._caught_up, self._groups_left = False, ""
        self._unheard = list[str]()
        self._refused: tuple[Refusal, ...] = flow.refused
        self._reports_before: dict[bytes, bytes] = {}
        self._gone = GoneTopics(self._source, self._target, self._instance)
        self._sound: set[TopicPartition] = set()  # by source, found to be so by a task of this process
        self._stopping = asyncio.Event()
        self._early = asyncio.Event()  # the epoch under way is to end: another plan, or the end of all
        self._stops, self._headway, self._outcome = StopLog(), Headway(), RunOutcome()
        self._journal_state = JournalState(
            flow.name,
            self._instance,
            self._taken_over,
            self._failed_over,
            self._metrics,
            on_lost=self._early.set,  # what the journal lost is written again when no task writes
            make_journal=flow.make_journal,
            is_planned=self._is_planned,
        )
        self._jobs = Epochs(
            context,
            flow.name,
            flow.epoch_seconds,
            self._early,
            on_failure=self._metrics.epoch_failed,
            hear=self._journal_state.hear,
            goes_on=self._goes_on,
            is_bounded=flow.once,
        )

    async def run(self) -> RunOutcome:
        """Epoch after epoch. Raises ClusterUnreachable and AccessDenied where a cluster cannot be used at the start,
        and FlowRuns where another mirror runs the flow, which is not to be taken over: what is prepared is old when
        that one ends.
        """
        self._listen()
        async with self._source as source, self._target as target:
            # before the claim: whoever cannot use a cluster leaves the flow to others
            await source.refresh(_source_topics(self._assignments))
            await target.refresh({copy.topic for copy in self._places.values()})
            taken = await ownership.take(self._journal, self._instance, self._stopping, take_over=self._flow.take_over)
            if taken is None:
                self._conclude()
                return self._outcome
            starts = await self._begin(taken)
            self._groups = groups = self._followed_groups()
            beside = [asyncio.create_task(work) for work in self._works(groups)]
            for task in beside:  # one that ends by itself failed, which is raised when the mirror has ended
                task.add_done_callback(lambda _: self._stop())
            self._queries.start(
                self._stopping, self._stop, self._journal_state, self._reports_before, starts, self._rekey_limits
            )
            try:
                await self._epochs()
                if not (self._flow.once or self._stopping.is_set()):  # never 0 then: whoever watches starts it again
                    raise RuntimeError(f"{self._flow.name}: the mirror ended though nobody asked it to")
                await self._queries.ended()
                if not self._outcome.contended:
                    with contextlib.suppress(TimeoutError):  # where the last records went; groups show what hinders
                        async with asyncio.timeout(WATCH_SECONDS):
                            await self._journal_state.read(self._journal)
                    self._groups_left = await groups.finish(self._haste())
            finally:
                await self._queries.cancel()
                await _cancelled(beside)
            await self._ask_ends_last()
            # who reads it believes that no task writes any more
            if not (self._jobs.may_run_on or self._journal_state.is_followed):
                await ownership.sign_off(self._journal, self._instance)
        self._conclude()
        return self._outcome

    def _haste(self) -> asyncio.Event:
        """What cuts the last round of groups short: a copy that has caught up is in no haste, unless asked to end."""
        return asyncio.Event() if self._caught_up and not self._outcome.interrupted else self._stopping

    async def _begin(self, taken: Taken) -> Mapping[str, PendingStart]:
        """Settle what to mirror, have the journal name it, and return where re-keyed topics without a plan begin."""
        self._journal_state.begin(taken)
        self._journal.clearance = self._journal_state.clearance(self._journal)
        self._begun()
        flow, known = self._flow, taken.seen.values
        made = (assignment.target for assignment in self._assignments if assignment.target.topic in flow.made)
        anew = {PartitionStatus.key_of(*partition) for partition in made}
        start = EARLIEST if has_reports(known) else flow.start
        self._reports_before = {key: known[key] for key in known if key.startswith(STATE) and key not in anew}
        await self._name_all(start)
        starts = await record_starts(self._source, self._journal, flow.rekeyed, known, start, flow.follows)
        # where it begins is on record before any report
        await self._forget_others(known)
        await self._report_gone(known)
        if flow.once:
            bounded_assignments, self._left_out = await bounded(self._source, flow.name, self._assignments)
            self._plan(bounded_assignments)
        return starts

    def _followed_groups(self) -> GroupFollower:
        reports = self._journal_state.live, self._outcome.figures
        groups, runs = self._flow.groups, self._journal_state.runs
        return GroupFollower(
            sync_of(self._source, self._target, groups, self._assignments, reports, runs),
            self._journal,
            self._instance,
            self._flow.groups_seconds,
            self._metrics.groups_followed,
            partial(self._journal_state.may_go_on, self._journal),
        )

    def _works(self, groups: GroupFollower) -> Iterator[Coroutine[object, object, None]]:
        """Yield what goes on beside the epochs."""
        yield from (self._watch_journal(), groups.run(), self._watch_ends())
        yield self._jobs.engine.watch()  # one that hangs is no less lost where re-key queries alone wait for it
        if self._topic_watcher is not None:
            yield self._topic_watcher.run(self)
        if self._flow.heartbeats:
            yield Heart(self._target, self._flow.name, self._instance, self._newest).run()

    async def _name_all(self, start: int) -> None:
        """Have the journal name all that is mirrored. Raises as `recorded` does, where nothing is left to mirror."""
        flow, failures = self._flow, dict[str, MirrorError]()
        known, begins = self._journal_state.topics, (failures, flow.made, start, flow.origins, flow.elsewhere)
        self._plan(await recorded(self._source, self._journal, self._assignments, known, *begins))
        if failures and not (self._assignments or flow.rekeyed):
            raise next(iter(failures.values()))
        self._refused += not_begun(flow.name, flow.assignments, failures)

    async def _hear_all(self) -> None:
        """Of a bounded copy nobody knows that it has all, while a broker is silent that may lead by now."""
        if self._flow.once or self._flow.until_caught_up:
            try:
                await self._source.require_all()
            except ClusterError as problem:
                self._unheard = [str(problem)]

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        self._listening()

    async def _epochs(self) -> None:
        idle, is_written = 0, True
        while not self._stopping.is_set():
            self._early.clear()
            await self._adopt()
            if self._stopping.is_set():
                return
            try:
                await self._journal_state.rewrite(self._journal)
            except ClusterError as problem:
                _log.warning("journal_not_rewritten", flow=self._flow.name, reason=str(problem))
            await self._report_paused()
            if not (left := self._unfinished()) and self._flow.once:
                return  # what is left to do, if anything, the queries do
            began = clock.monotonic()
            if not (active := [assignment for assignment in left if assignment.source.topic not in self._paused]):
                if self._flow.once:
                    return
                await self._pause(self._flow.epoch_seconds)
                continue
            results, unseen = await self._epoch(self._number, active), {assignment.source for assignment in active}
            figures = self._outcome.figures
            for result in results:
                partition = result.figures.source
                unseen.discard(partition)
                figures[partition] = self._journal_state.receive(result.figures, result.last)
                self._all_counters[partition] = result.counters
            self._judge(figures.values())
            self._metrics.learn(figures.values())
            self._watch(figures)
            blind = {partition: figures[partition].with_end(None) for partition in unseen & figures.keys()}
            log_epoch(self._flow.name, self._number, clock.monotonic() - began, (figures | blind).values())
            self._stops.log(figures.values())
            if results:  # an epoch that failed as a whole says nothing about what hinders tasks
                idle = 0 if self._headway.made(figures) else idle + 1
                is_written = all(result.is_written for result in results)
                self._warn_of_no_headway(idle)
            if self._flow.once and idle >= IDLE_EPOCHS:
                return
            self._number += 1
            early = began + self._flow.epoch_seconds - clock.monotonic()
            if idle and early > 0 and self._unfinished():
                # It ended early of itself and moved nothing: only stops are left, or something hinders every task.
                # A stop that the journal lacks is known to nobody else: the next epoch writes it there.
                await self._pause(early if self._all_stopped() and is_written else min(early, IDLE_PAUSE))
            await unless(self._stopping, self._refreshed())
            with contextlib.suppress(ClusterError):  # the next epoch's end will do as well
                await forget_expired(self._journal, self._journal_state.runs)

    def _plan(self, assignments: Iterable[Assignment]) -> None:
        self._assignments = list(assignments)
        self._places = {assignment.source: assignment.target for assignment in self._assignments}

    @property
    def assignments(self) -> Sequence[Assignment] | None:
        """What is mirrored now; None while a plan that was found waits to be adopted."""
        return self._assignments if self._next is None else None

    @property
    def owner(self) -> Owner | None:
        """Our claim of the flow, once it was taken."""
        return self._journal_state.owner

    @property
    def seen(self) -> Mapping[str, FirstSeen]:
        """By target topic, as what its source was first seen."""
        return COPIES.newest(self._journal_state.topics)

    @property
    def sound(self) -> Collection[str]:
        """The target topics whose every partition a task of this process found to be its source's, or copied to, and
        that no task stopped for since; a source that is gone aside. No task looks at one that is paused.
        """
        return {assignment.target.topic for assignment in self._assignments} - {
            assignment.target.topic
            for assignment in self._assignments
            if assignment.source not in self._sound or assignment.source.topic in self._journal_state.paused
        }

    async def refuse(self, refused: Sequence[Refusal]) -> None:
        """These topics are left out for now; those that were, and are neither mirrored nor refused any more, are
        forgotten.
        """
        rekeys = self._queries.rekeys  # of what is re-keyed by now its query reports
        before = [refusal for refusal in self._refused if not rekeys(refusal.source)]
        now = self._with_places(refusal for refusal in refused if not rekeys(refusal.source))
        if now == self._refused:
            return
        self._refused = now
        copies = {assignment.target for assignment in self._assignments}
        places = {place for refusal in before for place in refusal.places}
        places -= {place for refusal in now for place in refusal.places}
        try:
            await self._journal.append_all((PartitionStatus.key_of(*place), None) for place in sorted(places - copies))
        except ClusterError as problem:  # `status` shows them until the next start
            _log.warning("refusals_not_forgotten", flow=self._flow.name, reason=str(problem))
        await self._report_refusals()

    def _with_places(self, refused: Iterable[Refusal]) -> tuple[Refusal, ...]:
        """Those of topics that no plan sees, with the partitions that were mirrored before; not of what is reported
        otherwise: mirrored, or gone.
        """
        otherwise = {partition.topic for partition in (*self._places, *self._gone.figures)}
        left = (status for status in reports_in(self._reports_before) if self._follows(status))
        return with_places(refused, (status for status in left if status.topic not in otherwise))

    def _follows(self, status: PartitionStatus) -> bool:
        return self._flow.follows(status.topic, status.target_topic)

    def _left_out_now(self) -> list[PartitionStatus]:
        known = self._reports_before
        found = [status for refusal in self._refused for status in left_out(refusal, known, *self._reporter)]
        return [*found, *self._gone_now().values()]

    def _gone_now(self) -> dict[TopicPartition, PartitionStatus]:
        """What went, unless it is mirrored by now."""
        gone, rekeys = self._gone.figures.items(), self._queries.rekeys
        return {place: status for place, status in gone if place not in self._places and not rekeys(place.topic)}

    def _newest(self) -> Iterable[PartitionStatus]:
        """The newest report of all that is mirrored or left out; one without a lag, where there is none yet."""
        planned = {assignment.source: unreported(assignment, *self._reporter) for assignment in self._assignments}
        planned |= {partition: status.with_end(None) for partition, status in self._queries.figures.items()}
        left = {status.source: status for status in self._left_out_now()}
        return (planned | self._journal_state.live | left).values()

    async def _report_refusals(self) -> None:
        """Report what is left out: it must not look as if it were mirrored."""
        refused = {refusal.source for refusal in self._refused if refusal.partitions}
        left = {partition for partition in self._gone_now() if partition.topic not in refused}
        forgotten = [(key, None) for key in await self._gone.forget(left, self._flow.follows)]
        for key, _ in forgotten:
            self._reports_before.pop(key, None)
        found = self._left_out_now()
        self._metrics.learn(found)
        try:
            await self._journal.append_all([*forgotten, *((status.key(), status.to_json()) for status in found)])
        except ClusterError as problem:  # reported again soon
            _log.warning("refusals_not_reported", flow=self._flow.name, reason=str(problem))

    def _judge(self, figures: Iterable[PartitionStatus]) -> None:
        """Learn from tasks' reports which copies were found to be their sources'."""
        for status in figures:
            partition = status.source
            if status.state.is_well:
                self._sound.add(partition)
            elif status.state.is_stop and status.state is not State.RECREATED:
                self._sound.discard(partition)

    async def found(self, new_plan: NewPlan) -> None:
        """There is something else to mirror. What is only added joins the epoch under way, so that the others go on
        undisturbed; for anything else that ends early.
        """
        self._next, before = new_plan, self._assignments
        if new_plan.only_adds(before):
            await self._adopt()
            if self._assignments is before or await self._joined(self._assignments[len(before) :]):
                return
        self._early.set()

    def rekey(self, new_plan: NewPlan) -> None:
        """Topics that rules match: those that are new are re-keyed from now on."""
        self._queries.add(new_plan.rekeyed, new_plan.origins)

    def configured(self, settings: Settings) -> None:
        """Other settings hold from the next epoch on, which comes early for them."""
        self._flow = with_settings(self._flow, settings)
        if self._groups is not None:
            self._groups.sync.include, self._groups.interval = self._flow.groups, self._flow.groups_seconds
        self._early.set()

    async def _adopt(self) -> None:
        """Make the newest plan the one that holds. Where that cannot be done the old one does, and the topic watcher
        makes another by what is there then: this one may never fit again.
        """
        async with self._adopting:
            if self._next is not None:
                try:
                    await unless(self._stopping, self._take_over(self._next))
                finally:
                    self._next = None

    async def _take_over(self, new_plan: NewPlan) -> None:
        source, journal, failures = self._source, self._journal, dict[str, MirrorError]()
        before = {assignment.place for assignment in self._assignments}
        new = [
            assignment
            for assignment in new_plan.assignments
            if assignment.place not in before or assignment.target.topic in new_plan.anew
        ]
        try:
            if not await self._journal_state.read(journal):  # a topic that grew may have begun a moment ago
                return
            origins = {**self._flow.origins, **new_plan.origins}
            topics, begins = self._journal_state.topics, (new_plan.made, EARLIEST, origins, self._flow.elsewhere)
            found = await recorded(source, journal, new, topics, failures, *begins)
            planned = [assignment for assignment in new_plan.assignments if assignment.target.topic not in failures]
            new = [assignment for assignment in new if assignment.target.topic not in failures]
            after = {assignment.place for assignment in planned}
            gone = [assignment for assignment in self._assignments if assignment.place not in after]
            reported = {place for refusal in self._refused for place in refusal.places}
            await forget(journal, [assignment for assignment in gone if assignment.target not in reported])
        except (ClusterError, PreflightError, MalformedBatch) as problem:
            _log.warning("plan_not_adopted", flow=self._flow.name, reason=str(problem))
            return
        known = {assignment.place: assignment for assignment in found}
        self._plan(known.get(assignment.place, assignment) for assignment in planned)
        await self.refuse((*self._refused, *not_begun(self._flow.name, new_plan.assignments, failures)))
        for assignment in new:
            self._sound.discard(assignment.source)
        for assignment in (
            *gone,
            *(assignment for assignment in new if assignment.target.topic in new_plan.anew),
        ):  # what was counted of them is reported; should they come back, they count from nothing
            self._outcome.figures.pop(assignment.source, None)
            self._all_counters.pop(assignment.source, None)
            self._planned.pop(assignment.source, None)
            self._sound.discard(assignment.source)
            self._journal_state.forget(assignment.source)
            self._reports_before.pop(PartitionStatus.key_of(*assignment.target), None)
        if self._groups is not None:
            self._groups.sync.terms = terms_of(self._assignments, self._journal_state.runs)
        self._source.forget(_source_topics(gone) - _source_topics(planned))
        added, ended = sorted(_source_topics(new)), sorted(_source_topics(gone))
        _log.info("plan_changed", flow=self._flow.name, added=added, ended=ended, partitions=len(planned))

    async def _joined(self, added: Sequence[Assignment]) -> bool:
        """Whether the epoch under way mirrors these now. One that was mirrored before, at other offsets, does not join:
        what the journal says of those, a task learns as it begins.
        """
        journal_state = self._journal_state
        moved = journal_state.runs.last()
        if any(assignment.target in moved for assignment in added):
            return False
        awake = [assignment for assignment in added if assignment.source.topic not in journal_state.paused]
        return await self._jobs.join([journal_state.handed(assignment) for assignment in awake])

    async def _report_paused(self) -> None:
        """Report the partitions of paused topics."""
        self._paused = frozenset(self._journal_state.paused)
        if not (paused := [assignment for assignment in self._assignments if assignment.source.topic in self._paused]):
            return
        before = self._journal_state.newest(self._outcome.figures)
        figures = dict[TopicPartition, PartitionStatus]()
        for assignment in paused:
            stopped = stopped_before(self._journal_state.handed(assignment), self._reports_before)
            report = paused_report(stopped, before.get(stopped.source), *self._reporter)
            figures[stopped.source] = self._journal_state.with_end(report)
        self._outcome.figures |= figures
        try:
            await self._journal.append_all((status.key(), status.to_json()) for status in figures.values())
        except ClusterError as problem:  # reported again soon
            _log.warning("pause_not_reported", flow=self._flow.name, reason=str(problem))

    def _conclude(self) -> None:
        """What the results do not say, since a task was cut short, its last live figures do; and what is missing
        is said.
        """
        mirrored = self._outcome.figures.keys() | {assignment.source for assignment in self._assignments}
        newest, with_end = self._journal_state.newest(self._outcome.figures), self._journal_state.with_end
        rekeyed = {partition: with_end(status) for partition, status in self._queries.figures.items()}
        copied = {partition: with_end(status) for partition, status in newest.items() if partition in mirrored}
        self._outcome.figures |= copied | rekeyed | self._gone_now()
        self._stops.log(rekeyed.values())
        self._outcome.refused = self._refused
        missing = [*(f"{partition}: {why}" for partition, why in self._left_out.items()), *self._queries.unfinished]
        missing += self._unheard
        if self._groups_left and (self._flow.once or self._flow.until_caught_up):
            missing.append(self._groups_left)
        if self._flow.once:
            missing += [*unfinished_of(self._unfinished(), self._outcome.figures), *paused_of(rekeyed.values())]
        if self._flow.until_caught_up:
            statuses = [self._outcome.figures[partition] for partition in sorted(self._outcome.figures)]
            missing += [*paused_of(statuses), *([] if self._caught_up else ["not caught up"])]
        self._outcome.incomplete = first_of(missing, most=3, separator="; ")

    def _stop(self) -> None:
        self._stopping.set()
        self._early.set()

    def _hung_up(self) -> None:
        """SIGHUP: somebody asks for the configuration to be read again, or the terminal was closed."""
        if self._topic_watcher is None or (self._has_terminal and not os.isatty(0)):
            self._interrupt(signal.SIGHUP)
        else:
            self._topic_watcher.read_again()

    def _interrupt(self, number: int) -> None:
        self._outcome.interrupted = number
        self._stop()

    async def _epoch(self, number: int, assignments: list[Assignment]) -> list[TaskResult]:
        """One Spark job; empty where it failed as a whole."""
        flow, journal_state = self._flow, self._journal_state
        with contextlib.suppress(TimeoutError):  # what the tasks of the epoch before said last
            async with asyncio.timeout(WATCH_SECONDS):
                await unless(self._stopping, self._journal_state.read(self._journal))
        self._obeyed = self._acts()
        assignments = [journal_state.handed(assignment) for assignment in assignments]
        leaders = {assignment.source: self._source.leader(assignment.source) for assignment in assignments}
        slots = await self._jobs.slots(flow.tasks, is_shared=self._queries.count > 0)
        packed = tasks_of(assignments, leaders, self._all_counters, slots)
        copied = {partition: counters.bytes for partition, counters in self._all_counters.items()}
        moved = {partition: size - self._planned.get(partition, 0) for partition, size in copied.items()}
        rates = rates_of(self._rates[0], packed, self._outcome.figures, moved)
        self._planned = copied
        # a broker that `bootstrap.servers` names may be gone by now
        flow = replace(flow, source=self._source.met, target=self._target.met)
        return await self._jobs.run(number, tasks_for(flow, number, packed, rates, self._all_counters, journal_state))

    async def _goes_on(self, tasks: Sequence[Collection[TopicPartition]]) -> bool:
        """Return True if tasks go on in the next epoch: all is well, and another plan is alike."""
        figures, places = self._journal_state.live, set[TopicPartition]().union(*tasks)
        slots, has_shares = await self._jobs.slots(self._flow.tasks), self._flow.bytes_per_second and len(tasks) > 1
        moved = {partition: status.bytes for partition, status in figures.items()}
        if has_shares or self._queries.count or not are_even(tasks, slots, moved):
            return False
        if self._headway.stands_still(figures) or not places <= figures.keys() - set(self._journal_state.blind):
            return False
        log_epoch(self._flow.name, self._number, self._flow.epoch_seconds, figures.values())
        self._number += 1
        await unless(self._early, self._refreshed())
        return True

    @property
    def _rates(self) -> tuple[float | None, float | None]:
        """What of the bound all tasks share, and what each re-keyed topic gets."""
        return split_rate(self._flow.bytes_per_second, len(_source_topics(self._assignments)), self._queries.count)

    def _rekey_limits(self) -> Limits:
        return Limits(self._rates[1], self._flow.memory_bytes)

    def _unfinished(self) -> list[Assignment]:
        return left_of(self._assignments, self._outcome.figures) if self._flow.once else self._assignments

    def _warn_of_no_headway(self, idle: int) -> None:
        """Epoch after epoch nothing moves though there is something to copy, and no state says why."""
        if idle % IDLE_WARNING or not idle:
            return
        waiting = [status for status in self._outcome.figures.values() if is_under_way(status)]
        if waiting:
            _log.warning(
                "no_headway",
                flow=self._flow.name,
                epochs=idle,
                partitions=len(waiting),
                first=f"{waiting[0].topic}-{waiting[0].partition}: {waiting[0].state} at {waiting[0].next_offset}",
            )

    def _is_planned(self, figures: PartitionStatus) -> bool:
        """They are of a partition that this mirror copies: anybody may write to the journal."""
        partition = figures.source
        target = self._places.get(partition)
        return target.topic == figures.target_topic if target is not None else self._queries.rekeys(figures.topic)

    async def _forget_others(self, known: Mapping[bytes, bytes]) -> None:
        """Delete the reports of topics that the flow does not mirror any more, or under another name: nobody brings
        them up to date, and a failover would count on them.
        """
        others = [status for status in reports_in(known) if not self._follows(status)]
        if not others:
            return
        topics = sorted({status.topic for status in others})
        _log.info("reports_forgotten", flow=self._flow.name, topics=topics, partitions=len(others))
        await self._journal.append_all((status.key(), None) for status in others)

    async def _report_gone(self, known: Mapping[bytes, bytes]) -> None:
        """Report topics and partitions that went while no mirror ran, and whose copies stay as they are: nobody mirrors
        them, and what was reported of them last would be that they have caught up. Forget what no cluster has.
        """
        elsewhere = {rule.source for rule in self._flow.rekeyed}
        elsewhere |= {refusal.source for refusal in self._refused if refusal.partitions}
        left = [status for status in reports_in(known) if status.topic not in elsewhere and self._follows(status)]
        left = [status for status in left if status.source not in self._places]
        rekeyed, mirrored = REKEYED.newest(known), {partition.topic for partition in self._places}
        new = await self._gone.find(left, {**rekeyed, **self.seen}, rekeyed.keys() - self.seen.keys(), mirrored)
        for key in self._gone.over:
            self._reports_before.pop(key, None)
        self._stops.log(new)
        self._refused = self._with_places(self._refused)
        await self._report_refusals()

    def _all_stopped(self) -> bool:
        figures = self._outcome.figures.values()
        return bool(figures) and all(status.is_stopped for status in figures)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._early.wait()

    async def _refreshed(self) -> None:
        """Leaders for the next plan; an unreachable source is the tasks' to report."""
        try:
            await self._source.refresh()
        except ClusterError as problem:
            _log.warning("source_not_reached", flow=self._flow.name, reason=str(problem))

    async def _watch_journal(self) -> None:
        """Follow live figures for whoever watches, and what people did, as long as the mirror runs."""
        await self._report_refusals()
        live = self._journal_state.live
        for rounds in count(1):
            await asyncio.sleep(WATCH_SECONDS)
            was_read = await self._journal_state.read(self._journal)
            self._judge(live.values())
            self._watch(live)  # tasks may have sent more than the journal
            self._stops.log(live.values())
            if not was_read:
                continue
            if self._journal_state.paused != self._paused or self._has_acted():
                self._early.set()
            if rounds % REPORT_ROUNDS == 0:
                await self._report_paused()
                await self._report_refusals()
            if self._flow.until_caught_up and self._have_all_caught_up():
                self._caught_up = True
                self._stop()

    def _have_all_caught_up(self) -> bool:
        """Of a partition whose task reports no more nobody knows what its source has by now."""
        state = self._journal_state
        caught_up = {partition for partition, status in state.live.items() if has_caught_up(status)}
        unseen = {partition for partition in state.blind if state.live[partition].sees_the_end}
        wanted = {*(assignment.source for assignment in self._assignments), *self._queries.figures}
        return self._queries.have_refreshed and wanted <= caught_up - unseen

    def _acts(self) -> Acts:
        """What people did, as the journal has it."""
        known = self._journal_state.standing
        confirmed = {partition: position for partition, position in known.positions.items() if position.was_accepted}
        possible = {key for of in known.losses.values() for key, lost in of.items() if lost.reason in POSSIBLE}
        return dict(known.accepted), frozenset(known.stops) | possible, confirmed

    def _has_acted(self) -> bool:
        """Somebody accepted a loss, lifted a stop or confirmed a copy, of which the epoch under way does not know, also
        where what was lifted came into the journal during this epoch.
        """
        (accepted, stands, confirmed), (knew_accepted, stood, knew_confirmed) = self._acts(), self._obeyed
        self._obeyed = knew_accepted, stood | stands, knew_confirmed
        is_new = any(knew_confirmed.get(partition) != position for partition, position in confirmed.items())
        return accepted != knew_accepted or bool(stood - stands) or is_new

    async def _watch_ends(self) -> None:
        """Where the source ends of partitions that are paused, wait or stopped: no task asks, and their lag grows."""
        while True:
            await asyncio.sleep(ENDS_SECONDS)
            await self._ask_ends()

    async def _ask_ends(self) -> None:
        """One question to each leader of the source; of what is not answered in time, nobody knows the lag."""
        ends: Mapping[TopicPartition, tuple[int, int]] = {}
        if blind := self._journal_state.blind:
            with contextlib.suppress(ClusterError, WireError, TimeoutError):
                async with asyncio.timeout(ENDS_TIMEOUT):
                    ends = await ends_and_starts(self._source, blind)
        ids = {seen.source_topic: seen.topic_id for seen in REKEYED.newest(self._journal_state.topics).values()}
        ids |= {assignment.source.topic: assignment.topic_id for assignment in self._assignments}
        self._journal_state.know_ends(
            {
                partition: end
                for partition, end in ends.items()
                if same_id(ids.get(partition.topic), self._source.topic_id(partition.topic))
            }
        )

    async def _ask_ends_last(self) -> None:
        """The last word on what was not copied. What is written behind an open transaction is no part of what a copy
        that ends has caught up with.
        """
        await self._hear_all()
        await self._ask_ends()
        if not self._flow.until_caught_up:
            return
        places = [*(assignment.source for assignment in self._assignments), *self._queries.figures]
        with contextlib.suppress(ClusterError, WireError, TimeoutError):
            async with asyncio.timeout(ENDS_TIMEOUT):
                written = await listed(self._source, places, LATEST)
                stable = await listed(self._source, places, LATEST, READ_COMMITTED)
            warn_of_open(self._flow.name, dict(sorted(stable.items())), written)

    def _taken_over(self, owner: Owner) -> None:
        self._outcome.contended = str(owner)
        _log.error("contended", flow=self._flow.name, taken_over_by=self._outcome.contended)
        self._stop()

    def _failed_over(self, done: FailedOver | Garbled) -> None:
        _log.info("flow_failed_over", flow=self._flow.name, told=str(done))
        self._stop()


def _source_topics(assignments: Iterable[Assignment]) -> set[str]:
    return {assignment.source.topic for assignment in assignments}


async def _cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks one after another. Raises what one of them failed with."""
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
