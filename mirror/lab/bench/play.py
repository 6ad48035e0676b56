"""A whole comparison: clusters, source topics, rounds in which the arms take turns, latency, scaling.

A distance is made by a proxy that delays (`lab/bench/delay.py`). Losses of packets, which a proxy cannot make, are left
out.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from confluent_kafka import KafkaException

from mirror.errors import BenchError, ConfigError, MirrorError, UnequalCopy
from mirror.lab.bench import latency
from mirror.lab.bench.arms import ARMS, GRACE_S, Arm, Replay
from mirror.lab.bench.copies import USUAL, Settings, Source, attempted, copied, insist, removed, run_of, source_of
from mirror.lab.bench.latency import Pace
from mirror.lab.bench.result import Axis, Latency, Measured, Point, Result, Run, environment, versions
from mirror.lab.bench.workloads import CLEANS_AT_ONCE, Shape, sized
from mirror.lab.demo.processes import Bound
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.lab.embedded.cluster import started
from mirror.lab.embedded.jars import fetch

if TYPE_CHECKING:
    from mirror.lab.bench.report import Narrator

# --- The mirror with one thing changed at a time ----------------------------------------------------------------------

PARTITIONS: Final = (1, 100, 1000)
TASKS: Final = (1, 2, 4)
ROUND_TRIPS_MS: Final = (0, 50, 200)
REPLICAS: Final = (1, 3)
#: What lies in these topics.
SMALL: Final = Shape(name="scaling", title="64 KB batches, zstd", codec="zstd", batch_bytes=64_000, megabytes=100)
LARGE: Final = Shape(
    name="scaling-large", title="1 MB batches, zstd", codec="zstd", batch_bytes=1_000_000, megabytes=300, partitions=8
)
_READY_S: Final = 10.0

#: Called with what was measured, or of why it was not: axis, value, and a point or a text.
OnPoint = Callable[[Axis, float, "Point | str"], None]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Runs every axis with one arm between two clusters, and where they do not do, with clusters of its own."""

    arm: Arm
    source: Cluster
    target: Cluster
    on_point: OnPoint

    def points(self) -> Iterator[Point]:
        """Axis by axis, each thing once."""
        large = source_of(self.source, LARGE)
        for tasks in TASKS:
            yield from self._point("tasks", tasks, large, self.target, Settings(spark={"tasks": tasks}))
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
            self.on_point(axis, value, str(error))
            return
        found = point(axis, value, self.arm.facts.name, done, source.workload.stored_bytes)
        self.on_point(axis, value, found)
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
    """A cluster of one broker that makes its clients come by way of `port`."""

    cluster: Cluster
    port: int

    @contextmanager
    def away(self, round_trip_ms: float, folder: Path) -> Iterator[None]:
        """While this lasts it is there, at that distance. Raises BenchError."""
        broker = self.cluster.nodes[0].port
        command = [sys.executable, "-m", "mirror.lab.bench.delay", str(self.port), str(broker), str(round_trip_ms)]
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


# --- A whole comparison -----------------------------------------------------------------------------------------------

#: Brokers compile what they are about to do: copies of so many MB that do not count come first.
WARM_MEGABYTES: Final = 40
_WARM_ARMS: Final = ("replay", "loop")
#: The arms whose latency is measured: those that run for ever.
LIVE_ARMS: Final = ("mirror", "mm2", "mm2-tuned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure. `pace` None leaves latency out."""

    shapes: Sequence[Shape]
    arms: Sequence[Arm]
    rounds: int
    pace: Pace | None
    scaling: bool
    command: str

    @property
    def live_arms(self) -> Sequence[Arm]:
        """Of the arms those whose latency is measured."""
        return [arm for arm in self.arms if arm.facts.name in LIVE_ARMS] if self.pace else []

    def turns(self, round_: int, shape: Shape) -> Sequence[Arm]:
        """The arms that copy a topic of this shape, in this round's order: each comes first in its turn."""
        return rotated([arm for arm in self.arms if arm.fits(shape)], round_ - 1)


@dataclass(slots=True)
class Outcome:
    """The figures; `failures` and `unequal` say what went wrong."""

    result: Result
    failures: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)


def rotated(arms: Sequence[Arm], by: int) -> Sequence[Arm]:
    """The same, beginning with another one (pure)."""
    start = by % len(arms) if arms else 0
    return [*arms[start:], *arms[:start]]


def play(plan: Plan, progress: Narrator) -> Outcome:
    """Measure everything; what fails is reported and left out, and so is what an interruption leaves. Raises
    MirrorError where nothing can be measured, and KeyboardInterrupt where nothing was.
    """
    if not any(plan.turns(1, shape) for shape in plan.shapes):
        raise ConfigError("none of these arms copies any of these workloads: see `mirror bench --help`")
    began, made = time.monotonic(), datetime.now(UTC)
    machine = environment()
    facts = [arm.facts for arm in plan.arms]
    for arm in plan.arms:
        arm.prepare()
    fetch()
    with ExitStack() as stack:
        progress.step("starting two clusters")
        specs = [Spec(name="bench-source", jit="full", config=CLEANS_AT_ONCE), Spec(name="bench-target", jit="full")]
        source, target = (stack.enter_context(cluster) for cluster in start_many(specs))
        measuring = _Measuring(plan, progress, source, target)
        measuring.warm_up()
        sources = [measuring.filled(shape) for shape in plan.shapes]
        try:
            measuring.everything(sources)
        except KeyboardInterrupt:
            if not measuring.runs:
                raise
            measuring.failures.append("interrupted: what was not measured until then is missing")
    result = Result(
        made=made.isoformat(timespec="seconds").replace("+00:00", "Z"),
        seconds=round(time.monotonic() - began, 1),
        command=plan.command,
        environment=machine,
        versions=versions(),
        workloads=tuple(one.workload for one in sources),
        arms=tuple(one for one in facts if one.name in measuring.measured),
        runs=tuple(measuring.runs),
        latencies=tuple(measuring.latencies),
        scaling=tuple(measuring.points),
        failures=tuple(measuring.failures),
    )
    return Outcome(result, measuring.failures, measuring.unequal)


class _Measuring:
    """Collects what is measured between two clusters."""

    def __init__(self, plan: Plan, progress: Narrator, source: Cluster, target: Cluster) -> None:
        self._plan, self._progress, self._source, self._target = plan, progress, source, target
        self.runs: list[Run] = []
        self.latencies: list[Latency] = []
        self.points: list[Point] = []
        self.failures: list[str] = []
        self.unequal: list[str] = []

    @property
    def measured(self) -> set[str]:
        """Names of the arms of which there is a figure."""
        copied_with, late = {run.arm for run in self.runs}, {found.arm for found in self.latencies}
        return copied_with | late | {found.arm for found in self.points}

    def warm_up(self) -> None:
        """Copies that do not count, of batches of each shape."""
        self._progress.step("warming up the brokers")
        for shape in self._plan.shapes:
            small = replace(sized(shape, min(WARM_MEGABYTES, shape.megabytes)), compacted=False, transactional=0)
            warm = source_of(self._source, small, f"warm-{shape.name}")
            for name in _WARM_ARMS:
                copied(ARMS[name], warm, self._target, f"warm-{name}")
            removed(self._source, warm.topic)

    def filled(self, shape: Shape) -> Source:
        """A source topic."""
        self._progress.step(f"filling {shape.name}: {shape.megabytes} MB of records")
        return source_of(self._source, shape)

    def everything(self, sources: Sequence[Source]) -> None:
        """All that is planned, round by round."""
        plan = self._plan
        for round_ in range(1, plan.rounds + 1):
            for one in sources:
                for turn, arm in enumerate(plan.turns(round_, one.shape)):
                    self.copy(arm, one, round_, turn)
        for round_ in range(1, plan.rounds + 1):
            for arm in rotated(plan.live_arms, round_ - 1):
                self.lateness(arm, round_)
        if plan.scaling:
            self.scale()

    def copy(self, arm: Arm, source: Source, round_: int, turn: int) -> None:
        """One run."""

        def measure() -> None:
            copy = attempted(arm, source, self._target, f"r{round_}-{arm.facts.name}")
            run = run_of(arm, source, copy, round_=round_, turn=turn)
            self.runs.append(run)
            insist(arm, source, copy)
            self._progress.run(run, source.workload.stored_bytes)

        self._guarded(measure)

    def lateness(self, arm: Arm, round_: int) -> None:
        """One arm's latency."""
        pace = self._plan.pace
        assert pace is not None

        def measure() -> None:
            run = f"l{round_}-{arm.facts.name}"
            self.latencies.append(latency.measured(arm, self._source, self._target, run, pace, round_))
            self._progress.latency(self.latencies[-1])

        self._guarded(measure)

    def scale(self) -> None:
        """Every axis."""
        self._progress.step("scaling; losses of packets are left out: the proxy that makes distances loses none")
        arm = ARMS["mirror"]
        self._guarded(
            lambda: self.points.extend(Scaling(arm, self._source, self._target, self._progress.point).points())
        )

    def _guarded(self, measure: Callable[[], None]) -> None:
        try:
            measure()
        except UnequalCopy as error:
            self.unequal.append(str(error))
            self._progress.failed(str(error))
        except (MirrorError, KafkaException, psutil.Error, OSError) as error:  # a broker that died, a full disk
            self.failures.append(str(error) or type(error).__name__)
            self._progress.failed(self.failures[-1])
