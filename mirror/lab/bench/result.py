"""What a comparison measured, on what machine, and what the raw figures come to.

Medians, ratios and goals are no part of it: whoever doubts one can work it out again from here.

Runs of one round lie close in time and share the machine's mood, so a ratio is made within each round, and the median
taken of those. A ratio of this module is always "how many times better": above 1 the first arm is ahead.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Final, Literal, Self

import psutil
from pydantic import Field, TypeAdapter, ValidationError

from mirror import __version__
from mirror.errors import ConfigError
from mirror.lab.embedded.jars import KAFKA_VERSION, java

# --- What a comparison measured, as values ----------------------------------------------------------------------------

#: Raised with every change that an older reader would get wrong.
FORMAT: Final = 1

Kind = Literal["mirror", "rival", "limit"]
#: Figures as they can be: a hostile file might hold others.
Amount = Annotated[float, Field(ge=0, le=1e15)]
Difference = Annotated[float, Field(ge=-1e15, le=1e15)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Axis = Literal["partitions", "tasks", "round_trip_ms", "loss", "replication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine; `load` is the one-minute average when the measurement began."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    system: str
    python: str
    java: str
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A source topic: what was asked for, and what lay in it. `batch_bytes` is what the producer aimed at before it
    compresses; `transactional` and `keyed` are shares from 0 to 1; `stored_bytes` are those of the batches.
    """

    name: str
    title: str
    codec: str
    batch_bytes: int
    record_bytes: int
    partitions: int
    transactional: float
    compacted: bool
    keyed: float
    seed: int
    records: int
    batches: int
    uncompressed_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to copy: `what` says it in one sentence, `settings` is the configuration as it ran."""

    name: str
    title: str
    kind: Kind
    what: str
    settings: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one copy took: seconds, CPU-seconds of its whole process tree, bytes; None where not known.

    `start_*` is from the start of the process to the first record on the target, `copy_*` from there to the last one,
    and `java_cpu_s` the JVMs' part of `cpu_s`. Of `copy_cpu_s`, `copy_java_cpu_s` were spent in JVMs and
    `copy_kernel_cpu_s` in the system's kernel, wherever; `copy_source_cpu_s` and `copy_target_cpu_s` are what the
    brokers took in the same time. `wire_*` are bytes of payload over TCP, into and out of the arm.
    """

    wall_s: Amount
    start_s: Amount
    copy_s: Amount
    cpu_s: Amount
    start_cpu_s: Amount
    copy_cpu_s: Amount
    java_cpu_s: Amount
    source_broker_cpu_s: Amount
    target_broker_cpu_s: Amount
    peak_rss_bytes: Count
    peak_pss_bytes: Count | None
    wire_in_bytes: Count | None
    wire_out_bytes: Count | None
    copy_kernel_cpu_s: Amount | None = None
    copy_java_cpu_s: Amount | None = None
    copy_source_cpu_s: Amount | None = None
    copy_target_cpu_s: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Measured):
    """One copy of a workload by an arm. `turn` is the place in its round, from 0. `checked` says in one sentence what
    `equal` was concluded from.
    """

    workload: str
    arm: str
    round: Count
    turn: Count
    records: Count
    equal: bool
    checked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Records at a fixed rate (a second), read on the target, in milliseconds since they were sent.

    `added_*` is less what a consumer of the source sees, record by record. `buckets` are (upper bound in ms, count).
    """

    arm: str
    rate: Amount
    round: Count
    records: Count
    p50_ms: Amount
    p90_ms: Amount
    p99_ms: Amount
    max_ms: Amount
    added_p50_ms: Difference
    added_p99_ms: Difference
    buckets: tuple[tuple[Amount, Count], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One copy with one thing changed: stored bytes a second and CPU-seconds per 10^9 stored bytes, while copying."""

    axis: Axis
    value: Amount
    arm: str
    round: Count
    bytes_per_s: Amount
    cpu_s_per_gb: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A whole comparison; `made` is ISO 8601 in UTC, `seconds` how long it took, `command` how to have it again.
    `failures` say what could not be measured; a copy that is not equal to its source is among the runs.
    """

    format: Literal[1] = FORMAT
    made: str
    seconds: float
    command: str
    environment: Environment
    versions: dict[str, str]
    workloads: tuple[Workload, ...]
    arms: tuple[Arm, ...]
    runs: tuple[Run, ...]
    latencies: tuple[Latency, ...] = ()
    scaling: tuple[Point, ...] = ()
    failures: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Indented, and the same text for the same figures."""
        return _ADAPTER.dump_json(self, indent=1).decode() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "the file") -> Result:
        """The reverse; `name` is for the error. Raises ConfigError for what no comparison of this format wrote."""
        try:
            return _ADAPTER.validate_json(text, extra="forbid")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole"
            raise ConfigError(
                f"{name}: not raw figures of `mirror bench` in format {FORMAT}: {where}: {first['msg']}"
            ) from None


_ADAPTER: Final = TypeAdapter(Result)


# --- What a comparison ran on -----------------------------------------------------------------------------------------

_LIBRARIES: Final = ("pyspark", "confluent-kafka", "kio", "crc32c", "numba", "numpy", "pyarrow")


def environment() -> Environment:
    """Now. Raises ConfigError where there is no Java."""
    said = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return Environment(
        cpu=_cpu(),
        cores=psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        system=_system(),
        python=platform.python_version(),
        java=said[0] if said else "unknown",
        load=round(os.getloadavg()[0], 2),
    )


def versions() -> dict[str, str]:
    """Name to version; the brokers and MirrorMaker 2 are of one release."""
    found = {"mirror": __version__, "kafka": KAFKA_VERSION}
    return found | {name: importlib.metadata.version(name) for name in _LIBRARIES}


def _cpu() -> str:
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        model = None
    return model[1] if model else platform.processor() or platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform(terse=True)


# --- What the raw figures of a comparison come to ---------------------------------------------------------------------

#: The normal way of the mirror, which goals are about; the one that must rewrite; a bare writer from memory.
MIRROR: Final = "mirror"
REWRITE: Final = "mirror-rewrite"
REPLAY: Final = "replay"
#: MirrorMaker 2 in all its settings: each figure is compared with that of the better one.
RIVALS: Final = ("mm2", "mm2-tuned")
GB: Final = 1e9
MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some values, the least and the most of them, and how many there are."""

    median: float
    least: float
    most: float
    many: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """None for no values."""
        kept = sorted(values)
        return cls(median(kept), kept[0], kept[-1], len(kept)) if kept else None

    @classmethod
    def of_ratios(cls, ratios: Iterable[float]) -> Self | None:
        """Of positive ratios: halfway between two lies their geometric mean, so that turning them round turns it."""
        kept = sorted(ratios)
        middle = cls.of(map(math.log, kept))
        if middle is None:
            return None
        among = min(max(math.exp(middle.median), kept[0]), kept[-1])
        return cls(among, kept[0], kept[-1], len(kept))

    def apart(self, other: Spread) -> bool:
        """Do the two ranges have nothing in common? Then the difference is more than the runs' own."""
        return self.least > other.most or other.least > self.most


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run: what it is called, its unit, and how it is worked out; None where it is not known."""

    key: str
    title: str
    unit: str
    less_is_better: bool
    value: Callable[[Run, Workload], float | None]

    def better(self, one: float, other: float) -> float | None:
        """How many times better `one` is; None where a figure is 0 and nothing can be said."""
        if one <= 0 or other <= 0:
            return None
        return other / one if self.less_is_better else one / other


def _per(amount: float, of: float) -> float | None:
    return amount / of if of > 0 else None


SPEED: Final = Metric(
    "speed", "speed while copying", "MB/s", False, lambda run, load: _per(load.stored_bytes / MB, run.copy_s)
)
RECORDS: Final = Metric(
    "records", "records while copying", "per CPU-s", False, lambda run, _: _per(run.records, run.copy_cpu_s)
)
MEMORY: Final = Metric("memory", "peak memory, resident", "MB", True, lambda run, _: run.peak_rss_bytes / MB)
SHARED: Final = Metric(
    "shared", "peak memory, shared pages once", "MB", True, lambda run, _: _known(run.peak_pss_bytes, MB)
)
START: Final = Metric("start", "to the first record", "s", True, lambda run, _: run.start_s)
START_CPU: Final = Metric("start_cpu", "CPU of the start", "CPU-s", True, lambda run, _: run.start_cpu_s)
WHOLE: Final = Metric("whole", "from start to end", "s", True, lambda run, _: run.wall_s)
WHOLE_CPU: Final = Metric("whole_cpu", "CPU from start to end", "CPU-s", True, lambda run, _: run.cpu_s)
JAVA_CPU: Final = Metric("java_cpu", "of it in JVMs", "CPU-s", True, lambda run, _: run.java_cpu_s)


def _while_copying(key: str, title: str, seconds: Callable[[Run], float | None]) -> Metric:
    """CPU-seconds of somebody for each GB that is copied."""

    def value(run: Run, load: Workload) -> float | None:
        found = seconds(run)
        return None if found is None else _per(found, load.stored_bytes / GB)

    return Metric(key, title, "CPU-s per GB", True, value)


#: Where the CPU of the machine goes while a copy runs.
CPU: Final = _while_copying("cpu", "CPU while copying", lambda run: run.copy_cpu_s)
KERNEL: Final = _while_copying("kernel", "of it in the kernel", lambda run: run.copy_kernel_cpu_s)
SOURCE: Final = _while_copying("source", "source brokers meanwhile", lambda run: run.copy_source_cpu_s)
TARGET: Final = _while_copying("target", "target brokers meanwhile", lambda run: run.copy_target_cpu_s)
WIRE_IN: Final = Metric("wire_in", "bytes received", "MB", True, lambda run, _: _known(run.wire_in_bytes, MB))
WIRE_OUT: Final = Metric("wire_out", "bytes sent", "MB", True, lambda run, _: _known(run.wire_out_bytes, MB))

#: All of them, in the order of tables.
METRICS: Final = (
    *(SPEED, CPU, KERNEL, SOURCE, TARGET, RECORDS, MEMORY, SHARED, START, START_CPU),
    *(WHOLE, WHOLE_CPU, JAVA_CPU, WIRE_IN, WIRE_OUT),
)


def _known(amount: int | None, unit: float) -> float | None:
    return None if amount is None else amount / unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Who has the machine's cores while a GB is copied, in core-seconds, by medians: the copy, of which `kernel` is the
    system's part for it; the brokers of both sides; and `whole` is all that the cores had.
    """

    copy: float
    kernel: float
    source: float
    target: float
    whole: float

    @property
    def used(self) -> float:
        """By anybody who was looked at."""
        return self.copy + self.source + self.target


class Summary:
    """Medians and ratios of one comparison, by workload and arm; each None where nothing was measured."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self._loads = {one.name: one for one in result.workloads}
        self._arms = {one.name: one for one in result.arms}
        self._runs: dict[tuple[str, str], dict[int, Run]] = {}
        for run in result.runs:
            if run.workload in self._loads:
                self._runs.setdefault((run.workload, run.arm), {})[run.round] = run

    @property
    def headline(self) -> Workload | None:
        """The workload that the goals are about: plain batches of about a megabyte with zstd, or else the first."""
        loads = [one for one in self.result.workloads if any(self.arms(one.name))]
        fitting = (
            one
            for one in loads
            if one.codec == "zstd" and one.batch_bytes >= MB / 2 and not one.transactional and not one.compacted
        )
        return next(fitting, loads[0] if loads else None)

    @property
    def rounds(self) -> int:
        """The most that any arm has."""
        return max(map(len, self._runs.values()), default=0)

    def arms(self, workload: str) -> Iterator[Arm]:
        """Those with runs of a workload, in the file's order."""
        return (one for one in self.result.arms if (workload, one.name) in self._runs)

    def runs(self, workload: str, arm: str) -> dict[int, Run]:
        """By round."""
        return self._runs.get((workload, arm), {})

    def values(self, metric: Metric, workload: str, arm: str) -> dict[int, float]:
        """The figure of each round that has one; that of a copy which is not equal to its source counts for nothing."""
        equal = ((turn, run) for turn, run in self.runs(workload, arm).items() if run.equal)
        found = ((turn, metric.value(run, self._loads[workload])) for turn, run in equal)
        return {turn: value for turn, value in found if value is not None}

    def spread(self, metric: Metric, workload: str, arm: str) -> Spread | None:
        """Over the rounds."""
        return Spread.of(self.values(metric, workload, arm).values())

    def times(self, metric: Metric, workload: str, arm: str, other: str) -> Spread | None:
        """How many times better an arm is than another, round by round."""
        ours, theirs = self.values(metric, workload, arm), self.values(metric, workload, other)
        ratios = (metric.better(ours[turn], theirs[turn]) for turn in ours.keys() & theirs.keys())
        return Spread.of_ratios(ratio for ratio in ratios if ratio is not None)

    def shares(self, workload: str, arm: str) -> Shares | None:
        """Who has the cores; None where a part of it is not known."""
        found = [self.spread(metric, workload, arm) for metric in (CPU, KERNEL, SOURCE, TARGET, SPEED)]
        if any(one is None or not one.median for one in found):
            return None
        ours, kernel, source, target, speed = (one.median for one in found if one is not None)
        whole = self.result.environment.cores * GB / MB / speed
        return Shares(copy=ours, kernel=min(kernel, ours), source=source, target=target, whole=whole)

    def rival(self, metric: Metric, workload: str) -> Arm | None:
        """MirrorMaker 2 in that of its settings which does better in this figure."""
        found = [(self.spread(metric, workload, name), name) for name in RIVALS if name in self._arms]
        known = [(one.median, name) for one, name in found if one is not None]
        if not known:
            return None
        best = min(known)[1] if metric.less_is_better else max(known, key=lambda pair: pair[0])[1]
        return self._arms[best]

    def against(self, metric: Metric, workload: str, arm: str) -> Spread | None:
        """How many times better an arm is than the better MirrorMaker 2."""
        other = self.rival(metric, workload)
        return None if other is None else self.times(metric, workload, arm, other.name)

    def unequal(self) -> Iterator[Run]:
        """Runs after which source and target did not hold the same."""
        return (run for runs in self._runs.values() for run in runs.values() if not run.equal)

    def latency(self, arm: str, rate: float, value: Callable[[Latency], float]) -> Spread | None:
        """A figure of the runs at a fixed rate."""
        return Spread.of(value(one) for one in self.result.latencies if (one.arm, one.rate) == (arm, rate))

    def rates(self) -> list[float]:
        """Records per second at which latency was measured."""
        return sorted({one.rate for one in self.result.latencies})

    def waiting(self, rate: float) -> list[Arm]:
        """Arms whose latency was measured at a rate."""
        seen = {one.arm for one in self.result.latencies if one.rate == rate}
        return [one for one in self.result.arms if one.name in seen]

    def curve(self, axis: str, arm: str, value: Callable[[Point], float]) -> dict[float, Spread]:
        """A figure of the runs with one thing changed, by that thing's value, in order."""
        found: dict[float, list[float]] = {}
        for point in self.result.scaling:
            if (point.axis, point.arm) == (axis, arm):
                found.setdefault(point.value, []).append(value(point))
        spreads = ((at, Spread.of(found[at])) for at in sorted(found))
        return {at: spread for at, spread in spreads if spread is not None}


def figure(value: float, counting: int = 3) -> str:
    """Three digits that count, or another number of them, with separators: 0.0152, 1.52, 80.1, 1,234, 643,000."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    rounded = float(f"{value:.{counting}g}")
    digits = max(0, counting - 1 - math.floor(math.log10(abs(rounded)) + 1e-9))
    return f"{rounded if abs(rounded) >= 10_000 else value:,.{digits}f}"


def brief(ratio: float) -> str:
    """A ratio for headlines: 53, 8.7, 0.97."""
    return figure(ratio, 2)


def ranged(spread: Spread | None) -> str:
    """A median with its range: "1.52 (1.40 to 1.66)", the median alone of one run, a dash where there is none."""
    if spread is None:
        return "–"
    if spread.many == 1:
        return figure(spread.median)
    return f"{figure(spread.median)} ({figure(spread.least)} to {figure(spread.most)})"
