"""The adversary finds what is planted, and what it takes out of the mirror exists."""

from __future__ import annotations

import pkgutil
from dataclasses import replace

import pytest
from adversary.driving import ORDERS
from adversary.judging import Allowed, differences, moved_differences, vanished
from adversary.logs import Log, Record
from adversary.mends import MENDS
from adversary.operations import REPERTOIRES, Op, schedule, written
from adversary.play import OPERATIONS
from adversary.rekeyed.play import CAUSED
from adversary.rekeyed.play import OPERATIONS as REKEYED_OPERATIONS
from adversary.rekeyed.records import Expected
from adversary.rekeyed.records import differences as rekeyed_differences
from adversary.rekeyed.scripts import Rule, session
from rekeychecker import java_partition

from mirror.states import State


@pytest.mark.parametrize("name", sorted({name for mend in MENDS for name in mend.replaced} | {*ORDERS}))
def test_what_is_taken_out_of_the_mirror_exists(name: str) -> None:
    assert pkgutil.resolve_name(name) is not None


def test_what_mends_play_exists() -> None:
    assert len({mend.name for mend in MENDS}) == len(MENDS)
    for mend in MENDS:
        played = written(mend.plays, **mend.flow)
        assert {op.name for op in played.operations} <= OPERATIONS
        assert "; ".join(map(str, played.operations)) == "; ".join(str(Op.read(op)) for op in mend.plays.split("; "))


def test_a_seed_is_a_schedule_of_operations_that_can_be_played() -> None:
    assert schedule(7) == schedule(7) != schedule(8)
    drawn = [schedule(seed, name) for seed in range(200) for name in REPERTOIRES]
    assert {op.name for each in drawn for op in each.operations} == OPERATIONS
    assert all(Op.read(str(op)) == op for each in drawn for op in each.operations)
    assert session(7) == session(7) != session(8)
    turns = [turn for seed in range(200) for turn in session(seed).turns]
    assert {op.name for turn in turns for op in (*turn.before, *turn.amid)} == REKEYED_OPERATIONS
    assert all(State(name).is_stop for name in CAUSED)


def _log(text: str, start: int = 0) -> Log:
    held = {number: Record(number, None, value.encode(), ()) for number, value in enumerate(text)}
    end = len(text)
    return Log(start, end, end, {offset: record for offset, record in held.items() if offset >= start})


WHOLE = _log("abcd")
#: A source that has deleted offsets 0 and 1, and what it held there.
CUT, HISTORY = _log("abcd", start=2), {offset: WHOLE.records[offset] for offset in (0, 1)}
X = Record(0, None, b"x", ())


@pytest.mark.parametrize(
    ("source", "copy", "allowed", "kinds"),
    [
        (WHOLE, _log("abcd"), Allowed(), []),
        (WHOLE, _log("abc"), Allowed(), ["the copy ends early", "records are missing"]),
        (WHOLE, _log("axcd"), Allowed(), ["records are others"]),
        (WHOLE, _log("axcd"), Allowed(confirmed=2), []),
        (WHOLE, _log("abcde"), Allowed(), ["the copy ends late", "records of nobody"]),
        (WHOLE, _log("abcd", start=2), Allowed(), ["the copy begins late"]),
        (WHOLE, _log("abcd", start=2), Allowed(start=2), []),
        (WHOLE, replace(WHOLE, stable=3), Allowed(), ["a transaction hangs"]),
        (WHOLE, replace(WHOLE, records=CUT.records), Allowed(), ["records are missing"]),
        (WHOLE, replace(WHOLE, records=CUT.records), Allowed(losses=((0, 2),)), []),
        (CUT, _log("abcd"), Allowed(history=HISTORY), []),
        (CUT, _log("axcd"), Allowed(history=HISTORY), ["records are others"]),
        (CUT, _log("xbcd"), Allowed(history=HISTORY, former={0: [X]}), []),
        (WHOLE, _log("abcd", start=1), Allowed(start=1, copied={0: [WHOLE.records[0]]}), []),
        (WHOLE, _log("abcd", start=1), Allowed(start=1, copied={0: [X]}), ["records were never copied"]),
        (WHOLE, _log("abcd", start=1), Allowed(start=None, copied={}), []),
    ],
)
def test_copies_with_equal_offsets_are_judged(source: Log, copy: Log, allowed: Allowed, kinds: list[str]) -> None:
    assert [found.what for found in differences("t-0", source, copy, allowed)] == kinds


@pytest.mark.parametrize(
    ("copy", "kinds"),
    [
        (_log("abcd"), []),
        (_log("abc"), ["records are missing"]),
        (_log("abcxd"), ["records of nobody"]),
        (_log("bacd"), ["records are repeated or out of order"]),
    ],
)
def test_copies_whose_offsets_move_are_judged(copy: Log, kinds: list[str]) -> None:
    assert [found.what for found in moved_differences("t-0", WHOLE, copy, Allowed(own_times=True))] == kinds


@pytest.mark.parametrize(
    ("after", "start", "end", "kinds"),
    [
        (_log("ab"), 0, None, ["a log got shorter", "records are gone"]),
        (_log("ab"), 0, 2, []),
        (_log("abcd", start=2), 0, None, ["records were deleted"]),
        (_log("abcd", start=2), 2, None, []),
        (_log("axcd"), 0, None, ["records are gone"]),
    ],
)
def test_what_vanishes_is_found(after: Log, start: int, end: int | None, kinds: list[str]) -> None:
    assert [found.what for found in vanished("t-0", WHOLE, after, start, end)] == kinds


RULE = Rule("key", 4, filters=False, on_bad_record="drop")
HELD = {0: {number: Record(number, b"k%d" % (number % 3), b"v%d" % number, ()) for number in range(12)}}
EXPECTED = Expected(HELD, {0: (0, 12)}, {})


def _rekeyed(rule: Rule) -> dict[int, Log]:
    """All that the rule makes, in its place and order."""
    logs = {number: Log(0, 0, 0) for number in range(rule.partitions)}
    for record in HELD[0].values():
        if (key := rule.key_of(record)) is not None:
            log = logs[java_partition(key, rule.partitions)]
            log.records[log.end] = record._replace(key=key)
            log.end = log.stable = log.end + 1
    return logs


def _kinds(copy: dict[int, Log]) -> set[str]:
    return {found.what for found in rekeyed_differences("t", RULE, EXPECTED, copy)}


def test_each_fault_of_a_rekeyed_copy_is_found() -> None:
    copy = _rekeyed(RULE)
    place, log = next((number, log) for number, log in copy.items() if log.end > 3)
    first, record = next(iter(log.records.items()))
    faults: dict[str, dict[int, Record]] = {
        "records are missing": {offset: each for offset, each in log.records.items() if offset},
        "records are repeated": log.records | {98: log.records[log.end - 1]},
        "records of nobody": log.records | {98: record._replace(value=b"z")},
        "a record has another key": log.records | {first: record._replace(key=b"x")},
        "records are others": log.records | {first: record._replace(timestamp=99)},
        "records are out of order": dict(zip(log.records, reversed(log.records.values()), strict=True)),
    }
    for kind, records in faults.items():
        assert kind in _kinds(copy | {place: Log(0, 99, 99, records)}), kind
    assert _kinds({(number + 1) % 4: each for number, each in copy.items()}) == {"a record is in another partition"}
    assert _kinds(copy | {place: replace(log, stable=0)}) == {"records are missing"}, "behind an open transaction"
