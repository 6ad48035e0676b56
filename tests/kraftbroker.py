"""A real Kafka 3.3.2 or 3.9.1 on loopback, in KRaft mode: the oldest and the newest of the lines before 4.

The jars come and are checked as those of `oldbroker` are.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from oldbroker import RESOURCES, START_TIMEOUT_S, release

from mirror.demo.bound import Bound
from mirror.embedded import ports
from mirror.embedded.probe import brokers_seen_by
from mirror.errors import EmbeddedError
from mirror.java import find

Version = Literal["3.3.2", "3.9.1"]
_JVM: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class KraftBroker:
    """One node that is broker and controller, in a temporary folder; a context manager. It ends with this process."""

    def __init__(self, version: Version) -> None:
        """Raises NotFetched and EmbeddedError as `release` does."""
        self.version = version
        self._classpath = os.pathsep.join(str(jar) for jar in release(f"kafka-{version}"))
        self._running = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix=f"mirror-{version}-"))
        self._reserved = ports.reserve(2)
        self.port, self._controller_port = (ports.number(held) for held in self._reserved)

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        properties = self.folder / "broker.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()), encoding="utf-8")
        ports.hand_over(self._reserved)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=").replace("-", "_")
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", str(properties)]
        try:
            formatting = self._run("format", tool)
            self._await(lambda: formatting.exit_code is not None, formatting)
            if formatting.exit_code:
                raise EmbeddedError(f"Kafka {self.version} did not format its folder:\n{formatting.tail()}")
            broker = self._run("broker", ["kafka.Kafka", str(properties)])
            self._await(lambda: bool(brokers_seen_by(self.port)), broker)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the process and removes its folder."""
        self._running.close()
        for held in self._reserved:
            held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, name: str, arguments: Sequence[str]) -> Bound:
        options = [
            f"-Djava.io.tmpdir={self.folder}",
            f"-Dlog4j.configuration={(RESOURCES / 'log4j.properties').as_uri()}",
        ]
        command = [find(), *_JVM, *options, "-cp", self._classpath, *arguments]
        return self._running.enter_context(Bound(command, self.folder / f"{name}.log", grace=5.0, folder=self.folder))

    def _await(self, ready: Callable[[], bool], process: Bound) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            if process.exit_code:
                raise EmbeddedError(f"Kafka {self.version} ended while it started:\n{process.tail()}")
            if time.monotonic() > deadline:
                raise EmbeddedError(f"Kafka {self.version} was not ready in time:\n{process.tail()}")
            time.sleep(0.02)

    def _settings(self) -> dict[str, str | int]:
        internal: dict[str, str | int] = {}
        for prefix in ("offsets.topic", "transaction.state.log"):
            internal |= {f"{prefix}.num.partitions": 4, f"{prefix}.replication.factor": 1}
        return internal | {
            "process.roles": "broker,controller",
            "node.id": 0,
            "controller.quorum.voters": f"0@127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.folder / "data"),
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": 16 << 20,
        }
