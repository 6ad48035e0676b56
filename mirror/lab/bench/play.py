"""A whole comparison: clusters, source topics, rounds in which the arms take turns, trickles, scaling.

A long link is a proxy that delays (`lab/bench/delay.py`): it has no limit of its own, and loses nothing.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from confluent_kafka import KafkaException

from mirror.errors import BenchError, ConfigError, MirrorError, UnequalCopy
from mirror.lab.bench import latency
from mirror.lab.bench.arms import ARMS, MIRROR, Arm
from mirror.lab.bench.copies import Source, attempted, copied, insist, removed, run_of, source_of
from mirror.lab.bench.latency import Pace
from mirror.lab.bench.result import Axis, ComparisonResult, Latency, MeasuredRun, Point, environment, versions
from mirror.lab.bench.workloads import CLEANS_AT_ONCE, Shape, sized
from mirror.lab.demo.processes import Bound
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.lab.embedded.cluster import started
from mirror.lab.embedded.jars import fetch

if TYPE_CHECKING:
    from mirror.lab.bench.report import BenchNarrator

#: Brokers compile what they are about to do: copies of so many MB that do not count come first.
_WARM_MEGABYTES: Final = 40
_WARM_PARTITIONS: Final = 16
_WARM_ARMS: Final = ("loop", "mirror")
#: And so do copies of single records, before a trickle.
_TICKS: Final = Shape(name="ticks", codec="lz4", batch_bytes=300, record_bytes=300, megabytes=10, partitions=16)
#: Arms that copy a trickle: those that run for ever.
LIVE_ARMS: Final = ("mirror", "mm2", "mm2-tuned")
#: Records a second of the usual trickles.
RATES: Final = (1000.0, 4000.0)
_READY_S: Final = 10.0
#: What lies in the topics of scaling.
_SCALING: Final = Shape(name="scaling", batch_bytes=64_000, megabytes=100)
_LARGE: Final = Shape(name="scaling-large", megabytes=300, partitions=8)
#: The mirror with one thing changed at a time. A thousand partitions come last: brokers are busy with them for minutes
#: after their end.
_CHANGES: Final[tuple[tuple[Axis, int, Shape, Arm], ...]] = (
    *(("tasks", tasks, _LARGE, replace(MIRROR, spark={"tasks": tasks})) for tasks in (1, 2, 4)),
    *(("replication", replicas, _LARGE, replace(MIRROR, replicas=replicas)) for replicas in (1, 3)),
    *(("partitions", count, replace(_SCALING, partitions=count), MIRROR) for count in (1, 100, 1000)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Says what to measure."""

    shapes: Sequence[Shape] = ()
    arms: Sequence[Arm]
    rounds: int
    paces: Sequence[Pace] = ()  # trickles
    live_arms: Sequence[Arm] = ()  # arms that copy them
    scaling: bool = False
    command: str = ""  # measures the same again

    def turns(self, round_: int, shape: Shape) -> Sequence[Arm]:
        """Return the arms that copy this shape in this round's order: each comes first in its turn."""
        return rotated([arm for arm in self.arms if arm.fits(shape)], round_ - 1)


@dataclass(slots=True)
class ComparisonOutcome:
    """Holds what came of a plan."""

    result: ComparisonResult
    failures: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)


def rotated(arms: Sequence[Arm], by: int) -> Sequence[Arm]:
    """Return the same arms, beginning with another one (pure)."""
    start = by % len(arms) if arms else 0
    return [*arms[start:], *arms[:start]]


def play(plan: Plan, progress: BenchNarrator) -> ComparisonOutcome:
    """Measure everything; what fails is reported and left out, and so is what an interruption leaves. Raises
    MirrorError where nothing can be measured, and KeyboardInterrupt where nothing was.
    """
    if not any(plan.turns(1, shape) for shape in plan.shapes) and not (plan.paces and plan.live_arms):
        raise ConfigError("none of these arms copies any of these workloads: see `mirror bench --help`")
    began, made = time.monotonic(), datetime.now(UTC)
    machine = environment()
    every = {arm.name: arm for arm in (*plan.arms, *plan.live_arms)}
    facts = [arm.facts for arm in every.values()]
    for arm in every.values():
        arm.prepare()
    fetch()
    with ExitStack() as stack:
        progress.step("starting the clusters")
        specs = [Spec(name="bench-source", jit="full", config=CLEANS_AT_ONCE), Spec(name="bench-target", jit="full")]
        source, target = (stack.enter_context(cluster) for cluster in start_many(specs))
        far = stack.enter_context(far_cluster()) if any(shape.far for shape in plan.shapes) else None
        measuring = Measuring(plan, progress, source, target, far)
        for shape in (*plan.shapes, *([_TICKS] if plan.paces else [])):
            measuring.warm_up(shape)
        sources = [source for shape in plan.shapes for source in measuring.filled(shape)]
        try:
            measuring.everything(sources)
        except KeyboardInterrupt:
            if not measuring.runs:
                raise
            measuring.failures.append("interrupted: what was not measured until then is missing")
    names = {run.arm for run in measuring.runs} | {found.arm for found in measuring.latencies}
    names |= {point.arm for point in measuring.points}
    result = ComparisonResult(
        made=made.isoformat(timespec="seconds").replace("+00:00", "Z"),
        seconds=round(time.monotonic() - began, 1),
        command=plan.command,
        environment=machine,
        versions=versions(),
        workloads=tuple(filled.workload for filled in sources),
        arms=tuple(arm for arm in facts if arm.name in names),
        runs=tuple(measuring.runs),
        latencies=tuple(measuring.latencies),
        scaling=tuple(measuring.points),
        failures=tuple(measuring.failures),
    )
    return ComparisonOutcome(result, measuring.failures, measuring.unequal)


class Measuring:
    """Collects what is measured between two clusters, and a third one that is far away."""

    def __init__(
        self, plan: Plan, progress: BenchNarrator, source: Cluster, target: Cluster, far: Far | None = None
    ) -> None:
        self._plan, self._progress = plan, progress
        self._source, self._target, self._far = source, target, far
        self.runs: list[MeasuredRun] = []
        self.latencies: list[Latency] = []
        self.points: list[Point] = []
        self.failures: list[str] = []
        self.unequal: list[str] = []

    def warm_up(self, shape: Shape) -> None:
        """Make copies that do not count, of batches of this shape."""
        self._progress.step(f"warming up the brokers: {shape.name}")
        small = replace(
            sized(shape, min(_WARM_MEGABYTES, shape.megabytes)),
            name=f"warm-{shape.name}",
            topics=1,
            partitions=min(shape.partitions, _WARM_PARTITIONS),
            compacted=False,
            transactional=0,
        )
        with self._places(shape, round_trip_ms=0) as (source, target):
            warm = source_of(source, small)
            for name in _WARM_ARMS:
                copied(ARMS[name], warm, target, f"warm-{name}")
            removed(source, warm.topics.names)

    def filled(self, shape: Shape) -> list[Source]:
        """Return the source topics of a shape, none where they cannot be made."""
        self._progress.step(f"filling {shape.name}: {shape.megabytes} MB of records")
        found: list[Source] = []
        with self._guarded(), self._places(shape, round_trip_ms=0) as (source, _):
            found.append(source_of(source, shape))
        return found

    def everything(self, sources: Sequence[Source]) -> None:
        """Measure all that is planned, round by round."""
        plan = self._plan
        for round_ in range(1, plan.rounds + 1):
            for source in sources:
                for turn, arm in enumerate(plan.turns(round_, source.shape)):
                    self.copy(arm, source, round_, turn)
        for round_ in range(1, plan.rounds + 1):
            for place, pace in enumerate(plan.paces):
                for arm in rotated(plan.live_arms, round_ - 1):
                    self.trickle(arm, pace, f"l{round_}-{place}-{arm.name}", round_)
        if plan.scaling:
            self.scale()

    def copy(self, arm: Arm, source: Source, round_: int, turn: int) -> None:
        """Measure one copy."""
        with self._guarded(), self._places(source.shape) as (_, target):
            copy = attempted(arm, source, target, f"r{round_}-{arm.name}")
            run = run_of(arm, source, copy, round_=round_, turn=turn)
            self.runs.append(run)
            insist(arm, source, copy)
            self._progress.run(run, source.workload.stored_bytes)

    def trickle(self, arm: Arm, pace: Pace, run: str, round_: int) -> None:
        """Measure one live copy of a trickle."""
        with self._guarded():
            self.latencies.append(latency.measured(arm, self._source, self._target, run, pace, round_))
            self._progress.latency(self.latencies[-1])

    def scale(self) -> None:
        """Change one thing after another. More replicas need a target of three brokers."""
        self._progress.step("scaling")
        with started(Spec(name="bench-three", nodes=3, jit="full")) as three:
            warm = source_of(self._source, replace(sized(_LARGE, _WARM_MEGABYTES), name="scaling-warm"))
            copied(ARMS[_WARM_ARMS[0]], warm, three, "warm-three")
            for axis, value, shape, arm in _CHANGES:
                topic = f"scaling-{axis}-{value}"
                with self._guarded():
                    source = source_of(self._source, replace(shape, name=topic))
                    target = three if axis == "replication" else self._target
                    done = copied(arm, source, target, f"{axis}-{value}")
                    point = Point(
                        axis=axis,
                        value=value,
                        arm=arm.name,
                        round=1,
                        bytes_per_s=source.workload.stored_bytes / done.copy_s,
                        cpu_s_per_gb=done.copy_cpu_s / source.workload.stored_bytes * 1e9,
                    )
                    self.points.append(point)
                    self._progress.point(point)
                removed(self._source, [topic])

    @contextmanager
    def _places(self, shape: Shape, round_trip_ms: float | None = None) -> Iterator[tuple[Cluster, Cluster]]:
        """Yield the clusters between which this shape is copied; a far one is there, at that distance, as long."""
        if not shape.far:
            yield self._source, self._target
            return
        assert self._far is not None, "a plan with a far side has a far cluster"
        with self._far.away(shape.round_trip_ms if round_trip_ms is None else round_trip_ms):
            near = self._target if shape.far == "source" else self._source
            yield (self._far.cluster, near) if shape.far == "source" else (near, self._far.cluster)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except UnequalCopy as error:
            self.unequal.append(str(error))
            self._progress.failed(str(error))
        except (MirrorError, KafkaException, psutil.Error, OSError) as error:  # a broker that died, a full disk
            self.failures.append(str(error) or type(error).__name__)
            self._progress.failed(self.failures[-1])


@dataclass(frozen=True, slots=True)
class Far:
    """A cluster of one broker whose clients come by way of a proxy."""

    cluster: Cluster
    port: int  # of the proxy
    folder: Path

    @contextmanager
    def away(self, round_trip_ms: float) -> Iterator[None]:
        """Let clients come, from that distance. Raises BenchError."""
        broker = self.cluster.nodes[0].port
        command = [sys.executable, "-m", "mirror.lab.bench.delay", str(self.port), str(broker), str(round_trip_ms)]
        with Bound(command, self.folder / "delay.log", grace=_READY_S) as proxy:
            deadline = time.monotonic() + _READY_S
            while not _answers(self.port):
                if proxy.exit_code is not None or time.monotonic() > deadline:
                    raise BenchError(f"the proxy did not start:\n{proxy.tail()}")
                time.sleep(0.02)
            yield


@contextmanager
def far_cluster() -> Iterator[Far]:
    """Start a broker that nobody reaches but by way of a proxy."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    config = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with (
        tempfile.TemporaryDirectory(prefix="mirror-bench-") as folder,
        started(Spec(name="bench-far", jit="full", config=config)) as cluster,
    ):
        yield Far(cluster, port, Path(folder))


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
