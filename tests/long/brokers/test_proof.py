"""A proof in parts: ranges whose reports add up, a file to go on from, tasks of Spark, and the page about it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared_logs import THREE, VALUES, compared, remade, some, stored
from crashcut import crash_and_cut
from helpers import RECENT_MS, config_file, make_topic, mirror_once, produce, settings_between
from proofs import ALL, CHANGED, MANY, PAIR, PLAN, SUBJECT, Seen, in_ranges, report_of
from rawbatches import batch
from transactional import transactions
from typer.testing import CliRunner

from mirror import __version__
from mirror.cli import app
from mirror.commands.verify import Means, verify, verify_flow
from mirror.commands.verify_view import page
from mirror.errors import ClusterUnreachable, ConfigError
from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.verify import flow, ranges
from mirror.verify import ranges as saved
from mirror.verify import report as signoff
from mirror.verify.compare import Bounds
from mirror.verify.ranges import Range, Share, Subject, shared_out
from mirror.verify.report import Difference, Kind, Pair

# --- ranges that add up ---------------------------------------------------------------------------------------------


LACKING = [*MANY[:4], *MANY[5:]]
CASES: list[tuple[str, list[bytes], list[bytes], Bounds]] = [
    ("the same batches", MANY, MANY, ALL),
    ("batches joined across the cuts", MANY, remade(*MANY), ALL),
    ("one batch missing", MANY, LACKING, ALL),
    ("one record too much", MANY, [*MANY, stored(some(0), 60)], Bounds(0, 60, 0, 61, 61)),
    ("another value", MANY, CHANGED, ALL),
    ("a target that began later", MANY, MANY[2:], Bounds(0, 60, 10, 60, 60)),
    ("a target that lags", MANY, MANY[:9], Bounds(0, 60, 0, 45, 45)),
]


@pytest.mark.parametrize(("source", "target", "bounds"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize("cuts", [(15,), (20, 40), (15, 20, 25, 30)])
def test_ranges_find_what_the_whole_finds(
    source: list[bytes], target: list[bytes], bounds: Bounds, cuts: tuple[int, ...]
) -> None:
    assert in_ranges(source, target, bounds, *cuts) == in_ranges(source, target, bounds)


def test_the_sources_digest_depends_on_the_source_alone() -> None:
    same, joined_there, lacking = (in_ranges(MANY, target, ALL) for target in (MANY, remade(*MANY), LACKING))
    assert same.source_digest == joined_there.source_digest == lacking.source_digest
    assert same.target_digest == joined_there.target_digest == same.source_digest != lacking.target_digest
    others = {in_ranges(changed, changed, ALL).source_digest for changed in (MANY, CHANGED, LACKING, MANY[1:])}
    assert len(others) == 4


def test_what_was_not_even_restamped_is_counted_apart() -> None:
    restamped = [batch(10, count=5, payload=b"second", attributes=4, producer_id=1 << 52)]
    report = compared(THREE, [THREE[0], *restamped, THREE[2]])
    assert (report.different, report.identical, report.as_stored) == (0, 3, 2)


def test_small_ranges_go_together_and_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 100)
    sizes = [10, 90, 30, 100, 20, 0]
    every = [Range(number, PAIR, ALL, 0, 60, size) for number, size in enumerate(sizes)]
    assert [[one.number for one in share] for share in shared_out(every)] == [[3], [1], [2, 4, 0, 5]]
    assert [len(share) for share in shared_out(every[:1] * 150)] == [10] * 15
    assert [len(share) for share in shared_out(every[5:] * 150)] == [64, 64, 22]
    assert list(shared_out([])) == []


# --- the file to go on from -----------------------------------------------------------------------------------------


def test_what_is_finished_is_found_again(tmp_path: Path) -> None:
    file, report = tmp_path / "proof", in_ranges(MANY, CHANGED, ALL)
    assert report.differences
    kept = saved.begin_saved(file, PLAN)
    kept.add(2, report)
    kept.close()
    with file.open("ab") as torn:
        torn.write(b'{"number": 3, "rep')
    again = saved.resume_saved(file, SUBJECT)
    assert again is not None
    assert (again.plan, again.finished, again.resumed) == (PLAN, {2: report}, 1)
    again.add(3, report)
    again.close()
    last = saved.resume_saved(file, SUBJECT)
    assert last is not None
    assert list(last.finished) == [2, 3], "what was torn is cut off before more is written"


def test_a_file_without_even_a_plan_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "proof"
    assert saved.resume_saved(file, SUBJECT) is None
    for torn in (b"", b'{"subject":{"fl'):
        file.write_bytes(torn)
        assert saved.resume_saved(file, SUBJECT) is None
        assert not file.exists()


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
    saved.begin_saved(file, PLAN).close()
    with pytest.raises(ConfigError, match=re.escape(expected)):
        saved.resume_saved(file, other)


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"subject":{}}\n'])
def test_a_file_that_is_no_proof_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "proof"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="is no unfinished proof"):
        saved.resume_saved(file, SUBJECT)
    assert file.read_bytes() == content


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory: the proof cannot be kept there"):
        saved.begin_saved(tmp_path / "no" / "proof", PLAN)


# --- the page -------------------------------------------------------------------------------------------------------


HOSTILE = '<script>alert("x")</script>&amp;\x1b[31m</style>'


def test_the_page_of_equal_sides() -> None:
    whole = report_of(in_ranges(MANY, remade(*MANY[:4]) + MANY[4:], ALL))
    seen = Seen(page(whole))
    text = " ".join(seen.texts)
    assert "eu and us are equal" in text.casefold()
    for item in ("id-eu", "id-us", "2023-11-14T22:13:20Z", __version__, signoff.seal(whole), "33.33 %", "66.67 %"):
        assert item in text, item
    assert whole.partitions[0].source_digest in seen.texts
    assert "verdict" in {item.get("class") for _, item in seen.tags}


def test_the_page_names_each_difference() -> None:
    seen = Seen(page(report_of(in_ranges(MANY, CHANGED, ALL))))
    at = seen.texts.index("value", seen.texts.index("1 difference"))
    assert seen.texts[at - 3 : at] == ["orders", "0", "44"]
    assert re.match("7 bytes with CRC", seen.texts[at + 1])
    assert "verdict bad" in {item.get("class") for _, item in seen.tags}


def test_hostile_names_stay_text_and_nothing_is_fetched_from_anywhere() -> None:
    pair = Pair(TopicPartition(HOSTILE, 0), TopicPartition(HOSTILE, 0))
    odd = Difference(HOSTILE, 0, 3, Kind.KEY, HOSTILE, HOSTILE)
    part = replace(
        compared(THREE, THREE), pair=pair, differences=(odd,), different=1, notes=(HOSTILE,), codecs=(HOSTILE,)
    )
    plain, hostile = (
        Seen(page(report_of(part))),
        Seen(page(report_of(part, flow=HOSTILE, source=HOSTILE, target=HOSTILE))),
    )
    kinds = {tag for tag, _ in hostile.tags}
    assert kinds == {tag for tag, _ in plain.tags}
    assert not kinds & {"script", "img", "link", "iframe", "object", "a", "base", "form"}
    assert not {name for _, item in hostile.tags for name in item} & {"src", "href", "srcset", "onload"}
    style = next(text for text in hostile.texts if "color-scheme" in text)
    assert not re.search("url|import|http", style)
    shown = HOSTILE.replace("\x1b", "\\x1b")
    assert sum(shown in text for text in hostile.texts) > 6
    assert not any("\x1b" in text for text in hostile.texts)


def test_many_differences_are_counted_where_they_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror.commands.verify_view.PAGE_SHOWN", 2)
    text = " ".join(Seen(page(report_of(compared(THREE, [])))).texts)
    assert "3 differences" in text
    assert "and 1 more" in text


def test_the_seal_changes_with_what_was_found() -> None:
    part = compared(THREE, THREE)
    sealed = {
        signoff.seal(report_of(one)) for one in (part, part, replace(part, records=9), compared(THREE[1:], THREE[1:]))
    }
    assert len(sealed) == 3


# --- on brokers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def mirrored(own_source: Cluster, own_target: Cluster, topic_name: str) -> tuple[str, str, str]:
    """A partition of many batches beside a small one, mirrored."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    produce(source, topic_name, VALUES * 10, codec="lz4", batch=7)
    produce(source, topic_name, VALUES, partition=1)
    assert mirror_once(source, target, [topic_name])
    return source, target, topic_name


@pytest.mark.brokers
def test_one_large_partition_is_read_in_ranges(
    mirrored: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Interrupted, it goes on with what is left, up to the ends that were fixed when it began."""
    source, target, topic = mirrored
    settings = settings_between(source, target, [topic])
    whole = verify_flow(settings)
    assert (whole.equal, whole.resumed, whole.spark) == (True, 0, False)
    monkeypatch.setattr(ranges, "RANGE_BYTES", whole.topics[0].bytes // 9)
    shares: list[Share] = []
    real, most = flow.prove, 3

    async def prove(share: Share, read: Callable[[int], None]) -> Sequence[flow.Found]:
        if len(shares) == most:
            raise ClusterUnreachable("the network is gone")
        shares.append(share)
        return await real(share, read)

    monkeypatch.setattr("mirror.commands.verify.prove", prove)
    monkeypatch.setattr("mirror.commands.verify.SHARES_AT_ONCE", 1)
    page_file = tmp_path / "proof.html"
    with pytest.raises(ClusterUnreachable, match="the network is gone"):
        verify(settings, (), as_json=True, report_file=page_file)
    (file,) = tmp_path.iterdir()
    assert file.name == "proof.html.unfinished", "and no empty page"
    produce(source, topic, [b"later"], partition=1)
    assert mirror_once(source, target, [topic])
    most = 99
    seen: list[tuple[int, int]] = []
    again = verify_flow(settings, None, lambda done, total: seen.append((done, total)), Means(file=file))
    assert (sum(done for done, _ in seen), {total for _, total in seen}) == (440, {440})
    numbers = [one.number for share in shares for one in share.ranges]
    assert sorted(numbers) == list(range(len(numbers))), "each was compared once"
    assert len([one for share in shares for one in share.ranges if one.pair.source.partition == 0]) > 4
    assert again.partitions == whole.partitions, "as if it had been read in one piece"
    assert again.resumed == sum(len(share.ranges) for share in shares[:3])
    assert file.exists(), "until whoever asked has the report safe"
    assert verify_flow(settings).partitions[1].end == whole.partitions[1].end + 1


@pytest.mark.brokers
def test_what_was_compared_is_compared_again_where_a_log_is_another_one_since(
    own_source: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The target's broker crashes between two parts of a proof, and somebody writes where its records were."""
    with Cluster.start(name="proof-cut") as own_target:
        source, target = own_source.bootstrap, own_target.bootstrap
        make_topic(source, topic_name)
        for number in range(4):
            produce(source, topic_name, VALUES, batch=7, begin_ms=RECENT_MS + number)
        assert mirror_once(source, target, [topic_name])
        settings, file = settings_between(source, target, [topic_name]), tmp_path / "proof"
        whole = verify_flow(settings)
        monkeypatch.setattr(ranges, "RANGE_BYTES", whole.topics[0].bytes // 5)
        real, most, proved = flow.prove, 3, list[Share]()

        async def prove(share: Share, read: Callable[[int], None]) -> Sequence[flow.Found]:
            if len(proved) == most:
                raise ClusterUnreachable("the network is gone")
            proved.append(share)
            return await real(share, read)

        monkeypatch.setattr("mirror.commands.verify.prove", prove)
        monkeypatch.setattr("mirror.commands.verify.SHARES_AT_ONCE", 1)
        with pytest.raises(ClusterUnreachable, match="the network is gone"):
            verify_flow(settings, None, None, Means(file=file))
        finished = [one for share in proved for one in share.ranges]
        last = max(one.bounds.end for one in finished)
        below = crash_and_cut(own_target, topic_name, below=last - 7)
        assert below < last
        missing = whole.partitions[0].end - below
        produce(target, topic_name, [b"foreign"] * missing, batch=7)
        most = 99
        again = verify_flow(settings, None, None, Means(file=file))
        assert not again.equal
        first = next(one.offset for one in again.partitions[0].differences)
        assert first == below, "what somebody wrote is found in a range that had been finished"
        assert 0 < again.resumed < len(finished)


@pytest.mark.brokers
def test_a_translated_topic_is_read_in_ranges(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    for number in range(4):
        transactions(source, topic_name, [True, False], name=str(number))
        produce(source, topic_name, VALUES, batch=7)
    more: dict[str, Any] = {"flow": topic_name, "offsets": "translate"}
    assert mirror_once(source, target, [topic_name], **more)
    settings = settings_between(source, target, [topic_name], **more)
    whole = verify_flow(settings)
    monkeypatch.setattr(ranges, "RANGE_BYTES", whole.topics[0].bytes // 5)
    parts = verify_flow(settings)
    assert (parts.equal, parts.partitions) == (True, whole.partitions)


@pytest.mark.brokers
@pytest.mark.spark
def test_a_proof_on_spark(mirrored: tuple[str, str, str], tmp_path: Path) -> None:
    """Tasks of Spark find the same as this process, down to the digests, and what one alone finds is named."""
    source, target, topic = mirrored
    config = config_file(tmp_path, source, target, [topic])
    here = json.loads(CliRunner().invoke(app, ["verify", str(config), "--json", "--no-spark"]).stdout)
    produce(target, topic, [b"foreign"], partition=1)
    page_file = tmp_path / "proof.html"
    small = "from mirror.verify import ranges; ranges.RANGE_BYTES = 20_000; from mirror.cli import app; app()"
    options = [str(config), "--spark", "--json", "--report", str(page_file)]
    run = subprocess.run(
        [sys.executable, "-c", small, "verify", *options], capture_output=True, timeout=120, check=False
    )
    assert run.returncode == 5, run.stderr.decode()
    there = json.loads(run.stdout)
    assert (there["spark"], here["spark"]) == (True, False)
    assert [one["offset"] for one in there["differences"]] == [40]
    assert there["differences"][0]["partition"] == 1
    for ours, theirs in zip(here["partitions"], there["partitions"], strict=True):
        assert ours["source_digest"] == theirs["source_digest"]
    assert there["partitions"][0] == here["partitions"][0]
    text = " ".join(Seen(page_file.read_text(encoding="utf-8")).texts)
    assert "by tasks of Apache Spark" in text
    assert there["seal"] in text
    assert {file.name for file in tmp_path.iterdir()} == {config.name, page_file.name}, "nothing is left to go on from"


def test_a_report_that_cannot_be_written_is_reported_at_once(tmp_path: Path) -> None:
    config = config_file(tmp_path, "127.0.0.1:1", "127.0.0.1:1", ["orders"])
    found = CliRunner().invoke(app, ["verify", str(config), "--report", str(tmp_path / "no" / "proof.html")])
    assert isinstance(found.exception, ConfigError)
    assert "No such file or directory" in str(found.exception)
