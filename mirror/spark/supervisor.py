"""The driver: one Spark job after another, each an epoch in which every lane tails its partitions.

S1  what is true is in the target; the supervisor holds nothing that its successor would need
S2  of two mirrors of one flow the younger goes on: it writes its name into the journal, and the older, when it reads
that, ends as CONTENDED; the younger waits for that (`handover.py`).
    Where both run all the same, they append the same batches under the same numbers, which is harmless (invariant P3
    in `position.py`)
S3  a partition that stopped is looked at again in the next epoch, from its logs; stops are not remembered, so
mending the cause is enough.
    What must not be mended by waiting is kept in the journal: the topic id under which a source topic was first seen
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from pyspark import SparkContext

from mirror.assignment import Assignment
from mirror.errors import ClusterError
from mirror.observe import logs
from mirror.observe.figures import Figures, Totals
from mirror.observe.metrics import Metrics
from mirror.offsets.failover import FailedOver
from mirror.offsets.groupfollower import GroupFollower
from mirror.offsets.groupsync import sync_of
from mirror.offsets.heartbeats import Heart
from mirror.offsets.journal import Entry, Journal
from mirror.offsets.ledgers import forget_expired
from mirror.offsets.owner import Owner
from mirror.sink import Tally
from mirror.spark import handover
from mirror.spark.beginning import bounded, recorded
from mirror.spark.epoch import Epochs
from mirror.spark.flow import Flow, Outcome
from mirror.spark.plan import lanes_of, rates_of
from mirror.spark.relay import Lane, Receipt
from mirror.spark.stoplog import StopLog
from mirror.spark.stopmark import MarkAddress
from mirror.spark.tidings import Tidings
from mirror.states import State
from mirror.wire.cluster import Cluster, TopicPartition

WATCH_SECONDS: Final = 1.0
#: Between epochs that end at once without having moved anything.
IDLE_PAUSE: Final = 2.0
#: Epochs in which a bounded copy may make no headway before it gives up.
IDLE_EPOCHS: Final = 2

Watch = Callable[[Mapping[TopicPartition, Figures]], None]


class Supervisor:
    """Runs one flow until it is done, stopped, or taken over."""

    def __init__(self, context: SparkContext, flow: Flow, watch: Watch, metrics: Metrics | None = None) -> None:
        """`watch` is called about once a second; `metrics` learns all that there is to tell."""
        self._flow, self._watch, self._metrics = flow, watch, metrics or Metrics(flow.name)
        self._instance = uuid.uuid4().hex[:12]
        self._tallies: dict[TopicPartition, Tally] = {}
        self._planned: dict[TopicPartition, int] = {}
        self._reached: dict[TopicPartition, int] = {}
        self._left_out: dict[TopicPartition, str] = {}
        self._caught_up = False
        self._stopping = asyncio.Event()
        self._stops = StopLog()
        self._outcome = Outcome()
        self._tidings = Tidings(flow.name, self._instance, self._taken_over, self._failed_over, self._metrics)
        self._jobs = Epochs(context, flow.name, flow.epoch_seconds, self._stopping, self._metrics.epoch_failed)
        self._log = logs.get("mirror.supervisor")

    async def run(self) -> Outcome:
        """Epoch after epoch. Raises ClusterUnreachable and AccessDenied where a cluster cannot be used at the start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        async with Cluster(self._flow.source) as source, Cluster(self._flow.target) as target:
            journal = Journal(target, self._flow.name)
            await source.refresh({a.source.topic for a in self._flow.assignments})
            await target.refresh({a.target.topic for a in self._flow.assignments})
            since = await handover.claim(journal, Owner.here(self._instance))
            older, known = await handover.older_ended(journal, since, self._stopping)
            if older is not None:
                self._log.warning("older_mirror_silent", flow=self._flow.name, older=str(older))
            self._tidings.until = since
            self._tidings.learn([Entry(0, key, value) for key, value in known.items()])
            assignments = await recorded(source, journal, self._flow.assignments, known)
            if self._flow.once:
                assignments, self._left_out = await bounded(source, self._flow.name, assignments)
            watching = asyncio.create_task(self._watch_journal(journal))
            watching.add_done_callback(lambda _: self._stopping.set())
            flow, reports = self._flow, (self._tidings.live, self._outcome.figures)
            sync = sync_of(source, target, flow.groups, assignments, reports, self._tidings.runs)
            groups = GroupFollower(sync, journal, self._instance, flow.groups_seconds, self._metrics.groups_followed)
            beside = [watching, asyncio.create_task(groups.run())]
            if flow.heartbeats:
                heart = Heart(target, flow.name, self._instance, self._tidings.live.values)
                beside.append(asyncio.create_task(heart.run()))
            try:
                await self._epochs(source, journal, assignments)
                if not self._outcome.contended:
                    with contextlib.suppress(TimeoutError):  # where the last records went; groups tell what hinders
                        async with asyncio.timeout(WATCH_SECONDS):
                            await self._tidings.read(journal)
                    await groups.finish(self._stopping)
            finally:
                for task in beside:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
            await handover.sign_off(journal, self._instance)
        self._conclude(assignments)
        return self._outcome

    async def _epochs(self, source: Cluster, journal: Journal, assignments: list[Assignment]) -> None:
        number, idle = 0, 0
        while not self._stopping.is_set() and (left := self._unfinished(assignments)):
            began = time.time()
            receipts = await self._epoch(source, number, left)
            for receipt in receipts:
                at = TopicPartition(receipt.figures.topic, receipt.figures.partition)
                self._outcome.figures[at], self._tallies[at] = receipt.figures, receipt.tally
            self._metrics.learn(self._outcome.figures.values())
            self._watch(self._outcome.figures)
            self._log_epoch(number, time.time() - began)
            if receipts:  # an epoch that failed as a whole says nothing about what hinders lanes
                idle = 0 if self._made_headway() else idle + 1
            if self._flow.once and idle >= IDLE_EPOCHS:
                return
            number += 1
            early = began + self._flow.epoch_seconds - time.time()
            if idle and early > 0 and self._unfinished(assignments):
                # It ended early of itself and moved nothing: only stops are left, or something hinders every lane.
                await self._pause(early if self._all_stopped() else min(early, IDLE_PAUSE))
            await self._refreshed(source)
            with contextlib.suppress(ClusterError):  # the next epoch's end will do as well
                await forget_expired(journal, self._tidings.runs)

    def _made_headway(self) -> bool:
        """Whether any partition got further than ever before."""
        further = {
            at: figures.next_offset
            for at, figures in self._outcome.figures.items()
            if figures.next_offset > self._reached.get(at, 0)
        }
        self._reached |= further
        return bool(further)

    def _conclude(self, assignments: list[Assignment]) -> None:
        """What the receipts do not tell, since a lane was cut short, its last live figures do; and what is missing
        is said.
        """
        for at, figures in self._tidings.live.items():
            known = self._outcome.figures.get(at)
            if known is None or known.at_ms < figures.at_ms:
                self._outcome.figures[at] = figures
        missing = [f"{at}: {why}" for at, why in self._left_out.items()]
        for assignment in self._unfinished(assignments) if self._flow.once else ():
            told = self._outcome.figures.get(assignment.source)
            why = (
                f"{told.state} at offset {told.next_offset}" + (f", {told.detail}" if told.detail else "")
                if told
                else "not begun"
            )
            missing.append(f"{assignment.source} up to offset {assignment.until}: {why}")
        if self._flow.until_caught_up and not self._caught_up:
            missing.append("not caught up")
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            self._outcome.incomplete = "; ".join(missing[:3]) + more

    def _interrupt(self, number: int) -> None:
        self._outcome.interrupted = number
        self._stopping.set()

    async def _epoch(self, source: Cluster, number: int, assignments: list[Assignment]) -> list[Receipt]:
        """One Spark job; empty where it failed as a whole."""
        flow, tidings = self._flow, self._tidings
        assignments = [replace(a, accepted=tidings.accepted.get(a.target)) for a in assignments]
        leaders = {a.source: source.leader(a.source) for a in assignments}
        packed = lanes_of(assignments, leaders, self._tallies, flow.lanes)
        last = tidings.runs.last()
        moved = {at: tally.bytes - self._planned.get(at, 0) for at, tally in self._tallies.items()}
        rates = rates_of(flow.bytes_per_second, packed, self._outcome.figures, moved)
        self._planned = {at: tally.bytes for at, tally in self._tallies.items()}

        def lanes(deadline: float, mark: MarkAddress) -> list[Lane]:
            return [
                Lane(
                    flow=flow.name,
                    instance=self._instance,
                    number=index,
                    source=flow.source,
                    target=flow.target,
                    assignments=lane,
                    deadline=deadline,
                    memory_bytes=flow.memory_bytes // len(packed),
                    stop_mark=mark,
                    so_far={a.source: self._tallies[a.source] for a in lane if a.source in self._tallies},
                    runs={a.target: last[a.target] for a in lane if a.target in last},
                    journal_offset=tidings.until,
                    epoch=number,
                    bytes_per_second=rates[index],
                )
                for index, lane in enumerate(packed)
            ]

        return await self._jobs.run(number, lanes)

    def _unfinished(self, assignments: list[Assignment]) -> list[Assignment]:
        if not self._flow.once:
            return assignments
        figures = self._outcome.figures
        return [a for a in assignments if a.source not in figures or not _is_over(figures[a.source], a.until or 0)]

    def _all_stopped(self) -> bool:
        figures = self._outcome.figures.values()
        return bool(figures) and all(f.state.is_stop for f in figures)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _refreshed(self, source: Cluster) -> None:
        """Leaders for the next plan; an unreachable source is the lanes' to report."""
        try:
            await source.refresh()
        except ClusterError as problem:
            self._log.warning("source_not_reached", flow=self._flow.name, reason=str(problem))

    async def _watch_journal(self, journal: Journal) -> None:
        """Live figures for whoever watches, and the name of a younger owner."""
        live = self._tidings.live
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if not await self._tidings.read(journal):
                continue
            self._watch(live)
            self._stops.tell(live.values())
            caught_up = len(live) == len(self._flow.assignments) and all(
                f.state is State.CAUGHT_UP or f.state.is_stop for f in live.values()
            )
            if self._flow.until_caught_up and caught_up:
                self._caught_up = True
                self._stopping.set()

    def _taken_over(self, owner: Owner) -> None:
        self._outcome.contended = str(owner)
        self._log.error("contended", flow=self._flow.name, taken_over_by=self._outcome.contended)
        self._stopping.set()

    def _failed_over(self, done: FailedOver) -> None:
        self._log.info("flow_failed_over", flow=self._flow.name, told=str(done))
        self._stopping.set()

    def _log_epoch(self, number: int, seconds: float) -> None:
        """The epoch's one line: where the flow stands now; counts are since this mirror began."""
        figures = self._outcome.figures.values()
        totals = Totals.of(figures)
        self._log.info(
            "epoch_ended",
            flow=self._flow.name,
            epoch=number,
            seconds=round(seconds, 1),
            partitions=totals.partitions,
            states={str(state): many for state, many in sorted(totals.states.items())},
            records=totals.records,
            batches=totals.batches,
            bytes=totals.bytes,
            lag_records=totals.lag_records,
            latency_ms=totals.lag_ms,
            filled=totals.filled,
            lost=totals.lost,
            stopped=totals.stopped,
        )
        self._stops.tell(figures)


def _is_over(figures: Figures, until: int) -> bool:
    return figures.next_offset >= until or (figures.state.is_stop and figures.state is not State.CONTENDED)
