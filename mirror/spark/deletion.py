"""Which copies a running mirror deletes, since their source topics were (`sync.deletions: delete`).

D1  a copy goes where the flow made it (its journal says so, by the copy's id) and was not failed over since, and where
    its source is the same cluster as then and denies several times that the topic exists
D2  none goes where what is gone rather looks like a source that lost its data, or like a flow that is set up wrongly
D3  the journal is read again right before: a copy is not for a mirror to delete that has lost the flow
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from mirror.admin.client import Admin
from mirror.admin.history import read_own
from mirror.admin.topics import TopicPlan
from mirror.assignment import Assignment
from mirror.config import Settings
from mirror.identity import MISSING_TRIES
from mirror.names import first_of
from mirror.observe import logs
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets.failover import FailedOver
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.journal import OWNER
from mirror.offsets.owner import Owner
from mirror.policy.selection import selects

_AGAIN_SECONDS: Final = 0.2

_log = logs.get("mirror.sync")

#: One assignment for each topic, by the target's name: the partitions of a topic have the same fate.
Copies = Mapping[str, Assignment]


class Deletions:
    """Of one flow, look for look."""

    def __init__(self, source: Admin, target: Admin) -> None:
        """Nothing is asked before the first look."""
        self._source, self._target = source, target
        self._told = ""

    def due(
        self, settings: Settings, plan: TopicPlan, current: Sequence[Assignment], seen: Mapping[str, FirstSeen]
    ) -> list[str]:
        """The copies to delete now, by the target's names; why none is, is told once while that lasts (D2).

        Raises ClusterError, and MalformedBatch where the journal cannot be read.
        """
        if settings.sync.deletions == "keep":
            return []
        copies = {one.target.topic: one for one in current if selects(one.source.topic, settings.topics)}
        gone = self._gone(plan, copies)
        why = _doubt(plan, gone, copies) if gone else ""
        self._tell(settings, gone, why)
        if why or not (ours := self._made(gone, seen)):
            return []
        journal = asyncio.run(read_own(settings)).newest
        return sorted(self._made(ours, seen_in(journal))) if _may_delete(journal) else []

    def _gone(self, plan: TopicPlan, copies: Copies) -> Copies:
        """Those whose source is there no more, or is another topic, each time that it is asked for."""
        known, gone = plan.source_topics, dict(copies)
        for tried in range(1 + MISSING_TRIES):
            gone = {
                topic: one
                for topic, one in gone.items()
                if (found := known.get(one.source.topic)) is None or found.topic_id != one.topic_id
            }
            if not gone or tried == MISSING_TRIES:
                break
            time.sleep(_AGAIN_SECONDS)
            known = self._source.describe({one.source.topic for one in gone.values()})
        return gone

    def _made(self, copies: Copies, seen: Mapping[str, FirstSeen]) -> Copies:
        """Those that the flow made, of topics of the cluster that the source is now (D1)."""
        made = {topic: known for topic in copies if (known := seen.get(topic)) is not None and known.made}
        if not made:
            return {}
        theirs, source_id = self._target.describe(made), self._source.cluster_id()
        return {
            topic: copies[topic]
            for topic, known in made.items()
            if topic in theirs and known.target_topic_id == theirs[topic].topic_id and known.cluster_id == source_id
        }

    def _tell(self, settings: Settings, gone: Copies, why: str) -> None:
        if why and why != self._told:
            _log.error(
                "copies_not_deleted",
                flow=settings.flow,
                topics=first_of(sorted(one.source.topic for one in gone.values())),
                reason=f"{why} on cluster {settings.source.alias}, as where a source lost its data. Bring it back, or"
                f" fail over; if these topics were deleted on purpose, delete their copies on cluster"
                f" {settings.target.alias} by hand, and start the mirror again",
            )
        self._told = why


def _doubt(plan: TopicPlan, gone: Collection[str], copies: Collection[str]) -> str:
    """Why what is gone is no reason to delete copies; empty where it is (D2)."""
    if not plan.pairs:
        return "no topic that the flow selects is left"
    if any(not finding.topic for finding in plan.refusals):
        return "topics are gone, and preflight refuses the whole flow,"
    if len(gone) > 1 and 2 * len(gone) > len(copies):
        return f"{len(gone)} of the flow's {len(copies)} topics are gone"
    return ""


def _may_delete(journal: Mapping[bytes, bytes]) -> bool:
    """Whether the newest records of the journal name this process as the flow's owner, and no failover (D3)."""
    try:
        owner = Owner.read(journal.get(OWNER, b""))
    except NOT_OURS:  # there is none, or somebody else's record, which `mirror status` names
        return False
    return owner.is_this_process and FailedOver.standing(journal) is None
