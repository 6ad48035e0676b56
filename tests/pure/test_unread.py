"""A proof of which a part could not be read: the rest is reported, and what is missing is named and read again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from compared_logs import THREE, compared
from proofs import CHANGED, MANY, PAIR, PLAN, Seen, in_ranges, report_of

from mirror.commands.verify_view import page
from mirror.kafka.cluster import Endpoint
from mirror.verify import ranges
from mirror.verify.flow import Found, Proof, Proved, run_proof
from mirror.verify.ranges import Share
from mirror.verify.report import Gone, Lack, Shortfall, Unread, facts, lacking, verdict

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
