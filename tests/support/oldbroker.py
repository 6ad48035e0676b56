"""A real Kafka 2.8.2 with its ZooKeeper on loopback: a source that stores magic 0 and 1, and still speaks Fetch 12.

Kafka 3.0 and later write magic 2 alone. Up to 2.8 the topic setting `message.format.version` names the format in which
the log is kept (Kafka `LogValidator`, KIP-31): 0.9.0 is magic 0, 0.10.0 is magic 1, 2.8 is magic 2. The mirror's oldest
request versions are those of this release, so it reads from it directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from releases import NotFetched, ReleasedBroker
from waiting import DEADLINE_S, until

VERSION: Final = "2.8.2"
#: As the vectors name it.
BROKER: Final = f"kafka-{VERSION}"
#: `message.format.version` by the magic that it makes a broker store.
FORMATS: Final[Mapping[int, str]] = {0: "0.9.0", 1: "0.10.0", 2: "2.8"}
Magic = Literal[0, 1, 2]


def started_or_skip() -> OldBroker:
    """An old broker to enter; skips the test where its jars cannot be fetched, for want of a network."""
    try:
        return OldBroker()
    except NotFetched as problem:
        pytest.skip(str(problem))


class OldBroker(ReleasedBroker):
    """One broker and its ZooKeeper."""

    def __init__(self, config: Mapping[str, str | int] | None = None) -> None:
        """`config` holds broker settings that are laid over those below. Raises as `release` does."""
        super().__init__(VERSION)
        self._config = dict(config or {})

    def make_topic(
        self, name: str, magic: Magic, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic whose log is kept in the format of `magic`. Raises KafkaException."""
        settings = {"message.format.version": FORMATS[magic], "retention.ms": "-1", **(configs or {})}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([topic])[name].result(DEADLINE_S)
        until(lambda: self._leads(admin, name, partitions), lambda: f"{name} has no leaders")

    @staticmethod
    def _leads(admin: AdminClient, name: str, partitions: int) -> bool:
        found = admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions
        return len(found) == partitions and all(one.leader >= 0 for one in found.values())

    def _start(self) -> None:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        zookeeper = self._run("zookeeper", main, self._properties("zookeeper", self._zookeeper()))
        broker = self._run("broker", "kafka.Kafka", self._properties("broker", self._broker()))
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200})
        self._await(lambda: _answers(admin), zookeeper, broker)

    def _zookeeper(self) -> dict[str, str | int]:
        return {
            "dataDir": str(self.folder / "zookeeper"),
            "clientPortAddress": "127.0.0.1",
            "clientPort": self._other_port,
            "admin.enableServer": "false",
        }

    def _broker(self) -> dict[str, str | int]:
        return self._common() | {
            "broker.id": 0,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "zookeeper.connect": f"127.0.0.1:{self._other_port}",
            **self._config,
        }


def _answers(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False  # not up yet, or never: whoever waits looks at its process, too
