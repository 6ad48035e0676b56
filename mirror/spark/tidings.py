"""What the flow's journal tells a running mirror: figures of its lanes, a younger mirror, a failover, what people
accepted and which topics they let rest, as what topics were first seen, and where offsets moved to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mirror.errors import ClusterError, MalformedBatch, WireError
from mirror.observe import logs
from mirror.observe.figures import PREFIX as STATE
from mirror.observe.figures import Figures
from mirror.observe.jsonrecords import NOT_OURS
from mirror.observe.lanefigures import PREFIX as LANE
from mirror.observe.lanefigures import LaneFigures
from mirror.observe.metrics import Metrics
from mirror.offsets import failover
from mirror.offsets.failover import FailedOver, Garbled
from mirror.offsets.firstseen import PREFIX as TOPIC
from mirror.offsets.journal import OWNER, Entry, Journal
from mirror.offsets.losses import Accepted, read_accepted
from mirror.offsets.owner import Owner
from mirror.offsets.pauses import read_pause
from mirror.offsets.runlog import Indexes
from mirror.wire.cluster import TopicPartition


@dataclass(slots=True, eq=False)
class Tidings:
    """Of the mirror `instance` of one flow; `taken_over` is called with the name of another one that has it now, and
    `failed_over` when the flow is to be mirrored no more. `metrics` gets every report.

    `live`: figures by source partition. `accepted`: by target partition, what a person accepted of losses. `paused`:
    source topics that rest. `topics`: the records of what topics were first seen as, by their keys.
    `runs`: where offsets moved to. All of it is what the journal had before the offset `until`.
    """

    flow: str
    instance: str
    taken_over: Callable[[Owner], None]
    failed_over: Callable[[FailedOver | Garbled], None]
    metrics: Metrics
    live: dict[TopicPartition, Figures] = field(default_factory=dict)
    accepted: dict[TopicPartition, Accepted] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    topics: dict[bytes, bytes] = field(default_factory=dict)
    runs: Indexes = field(default_factory=Indexes)
    until: int = 0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _failing: bool = False
    _log: logs.Log = field(default_factory=lambda: logs.get("mirror.supervisor"))

    async def read(self, journal: Journal) -> bool:
        """Learn what is new in the journal; false where it cannot be read now, with one warning until it can."""
        async with self._reading:  # in the journal's order
            try:
                entries, self.until = await journal.read(self.until)
            except (ClusterError, WireError, MalformedBatch) as problem:
                if not self._failing:
                    self._log.warning("journal_not_read", flow=self.flow, reason=str(problem))
                self._failing = True
                return False
            self._failing = False
            self.learn(entries)
            return True

    def hear(self, report: bytes) -> None:
        """Learn a partition's figures from its lane, which cannot write them into the journal now."""
        self._learn(Entry(0, STATE, report))

    def learn(self, entries: Sequence[Entry]) -> None:
        """Learn from records, in the journal's order."""
        for entry in entries:
            self._learn(entry)
        self.runs.learn(entries)

    def _learn(self, entry: Entry) -> None:
        try:
            if entry.key == OWNER and entry.value:
                owner = Owner.read(entry.value)
                if owner.instance != self.instance:
                    self.taken_over(owner)
            elif entry.key == failover.KEY and entry.value is not None:
                self.failed_over(FailedOver.told(entry.value))
            elif entry.key.startswith(STATE) and entry.value is None:  # mirrored no longer
                for at in [at for at, figures in self.live.items() if figures.key() == entry.key]:
                    del self.live[at]
                self.metrics.keep(self.live)
            elif entry.key.startswith(STATE) and entry.value:
                figures = Figures.from_json(entry.value)
                at = TopicPartition(figures.topic, figures.partition)
                known = self.live.get(at)  # may have been heard, and what the journal has behind be older
                if figures.instance == self.instance and (known is None or known.at_ms <= figures.at_ms):
                    self.live[at] = figures
                    self.metrics.learn((figures,))
            elif entry.key.startswith(LANE) and entry.value:
                lane = LaneFigures.from_json(entry.value)
                if lane.instance == self.instance:
                    self.metrics.learn_lane(lane)
            elif entry.key.startswith(TOPIC) and entry.value:
                self.topics[entry.key] = entry.value
            elif (pause := read_pause(entry)) is not None:
                (self.paused.add if pause.rests else self.paused.discard)(pause.topic)
            elif (accepted := read_accepted(entry)) is not None:
                self.accepted[accepted.target] = accepted
        except NOT_OURS as problem:
            key = entry.key.decode(errors="replace")
            self._log.warning("journal_record_unread", key=key, reason=repr(problem))
