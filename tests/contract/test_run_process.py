"""`mirror run` as a process, with Spark: a bounded copy, and a live mirror from its start to SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from commandline import called
from confluent_kafka.admin import AdminClient
from groupoffsets import commit, committed
from helpers import config_file, make_topic, produce
from pair import Shared
from running import Running, running
from samerecords import assert_same_records, read
from syncing import delete_topics
from waiting import until

from mirror.names import LONGEST


def config_of(folder: Path, source: Shared, target: Shared, flow: str, **more: Any) -> Path:
    """A flow of all topics whose names begin with its own."""
    names = [f"{flow}-.*"]
    sections = {"groups": {"include": names}, "metrics": {"listen": None}, **more}
    return config_file(folder, source.bootstrap, target.bootstrap, names, flow, sections=sections)


@pytest.mark.proves("mirror run", "same-offsets", "exactly-once")
def test_a_bounded_run_copies_what_there_is_and_ends_with_0(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    """Where Python has ASCII alone, the JVM speaks Turkish, nobody else may read new files, and a name is the longest
    that a topic may have.
    """
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    short, long = f"{topic_name}-short", f"{topic_name}-{'x' * LONGEST}"[:LONGEST]
    for topic in (short, long):
        make_topic(source, topic, 2)
        for partition in (0, 1):
            produce(source, topic, [b"\xc4\xb0stanbul %d" % number for number in range(100)], partition=partition)
    commit(source, f"{topic_name}-group", short, 7)
    conf = {"spark.driver.extraJavaOptions": "-Duser.language=tr -Duser.country=TR"}
    config = config_of(tmp_path, source_cluster, target_cluster, topic_name, spark={"conf": conf})
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "mirror", "run", str(config), "--once"]
    done = subprocess.run(command, capture_output=True, env=environment, umask=0o077, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert (done.stdout + done.stderr).isascii()
    assert [assert_same_records(source, target, topic, 2) for topic in (short, long)] == [200, 200]
    assert committed(target, f"{topic_name}-group", short) == 7


def events(mirror: Running, name: str) -> list[dict[str, Any]]:
    """What the mirror logged by this name."""
    lines = mirror.log.splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]
    return [one for one in found if one["event"] == name]


@pytest.mark.proves("mirror run", "mirror status", "never-silent", "RECREATED")
def test_a_live_mirror_follows_names_a_stop_once_and_ends_with_sigterm(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    sound, hurt = f"{topic_name}-sound", f"{topic_name}-hurt"
    for topic in (sound, hurt):
        make_topic(source, topic)
        produce(source, topic, [b"%d" % number for number in range(100)])
    config = config_of(tmp_path, source_cluster, target_cluster, topic_name, sync={"interval_s": 1})

    def states() -> dict[str, tuple[str, int]]:
        done = called("status", config, "--json")
        partitions = json.loads(done.out)["partitions"] if done.code == 0 else []
        return {one["topic"]: (one["state"], one["next_offset"]) for one in partitions}

    with running(config, tmp_path / "log", "--json") as mirror:

        def until_states(**wanted: tuple[str, int]) -> None:
            expected = {f"{topic_name}-{name}": one for name, one in wanted.items()}
            until(
                lambda: mirror.process.poll() is not None or states() == expected, lambda: f"{states()}\n{mirror.log}"
            )
            assert mirror.process.poll() is None, mirror.log

        until_states(sound=("CAUGHT_UP", 100), hurt=("CAUGHT_UP", 100))
        delete_topics(source, hurt)
        make_topic(source, hurt)
        produce(source, hurt, [b"other %d" % number for number in range(30)])
        produce(source, sound, [b"%d" % number for number in range(100, 120)])
        until_states(sound=("CAUGHT_UP", 120), hurt=("RECREATED", 100))
        assert len(list(read(target, hurt, 0))) == 100, "nothing foreign"
        (stop,) = until(lambda: events(mirror, "partition_stopped"), lambda: mirror.log)
        assert f"kafka-topics.sh --bootstrap-server {target} --delete --topic {hurt}" in stop["detail"]
        admin = AdminClient({"bootstrap.servers": target})
        admin.delete_topics([hurt])[hurt].result(30)
        until_states(sound=("CAUGHT_UP", 120), hurt=("CAUGHT_UP", 30))
        until(lambda: events(mirror, "partition_resumed"), lambda: mirror.log)
        tree = psutil.Process(mirror.process.pid).children(recursive=True)
        mirror.process.send_signal(signal.SIGTERM)
        assert mirror.ended() == 0, mirror.log
    _, left = psutil.wait_procs(tree, timeout=180)
    assert left == [], "a process outlives the mirror"
    assert len(events(mirror, "partition_stopped")) == 1
    assert [one["topic"] for one in events(mirror, "partition_resumed")] == [hurt]
    assert [assert_same_records(source, target, topic, 1) for topic in (sound, hurt)] == [120, 30]
