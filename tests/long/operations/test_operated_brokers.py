"""What happens to a target of three brokers that people operate, under a running mirror: a disk fills up, replicas go
missing, a broker comes back at another port, partitions move. It says what it waits for (RUNBOOK.md, UNAVAILABLE), goes
on by itself, and the copy is equal.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from adversary.driving import Command
from confluent_kafka.admin import AdminClient
from guarded import create
from helpers import config_file, make_topic, produce
from kafka import KafkaAdminClient
from kafka import TopicPartition as Place
from samerecords import assert_same_records
from typer.testing import CliRunner
from waiting import DEADLINE_S, until

from mirror.cli import app
from mirror.errors import ExitCode
from mirror.journal.journal import journal_topic
from mirror.lab.embedded import Cluster

#: More than any file of an idle broker has, indexes apart, which are as long as they will be.
DISK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """A target of three brokers."""
    with Cluster.start(nodes=3, name="operated") as cluster:
        yield cluster


class Operated:
    """A topic of one partition, and the mirror that copies it."""

    def __init__(self, source: Cluster, target: Cluster, folder: Path, topic: str) -> None:
        self.source, self.target, self.topic = source, target, topic
        self.flow = topic
        self.written = 0
        sections = {"groups": {"include": []}, "metrics": {"listen": None}}
        self.config = config_file(folder, source.bootstrap, target.bootstrap, [topic], topic, sections=sections)
        self._folder = folder
        self._mirror: Command | None = None

    @contextmanager
    def mirrored(self) -> Iterator[None]:
        """While a mirror runs, from when it has copied the first records; in the end the copy is equal, and nothing
        stopped.
        """
        make_topic(self.source.bootstrap, self.topic)
        self.write(100)
        self._mirror = Command(self._folder, "run", str(self.config), "--json")
        try:
            self.until_copied()
            yield
            self.write(100)
            self.until_copied()
        finally:
            self._mirror.end()
        assert not self.events("partition_stopped")
        count = assert_same_records(self.source.bootstrap, self.target.bootstrap, self.topic, 1)
        assert count == self.written

    def write(self, count: int, size: int = 100) -> None:
        """So many records more into the source."""
        values = (b"%08d" % number + b"." * size for number in range(self.written, self.written + count))
        produce(self.source.bootstrap, self.topic, values)
        self.written += count

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What the mirror logged by these names so far."""
        assert self._mirror is not None
        lines = self._mirror.logged.splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [one for one in found if one["event"] in names]

    def tail(self) -> str:
        """The end of what the mirror logged."""
        return self._mirror.logged[-6000:] if self._mirror else ""

    def until_waits(self, *reasons: str) -> None:
        """Until `mirror status` shows that it waits, and for one of these."""
        self._until(
            lambda one: one["state"] == "UNAVAILABLE" and any(reason in one["detail"] for reason in reasons),
            str(reasons),
        )

    def until_copied(self) -> None:
        """Until `mirror status` shows all that was written as copied."""
        self._until(lambda one: one["state"] == "CAUGHT_UP" and one["next_offset"] == self.written, "CAUGHT_UP")

    def _until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
        shown: list[dict[str, Any]] = []

        def reached() -> bool:
            assert self._mirror is not None
            assert self._mirror.is_alive, self._mirror.logged
            done = CliRunner().invoke(app, ["status", str(self.config), "--json", "--log-level", "error"])
            shown[:] = json.loads(done.stdout)["partitions"] if done.exit_code == ExitCode.DONE else []
            return bool(shown) and holds(shown[0])

        until(reached, lambda: f"{what}: {shown}\n{self.tail()}")


@pytest.fixture
def operated(own_source: Cluster, three: Cluster, tmp_path: Path, topic_name: str) -> Operated:
    return Operated(own_source, three, tmp_path, topic_name)


def test_a_full_disk(operated: Operated) -> None:
    """Its broker ends, as Kafka's do that have no other disk; there is room again, and it is started."""
    target, node = operated.target, operated.target.nodes[2]
    create(target, operated.topic, [[node.id]])
    with operated.mirrored():
        resource.prlimit(node.java_pid, resource.RLIMIT_FSIZE, (DISK_BYTES, resource.RLIM_INFINITY))
        operated.write(2 * DISK_BYTES // 10_000, 10_000)
        until(lambda: not node.alive, node.tail)
        operated.until_waits("Connect call failed", "kafka_storage_error")
        target.restart(node.id)  # with all the room there is


def test_too_few_replicas_in_sync(operated: Operated) -> None:
    create(operated.target, operated.topic, [[0, 1, 2]], {"min.insync.replicas": "3"})
    with operated.mirrored():
        operated.target.kill(1)
        operated.write(100)
        operated.until_waits("not_enough_replicas", "replicas hold ")
        operated.target.restart(1)


def test_a_broker_that_comes_back_at_another_port(operated: Operated, free_port: int) -> None:
    target, node = operated.target, operated.target.nodes[2]
    create(target, operated.topic, [[node.id]])
    with operated.mirrored():
        target.kill(node.id)
        operated.write(100)
        operated.until_waits("Connect call failed")
        settings = node.folder / "server.properties"
        moved = settings.read_text().replace(f"PLAINTEXT://127.0.0.1:{node.port}", f"PLAINTEXT://127.0.0.1:{free_port}")
        settings.write_text(moved)
        node.port = free_port
        target.restart(node.id)


def test_partitions_that_move_to_other_brokers(operated: Operated) -> None:
    """The copy's and the flow's journal's."""
    create(operated.target, operated.topic, [[0]])
    with operated.mirrored():
        admin = KafkaAdminClient(bootstrap_servers=operated.target.bootstrap)
        try:
            moves = {Place(operated.topic, 0): [1], Place(journal_topic(operated.flow), 0): [2]}
            assert admin.alter_partition_reassignments(moves) == dict.fromkeys(moves)
            operated.write(100)
            until(lambda: not admin.list_partition_reassignments(), lambda: "not reassigned")
            client = AdminClient({"bootstrap.servers": operated.target.bootstrap})
            topics = client.list_topics(timeout=DEADLINE_S).topics
            assert {place: topics[place.topic].partitions[0].replicas for place in moves} == moves
        finally:
            admin.close()
        operated.until_copied()
