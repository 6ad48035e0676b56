"""Group sync: what groups committed on the source is committed on the target, as far as records are mirrored.

One round reads the offsets of every chosen group on the source. Those that differ from what both sides last agreed on
are compared with the target, and what `groups.decide` says is committed. The others cost nothing at the target, but
for a round over everything once a minute: offsets expire there, and operators move them.

    - A group with members on the target is left alone: by its listed state, and by the broker, which refuses a commit
      without a member id (Kafka `ClassicGroup.validateOffsetCommit`, `ConsumerGroup.validateOffsetCommit`).
    - A partition is followed while the mirror has verified its records: not before its first check, not while padding
      stands in for them, and not in a state in which the two logs are different ones; a group that stands there is held
      back.
    - An offset means records of one topic of one cluster, and nothing by the topic's name alone. So the ids of both
      topics are asked for between the read of the source and each commit: a topic may be made anew, or an address lead
      to another cluster, long before a task that waits for its broker says so.
    - Nothing is deleted on the target.
    - What stands in the way is reported and tried again; the groups that it does not concern are followed.
    - A group that stands below where the mirror began gets no offset there, and is held back: what it would read next
      is not on the target, and to go on behind that would pass over it in silence.
    - No group is put below the target's log start; which records it passes over is said.
    - A group that may not be described is not listed, as if it were not there: those that have offsets on copies, and
      are not listed on the source, are asked for by name at each round over everything.
    - Share groups and streams groups are not followed: a failover names those that do not stand on the target where
      they do on the source.
    - A broker forgets an offset some days after its commit where the group has no members, as on the target: what did
      not move is committed again, now and then, and all of it at the end of a bounded copy and by a failover.
    - A bounded copy does not end as done while a group would read again on the target, of what both sides hold, what it
      had read on the source: with members there, or on a copy that is not verified.

`gaps` reads both sides anew, whatever was committed, and names every partition of a group that does not go on at the
target where it stands on the source.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple
from uuid import UUID

from mirror import clock, names
from mirror.errors import ClusterError, WireError
from mirror.groups.decide import Agreement, Decision, GroupStanding, decide
from mirror.groups.gap import (
    BEHIND_END,
    REKEYED,
    UNFOLLOWED_SHARE,
    UNFOLLOWED_STREAMS,
    UNVERIFIED,
    CopyEnds,
    OffsetGap,
    Stand,
)
from mirror.groups.side import GROUP_DENIED, TOPIC_DENIED, Blocker, Offsets, Side
from mirror.groups.terms import Terms, is_verified, terms_of
from mirror.journal.entries import same_id
from mirror.journal.offset_maps import Indexes
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.groups import Committed, GroupRefusal
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED
from mirror.observability.status import PartitionStatus
from mirror.policy.rules import NO_LIMIT
from mirror.replication.assignment import Assignment
from mirror.replication.offset_map import Cut
from mirror.suspension import SuspensionDetector

WHOLE_SECONDS: Final = 60.0
#: So often offsets that did not move are committed again.
RENEWED_SECONDS: Final = 3600.0
#: Groups remembered beyond those that exist: one deleted on the source may come again, with lower offsets.
MOST_REMEMBERED: Final = 100_000
#: Kafka `Errors` by which a coordinator says that a group has members: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
#: REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH.
HAS_MEMBERS: Final = frozenset({22, 25, 27, 82, 110, 113})
METADATA_TOO_LARGE: Final = 12
#: A group stands as the weightiest of its partitions.
_BY_WEIGHT: Final = (
    *(GroupStanding.SYNCED, GroupStanding.AHEAD, GroupStanding.EXPIRED),
    *(GroupStanding.HELD_BACK, GroupStanding.BLOCKED, GroupStanding.ACTIVE),
)
_SETTLED: Final = frozenset({GroupStanding.SYNCED, GroupStanding.AHEAD, GroupStanding.EXPIRED})
#: How groups stand that may be behind with nothing in the way.
_LEFT: Final = frozenset({GroupStanding.HELD_BACK, GroupStanding.ACTIVE})


class Skip(NamedTuple):
    """Records that a group passes over on the target, since they are deleted there: as many, at source partition
    `at`, of which the source still has `kept`; None where that is not known.
    """

    group: str
    at: TopicPartition
    records: int
    kept: int | None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What one round came to: groups by how they stand, how many were committed for, what stood in the way, and what
    was passed over. `planned` is what a rehearsal would have committed; `stood` is where those groups stood on the
    source, in terms of the target, of which it would have put what had to be put. `cuts`: of target partitions that
    lost their tails, which groups may stand in that still.
    """

    standings: Mapping[GroupStanding, int]
    committed: int
    blockers: tuple[Blocker, ...]
    skips: tuple[Skip, ...] = ()
    planned: Mapping[str, Offsets] = field(default_factory=dict)
    stood: Mapping[str, Offsets] = field(default_factory=dict)
    cuts: Mapping[TopicPartition, Cut] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Every group that may be followed was looked at."""
        return not any(blocker.passing for blocker in self.blockers)


@dataclass(slots=True, eq=False)
class _Work:
    """One comparison with the target under way, by group. `sources` are in terms of the target."""

    sources: Mapping[str, Offsets]
    standings: dict[str, set[GroupStanding]]
    nodes: dict[str, int] = field(default_factory=dict)
    targets: dict[str, Offsets] = field(default_factory=dict)
    decisions: dict[str, dict[TopicPartition, Decision]] = field(default_factory=dict)
    taken: dict[str, set[TopicPartition]] = field(default_factory=dict)
    skips: dict[str, dict[TopicPartition, Skip]] = field(default_factory=dict)

    def took(self, group: str, at: TopicPartition) -> bool:
        """Whether the target took a commit."""
        return at in self.taken.get(group, ())

    def settled(self, group: str, at: TopicPartition) -> bool:
        """Whether the target has what was decided."""
        made = self.decisions.get(group, {}).get(at)
        return made is not None and (made.commit is None or self.took(group, at))

    def commits(self) -> dict[str, Offsets]:
        """What the decisions ask for."""
        found = {
            group: {at: made.commit for at, made in decisions.items() if made.commit}
            for group, decisions in self.decisions.items()
        }
        return {group: offsets for group, offsets in found.items() if offsets}

    def stood(self) -> dict[str, Offsets]:
        """The sources of what was decided."""
        return {group: {at: self.sources[group][at] for at in decisions} for group, decisions in self.decisions.items()}


@dataclass(frozen=True, slots=True)
class _Copies:
    """The copies on which groups may stand, and what is known of them as in `GroupSync.gaps`."""

    pairs: Mapping[TopicPartition, TopicPartition]  # source partitions to target partitions
    ends: Mapping[TopicPartition, CopyEnds]  # by target partition; without those whose leader does not answer
    rekeyed: Mapping[str, str]  # re-keyed source topics to target topics
    stood: Mapping[str, Offsets]
    holds: Mapping[TopicPartition, int]
    doubts: Mapping[TopicPartition, str]


class GroupSync:
    """Follows the groups of one flow. It holds nothing that a successor needs, but for what was last agreed on."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        include: Sequence[re.Pattern[str]],
        terms: Terms,
        verified: Callable[[TopicPartition], bool],
    ) -> None:
        """`include` must match a group's whole name. `terms`: how offsets move, until others are given. `verified` says
        of a source partition whether its target holds its records.
        """
        self._source, self._target = Side(source, "DESCRIBE"), Side(target, "READ")
        self.include, self._verified = tuple(include), verified
        self.terms = terms  # of the partitions that are mirrored, from the next round on
        self.detector = SuspensionDetector()
        self._may_go: Callable[[], bool] = self.detector.since()
        self._synced: dict[str, Offsets] = {}
        self._standings: dict[str, GroupStanding] = {}
        self._held_back: set[str] = set()
        self._wanted: dict[str, Offsets] = {}
        self._hidden: frozenset[str] = frozenset()
        self._until: dict[TopicPartition, int] = {}
        self._agreed: dict[str, dict[TopicPartition, Agreement]] = {}
        self._whole_at = float("-inf")
        self._renewed_at = clock.monotonic() - RENEWED_SECONDS + WHOLE_SECONDS  # for a process that lives for minutes

    async def sync_once(
        self, *, rehearsing: bool = False, renewing: bool = False, may_go: Callable[[], bool] | None = None
    ) -> SyncResult:
        """Read every group once, and commit what has changed, or all where it is `renewing`; where that is only
        rehearsed, report what a round would have come to, and serve no further one. Nothing is committed once `may_go`
        says no, which is asked at the last moment; without it, once the process was suspended in this round (Z1).
        Raises nothing that a cluster can cause.
        """
        self._may_go = may_go or self.detector.since()
        beating = asyncio.create_task(self.detector.keep_beating())
        try:
            return await self._round(rehearsing=rehearsing, renewing=renewing)
        finally:
            beating.cancel()

    async def _round(self, *, rehearsing: bool, renewing: bool) -> SyncResult:
        now = clock.monotonic()
        whole = renewing or rehearsing or now - self._whole_at >= WHOLE_SECONDS
        renewing = not rehearsing and (renewing or (whole and now - self._renewed_at >= RENEWED_SECONDS))
        sides = (self._source, self._target)
        stale = [side for side in sides if whole or any(blocker.passing for blocker in side.blockers)]
        for side in sides:
            side.blockers.clear()
        reached = await asyncio.gather(*(self._refreshed(side) for side in stale))
        work = _Work({}, {})
        if all(reached):
            sources = await self._source_offsets(whole=whole)
            if moved := {g: offsets for g, offsets in sources.items() if whole or self._synced.get(g) != offsets}:
                work = await self._follow(moved, rehearsing=rehearsing, renewing=renewing)
            self._whole_at = clock.monotonic() if whole else self._whole_at
            self._renewed_at = clock.monotonic() if renewing else self._renewed_at
        blockers = [blocker for side in sides for blocker in side.blockers]
        for group in {blocker.group for blocker in blockers if blocker.group}:
            self._standings[group] = GroupStanding.BLOCKED
            self._synced.pop(group, None)
        skips = tuple(skip for group, skips in work.skips.items() for at, skip in skips.items() if work.took(group, at))
        planned, stood = (work.commits(), work.stood()) if rehearsing else ({}, {})
        cuts = self._settled(work, {blocker.group for blocker in blockers}) if whole and not rehearsing else {}
        standings = Counter(self._all_standings().values())
        return SyncResult(standings, len(work.taken), tuple(blockers), skips, planned, stood, cuts)

    def _settled(self, work: _Work, blocked: set[str]) -> dict[TopicPartition, Cut]:
        """Of target partitions that hold other records by now where they lost their tails, which groups were not put
        where they belong (F5), by a round over everything; without those of which that is known already.
        """
        found: dict[TopicPartition, Cut] = {}
        if "" in blocked:  # it is not known whom that concerns
            return found
        for at in {at for offsets in work.sources.values() for at in offsets}:
            if (cut := self.terms.cut_of(at)) is None or not cut.is_shifted:
                continue
            groups = {group for group, offsets in work.sources.items() if at in offsets}
            left = frozenset(blocked | {group for group in groups if not work.settled(group, at)})
            left = left if cut.groups is None else left & cut.groups
            if left != cut.groups:
                found[at] = replace(cut, groups=left)
        return found

    def _all_standings(self) -> dict[str, GroupStanding]:
        """Return how groups stand, those of which an offset is not followed being held back at least."""
        early = {group: _weightiest(GroupStanding.HELD_BACK, self._standings.get(group)) for group in self._held_back}
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

    async def _followed(self, *, whole: bool) -> dict[str, Offsets]:
        """Everything that the chosen groups have committed."""
        listed = await self._source.listed()
        every = {group.group for groups in listed.values() for group in groups}
        nodes = {
            group.group: node
            for node, groups in listed.items()
            for group in groups
            if group.commits and self._is_chosen(group.group)
        }
        # A group that may not be described is not listed either; one that is asked for by name is to be missed.
        named = {pattern.pattern for pattern in self.include if names.is_plain(pattern.pattern)}
        nodes |= await self._source.coordinators(named - every)
        if len(named) < len(self.include):
            await self._source.miss_unlisted()
        if listed.keys() == set(self._source.cluster.nodes):
            if whole:
                # the chosen groups that stand on copies, and that the source does not let us see
                self._hidden = await self._source.denied((await self._on_copies(every | named)).keys())
            else:
                self._source.refused(GroupRefusal(group, GROUP_DENIED) for group in self._hidden)
            self._forget_all_but(nodes.keys() | self._hidden)
        return await self._source.fetched(nodes)

    def _is_chosen(self, group: str) -> bool:
        return any(pattern.fullmatch(group) for pattern in self.include)

    async def _on_copies(self, listed: Collection[str] = ()) -> dict[str, Offsets]:
        """Where the chosen groups stand on copies, but for those that are `listed`."""
        there = {
            group.group: node
            for node, groups in (await self._target.listed()).items()
            for group in groups
            if group.commits and group.group not in listed and self._is_chosen(group.group)
        }
        found = {
            group: {at: committed for at, committed in offsets.items() if at.topic in self.terms.origins}
            for group, offsets in (await self._target.fetched(there)).items()
        }
        return {group: offsets for group, offsets in found.items() if offsets}

    async def _source_offsets(self, *, whole: bool) -> dict[str, Offsets]:
        """Offsets of every chosen group that has any for verified partitions, in terms of the target. Up to where
        these mean anything is decided at the same moment: more is known by the time that the target has answered.
        """
        translated: dict[str, Offsets] = {}
        wanted: dict[str, Offsets] = {}
        held_back: set[str] = set()
        until: dict[TopicPartition, int] = {}
        for group, offsets in (await self._followed(whole=whole)).items():
            moved = {at: there for at, committed in offsets.items() if (there := self.terms.translate(at, committed))}
            begun = {at: there for at, there in moved.items() if offsets[at].offset >= self.terms.since.get(at, 0)}
            here = dict(there for at, there in begun.items() if self._verified(at))
            if len(here) < len(moved):
                held_back.add(group)
            wanted[group] = dict(begun.values())
            if here:
                translated[group] = here
                until |= {there: self.terms.known_until(there) for there in here}
        self._wanted, self._held_back, self._until = wanted, held_back, until
        return translated

    def _forget_all_but(self, groups: Collection[str]) -> None:
        self._synced = {group: offsets for group, offsets in self._synced.items() if group in groups}
        self._standings = {group: standing for group, standing in self._standings.items() if group in groups}
        if len(self._agreed) > MOST_REMEMBERED:
            self._agreed = {group: agreed for group, agreed in self._agreed.items() if group in groups}

    # --- the target

    async def _follow(self, sources: Mapping[str, Offsets], *, rehearsing: bool, renewing: bool) -> _Work:
        """Compare groups with the target and commit what follows."""
        work = _Work(sources, {group: set() for group in sources})
        await self._locate(work)
        work.targets = await self._target.fetched(work.nodes)
        await self._decide(work, renewing=renewing)
        await self._keep_to_their_topics(work)
        if rehearsing:
            work.taken = {group: set(offsets) for group, offsets in work.commits().items()}
        else:
            await self._commit(work)
        for group in sources:
            self._conclude(work, group)
        return work

    async def _locate(self, work: _Work) -> None:
        """Who coordinates each group, but for those with members and those that take no offsets."""
        known: set[str] = set()
        for node, groups in (await self._target.listed()).items():
            for group in groups:
                if group.group not in work.sources:
                    continue
                known.add(group.group)
                if not group.commits:
                    self._target.blocked("a group of this name takes no offsets: rename one of them", group.group)
                elif group.has_members:
                    work.standings[group.group].add(GroupStanding.ACTIVE)
                else:
                    work.nodes[group.group] = node
        work.nodes |= await self._target.coordinators(work.sources.keys() - known)

    async def _decide(self, work: _Work, *, renewing: bool) -> None:
        asked = {at for group in work.targets for at in work.sources[group]}
        starts = await self._target.offsets_at(asked, EARLIEST)  # asked first: never behind the ends
        if starts is None or (ends := await self._target.offsets_at(asked, LATEST)) is None:
            return
        for group, targets in work.targets.items():
            agreed = self._agreed.get(group, {})
            made = work.decisions[group] = {}
            for at, committed in work.sources[group].items():
                if at in ends and at in starts:
                    there = targets.get(at)
                    bounds = starts[at], self._until[at]
                    one = made[at] = self._decided(group, at, committed, ends[at], there, agreed.get(at), bounds)
                    if renewing and one.commit is None and one.standing is not GroupStanding.AHEAD:
                        made[at] = replace(one, commit=there)
                else:
                    self._unanswered(group, at)
        await self._add_skips(work, starts)

    def _decided(
        self,
        group: str,
        at: TopicPartition,
        source: Committed,
        end: int,
        there: Committed | None,
        agreed: Agreement | None,
        bounds: tuple[int, int],
    ) -> Decision:
        """What `decide` says, with its last two arguments in `bounds`, of a target partition."""
        made = decide(source, end, there, agreed, *bounds)
        if made.standing is GroupStanding.AHEAD and self._is_lost(group, at, there, is_shifted=True):
            return decide(source, end, None, None, *bounds)
        return made

    def _unanswered(self, group: str, at: TopicPartition) -> None:
        """Take down why nobody knows where a target partition begins and ends."""
        if self._target.cluster.is_denied(at.topic):
            self._target.refused([GroupRefusal(group, TOPIC_DENIED, at)])
        else:
            self._target.blocked(f"the leader of {at} does not answer", group, passing=True)

    def _is_lost(self, group: str, at: TopicPartition, there: Committed | None, *, is_shifted: bool) -> bool:
        """Whether a group's offset on the target is in a tail that was lost (F5); `is_shifted`: and other records are
        known to be there by now.
        """
        if (
            there is None
            or (cut := self.terms.cut_of(at)) is None
            or not cut.concerns(group, there.offset, there.epoch)
        ):
            return False
        return cut.is_shifted or not is_shifted

    async def _add_skips(self, work: _Work, starts: Mapping[TopicPartition, int]) -> None:
        """Take down what groups are about to pass over."""
        expired = [
            (group, there, work.sources[group][there].offset)
            for group, decisions in work.decisions.items()
            for there, made in decisions.items()
            if made.commit and made.standing is GroupStanding.EXPIRED
        ]
        if not expired:
            return
        origins = {
            there: TopicPartition(self.terms.origins[there.topic][0], there.partition) for _, there, _ in expired
        }
        kept_from = await self._source_bounds(set(origins.values()), EARLIEST)
        for group, there, offset in expired:
            at, start = origins[there], starts[there]
            kept = max(0, start - max(offset, kept_from[at])) if at in kept_from else None
            work.skips.setdefault(group, {})[there] = Skip(group, at, start - offset, kept)

    async def _source_bounds(self, partitions: Collection[TopicPartition], when: int) -> dict[TopicPartition, int]:
        """Where source partitions begin or end for a reader of committed records, in offsets of the target; without
        those that are not known.
        """
        bounds = await self._source.offsets_at(partitions, when, READ_COMMITTED) or {}
        translated = ((at, self.terms.translate(at, Committed(offset))) for at, offset in bounds.items())
        return {at: there[1].offset for at, there in translated if there is not None}

    async def _keep_to_their_topics(self, work: _Work) -> None:
        """Take out what is about other topics than are mirrored, on either side."""
        if not (topics := {at.topic for offsets in work.commits().values() for at in offsets}):
            return
        ids = dict(self.terms.origins[topic] for topic in topics)
        copies = {topic: self.terms.copies.get(topic) for topic in topics}
        ours = await self._others(self._source, ids, "its source topic is gone or another one")
        theirs = await self._others(self._target, copies, "it is gone, or another one than was mirrored to")
        for group, offsets in work.commits().items():
            for at in offsets:
                if (cause := ours.get(self.terms.origins[at.topic][0], theirs.get(at.topic))) is not None:
                    del work.decisions[group][at]
                    if cause:
                        self._target.blocked(f"offsets of {at.topic} stay: {cause}", group)

    async def _others(self, side: Side, ids: Mapping[str, UUID | None], cause: str) -> dict[str, str]:
        """The topics that are not there with these ids, by the `cause`; all of them where that cannot be asked."""
        try:
            now = await side.cluster.ids_now(ids.keys())
        except (ClusterError, WireError) as problem:
            side.lost(problem)
            return dict.fromkeys(ids, "")
        return {name: cause for name, known in ids.items() if name not in now or not same_id(known, now[name])}

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

    async def _committed(self, work: _Work, commits: Mapping[str, Offsets]) -> list[GroupRefusal]:
        answered, refusals = await self._target.commit(work.nodes, commits, self._may_go)
        for group in commits.keys() - answered:
            work.taken[group] -= commits[group].keys()
        return [refusal for refusal in refusals if refusal.partition in commits[refusal.group]]

    def _refused(self, work: _Work, refusal: GroupRefusal) -> None:
        work.taken[refusal.group] -= {refusal.partition}
        if refusal.code in HAS_MEMBERS:
            work.standings[refusal.group].add(GroupStanding.ACTIVE)
        else:
            self._target.refused([refusal])

    def _conclude(self, work: _Work, group: str) -> None:
        """Remember what is agreed now, and how the group stands."""
        standings = work.standings[group]
        decisions = work.decisions.get(group, {})
        if decisions.keys() != work.sources[group].keys():
            standings.add(GroupStanding.BLOCKED)
        for at, made in decisions.items():
            if made.commit and at not in work.taken.get(group, ()):
                standings.add(GroupStanding.BLOCKED)
                continue
            standings.add(made.standing)
            if made.agreed:
                self._agreed.setdefault(group, {})[at] = made.agreed
        standing = self._standings[group] = _weightiest(*standings)
        if standing in _SETTLED:
            self._synced[group] = work.sources[group]
        else:
            self._synced.pop(group, None)

    # --- what came of it

    async def left_behind(self) -> list[str]:
        """The groups that read again on the target what they had read on the source by the last round, though nothing
        stood in the way: with members on the target, or on copies that are not verified, and how they stand.
        One that is as far as its copy goes is none, nor one that stands below where the mirror began. Raises
        nothing that a cluster can cause.
        """
        standings = self._all_standings()
        left = {group: of for group, of in self._wanted.items() if of and standings.get(group) in _LEFT}
        targets = await self._target.fetched(await self._target.coordinators(left))
        ends = await self._target.offsets_at({at for of in left.values() for at in of}, LATEST) or {}

        def is_behind(group: str) -> bool:
            reached, none = targets.get(group, {}), Committed(0)
            return any(
                reached.get(at, none).offset < min(committed.offset, ends.get(at, committed.offset))
                for at, committed in left[group].items()
            )

        return [f"group {group} stays behind ({standings[group]})" for group in sorted(left) if is_behind(group)]

    async def gaps(
        self,
        stood: Mapping[str, Offsets],
        holds: Mapping[TopicPartition, int],
        doubts: Mapping[TopicPartition, str],
        rekeyed: Mapping[str, str] = {},
    ) -> tuple[list[OffsetGap], tuple[Blocker, ...]]:
        """Every mirrored partition of a followed group that does not go on where it stands on the source, by what both
        sides say now, and what kept this from being known of groups. A group with members on the target that is
        further there reads on by itself, and is none. Of `rekeyed` topics, with their names on the target, a group is
        followed by nobody: it is named where it has no offset there at all.

        `stood` is of a rehearsal: its groups count as put where they stood then, and may have moved since, up to where
        they stand now. `holds`: by source partition, the offset below which the target has all that the source does,
        where that is known; `doubts`: why a source partition is not verified. Raises nothing that a cluster can cause.
        """
        sides = (self._source, self._target)
        for side in sides:
            side.blockers.clear()
        await asyncio.gather(*(self._refreshed(side) for side in sides))
        followed = await self._followed(whole=True)
        share, streams = await self._source.unfollowed(self.include)
        pairs = {
            at: moved[0]
            for groups in (followed, share, streams)
            for offsets in groups.values()
            for at, committed in offsets.items()
            if (moved := self.terms.translate(at, committed))
        }
        copies = _Copies(pairs, await self._ends_of(pairs) if pairs else {}, rekeyed, stood, holds, doubts)
        found = await self._gaps_of_followed(followed, copies)
        if share:
            share_targets, _ = await self._target.unfollowed(self.include)
            found += await self._gaps_of_unfollowed(share, share_targets, UNFOLLOWED_SHARE, copies)
        # by name, whatever is there: offsets from outside make a classic group, in whose place the streams group comes
        named = await self._target.fetched(await self._target.coordinators(streams))
        found += await self._gaps_of_unfollowed(streams, named, UNFOLLOWED_STREAMS, copies)
        found.sort(key=lambda gap: gap.place)
        return found, tuple(blocker for side in sides for blocker in side.blockers)

    async def _gaps_of_followed(self, groups: Mapping[str, Offsets], copies: _Copies) -> list[OffsetGap]:
        """Return the gaps of groups that stand on copies, as far as their coordinators on the target answer."""
        groups = {
            group: offsets
            for group, offsets in groups.items()
            if any(at in copies.pairs or at.topic in copies.rekeyed for at in offsets)
        }
        sources = {
            group: {copies.pairs[at]: committed for at, committed in offsets.items() if at in copies.pairs}
            for group, offsets in groups.items()
        }
        work = _Work(sources, {group: set() for group in groups})
        await self._locate(work)
        coordinators = work.nodes | await self._target.coordinators(groups.keys() - work.nodes.keys())
        targets = await self._target.fetched(coordinators)

        def completed(stand: Stand) -> Stand:
            group, at, target = stand.group, stand.at, copies.pairs[stand.at]
            ends, committed = stand.ends, targets[group].get(target)
            before = copies.stood.get(group, {}).get(target)
            if before is not None:
                bounds = ends.start, self.terms.known_until(target)
                committed = self._decided(group, target, before, ends.end, committed, None, bounds).commit or committed
            return replace(
                stand,
                before=before.offset if before else None,
                reached=committed.offset if committed else None,
                holds=self._on_target(at, copies.holds[at]) if at in copies.holds else -1,
                since=self.terms.since.get(at, 0),
                doubt=copies.doubts.get(at, "") or ("" if self._verified(at) else UNVERIFIED),
                is_active=GroupStanding.ACTIVE in work.standings[group],
                is_lost=self._is_lost(group, target, committed, is_shifted=False),
            )

        answered = {group: groups[group] for group in groups.keys() & targets.keys()}
        stands = self._stands(answered, targets, copies)
        gaps = [gap for stand in stands if (gap := completed(stand).gap()) is not None]
        return gaps + await self._left_alone(answered, targets, copies)

    async def _gaps_of_unfollowed(
        self, groups: Mapping[str, Offsets], targets: Mapping[str, Offsets], cause: str, copies: _Copies
    ) -> list[OffsetGap]:
        """Return the gaps of groups that nobody puts anywhere, for a `cause`."""
        stands = self._stands(groups, targets, copies)
        gaps = [gap for stand in stands if (gap := replace(stand, holds=NO_LIMIT, unfollowed=cause).gap()) is not None]
        return gaps + await self._left_alone(groups, targets, copies)

    def _stands(
        self, groups: Mapping[str, Offsets], targets: Mapping[str, Offsets], copies: _Copies
    ) -> Iterator[Stand]:
        """Return where groups stand in copies on both sides."""
        for group, offsets in groups.items():
            for at, committed in offsets.items():
                if (target := copies.pairs.get(at)) is None:
                    continue
                if target not in copies.ends:
                    self._unanswered(group, target)
                    continue
                reached = targets.get(group, {}).get(target)
                yield Stand(
                    group=group,
                    at=at,
                    target_topic=target.topic,
                    source_offset=committed.offset,
                    wanted=self._on_target(at, committed.offset),
                    reached=reached.offset if reached else None,
                    ends=copies.ends[target],
                )

    async def stranded(self, planned: Mapping[str, Offsets]) -> tuple[list[OffsetGap], tuple[Blocker, ...]]:
        """Every partition of a chosen group that stands behind the end of its copy (F6), by the target alone, and what
        kept this from being known. `planned` counts as committed. Raises nothing that a cluster can cause.
        """
        self._target.blockers.clear()
        await self._refreshed(self._target)
        groups = await self._on_copies()
        ends = await self._target.offsets_at({at for offsets in groups.values() for at in offsets}, LATEST)
        if ends is None:
            return [], tuple(self._target.blockers)
        found: list[OffsetGap] = []
        for group, offsets in sorted(groups.items()):
            for at, committed in sorted((offsets | planned.get(group, {})).items()):
                if (end := ends.get(at)) is None:
                    self._unanswered(group, at)
                elif committed.offset > end:
                    found.append(
                        OffsetGap(
                            group=group,
                            topic=self.terms.origins[at.topic][0],
                            partition=at.partition,
                            target_topic=at.topic,
                            source_offset=None,
                            reached=committed.offset,
                            reads_again=0,
                            misses=committed.offset - end,
                            cause=BEHIND_END.format(end=end),
                        )
                    )
        return found, tuple(self._target.blockers)

    async def _left_alone(
        self, groups: Mapping[str, Offsets], targets: Mapping[str, Offsets], copies: _Copies
    ) -> list[OffsetGap]:
        """Return the gaps of groups in re-keyed topics, by what the source holds around where they stand."""
        left = [
            (group, at, committed.offset)
            for group, offsets in groups.items()
            for at, committed in offsets.items()
            if at not in copies.pairs
            and (there := copies.rekeyed.get(at.topic)) is not None
            and there not in {target.topic for target in targets.get(group, {})}
        ]
        places = {at for _, at, _ in left}
        starts = await self._source.offsets_at(places, EARLIEST) or {}
        ends = await self._source.offsets_at(places, LATEST, READ_COMMITTED) or {}
        return [
            OffsetGap(
                group=group,
                topic=at.topic,
                partition=at.partition,
                target_topic=copies.rekeyed[at.topic],
                source_offset=offset,
                reached=None,
                reads_again=max(0, min(offset, ends.get(at, offset)) - starts.get(at, 0)),
                misses=max(0, ends.get(at, offset) - max(offset, starts.get(at, 0))),
                cause=REKEYED,
            )
            for group, at, offset in left
        ]

    async def _ends_of(self, pairs: Mapping[TopicPartition, TopicPartition]) -> dict[TopicPartition, CopyEnds]:
        """By target partition; without those whose leader does not answer."""
        places = set(pairs.values())
        starts = await self._target.offsets_at(places, EARLIEST)
        if starts is None or (ends := await self._target.offsets_at(places, LATEST)) is None:
            return {}
        kept_from = await self._source_bounds(pairs.keys(), EARLIEST)
        kept_to = await self._source_bounds(pairs.keys(), LATEST)
        return {
            there: CopyEnds(
                start=starts[there], end=ends[there], source_start=kept_from.get(at), source_end=kept_to.get(at)
            )
            for at, there in pairs.items()
            if there in starts and there in ends
        }

    def _on_target(self, at: TopicPartition, offset: int) -> int:
        translated = self.terms.translate(at, Committed(offset))
        assert translated is not None, "a partition that is mirrored"
        return translated[1].offset


def _weightiest(*standings: GroupStanding | None) -> GroupStanding:
    return max(filter(None, standings), key=_BY_WEIGHT.index)


def sync_of(
    source: Cluster,
    target: Cluster,
    include: Sequence[re.Pattern[str]],
    assignments: Sequence[Assignment],
    reports: Sequence[Mapping[TopicPartition, PartitionStatus]],
    indexes: Indexes,
) -> GroupSync:
    """The sync of a flow. Looked up at every round: `reports`, figures by source partition, and `indexes`, where
    offsets moved to.
    """

    def verified(at: TopicPartition) -> bool:
        return is_verified(*(figures.get(at) for figures in reports))

    return GroupSync(source, target, include, terms_of(assignments, indexes), verified)
