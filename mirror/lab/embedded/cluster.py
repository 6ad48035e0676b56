"""Clusters of one to three real brokers on 127.0.0.1.

A port that is looked up and let go can be taken by anybody before the broker binds it. So the socket that found it
stays bound, never listening: Linux lets a listener with SO_REUSEADDR, which Java sets, share such a port and gives it
to nobody else. It also lets a killed broker come back on the port it had. Other systems refuse to share; there the port
is let go just before the start.

The few bytes are written here and not with `mirror.kafka`, which lies above this package and is tested with it.

    with Cluster.start(nodes=3) as cluster:
        print(cluster.bootstrap)

A cluster is ready when every node answers a Metadata request that names all of them. It ends with the `with` block, and
with this process however that dies (`lab/embedded/guard.py`).
"""

from __future__ import annotations

import base64
import io
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i16, i32

from mirror.errors import EmbeddedError
from mirror.lab.embedded import jars
from mirror.lab.embedded.node import GRACE_S, Config, Jit, Listener, Node, Runtime, stop_all

# --- Free ports that stay ours until the broker listens on them -------------------------------------------------------


def reserve(count: int) -> list[socket.socket]:
    """`count` sockets bound to free ports of 127.0.0.1, not listening. Close them to give the ports back."""
    sockets = []
    for _ in range(count):
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(("127.0.0.1", 0))
        sockets.append(found)
    return sockets


def number(reserved: socket.socket) -> int:
    """The port that a reserving socket holds."""
    port: int = reserved.getsockname()[1]
    return port


def hand_over(reserved: list[socket.socket]) -> None:
    """Makes way for the processes that are about to listen."""
    if sys.platform != "linux":
        for held in reserved:
            held.close()


# --- Asks a broker who is in its cluster ------------------------------------------------------------------------------

ANSWER_LIMIT: Final = 1 << 20


def brokers_seen_by(port: int, timeout: float = 5.0) -> frozenset[int]:
    """The live brokers that the one at 127.0.0.1:`port` knows of; none when it does not answer within `timeout` s."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            connection.sendall(_metadata_request())
            with connection.makefile("rb") as stream:
                (length,) = struct.unpack(">i", stream.read(4))
                answer = stream.read(length) if 0 < length <= ANSWER_LIMIT else b""
        _, header_size = entity_reader(ResponseHeader)(answer, 0)
        metadata, _ = entity_reader(MetadataResponse)(answer, header_size)
    except (OSError, struct.error, SerialError):
        return frozenset()
    return frozenset(int(broker.node_id) for broker in metadata.brokers)


def _metadata_request() -> bytes:
    body = io.BytesIO()
    header = RequestHeader(
        request_api_key=i16(3), request_api_version=i16(12), correlation_id=i32(1), client_id="mirror-embedded"
    )
    request = MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    entity_writer(RequestHeader)(body, header)
    entity_writer(MetadataRequest)(body, request)
    return struct.pack(">i", body.tell()) + body.getvalue()


# --- Clusters of one to three real brokers on 127.0.0.1, for tests, the demo, measurements, and by hand ---------------

#: Seconds within which a cluster must answer, on a machine with far too much to do.
START_TIMEOUT_S: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What to start. `folder` must be new or empty and is kept; without it a temporary one is used and removed.

    `users` have a SCRAM password each. `cluster_id`: what to format it with; without it each cluster has another one.
    """

    nodes: int = 1
    name: str = "cluster"
    folder: Path | None = None
    config: Config = field(default_factory=dict)
    jit: Jit = "quick"
    listeners: tuple[Listener, ...] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster_id: str = ""


class PortTaken(EmbeddedError):
    """Somebody else listens on a port that was free a moment ago."""


class Cluster:
    """A running cluster. Use as a context manager, or call `stop`."""

    def __init__(self, spec: Spec, *, detached: bool = False) -> None:
        """Lays out the folders; `Cluster.start` is what one calls. Raises EmbeddedError."""
        if not 1 <= spec.nodes <= 3:
            raise EmbeddedError(f"an embedded cluster has 1 to 3 nodes, not {spec.nodes}")
        if spec.folder is not None and spec.folder.exists() and any(spec.folder.iterdir()):
            raise EmbeddedError(f"{spec.folder} is not empty: name a new folder for the cluster {spec.name}")
        self.spec, self.name = spec, spec.name
        self.cluster_id = spec.cluster_id or _fresh_cluster_id()
        self.temporary = spec.folder is None
        self._runtime = Runtime(classpath=jars.classpath(), jit=spec.jit, detached=detached, temporary=self.temporary)
        self.folder = spec.folder or Path(tempfile.mkdtemp(prefix=f"mirror-{spec.name}-"))
        each = 2 + len(spec.listeners)
        self._reserved = reserve(each * spec.nodes)
        numbers = [number(held) for held in self._reserved]
        self.nodes = tuple(
            Node(i, numbers[each * i : each * (i + 1)], self.folder / f"node-{i}", self._runtime, spec.listeners)
            for i in range(spec.nodes)
        )

    @classmethod
    def start(
        cls,
        nodes: int = 1,
        name: str = "cluster",
        folder: Path | None = None,
        config: Config | None = None,
        jit: Jit = "quick",
    ) -> Cluster:
        """Starts a cluster and waits until all its nodes answer. Raises EmbeddedError with the tail of a failing node's
        log.

        `config` holds broker settings that are laid over the usual ones.
        """
        return start_many([Spec(nodes=nodes, name=name, folder=folder, config=config or {}, jit=jit)])[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback_type: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`: every node's host:port."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def bootstrap_by(self, listener: str) -> str:
        """The same for one of the other listeners."""
        found = (port for node in self.nodes for one, port in node.extra if one.name == listener)
        return ",".join(f"127.0.0.1:{port}" for port in found)

    def kill(self, i: int) -> None:
        """SIGKILL to node `i`; returns when it is gone."""
        self._end(self.nodes[i], grace=0)

    def suspend(self, i: int) -> None:
        """SIGSTOP: node `i` keeps its connections and answers nothing."""
        self.nodes[i].send(signal.SIGSTOP)

    def resume(self, i: int) -> None:
        """SIGCONT to a suspended node `i`."""
        self.nodes[i].send(signal.SIGCONT)

    def restart(self, i: int) -> None:
        """Starts node `i` again with its port and its folder, stopping it first if it runs; waits until it answers."""
        node = self.nodes[i]
        self._end(node, grace=GRACE_S)
        node.launch()
        self._await([node], lambda seen: node.id in seen)

    def stop(self) -> None:
        """Stops all nodes, by force after 10 s, and removes a temporary folder. May be called again.

        By force at once where nothing remains that a broker would put in order: it takes a second or more for that.
        """
        keeps = not self.temporary or not self._runtime.archive.exists()
        stop_all([node.process for node in self.nodes if node.process], GRACE_S if keeps else 0.0)
        self.let_go()
        if self.temporary:
            self.remove()

    def let_go(self) -> None:
        """Gives back what this process holds of the cluster: nodes that are bound to it end, detached ones go on."""
        for node in self.nodes:
            node.let_go()
        for held in self._reserved:
            held.close()

    def remove(self) -> None:
        """Removes the folder of a cluster that has stopped."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def launch(self) -> None:
        """Formats and starts all nodes; returns when their processes run. Raises EmbeddedError."""
        for node in self.nodes:
            node.write_settings(self.nodes, self.spec.config)
        formats = [node.format(self.cluster_id, self.spec.users) for node in self.nodes]
        for node, status in [(node, tool.wait()) for node, tool in zip(self.nodes, formats, strict=True)]:
            if status != 0:
                raise EmbeddedError(f"{self.name}: formatting node {node.id} failed:\n{node.tail()}")
        hand_over(self._reserved)
        for node in self.nodes:
            node.launch()

    def await_ready(self) -> None:
        """Waits until every node sees all of them. Raises EmbeddedError when one ends, or does not in time."""
        everybody = frozenset(node.id for node in self.nodes)
        self._await(self.nodes, lambda seen: seen >= everybody)

    def _await(self, nodes: Sequence[Node], ready: Callable[[frozenset[int]], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in nodes:
            while not ready(brokers_seen_by(node.port)):
                if not node.alive:
                    tail = node.tail()
                    kind = PortTaken if "Address already in use" in tail else EmbeddedError
                    raise kind(f"{self.name}: node {node.id} ended while it started:\n{tail}")
                if time.monotonic() > deadline:
                    raise EmbeddedError(f"{self.name}: node {node.id} was not ready in time:\n{node.tail()}")
                time.sleep(0.02)

    def _end(self, node: Node, grace: float) -> None:
        if node.process is not None:
            if grace == 0:
                node.process.send(signal.SIGKILL)
            stop_all([node.process], grace)
        node.let_go()


def start_many(specs: Sequence[Spec]) -> list[Cluster]:
    """Starts several clusters at once. Raises EmbeddedError, and stops the others, when one does not start."""
    with ThreadPoolExecutor(max_workers=len(specs)) as pool:
        starting = [pool.submit(started, spec) for spec in specs]
    failed = [error for future in starting if (error := future.exception())]
    if failed:
        for future in starting:
            if future.exception() is None:
                future.result().stop()
        raise failed[0]
    return [future.result() for future in starting]


def started(spec: Spec, *, detached: bool = False, on_launch: Callable[[Cluster], None] | None = None) -> Cluster:
    """A ready cluster; `on_launch` gets it once its processes run. Tries again, once, when a port was taken."""
    for last_try in (False, True):
        cluster = Cluster(spec, detached=detached)
        try:
            cluster.launch()
            if on_launch is not None:
                on_launch(cluster)
            cluster.await_ready()
        except BaseException as error:
            cluster.stop()
            cluster.remove()
            if isinstance(error, PortTaken) and not last_try:
                continue
            raise
        return cluster
    raise AssertionError("unreachable: the last try returns or raises")


def _fresh_cluster_id() -> str:
    """A random id as Kafka writes them; like Kafka's own, never one that a command line takes for an option."""
    while (cluster_id := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")).startswith("-"):
        pass
    return cluster_id
