"""`mirror verify`: a copy is equal and whole, or each difference and each lack is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from compared_logs import VALUES
from confluent_kafka import Producer
from helpers import make_topic, mirror_once, produce, settings_between
from pair import Shared
from samerecords import assert_same_logs
from sparkless import run_once
from syncing import delete_topics
from topicadmin import delete_records
from transactional import transactions

from mirror.commands.verify import Means, verify, verify_flow
from mirror.config import Settings
from mirror.errors import ClusterUnreachable, ConfigError, ExitCode, PreflightError
from mirror.states import State
from mirror.verify import flow as proving
from mirror.verify import ranges
from mirror.verify.ranges import Share
from mirror.verify.report import DifferenceKind, VerifyReport


@dataclass(frozen=True)
class Flow:
    """A flow with one topic, between the shared clusters."""

    source: str
    target: str
    topic: str

    def settings(self, **topics: Any) -> Settings:
        return settings_between(self.source, self.target, [self.topic], self.topic, **topics)

    def mirror(self, **topics: Any) -> None:
        for status in mirror_once(self.source, self.target, [self.topic], self.topic, **topics).values():
            assert (status.state, status.detail, status.lag_records) == (State.CAUGHT_UP, "", 0)

    def verify(self, **topics: Any) -> VerifyReport:
        return verify_flow(self.settings(**topics))


@pytest.fixture
def flow(source_cluster: Shared, target_cluster: Shared, topic_name: str) -> Flow:
    return Flow(source_cluster.bootstrap, target_cluster.bootstrap, topic_name)


@pytest.fixture
def copied(flow: Flow) -> Flow:
    """One whose topic has 40 records in 4 batches, which are mirrored."""
    make_topic(flow.source, flow.topic)
    produce(flow.source, flow.topic, VALUES, codec="zstd")
    flow.mirror()
    return flow


def found(report: VerifyReport) -> list[tuple[int, DifferenceKind]]:
    return [(one.offset, one.kind) for one in report.differences]


@pytest.mark.proves("mirror verify", "same-bytes", "same-offsets")
def test_a_copy_is_equal_batch_by_batch(flow: Flow) -> None:
    make_topic(flow.source, flow.topic, 2)
    produce(flow.source, flow.topic, VALUES, codec="zstd")
    produce(flow.source, flow.topic, VALUES, partition=1, batch=7, codec="gzip")
    flow.mirror()
    report = flow.verify()
    assert (report.equal, report.is_whole, report.differences) == (True, True, ())
    (topic,) = report.topics
    assert (topic.partitions, topic.records, topic.batches, topic.identical, topic.lag) == (2, 80, 10, 10, 0)
    assert (topic.codecs, topic.offsets_equal) == (("zstd", "gzip"), True)
    assert all(one.source_digest == one.target_digest for one in report.partitions)
    assert assert_same_logs(flow.source, flow.target, flow.topic) == 80, "a judge that shares no code says so, too"


@pytest.mark.proves("mirror verify", "never-silent")
def test_a_foreign_record_is_a_difference(copied: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(copied.settings(), (), as_json=False) is ExitCode.DONE
    assert f"{copied.topic}: eu and us are equal (4 batches, " in capsys.readouterr().out
    produce(copied.target, copied.topic, [b"foreign"])
    assert found(copied.verify()) == [(40, DifferenceKind.EXTRA)]
    produce(copied.source, copied.topic, [b"native", b"lag"], batch=1)
    assert verify(copied.settings(), (), as_json=True) is ExitCode.DIFFERENT
    report = json.loads(capsys.readouterr().out)
    assert (report["equal"], report["different"], report["topics"][0]["lag"]) == (False, 1, 1)
    assert (report["differences"][0]["offset"], report["differences"][0]["kind"]) == (40, "value")
    assert report["partitions"][0]["source_digest"] != report["partitions"][0]["target_digest"]


@pytest.mark.proves("mirror verify", "never-silent")
def test_a_copy_that_lags_is_equal_and_not_whole(copied: Flow) -> None:
    produce(copied.source, copied.topic, VALUES[:23])
    report = copied.verify()
    assert (report.equal, report.is_whole, report.topics[0].lag) == (True, False, 23)
    assert [str(one) for one in report.shortfalls] == [
        f"{copied.topic}-0: not there yet, offsets 40 to 62 (23): the mirror: never ran"
    ]
    assert verify(copied.settings(), (), as_json=True, wait=0) is ExitCode.NOT_WHOLE


@pytest.mark.proves("mirror verify", "never-silent")
def test_topics_and_partitions_that_are_missing_on_the_target_are_named(flow: Flow) -> None:
    make_topic(flow.source, flow.topic, 2)
    produce(flow.source, flow.topic, VALUES, partition=1)
    report = flow.verify()
    assert (report.equal, report.is_whole, report.partitions) == (True, False, ())
    assert f"missing on the target, 40 offsets: no topic {flow.topic} on the target" in str(report.shortfalls[0])
    make_topic(flow.target, flow.topic)
    report = flow.verify()
    assert (report.equal, report.is_whole) == (True, False)
    assert f"-1: missing on the target, 40 offsets: {flow.topic} has 1 partition" in str(report.shortfalls[0])
    few = f"{flow.topic}-few"
    make_topic(flow.source, few)
    make_topic(flow.target, few, 2)
    (one,) = verify_flow(settings_between(flow.source, flow.target, [few])).differences
    assert (one.kind, one.source, one.target) == (DifferenceKind.TOPIC, "1 partition", "2 partitions")


@pytest.mark.proves("mirror verify", "never-silent")
def test_a_target_that_stamps_records_differs_unless_that_is_configured(flow: Flow) -> None:
    make_topic(flow.source, flow.topic)
    make_topic(flow.target, flow.topic, configs={"message.timestamp.type": "LogAppendTime"})
    produce(flow.source, flow.topic, VALUES)
    flow.mirror()
    assert {kind for _, kind in found(flow.verify())} == {DifferenceKind.TIMESTAMP}
    report = flow.verify(append_time="target")
    (topic,) = report.topics
    assert (report.equal, topic.identical, topic.own_timestamps) == (True, 0, 4)
    assert report.partitions[0].notes == ("append time: the target's own timestamps, not compared",)


@pytest.mark.proves("mirror verify")
def test_what_the_source_deleted_is_a_note_and_what_the_target_deleted_a_difference(copied: Flow) -> None:
    delete_records(copied.source, copied.topic, 13)
    report = copied.verify()
    (partition,) = report.partitions
    assert (report.equal, partition.begin, partition.identical) == (True, 13, 3)
    assert partition.notes == ("the source deleted records that the target still has; compared from there on",)
    delete_records(copied.target, copied.topic, 20)
    report = copied.verify()
    assert (found(report), report.topics[0].identical) == ([(13, DifferenceKind.DELETED)], 2)


@pytest.mark.proves("mirror verify")
def test_a_transaction_that_is_open_since_before_the_log_starts_hides_nothing(flow: Flow) -> None:
    """Its first offset, behind which nothing is committed yet, is below where the source begins."""
    make_topic(flow.source, flow.topic)
    producer = Producer({"bootstrap.servers": flow.source, "transactional.id": flow.topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in VALUES[:10]:
        producer.produce(flow.topic, value, partition=0)
    producer.flush(60)
    delete_records(flow.source, flow.topic, 7)
    assert mirror_once(flow.source, flow.target, [flow.topic], flow.topic)
    report = flow.verify()
    producer.abort_transaction(60)
    assert (report.equal, report.differences) == (True, ())


@pytest.mark.proves("mirror verify", "never-silent")
def test_what_proves_nothing_is_refused(copied: Flow) -> None:
    settings = copied.settings()
    with pytest.raises(ConfigError, match=f"--topic {copied.topic}x: .* did you mean {copied.topic}?"):
        verify_flow(settings, [f"{copied.topic}x"])
    with pytest.raises(PreflightError, match="same cluster"):
        verify_flow(settings_between(copied.target, copied.target, [copied.topic], copied.topic))
    missing = f"{copied.topic}-missing"
    with pytest.raises(PreflightError, match=f"{missing}: no such topic on cluster eu"):
        verify_flow(settings_between(copied.source, copied.target, [missing]))


@pytest.mark.proves("mirror verify", "never-silent", "RECREATED")
def test_a_copy_of_a_topic_that_was_made_anew_is_no_proof(flow: Flow) -> None:
    """Though the new topic has the same records."""
    make_topic(flow.source, flow.topic)
    produce(flow.source, flow.topic, VALUES)
    assert run_once(flow.settings()).exit_code is ExitCode.DONE
    assert verify(flow.settings(), (), as_json=True, wait=0) is ExitCode.DONE
    delete_topics(flow.source, flow.topic)
    make_topic(flow.source, flow.topic)
    produce(flow.source, flow.topic, VALUES)
    report = flow.verify()
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
    make_topic(flow.source, flow.topic)
    produce(flow.source, flow.topic, VALUES * 4, codec="lz4", batch=7)
    flow.mirror()
    whole = flow.verify()
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
    produce(flow.source, flow.topic, [b"later"])
    flow.mirror()
    interrupted.most = 99
    again = verify_flow(flow.settings(), means=Means(file=file))
    assert sorted(interrupted.numbers) == list(range(len(interrupted.numbers))), "each was compared once"
    assert (again.resumed, again.partitions) == (finished, whole.partitions), "as if it had been read in one piece"
    assert file.exists(), "until whoever asked has the report safe"


@pytest.mark.proves("mirror verify", "same-offsets")
def test_a_translated_copy_is_proved_in_ranges(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topic(flow.source, flow.topic)
    for number in range(3):
        transactions(flow.source, flow.topic, [True, False], name=str(number))
        produce(flow.source, flow.topic, VALUES, batch=7)
    flow.mirror(offsets="translate")
    whole = flow.verify(offsets="translate")
    assert (whole.equal, whole.is_whole, whole.topics[0].records) == (True, True, 3 * 45)
    monkeypatch.setattr(ranges, "RANGE_BYTES", whole.topics[0].bytes // 5)
    assert flow.verify(offsets="translate").partitions == whole.partitions
