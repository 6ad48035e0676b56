"""What a flow's journal tells a failover: every report, as far as it was read."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mirror.commands.flowstatus import Pulse, Status, status_of
from mirror.config import Settings
from mirror.errors import ConfigError
from mirror.observe.figures import PREFIX as STATE
from mirror.observe.figures import Figures
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets.journal import Entry, Journal, newest
from mirror.offsets.runlog import Indexes
from mirror.states import State
from mirror.wire.cluster import TopicPartition

LOOK_SECONDS: Final = 0.2


@dataclass(slots=True, eq=False)
class Known:
    """What the journal tells, as far as it was read. `contact`: by source partition, the last report of a lane that
    had the source before it; a lane that waits tells no news of it.
    """

    journal: Journal
    newest: dict[bytes, bytes] = field(default_factory=dict)
    contact: dict[TopicPartition, Figures] = field(default_factory=dict)
    runs: Indexes = field(default_factory=Indexes)
    _until: int | None = None

    async def read(self) -> None:
        """Raises ConfigError where there is no journal, ClusterError and MalformedBatch as `Journal.read` does."""
        topic = self.journal.partition.topic
        if self._until is None:
            await self.journal.cluster.refresh([topic])
            if topic not in self.journal.cluster.topics:
                raise ConfigError(
                    f"{self.journal.flow}: never ran: there is no topic {topic} on {self.journal.cluster}"
                )
        entries, self._until = await self.journal.read(self._until)
        gone = {entry.key for entry in entries if entry.value is None}
        self.newest = {key: value for key, value in self.newest.items() if key not in gone} | newest(entries)
        self.runs.learn(entries)
        for entry in entries:
            self._learn(entry)

    def _learn(self, entry: Entry) -> None:
        if entry.key.startswith(STATE) and entry.value:
            try:
                figures = Figures.from_json(entry.value)
            except NOT_OURS:
                return  # `status` names it
            if figures.state in (State.MIRRORING, State.CAUGHT_UP):
                self.contact[TopicPartition(figures.topic, figures.partition)] = figures

    def status(self, settings: Settings) -> Status:
        """The flow as of now."""
        return status_of(settings.flow, settings.target.alias, self.newest, int(time.time() * 1000))

    def is_mirrored(self, settings: Settings) -> bool:
        """A mirror has the flow, as far as can be known."""
        return self.status(settings).pulse in (Pulse.RUNNING, Pulse.SILENT)

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
        """The newest report of each source partition."""
        found = status_of("", "", self.newest, 0).figures
        return {TopicPartition(one.topic, one.partition): one for one in found}


def _is_over(figures: Figures, end: int) -> bool:
    return figures.next_offset >= end or figures.state.is_stop or figures.state is State.PAUSED
