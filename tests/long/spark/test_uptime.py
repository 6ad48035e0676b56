"""What must not end a mirror, and what must end it in time: terminals, disks, signals, and Spark's JVM."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from helpers import config_file, make_topic, produce
from samerecords import assert_same_records
from syncing import admin_of, ends
from waiting import DEADLINE_S, until

from mirror.lab.embedded import Cluster


def test_a_mirror_outlives_its_scratch_folder_and_its_log_and_ends_in_time_though_its_jvm_hangs(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """One mirror, one trouble after another: its stderr is full from the start, its scratch folder is emptied, its
    process group is hung up as by a closed terminal (which asks the driver to read its configuration again), and then
    Spark's JVM is stopped.
    """
    source, target, scratch = own_source.bootstrap, own_target.bootstrap, tmp_path / "scratch"
    make_topic(source, topic_name)
    produce(source, topic_name, [b"one"] * 10)
    sections = {"spark": {"conf": {"spark.local.dir": str(scratch)}, "epoch_s": 2}, "metrics": {"listen": None}}
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name, sections=sections)
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_DIRS"}
    command = [sys.executable, "-m", "mirror", "run", str(config)]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(command, stderr=full, start_new_session=True, env=environment)

    def has_copied(count: int) -> bool:
        assert process.poll() is None
        return bool(admin_of(target).describe([topic_name])) and ends(target, topic_name) == {0: count}

    try:
        until(lambda: has_copied(10))
        (jvm,) = (one for one in psutil.Process(process.pid).children(recursive=True) if one.name() == "java")
        assert os.getsid(jvm.pid) == jvm.pid, "what a terminal sends to its processes does not reach it"
        assert not [one for one in scratch.rglob("*") if one.is_file()], "no file holds what tasks are given"
        for folder in scratch.iterdir():
            shutil.rmtree(folder)
        os.killpg(process.pid, signal.SIGHUP)
        time.sleep(5)  # epochs begin meanwhile
        produce(source, topic_name, [b"two"] * 10)
        until(lambda: has_copied(20))
        jvm.suspend()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) in (0, 128 + signal.SIGTERM)
        until(lambda: not psutil.pid_exists(jvm.pid), lambda: "the JVM is left")
        assert_same_records(source, target, topic_name, 1)
    finally:
        if process.poll() is None:
            for one in psutil.Process(process.pid).children(recursive=True):
                one.kill()
            process.kill()
            process.wait()
