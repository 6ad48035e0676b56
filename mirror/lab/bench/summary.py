"""Medians and ratios of a comparison, its goals, and where others are cheaper.

Runs of one round lie close in time and share the machine's mood, so a ratio is made within each round, and the median
taken of those. A ratio here is always "how many times better": above 1 the first arm is ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final, Generic, Self, TypeVar

from mirror.lab.bench.result import ComparisonResult, Latency, MeasuredArm, MeasuredRun, Point, Workload

MIRROR: Final = "mirror"
REWRITE: Final = "mirror-rewrite"
#: MirrorMaker 2 in all its settings: each figure is compared with that of the better one.
RIVALS: Final = ("mm2", "mm2-tuned")
GB: Final = 1e9
MB: Final = 1e6
#: A shorter copy says little about speed and CPU.
LEAST_COPY_S: Final = 10.0

Measurement = TypeVar("Measurement")
#: Records a second, and partitions.
Pace = tuple[float, int]


@dataclass(frozen=True, slots=True)
class Spread:
    """Some values."""

    median: float
    least: float
    most: float
    many: int  # how many values there are

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """Return None for no values."""
        kept = sorted(values)
        return cls(median(kept), kept[0], kept[-1], len(kept)) if kept else None

    @classmethod
    def of_ratios(cls, ratios: Iterable[float]) -> Self | None:
        """Take the geometric mean between two positive ratios, so that turning them round turns the median."""
        kept = sorted(ratios)
        middle = cls.of(map(math.log, kept))
        if middle is None:
            return None
        return cls(min(max(math.exp(middle.median), kept[0]), kept[-1]), kept[0], kept[-1], len(kept))

    def apart(self, other: Spread) -> bool:
        """Return True if the ranges have nothing in common: the difference is more than the runs' own."""
        return self.least > other.most or other.least > self.most


@dataclass(frozen=True, slots=True)
class Metric(Generic[Measurement]):
    """A figure of a measurement."""

    key: str
    title: str
    unit: str
    value: Callable[[Measurement], float | None]  # None where the figure is not known
    less_is_better: bool = True

    def better(self, figure: float, other: float) -> float | None:
        """Return how many times better `figure` is; None where one is 0 and nothing can be said."""
        if figure <= 0 or other <= 0:
            return None
        return other / figure if self.less_is_better else figure / other


@dataclass(frozen=True, slots=True)
class Copy:
    """A run with its workload."""

    run: MeasuredRun
    load: Workload


def _ratio(amount: float | None, of: float) -> float | None:
    return amount / of if amount is not None and of > 0 else None


def _per_gb(key: str, title: str, seconds: Callable[[MeasuredRun], float | None]) -> Metric[Copy]:
    return Metric(key, title, "CPU-s per GB", lambda copy: _ratio(seconds(copy.run), copy.load.stored_bytes / GB))


def _amount(
    key: str, title: str, unit: str, value: Callable[[MeasuredRun], float | None], of: float = 1
) -> Metric[Copy]:
    return Metric(key, title, unit, lambda copy: _ratio(value(copy.run), of))


SPEED: Final[Metric[Copy]] = Metric(
    "speed", "speed", "MB/s", lambda copy: _ratio(copy.load.stored_bytes / MB, copy.run.copy_s), less_is_better=False
)
CPU: Final = _per_gb("cpu", "CPU of the copy", lambda run: run.copy_cpu_s)
KERNEL: Final = _per_gb("kernel", "of it in the kernel", lambda run: run.copy_kernel_cpu_s)
SOURCE: Final = _per_gb("source", "CPU of the source's brokers", lambda run: run.copy_source_cpu_s)
TARGET: Final = _per_gb("target", "CPU of the target's brokers", lambda run: run.copy_target_cpu_s)
RECORDS: Final[Metric[Copy]] = Metric(
    "records", "records", "per CPU-s", lambda copy: _ratio(copy.run.records, copy.run.copy_cpu_s), less_is_better=False
)
MEMORY: Final = _amount("memory", "peak memory", "MB", lambda run: run.peak_rss_bytes, MB)
SHARED: Final = _amount("shared", "peak memory, shared pages once", "MB", lambda run: run.peak_pss_bytes, MB)
START: Final = _amount("start", "time to the first record", "s", lambda run: run.start_s)
START_CPU: Final = _amount("start_cpu", "CPU of the start", "CPU-s", lambda run: run.start_cpu_s)
METRICS: Final = (
    *(SPEED, CPU, KERNEL, SOURCE, TARGET, RECORDS, MEMORY, SHARED, START, START_CPU),
    _amount("copying", "from the first record to the last", "s", lambda run: run.copy_s),
    _amount("whole", "from start to end", "s", lambda run: run.wall_s),
    _amount("whole_cpu", "CPU from start to end", "CPU-s", lambda run: run.cpu_s),
    _amount("java_cpu", "of it in JVMs", "CPU-s", lambda run: run.java_cpu_s),
)
CORES: Final[Metric[Latency]] = Metric("cores", "CPU of the copy", "cores", lambda found: found.cores)
ADDED_P50: Final[Metric[Latency]] = Metric("p50", "added latency, p50", "ms", lambda found: found.added_p50_ms)
ADDED_P99: Final[Metric[Latency]] = Metric("p99", "added latency, p99", "ms", lambda found: found.added_p99_ms)
TRICKLE: Final[tuple[Metric[Latency], ...]] = (
    CORES,
    Metric("source_cores", "CPU of the source's brokers", "cores", lambda found: found.source_cores),
    Metric("target_cores", "CPU of the target's brokers", "cores", lambda found: found.target_cores),
    ADDED_P50,
    ADDED_P99,
    Metric("max", "latency, max", "ms", lambda found: found.max_ms),
)


class Summary:
    """Medians and ratios by workload and arm. A copy that is not equal to its source has no figures."""

    def __init__(self, result: ComparisonResult) -> None:
        self.result = result
        self._loads = {load.name: load for load in result.workloads}
        self._arms = {arm.name: arm for arm in result.arms}
        self._runs: dict[tuple[str, str], dict[int, MeasuredRun]] = {}
        for run in result.runs:
            if run.workload in self._loads:
                self._runs.setdefault((run.workload, run.arm), {})[run.round] = run

    @property
    def headline(self) -> Workload | None:
        """The workload that the goals are about: plain batches of about a megabyte with zstd, or else the first."""
        loads = [load for load in self.result.workloads if any(self.arms(load.name))]
        plain = (load for load in loads if not load.transactional and not load.compacted and not load.far)
        fitting = (load for load in plain if load.codec == "zstd" and load.batch_bytes >= MB / 2)
        return next(fitting, loads[0] if loads else None)

    @property
    def rounds(self) -> int:
        """The most that any arm has."""
        rounds = [run.round for run in self.result.runs] + [found.round for found in self.result.latencies]
        return max(rounds, default=0)

    @property
    def paces(self) -> list[Pace]:
        """The trickles that were measured."""
        return sorted({(found.rate, found.partitions) for found in self.result.latencies})

    def arms(self, workload: str) -> Iterator[MeasuredArm]:
        """Those with runs of a workload, in the file's order."""
        return (arm for arm in self.result.arms if (workload, arm.name) in self._runs)

    def live_arms(self, pace: Pace) -> list[MeasuredArm]:
        """Those that copied a trickle, in the file's order."""
        names = {found.arm for found in self.result.latencies if (found.rate, found.partitions) == pace}
        return [arm for arm in self.result.arms if arm.name in names]

    def runs(self, workload: str, arm: str) -> dict[int, MeasuredRun]:
        """Return the runs by round."""
        return self._runs.get((workload, arm), {})

    def values(self, metric: Metric[Copy], workload: str, arm: str) -> dict[int, float]:
        """The figure of each round that has one."""
        equal = ((round_, run) for round_, run in self.runs(workload, arm).items() if run.equal)
        found = ((round_, metric.value(Copy(run, self._loads[workload]))) for round_, run in equal)
        return {round_: value for round_, value in found if value is not None}

    def spread(self, metric: Metric[Copy], workload: str, arm: str) -> Spread | None:
        """Over the rounds."""
        return Spread.of(self.values(metric, workload, arm).values())

    def times(self, metric: Metric[Copy], workload: str, arm: str, other: str) -> Spread | None:
        """Tell how many times better an arm is than another, round by round."""
        return _times(metric, self.values(metric, workload, arm), self.values(metric, workload, other))

    def late(self, metric: Metric[Latency], pace: Pace, arm: str) -> dict[int, float]:
        """A figure of an arm that copied a trickle, by round."""
        runs = (run for run in self.result.latencies if (run.rate, run.partitions, run.arm) == (*pace, arm))
        return {run.round: value for run in runs if (value := metric.value(run)) is not None}

    def rival(self, metric: Metric[Copy], workload: str) -> MeasuredArm | None:
        """MirrorMaker 2 in that of its settings which does better in this figure."""
        found = [(self.spread(metric, workload, name), name) for name in RIVALS if name in self._arms]
        known = [(spread.median, name) for spread, name in found if spread is not None]
        if not known:
            return None
        best = min(known)[1] if metric.less_is_better else max(known, key=lambda pair: pair[0])[1]
        return self._arms[best]

    def against(self, metric: Metric[Copy], workload: str, arm: str) -> Spread | None:
        """Tell how many times better an arm is than the better MirrorMaker 2."""
        other = self.rival(metric, workload)
        return None if other is None else self.times(metric, workload, arm, other.name)

    def unequal(self) -> Iterator[MeasuredRun]:
        """Runs after which source and target did not hold the same."""
        return (run for runs in self._runs.values() for run in runs.values() if not run.equal)

    def curve(self, axis: str, arm: str, value: Callable[[Point], float]) -> dict[float, Spread]:
        """A figure of the runs with one thing changed, by that thing's value, in order."""
        points = [point for point in self.result.scaling if (point.axis, point.arm) == (axis, arm)]
        values = sorted({point.value for point in points})
        every = ((place, Spread.of(value(point) for point in points if point.value == place)) for place in values)
        return {place: spread for place, spread in every if spread is not None}


def _times(metric: Metric[Measurement], values: dict[int, float], others: dict[int, float]) -> Spread | None:
    ratios = (metric.better(values[round_], others[round_]) for round_ in values.keys() & others.keys())
    return Spread.of_ratios(ratio for ratio in ratios if ratio is not None)


# --- Figures as text --------------------------------------------------------------------------------------------------


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


def pace_title(pace: Pace) -> str:
    """A trickle: "4,000 records/s over 100 partitions"."""
    return f"{figure(pace[0])} records/s over {pace[1]} partitions"


# --- Where others are cheaper -----------------------------------------------------------------------------------------


def cheaper(summary: Summary) -> Iterator[str]:
    """A sentence for each figure in which another way to copy does better than the mirror: by the medians of what was
    measured, and of all others the best.
    """
    for metric in (CPU, SPEED, SOURCE, TARGET, MEMORY, START, START_CPU):
        cases = []
        for load in summary.result.workloads:
            arms = [(arm, summary.values(metric, load.name, arm.name)) for arm in summary.arms(load.name)]
            cases.append((load.title, arms))
        yield from _sentence(metric, cases)
    for measure in TRICKLE:
        paces = ((pace, summary.live_arms(pace)) for pace in summary.paces)
        cases = [
            (pace_title(pace), [(arm, summary.late(measure, pace, arm.name)) for arm in arms]) for pace, arms in paces
        ]
        yield from _sentence(measure, cases)


def _sentence(
    metric: Metric[Measurement], cases: list[tuple[str, list[tuple[MeasuredArm, dict[int, float]]]]]
) -> Iterator[str]:
    parts = []
    for title, arms in cases:
        own = next((values for arm, values in arms if arm.kind == "mirror" and values), None)
        rivals = [(median(values.values()), arm, values) for arm, values in arms if arm.kind == "rival" and values]
        if own is None or not rivals:
            continue
        best, arm, values = (min if metric.less_is_better else max)(rivals, key=lambda rival: rival[0])
        middle = median(own.values())
        if (middle > best) == metric.less_is_better and figure(middle) != figure(best):
            times = _times(metric, own, values)
            unsure = "" if times is None or times.most < 1 else ", not in every round"
            parts.append(f"{title}: {arm.title} {figure(best)}, mirror {figure(middle)}{unsure}")
    if parts:
        yield f"{metric.title[0].upper()}{metric.title[1:]}, {metric.unit}. {'; '.join(parts)}."


def short_copies(summary: Summary) -> str:
    """A sentence that names the workloads whose copies are too short to be sure of; empty where there is none."""
    runs = [run for run in summary.result.runs if run.copy_s < LEAST_COPY_S]
    short = [
        f"{load.title} ({figure(min(run.copy_s for run in found))} s)"
        for load in summary.result.workloads
        if (found := [run for run in runs if run.workload == load.name])
    ]
    shown = f"Speed and CPU are uncertain of copies shorter than {LEAST_COPY_S:.0f} s: {'; '.join(short)}."
    return shown if short else ""


# --- Goals ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Goal:
    """Says what the mirror is to reach beside the better MirrorMaker 2."""

    aim: str
    measured: str  # what came of it, or "not measured"
    met: bool | None  # None where it was not measured


#: Batches of this many bytes and less are small.
_SMALL: Final = 16_384
_START_S: Final = 15.0
_AIMS: Final[tuple[tuple[str, Metric[Copy], float, str, Callable[[Workload], bool]], ...]] = (
    ("CPU per GB at most 1/50 of MirrorMaker 2's", CPU, 50, MIRROR, lambda load: load.batch_bytes > MB / 2),
    ("at least 7 times as fast as MirrorMaker 2", SPEED, 7, MIRROR, lambda load: load.batch_bytes > MB / 2),
    (
        "small batches at least 3 times as fast as MirrorMaker 2",
        SPEED,
        3,
        MIRROR,
        lambda load: load.batch_bytes <= _SMALL and not load.far,
    ),
    ("resident memory at most half of MirrorMaker 2's", MEMORY, 2, MIRROR, lambda load: load.batch_bytes > MB / 2),
    (
        "rewriting at least 8 times MirrorMaker 2's records per CPU-second",
        RECORDS,
        8,
        REWRITE,
        lambda load: load.compacted,
    ),
)


def goals(summary: Summary) -> list[Goal]:
    """All of them, in a fixed order; the first one is equality."""
    own = [run for run in summary.result.runs if run.arm.startswith(MIRROR)]
    equal = sum(run.equal for run in own)
    found = [
        Goal(
            "every copy of the mirror equals its source",
            f"{equal} of {len(own)} copies",
            equal == len(own) if own else None,
        )
    ]
    for aim, metric, times, arm, fits in _AIMS:
        loads = [load for load in summary.result.workloads if fits(load) and summary.against(metric, load.name, arm)]
        ratio = summary.against(metric, loads[0].name, arm) if loads else None
        if ratio is None:
            found.append(Goal(aim, "not measured", None))
            continue
        spread, rival = summary.spread(metric, loads[0].name, arm), summary.rival(metric, loads[0].name)
        assert rival is not None, "there is a ratio"
        other = summary.spread(metric, loads[0].name, rival.name)
        text = f"{ranged(ratio)} times: {ranged(spread)} and {ranged(other)} {metric.unit} of {rival.title}"
        found.append(Goal(aim, f"{text}, {loads[0].title}", ratio.median >= times))
    for pace in summary.paces:
        for metric_ in (CORES, ADDED_P50, ADDED_P99):
            values = {
                arm.name: Spread.of(summary.late(metric_, pace, arm.name).values()) for arm in summary.live_arms(pace)
            }
            spread, rivals = values.get(MIRROR), [values[name] for name in RIVALS if values.get(name)]
            if spread and rivals:
                best = min((rival for rival in rivals if rival), key=lambda rival: rival.median)
                text = f"{ranged(spread)} and {ranged(best)} {metric_.unit}"
                found.append(
                    Goal(
                        f"{metric_.title} at {pace_title(pace)} no more than MirrorMaker 2's",
                        text,
                        spread.median <= best.median,
                    )
                )
    load = summary.headline
    took = summary.spread(START, load.name, MIRROR) if load else None
    found.append(
        Goal(
            f"the first record on the target within {_START_S:.0f} s",
            f"{ranged(took)} s" if took else "not measured",
            took.median <= _START_S if took else None,
        )
    )
    return found
