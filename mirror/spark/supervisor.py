"""The driver: one Spark job after another, each an epoch in which every lane tails its partitions.

S1  what is true is in the target; the supervisor holds nothing that its successor would need
S2  of two mirrors of one flow the younger goes on: it writes its name into the journal, and the older, when it reads
that, ends as CONTENDED; the younger waits for that (`handover.py`). Where both run all the same, they append the same
batches under the same numbers, which is harmless (invariant P3 in `position.py`)
S3  a partition that stopped is looked at again in the next epoch, from its logs; stops are not remembered, so
mending the cause is enough. What must not be mended by waiting is kept in the journal: the topic id under which a
source topic was first seen, and where it began to be mirrored
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from pyspark import SparkContext

from mirror.assignment import Assignment
from mirror.config import Settings
from mirror.errors import ClusterError
from mirror.names import first_of
from mirror.observe import logs
from mirror.observe.figures import Figures
from mirror.observe.metrics import Metrics
from mirror.offsets.failover import FailedOver, Garbled
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.groupfollower import GroupFollower
from mirror.offsets.groupsync import sync_of, terms_of
from mirror.offsets.heartbeats import Heart
from mirror.offsets.journal import Entry, Journal
from mirror.offsets.ledgers import forget_expired
from mirror.offsets.losses import Accepted, accepted_for
from mirror.offsets.owner import Owner
from mirror.policy.rekeying import Rekeying
from mirror.sink import Tally
from mirror.spark import handover
from mirror.spark.beginning import bounded, recorded
from mirror.spark.ending import Headway, has_caught_up, left_of, unfinished_of
from mirror.spark.epoch import Epochs
from mirror.spark.flow import Flow, Outcome
from mirror.spark.laning import lanes_for
from mirror.spark.lookout import Lookout
from mirror.spark.plan import lanes_of, rates_of
from mirror.spark.prepare import with_settings
from mirror.spark.rekey.driver import WATCH_SECONDS
from mirror.spark.rekey.queries import Queries
from mirror.spark.relay import Receipt
from mirror.spark.renewal import Look
from mirror.spark.reports import forget, log_epoch, resting
from mirror.spark.stoplog import StopLog
from mirror.spark.tidings import Tidings
from mirror.spark.unless import unless
from mirror.wire.cluster import Cluster, TopicPartition

#: Rounds of watching after which what rests is reported again.
REPORT_ROUNDS: Final = 10
#: Between epochs that end at once without having moved anything.
IDLE_PAUSE: Final = 2.0
#: Epochs in which a bounded copy may make no headway before it gives up.
IDLE_EPOCHS: Final = 2

Watch = Callable[[Mapping[TopicPartition, Figures]], None]


class Supervisor:
    """Runs one flow until it is done, stopped, or taken over."""

    def __init__(
        self,
        context: SparkContext,
        flow: Flow,
        watch: Watch,
        metrics: Metrics | None = None,
        lookout: Lookout | None = None,
        queries: Queries | None = None,
    ) -> None:
        """`watch` is called about once a second; `metrics` learns all that there is to tell; `lookout` finds what is
        new while the mirror runs: a bounded copy needs none. `queries` re-key what no lane copies.
        """
        self._queries = queries or Queries()
        self._flow, self._watch, self._metrics = flow, watch, metrics or Metrics(flow.name)
        self._source, self._target = Cluster(flow.source), Cluster(flow.target)
        self._journal = Journal(self._target, flow.name)
        self._instance = uuid.uuid4().hex[:12]
        self._tallies: dict[TopicPartition, Tally] = {}
        self._planned: dict[TopicPartition, int] = {}
        self._headway = Headway()
        self._left_out: dict[TopicPartition, str] = {}
        self._assignments = list(flow.assignments)
        self._lookout = lookout
        self._next: Look | None = None
        self._adopting = asyncio.Lock()
        self._resting = frozenset[str]()
        self._obeyed: dict[TopicPartition, Accepted] = {}  # what the epoch under way knows to be accepted
        self._groups: GroupFollower | None = None
        self._caught_up = False
        self._stopping = asyncio.Event()
        self._early = asyncio.Event()  # the epoch under way is to end: another plan, or the end of all
        self._stops, self._outcome = StopLog(), Outcome()
        self._tidings = Tidings(flow.name, self._instance, self._taken_over, self._failed_over, self._metrics)
        self._jobs = Epochs(
            context,
            flow.name,
            flow.epoch_seconds,
            self._early,
            on_failure=self._metrics.epoch_failed,
            hear=self._tidings.hear,
        )
        self._log = logs.get("mirror.supervisor")

    async def run(self) -> Outcome:
        """Epoch after epoch. Raises ClusterUnreachable and AccessDenied where a cluster cannot be used at the start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        if self._lookout is not None:
            loop.add_signal_handler(signal.SIGHUP, self._lookout.read_again)
        async with self._source as source, self._target as target:
            journal = self._journal
            await source.refresh({a.source.topic for a in self._flow.assignments})
            await target.refresh({a.target.topic for a in self._flow.assignments})
            since = await handover.claim(journal, Owner.here(self._instance))
            older, known = await handover.older_ended(journal, since, self._stopping)
            if older is not None:
                self._log.warning("older_mirror_silent", flow=self._flow.name, older=str(older))
            self._tidings.until = since
            self._tidings.learn([Entry(0, key, value) for key, value in known.items()])
            self._assignments = await recorded(
                source, journal, self._assignments, known, self._flow.made, self._flow.start
            )
            if self._flow.once:
                self._assignments, self._left_out = await bounded(source, self._flow.name, self._assignments)
            flow = self._flow
            reports = self._tidings.live, self._outcome.figures
            sync = sync_of(source, target, flow.groups, self._assignments, reports, self._tidings.runs)
            groups = GroupFollower(sync, journal, self._instance, flow.groups_seconds, self._metrics.groups_followed)
            self._groups = groups
            needed = [asyncio.create_task(self._watch_journal())]
            if self._lookout is not None:
                needed.append(asyncio.create_task(self._lookout.run(self)))
            for task in needed:
                task.add_done_callback(lambda _: self._stop())
            beside = [*needed, asyncio.create_task(groups.run())]
            if flow.heartbeats:
                heart = Heart(target, flow.name, self._instance, self._tidings.live.values)
                beside.append(asyncio.create_task(heart.run()))
            self._queries.start(self._stopping, self._stop, self._tidings)
            try:
                await self._epochs()
                await self._queries.ended()
                if not self._outcome.contended:
                    with contextlib.suppress(TimeoutError):  # where the last records went; groups tell what hinders
                        async with asyncio.timeout(WATCH_SECONDS):
                            await self._tidings.read(journal)
                    await groups.finish(self._stopping)
            finally:
                await self._queries.cancel()
                for task in beside:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
            await handover.sign_off(journal, self._instance)
        self._conclude()
        return self._outcome

    async def _epochs(self) -> None:
        number, idle = 0, 0
        while not self._stopping.is_set():
            self._early.clear()
            await self._adopt()
            if self._stopping.is_set():
                return
            await self._rest()
            if not (left := self._unfinished()):
                return  # what is left to do, if anything, the queries do
            began = time.time()
            if not (active := [one for one in left if one.source.topic not in self._resting]):
                if self._flow.once:
                    return
                await self._pause(self._flow.epoch_seconds)
                continue
            receipts = await self._epoch(number, active)
            for receipt in receipts:
                at = TopicPartition(receipt.figures.topic, receipt.figures.partition)
                self._outcome.figures[at] = self._tidings.receive(receipt.figures)
                self._tallies[at] = receipt.tally
            self._metrics.learn(self._outcome.figures.values())
            self._watch(self._outcome.figures)
            log_epoch(self._flow.name, number, time.time() - began, self._outcome.figures.values())
            self._stops.tell(self._outcome.figures.values())
            if receipts:  # an epoch that failed as a whole says nothing about what hinders lanes
                idle = 0 if self._headway.made(self._outcome.figures) else idle + 1
            if self._flow.once and idle >= IDLE_EPOCHS:
                return
            number += 1
            early = began + self._flow.epoch_seconds - time.time()
            if idle and early > 0 and self._unfinished():
                # It ended early of itself and moved nothing: only stops are left, or something hinders every lane.
                await self._pause(early if self._all_stopped() else min(early, IDLE_PAUSE))
            await unless(self._stopping, self._refreshed())
            with contextlib.suppress(ClusterError):  # the next epoch's end will do as well
                await forget_expired(self._journal, self._tidings.runs)

    @property
    def assignments(self) -> Sequence[Assignment] | None:
        """What is mirrored now; None while a plan that was found waits to be adopted."""
        return self._assignments if self._next is None else None

    @property
    def seen(self) -> Mapping[str, FirstSeen]:
        """By target topic, as what its source was first seen."""
        return seen_in(self._tidings.topics)

    async def found(self, look: Look) -> None:
        """There is something else to mirror. What is only added joins the epoch under way, so that the others go on
        undisturbed; for anything else that ends early.
        """
        self._next, before = look, len(self._assignments)
        if look.only_adds(self._assignments):
            await self._adopt()
            if self.assignments is not None and await self._joined(self._assignments[before:]):
                return
        self._early.set()

    def rekey(self, rules: Sequence[Rekeying]) -> None:
        """Topics that rules match: those that are new are re-keyed from now on."""
        self._queries.add(rules)

    def configured(self, settings: Settings) -> None:
        """Other settings hold from the next epoch on, which comes early for them."""
        self._flow = with_settings(self._flow, settings)
        if self._groups is not None:
            self._groups.sync.include, self._groups.interval = self._flow.groups, self._flow.groups_seconds
        self._early.set()

    async def _adopt(self) -> None:
        """Make the newest plan the one that holds. Where a cluster is away the old one does, until the next epoch."""
        async with self._adopting:
            if self._next is not None:
                await unless(self._stopping, self._take_over(self._next))

    async def _take_over(self, look: Look) -> None:
        source, journal = self._source, self._journal
        before, after = ({one.place for one in some} for some in (self._assignments, look.assignments))
        new = [one for one in look.assignments if one.place not in before]
        gone = [one for one in self._assignments if one.place not in after]
        try:
            await source.refresh({one.source.topic for one in new})
            await journal.cluster.refresh({one.target.topic for one in new})
            if not await self._tidings.read(journal):  # a topic that grew may have begun a moment ago
                return
            found = await recorded(source, journal, new, self._tidings.topics, look.made)
            await forget(journal, gone)
        except ClusterError as problem:
            self._log.warning("plan_not_adopted", flow=self._flow.name, reason=str(problem))
            return
        known = {one.place: one for one in found}
        self._assignments, self._next = [known.get(one.place, one) for one in look.assignments], None
        for one in gone:  # what was counted of them is told; should they come back, they count from nothing
            self._outcome.figures.pop(one.source, None)
            self._tallies.pop(one.source, None)
            self._planned.pop(one.source, None)
        if self._groups is not None:
            self._groups.sync.mirrors(terms_of(self._assignments, self._tidings.runs))
        added, ended = sorted({one.source.topic for one in new}), sorted({one.source.topic for one in gone})
        self._log.info("plan_changed", flow=self._flow.name, added=added, ended=ended, partitions=len(look.assignments))

    async def _joined(self, added: Sequence[Assignment]) -> bool:
        """Whether the epoch under way mirrors these now. One that was mirrored before, at other offsets, does not join:
        what the journal tells of those, a lane learns as it begins.
        """
        tidings = self._tidings
        moved = tidings.runs.last()
        if any(one.target in moved for one in added):
            return False
        awake = [one for one in added if one.source.topic not in tidings.paused]
        return await self._jobs.join([replace(one, accepted=accepted_for(one, tidings.accepted)) for one in awake])

    async def _rest(self) -> None:
        """Report the partitions of topics that rest."""
        self._resting = frozenset(self._tidings.paused)
        if not (at_rest := [one for one in self._assignments if one.source.topic in self._resting]):
            return
        before = self._tidings.newest(self._outcome.figures)
        figures = {one.source: resting(one, before.get(one.source), self._flow.name, self._instance) for one in at_rest}
        self._outcome.figures |= figures
        try:
            await self._journal.append_all((one.key(), one.to_json()) for one in figures.values())
        except ClusterError as problem:  # reported again soon
            self._log.warning("pause_not_reported", flow=self._flow.name, reason=str(problem))

    def _conclude(self) -> None:
        """What the receipts do not tell, since a lane was cut short, its last live figures do; and what is missing
        is said.
        """
        self._outcome.figures |= self._tidings.newest(self._outcome.figures) | self._queries.figures
        missing = [*(f"{at}: {why}" for at, why in self._left_out.items()), *self._queries.unfinished]
        missing += unfinished_of(self._unfinished() if self._flow.once else (), self._outcome.figures)
        if self._flow.until_caught_up and not self._caught_up:
            missing.append("not caught up")
        self._outcome.incomplete = first_of(missing, most=3, separator="; ")

    def _stop(self) -> None:
        self._stopping.set()
        self._early.set()

    def _interrupt(self, number: int) -> None:
        self._outcome.interrupted = number
        self._stop()

    async def _epoch(self, number: int, assignments: list[Assignment]) -> list[Receipt]:
        """One Spark job; empty where it failed as a whole."""
        flow, tidings = self._flow, self._tidings
        self._obeyed = dict(tidings.accepted)
        assignments = [replace(one, accepted=accepted_for(one, tidings.accepted)) for one in assignments]
        leaders = {one.source: self._source.leader(one.source) for one in assignments}
        packed = lanes_of(assignments, leaders, self._tallies, self._jobs.slots(flow.lanes))
        moved = {at: tally.bytes - self._planned.get(at, 0) for at, tally in self._tallies.items()}
        rates = rates_of(flow.bytes_per_second, packed, self._outcome.figures, moved)
        self._planned = {at: tally.bytes for at, tally in self._tallies.items()}
        return await self._jobs.run(number, lanes_for(flow, number, packed, rates, self._tallies, tidings))

    def _unfinished(self) -> list[Assignment]:
        return left_of(self._assignments, self._outcome.figures) if self._flow.once else self._assignments

    def _all_stopped(self) -> bool:
        figures = self._outcome.figures.values()
        return bool(figures) and all(one.state.is_stop for one in figures)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._early.wait()

    async def _refreshed(self) -> None:
        """Leaders for the next plan; an unreachable source is the lanes' to report."""
        try:
            await self._source.refresh()
        except ClusterError as problem:
            self._log.warning("source_not_reached", flow=self._flow.name, reason=str(problem))

    async def _watch_journal(self) -> None:
        """Live figures for whoever watches, and the name of a younger owner."""
        live = self._tidings.live
        for rounds in count(1):
            await asyncio.sleep(WATCH_SECONDS)
            was_read = await self._tidings.read(self._journal)
            self._watch(live)  # lanes may have told more than the journal
            self._stops.tell(live.values())
            if not was_read:
                continue
            if self._tidings.paused != self._resting or self._tidings.accepted != self._obeyed:
                self._early.set()
            if rounds % REPORT_ROUNDS == 0:
                await self._rest()
            has_all = len(live) == len(self._assignments) + len(self._queries.figures)
            caught_up = has_all and self._queries.have_looked and all(map(has_caught_up, live.values()))
            if self._flow.until_caught_up and caught_up:
                self._caught_up = True
                self._stop()

    def _taken_over(self, owner: Owner) -> None:
        self._outcome.contended = str(owner)
        self._log.error("contended", flow=self._flow.name, taken_over_by=self._outcome.contended)
        self._stop()

    def _failed_over(self, done: FailedOver | Garbled) -> None:
        self._log.info("flow_failed_over", flow=self._flow.name, told=str(done))
        self._stop()
