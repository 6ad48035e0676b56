"""A whole comparison: clusters, source topics, rounds in which the arms take turns, latency, scaling."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol

import psutil
from confluent_kafka import KafkaException

from mirror.bench import latency, machine
from mirror.bench.arms import Arm
from mirror.bench.copies import Source, attempted, copied, insist, removed, run_of, source_of
from mirror.bench.filling import CLEANS_AT_ONCE
from mirror.bench.latency import Pace
from mirror.bench.registry import ARMS
from mirror.bench.result import Axis, Latency, Point, Result, Run
from mirror.bench.scaling import Scaling
from mirror.bench.shapes import Shape, sized
from mirror.embedded import Cluster, Spec, start_many
from mirror.embedded.jars import fetch
from mirror.errors import ConfigError, MirrorError, UnequalCopy

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


class Tell(Protocol):
    """Where it is said what is done."""

    def step(self, text: str) -> None:
        """Something begins."""

    def run(self, run: Run, stored_bytes: int) -> None:
        """A copy was measured."""

    def latency(self, found: Latency) -> None:
        """An arm's latency was measured."""

    def point(self, axis: Axis, value: float, found: Point | str) -> None:
        """A point of scaling was measured, or could not be."""

    def failed(self, text: str) -> None:
        """Something could not be measured, and the comparison goes on without it."""


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


def play(plan: Plan, tell: Tell) -> Outcome:
    """Measure everything; what fails is told of and left out, and so is what an interruption leaves. Raises MirrorError
    where nothing can be measured, and KeyboardInterrupt where nothing was.
    """
    if not any(plan.turns(1, shape) for shape in plan.shapes):
        raise ConfigError("none of these arms copies any of these workloads: see `mirror bench --help`")
    began, made = time.monotonic(), datetime.now(UTC)
    environment = machine.environment()
    facts = [arm.facts for arm in plan.arms]
    for arm in plan.arms:
        arm.prepare()
    fetch()
    with ExitStack() as stack:
        tell.step("starting two clusters")
        specs = [Spec(name="bench-source", jit="full", config=CLEANS_AT_ONCE), Spec(name="bench-target", jit="full")]
        source, target = (stack.enter_context(cluster) for cluster in start_many(specs))
        measuring = _Measuring(plan, tell, source, target)
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
        environment=environment,
        versions=machine.versions(),
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

    def __init__(self, plan: Plan, tell: Tell, source: Cluster, target: Cluster) -> None:
        self._plan, self._tell, self._source, self._target = plan, tell, source, target
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
        self._tell.step("warming up the brokers")
        for shape in self._plan.shapes:
            small = replace(sized(shape, min(WARM_MEGABYTES, shape.megabytes)), compacted=False, transactional=0)
            warm = source_of(self._source, small, f"warm-{shape.name}")
            for name in _WARM_ARMS:
                copied(ARMS[name], warm, self._target, f"warm-{name}")
            removed(self._source, warm.topic)

    def filled(self, shape: Shape) -> Source:
        """A source topic."""
        self._tell.step(f"filling {shape.name}: {shape.megabytes} MB of records")
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
            self._tell.run(run, source.workload.stored_bytes)

        self._guarded(measure)

    def lateness(self, arm: Arm, round_: int) -> None:
        """One arm's latency."""
        pace = self._plan.pace
        assert pace is not None

        def measure() -> None:
            run = f"l{round_}-{arm.facts.name}"
            self.latencies.append(latency.measured(arm, self._source, self._target, run, pace, round_))
            self._tell.latency(self.latencies[-1])

        self._guarded(measure)

    def scale(self) -> None:
        """Every axis."""
        self._tell.step("scaling; losses of packets are left out: the proxy that makes distances loses none")
        arm = ARMS["mirror"]
        self._guarded(lambda: self.points.extend(Scaling(arm, self._source, self._target, self._tell.point).points()))

    def _guarded(self, measure: Callable[[], None]) -> None:
        try:
            measure()
        except UnequalCopy as error:
            self.unequal.append(str(error))
            self._tell.failed(str(error))
        except (MirrorError, KafkaException, psutil.Error, OSError) as error:  # a broker that died, a full disk
            self.failures.append(str(error) or type(error).__name__)
            self._tell.failed(self.failures[-1])
