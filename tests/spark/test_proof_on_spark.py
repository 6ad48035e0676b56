"""`mirror verify --spark`: tasks of Spark find what one process finds, down to the digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from compared_logs import VALUES
from helpers import make_topic, mirror_once, produce, settings_between
from pair import Shared

from mirror.commands.verify import verify, verify_flow
from mirror.errors import ExitCode
from mirror.verify import ranges
from mirror.verify.report import DifferenceKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.proves("mirror verify")
def test_tasks_of_spark_find_what_one_process_finds(
    spark: SparkSession,
    source_cluster: Shared,
    target_cluster: Shared,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    make_topic(source, topic_name, 2)
    produce(source, topic_name, VALUES * 4, codec="lz4", batch=7)
    produce(source, topic_name, VALUES, partition=1)
    assert mirror_once(source, target, [topic_name], topic_name)
    produce(target, topic_name, [b"foreign"], partition=1)
    settings = settings_between(source, target, [topic_name], topic_name)
    here = verify_flow(settings)
    assert [(one.partition, one.offset, one.kind) for one in here.differences] == [(1, 40, DifferenceKind.EXTRA)]
    monkeypatch.setattr(ranges, "RANGE_BYTES", here.topics[0].bytes // 4)
    monkeypatch.setattr("mirror.spark.verify.open_context", lambda *_: spark.sparkContext)
    monkeypatch.setattr("mirror.spark.verify.close_context", lambda _: None)
    report = tmp_path / "proof.html"
    assert verify(settings, (), as_json=True, report_file=report, spark=True) is ExitCode.DIFFERENT
    there = json.loads(capsys.readouterr().out)
    assert (there["spark"], there["different"]) == (True, 1)
    for ours, theirs in zip(here.partitions, there["partitions"], strict=True):
        assert (ours.source_digest, ours.target_digest) == (theirs["source_digest"], theirs["target_digest"])
    text = report.read_text(encoding="utf-8")
    assert "by tasks of Apache Spark" in text
    assert there["partitions"][0]["source_digest"] in text
    assert [path.name for path in tmp_path.iterdir()] == [report.name], "nothing is left to go on from"
