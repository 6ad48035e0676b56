"""`mirror verify`: a copy is equal and whole, or each difference and each lack is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared_logs import VALUES
from confluent_kafka import Producer
from flows import Flow, flow
from helpers import make_topic, produce
from samerecords import assert_same_logs
from sparkless import run_once
from syncing import delete_topics
from transactional import transactions

from mirror.commands.verify import Means, verify, verify_flow
from mirror.errors import ClusterUnreachable, ConfigError, ExitCode, PreflightError
from mirror.verify import flow as proving
from mirror.verify import ranges
from mirror.verify.ranges import Share
from mirror.verify.report import DifferenceKind, VerifyReport

__all__ = ["flow"]


@pytest.fixture
def copied(flow: Flow) -> Flow:
    """One whose topic has 40 records in 4 batches, which are mirrored."""
    flow.make()
    produce(flow.source.bootstrap, flow.name, VALUES, codec="zstd")
    flow.copied()
    return flow


def verified(flow: Flow, **topics: Any) -> VerifyReport:
    """Return what `mirror verify` reports with these settings of the topics."""
    flow.topics |= topics
    return verify_flow(flow.settings())


def found(report: VerifyReport) -> list[tuple[int, DifferenceKind]]:
    return [(one.offset, one.kind) for one in report.differences]


@pytest.mark.proves("mirror verify", "same-bytes", "same-offsets")
def test_a_copy_is_equal_batch_by_batch(flow: Flow) -> None:
    flow.make(partitions=2)
    produce(flow.source.bootstrap, flow.name, VALUES, codec="zstd")
    produce(flow.source.bootstrap, flow.name, VALUES, partition=1, batch=7, codec="gzip")
    flow.copied()
    report = verified(flow)
    assert (report.equal, report.is_whole, report.differences) == (True, True, ())
    (topic,) = report.topics
    assert (topic.partitions, topic.records, topic.batches, topic.identical, topic.lag) == (2, 80, 10, 10, 0)
    assert (topic.codecs, topic.offsets_equal) == (("zstd", "gzip"), True)
    assert all(one.source_digest == one.target_digest for one in report.partitions)
    said = assert_same_logs(flow.source.bootstrap, flow.target.bootstrap, flow.name)
    assert said == 80, "a judge that shares no code says so, too"


@pytest.mark.proves("mirror verify", "never-silent")
def test_a_foreign_record_is_a_difference(copied: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(copied.settings(), (), as_json=False) is ExitCode.DONE
    assert f"{copied.name}: eu and us are equal (4 batches, " in capsys.readouterr().out
    produce(copied.target.bootstrap, copied.name, [b"foreign"])
    assert found(verified(copied)) == [(40, DifferenceKind.EXTRA)]
    produce(copied.source.bootstrap, copied.name, [b"native", b"lag"], batch=1)
    assert verify(copied.settings(), (), as_json=True) is ExitCode.DIFFERENT
    report = json.loads(capsys.readouterr().out)
    assert (report["equal"], report["different"], report["topics"][0]["lag"]) == (False, 1, 1)
    assert (report["differences"][0]["offset"], report["differences"][0]["kind"]) == (40, "value")
    assert report["partitions"][0]["source_digest"] != report["partitions"][0]["target_digest"]


@pytest.mark.proves("mirror verify", "never-silent")
def test_topics_and_partitions_that_are_missing_on_the_target_are_named(flow: Flow) -> None:
    flow.make(partitions=2)
    produce(flow.source.bootstrap, flow.name, VALUES, partition=1)
    report = verified(flow)
    assert (report.equal, report.is_whole, report.partitions) == (True, False, ())
    assert f"missing on the target, 40 offsets: no topic {flow.name} on the target" in str(report.shortfalls[0])
    flow.make(flow.target)
    report = verified(flow)
    assert (report.equal, report.is_whole) == (True, False)
    assert f"-1: missing on the target, 40 offsets: {flow.name} has 1 partition" in str(report.shortfalls[0])
    few = f"{flow.name}-few"
    make_topic(flow.source.bootstrap, few)
    make_topic(flow.target.bootstrap, few, 2)
    flow.include = [few]
    (one,) = verified(flow).differences
    assert (one.kind, one.source, one.target) == (DifferenceKind.TOPIC, "1 partition", "2 partitions")


@pytest.mark.proves("mirror verify", "never-silent")
def test_a_target_that_stamps_records_differs_unless_that_is_configured(flow: Flow) -> None:
    flow.make()
    flow.make(flow.target, configs={"message.timestamp.type": "LogAppendTime"})
    produce(flow.source.bootstrap, flow.name, VALUES)
    flow.copied()
    assert {kind for _, kind in found(verified(flow))} == {DifferenceKind.TIMESTAMP}
    report = verified(flow, append_time="target")
    (topic,) = report.topics
    assert (report.equal, topic.identical, topic.own_timestamps) == (True, 0, 4)
    assert report.partitions[0].notes == ("append time: the target's own timestamps, not compared",)


@pytest.mark.proves("mirror verify")
def test_what_the_source_deleted_is_a_note_and_what_the_target_deleted_a_difference(copied: Flow) -> None:
    copied.expire(copied.source, 13)
    report = verified(copied)
    (partition,) = report.partitions
    assert (report.equal, partition.begin, partition.identical) == (True, 13, 3)
    assert partition.notes == ("the source deleted records that the target still has; compared from there on",)
    copied.expire(copied.target, 20)
    report = verified(copied)
    assert (found(report), report.topics[0].identical) == ([(13, DifferenceKind.DELETED)], 2)


@pytest.mark.proves("mirror verify")
def test_a_transaction_that_is_open_since_before_the_log_starts_hides_nothing(flow: Flow) -> None:
    """Its first offset, behind which nothing is committed yet, is below where the source begins."""
    flow.make()
    producer = Producer({"bootstrap.servers": flow.source.bootstrap, "transactional.id": flow.name})
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in VALUES[:10]:
        producer.produce(flow.name, value, partition=0)
    producer.flush(60)
    flow.expire(flow.source, 7)
    flow.copy()
    report = verified(flow)
    producer.abort_transaction(60)
    assert (report.equal, report.differences) == (True, ())


@pytest.mark.proves("mirror verify", "never-silent")
def test_what_proves_nothing_is_refused(copied: Flow) -> None:
    settings = copied.settings()
    with pytest.raises(ConfigError, match=f"--topic {copied.name}x: .* did you mean {copied.name}?"):
        verify_flow(settings, [f"{copied.name}x"])
    with pytest.raises(PreflightError, match="same cluster"):
        verified(replace(copied, source=copied.target))
    missing = f"{copied.name}-missing"
    with pytest.raises(PreflightError, match=f"{missing}: no such topic on cluster eu"):
        verified(replace(copied, include=[missing]))


@pytest.mark.proves("mirror verify", "never-silent", "RECREATED")
def test_a_copy_of_a_topic_that_was_made_anew_is_no_proof(flow: Flow) -> None:
    """Though the new topic has the same records."""
    flow.make()
    produce(flow.source.bootstrap, flow.name, VALUES)
    assert run_once(flow.settings()).exit_code is ExitCode.DONE
    assert verify(flow.settings(), (), as_json=True, wait=0) is ExitCode.DONE
    delete_topics(flow.source.bootstrap, flow.name)
    flow.make()
    produce(flow.source.bootstrap, flow.name, VALUES)
    report = verified(flow)
    assert (report.equal, report.is_whole) == (True, False)
    assert any("recreated" in one.reason for one in report.shortfalls)


# --- a proof in ranges ------------------------------------------------------------------------------------------------


class Interrupted:
    """A proof whose cluster is unreachable when `most` shares are compared."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.most, self.compared = 3, list[Share]()
        patch.setattr("mirror.commands.verify.prove", self._prove)
        patch.setattr("mirror.commands.verify.SHARES_AT_ONCE", 1)

    async def _prove(self, share: Share, read: Callable[[int], None]) -> Sequence[proving.Found]:
        if len(self.compared) == self.most:
            raise ClusterUnreachable("the network is gone")
        self.compared.append(share)
        return await proving.prove(share, read)

    @property
    def numbers(self) -> list[int]:
        return [one.number for share in self.compared for one in share.ranges]


@pytest.fixture
def large(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> tuple[Flow, VerifyReport]:
    """A copy of many batches, its report in one piece; from then on a range has a ninth of its bytes."""
    flow.make()
    produce(flow.source.bootstrap, flow.name, VALUES * 4, codec="lz4", batch=7)
    flow.copied()
    whole = verified(flow)
    assert whole.equal
    monkeypatch.setattr(ranges, "RANGE_BYTES", whole.topics[0].bytes // 9)
    return flow, whole


@pytest.mark.proves("mirror verify")
def test_an_interrupted_proof_resumes_behind_the_ranges_that_are_finished(
    large: tuple[Flow, VerifyReport], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Up to the ends that were fixed when it began."""
    flow, whole = large
    interrupted, report = Interrupted(monkeypatch), tmp_path / "proof.html"
    with pytest.raises(ClusterUnreachable, match="the network is gone"):
        verify(flow.settings(), (), as_json=True, report_file=report)
    finished = len(interrupted.numbers)
    (file,) = tmp_path.iterdir()
    assert file.name == "proof.html.unfinished", "and no empty page"
    produce(flow.source.bootstrap, flow.name, [b"later"])
    flow.copied()
    interrupted.most = 99
    again = verify_flow(flow.settings(), means=Means(file=file))
    assert sorted(interrupted.numbers) == list(range(len(interrupted.numbers))), "each was compared once"
    assert (again.resumed, again.partitions) == (finished, whole.partitions), "as if it had been read in one piece"
    assert file.exists(), "until whoever asked has the report safe"


@pytest.mark.proves("mirror verify", "same-offsets")
def test_a_translated_copy_is_proved_in_ranges(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    flow.make()
    for number in range(3):
        transactions(flow.source.bootstrap, flow.name, [True, False], name=str(number))
        produce(flow.source.bootstrap, flow.name, VALUES, batch=7)
    flow.copied(offsets="translate")
    whole = verified(flow, offsets="translate")
    assert (whole.equal, whole.is_whole, whole.topics[0].records) == (True, True, 3 * 45)
    monkeypatch.setattr(ranges, "RANGE_BYTES", whole.topics[0].bytes // 5)
    assert verified(flow, offsets="translate").partitions == whole.partitions
