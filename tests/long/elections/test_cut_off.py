"""A broker of the source that lost its controllers, and goes on answering: what it says of leaders, settings and topics
is old. Nothing is believed of it, whatever it is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from background import BackgroundServers
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from faults.network import until_one_ends
from helpers import config_file, make_topic, produce, settings_between
from sparkless import run_once
from typer.testing import CliRunner
from waiting import DEADLINE_S, until

from mirror.cli import app
from mirror.config import ClusterSettings, load
from mirror.errors import ExitCode
from mirror.kafka.admin import Admin
from mirror.lab.embedded import Cluster, Spec
from mirror.lab.embedded.cluster import brokers_seen_by, hand_over
from mirror.lab.embedded.node import Node
from mirror.observability.status import PartitionStatus
from mirror.states import State

#: The broker that is cut off: it led the topics in `_LED`, whose names say what for.
_OLD = 1
_LED = ("co-once", "co-over", "co-alone")
_DAY_MS = 86_400_000
#: Brokers that are missed soon, and every record on all three.
_BROKERS: Final = {"default.replication.factor": 3, "min.insync.replicas": 1, "replica.lag.time.max.ms": 3000}
_CHUNK: Final = 1 << 16


# --- three brokers, of which one can be cut off from the controller ---------------------------------------------------


class Gate(BackgroundServers):
    """The way to the controller; `shut` are the nodes that it does not let through.

    A node says who it is as it says which client it is: `1`, or `raft-client-1`.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self._to, self.port = port, 0
        self.shut: set[int] = set()
        self._open: list[tuple[int, asyncio.StreamWriter]] = []

    async def _listen(self) -> list[asyncio.Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return [server]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            begin = await reader.readexactly(14)  # size, key, version, correlation id, length of the client's id
            client = await reader.readexactly(int.from_bytes(begin[12:]))
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
            return
        node = int(client.rpartition(b"-")[2])
        if node in self.shut:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:  # it is just starting
            writer.transport.abort()
            return
        up_writer.write(begin + client)
        self._open.append((node, writer))

        async def carried(one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await one.read(_CHUNK):
                    other.write(data)

        await until_one_ends((carried(reader, up_writer), carried(up_reader, writer)), writer, up_writer)

    def shut_out(self, node: int) -> None:
        """Let a node through no more."""
        self._await(self._cut(node))

    async def _cut(self, node: int) -> None:
        self.shut.add(node)
        for one, writer in self._open:
            if one == node:
                writer.transport.abort()


class Trio(Cluster):
    """Node 0 is the controller, too."""

    gate: Gate

    def launch(self) -> None:
        """Format and start all nodes."""
        for node in self.nodes:
            node.write_settings(self.nodes, self.spec.config)
            self._direct(node)
        formats = [node.format(self.cluster_id, self.spec.users) for node in self.nodes]
        assert not any(tool.wait() for tool in formats), self.nodes[0].tail()
        hand_over(self._reserved)
        for node in self.nodes:
            node.launch()

    def _direct(self, node: Node) -> None:
        """Have the brokers find the controller behind the gate alone."""
        gate, path = f"127.0.0.1:{self.gate.port}", node.folder / "server.properties"
        plain = f"PLAINTEXT://127.0.0.1:{node.port}"
        if node.id == 0:
            voter, more = (
                f"0@127.0.0.1:{node.controller_port}",
                {"advertised.listeners": f"{plain},CONTROLLER://{gate}"},
            )
        else:
            voter, more = f"0@{gate}", {"process.roles": "broker", "listeners": plain}
        text = path.read_text(encoding="utf-8")
        for key, value in {"controller.quorum.voters": voter, **more}.items():
            text = re.sub(rf"^{re.escape(key)}=.*$", f"{key}={value}", text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")

    def cut_off(self, i: int) -> None:
        """Let broker `i` hear of its controller no more; returns when all others know it as gone.

        One that does not know yet sends producers to it, where a record waits for replicas that left.
        """
        self.gate.shut_out(i)
        others = [node.port for node in self.nodes if node.id != i]
        until(lambda: all(self._is_missed(i, one) for one in others), lambda: f"broker {i} is not missed by all")

    @staticmethod
    def _is_missed(i: int, port: int) -> bool:
        return bool(seen := brokers_seen_by(port)) and i not in seen


@contextlib.contextmanager
def trio(name: str) -> Iterator[Trio]:
    """Such a cluster, started."""
    cluster = Trio(Spec(nodes=3, name=name, config=_BROKERS))
    with Gate(cluster.nodes[0].controller_port) as cluster.gate:
        try:
            cluster.launch()
            cluster.await_ready()
            yield cluster
        finally:
            cluster.stop()


# --- what is believed of it -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source() -> Iterator[Trio]:
    """Cut off behind a hundred records of each topic; the leaders of now have fifty more."""
    with trio("cut-off") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for topic in (*_LED, "co-kept"):
            made = NewTopic(topic, 1, replica_assignment=[[_OLD, 2, 0]], config={"retention.ms": str(_DAY_MS)})
            admin.create_topics([made])[topic].result(DEADLINE_S)
        until(lambda: _in_sync(admin), lambda: "replicas are not in sync")
        for topic in _LED:
            produce(cluster.bootstrap, topic, (b"%06d" % number for number in range(100)))
        yield cluster


@pytest.fixture(scope="module")
def deposed(source: Trio, own_target: Cluster) -> Trio:
    """The same, when it is cut off."""
    for topic in _LED:
        assert (found := _once(source, own_target, topic)).state is State.CAUGHT_UP, found
    source.cut_off(_OLD)
    admin = AdminClient({"bootstrap.servers": _live(source), "log_level": 0})
    until(lambda: not {-1, _OLD} & {_leader(admin, topic) for topic in _LED}, lambda: "no others lead")
    for topic in _LED:
        produce(_live(source), topic, (b"new%06d" % number for number in range(50)))
    raised = ConfigEntry("retention.ms", str(60 * _DAY_MS), incremental_operation=AlterConfigOpType.SET)
    kept = ConfigResource(ResourceType.TOPIC, "co-kept", incremental_configs=[raised])
    admin.incremental_alter_configs([kept])[kept].result(DEADLINE_S)
    return source


@pytest.fixture(autouse=True)
def asks_the_old_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom one asks is chosen by chance: by the worst one."""
    monkeypatch.setattr(random, "shuffle", lambda _: None)


def _live(source: Trio) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in source.nodes if node.id != _OLD)


def _first(source: Trio) -> str:
    return f"127.0.0.1:{source.nodes[_OLD].port},{_live(source)}"


def _in_sync(admin: AdminClient) -> bool:
    topics = admin.list_topics(timeout=DEADLINE_S).topics.values()
    return all(len(one.isrs) == 3 for topic in topics for one in topic.partitions.values())


def _leader(admin: AdminClient, topic: str) -> int:
    return int(admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions[0].leader)


def _once(source: Trio, target: Cluster, topic: str) -> PartitionStatus:
    (found,) = run_once(settings_between(_first(source), target.bootstrap, [topic], topic)).figures.values()
    return found


def test_a_copy_is_whole_by_the_leader_of_now(deposed: Trio, own_target: Cluster) -> None:
    for _ in range(2):
        found = _once(deposed, own_target, "co-once")
        assert (found.state, found.next_offset, found.log_end) == (State.CAUGHT_UP, 150, 150), found.detail


def test_a_failover_takes_what_the_leader_of_now_has(deposed: Trio, own_target: Cluster, tmp_path: Path) -> None:
    config = config_file(tmp_path, _first(deposed), own_target.bootstrap, ["co-over"], "co-over")
    done = CliRunner().invoke(app, ["failover", str(config), "--json"])
    assert done.exit_code == ExitCode.DONE, done.output
    assert '"source_end":150' in done.output


def test_administration_gets_the_settings_of_now(deposed: Trio) -> None:
    admin = Admin(ClusterSettings.model_validate({"alias": "eu", "bootstrap.servers": _first(deposed)}))
    for _ in range(3):
        assert admin.topic_configs(["co-kept"])["co-kept"]["retention.ms"].value == str(60 * _DAY_MS)
    make_topic(_live(deposed), "co-young")
    assert "co-young" in admin.topic_names()
    assert _OLD not in admin._nodes("list brokers")


def test_nothing_is_certain_where_the_old_one_alone_answers(
    deposed: Trio, own_target: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirror.kafka.cluster.CONNECT_TIMEOUT", 1.0)  # each command meets two brokers that are silent
    monkeypatch.setattr("mirror.failover.drain.STRETCH_SECONDS", 3.0)
    others = [node.id for node in deposed.nodes if node.id != _OLD]
    no_groups: dict[str, Any] = {"groups": {"include": []}}
    ends = _first(deposed), own_target.bootstrap
    config = config_file(tmp_path, *ends, ["co-alone"], "co-alone", sections=no_groups)
    for node in others:
        deposed.suspend(node)
    try:
        copied = run_once(load(config))  # which follows no groups: these would wait, too
        compared = CliRunner().invoke(app, ["verify", str(config), "--json", "--no-spark", "--wait", "0"])
        done = CliRunner().invoke(app, ["failover", str(config), "--json"])
    finally:
        for node in others:
            deposed.resume(node)
    admin = AdminClient({"bootstrap.servers": _live(deposed), "log_level": 0})
    until(lambda: _leader(admin, "co-alone") in others, lambda: "no other leads")
    assert "may know of other leaders" in copied.incomplete
    assert copied.exit_code == ExitCode.CLUSTER
    assert compared.exit_code == ExitCode.NOT_WHOLE, compared.output
    assert "may know of other leaders" in json.loads(compared.stdout)["not_whole"][0]["reason"]
    assert done.exit_code == ExitCode.DATA_AT_RISK, done.output
    output = json.loads(done.stdout)
    assert "may know of other leaders" in " ".join(output["warnings"])
    assert (output["rpo"]["certain"], output["rpo"]["seconds"], output["partitions"][0]["certain"]) == (
        False,
        None,
        False,
    )
