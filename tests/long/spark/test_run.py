"""`mirror run` as a user runs it: Spark, epochs, signals, a second mirror, exit codes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from groupoffsets import commit, committed
from helpers import config_file, make_topic, mirror_once, produce
from proxy import Proxy
from running import TIMEOUT, forked, running, values, wait_for
from samerecords import assert_same_records, read
from sparkless import run_once
from transactional import transactions
from typer.testing import CliRunner

from mirror.cli import app
from mirror.config import load
from mirror.errors import ConfigError, ExitCode
from mirror.lab.embedded import Cluster
from mirror.spark import supervisor

pytestmark = pytest.mark.brokers


@pytest.mark.spark
def test_once_live_and_a_second_mirror(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """One story, since each start of Spark costs seconds: a bounded copy, a live mirror that follows over epochs, a
    second one that stands by, a third that takes over, and the one that stood by when that one has ended."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    for partition in (0, 1):
        produce(source, topic_name, values(100), partition=partition)
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"spark": {"epoch_s": 4}}))

    with forked(config, tmp_path / "once.log", "--once") as once:
        assert once.ended() == 0, once.log
    assert "records=200" in once.log
    assert assert_same_records(source, target, topic_name, 2) == 200

    with ExitStack() as stack, running(config, tmp_path / "older.log") as older:
        older.until("spark_started")
        produce(source, topic_name, values(50))
        older.until("epoch_ended .*epoch=1")
        wait_for(lambda: _same(source, target, topic_name), TIMEOUT, lambda: older.log)
        with (
            forked(config, tmp_path / "waiting.log") as waiting,
            forked(config, tmp_path / "bounded.log", "--once") as bounded,
        ):
            waiting.until(f"standing_by .*pid {older.process.pid}")
            assert bounded.ended() == 3, bounded.log
            assert f"a mirror runs already (pid {older.process.pid} on " in bounded.log
            assert older.process.poll() is None, older.log
            younger = stack.enter_context(running(config, tmp_path / "younger.log", "--take-over"))
            assert older.ended() == 4, older.log
            assert "state=FENCED" in older.log
            younger.until("epoch_ended .*epoch=0")
            produce(source, topic_name, values(50), partition=1)
            wait_for(lambda: _same(source, target, topic_name), TIMEOUT, lambda: younger.log)
            younger.process.send_signal(signal.SIGTERM)
            assert younger.ended() == 0, younger.log
            waiting.until("epoch_ended .*epoch=0")
            waiting.process.send_signal(signal.SIGTERM)
            assert waiting.ended() == 0, waiting.log
    assert "records=50" in younger.log.splitlines()[-1], "everything acknowledged is accounted for"
    assert assert_same_records(source, target, topic_name, 2) == 300


def test_consumer_groups_follow(own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(100))
    commit(source, topic_name, topic_name, 60)
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name)
    settings = json.loads(config.read_text()) | {"groups": {"include": [f"{topic_name}.*"], "interval_s": 0.5}}
    config.write_text(json.dumps(settings))

    with forked(config, tmp_path / "once.log", "--once") as once:
        assert once.ended() == 0, once.log
    assert committed(target, topic_name, topic_name) == 60, once.log

    with forked(config, tmp_path / "live.log") as live:
        live.until("spark_started")
        commit(source, topic_name, topic_name, 70)
        wait_for(lambda: committed(target, topic_name, topic_name) == 70, TIMEOUT, lambda: live.log)
        commit(source, topic_name, topic_name, 40)
        wait_for(lambda: committed(target, topic_name, topic_name) == 40, TIMEOUT, lambda: live.log)
        commit(source, f"{topic_name}-late", topic_name, 100)
        live.process.send_signal(signal.SIGTERM)
        assert live.ended() == 0, live.log
    assert committed(target, f"{topic_name}-late", topic_name) == 100, live.log
    assert "groups_blocked" not in live.log

    result = subprocess.run(
        [sys.executable, "-m", "mirror", "status", str(config), "--json"], capture_output=True, check=True
    )
    groups = json.loads(result.stdout)["groups"]
    assert (groups["groups"], groups["synced"]) == (2, 2)


def _same(source: str, target: str, topic: str) -> bool:
    try:
        assert_same_records(source, target, topic, 2)
    except AssertionError:
        return False
    return True


def test_a_damaged_batch_ends_a_bounded_copy_with_exit_4(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    for partition in (0, 1):  # no batch of one is one of the other
        produce(source, topic_name, [b"%d " % partition + value for value in values(100)], partition=partition)

    def flip(answer: Any, frame: bytearray) -> None:
        for topic in answer.responses:
            for part in topic.partitions:
                if part.partition_index == 1 and part.records:
                    frame[bytes(frame).index(bytes(part.records)) + 90] ^= 4

    with Proxy(source, flip) as proxy:
        config = config_file(tmp_path, proxy.bootstrap, target, [topic_name], flow=topic_name)
        with forked(config, tmp_path / "log", "--once") as mirror:
            assert mirror.ended() == 4, mirror.log
    assert re.search("partition_stopped .*state=CORRUPT .*partition=1 offset=0", mirror.log)
    assert "records=100" in mirror.log, "the other partition was copied"


@pytest.mark.parametrize("offsets", ["preserve", pytest.param("translate", marks=pytest.mark.soak)])
def test_a_loss_stops_a_running_mirror_until_it_is_accepted(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path, offsets: str
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(100))
    mirror_once(source, target, [topic_name], topic_name, offsets=offsets)
    produce(source, topic_name, values(100))
    admin = AdminClient({"bootstrap.servers": source})
    for deleted in admin.delete_records([TopicPartition(topic_name, 0, 150)]).values():
        deleted.result(20)
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name, offsets=offsets)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"spark": {"epoch_s": 2}}))
    with forked(config, tmp_path / "live.log") as live:
        live.until("partition_stopped .*state=RETENTION_GAP")
        done = CliRunner().invoke(app, ["accept", str(config), topic_name])
        assert (done.exit_code, done.output.splitlines()[0]) == (
            0,
            f"{topic_name}-0: accepted the loss of 50 offsets, 100 to 149",
        )
        live.until("records_lost .*first_offset=100 last_offset=149")
        wait_for(lambda: len(list(read(target, topic_name, 0))) == 150, TIMEOUT, lambda: live.log)
        again = CliRunner().invoke(app, ["accept", str(config), topic_name, "--partition", "0"])
        assert "there is nothing to accept" in again.output
        live.process.send_signal(signal.SIGTERM)
        assert live.ended() == 0, live.log
    offsets_there = range(150) if offsets == "translate" else (*range(100), *range(150, 200))
    assert [record[0] for record in read(target, topic_name, 0)] == list(offsets_there)
    unknown = CliRunner().invoke(app, ["accept", str(config), topic_name, "--partition", "7"])
    assert isinstance(unknown.exception, ConfigError)


def test_translated_offsets_of_a_running_mirror(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transactions while it runs: groups follow, and every offset can be looked up, also what was not written down."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name, offsets="translate")
    groups = {"include": [f"{topic_name}.*"], "interval_s": 0.5}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"groups": groups, "spark": {"epoch_s": 3}}))

    def translated(offset: int, *options: str) -> Any:
        found = CliRunner().invoke(
            app, ["offsets", str(config), "translate", topic_name, "0", str(offset), "--json", *options]
        )
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return json.loads(found.stdout)

    with forked(config, tmp_path / "live.log") as live:
        live.until("spark_started")
        for number in range(5):
            transactions(source, topic_name, [True, False], name=str(number))
            produce(source, topic_name, values(20))
        # 5 committed, a marker, 5 aborted, a marker, 20 plain; and that five times
        commit(source, topic_name, topic_name, 4 * 32 + 6)
        wait_for(lambda: committed(target, topic_name, topic_name) == 4 * 25 + 5, TIMEOUT, lambda: live.log)
        assert translated(3 * 32 + 12)["target_offset"] == 3 * 25 + 5
        live.process.send_signal(signal.SIGKILL)
        live.process.wait()
    produce(source, topic_name, values(1))
    mirror_once(source, target, [topic_name], topic_name, offsets="translate", records_runs=False)
    theirs, ours = list(read(source, topic_name, 0)), list(read(target, topic_name, 0))
    assert [one[1:] for one in theirs] == [one[1:] for one in ours]
    for one, other in (theirs[0], ours[0]), (theirs[77], ours[77]), (theirs[-1], ours[-1]):
        for found in translated(one[0]), translated(other[0], "--reverse"):
            assert (found["source_offset"], found["target_offset"], found["record"]) == (one[0], other[0], True)
    assert translated(8)["record"] is False
    assert translated(161)["target_offset"] == 126
    with pytest.raises(ConfigError, match="offset 162 is not mirrored yet; what is mirrored ends at 161"):
        translated(162)
    with pytest.raises(ConfigError, match="offset 127 is not mirrored yet"):
        translated(127, "--reverse")
    produce(source, topic_name, values(3))
    commit(source, topic_name, topic_name, 164)
    # Reading the journal now and then is not enough: what a task recorded at its end is read before the last check.
    monkeypatch.setattr(supervisor, "WATCH_SECONDS", 60)
    assert run_once(load(config)).exit_code == ExitCode.DONE
    assert committed(target, topic_name, topic_name) == 129
