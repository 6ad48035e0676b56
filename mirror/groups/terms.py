"""How committed offsets move from the source to the target, not at all or by the runs of a copy, and where they may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
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


@dataclass(frozen=True, slots=True)
class Terms:
    """Says how offsets of a set of partitions move."""

    #: The mirrored partitions, source to target.
    pairs: Mapping[TopicPartition, TopicPartition]
    #: By target topic, the source topic and the id under which it is mirrored.
    origins: Mapping[str, tuple[str, UUID | None]]
    #: By target topic, the id under which it is written to.
    copies: Mapping[str, UUID | None]
    #: By source partition, the offset below which nothing is mirrored, if there is one.
    since: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Where offsets moved to; None where they are equal on both sides.
    indexes: Indexes | None = None

    def translate(self, partition: TopicPartition, committed: Committed) -> tuple[TopicPartition, Committed] | None:
        """Return a source partition and what is committed for it, as the same on the target; None where it is not
        mirrored. An offset behind the runs of the copy is translated as if nothing would be dropped from there on: too
        far, so that whoever knows where the runs end holds it back.
        """
        if (target := self.pairs.get(partition)) is None:
            return None
        index = self.indexes.get(target) if self.indexes is not None else None
        last = index.last if index is not None else None
        if index is None or last is None:
            return target, committed
        beyond = max(0, committed.offset - last.next_source)
        return target, committed._replace(offset=index.to_target(committed.offset) + beyond)

    def known_until(self, target: TopicPartition) -> int:
        """Return the offset of a target partition up to which it is known what its offsets mean."""
        return NO_LIMIT if self.indexes is None else self.indexes.known_until(target)

    def cut_of(self, target: TopicPartition) -> Cut | None:
        """Return what a target partition lost of its tail, where that may matter to groups still."""
        return None if self.indexes is None else self.indexes.cut_of(target)


def terms_of(assignments: Sequence[Assignment], indexes: Indexes) -> Terms:
    """Return how these partitions' groups are followed."""
    return Terms(
        pairs={assignment.source: assignment.target for assignment in assignments},
        origins={assignment.target.topic: (assignment.source.topic, assignment.topic_id) for assignment in assignments},
        copies={assignment.target.topic: assignment.target_topic_id for assignment in assignments},
        since={assignment.source: assignment.since for assignment in assignments if assignment.since},
        indexes=indexes if any(assignment.rules.translates for assignment in assignments) else None,
    )


def is_verified(*reports: PartitionStatus | None) -> bool:
    """Return whether the newest report of a partition says that its target holds the source's records."""
    known = [report for report in reports if report]
    newest = max(known, key=lambda report: report.at_ms, default=None)
    if newest is None or newest.state in _UNLIKE:
        return False
    return newest.verified if newest.state in _SILENT else True
