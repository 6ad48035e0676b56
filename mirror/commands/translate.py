"""`mirror offsets CONFIG translate`: where an offset of one side is on the other.

Read from the flow's journal; what the mirror has not written down yet is found in both logs, as a mirror that starts
would find it. Nothing is written.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass

from mirror.commands.tables import number, print_json
from mirror.config import Settings
from mirror.errors import ConfigError, ExitCode
from mirror.offsets.journal import Journal, journal_topic
from mirror.offsets.ledgers import indexes_of
from mirror.offsets.standing import standing_in
from mirror.offsets.starts import starts_of
from mirror.policy.runs import RunIndex
from mirror.retracing import complete
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition
from mirror.wire.queries import EARLIEST, list_offset, settled_end


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

    Raises ConfigError for a topic or partition that is not mirrored, and for an offset that is not mirrored
    (yet, or any more), PartitionStop where the two logs disagree, and ClusterError as queries do.
    """
    found = asyncio.run(_translate(settings, TopicPartition(topic, partition), offset, reverse=reverse))
    if as_json:
        print_json(asdict(found))
        return ExitCode.DONE
    there = f"{found.topic}-{found.partition} on {settings.source.alias}"
    here = f"{found.target_topic}-{found.partition} on {settings.target.alias}"
    if reverse:
        there, here = here, there
    asked, answer = (
        (found.target_offset, found.source_offset) if reverse else (found.source_offset, found.target_offset)
    )
    what = "is" if found.record else "holds no record; what comes next is"
    print(f"offset {number(asked)} of {there} {what} offset {number(answer)} of {here}")
    return ExitCode.DONE


async def _translate(settings: Settings, source: TopicPartition, offset: int, *, reverse: bool) -> Translation:
    target = TopicPartition(settings.topics.naming.target_of(source.topic), source.partition)
    translates = settings.topics.offsets == "translate"
    async with Cluster(Endpoint.of(settings.source)) as one, Cluster(Endpoint.of(settings.target)) as other:
        journal = [journal_topic(settings.flow)] if translates else []
        await asyncio.gather(one.refresh([source.topic]), other.refresh([target.topic, *journal]))
        for cluster, at in ((one, source), (other, target)):
            if not cluster.has(at):
                raise ConfigError(f"{at}: no such partition on {cluster}")
        if translates:
            return await _moved(settings, one, source, other, target, offset, reverse=reverse)
        begin, end = await asyncio.gather(list_offset(other, target, EARLIEST), settled_end(other, target))
        if not begin <= offset <= end:
            raise ConfigError(f"{target}: holds its source's offsets {begin} to {end - 1}; {offset} is none of them")
        return Translation(source.topic, source.partition, offset, target.topic, offset, record=offset < end)


async def _moved(
    settings: Settings,
    one: Cluster,
    source: TopicPartition,
    other: Cluster,
    target: TopicPartition,
    offset: int,
    *,
    reverse: bool,
) -> Translation:
    journal = Journal(other, settings.flow)
    since = (await starts_of(journal)).get(target, 0)
    if not reverse and offset < since:
        raise ConfigError(f"{source}: the flow began at offset {since}; what is at offset {offset} is not mirrored")
    index = (await indexes_of(journal)).setdefault(target, RunIndex())
    log_start = index.log_start = await list_offset(other, target, EARLIEST)
    if index.last is None or offset >= (index.last.next_target if reverse else index.last.next_source):
        losses = standing_in(await journal.newest()).lost_of(target, one.topic_id(source.topic))
        await complete(index, settings.flow, one, source, other, target, since=since, losses=losses)
    return _answer(index, source, target, offset, log_start, reverse=reverse)


def _answer(
    index: RunIndex, source: TopicPartition, target: TopicPartition, offset: int, log_start: int, *, reverse: bool
) -> Translation:
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
