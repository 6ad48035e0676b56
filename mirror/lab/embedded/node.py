"""One embedded broker: a KRaft node that is controller and broker at once, its process, and its listeners.

Settings differ from the published defaults only where a small throw-away cluster needs it: internal topics with few
partitions and no more replicas than nodes, no waiting for a group's first members, no topic created by a typing
mistake, a small cleaner buffer, and a killed broker that may come back after 3 s instead of 9.

Half of a broker's start is loading classes. The first broker to stop leaves an archive of them beside the jars (AppCDS)
that halves the start of all later ones; Java ignores it by itself when the jars are not those it was made from.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import psutil

from mirror.errors import EmbeddedError
from mirror.lab.embedded.jars import RESOURCES, jars_folder, java, locked

# --- A process that can be named again later --------------------------------------------------------------------------

#: Start times are counted from the boot time, which moves a little when the clock is set.
CLOCK_SLACK_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process, alive or not. `started` is in seconds since the epoch."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The process that has this id now, if any."""
        try:
            return cls(pid=pid, started=psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    @property
    def alive(self) -> bool:
        """True while it runs or is suspended; a zombie is not alive."""
        return self.handle() is not None

    def handle(self) -> psutil.Process | None:
        """psutil's view of it, or None when it is gone."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < CLOCK_SLACK_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens when the process is gone. Returns from SIGSTOP when it has stopped: where the
        processors are busy, it would go on to answer for a while.
        """
        _send(self.handle(), number)
        if number == signal.SIGSTOP:
            while (handle := self.handle()) and handle.status() != psutil.STATUS_STOPPED:
                time.sleep(0.001)


def stop_all(identities: Iterable[Identity], grace: float) -> None:
    """SIGTERM to all at once, SIGKILL to those that still run after `grace` s; returns when none does."""
    handles = [handle for identity in identities if (handle := identity.handle())]
    for handle in handles:
        _send(handle, signal.SIGTERM)
        _send(handle, signal.SIGCONT)  # a suspended process sees no other signal before this one
    _, stubborn = psutil.wait_procs(handles, timeout=grace)
    for handle in stubborn:
        _send(handle, signal.SIGKILL)
    psutil.wait_procs(stubborn)


def _send(handle: psutil.Process | None, number: signal.Signals) -> None:
    try:
        if handle is not None:
            handle.send_signal(number)
    except psutil.NoSuchProcess:
        return  # it ended by itself, which is what every signal sent here leads to


# --- Listeners beside the plain one -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One more listener of every node, by a name in capitals; `config` is its own (`listener.name.<name>.`)."""

    name: str
    protocol: str
    config: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str | int | bool]:
        """As `server.properties` has them."""
        return {f"listener.name.{self.name.lower()}.{key}": value for key, value in self.config.items()}


# --- One embedded broker ----------------------------------------------------------------------------------------------

Jit = Literal["quick", "full"]
Config = Mapping[str, str | int | bool]

#: `quick` compiles lightly and starts soonest; `full` is for measuring: the collector and heap a published broker
#: starts with.
JIT_FLAGS: Final[Mapping[Jit, tuple[str, ...]]] = {
    "quick": ("-Xmx384m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "full": ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
}
#: Seconds that a broker has to stop by itself before it is killed.
GRACE_S: Final = 10.0
GUARD: Final = Path(__file__).with_name("guard.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What every node of a cluster is started with."""

    classpath: str
    jit: Jit
    detached: bool
    temporary: bool

    def command(self, folder: Path, *rest: str) -> list[str]:
        """A Java command line that keeps everything it writes in `folder`."""
        files = [f"-Djava.io.tmpdir={folder}", f"-Dlog4j2.configurationFile={RESOURCES / 'log4j2.properties'}"]
        return [java(), *JIT_FLAGS[self.jit], "-XX:-UsePerfData", "-Xlog:disable", *files, "-cp", self.classpath, *rest]

    @property
    def archive(self) -> Path:
        """Where the class archive for this Java and these jars is, or will be."""
        binary = Path(java()).resolve()
        key = hashlib.sha256(f"{binary} {binary.stat().st_mtime_ns}".encode()).hexdigest()[:12]
        return jars_folder() / f"classes-{key}.jsa"


class Node:
    """`id` counts from 0, as in `Cluster.nodes`; `port` is on 127.0.0.1; `log` is all that the process writes.

    `extra` are listeners beside the plain one, with their ports.
    """

    def __init__(
        self,
        node_id: int,
        ports: Sequence[int],
        folder: Path,
        runtime: Runtime,
        extra: Sequence[Listener] = (),
    ) -> None:
        """`ports`: the plain listener's, the controller's, and one for each of `extra`."""
        self.id, self.folder = node_id, folder
        self.port, self.controller_port, *others = ports
        self.extra = tuple(zip(extra, others, strict=True))
        self._runtime = runtime
        self._guard: subprocess.Popen[bytes] | None = None
        self.process: Identity | None = None

    @cached_property
    def log(self) -> Path:
        """The file with the broker's output; quiet unless something is wrong."""
        return self.folder / "broker.log"

    @cached_property
    def data(self) -> Path:
        """Its log directory: a folder for each partition that it has."""
        return self.folder / "data"

    @property
    def java_pid(self) -> int:
        """The process id of the broker that runs now. Raises EmbeddedError when none does."""
        if self.process is None or not self.process.alive:
            raise EmbeddedError(f"node {self.id} does not run; its log is {self.log}")
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while the broker's process runs or is suspended."""
        return self.process is not None and self.process.alive

    def write_settings(self, voters: Sequence[Node], config: Config) -> None:
        """Makes the node's folder with its `server.properties`."""
        self.folder.mkdir(parents=True)
        text = "".join(f"{key}={_text(value)}\n" for key, value in (self._settings(voters) | dict(config)).items())
        self._properties.write_text(text, encoding="utf-8")

    def format(self, cluster_id: str, users: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts Kafka's own storage tool on the node's folder; `users` get a SCRAM password each."""
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", str(self._properties)]
        for user, password in users.items():
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                tool += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
        with self.log.open("ab") as log:
            command = self._runtime.command(self.folder, *self._shared_classes(), *tool)
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def launch(self) -> None:
        """Starts the broker's process behind its guard. Raises EmbeddedError."""
        runtime = self._runtime
        classes = self._shared_classes(record=self.id == 0 and not runtime.detached)
        broker = runtime.command(self.folder, *classes, "kafka.Kafka", str(self._properties))
        bound = ["bound", str(GRACE_S), str(self.folder) if runtime.temporary else ""]
        command = [sys.executable, "-S", "-E", str(GUARD), *(["detached"] if runtime.detached else bound), *broker]
        with self.log.open("ab") as log:
            guard = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self._guard = guard
        assert guard.stdout is not None
        with guard.stdout as reported:
            pid = reported.readline()
        self.process = Identity.of(int(pid)) if pid else None
        if runtime.detached or self.process is None:
            self.let_go()
        if self.process is None:
            raise EmbeddedError(f"node {self.id} ended at once:\n{self.tail()}")

    def let_go(self) -> None:
        """Waits for the guard of a broker that has ended, or makes it end one that has not."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        assert guard.stdin is not None
        # A killed process is a zombie before its last thread is gone. To a guard that loses its pipe then, the
        # parent is dead and the folder its own to remove; so the pipe is closed only when the guard has seen the end.
        with guard.stdin, suppress(subprocess.TimeoutExpired):
            guard.wait(GRACE_S)
        self._keep_classes(guard.wait())

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the broker, if it runs."""
        if self.process is not None:
            self.process.send(number)

    def tail(self, lines: int = 20) -> str:
        """The last lines of the log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:]) or "(its log is empty)"

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _fresh_archive(self) -> Path:
        return self.folder / "classes.jsa"

    def _shared_classes(self, *, record: bool = False) -> tuple[str, ...]:
        if self._runtime.archive.exists():
            return (f"-XX:SharedArchiveFile={self._runtime.archive}",)
        return (f"-XX:ArchiveClassesAtExit={self._fresh_archive}",) if record else ()

    def _keep_classes(self, exit_status: int) -> None:
        # Written as the process ends, so it is whole only if SIGTERM ended it and nothing cut that short.
        if exit_status == 128 + signal.SIGTERM and self._fresh_archive.exists():
            archive = self._runtime.archive
            with locked(archive.with_suffix(".lock")):
                scratch = archive.with_suffix(".part")
                shutil.copyfile(self._fresh_archive, scratch)
                scratch.replace(archive)

    def _settings(self, voters: Sequence[Node]) -> dict[str, str | int | bool]:
        replicas = min(3, len(voters))
        own = {"PLAINTEXT": self.port} | {listener.name: port for listener, port in self.extra}
        advertised = ",".join(f"{name}://127.0.0.1:{port}" for name, port in own.items())
        protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT"} | {
            listener.name: listener.protocol for listener, _ in self.extra
        }
        internal: dict[str, str | int | bool] = {}
        for prefix in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            internal |= {f"{prefix}.num.partitions": 4, f"{prefix}.replication.factor": replicas}
        listeners = {key: value for listener, _ in self.extra for key, value in listener.settings.items()}
        return (
            internal
            | listeners
            | {
                "process.roles": "broker,controller",
                "node.id": self.id,
                "controller.quorum.voters": ",".join(f"{node.id}@127.0.0.1:{node.controller_port}" for node in voters),
                "controller.listener.names": "CONTROLLER",
                "listeners": f"{advertised},CONTROLLER://127.0.0.1:{self.controller_port}",
                "advertised.listeners": advertised,
                "listener.security.protocol.map": ",".join(
                    f"{name}:{protocol}" for name, protocol in protocols.items()
                ),
                "inter.broker.listener.name": "PLAINTEXT",
                "log.dirs": str(self.data),
                "transaction.state.log.min.isr": min(2, replicas),
                "share.coordinator.state.topic.min.isr": min(2, replicas),
                "broker.session.timeout.ms": 3000,
                "broker.heartbeat.interval.ms": 500,
                "group.initial.rebalance.delay.ms": 0,
                "replica.high.watermark.checkpoint.interval.ms": 200,  # a killed broker's disks say where logs ended
                "auto.create.topics.enable": False,
                "log.cleaner.dedupe.buffer.size": 16 << 20,
            }
        )


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
