"""What the driver reports: partition states, log events for their changes, and how a copy ended.

MIRRORING and CAUGHT_UP change places with every record, and a partition is STARTING in every epoch: of those three
only what ends another state is logged.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from mirror import clock
from mirror.driver.reconciler import Refusal
from mirror.journal.journal import Journal
from mirror.kafka.cluster import TopicPartition
from mirror.observability import logs
from mirror.observability.status import NOT_OURS, PartitionStatus, Totals
from mirror.observability.status import PREFIX as STATE
from mirror.replication.assignment import STANDING, Assignment, KnownStop
from mirror.states import Remedy, State

# --- What is said of a copy at its end --------------------------------------------------------------------------------


class Headway:
    """Keeps how far each partition has ever come, and where those stood that were under way."""

    def __init__(self) -> None:
        """Nowhere yet."""
        self._reached: dict[TopicPartition, int] = {}
        self._stood: dict[TopicPartition, int] = {}

    def made(self, reported: Mapping[TopicPartition, PartitionStatus]) -> bool:
        """Whether any partition got further than ever before."""
        observed = {partition: status for partition, status in reported.items() if not status.presumed}
        further = {
            partition: status.next_offset
            for partition, status in observed.items()
            if status.next_offset > self._reached.get(partition, 0)
        }
        self._reached |= further
        return bool(further)

    def stands_still(self, reported: Mapping[TopicPartition, PartitionStatus]) -> bool:
        """Return True if a partition that is under way stands where it stood when that was asked last."""
        before = self._stood
        self._stood = {partition: status.next_offset for partition, status in reported.items() if is_under_way(status)}
        return any(before.get(partition) == offset for partition, offset in self._stood.items())


def is_over(figures: PartitionStatus, until: int) -> bool:
    """Nothing is left to do for a partition of a bounded copy, but for a person. Padding reaches as far as the source
    does where that is empty, and is deleted last.
    """
    if figures.presumed or figures.state is State.PADDING:
        return False
    return figures.next_offset >= until or (figures.is_stopped and figures.state is not State.FENCED)


def left_of(assignments: Iterable[Assignment], reported: Mapping[TopicPartition, PartitionStatus]) -> list[Assignment]:
    """Those of a bounded copy of which something is left to do."""
    return [
        assignment
        for assignment in assignments
        if assignment.source not in reported or not is_over(reported[assignment.source], assignment.until or 0)
    ]


def has_caught_up(figures: PartitionStatus) -> bool:
    """Nothing is to be copied now, or not by the mirror's own doing."""
    return figures.state in (State.CAUGHT_UP, State.PAUSED) or figures.is_stopped


def paused_of(reported: Iterable[PartitionStatus]) -> Iterator[str]:
    """The partitions that are not caught up since a person paused them, unless they are known to lack nothing."""
    for status in reported:
        if status.state is State.PAUSED and status.lag_records != 0:
            yield f"{status.topic}-{status.partition}: {status.state} at offset {status.next_offset}, {status.detail}"


def is_under_way(figures: PartitionStatus) -> bool:
    """There is something to copy, as far as is known, and nothing that is reported hinders it."""
    if figures.state is State.STARTING:
        return True
    return figures.state is State.MIRRORING and figures.next_offset < figures.log_end


def unfinished_of(left: Iterable[Assignment], reported: Mapping[TopicPartition, PartitionStatus]) -> Iterator[str]:
    """What was not copied of each partition that is left."""
    for assignment in left:
        figures = reported.get(assignment.source)
        why = f"{figures.state} at offset {figures.next_offset}" if figures else "not begun"
        detail = f", {figures.detail}" if figures and figures.detail else ""
        yield f"{assignment.source} up to offset {assignment.until}: {why}{detail}"


# --- One log event for each change of a partition's state that somebody may want to know of ---------------------------

_log = logs.get("mirror.supervisor")
_PASSING: Final = frozenset({State.PADDING, State.PAUSED, State.UNAVAILABLE})


class StopLog:
    """Give it figures as they come, by whatever way; older ones than those known are passed over. A stop that every
    epoch meets again is logged once, and again where it is another state or another offset; so is a wait. The offset of
    RECREATED is the copy's end, which says nothing of the source: it is 0 once somebody deletes the copy, as advised.
    An offset of -1 is not known: an epoch met the stop before it knew where the copy stands.
    """

    def __init__(self) -> None:
        self._reported: dict[TopicPartition, tuple[State, int]] = {}
        self._passing: dict[TopicPartition, State] = {}
        self._seen: dict[TopicPartition, int] = {}

    def log(self, figures: Iterable[PartitionStatus]) -> None:
        """Log what is new in them."""
        for status in figures:
            at, now = status.source, (status.state, status.next_offset)
            if status.at_ms < self._seen.get(at, 0):
                continue
            self._seen[at] = status.at_ms
            before = self._reported.get(at)
            self._log_passing(at, status)
            says_offset = status.next_offset >= 0 and status.state is not State.RECREATED
            is_known = before is not None and status.state is before[0] and (now == before or not says_offset)
            if status.state.is_stop and not is_known:
                self._reported[at] = now
                _log_state(_log.error, "partition_stopped", status)
            elif before and (
                status.state is State.CAUGHT_UP or (not status.state.is_stop and status.next_offset > before[1])
            ):
                del self._reported[at]
                _log_ended(status, after=before[0])

    def _log_passing(self, partition: TopicPartition, status: PartitionStatus) -> None:
        before = self._passing.get(partition)
        if status.state in _PASSING and status.state is not before:
            self._passing[partition] = status.state
            _log_state(_log.warning if status.state is State.UNAVAILABLE else _log.info, "partition_state", status)
        elif before and (status.state.is_well or status.state.is_stop):
            del self._passing[partition]
            if status.state.is_well:
                _log_ended(status, after=before)


def _log_state(log: Callable[..., None], event: str, status: PartitionStatus) -> None:
    place = {"topic": status.topic, "partition": status.partition, "offset": status.next_offset}
    log(event, state=str(status.state), **place, detail=status.detail)


def _log_ended(status: PartitionStatus, after: State) -> None:
    """The end of a state that was logged."""
    place = {"topic": status.topic, "partition": status.partition, "offset": status.next_offset}
    _log.info("partition_resumed", **place, after=str(after))


# --- What the driver itself reports -----------------------------------------------------------------------------------


def paused_detail(topic: str) -> str:
    """What is said of the partitions of a paused source topic."""
    return f"paused; {Remedy.RESUME.text({'topic': topic})}"


def paused_report(assignment: Assignment, before: PartitionStatus | None, flow: str, instance: str) -> PartitionStatus:
    """The report of a paused partition, from its last one; a stop remains one, since a pause mends nothing, also one
    that `assignment` alone knows of. Where the source's log ends by now is not known, and so is the lag: the driver
    asks for it.
    """
    now, stop = clock.now_ms(), assignment.stop
    if before is not None and before.target_topic != assignment.target.topic:
        before = None  # of a copy under another name
    if before is not None:
        before = replace(before, caught_up_ms=max(before.caught_up_ms, assignment.caught_up_ms))
    if before is not None and before.state.is_stop:
        return replace(before, lag_records=None, at_ms=now, instance=instance, presumed=False)
    if stop is not None and not stop.concerns(assignment.target_topic_id) and (stop.stands or before is not None):
        stop = None
    state, detail = (
        (stop.state, stop.text) if stop is not None else (State.PAUSED, paused_detail(assignment.source.topic))
    )
    if before is not None:
        known = replace(before, lag_records=None, lag_ms=None)
        return replace(known, state=state, detail=detail, at_ms=now, instance=instance)
    return replace(
        unreported(assignment, flow, instance), state=state, detail=detail, next_offset=stop.offset if stop else -1
    )


def unreported(assignment: Assignment, flow: str, instance: str) -> PartitionStatus:
    """What is known of a partition that no task has reported yet."""
    return PartitionStatus(
        flow=flow,
        instance=instance,
        topic=assignment.source.topic,
        partition=assignment.source.partition,
        target_topic=assignment.target.topic,
        state=State.STARTING,
        next_offset=-1,
        log_end=assignment.contact.end,
        contact_ms=assignment.contact.at_ms,
        lag_records=None,
        at_ms=clock.now_ms(),
        caught_up_ms=assignment.caught_up_ms,
        tombstones_ms=assignment.tombstones_ms,
    )


def stopped_before(assignment: Assignment, known: Mapping[bytes, bytes]) -> Assignment:
    """The same, with the stop that its last report in the journal has, of which `known` are the newest records, unless
    it has one: one that stands would be there by itself, if nobody had lifted it.
    """
    before = last_reported(known, assignment.target)
    is_it = before.topic == assignment.source.topic and before.state.is_stop and before.state not in STANDING
    if assignment.stop is not None or not is_it:
        return assignment
    stop = KnownStop(state=before.state, offset=before.next_offset, detail=before.detail, stands=False)
    return replace(assignment, stop=stop)


def last_reported(known: Mapping[bytes, bytes], partition: TopicPartition) -> PartitionStatus:
    """Return the last report of a target partition, by the newest records of a journal; one that names no source topic
    where there is none.
    """
    with contextlib.suppress(*NOT_OURS):
        return PartitionStatus.from_json(known.get(PartitionStatus.key_of(*partition), b""))
    return PartitionStatus(
        flow="",
        instance="",
        topic="",
        partition=partition.partition,
        target_topic=partition.topic,
        state=State.STARTING,
        next_offset=-1,
        log_end=-1,
        lag_records=None,
        at_ms=0,
    )


def left_out(refusal: Refusal, known: Mapping[bytes, bytes], flow: str, instance: str) -> list[PartitionStatus]:
    """Return the reports of a topic that is not mirrored, since preflight refuses it or it could not be made: one for
    each of its partitions that had not begun, from the last one in the journal, of which `known` are the newest
    records.
    """
    last = (
        last_reported(known, copy).carried(instance, State.REFUSED, f"not mirrored: {refusal.reason}")
        for copy in refusal.places
    )
    return [replace(report, flow=flow, topic=refusal.source) for report in last]


def with_places(refused: Iterable[Refusal], left: Iterable[PartitionStatus]) -> tuple[Refusal, ...]:
    """The same refusals; those of topics that no plan sees, with the copy and as many partitions as `left` reports of:
    the last reports of topics that nobody mirrors.
    """
    many, copies = Counter[str](), dict[str, str]()
    for status in left:
        many[status.topic], copies[status.topic] = max(many[status.topic], status.partition + 1), status.target_topic
    return tuple(
        replace(refusal, target=copies[refusal.source], partitions=many[refusal.source])
        if not refusal.partitions and refusal.source in copies
        else refusal
        for refusal in refused
    )


def reports_in(known: Mapping[bytes, bytes]) -> Iterator[PartitionStatus]:
    """The reports among the newest records of a journal; those that are none of ours are passed over."""
    for key, value in known.items():
        if key.startswith(STATE):
            with contextlib.suppress(*NOT_OURS):
                figures = PartitionStatus.from_json(value)
                if figures.key() == key:
                    yield figures


async def forget(journal: Journal, gone: Iterable[Assignment]) -> None:
    """Delete the last reports of partitions that are mirrored no longer. Raises as `Journal.append` does."""
    await journal.append_all((PartitionStatus.key_of(*assignment.target), None) for assignment in gone)


def log_epoch(flow: str, number: int, seconds: float, figures: Collection[PartitionStatus]) -> None:
    """An epoch's one line: where the flow stands now; counts are since this mirror began."""
    totals = Totals.of(figures)
    logs.get("mirror.supervisor").info(
        "epoch_ended",
        flow=flow,
        epoch=number,
        seconds=round(seconds, 1),
        **totals.counts,
        states={str(state): many for state, many in sorted(totals.states.items())},
        latency_ms=totals.lag_ms,
        filled=totals.filled,
        lost=totals.lost,
    )
