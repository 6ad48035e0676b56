"""A proof in parts: ranges whose reports add up, a file to go on from, what could not be read, and the page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared_logs import THREE, compared, remade, some, stored
from proofs import ALL, CHANGED, MANY, PAIR, PLAN, SUBJECT, Seen, in_ranges, report_of
from rawbatches import batch

from mirror.commands.verify_view import page
from mirror.errors import BrokerError, ConfigError
from mirror.kafka.cluster import OFFSET_OUT_OF_RANGE, Cluster, Endpoint, TopicPartition
from mirror.kafka.fetch import Fetched
from mirror.verify import flow, ranges
from mirror.verify.compare import LogBounds
from mirror.verify.flow import Found, Proof, Proved, run_proof
from mirror.verify.ranges import SavedProof, Share, Subject, begin_saved, holds, resume_saved
from mirror.verify.report import (
    Difference,
    DifferenceKind,
    Gone,
    Lack,
    Mark,
    Pair,
    Shortfall,
    Unread,
    facts,
    lacking,
    verdict,
)

LACKING = [*MANY[:4], *MANY[5:]]
CASES: dict[str, tuple[list[bytes], LogBounds]] = {
    "the same batches": (MANY, ALL),
    "batches joined across the cuts": (remade(*MANY), ALL),
    "one batch missing": (LACKING, ALL),
    "one record too much": ([*MANY, stored(some(0), 60)], LogBounds(0, 60, 0, 61, 61)),
    "another value": (CHANGED, ALL),
    "a target that began later": (MANY[2:], LogBounds(0, 60, 10, 60, 60)),
    "a target that lags": (MANY[:9], LogBounds(0, 60, 0, 45, 45)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cuts", [(15,), (15, 20, 25, 30)], ids=["2", "5"])
def test_ranges_find_what_the_whole_finds(case: str, cuts: tuple[int, ...]) -> None:
    target, bounds = CASES[case]
    assert in_ranges(MANY, target, bounds, *cuts) == in_ranges(MANY, target, bounds)


def test_the_sources_digest_depends_on_the_source_alone() -> None:
    same, joined_there, lacking = (in_ranges(MANY, target, ALL) for target in (MANY, remade(*MANY), LACKING))
    assert same.source_digest == joined_there.source_digest == lacking.source_digest
    assert same.target_digest == joined_there.target_digest == same.source_digest != lacking.target_digest
    others = {in_ranges(changed, changed, ALL).source_digest for changed in (MANY, CHANGED, LACKING, MANY[1:])}
    assert len(others) == 4


# --- the file to go on from -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "same"),
    [
        (batch(10, leader_epoch=3), True),
        (batch(10, leader_epoch=4), False),
        (batch(10, leader_epoch=3, payload=b"another"), False),
        (batch(9, leader_epoch=3), False),
        (b"", False),
        (b"no batch" * 20, False),
        (None, False),
    ],
    ids=["same", "epoch", "content", "offset", "nothing", "damaged", "deleted"],
)
def test_a_log_holds_what_was_compared_only_with_its_epoch_and_content(
    stored: bytes | None, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch_at(_cluster: Any, partition: TopicPartition, _offset: int, **_: Any) -> Fetched:
        if stored is None:
            raise BrokerError(OFFSET_OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE", "fetch")
        return Fetched(partition, 0, 11, 11, 0, None, (), memoryview(stored))

    monkeypatch.setattr(ranges, "fetch_at", fetch_at)
    read = batch(10, leader_epoch=3)
    mark = Mark(10, int.from_bytes(read[17:21]), 3)
    cluster: Any = None
    assert asyncio.run(holds(cluster, PAIR.source, mark)) is same


@pytest.mark.parametrize(
    ("begins", "target_begins", "kept"), [(0, 0, {1, 2}), (16, 0, {2}), (0, 1, set()), (None, 0, set())]
)
def test_a_finished_range_counts_no_more_once_either_log_begins_behind_its_first_record(
    begins: int | None, target_begins: int, kept: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last batch is there still. A log whose leader does not answer is compared again, too."""
    source, target = (Cluster(Endpoint(alias, ())) for alias in ("eu", "us"))

    async def listed(cluster: Cluster, asked: set[TopicPartition], _: int) -> dict[TopicPartition, int]:
        first = begins if cluster is source else target_begins
        return {} if first is None else dict.fromkeys(asked, first)

    async def still_holds(*_: object) -> bool:
        return True

    monkeypatch.setattr(flow, "listed", listed)
    monkeypatch.setattr(flow, "holds", still_holds)
    mark = Mark(29, 1, 0)
    report = replace(in_ranges(MANY, MANY, ALL), source_mark=mark, target_mark=mark)
    former = SavedProof(tmp_path / "proof", PLAN, {1: report, 2: report})
    asyncio.run(flow._keep_what_holds(former, source, target))
    assert former.finished.keys() == kept


def test_what_is_finished_is_found_again(tmp_path: Path) -> None:
    file, report = tmp_path / "proof", in_ranges(MANY, CHANGED, ALL)
    assert report.differences
    kept = begin_saved(file, PLAN)
    kept.add(2, report)
    kept.close()
    with file.open("ab") as torn:
        torn.write(b'{"number": 3, "rep')
    again = resume_saved(file, SUBJECT)
    assert again is not None
    assert (again.plan, again.finished, again.resumed) == (PLAN, {2: report}, 1)
    again.add(3, report)
    again.close()
    last = resume_saved(file, SUBJECT)
    assert last is not None
    assert list(last.finished) == [2, 3], "what was torn is cut off before more is written"
    file.write_bytes(b'{"subject":{"fl')
    assert resume_saved(file, SUBJECT) is None, "without even a plan it is begun anew"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (replace(SUBJECT, flow="clicks"), "flow orders, not clicks"),
        (replace(SUBJECT, source_id="c"), "other clusters"),
        (
            replace(SUBJECT, topics=(("orders", "9", "orders", "2", 1),)),
            "other topics, or others by their ids (orders)",
        ),
    ],
)
def test_a_file_about_something_else_is_refused(tmp_path: Path, other: Subject, expected: str) -> None:
    file = tmp_path / "proof"
    begin_saved(file, PLAN).close()
    with pytest.raises(ConfigError, match=re.escape(expected)):
        resume_saved(file, other)


# --- the page ---------------------------------------------------------------------------------------------------------

HOSTILE = '<script>alert("x")</script>&amp;\x1b[31m</style>'


def test_hostile_names_stay_text_and_nothing_is_fetched_from_anywhere() -> None:
    pair = Pair(TopicPartition(HOSTILE, 0), TopicPartition(HOSTILE, 0))
    odd = Difference(HOSTILE, 0, 3, DifferenceKind.KEY, HOSTILE, HOSTILE)
    hostile: dict[str, Any] = {"differences": (odd,), "different": 1, "notes": (HOSTILE,), "codecs": (HOSTILE,)}
    part = replace(compared(THREE, THREE), pair=pair, **hostile)
    plain, seen = (Seen(page(report_of(part, **names))) for names in ({}, dict.fromkeys(("flow", "source"), HOSTILE)))
    kinds = {tag for tag, _ in seen.tags}
    assert kinds == {tag for tag, _ in plain.tags}
    assert not kinds & {"script", "img", "link", "iframe", "object", "a", "base", "form"}
    assert not {name for _, item in seen.tags for name in item} & {"src", "href", "srcset", "onload"}
    style = next(text for text in seen.texts if "color-scheme" in text)
    assert not re.search("url|import|http", style)
    assert sum(HOSTILE.replace("\x1b", "\\x1b") in text for text in seen.texts) > 6
    assert not any("\x1b" in text for text in seen.texts)


# --- what could not be read -------------------------------------------------------------------------------------------


NOWHERE = Endpoint("none", (("127.0.0.1", 1),))
SILENT = Unread(PAIR, "cluster eu: no leader")


def proved(found: Sequence[Found], file: Path | None = None) -> Proved:
    """`PLAN`, where the prover finds this of its ranges."""

    async def prover(share: Share, read: Callable[[int], None]) -> Sequence[Found]:
        return [found[one.number] for one in share.ranges]

    kept = ranges.begin_saved(file, PLAN) if file else None
    try:
        return asyncio.run(run_proof(Proof(PLAN, NOWHERE, NOWHERE, {}, {}), prover, 1, kept))
    finally:
        if kept:
            kept.close()


def test_a_partition_that_is_lost_on_the_way_has_no_report_and_is_read_again(tmp_path: Path) -> None:
    equal = [in_ranges(MANY, MANY, one.bounds) for one in PLAN.ranges]
    reports, unread = proved(equal)
    assert ([one.end for one in reports], unread) == ([60], ())
    file = tmp_path / "proof"
    assert proved([*equal[:2], SILENT, equal[3]], file) == ([], (SILENT,))
    again = ranges.resume_saved(file, PLAN.subject)
    assert again is not None
    assert sorted(again.finished) == [0, 1, 3]


def test_what_differs_is_reported_though_the_rest_could_not_be_read() -> None:
    found: list[Found] = [in_ranges(MANY, CHANGED, one.bounds) for one in PLAN.ranges]
    (report,), unread = proved([SILENT, *found[1:]])
    assert (report.different, unread) == (1, (SILENT,))


def test_partitions_that_were_not_planned_are_remembered(tmp_path: Path) -> None:
    file = tmp_path / "proof"
    plan = replace(PLAN, unread=(SILENT,))
    ranges.begin_saved(file, plan).close()
    again = ranges.resume_saved(file, PLAN.subject)
    assert again is not None
    assert again.plan == plan


def test_a_verdict_says_what_it_does_not_cover() -> None:
    part = compared(THREE, THREE)
    partly = report_of(part, unread=(SILENT,), gone=(Gone("clicks", "eu.clicks"),))
    assert verdict(partly) == "eu and us are equal; 1 partition was not verified"
    none = report_of(unread=(SILENT, SILENT))
    assert verdict(none) == "nothing was compared between eu and us; 2 partitions were not verified"
    assert len({str(facts(one)) for one in (report_of(part), report_of(part, unread=(SILENT,)), partly)}) == 3
    seen = Seen(page(partly))
    assert {SILENT.reason, "clicks", "eu.clicks", "Gone from the source"} <= set(seen.texts)
    assert "verdict warn" in {item.get("class") for _, item in seen.tags}


def test_what_several_losses_are_about_counts_once() -> None:
    """As where a person accepts a loss, and the target loses more of the same before that is copied again."""

    def lost(partition: int, first: int, following: int) -> Shortfall:
        place = Shortfall(kind=Lack.LOST, topic="orders", target="orders", partition=partition)
        return replace(place, first=first, next_offset=following, offsets=following - first)

    spans = [lost(0, 40, 80), lost(0, 20, 90), lost(0, 85, 95), lost(1, 10, 20), lost(1, 30, 31)]
    report = report_of(compared(THREE, THREE), shortfalls=tuple(spans))
    assert lacking(report) == "86 offsets accepted loss (2 partitions)"
