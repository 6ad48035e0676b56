"""What a failover finds: how far each partition and each group got on the target, and what is missing.

- Every copy is compared with its source here, whatever its task reported: a task that hangs, or whose log was cut after
  its last fetch, has reported what no longer is so.
- A copy that could not be compared, for whatever reason, is in doubt; one that may not be described costs no other one
  its check.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from mirror import clock
from mirror.config import Settings
from mirror.errors import ClusterError, MalformedBatch, PartitionStop, WireError
from mirror.failover.rpo import UNLIKE, AcceptedLoss, JournalSnapshot, PartitionRpo
from mirror.groups.sync import GroupSync
from mirror.groups.terms import Terms, is_verified
from mirror.journal.entries import COPIES, FirstSeen, Lost, losses_in, starts_in
from mirror.journal.positions import standing_in
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, TopicPartition
from mirror.kafka.log_reader import batch_at, last_committed
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset
from mirror.kafka.topic_configs import plain_values
from mirror.observability import logs
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import NO_LIMIT, may_expire
from mirror.policy.selection import is_rekeyed, select
from mirror.replication.assignment import POSSIBLE, LastPosition
from mirror.replication.observe import Observer
from mirror.replication.offset_map import OffsetRangeIndex
from mirror.replication.offset_map_recovery import complete
from mirror.replication.position import resume
from mirror.replication.topic_identity import other_topic, what_became_of
from mirror.states import State

# --- The groups at a failover -----------------------------------------------------------------------------------------

#: How many partitions are compared at a time.
_COMPARED_AT_ONCE: Final = 32
#: Between two questions who leads.
_LEADER_SECONDS: Final = 0.5
#: By how much a report may be of a later time than now, as clocks that are kept differ.
_CLOCKS_MS: Final = 1000
#: Whatever the source deleted: the records that got over are compared all the same.
_ANY_LOSS: Final = (0, NO_LIMIT)
#: Comparisons of a copy that come to a difference which may be one of the moment.
_TRIES: Final = 3


class Doubt(NamedTuple):
    """Why a partition is not verified, and its groups stay where they are; `stop` where the logs say that it must."""

    reason: str
    stop: State | None = None


#: What the checks of the copies came to, by source partition: None where nothing speaks against it.
Doubts = Mapping[TopicPartition, Doubt | None]
#: Of a partition that no check came to an end of.
UNCHECKED: Final = Doubt("its copy was not compared with its source")


def doubts_in(doubts: Doubts, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Doubt]:
    """Those of the partitions that are not verified."""
    return {partition: doubt for partition in partitions if (doubt := doubts.get(partition, UNCHECKED)) is not None}


async def doubts_of(
    settings: Settings, source: Cluster | None, known: JournalSnapshot
) -> dict[TopicPartition, Doubt | None]:
    """Of each partition, but for re-keyed topics; without a source that can be asked (None), by what the journal and
    the target show alone. Both clusters know the topics. Raises nothing that a cluster can cause.
    """
    target = known.journal.cluster
    seen = COPIES.newest(known.newest)
    starts = starts_in(known.newest, target)
    standing = standing_in(known.newest)
    turns = asyncio.Semaphore(_COMPARED_AT_ONCE)

    async def of(status: PartitionStatus) -> Doubt | None:
        if status.state in UNLIKE:
            return Doubt(UNLIKE[status.state], status.state)
        there = status.target
        stop = standing.stops.get(there)
        if stop is not None and stop.concerns(target.topic_id(there.topic)):
            return Doubt(stop.detail, stop.state)
        copy, topic_id = seen.get(there.topic), target.topic_id(there.topic)
        if copy is not None and topic_id is not None and copy.target_topic_id != topic_id:
            return Doubt("the target topic is another one than was mirrored to")
        if source is None:
            return None
        if (doubt := await _other_source(source, status.topic, copy)) is not None:
            return doubt
        async with turns:
            try:
                await _require_leader(source, status.source)
            except ClusterError as problem:
                return None if is_verified(status) else Doubt(f"both logs could not be compared: {problem}")
            ids = source.topic_id(status.topic), topic_id
            last, losses = standing.positions.get(there), standing.lost_of(there, *ids)
            return await _compared(settings, source, known, status, starts.get(there, 0), last, losses)

    asked = {
        partition: status
        for partition, status in known.figures.items()
        if not is_rekeyed(partition.topic, settings.topics)
    }
    if source is not None:
        await _leaderless(source, asked)  # all of them at a time, and not one turn after the other
    return dict(zip(asked, await asyncio.gather(*map(of, asked.values())), strict=True))


async def _other_source(source: Cluster, topic: str, seen: FirstSeen | None) -> Doubt | None:
    """Why a source topic is not known to be the one that was mirrored; asked of every copy: the address of the source
    may lead somewhere else by now, whatever a task said of the cluster that it reads.
    """
    if seen is None:
        return None
    if reason := seen.from_another(source.cluster_id):
        return Doubt(reason, State.RECREATED)
    if not other_topic(source, topic, seen.topic_id):
        return None
    try:
        became = await what_became_of(source, topic, seen.topic_id)
    except ClusterError as problem:
        return Doubt(f"nobody knows whether its source is the topic that was mirrored: {problem}")
    return Doubt(became, State.RECREATED) if became else None


async def _compared(
    settings: Settings,
    source: Cluster,
    known: JournalSnapshot,
    status: PartitionStatus,
    since: int,
    last: LastPosition | None,
    losses: tuple[tuple[int, int], ...],
    tries_left: int = _TRIES - 1,
) -> Doubt | None:
    """What comparing both logs shows, as a task that began now would; nothing is written. A difference that may be one
    of the moment, as where records were deleted meanwhile, is looked for again.
    """
    target = known.journal.cluster
    at, there = status.source, status.target
    if last is not None and not last.is_of(source.topic_id(at.topic), target.topic_id(there.topic)):
        last = None
    observer = Observer(settings.flow, source, at, target, there, _ANY_LOSS, since, last, losses)
    try:
        await asyncio.gather(source.require(at), target.require(there))
        if settings.topics.offsets == "translate":
            index = known.runs.setdefault(there, OffsetRangeIndex())
            await complete(index, observer, confirmed=True)
        elif (await resume(observer)).begin >= 0:
            return Doubt("padding stands in for its first records")
    except PartitionStop as stop:
        return Doubt(stop.detail, stop.state)
    except MalformedBatch as damage:
        return Doubt(str(damage), State.CORRUPT)
    except (ClusterError, WireError) as problem:
        if isinstance(found := problem.__cause__, PartitionStop):  # and nobody can say whether that stands
            if tries_left:
                return await _compared(settings, source, known, status, since, last, losses, tries_left - 1)
            return Doubt(f"{found.detail}; {problem}", found.state)
        # It was compared when its task began, and has not been found to be unlike since.
        return None if is_verified(status) else Doubt(f"both logs could not be compared: {problem}")
    return None


def group_sync(
    settings: Settings, source: Cluster, target: Cluster, known: JournalSnapshot, doubts: Doubts
) -> GroupSync:
    """The sync of the flow as its journal has it; partitions with doubts are not verified."""
    figures = {
        partition: status
        for partition, status in known.figures.items()
        if not is_rekeyed(partition.topic, settings.topics)
    }
    pairs = {partition: status.target for partition, status in figures.items()}
    seen, origins, copies = COPIES.newest(known.newest), {}, {}
    for one in figures.values():
        known_as = seen.get(one.target_topic)
        copies[one.target_topic] = known_as.target_topic_id if known_as else None
        origins[one.target_topic] = (one.topic, known_as.topic_id if known_as else source.topic_id(one.topic))
    starts = starts_in(known.newest, target)
    since = {partition: starts[there] for partition, there in pairs.items() if there in starts}
    indexes = known.runs if settings.topics.offsets == "translate" else None

    def verified(partition: TopicPartition) -> bool:
        return partition in figures and not doubts_in(doubts, [partition])

    return GroupSync(source, target, settings.groups.include, Terms(pairs, origins, copies, since, indexes), verified)


# --- What a failover finds missing ------------------------------------------------------------------------------------

_log = logs.get("mirror.failover")


async def exposures_of(settings: Settings, source: Cluster | None, known: JournalSnapshot) -> list[PartitionRpo]:
    """What the target lacks now, of every partition that the flow reported of its copies of now; the others' exposures
    stand where one of them cannot be asked about.

    The target is asked before the source: while records still come, a copy must not look longer than its source.
    """
    last = standing_in(known.newest).positions
    statuses = [_placed(status, last.get(status.target)) for status in known.figures.values()]
    lost = losses_in(known.newest)
    asked_there = (_position(settings, known, status) for status in statuses)
    positions = await asyncio.gather(*asked_there, return_exceptions=True)
    ends, stable = dict[TopicPartition, int](), dict[TopicPartition, int]()
    if source is not None:
        every = [status.source for status in statuses]
        ends = await ends_of(source, every, READ_UNCOMMITTED)  # first: a log that grows has no open transaction for it
        stable = await ends_of(source, every)
    asked = (
        _exposure(source, ends.get(status.source), stable.get(status.source), known, status, position)
        for status, position in zip(statuses, positions, strict=True)
    )
    spanned = (_spanned(settings, known, status, lost.get(status.target, ())) for status in statuses)
    exposures, losses = await asyncio.gather(asyncio.gather(*asked), asyncio.gather(*spanned))
    return [replace(rpo, losses=missing) for rpo, missing in zip(exposures, losses, strict=True)]


def with_doubts(exposures: Iterable[PartitionRpo], doubts: Doubts) -> list[PartitionRpo]:
    """The same, with what comparing both logs showed of source partitions since."""
    found: list[PartitionRpo] = []
    for exposure in exposures:
        doubt = doubts.get(TopicPartition(exposure.topic, exposure.partition), UNCHECKED)
        if doubt is None:
            found.append(exposure)
        elif doubt.stop is not None:
            found.append(replace(exposure, state=doubt.stop))
        else:
            found.append(replace(exposure, unconfirmed=doubt.reason))
    return found


def may_hold_more(exposures: Iterable[PartitionRpo]) -> list[PartitionRpo]:
    """The same, of a source of which one broker is silent."""
    return [replace(exposure, may_hold_more=True) for exposure in exposures]


async def ends_of(
    source: Cluster, partitions: Sequence[TopicPartition], isolation: int = READ_COMMITTED
) -> dict[TopicPartition, int]:
    """Where each source partition ends for a reader of committed records, or for another one; without those that cannot
    be asked.
    """
    await _leaderless(source, partitions)
    asked = (_end_of(source, partition, isolation) for partition in partitions)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    ends: dict[TopicPartition, int] = {}
    for topic_partition, answer in zip(partitions, answers, strict=True):
        if isinstance(answer, int):
            ends[topic_partition] = answer
        elif isinstance(answer, ClusterError):
            _log.warning(
                "source_end_unknown",
                topic=topic_partition.topic,
                partition=topic_partition.partition,
                reason=str(answer),
            )
        else:
            raise answer
    return ends


async def _end_of(source: Cluster, partition: TopicPartition, isolation: int) -> int:
    await _require_leader(source, partition)
    await source.require(partition)
    return await list_offset(source, partition, LATEST, isolation)


async def _require_leader(source: Cluster, partition: TopicPartition) -> None:
    if await _leaderless(source, [partition]):
        raise ClusterError(f"{source}: {partition} has no leader that answers")


async def _leaderless(source: Cluster, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
    """Those that metadata names without a leader, or with one that is silent, who was waited for once, for all of them,
    and is not again: each question about one of them would wait by itself. Brokers that lost their controllers go on
    naming leaders that are gone.
    """
    deadline = clock.monotonic() + CALL_TIMEOUT
    while True:
        leaders = {partition: source.leader(partition).node for partition in partitions if source.has(partition)}
        found = {partition: node for partition, node in leaders.items() if node < 0 or node in source.silent}
        lacking = {partition if node < 0 else node for partition, node in found.items()}
        if lacking <= source.given_up or clock.monotonic() > deadline:
            source.given_up |= lacking
            return frozenset(found)
        await asyncio.sleep(_LEADER_SECONDS)
        with contextlib.suppress(ClusterError):
            await source.refresh()


def _placed(figures: PartitionStatus, last: LastPosition | None) -> PartitionStatus:
    """A report where its partition stood last, if its task did not come to know that."""
    return figures if figures.next_offset >= 0 else replace(figures, next_offset=last.source_next if last else 0)


async def _spanned(
    settings: Settings, known: JournalSnapshot, figures: PartitionStatus, lost: Sequence[Lost]
) -> tuple[AcceptedLoss, ...]:
    """What a reader of the target misses of what was lost: what the target has deleted since is nobody's loss any more.
    Where it cannot be asked, all of it.
    """
    kept_from = 0
    if lost:
        with contextlib.suppress(ClusterError):
            kept_from = await _kept_from(settings, known, figures)
    return tuple(
        AcceptedLoss(min(max(one.first, kept_from), one.next_offset), one.next_offset, one.reason)
        for one in lost
        if one.next_offset > kept_from or one.reason in POSSIBLE
    )


async def _kept_from(settings: Settings, known: JournalSnapshot, figures: PartitionStatus) -> int:
    """The source offset from which on the target holds records; 0 where nobody knows. Raises ClusterError."""
    if is_rekeyed(figures.topic, settings.topics):
        return 0
    there = figures.target
    await known.journal.cluster.require(there)
    start = await list_offset(known.journal.cluster, there, EARLIEST)
    if start and settings.topics.offsets == "translate":
        index = known.runs.get(there)
        return (index.to_source(start) if index is not None else None) or 0
    return start


async def never_mirrored(settings: Settings, source: Cluster, known: JournalSnapshot) -> list[PartitionRpo]:
    """Return the partitions of the source that the flow ought to mirror and never did."""
    found = await asyncio.to_thread(Admin(settings.source).topics)
    chosen = select({name: len(info.partitions) for name, info in found.items()}, settings.topics)
    wanted = {TopicPartition(pair.source, number) for pair in chosen.pairs for number in range(pair.partitions)}
    missing = sorted(wanted - known.figures.keys())
    await source.refresh({partition.topic for partition in missing})
    ends, target_of = await ends_of(source, missing, READ_UNCOMMITTED), known.target_of or str
    return [
        PartitionRpo(
            topic=partition.topic,
            partition=partition.partition,
            target_topic=target_of(partition.topic) or partition.topic,
            position=0,
            end=ends.get(partition),
            state=State.STARTING,
        )
        for partition in missing
    ]


async def deleted_there(settings: Settings, source: Cluster, known: JournalSnapshot) -> list[str]:
    """What the target deleted of its copies and the source still has, in words, but for what the copy's own retention
    may have deleted. Of a partition that cannot be asked about others answer.
    """
    seen = COPIES.newest(known.newest)
    asked = (
        _deleted(settings, source, known, status, seen.get(status.target_topic)) for status in known.figures.values()
    )
    found = [one for one in await asyncio.gather(*asked) if one is not None]
    rekeyed = {
        status.target_topic: status.topic
        for status in known.figures.values()
        if is_rekeyed(status.topic, settings.topics)
    }
    looked = (_emptied(source, known.journal.cluster, topic, there) for there, topic in sorted(rekeyed.items()))
    emptied = [one for one in await asyncio.gather(*looked) if one is not None]
    if not (found or emptied):
        return []
    names = {target for _, target, _, _, _ in found} | {there for there, _ in emptied}
    configs = await asyncio.to_thread(Admin(settings.target).topic_configs, names)
    lacking = [
        (target, age_ms, f"{partition}: the target deleted offsets {first} to {until - 1}, which the source has")
        for partition, target, first, until, age_ms in found
    ]
    lacking += [(there, age_ms, f"{there}: the target deleted all that was re-keyed") for there, age_ms in emptied]
    return [
        f"{text}; its retention does not say why"
        for target, age_ms, text in lacking
        if not may_expire(plain_values(configs.get(target, {})), age_ms)
    ]


async def _emptied(source: Cluster, target: Cluster, topic: str, target_topic: str) -> tuple[str, int] | None:
    """A re-keyed topic of which the target has no record left, and the age in ms of the newest that the source has.
    Its records have other offsets than the source's, so of one that lost a part only `mirror verify` says so. Nothing
    where that cannot be asked.
    """
    try:
        await asyncio.gather(source.refresh([topic]), target.refresh([target_topic]))
        places = [TopicPartition(target_topic, number) for number in target.topics[target_topic].leaders]
        begins = await asyncio.gather(*(list_offset(target, partition, EARLIEST) for partition in places))
        ends = await asyncio.gather(*(list_offset(target, partition, LATEST) for partition in places))
        if begins != ends or not any(ends):
            return None
        newest = -1
        for topic_partition in (TopicPartition(topic, number) for number in source.topics[topic].leaders):
            batch = await last_committed(source, topic_partition)
            newest = max(newest, batch.header.max_timestamp if batch is not None else -1)
    except (ClusterError, MalformedBatch, KeyError) as problem:
        _log.warning("start_unknown", topic=topic, reason=str(problem))
        return None
    return None if newest < 0 else (target_topic, clock.now_ms() - newest)


async def _deleted(
    settings: Settings, source: Cluster, known: JournalSnapshot, figures: PartitionStatus, seen: FirstSeen | None
) -> tuple[TopicPartition, str, int, int, int] | None:
    """Source partition and target topic, the source offsets from and to before which the target has no records any
    more, and the age in ms of the last of them. `seen`: what the journal says of the copy.
    """
    at, target = figures.source, known.journal.cluster
    try:
        until = await _kept_from(settings, known, figures)
        if not until:
            return None
        await _require_leader(source, at)
        await source.require(at)
        is_this_copy = seen is not None and seen.target_topic_id == target.topic_id(figures.target_topic)
        begun = seen.begins(at.partition) if seen is not None and is_this_copy else 0  # below, nothing was copied
        if (first := max(begun, await list_offset(source, at, EARLIEST))) >= until:
            return None
        for offset in (until - 1, first):
            batch = await batch_at(source, at, offset, READ_COMMITTED)
            if batch is not None and batch.header.base_offset < until:
                return at, figures.target_topic, first, until, clock.now_ms() - batch.header.max_timestamp
    except (ClusterError, MalformedBatch) as problem:
        _log.warning("start_unknown", topic=at.topic, partition=at.partition, reason=str(problem))
    return None


async def _position(settings: Settings, known: JournalSnapshot, figures: PartitionStatus) -> int:
    """The source offset up to which the target holds everything, as far as its log and the journal say."""
    if is_rekeyed(figures.topic, settings.topics):
        return figures.next_offset
    there, target = figures.target, known.journal.cluster
    await target.require(there)
    end = await list_offset(target, there, LATEST)
    return _moved(known, there, figures, end) if settings.topics.offsets == "translate" else end


def _moved(known: JournalSnapshot, there: TopicPartition, figures: PartitionStatus, end: int) -> int:
    """The same where offsets moved, and the target's log ends at `end`. Raises ClusterError where the journal does not
    say where the target's last record came from.
    """
    index, seen = known.runs.get(there), COPIES.newest(known.newest).get(there.topic)
    if seen is not None and seen.target_topic_id != known.journal.cluster.topic_id(there.topic):
        index = None  # the runs are of a topic that is gone
    last = index.last if index is not None else None
    if index is None or last is None:
        if not end:
            return figures.next_offset if seen is None or index is not None else 0
        raise ClusterError(f"{there}: the journal does not say where its {end} records came from")
    if end >= last.next_target:
        return last.next_source
    if (found := index.to_source(end)) is None:
        raise ClusterError(f"{there}: ends at offset {end}, and the journal names none below {index.begin}")
    return found


async def _exposure(
    source: Cluster | None,
    end: int | None,
    stable: int | None,
    known: JournalSnapshot,
    figures: PartitionStatus,
    answer: int | BaseException,
) -> PartitionRpo:
    if isinstance(answer, BaseException) and not isinstance(answer, ClusterError):
        raise answer
    at, position = figures.source, answer if isinstance(answer, int) else None
    reached = figures.next_offset if position is None else position
    now, contact = clock.now_ms(), known.contact.get(at)
    lost_from = None
    if source is not None and end is not None and end > reached:
        lost_from = await _written(source, at, reached)
    return PartitionRpo(
        topic=at.topic,
        partition=at.partition,
        target_topic=figures.target_topic,
        position=position,
        end=end,
        open_from=stable if stable is not None and end is not None and stable < end else None,
        state=figures.state,
        lag=max(0, contact.log_end - reached) if contact else 0,
        seen_ms=_seen_ms(contact, now) if contact else None,
        lost_from_ms=None if lost_from is None else max(0, now - lost_from),
        problem="" if position is not None else str(answer),
    )


def _seen_ms(contact: PartitionStatus, now: int) -> int | None:
    """How long ago a mirror had the source before it, at least; None where its clock is ahead of ours, as of a report
    that is of a later time than now: then it may be any time ago.
    """
    last = contact.contact
    if last is None or max(last.at_ms, contact.at_ms) - now >= _CLOCKS_MS:
        return None
    return max(0, now - last.at_ms)


async def _written(source: Cluster, partition: TopicPartition, offset: int) -> int | None:
    """When the record at an offset, or the next one, was written: Unix ms, None where that is unknown."""
    try:
        batch = await batch_at(source, partition, offset, READ_COMMITTED)
    except (ClusterError, MalformedBatch):
        return None
    return batch.header.base_timestamp if batch is not None and batch.header.base_timestamp >= 0 else None
