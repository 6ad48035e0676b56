"""What the flow's journal tells a running mirror: figures of its lanes, a younger mirror, a failover, what people
accepted and which topics they let rest, as what topics were first seen, and where offsets moved to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from mirror.errors import ClusterError, MalformedBatch, WireError
from mirror.observe import logs
from mirror.observe.figures import PREFIX as STATE
from mirror.observe.figures import Figures
from mirror.observe.jsonrecords import NOT_OURS
from mirror.observe.lanefigures import PREFIX as LANE
from mirror.observe.lanefigures import LaneFigures
from mirror.observe.metrics import Metrics
from mirror.observe.once import Once
from mirror.offsets import failover
from mirror.offsets.failover import FailedOver, Garbled
from mirror.offsets.firstseen import PREFIX as TOPIC
from mirror.offsets.journal import OWNER, Entry, Journal
from mirror.offsets.losses import Accepted, read_accepted
from mirror.offsets.owner import Owner
from mirror.offsets.pauses import read_pause
from mirror.offsets.runlog import Indexes
from mirror.wire.cluster import TopicPartition

#: How long what a lane told straight stands over what it had written before: as long as a write may take that was under
#: way, and a little more.
HEARD_SECONDS: Final = 15.0
#: The same for a receipt: what its lane wrote is in the journal by then, which is read every second.
RECEIPT_SECONDS: Final = 3.0


class _Heard(NamedTuple):
    """A report that did not come by the journal: its lane's time, and until when (our own clock) older ones of the
    journal are passed over.
    """

    at_ms: int
    until: float


@dataclass(slots=True, eq=False)
class Tidings:
    """Of the mirror `instance` of one flow; `taken_over` is called with the name of another one that has it now, and
    `failed_over` when the flow is to be mirrored no more. `metrics` gets every report.

    `live`: figures by source partition, the newest by the order in which they came; clocks of executors do not decide,
    and none are of a later time than ours. `accepted`: by target partition, what a person accepted of losses.
    `paused`: source topics that rest. `topics`: the records of what topics were first seen as, by their keys. `runs`:
    where offsets moved to. All of it, but for what lanes told straight, is what the journal had before offset `until`.
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
    _heard: dict[TopicPartition, _Heard] = field(default_factory=dict)
    _garbled: set[int] = field(default_factory=set)
    _hindrances: Once = field(default_factory=Once)
    _log: logs.Log = field(default_factory=lambda: logs.get("mirror.supervisor"))

    async def read(self, journal: Journal) -> bool:
        """Learn what is new in the journal; false where it cannot be read now, with one warning for each kind of reason
        until it can.
        """
        async with self._reading:  # in the journal's order
            try:
                entries, self.until = await journal.read(self.until)
            except (ClusterError, WireError, MalformedBatch) as problem:
                if self._hindrances.is_new(problem):
                    self._log.warning("journal_not_read", flow=self.flow, reason=str(problem))
                return False
            self._hindrances.over()
            self.learn(entries)
            return True

    def hear(self, lane: int, report: bytes, held: Collection[TopicPartition]) -> None:
        """Learn a partition's figures from its lane, which cannot write them into the journal now. They stand until the
        journal has something newer of it, or for `HEARD_SECONDS`. `held` are the partitions that this lane has.
        """
        try:
            figures = Figures.from_json(report)
            at = TopicPartition(figures.topic, figures.partition)
            if at not in held:
                raise ValueError(f"{at} is not mirrored by this lane")
        except NOT_OURS as problem:
            if lane not in self._garbled:
                self._garbled.add(lane)
                self._log.warning("report_unread", flow=self.flow, lane=lane, reason=repr(problem))
        else:
            if figures.instance == self.instance:
                self._heard[at] = _Heard(figures.at_ms, time.monotonic() + HEARD_SECONDS)
                self._stands(at, figures)

    def receive(self, figures: Figures) -> Figures:
        """Learn a partition's figures from the receipt of its lane, which has ended; the same, dated by our clock."""
        at = TopicPartition(figures.topic, figures.partition)
        self._heard[at] = _Heard(figures.at_ms, time.monotonic() + RECEIPT_SECONDS)
        return self._stands(at, figures)

    def newest(self, receipts: Mapping[TopicPartition, Figures]) -> dict[TopicPartition, Figures]:
        """The newest report of each partition; of a receipt and a live report of one moment, the receipt."""
        reports = [*self.live.values(), *receipts.values()]
        return {TopicPartition(one.topic, one.partition): one for one in sorted(reports, key=lambda one: one.at_ms)}

    def _stands(self, at: TopicPartition, figures: Figures) -> Figures:
        """A report is dated no later than now, and no earlier than the one before it, which came before."""
        now = int(time.time() * 1000)
        before = self.live[at].at_ms if at in self.live else -1
        if not before < figures.at_ms <= now:
            figures = replace(figures, at_ms=max(before, now))
        self.live[at] = figures
        self.metrics.learn((figures,))
        return figures

    def _is_older(self, at: TopicPartition, figures: Figures) -> bool:
        """Whether a lane told this straight, or by its receipt, after it had written what the journal has here."""
        heard = self._heard.get(at)
        if heard is not None and figures.at_ms < heard.at_ms and time.monotonic() < heard.until:
            return True
        self._heard.pop(at, None)
        return False

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
                if figures.instance == self.instance and not self._is_older(at, figures):
                    self._stands(at, figures)
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
