"""The adversary of re-keyed topics: what it is made of, and a sample of its sessions with Spark on real brokers.

`python -m tests.adversary.rekeyed --schedules 20 --seed 1` hunts on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from adversary.logs import Log, Record
from adversary.rekeyed.play import CAUSED, OPERATIONS, play
from adversary.rekeyed.records import Expected, differences, unburied
from adversary.rekeyed.scripts import ACTS, MOTIFS, TOPICS, Rule, session
from adversary.world import World
from rekeychecker import java_partition

from mirror.states import State

# --- what it is made of (pure) ----------------------------------------------------------------------------------------


def test_a_seed_is_a_session() -> None:
    assert session(7) == session(7)
    assert session(7) != session(8)


def test_a_part_of_a_session_does_the_same_to_the_topics_that_are_left() -> None:
    whole = session(7)
    part = whole.part({1, 4}, 2)
    assert [turn.act for turn in part.turns] == [turn.act for turn in whole.turns[:2]]
    for some, every in zip(part.turns, whole.turns, strict=False):
        for ops, of in ((some.before, every.before), (some.amid, every.amid)):
            assert ops == tuple(op for op in of if op.topic in {1, 4})


def test_every_operation_is_drawn_and_played() -> None:
    turns = [turn for seed in range(200) for turn in session(seed).turns]
    drawn = {op.name for turn in turns for op in (*turn.before, *turn.amid)}
    assert drawn == OPERATIONS == {name for motif in MOTIFS for turn in motif for name in turn.split()} - {"|"}
    assert {turn.act for turn in turns} == set(ACTS)
    assert {op.topic for turn in turns for op in turn.before} == set(range(TOPICS))
    assert {rule.by for seed in range(50) for rule in session(seed).rules} == {"value", "key", "nothing"}
    assert {State(name).is_stop for name in CAUSED} == {True}


RULE = Rule("key", 4, filters=False, on_bad_record="drop")
HELD = {0: {number: Record(number, b"k%d" % (number % 3), b"v%d" % number, ()) for number in range(12)}}
WHOLE = Expected(HELD, {0: (0, 12)}, {})


def _copy(rule: Rule = RULE) -> dict[int, Log]:
    """All that the rule makes, in its place and order."""
    logs = {number: Log(0, 0, 0) for number in range(rule.partitions)}
    for one in HELD[0].values():
        if (key := rule.key_of(one)) is not None:
            log = logs[java_partition(key, rule.partitions)]
            log.records[log.end] = one._replace(key=key)
            log.end = log.stable = log.end + 1
    return logs


def _kinds(copy: dict[int, Log], expected: Expected = WHOLE, rule: Rule = RULE) -> set[str]:
    return {one.what for one in differences("t", rule, expected, copy)}


def test_what_a_rule_makes_is_no_finding() -> None:
    for by in ("value", "key", "nothing"):
        for filters in (False, True):
            rule = replace(RULE, by=by, filters=filters)
            assert not _kinds(_copy(rule), rule=rule)


def test_each_kind_of_fault_is_found() -> None:
    copy = _copy()
    log = next(one for one in copy.values() if one.end > 3)
    first, one = next(iter(log.records.items()))
    faults = {
        "records are missing": {at: each for at, each in log.records.items() if at},
        "records are repeated": log.records | {98: log.records[log.end - 1]},
        "records of nobody": log.records | {98: one._replace(value=b"z")},
        "a record has another key": log.records | {first: one._replace(key=b"x")},
        "records are others": log.records | {first: one._replace(timestamp=99)},
    }
    for kind, records in faults.items():
        changed = copy | {number: Log(0, 99, 99, records) for number, each in copy.items() if each is log}
        assert kind in _kinds(changed), kind
    reversed_ = dict(zip(log.records, reversed(log.records.values()), strict=True))
    changed = copy | {number: Log(0, 99, 99, reversed_) for number, each in copy.items() if each is log}
    assert _kinds(changed) == {"records are out of order"}
    rotated = {(number + 1) % 4: each for number, each in copy.items()}
    assert _kinds(rotated) == {"a record is in another partition"}


def test_what_is_on_record_as_lost_or_was_deleted_may_be_missing() -> None:
    nothing: dict[int, Log] = {number: Log(0, 0, 0) for number in range(4)}
    assert _kinds(nothing) == {"records are missing"}
    assert not _kinds(nothing, replace(WHOLE, losses={0: [(0, 12)]}))
    assert _kinds(nothing, replace(WHOLE, losses={0: [(0, 11)]}))
    assert not _kinds(nothing, replace(WHOLE, due={0: (12, 12)}))
    assert not _kinds(nothing, replace(WHOLE, cleared=range(4)))
    assert not _kinds(_copy(), replace(WHOLE, due={}, losses={0: [(0, 12)]})), "and may be there"


def test_behind_an_open_transaction_nobody_reads() -> None:
    hanging = {number: Log(0, log.end, 0, log.records) for number, log in _copy().items()}
    assert _kinds(hanging) == {"records are missing"}


def test_tombstones_are_distinguished_by_their_keys_and_times() -> None:
    held = {0: {number: Record(number, b"k", None, ()) for number in range(3)}}
    place = java_partition(b"r-k", 4)
    made = {number: one._replace(key=b"r-k") for number, one in held[0].items()}
    copy = {number: Log(0, 4, 4, made if number == place else {}) for number in range(4)}
    expected = Expected(held, {0: (0, 3)}, {})
    assert not _kinds(copy, expected)
    made[3] = made[1]
    assert "records are repeated" in _kinds(copy, expected)


def test_bad_records_are_dead_letters() -> None:
    rule = Rule("value", 4, filters=False, on_bad_record="dead-letter")
    expected = Expected({0: {0: Record(5, b"k", None, ()), 1: Record(6, b"k", b"v", ())}}, {0: (0, 2)}, {})
    letter = Record(5, b"k", None, (("mirror.topic", b"t"),))

    def found(*letters: Record, once: bool = True) -> list[str]:
        log = Log(0, len(letters), len(letters), dict(enumerate(letters)))
        return [one.what for one in unburied("t", rule, expected, log, once=once)]

    assert found() == ["dead letters are missing"]
    assert found(letter) == []
    assert found(letter, letter) == ["dead letters are repeated"]
    assert found(letter, letter, once=False) == []


# --- with Spark, on brokers -------------------------------------------------------------------------------------------

#: Seeds, and how many of their turns and which of their topics are played.
SAMPLE = [(2004, 2, (1, 3, 4))]


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "turns", "topics"), SAMPLE)
def test_a_sample_of_sessions(seed: int, turns: int, topics: tuple[int, ...], tmp_path: Path) -> None:
    with World(tmp_path) as world:
        played = play(world, session(seed).part(topics, turns), verifies=False)
    print(played)
    assert not played.failure
    assert not played.findings, str(played)
