"""Heartbeats on the target, `mirror.<flow>.heartbeats`: one record every five seconds from the mirror that runs, so
that whoever reads the target alone knows how old its copy is at most. The source gets nothing.

    key      the flow
    value    JSON: flow, instance, at_ms (Unix ms), partitions, stopped, lag_records (null where it is known of none),
             lag_unknown (of how many partitions it is not), lag_ms (the worst latency known); `partitions` are all that
             are planned, and those left out, which count as stopped

When the last one is old, the mirror is away, and records younger than that one may be missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from mirror import clock
from mirror.errors import ClusterError, WireError
from mirror.journal.journal import encode
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.produce import append
from mirror.observability import logs
from mirror.observability.json_record import Int64, JsonRecord
from mirror.observability.status import PartitionStatus, Totals

INTERVAL_SECONDS: Final = 5.0
#: As `mirror status` has it: tasks report every few seconds, also what has not changed.
STALE_SECONDS: Final = 15.0


def heartbeat_topic(flow: str) -> str:
    """The name of the flow's topic of heartbeats on the target."""
    return f"mirror.{flow}.heartbeats"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(JsonRecord):
    """One record."""

    flow: str
    instance: str
    at_ms: Int64
    partitions: Int64
    stopped: Int64
    #: None while they are not known.
    lag_records: Int64 | None
    lag_ms: Int64 | None
    lag_unknown: Int64 = 0

    @classmethod
    def of(cls, flow: str, instance: str, figures: Iterable[PartitionStatus]) -> Heartbeat:
        """The flow as of now."""
        totals = Totals.of(figures)
        return cls(
            flow=flow,
            instance=instance,
            at_ms=clock.now_ms(),
            partitions=totals.partitions,
            stopped=totals.stopped,
            lag_records=totals.lag_records,
            lag_ms=totals.lag_ms,
            lag_unknown=totals.lag_unknown,
        )


@dataclass(frozen=True, slots=True)
class Heart:
    """Beats for one flow. `figures` gives the newest reports of its partitions."""

    target: Cluster
    flow: str
    instance: str
    figures: Callable[[], Iterable[PartitionStatus]]

    async def run(self) -> None:
        """Until cancelled. A target that is away, or a missing right, is logged once; the copy goes on. The lag of what
        no task has reported for `STALE_SECONDS` is not known any more: none may run.
        """
        log, failing = logs.get("mirror.heartbeats"), False
        since: dict[bytes, tuple[PartitionStatus, float]] = {}
        while True:
            now, before = clock.monotonic(), since
            since = {
                status.key(): known if (known := before.get(status.key())) and known[0] == status else (status, now)
                for status in self.figures()
            }
            figures = (status if now - at <= STALE_SECONDS else _of_old(status) for status, at in since.values())
            beat = Heartbeat.of(self.flow, self.instance, figures)
            try:
                batch = encode([(self.flow.encode(), beat.to_json())])
                await append(self.target, TopicPartition(heartbeat_topic(self.flow), 0), (batch,), doing="heartbeat")
            except (ClusterError, WireError) as problem:
                if not failing:
                    log.warning("heartbeat_not_written", flow=self.flow, reason=str(problem))
                failing = True
            else:
                failing = False
            await asyncio.sleep(INTERVAL_SECONDS)


def _of_old(figures: PartitionStatus) -> PartitionStatus:
    return replace(figures.with_end(None), lag_ms=None)
