"""Clusters of one to three real brokers on 127.0.0.1, for tests, the demo, measurements, and by hand.

    with Cluster.start(nodes=3) as cluster:
        print(cluster.bootstrap)

A cluster is ready when every node answers a Metadata request that names all of them. It ends with the `with` block, and
with this process however that dies (`guard.py`).
"""

from __future__ import annotations

import base64
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from mirror.embedded import jars, ports
from mirror.embedded.node import GRACE_S, Config, Jit, Node, Runtime
from mirror.embedded.probe import brokers_seen_by
from mirror.embedded.process import stop_all
from mirror.embedded.security import Listener
from mirror.errors import EmbeddedError

#: Seconds within which a cluster must answer.
START_TIMEOUT_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What to start. `folder` must be new or empty and is kept; without it a temporary one is used and removed.

    `users` have a SCRAM password each.
    """

    nodes: int = 1
    name: str = "cluster"
    folder: Path | None = None
    config: Config = field(default_factory=dict)
    jit: Jit = "quick"
    listeners: tuple[Listener, ...] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)


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
        self.cluster_id = _fresh_cluster_id()
        self.temporary = spec.folder is None
        self._runtime = Runtime(classpath=jars.classpath(), jit=spec.jit, detached=detached, temporary=self.temporary)
        self.folder = spec.folder or Path(tempfile.mkdtemp(prefix=f"mirror-{spec.name}-"))
        each = 2 + len(spec.listeners)
        self._reserved = ports.reserve(each * spec.nodes)
        numbers = [ports.number(held) for held in self._reserved]
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
        ports.hand_over(self._reserved)
        for node in self.nodes:
            node.launch()

    def await_ready(self) -> None:
        """Waits until every node sees all of them. Raises EmbeddedError when one ends or 90 s pass."""
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
    """A ready cluster; `on_launch` is told of it once its processes run. Tries again, once, when a port was taken."""
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
