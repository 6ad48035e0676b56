"""What the independent judge of copies (`tests/checker`) makes of two dumps, and of what a journal says of offsets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from checker import Dump, Kind, Record, Recorded, compare, compare_translated, read_recorded
from hypothesis import given
from hypothesis import strategies as st

RECORDS = [Record(offset, offset, 0, b"k", b"value %d" % offset, (("h", b"1"),)) for offset in range(20)]


def dumped(records: Sequence[Record], start: int = 0, end: int | None = None) -> Dump:
    last = records[-1].offset + 1 if records else start
    return Dump(start, end or last, end or last, tuple(records), tuple(records))


def at_offsets(records: Sequence[Record], first: int = 0) -> list[Record]:
    """Number them anew."""
    return [record._replace(offset=offset) for offset, record in enumerate(records, first)]


def found_in(source: Dump, target: Dump) -> list[tuple[Kind, int, int]]:
    return [(one.kind, one.first, one.last) for one in compare(source, target, "t", 0)]


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records at rising offsets, with holes, and contents that may repeat."""
    offsets = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=20)))
    few = st.sampled_from([b"a", b"b", None])
    return [Record(offset, draw(st.integers(0, 3)), 0, draw(few), draw(few), ()) for offset in offsets]


@given(logs(), st.data())
def test_any_change_of_a_record_is_found(records: list[Record], data: st.DataObject) -> None:
    assert found_in(dumped(records), dumped(records)) == []
    at = data.draw(st.integers(0, len(records) - 1))
    field = data.draw(st.sampled_from(["timestamp", "timestamp_type", "key", "value", "headers"]))
    other: Any = {"timestamp": 9, "timestamp_type": 1, "key": b"z", "value": b"z", "headers": (("z", None),)}[field]
    changed = [*records[:at], records[at]._replace(**{field: other}), *records[at + 1 :]]
    assert [one[1:] for one in found_in(dumped(records), dumped(changed))] == [(records[at].offset,) * 2]


@given(logs(), st.data())
def test_any_record_that_is_missing_moved_or_too_much_is_found(records: list[Record], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    end = records[-1].offset + 10
    without = [*records[:at], *records[at + 1 :]]
    free = data.draw(st.sampled_from(sorted(set(range(end)) - {record.offset for record in records})))
    moved = sorted([*without, records[at]._replace(offset=free)])
    more = sorted([*records, records[at]._replace(offset=free)])
    for target in (without, moved, more):
        assert found_in(dumped(records, end=end), dumped(target, end=end))


# --- where offsets move -----------------------------------------------------------------------------------------------


def in_runs(records: Sequence[Record], size: int) -> Recorded:
    """What a right journal says, `size` records in one of its own."""
    written = []
    for begin in range(0, len(records), size):
        part = [record.offset for record in records[begin : begin + size]]
        lengths, behind = [1], part[0] + 1
        for offset in part[1:]:
            if offset == behind:
                lengths[-1] += 1
            else:
                lengths += [offset - behind, 1]
            behind = offset + 1
        written.append(run(begin, part[0], lengths, behind))
    return read_recorded(written, "t", 0)


def run(target: int, source: int, lengths: list[int], following: int) -> Record:
    value = json.dumps({"source": source, "target": target, "runs": lengths, "next": following}).encode()
    return Record(0, 0, 0, b"runs/t/0/%d" % target, value, ())


def moves_found(source: Dump, target: Dump, expected: Recorded) -> list[tuple[Kind, int]]:
    _, found = compare_translated(source, target, expected)
    return [(kind, at) for kind, at, _ in found]


@given(logs(), st.integers(1, 5), st.data())
def test_any_record_or_claim_that_is_wrong_is_found(records: list[Record], size: int, data: st.DataObject) -> None:
    reported, source, target = in_runs(records, size), dumped(records), dumped(at_offsets(records))
    assert moves_found(source, target, reported) == []
    at = data.draw(st.integers(0, len(records) - 1))
    without = [*records[:at], *records[at + 1 :]]
    assert moves_found(dumped(without, end=50), target, reported) != []
    assert moves_found(source, dumped(at_offsets(without)), reported) != []
    assert moves_found(source, dumped(at_offsets([*records[: at + 1], *records[at:]])), reported) != []
    number = data.draw(st.integers(0, len(reported.claims) - 1))
    claim = reported.claims[number]
    others = (*reported.claims[:number], *reported.claims[number + 1 :])
    assert moves_found(source, target, replace(reported, claims=others)) != []
    for by in (-1, 1):
        shifted = claim._replace(sources=tuple(offset + by for offset in claim.sources))
        assert moves_found(source, target, replace(reported, claims=(*others, shifted))) != []


#: The source has no record at 10 and 11: two runs of ten.
HOLED = [*RECORDS[:10], *at_offsets(RECORDS[10:], 12)]


@pytest.mark.parametrize(
    ("runs", "kind", "offset"),
    [
        ([run(0, 0, [10, 1, 10], 21)], Kind.RUNS_WRONG, 10),
        ([run(0, 0, [10], 12)], Kind.RUNS_MISSING, 10),
        ([run(0, 0, [10, 2, 9], 21)], Kind.RUNS_MISSING, 19),
        ([run(0, 0, [10], 13), run(10, 12, [10], 22)], Kind.RUNS_WRONG, 10),
        ([run(9, 10, [3], 13), run(0, 0, [10, 2, 10], 22)], Kind.RUNS_WRONG, 9),
    ],
    ids=["skip", "run missing", "too short", "next", "older one lies"],
)
def test_a_journal_that_lies_is_found(runs: list[Record], kind: Kind, offset: int) -> None:
    target = dumped(at_offsets(HOLED))
    assert moves_found(dumped(HOLED), target, read_recorded([run(0, 0, [10, 2, 10], 22)], "t", 0)) == []
    assert (kind, offset) in moves_found(dumped(HOLED), target, read_recorded(runs, "t", 0))
