"""What the independent judge of copies (`tests/checker`) makes of two dumps, and of what a journal says of offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from checker import Dump, Expected, Kind, Record, Recorded, compare, compare_translated, read_recorded
from hypothesis import given
from hypothesis import strategies as st

RECORDS = [Record(offset, offset, 0, b"k", b"value %d" % offset, (("h", b"1"),)) for offset in range(20)]


def dumped(records: Sequence[Record], start: int = 0, end: int | None = None) -> Dump:
    last = records[-1].offset + 1 if records else start
    return Dump(start, end or last, end or last, tuple(records), tuple(records))


def at_offsets(records: Sequence[Record], first: int = 0) -> list[Record]:
    """Number them anew."""
    return [record._replace(offset=offset) for offset, record in enumerate(records, first)]


def found_in(source: Dump, target: Dump, **expected: Any) -> list[tuple[Kind, int, int]]:
    return [(one.kind, one.first, one.last) for one in compare(source, target, "t", 0, Expected(**expected))]


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


@pytest.mark.parametrize(
    ("target", "kind", "offset"),
    [
        (RECORDS[:-3], Kind.TAIL_LOST, 17),
        ([*RECORDS, RECORDS[-1]], Kind.REPEATED, 20),
        ([*RECORDS[:10], RECORDS[11], RECORDS[10], *RECORDS[12:]], Kind.SWAPPED, 10),
        ([*RECORDS[:5], Record(0, 5, 0, b"k", b"more", ()), *RECORDS[5:]], Kind.SHIFTED, 6),
        ([*RECORDS, Record(0, 5, 0, b"k", b"more", ())], Kind.EXTRA, 20),
    ],
)
def test_a_difference_is_named_by_what_happened(target: list[Record], kind: Kind, offset: int) -> None:
    assert (kind, offset) in [one[:2] for one in found_in(dumped(RECORDS), dumped(at_offsets(target)))]


@given(logs())
def test_declared_gaps_are_the_real_ones(records: list[Record]) -> None:
    gap, rest = (records[0].offset, records[1].offset), records[1:]
    assert found_in(dumped(records), dumped(rest), gaps=(gap,)) == []
    assert found_in(dumped(records), dumped(rest)) == [(Kind.LOST, gap[0], gap[0])]
    assert found_in(dumped(records), dumped(records), gaps=(gap,)) == [(Kind.GAP_UNTRUE, gap[0], gap[0])]


def test_what_was_deleted_on_the_source_is_compared_with_an_older_dump() -> None:
    now, before = dumped(RECORDS[4:], start=4), dumped(RECORDS)
    assert found_in(now.over(before), before, same_start=False) == []
    wrong = [RECORDS[0]._replace(value=b"?"), *RECORDS[1:]]
    assert found_in(now.over(before), dumped(wrong), same_start=False) == [(Kind.VALUE, 0, 0)]
    assert (Kind.LOG_START, 0, 0) in found_in(now, before)


def test_what_cannot_be_read_is_reported() -> None:
    assert (Kind.UNREADABLE, -1, -1) in found_in(dumped(RECORDS), replace(dumped(RECORDS), error="a bad CRC"))


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


def moves_found(
    source: Dump, target: Dump, expected: Recorded, history: Sequence[Record] = (), **more: Any
) -> list[tuple[Kind, int]]:
    _, found = compare_translated(source, target, expected, Expected(**more), history)
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
        ([run(10, 12, [10], 22)], Kind.RUNS_MISSING, 0),
        ([run(0, 0, [10, 2, 9], 21)], Kind.RUNS_MISSING, 19),
        ([run(0, 0, [10, 2, 11], 23)], Kind.RUNS_WRONG, 20),
        ([run(0, 0, [10], 13), run(10, 12, [10], 22)], Kind.RUNS_WRONG, 10),
        ([run(0, 0, [10, 2], 12), run(10, 12, [10], 22)], Kind.RUNS_UNREADABLE, -1),
        ([run(9, 10, [3], 13), run(0, 0, [10, 2, 10], 22)], Kind.RUNS_WRONG, 9),
    ],
    ids=["skip", "run missing", "first missing", "too short", "too long", "next", "ends with a skip", "older one lies"],
)
def test_a_journal_that_lies_is_found(runs: list[Record], kind: Kind, offset: int) -> None:
    target = dumped(at_offsets(HOLED))
    assert moves_found(dumped(HOLED), target, read_recorded([run(0, 0, [10, 2, 10], 22)], "t", 0)) == []
    assert (kind, offset) in moves_found(dumped(HOLED), target, read_recorded(runs, "t", 0))


@given(logs(), st.data())
def test_a_record_that_the_source_deleted_since_may_be_mapped_anywhere_between_its_neighbours(
    records: list[Record], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    before = records[at - 1].offset if at else -1
    behind = records[at + 1].offset if at + 1 < len(records) else records[-1].offset + 1
    left = dumped([*records[:at], *records[at + 1 :]], end=records[-1].offset + 1)
    for offset in range(max(0, before), behind + 1):
        reported = in_runs(records, 100)
        sources = [*reported.claims[0].sources]
        sources[at] = offset
        reported = replace(reported, claims=(reported.claims[0]._replace(sources=tuple(sources)),))
        found = moves_found(left, dumped(at_offsets(records)), reported, records)
        assert (found == []) is (before < offset < behind or (offset == behind and at + 1 == len(records)))


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_loss_that_is_declared_though_it_is_there(*, forgotten: bool) -> None:
    reported = replace(in_runs(RECORDS, 100), losses=((3, 6),))
    left = dumped([*RECORDS[:4], *RECORDS[5:]])
    found = moves_found(left, dumped(at_offsets(RECORDS)), reported, RECORDS, forgotten=forgotten)
    assert found == [(Kind.GAP_UNTRUE, at) for at in ([3, 5] if forgotten else [3, 4, 5])]


def test_the_newest_record_of_a_journals_key_counts() -> None:
    value: Callable[[int], bytes] = b'{"source":%d,"target":0,"runs":[2],"next":9}'.__mod__
    written = [
        (b"runs/a/0/0", value(3)),
        (b"runs/a/0/0", value(4)),
        (b"runs/a/1/0", value(5)),
        (b"runs/a/0/1", b"[]"),
        (b"runs/a/0/2", value(6)),
        (b"runs/a/0/2", None),
        (b"loss/a/0/7", b'{"first":7,"next":9,"topic":"a"}'),
        (None, b"?"),
    ]
    records = [Record(number, 0, 0, key, item, ()) for number, (key, item) in enumerate(written)]
    found = read_recorded(records, "a", 0)
    assert (found.places, found.losses, found.unreadable) == ({0: 4, 1: 5}, ((7, 9),), ("runs/a/0/1",))
