"""What a failover finds missing: how far each partition got on the target, and where the source ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mirror.admin.client import Admin
from mirror.admin.values import plain_values
from mirror.batch.header import split
from mirror.commands.failovergroups import Doubt
from mirror.commands.failoverknown import Known
from mirror.config import Settings
from mirror.errors import ClusterError, MalformedBatch
from mirror.observe import logs
from mirror.observe.figures import Figures
from mirror.offsets.firstseen import seen_in
from mirror.offsets.losses import Lost, losses_in
from mirror.policy.recovery import AcceptedLoss, Exposure
from mirror.policy.rules import may_expire
from mirror.policy.selection import is_rekeyed
from mirror.wire.cluster import Cluster, TopicPartition
from mirror.wire.fetch import fetch_at
from mirror.wire.queries import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset

_log = logs.get("mirror.failover")


async def exposures_of(settings: Settings, source: Cluster | None, known: Known) -> list[Exposure]:
    """What the target lacks now, of every partition that the flow reported of its copies of now; the others' exposures
    stand where one of them cannot be asked about.

    The target is asked before the source: while records still come, a copy must not look longer than its source.
    """
    told = [*known.figures.values()]
    lost = losses_in(known.newest)
    asked_there = (_position(settings, known, one) for one in told)
    positions = await asyncio.gather(*asked_there, return_exceptions=True)
    ends, stable = dict[TopicPartition, int](), dict[TopicPartition, int]()
    if source is not None:
        every = [_source_of(one) for one in told]
        ends = await ends_of(source, every, READ_UNCOMMITTED)  # first: a log that grows has no open transaction for it
        stable = await ends_of(source, every)
    asked = (
        _exposure(source, ends.get(_source_of(one)), stable.get(_source_of(one)), known, one, position)
        for one, position in zip(told, positions, strict=True)
    )
    spanned = (_spanned(settings, known, one, lost.get(_target_of(one), ())) for one in told)
    exposures, losses = await asyncio.gather(asyncio.gather(*asked), asyncio.gather(*spanned))
    return [replace(one, losses=missing) for one, missing in zip(exposures, losses, strict=True)]


def with_doubts(exposures: Iterable[Exposure], doubts: Mapping[TopicPartition, Doubt]) -> list[Exposure]:
    """The same, with what comparing both logs told of source partitions since."""
    found: list[Exposure] = []
    for one in exposures:
        doubt = doubts.get(TopicPartition(one.topic, one.partition))
        if doubt is None:
            found.append(one)
        elif doubt.stop is not None:
            found.append(replace(one, state=doubt.stop))
        else:
            found.append(replace(one, doubted=doubt.reason))
    return found


async def ends_of(
    source: Cluster, partitions: Sequence[TopicPartition], isolation: int = READ_COMMITTED
) -> dict[TopicPartition, int]:
    """Where each source partition ends for a reader of committed records, or for another one; without those that cannot
    be asked.
    """
    asked = (_end_of(source, at, isolation) for at in partitions)
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


async def _end_of(source: Cluster, at: TopicPartition, isolation: int) -> int:
    await source.require(at)
    return await list_offset(source, at, LATEST, isolation)


def _source_of(figures: Figures) -> TopicPartition:
    return TopicPartition(figures.topic, figures.partition)


def _target_of(figures: Figures) -> TopicPartition:
    return TopicPartition(figures.target_topic, figures.partition)


async def _spanned(
    settings: Settings, known: Known, figures: Figures, lost: Sequence[Lost]
) -> tuple[AcceptedLoss, ...]:
    """What a reader of the target misses of what was lost: what the target has deleted since is nobody's loss any more.
    Where it cannot be asked, all of it.
    """
    kept_from = 0
    if lost:
        with contextlib.suppress(ClusterError):
            kept_from = await _kept_from(settings, known, figures)
    return tuple(
        AcceptedLoss(max(one.first, kept_from), one.next_offset, one.reason)
        for one in lost
        if one.next_offset > kept_from
    )


async def _kept_from(settings: Settings, known: Known, figures: Figures) -> int:
    """The source offset from which on the target holds records; 0 where nobody can tell. Raises ClusterError."""
    if is_rekeyed(figures.topic, settings.topics):
        return 0
    there = _target_of(figures)
    await known.journal.cluster.require(there)
    start = await list_offset(known.journal.cluster, there, EARLIEST)
    if start and settings.topics.offsets == "translate":
        index = known.runs.get(there)
        return (index.to_source(start) if index is not None else None) or 0
    return start


async def deleted_there(settings: Settings, source: Cluster, known: Known) -> list[str]:
    """What the target deleted of its copies and the source still has, in words, but for what the copy's own retention
    may have deleted. Of a partition that cannot be asked about others tell.
    """
    asked = (_deleted(settings, source, known, one) for one in known.figures.values())
    found = [one for one in await asyncio.gather(*asked) if one is not None]
    if not found:
        return []
    topics = {target for _, target, _, _, _ in found}
    told = await asyncio.to_thread(Admin(settings.target).topic_configs, topics)
    return [
        f"{at}: the target deleted offsets {first} to {upto - 1}, which the source has; its retention does not say why"
        for at, target, first, upto, age_ms in found
        if not may_expire(plain_values(told.get(target, {})), age_ms)
    ]


async def _deleted(
    settings: Settings, source: Cluster, known: Known, figures: Figures
) -> tuple[TopicPartition, str, int, int, int] | None:
    """Source partition and target topic, the source offsets from and to before which the target has no records any
    more, and the age in ms of the last of them.
    """
    at = _source_of(figures)
    try:
        upto = await _kept_from(settings, known, figures)
        if not upto:
            return None
        await source.require(at)
        if (first := await list_offset(source, at, EARLIEST)) >= upto:
            return None
        for offset in (upto - 1, first):
            fetched = split((await fetch_at(source, at, offset)).records)
            batch = next((one.header for one in fetched if one.header.last_offset >= offset), None)
            if batch is not None and batch.base_offset < upto:
                return at, figures.target_topic, first, upto, int(time.time() * 1000) - batch.max_timestamp
    except (ClusterError, MalformedBatch) as problem:
        _log.warning("start_unknown", topic=at.topic, partition=at.partition, reason=str(problem))
    return None


async def _position(settings: Settings, known: Known, figures: Figures) -> int:
    """The source offset up to which the target holds everything, as far as its log and the journal tell."""
    if is_rekeyed(figures.topic, settings.topics):
        return figures.next_offset
    there, target = _target_of(figures), known.journal.cluster
    await target.require(there)
    end = await list_offset(target, there, LATEST)
    return _moved(known, there, figures, end) if settings.topics.offsets == "translate" else end


def _moved(known: Known, there: TopicPartition, figures: Figures, end: int) -> int:
    """The same where offsets moved, and the target's log ends at `end`. Raises ClusterError where the journal does not
    tell where the target's last record came from.
    """
    index, seen = known.runs.get(there), seen_in(known.newest).get(there.topic)
    if seen is not None and seen.target_topic_id != known.journal.cluster.topic_id(there.topic):
        index = None  # the runs are of a topic that is gone
    last = index.last if index is not None else None
    if index is None or last is None:
        if not end:
            return figures.next_offset if seen is None or index is not None else 0
        raise ClusterError(f"{there}: the journal does not tell where its {end} records came from")
    if end >= last.next_target:
        return last.next_source
    if (found := index.to_source(end)) is None:
        raise ClusterError(f"{there}: ends at offset {end}, and the journal tells of none below {index.begin}")
    return found


async def _exposure(
    source: Cluster | None,
    end: int | None,
    stable: int | None,
    known: Known,
    figures: Figures,
    answer: int | BaseException,
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
        open_from=stable if stable is not None and end is not None and stable < end else None,
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
