"""The mirror with one thing changed at a time: partitions, lanes, distance, copies that the target keeps.

A distance is made by a proxy that delays (`delay.py`). Losses of packets, which a proxy cannot make, are left out.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from mirror.bench.arms import GRACE_S, Arm
from mirror.bench.copies import USUAL, Settings, Source, copied, removed, source_of
from mirror.bench.ownarms import Replay
from mirror.bench.result import Axis, Measured, Point
from mirror.bench.shapes import Shape
from mirror.demo.bound import Bound
from mirror.embedded import Cluster, Spec
from mirror.embedded.cluster import started
from mirror.errors import BenchError, MirrorError

PARTITIONS: Final = (1, 100, 1000)
LANES: Final = (1, 2, 4)
ROUND_TRIPS_MS: Final = (0, 50, 200)
REPLICAS: Final = (1, 3)
#: What lies in these topics.
SMALL: Final = Shape(name="scaling", title="64 KB batches, zstd", codec="zstd", batch_bytes=64_000, megabytes=100)
LARGE: Final = Shape(
    name="scaling-large", title="1 MB batches, zstd", codec="zstd", batch_bytes=1_000_000, megabytes=300, partitions=8
)
_READY_S: Final = 10.0

#: Told of what was measured, or of why it was not: axis, value, and a point or a text.
Tell = Callable[[Axis, float, "Point | str"], None]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Runs every axis with one arm between two clusters, and where they do not do, with clusters of its own."""

    arm: Arm
    source: Cluster
    target: Cluster
    tell: Tell

    def points(self) -> Iterator[Point]:
        """Axis by axis, each thing once."""
        large = source_of(self.source, LARGE)
        for lanes in LANES:
            yield from self._point("lanes", lanes, large, self.target, Settings(spark={"lanes": lanes}))
        with started(Spec(name="bench-three", nodes=3, jit="full")) as three:
            copied(Replay(), large, three, "warm-up")  # its brokers compile what they are about to do
            for replicas in REPLICAS:
                yield from self._point("replication", replicas, large, three, Settings(replicas=replicas))
        removed(self.source, large.topic)
        yield from self._distances()
        yield from self._partitions()  # last: brokers are busy with a thousand partitions for minutes after their end

    def _partitions(self) -> Iterator[Point]:
        for partitions in PARTITIONS:
            source = source_of(self.source, replace(SMALL, partitions=partitions), f"scaling-{partitions}")
            yield from self._point("partitions", partitions, source, self.target)
            removed(self.source, source.topic)

    def _distances(self) -> Iterator[Point]:
        with far_cluster() as far, tempfile.TemporaryDirectory(prefix="mirror-bench-") as folder:
            with far.away(0, Path(folder)):
                source = source_of(far.cluster, LARGE)
            for milliseconds in ROUND_TRIPS_MS:
                with far.away(milliseconds, Path(folder)):
                    yield from self._point("round_trip_ms", milliseconds, source, self.target)

    def _point(
        self, axis: Axis, value: float, source: Source, target: Cluster, settings: Settings = USUAL
    ) -> Iterator[Point]:
        run = f"{axis}-{value:.0f}".replace("_", "-")
        try:
            done, _ = copied(self.arm, source, target, run, settings)
        except (MirrorError, KafkaException) as error:
            self.tell(axis, value, str(error))
            return
        found = point(axis, value, self.arm.facts.name, done, source.workload.stored_bytes)
        self.tell(axis, value, found)
        yield found


def point(axis: Axis, value: float, arm: str, measured: Measured, stored: int) -> Point:
    """As the result holds it (pure)."""
    return Point(
        axis=axis,
        value=value,
        arm=arm,
        round=1,
        bytes_per_s=stored / measured.copy_s,
        cpu_s_per_gb=measured.copy_cpu_s / stored * 1e9,
    )


@dataclass(frozen=True, slots=True)
class Far:
    """A cluster of one broker that tells its clients to come by way of `port`."""

    cluster: Cluster
    port: int

    @contextmanager
    def away(self, round_trip_ms: float, folder: Path) -> Iterator[None]:
        """While this lasts it is there, at that distance. Raises BenchError."""
        broker = self.cluster.nodes[0].port
        command = [sys.executable, "-m", "mirror.bench.delay", str(self.port), str(broker), str(round_trip_ms)]
        with Bound(command, folder / "delay.log", grace=GRACE_S) as proxy:
            deadline = time.monotonic() + _READY_S
            while not _answers(self.port):
                if proxy.exit_code is not None or time.monotonic() > deadline:
                    raise BenchError(f"the proxy did not start:\n{proxy.tail()}")
                time.sleep(0.02)
            yield


@contextmanager
def far_cluster() -> Iterator[Far]:
    """A broker that nobody reaches but by way of a proxy."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    config = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with started(Spec(name="bench-far", jit="full", config=config)) as cluster:
        yield Far(cluster, port)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
