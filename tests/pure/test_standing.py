"""How copies stand, as the journal keeps it, and how a task reports stops that it knows."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch, raw

from mirror.driver.flow import Refusal
from mirror.driver.reports import left_out, paused_report
from mirror.errors import PartitionStop
from mirror.journal.entries import loss_entry
from mirror.journal.journal import Entry
from mirror.journal.positions import (
    Standing,
    StandingLog,
    WayBack,
    joined,
    lifted_entry,
    position_entry,
    read_position,
    read_stop,
    read_way_back,
    standing_in,
    stop_entry,
    stops_in,
    way_back_entry,
)
from mirror.journal.snapshot import status_of
from mirror.kafka.cluster import TopicPartition
from mirror.observability.status import Contact, PartitionStatus
from mirror.policy.rules import Rules
from mirror.records.header import CONTROL, DELETE_HORIZON, TRANSACTIONAL, ProducerState, RawBatch
from mirror.replication import position
from mirror.replication.assignment import Assignment, KnownStop, LastBatch, LastPosition, Loss
from mirror.replication.both_logs import Logs, Unconfirmed, producer_id
from mirror.replication.fetcher import Cursor
from mirror.replication.partition_task import PartitionTask
from mirror.replication.partition_writer import LONGEST_GAP, Gap, PartitionCounters, PartitionWriter
from mirror.replication.position import FENCE, Position
from mirror.states import State

AT = TopicPartition("orders.eu/1", 12)
OURS, OTHER = UUID(int=1), UUID(int=2)

_NUMBER = st.integers(-(2**63) + 1, 2**63 - 1)
_OFFSET = st.integers(0, 2**63 - 1)
_ID = st.none() | st.uuids()
_BATCHES = st.builds(
    LastBatch,
    base=_OFFSET,
    next_offset=_OFFSET,
    source_base=_OFFSET,
    crc=st.none() | _OFFSET,
    source_crc=st.none() | _OFFSET,
    count=_NUMBER,
    base_timestamp=_NUMBER,
    max_timestamp=_NUMBER,
)
POSITIONS = st.builds(
    LastPosition,
    source_next=_OFFSET,
    target_end=_OFFSET,
    source_epoch=_NUMBER,
    epoch_until=_NUMBER,
    target_epoch=_NUMBER,
    source_topic_id=_ID,
    target_topic_id=_ID,
    stamp=st.none() | st.tuples(_NUMBER, _NUMBER, _NUMBER),
    batch=st.none() | _BATCHES,
    was_accepted=st.booleans(),
)
STOPS = st.builds(
    KnownStop,
    state=st.sampled_from([state for state in State if state.is_stop]),
    offset=_NUMBER,
    detail=st.text(st.characters(exclude_categories=["Cs"])),
    advice=st.text(st.characters(exclude_categories=["Cs"])),
    source_topic_id=_ID,
    target_topic_id=_ID,
)


@given(POSITIONS)
def test_a_position_is_read_back(last: LastPosition) -> None:
    nil = UUID(int=0)  # which no topic has
    if nil not in (last.source_topic_id, last.target_topic_id):
        assert read_position(Entry(0, *position_entry(AT, last))) == (AT, last)


@given(STOPS)
def test_a_stop_is_read_back(stop: KnownStop) -> None:
    assert read_stop(Entry(0, *stop_entry(AT, stop))) == (AT, stop)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"position/orders/x", b"{}"),
        (b"position/orders/0", b"[]"),
        (b"position/orders/0", b'{"source_next": -1, "target_end": 1}'),
        (b"position/orders/0", b'{"source_next": 1, "target_end": true}'),
        (b"position/orders/0", b'{"source_next": 1, "target_end": 1, "stamp": [1]}'),
        (b"position/orders/0", b'{"source_next": 1, "target_end": 1, "batch": 7}'),
        (b"position/\xff/0", b'{"source_next": 1, "target_end": 1}'),
        (b"stop/orders/0", b'{"state": "MIRRORING"}'),
        (b"stop/orders/0", b'{"state": "LOST"}'),
        (b"stop/orders/0", b"[" * 100_000),
        (b"back/orders/0", b'{"spans": [[5, 4]]}'),
        (b"back/orders/0", b'{"spans": [[-1, 4]]}'),
        (b"back/orders/0", b'{"spans": {"5": 6}}'),
        (b"back/orders/0", b"{}"),
    ],
)
def test_records_that_somebody_else_wrote_are_passed_over(key: bytes, value: bytes) -> None:
    found = standing_in({key: value})
    assert (found.positions, found.stops, found.way_back) == ({}, {}, {})


def test_what_is_reported_last_counts() -> None:
    known, stop = Standing(), KnownStop(state=State.DIVERGED, offset=3, detail="", target_topic_id=OURS)
    assert known.learn(Entry(0, *stop_entry(AT, stop)))
    assert known.handed(Assignment(AT, AT, None, Rules())).stop == stop
    assert known.learn(Entry(1, *lifted_entry(AT)))
    assert known.handed(Assignment(AT, AT, None, Rules())).stop is None
    assert not known.learn(Entry(2, b"owner", b"{}"))


def test_what_a_flow_back_left_out_is_of_the_topics_that_it_was_found_with() -> None:
    spans = joined([(7, 9), (1, 2), (8, 12), (12, 13)])
    assert spans == ((1, 2), (7, 13))
    back = WayBack(spans, OURS, OTHER)
    assert read_way_back(Entry(0, *way_back_entry(AT, back))) == (AT, back)
    known = standing_in(dict([way_back_entry(AT, back)]))
    assert known.way_back_of(AT, OURS, OTHER) == known.way_back_of(AT, OURS, None) == spans
    assert known.way_back_of(AT, OTHER, OTHER) == known.way_back_of(AT, OURS, OURS) == ()
    ours = Assignment(AT, AT, OURS, Rules(), target_topic_id=OTHER)
    assert (known.handed(ours).way_back, known.handed(ours).losses) == (spans, ()), "the source has nothing there"


def test_the_copy_alone_may_have_what_a_flow_back_left_out_and_nothing_else() -> None:
    mirrors = producer_id("back", AT)
    logs = Logs(AT, 0, 9, 0, 9, None, ProducerState(producer_id("flow", AT)), way_back=((3, 6),))
    ours, behind = raw(batch(3, count=3)), raw(batch(6))
    assert logs.may_be_alone(ours, None)
    assert logs.may_be_alone(ours, behind)
    assert not logs.may_be_alone(ours, raw(batch(5))), "the source has a record there"
    assert not logs.may_be_alone(raw(batch(5, count=2)), None), "nobody left out all of it"
    assert not replace(logs, way_back=()).may_be_alone(ours, None)

    marker = raw(batch(4, attributes=0x30, producer_id=mirrors))
    assert logs.was_left_out(marker)
    assert not logs.was_left_out(raw(batch(4, attributes=0x30))), "a marker of a transaction of the source's own"
    assert not logs.was_left_out(raw(batch(6, attributes=0x30, producer_id=mirrors)))
    assert not logs.was_left_out(raw(batch(4, producer_id=mirrors))), "a record"
    assert not logs.was_left_out(None)


def test_a_part_of_a_journal_takes_nothing_from_what_the_rest_of_it_says() -> None:
    """As where Spark tries a task again, which reads what was written since it was made alone."""
    last, stop = LastPosition(source_next=20, target_end=20), KnownStop(state=State.DIVERGED, offset=3, detail="")
    full = Assignment(
        source=AT,
        target=TopicPartition("copy", 12),
        topic_id=OURS,
        rules=Rules(tombstones_ms=9),
        until=30,
        until_ms=31,
        accepted=(1, 2),
        since=3,
        last=last,
        stop=stop,
        losses=((4, 5),),
        way_back=((6, 7),),
        target_topic_id=OTHER,
        caught_up_ms=8,
        contact=Contact(30, 7),
        tombstones_ms=9,
        waits_for="cluster eu is away",
        may_lack=True,
    )
    unset = [one.name for one in fields(full) if getattr(full, one.name) in (one.default, None)]
    assert not unset, "this test is about every field: give these a value"
    known, copy = Standing(), full.target
    assert known.updated(full) == full
    report = paused_report(full, None, "flow", "mine")
    report = replace(report, caught_up_ms=80, tombstones_ms=None, log_end=40, contact_ms=70)
    last, stop = replace(last, source_next=21), replace(stop, offset=4)
    for entry in (
        (report.key(), report.to_json()),
        position_entry(copy, last),
        stop_entry(copy, stop),
        loss_entry(Loss(AT, copy, 8, 9, topic_id=OURS, target_topic_id=OTHER)),
        way_back_entry(copy, WayBack(((60, 70),), OURS, OTHER)),
    ):
        assert known.learn(Entry(0, *entry))
    since = replace(full, last=last, stop=stop, losses=((4, 5), (8, 9)), way_back=((60, 70),))
    assert known.updated(full) == replace(since, caught_up_ms=80, tombstones_ms=None, contact=Contact(40, 70))


def test_a_stop_stands_for_the_target_topic_that_it_was_met_with() -> None:
    known = dict([stop_entry(AT, KnownStop(state=State.DIVERGED, offset=3, detail="", target_topic_id=OURS))])
    assert AT in stops_in(known, {AT.topic: OURS})
    assert AT in stops_in(known, {}), "its cluster cannot be asked"
    assert stops_in(known, {AT.topic: OTHER}) == {}


def test_only_what_changed_is_written() -> None:
    log, last = StandingLog(), LastPosition(source_next=1, target_end=1)
    stop = KnownStop(state=State.DIVERGED, offset=3, detail="")
    assert len(log.changes([(AT, last)], {AT: stop})) == 2
    log.written([(AT, last)], {AT: stop})
    assert log.changes([(AT, last)], {AT: stop}) == []
    assert [key for key, _ in log.changes([(AT, LastPosition(source_next=2, target_end=2))], {AT: stop})] == [
        b"position/orders.eu/1/12"
    ]
    assert log.changes([(AT, last)], {AT: None}) == [(b"stop/orders.eu/1/12", None)]


def partition_task(stop: KnownStop | None, **rules: Any) -> PartitionTask:
    return PartitionTask(Assignment(AT, AT, OURS, Rules(**rules), stop=stop))


def reported(one: PartitionTask) -> PartitionStatus:
    return one.figures("flow", "instance", 0, PartitionCounters())


def standing_of(one: PartitionTask) -> tuple[State, str, int]:
    figures = reported(one)
    return figures.state, figures.detail, figures.next_offset


@pytest.mark.parametrize("stands", [True, False])
def test_a_known_stop_is_reported_from_the_first_report_on(stands: bool) -> None:
    one = partition_task(
        KnownStop(state=State.TRUNCATED, offset=30, detail="cut back", stands=stands, target_topic_id=OTHER)
    )
    assert standing_of(one) == (State.TRUNCATED, "cut back", 30)
    one.waits("cluster eu is away")
    assert standing_of(one) == (State.TRUNCATED, "cut back", 30), "what is away mends no stop"
    assert reported(one).presumed, "nobody has looked since"
    one.meets(OTHER)
    assert (one.standing_stop() is not None) == stands
    one.meets(uuid4())
    assert one.standing_stop() is None, "another target topic begins anew"
    one.resumed(0, 0)
    assert (standing_of(one)[0], one.lifted) == (State.MIRRORING, stands)
    assert not reported(one).presumed
    one.waits("cluster eu is away")
    assert standing_of(one)[0] is State.UNAVAILABLE


def test_what_is_waited_for_is_reported_in_the_next_epoch_too() -> None:
    """Else no alert that waits for two minutes would see it."""
    one = PartitionTask(Assignment(AT, AT, None, Rules(), waits_for="cluster eu is away"))
    assert standing_of(one)[:2] == (State.UNAVAILABLE, "cluster eu is away")
    one.resumed(0, 0)
    assert standing_of(one)[:2] == (State.MIRRORING, "")


def test_every_report_says_when_the_source_was_there_last() -> None:
    """The journal keeps the newest one alone, and a source is away for as long as it takes."""
    counters = PartitionCounters(latency_ms=30)

    def reported(one: PartitionTask, state: State) -> PartitionStatus:
        one.state = state
        return one.figures("flow", "mine", 9_000, counters)

    mine = Assignment(AT, AT, None, Rules())
    one, cursor = PartitionTask(mine), Cursor(AT, None, 10)
    one.cursor, one.partition_writer = cursor, cast(PartitionWriter, SimpleNamespace(acked=10, is_idle=True))
    assert reported(one, State.MIRRORING).contact_ms == 0, "it has not answered yet"
    cursor.readable_until = 50
    assert reported(one, State.MIRRORING).contact_ms == 0, "where limits bound it its end is asked for, and read later"
    cursor.sees(50, 50, 5_000)
    assert reported(one, State.MIRRORING).contact == (50, 4_970)
    assert reported(one, State.CAUGHT_UP).contact == (50, 5_000)
    waits = reported(one, State.UNAVAILABLE)
    known = standing_in({waits.key(): waits.to_json()})
    begun = PartitionTask(known.handed(mine))
    for state in (State.STARTING, State.UNAVAILABLE, State.MIRRORING, State.UNAUTHORIZED):
        found = reported(begun, state)
        assert (found.contact, found.lag_records) == ((50, 5_000), None), "a task that has not come to it"
    (refused,) = left_out(
        Refusal(AT.topic, AT.topic, 1, "why"), {waits.key_of(AT.topic, 0): waits.to_json()}, "flow", "mine"
    )
    paused = paused_report(known.handed(mine), None, "flow", "mine")
    assert refused.contact == paused.contact == paused_report(mine, waits, "flow", "mine").contact == (50, 5_000)
    assert replace(waits, contact_ms=0).contact is None, "an older mirror does not say"


def test_a_copy_that_may_lack_deletions_is_found_once_and_only_behind_what_it_has() -> None:
    old, cursor = Assignment(AT, AT, None, Rules(tombstones_ms=60_000), caught_up_ms=1), Cursor(AT, None, 10)
    one, known = PartitionTask(old), PartitionTask(replace(old, may_lack=True))
    for each in (one, known):
        each.resumed(10, 10)
    assert one.reads([raw(batch(10, count=5))], cursor) == -1, "no hole"
    assert one.reads([raw(batch(15, count=2)), raw(batch(18))], cursor) == 17
    assert known.reads([raw(batch(12))], cursor) == -1, "it is on record"
    empty = PartitionTask(old)
    empty.resumed(0, 0)
    assert empty.reads([raw(batch(3))], cursor) == -1, "nothing was copied that could live on"
    adopted, made = (PartitionTask(replace(old, caught_up_ms=0)) for _ in range(2))
    adopted.resumed(10, 10)
    assert adopted.reads([raw(batch(13))], cursor) == 10, "it holds records of nobody knows when"
    made.resumed(10, 10, is_empty=True)
    assert made.reads([raw(batch(13))], cursor) == -1, "the source begins there"
    assert PartitionTask(replace(old, rules=Rules())).reads([raw(batch(12))], cursor) == -1, "not compacted"


def test_a_copy_had_all_when_the_source_said_last_where_it_ends() -> None:
    """A process that was suspended reports, before anything else, that it is caught up, and has asked nobody since."""
    one, cursor = PartitionTask(Assignment(AT, AT, None, Rules(tombstones_ms=60_000))), Cursor(AT, None, 10)
    one.resumed(10, 10)
    cursor.sees(10, 10, 1_000_000)
    one.cursor, one.state = cursor, State.CAUGHT_UP
    woken = cursor.seen_ms + 86_400_000
    assert one.figures("flow", "instance", woken, PartitionCounters()).caught_up_ms == cursor.seen_ms > 0
    assert one.tombstones.may_miss(woken)
    cursor.readable_until, seen_ms = 12, cursor.seen_ms - 500
    cursor.seen_ms = seen_ms
    one.reads([raw(batch(10, count=2))], cursor)
    assert one.tombstones.seen_end == (seen_ms, 12), "and what waited to be relayed was read before that"


def test_a_clock_that_was_ahead_does_not_hide_deletions() -> None:
    """What it said of when the copy had all is to come yet: that is not known, until somebody else sees it."""
    day, now = 86_400_000, int(time.time() * 1000)
    ahead = Assignment(AT, AT, None, Rules(tombstones_ms=day), caught_up_ms=now + 365 * day)
    one, cursor = PartitionTask(ahead), Cursor(AT, None, 10)
    one.resumed(10, 10)
    assert one.reads([raw(batch(12))], cursor) == 10
    one.tombstones.had_all(now)
    assert one.tombstones.caught_up_ms == now
    assert not one.tombstones.may_miss(now + day)
    assert one.tombstones.may_miss(now + day + 1)
    assert not one.tombstones.may_miss(now - 1_000), "clocks in order differ, too"


@pytest.mark.parametrize(("state", "caught_up_ms"), [(State.CAUGHT_UP, 9), (State.MIRRORING, 0)])
def test_a_report_of_an_earlier_version_says_when_a_copy_had_all_by_its_state(state: State, caught_up_ms: int) -> None:
    one = replace(paused_report(Assignment(AT, AT, None, Rules()), None, "f", "i"), state=state, at_ms=9)
    found = standing_in({one.key(): one.to_json()})
    assert found.handed(Assignment(AT, AT, None, Rules())).caught_up_ms == caught_up_ms


@pytest.mark.parametrize("before", [None, "reported"])
def test_a_report_of_the_driver_keeps_when_a_copy_had_all(before: str | None) -> None:
    """A process that starts while a topic is paused, or refused, knows it from the journal alone."""
    one = Assignment(AT, AT, None, Rules(), caught_up_ms=7)
    known = paused_report(one, None, "flow", "mine")
    assert paused_report(one, known if before else None, "flow", "mine").caught_up_ms == 7
    assert paused_report(replace(one, caught_up_ms=0), known, "flow", "mine").caught_up_ms == 7
    (refused,) = left_out(Refusal(AT.topic, AT.topic, 1, "why"), {known.key_of(AT.topic, 0): known.to_json()}, "f", "i")
    assert refused.caught_up_ms == 7


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


def test_a_loss_of_any_length_is_passed_over_and_reported_once() -> None:
    partition_writer = PartitionWriter(AT, AT, Position(0, ProducerState(1 << 52), True, -1))
    loss = Loss(AT, AT, 0, 100 * LONGEST_GAP)
    partition_writer.lose(loss)
    (gap,) = partition_writer.queue
    assert isinstance(gap, Gap)
    partition_writer.marked(gap, loss.next_offset - 1)
    assert partition_writer.passed is None
    partition_writer.marked(gap, 1)
    assert [partition_writer.passed for _ in range(2)] == [loss, None]
    with pytest.raises(PartitionStop, match="hold no record"):
        partition_writer.fill(loss.next_offset + LONGEST_GAP + 1)


def test_status_shows_a_stop_that_stands_whatever_was_reported_since() -> None:
    stop = KnownStop(state=State.DIVERGED, offset=3, detail="somebody wrote", advice="Begin anew", target_topic_id=OURS)
    report = partition_task(None).figures("flow", "instance", 1, PartitionCounters())
    known = dict([(report.key(), report.to_json()), stop_entry(AT, stop)])
    (shown,) = status_of("flow", "us", known, 2).figures
    assert (shown.state, shown.detail) == (State.DIVERGED, "somebody wrote. Begin anew")
    (shown,) = status_of("flow", "us", {report.key(): report.to_json()}, 2).figures
    assert shown.state is State.STARTING


@pytest.mark.parametrize(("attributes", "is_truncated"), [(0, True), (DELETE_HORIZON, False)])
def test_a_last_batch_that_a_cleaner_wrote_anew_shows_no_other_log(
    monkeypatch: pytest.MonkeyPatch, attributes: int, is_truncated: bool
) -> None:
    """To note in it when its tombstones go: its records are the same, and its CRC is another."""
    mirrored, stored = batch(10, count=3), batch(10, count=3, attributes=attributes, base_timestamp=1_800_000_000_000)

    async def batch_at(*_: object, **__: object) -> RawBatch:
        return raw(stored)

    monkeypatch.setattr(position, "batch_at", batch_at)
    kept = position.kept_batch(raw(mirrored), 10, raw(mirrored).header.crc)
    last = LastPosition(source_next=13, target_end=13, batch=kept)
    logs = Logs(AT, 0, 20, 13, 13, None, ProducerState(1 << 52), last=last)
    nowhere: Any = None
    with pytest.raises(PartitionStop, match="had CRC") if is_truncated else nullcontext():
        asyncio.run(position._check_last_batch(logs, nowhere))


_KIN = producer_id("flow", AT)


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

    monkeypatch.setattr(position, "batches", batches)
    last = LastPosition(source_next=100, target_end=100, source_epoch=3, epoch_until=100, stamp=(_KIN, 7, 20))
    end = found[-1].header.next_offset
    own = ProducerState(_KIN)
    logs = Logs(AT, 500, 600, 0, end, found[-1], own, last=last, losses=losses, kept_until=kept_until)
    nowhere: Any = None
    with nullcontext() if is_believed else pytest.raises(Unconfirmed, match="the journal keeps 100"):
        asyncio.run(position.confirm(logs, nowhere, nowhere, AT, ProducerState(_KIN, 9999), end, compared_from))
