"""Three brokers, of which one can be cut off from the controller, while clients and other brokers still reach it. It
answers as before, and never hears that others lead by now.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import psutil
from background import BackgroundServers
from proxied import until_one_ends
from remedyworld import until

from mirror.lab.embedded import Cluster, Spec
from mirror.lab.embedded.cluster import brokers_seen_by, hand_over
from mirror.lab.embedded.node import Node

#: Brokers that are missed soon, and every record on all three.
_BROKERS: Final = {"default.replication.factor": 3, "min.insync.replicas": 1, "replica.lag.time.max.ms": 3000}
_CHUNK: Final = 1 << 16


def _way(connection: Any) -> tuple[int, int] | None:
    """From which port to which."""
    near, far = connection.laddr, connection.raddr
    return (near.port, far.port) if near and far else None


class Gate(BackgroundServers):
    """The way to the controller; `shut` are the processes that it does not let through."""

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
        port = writer.get_extra_info("peername")[1]
        way = port, self.port
        pid = next((one.pid for one in psutil.net_connections("tcp") if one.pid and _way(one) == way), None)
        if pid is None or pid in self.shut:  # whoever is not known could not be shut out later: it connects again
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:  # it is just starting
            writer.transport.abort()
            return
        self._open.append((pid, writer))

        async def carried(one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await one.read(_CHUNK):
                    other.write(data)

        await until_one_ends((carried(reader, up_writer), carried(up_reader, writer)), writer, up_writer)

    def shut_out(self, pid: int) -> None:
        """Let a process through no more."""
        self._await(self._cut(pid))

    async def _cut(self, pid: int) -> None:
        self.shut.add(pid)
        for one, writer in self._open:
            if one == pid:
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
        self.gate.shut_out(self.nodes[i].java_pid)
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
