"""How copies stand, as the journal keeps it, and how a task reports stops that it knows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from rawbatches import batch, raw
from waiting import MovableClock

from mirror.driver.reports import paused_report
from mirror.errors import PartitionStop
from mirror.journal.entries import loss_entry
from mirror.journal.journal import Entry
from mirror.journal.positions import POSITIONS, STOPS, Standing, standing_in
from mirror.journal.snapshot import status_of
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import Contact, PartitionStatus
from mirror.policy.rules import Rules
from mirror.records.header import CONTROL, DELETE_HORIZON, TRANSACTIONAL, ProducerState, RawBatch
from mirror.replication import observe
from mirror.replication.assignment import Assignment, KnownStop, LastBatch, LastPosition, Loss
from mirror.replication.cursor import Cursor, SourceLog
from mirror.replication.decide import EQUAL_OFFSETS, Position, Unconfirmed, decide, is_unaligned
from mirror.replication.observe import FENCE, Comparison, Observation, Question, producer_id
from mirror.replication.offset_map import OffsetMap, OffsetRanges
from mirror.replication.partition_task import NOTED_SECONDS, Event, PartitionTask, Phase
from mirror.replication.partition_writer import Gap, PartitionCounters, PartitionWriter
from mirror.states import State

AT = TopicPartition("orders.eu/1", 12)
OURS, OTHER = UUID(int=1), UUID(int=2)

STOP = KnownStop(state=State.DIVERGED, offset=3, detail="somebody wrote", advice="Begin anew", target_topic_id=OURS)
BATCH = LastBatch(
    base=1, next_offset=2, source_base=3, crc=None, source_crc=4, count=5, base_timestamp=-1, max_timestamp=6
)
FIRST, FULL = (
    LastPosition(source_next=1, target_end=1),
    LastPosition(
        source_next=20,
        target_end=21,
        source_epoch=4,
        epoch_until=20,
        target_epoch=5,
        source_topic_id=OURS,
        target_topic_id=OTHER,
        stamp=(1, 2, 3),
        batch=BATCH,
        was_accepted=True,
    ),
)


def test_positions_and_stops_are_read_back() -> None:
    for last in (FIRST, FULL):
        assert POSITIONS.read(Entry(0, *POSITIONS.entry(AT, last))) == (AT, last)
    for stop in (STOP, replace(STOP, offset=-1, detail='z\u00fc "\n', target_topic_id=None)):
        assert STOPS.read(Entry(0, *STOPS.entry(AT, stop))) == (AT, stop)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"position/orders/x", b"{}"),
        (b"position/orders/0", b"[]"),
        (b"position/orders/0", b'{"source_next": -1, "target_end": 1}'),
        (b"position/orders/0", b'{"source_next": 1, "target_end": 1, "stamp": [1]}'),
        (b"position/orders/0", b'{"source_next": 1, "target_end": 1, "batch": 7}'),
        (b"position/\xff/0", b'{"source_next": 1, "target_end": 1}'),
        (b"stop/orders/0", b'{"state": "MIRRORING"}'),
        (b"stop/orders/0", b'{"state": "LOST"}'),
        (b"stop/orders/0", b"[" * 100_000),
    ],
)
def test_records_that_somebody_else_wrote_are_passed_over(key: bytes, value: bytes) -> None:
    found = standing_in({key: value})
    assert (found.positions, found.stops) == ({}, {})


def test_what_is_reported_last_counts() -> None:
    known = Standing()
    assert known.learn(Entry(0, *STOPS.entry(AT, STOP)))
    assert known.handed(Assignment(AT, AT, None, Rules())).stop == STOP
    assert known.learn(Entry(1, *STOPS.tombstone(AT)))
    assert known.handed(Assignment(AT, AT, None, Rules())).stop is None
    assert not known.learn(Entry(2, b"owner", b"{}"))


def test_a_part_of_a_journal_takes_nothing_from_what_the_rest_of_it_says() -> None:
    """Where Spark tries a task again, it reads what was written since the task was made alone."""
    full = Assignment(
        source=AT,
        target=TopicPartition("copy", 12),
        topic_id=OURS,
        rules=Rules(tombstones_ms=9),
        accepted=(1, 2),
        since=3,
        last=FULL,
        stop=STOP,
        losses=((4, 5),),
        target_topic_id=OTHER,
        caught_up_ms=8,
        contact=Contact(30, 7),
        may_lack=True,
    )
    known, copy = Standing(), full.target
    assert known.updated(full) == full
    report = replace(paused_report(full, None, "flow", "mine"), caught_up_ms=80, log_end=40, contact_ms=70)
    last, stop = replace(FULL, source_next=21), replace(STOP, offset=4)
    for entry in (
        (report.key(), report.to_json()),
        POSITIONS.entry(copy, last),
        STOPS.entry(copy, stop),
        loss_entry(Loss(AT, copy, 8, 9, topic_id=OURS, target_topic_id=OTHER)),
    ):
        assert known.learn(Entry(0, *entry))
    since = replace(full, last=last, stop=stop, losses=((4, 5), (8, 9)))
    assert known.updated(full) == replace(since, caught_up_ms=80, contact=Contact(40, 70))


def partition_task(stop: KnownStop | None, **rules: Any) -> PartitionTask:
    return PartitionTask(Assignment(AT, AT, OURS, Rules(**rules), stop=stop))


def reported(one: PartitionTask) -> PartitionStatus:
    return one.figures("flow", "instance", 0, PartitionCounters())


def standing_of(one: PartitionTask) -> tuple[State, str, int]:
    figures = reported(one)
    return figures.state, figures.detail, figures.next_offset


@pytest.mark.parametrize(
    ("events", "phase", "rests"),
    [
        ([Event.BEGUN], Phase.COPYING, False),
        ([Event.BEGUN, Event.QUIET], Phase.COPYING, False),
        ([Event.BEGUN, Event.DOUBT], Phase.DOUBTED, False),
        ([Event.BEGUN, Event.DOUBT, Event.DOUBT, Event.QUIET], Phase.FINDING, True),
        ([Event.BEGUN, Event.DOUBT, Event.QUIET, Event.DOUBT, Event.BEGUN], Phase.COPYING, False),
        ([Event.BEGUN, Event.DOUBT, Event.END, Event.QUIET], Phase.ENDED, True),
        ([Event.END, Event.BEGUN], Phase.ENDED, True),
    ],
)
def test_a_partition_goes_from_phase_to_phase(events: list[Event], phase: Phase, rests: bool) -> None:
    task = partition_task(None)
    for event in events:
        task.process(event)
    assert (task.phase, task.rests.is_set()) == (phase, rests)


@pytest.mark.parametrize("stands", [True, False])
def test_a_known_stop_is_reported_from_the_first_report_on(stands: bool) -> None:
    one = partition_task(
        KnownStop(state=State.TRUNCATED, offset=30, detail="cut back", stands=stands, target_topic_id=OTHER)
    )
    assert standing_of(one) == (State.TRUNCATED, "cut back", 30)
    one.waits("cluster eu is away")
    assert standing_of(one) == (State.TRUNCATED, "cut back", 30), "what is away mends no stop"
    assert reported(one).presumed, "nobody has asked since"
    one.meets(OTHER)
    assert (one.standing_stop() is not None) == stands
    one.meets(uuid4())
    assert one.standing_stop() is None, "another target topic begins anew"
    one.partition_writer = PartitionWriter(AT, AT, Position(0, ProducerState(1 << 52), True, -1))
    one.resumed(0, 0)
    assert (standing_of(one)[0], one.lifted) == (State.MIRRORING, stands)
    assert not reported(one).presumed
    one.waits("cluster eu is away")
    assert standing_of(one)[0] is State.UNAVAILABLE


def test_a_copy_that_may_lack_deletions_is_found_once_and_only_behind_what_it_has() -> None:
    old, cursor = Assignment(AT, AT, None, Rules(tombstones_ms=60_000), caught_up_ms=1), Cursor(AT, None, 10)

    def hole(assignment: Assignment, *bases: int, copied: int = 10, is_empty: bool = False) -> int:
        """The end of the first hole before batches that follow on what was copied; -1 for none."""
        one = PartitionTask(assignment)
        one.resumed(copied, copied, is_empty=is_empty)
        return one.reads([raw(batch(base)) for base in bases], cursor)

    unknown = replace(old, caught_up_ms=0)
    assert hole(old, 10, 11) == -1
    assert hole(old, 10, 12, 14) == 11
    assert hole(replace(old, may_lack=True), 12) == -1, "it is on record"
    assert hole(old, 3, copied=0) == -1, "nothing was copied that could live on"
    assert hole(unknown, 13) == 10, "an adopted copy holds records of nobody knows when"
    assert hole(unknown, 13, is_empty=True) == -1, "the source begins there"
    assert hole(replace(old, rules=Rules()), 12) == -1, "not compacted"


def test_a_copy_had_all_when_the_source_said_last_where_it_ends() -> None:
    """A process that was suspended reports, before anything else, that it is caught up, and has asked nobody since."""
    one, cursor = PartitionTask(Assignment(AT, AT, None, Rules(tombstones_ms=60_000))), Cursor(AT, None, 10)
    one.resumed(10, 10)
    cursor.log.sees(10, 10, 1_000_000)
    one.cursor, one.state = cursor, State.CAUGHT_UP
    woken = cursor.log.seen_ms + 86_400_000
    assert one.figures("flow", "instance", woken, PartitionCounters()).caught_up_ms == cursor.log.seen_ms > 0
    assert one.tombstones.may_miss(woken)
    cursor.log.readable_until, seen_ms = 12, cursor.log.seen_ms - 500
    cursor.log.named_ms = seen_ms
    one.reads([raw(batch(10, count=2))], cursor)
    assert one.tombstones.seen_end == (seen_ms, 12), "and what waited to be relayed was read before that"


@pytest.mark.parametrize(
    ("state", "finished", "written_until", "is_at_rest"),
    [
        (State.MIRRORING, False, 12, False),  # it may wait for something
        (State.CAUGHT_UP, False, 12, True),
        (State.CAUGHT_UP, False, 14, False),  # a transaction is open, and the report says for how long
        (State.REFUSED, True, 12, True),
        (State.UNAVAILABLE, False, 12, False),
    ],
)
def test_what_has_all_or_ended_is_reported_again_only_when_it_moves(
    state: State, finished: bool, written_until: int, is_at_rest: bool, clock: MovableClock
) -> None:
    cursor = Cursor(AT, None, 10)
    cursor.log.sees(12, written_until, 1)
    phase = Phase.ENDED if finished else Phase.COPYING
    one = PartitionTask(Assignment(AT, AT, None, Rules()), state=state, phase=phase, cursor=cursor)
    assert one.is_at_rest == is_at_rest
    one.add_note("what the target lost")
    assert not one.is_at_rest
    clock.move(NOTED_SECONDS)
    assert one.is_at_rest == is_at_rest


@pytest.mark.parametrize(("state", "goes_on"), [(State.TARGET_LOST, True), (State.TRUNCATED, False)])
def test_a_policy_lifts_a_loss_and_nothing_else(state: State, goes_on: bool) -> None:
    one = partition_task(KnownStop(state=state, offset=3, detail="", target_topic_id=OURS), continues_on_loss=True)
    one.meets(OURS)
    assert (one.standing_stop() is None) == goes_on


def test_a_stop_stands_in_the_journal_where_time_would_hide_its_cause() -> None:
    for state, stands in ((State.DIVERGED, True), (State.RETENTION_GAP, False), (State.RECREATED, False)):
        one = partition_task(None)
        one.meets(OURS)
        one.stopped(PartitionStop(state, *AT, 5, "why", advice="what to do"))
        assert (one.stop is not None) == stands
        if one.stop is not None:
            assert (one.stop.target_topic_id, one.stop.source_topic_id, one.stop.offset) == (OURS, OURS, 5)


def test_a_stop_is_reported_once_what_precedes_it_is_acknowledged() -> None:
    one = partition_task(None)
    one.partition_writer = partition_writer = PartitionWriter(AT, AT, Position(0, ProducerState(1 << 52), True, -1))
    partition_writer.fill(10)
    one.stopped(PartitionStop(State.CORRUPT, *AT, 10, "why", advice="what to do"))
    assert standing_of(one) == (State.MIRRORING, "", 0)
    gap = partition_writer.queue.popleft()
    assert isinstance(gap, Gap)
    partition_writer.marked(gap, 10)
    assert standing_of(one) == (State.CORRUPT, "why. what to do", 10)


def test_status_shows_a_stop_that_stands_whatever_was_reported_since() -> None:
    report = partition_task(None).figures("flow", "instance", 1, PartitionCounters())
    known = dict([(report.key(), report.to_json()), STOPS.entry(AT, STOP)])
    (shown,) = status_of("flow", "us", known, 2).figures
    assert (shown.state, shown.detail) == (State.DIVERGED, "somebody wrote. Begin anew")


_NOWHERE: Any = None
_NOBODY = observe.Observer("flow", _NOWHERE, AT, _NOWHERE, AT)
_COMPARED = frozenset({Question.COMPARISON, Question.PRODUCERS})


def observed(**facts: Any) -> Observation:
    """Return what is observed of two empty logs, but for these facts."""
    empty = {"start": 0, "readable": 0, "target_start": 0, "end": 0}
    return Observation(source=AT, target=AT, own=ProducerState(_KIN), **(empty | facts))


@pytest.mark.parametrize(("attributes", "is_truncated"), [(0, True), (DELETE_HORIZON, False)])
def test_a_last_batch_that_a_cleaner_wrote_anew_shows_no_other_log(
    monkeypatch: pytest.MonkeyPatch, attributes: int, is_truncated: bool
) -> None:
    """To note in it when its tombstones go: its records are the same, and its CRC is another."""
    mirrored, stored = batch(10, count=3), batch(10, count=3, attributes=attributes, base_timestamp=1_800_000_000_000)

    kept = LastBatch.of(raw(mirrored), 10, raw(mirrored).header.crc)
    last = LastPosition(source_next=13, target_end=13, batch=kept)
    facts = observed(target_start=13, end=13, readable=20, last=last, asked=_COMPARED)
    assert decide(facts, EQUAL_OFFSETS) is Question.MIRRORED_BATCH

    async def batch_at(*_: object, **__: object) -> RawBatch:
        return raw(stored)

    monkeypatch.setattr(observe, "batch_at", batch_at)
    decision = decide(asyncio.run(_NOBODY.ask(facts, Question.MIRRORED_BATCH)), EQUAL_OFFSETS)
    assert isinstance(decision, PartitionStop) is is_truncated
    assert ("had CRC" in str(decision)) is is_truncated


@pytest.mark.parametrize(("since", "state"), [(0, State.DIVERGED), (11, State.TRUNCATED)])
def test_a_copy_that_is_one_offset_longer_than_its_source_stops(since: int, state: State) -> None:
    """Whatever its last record is: nothing of either log is read. One that the flow began there lost its source."""
    facts = observed(target_start=11, end=11, readable=10, since=since)
    decision = decide(facts, EQUAL_OFFSETS)
    assert isinstance(decision, PartitionStop)
    assert "the target's log ends at 11, the source's at 10" in decision.detail
    assert decision.state is state


_KIN = producer_id("flow", AT)
PADDED = LastPosition(source_next=600, target_end=600, begins=600)


@pytest.mark.parametrize(
    ("start", "recorded", "moves", "begin"),
    [
        (0, 40, False, -1),
        (15, 40, False, 15),
        (50, 40, False, 40),
        (15, None, False, -1),
        (15, 40, True, 5),
        (50, 40, True, 25),
        (8, 40, True, -1),
    ],
    ids=[
        "nothing deleted",
        "deleted",
        "not beyond what is on record",
        "nothing on record",
        "offsets move",
        "they move, and all was deleted",
        "not known where that is",
    ],
)
def test_a_log_start_follows_up_to_what_is_on_record(start: int, recorded: int | None, moves: bool, begin: int) -> None:
    rules, runs = Rules(follows_log_start=True), OffsetRanges(10, 0)
    runs.add(10, 0, 25)
    last = None if recorded is None else LastPosition(source_next=recorded, target_end=25 if moves else recorded)
    one = PartitionTask(Assignment(AT, AT, OURS, rules), state=State.CAUGHT_UP)
    assert one.log_start(last) == -1, "not begun"
    one.cursor = Cursor(AT, OURS, 60, log=SourceLog(start))
    at = Position(60, ProducerState(_KIN), known=True, last_epoch=-1)
    offset_map = OffsetMap(runs) if moves else None
    one.partition_writer = PartitionWriter(AT, AT, at, rules=rules, offset_map=offset_map)
    assert one.log_start(last) == begin
    one.state = State.UNAVAILABLE
    assert one.log_start(last) == -1


@pytest.mark.parametrize(
    ("start", "since", "end", "last", "begins"),
    [
        (0, 0, 0, None, None),
        (800, 0, 0, None, 800),
        (800, 900, 0, None, 900),
        (800, 700, 0, None, 800),
        (600, 0, 600, PADDED, None),
        (800, 0, 600, PADDED, 800),
        (800, 0, 400, PADDED, 800),
        (800, 0, 700, PADDED, None),
        (800, 0, 600, replace(PADDED, batch=BATCH), None),
        (800, 0, 600, replace(PADDED, was_accepted=True), None),
        (800, 0, 600, None, None),
        (800, 900, 600, None, 900),
    ],
    ids=[
        "both empty",
        "new",
        "to begin later",
        "deleted behind topics.start",
        "padded",
        "padded, and the source moved on",
        "padded in part",
        "filled behind the padding",
        "held records, which expired",
        "accepted by a person",
        "nothing on record",
        "below topics.start",
    ],
)
def test_an_empty_log_is_padded_where_it_never_held_a_record(
    start: int, since: int, end: int, last: LastPosition | None, begins: int | None
) -> None:
    facts = observed(start=start, readable=1000, target_start=end, end=end, since=since, last=last)
    assert (facts.begin if is_unaligned(facts) else None) == begins


def behind(*batches: tuple[bool, int, int], producer: int = _KIN) -> list[RawBatch]:
    """Batches behind offset 100, each as (whether it is a marker, epoch, sequence); one with records has two."""
    found, at = list[RawBatch](), 100
    for is_marker, epoch, sequence in batches:
        made = batch(
            at,
            count=1 if is_marker else 2,
            attributes=CONTROL | TRANSACTIONAL if is_marker else 0,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        found.append(raw(made))
        at = found[-1].header.next_offset
    return found


_MARKERS = behind((True, 1008, -1), (True, 1009, -1))
_MIXED = behind((False, 7, 20), (True, 8, -1), (True, 9, -1), (False, 10, 0), (True, 10 + FENCE, -1))
_STRANGE = behind((True, 1009, -1), producer=1)
_LOST, _SAME, _OTHER = ((100, 500),), 500, 100


@pytest.mark.parametrize(
    ("found", "losses", "compared_from", "kept_until", "is_believed"),
    [
        (_MARKERS, _LOST, 600, _OTHER, True),
        (_MARKERS, ((50, 101),), 101, _OTHER, True),  # the rest was compared
        (_MARKERS, (), 600, _SAME, True),
        (_MARKERS, (), 600, _OTHER, False),
        (_MARKERS, ((100, 101),), 600, _OTHER, False),
        (_MARKERS, ((101, 500),), 600, _OTHER, False),
        ([_MARKERS[0], *_STRANGE], _LOST, 600, _SAME, False),
        (behind((True, 1008, -1), producer=1) + _MARKERS[1:], _LOST, 600, _SAME, False),
        (_MARKERS[1:], _LOST, 600, _SAME, False),  # nobody knows what was before it
        (_MIXED, (), 600, _SAME, True),
        (_MIXED, _LOST, 600, _OTHER, False),
        (behind((False, 7, 22), (True, 8, -1)), (), 600, _SAME, False),  # in the place of the one before it
        (behind((True, 1008, -1), (True, 1008, -1), (False, 1009, 0)), (), 600, _SAME, False),  # one twice
        (behind((True, 1010, -1), (False, 1012, 0)), (), 600, _SAME, False),
    ],
)
def test_what_nobody_can_compare_is_believed_where_it_is_ours_by_its_stamps_or_markers_of_a_recorded_loss(
    monkeypatch: pytest.MonkeyPatch,
    found: list[RawBatch],
    losses: tuple[tuple[int, int], ...],
    compared_from: int,
    kept_until: int,
    is_believed: bool,
) -> None:
    async def batches(*_: object) -> Any:
        for one in found:
            yield one, False

    monkeypatch.setattr(observe, "batches", batches)
    last = LastPosition(source_next=100, target_end=100, source_epoch=3, epoch_until=100, stamp=(_KIN, 7, 20))
    end = found[-1].header.next_offset
    facts = observed(
        readable=600,
        end=end,
        tail=found[-1],
        last=last,
        losses=losses,
        kept_until=kept_until,
        asked=_COMPARED,
        comparison=Comparison(begin=compared_from),
    )
    assert decide(facts, EQUAL_OFFSETS) is Question.WRITTEN
    decision = decide(asyncio.run(_NOBODY.ask(facts, Question.WRITTEN)), EQUAL_OFFSETS)
    assert isinstance(decision, Position if is_believed else Unconfirmed)
    assert is_believed or "the journal keeps 100" in str(decision)
