"""SIGKILL inside Spark: whatever dies, every record arrives once, in order, at its source offset."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from adversary.driving import Command
from faults.points import VARIABLE
from helpers import config_file, make_topic, produce
from samerecords import assert_same_logs, log_ends
from transactional import transactions
from waiting import DEADLINE_S, until

from mirror.lab.embedded import Cluster

TESTS = Path(__file__).parents[2]


def _mirror(config: Path, log: Path, point: str) -> subprocess.Popen[bytes]:
    """Start a bounded run of which the first process that comes to a point dies there."""
    path = [TESTS / "faults" / "arming", TESTS, TESTS / "support", TESTS.parent]
    armed = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), VARIABLE: point}
    with log.open("w") as file:
        return subprocess.Popen([sys.executable, "-m", "mirror", "run", str(config), "--once"], env=armed, stderr=file)


def _is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("victim", ["worker", "driver", "jvm"])
def test_a_kill_loses_nothing(
    victim: str, own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    for part in range(3):
        produce(source, topic_name, [b"%d %d" % (part, number) + b"." * 2000 for number in range(1000)])
        transactions(source, topic_name, [True, False, True], name=str(part))
    # slow enough for a kill in the midst of it; Spark tries the task of a worker that died again
    struck, log = tmp_path / "struck", tmp_path / "log"
    limits = {} if victim == "worker" else {"bytes_per_second": 1_000_000}
    config = config_file(tmp_path, source, target, [topic_name], topic_name, sections={"limits": limits})
    mirror = _mirror(config, log, f"before-ack:1:{struck}" if victim == "worker" else "")
    try:
        if victim != "worker":
            _kill(victim, mirror, target, topic_name, log)
        code = mirror.wait(DEADLINE_S)
    finally:
        mirror.kill()
    assert struck.exists() == (victim == "worker"), log.read_text()
    assert code == {"worker": 0, "driver": -9, "jvm": 1}[victim], log.read_text()
    if code:
        again = Command(tmp_path, "run", str(config), "--once")  # with Spark or without
        assert again.wait(DEADLINE_S) == 0, again.logged
    assert_same_logs(source, target, topic_name)


def _kill(victim: str, mirror: subprocess.Popen[bytes], target: str, topic: str, log: Path) -> None:
    """Kill the driver or its JVM in the midst of the copy; none of the driver's processes outlives it."""

    def copied() -> int:
        assert mirror.poll() is None, log.read_text()
        return sum(part.end for part in log_ends(target, topic).values())

    until(lambda: copied() > 100, log.read_text)
    tree = psutil.Process(mirror.pid).children(recursive=True)
    if victim == "driver":
        mirror.kill()
        until(lambda: all(map(_is_gone, tree)), lambda: "tasks or the JVM outlived the driver")
    else:
        next(process for process in tree if process.name() == "java").kill()
