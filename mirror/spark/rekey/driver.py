"""The driver's side of one re-keyed topic: plan a micro-batch, have Spark carry it out, report, and again.

D1  what is true is in the target: a driver that starts takes over the plans and every slot, finishes what was begun
    (R4), and only then plans
D2  a source partition that must stop is stopped at its record: the plan is made anew up to there, unless a slot has
    committed it already, which it cannot have: slots begin when every range was read.
    Of two drivers the younger takes the plans and the slots from the older (R1), which waits longer before it would
    take them back than a mirror needs to learn that it was taken over (`spark/supervisor.py`, S2)
D3  a stop is checked again from the logs after a while, so mending its cause is enough. One of a source that was cut
    back is not: the log grows, and deletes what shows it. The journal keeps it, and another target topic alone lifts it
D4  a record for which an expression takes more memory than there is fails its micro-batch, and does not end the engine
    (`spark/session.py`). Each partition of it is then tried alone, in smaller parts, until one holds that record alone;
    its partition stops there by name for as long as this process runs, and the others go on
D5  a target topic that was deleted and made anew under the query is RECREATED, however soon the metadata names it:
    to go on there would leave out all that was re-keyed before
D6  a target whose log ends below what a slot had committed there is TARGET_LOST: nobody knows which source records
    these were but by re-keying all of them. Each round asks for that, and each slot behind its last acknowledgment,
    before it commits where its logs end from then on; nothing is acknowledged below where they ended. So is a target
    that lost a commit's marker alone, which each slot looks for before it begins
D7  records of somebody else in the target are DIVERGED: what stands between two commits of a slot must be markers and
    aborted records alone, which a driver looks at as it starts and every few seconds, and each slot before it commits
D8  nothing is written to a target, or a dead-letter topic, that would give records times that nobody has asked for
    (REFUSED): its settings are asked before each micro-batch, and a slot aborts its transaction where an ack says so
D9  the target has the number of partitions by which plans say where keys go, each time that one is made: another
    number is FENCED, and a topic that begins anew takes what its rule says then
D10 each partition that the source has is reported, also before the plans are known, then with what was reported last: a
    right that is missing as UNAUTHORIZED, a source topic that is gone as RECREATED, a pause as PAUSED to the end
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import DataFrame, Row, SparkSession

from mirror.config import Settings
from mirror.driver.flow import Flow
from mirror.driver.journal_state import JournalState
from mirror.driver.start import record_rekeyed
from mirror.errors import AccessDenied, ClusterError, EngineLost, FlowLost, MirrorError, PreflightError, WireError
from mirror.journal.entries import forgotten_entry, loss_entry
from mirror.journal.journal import Journal
from mirror.journal.positions import Standing as CopyStates
from mirror.journal.positions import StandingLog, lifted_entry, standing_in
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST
from mirror.kafka.retry import Backoff
from mirror.observability import logs
from mirror.observability.status import PartitionStatus
from mirror.policy.selection import Rekeying, rekeyed_by
from mirror.records.recipe import opened_by
from mirror.replication.assignment import KnownStop
from mirror.replication.position import inspecting
from mirror.spark.rekey.expressions import MADE, judged, map_in_arrow, used_by
from mirror.spark.rekey.microbatch import (
    NOTHING,
    Plan,
    Stopped,
    Work,
    advice_values,
    denied,
    naming_denials,
    stamping_in,
)
from mirror.spark.rekey.packing import SLICE_DDL
from mirror.spark.rekey.plan_log import PlanLog
from mirror.spark.rekey.reading import CARRIED, packed, repacked, row_schema, rows
from mirror.spark.rekey.source import REFRESH_SECONDS, Source, Standing, recreated, stands
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
    ordered = slices_of(session, work, used).repartitionById(work.slots, "slot").sortWithinPartitions(*ORDER)
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
#: Offsets of one source partition in the first micro-batch, and at most; between them the time that one takes decides.
FIRST_OFFSETS: Final = 20_000
FEWEST_OFFSETS: Final = 100
MOST_OFFSETS: Final = 2_000_000
_SHORT, _LONG = 3.0, 8.0
#: A micro-batch that exhausts the engine is tried again in so many parts (D4).
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
#: What a micro-batch that is given up may still take.
CANCEL_SECONDS: Final = 5.0


class Rekeyer:
    """Re-keys one topic until it is asked to end, or, for a bounded copy, is at the ends of its beginning."""

    def __init__(self, session: SparkSession, flow: Flow, rule: Rekeying, used: frozenset[str]) -> None:
        """`used`: what the rule's expressions look at."""
        self._session, self._flow, self._rule, self._used, self._instance = session, flow, rule, used, ""
        self._log = logs.get("mirror.rekey").bind(flow=flow.name, topic=rule.source)
        self._source, self._target = Cluster(flow.source), Cluster(flow.target)
        self._side = Source(self._source, rule, flow, self._log)
        self._parts = self._side.parts
        self.journal = Journal(self._target, flow.name)
        self._standing = StandingLog()
        #: Whether the flow is this mirror's, by what its journal says now.
        self.has_flow: Callable[[], Awaitable[bool]] = always
        self._committed, self._newest = NOTHING, NOTHING
        self._target_id: uuid.UUID | None = None  # of the last plan
        self._partitions = 0  # of the target, by the last plan, or for the first one (D9)
        self._plans = PlanLog(self._target, rule)
        self._is_bound = False  # a plan must be finished as it is (R4)
        self._abandoned: Plan | None = None  # no slot had it when it was looked at
        self._thread = ThreadPoolExecutor(1, "rekey")
        self._offsets = FIRST_OFFSETS
        self._waiting, self._is_paused = "", False
        self._stop: Stopped | None = None  # of the whole topic
        self._reported = self._target_seen = float("-inf")
        self._failures, self._backoff = 0, _retry_backoff()
        self._trial: Plan | None = None  # the plan whose job runs or ran last
        self._suspects: dict[int, int] = {}  # partitions to be tried alone, and up to which offset (D4)
        self._exhausting: dict[int, Stopped] = {}
        self._stops_since = time.monotonic()
        self._job = f"mirror-{flow.name}-rekey-{rule.source}"
        self.origins = flow.origins.get(rule.source, ())

    def recall(self, reports: Mapping[bytes, bytes]) -> None:
        """What was reported last, by the journal's keys: it stands until the plans are known."""
        self._side.reports = reports

    @property
    def has_refreshed(self) -> bool:
        """It knows how far its source is, or each partition waits for a person, who need not know that."""
        figures = self._all_figures()
        waits = bool(figures) and all(one.state is State.PAUSED or one.is_stopped for one in figures)
        return self._side.has_refreshed or waits

    @property
    def figures(self) -> dict[TopicPartition, PartitionStatus]:
        """How each source partition that is known stands now."""
        return {TopicPartition(one.topic, one.partition): one for one in self._all_figures()}

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
            if self._parts[number].at < bound:
                figures = self._figures(number)
                where = f"{self._rule.source}-{number} up to offset {bound}"
                detail = figures.detail and f", {figures.detail}"
                yield f"{where}: {figures.state} at offset {figures.next_offset}{detail}"

    async def run(
        self, instance: str, stopping: asyncio.Event, paused: Callable[[], Collection[str]], *, is_first: bool = True
    ) -> None:
        """Until `stopping` is set, or all is done that was asked for. While its topic is among those `paused`, nothing
        is planned. `instance` names the process in its reports. Unless it `is_first` that the flow starts with this
        topic, whatever the flow begins with, a topic without a plan begins with its first records: what was written
        while nobody looked is not to be missed.
        """
        self._instance = instance
        if not is_first:
            self._side.start = EARLIEST
        async with self._source, self._target:
            while not stopping.is_set():
                try:
                    await self._go_on(stopping, paused)
                    break
                except (Stopped, AccessDenied) as problem:
                    is_of_all = self._is_stopped_by(denied(problem) if isinstance(problem, AccessDenied) else problem)
                    if is_of_all or self._is_bound:  # some slots have their part of it: no way around
                        if self._flow.once:
                            break
                        await self._last_word()
                        await _pause(stopping, self._flow.epoch_seconds)
                except Exception as problem:  # whatever Spark raises: what is committed, the slots' numbers say
                    if not await may_live(self._session.sparkContext):
                        raise EngineLost("Spark's JVM died. Nothing is lost: start the mirror again") from problem
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
        """Come closer to the record that exhausts the engine, or stop its partition there (D4)."""
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
            stop = Stopped(State.REFUSED, number, offset, detail, Remedy.CHANGE_RULE)
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
            raise Stopped(State.REFUSED, -1, -1, str(problem), Remedy.CHANGE_RULE) from problem
        await self._check_times()
        while not stopping.is_set():
            self._is_paused = plan is None and self._rule.source in paused()
            if self._is_paused:
                await self._report()
                if self._flow.once:
                    return
                await _pause(stopping, REPORT_SECONDS)
                continue
            plan = plan or await self._planned()
            self._stop = None
            if plan is not None:
                await self._check_times()
                for one in plan.ranges:
                    await self._side.miss_tombstones(*one)
                await self._record_losses()
                self._learn(plan, await self._carry_out(plan, stopping))
            self._waiting, self._failures, self._backoff = "", 0, _retry_backoff()
            await self._report()
            if plan is None:
                if self._side.is_done:
                    return
                await _pause(stopping, POLL_SECONDS)
            plan = None

    async def _check_times(self) -> None:
        """Raises Stopped where the target would give records times of its own that nobody has asked for (D8)."""
        if (stop := await stamping_in(self._target, self._rule)) is not None:
            raise stop

    async def _take_over(self) -> Plan | None:
        """Become the one who plans and fence every slot (D1); a plan that was begun and is not finished, or None.

        Whoever failed the flow over meanwhile has fenced this one, which takes that back no more: raises FlowLost.
        """
        if not await self.has_flow():
            raise FlowLost(f"{self._flow.name}: it is not known to be this mirror's, so nothing is re-keyed")
        await self._source.refresh([self._rule.source])
        self._is_bound, self._abandoned = False, None
        numbers, plan = await self._plans.take_over()
        known = standing_in(await self.journal.newest())
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
            await self._forget(known)
            return None
        self._stand_by(plan)
        is_done = set(numbers) == {plan.number}
        self._side.stand_at(plan.until if is_done else plan.begin, plan.epochs)
        self._side.recall(known, self._target_id)
        if self._side.is_recreated:
            raise recreated(self._rule, "source")
        self._plans.check(plan, set(numbers))
        await self._plans.check_kept()
        await self._plans.check_only_ours()  # D7
        self._committed = plan.number if is_done else plan.after
        if is_done or plan.number not in numbers:
            self._abandoned = None if is_done else plan
            return None
        self._is_bound = True
        await self._side.check_kept({number: until for number, _, until in plan.ranges}, plan.epochs)
        await self._refresh()
        return self._mended(plan)

    def _stand_by(self, plan: Plan) -> None:
        """A plan is the last one on record: the topic has begun, so should it begin anew, then with all there is."""
        self._newest, self._side.topic_id, self._target_id = plan.number, plan.source_id, plan.target_id
        self._partitions = plan.rule.partitions
        self._side.start = EARLIEST

    async def _refresh(self) -> None:
        """Refresh the source; what is passed over there is on record before anything behind it is planned."""
        await self._side.refresh()
        await self._record_losses()

    async def _record_losses(self) -> None:
        if lost := self._side.losses:
            of_copy = (replace(one, target_topic_id=self._target_id) for one in lost)
            await self.journal.append_all(map(loss_entry, of_copy))
            lost.clear()

    async def _forget(self, known: CopyStates) -> None:
        """What is on record of a former copy is not of one that begins anew: it begins behind losses, or has them."""
        self._standing = StandingLog()
        lifted = (lifted_entry(target) for target in known.stops if target.topic == self._rule.target)
        forgotten = (
            forgotten_entry(target, lost)
            for target, losses in known.losses.items()
            if target.topic == self._rule.target
            for lost in losses.values()
        )
        await self.journal.append_all([*forgotten, *lifted])

    def _mended(self, plan: Plan) -> Plan:
        """A plan that must be finished, with what a person may have changed so that it can be: the target takes larger
        batches, or what the source lost may be passed over.
        """
        begin = {number: max(offset, self._parts[number].at) for number, offset in plan.begin.items()}
        rule = replace(plan.rule, max_bytes=self._rule.max_bytes, may_stamp=self._rule.may_stamp)
        until = {number: max(offset, begin[number]) for number, offset in plan.until.items()}
        return replace(plan, rule=rule, begin=begin, until=until)

    async def _planned(self) -> Plan | None:
        """The next plan, on record; None while there is nothing new. That nothing was there at a first start is on
        record, too: a plan of nothing says where that was.
        """
        rule = self._rule
        if time.monotonic() - self._stops_since > self._flow.epoch_seconds:  # D3
            self._stops_since = time.monotonic()
            for part in self._parts.values():
                if part.stop is not None and not stands(part.stop.state):
                    part.stop = self._exhausting.get(part.stop.partition)
        await self._refresh()
        if time.monotonic() - self._target_seen > REFRESH_SECONDS:
            await self._target.refresh([rule.target])
            if self._is_made_anew:
                raise recreated(rule, "target")
            await self._plans.check_kept()  # D6
            self._plans.check_partitions(self._partitions, "had")
            if self._newest != NOTHING:
                await self._plans.check_only_ours(committed=self._committed)  # D7
            self._target_seen = time.monotonic()
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
        self._plans.check_partitions(self._partitions, "had")  # D9
        plan = Plan(
            number=self._newest + 1,
            after=self._committed,
            begin=begin,
            until=until,
            epochs={number: part.epoch for number, part in self._parts.items()},
            slots=self._plans.slots,
            rule=replace(rule, partitions=self._partitions),
            source_id=self._source.topic_id(rule.source),
            target_id=self._target_id or target_id,
            abandoned=self._abandoned and replace(self._abandoned, abandoned=None),
        )
        await self._plans.record(plan)
        self._stand_by(plan)
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

    @property
    def _is_made_anew(self) -> bool:
        """There is another target topic by the name (D5)."""
        return None not in (self._target_id, now := self._target.topic_id(self._rule.target)) and now != self._target_id

    async def _carry_out(self, plan: Plan, stopping: asyncio.Event) -> list[Row]:
        """A job of Spark, in a thread of its own; cut short where the mirror ends, since it can be finished later."""
        work = Work(
            flow=self._flow.name,
            plan=plan,
            source=self._bounded_source(plan),
            target=self._flow.target,
            slots=self._plans.slots,
            opens=opened_by(self._flow.memory_bytes),
        )
        self._trial = plan
        began = time.monotonic()
        job: asyncio.Future[Any] = asyncio.get_running_loop().run_in_executor(
            self._thread, partial(self._in_spark, work)
        )
        ending: asyncio.Future[Any] = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([job, ending], return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                await asyncio.wait([job], timeout=CANCEL_SECONDS)
            while not job.done():  # one that has not begun yet is not cancelled by that
                with contextlib.suppress(TimeoutError):
                    await asked(partial(self._session.sparkContext.cancelJobGroup, self._job), 1.0)
                await asyncio.wait([job], timeout=1.0)
            results: list[Row] = await job
        except Exception as failure:
            if (stop := Stopped.found_in(failure)) is not None:
                raise stop from None
            raise
        finally:
            ending.cancel()
        took = time.monotonic() - began
        is_full = any(until - plan.begin[number] >= self._offsets for number, until in plan.until.items())
        if took > _LONG:
            self._halve()
        elif took < _SHORT and is_full and not self._suspects:
            self._offsets = min(MOST_OFFSETS, self._offsets * 2)
        return results

    def _bounded_source(self, plan: Plan) -> Endpoint:
        """The source, with what each task that may read the plan's ranges at a time gets of the flow's bound."""
        if (rate := self._flow.rekey_rate) is None:
            return self._flow.source
        return self._flow.source.bounded(rate, min(len(plan.ranges), self._session.sparkContext.defaultParallelism))

    def _in_spark(self, work: Work) -> list[Row]:
        context = self._session.sparkContext
        context.setJobGroup(self._job, f"{self._flow.name}: {self._rule.source}, micro-batch {work.plan.number}", True)
        rule = work.plan.rule  # that of a plan that was begun may be an older one
        is_ours = rule.expressions == self._rule.expressions
        return carried_out(self._session, work, self._used if is_ours else used_by(self._session, rule))

    def _learn(self, plan: Plan, results: list[Row]) -> None:
        """The micro-batch is committed by every slot."""
        self._committed = plan.number
        self._side.stand_at(plan.until, plan.epochs)
        for row in results:
            self._parts[row.source_partition].learn(row)

    def _is_stopped_by(self, stop: Stopped) -> bool:
        """Note a stop; whether it is that of the whole topic."""
        self._log.error(
            "partition_stopped",
            partition=stop.partition,
            offset=stop.offset,
            state=stop.state,
            reason=stop.text(self._advice_values(stop.offset)),
        )
        if stop.partition < 0:
            self._stop = stop
            return True
        self._stops_since = time.monotonic()
        part = self._parts.setdefault(stop.partition, Standing(max(stop.offset, 0)))
        part.stop = stop
        return False

    async def _report(self) -> None:
        """All that `_append` does, every second."""
        if time.monotonic() - self._reported < REPORT_SECONDS:
            return
        self._reported = time.monotonic()
        await self._append()

    async def _last_word(self) -> None:
        """The same once more; where the target is away, nobody can read it."""
        with contextlib.suppress(MirrorError, WireError, ClusterError, TimeoutError):
            async with asyncio.timeout(REPORT_SECONDS):
                await self._append()

    async def _append(self) -> None:
        """The figures, and the stops that the journal is to keep (D3)."""
        met = {
            TopicPartition(self._rule.target, number): self._known_stop(part.stop)
            for number, part in self._parts.items()
            if part.stop is not None and stands(part.stop.state)
        }
        reports = ((one.key(), one.to_json()) for one in self._all_figures())
        await self.journal.append_all([*reports, *self._standing.changes((), met)])
        self._standing.written((), met)

    def _known_stop(self, stop: Stopped) -> KnownStop:
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
        at = TopicPartition(self._rule.source, number)
        part = self._parts.get(number) or self._side.reported(number)
        if self._stop is not None:
            part = replace(part, stop=self._stop.at(number, part.at))
        return part.figures(
            at,
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


# --- The re-key queries of a flow, beside its tasks -------------------------------------------------------------------

_CONF: Final = {
    # what a plan has shuffled must go where it says; and failures are ours to see, one by one
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.enabled": "true",
    # else what two expressions have in common is evaluated outside of what catches its failure
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
}


class Queries:
    """Those of one flow; none, where no rule matches."""

    def __init__(self, make: Callable[[Rekeying], Rekeyer] | None = None, rules: Iterable[Rekeying] = ()) -> None:
        """`make` gives a topic's query, `rules` are those of the topics that are there now."""
        self._make = make
        self._rekeyers: dict[str, Rekeyer] = {}
        self._begin: Callable[[Rekeyer, bool], asyncio.Task[None]] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.add(rules)

    def add(self, rules: Iterable[Rekeying], origins: Mapping[str, tuple[str, ...]] = {}) -> None:
        """Re-key these topics, too. Those that are have their query already, which learns a setting of now. `origins`:
        as `Flow.origins`, where it knows less.
        """
        for rule in rules:
            if (known := self._rekeyers.get(rule.source)) is not None:
                known.learns(rule)
            elif self._make is not None:
                made = self._rekeyers[rule.source] = self._make(rule)
                made.origins = origins.get(rule.source, made.origins)
                if self._begin is not None:
                    self._tasks.append(self._begin(made, False))

    @property
    def figures(self) -> dict[TopicPartition, PartitionStatus]:
        """How each source partition stands."""
        return {at: figures for one in self._rekeyers.values() for at, figures in one.figures.items()}

    def rekeys(self, topic: str) -> bool:
        """Whether this source topic is re-keyed."""
        return topic in self._rekeyers

    @property
    def have_refreshed(self) -> bool:
        """All of them know how far their sources are."""
        return all(one.has_refreshed for one in self._rekeyers.values())

    @property
    def unfinished(self) -> Iterator[str]:
        """Of bounded copies, what was not re-keyed."""
        for one in self._rekeyers.values():
            yield from one.unfinished

    def start(
        self,
        stopping: asyncio.Event,
        stop: Callable[[], None],
        journal_state: JournalState,
        reports: Mapping[bytes, bytes] = {},
        *,
        is_first: bool,
    ) -> None:
        """Begin all of them, until `stopping` is set. One that fails calls `stop`: then `ended` raises what it raised.
        `journal_state` says which source topics are paused, `reports` what mirrors before this one reported last.
        `is_first`: none of the flow has.
        """

        def stop_on_failure(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                stop()

        def begin(one: Rekeyer, is_first: bool) -> asyncio.Task[None]:
            one.journal.clearance = journal_state.clearance(one.journal)
            one.has_flow = partial(journal_state.has_flow, one.journal)
            one.recall(reports)
            running = one.run(journal_state.instance, stopping, lambda: journal_state.paused, is_first=is_first)
            task = asyncio.create_task(running)
            task.add_done_callback(stop_on_failure)
            return task

        self._begin = begin
        self._tasks = [begin(one, is_first) for one in self._rekeyers.values()]

    async def ended(self) -> None:
        """Wait for the end of all, those that are added meanwhile included. Raises what one of them did not expect."""
        while waiting := [task for task in self._tasks if not task.done()]:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        for task in self._tasks:
            task.result()

    async def cancel(self) -> None:
        """Give up what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def check_rules(context: SparkContext, settings: Settings) -> None:
    """Refuse expressions that cannot be evaluated, or not twice with the same result, before anything is made.

    Raises ConfigError with the first of them.
    """
    if not settings.topics.rules:
        return
    session = session_of(context)
    for rule in settings.topics.rules:
        used_by(session, rekeyed_by(rule, rule.match.pattern, "", 1))


def queries_for(context: SparkContext, flow: Flow) -> Queries:
    """The queries of a flow that is ready to run, and of topics that come later."""

    def made(rule: Rekeying) -> Rekeyer:
        session = session_of(context)
        return Rekeyer(session, flow, rule, used_by(session, rule))

    return Queries(made, flow.rekeyed)


def session_of(context: SparkContext) -> SparkSession:
    """A session with the settings that the queries need."""
    session = SparkSession(context)
    for key, value in _CONF.items():
        session.conf.set(key, value)
    return session
