"""A real Kafka 2.8.2 with its ZooKeeper on loopback: a source that stores magic 0 and 1, and still speaks Fetch 12.

Kafka 3.0 and later write magic 2 alone. Up to 2.8 the topic setting `message.format.version` names the format in which
the log is kept (Kafka `LogValidator`, KIP-31): 0.9.0 is magic 0, 0.10.0 is magic 1, 2.8 is magic 2. The mirror's oldest
request versions are those of this release, so it reads from it directly.

The jars come as `mirror.embedded.jars` gets its own: by the Ivy of PySpark, once, into the user's cache folder, and
checked against the sums in `oldkafka/` each time.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from mirror import folders
from mirror.demo.bound import Bound
from mirror.embedded import Cluster, ports
from mirror.embedded.jars import check, locked
from mirror.errors import EmbeddedError
from mirror.java import find

RESOURCES: Final = Path(__file__).with_name("oldkafka")
BROKER: Final = "kafka-2.8.2"
#: `message.format.version` by the magic that it makes a broker store.
FORMATS: Final[Mapping[int, str]] = {0: "0.9.0", 1: "0.10.0", 2: "2.8"}
Magic = Literal[0, 1, 2]
START_TIMEOUT_S: Final = 90.0
_JVM: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


def release(name: str) -> list[Path]:
    """The checked jars of `oldkafka/<name>.xml`, fetched when they are not in the cache.

    Raises NotFetched without a network when they must be fetched, EmbeddedError for a jar whose sum is wrong.
    """
    folder = folders.cache() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{name}.lock")):
        if not folder.exists():
            _retrieve(name, folder)
    return check(folder, _sums(name))


class NotFetched(EmbeddedError):
    """A release is neither in the cache nor to be had."""


def started_or_skip() -> OldBroker:
    """An old broker to enter; skips the test where its jars cannot be fetched, for want of a network."""
    try:
        return OldBroker()
    except NotFetched as problem:
        pytest.skip(str(problem))


class OldBroker:
    """One broker and its ZooKeeper in a temporary folder; a context manager. They end with this process."""

    def __init__(self, config: Mapping[str, str | int] | None = None) -> None:
        """`config` holds broker settings that are laid over those below. Raises EmbeddedError."""
        self._classpath = os.pathsep.join(str(jar) for jar in release(BROKER))
        self._config = dict(config or {})
        self._running = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="mirror-old-"))
        self._reserved = ports.reserve(2)
        self.port, self._zookeeper_port = (ports.number(held) for held in self._reserved)

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        """The broker's log folder: one folder for each partition."""
        return self.folder / "data"

    def __enter__(self) -> Self:
        ports.hand_over(self._reserved)
        try:
            zookeeper = self._run("zookeeper", "org.apache.zookeeper.server.quorum.QuorumPeerMain", self._zookeeper())
            broker = self._run("broker", "kafka.Kafka", self._broker())
            self._await(zookeeper, broker)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends both processes and removes their folder."""
        self._running.close()
        for held in self._reserved:
            held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def make_topic(
        self, name: str, magic: Magic, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic whose log is kept in the format of `magic`. Raises KafkaException."""
        settings = {"message.format.version": FORMATS[magic], "retention.ms": "-1", **(configs or {})}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([topic])[name].result(timeout=30)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._leads(admin, name, partitions):
            assert time.monotonic() < deadline, f"{name} has no leaders"
            time.sleep(0.02)

    @staticmethod
    def _leads(admin: AdminClient, name: str, partitions: int) -> bool:
        found = admin.list_topics(name, timeout=30).topics[name].partitions
        return len(found) == partitions and all(one.leader >= 0 for one in found.values())

    def _run(self, name: str, main: str, settings: Mapping[str, str | int]) -> Bound:
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        options = [
            f"-Djava.io.tmpdir={self.folder}",
            f"-Dlog4j.configuration={(RESOURCES / 'log4j.properties').as_uri()}",
        ]
        command = [find(), *_JVM, *options, "-cp", self._classpath, main, str(file)]
        return self._running.enter_context(Bound(command, self.folder / f"{name}.log", grace=5.0, folder=self.folder))

    def _await(self, *processes: Bound) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200})
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                if admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                pass  # not up yet; the two checks below say when that is no longer an answer
            for process in processes:
                if process.exit_code is not None:
                    raise EmbeddedError(f"Kafka 2.8.2 ended while it started:\n{process.tail()}")
            if time.monotonic() > deadline:
                raise EmbeddedError(f"Kafka 2.8.2 was not ready in time:\n{processes[-1].tail()}")

    def _zookeeper(self) -> dict[str, str | int]:
        return {
            "dataDir": str(self.folder / "zookeeper"),
            "clientPortAddress": "127.0.0.1",
            "clientPort": self._zookeeper_port,
            "admin.enableServer": "false",
        }

    def _broker(self) -> dict[str, str | int]:
        internal: dict[str, str | int] = {}
        for prefix in ("offsets.topic", "transaction.state.log"):
            internal |= {f"{prefix}.num.partitions": 4, f"{prefix}.replication.factor": 1}
        return internal | {
            "broker.id": 0,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "log.dirs": str(self.data),
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": 16 << 20,
            **self._config,
        }


def plant(cluster: Cluster, topic: str, segment: bytes) -> None:
    """Makes `segment` the log of partition 0 of `topic`, an empty topic of a one-broker cluster, behind its back.

    So a broker that writes magic 2 alone serves older magics from its disk, as one does after an upgrade. The broker is
    killed and started again: after that it reads its logs anew and makes the missing index.
    """
    folder = cluster.nodes[0].folder / "data" / f"{topic}-0"
    log = folder / f"{0:020}.log"
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _is_made(folder):
        assert time.monotonic() < deadline, f"{log} was not made"
        time.sleep(0.02)
    cluster.kill(0)
    assert log.stat().st_size == 0, f"{log} is not empty"
    log.write_bytes(segment)
    for index in (*folder.glob("*.index"), *folder.glob("*.timeindex")):
        index.unlink()
    cluster.restart(0)


def _is_made(folder: Path) -> bool:
    # The metadata names a leader before that has made its log, and a log without its topic's id is thrown away at the
    # next start. The epoch is written last, when the broker begins to lead.
    epochs = folder / "leader-epoch-checkpoint"
    return (folder / "partition.metadata").exists() and epochs.exists() and epochs.stat().st_size > 0


def _sums(name: str) -> dict[str, str]:
    lines = (RESOURCES / f"{name}.sha256").read_text(encoding="ascii").splitlines()
    return {jar: digest for digest, jar in (line.split() for line in lines)}


def _retrieve(name: str, folder: Path) -> None:
    spec = importlib.util.find_spec("pyspark")  # looked up, not imported: that takes a second
    assert spec is not None
    assert spec.origin is not None
    ivy = max(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=folder.parent) as scratch:
        fresh = Path(scratch) / "jars"
        command: Sequence[str] = (
            *(find(), "-XX:-UsePerfData", "-jar", str(ivy), "-ivy", str(RESOURCES / f"{name}.xml")),
            *("-confs", "default", "-cache", str(fresh.with_name("ivy"))),
            *("-retrieve", f"{fresh}/[artifact]-[revision](-[classifier]).[ext]"),
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not fresh.is_dir():
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise NotFetched(f"could not fetch {name}; is there a network? Ivy said:\n{tail}")
        check(fresh, _sums(name))
        fresh.rename(folder)
