"""One partition's life in a lane: the state that its keeper (`pipeline.py`) brings about, and the report of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from mirror.assignment import Assignment
from mirror.fetcher import Cursor
from mirror.observe.figures import Figures
from mirror.sink import Sink, Tally
from mirror.states import State


@dataclass(slots=True, eq=False)
class Keeper:
    """What is known of it. `is_new`: it has not begun, and what its lane learned a moment ago tells of it, too."""

    assignment: Assignment
    state: State = State.STARTING
    detail: str = ""
    advice: str = ""
    cursor: Cursor | None = None
    sink: Sink | None = None
    unsettled: asyncio.Event = field(default_factory=asyncio.Event)
    doubts: int = 0
    stopped_at: int = -1
    aligned_to: int = -1
    is_new: bool = True
    finished: bool = False

    @property
    def is_done(self) -> bool:
        """Nothing is left to do here: stopped, or a bounded copy whose last batch is acknowledged."""
        return self.finished and (self.sink is None or self.sink.is_idle)

    def figures(self, flow: str, instance: str, now: int, tally: Tally) -> Figures:
        """Where the partition stands at Unix time `now` (ms)."""
        mine, sink, cursor = self.assignment, self.sink, self.cursor
        acked = sink.acked if sink else max(self.stopped_at, self.aligned_to)
        end = cursor.readable_until if cursor else -1
        return Figures(
            flow=flow,
            instance=instance,
            topic=mine.source.topic,
            partition=mine.source.partition,
            target_topic=mine.target.topic,
            state=self.state,
            detail=f"{self.detail}. {self.advice}" if self.advice else self.detail,
            next_offset=acked,
            log_end=end,
            lag_records=max(0, end - acked) if end >= 0 <= acked else 0,
            lag_ms=0 if self.state is State.CAUGHT_UP else tally.latency_ms,
            records=tally.records,
            batches=tally.batches,
            bytes=tally.bytes,
            filled=tally.filled,
            lost=tally.lost,
            verdicts=dict(tally.verdicts),
            verdict_bytes=dict(tally.verdict_bytes),
            latency=tally.latency.copy(),
            at_ms=now,
        )
