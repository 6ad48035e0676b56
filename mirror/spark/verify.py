"""A proof on Spark: every share is one job of one task, and as many jobs run at a time as there are slots.

Jobs of their own rather than one job of many tasks: what a job found is kept as soon as it is done, so that an
interrupted proof repeats a range of a second and no more, and the next share goes to whichever slot is free. A job
costs some milliseconds, a share takes half a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyspark import SparkContext

from mirror.config import SparkSettings
from mirror.driver.scheduling import computing_task_count
from mirror.errors import AccessDenied, ClusterError, ClusterUnreachable, EngineLost
from mirror.spark.compat import rows_of
from mirror.spark.session import Engine, close_context, failure_text, open_context, slots_of
from mirror.verify.flow import Found, prove
from mirror.verify.ranges import Share


@dataclass(frozen=True, slots=True)
class Hindered:
    """What a task brings back where a cluster could not be read: an error of ours would lose its kind on its way
    through Spark.
    """

    denied: bool
    text: str

    def error(self) -> ClusterError:
        """To be raised by the driver."""
        return AccessDenied(self.text) if self.denied else ClusterUnreachable(self.text)


def compared(shares: Iterable[Share]) -> Iterator[Found | Hindered]:
    """For `RDD.mapPartitions`."""
    for share in shares:
        try:
            yield from asyncio.run(prove(share, lambda _: None))
        except ClusterError as problem:
            yield Hindered(isinstance(problem, AccessDenied), str(problem))


class ProofOnSpark(AbstractContextManager["ProofOnSpark"]):
    """A Spark context for one proof: `prove` is its `Prover`, `slots` how many shares it takes at a time."""

    def __init__(self, settings: SparkSettings, flow: str, shares: int) -> None:
        """Start Spark for at most `shares` at a time. Raises ConfigError as `open_context` does."""
        self._context = open_context(settings, flow, computing_task_count(settings.tasks, shares))
        self._group = f"mirror-verify-{flow}"
        self.slots = slots_of(self._context, settings, shares)
        self._threads = ThreadPoolExecutor(self.slots, "proof")
        self._watching = ExitStack()
        self._watching.enter_context(Engine(self._context).watched())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._watching.close()
        close_context(self._context)

    async def prove(self, share: Share, read: Callable[[int], None]) -> Sequence[Found]:
        """Compare one share in a task. Raises ClusterUnreachable, AccessDenied; EngineLost where Spark gives it up."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._job, self._context, share)
        except asyncio.CancelledError:
            self._context.cancelJobGroup(self._group)
            raise
        except Exception as failure:  # whatever Spark raises
            text = f"Spark gave up a part of the proof: {failure_text(failure)}. Finished ranges are kept"
            raise EngineLost(text) from failure
        reports: list[Found] = []
        for report in found:
            if isinstance(report, Hindered):
                raise report.error()
            reports.append(report)
        read(share.offsets)
        return reports

    def _job(self, context: SparkContext, share: Share) -> list[Found | Hindered]:
        """In a thread of its own: Spark's job properties belong to the thread that submits."""
        first = share.ranges[0]
        more = f" and {len(share.ranges) - 1} more ranges" if len(share.ranges) > 1 else ""
        description = f"{first.pair.source} {first.bounds.begin} to {first.bounds.end}{more}"
        context.setJobGroup(self._group, description, interruptOnCancel=True)
        found: list[Found | Hindered] = rows_of(context, [share]).mapPartitions(compared).collect()
        return found
