"""Reports of partitions and groups, as the journal keeps them, and their totals."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scraped import report

from mirror.observability.status import BOUNDS, PartitionStatus, Totals
from mirror.states import State

COUNT = st.integers(0, 2**63 - 1)
FIGURES = st.builds(
    PartitionStatus,
    flow=st.text(),
    instance=st.text(),
    topic=st.text(),
    partition=COUNT,
    target_topic=st.text(),
    state=st.sampled_from(State),
    detail=st.text(),
    next_offset=COUNT,
    log_end=COUNT,
    lag_records=COUNT,
    lag_ms=st.none() | COUNT,
    records=COUNT,
    batches=COUNT,
    bytes=COUNT,
    verdicts=st.dictionaries(st.text(), COUNT),
    at_ms=COUNT,
)


@given(FIGURES)
def test_round_trip(figures: PartitionStatus) -> None:
    assert PartitionStatus.from_json(figures.to_json()) == figures


@pytest.mark.parametrize(
    "change",
    [
        {"state": "SLEEPING"},
        {"state": 1},
        {"partition": "2"},
        {"partition": True},
        {"next_offset": None},
        {"lag_ms": 1.5},
        {"lag_ms": 2**63},
        {"at_ms": -(2**63) - 1},
        {"verdicts": []},
        {"verdicts": {"RESTAMP/own_producer": "3"}},
        {"verdicts": {"RESTAMP/own_producer": 2**63}},
        {"latency": {"counts": [0], "total": 0.0}},
        {"latency": {"counts": [-1] * (len(BOUNDS) + 1), "total": 0.0}},
        {"latency": {"counts": [0] * (len(BOUNDS) + 1), "total": float("nan")}},
    ],
)
def test_values_of_the_wrong_kind_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^PartitionStatus: {next(iter(change))}[:.]"):
        PartitionStatus.from_json(json.dumps({**json.loads(report().to_json()), **change}).encode())


def test_text_that_could_not_be_shown_is_written_and_not_read() -> None:
    value = report(detail="half a character: \ud800").to_json()
    assert json.loads(value) == {**json.loads(report().to_json()), "detail": "half a character: \ud800"}
    with pytest.raises(ValueError, match=r"^PartitionStatus: Invalid JSON"):
        PartitionStatus.from_json(value)


def test_unknown_keys_are_ignored_and_some_have_defaults() -> None:
    assert report(partition=2, target_topic="eu.orders").key() == b"state/eu.orders/2"
    value = {**json.loads(report().to_json()), "from_the_future": [1]}
    for name in ("detail", "verdicts", "lag_ms"):
        del value[name]
    assert PartitionStatus.from_json(json.dumps(value).encode()) == report()
    del value["log_end"]
    with pytest.raises(ValueError, match=r"^PartitionStatus: log_end: Field required$"):
        PartitionStatus.from_json(json.dumps(value).encode())


def test_totals() -> None:
    totals = Totals.of(
        [
            report(lag_ms=5, records=10, batches=1, bytes=100, verdicts={"RESTAMP/own_producer": 1}),
            report(state=State.CORRUPT, lag_ms=None, verdicts={"RESTAMP/own_producer": 2, "DROP/control": 1}),
            report(state=State.CORRUPT, lag_ms=9, records=1, batches=2, bytes=3, filled=7, lost=2),
        ]
    )
    assert totals == Totals(
        partitions=3,
        states={State.MIRRORING: 1, State.CORRUPT: 2},
        stopped=2,
        lag_records=6,
        lag_unknown=0,
        lag_ms=9,
        records=11,
        batches=3,
        bytes=103,
        filled=7,
        lost=2,
        verdicts={"RESTAMP/own_producer": 3, "DROP/control": 1},
    )
    assert (Totals.of([]).lag_ms, Totals.of([]).lag_records) == (None, None)
    partly = Totals.of([report(lag_records=4), report(state=State.PAUSED, lag_records=None)])
    assert (partly.lag_records, partly.lag_unknown) == (4, 1)
    unknown = Totals.of([report(state=State.UNAVAILABLE, lag_records=None)])
    assert (unknown.lag_records, unknown.lag_unknown) == (None, 1), "not 0: nobody knows it"


def test_a_lag_is_of_the_end_that_is_known_now() -> None:
    stopped = report(state=State.CORRUPT, next_offset=5, log_end=9, lag_records=None)
    assert (stopped.with_end(25).lag_records, stopped.with_end(25).log_end) == (20, 25)
    assert stopped.with_end(25, 22).lag_records == 3, "the source deleted the others"
    assert stopped.with_end(25).with_end(None).lag_records is None, "the source went away"
    assert stopped.lag_bytes is None
    assert report(state=State.PAUSED, next_offset=-1, lag_records=None).with_end(25).lag_records is None
    assert report(state=State.RECREATED, next_offset=5, lag_records=3).with_end(25).lag_records is None, "another topic"
    assert report(state=State.PAUSED, next_offset=30, lag_records=3).with_end(25).lag_records is None, "it lost records"
    assert PartitionStatus.from_json(stopped.to_json()).lag_records is None
