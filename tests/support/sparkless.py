"""A whole run of a flow, supervisor, journal, tasks and groups, in this process, and without a JVM of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from pyspark import SparkContext

from mirror.config import Settings
from mirror.driver.flow import Flow, RunOutcome, prepare
from mirror.kafka.cluster import Endpoint
from mirror.replication.assignment import Assignment
from mirror.spark.rekey.queries import check_rules, queries_for
from mirror.spark.supervisor import Supervisor


class _Jvm:
    """A JVM that lives."""

    def sc(self) -> Self:
        return self

    def isStopped(self) -> bool:  # noqa: N802 -- Spark's name
        return False


class InThisProcess:
    """As much of a SparkContext as the supervisor uses: each job runs in the thread that asks for it."""

    master = "local[1]"
    _jsc = _Jvm()

    def __init__(self) -> None:
        self._job: Callable[[], list[Any]] = list

    def getConf(self) -> dict[str, str]:  # noqa: N802 -- Spark's name
        """No settings: the defaults hold."""
        return {}

    def setJobGroup(self, *_: Any) -> None:  # noqa: N802 -- Spark's name
        """Nobody cancels anything here."""

    def parallelize(self, rows: Sequence[Any], _slices: int) -> Self:
        """Take rows."""
        self._job = lambda: list(rows)
        return self

    def mapPartitions(self, work: Callable[[Iterable[Any]], Iterator[Any]]) -> Self:  # noqa: N802 -- Spark's name
        """Take what to do with them, one after another."""
        rows = self._job
        self._job = lambda: [result for row in rows() for result in work([row])]
        return self

    def collect(self) -> list[Any]:
        """Do it."""
        return self._job()


def idle_flow(*assignments: Assignment, **more: Any) -> Flow:
    """Return a flow between clusters that nobody asks, unless others are given."""
    nowhere = Endpoint("nowhere", (("127.0.0.1", 1),))
    plain = {"name": "f", "source": nowhere, "target": nowhere, "tasks": 1, "epoch_seconds": 60.0, "memory_bytes": 1}
    return Flow(assignments=assignments, **{**plain, **more})


def run_beside(mirror: Supervisor, story: Callable[[], None]) -> RunOutcome:
    """Run a mirror for as long as a story takes, in a thread of its own. Raises as either does."""

    async def run() -> RunOutcome:
        running = asyncio.create_task(mirror.run())
        try:
            await asyncio.to_thread(story)
        finally:
            mirror._stop()
            outcome = await running
        return outcome

    return asyncio.run(run())


def run_once(settings: Settings, context: SparkContext | None = None) -> RunOutcome:
    """What `mirror run --once` does, but for starting Spark: in that of `context`, or without. Raises MirrorError."""
    if context is None:
        standing: Any = InThisProcess()
        return asyncio.run(Supervisor(standing, prepare(settings, once=True), lambda _: None).run())
    check_rules(context, settings)
    flow = prepare(settings, once=True)
    return asyncio.run(Supervisor(context, flow, lambda _: None, queries=queries_for(context, flow)).run())
