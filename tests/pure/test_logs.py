"""Log lines that people and machines read, and a stderr that takes none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirror.observability import logs

LOGS_ON = """
import os, sys
from mirror.observability import logs
logs.configure(json=True)
for number in range({lines}):
    logs.get("test").info("reported", number=number, text="x" * 500)
{then}
print("done", logs.lines_lost())
"""


@pytest.mark.parametrize(
    ("counts", "shown"),
    [({"RESTAMP/own_producer": 12, "DROP/control": 3}, '"12 RESTAMP/own_producer, 3 DROP/control"'), ({}, "none")],
)
def test_counts_are_text_for_people_and_an_object_for_machines(
    counts: dict[str, int], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(json=True)
    logs.get("any").info("flow_ended", verdicts=counts)
    assert json.loads(capsys.readouterr().err)["verdicts"] == counts
    logs.configure()
    logs.get("any").info("flow_ended", verdicts=counts, partitions=2)
    line = capsys.readouterr().err
    assert f"verdicts={shown}" in line
    assert "partitions=2" in line
    assert "{" not in line


def lost_by(stderr: int, lines: int, then: str = "") -> int:
    """How many lines a process reports as lost in the end that logs so many to this file."""
    command = [sys.executable, "-c", LOGS_ON.format(lines=lines, then=then)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=True)
    return int(ended.stdout.removeprefix("done "))


def test_a_full_disk_or_a_reader_that_is_gone_does_not_end_what_is_logged() -> None:
    with Path("/dev/full").open("w") as full:
        assert lost_by(full.fileno(), 10) == 10
    gone, stderr = os.pipe()
    os.close(gone)
    assert lost_by(stderr, 10) == 10
    os.close(stderr)


def test_a_reader_that_does_not_read_does_not_hold_up_what_is_logged() -> None:
    silent, stderr = os.pipe()
    assert lost_by(stderr, 1000) > 500
    os.close(silent)
    os.close(stderr)


def test_lines_that_were_lost_are_counted_when_lines_are_taken_again(tmp_path: Path) -> None:
    reported = tmp_path / "reported"
    then = f"os.dup2(os.open({str(reported)!r}, os.O_WRONLY | os.O_CREAT), 2); logs.get('test').info('again')"
    with Path("/dev/full").open("w") as full:
        assert lost_by(full.fileno(), 3, then) == 0
    events = [json.loads(line) for line in reported.read_text().splitlines()]
    assert [one["event"] for one in events][-2:] == ["again", "log_lines_lost"]
    assert events[-1]["count"] == 3
