"""Group sync: what groups have committed on the source is committed on the target, as far as records were mirrored.

One look reads the offsets of every chosen group on the source. Those that differ from what was last seen settled are
compared with the target, and what `policy.following` decides is committed. The others cost nothing at the target, but
for a look at everything once a minute: offsets expire there, and operators move them.

    G1  a group with members on the target is left alone: by its listed state, and by the broker, which refuses a commit
        without a member id (Kafka `ClassicGroup.validateOffsetCommit`, `ConsumerGroup.validateOffsetCommit`)
    G2  a partition is followed while the mirror vouches for its records: not before its first check, not while padding
        stands in for them, and not in a state in which the two logs are different ones
    G3  no offset goes back because the source's topic was deleted and made anew: its id is looked up before
    G4  nothing is deleted on the target
    G5  what stands in the way is told and tried again; the groups that it does not concern are followed
    G6  a group that stands below where the mirror began gets no offset there, and is held back: what it would read
        next is not on the target, and to go on behind that would pass over it in silence
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from mirror import names
from mirror.assignment import Assignment
from mirror.errors import ClusterError
from mirror.observe.figures import Figures
from mirror.offsets.groupside import Hindrance, Offsets, Side
from mirror.offsets.runlog import Indexes
from mirror.policy.following import Agreement, Decision, Standing, decide
from mirror.policy.rules import NO_LIMIT
from mirror.states import State
from mirror.wire.cluster import Cluster, TopicPartition
from mirror.wire.groups import Committed, Refusal
from mirror.wire.watermarks import high_watermarks

WHOLE_SECONDS: Final = 60.0
#: Groups remembered beyond those that exist: one deleted on the source may come again, with lower offsets.
MOST_REMEMBERED: Final = 100_000
#: Kafka `Errors` by which a coordinator says that a group has members (G1): ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
#: REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH.
HAS_MEMBERS: Final = frozenset({22, 25, 27, 82, 110, 113})
METADATA_TOO_LARGE: Final = 12
#: A group stands as the weightiest of its partitions.
_BY_WEIGHT: Final = (Standing.SYNCED, Standing.AHEAD, Standing.HELD_BACK, Standing.HINDERED, Standing.ACTIVE)
_SETTLED: Final = frozenset({Standing.SYNCED, Standing.AHEAD})
#: States in which an offset may mean other records on the target than on the source, or padding (G2); a topic that
#: rests may have been in any of them.
_NOT_VOUCHED: Final = frozenset(
    {State.STARTING, State.ALIGNING, State.PAUSED, State.TRUNCATED, State.RECREATED, State.DIVERGED, State.CONTENDED}
)

#: A source partition and what is committed for it, as the same on the target; None where that cannot be said (yet).
Translate = Callable[[TopicPartition, Committed], tuple[TopicPartition, Committed] | None]


class Terms(NamedTuple):
    """How offsets of a set of partitions move: `origins` by target topic, the source topic and the id under which it is
    mirrored; `told_until`, of a target partition, the offset up to which it is known what its offsets mean; `since`, of
    a source partition, the offset below which nothing is mirrored, if there is one.
    """

    translate: Translate
    origins: Mapping[str, tuple[str, UUID | None]]
    told_until: Callable[[TopicPartition], int]
    since: Mapping[TopicPartition, int]


def preserved(pairs: Mapping[TopicPartition, TopicPartition]) -> Translate:
    """Offsets that are equal on both sides; `pairs` are the mirrored partitions, source to target."""

    def translate(at: TopicPartition, committed: Committed) -> tuple[TopicPartition, Committed] | None:
        target = pairs.get(at)
        return (target, committed) if target else None

    return translate


def translated(pairs: Mapping[TopicPartition, TopicPartition], indexes: Indexes) -> Translate:
    """Offsets that moved, by the runs of the target partitions. One behind them is told as if nothing would be dropped
    from there on: too far, so that whoever knows where the runs end holds it back.
    """

    def translate(at: TopicPartition, committed: Committed) -> tuple[TopicPartition, Committed] | None:
        target = pairs.get(at)
        if target is None:
            return None
        index = indexes.get(target)
        last = index.last if index is not None else None
        if index is None or last is None:
            return target, committed
        beyond = max(0, committed.offset - last.next_source)
        return target, committed._replace(offset=index.to_target(committed.offset) + beyond)

    return translate


def is_vouched(*reports: Figures | None) -> bool:
    """Whether the newest report of a partition says that its target holds the source's records (G2)."""
    known = [report for report in reports if report]
    return bool(known) and max(known, key=lambda report: report.at_ms).state not in _NOT_VOUCHED


@dataclass(frozen=True, slots=True)
class Look:
    """What one look came to: groups by how they stand, how many were committed for, and what stood in the way."""

    standings: Mapping[Standing, int]
    committed: int
    hindrances: tuple[Hindrance, ...]

    @property
    def is_complete(self) -> bool:
        """Every group that may be followed was looked at."""
        return not any(hindrance.passing for hindrance in self.hindrances)


@dataclass(slots=True, eq=False)
class _Work:
    """One comparison with the target under way, by group. `sources` are in terms of the target."""

    sources: Mapping[str, Offsets]
    standings: dict[str, set[Standing]]
    nodes: dict[str, int] = field(default_factory=dict)
    targets: dict[str, Offsets] = field(default_factory=dict)
    decisions: dict[str, dict[TopicPartition, Decision]] = field(default_factory=dict)
    taken: dict[str, set[TopicPartition]] = field(default_factory=dict)

    def commits(self) -> dict[str, Offsets]:
        """What the decisions ask for."""
        found = {
            group: {at: made.commit for at, made in decisions.items() if made.commit}
            for group, decisions in self.decisions.items()
        }
        return {group: offsets for group, offsets in found.items() if offsets}


class GroupSync:
    """Follows the groups of one flow. It holds nothing that a successor needs, but for what was last agreed on."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        include: Sequence[re.Pattern[str]],
        translate: Translate,
        origins: Mapping[str, tuple[str, UUID | None]],
        vouched: Callable[[TopicPartition], bool],
        told_until: Callable[[TopicPartition], int] = lambda _: NO_LIMIT,
        since: Mapping[TopicPartition, int] = {},
    ) -> None:
        """`include` must match a group's whole name.

        `origins`: by target topic, the source topic and the id under which it is mirrored. `vouched` says of a source
        partition whether its target holds its records (G2). `told_until`: of a target partition, the offset up to
        which it is known what its offsets mean. `since`: of a source partition, below which nothing is mirrored.
        """
        self._source, self._target = Side(source, "DESCRIBE"), Side(target, "READ")
        self.include, self._vouched = tuple(include), vouched
        self.mirrors(Terms(translate, origins, told_until, since))
        self._settled: dict[str, Offsets] = {}
        self._standings: dict[str, Standing] = {}
        self._early: set[str] = set()
        self._agreed: dict[str, dict[TopicPartition, Agreement]] = {}
        self._whole_at = float("-inf")

    def mirrors(self, terms: Terms) -> None:
        """From the next look on, other partitions are mirrored."""
        self._translate, self._origins, self._told_until, self._since = terms

    async def look(self, *, rehearsing: bool = False) -> Look:
        """Look at every group once, and commit what has changed; where that is only rehearsed, tell what a look would
        have come to, and serve no further one. Raises nothing that a cluster can cause (G5).
        """
        whole = time.monotonic() - self._whole_at >= WHOLE_SECONDS
        sides = (self._source, self._target)
        stale = [side for side in sides if whole or any(hindrance.passing for hindrance in side.hindrances)]
        for side in sides:
            side.hindrances.clear()
        reached = await asyncio.gather(*(self._refreshed(side) for side in stale))
        committed = 0
        if all(reached):
            sources = await self._source_offsets()
            moved = {g: offsets for g, offsets in sources.items() if whole or self._settled.get(g) != offsets}
            committed = await self._follow(moved, rehearsing) if moved else 0
            self._whole_at = time.monotonic() if whole else self._whole_at
        hindrances = [hindrance for side in sides for hindrance in side.hindrances]
        for group in {hindrance.group for hindrance in hindrances if hindrance.group}:
            self._standings[group] = Standing.HINDERED
            self._settled.pop(group, None)
        return Look(Counter(self._told_standings().values()), committed, tuple(hindrances))

    def _told_standings(self) -> dict[str, Standing]:
        """How groups stand, those that are below where the mirror began being held back at least (G6)."""
        early = {group: _weightiest(Standing.HELD_BACK, self._standings.get(group)) for group in self._early}
        return self._standings | early

    async def _refreshed(self, side: Side) -> bool:
        """Learn brokers and leaders anew; False where the cluster is away."""
        try:
            await side.cluster.refresh()
        except ClusterError as problem:
            side.lost(problem)
            return False
        return True

    # --- the source

    async def _source_offsets(self) -> dict[str, Offsets]:
        """Offsets of every chosen group that has any for partitions vouched for, in terms of the target."""
        listed = await self._source.listed()
        every = {told.group for groups in listed.values() for told in groups}
        nodes = {
            told.group: node
            for node, groups in listed.items()
            for told in groups
            if told.commits and any(pattern.fullmatch(told.group) for pattern in self.include)
        }
        # A group that may not be described is not listed either; one that is asked for by name is to be missed.
        named = {pattern.pattern for pattern in self.include if names.is_plain(pattern.pattern)}
        nodes |= await self._source.coordinators(named - every)
        if listed.keys() == set(self._source.cluster.nodes):
            self._forget_all_but(nodes)
        translated: dict[str, Offsets] = {}
        self._early.clear()
        for group, offsets in (await self._source.fetched(nodes)).items():
            vouched = {at: committed for at, committed in offsets.items() if self._vouched(at)}
            early = {at for at, committed in vouched.items() if committed.offset < self._since.get(at, 0)}
            if early:
                self._early.add(group)
            told = (self._translate(at, committed) for at, committed in vouched.items() if at not in early)
            if here := dict(filter(None, told)):
                translated[group] = here
        return translated

    def _forget_all_but(self, groups: Mapping[str, int]) -> None:
        self._settled = {group: offsets for group, offsets in self._settled.items() if group in groups}
        self._standings = {group: standing for group, standing in self._standings.items() if group in groups}
        if len(self._agreed) > MOST_REMEMBERED:
            self._agreed = {group: agreed for group, agreed in self._agreed.items() if group in groups}

    # --- the target

    async def _follow(self, sources: Mapping[str, Offsets], rehearsing: bool) -> int:
        """Compare groups with the target and commit what follows; how many groups were committed for."""
        work = _Work(sources, {group: set() for group in sources})
        await self._locate(work)
        work.targets = await self._target.fetched(work.nodes)
        await self._decide(work)
        await self._keep_from_going_back(work)
        if rehearsing:
            work.taken = {group: set(offsets) for group, offsets in work.commits().items()}
        else:
            await self._commit(work)
        for group in sources:
            self._conclude(work, group)
        return len(work.taken)

    async def _locate(self, work: _Work) -> None:
        """Who coordinates each group, but for those with members (G1) and those that take no offsets."""
        known: set[str] = set()
        for node, groups in (await self._target.listed()).items():
            for told in groups:
                if told.group not in work.sources:
                    continue
                known.add(told.group)
                if not told.commits:
                    self._target.hindered("a group of this name takes no offsets: rename one of them", told.group)
                elif told.has_members:
                    work.standings[told.group].add(Standing.ACTIVE)
                else:
                    work.nodes[told.group] = node
        work.nodes |= await self._target.coordinators(work.sources.keys() - known)

    async def _decide(self, work: _Work) -> None:
        try:
            ends = await high_watermarks(
                self._target.cluster, {at for group in work.targets for at in work.sources[group]}
            )
        except ClusterError as problem:
            self._target.lost(problem)
            return
        for group, targets in work.targets.items():
            agreed = self._agreed.get(group, {})
            made = work.decisions[group] = {}
            for at, committed in work.sources[group].items():
                if at in ends:
                    end = min(ends[at], self._told_until(at))
                    made[at] = decide(committed, end, targets.get(at), agreed.get(at))
                else:
                    self._target.hindered(f"the leader of {at} does not answer", group, passing=True)

    async def _keep_from_going_back(self, work: _Work) -> None:
        """Take out what would go back for another reason than the group's being put back (G3)."""
        back = [
            (group, at)
            for group, offsets in work.commits().items()
            for at, commit in offsets.items()
            if at in work.targets[group] and commit.offset < work.targets[group][at].offset
        ]
        if not back:
            return
        reached = await self._refreshed(self._source)
        for group, at in back:
            name, known = self._origins.get(at.topic, ("", None))
            if not reached or (known and self._source.cluster.topic_id(name) != known):
                del work.decisions[group][at]
                self._target.hindered(f"offsets of {at.topic} stay: its source topic is gone or another one", group)

    async def _commit(self, work: _Work) -> None:
        """Commit, once more without its text what the broker will not take with one so long."""
        commits = work.commits()
        work.taken = {group: set(offsets) for group, offsets in commits.items()}
        again: dict[str, Offsets] = {}
        for refusal in await self._committed(work, commits):
            if refusal.code == METADATA_TOO_LARGE and refusal.partition:
                bare = Committed(commits[refusal.group][refusal.partition].offset)
                again.setdefault(refusal.group, {})[refusal.partition] = bare
            else:
                self._refused(work, refusal)
        for refusal in await self._committed(work, again):
            self._refused(work, refusal)
        work.taken = {group: taken for group, taken in work.taken.items() if taken}

    async def _committed(self, work: _Work, commits: Mapping[str, Offsets]) -> list[Refusal]:
        answered, refusals = await self._target.commit(work.nodes, commits)
        for group in commits.keys() - answered:
            work.taken[group] -= commits[group].keys()
        return [refusal for refusal in refusals if refusal.partition in commits[refusal.group]]

    def _refused(self, work: _Work, refusal: Refusal) -> None:
        work.taken[refusal.group] -= {refusal.partition}
        if refusal.code in HAS_MEMBERS:
            work.standings[refusal.group].add(Standing.ACTIVE)
        else:
            self._target.refused([refusal])

    def _conclude(self, work: _Work, group: str) -> None:
        """Remember what is agreed now, and how the group stands."""
        standings = work.standings[group]
        decisions = work.decisions.get(group, {})
        if decisions.keys() != work.sources[group].keys():
            standings.add(Standing.HINDERED)
        for at, made in decisions.items():
            if made.commit and at not in work.taken.get(group, ()):
                standings.add(Standing.HINDERED)
                continue
            standings.add(made.standing)
            if made.agreed:
                self._agreed.setdefault(group, {})[at] = made.agreed
        standing = self._standings[group] = _weightiest(*standings)
        if standing in _SETTLED:
            self._settled[group] = work.sources[group]
        else:
            self._settled.pop(group, None)


def _weightiest(*standings: Standing | None) -> Standing:
    return max(filter(None, standings), key=_BY_WEIGHT.index)


def sync_of(
    source: Cluster,
    target: Cluster,
    include: Sequence[re.Pattern[str]],
    assignments: Sequence[Assignment],
    reports: Sequence[Mapping[TopicPartition, Figures]],
    indexes: Indexes,
) -> GroupSync:
    """The sync of a flow. Looked up at every look: `reports`, figures by source partition, and `indexes`, where offsets
    moved to.
    """

    def vouched(at: TopicPartition) -> bool:
        return is_vouched(*(figures.get(at) for figures in reports))

    translate, origins, told_until, since = terms_of(assignments, indexes)
    return GroupSync(source, target, include, translate, origins, vouched, told_until, since)


def terms_of(assignments: Sequence[Assignment], indexes: Indexes) -> Terms:
    """How these partitions' groups are followed, for `GroupSync.mirrors`."""
    pairs = {a.source: a.target for a in assignments}
    origins = {a.target.topic: (a.source.topic, a.topic_id) for a in assignments}
    since = {a.source: a.since for a in assignments if a.since}
    if any(a.rules.translates for a in assignments):
        return Terms(translated(pairs, indexes), origins, indexes.told_until, since)
    return Terms(preserved(pairs), origins, lambda _: NO_LIMIT, since)
