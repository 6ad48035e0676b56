"""What is known of a flow from its journal on the target: whether its mirror runs, and where every partition stands."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final
from uuid import UUID

from mirror import clock
from mirror.config import Settings
from mirror.errors import ClusterError, WireError
from mirror.journal import ownership
from mirror.journal.entries import COPIES, REKEYED, FirstSeen, Unfollowed, same_id, unfollowed_in
from mirror.journal.journal import ENDED, OWNER, Entry, Journal, JournalPlace, journal_topic
from mirror.journal.ownership import FailedOver, Owner, Reporter
from mirror.journal.positions import standing_in
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.queries import ends_and_starts
from mirror.observability.status import KEY as GROUPS
from mirror.observability.status import NOT_OURS, GroupFigures, PartitionStatus
from mirror.observability.status import PREFIX as STATE
from mirror.replication.assignment import KnownStop
from mirror.states import State

#: A running mirror reports every partition at least every ten seconds.
STALE_MS: Final = 15_000
#: For so long a report of a mirror elsewhere is waited for, where it seems to be silent, or ahead, by its clock.
LISTEN_SECONDS: Final = 12.0
#: What clocks of two machines may differ by before status says so.
_SKEW_MS: Final = 5_000
#: How long the source may take to say where it ends, and how often it is asked.
ASK_SECONDS: Final = 2.0
ASK_PAUSE: Final = 3.0
_LISTEN_PAUSE: Final = 0.5
#: Of such a state older mirrors reported the lag as it was when they last saw the source.
_FROZEN: Final = frozenset({State.UNAVAILABLE, State.RECREATED})


class Pulse(StrEnum):
    """What is known of the mirror itself."""

    NEVER_RAN = "never ran"
    RUNNING = "running"
    SILENT = "silent"
    ENDED = "not running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A flow as its journal has it at `now_ms`.

    `ended` is the instance that last ended in good order, `failed_over` when the flow was ended for good; `unread` says
    which records could not be understood. `source_id` and `target_id` are the clusters', empty where not known.
    `skew_ms`: how far the owner's clock is behind ours, below 0 where it is ahead; 0 where it is not known to be.
    `heard_ms`: when anything arrived of the owner, by our clock; 0 while nothing has. `is_unheard`: nothing did while
    it was listened for. `unfollowed`: settings of copies that do not follow their sources'.
    """

    flow: str
    cluster: str
    now_ms: int
    owner: Owner | None = None
    ended: str = ""
    figures: tuple[PartitionStatus, ...] = ()
    groups: GroupFigures | None = None
    failed_over: FailedOver | None = None
    unread: tuple[str, ...] = ()
    source_id: str = ""
    target_id: str = ""
    skew_ms: int = 0
    heard_ms: int = 0
    is_unheard: bool = False
    unfollowed: tuple[Unfollowed, ...] = ()

    def age_of(self, at_ms: int) -> int:
        """How many ms ago a time of the owner's clock was, at least 0."""
        return max(0, self.now_ms - at_ms - self.skew_ms)

    @property
    def seen_ms(self) -> int:
        """When the owner was last heard of; 0 for never."""
        if self.owner is None:
            return max((status.at_ms for status in self.figures), default=0)
        mine = (status.at_ms for status in self.figures if status.instance == self.owner.instance)
        return max(self.owner.at_ms, *mine, 0)

    @property
    def age_ms(self) -> int:
        """How long ago that was, or anything arrived; 0 where its clock is ahead of ours, and that is not known."""
        by_its_clock = self.age_of(self.seen_ms)
        return min(by_its_clock, max(0, self.now_ms - self.heard_ms)) if self.heard_ms else by_its_clock

    @property
    def is_clock_in_doubt(self) -> bool:
        """Only what arrives shows whether the mirror runs: it is elsewhere, and silent or ahead by its clock."""
        if self.owner is None or self.owner.is_here or self.ended == self.owner.instance:
            return False
        return self.age_of(self.seen_ms) > STALE_MS or self.seen_ms > self.now_ms + _SKEW_MS

    @property
    def pulse(self) -> Pulse:
        """Whether the mirror runs, as far as can be known."""
        if self.owner is None:
            return Pulse.ENDED if self.figures else Pulse.NEVER_RAN
        if self.ended == self.owner.instance or (self.owner.is_here and not self.owner.lives):
            return Pulse.ENDED
        if self.age_ms <= STALE_MS and not self.is_unheard:
            return Pulse.RUNNING
        return Pulse.SILENT if self.owner.lives else Pulse.ENDED

    def is_stale(self, figures: PartitionStatus) -> bool:
        """What these figures say may be true no longer."""
        return self.pulse is not Pulse.RUNNING or self.age_of(figures.at_ms) > STALE_MS


@dataclass(slots=True)
class Follower:
    """Reads a flow's journal, whole the first time and then only what is new; asks `source`, if it is given, where
    those partitions end whose lag the journal does not have.
    """

    settings: Settings
    target: Cluster
    source: Cluster | None = None
    _ends: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    _asked: float = -math.inf
    _place: JournalPlace | None = None
    _newest: dict[bytes, bytes | None] = field(default_factory=dict)
    _skew_ms: int | None = None
    _heard_ms: int = 0

    async def listen(self) -> Status:
        """The flow as of now; where clocks leave in doubt whether its mirror runs, once a report arrived of it, or none
        did for `LISTEN_SECONDS`. Raises as `poll`.
        """
        found, deadline = await self.poll(), clock.monotonic() + LISTEN_SECONDS
        while found.is_clock_in_doubt and self._skew_ms is None:
            if clock.monotonic() > deadline:
                return replace(found, is_unheard=not found.heard_ms)
            await asyncio.sleep(_LISTEN_PAUSE)
            found = await self.poll()
        return found

    async def poll(self) -> Status:
        """The flow as of now. Raises JournalMissing, ClusterUnreachable, AccessDenied, BrokerError, MalformedBatch."""
        flow = self.settings.flow
        topic = journal_topic(flow)
        if topic not in self.target.topics:
            await self.target.refresh({topic})
        if topic in self.target.topics:
            news = await Journal(self.target, flow).follow(self._place)
            is_new, self._place = self._place is not None and not news.lost, news.place
            if news.lost:  # show what the journal says now (J1)
                self._newest, self._skew_ms, self._heard_ms = {}, None, 0
            self._newest |= {entry.key: entry.value for entry in news.entries}
            if is_new:
                self._hear(news.entries)
        now, ids = clock.now_ms(), self.target.cluster_id or ""
        found = status_of(flow, self.settings.target.alias, self._kept, now, ids, self._skew_ms or 0, self._heard_ms)
        return await self._with_lag(found)

    @property
    def _kept(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self._newest.items() if value is not None}

    def _hear(self, arrived: Iterable[Entry]) -> None:
        """What just arrived of the owner was written a moment ago, whatever its clock says. It says again that it has
        the flow also while no task reports, with the time of its claim.
        """
        with contextlib.suppress(*NOT_OURS):
            owner, now = Owner.from_json(self._newest.get(OWNER) or b""), clock.now_ms()
            mine = [entry for entry in arrived if ownership.reporter(entry.value) == owner.instance]
            self._heard_ms = now if mine else self._heard_ms
            reports = (PartitionStatus.from_json(entry.value or b"") for entry in mine if entry.key.startswith(STATE))
            if times := [report.at_ms for report in reports]:
                behind = now - max(times)
                self._skew_ms = behind if abs(behind) > _SKEW_MS else 0

    async def _with_lag(self, found: Status) -> Status:
        """The same with the lag by the source's own answer, where no fresh report has it."""
        blind = [status for status in found.figures if found.is_stale(status) or not status.sees_the_end]
        if self.source is None or not blind:
            return found
        if clock.monotonic() - self._asked > ASK_PAUSE:
            places = {status.source for status in blind}
            seen = REKEYED.newest(self._kept) | COPIES.newest(self._kept)
            ids = {status.topic: seen[status.target_topic].topic_id for status in blind if status.target_topic in seen}
            self._ends = await self._ask(self.source, places, found.source_id, ids)
            self._asked = clock.monotonic()
        ends = self._ends
        known = {status.key(): ends[status.source] for status in blind if status.source in ends}
        return replace(
            found,
            figures=tuple(
                status.with_end(*known[status.key()]) if status.key() in known else status for status in found.figures
            ),
        )

    @staticmethod
    async def _ask(
        source: Cluster, partitions: Collection[TopicPartition], source_id: str, ids: Mapping[str, UUID | None]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Nothing where the source cannot be asked in time, or is another cluster than the one with this id; nor of
        topics that have other ids than these.
        """
        with contextlib.suppress(ClusterError, WireError, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                ends = await ends_and_starts(source, partitions)
            if same_id(source.cluster_id, source_id or None):
                is_same = {
                    partition.topic: same_id(ids.get(partition.topic), source.topic_id(partition.topic))
                    for partition in ends
                }
                return {partition: end for partition, end in ends.items() if is_same[partition.topic]}
        return {}


def status_of(
    flow: str,
    cluster: str,
    journal: Mapping[bytes, bytes],
    now_ms: int,
    target_id: str = "",
    skew_ms: int = 0,
    heard_ms: int = 0,
) -> Status:
    """What the newest entries of a journal say."""
    source_id, stops = "", standing_in(journal).stops
    owner, ended, figures, groups, unread, over = None, "", [], None, [], None
    for key, value in journal.items():
        try:
            if key == OWNER:
                owner = Owner.from_json(value)
            elif key == ENDED:
                ended = Reporter.from_json(value).instance
            elif key.startswith(STATE):
                figures.append(PartitionStatus.from_json(value))
            elif key == GROUPS:
                groups = GroupFigures.from_json(value)
            elif key == ownership.KEY:
                over = FailedOver.from_json(value)
            elif key.startswith((COPIES.prefix, REKEYED.prefix)):
                with contextlib.suppress(*NOT_OURS):  # what is none of ours, `run` reports
                    source_id = FirstSeen.from_json(value).cluster_id or source_id
        except NOT_OURS as problem:
            unread.append(f"{key.decode(errors='replace')}: {problem!r}")
    figures = [_stopped(one, stops.get(one.target)) for one in figures]
    figures.sort(key=lambda one: (one.target_topic, one.partition))
    status = Status(
        flow=flow,
        cluster=cluster,
        now_ms=now_ms,
        owner=owner,
        ended=ended,
        figures=tuple(figures),
        groups=groups,
        failed_over=over,
        unread=tuple(unread),
        source_id=source_id,
        target_id=target_id,
        skew_ms=skew_ms,
        heard_ms=heard_ms,
        unfollowed=tuple(unfollowed for _, every in sorted(unfollowed_in(journal).items()) for unfollowed in every),
    )
    now_unknown = {one.key() for one in figures if status.is_stale(one) or one.state in _FROZEN}
    return replace(
        status, figures=tuple(one.with_end(None) if one.key() in now_unknown else one for one in status.figures)
    )


def _stopped(status: PartitionStatus, stop: KnownStop | None) -> PartitionStatus:
    """A report that does not name a stop that stands was written without knowing of it."""
    if stop is None or status.state.is_stop:
        return status
    return replace(status, state=stop.state, detail=stop.text, lag_records=None)


def is_latency_known(figures: PartitionStatus) -> bool:
    """Whether the latency is one of now: of a partition that stopped it is that of its last batch."""
    return figures.lag_records is not None and not figures.state.is_stop
