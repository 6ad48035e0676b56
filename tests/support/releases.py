"""Releases of Kafka before the embedded one, on loopback: their jars, and what brokers of all of them have in common.

The jars come as `mirror.lab.embedded.jars` gets its own: by the Ivy of PySpark, once, into the user's cache folder, and
checked against the sums in `oldkafka/` each time.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from mirror import host
from mirror.errors import EmbeddedError
from mirror.host import find
from mirror.lab.demo.processes import Bound
from mirror.lab.embedded import cluster
from mirror.lab.embedded.jars import check, locked

_RESOURCES: Final = Path(__file__).with_name("oldkafka")
_JVM: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class NotFetched(EmbeddedError):
    """A release is neither in the cache nor to be had."""


def release(name: str) -> list[Path]:
    """The checked jars of `oldkafka/<name>.xml`, fetched when they are not in the cache.

    Raises NotFetched without a network when they must be fetched, EmbeddedError for a jar whose sum is wrong.
    """
    folder = host.cache_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{name}.lock")):
        if not folder.exists():
            _retrieve(name, folder)
    return check(folder, _sums(name))


class ReleasedBroker(ABC):
    """One broker of a release, with whatever it needs beside it, in a temporary folder; a context manager. All of it
    ends with this process.
    """

    def __init__(self, version: str) -> None:
        """Raises NotFetched and EmbeddedError as `release` does."""
        self.version = version
        self._classpath = os.pathsep.join(str(jar) for jar in release(f"kafka-{version}"))
        self._running = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix=f"mirror-{version}-"))
        self._reserved = cluster.reserve(2)
        self.port, self._other_port = (cluster.number(held) for held in self._reserved)

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        """The broker's log folder: one folder for each partition."""
        return self.folder / "data"

    def __enter__(self) -> Self:
        cluster.hand_over(self._reserved)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the processes and removes their folder."""
        self._running.close()
        for held in self._reserved:
            held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @abstractmethod
    def _start(self) -> None:
        """Returns when the broker answers. Raises EmbeddedError where it does not."""

    def _properties(self, name: str, settings: Mapping[str, str | int]) -> str:
        """Writes a file of settings, and names it."""
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        return str(file)

    def _run(self, name: str, *arguments: str) -> Bound:
        """Starts a Java program: its main class and what that gets."""
        options = [
            f"-Djava.io.tmpdir={self.folder}",
            f"-Dlog4j.configuration={(_RESOURCES / 'log4j.properties').as_uri()}",
        ]
        command = [find(), *_JVM, *options, "-cp", self._classpath, *arguments]
        return self._running.enter_context(Bound(command, self.folder / f"{name}.log", grace=5.0, folder=self.folder))

    def _await(self, is_ready: Callable[[], bool], *processes: Bound) -> None:
        """Raises EmbeddedError where one of the processes fails, or it takes too long."""
        deadline = time.monotonic() + cluster.START_TIMEOUT_S
        while not is_ready():
            for process in processes:
                if process.exit_code:
                    raise EmbeddedError(f"Kafka {self.version} ended while it started:\n{process.tail()}")
            if time.monotonic() > deadline:
                raise EmbeddedError(f"Kafka {self.version} was not ready in time:\n{processes[-1].tail()}")
            time.sleep(0.02)

    def _common(self) -> dict[str, str | int]:
        """The settings of any broker here: small, and without a wait."""
        internal: dict[str, str | int] = {}
        for prefix in ("offsets.topic", "transaction.state.log"):
            internal |= {f"{prefix}.num.partitions": 4, f"{prefix}.replication.factor": 1}
        return internal | {
            "log.dirs": str(self.data),
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": 16 << 20,
        }


def _sums(name: str) -> dict[str, str]:
    lines = (_RESOURCES / f"{name}.sha256").read_text(encoding="ascii").splitlines()
    return {jar: digest for digest, jar in (line.split() for line in lines)}


def _retrieve(name: str, folder: Path) -> None:
    spec = importlib.util.find_spec("pyspark")  # looked up, not imported: that takes a second
    assert spec is not None
    assert spec.origin is not None
    ivy = max(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=folder.parent) as scratch:
        fresh = Path(scratch) / "jars"
        command: Sequence[str] = (
            *(find(), "-XX:-UsePerfData", "-jar", str(ivy), "-ivy", str(_RESOURCES / f"{name}.xml")),
            *("-confs", "default", "-cache", str(fresh.with_name("ivy"))),
            *("-retrieve", f"{fresh}/[artifact]-[revision](-[classifier]).[ext]"),
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not fresh.is_dir():
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise NotFetched(f"could not fetch {name}; is there a network? Ivy said:\n{tail}")
        check(fresh, _sums(name))
        fresh.rename(folder)
