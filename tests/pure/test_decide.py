"""Decide from what was observed of both logs where a partition goes on: by each row, and whatever is observed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rawbatches import batch, raw

from mirror.errors import ClusterUnreachable, MalformedBatch, PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.queries import EpochEnd, Producer
from mirror.records.header import CONTROL, TRANSACTIONAL, ProducerState, RawBatch, restamp, split
from mirror.records.rewrite import padding
from mirror.replication.assignment import LastBatch, LastPosition
from mirror.replication.decide import (
    EQUAL_OFFSETS,
    MOVED_OFFSETS,
    Decision,
    Position,
    Row,
    Unconfirmed,
    decide,
)
from mirror.replication.observe import Comparison, Observation, Question, producer_id
from mirror.states import State

AT = TopicPartition("orders", 3)
OWN = producer_id("flow", AT)
COMPARED = frozenset({Question.COMPARISON})
STAMPED = COMPARED | {Question.PRODUCERS}
EPOCH = {"source_epoch": 4, "epoch_until": 10}
BATCH = LastBatch(
    base=9, next_offset=10, source_base=9, crc=1, source_crc=2, count=1, base_timestamp=3, max_timestamp=4
)


def data(offset: int, *, producer: int = OWN) -> RawBatch:
    """Return a batch of one record."""
    return raw(batch(offset, producer_id=producer, producer_epoch=0, base_sequence=offset))


def marker(offset: int, *, producer: int = OWN) -> RawBatch:
    """Return a control batch."""
    return raw(batch(offset, attributes=CONTROL | TRANSACTIONAL, producer_id=producer, producer_epoch=7))


def padded(end: int) -> RawBatch:
    """Return padding of this flow from offset 0 on."""
    made = padding(0, end, codec=None, max_bytes=1 << 20)
    return next(iter(split(memoryview(restamp(made, ProducerState(OWN)) + made.records)))).at(0)


def observed(**facts: Any) -> Observation:
    """Return ten records on both sides that are compared and stamped, but for these facts."""
    alike: dict[str, Any] = {
        "start": 0,
        "readable": 20,
        "target_start": 0,
        "end": 10,
        "tail": data(9),
        "asked": STAMPED,
        "comparison": Comparison(epoch=(4, 10)),
    }
    return Observation(source=AT, target=AT, own=ProducerState(OWN), **(alike | facts))


def last(source_next: int = 10, **facts: Any) -> LastPosition:
    """Return the last position of a copy with equal offsets."""
    known: dict[str, Any] = {"source_next": source_next, "target_end": source_next, "batch": BATCH}
    return LastPosition(**(known | facts))


def first_row(facts: Observation, table: tuple[Row, ...]) -> tuple[str, Decision]:
    """Return the case of the first row that applies, and its decision."""
    decisions = ((row.case, row.decide(facts)) for row in table)
    return next((case, decision) for case, decision in decisions if decision is not None)


UNSHOWN = {"comparison": Comparison()}
#: Case -> facts for which it is the first that applies, and what it decides: a stop's state, a look, or the offset to
#: go on with.
CASES: dict[str, list[tuple[dict[str, Any], State | Question | type | int]]] = {
    "the copy was begun with offsets that move": [({"last": last(12, target_end=10)}, State.REFUSED)],
    "the source has opened a transaction again": [({"open_from": 5}, State.TRUNCATED)],
    "the source was cut back, and may have the same again": [
        ({"last": last(**EPOCH), "kept_until": 7}, Question.RESTORED)
    ],
    "the source was cut back": [
        ({"last": last(**EPOCH), "kept_until": 7, "readable": 9}, State.TRUNCATED),
        ({"last": last(**EPOCH), "kept_until": 7, "asked": frozenset({Question.RESTORED})}, State.TRUNCATED),
    ],
    "the target is longer than the source": [
        ({"readable": 9}, State.TRUNCATED),
        ({"readable": 9, "tail": data(9, producer=1)}, State.DIVERGED),
        ({"readable": 9, "last": last(source_epoch=4), "source_epoch": 4}, State.DIVERGED),
    ],
    "the target lost records that the source has deleted": [
        ({"last": last(15), "start": 12}, State.TARGET_LOST),
    ],
    "the target holds no record yet, and must begin later": [
        ({"start": 5, "end": 0, "tail": None}, 0),
        ({"start": 5, "end": 0, "tail": None, "asked": frozenset()}, Question.PRODUCERS),
        ({"start": 12, "end": 10, "tail": padded(10)}, 10),
    ],
    "the target is padded over records of the source": [({"tail": padded(10), "start": 5}, State.DIVERGED)],
    "the source has deleted records before they were mirrored": [
        ({"start": 12}, State.RETENTION_GAP),
        ({"start": 12, "last": last(8), "tail": data(9, producer=1)}, Unconfirmed),
    ],
    "the ends of both logs are to be compared": [({"asked": frozenset()}, Question.COMPARISON)],
    "a batch that is compared is damaged": [
        ({"comparison": Comparison(damage=MalformedBatch("damaged", 0))}, MalformedBatch)
    ],
    "the ends of both logs differ": [
        ({"comparison": Comparison(difference="the value", offset=10)}, State.DIVERGED),
        ({"comparison": Comparison(difference="the value", offset=10), "last": last()}, State.TRUNCATED),
        (  # an old leader of the target came back
            {
                "comparison": Comparison(difference="the value", offset=10),
                "last": last(**EPOCH, target_epoch=6),
                "kept_until": 10,
                "target_kept": EpochEnd(5, 8),
            },
            State.DIVERGED,
        ),
    ],
    "the next stamp is not known": [
        ({"asked": COMPARED}, Question.PRODUCERS),
        ({"has_grown": True}, ClusterUnreachable),
    ],
    "nothing was acknowledged": [(UNSHOWN, Unconfirmed)],
    "the source has another batch than the one mirrored last": [
        ({**UNSHOWN, "last": last()}, Question.MIRRORED_BATCH),
        (
            {**UNSHOWN, "last": last(), "asked": STAMPED | {Question.MIRRORED_BATCH}, "instead": "no batch"},
            State.TRUNCATED,
        ),
    ],
    "the target is shorter than acknowledged": [
        ({**UNSHOWN, "last": last(15, batch=None), "tail": data(9, producer=1)}, State.DIVERGED)
    ],
    "the target is longer than acknowledged": [
        ({**UNSHOWN, "last": last(8, batch=None)}, Question.WRITTEN),
        ({**UNSHOWN, "last": last(8, batch=None), "asked": STAMPED | {Question.WRITTEN}}, Unconfirmed),
    ],
    "padding has come back, or covers records": [
        ({"start": 5}, Question.PADDING),
        ({"start": 5, "asked": STAMPED | {Question.PADDING}, "padding_end": 7}, State.DIVERGED),
    ],
    "both logs agree": [
        ({}, 10),
        ({"start": 12, "accepted": (10, 12), "target_start": 12}, 10),
        ({"start": 5, "asked": STAMPED | {Question.PADDING}, "padding_end": 5}, 10),
        ({"last": last(15)}, 10),
    ],
    "the journal confirms the copy": [
        ({**UNSHOWN, "last": last(batch=None)}, 10),
        ({**UNSHOWN, "last": last(8, batch=None, stamp=(OWN, 0, 8)), "kept_until": 10}, 10),
        (
            {
                **UNSHOWN,
                "last": last(8, batch=None),
                "asked": STAMPED | {Question.WRITTEN},
                "are_markers": True,
                "losses": ((8, 10),),
            },
            10,
        ),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_each_row_decides_its_case(case: str) -> None:
    for facts, expected in CASES[case]:
        found, decision = first_row(observed(**facts), EQUAL_OFFSETS)
        assert found == case
        if isinstance(decision, PartitionStop) and isinstance(expected, State):
            assert decision.state is expected
        elif isinstance(decision, Position):
            assert decision.next_offset == expected
        else:
            assert decision is expected or (isinstance(expected, type) and isinstance(decision, expected))


def test_each_row_has_an_example() -> None:
    assert {row.case for row in EQUAL_OFFSETS + MOVED_OFFSETS} == CASES.keys()


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"moved_to": 15, "readable": 40}, 15),
        ({"moved_to": 15, "start": 17, "readable": 40}, State.RETENTION_GAP),
        ({"moved_to": 15, "start": 17, "readable": 40, "last": last(19, target_end=12)}, State.TARGET_LOST),
        ({"open_from": 5, "moved_to": 15}, State.TRUNCATED),
    ],
)
def test_offsets_that_move_are_the_sources(facts: dict[str, Any], expected: State | int) -> None:
    _, decision = first_row(observed(**facts), MOVED_OFFSETS)
    assert isinstance(decision, PartitionStop | Position)
    if isinstance(decision, PartitionStop):
        assert decision.state is expected
    else:
        assert (decision.next_offset, decision.end) == (expected, 10)


def test_a_copy_that_another_program_wrote_to_shows_no_source_that_was_cut_back() -> None:
    facts = observed(readable=9)
    assert decide(facts, EQUAL_OFFSETS) is Question.WRITTEN
    for holds_others, state in ((False, State.TRUNCATED), (True, State.DIVERGED)):
        asked = facts.asked | {Question.WRITTEN}
        decision = decide(replace(facts, asked=asked, holds_others=holds_others), EQUAL_OFFSETS)
        assert isinstance(decision, PartitionStop)
        assert decision.state is state


_OFFSETS = st.integers(0, 12)
_SPANS = st.lists(st.tuples(_OFFSETS, _OFFSETS).filter(lambda span: span[0] < span[1]), max_size=2).map(
    lambda spans: tuple(sorted(spans))
)
_EPOCHS = st.integers(-1, 3)
_PRODUCERS = st.sampled_from([OWN, OWN + 1, 1, 1 << 52])
_BATCHES = st.builds(
    lambda make, offset, producer: make(offset, producer=producer),
    st.sampled_from([data, marker]),
    _OFFSETS,
    _PRODUCERS,
)
_LASTS = st.none() | st.builds(
    LastPosition,
    **dict.fromkeys(("source_next", "target_end", "begins"), _OFFSETS),
    **dict.fromkeys(("source_epoch", "epoch_until", "target_epoch"), _EPOCHS),
    stamp=st.none() | st.tuples(_PRODUCERS, st.integers(0, 8), _OFFSETS),
    batch=st.none() | st.builds(lambda base: replace(BATCH, base=base, source_base=base), _OFFSETS),
    was_accepted=st.booleans(),
)
_COMPARISONS = st.builds(
    Comparison,
    epoch=st.none() | st.tuples(_EPOCHS, _OFFSETS),
    begin=_OFFSETS,
    difference=st.sampled_from(["", "the value"]),
    offset=_OFFSETS,
    source_batch=st.none() | _BATCHES,
    target_batch=st.none() | _BATCHES,
    damage=st.none() | st.just(MalformedBatch("damaged", 0)),
    is_kept=st.booleans(),
)
_EMPTY_LAST_BATCHES = st.none() | _BATCHES | st.integers(1, 12).map(padded)
_ANSWERS: dict[Question, dict[str, st.SearchStrategy[Any]]] = {
    Question.RESTORED: {"kept_until": st.none(), "open_from": st.integers(-1, 1)},
    Question.COMPARISON: {"comparison": _COMPARISONS, "open_from": st.sampled_from([-1, -1, 3])},
    Question.PRODUCERS: {
        "producers": st.lists(st.builds(Producer, st.just(OWN), st.integers(0, 8), st.integers(-1, 9)), max_size=2),
        "has_grown": st.booleans(),
    },
    Question.MIRRORED_BATCH: {"instead": st.sampled_from(["", "no batch"])},
    Question.WRITTEN: {name: st.booleans() for name in ("are_markers", "are_in_order", "holds_others")},
    Question.PADDING: {"padding_end": _OFFSETS},
}


@st.composite
def _observations(draw: st.DrawFn) -> Observation:
    start, target_start, tail = draw(_OFFSETS), draw(_OFFSETS), draw(_EMPTY_LAST_BATCHES)
    end = tail.header.next_offset if tail is not None else target_start
    return Observation(
        source=AT,
        target=AT,
        own=ProducerState(OWN),
        since=draw(_OFFSETS),
        accepted=draw(st.none() | st.tuples(_OFFSETS, _OFFSETS)),
        last=draw(_LASTS),
        losses=draw(_SPANS),
        start=start,
        readable=start + draw(_OFFSETS),
        target_start=min(target_start, end),
        end=end,
        tail=tail,
        moved_to=draw(st.just(-1) | _OFFSETS),
        kept_until=draw(st.none() | st.integers(-1, 12)),
        target_kept=draw(st.none() | st.builds(EpochEnd, _EPOCHS, _OFFSETS)),
        source_epoch=draw(_EPOCHS),
    )


@given(st.data(), _observations())
def test_whatever_is_observed_is_decided(drawn: st.DataObject, facts: Observation) -> None:
    """No look is asked for twice, and nothing goes on anywhere but where the target ends."""
    table = EQUAL_OFFSETS if facts.moved_to < 0 else MOVED_OFFSETS
    while isinstance(decision := decide(facts, table), Question):
        assert decision not in facts.asked
        answers = {name: drawn.draw(strategy) for name, strategy in _ANSWERS[decision].items()}
        facts = replace(facts, asked=facts.asked | {decision}, **answers)
    assert isinstance(decision, Position | PartitionStop | MalformedBatch | ClusterUnreachable)
    if not isinstance(decision, Position):
        return
    assert (decision.next_offset, decision.end) == (facts.next_source, facts.end)
    assert decision.begin < 0 or decision.begin > facts.target_start
    assert decision.lost_until < 0 or decision.lost_until == facts.start > decision.next_offset
    if decision.next_offset < facts.start and decision.begin < 0:
        assert decision.lost_until == facts.start, "nothing is passed over but what is named"
        assert facts.accepted is not None, "nobody accepted that"
    if facts.last is not None and decision.end < facts.last.target_end and facts.last.batch is not None:
        first = facts.last.begins if facts.end == 0 else decision.next_offset
        assert decision.target_lost is not None or max(first, decision.next_offset) >= facts.last.source_next
