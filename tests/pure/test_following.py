"""What is committed for a group: never ahead of the records, never back on its own, and only once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.groups.decide import Agreement, Decision, GroupStanding, decide
from mirror.groups.gap import FURTHER, CopyEnds, Stand
from mirror.kafka.cluster import TopicPartition
from mirror.kafka.groups import Committed

OFFSETS = st.integers(0, 12)  # few values, so that they meet
COMMITTED = st.builds(Committed, OFFSETS, st.sampled_from(["", "a", "b"]))
AGREEMENTS = st.builds(lambda source, less: Agreement(source, max(0, source.offset - less)), COMMITTED, OFFSETS)


@given(COMMITTED, OFFSETS, st.none() | COMMITTED, st.none() | AGREEMENTS)
def test_every_decision(source: Committed, end: int, target: Committed | None, agreed: Agreement | None) -> None:
    made = decide(source, end, target, agreed)
    if made.commit:
        assert made.commit.offset <= min(source.offset, end), "F1"
        assert made.agreed == Agreement(source, made.commit.offset)
    if made.commit and target and target.offset > end and source.offset >= end:
        assert made.commit.offset == end, "F6"
    elif made.commit and target and made.commit.offset < target.offset:
        assert agreed, "F2"
        assert (target.offset, source.offset < agreed.source.offset) == (agreed.target, True), "F2"
    held = made.commit or target
    assert held, "a group without an offset gets one"
    assert decide(source, end, held, made.agreed).commit is None, "F4"
    again = decide(source, end, held, None).commit  # by another process, which asks for a refused text once more
    assert again is None or (made.commit is None and again == source and again.offset == held.offset), "F4"
    if made.standing is GroupStanding.SYNCED:
        assert held.offset == source.offset
    if made.standing is GroupStanding.HELD_BACK:
        assert held.offset == end < source.offset
    if made.standing is GroupStanding.AHEAD:
        assert held.offset > min(source.offset, end)


@given(st.lists(st.tuples(OFFSETS, OFFSETS, st.booleans()), min_size=1))
def test_a_target_that_nobody_else_touches_follows_every_move(moves: list[tuple[int, int, bool]]) -> None:
    """The source goes forth and back, the mirror's end grows, commits fail now and then; in the end both are equal."""
    target, agreed, end = None, None, 0
    for offset, more, taken in [*moves, (moves[-1][0], 12, True)]:
        end += more
        made = decide(Committed(offset), end, target, agreed)
        if made.commit is None or taken:
            target, agreed = made.commit or target, made.agreed
        assert made.standing is not GroupStanding.AHEAD
    assert target == Committed(moves[-1][0])


@given(OFFSETS, st.lists(st.tuples(OFFSETS, st.integers(1, 5))))
def test_a_group_that_went_on_at_the_target_is_never_put_back(begin: int, moves: list[tuple[int, int]]) -> None:
    target, agreed = None, None
    for offset, consumed in [(begin, 1), *moves]:
        made = decide(Committed(offset), 100, target, agreed)
        assert made.commit is None or target is None or made.commit.offset > target.offset
        agreed = made.agreed
        target = Committed((made.commit or target or Committed(0)).offset + consumed)


AT_50 = Committed(50, "x")
BOTH_50 = Agreement(AT_50, 50)


DECISIONS: dict[str, tuple[Committed, int, Committed | None, Agreement | None, Decision]] = {
    "fresh": (AT_50, 90, None, None, Decision(AT_50, GroupStanding.SYNCED, BOTH_50)),
    "equal": (AT_50, 90, AT_50, None, Decision(None, GroupStanding.SYNCED, BOTH_50)),
    "other metadata": (AT_50, 90, Committed(50), None, Decision(AT_50, GroupStanding.SYNCED, BOTH_50)),
    "metadata refused before": (AT_50, 90, Committed(50), BOTH_50, Decision(None, GroupStanding.SYNCED, BOTH_50)),
    "consumed there": (AT_50, 90, Committed(51), None, Decision(None, GroupStanding.AHEAD, None)),
    "lagging": (AT_50, 20, None, None, Decision(Committed(20), GroupStanding.HELD_BACK, Agreement(AT_50, 20))),
    "rewound": (
        Committed(40),
        90,
        AT_50,
        BOTH_50,
        Decision(Committed(40), GroupStanding.SYNCED, Agreement(Committed(40), 40)),
    ),
    "ahead of a stranger": (Committed(40), 90, AT_50, None, Decision(None, GroupStanding.AHEAD, None)),
    "target lost its end": (
        AT_50,
        30,
        AT_50,
        BOTH_50,
        Decision(Committed(30), GroupStanding.HELD_BACK, Agreement(AT_50, 30)),
    ),
    "target lost its end behind a reader": (
        AT_50,
        30,
        Committed(70),
        None,
        Decision(Committed(30), GroupStanding.HELD_BACK, Agreement(AT_50, 30)),
    ),
    "target lost what only it has read": (
        AT_50,
        50,
        Committed(70),
        None,
        Decision(AT_50, GroupStanding.SYNCED, BOTH_50),
    ),
    "target has its end again": (
        AT_50,
        90,
        Committed(30),
        Agreement(AT_50, 30),
        Decision(AT_50, GroupStanding.SYNCED, BOTH_50),
    ),
    "target lost its end and read on alone": (
        Committed(20),
        30,
        AT_50,
        None,
        Decision(None, GroupStanding.AHEAD, None),
    ),
}


@pytest.mark.parametrize(("source", "end", "target", "agreed", "made"), DECISIONS.values(), ids=DECISIONS)
def test_decisions(
    source: Committed, end: int, target: Committed | None, agreed: Agreement | None, made: Decision
) -> None:
    assert decide(source, end, target, agreed) == made


@given(COMMITTED, OFFSETS, OFFSETS, st.none() | COMMITTED, st.none() | AGREEMENTS)
def test_no_group_is_put_below_the_log_start(
    source: Committed, start: int, more: int, target: Committed | None, agreed: Agreement | None
) -> None:
    end = start + more
    made = decide(source, end, target, agreed, start)
    if made.commit:
        assert start <= made.commit.offset <= end, "F1"
        assert made.commit.offset <= max(source.offset, start), "F1"
    held = made.commit or target
    assert held
    assert held.offset >= min(start, source.offset if target is None else target.offset)
    assert decide(source, end, held, made.agreed, start).commit is None, "F4"
    if made.standing is GroupStanding.EXPIRED:
        assert source.offset < start == held.offset
    if start <= source.offset:
        assert made == decide(source, end, target, agreed), "where nothing expired, the log start changes nothing"


@pytest.mark.parametrize(
    ("wanted", "reached", "ends", "gap"),
    [
        (90, 90, CopyEnds(start=0, end=100), None),
        (90, 10, CopyEnds(start=0, end=100), (80, 0)),
        (20, 70, CopyEnds(start=0, end=100), (0, 50)),
        (40, 90, CopyEnds(start=90, end=100), (0, 50)),
        (40, None, CopyEnds(start=0, end=100), (40, 60)),
        (120, 100, CopyEnds(start=0, end=100), (0, 0)),
        (120, None, CopyEnds(start=30, end=100), (70, 0)),
        (0, None, CopyEnds(start=0, end=0), (0, 0)),
    ],
    ids=["there", "behind", "ahead", "expired", "none", "lagging", "none-and-lagging", "none-and-empty"],
)
def test_what_a_group_reads_again_or_misses(
    wanted: int, reached: int | None, ends: CopyEnds, gap: tuple[int, int] | None
) -> None:
    assert ends.gap(ends.due(wanted), reached) == gap


@pytest.mark.parametrize(
    ("start", "offset", "reached", "said"),
    [
        (40, 50, 50, None),
        (80, 50, 80, None),
        (40, 50, 45, (5, 0, "its offset was not committed there")),
        (150, 50, 150, (0, 50, "the target deleted its next records, of which the source still has 50")),
        (40, 50, 120, (0, 20, FURTHER)),
        (40, 50, None, (10, 200, "its offset was not committed there")),
        (40, 1000, 300, None),
    ],
    ids=["there", "at-the-copy's-start", "behind", "expired", "ahead", "none", "in-a-tail-that-the-source-lost"],
)
def test_what_the_source_does_not_have_either_is_no_gap(
    start: int, offset: int, reached: int | None, said: tuple[int, int, str] | None
) -> None:
    """The source deleted what lies below offset 100: a group that stood before that has not read it, and nobody misses
    it who passes over it.
    """
    gap = Stand(
        group="g",
        at=TopicPartition("t", 0),
        target_topic="t",
        source_offset=offset,
        wanted=offset,
        reached=reached,
        ends=CopyEnds(start=start, end=300, source_start=100, source_end=300),
        holds=300,
    ).gap()
    assert (gap and (gap.reads_again, gap.misses, gap.cause)) == said
