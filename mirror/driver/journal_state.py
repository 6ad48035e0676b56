"""What a running mirror learns from the flow's journal: figures of its tasks, a younger mirror, a failover, what people
accepted and which topics they paused, as what topics were first seen, and where offsets moved to.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from mirror import clock
from mirror.background import in_background
from mirror.errors import ClusterError, MalformedBatch, PreflightError, WireError
from mirror.journal import ownership
from mirror.journal.entries import COPIES, PAUSES, REKEYED
from mirror.journal.heartbeats import STALE_SECONDS
from mirror.journal.journal import ENDED, OWNER, Entry, Journal, JournalMissing, JournalPlace, LostRecords
from mirror.journal.offset_maps import RUNS, Indexes
from mirror.journal.ownership import Claims, FailedOver, Garbled, Owner, Taken
from mirror.journal.positions import POSITIONS, Standing
from mirror.kafka.cluster import TopicPartition
from mirror.observability import logs
from mirror.observability.logs import LogOnce
from mirror.observability.metrics import Metrics
from mirror.observability.status import KEY as GROUPS
from mirror.observability.status import NOT_OURS, PartitionStatus, TaskStatus
from mirror.observability.status import PREFIX as STATE
from mirror.observability.status import TASK_PREFIX as TASK
from mirror.replication.assignment import Assignment, KnownStop, LastPosition
from mirror.states import State
from mirror.suspension import Clearance, SuspensionDetector

#: How long what a task sent straight stands over what it had written before: as long as a write may take that was under
#: way, and a little more.
HEARD_SECONDS: Final = 15.0
#: The same for a result: what its task wrote is in the journal by then, which is read every second.
RESULT_SECONDS: Final = 3.0
#: Keys of records that are said again anyway, or that are no longer true when they are.
_FLEETING: Final = (OWNER, ENDED, ownership.KEY, STATE, TASK, GROUPS, RUNS.prefix)


class _Heard(NamedTuple):
    """A report that did not come by the journal: its task's time, and until when (our own clock) older ones of the
    journal are passed over.
    """

    at_ms: int
    until: float


@dataclass(slots=True, eq=False)
class JournalState:
    """Of the mirror `instance` of one flow; `taken_over` is called with the name of another one that has it now, and
    `failed_over` when the flow is to be mirrored no more. `metrics` gets every report.

    `owner`: our claim, once the flow was taken; it is said again every few seconds, and where another record than a
    newer claim came after it. Where the journal lost records that were read, all of it is read again, the flow is
    claimed anew unless somebody else did since, and `rewrite` writes again what only we know; `on_lost` is called then.
    `make_journal` makes a topic that is gone, and mends the settings of one that somebody else made. Figures of
    partitions that `is_planned` does not know are passed over.

    `live`: figures by source partition, the newest by the order in which they came; clocks of executors do not decide,
    and none are of a later time than ours. `accepted`: by target partition, what a person accepted of losses.
    `paused`: source topics. `topics`: the records of what topics were first seen as, by their keys, also of those that
    are re-keyed. `runs`: where offsets moved to. `ends`: where the source's logs end by now, of partitions at which no
    task looks. All of it, but for what tasks sent straight, is what the journal had before offset `until`.
    """

    flow: str
    instance: str
    taken_over: Callable[[Owner], None]
    failed_over: Callable[[FailedOver | Garbled], None]
    metrics: Metrics
    on_lost: Callable[[], None] = lambda: None
    make_journal: Callable[[], object] = lambda: None
    is_planned: Callable[[PartitionStatus], bool] = lambda _: True
    owner: Owner | None = None
    place: JournalPlace | None = None
    live: dict[TopicPartition, PartitionStatus] = field(default_factory=dict)
    standing: Standing = field(default_factory=Standing)
    paused: set[str] = field(default_factory=set)
    topics: dict[bytes, bytes] = field(default_factory=dict)
    runs: Indexes = field(default_factory=Indexes)
    ends: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    _detector: SuspensionDetector = field(default_factory=SuspensionDetector)
    _claims: Claims = field(default_factory=Claims)
    _kept: dict[bytes, Entry] = field(default_factory=dict)
    _gone: set[bytes] = field(default_factory=set)
    _ended: str = ""
    _read_after: int = 0  # so many suspensions
    _is_late: bool = False
    _has_lost: bool = False
    _is_over: bool = False
    _restated: float = 0.0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _heard: dict[TopicPartition, _Heard] = field(default_factory=dict)
    _reported: dict[TopicPartition, float] = field(default_factory=dict)  # when anything came of it, by our own clock
    _lasts: dict[TopicPartition, LastPosition] = field(default_factory=dict)
    _garbled: set[int] = field(default_factory=set)
    _blockers: LogOnce = field(default_factory=LogOnce)
    _log: logs.Log = field(default_factory=lambda: logs.get("mirror.supervisor"))

    @property
    def until(self) -> int:
        """The journal's offset up to which all of this is known."""
        return self.place.offset if self.place else 0

    def clearance(self, journal: Journal) -> Clearance:
        """For what this mirror appends to its journal (J2)."""
        return Clearance(self._detector, partial(self.may_go_on, journal))

    async def may_go_on(self, journal: Journal) -> bool:
        """Whether groups may be moved, and the journal written. It is read first where that was so long ago that others
        may have acted since, as in a process that was suspended, which may have lost the flow long ago (Z1).
        """
        self._detector.beat()
        if self._detector.suspensions > self._read_after and not await self.read(journal):
            return False
        return not self._is_late

    async def has_flow(self, journal: Journal) -> bool:
        """Whether the flow is this mirror's, by what the journal says now."""
        return await self.read(journal) and not self._is_over

    async def may_lack(
        self, journal: Journal, target: TopicPartition, topic_id: UUID | None, target_topic_id: UUID | None
    ) -> bool:
        """`Standing.may_lack` by what the journal says now, which somebody may have accepted a moment ago; false where
        it cannot be read.
        """
        return await self.read(journal) and self.standing.may_lack(target, topic_id, target_topic_id)

    @property
    def is_followed(self) -> bool:
        """Whoever took the flow over has ended, too: that has to stay the last word on who did."""
        owner = self._claims.owner
        return owner is not None and owner.instance != self.instance and owner.instance == self._ended

    def begin(self, taken: Taken) -> None:
        """Learn what stood in the journal when the flow was taken."""
        self.owner, self.place, self._claims = taken.owner, taken.seen.place, taken.seen.claims
        self._restated = clock.monotonic()
        claimed = taken.seen.claims.owner
        if claimed is not None and claimed.instance != self.instance:  # while the one before was waited for
            self._end(claimed)
        self.learn(sorted(taken.seen.newest.values(), key=lambda entry: entry.offset))

    async def read(self, journal: Journal) -> bool:
        """Learn what is new in the journal; false where it cannot be read now, with one warning for each kind of reason
        until it can.
        """
        async with self._reading:  # in the journal's order
            self._detector.beat()
            suspensions = self._detector.suspensions
            try:
                news = await journal.follow(self.place)
            except (ClusterError, WireError, MalformedBatch) as problem:
                if self._blockers.is_new(problem):
                    self._log.warning("journal_not_read", flow=self.flow, reason=str(problem))
                if isinstance(problem, JournalMissing) and not self._is_over:
                    await self._make_anew()
                return False
            self._blockers.over()
            self.place = news.place
            if news.lost is not None:
                self._learn_anew(news.entries, news.lost)
                await self._make_anew()  # whoever made it may have made it otherwise
            else:
                self.learn(news.entries)
            self._is_late = self._is_late or (suspensions > self._read_after and self._is_over)
            self._read_after = suspensions
            await self._say_again(journal)
            return True

    async def rewrite(self, journal: Journal) -> None:
        """Write again what only we know of what the journal lost, while no task writes: what was written into it since
        is newer, as what a copy that was made anew meanwhile is known as. Raises as `Journal.append`.
        """
        if not self._has_lost or not await self.read(journal):
            return
        changes = [(key, self._kept[key].value) for key in sorted(self._gone) if key in self._kept]
        runs = self.runs.entries()
        await journal.append_all([*changes, *runs])
        self._gone.clear()
        self._has_lost = False
        self._log.info("journal_rewritten", flow=self.flow, records=len(changes) + len(runs))

    async def _make_anew(self) -> None:
        try:
            await in_background(self.make_journal)
        except (ClusterError, PreflightError) as problem:
            self._log.error("journal_not_made", flow=self.flow, reason=str(problem))

    def _learn_anew(self, entries: Sequence[Entry], lost: LostRecords) -> None:
        """What was read before stands, whether or not it is there still; what came since is new. A log that lost a
        whole leader epoch ends with what that had replaced.
        """
        self._log.error(
            "journal_lost_records",
            flow=self.flow,
            reason=lost.reason,
            first_offset=lost.kept,
            next_offset=lost.read_until,
            advice="what this mirror knows is written again; see to the target's disks and elections",
        )
        self._gone |= {key for key, entry in self._kept.items() if entry.offset >= lost.kept}
        self._has_lost = True
        since = [entry for entry in entries if entry.offset >= lost.new_from]
        self._gone -= {entry.key for entry in since}
        for entry in since if not lost.new_from else ():
            with contextlib.suppress(*NOT_OURS):
                if entry.key == OWNER and entry.value and not self._claims.knows(Owner.from_json(entry.value).instance):
                    self._end(Owner.from_json(entry.value))  # it found an empty journal, so its number says nothing
        self.learn(since)
        if self.owner is not None:  # with another number: somebody may have claimed meanwhile, with what he found
            self.owner = replace(self.owner, claim=self._claims.highest + 1)
            self._restated = 0.0
        self.on_lost()

    async def _say_again(self, journal: Journal) -> None:
        if self.owner is None or self._is_over or clock.monotonic() - self._restated < ownership.RESTATE_SECONDS:
            return
        if await ownership.restate(journal, self.owner):
            self._restated = clock.monotonic()

    def _end(self, owner: Owner) -> None:
        if not self._is_over:
            self._is_over = True
            self.taken_over(owner)

    def hear(self, task: int, report: bytes, held: Collection[TopicPartition]) -> None:
        """Learn a partition's figures from its task, which cannot write them into the journal now. They stand until the
        journal has something newer of it, or for `HEARD_SECONDS`. `held` are the partitions that this task has.
        """
        try:
            figures = PartitionStatus.from_json(report)
            partition = figures.source
            if partition not in held:
                raise ValueError(f"{partition} is not mirrored by this task")
        except NOT_OURS as problem:
            if task not in self._garbled:
                self._garbled.add(task)
                self._log.warning("report_unread", flow=self.flow, task=task, reason=repr(problem))
        else:
            if figures.instance == self.instance:
                self._heard[partition] = _Heard(figures.at_ms, clock.monotonic() + HEARD_SECONDS)
                self._stands(partition, figures)

    def receive(self, figures: PartitionStatus, last: LastPosition | None = None) -> PartitionStatus:
        """Learn a partition's figures from the result of its task, which has ended; the same, dated by our clock.
        `last`: its last acknowledged position, which the journal may lack.
        """
        partition = figures.source
        target = figures.target
        self._lasts.pop(target, None)
        if last is not None:
            self._lasts[target] = last
        self._heard[partition] = _Heard(figures.at_ms, clock.monotonic() + RESULT_SECONDS)
        return self._stands(partition, figures)

    def forget(self, partition: TopicPartition) -> None:
        """Nothing that was reported of a partition is of the copy that it has from now on."""
        for known in (self.live, self._heard, self._reported):
            known.pop(partition, None)

    def handed(self, assignment: Assignment) -> Assignment:
        """An assignment with all that is known of its copy. A stop that does not stand is known by its last report, and
        so is what it waits for.
        """
        assignment, live = self.standing.handed(assignment), self.live.get(assignment.source)
        assignment = replace(assignment, last=_further(assignment.last, self._lasts.get(assignment.target)))
        if assignment.stop is not None or live is None:
            return assignment
        if live.state.is_stop and live.target_topic == assignment.target.topic:
            met = KnownStop(state=live.state, offset=live.next_offset, detail=live.detail, stands=False)
            return replace(assignment, stop=met)
        return replace(assignment, waits_for=live.detail) if live.state is State.UNAVAILABLE else assignment

    def newest(self, results: Mapping[TopicPartition, PartitionStatus]) -> dict[TopicPartition, PartitionStatus]:
        """The newest report of each partition; of a result and a live report of one moment, the result."""
        reports = [*self.live.values(), *results.values()]
        return {status.source: status for status in sorted(reports, key=lambda report: report.at_ms)}

    def with_end(self, figures: PartitionStatus) -> PartitionStatus:
        """The same with the lag of now, where no task sees the source's end."""
        partition = figures.source
        if figures.sees_the_end:
            if self.is_fresh(partition):
                return figures
            figures = replace(figures, lag_ms=None)
        return figures.with_end(*self.ends.get(partition, (None,)))

    def is_fresh(self, partition: TopicPartition) -> bool:
        """Whether a task, or the driver, reported a partition in the last `STALE_SECONDS`: else none may look at it."""
        return clock.monotonic() - self._reported.get(partition, -math.inf) <= STALE_SECONDS

    @property
    def blind(self) -> list[TopicPartition]:
        """The partitions of which no task sees where the source's log ends."""
        return [
            partition
            for partition, status in self.live.items()
            if not (status.sees_the_end and self.is_fresh(partition))
        ]

    def know_ends(self, ends: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Take in where the source's logs end and begin, of those that answered; of the others nobody knows it."""
        self.ends = ends
        changed = {partition: self.with_end(self.live[partition]) for partition in self.blind}
        self.live |= changed
        self.metrics.learn(changed.values())

    def _stands(self, partition: TopicPartition, figures: PartitionStatus) -> PartitionStatus:
        """A report is dated no later than now, and no earlier than the one before it, which came before."""
        self._reported[partition] = clock.monotonic()
        before = self.live[partition].at_ms if partition in self.live else -1
        figures = _by_our_clock(self.with_end(figures))
        if figures.at_ms <= before:
            figures = replace(figures, at_ms=max(before, clock.now_ms()))
        self.live[partition] = figures
        self.metrics.learn((figures,))
        return figures

    def _is_older(self, partition: TopicPartition, figures: PartitionStatus) -> bool:
        """Whether a task sent this straight, or in its result, after it had written what the journal has here."""
        heard = self._heard.get(partition)
        if heard is not None and figures.at_ms < heard.at_ms and clock.monotonic() < heard.until:
            return True
        self._heard.pop(partition, None)
        return False

    def learn(self, entries: Sequence[Entry]) -> None:
        """Learn from records, in the journal's order."""
        for entry in entries:
            self._learn(entry)
        self.runs.learn(entries)

    def _learn(self, entry: Entry) -> None:
        try:
            if not entry.key.startswith(_FLEETING):
                self._kept[entry.key] = entry
                self._gone.discard(entry.key)
            if entry.key == OWNER and entry.value:
                owner = Owner.from_json(entry.value)
                if owner.instance != self.instance:
                    if self._claims.learn(owner):
                        self._end(owner)
                    else:  # a repetition, which must not be what the journal says in the end
                        self._restated = 0.0
                else:
                    self._claims.learn(owner)
            elif entry.key == ENDED and entry.value:
                self._ended = ownership.Reporter.from_json(entry.value).instance
            elif entry.key == ownership.KEY and entry.value is not None:
                self._is_over = True
                self.failed_over(FailedOver.read_or_garbled(entry.value))
            elif entry.key.startswith(STATE) and entry.value is None:  # mirrored no longer
                for at in [partition for partition, figures in self.live.items() if figures.key() == entry.key]:
                    del self.live[at]
                self.metrics.keep(self.live)
            elif entry.key.startswith(STATE) and entry.value:
                figures = PartitionStatus.from_json(entry.value)
                at = figures.source
                is_ours = figures.instance == self.instance and self.is_planned(figures)
                self.standing.learn_report(_by_our_clock(figures) if is_ours else figures)
                if is_ours and not self._is_older(at, figures):
                    self._stands(at, figures)
            elif entry.key.startswith(TASK) and entry.value:
                task = TaskStatus.from_json(entry.value)
                if task.instance == self.instance:
                    self.metrics.learn_task(task)
            elif entry.key.startswith((COPIES.prefix, REKEYED.prefix)):
                if entry.value is None:  # taken back: another flow has it
                    self.topics.pop(entry.key, None)
                else:
                    self.topics[entry.key] = entry.value
            elif (paused := PAUSES.name(entry.key)) is not None:
                (self.paused.discard if entry.value is None else self.paused.add)(paused)
            else:
                self.standing.learn(entry)
                if entry.value is None and (forgotten := POSITIONS.read(entry)) is not None:
                    self._lasts.pop(forgotten[0], None)
        except NOT_OURS as problem:
            key = entry.key.decode(errors="replace")
            self._log.warning("journal_record_unread", key=key, reason=repr(problem))


def _by_our_clock(figures: PartitionStatus) -> PartitionStatus:
    """A report that has just come: a clock that dates it later is ahead, and was when it saw the source."""
    if (ahead := figures.at_ms - (now := clock.now_ms())) <= 0:
        return figures
    caught_up_ms, contact_ms = (max(0, at_ms - ahead) for at_ms in (figures.caught_up_ms, figures.contact_ms))
    return replace(figures, at_ms=now, caught_up_ms=caught_up_ms, contact_ms=contact_ms)


def _further(written: LastPosition | None, ended: LastPosition | None) -> LastPosition | None:
    """What was acknowledged last, by the journal, which may have been away since, and by the task that ended last. What
    a person accepted stands.
    """
    if written is None or ended is None:
        return written or ended
    is_same = written.is_of(ended.source_topic_id, ended.target_topic_id)
    return ended if is_same and not written.was_accepted and ended.target_end > written.target_end else written
