"""Source topics and partitions that went while no mirror ran, and whose copies stay as they are.

No plan has them, so no task looks at them, and what was reported of them last would be that they have caught up. They
are stopped for as long as the flow would mirror them, and their copies are there. Of what neither cluster has any more
there is nothing to report.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mirror import clock
from mirror.errors import ClusterError
from mirror.journal.entries import FirstSeen
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.observability.status import PartitionStatus
from mirror.replication.position import located
from mirror.replication.topic_identity import recreated, what_became_of
from mirror.states import Remedy, State


class _Now(NamedTuple):
    """What became of a source topic, empty where nothing did, and which partitions it and its copy have."""

    what: str
    source: Collection[int]
    copy: Collection[int]

    def lacks(self, number: int) -> bool:
        """Neither cluster has this partition of what was mirrored."""
        return number not in self.copy and (bool(self.what) or number not in self.source)


@dataclass(slots=True, eq=False)
class GoneTopics:
    """Those of one flow, which `instance` reports. `figures`: by source partition, as they stand. `over`: the keys of
    reports about what neither cluster has.
    """

    source: Cluster
    target: Cluster
    instance: str
    figures: dict[TopicPartition, PartitionStatus] = field(default_factory=dict)
    over: list[bytes] = field(default_factory=list)

    async def find(
        self,
        left: Sequence[PartitionStatus],
        seen: Mapping[str, FirstSeen],
        rekeyed: Collection[str],
        mirrored: Collection[str],
    ) -> list[PartitionStatus]:
        """Find what went of the partitions that nobody mirrors, by their last reports; those that were not known to be
        gone. One that was remains so whatever is heard of its source: no plan has it. `seen`: by target topic, as what
        its source was first seen; `rekeyed` are target topics, `mirrored` source topics that have other partitions.
        """
        copies = {status.topic: status.target_topic for status in left if status.target_topic in seen}
        found = await asyncio.gather(
            *(self._became(topic, copy, seen[copy].topic_id) for topic, copy in copies.items())
        )
        became, new = dict(zip(copies, found, strict=True)), list[PartitionStatus]()
        for figures in left:
            at, now = figures.source, became.get(figures.topic)
            if now is not None and now.lacks(figures.partition):
                self.over.append(figures.key())
                continue
            what, was_known, detail = now.what if now else "", figures.state is State.RECREATED, figures.detail
            if not (what or was_known):
                continue
            if what:
                stop = located(recreated(at, figures.next_offset, what), self.source, self.target, figures.target_topic)
                is_rekeyed = figures.target_topic in rekeyed
                advice = Remedy.EXCLUDE_REKEYED.text({"topic": figures.topic}) if is_rekeyed else stop.advice
                detail = f"{stop.detail}. {advice}"
            self.figures[at] = figures.carried(self.instance, State.RECREATED, detail)
            if not was_known:
                new.append(self.figures[at])
        self.source.forget(copies.keys() - mirrored)
        return new

    async def forget(self, left: Collection[TopicPartition], follows: Callable[[str, str], bool]) -> list[bytes]:
        """Keep those that are `left`: nobody mirrors them now. The keys of the reports of those that the flow does not
        mean any more, or whose copies are gone, which are not kept either, and of those that were `over`.
        """
        known = {partition: status for partition, status in self.figures.items() if partition in left}
        copies = sorted(
            {status.target_topic for status in known.values() if follows(status.topic, status.target_topic)}
        )
        found = await asyncio.gather(*map(self._partitions, copies))
        there, now = dict(zip(copies, found, strict=True)), clock.now_ms()

        def may_be_there(status: PartitionStatus) -> bool:
            numbers = there.get(status.target_topic, ())
            return numbers is None or status.partition in numbers

        self.figures = {
            partition: replace(status, at_ms=now) for partition, status in known.items() if may_be_there(status)
        }
        over, self.over = self.over, []
        return [*over, *(status.key() for partition, status in known.items() if partition not in self.figures)]

    async def _partitions(self, copy: str) -> Collection[int] | None:
        """None where that cannot be asked."""
        try:
            found = await self.target.describe(copy)
        except ClusterError:
            return None
        return found.leaders.keys() if found is not None else ()

    async def _became(self, topic: str, copy: str, topic_id: uuid.UUID | None) -> _Now | None:
        """None where a cluster cannot be asked."""
        if (ours := await self._partitions(copy)) is None:
            return None
        try:
            what = await what_became_of(self.source, topic, topic_id)
        except ClusterError:
            return None
        theirs = self.source.topics.get(topic)
        return _Now(what, theirs.leaders.keys() if theirs is not None else (), ours)
