"""Log lines that people and machines read."""

from __future__ import annotations

import json

import pytest

from mirror.commands import run
from mirror.observe import logs
from mirror.observe.figures import Figures
from mirror.states import State
from mirror.wire.cluster import TopicPartition


@pytest.mark.parametrize(
    ("counts", "shown"),
    [({"RESTAMP/own_producer": 12, "DROP/control": 3}, '"12 RESTAMP/own_producer, 3 DROP/control"'), ({}, "none")],
)
def test_counts_are_text_for_people(counts: dict[str, int], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logs.get("any").info("flow_ended", verdicts=counts, partitions=2)
    line = capsys.readouterr().err
    assert f"verdicts={shown}" in line
    assert "partitions=2" in line
    assert "{" not in line


def test_counts_are_an_object_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(json=True)
    try:
        logs.get("any").info("flow_ended", verdicts={"DROP/control": 3})
    finally:
        logs.configure()
    assert json.loads(capsys.readouterr().err)["verdicts"] == {"DROP/control": 3}


def test_nothing_is_said_before_a_lane_has_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LINE_SECONDS", 0.0)
    logs.configure()
    watch = run._Watch("eu-to-us", None)
    watch.show({})
    assert capsys.readouterr().err == ""
    one = Figures(
        flow="f", instance="i", topic="t", partition=0, target_topic="t",
        state=State.MIRRORING, next_offset=1, log_end=1, lag_records=0, at_ms=1,
    )  # fmt: skip
    watch.show({TopicPartition("t", 0): one})
    assert 'states="1 MIRRORING"' in capsys.readouterr().err
