"""What the driver itself reports: partitions that rest or are mirrored no longer, and how an epoch ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from mirror.assignment import Assignment
from mirror.observe import logs
from mirror.observe.figures import PREFIX as STATE
from mirror.observe.figures import Figures, Totals
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets.journal import Journal
from mirror.spark.flow import Refusal
from mirror.states import Remedy, State


def resting(one: Assignment, before: Figures | None, flow: str, instance: str) -> Figures:
    """The report of a partition that rests, from its last one; a stop remains one, since resting mends nothing. Where
    the source's log ends by now is not known, and so is the lag: the driver asks for it.
    """
    now = int(time.time() * 1000)
    if before is not None and before.state.is_stop:
        return replace(before, lag_records=None, at_ms=now, instance=instance, presumed=False)
    detail = f"paused; {Remedy.RESUME.told({'topic': one.source.topic})}"
    if before is not None:
        known = replace(before, lag_records=None, lag_ms=None)
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
        lag_records=None,
        at_ms=now,
    )


def left_out(one: Refusal, known: Mapping[bytes, bytes], flow: str, instance: str) -> list[Figures]:
    """The reports of a topic that is not mirrored, since preflight refuses it or it could not be made: one for each of
    its partitions, from the last one in the journal, of which `known` are the newest records.
    """
    now, found = int(time.time() * 1000), list[Figures]()
    for number in range(one.partitions):
        reached = -1
        with contextlib.suppress(*NOT_OURS):
            reached = Figures.from_json(known.get(Figures.key_of(one.target, number), b"")).next_offset
        found.append(
            Figures(
                flow=flow,
                instance=instance,
                topic=one.source,
                partition=number,
                target_topic=one.target,
                state=State.REFUSED,
                detail=f"not mirrored: {one.reason}",
                next_offset=reached,
                log_end=-1,
                lag_records=None,
                at_ms=now,
            )
        )
    return found


def reports_in(known: Mapping[bytes, bytes]) -> Iterator[Figures]:
    """The reports among the newest records of a journal; those that are none of ours are passed over."""
    for key, value in known.items():
        if key.startswith(STATE):
            with contextlib.suppress(*NOT_OURS):
                figures = Figures.from_json(value)
                if figures.key() == key:
                    yield figures


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
        lag_unknown=totals.lag_unknown,
        latency_ms=totals.lag_ms,
        filled=totals.filled,
        lost=totals.lost,
        stopped=totals.stopped,
    )
