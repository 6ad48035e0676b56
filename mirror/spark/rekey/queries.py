"""The re-key queries of a flow, beside its lanes: one for each topic that a rule matches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from mirror.config import Settings
from mirror.observe.figures import Figures
from mirror.policy.selection import rekeyed_by
from mirror.spark.flow import Flow
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.expressions import used_by
from mirror.wire.cluster import TopicPartition

_CONF: Final = {
    # what a plan has shuffled must go where it says; and failures are ours to see, one by one
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.enabled": "true",
    # else what two expressions have in common is evaluated outside of what catches its failure
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
}


@dataclass(slots=True, eq=False)
class Queries:
    """Those of one flow; none, where no rule matches."""

    rekeyers: Sequence[Rekeyer] = ()
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def figures(self) -> dict[TopicPartition, Figures]:
        """How each source partition stands."""
        return {at: figures for one in self.rekeyers for at, figures in one.figures.items()}

    @property
    def unfinished(self) -> Iterator[str]:
        """Of bounded copies, what was not re-keyed."""
        for one in self.rekeyers:
            yield from one.unfinished

    def start(
        self, instance: str, stopping: asyncio.Event, stop: Callable[[], None], paused: Callable[[], Collection[str]]
    ) -> None:
        """Begin all of them, until `stopping` is set. One that fails calls `stop`: then `ended` raises what it raised.
        `paused` tells which source topics rest now.
        """

        def look_at(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                stop()

        self._tasks = [asyncio.create_task(one.run(instance, stopping, paused)) for one in self.rekeyers]
        for task in self._tasks:
            task.add_done_callback(look_at)

    async def ended(self) -> None:
        """Wait for the end of all. Raises what one of them did not expect."""
        for task in asyncio.as_completed(self._tasks):
            await task

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
    session = _session(context)
    for rule in settings.topics.rules:
        used_by(session, rekeyed_by(rule, rule.match.pattern, "", 1))


def queries_for(context: SparkContext, flow: Flow) -> Queries:
    """The queries of a flow that is ready to run."""
    if not flow.rekeyed:
        return Queries()
    session = _session(context)
    return Queries([Rekeyer(session, flow, rule, used_by(session, rule)) for rule in flow.rekeyed])


def _session(context: SparkContext) -> SparkSession:
    session = SparkSession(context)
    for key, value in _CONF.items():
        session.conf.set(key, value)
    return session
