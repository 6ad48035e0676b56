"""The embedded brokers, for real: what they start, what they leave behind, and what they refuse."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import psutil
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from mirror.errors import ConfigError, EmbeddedError
from mirror.lab.embedded import Cluster, down, jars, standing, up
from mirror.lab.embedded import cluster as cluster_module
from mirror.lab.embedded.cluster import brokers_seen_by
from mirror.lab.embedded.node import GUARD, Identity


def eventually(holds: Callable[[], bool], what: str, within: float = 30.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {what}"
        time.sleep(0.02)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# --- clusters -------------------------------------------------------------------------------------------------------


@pytest.mark.brokers
def test_a_stopped_cluster_leaves_no_process_port_or_folder() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with Cluster.start(config={"message.max.bytes": 2_000_000}) as cluster:
        (node,) = cluster.nodes
        assert cluster.bootstrap == f"127.0.0.1:{node.port}"
        assert brokers_seen_by(node.port) == {0}
        resource = ConfigResource(ConfigResource.Type.BROKER, "0")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        described = admin.describe_configs([resource])
        assert described[resource].result(20)["message.max.bytes"].value == "2000000"
    assert not node.alive
    assert not listens(node.port)
    assert not listens(node.controller_port)
    assert not cluster.folder.exists()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@pytest.mark.brokers
def test_a_killed_node_comes_back_with_its_port_and_its_topics(topic_name: str) -> None:
    with Cluster.start() as cluster:
        (node,) = cluster.nodes
        port, pid = node.port, node.java_pid
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(topic_name, 1)])[topic_name].result(20)
        del admin  # or it fills the log with its attempts to come back
        cluster.kill(0)
        assert not node.alive
        assert brokers_seen_by(port) == frozenset()
        with pytest.raises(EmbeddedError, match="node 0 does not run"):
            _ = node.java_pid
        cluster.restart(0)
        assert (node.port, node.alive) == (port, True)
        assert node.java_pid != pid
        assert topic_name in AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=20).topics


@pytest.mark.brokers
def test_a_suspended_node_is_silent_until_it_is_resumed(tmp_path: Path) -> None:
    with Cluster.start(folder=tmp_path / "kept") as cluster:
        (node,) = cluster.nodes
        cluster.suspend(0)
        eventually(lambda: psutil.Process(node.java_pid).status() == psutil.STATUS_STOPPED, "suspended")
        assert brokers_seen_by(node.port, timeout=0.3) == frozenset()
        cluster.resume(0)
        assert brokers_seen_by(node.port) == {0}
        cluster.suspend(0)
    assert not node.alive, "a suspended node must end with its cluster"
    assert (tmp_path / "kept" / "node-0" / "broker.log").exists(), "a folder that was asked for stays"
    with pytest.raises(EmbeddedError, match="is not empty"):
        Cluster.start(folder=tmp_path / "kept")


@pytest.mark.brokers
def test_three_nodes_form_one_cluster_that_survives_the_loss_of_one() -> None:
    with Cluster.start(nodes=3) as cluster:
        assert [brokers_seen_by(node.port) for node in cluster.nodes] == [{0, 1, 2}] * 3
        cluster.kill(2)
        eventually(lambda: brokers_seen_by(cluster.nodes[0].port) == {0, 1}, "the loss is noticed")
        cluster.restart(2)
        eventually(lambda: brokers_seen_by(cluster.nodes[0].port) == {0, 1, 2}, "the return is noticed")


@pytest.mark.brokers
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
    _, left = psutil.wait_procs([broker, guard], timeout=30)
    assert left == []
    assert not listens(int(port))
    assert not Path(folder).exists()


@pytest.mark.brokers
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


@pytest.mark.brokers
def test_a_node_that_cannot_start_says_why() -> None:
    with pytest.raises(EmbeddedError, match=r"(?s)node 0 .*num\.io\.threads"):
        Cluster.start(config={"num.io.threads": 0})


def test_a_node_that_is_never_ready_is_given_up_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "START_TIMEOUT_S", 0.0)
    monkeypatch.setattr(cluster_module, "brokers_seen_by", lambda port: frozenset())
    with pytest.raises(EmbeddedError, match=r"(?s)node 0 was not ready in time:\n.*Formatting metadata directory"):
        Cluster.start()


@pytest.mark.parametrize("nodes", [0, 4])
def test_other_numbers_of_nodes_are_refused(nodes: int) -> None:
    with pytest.raises(EmbeddedError, match="1 to 3 nodes"):
        Cluster.start(nodes=nodes)


# --- by hand --------------------------------------------------------------------------------------------------------


@pytest.fixture
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield tmp_path / "mirror" / "embedded"
    down("all")


@pytest.mark.brokers
def test_clusters_by_hand_outlive_the_command_until_they_are_taken_down(state_folder: Path) -> None:
    up_command = "from mirror.lab.embedded import up; print(up('lab').bootstrap)"
    done = subprocess.run([sys.executable, "-c", up_command], capture_output=True, text=True, check=True)
    (lab,) = standing()
    assert (lab.name, lab.bootstrap, lab.alive) == ("lab", done.stdout.strip(), 1)
    (member,) = lab.nodes
    assert brokers_seen_by(member.port) == {0}
    with pytest.raises(EmbeddedError, match="lab is up at 127"):
        up("lab")

    member.process.send(signal.SIGKILL)
    eventually(lambda: standing()[0].alive == 0, "the killed broker is seen as such")
    again = up("lab")
    assert again.alive == 1
    assert again.cluster_id != lab.cluster_id

    assert down("lab") == ("lab",)
    assert standing() == ()
    assert not again.nodes[0].process.alive
    assert not listens(again.nodes[0].port)
    assert [path.name for path in state_folder.iterdir()] == ["lock"]


def test_a_failed_up_leaves_nothing(state_folder: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"num\.io\.threads"):
        up("broken", config={"num.io.threads": 0})
    assert [path.name for path in state_folder.iterdir()] == ["lock"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "Lab", "-x"])
def test_names_that_are_no_file_names_are_refused(state_folder: Path, name: str) -> None:
    with pytest.raises(EmbeddedError, match="is no name for a cluster"):
        up(name)


def test_taking_down_an_unknown_cluster_is_an_error_and_all_of_none_is_not(state_folder: Path) -> None:
    with pytest.raises(ConfigError, match="no cluster nobody"):
        down("nobody")
    assert down("all") == ()


def test_a_damaged_record_is_named(state_folder: Path) -> None:
    state_folder.mkdir(parents=True)
    record = state_folder / "odd.json"
    record.write_text('{"name": "odd"}')
    with pytest.raises(EmbeddedError, match=r"odd\.json cannot be read"):
        standing()
    record.unlink()


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
        assert innocent.wait(10) == -signal.SIGKILL


# --- the guard, with cheaper commands than Java ---------------------------------------------------------------------


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
        self.guard.wait(10)

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
        assert guarded.guard.wait(10) == 128 + signal.SIGTERM
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
        assert guarded.guard.wait(10) == 7
    assert tmp_path.exists()


def test_a_parent_that_lets_go_of_an_ended_command_keeps_the_folder(tmp_path: Path) -> None:
    with Guarded("exec sleep 60", str(tmp_path)) as guarded:
        guarded.guard.send_signal(signal.SIGSTOP)
        guarded.command.kill()
        eventually(lambda: guarded.command.status() == psutil.STATUS_ZOMBIE, "the command has ended")
        guarded.close_pipe()
        guarded.guard.send_signal(signal.SIGCONT)
        assert guarded.guard.wait(10) == 128 + signal.SIGKILL
    assert tmp_path.exists()


def test_a_stubborn_command_is_killed_after_the_grace() -> None:
    with Guarded("trap '' TERM; while :; do sleep 0.01; done") as guarded:
        eventually(lambda: bool(guarded.command.children()), "the trap is set")
        guarded.close_pipe()
        assert guarded.guard.wait(10) == 128 + signal.SIGKILL


def test_a_suspended_command_is_ended_too() -> None:
    with Guarded("exec sleep 60", grace="30") as guarded:
        guarded.command.suspend()
        guarded.guard.send_signal(signal.SIGTERM)
        assert guarded.guard.wait(10) == 128 + signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent's life")
def test_a_killed_guard_takes_its_command_along() -> None:
    with Guarded("exec sleep 60") as guarded:
        guarded.guard.kill()
        _, left = psutil.wait_procs([guarded.command], timeout=10)
    assert left == []


def test_a_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-E", str(GUARD), "bound", "1", "", str(tmp_path / "nothing")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as guard:
        assert guard.wait(10) == 127
        assert guard.stderr is not None
        assert b"No such file or directory" in guard.stderr.read()


# --- the jars -------------------------------------------------------------------------------------------------------


def copy_of_the_cache(into: Path) -> None:
    into.mkdir()
    for jar in jars.fetch():
        os.link(jar, into / jar.name) if into.stat().st_dev == jar.stat().st_dev else shutil.copyfile(
            jar, into / jar.name
        )


def test_a_jar_with_one_other_byte_is_refused_without_a_download(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    copy_of_the_cache(folder)
    victim = folder / "kafka-server-4.3.0.jar"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.unlink()
    victim.write_bytes(content)
    with pytest.raises(EmbeddedError, match=r"kafka-server-4\.3\.0\.jar: SHA-256 is "):
        jars.fetch(folder, retrieve=lambda into: pytest.fail("nothing is to be fetched"))


def test_a_wrong_download_never_reaches_the_cache(tmp_path: Path) -> None:
    def truncated(into: Path) -> None:
        copy_of_the_cache(into)
        (into / "jose4j-0.9.6.jar").unlink()

    with pytest.raises(EmbeddedError, match=r"jose4j-0\.9\.6\.jar: SHA-256 is no such file"):
        jars.fetch(tmp_path / "jars", retrieve=truncated)
    assert [path.name for path in tmp_path.iterdir()] == ["jars.lock"]


def test_two_fetches_at_once_fetch_once(tmp_path: Path) -> None:
    both_inside = threading.Barrier(2)
    met, results = [], []

    def retrieve(into: Path) -> None:
        try:
            both_inside.wait(0.5)
            met.append(into)
        except threading.BrokenBarrierError:
            copy_of_the_cache(into)

    threads = [
        threading.Thread(target=lambda: results.append(jars.fetch(tmp_path / "jars", retrieve))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == []
    assert len(results) == 2
    assert results[0] == results[1]


def test_a_missing_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is none in JAVA_HOME .*apt-get install openjdk-17"):
        jars.java()


@pytest.mark.parametrize(
    ("release", "answer", "expected"),
    [
        ('JAVA_VERSION="17.0.9"', "exit 9", None),
        ('JAVA_VERSION="11.0.2"', "exit 9", "is 11: install"),
        ('JAVA_VERSION="1.8.0_392"', "exit 9", "is 8: install"),
        (None, """echo 'openjdk version "21.0.1"' >&2""", None),
        (None, """echo 'openjdk version "11.0.2"' >&2""", "is 11: install"),
        (None, "exit 9", "is of unknown version: install"),
    ],
)
def test_the_age_of_a_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: str | None, answer: str, expected: str | None
) -> None:
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text(f"#!/bin/sh\n{answer}\n")
    binary.chmod(0o755)
    if release:
        (tmp_path / "release").write_text(f"{release}\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if expected is None:
        assert jars.java() == str(binary)
    else:
        with pytest.raises(ConfigError, match=expected):
            jars.java()


def test_no_cluster_is_called_all() -> None:
    with pytest.raises(EmbeddedError, match="and not 'all'"):
        up("all")
