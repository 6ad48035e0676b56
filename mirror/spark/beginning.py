"""What a mirror settles before its first epoch: which topics it means, and how far a bounded copy goes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mirror.assignment import Assignment
from mirror.errors import ClusterError
from mirror.identity import other_topic
from mirror.observe import logs
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.journal import Journal
from mirror.offsets.starts import settled
from mirror.wire.cluster import Cluster, TopicPartition
from mirror.wire.queries import EARLIEST, LATEST, READ_COMMITTED, list_offset

_log = logs.get("mirror.supervisor")


async def recorded(
    source: Cluster,
    journal: Journal,
    assignments: Sequence[Assignment],
    known: Mapping[bytes, bytes],
    made: Collection[str] = (),
    start: int = EARLIEST,
) -> list[Assignment]:
    """The assignments with what the source topics were first seen as, their ids and where mirroring began, as the
    journal's newest records `known` have it; unseen ones are recorded now, and which target topics the flow `made`. At
    the flow's first start, and then alone, `start` says where they begin (`offsets/starts.py`, B1 to B3).

    Raises as `settled` and `Journal.append` do.
    """
    since = {} if seen_in(known) else await _begun(source, journal, assignments, start)
    unseen: dict[bytes, bytes] = {}
    found: list[Assignment] = []
    for assignment in assignments:
        key = FirstSeen.key(assignment.target.topic)
        now = FirstSeen(
            source_topic=assignment.source.topic,
            topic_id=source.topic_id(assignment.source.topic) or assignment.topic_id,
            target_topic_id=journal.cluster.topic_id(assignment.target.topic),
            cluster_id=source.cluster_id,
            made=assignment.target.topic in made,
            since=since.get(assignment.source.topic, ()),
        )
        seen = _seen(journal.flow, known.get(key))
        if seen and seen.topic_id and seen.is_about(now):
            began = seen.begins(assignment.source.partition)
            found.append(replace(assignment, topic_id=seen.topic_id, since=began))
        else:
            began = now.begins(assignment.source.partition)
            found.append(replace(assignment, topic_id=now.topic_id, since=began))
            unseen[key] = now.to_json()
    if unseen:
        if since:  # all topics begin later, or none does: one batch (B1)
            await journal.append(list(unseen.items()))
        else:
            await journal.append_all(unseen.items())
        for topic, offsets in since.items():
            _log.info("topic_begins_later", flow=journal.flow, topic=topic, offsets=offsets)
    return found


async def _begun(
    source: Cluster, journal: Journal, assignments: Sequence[Assignment], start: int
) -> dict[str, tuple[int, ...]]:
    """By source topic, where its partitions begin; without topics that all begin with their first record."""
    copies = [(one.source, one.target) for one in assignments]
    offsets: dict[str, list[int]] = {}
    for at, offset in sorted((await settled(source, journal.cluster, copies, start)).items()):
        offsets.setdefault(at.topic, []).append(offset)
    return {topic: tuple(of) for topic, of in offsets.items() if any(of)}


def _seen(flow: str, value: bytes | None) -> FirstSeen | None:
    try:
        return FirstSeen.read(value) if value else None
    except NOT_OURS as problem:
        _log.warning("journal_record_unread", flow=flow, reason=repr(problem))
        return None


async def bounded(
    source: Cluster, flow: str, assignments: Sequence[Assignment]
) -> tuple[list[Assignment], dict[TopicPartition, str]]:
    """The assignments with the end of each partition as a committed reader sees it now, and why others have none: they
    are left out of the copy. A topic that is another one by now has no end to copy up to: its lane says so.
    """

    async def end_of(one: Assignment) -> int:
        if other_topic(source, one.source.topic, one.topic_id):
            return 0
        return await list_offset(source, one.source, LATEST, READ_COMMITTED)

    found: list[Assignment] = []
    left_out: dict[TopicPartition, str] = {}
    asked = map(end_of, assignments)
    for assignment, end in zip(assignments, await asyncio.gather(*asked, return_exceptions=True), strict=True):
        if isinstance(end, ClusterError):
            left_out[assignment.source] = str(end)
            _log.error("partition_left_out", flow=flow, reason=str(end))
        elif isinstance(end, BaseException):
            raise end
        else:
            found.append(replace(assignment, until=end))
    return found, left_out
