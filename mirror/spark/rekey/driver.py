"""The driver's side of one re-keyed topic: plan a micro-batch, have Spark carry it out, report, and again.

- What is true is in the target: a driver that starts takes over the plans and every slot, finishes what was begun (K4),
  and only then plans.
- A source partition that must stop is stopped at its record: the plan is made anew up to there, unless a slot has
  committed it already, which it cannot have: slots begin when every range was read. Of two drivers the younger takes
  the plans and the slots from the older (K1), which waits longer before it would take them back than a mirror needs to
  learn that it was taken over (`spark/supervisor.py`).
- A stop is checked again from the logs after a while, so mending its cause is enough. One of a source that was cut back
  is not: the log grows, and deletes what shows it. The journal keeps it, and another target topic alone lifts it.
- A record for which an expression takes more memory than there is fails its micro-batch, and does not end the engine
  (`spark/session.py`). Each partition of it is then tried alone, in smaller parts, until one holds that record alone;
  its partition stops there by name for as long as this process runs, and the others go on.
- A target topic that was deleted and made anew under the query is RECREATED, however soon the metadata names it: to go
  on there would leave out all that was re-keyed before.
- A target whose log ends below what a slot had committed there is TARGET_LOST: nobody knows which source records these
  were but by re-keying all of them. Each round asks for that, and each slot behind its last acknowledgment, before it
  commits where its logs end from then on; nothing is acknowledged below where they ended. So is a target that lost a
  commit's marker alone, which each slot looks for before it begins; one that the coordinator still has to write is
  late, and UNAVAILABLE.
- Records of somebody else in the target are DIVERGED: what stands between two commits of a slot must be markers and
  aborted records alone, which a driver looks at as it starts and every few seconds, and each slot before it commits.
- Nothing is written to a target, or a dead-letter topic, that would give records times that nobody has asked for, nor
  to a target whose cleaner would remove what the source keeps (REFUSED): its settings are asked before each
  micro-batch, now and then where nothing is new, and a slot aborts its transaction where an ack says so.
- The target has the number of partitions by which plans say where keys go, each time that one is made: another number
  is FENCED, and a topic that begins anew takes what its rule says then.
- Each partition that the source has is reported, also before the plans are known, then with what was reported last: a
  right that is missing as UNAUTHORIZED, a source topic that is gone as RECREATED, a pause as PAUSED to the end; what is
  written behind a transaction that is open on the source is lag. A micro-batch that is not carried out within
  `OVERDUE_SECONDS` is UNAVAILABLE, with its offsets: it is waited for, since Spark cannot end an expression that takes
  very long for a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession

from mirror import clock
from mirror.driver.flow import Flow
from mirror.driver.scheduling import Limits
from mirror.driver.start import record_rekeyed
from mirror.errors import (
    AccessDenied,
    ClusterError,
    ClusterUnreachable,
    EngineLost,
    FlowLost,
    MirrorError,
    PreflightError,
    WireError,
)
from mirror.journal.entries import STARTS, PendingStart, forgotten_entry, loss_entry
from mirror.journal.journal import Journal
from mirror.journal.positions import STOPS, StandingLog, standing_in
from mirror.journal.positions import Standing as CopyStates
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.retry import Backoff
from mirror.observability import logs
from mirror.observability.status import PartitionStatus
from mirror.policy.selection import Rekeying
from mirror.records.recipe import opened_by
from mirror.replication.assignment import KnownStop
from mirror.replication.position import inspecting
from mirror.spark.compat import map_in_arrow, partitioned_by_slot
from mirror.spark.rekey.expressions import MADE, judged, used_by
from mirror.spark.rekey.microbatch import (
    NOTHING,
    MicroBatchPlan,
    RekeyStop,
    Work,
    advice_values,
    denied,
    misfit_in,
    naming_denials,
)
from mirror.spark.rekey.packing import SLICE_DDL
from mirror.spark.rekey.plan_log import PlanLog
from mirror.spark.rekey.reading import CARRIED, packed, repacked, row_schema, rows
from mirror.spark.rekey.source import REFRESH_SECONDS, PartStanding, RekeySource, recreated, stands
from mirror.spark.rekey.writing import RESULT_DDL, written
from mirror.spark.session import asked, failure_text, may_live
from mirror.states import Remedy, State
from mirror.suspension import always

# --- One micro-batch as a query of Spark ------------------------------------------------------------------------------

#: Within a slot: one target partition after another, and in it each source partition in its order.
ORDER = ("target_partition", "source_partition", "first_offset")


def carried_out(session: SparkSession, work: Work, used: frozenset[str]) -> list[Row]:
    """Carry a plan out, and wait for it: results. `used`: what its expressions look at.

    Whatever Spark raises says nothing of what was committed: the slots' numbers do.
    """
    ordered = partitioned_by_slot(slices_of(session, work, used), work.slots).sortWithinPartitions(*ORDER)
    return map_in_arrow(ordered, naming_denials(written(work)), RESULT_DDL).collect()


def slices_of(session: SparkSession, work: Work, used: frozenset[str]) -> DataFrame:
    """What the rule makes of the plan's ranges, as `packing` has slices; nothing is done before somebody asks."""
    ranges = session.range(0, len(work.plan.ranges), 1, len(work.plan.ranges))
    if work.plan.rule.keeps_records:
        return map_in_arrow(ranges, naming_denials(packed(work)), SLICE_DDL)
    records = map_in_arrow(ranges, naming_denials(rows(work, used)), row_schema(used))
    made = records.select(*CARRIED, judged(records, work.plan.rule).alias(MADE))
    return map_in_arrow(made, repacked(work), SLICE_DDL)


# --- The driver's side of one re-keyed topic --------------------------------------------------------------------------

#: Between two polls of the source while there is nothing new.
POLL_SECONDS: Final = 0.2
REPORT_SECONDS: Final = 1.0
#: Offsets of a slot in the first micro-batch, and of one source partition at most; between them the time that one takes
#: decides. A slot whose part takes longer than its transaction may can never have it done once another has committed.
FIRST_OFFSETS: Final = 20_000
FEWEST_OFFSETS: Final = 100
MOST_OFFSETS: Final = 2_000_000
_SHORT, _LONG = 3.0, 8.0
#: A micro-batch that exhausts the engine is tried again in so many parts.
_PARTS: Final = 4
#: Failures of a single record until that is what stops its partition.
_BLAMED_AFTER: Final = 2
#: What Spark says where an expression asked for more than there is: any other failure may pass by itself.
_EXHAUSTED: Final = re.compile(
    r"OutOfMemoryError|StackOverflowError|NegativeArraySizeException|Cannot grow BufferHolder"
)
#: How often a mirror looks whether another one has taken its flow over.
WATCH_SECONDS: Final = 1.0
#: Failures in a row after which a bounded copy gives up.
FAILURES: Final = 5
#: After so long a micro-batch is reported for what it is, and again each so many seconds.
OVERDUE_SECONDS: Final = 60.0
#: The same where `limits.bytes_per_second` bounds what it reads: the first one may have much.
BOUNDED_SECONDS: Final = 10 * OVERDUE_SECONDS
#: How often the settings of the target are asked for while nothing is to be written.
SETTINGS_SECONDS: Final = 10.0
STILL_SECONDS: Final = 5.0
#: Partitions that its report names.
_NAMED: Final = 3
#: What a micro-batch that is given up may still take.
CANCEL_SECONDS: Final = 5.0


class Rekeyer:
    """Re-keys one topic until it is asked to end, or, for a bounded copy, is at the ends of its beginning."""

    def __init__(self, session: SparkSession, flow: Flow, rule: Rekeying, used: frozenset[str]) -> None:
        """`used`: what the rule's expressions look at."""
        self._session, self._flow, self._rule, self._used, self._instance = session, flow, rule, used, ""
        self._log = logs.get("mirror.rekey").bind(flow=flow.name, topic=rule.source)
        self._source, self._target = Cluster(flow.source), Cluster(flow.target)
        self._side = RekeySource(self._source, rule, flow, self._log)
        self._parts = self._side.parts
        self.journal = Journal(self._target, flow.name)
        self._standing = StandingLog()
        #: Whether the flow is this mirror's, by what its journal says now.
        self.has_flow: Callable[[], Awaitable[bool]] = always
        #: Whether its journal says now that a copy, of the topics with these ids, may lack deletions.
        self.may_lack: Callable[[TopicPartition, uuid.UUID | None, uuid.UUID | None], Awaitable[bool]] = self._may_lack
        #: What it may use now.
        self.limits: Callable[[], Limits] = partial(Limits, flow.bytes_per_second, flow.memory_bytes)
        self._committed, self._newest = NOTHING, NOTHING
        self._target_id: uuid.UUID | None = None  # of the last plan
        self._partitions = 0  # of the target, by the last plan, or for the first one
        self._plans = PlanLog(self._target, rule)
        self._is_bound = False  # a plan must be finished as it is (K4)
        self._abandoned: MicroBatchPlan | None = None  # no slot had it when it was looked at
        self._thread = ThreadPoolExecutor(1, "rekey")
        self._offsets = FIRST_OFFSETS
        self._waiting, self._is_paused = "", False
        self._stop: RekeyStop | None = None  # of the whole topic
        self._reported = self._target_seen = self._checked = float("-inf")
        self._failures, self._backoff = 0, _retry_backoff()
        self._trial: MicroBatchPlan | None = None  # the plan whose job runs or ran last
        self._suspects: dict[int, int] = {}  # partitions to be tried alone, and up to which offset
        self._exhausting: dict[int, RekeyStop] = {}
        self._stops_since = clock.monotonic()
        self._job = f"mirror-{flow.name}-rekey-{rule.source}"
        self.origins = flow.origins.get(rule.source, ())

    def recall(self, reports: Mapping[bytes, bytes]) -> None:
        """What was reported last, by the journal's keys: it stands until the plans are known."""
        self._side.reports = reports

    @property
    def target(self) -> str:
        """The topic that it writes to."""
        return self._rule.target

    @property
    def has_refreshed(self) -> bool:
        """It knows how far its source is, or each partition waits for a person, who need not know that."""
        figures = self._all_figures()
        waits = bool(figures) and all(status.state is State.PAUSED or status.is_stopped for status in figures)
        return self._side.has_refreshed or waits

    @property
    def figures(self) -> dict[TopicPartition, PartitionStatus]:
        """How each source partition that is known stands now."""
        return {status.source: status for status in self._all_figures()}

    def learns(self, rule: Rekeying) -> None:
        """The rule as it fits both topics of now: its text is that of the start. What was planned stays as it is."""
        self._rule = self._side.rule = rule
        for part in self._parts.values():
            part.tombstones.keeps(rule.tombstones_ms)

    @property
    def unfinished(self) -> Iterator[str]:
        """Of a bounded copy, what was not re-keyed; of one that is paused its figures say it."""
        if not self._flow.once or self._is_paused:
            return
        if (bounds := self._side.bounds) is None:
            yield f"{self._rule.source}: not begun{self._waiting and f', {self._waiting}'}"
        for number, bound in sorted((bounds or {}).items()):
            if (part := self._parts.get(number)) is None or part.at < bound:
                figures = self._figures(number)
                where = f"{self._rule.source}-{number} up to offset {bound}"
                detail = figures.detail and f", {figures.detail}"
                yield f"{where}: {figures.state} at offset {figures.next_offset}{detail}"

    async def run(
        self,
        instance: str,
        stopping: asyncio.Event,
        paused: Callable[[], Collection[str]],
        *,
        start: PendingStart | None = None,
    ) -> None:
        """Until `stopping` is set, or all is done that was asked for. While its topic is among those `paused`, nothing
        is planned. `instance` names the process in its reports. A topic without a plan begins with its first records,
        since what was written while nobody looked is not to be missed; unless the flow's first start was with this
        topic: at `start`, which the journal has until there is a plan.
        """
        self._instance, self._side.start = instance, start
        async with self._source, self._target:
            while not stopping.is_set():
                try:
                    await self._go_on(stopping, paused)
                    break
                except (RekeyStop, AccessDenied) as problem:
                    is_of_all = self._is_stopped_by(denied(problem) if isinstance(problem, AccessDenied) else problem)
                    if is_of_all or self._is_bound:  # some slots have their part of it: no way around
                        if self._flow.once:
                            break
                        await self._last_word()
                        await _pause(stopping, self._flow.epoch_seconds)
                except Exception as problem:  # whatever Spark raises: what is committed, the slots' numbers say
                    if not await may_live(self._session.sparkContext):
                        raise EngineLost("Spark's JVM died. Nothing is lost: start the mirror again") from problem
                    if stopping.is_set():
                        break  # the job was cut short for that
                    self._waiting = failure_text(problem)
                    self._failures += 1
                    if exhausted := _EXHAUSTED.search(str(problem)):
                        self._narrow(exhausted[0])
                    else:
                        self._halve()  # it may have been too much for its time
                    self._log.warning("rekey_waits", reason=self._waiting)
                    await self._last_word()
                    if self._flow.once and self._failures >= FAILURES:
                        break
                    await _pause(stopping, 0.0 if exhausted else self._backoff.next())
            await self._last_word()

    def _halve(self) -> None:
        self._offsets = max(min(self._offsets, FEWEST_OFFSETS), self._offsets // 2)

    def _narrow(self, reason: str) -> None:
        """Come closer to the record that exhausts the engine, or stop its partition there."""
        plan = self._trial
        if plan is None or self._is_bound:
            return
        if len(plan.ranges) > 1:
            self._failures = 0  # a step of the search
            self._suspects |= {number: until for number, _, until in plan.ranges}
        elif (size := plan.ranges[0][2] - plan.ranges[0][1]) > 1:
            self._failures = 0
            self._offsets = max(1, size // _PARTS)
            self._suspects = {plan.ranges[0][0]: plan.ranges[0][2]} | self._suspects
        elif self._failures >= _BLAMED_AFTER:
            ((number, offset, _),) = plan.ranges
            detail = (
                f"the rule's expressions take more memory than there is for the record at offset {offset} ({reason});"
                " bound what they build from a record, or give Spark more memory, and start the mirror again"
            )
            stop = RekeyStop(State.REFUSED, number, offset, detail, Remedy.CHANGE_RULE)
            self._exhausting[number], self._failures = stop, 0
            self._suspects.pop(number, None)
            self._is_stopped_by(stop)

    async def _go_on(self, stopping: asyncio.Event, paused: Callable[[], Collection[str]]) -> None:
        """One micro-batch after another, the first of them that which was begun and not finished."""
        self._is_paused = False
        plan = await self._take_over()
        try:
            await record_rekeyed(self._source, self.journal, self._rule, self.origins, self._flow.elsewhere)
        except PreflightError as problem:
            raise RekeyStop(State.REFUSED, -1, -1, str(problem), Remedy.CHANGE_RULE) from problem
        await self._check_settings()
        while not stopping.is_set():
            self._is_paused = plan is None and self._rule.source in paused()
            if self._is_paused:
                await self._report()
                if self._flow.once:
                    return
                await _pause(stopping, REPORT_SECONDS)
                continue
            plan = plan or await self._planned()
            if plan is None and self._flow.once and (why := self._side.held_up):
                raise ClusterUnreachable(why)  # a bounded copy waits for nothing without end
            self._stop = None
            if plan is not None:
                await self._check_settings()
                for range_ in plan.ranges:
                    await self._side.miss_tombstones(*range_, self._is_on_record)
                await self._record_losses()
                self._learn(plan, await self._carry_out(plan, stopping))
                await self._refresh()  # what came meanwhile is not caught up with
            self._waiting, self._failures, self._backoff = "", 0, _retry_backoff()
            await self._report()
            if plan is None:
                if self._side.is_done:
                    return
                if clock.monotonic() - self._checked > SETTINGS_SECONDS:  # a cleaner removes what is there already
                    await self._check_settings()
                await _pause(stopping, POLL_SECONDS)
            plan = None

    async def _is_on_record(self, copy: TopicPartition) -> bool:
        return await self.may_lack(copy, self._side.topic_id, self._target_id)

    async def _may_lack(
        self, copy: TopicPartition, topic_id: uuid.UUID | None, target_topic_id: uuid.UUID | None
    ) -> bool:
        return standing_in(await self.journal.newest()).may_lack(copy, topic_id, target_topic_id)

    async def _check_settings(self) -> None:
        """Raises RekeyStop where the target would give records times of its own, or remove them."""
        self._checked = clock.monotonic()
        if (stop := await misfit_in(self._target, self._rule)) is not None:
            raise stop

    async def _take_over(self) -> MicroBatchPlan | None:
        """Become the one who plans and fence every slot; a plan that was begun and is not finished, or None.

        Whoever failed the flow over meanwhile has fenced this one, which takes that back no more: raises FlowLost.
        """
        if not await self.has_flow():
            raise FlowLost(f"{self._flow.name}: it is not known to be this mirror's, so nothing is re-keyed")
        await self._source.refresh([self._rule.source])
        self._is_bound, self._abandoned = False, None
        numbers, plan = await self._plans.take_over()
        newest = await self.journal.newest()
        known = standing_in(newest)
        if plan is not None and (older := plan.abandoned) is not None and older.number in numbers:
            await self._plans.record(older)  # a slot has it after all: a late task was quicker than its fence
            plan = older
        if plan is None:
            self._parts.clear()
            self.recall({})  # what was reported is of a copy that is gone
            await self._plans.find_nothing(set(numbers))
            self._partitions = self._rule.partitions
            self._plans.check_partitions(self._partitions, "its rule says")
            self._committed = self._newest = NOTHING
            self._target_id = self._side.topic_id = None
            await self._forget(known, newest)
            return None
        await self._stand_by(plan)
        is_done = set(numbers) == {plan.number}
        self._side.stand_at(plan.until if is_done else plan.begin, plan.epochs)
        self._side.recall(known, self._target_id)
        if self._side.is_recreated:
            raise recreated(self._rule, "source")
        self._plans.check(plan, set(numbers))
        await self._plans.check_kept()
        await self._plans.check_only_ours()
        self._committed = plan.number if is_done else plan.after
        if is_done or plan.number not in numbers:
            self._abandoned = None if is_done else plan
            return None
        self._is_bound = True
        await self._side.check_kept({number: until for number, _, until in plan.ranges}, plan.epochs)
        await self._refresh()
        return self._mended(plan)

    async def _stand_by(self, plan: MicroBatchPlan) -> None:
        """A plan is the last one on record: the topic has begun, so should it begin anew, then with all there is.
        Raises as `Journal.append` does.
        """
        self._newest, self._side.topic_id, self._target_id = plan.number, plan.source_id, plan.target_id
        self._partitions = plan.rule.partitions
        if self._side.start is not None:
            await self.journal.append([STARTS.tombstone(self._rule.target)])
            self._side.start = None

    async def _refresh(self) -> None:
        """Refresh the source; what is passed over there is on record before anything behind it is planned."""
        await self._side.refresh()
        await self._record_losses()

    async def _record_losses(self) -> None:
        if lost := self._side.losses:
            of_copy = (replace(loss, target_topic_id=self._target_id) for loss in lost)
            await self.journal.append_all(map(loss_entry, of_copy))
            lost.clear()

    async def _forget(self, known: CopyStates, reported: Collection[bytes]) -> None:
        """What is on record of a former copy is not of one that begins anew: it begins behind losses, or has them; nor
        are reports, by the journal's keys, of partitions that its source no longer has.
        """
        self._standing = StandingLog()
        lifted = (STOPS.tombstone(target) for target in known.stops if target.topic == self._rule.target)
        forgotten = (
            forgotten_entry(target, lost)
            for target, losses in known.losses.items()
            if target.topic == self._rule.target
            for lost in losses.values()
        )
        reports = {PartitionStatus.key_of(self._rule.target, number) for number in self._side.numbers}
        own = PartitionStatus.key_of(self._rule.target, 0)[:-1]
        gone = ((key, None) for key in reported if key.startswith(own) and key not in reports)
        await self.journal.append_all([*forgotten, *lifted, *gone])

    def _mended(self, plan: MicroBatchPlan) -> MicroBatchPlan:
        """A plan that must be finished, with what a person may have changed so that it can be, or cannot: the target
        takes larger batches, is compacted by now, or what the source lost may be passed over.
        """
        begin = {number: max(offset, self._parts[number].at) for number, offset in plan.begin.items()}
        now = self._rule
        rule = replace(plan.rule, max_bytes=now.max_bytes, may_stamp=now.may_stamp, compacted=now.compacted)
        until = {number: max(offset, begin[number]) for number, offset in plan.until.items()}
        return replace(plan, rule=rule, begin=begin, until=until)

    async def _planned(self) -> MicroBatchPlan | None:
        """The next plan, on record; None while there is nothing new. That nothing was there at a first start is on
        record, too: a plan of nothing says where that was.
        """
        rule = self._rule
        if clock.monotonic() - self._stops_since > self._flow.epoch_seconds:
            self._stops_since = clock.monotonic()
            for part in self._parts.values():
                if part.stop is not None and not stands(part.stop.state):
                    part.stop = self._exhausting.get(part.stop.partition)
        await self._refresh()
        await self._refresh_target()
        if self._trial is None:
            share = FIRST_OFFSETS * self._plans.slots // max(1, len(self._parts))
            self._offsets = min(self._offsets, max(FEWEST_OFFSETS, share))
        begin = {number: part.at for number, part in self._parts.items()}
        until = {number: self._side.until(number, self._offsets) for number in self._parts}
        self._suspects = {number: end for number, end in self._suspects.items() if begin.get(number, end) < end}
        alone = next((number for number in self._suspects if until[number] > begin[number]), -1)
        if alone >= 0:
            until = begin | {alone: until[alone]}
        is_beginning = bool(begin) and self._newest == NOTHING
        if begin == until and not is_beginning:
            return None
        target_id = self._target.topic_id(rule.target)
        if self._is_made_anew:
            raise recreated(rule, "target")
        self._plans.check_partitions(self._partitions, "had")
        plan = MicroBatchPlan(
            number=self._newest + 1,
            after=self._committed,
            begin=begin,
            until=until,
            epochs={number: part.epoch for number, part in self._parts.items()},
            slots=self._plans.slots,
            rule=replace(rule, partitions=self._partitions),
            source_id=self._side.known_id,
            target_id=self._target_id or target_id,
            abandoned=self._abandoned and replace(self._abandoned, abandoned=None),
        )
        await self._plans.record(plan)
        await self._stand_by(plan)
        if not plan.ranges:
            return None
        if (abandoned := self._abandoned) is None:
            return plan
        # a late task of the plan that this one abandons may have begun before this was on record; from now on it cannot
        numbers = await self._plans.fenced()
        self._abandoned = None
        if abandoned.number not in numbers:
            return plan
        await self._plans.record(abandoned)
        self._is_bound = True
        return abandoned

    async def _refresh_target(self) -> None:
        """Check now and then that the target is as the plans left it."""
        if clock.monotonic() - self._target_seen <= REFRESH_SECONDS:
            return
        await self._target.refresh([self._rule.target])
        if self._is_made_anew:
            raise recreated(self._rule, "target")
        await self._plans.check_kept()
        self._plans.check_partitions(self._partitions, "had")
        if self._newest != NOTHING:
            await self._plans.check_only_ours(committed=self._committed)
        self._target_seen = clock.monotonic()

    @property
    def _is_made_anew(self) -> bool:
        """There is another target topic by the name."""
        return None not in (self._target_id, now := self._target.topic_id(self._rule.target)) and now != self._target_id

    async def _carry_out(self, plan: MicroBatchPlan, stopping: asyncio.Event) -> list[Row]:
        """A job of Spark, in a thread of its own; cut short where the mirror ends, since it can be finished later."""
        work = Work(
            flow=self._flow.name,
            plan=plan,
            source=self._bounded_source(plan),
            target=self._flow.target,
            slots=self._plans.slots,
            opens=opened_by(self.limits().memory_bytes),
        )
        self._trial, waited_for = plan, self._waiting
        began = clock.monotonic()
        job: asyncio.Future[Any] = asyncio.get_running_loop().run_in_executor(
            self._thread, partial(self._in_spark, work)
        )
        ending: asyncio.Future[Any] = asyncio.create_task(stopping.wait())
        try:
            while not (job.done() or ending.done()):
                await asyncio.wait([job, ending], timeout=STILL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if clock.monotonic() - began > self._overdue_after and not job.done():
                    await self._report_overdue(plan)
            if not job.done():
                await asyncio.wait([job], timeout=CANCEL_SECONDS)
            while not job.done():  # one that has not begun yet is not cancelled by that
                with contextlib.suppress(TimeoutError):
                    await asked(partial(self._session.sparkContext.cancelJobGroup, self._job), 1.0)
                await asyncio.wait([job], timeout=1.0)
            results: list[Row] = await job
        except Exception as failure:
            if (stop := RekeyStop.found_in(failure)) is not None:
                raise stop from None
            raise
        finally:
            ending.cancel()
            self._waiting = waited_for
        took = clock.monotonic() - began
        is_full = any(until - plan.begin[number] >= self._offsets for number, until in plan.until.items())
        if took > _LONG:
            self._halve()
        elif took < _SHORT and is_full and not self._suspects:
            self._offsets = min(MOST_OFFSETS, self._offsets * 2)
        return results

    @property
    def _overdue_after(self) -> float:
        return OVERDUE_SECONDS if self.limits().rate is None else BOUNDED_SECONDS

    async def _report_overdue(self, plan: MicroBatchPlan) -> None:
        ranges = [f"{first} to {until - 1} of partition {number}" for number, first, until in plan.ranges]
        more = f" and {len(ranges) - _NAMED} more partitions" if len(ranges) > _NAMED else ""
        waiting = (
            f"Spark has not carried out micro-batch {plan.number} within {self._overdue_after:g} s, offsets"
            f" {', '.join(ranges[:_NAMED])}{more}: an expression takes very long for one of these records, as a regular"
            " expression may, a worker hangs, or other jobs have all cores. Spark's page of stages shows which; where"
            " it is an expression, change the rule, and start the mirror again"
        )
        if waiting != self._waiting:
            self._waiting = waiting
            self._log.warning("rekey_waits", reason=waiting)
        await self._last_word()

    def _bounded_source(self, plan: MicroBatchPlan) -> Endpoint:
        """The source, with what each task that may read the plan's ranges at a time gets of the flow's bound."""
        if (rate := self.limits().rate) is None:
            return self._flow.source
        return self._flow.source.bounded(rate, min(len(plan.ranges), self._session.sparkContext.defaultParallelism))

    def _in_spark(self, work: Work) -> list[Row]:
        context = self._session.sparkContext
        context.setJobGroup(self._job, f"{self._flow.name}: {self._rule.source}, micro-batch {work.plan.number}", True)
        rule = work.plan.rule  # that of a plan that was begun may be an older one
        is_ours = rule.expressions == self._rule.expressions
        return carried_out(self._session, work, self._used if is_ours else used_by(self._session, rule))

    def _learn(self, plan: MicroBatchPlan, results: list[Row]) -> None:
        """The micro-batch is committed by every slot."""
        self._committed = plan.number
        self._side.stand_at(plan.until, plan.epochs)
        for number in plan.until:
            self._parts[number].is_old = True
        for row in results:
            self._parts[row.source_partition].learn(row)

    def _is_stopped_by(self, stop: RekeyStop) -> bool:
        """Note a stop; whether it is that of the whole topic. The supervisor logs it, as every report."""
        if stop.partition < 0:
            self._stop = stop
            if not self._all_figures():  # of no partition yet
                self._log.error("rekey_waits", reason=stop.text(self._advice_values(stop.offset)))
            return True
        self._stops_since = clock.monotonic()
        part = self._parts.setdefault(stop.partition, PartStanding(max(stop.offset, 0)))
        part.stop = stop
        return False

    async def _report(self) -> None:
        """All that `_append` does, every second."""
        if clock.monotonic() - self._reported < REPORT_SECONDS:
            return
        self._reported = clock.monotonic()
        await self._append()

    async def _last_word(self) -> None:
        """The same once more; where the target is away, nobody can read it."""
        with contextlib.suppress(MirrorError, WireError, ClusterError, TimeoutError):
            async with asyncio.timeout(REPORT_SECONDS):
                await self._append()

    async def _append(self) -> None:
        """The figures, and the stops that the journal is to keep."""
        met = {
            TopicPartition(self._rule.target, number): self._known_stop(part.stop)
            for number, part in self._parts.items()
            if part.stop is not None and stands(part.stop.state)
        }
        reports = ((status.key(), status.to_json()) for status in self._all_figures())
        await self.journal.append_all([*reports, *self._standing.changes((), met)])
        self._standing.written((), met)

    def _known_stop(self, stop: RekeyStop) -> KnownStop:
        return KnownStop(
            state=stop.state,
            offset=stop.offset,
            detail=stop.detail,
            advice=stop.advice(self._advice_values(stop.offset)),
            source_topic_id=self._side.topic_id,
            target_topic_id=self._target_id,
        )

    def _all_figures(self) -> list[PartitionStatus]:
        return [self._figures(number) for number in sorted(self._parts.keys() | self._side.numbers)]

    def _figures(self, number: int) -> PartitionStatus:
        partition = TopicPartition(self._rule.source, number)
        part = self._parts.get(number) or self._side.reported(number)
        if self._stop is not None:
            part = replace(part, stop=self._stop.at(number, part.at))
        return part.figures(
            partition,
            self._rule.target,
            self._flow.name,
            self._instance,
            waits_for=self._waiting,
            is_paused=self._is_paused,
            values=self._advice_values(part.stop.offset if part.stop is not None else -1),
        )

    def _advice_values(self, offset: int) -> dict[str, object]:
        """What the advice of a stop at an offset of the source names."""
        rule = self._rule
        return inspecting("source", rule.source, offset) | advice_values(rule, self._flow.source, self._flow.target)


def _retry_backoff() -> Backoff:
    return Backoff(first=4 * WATCH_SECONDS, longest=10.0)


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
