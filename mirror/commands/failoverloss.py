"""What a failover finds missing: how far each partition got on the target, and where the source ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from mirror.batch.header import split
from mirror.commands.failoverknown import Known
from mirror.config import Settings
from mirror.errors import ClusterError, MalformedBatch
from mirror.observe import logs
from mirror.observe.figures import Figures
from mirror.policy.recovery import Exposure
from mirror.policy.selection import is_rekeyed
from mirror.wire.cluster import Cluster, TopicPartition
from mirror.wire.fetch import fetch_at
from mirror.wire.queries import LATEST, READ_COMMITTED, list_offset

_log = logs.get("mirror.failover")


async def exposures_of(settings: Settings, source: Cluster | None, known: Known) -> list[Exposure]:
    """What the target lacks now, of every partition that the flow ever reported; the others' exposures stand where one
    of them cannot be asked about.

    The target is asked before the source: while records still come, a copy must not look longer than its source.
    """
    told = list(known.figures.values())
    asked_there = (_position(settings, known, one) for one in told)
    positions = await asyncio.gather(*asked_there, return_exceptions=True)
    ends = await ends_of(source, [_source_of(one) for one in told]) if source is not None else {}
    asked = (
        _exposure(source, ends.get(_source_of(one)), known, one, position)
        for one, position in zip(told, positions, strict=True)
    )
    return list(await asyncio.gather(*asked))


async def ends_of(source: Cluster, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Where each source partition ends for a reader of committed records; without those that cannot be asked."""
    asked = (list_offset(source, at, LATEST, READ_COMMITTED) for at in partitions)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    ends: dict[TopicPartition, int] = {}
    for at, answer in zip(partitions, answers, strict=True):
        if isinstance(answer, int):
            ends[at] = answer
        elif isinstance(answer, ClusterError):
            _log.warning("source_end_unknown", topic=at.topic, partition=at.partition, reason=str(answer))
        else:
            raise answer
    return ends


def _source_of(figures: Figures) -> TopicPartition:
    return TopicPartition(figures.topic, figures.partition)


async def _position(settings: Settings, known: Known, figures: Figures) -> int:
    """The source offset up to which the target holds everything, as far as its log and the journal tell."""
    if is_rekeyed(figures.topic, settings.topics):
        return figures.next_offset
    there = TopicPartition(figures.target_topic, figures.partition)
    if settings.topics.offsets == "translate":
        index = known.runs.get(there)
        return max(figures.next_offset, index.last.next_source if index and index.last else 0)
    target = known.journal.cluster
    if there.topic not in target.topics:
        await target.refresh([there.topic])
    if there.topic not in target.topics:  # not asked for until its leader comes
        raise ClusterError(f"{target}: there is no topic {there.topic}")
    return await list_offset(target, there, LATEST)


async def _exposure(
    source: Cluster | None, end: int | None, known: Known, figures: Figures, answer: int | BaseException
) -> Exposure:
    if isinstance(answer, BaseException) and not isinstance(answer, ClusterError):
        raise answer
    at, position = _source_of(figures), answer if isinstance(answer, int) else None
    reached = figures.next_offset if position is None else position
    now, contact = int(time.time() * 1000), known.contact.get(at)
    lost_from = None
    if source is not None and end is not None and end > reached:
        lost_from = await _written(source, at, reached)
    return Exposure(
        topic=at.topic,
        partition=at.partition,
        target_topic=figures.target_topic,
        position=position,
        end=end,
        state=figures.state,
        lag=max(0, contact.log_end - reached) if contact else 0,
        seen_ms=max(0, now - contact.at_ms) + (contact.lag_ms or 0) if contact else None,
        lost_from_ms=None if lost_from is None else max(0, now - lost_from),
        problem="" if position is not None else str(answer),
    )


async def _written(source: Cluster, at: TopicPartition, offset: int) -> int | None:
    """When the record at an offset, or the next one, was written: Unix ms, None where that cannot be told."""
    try:
        found = list(split((await fetch_at(source, at, offset)).records))
    except (ClusterError, MalformedBatch):
        return None
    times = (one.header.base_timestamp for one in found if one.header.last_offset >= offset)
    first = next(times, -1)
    return first if first >= 0 else None
