"""Log lines that people and machines read."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mirror.commands import run
from mirror.kafka.cluster import TopicPartition
from mirror.observability import logs
from mirror.observability.status import PartitionStatus
from mirror.states import State


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


def test_nothing_is_said_before_a_task_has_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LINE_SECONDS", 0.0)
    logs.configure()
    watch = run._Watch("eu-to-us", None)
    watch.show({})
    assert capsys.readouterr().err == ""
    one = PartitionStatus(
        flow="f", instance="i", topic="t", partition=0, target_topic="t",
        state=State.MIRRORING, next_offset=1, log_end=1, lag_records=0, at_ms=1,
    )  # fmt: skip
    watch.show({TopicPartition("t", 0): one})
    assert 'states="1 MIRRORING"' in capsys.readouterr().err


LOGS_ON = """
import os, sys
from mirror.observability import logs
logs.configure(json=True)
for number in range({lines}):
    logs.get("test").info("reported", number=number, text="x" * 500)
{then}
print("done", logs.lines_lost())
"""


def logging_to(stderr: str, lines: int, then: str = "") -> str:
    """What a process says on stdout that logs so many lines, its stderr redirected by the shell."""
    script = LOGS_ON.format(lines=lines, then=then)
    command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(script)} {stderr}"
    ended = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 0
    return ended.stdout.strip()


def test_a_full_disk_or_a_reader_that_is_gone_does_not_end_what_is_logged() -> None:
    assert logging_to("2>/dev/full", 10) == "done 10"
    lost = int(logging_to("2> >(head -n 1 >/dev/null)", 2000).removeprefix("done "))
    assert 0 < lost < 2000


def test_a_reader_that_does_not_read_does_not_hold_up_what_is_logged() -> None:
    assert int(logging_to("2> >(sleep 5)", 1000).removeprefix("done ")) > 500


def test_lines_that_were_lost_are_counted_when_lines_are_taken_again(tmp_path: Path) -> None:
    reported = tmp_path / "reported"
    then = f"os.dup2(os.open({str(reported)!r}, os.O_WRONLY | os.O_CREAT), 2); logs.get('test').info('again')"
    assert logging_to("2>/dev/full", 3, then) == "done 0"
    events = [json.loads(line) for line in reported.read_text().splitlines()]
    assert [one["event"] for one in events][-2:] == ["again", "log_lines_lost"]
    assert events[-1]["count"] == 3
