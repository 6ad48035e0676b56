"""How committed offsets move from the source to the target, not at all or by the runs of a copy, and where they may."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from mirror.journal.offset_maps import Indexes
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import Committed
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import NO_LIMIT
from mirror.replication.assignment import Assignment
from mirror.replication.offset_map import Cut
from mirror.states import State

#: States in which an offset may mean other records on the target than on the source, or padding:
#: nobody reads the source of a paused one.
_UNLIKE: Final = frozenset(
    {State.STARTING, State.PADDING, State.TRUNCATED, State.RECREATED, State.DIVERGED, State.FENCED}
    | {State.TARGET_LOST, State.PAUSED}
)
#: States that say nothing of the records: what was found before, or was not, still holds.
_SILENT: Final = frozenset({State.UNAVAILABLE, State.UNAUTHORIZED, State.CORRUPT, State.REFUSED})
#: A source partition and what is committed for it, as the same on the target; None where that cannot be said (yet).
Translate = Callable[[TopicPartition, Committed], tuple[TopicPartition, Committed] | None]


def uncut(_: TopicPartition) -> None:
    """No target lost its tail."""


class Terms(NamedTuple):
    """How offsets of a set of partitions move: `origins` by target topic, the source topic and the id under which it is
    mirrored; `known_until`, of a target partition, the offset up to which it is known what its offsets mean;
    `since`, of a source partition, the offset below which nothing is mirrored, if there is one; `copies`: by target
    topic, the id under which it is written to; `cut_of`: what a target partition lost of its tail, where that matters.
    """

    translate: Translate
    origins: Mapping[str, tuple[str, UUID | None]]
    known_until: Callable[[TopicPartition], int]
    since: Mapping[TopicPartition, int]
    copies: Mapping[str, UUID | None] = {}
    cut_of: Callable[[TopicPartition], Cut | None] = uncut


def preserved(pairs: Mapping[TopicPartition, TopicPartition]) -> Translate:
    """Offsets that are equal on both sides; `pairs` are the mirrored partitions, source to target."""

    def translate(partition: TopicPartition, committed: Committed) -> tuple[TopicPartition, Committed] | None:
        target = pairs.get(partition)
        return (target, committed) if target else None

    return translate


def translated(pairs: Mapping[TopicPartition, TopicPartition], indexes: Indexes) -> Translate:
    """Offsets that moved, by the runs of the target partitions. One behind them is translated as if nothing would be
    dropped from there on: too far, so that whoever knows where the runs end holds it back.
    """

    def translate(partition: TopicPartition, committed: Committed) -> tuple[TopicPartition, Committed] | None:
        target = pairs.get(partition)
        if target is None:
            return None
        index = indexes.get(target)
        last = index.last if index is not None else None
        if index is None or last is None:
            return target, committed
        beyond = max(0, committed.offset - last.next_source)
        return target, committed._replace(offset=index.to_target(committed.offset) + beyond)

    return translate


def terms_of(assignments: Sequence[Assignment], indexes: Indexes) -> Terms:
    """How these partitions' groups are followed, for `GroupSync.mirrors`."""
    pairs = {a.source: a.target for a in assignments}
    origins = {a.target.topic: (a.source.topic, a.topic_id) for a in assignments}
    since = {a.source: a.since for a in assignments if a.since}
    copies = {a.target.topic: a.target_topic_id for a in assignments}
    if any(a.rules.translates for a in assignments):
        return Terms(translated(pairs, indexes), origins, indexes.known_until, since, copies, indexes.cut_of)
    return Terms(preserved(pairs), origins, lambda _: NO_LIMIT, since, copies)


def is_verified(*reports: PartitionStatus | None) -> bool:
    """Return whether the newest report of a partition says that its target holds the source's records."""
    known = [report for report in reports if report]
    newest = max(known, key=lambda report: report.at_ms, default=None)
    if newest is None or newest.state in _UNLIKE:
        return False
    return newest.verified if newest.state in _SILENT else True
