"""Commands as people call them, on clusters: what they end with, and what they say in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from commandline import called
from helpers import config_file, make_topic
from pair import Shared
from syncing import admin_of

pytestmark = pytest.mark.brokers


@pytest.mark.proves("mirror run", "mirror plan", "mirror verify")
@pytest.mark.parametrize("command", ["run", "plan", "verify"])
def test_a_topic_that_is_not_there_ends_with_3(
    command: str, source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    config = config_file(tmp_path, source_cluster.bootstrap, target_cluster.bootstrap, [topic_name], topic_name)
    done = called(command, config)
    assert done.code == 3
    assert f"{topic_name}: no such topic on cluster eu" in done.out + done.err


@pytest.mark.proves("mirror run")
def test_what_spark_lacks_is_said_before_anything_is_created(
    source_cluster: Shared,
    target_cluster: Shared,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_topic(source_cluster.bootstrap, topic_name)
    config = config_file(tmp_path, source_cluster.bootstrap, target_cluster.bootstrap, [topic_name], topic_name)
    config.write_text(json.dumps({**json.loads(config.read_text()), "spark": {"master": "local[1]"}}))
    done = called("run", config)
    assert done.code == 2
    assert "spark.master local[1] has too few slots" in done.err
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = called("run", config)
    assert done.code == 2
    assert f"Java 17 or newer is needed, and there is none in JAVA_HOME {tmp_path}: install it" in done.err
    assert admin_of(target_cluster.bootstrap).describe([topic_name]) == {}


@pytest.mark.proves("mirror plan")
def test_the_exit_code_says_what_was_done_though_nobody_reads_it(
    source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    make_topic(source_cluster.bootstrap, topic_name)
    config = config_file(tmp_path, source_cluster.bootstrap, target_cluster.bootstrap, [topic_name], topic_name)
    command = ["bash", "-c", f"{sys.executable} -m mirror plan {config} >/dev/full"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 10, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.proves("mirror embedded fill")
def test_topics_of_an_embedded_cluster_are_filled(
    target_cluster: Shared, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done = called("embedded", "fill", "eu", topic_name)
    assert done.code == 1
    assert "no cluster eu is up" in done.err
    monkeypatch.setattr("mirror.lab.embedded.by_hand.named", lambda _: SimpleNamespace(bootstrap=target_cluster.bootstrap))
    more = f"{topic_name}-more"
    done = called("embedded", "fill", "eu", topic_name, more, "--records", "500")
    assert done == (0, f"{topic_name} holds 500 records\n{more} holds 500 records\n", "")
