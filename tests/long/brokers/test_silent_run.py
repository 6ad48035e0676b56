"""What a person sees of the failures of test_silent.py: one log event for each while `mirror run` goes on with the
rest, `status`, and exit codes. Each of these tests meets several failures.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AclOperation
from faults.network import Network
from guarded import create, delete, delete_records, flip_a_stored_bit, give_back, guarded_pair, take_away
from helpers import config_file, make_topic, produce
from running import TIMEOUT, Running, forked, wait_for
from samerecords import read

from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster

pytestmark = pytest.mark.brokers


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    with guarded_pair("seen") as clusters:
        yield clusters


def values(count: int, word: bytes = b"") -> list[bytes]:
    return [word + b"%06d" % number + b"." * 100 for number in range(count)]


def events(log: str, name: str) -> list[dict[str, str]]:
    """Every log event of that name, as its fields."""
    lines = (line for line in log.splitlines() if f" event={name} " in line)
    return [{key: value.strip('"') for key, value in re.findall(r'(\w+)=("[^"]*"|\S*)', line)} for line in lines]


def stops(mirror: Running) -> dict[tuple[str, int], dict[str, str]]:
    """The stops that were logged, by topic and partition; none may be logged twice."""
    found = events(mirror.log, "partition_stopped")
    by_partition = {(one["topic"], int(one["partition"])): one for one in found}
    assert len(by_partition) == len(found), mirror.log
    return by_partition


class Topics:
    """Topics of two partitions with 100 records in each, by what is to become of them."""

    def __init__(self, source: Cluster, names: tuple[str, ...]) -> None:
        self._prefix, self._source = f"t{uuid4().hex[:8]}", source
        self.names = names
        for name in names:
            make_topic(source.bootstrap, self[name], 2)
            for partition in (0, 1):
                produce(source.bootstrap, self[name], values(100), partition=partition)

    def __getitem__(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def at(self, name: str, partition: int = 0) -> TopicPartition:
        return TopicPartition(self[name], partition)

    def write(self, name: str, partition: int = 0, word: bytes = b"") -> None:
        """100 records more."""
        produce(self._source.bootstrap, self[name], values(100, word), partition=partition)

    @property
    def all(self) -> list[str]:
        return [self[name] for name in self.names]


def count(cluster: Cluster, at: TopicPartition) -> int:
    return len(list(read(cluster.bootstrap, *at)))


def configured(folder: Path, source: str, target: str, topics: Topics, **more: Any) -> Path:
    """A flow's file."""
    config = config_file(folder, source, target, topics.all, flow=f"f{uuid4().hex[:8]}")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"groups": {"include": []}} | more))
    return config


@contextmanager
def followed(config: Path, log: Path, target: Cluster, topics: Topics) -> Iterator[Running]:
    """A mirror that has copied all there is."""
    with forked(config, log) as mirror:
        mirror.until("spark_started")
        for name in topics.names:
            for partition in (0, 1):
                at = topics.at(name, partition)
                wait_for(lambda at=at: count(target, at) >= 100, TIMEOUT, lambda: mirror.log)  # type: ignore[misc] # bound
        yield mirror


#: What is done, the state that it leads to, the offset, and how the event says what to run.
LIVE = {
    "anew": ("RECREATED", 100, "kafka-topics.sh --bootstrap-server {target} --delete --topic {topic}"),
    "overtaken": ("RETENTION_GAP", 100, "mirror accept CONFIG {topic}"),
    "rotten": ("CORRUPT", 150, "mirror inspect {topic}:0 --config CONFIG --side source --from 150"),
    "unread": (
        "UNAUTHORIZED",
        100,
        "kafka-acls.sh --bootstrap-server {source} --add .*--operation Read --topic {topic}",
    ),
    "unwritten": (
        "UNAUTHORIZED",
        100,
        "kafka-acls.sh --bootstrap-server {target} --add .*--operation Write --topic {topic}",
    ),
}


def test_every_failure_is_reported_once_and_soon(pair: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    """While a mirror runs, within its first epoch, which is long; what is sound goes on, and the run ends with 4."""
    source, target = pair
    topics = Topics(source, (*LIVE, "sound"))
    with Network(source.bootstrap) as network:
        config = configured(tmp_path, network.bootstrap, target.bootstrap, topics, spark={"epoch_s": 600})
        with followed(config, tmp_path / "log", target, topics) as mirror:
            done: dict[str, float] = {}
            take_away(source, topics["unread"], AclOperation.READ)
            done["unread"] = time.time()
            take_away(target, topics["unwritten"], AclOperation.WRITE)
            topics.write("unwritten")
            done["unwritten"] = time.time()
            delete(source, topics["anew"])
            done["anew"] = time.time()
            create(source, topics["anew"], [[0]])
            topics.write("anew", word=b"other ")
            network.cut()
            topics.write("overtaken")
            delete_records(source, topics.at("overtaken"), 150)
            topics.write("rotten")
            flip_a_stored_bit(source, topics.at("rotten"), 15)
            network.heal()
            done["overtaken"] = done["rotten"] = time.time()
            wait_for(
                lambda: {topic for topic, _ in stops(mirror)} >= {topics[name] for name in LIVE},
                TIMEOUT,
                lambda: mirror.log,
            )
            assert not events(mirror.log, "epoch_ended"), "an epoch ended: that would show it, too"
            for partition in (0, 1):
                topics.write("sound", partition)
            topics.write("rotten", 1)
            for at in (topics.at("sound"), topics.at("sound", 1), topics.at("rotten", 1)):
                wait_for(lambda at=at: count(target, at) == 200, TIMEOUT, lambda: mirror.log)  # type: ignore[misc] # bound
            mirror.process.send_signal(signal.SIGTERM)
            assert mirror.ended() == 4, mirror.log
    found = stops(mirror)
    for name, (state, offset, command) in LIVE.items():
        reported = found[topics.at(name)]
        assert (reported["state"], int(reported["offset"])) == (state, offset), reported
        ends = {"source": network.bootstrap, "target": target.bootstrap, "topic": topics[name]}
        assert re.search(command.format(**ends), reported["detail"]), reported
        soon = datetime.fromisoformat(reported["timestamp"]).timestamp() - done[name]
        print(f"{name}: {state} reported {soon:.2f} s after it was done")
        assert count(target, topics.at(name)) == offset, "nothing foreign"
    assert (topics["sound"], 0) not in found
    assert not any(partition for topic, partition in found if topic in {topics["overtaken"], topics["rotten"]})
    give_back(source, topics["unread"])
    give_back(target, topics["unwritten"])


@pytest.mark.soak  # for its minute: test_silent.py shows the same states without Spark
def test_failures_while_no_mirror_ran_end_a_bounded_copy_with_4(pair: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    """Re-created with fewer records, with more, in fewer partitions, in more; overtaken by retention."""
    source, target = pair
    anew = {"fewer": [[0], [0]], "longer": [[0], [0]], "narrower": [[0]], "wider": [[0]] * 3}
    topics = Topics(source, (*anew, "overtaken", "sound"))
    config = configured(tmp_path, source.bootstrap, target.bootstrap, topics)
    with forked(config, tmp_path / "first.log", "--once") as first:
        assert first.ended() == 0, first.log
    for name, replicas in anew.items():
        delete(source, topics[name])
        create(source, topics[name], replicas)
        for _ in range(3 if name == "longer" else 1):
            topics.write(name, word=b"" if name == "fewer" else b"other ")
    topics.write("overtaken")
    topics.write("sound")
    delete_records(source, topics.at("overtaken"), 150)
    with forked(config, tmp_path / "second.log", "--once") as second:
        assert second.ended() == 4, second.log
    found = stops(second)
    for name in anew:
        for partition in (0, 1):
            reported = found.pop(topics.at(name, partition))
            assert (reported["state"], reported["offset"]) == ("RECREATED", "100"), reported
            assert f"--delete --topic {topics[name]}" in reported["detail"]
            assert count(target, topics.at(name, partition)) == 100, "nothing foreign"
    assert found.pop(topics.at("overtaken"))["state"] == "RETENTION_GAP"
    assert not found
    assert count(target, topics.at("sound")) == 200
    shown = subprocess.run(
        [sys.executable, "-m", "mirror", "status", str(config), "--json"], capture_output=True, check=True
    )
    partitions = json.loads(shown.stdout)["partitions"]
    assert sum(one["state"] == "RECREATED" for one in partitions) == 2 * len(anew)


@pytest.mark.parametrize(("side", "right"), [("source", AclOperation.READ), ("target", AclOperation.WRITE)], ids=str)
def test_lost_access_ends_a_bounded_copy_with_6(
    pair: tuple[Cluster, Cluster], tmp_path: Path, side: str, right: AclOperation
) -> None:
    source, target = pair
    topics = Topics(source, ("lost", "sound"))
    config = configured(tmp_path, source.bootstrap, target.bootstrap, topics)
    guarding = source if side == "source" else target
    if guarding is target:
        create(target, topics["lost"], [[0], [0]])
    take_away(guarding, topics["lost"], right)
    try:
        with forked(config, tmp_path / "log", "--once") as mirror:
            assert mirror.ended() == 6, mirror.log
        found = stops(mirror)
        assert {at: item["state"] for at, item in found.items()} == {
            topics.at("lost"): "UNAUTHORIZED",
            topics.at("lost", 1): "UNAUTHORIZED",
        }
        assert f"--operation {right.name.capitalize()} --topic {topics['lost']}" in found[topics.at("lost")]["detail"]
        assert [count(target, topics.at("sound", partition)) for partition in (0, 1)] == [100, 100]
        assert count(target, topics.at("lost")) == 0
    finally:
        give_back(guarding, topics["lost"])
