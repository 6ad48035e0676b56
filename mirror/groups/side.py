"""The groups of one cluster, asked of all its brokers at once; what stands in the way is collected."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from mirror.errors import AccessDenied, ClusterError, WireError
from mirror.kafka.addresses import AllFailed, in_turns
from mirror.kafka.cluster import AUTHORIZATION_ERRORS, NEXT_BROKER, Cluster, TopicPartition
from mirror.kafka.groups import (
    OFFSETS_TOPIC,
    Committed,
    Coordinators,
    FetchedOffsets,
    GroupRefusal,
    ListedGroup,
    commit_offsets,
    coordinators,
    fetch_offsets,
    fetch_share_offsets,
    list_groups,
)
from mirror.kafka.queries import READ_UNCOMMITTED, listed

TOPIC_DENIED: Final = 29
GROUP_DENIED: Final = 30
Offsets = dict[TopicPartition, Committed]
Result = TypeVar("Result")
#: Asks a coordinator what groups have committed.
Fetch = Callable[[Cluster, int, Sequence[str]], Awaitable[FetchedOffsets]]


@dataclass(frozen=True, slots=True)
class Blocker:
    """What keeps a group (all of them, where `group` is empty) from being followed, and what to do.

    `passing`: it is expected to heal by itself. `detail` may differ from one time to the next.
    """

    cause: str
    group: str = ""
    passing: bool = False
    detail: str = ""


@dataclass(slots=True, eq=False)
class Side:
    """One cluster. `right` on a group is what the mirror needs there; `blockers` grows until it is cleared."""

    cluster: Cluster
    right: str
    blockers: list[Blocker] = field(default_factory=list)

    def __str__(self) -> str:
        return f"cluster {self.cluster.endpoint.alias}"

    async def listed(self) -> dict[int, list[ListedGroup]]:
        """The groups of each broker that answers: those that it coordinates and the principal may DESCRIBE."""
        return await self._gathered({node: list_groups(self.cluster, node) for node in self.cluster.nodes})

    async def miss_unlisted(self) -> None:
        """Take down that groups have no coordinator which could list them. Nobody says so to whom may not DESCRIBE the
        topic of their offsets.
        """
        try:
            kept = await self.cluster.describe(OFFSETS_TOPIC)
        except AccessDenied:
            return
        except ClusterError as problem:
            self.lost(problem)
            return
        leaders = sorted(kept.leaders.items()) if kept else []
        if lacking := [str(number) for number, leader in leaders if leader.node not in self.cluster.nodes]:
            which = f"partition {', '.join(lacking)} of {OFFSETS_TOPIC}"
            self.blocked(f"the groups in {which} are unknown, since no broker leads it", "")

    async def coordinators(self, groups: Iterable[str]) -> dict[str, int]:
        """The coordinator of each group that has one."""
        asked = set(groups)
        if not asked or not self.cluster.nodes:
            return {}
        nodes: dict[str, int] = {}
        for found in (await self._gathered({0: self._coordinators(asked)})).values():
            nodes |= {group: node for group, node in found.nodes.items() if group in asked}
            self.refused(found.refused)
        return nodes

    async def denied(self, groups: Collection[str]) -> frozenset[str]:
        """Those of the groups that may not be described, there or not."""
        if not groups or not self.cluster.nodes:
            return frozenset()
        refused: list[GroupRefusal] = []
        for found in (await self._gathered({0: self._coordinators(groups)})).values():
            refused += found.refused
        self.refused(refused)
        return frozenset(group_refusal.group for group_refusal in refused if group_refusal.code in AUTHORIZATION_ERRORS)

    async def _coordinators(self, groups: Collection[str]) -> Coordinators:
        """By the first broker that answers: any of them knows. Raises WireError where none does."""
        asks = [partial(coordinators, self.cluster, node, groups) for node in self.cluster.nodes]
        try:
            return await in_turns(asks, NEXT_BROKER, WireError)
        except AllFailed as failed:
            raise failed.problems[-1] from failed

    async def fetched(self, nodes: Mapping[str, int], fetch: Fetch = fetch_offsets) -> dict[str, Offsets]:
        """Everything that groups have committed, by their coordinators `nodes`; without those that were refused."""
        work = {node: fetch(self.cluster, node, part) for node, part in _by_node(nodes).items()}
        found: dict[str, Offsets] = {}
        for fetched in (await self._gathered(work)).values():
            found |= {group: offsets for group, offsets in fetched.offsets.items() if group in nodes}
            self.refused(fetched.refused)
        return found

    async def unfollowed(self, include: Sequence[re.Pattern[str]]) -> tuple[dict[str, Offsets], dict[str, Offsets]]:
        """Return where the chosen share groups stand, and the chosen streams groups, which nobody follows."""
        nodes: dict[bool, dict[str, int]] = {True: {}, False: {}}
        for node, groups in (await self.listed()).items():
            for group in groups:
                if group.is_unfollowed and any(pattern.fullmatch(group.group) for pattern in include):
                    nodes[group.is_share][group.group] = node
        return await self.fetched(nodes[True], fetch_share_offsets), await self.fetched(nodes[False])

    async def commit(
        self, nodes: Mapping[str, int], commits: Mapping[str, Offsets], may_go: Callable[[], bool]
    ) -> tuple[set[str], list[GroupRefusal]]:
        """Commit for groups, by their coordinators `nodes`: the groups that were answered, and what was refused.
        Nothing is sent once `may_go` says no.
        """
        parts = _by_node({group: nodes[group] for group in commits})
        work = {
            node: commit_offsets(self.cluster, node, {group: commits[group] for group in part}, may_go)
            for node, part in parts.items()
        }
        answers = await self._gathered(work)
        answered = {group for node in answers for group in parts[node]}
        return answered, [refusal for refusals in answers.values() for refusal in refusals]

    async def offsets_at(
        self, partitions: Collection[TopicPartition], when: int, isolation: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int] | None:
        """Return where logs begin or end, as `queries.listed` has it; None where the cluster is away."""
        try:
            return await listed(self.cluster, partitions, when, isolation)
        except ClusterError as problem:
            self.lost(problem)
            return None

    def blocked(self, cause: str, group: str, *, passing: bool = False) -> None:
        """Take down what stands in the way here."""
        self.blockers.append(Blocker(f"{self}: {cause}", group, passing))

    def refused(self, refusals: Iterable[GroupRefusal]) -> None:
        """Take down what a broker refused, rights by their names."""
        for refusal in refusals:
            code: Any = refusal.code
            if code == TOPIC_DENIED and refusal.partition:
                self.blocked(f"grant READ on topic {refusal.partition.topic}", refusal.group)
            elif code in AUTHORIZATION_ERRORS:
                self.blocked(f"grant {self.right} on the group", refusal.group)
            else:
                self.blocked(f"the broker answered {int(code)} {code.name}", refusal.group, passing=code.retriable)

    def lost(self, problem: ClusterError | WireError) -> None:
        """Take down what concerns a broker or all of them."""
        if isinstance(problem, AccessDenied):
            cause = "a right is missing"
        else:
            cause = "a broker does not answer" if isinstance(problem, WireError) else "it cannot be asked"
        self.blockers.append(Blocker(f"{self}: {cause}", passing=True, detail=str(problem)))

    async def _gathered(self, asked: Mapping[int, Awaitable[Result]]) -> dict[int, Result]:
        answers: dict[int, Result] = {}
        for node, answer in zip(asked, await asyncio.gather(*asked.values(), return_exceptions=True), strict=True):
            if isinstance(answer, ClusterError | WireError):
                self.lost(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers[node] = answer
        return answers


def _by_node(nodes: Mapping[str, int]) -> dict[int, list[str]]:
    parts: dict[int, list[str]] = {}
    for group, node in nodes.items():
        parts.setdefault(node, []).append(group)
    return parts
