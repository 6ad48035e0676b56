"""The source's side of one re-keyed topic: where each partition is, where its log ends, and what was counted."""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from mirror import clock
from mirror.driver.flow import Flow
from mirror.driver.reports import last_reported, paused_detail
from mirror.driver.start import padding_at, warn_of_open
from mirror.errors import ClusterUnreachable
from mirror.journal.entries import PendingStart, same_id
from mirror.journal.positions import Standing as CopyStates
from mirror.kafka.cluster import Cluster, TopicPartition
from mirror.kafka.log_reader import ReadLog
from mirror.kafka.queries import EARLIEST, LATEST, READ_COMMITTED, begin_since, epoch_end, listed
from mirror.observability.status import NO_CONTACT, Contact, Histogram, PartitionStatus
from mirror.policy.selection import Rekeying
from mirror.replication.assignment import TOMBSTONES, Loss, log_loss
from mirror.replication.open_transactions import held_note, held_since
from mirror.replication.tombstones import Tombstones, hole_in
from mirror.replication.topic_identity import DELETED, what_became_of
from mirror.spark.rekey.microbatch import RekeyStop
from mirror.spark.rekey.writing import KEPT_WHOLE, RE_KEYED
from mirror.states import Remedy, State

# --- How one source partition of a re-keyed topic stands, and what was counted of it ----------------------------------


@dataclass(slots=True)
class PartStanding:
    """Everything below offset `at` is on the target; `end` is where the source's log ended last for a reader of
    committed records, under leader epoch `epoch`, -1 where that is not known. It was `written` further while a
    transaction is open there, and `end` has not moved `held_since` (monotonic), None where none is. `stop`: why nothing
    behind its offset is re-keyed. `waits_for`: why nobody knows where the log ends now, or what is waited for.
    `has_end`: it was known once. `is_old`: that was before the last micro-batch. `is_padded`: what is at `at` is
    another mirror's padding, None where nobody has looked yet. `tombstones`: whether the copy may lack deletions.
    `contact`: when the source was there last.
    """

    at: int
    end: int = 0
    written: int = -1
    held_since: float | None = None
    epoch: int = -1
    stop: RekeyStop | None = None
    waits_for: str = ""
    has_end: bool = False
    is_old: bool = False
    is_padded: bool | None = None
    tombstones: Tombstones = field(default_factory=lambda: Tombstones(kept_now_ms=None))
    contact: Contact = NO_CONTACT
    records: int = 0
    batches: int = 0
    bytes: int = 0
    lost: int = 0
    lag_ms: int | None = None
    verdicts: Counter[str] = field(default_factory=Counter)
    verdict_bytes: Counter[str] = field(default_factory=Counter)
    latency: Histogram = field(default_factory=Histogram)

    def learn(self, row: Any) -> None:
        """Count what a result says (`writing.RESULT_DDL`)."""
        is_written = row.verdict in (RE_KEYED, KEPT_WHOLE)
        self.verdicts[row.verdict] += row.batches if is_written else row.records
        self.verdict_bytes[row.verdict] += row.bytes
        if is_written:
            self.records += row.records
            self.batches += row.batches
            self.bytes += row.bytes
            self.lag_ms = max(0, row.committed_ms - row.max_timestamp) if row.max_timestamp >= 0 else None
            if self.lag_ms is not None:
                self.latency.add(self.lag_ms / 1000)

    def figures(
        self,
        source: TopicPartition,
        target: str,
        flow: str,
        instance: str,
        *,
        waits_for: str = "",
        is_paused: bool = False,
        values: Mapping[str, object] = MappingProxyType({}),
    ) -> PartitionStatus:
        """The report; `waits_for`: why nothing gets on now; `is_paused`: nobody asks where the source ends; `values`:
        what a stop's advice names. A stop is reported as soon as it is known, though what lies before it may still be
        on its way.
        """
        waits_for = waits_for or self.waits_for
        end, lag, detail, is_held = self.end, max(0, self.end - self.at), waits_for, False
        is_old = self.is_old and not lag  # what came meanwhile is not known
        is_known = self.has_end and not waits_for and not is_paused and not is_old
        if self.stop is not None:
            state, detail = self.stop.state, self.stop.text(values)
        elif is_paused:
            state, detail = State.PAUSED, paused_detail(source.topic)
        elif waits_for:
            state = State.UNAVAILABLE
        elif not self.has_end:
            state = State.STARTING
        else:
            state, is_held = State.MIRRORING if lag or is_old else State.CAUGHT_UP, not lag and self.written > end
        if is_held:  # it is there, and not here
            detail, end = held_note(self.held_since, end), self.written
            lag = end - self.at
        return PartitionStatus(
            flow=flow,
            instance=instance,
            topic=source.topic,
            partition=source.partition,
            target_topic=target,
            state=state,
            detail=detail,
            next_offset=self.at,
            log_end=end if self.has_end else self.contact.end,
            lag_records=lag if is_known and (self.stop is None or self.stop.state is not State.RECREATED) else None,
            lag_ms=None if is_held else self.lag_ms if lag or not is_known else 0,
            records=self.records,
            batches=self.batches,
            bytes=self.bytes,
            lost=self.lost,
            verdicts=self.verdicts,
            verdict_bytes=self.verdict_bytes,
            latency=self.latency,
            at_ms=clock.now_ms(),
            caught_up_ms=self.tombstones.caught_up_ms,
            contact_ms=self.contact.at_ms,
            tombstones_ms=self.tombstones.kept_ms,
        )


# --- The source's side of one re-keyed topic --------------------------------------------------------------------------

#: Between two rounds for new partitions of the source, and for another topic by its name.
REFRESH_SECONDS: Final = 2.0


class RekeySource:
    """The partitions of the topic that `rule` is for, by number in `parts`."""

    def __init__(self, cluster: Cluster, rule: Rekeying, flow: Flow, log: Any) -> None:
        """Nothing is asked yet; `log` gets what a round finds lost."""
        self._cluster, self.rule, self._flow, self._log = cluster, rule, flow, log
        self.parts: dict[int, PartStanding] = {}
        #: Where a bounded copy ends, once it has refreshed.
        self.bounds: dict[int, int] | None = None
        #: The id of the topic that the last plan is about.
        self.topic_id: uuid.UUID | None = None
        self._found_id: uuid.UUID | None = None  # when the last round began
        #: Where a topic without a plan begins; None: with its first records.
        self.start: PendingStart | None = None
        #: Partitions that have nothing but another mirror's padding, and what is said of them.
        self._padded: dict[int, str] = {}
        #: What was passed over and is not on record yet.
        self.losses: list[Loss] = []
        #: The reports of mirrors before, by the journal's keys.
        self.reports: Mapping[bytes, bytes] = {}
        self.has_refreshed = False
        self._refreshed = float("-inf")

    @property
    def known_id(self) -> uuid.UUID | None:
        """The id of the topic that the last plan is about, or else of the one that the last round began with: by now
        the name may be another topic's.
        """
        return self.topic_id or self._found_id

    @property
    def is_recreated(self) -> bool:
        """There is another topic by the name."""
        known = self._cluster.topics.get(self.rule.source)
        return self.topic_id is not None and known is not None and known.topic_id != self.topic_id

    @property
    def numbers(self) -> Collection[int]:
        """The partitions of the topic, as far as the metadata is known."""
        known = self._cluster.topics.get(self.rule.source)
        return known.leaders.keys() if known is not None else ()

    @property
    def is_done(self) -> bool:
        """Of a bounded copy: every partition is where it was to come, or stopped."""
        bounds = self.bounds
        return (
            bounds is not None
            and all(number in self.parts for number in bounds)
            and all(part.stop is not None or part.at >= bounds.get(number, 0) for number, part in self.parts.items())
        )

    @property
    def held_up(self) -> str:
        """Why a partition does not get on: for what it waits; empty where none does."""
        waits = (*self._padded.values(), *(part.waits_for for part in self.parts.values() if part.stop is None))
        return next(filter(None, waits), "")

    def stand_at(self, offsets: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """All before these offsets was re-keyed, and is of no leader epoch after these."""
        for number, offset in offsets.items():
            part = self.parts.setdefault(number, PartStanding(offset))
            part.at, part.epoch = offset, epochs[number]
            part.tombstones.acknowledged(offset)

    def reported(self, number: int) -> PartStanding:
        """A partition of which the plans are not known yet, as it was reported last."""
        before = last_reported(self.reports, TopicPartition(self.rule.target, number))
        return PartStanding(
            before.next_offset,
            end=-1,
            waits_for=self._padded.get(number, ""),
            tombstones=Tombstones(
                kept_now_ms=self.rule.tombstones_ms, kept_ms=before.tombstones_ms, caught_up_ms=before.caught_up_ms
            ),
            contact=before.contact or NO_CONTACT,
        )

    def recall(self, known: CopyStates, target_topic_id: uuid.UUID | None) -> None:
        """What the journal says of the copy of this id: when it had all, and whether the source was once cut back below
        what it has.
        """
        for number, part in self.parts.items():
            copy = TopicPartition(self.rule.target, number)
            if (met := known.stops.get(copy)) is not None and met.concerns(target_topic_id) and stands(met.state):
                part.stop = RekeyStop(met.state, number, met.offset, met.detail)
            part.tombstones = Tombstones(
                kept_now_ms=self.rule.tombstones_ms,
                kept_ms=known.tombstones_ms.get(copy),
                caught_up_ms=known.caught_up.get(copy, 0),
            )
            part.contact = known.contacts.get(copy, part.contact)

    async def miss_tombstones(
        self, number: int, begin: int, until: int, is_on_record: Callable[[TopicPartition], Awaitable[bool]]
    ) -> None:
        """Have it on record where these offsets have a hole that may have held a tombstone, unless `is_on_record`
        of the copy. What cannot be read is not looked at: whoever re-keys it finds that out. Raises as
        `ReadLog.batches` does.
        """
        at, part = self._at(number), self.parts[number]
        if not part.tombstones.may_miss(clock.now_ms()) or await is_on_record(TopicPartition(self.rule.target, number)):
            return
        log = ReadLog(self._cluster, at, until, until)
        async for raw, _ in log.batches(begin):
            if (hole := hole_in([raw], begin)) >= 0:
                self._may_lack(at, hole)
                return
            begin = raw.header.next_offset
        if begin < until and not log.damage:
            self._may_lack(at, begin)

    def _may_lack(self, partition: TopicPartition, hole: int) -> None:
        copy = TopicPartition(self.rule.target, partition.partition)
        loss = Loss(partition, copy, hole, hole, TOMBSTONES, topic_id=self.known_id)
        log_loss(loss)
        self.losses.append(loss)

    def until(self, number: int, most: int) -> int:
        """Behind the last record of a partition that can be re-keyed now, `most` of them."""
        part = self.parts[number]
        if part.waits_for:
            return part.at
        until = min(part.end, part.at + most)
        if self.bounds is not None:
            until = min(until, self.bounds.get(number, 0))
        if part.stop is not None:
            until = min(until, part.stop.offset)
        return max(part.at, until)

    async def refresh(self) -> None:
        """Where the partitions end now, and whether they still begin where they stand, in the log that was re-keyed.

        Raises ClusterError; RekeyStop where the topic is another one, or gone.
        """
        if clock.monotonic() - self._refreshed > REFRESH_SECONDS:
            await self._cluster.refresh([self.rule.source])
            self._refreshed = clock.monotonic()
        if self.parts and not self.numbers and await what_became_of(self._cluster, self.rule.source, None):
            raise RekeyStop(State.RECREATED, -1, -1, DELETED, Remedy.EXCLUDE_REKEYED)
        if self.is_recreated:
            raise recreated(self.rule, "source")
        self._found_id = self._cluster.topic_id(self.rule.source)
        numbers, asked_ms = sorted(self.numbers), clock.now_ms()
        every = [self._at(number) for number in numbers]
        starts = await listed(self._cluster, every, EARLIEST)
        written = await listed(self._cluster, every, LATEST)  # first: what grows meanwhile is no transaction
        ends = await listed(self._cluster, every, LATEST, READ_COMMITTED)
        known = [
            partition
            for partition in every
            if partition in starts and partition in written and partition in ends and self._is_ours(partition.partition)
        ]
        ends_there = {partition.partition: ends[partition] for partition in known}
        is_settling = not self.parts and self.start is not None  # nobody could mend it later
        if (is_settling or (self._flow.once and self.bounds is None)) and (
            not numbers or len(ends_there) < len(numbers)
        ):
            raise ClusterUnreachable(f"{self._cluster}: not every partition of {self.rule.source} has a leader")
        if is_settling:
            for at in known:  # what is the end now is none of the log that this becomes
                if padding := await padding_at(self._cluster, at, starts[at], ends[at]):
                    raise ClusterUnreachable(f"{self._cluster}: {at}: {padding}")
            for at in known:
                self.parts[at.partition] = self._begun(await self._later(at, starts[at], ends[at]), asked_ms)
        for number in self.parts.keys() | set(numbers):
            if number in ends_there:
                at = self._at(number)
                await self._take(number, starts[at], ends[at], written[at], asked_ms)
            elif number in self.parts:
                self.parts[number].waits_for = f"{self._cluster}: no leader says where this partition ends"
        if self._flow.once and self.bounds is None:
            self.bounds = ends_there
            warn_of_open(self._flow.name, {partition: ends[partition] for partition in known}, written)
        self.has_refreshed = len(ends_there) == len(numbers) > 0

    async def check_kept(self, until: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Raises RekeyStop where the log was cut back below what some slots have of a micro-batch that ends there, or
        was so before.
        """
        for number, end in until.items():
            if (stop := self.parts[number].stop) is not None and stands(stop.state):
                raise stop
            if (kept := await self._kept(number, epochs[number])) < end:
                raise cut_back(number, kept, f"a micro-batch that reaches to {end} was begun")

    async def _later(self, partition: TopicPartition, start: int, end: int) -> int:
        """Where a log from `start` to `end` begins to be re-keyed, by the flow's first start; one that came after that,
        with its first record.
        """
        first = self.start
        if first is None or not same_id(first.topic_id, self._found_id):
            return start
        if first.since:
            return min(
                end, (first.since[partition.partition] or start) if partition.partition < len(first.since) else start
            )
        if first.when == LATEST:
            return end
        return min(end, await begin_since(self._cluster, partition, first.when, start, end))

    def _begun(self, at: int, now_ms: int) -> PartStanding:
        """A partition of which nothing was re-keyed: there is no key that could live on."""
        kept_ms = self.rule.tombstones_ms
        return PartStanding(at, tombstones=Tombstones(kept_now_ms=kept_ms, caught_up_ms=now_ms))

    def _is_ours(self, number: int) -> bool:
        """The leader that is known is not an older one than that which was seen."""
        return number not in self.parts or self._epoch(number) >= self.parts[number].epoch

    async def _take(self, number: int, start: int, end: int, written: int, asked_ms: int) -> None:
        """What was reported of a partition that was asked about at this time."""
        at = self._at(number)
        if number not in self.parts:
            if padding := await padding_at(self._cluster, at, start, end):
                self._padded[number] = padding  # it has not begun: where it will, nobody knows yet
                return
            self._padded.pop(number, None)
            self.parts[number] = self._begun(start, asked_ms)
        part = self.parts[number]
        part.held_since = held_since(part.held_since, part.end, end, written)
        part.end, part.written, part.waits_for, part.has_end, part.is_old = end, written, "", True, False
        part.contact = Contact.of(max(end, written), asked_ms, part.lag_ms if end > part.at else 0)
        if part.stop is not None and stands(part.stop.state):
            return  # deleted since or not, what follows is not what was re-keyed; and the epoch stays on record
        if start > part.at and part.is_padded:
            part.at, part.is_padded = start, None  # it begins now, and nothing was lost
        if start > part.at:
            self._lost(number, part, start)
        elif (kept := min(end, await self._kept(number, part.epoch))) < part.at:
            part.stop = cut_back(number, kept, f"records up to offset {part.at - 1} were re-keyed")
            return  # likewise
        if part.is_padded is not False and part.at < end:
            part.waits_for = await padding_at(self._cluster, at, part.at, end)
            part.is_padded = bool(part.waits_for)
        if part.epoch != self._epoch(number) and self.bounds is not None and number in self.bounds:
            self.bounds[number] = min(self.bounds[number], end)  # what was cut off is not to come any more
        part.epoch = self._epoch(number)
        part.tombstones.sees_end(asked_ms, end)
        part.tombstones.acknowledged(part.at)

    def _lost(self, number: int, part: PartStanding, start: int) -> None:
        detail = f"the source deleted offsets {part.at} to {start - 1} before they were re-keyed"
        if not self.rule.continues_on_loss:
            part.stop = RekeyStop(State.RETENTION_GAP, number, part.at, detail)
            return
        self._log.error("records_lost", partition=number, first_offset=part.at, last_offset=start - 1, reason=detail)
        # no target partition is its own: a re-keyed topic's losses are on record by the source's number
        at = self._at(number)
        copy = TopicPartition(self.rule.target, number)
        self.losses.append(Loss(at, copy, part.at, start, topic_id=self.known_id))
        part.lost += start - part.at
        part.at = start
        if part.stop is not None and part.stop.state is State.RETENTION_GAP:
            part.stop = None

    async def _kept(self, number: int, epoch: int) -> int:
        """Up to where the log is what it was under leader epoch `epoch`, as far as is known."""
        if epoch in {-1, self._epoch(number)}:
            return sys.maxsize
        end = (await epoch_end(self._cluster, self._at(number), epoch)).end
        return sys.maxsize if end < 0 else end

    def _epoch(self, number: int) -> int:
        """The leader's epoch now, which no record that was seen is newer than."""
        return self._cluster.leader(self._at(number)).epoch

    def _at(self, number: int) -> TopicPartition:
        return TopicPartition(self.rule.source, number)


def recreated(rule: Rekeying, side: str) -> RekeyStop:
    """The stop where the topic of the source or of the target is another one by the same name."""
    name = rule.source if side == "source" else rule.target
    detail = f"the {side} topic {name} was deleted and made anew"
    return RekeyStop(State.RECREATED, -1, -1, detail, Remedy.KEEP_REKEYED, Remedy.REKEY_ANEW)


def stands(state: State) -> bool:
    """Whether a stop outlasts whatever the logs show later, and the process: growth and expired records hide a source
    that was cut back.
    """
    return state is State.TRUNCATED


def cut_back(number: int, kept: int, but: str) -> RekeyStop:
    """The stop where a source partition has no more than up to an offset of what it had."""
    return RekeyStop(State.TRUNCATED, number, kept, f"the source's log was cut back to offset {kept}, and {but}")
