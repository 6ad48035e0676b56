"""`mirror offsets CONFIG translate`: where an offset of one side is on the other.

Read from the flow's journal; what the mirror has not written down yet is found in both logs, as a mirror that starts
would find it. Nothing is written.

Offsets are translated for a copy alone, though two topics of one name have offsets as well: the flow's journal names it
by both topics' ids, no stop stands that makes it another log, and both logs end alike, as a mirror that starts would
see. Of a flow that was failed over whoever writes to the copy owns its end: what the flow had acknowledged is
translated alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Final

from mirror.config import Settings
from mirror.errors import ClusterError, ConfigError, ExitCode, MalformedBatch, PartitionStop, WireError
from mirror.journal.entries import COPIES, same_id
from mirror.journal.journal import Journal
from mirror.journal.offset_maps import indexes_of
from mirror.journal.ownership import FailedOver
from mirror.journal.positions import standing_in
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.kafka.queries import EARLIEST, list_offset, replicated_end
from mirror.policy.rules import NO_LIMIT
from mirror.policy.selection import is_rekeyed, selects
from mirror.rendering import number, print_json
from mirror.replication.decide import Unconfirmed
from mirror.replication.observe import Observer
from mirror.replication.offset_map import OffsetRangeIndex
from mirror.replication.offset_map_recovery import complete
from mirror.replication.position import corrupt, located, resume
from mirror.replication.topic_identity import other_topic, recreated
from mirror.topics.history import keeping_to_known

#: Whatever the source deleted: records that got over have their offsets all the same.
_ANY_LOSS: Final = (0, NO_LIMIT)
#: Reads of a copy that is being written to meanwhile, before that is an error.
_TRIES, _AGAIN_SECONDS = 3, 0.3


@dataclass(frozen=True, slots=True)
class Translation:
    """Two offsets that mean the same record, or where there is `record` none, the same next one."""

    topic: str
    partition: int
    source_offset: int
    target_topic: str
    target_offset: int
    record: bool


def translate(settings: Settings, topic: str, partition: int, offset: int, *, reverse: bool, as_json: bool) -> ExitCode:
    """Print where `offset` of a source topic is on the target; in `reverse`, where one of its target comes from.

    Raises ConfigError for a topic or partition that is not mirrored or is re-keyed, and for an offset that is not
    mirrored (yet, or any more), PartitionStop where the two logs disagree, and ClusterError as queries do.
    """
    found = asyncio.run(_translate(settings, TopicPartition(topic, partition), offset, reverse=reverse))
    if as_json:
        print_json(asdict(found))
        return ExitCode.DONE
    sides = [
        (f"{found.topic}-{found.partition} on {settings.source.alias}", found.source_offset),
        (f"{found.target_topic}-{found.partition} on {settings.target.alias}", found.target_offset),
    ]
    (there, asked), (here, answer) = reversed(sides) if reverse else sides
    what = "is" if found.record else "holds no record; what comes next is"
    print(f"offset {number(asked)} of {there} {what} offset {number(answer)} of {here}")
    return ExitCode.DONE


async def _translate(settings: Settings, source: TopicPartition, offset: int, *, reverse: bool) -> Translation:
    if is_rekeyed(source.topic, settings.topics):
        raise ConfigError(
            f"{source.topic}: a rule re-keys its records, which land anywhere: no offset goes with another"
        )
    if not selects(source.topic, settings.topics):
        raise ConfigError(f"{source.topic}: no such topic is mirrored by {settings.flow}")
    settings = await keeping_to_known(settings)
    target = TopicPartition(settings.topics.naming.target_of(source.topic), source.partition)
    async with Cluster(Endpoint.of(settings.source)) as one, Cluster(Endpoint.of(settings.target)) as other:
        journal = Journal(other, settings.flow)
        await asyncio.gather(one.refresh([source.topic]), other.refresh([target.topic, journal.partition.topic]))
        for cluster, partition in ((one, source), (other, target)):
            if not cluster.has(partition):
                raise ConfigError(f"{partition}: no such partition on {cluster}")
        observer = Observer(settings.flow, one, source, other, target, _ANY_LOSS)
        for left in reversed(range(_TRIES)):
            try:
                if settings.topics.offsets == "translate":
                    return await _moved(observer, journal, offset, reverse=reverse)
                return await _same(observer, journal, offset)
            except (ClusterError, WireError, Unconfirmed):  # a mirror may be writing to it
                if not left:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)
        raise AssertionError("unreachable: the last try returns or raises")


async def _informed(observer: Observer, journal: Journal) -> tuple[Observer, bool]:
    """Return the observer with what the journal keeps of the copy: where the flow began in its source, its last
    position, and what was lost; and whether the flow was failed over, so that the copy's end is not the source's.

    Raises ConfigError where the target topic is not the copy that the journal names, PartitionStop for a stop that
    stands, or a source topic that is another one.
    """
    source, target = observer.source_partition, observer.target_partition
    records = await journal.newest()
    ids = observer.source.topic_id(source.topic), observer.target.topic_id(target.topic)
    seen = COPIES.newest(records).get(target.topic)
    if seen is None or seen.source_topic != source.topic or not same_id(seen.target_topic_id, ids[1]):
        raise ConfigError(
            f"{target.topic}: by the journal of {journal.flow} it is no copy of {source.topic}, so that its offsets say"
            " nothing. `mirror adopt` takes over one that something else made"
        )
    if became := other_topic(observer.source, source.topic, seen.topic_id):
        raise located(recreated(source, -1, became), observer.source, observer.target, target.topic)
    standing = standing_in(records)
    if (stop := standing.stops.get(target)) is not None and stop.concerns(ids[1]):
        raise stop.raised(source)
    last = standing.positions.get(target)
    last = last if last is not None and last.is_of(*ids) else None
    informed = replace(observer, since=seen.begins(target.partition), last=last, losses=standing.lost_of(target, *ids))
    return informed, FailedOver.standing(records) is not None


async def _same(observer: Observer, journal: Journal, offset: int) -> Translation:
    """The answer where offsets are equal. Raises as `resume` does."""
    observer, is_over = await _informed(observer, journal)
    source, other, target = observer.source_partition, observer.target, observer.target_partition
    begin, end = await asyncio.gather(list_offset(other, target, EARLIEST), replicated_end(other, target))
    if is_over:
        end = min(end, observer.last.target_end if observer.last is not None else 0)
    else:
        begin = max(begin, await _agreeing(observer))
    if not begin <= offset <= end:
        raise ConfigError(f"{target}: holds its source's offsets {begin} to {end - 1}; {offset} is none of them")
    return Translation(source.topic, source.partition, offset, target.topic, offset, record=offset < end)


async def _agreeing(observer: Observer) -> int:
    """Where a copy with equal offsets is to begin, as far as it is not made to yet; else -1. Raises as `resume`."""
    with _locating(observer):
        return (await resume(observer)).begin


@contextmanager
def _locating(observer: Observer) -> Iterator[None]:
    """Let what stops the partition, or cannot be read of it, say where to look."""
    one, other, copy = observer.source, observer.target, observer.target_partition.topic
    try:
        yield
    except MalformedBatch as damage:
        raise located(corrupt(damage, other, observer.source_partition, copy), one, other, copy) from damage
    except PartitionStop as stop:
        raise located(stop, one, other, copy) from stop


async def _moved(observer: Observer, journal: Journal, offset: int, *, reverse: bool) -> Translation:
    """The answer where offsets moved. Raises as `complete` does."""
    observer, is_over = await _informed(observer, journal)
    source, target = observer.source_partition, observer.target_partition
    if not reverse and offset < observer.since:
        raise ConfigError(
            f"{source}: the flow began at offset {observer.since}; what is at offset {offset} is not mirrored"
        )
    index = (await indexes_of(journal)).setdefault(target, OffsetRangeIndex())
    log_start = index.log_start = await list_offset(observer.target, target, EARLIEST)
    if not is_over:
        with _locating(observer):
            await complete(index, observer, confirmed=True)
    elif index.last is None:
        raise ConfigError(f"{source}: the journal does not say where its offsets are, and the flow was failed over")
    first, last = index.pieces[0], index.pieces[-1]
    end = last.next_target if reverse else last.next_source
    there = offset if reverse else index.to_target(offset)
    here = index.to_source(offset) if reverse else offset
    asked = target if reverse else source
    if offset > end:
        raise ConfigError(f"{asked}: offset {offset} is not mirrored yet; what is mirrored ends at {end}")
    if here is None or there < log_start or (first.begin > 0 and here < first.source_begin):
        raise ConfigError(f"{asked}: what was at offset {offset} is gone from the target, which begins at {log_start}")
    found = there < last.next_target and index.to_source(there) == here
    return Translation(source.topic, source.partition, here, target.topic, there, record=found)
