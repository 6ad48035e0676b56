"""How one source partition of a re-keyed topic stands, and what was counted of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mirror.observe.figures import Figures
from mirror.observe.histogram import Histogram
from mirror.spark.rekey.stops import Stopped
from mirror.spark.rekey.writing import KEPT_WHOLE, RE_KEYED
from mirror.states import State
from mirror.wire.cluster import TopicPartition


@dataclass(slots=True)
class Standing:
    """Everything below offset `at` is on the target; `end` is where the source's log ended last, under leader epoch
    `epoch`, -1 where that is not known. `stop`: why nothing behind its offset is re-keyed. `waits_for`: why nobody
    knows where the log ends now. `has_end`: it was told once.
    """

    at: int
    end: int = 0
    epoch: int = -1
    stop: Stopped | None = None
    waits_for: str = ""
    has_end: bool = False
    records: int = 0
    batches: int = 0
    bytes: int = 0
    lost: int = 0
    lag_ms: int | None = None
    verdicts: Counter[str] = field(default_factory=Counter)
    verdict_bytes: Counter[str] = field(default_factory=Counter)
    latency: Histogram = field(default_factory=Histogram)

    def learn(self, row: Any) -> None:
        """Count what a receipt tells (`writing.RECEIPT_DDL`)."""
        is_written = row.verdict in (RE_KEYED, KEPT_WHOLE)
        self.verdicts[row.verdict] += row.batches if is_written else row.records
        self.verdict_bytes[row.verdict] += row.bytes
        if is_written:
            self.records += row.records
            self.batches += row.batches
            self.bytes += row.bytes
            self.lag_ms = max(0, row.committed_ms - row.max_timestamp) if row.max_timestamp >= 0 else None
            if self.lag_ms is not None:
                self.latency.add(self.lag_ms / 1000)

    def figures(
        self,
        source: TopicPartition,
        target: str,
        flow: str,
        instance: str,
        *,
        waits_for: str = "",
        state: State | None = None,
        told: Mapping[str, object] = MappingProxyType({}),
    ) -> Figures:
        """The report; `waits_for`: why nothing gets on now; `told`: what a stop's advice names. A stop is told as soon
        as it is known, though what lies before it may still be on its way.
        """
        waits_for = waits_for or self.waits_for
        lag, detail = max(0, self.end - self.at), waits_for
        is_known = self.has_end and not waits_for
        if self.stop is not None:
            state, detail = self.stop.state, self.stop.told(told)
        elif state is None:
            state = State.WAITING if waits_for else State.MIRRORING if lag else State.CAUGHT_UP
        return Figures(
            flow=flow,
            instance=instance,
            topic=source.topic,
            partition=source.partition,
            target_topic=target,
            state=state,
            detail=detail,
            next_offset=self.at,
            log_end=self.end,
            lag_records=lag if is_known and (self.stop is None or self.stop.state is not State.RECREATED) else None,
            lag_ms=self.lag_ms if lag or not is_known else 0,
            records=self.records,
            batches=self.batches,
            bytes=self.bytes,
            lost=self.lost,
            verdicts=self.verdicts,
            verdict_bytes=self.verdict_bytes,
            latency=self.latency,
            at_ms=round(time.time() * 1000),
        )
