"""`mirror run` of a flow with rules, as a process with Spark: beside other topics, killed, and out of memory."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from helpers import config_file, make_topic, produce
from rekeychecker import Seen, complaints, read_committed
from running import running
from typer.testing import CliRunner
from waiting import DEADLINE_S, until

from mirror.cli import app
from mirror.errors import ExitCode
from mirror.lab.embedded import Cluster

BY_USER = "get_json_object(string(value), '$.user')"


def fill(bootstrap: str, topic: str, begin: int, end: int, partitions: int = 2) -> None:
    """JSON records with a user each, spread over the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "zstd"})
    for number in range(begin, end):
        value = json.dumps({"user": f"user-{number * 7 % 50}", "number": number})
        producer.produce(topic, value, key=f"k{number % 13}", partition=number % partitions)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


def user_of(one: Seen) -> bytes | None:
    return str(json.loads(one.value or b"")["user"]).encode()


def run_once(folder: Path, config: Path) -> tuple[int, str]:
    """Return the exit code and the log of one bounded run."""
    with running(config, folder / "log", "--once") as mirror:
        return mirror.ended(), mirror.log


def kill(pid: int, *, only_workers: bool) -> None:
    """Kill the Python workers of Spark that re-key, or all of a mirror."""
    for one in (*psutil.Process(pid).children(recursive=True), psutil.Process(pid)):
        with contextlib.suppress(psutil.Error):  # it ended just now
            if not only_workers or "mirror.spark.rekey.daemon" in one.cmdline():
                one.kill()


@pytest.mark.proves("exactly-once", "mirror run")
def test_re_keyed_topics_run_beside_others_come_later_and_outlive_kills(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    plain, first, later = topic_name, f"{topic_name}-by-a", f"{topic_name}-by-b"
    for topic in (plain, first):
        make_topic(source, topic, 2)
        fill(source, topic, 0, 200)
    rules = [{"match": ".*-by-.*", "rekey": BY_USER, "partitions": 3}]
    config = config_file(tmp_path, source, target, [f"{topic_name}.*"], topic_name, rules=rules)

    def are_there(**records: int) -> bool:
        known = AdminClient({"bootstrap.servers": target}).list_topics(timeout=DEADLINE_S).topics
        topics = {"plain": plain, "first": first, "later": later}
        return all(
            topics[name] in known and len(read_committed(target, topics[name])) == count
            for name, count in records.items()
        )

    with running(config, tmp_path / "log") as mirror:
        until(lambda: are_there(plain=200, first=200), lambda: mirror.log)
        make_topic(source, later, 2)
        fill(source, later, 0, 100)
        fill(source, first, 200, 10_000)
        kill(mirror.process.pid, only_workers=True)
        until(lambda: are_there(later=100, first=10_000), lambda: mirror.log)
        fill(source, first, 10_000, 20_000)
        kill(mirror.process.pid, only_workers=False)
    with running(config, tmp_path / "again") as mirror:
        until(lambda: are_there(first=20_000), lambda: mirror.log)
        mirror.process.terminate()
        assert mirror.ended() == ExitCode.DONE, mirror.log
    for topic in (first, later):
        assert complaints(read_committed(source, topic), read_committed(target, topic), 3, user_of) == []
    result = CliRunner().invoke(app, ["status", str(config), "--json"])
    states = {(one["topic"], one["state"]) for one in json.loads(result.stdout)["partitions"]}
    assert states == {(topic, "CAUGHT_UP") for topic in (plain, first, later)}
    assert CliRunner().invoke(app, ["failover", str(config)]).exit_code == ExitCode.DONE


def test_a_record_that_exhausts_the_engine_stops_its_partition_alone(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2)
    fine = [json.dumps({"user": f"u{number}", "times": 2}).encode() for number in range(300)]
    produce(source, topic_name, fine)
    hostile = json.dumps({"user": "x", "times": 2_000_000_000}).encode()
    produce(source, topic_name, [*fine[:20], hostile, *fine[:10]], partition=1)
    value = "repeat('x', cast(get_json_object(string(value), '$.times') as int))"
    rules = [{"match": topic_name, "rekey": BY_USER, "value": value, "on_bad_record": "drop", "partitions": 3}]
    config = config_file(tmp_path, source, target, [topic_name], topic_name, rules=rules)
    code, log = run_once(tmp_path, config)
    assert code == ExitCode.DATA_AT_RISK, log
    stops = [one for one in log.splitlines() if "partition_stopped" in one]
    assert stops, log
    assert all("offset=20" in one and "partition=1" in one and "more memory" in one for one in stops), stops
    assert "epoch_failed" not in log
    assert len(read_committed(target, topic_name)) == 300 + 20
