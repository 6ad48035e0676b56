"""One epoch: a Spark job with a task for each lane, which ends at its deadline, or early on the stop mark."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import SparkContext

from mirror.assignment import Assignment
from mirror.errors import EngineLost
from mirror.observe import logs
from mirror.spark.relay import Lane, Receipt, relay
from mirror.spark.session import LOOPBACK, first_line, is_alive, is_local
from mirror.spark.stopmark import MarkAddress, StopMark
from mirror.wire.cluster import TopicPartition

#: What an epoch may run past its deadline or its stop mark before the job is cancelled.
GRACE_SECONDS: Final = 15.0
STOP_SECONDS: Final = 2.5
CANCEL_SECONDS: Final = 1.0
#: Epochs in a row whose job may fail as a whole before the run ends.
FAILED_EPOCHS: Final = 3
FAILED_PAUSE: Final = 1.0

#: What may join an epoch beside the partitions that it began with, for which its lanes shared out memory and work.
JOINING: Final = 1 / 8

#: The lanes of an epoch that ends at a time (Unix time), or when its stop mark is set.
LanesFor = Callable[[float, MarkAddress], Sequence[Lane]]
#: Given a lane's number, its report, and the partitions that it has.
HearOf = Callable[[int, bytes, Collection[TopicPartition]], None]

_log = logs.get("mirror.supervisor")


def deaf(_lane: int, _report: bytes, _held: Collection[TopicPartition]) -> None:
    """Where nobody watches but by the journal."""


@dataclass(slots=True, eq=False)
class UnderWay:
    """The epoch that runs: what each lane has, by its number, and of how many partitions more it takes."""

    mark: StopMark
    lanes: list[set[TopicPartition]]
    room: int

    @classmethod
    def of(cls, mark: StopMark, lanes: Sequence[Lane]) -> UnderWay:
        """As it begins."""
        held = [{one.source for one in lane.assignments} for lane in lanes]
        return cls(mark, held, int(JOINING * sum(map(len, held))))

    async def join(self, more: Sequence[Assignment]) -> bool:
        """Each goes to the lane that has fewest, unless one has it already. False where not all are taken."""
        more = [one for one in more if not any(one.source in lane for lane in self.lanes)]
        if len(more) > self.room:
            return False
        self.room -= len(more)
        shares: dict[int, list[Assignment]] = {}
        for one in more:
            number = min(range(len(self.lanes)), key=lambda lane: len(self.lanes[lane]))
            self.lanes[number].add(one.source)
            shares.setdefault(number, []).append(one)
        return all(await asyncio.gather(*(self.mark.hand(number, tuple(of)) for number, of in shares.items())))


@dataclass(slots=True, eq=False)
class Epochs:
    """Runs the epochs of a flow; `stopping` ends the one under way. `on_failure` is told of a job that failed, and
    `hear` gets what lanes tell straight.
    """

    context: SparkContext
    flow: str
    seconds: float
    stopping: asyncio.Event
    on_failure: Callable[[], None]
    hear: HearOf = deaf
    _failed: int = 0
    _under_way: UnderWay | None = field(default=None, init=False)

    def slots(self, wanted: int) -> int:
        """Of the lanes wanted, as many as can run at a time now: a cluster's executors come and go, and a lane that
        waits for another to end would get nothing done.
        """
        if is_local(self.context):
            return wanted
        return max(1, min(wanted, int(self.context.defaultParallelism)))

    async def join(self, more: Sequence[Assignment]) -> bool:
        """Let the epoch under way mirror these partitions as well; false where there is none, where they are many
        beside its own, or where a lane does not take them.
        """
        return self._under_way is not None and await self._under_way.join(more)

    async def run(self, number: int, lanes_for: LanesFor) -> list[Receipt]:
        """One job; no receipts where it failed as a whole. One that Spark has no cores for is no failure: a cluster's
        executors may take minutes to come.

        Raises EngineLost where Spark is gone, or `FAILED_EPOCHS` jobs in a row failed.
        """
        conf = self.context.getConf()
        host = conf.get("spark.driver.host") or LOOPBACK
        mark = await StopMark.open(conf.get("spark.driver.bindAddress") or host, host, self._heard)
        lanes = lanes_for(time.time() + self.seconds, mark.address)
        self._under_way = UnderWay.of(mark, lanes)
        job: asyncio.Future[Any] = asyncio.get_running_loop().run_in_executor(None, self._job, number, lanes)
        job.add_done_callback(lambda ended: ended.exception())  # one that ends too late has told its reason here
        stopping: asyncio.Future[Any] = asyncio.create_task(self.stopping.wait())
        is_starved = False
        try:
            await asyncio.wait(
                [job, stopping], return_when=asyncio.FIRST_COMPLETED, timeout=self.seconds + GRACE_SECONDS
            )
            mark.set()
            await asyncio.wait([job], timeout=STOP_SECONDS)
            if not job.done():
                is_starved = not mark.was_reached
                reason = "no lane has begun: Spark has no core for it" if is_starved else "lanes did not end in time"
                _log.warning("epoch_cancelled", flow=self.flow, epoch=number, reason=reason)
                self.context.cancelAllJobs()
                await asyncio.wait([job], timeout=CANCEL_SECONDS)
            receipts: list[Receipt] = job.result()
            self._failed = 0
            return receipts
        except Exception as failure:  # whatever Spark raises: the job is lost, the data is not (S1)
            if is_starved and is_alive(self.context):
                return []
            if not self.stopping.is_set():  # else it was cut short, by us
                self._count_failure(number, failure)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FAILED_PAUSE):
                        await self.stopping.wait()
            return []
        finally:
            self._under_way = None
            stopping.cancel()
            await mark.close()

    def _heard(self, lane: int, report: bytes) -> None:
        held = self._under_way.lanes if self._under_way is not None else []
        self.hear(lane, report, held[lane] if lane < len(held) else ())

    def _job(self, number: int, lanes: Sequence[Lane]) -> list[Receipt]:
        """In a thread of its own: Spark's job properties belong to the thread that submits."""
        self.context.setJobGroup(f"mirror-{self.flow}", f"{self.flow}: epoch {number}, {len(lanes)} lanes", True)
        receipts: list[Receipt] = self.context.parallelize(lanes, len(lanes)).mapPartitions(relay).collect()
        return receipts

    def _count_failure(self, number: int, failure: Exception) -> None:
        if not is_alive(self.context):
            raise EngineLost("Spark's JVM died. Nothing is lost: start the mirror again") from failure
        self._failed += 1
        self.on_failure()
        _log.error("epoch_failed", flow=self.flow, epoch=number, reason=first_line(failure))
        if self._failed >= FAILED_EPOCHS:
            raise EngineLost(f"{FAILED_EPOCHS} epochs in a row failed: {first_line(failure)}") from failure
