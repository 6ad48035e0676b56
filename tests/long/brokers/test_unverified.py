"""What `mirror verify` could not compare: it is named with its reason and has a code of its own; the rest is proved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared_logs import THREE, VALUES, compared
from helpers import make_topic, mirror_once, produce, settings_between
from proofs import CHANGED, MANY, PAIR, PLAN, Seen, in_ranges, report_of
from syncing import delete_topics, made_by, write_journal

from mirror.commands.verify import verify, verify_flow
from mirror.commands.verify_view import page
from mirror.errors import ClusterUnreachable, ExitCode
from mirror.kafka.cluster import Endpoint
from mirror.lab.embedded import Cluster
from mirror.verify import flow, ranges
from mirror.verify import report as signoff
from mirror.verify.flow import Found, Proof, run_proof
from mirror.verify.ranges import Share
from mirror.verify.report import Gone, Lack, Shortfall, Unread

NOWHERE = Endpoint("none", (("127.0.0.1", 1),))
SILENT = Unread(PAIR, "cluster eu: no leader")


def proved(found: Sequence[Found], file: Path | None = None) -> flow.Proved:
    """`PLAN`, where the prover finds this of its ranges."""

    async def prover(share: Share, read: Callable[[int], None]) -> Sequence[Found]:
        return [found[one.number] for one in share.ranges]

    kept = ranges.begin_saved(file, PLAN) if file else None
    try:
        return asyncio.run(run_proof(Proof(PLAN, NOWHERE, NOWHERE, {}, {}), prover, 1, kept))
    finally:
        if kept:
            kept.close()


def test_a_partition_that_is_lost_on_the_way_has_no_report_and_no_digest(tmp_path: Path) -> None:
    equal = [in_ranges(MANY, MANY, one.bounds) for one in PLAN.ranges]
    reports, unread = proved(equal)
    assert ([one.end for one in reports], unread) == ([60], ())
    file = tmp_path / "proof"
    assert proved([*equal[:2], SILENT, equal[3]], file) == ([], (SILENT,))
    again = ranges.resume_saved(file, PLAN.subject)
    assert again is not None
    assert sorted(again.finished) == [0, 1, 3], "what could not be read is read again"


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
    assert signoff.verdict(partly) == "eu and us are equal; 1 partition was not verified"
    none = report_of(unread=(SILENT, SILENT))
    assert signoff.verdict(none) == "nothing was compared between eu and us; 2 partitions were not verified"
    assert len({signoff.seal(one) for one in (report_of(part), report_of(part, unread=(SILENT,)), partly)}) == 3
    seen = Seen(page(partly))
    at = seen.texts.index("Not verified")
    assert seen.texts[at + 4 : at + 10] == [
        "orders-0",
        "orders-0",
        SILENT.reason,
        "clicks",
        "eu.clicks",
        "gone from the source",
    ]
    assert "verdict warn" in {item.get("class") for _, item in seen.tags}


def test_what_several_losses_are_about_counts_once() -> None:
    """As where a person accepts a loss, and the target loses more of the same before that is copied again."""

    def lost(partition: int, first: int, following: int) -> Shortfall:
        place = Shortfall(kind=Lack.LOST, topic="orders", target="orders", partition=partition)
        return replace(place, first=first, next_offset=following, offsets=following - first)

    spans = [lost(0, 40, 80), lost(0, 20, 90), lost(0, 85, 95), lost(1, 10, 20), lost(1, 30, 31)]
    report = report_of(compared(THREE, THREE), shortfalls=tuple(spans))
    assert signoff.lacking(report) == "86 offsets accepted loss (2 partitions)"


@pytest.mark.brokers
def test_a_partition_that_is_lost_on_the_way_does_not_end_the_proof_of_the_others(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    for partition in range(2):
        produce(source, topic_name, VALUES, partition=partition)
    assert mirror_once(source, target, [topic_name])
    real: Any = flow._compare

    async def broken(one: Any, other: Any, part: Any, *more: Any) -> Any:
        if part.pair.source.partition:
            raise ClusterUnreachable("no leader")
        return await real(one, other, part, *more)

    monkeypatch.setattr(flow, "_compare", broken)
    report = verify_flow(settings_between(source, target, [topic_name]))
    assert report.equal
    assert [one.pair.source.partition for one in report.partitions] == [0]
    assert [(str(one.pair.source), one.reason) for one in report.unread] == [(f"{topic_name}-1", "no leader")]


@pytest.mark.brokers
def test_a_mirrored_topic_that_is_gone_from_the_source_is_named(
    own_source: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    stays, goes, unwanted = (f"{topic_name}-{what}" for what in ("stays", "goes", "unwanted"))
    for name in (stays, goes, unwanted):
        make_topic(source, name)
        produce(source, name, VALUES)
    names = [f"{topic_name}-.*"]
    assert mirror_once(source, target, names, topic_name)
    settings = settings_between(source, target, names, topic_name, exclude=[unwanted])
    write_journal(
        settings, *((one.key(name), one.to_json()) for name, one in made_by(settings, [stays, goes, unwanted]).items())
    )
    assert verify_flow(settings).gone == ()
    delete_topics(source, goes, unwanted)
    assert verify(settings, (), as_json=True) is ExitCode.DONE, "its copy is kept on purpose (sync.deletions)"
    assert json.loads(capsys.readouterr().out)["gone"] == [{"topic": goes, "target": goes}]
    assert verify(settings, (), as_json=False) is ExitCode.DONE
    out = " ".join(capsys.readouterr().out.split())
    assert f"{goes}: is gone from the source; its copy {goes} was compared with nothing" in out
    assert verify_flow(settings, [stays]).gone == ()
    delete_topics(target, goes)
    assert verify_flow(settings).gone == ()
