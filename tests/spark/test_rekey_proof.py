"""What a proof of a re-keyed topic makes of records on both sides. Each case has a target partition of its own, so that
one query judges all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mirror.kafka.cluster import Endpoint
from mirror.policy.selection import Rekeying
from mirror.spark.rekey.packing import BURIED
from mirror.spark.rekey.verify import _DDL, ComparedExtent, RekeySubject, _judged
from mirror.verify.report import DifferenceKind, Lack, RekeyedReport, Shortfall

PARTITIONS = 12
RULE = Rekeying(
    source="orders", target="by-user", partitions=PARTITIONS, dead_letter="dead", progress="mirror.f.rekey.by-user"
)
SUBJECT = RekeySubject(flow="f", rule=RULE, source=Endpoint("none", ()), target=Endpoint("none", ()))
BEGIN, END = dict.fromkeys(range(PARTITIONS), 0), dict.fromkeys(range(PARTITIONS), 99)
EXTENT = ComparedExtent(
    begin=BEGIN,
    reached=END,
    done=END,
    end=END,
    written=END,
    target_begin=BEGIN,
    target_end=END,
    dead_begin={0: 0},
    dead_end={0: 99},
    source_id=None,
    target_id=None,
)


@pytest.fixture(autouse=True)
def few_rows(spark: SparkSession) -> Iterator[None]:
    """What is quick for tens of rows: code is not compiled for each query, and there is one partition to shuffle to."""
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, former in before.items():
        spark.conf.set(name, str(former))


@dataclass(frozen=True, slots=True)
class Case:
    """Records that the rule makes and records that are there, as words of one key and one value: `a1`, or `a` for a
    deletion, or `-1` without a key. A wanted one with `?` is ahead of the plan and need not be there, one with `2:` is
    of another source partition. `expected`: the differences, each with its source offset, or with the target's of an
    extra one.
    """

    wanted: str
    found: str
    expected: tuple[tuple[DifferenceKind, int], ...] = ()
    #: Of each wanted and each found record its time, and whether a broker gave it that.
    times: tuple[tuple[tuple[int, bool], ...], tuple[tuple[int, bool], ...]] = field(default=((), ()))


def judged(
    spark: SparkSession, cases: Mapping[int, Case], subject: RekeySubject = SUBJECT, extent: ComparedExtent = EXTENT
) -> tuple[RekeyedReport, list[Shortfall]]:
    """Judge cases, by their target partitions."""

    def row(place: int, at: int, word: str, dated: tuple[int, bool], *, is_source: bool) -> tuple[Any, ...]:
        required, _, text = word.rpartition("?") if "?" in word else ("!", "", word)
        other, _, text = text.rpartition(":")
        origin = (max(place, 0) if not other else PARTITIONS) if is_source else -1
        key = None if text[0] == "-" else text[0].encode()
        is_required = is_source and bool(required)
        return (place, origin, at, 0, key, len(text) == 1, text.encode(), is_required, *dated)

    def rows(is_source: bool) -> list[tuple[Any, ...]]:
        every = []
        for place, case in cases.items():
            words = (case.wanted if is_source else case.found).split()
            times = case.times[0 if is_source else 1] or [(0, False)] * len(words)
            every += [
                row(place, at, word, dated, is_source=is_source)
                for at, (word, dated) in enumerate(zip(words, times, strict=True))
            ]
        return every

    return _judged(subject, extent, *(spark.createDataFrame(rows(side), _DDL) for side in (True, False)))


def by_place(report: RekeyedReport) -> dict[int, set[tuple[DifferenceKind, int]]]:
    """Return the differences by target partition, each with its offset."""
    found: dict[int, set[tuple[DifferenceKind, int]]] = {}
    for one in report.differences:
        place = int(re.sub(r".*by-user-(\d+).*", r"\1", one.target)) if "by-user" in one.target else BURIED
        extra = re.search(r"at offset (\d+)", one.target)
        found.setdefault(place, set()).add((one.kind, int(extra[1]) if extra else one.offset))
    return found


def expected(cases: Mapping[int, Case]) -> dict[int, set[tuple[DifferenceKind, int]]]:
    return {place: set(case.expected) for place, case in cases.items() if case.expected}


def test_each_record_is_there_once_in_its_partition_and_in_order(spark: SparkSession) -> None:
    cases = {
        0: Case("a1 a2 2:a3 -4 ?b5", "a3 a1 a2 -4"),
        1: Case("a1 a2 ?b3", "a1 a2 b3"),
        2: Case("a1 a2 a3", "a1 a2", ((DifferenceKind.MISSING, 2),)),
        3: Case("a1 a2", "a1 a2 a2", ((DifferenceKind.EXTRA, 1),)),
        4: Case("a1", "", ((DifferenceKind.MISSING, 0),)),
        5: Case("", "a1", ((DifferenceKind.EXTRA, 0),)),
        6: Case("a1 a2 a3", "a2 a1 a3", ((DifferenceKind.ORDER, 1),)),
        7: Case("a1 2:a2", "a2 a1"),
        8: Case("ax ay ax", "ax ay ax"),
        9: Case("ax ay ax", "ax ax ay", ((DifferenceKind.ORDER, 2),)),
        BURIED: Case("a1 a9", "z7 a1", ((DifferenceKind.MISSING, 1),)),
    }
    report, lacks = judged(spark, cases)
    assert by_place(report) == expected(cases)
    assert (report.different, report.buried, lacks) == (7, 2, [])
    missing = "orders-2 at offset 2: missing: 1 record on the source, none in by-user-2 on the target"
    assert missing in map(str, report.differences)


@pytest.mark.parametrize("side", ["source", "target"])
def test_what_either_side_deleted_since_is_not_verified_and_no_difference(spark: SparkSession, side: str) -> None:
    later = BEGIN | {0: 1}
    extent = replace(EXTENT, begin=later) if side == "source" else replace(EXTENT, target_begin=later)
    cases = {0: Case("a2", "a1 a2") if side == "source" else Case("a1 a2", "a2")}
    report, lacks = judged(spark, cases, extent=extent)
    assert (report.different, [(one.kind, one.offsets) for one in lacks]) == (0, [(Lack.NOT_VERIFIED, 1)])


def test_a_record_may_be_missing_that_the_cleaner_of_the_target_took(spark: SparkSession) -> None:
    """Where both sides are compacted by the same keys, or the rule asks for it."""
    cases = {
        0: Case("a1 a2 b1 b c3", "a2 c3"),
        1: Case("c3", "", ((DifferenceKind.MISSING, 0),)),
        2: Case("a1 a2", "a1", ((DifferenceKind.MISSING, 1),)),
        3: Case("b1 b", "b1", ((DifferenceKind.MISSING, 1),)),
        4: Case("a1 ?a2", "a2"),
        5: Case("c3 ?c", ""),
        6: Case("a1 a2 2:a3 2:a4", "a2"),
        7: Case("a1 a2 2:a3 2:a4", "a4"),
        8: Case("a1 a2 2:a3 2:a4", "a1 a3", ((DifferenceKind.MISSING, 1), (DifferenceKind.MISSING, 3))),
    }
    rule = replace(RULE, compacted=True, tombstones_ms=1)
    report, _ = judged(spark, cases, subject=replace(SUBJECT, rule=rule))
    assert by_place(report) == expected(cases)
    assert replace(RULE, compacted=True, rekey="other", may_compact=True).fits_compaction
    unasked = {0: Case("a1 a2", "a2", ((DifferenceKind.MISSING, 0),))}
    report, _ = judged(spark, unasked, subject=replace(SUBJECT, rule=replace(RULE, compacted=True)))
    assert by_place(report) == expected(unasked)


def test_times_may_differ_only_where_brokers_of_both_sides_may_stamp(spark: SparkSession) -> None:
    def times(*dated: int | str) -> tuple[tuple[int, bool], ...]:
        """`7`: the record's own time; `"7"`: a broker's."""
        return tuple((int(one), isinstance(one, str)) for one in dated)

    every = tuple((kind, at) for at in range(3) for kind in (DifferenceKind.MISSING, DifferenceKind.EXTRA))
    cases = {
        0: Case("ax ax ax", "ax ax ax", (), (times(1, 2, 3), times(1, 2, 3))),
        1: Case("ax ay az", "ax ay az", every, (times(1, 2, 3), times("7", "8", "9"))),
        2: Case("ax ax ax", "ax ax ax", (), (times("1", "2", "3"), times("7", "7", "9"))),
        3: Case("ax ay az", "ax ay az", every, (times("1", "2", "3"), times(7, 8, 9))),
        4: Case("ax ax ax", "ax ax ax", (), (times("1", "2", 3), times(1, "9", 3))),
        5: Case("a1 a2", "a1 a2", (), (times("1", "2"), times("8", "9"))),
        6: Case("a1 a2", "a2 a1", ((DifferenceKind.ORDER, 1),), (times("1", "2"), times("8", "9"))),
    }
    report, _ = judged(spark, cases)
    assert by_place(report) == expected(cases)
    assert report.own_timestamps == 3 + 1 + 2 + 2
