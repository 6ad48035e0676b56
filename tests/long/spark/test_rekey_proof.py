"""What a proof of a re-keyed topic makes of records on both sides, by Spark alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mirror.kafka.cluster import Endpoint
from mirror.policy.selection import Rekeying
from mirror.spark.rekey.packing import BURIED
from mirror.spark.rekey.verify import _DDL, Extent, Subject, _behind, _judged
from mirror.verify.report import Kind, Lack, RekeyedReport, Shortfall

pytestmark = pytest.mark.spark

RULE = Rekeying(source="orders", target="by-user", partitions=2, dead_letter="dead", progress="mirror.f.rekey.by-user")
NOWHERE = Endpoint("none", ())
SUBJECT = Subject(flow="f", rule=RULE, source=NOWHERE, target=NOWHERE)
EXTENT = Extent(
    begin={0: 0, 1: 0},
    reached={0: 9, 1: 9},
    done={0: 9, 1: 9},
    end={0: 9, 1: 9},
    written={0: 9, 1: 9},
    target_begin={0: 0, 1: 0},
    target_end={0: 9, 1: 9},
    dead_begin={0: 0},
    dead_end={0: 9},
    source_id=None,
    target_id=None,
)
#: Records that the rule makes: place, origin, offset there, key, what is in them, whether they must be there.
Wanted = tuple[int, int, int, str | None, str, bool]
#: Records of the target: place, offset, key, what is in them.
Stored = tuple[int, int, str | None, str]
#: A record's time, and whether a broker gave it that; of the source's, whether the target's may.
Dated = tuple[int, bool]
UNDATED: Dated = (0, False)


def judged(
    spark: SparkSession,
    wanted: list[Wanted],
    found: list[Stored],
    subject: Subject = SUBJECT,
    extent: Extent = EXTENT,
    times: tuple[list[Dated], list[Dated]] = ([], []),
) -> tuple[RekeyedReport, list[Shortfall]]:
    def frame(rows: list[tuple[Any, ...]]) -> DataFrame:
        return spark.createDataFrame(rows, _DDL)

    def key(of: str | None) -> bytes | None:
        return None if of is None else of.encode()

    ours = [
        (place, origin, at, 0, key(of), text == "", f"{of}{text}".encode(), must, *time)
        for (place, origin, at, of, text, must), time in zip(wanted, times[0] or [UNDATED] * len(wanted), strict=True)
    ]
    theirs = [
        (place, -1, at, 0, key(of), text == "", f"{of}{text}".encode(), False, *time)
        for (place, at, of, text), time in zip(found, times[1] or [UNDATED] * len(found), strict=True)
    ]
    return _judged(subject, extent, frame(ours), frame(theirs))


def kinds(report: RekeyedReport) -> list[Kind]:
    return [one.kind for one in report.differences]


def test_what_is_there_once_in_its_place_and_order(spark: SparkSession) -> None:
    wanted: list[Wanted] = [
        (0, 0, 0, "a", "1", True),
        (0, 0, 1, "a", "2", True),
        (0, 1, 0, "a", "3", True),
        (1, 0, 2, None, "4", True),
        (1, 0, 3, "b", "5", False),
    ]
    found: list[Stored] = [(0, 0, "a", "3"), (0, 1, "a", "1"), (0, 2, "a", "2"), (1, 0, None, "4")]
    for more in ([], [(1, 1, "b", "5")]):  # what is ahead of the plan may be there
        report, lacks = judged(spark, wanted, [*found, *more])
        assert (report.different, kinds(report), lacks, report.records) == (0, [], [], 4)


def test_missing_repeated_foreign_and_out_of_order(spark: SparkSession) -> None:
    wanted: list[Wanted] = [(0, 0, at, "a", str(at), True) for at in range(4)]
    found: list[Stored] = [(0, at, "a", str(at)) for at in range(4)]
    report, _ = judged(spark, wanted, found[:3])
    assert (report.different, kinds(report)) == (1, [Kind.MISSING])
    assert (
        str(report.differences[0])
        == "orders-0 at offset 3: missing: 1 record on the source, none in by-user-0 on the target"
    )
    report, _ = judged(spark, wanted, [*found, (0, 9, "a", "2")])
    assert (report.different, kinds(report)) == (1, [Kind.EXTRA])
    report, _ = judged(spark, wanted, [*found[:3], (1, 3, "a", "3")])
    assert sorted(kinds(report)) == [Kind.EXTRA, Kind.MISSING], "in another partition than its own"
    report, _ = judged(spark, wanted, [found[0], (0, 1, "a", "2"), (0, 2, "a", "1"), found[3]])
    assert (report.different, kinds(report)) == (1, [Kind.ORDER])
    two_origins: list[Wanted] = [(0, 0, 0, "a", "1", True), (0, 1, 0, "a", "2", True)]
    assert not judged(spark, two_origins, [(0, 0, "a", "2"), (0, 1, "a", "1")])[0].different, "they have no order"


def test_records_that_are_alike_are_distinguished_by_their_order(spark: SparkSession) -> None:
    wanted: list[Wanted] = [(0, 0, 0, "a", "x", True), (0, 0, 1, "a", "y", True), (0, 0, 2, "a", "x", True)]
    report, _ = judged(spark, wanted, [(0, 0, "a", "x"), (0, 1, "a", "y"), (0, 2, "a", "x")])
    assert not report.different
    report, _ = judged(spark, wanted, [(0, 0, "a", "x"), (0, 1, "a", "x"), (0, 2, "a", "y")])
    assert kinds(report) == [Kind.ORDER]


def test_dead_letters_are_there_and_may_be_beside_those_of_others(spark: SparkSession) -> None:
    wanted: list[Wanted] = [(BURIED, 0, 0, "a", "1", True), (0, 0, 1, "a", "2", True)]
    found: list[Stored] = [(BURIED, 0, "z", "another rule's"), (BURIED, 1, "a", "1"), (0, 0, "a", "2")]
    report, _ = judged(spark, wanted, found)
    assert (report.different, report.buried, report.target_records) == (0, 1, 1)
    report, _ = judged(spark, wanted, found[:1] + found[2:])
    assert kinds(report) == [Kind.MISSING]
    assert "none in dead" in str(report.differences[0])


def test_what_cannot_be_known_is_no_difference_and_is_said(spark: SparkSession) -> None:
    wanted: list[Wanted] = [(0, 0, 0, "a", "1", True), (0, 0, 1, "a", "2", True)]
    expired = replace(EXTENT, target_begin={0: 1, 1: 0})
    report, lacks = judged(spark, wanted, [(0, 1, "a", "2")], extent=expired)
    assert (report.different, [(one.kind, one.offsets) for one in lacks]) == (0, [(Lack.NOT_VERIFIED, 1)])
    deleted = replace(EXTENT, begin={0: 1, 1: 0})
    report, lacks = judged(spark, wanted[1:], [(0, 0, "a", "1"), (0, 1, "a", "2")], extent=deleted)
    assert (report.different, [(one.kind, one.offsets) for one in lacks]) == (0, [(Lack.NOT_VERIFIED, 1)])


def test_what_the_cleaner_may_have_taken(spark: SparkSession) -> None:
    """What a later record of its key supersedes that is there, and a key that was deleted at last, with all of it."""
    both = replace(SUBJECT, rule=replace(RULE, compacted=True, tombstones_ms=1))
    wanted: list[Wanted] = [
        *((0, 0, 0, "a", "1", True), (0, 0, 1, "a", "2", True)),
        *((0, 0, 2, "b", "1", True), (0, 0, 3, "b", "", True)),
        (1, 0, 4, "c", "3", True),
    ]
    newest: list[Stored] = [(0, 1, "a", "2"), (1, 0, "c", "3")]
    report, lacks = judged(spark, wanted, newest, subject=both)
    assert (kinds(report), lacks) == ([], [])
    report, _ = judged(spark, wanted, newest[:1], subject=both)
    assert kinds(report) == [Kind.MISSING], "of key c, of which nothing is left"
    report, _ = judged(spark, wanted, [(0, 0, "a", "1"), newest[1]], subject=both)
    assert [str(one) for one in report.differences] == [
        "orders-0 at offset 1: missing: 1 record on the source, none in by-user-0 on the target"
    ], "an old value, and not the newest"
    report, _ = judged(spark, wanted, [*newest, (0, 2, "b", "1")], subject=both)
    assert [one.offset for one in report.differences] == [3], "a deletion, and the key lives on"
    ahead: list[Wanted] = [*wanted, (0, 0, 5, "a", "4", False), (1, 0, 6, "c", "", False)]
    report, _ = judged(spark, ahead, [(0, 5, "a", "4")], subject=both)
    assert kinds(report) == [], "superseded by what is ahead of the plan"
    by_new_key = replace(both.rule, rekey="other")
    for alone in (replace(RULE, compacted=True), replace(RULE, tombstones_ms=1), by_new_key):
        report, _ = judged(spark, wanted, newest, subject=replace(SUBJECT, rule=alone))
        assert report.different == 3, "what the source keeps"
        asked = replace(SUBJECT, rule=replace(alone, may_compact=True))
        assert judged(spark, wanted, newest, subject=asked)[0].different == (0 if alone.compacted else 3)


def test_what_the_cleaner_of_the_source_alone_may_have_taken(spark: SparkSession) -> None:
    copy: list[Stored] = [(0, 0, "a", "1"), (0, 1, "a", "2")]
    for compacted in (False, True):
        rule = replace(RULE, rekey="other", tombstones_ms=1, compacted=compacted)
        report, lacks = judged(spark, [(0, 0, 1, "a", "2", True)], copy, subject=replace(SUBJECT, rule=rule))
        known = (kinds(report), [(one.kind, one.offsets) for one in lacks])
        assert known == (([Kind.EXTRA], []) if compacted else ([], [(Lack.NOT_VERIFIED, 1)]))


def test_records_of_several_origins_supersede_each_other(spark: SparkSession) -> None:
    both = replace(SUBJECT, rule=replace(RULE, compacted=True, tombstones_ms=1))
    wanted: list[Wanted] = [(0, origin, at, "a", f"{origin}{at}", True) for origin in (0, 1) for at in (0, 1)]
    for last in ("01", "11"):
        assert not judged(spark, wanted, [(0, 3, "a", last)], subject=both)[0].different
    report, _ = judged(spark, wanted, [(0, 0, "a", "00"), (0, 1, "a", "10")], subject=both)
    assert report.different == 2, "the newest of neither"


def test_times_are_compared_but_where_both_may_stamp(spark: SparkSession) -> None:
    wanted: list[Wanted] = [(0, 0, at, "a", "x", True) for at in range(3)]
    found: list[Stored] = [(0, at, "a", "x") for at in range(3)]

    def different(ours: list[Dated], theirs: list[Dated]) -> tuple[int, int]:
        report, _ = judged(spark, wanted, found, times=(ours, theirs))
        return report.different, report.own_timestamps

    own, late = [(1, False), (2, False), (3, False)], [(7, True), (7, True), (9, True)]
    assert different(own, own) == (0, 0)
    assert different(own, late) == (6, 0), "nobody has asked for these"
    assert different([(at, True) for at, _ in own], late) == (0, 3)
    assert different([(at, True) for at, _ in own], [(7, False), (8, False), (9, False)]) == (6, 0), "no broker's"
    assert different([(1, True), (2, True), (3, False)], [(1, False), (9, True), (3, False)]) == (0, 1)
    assert different([(1, True), (2, True), (3, False)], [(1, False), (9, True), (9, True)]) == (2, 1)
    assert different([(2, True)] * 3, [(2, False), (2, True), (9, True)]) == (0, 1)


def test_stamped_records_keep_their_order(spark: SparkSession) -> None:
    wanted: list[Wanted] = [(0, 0, at, "a", str(at), True) for at in range(2)]
    times: tuple[list[Dated], list[Dated]] = [(1, True), (2, True)], [(8, True), (9, True)]
    assert not judged(spark, wanted, [(0, 0, "a", "0"), (0, 1, "a", "1")], times=times)[0].different
    assert kinds(judged(spark, wanted, [(0, 0, "a", "1"), (0, 1, "a", "0")], times=times)[0]) == [Kind.ORDER]


def test_what_the_source_deleted_before_it_was_re_keyed_is_said() -> None:
    """What is on record as lost is said as that."""
    extent = replace(EXTENT, begin={0: 7, 1: 0}, reached={0: 2, 1: 9})
    for losses, lacking in (({}, [(0, 2, 7)]), ({0: ((2, 5),)}, [(0, 5, 7)]), ({0: ((0, 7),)}, [])):
        found = list(_behind(replace(SUBJECT, losses=losses), extent))
        assert [(one.partition, one.first, one.next_offset) for one in found] == lacking
        assert all(one.kind is Lack.NOT_VERIFIED for one in found)
