"""A real Kafka 3.3.2 or 3.9.1 on loopback, in KRaft mode: the oldest and the newest of the lines before 4."""

from __future__ import annotations

import base64
import uuid
from typing import Literal

from releases import ReleasedBroker

from mirror.errors import EmbeddedError
from mirror.lab.embedded.cluster import brokers_seen_by

Version = Literal["3.3.2", "3.9.1"]


class KraftBroker(ReleasedBroker):
    """One node that is broker and controller."""

    def __init__(self, version: Version) -> None:
        """Raises NotFetched and EmbeddedError as `release` does."""
        super().__init__(version)

    def _start(self) -> None:
        properties = self._properties("broker", self._settings())
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=").replace("-", "_")
        tool = ("kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", properties)
        formatting = self._run("format", *tool)
        self._await(lambda: formatting.exit_code is not None, formatting)
        if formatting.exit_code:
            raise EmbeddedError(f"Kafka {self.version} did not format its folder:\n{formatting.tail()}")
        broker = self._run("broker", "kafka.Kafka", properties)
        self._await(lambda: bool(brokers_seen_by(self.port)), broker)

    def _settings(self) -> dict[str, str | int]:
        return self._common() | {
            "process.roles": "broker,controller",
            "node.id": 0,
            "controller.quorum.voters": f"0@127.0.0.1:{self._other_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._other_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
        }
