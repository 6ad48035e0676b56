"""The recovery point of a failover, partition by partition, and what the flow's journal says of each.

Records are counted as offsets, so they are at most as many: a transaction's marker takes one, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mirror import clock
from mirror.config import Settings
from mirror.driver.reports import Headway
from mirror.errors import ConfigError
from mirror.journal.entries import COPIES, REKEYED, FirstSeen
from mirror.journal.journal import Entry, Journal, newest
from mirror.journal.offset_maps import Indexes
from mirror.journal.ownership import Watched
from mirror.journal.snapshot import Status, status_of
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import NOT_OURS, PartitionStatus
from mirror.observability.status import PREFIX as STATE
from mirror.policy.selection import selects
from mirror.states import State

# --- What a failover leaves behind, partition by partition ------------------------------------------------------------

#: Stops after which the target's end says nothing of what got over, and why.
UNLIKE: Final[Mapping[State, str]] = {
    State.RECREATED: "the source topic is another one than was mirrored",
    State.DIVERGED: "the target holds other records than the source",
    State.FENCED: "somebody else wrote to the target",
    State.TARGET_LOST: "the target lost records that had got over",
    State.TRUNCATED: "the source lost records that got over, and may hold others in their place",
}
#: Those of them after which nothing that the source holds is known to be on the target.
_NOTHING_KNOWN: Final = frozenset({State.RECREATED, State.DIVERGED})


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Source offsets from `first` to before `next_offset` that are not on the target, which a person or a policy
    accepted, and why they were lost.
    """

    first: int
    next_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRpo:
    """One source partition at a failover. Offsets are the source's.

    The target holds everything below `position`, None where it could not be asked, for the reason `problem`. `end` is
    where the source ends, None where nobody can say any more; `lag` is then what was missing when that was last known,
    `seen_ms` ago. `lost_from_ms`: how long ago the first record that did not get over was written, None where that is
    not known or all got over. `losses`: what was left out for good, below `position`. `open_from`: where the source
    ends for a reader of committed records, if a transaction is open there: nothing behind it is copied before it ends,
    neither records of its own nor those of others, which are acknowledged. `unconfirmed`: why the copy is not known to
    hold the source's records, where no state says so; else empty. `may_hold_more`: `end` is what some brokers of the
    source say, while another one is silent that may lead by now.
    """

    topic: str
    partition: int
    target_topic: str
    position: int | None
    end: int | None
    state: State
    lag: int = 0
    seen_ms: int | None = None
    lost_from_ms: int | None = None
    problem: str = ""
    losses: tuple[AcceptedLoss, ...] = ()
    open_from: int | None = None
    unconfirmed: str = ""
    may_hold_more: bool = False

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def doubt(self) -> str:
        """Why it is not known how many records did not get over, even where the source says its end; else empty."""
        if self.position is None:
            return self.problem
        if self.state in UNLIKE:
            return UNLIKE[self.state]
        if self.unconfirmed:
            return self.unconfirmed
        if self.state is State.PADDING:
            return "the padding before its first record is not deleted yet"
        if self.end is not None and self.position > self.end:
            return "the target holds more than the source"
        return ""

    @property
    def is_certain(self) -> bool:
        """`records` is a bound, and not just what is known."""
        return self.end is not None and not self.doubt and not self.may_hold_more

    @property
    def records(self) -> int:
        """At most how many records did not get over; where that is not certain, as far as is known: all that the
        source holds where none of it is known to be on the target.
        """
        if self.end is None:
            return self.lag
        if self.position is None or self.state in _NOTHING_KNOWN or self.unconfirmed:
            return self.end
        return max(0, self.end - self.position)

    @property
    def seconds(self) -> float | None:
        """How far back what did not get over reaches: 0 for nothing, None where nobody knows."""
        if self.doubt or self.may_hold_more:
            return None
        if self.end is None:
            return None if self.seen_ms is None else self.seen_ms / 1000
        if not self.records:
            return 0.0
        return None if self.lost_from_ms is None else self.lost_from_ms / 1000

    @property
    def is_over(self) -> bool:
        """Everything got over, for certain, but for losses that were accepted."""
        return self.is_certain and not self.records and not self.state.is_stop

    @property
    def is_whole(self) -> bool:
        """Everything got over, for certain."""
        return self.is_over and not self.losses


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The RPO of a flow: at most `records`, and `seconds` back, None where that is not known for a partition."""

    records: int
    seconds: float | None
    certain: bool

    @classmethod
    def of(cls, exposures: Iterable[PartitionRpo]) -> RecoveryPoint:
        """Of all partitions together: `certain` where it is for each; else `records` is what is known."""
        every = list(exposures)
        times = [rpo.seconds for rpo in every]
        known = [time for time in times if time is not None]
        return cls(
            records=sum(rpo.records for rpo in every),
            seconds=max(known, default=0.0) if len(known) == len(times) else None,
            certain=all(rpo.is_certain for rpo in every),
        )


# --- What a flow's journal says to a failover -------------------------------------------------------------------------

POLL_SECONDS: Final = 0.2


@dataclass(slots=True, eq=False)
class JournalSnapshot:
    """What the journal says, as far as it was read. `contact`: by source partition, the last report that says
    when a task had the source before it. `target_of` is the name of now of a source topic's
    copy, None for a topic that is mirrored no longer: records of other copies are left alone. `is_plain`: a source
    topic is copied as it is, partition by partition. `reached`: by re-keyed source topic, up to where its
    partitions are on the target, as its progress topic says.
    """

    journal: Journal
    target_of: Callable[[str], str | None] | None = None
    is_plain: Callable[[str], bool] = lambda _: True
    reached: dict[str, Mapping[int, int]] = field(default_factory=dict)
    newest: dict[bytes, bytes] = field(default_factory=dict)
    contact: dict[TopicPartition, PartitionStatus] = field(default_factory=dict)
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
        news = await self.watched.poll()
        entries = news.entries
        if news.lost:  # report what the journal says now
            self.newest, self.contact, self.runs = {}, {}, Indexes()
        gone = {entry.key for entry in entries if entry.value is None}
        self.newest = {key: value for key, value in self.newest.items() if key not in gone} | newest(entries)
        self.runs.learn(entries)
        for entry in entries:
            self._learn(entry)
        if unheard := self._unheard().keys() - set(self.journal.cluster.topics):
            await self.journal.cluster.learn(unheard)

    def _learn(self, entry: Entry) -> None:
        if entry.key.startswith(STATE) and entry.value:
            try:
                figures = PartitionStatus.from_json(entry.value)
            except NOT_OURS:
                return  # `status` names it
            if figures.contact is not None and self._is_of_now(figures):
                self.contact[figures.source] = figures

    def status(self, settings: Settings) -> Status:
        """The flow as of now."""
        return status_of(settings.flow, settings.target.alias, self.newest, clock.now_ms())

    @property
    def is_mirrored(self) -> bool:
        """A mirror has the flow, as far as can be known."""
        return self.watched.current() is not None

    async def reaching(self, ends: Mapping[TopicPartition, int], idle_seconds: float) -> list[TopicPartition]:
        """Wait until the mirror that runs is as far as `ends`: the partitions that it is not, where it ended or none of
        them moved for so long. What it mirrors no longer is not waited for. Raises as `read` does.
        """
        moved_at, headway = clock.monotonic(), Headway()
        while True:
            await self.read()
            figures = self.figures
            behind = [
                partition
                for partition, end in ends.items()
                if partition in figures and not _is_over(figures[partition], end)
            ]
            if not behind or not self.is_mirrored:
                return behind
            wanted = {partition: figures[partition] for partition in ends.keys() & figures.keys()}
            capped = {
                partition: replace(status, next_offset=min(status.next_offset, ends[partition]))
                for partition, status in wanted.items()
            }
            if headway.made(capped):  # behind its end a partition may move for ever
                moved_at = clock.monotonic()
            elif clock.monotonic() - moved_at > idle_seconds:
                return behind
            await asyncio.sleep(POLL_SECONDS)

    @property
    def figures(self) -> dict[TopicPartition, PartitionStatus]:
        """The newest report of each source partition, about the copy of now."""
        reported = self._statuses()
        begun = [status for there, topic in self._unheard().items() for status in self._begun(there, topic)]
        begun += [
            self._starting(topic, number, there, offset)
            for topic, there in self._named_rekeyed().items()
            for number, offset in self.reached.get(topic, {}).items()
        ]
        return {status.source: status for status in (*begun, *reported) if self._is_of_now(status)}

    @property
    def rekeyed(self) -> dict[str, str]:
        """The re-keyed source topics of now with their targets, also those on which no query has reported."""
        reported = {
            partition.topic: status.target_topic
            for partition, status in self.figures.items()
            if not self.is_plain(partition.topic)
        }
        return self._named_rekeyed() | reported

    def others(self) -> dict[str, str]:
        """Source topics that the flow's last mirror reported on, by their copies: those that are no copies of now. That
        mirror has another configuration, or had when it ended.
        """
        owner = self.watched.last
        return {
            status.target_topic: status.topic
            for status in self._statuses()
            if owner is not None and status.instance == owner.instance and not self._is_of_now(status)
        }

    def _statuses(self) -> tuple[PartitionStatus, ...]:
        return status_of("", "", self.newest, 0).figures

    def _named_rekeyed(self) -> dict[str, str]:
        """Those that are on record since before their first record was."""
        return {
            seen.source_topic: there
            for there, seen in REKEYED.newest(self.newest).items()
            if self.target_of and self.target_of(seen.source_topic) == there and not self.is_plain(seen.source_topic)
        }

    def _unheard(self) -> dict[str, FirstSeen]:
        """Copies that the flow began and no task has reported on, by name: a mirror may be lost in its first second."""
        reported = {status.target_topic for status in self._statuses()}
        return {
            there: seen
            for there, seen in COPIES.newest(self.newest).items()
            if there not in reported and not seen.deleted_ms and self.target_of and self.is_plain(seen.source_topic)
        }

    def _begun(self, there: str, topic: FirstSeen) -> Iterator[PartitionStatus]:
        """What stands for the reports of a copy's partitions as long as there are none."""
        found = self.journal.cluster.topics.get(there)
        for partition in found.leaders if found is not None else ():
            yield self._starting(topic.source_topic, partition, there, topic.begins(partition))

    def _starting(self, topic: str, partition: int, there: str, offset: int) -> PartitionStatus:
        return PartitionStatus(
            flow=self.journal.flow,
            instance="",
            topic=topic,
            partition=partition,
            target_topic=there,
            state=State.STARTING,
            next_offset=offset,
            log_end=-1,
            lag_records=None,
            at_ms=0,
        )

    def _is_of_now(self, figures: PartitionStatus) -> bool:
        return self.target_of is None or self.target_of(figures.topic) == figures.target_topic


def naming_of(settings: Settings) -> Callable[[str], str | None]:
    """The name of a source topic's copy; None for one that the flow does not mirror."""
    topics = settings.topics

    def target_of(topic: str) -> str | None:
        return topics.naming.target_of(topic) if selects(topic, topics) else None

    return target_of


def _is_over(figures: PartitionStatus, end: int) -> bool:
    if figures.presumed or figures.state is State.PADDING:
        return False
    return figures.next_offset >= end or figures.state.is_stop or figures.state is State.PAUSED
