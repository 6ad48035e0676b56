"""Which copies a running mirror deletes, since their source topics were (`sync.deletions: delete`).

D1  a copy goes where the flow made it (its journal says so, by the copy's id) and was not failed over since, and where
    its source is the same cluster as then and denies several times that a topic of that name exists: one with another
    id is a topic made anew, whose copy stays as it is (RECREATED)
D2  none goes where what is gone rather looks like a source that lost its data, or like a flow that is set up wrongly:
    what was lost in a day is counted against all copies of the flow, those included that were deleted in that time
D3  none goes that no task of this process copied to, or compared with its source, that is paused, so that none looks
    at it, or whose log ends further than the flow's tasks acknowledged: somebody else wrote to it since, and nobody
    else has these records
D4  the journal is read again right before: a copy is not for a mirror to delete that has lost the flow
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mirror.admin.adoption import unacknowledged
from mirror.admin.client import Admin
from mirror.admin.topics import TopicPlan
from mirror.assignment import Assignment
from mirror.config import Settings
from mirror.identity import MISSING_TRIES
from mirror.names import first_of
from mirror.observe import logs
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets.failover import FailedOver
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.journal import OWNER, Journal
from mirror.offsets.owner import Owner
from mirror.policy.selection import selects
from mirror.wire.cluster import Cluster, Endpoint

_AGAIN_SECONDS: Final = 0.2
#: The time in which losses are counted together: a source that loses its data may do so topic by topic.
_WINDOW_MS: Final = 86_400_000

_UNCHECKED: Final = (
    "no task compared their ends with the source, or copied to them, since this mirror started; if they are to go"
)

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
        self,
        settings: Settings,
        plan: TopicPlan,
        current: Sequence[Assignment],
        seen: Mapping[str, FirstSeen],
        sound: Collection[str] = (),
    ) -> list[str]:
        """The copies to delete now, by the target's names; why none is, is told once while that lasts (D2). `sound` are
        those that tasks of this process copied to, or found to be their sources' (D3). The journal has it before they
        go.

        Raises ClusterError, and MalformedBatch where the journal cannot be read.
        """
        if settings.sync.deletions == "keep":
            return []
        copies = {one.target.topic: one for one in current if selects(one.source.topic, settings.topics)}
        gone = self._gone(plan, copies)
        if why := _doubt(plan, self._lost(plan, settings, copies, gone, seen)) if gone else "":
            why = (
                f"{why} on cluster {settings.source.alias}, as where a source lost its data. Bring it back, or fail"
                " over; if these topics were deleted on purpose"
            )
            self._tell(settings, gone, why)
            return []
        ours = self._made(gone, seen)
        kept = {topic: _UNCHECKED for topic in ours if topic not in sound}
        if checked := {topic: one for topic, one in ours.items() if topic in sound}:
            ids = {topic: (one.topic_id, seen[topic].target_topic_id) for topic, one in checked.items()}
            more = asyncio.run(unacknowledged(settings, ids))
            kept |= {topic: f"{why}: somebody else wrote to it; if it is to go" for topic, why in more.items()}
        whys = "; ".join(sorted(set(kept.values())))
        self._tell(settings, {topic: ours[topic] for topic in kept}, whys)
        ours = {topic: one for topic, one in ours.items() if topic not in kept}
        return asyncio.run(self._let_go(settings, ours)) if ours else []

    def _gone(self, plan: TopicPlan, copies: Copies) -> Copies:
        """Those whose source is there no more, each time that it is asked for."""
        known, gone = plan.source_topics, dict(copies)
        for tried in range(1 + MISSING_TRIES):
            gone = {topic: one for topic, one in gone.items() if one.source.topic not in known}
            if not gone or tried == MISSING_TRIES:
                break
            time.sleep(_AGAIN_SECONDS)
            known = self._source.describe({one.source.topic for one in gone.values()})
        return gone

    def _lost(
        self, plan: TopicPlan, settings: Settings, copies: Copies, gone: Copies, seen: Mapping[str, FirstSeen]
    ) -> tuple[int, int]:
        """How many copies lost their sources in the time that counts, and of how many (D2)."""
        since = time.time() * 1000 - _WINDOW_MS
        ever = {
            topic: one
            for topic, one in seen.items()
            if selects(one.source_topic, settings.topics) and (not one.deleted_ms or one.deleted_ms > since)
        }
        deleted = {t for t, one in ever.items() if one.deleted_ms and one.source_topic not in plan.source_topics}
        return len(deleted | gone.keys()), len(ever.keys() | copies.keys())

    async def _let_go(self, settings: Settings, copies: Copies) -> list[str]:
        """Those of the copies that the journal of now lets go (D4), which it knows then."""
        async with Cluster(Endpoint.of(settings.target)) as target:
            journal = Journal(target, settings.flow)
            newest = await journal.newest()
            if not _may_delete(newest):
                return []
            seen = seen_in(newest)
            ours = sorted(await asyncio.to_thread(self._made, copies, seen))
            now = int(time.time() * 1000)
            await journal.append_all(
                [(FirstSeen.key(topic), replace(seen[topic], deleted_ms=now).to_json()) for topic in ours]
            )
            return ours

    def _made(self, copies: Copies, seen: Mapping[str, FirstSeen]) -> Copies:
        """Those that the flow made, of topics of the cluster that the source is now (D1)."""
        made = {topic: known for topic in copies if (known := seen.get(topic)) is not None and known.made}
        if not made:
            return {}
        theirs, source_id = self._target.describe(made), self._source.cluster_id()
        return {
            topic: copies[topic]
            for topic, known in made.items()
            if topic in theirs
            and known.target_topic_id is not None  # by name alone nothing is deleted
            and known.target_topic_id == theirs[topic].topic_id
            and known.cluster_id == source_id
            and known.topic_id == copies[topic].topic_id
        }

    def _tell(self, settings: Settings, gone: Copies, why: str) -> None:
        if why and why != self._told:
            _log.error(
                "copies_not_deleted",
                flow=settings.flow,
                topics=first_of(sorted(one.source.topic for one in gone.values())),
                reason=f"{why}, delete their copies on cluster {settings.target.alias} by hand, and start the mirror"
                " again",
            )
        self._told = why


def _doubt(plan: TopicPlan, lost: tuple[int, int]) -> str:
    """Why what is gone is no reason to delete copies; empty where it is (D2). `lost`: how many copies lost their
    sources in the time that counts, and of how many.
    """
    if not plan.pairs:
        return "no topic that the flow selects is left"
    if any(not finding.topic for finding in plan.refusals):
        return "topics are gone, and preflight refuses the whole flow,"
    many, of = lost
    if 2 * many > of:
        return f"{many} of the flow's {of} topics are gone"
    return ""


def _may_delete(journal: Mapping[bytes, bytes]) -> bool:
    """Whether the newest records of the journal name this process as the flow's owner, and no failover (D4)."""
    try:
        owner = Owner.read(journal.get(OWNER, b""))
    except NOT_OURS:  # there is none, or somebody else's record, which `mirror status` names
        return False
    return owner.is_this_process and FailedOver.standing(journal) is None
