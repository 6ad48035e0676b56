"""Named points inside Spark: a worker dies there and its task is tried again, or the driver dies and is followed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from adversary.driving import Command
from checker import check
from faults.points import VARIABLE
from helpers import config_file, make_topic, produce
from transactional import transactions

from mirror.lab.embedded import Cluster

TESTS = Path(__file__).parents[2]
SAMPLE = ["produce-sent", "before-journal"]
MORE = ["fetch-answered", "before-ack", "after-count", "markers-sent", "after-filled", "before-resume", "after-result"]


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.parametrize("point", [*SAMPLE, *(pytest.param(point, marks=pytest.mark.soak) for point in MORE)])
def test_a_kill_inside_spark(
    point: str, own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    for part in range(3):
        produce(source, topic_name, [b"%d %d" % (part, number) for number in range(200)])
        transactions(source, topic_name, [True, False, True], name=str(part))
    struck = tmp_path / "struck"
    path = [str(TESTS / "faults" / "arming"), str(TESTS), str(TESTS / "support"), str(TESTS.parent)]
    armed = {**os.environ, "PYTHONPATH": os.pathsep.join(path), VARIABLE: f"{point}:1:{struck}"}
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name)
    command = [sys.executable, "-m", "mirror", "run", str(config), "--once"]
    first = subprocess.run(command, env=armed, capture_output=True, text=True, timeout=240, check=False)
    assert struck.exists(), first.stderr
    assert first.returncode in (0, -signal.SIGKILL), first.stderr
    if first.returncode:
        again = Command(tmp_path, "run", str(config), "--once")  # with Spark or without
        assert again.wait(240) == 0, again.logged
    assert check(source, target, topic_name) == []
