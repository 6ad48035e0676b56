"""The re-key queries of a flow, beside its tasks: one for each topic that a rule matches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from mirror.config import Settings
from mirror.driver.flow import Flow
from mirror.driver.journal_state import JournalState
from mirror.driver.scheduling import Limits
from mirror.journal.entries import PendingStart
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.policy.selection import Rekeying, rekeyed_by
from mirror.spark.rekey.driver import Rekeyer
from mirror.spark.rekey.expressions import used_by

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
        self._begin: Callable[[Rekeyer, PendingStart | None], asyncio.Task[None]] | None = None
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
                    self._tasks.append(self._begin(made, None))

    @property
    def count(self) -> int:
        """How many topics are re-keyed."""
        return len(self._rekeyers)

    @property
    def figures(self) -> dict[TopicPartition, PartitionStatus]:
        """How each source partition stands."""
        return {
            partition: figures for rekeyer in self._rekeyers.values() for partition, figures in rekeyer.figures.items()
        }

    def rekeys(self, topic: str) -> bool:
        """Whether this source topic is re-keyed."""
        return topic in self._rekeyers

    @property
    def have_refreshed(self) -> bool:
        """All of them know how far their sources are."""
        return all(rekeyer.has_refreshed for rekeyer in self._rekeyers.values())

    @property
    def unfinished(self) -> Iterator[str]:
        """Of bounded copies, what was not re-keyed."""
        for rekeyer in self._rekeyers.values():
            yield from rekeyer.unfinished

    def start(
        self,
        stopping: asyncio.Event,
        stop: Callable[[], None],
        journal_state: JournalState,
        reports: Mapping[bytes, bytes] = {},
        starts: Mapping[str, PendingStart] = {},
        limits: Callable[[], Limits] | None = None,
    ) -> None:
        """Begin all of them, until `stopping` is set. One that fails calls `stop`: then `ended` raises what it raised.
        `journal_state` says which source topics are paused, `reports` what mirrors before this one reported last.
        `starts`: by target topic, where those begin of which the flow's first start decided it, and no plan says it.
        `limits`: what each may use now, where that is not what its flow says.
        """

        def stop_on_failure(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                stop()

        def begin(rekeyer: Rekeyer, start: PendingStart | None) -> asyncio.Task[None]:
            rekeyer.journal.clearance = journal_state.clearance(rekeyer.journal)
            rekeyer.has_flow = partial(journal_state.has_flow, rekeyer.journal)
            rekeyer.may_lack = partial(journal_state.may_lack, rekeyer.journal)
            rekeyer.limits = limits or rekeyer.limits
            rekeyer.recall(reports)
            running = rekeyer.run(journal_state.instance, stopping, lambda: journal_state.paused, start=start)
            task = asyncio.create_task(running)
            task.add_done_callback(stop_on_failure)
            return task

        self._begin = begin
        self._tasks = [begin(rekeyer, starts.get(rekeyer.target)) for rekeyer in self._rekeyers.values()]

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
