"""The embedded brokers, for real: what they start, and what they leave behind however they end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from waiting import DEADLINE_S, until

from mirror.errors import EmbeddedError
from mirror.lab.embedded import Cluster, down, standing, up
from mirror.lab.embedded import cluster as cluster_module
from mirror.lab.embedded.cluster import brokers_seen_by
from mirror.lab.embedded.node import GUARD, Identity


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_stopped_cluster_leaves_no_process_port_or_folder() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with Cluster.start(config={"message.max.bytes": 2_000_000}) as cluster:
        (node,) = cluster.nodes
        assert cluster.bootstrap == f"127.0.0.1:{node.port}"
        assert brokers_seen_by(node.port) == {0}
        resource = ConfigResource(ConfigResource.Type.BROKER, "0")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        described = admin.describe_configs([resource])
        assert described[resource].result(DEADLINE_S)["message.max.bytes"].value == "2000000"
    assert not node.alive
    assert not listens(node.port)
    assert not listens(node.controller_port)
    assert not cluster.folder.exists()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_a_killed_node_comes_back_with_its_port_and_its_topics(topic_name: str) -> None:
    with Cluster.start() as cluster:
        (node,) = cluster.nodes
        port, pid = node.port, node.java_pid
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(topic_name, 1)])[topic_name].result(DEADLINE_S)
        del admin  # or it fills the log with its attempts to come back
        cluster.kill(0)
        assert not node.alive
        assert brokers_seen_by(port) == frozenset()
        with pytest.raises(EmbeddedError, match="node 0 does not run"):
            _ = node.java_pid
        cluster.restart(0)
        assert (node.port, node.alive) == (port, True)
        assert node.java_pid != pid
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        assert topic_name in admin.list_topics(timeout=DEADLINE_S).topics


def test_a_suspended_node_is_silent_until_it_is_resumed(tmp_path: Path) -> None:
    with Cluster.start(folder=tmp_path / "kept") as cluster:
        (node,) = cluster.nodes
        cluster.suspend(0)
        until(lambda: psutil.Process(node.java_pid).status() == psutil.STATUS_STOPPED)
        assert brokers_seen_by(node.port, timeout=0.3) == frozenset()
        cluster.resume(0)
        assert brokers_seen_by(node.port) == {0}
        cluster.suspend(0)
    assert not node.alive, "a suspended node must end with its cluster"
    assert (tmp_path / "kept" / "node-0" / "broker.log").exists(), "a folder that was asked for stays"
    with pytest.raises(EmbeddedError, match="is not empty"):
        Cluster.start(folder=tmp_path / "kept")


def test_nothing_outlives_a_parent_that_is_killed() -> None:
    program = (
        "import sys\n"
        "from mirror.lab.embedded import Cluster\n"
        "cluster = Cluster.start(name='orphan')\n"
        "node = cluster.nodes[0]\n"
        "print(node.java_pid, node.port, cluster.folder, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, port, folder = parent.stdout.readline().split()
        broker = psutil.Process(int(pid))
        guard = broker.parent()
        assert guard is not None
        assert guard.ppid() == parent.pid
        parent.kill()
    _, left = psutil.wait_procs([broker, guard], timeout=DEADLINE_S)
    assert left == []
    assert not listens(int(port))
    assert not Path(folder).exists()


def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as rival:
        attempts = []

        def reserve(count: int) -> list[socket.socket]:
            attempts.append(count)
            honest = reserve_for_real(count)
            if len(attempts) == 1:
                honest[0].close()
                honest[0] = rival.dup()
            return honest

        reserve_for_real = cluster_module.reserve
        monkeypatch.setattr(cluster_module, "reserve", reserve)
        with Cluster.start() as cluster:
            assert cluster.nodes[0].port != rival.getsockname()[1]
        assert attempts == [2, 2]


def test_a_node_that_cannot_start_says_why() -> None:
    with pytest.raises(EmbeddedError, match=r"(?s)node 0 .*num\.io\.threads"):
        Cluster.start(config={"num.io.threads": 0})


def test_a_node_that_is_never_ready_is_given_up_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "START_TIMEOUT_S", 0.0)
    monkeypatch.setattr(cluster_module, "brokers_seen_by", lambda port: frozenset())
    with pytest.raises(EmbeddedError, match=r"(?s)node 0 was not ready in time:\n.*Formatting metadata directory"):
        Cluster.start()


@pytest.mark.proves("mirror embedded up", "mirror embedded fill", "mirror embedded list", "mirror embedded down")
def test_a_cluster_by_hand_outlives_its_command_until_it_is_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def embedded(*words: str) -> str:
        command = [sys.executable, "-m", "mirror", "embedded", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    try:
        bootstrap = embedded("up", "lab").strip()
        (lab,) = standing()
        assert (lab.bootstrap, lab.alive) == (bootstrap, 1)
        assert brokers_seen_by(lab.nodes[0].port) == {0}
        assert [one["bootstrap"] for one in json.loads(embedded("list", "--json"))] == [bootstrap]
        assert embedded("fill", "lab", "orders", "--records", "500") == "orders holds 500 records\n"
        with pytest.raises(EmbeddedError, match="lab is up at 127"):
            up("lab")
        lab.nodes[0].process.send(signal.SIGKILL)
        until(lambda: standing()[0].alive == 0)
        again = up("lab")
        assert (again.alive, again.cluster_id != lab.cluster_id) == (1, True)
        assert embedded("down", "lab") == "lab is down\n"
        assert not again.nodes[0].process.alive
        assert not listens(again.nodes[0].port)
        with pytest.raises(EmbeddedError, match=r"num\.io\.threads"):
            up("broken", config={"num.io.threads": 0})
        assert [path.name for path in (tmp_path / "mirror" / "embedded").iterdir()] == ["lock"]
    finally:
        down("all")


def test_a_process_id_that_was_given_to_another_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as innocent:
        started = psutil.Process(innocent.pid).create_time()
        earlier = Identity(pid=innocent.pid, started=started - 60)
        assert not earlier.alive
        earlier.send(signal.SIGKILL)
        assert innocent.poll() is None
        now = Identity(pid=innocent.pid, started=started)
        assert now.alive
        now.send(signal.SIGKILL)
        assert innocent.wait() == -signal.SIGKILL


class Guarded:
    """A guard over a shell command, and handles on both."""

    def __init__(self, script: str, folder: str = "", grace: str = "0.2") -> None:
        command = [sys.executable, "-S", "-E", str(GUARD), "bound", grace, folder, "sh", "-c", script]
        self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self.guard.stdout is not None
        with self.guard.stdout as reported:
            self.command = psutil.Process(int(reported.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_pipe()
        self.guard.wait()

    def close_pipe(self) -> None:
        assert self.guard.stdin is not None
        self.guard.stdin.close()


def test_the_end_of_the_pipe_ends_the_command_and_removes_its_folder(tmp_path: Path) -> None:
    cluster, other = tmp_path / "cluster", tmp_path / "cluster" / "node-1"
    node = cluster / "node-0"
    for folder in (node / "data", other):
        folder.mkdir(parents=True)
    with Guarded("exec sleep 60", str(node)) as guarded:
        guarded.close_pipe()
        assert guarded.guard.wait() == 128 + signal.SIGTERM
    assert not guarded.command.is_running()
    assert not node.exists()
    assert other.exists(), "the folder of a node that still runs is not this guard's to remove"
    other.rmdir()
    node.mkdir()
    with Guarded("exec sleep 60", str(node)):
        pass
    assert not cluster.exists()


def test_a_command_that_ends_by_itself_keeps_its_folder_and_its_status(tmp_path: Path) -> None:
    with Guarded("sleep 0.5; exit 7", str(tmp_path)) as guarded:
        assert guarded.guard.wait() == 7
    assert tmp_path.exists()


def test_a_parent_that_lets_go_of_an_ended_command_keeps_the_folder(tmp_path: Path) -> None:
    with Guarded("exec sleep 60", str(tmp_path)) as guarded:
        guarded.guard.send_signal(signal.SIGSTOP)
        guarded.command.kill()
        until(lambda: guarded.command.status() == psutil.STATUS_ZOMBIE)
        guarded.close_pipe()
        guarded.guard.send_signal(signal.SIGCONT)
        assert guarded.guard.wait() == 128 + signal.SIGKILL
    assert tmp_path.exists()


def test_a_stubborn_command_is_killed_after_the_grace() -> None:
    with Guarded("trap '' TERM; while :; do sleep 0.01; done") as guarded:
        until(lambda: bool(guarded.command.children()))
        guarded.close_pipe()
        assert guarded.guard.wait() == 128 + signal.SIGKILL


def test_a_suspended_command_is_ended_too() -> None:
    with Guarded("exec sleep 60", grace="30") as guarded:
        guarded.command.suspend()
        guarded.guard.send_signal(signal.SIGTERM)
        assert guarded.guard.wait() == 128 + signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent's life")
def test_a_killed_guard_takes_its_command_along() -> None:
    with Guarded("exec sleep 60") as guarded:
        guarded.guard.kill()
        _, left = psutil.wait_procs([guarded.command], timeout=DEADLINE_S)
    assert left == []
