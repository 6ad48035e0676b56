"""Groups of a lost cluster on the target: what they had committed, for the topics that were restored.

The files stand in for a source cluster, so that a group is put where a running mirror would put it (`groupsync.py`):
never behind the copy's end, never below its start, never back, never onto a group with members. Who does not go on
where it stood is found by asking the target afterwards.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirror.assignment import Assignment
from mirror.observe.figures import Figures
from mirror.offsets.groupside import Hindrance
from mirror.offsets.groupsync import FURTHER, Skip, sync_of
from mirror.offsets.journal import Journal
from mirror.offsets.runlog import Indexes
from mirror.policy.following import OffsetGap
from mirror.reading.groupoffsets import GroupOffsets
from mirror.reading.shelf import Bounds, Shelf
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition
from mirror.wire.groups import Committed

#: A cluster that has never had a group makes its topic of offsets first, and coordinators move to it.
_WITHIN_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPartition:
    """A partition that was restored, or would be.

    assignment: where it is from and where it goes, with its topic's id.
    bounds: what its files hold.
    figures: what its copy came to; None where nothing is written.
    """

    assignment: Assignment
    bounds: Bounds
    figures: Figures | None = None


class Beyond(NamedTuple):
    """A group had read further than the files go: it stood at `offset`, and goes on at `end`."""

    group: str
    at: TopicPartition
    offset: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsReport:
    """What becomes of the groups.

    offsets: by group, what it had committed for partitions that are restored, by source partition.
    beyond: who had read what is not in the files.
    undecided: by group, partitions for which a transaction without an end had offsets: what was there before counts.
    former: offsets that were committed for former topics of the same names, which count for nothing.
    gaps: who does not go on at the target where it stood, and why.
    hindrances: what kept groups from being put anywhere.
    skips: who passes over records that the target has deleted.
    notes: what of the files could not be read.
    """

    offsets: Mapping[str, Mapping[TopicPartition, Committed]]
    beyond: tuple[Beyond, ...] = ()
    undecided: Mapping[str, Sequence[TopicPartition]]
    former: int = 0
    gaps: tuple[OffsetGap, ...] = ()
    hindrances: tuple[Hindrance, ...] = ()
    skips: tuple[Skip, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Every group goes on where it stood, or further, where it has read on at the target since. What one had read
        was committed: where it is not in the files, they lack it, also where a checkpoint of theirs is older.
        """
        return not self.hindrances and not self.beyond and all(gap.cause == FURTHER for gap in self.gaps)


def found_groups(
    stored: GroupOffsets, include: Sequence[re.Pattern[str]], partitions: Sequence[RestoredPartition]
) -> GroupsReport:
    """What the files tell of the groups that `include` matches, before anything is committed (pure)."""
    by_source = {one.assignment.source: one for one in partitions}
    offsets: dict[str, dict[TopicPartition, Committed]] = {}
    beyond: list[Beyond] = []
    former = 0
    for group, of in sorted(stored.groups.items()):
        if not any(pattern.fullmatch(group) for pattern in include):
            continue
        for at, commit in sorted(of.items()):
            if (one := by_source.get(at)) is None:
                continue
            known = one.assignment.topic_id
            if commit.topic_id is not None and known is not None and commit.topic_id != known:
                former += 1
                continue
            offsets.setdefault(group, {})[at] = commit.committed
            if commit.committed.offset > one.bounds.stable:
                beyond.append(Beyond(group, at, commit.committed.offset, one.bounds.stable))
    undecided = {
        group: here
        for group, of in sorted(stored.undecided.items())
        if (here := sorted(of & by_source.keys())) and any(pattern.fullmatch(group) for pattern in include)
    }
    return GroupsReport(
        offsets=offsets, beyond=tuple(beyond), undecided=undecided, former=former, notes=tuple(stored.notes)
    )


async def restore_groups(
    flow: str,
    alias: str,
    target: Endpoint,
    include: Sequence[re.Pattern[str]],
    report: GroupsReport,
    partitions: Sequence[RestoredPartition],
) -> GroupsReport:
    """Commit what was found, and ask the target what came of it. Raises ClusterError where it cannot be reached."""
    copied = [one for one in partitions if one.figures is not None]
    bounds = {one.assignment.source: one.bounds for one in copied}
    figures = {one.assignment.source: one.figures for one in copied if one.figures is not None}
    async with Shelf(alias, bounds, report.offsets) as source, Cluster(target) as cluster:
        journal = Journal(cluster, flow)
        await cluster.refresh({one.assignment.target.topic for one in copied} | {journal.partition.topic})
        assignments = [one.assignment for one in copied]
        translates = any(one.rules.translates for one in assignments)
        indexes = Indexes((await journal.read())[0] if translates else ())
        sync = sync_of(source, cluster, include, assignments, (figures,), indexes)
        skips: list[Skip] = []
        deadline = time.monotonic() + _WITHIN_SECONDS
        while True:
            look = await sync.look()
            skips += look.skips
            if look.is_complete or time.monotonic() > deadline:
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        # so far the target has all that the files do: nothing is left to read behind its last record
        holds = {at: one.next_offset for at, one in figures.items()}
        gaps, hindrances = await sync.gaps({}, holds, {})
    return GroupsReport(
        offsets=report.offsets,
        beyond=report.beyond,
        undecided=report.undecided,
        former=report.former,
        gaps=tuple(gaps),
        hindrances=tuple(dict.fromkeys((*look.hindrances, *hindrances))),
        skips=tuple(skips),
        notes=report.notes,
    )
