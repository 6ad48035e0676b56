"""What the driver itself reports: partitions that rest or are mirrored no longer, and how an epoch ended."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from mirror.assignment import Assignment
from mirror.observe import logs
from mirror.observe.figures import Figures, Totals
from mirror.offsets.journal import Journal
from mirror.states import State


def resting(one: Assignment, before: Figures | None, flow: str, instance: str) -> Figures:
    """The report of a partition that rests, from its last one; a stop remains one, since resting mends nothing. Where
    the source's log ends by now is not known, and so is the lag.
    """
    now = int(time.time() * 1000)
    if before is not None and before.state.is_stop:
        return replace(before, at_ms=now, instance=instance)
    detail = f"paused; `mirror resume CONFIG {one.source.topic}` lets it go on"
    if before is not None:
        known = replace(before, log_end=-1, lag_records=0, lag_ms=None)
        return replace(known, state=State.PAUSED, detail=detail, at_ms=now, instance=instance)
    return Figures(
        flow=flow,
        instance=instance,
        topic=one.source.topic,
        partition=one.source.partition,
        target_topic=one.target.topic,
        state=State.PAUSED,
        detail=detail,
        next_offset=-1,
        log_end=-1,
        lag_records=0,
        at_ms=now,
    )


async def forget(journal: Journal, gone: Iterable[Assignment]) -> None:
    """Delete the last reports of partitions that are mirrored no longer. Raises as `Journal.append` does."""
    await journal.append_all((Figures.key_of(*one.target), None) for one in gone)


def log_epoch(flow: str, number: int, seconds: float, figures: Collection[Figures]) -> None:
    """An epoch's one line: where the flow stands now; counts are since this mirror began."""
    totals = Totals.of(figures)
    logs.get("mirror.supervisor").info(
        "epoch_ended",
        flow=flow,
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
