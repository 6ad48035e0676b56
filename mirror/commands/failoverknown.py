"""What a flow's journal tells a failover: every report, as far as it was read."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mirror.commands.flowstatus import Status, status_of
from mirror.config import Settings
from mirror.errors import ConfigError
from mirror.observe.figures import PREFIX as STATE
from mirror.observe.figures import Figures
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.journal import Entry, Journal, newest
from mirror.offsets.runlog import Indexes
from mirror.policy.selection import selects
from mirror.spark.handover import Watched
from mirror.states import State
from mirror.wire.cluster import TopicPartition

LOOK_SECONDS: Final = 0.2


@dataclass(slots=True, eq=False)
class Known:
    """What the journal tells, as far as it was read. `contact`: by source partition, the last report of a lane that
    had the source before it; a lane that waits tells no news of it. `target_of` is the name of now of a source topic's
    copy, None for a topic that is mirrored no longer: records of other copies are left alone. `is_plain`: a source
    topic is copied as it is, partition by partition.
    """

    journal: Journal
    target_of: Callable[[str], str | None] | None = None
    is_plain: Callable[[str], bool] = lambda _: True
    newest: dict[bytes, bytes] = field(default_factory=dict)
    contact: dict[TopicPartition, Figures] = field(default_factory=dict)
    runs: Indexes = field(default_factory=Indexes)
    watched: Watched = field(init=False)

    def __post_init__(self) -> None:
        self.watched = Watched(self.journal)

    async def read(self) -> None:
        """Raises ConfigError where there is no journal, ClusterError and MalformedBatch as `Journal.read` does."""
        topic = self.journal.partition.topic
        if self.watched.place is None:
            await self.journal.cluster.refresh([topic])
            if topic not in self.journal.cluster.topics:
                raise ConfigError(
                    f"{self.journal.flow}: never ran: there is no topic {topic} on {self.journal.cluster}"
                )
        news = await self.watched.look()
        entries = news.entries
        if news.lost:  # what is told is what the journal says now
            self.newest, self.contact, self.runs = {}, {}, Indexes()
        gone = {entry.key for entry in entries if entry.value is None}
        self.newest = {key: value for key, value in self.newest.items() if key not in gone} | newest(entries)
        self.runs.learn(entries)
        for entry in entries:
            self._learn(entry)
        if unheard := self._unheard().keys() - set(self.journal.cluster.topics):
            await self.journal.cluster.refresh(unheard)

    def _learn(self, entry: Entry) -> None:
        if entry.key.startswith(STATE) and entry.value:
            try:
                figures = Figures.from_json(entry.value)
            except NOT_OURS:
                return  # `status` names it
            if figures.state in (State.MIRRORING, State.CAUGHT_UP) and self._is_of_now(figures):
                self.contact[TopicPartition(figures.topic, figures.partition)] = figures

    def status(self, settings: Settings) -> Status:
        """The flow as of now."""
        return status_of(settings.flow, settings.target.alias, self.newest, int(time.time() * 1000))

    def is_mirrored(self, settings: Settings) -> bool:
        """A mirror has the flow, as far as can be known."""
        del settings
        return self.watched.current() is not None

    async def reaching(
        self, settings: Settings, ends: Mapping[TopicPartition, int], idle_seconds: float
    ) -> list[TopicPartition]:
        """Wait until the mirror that runs is as far as `ends`: the partitions that it is not, where it ended or none of
        them moved for so long. What it mirrors no longer is not waited for. Raises as `read` does.
        """
        moved_at, least = time.monotonic(), math.inf
        while True:
            await self.read()
            figures = self.figures
            behind = [at for at, end in ends.items() if at in figures and not _is_over(figures[at], end)]
            if not behind or not self.is_mirrored(settings):
                return behind
            missing = sum(ends[at] - figures[at].next_offset for at in behind)  # others may move for ever
            if missing < least:
                moved_at, least = time.monotonic(), missing
            elif time.monotonic() - moved_at > idle_seconds:
                return behind
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def figures(self) -> dict[TopicPartition, Figures]:
        """The newest report of each source partition, about the copy of now."""
        found = self._told()
        begun = [one for there, topic in self._unheard().items() for one in self._begun(there, topic)]
        return {TopicPartition(one.topic, one.partition): one for one in (*begun, *found) if self._is_of_now(one)}

    def _told(self) -> tuple[Figures, ...]:
        return status_of("", "", self.newest, 0).figures

    def _unheard(self) -> dict[str, FirstSeen]:
        """Copies that the flow began and no task has reported on, by name: a mirror may be lost in its first second."""
        told = {one.target_topic for one in self._told()}
        return {
            there: one
            for there, one in seen_in(self.newest).items()
            if there not in told and not one.deleted_ms and self.target_of and self.is_plain(one.source_topic)
        }

    def _begun(self, there: str, topic: FirstSeen) -> Iterator[Figures]:
        """What stands for the reports of a copy's partitions as long as there are none."""
        found = self.journal.cluster.topics.get(there)
        for partition in found.leaders if found is not None else ():
            yield Figures(
                flow=self.journal.flow,
                instance="",
                topic=topic.source_topic,
                partition=partition,
                target_topic=there,
                state=State.STARTING,
                next_offset=topic.begins(partition),
                log_end=-1,
                lag_records=None,
                at_ms=0,
            )

    def _is_of_now(self, figures: Figures) -> bool:
        return self.target_of is None or self.target_of(figures.topic) == figures.target_topic


def naming_of(settings: Settings) -> Callable[[str], str | None]:
    """The name of a source topic's copy; None for one that the flow does not mirror."""
    topics = settings.topics

    def target_of(topic: str) -> str | None:
        return topics.naming.target_of(topic) if selects(topic, topics) else None

    return target_of


def _is_over(figures: Figures, end: int) -> bool:
    if figures.presumed:
        return False
    return figures.next_offset >= end or figures.state.is_stop or figures.state is State.PAUSED
