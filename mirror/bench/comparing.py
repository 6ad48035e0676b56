"""Two comparisons of the same workloads: what became better or worse, and what of it is noise (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

from mirror.bench.result import Arm, Latency, Workload
from mirror.bench.summary import CPU, MEMORY, RECORDS, SPEED, START, Metric, Spread, Summary, figure
from mirror.errors import ConfigError

#: Figures that are compared of each arm and workload.
COMPARED: Final[tuple[Metric, ...]] = (SPEED, CPU, RECORDS, MEMORY, START)
_ADDED: Final[tuple[tuple[str, Callable[[Latency], float]], ...]] = (
    ("added latency, p50", lambda one: one.added_p50_ms),
    ("added latency, p99", lambda one: one.added_p99_ms),
)
#: What a workload's topic came out as, and its title, may differ; what was asked for may not.
_FREE: Final = {"title", "batches", "stored_bytes"}

Verdict = Literal["better", "worse", "noise", "one round"]


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both; `ratio` is new to old of the medians, `least` and `most` are what the ranges allow.

    It is `better` or `worse` where the ranges have nothing in common, `noise` where they have, and `one round` where a
    side has one value and no range.
    """

    where: str
    arm: Arm
    what: str
    unit: str
    old: Spread
    new: Spread
    ratio: float
    least: float
    most: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes, and what a reader should know of the two before believing any."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def worse(self) -> tuple[Change, ...]:
        """What of the mirror's own became worse beyond noise."""
        return tuple(one for one in self.changes if one.arm.kind == "mirror" and one.verdict == "worse")


def compare(old: Summary, new: Summary) -> Comparison:
    """What both have. Raises ConfigError where workloads of one name are not the same, or none is in both."""
    return Comparison(tuple(_changes(old, new, _common(old, new))), tuple(_notes(old, new)))


def _changes(old: Summary, new: Summary, loads: Sequence[Workload]) -> Iterator[Change]:
    for load in loads:
        for arm in new.arms(load.name):
            for metric in COMPARED:
                both = (one.spread(metric, load.name, arm.name) for one in (old, new))
                yield from _change(load.title, arm, (metric.title, metric.unit), metric.less_is_better, *both)
    for rate in new.rates():
        for arm in new.waiting(rate):
            for what, value in _ADDED:
                both = (one.latency(arm.name, rate, value) for one in (old, new))
                yield from _change(f"{figure(rate)} records/s", arm, (what, "ms"), True, *both)


def _change(
    where: str, arm: Arm, named: tuple[str, str], less_is_better: bool, old: Spread | None, new: Spread | None
) -> Iterator[Change]:
    """None where a side lacks the figure, or has one of 0 or below, of which there is no ratio."""
    if old is None or new is None or min(old.least, new.least) <= 0:
        return
    verdict: Verdict = "noise"
    if min(old.many, new.many) == 1:
        verdict = "one round"
    elif old.apart(new):
        verdict = "better" if (new.median < old.median) == less_is_better else "worse"
    ratio, least, most = new.median / old.median, new.least / old.most, new.most / old.least
    yield Change(where, arm, *named, old, new, ratio, least, most, verdict)


def _common(old: Summary, new: Summary) -> list[Workload]:
    before = {load.name: load for load in old.result.workloads}
    common = [load for load in new.result.workloads if load.name in before]
    if not common:
        names = (", ".join(load.name for load in one.result.workloads) or "none" for one in (old, new))
        raise ConfigError("no workload is in both files: the old one has {}, the new one {}".format(*names))
    wrong = [
        f"{load.name} had {field.name} {was}, and now {now}"
        for load in common
        for field in fields(Workload)
        if field.name not in _FREE
        and (was := getattr(before[load.name], field.name)) != (now := getattr(load, field.name))
    ]
    if wrong:
        raise ConfigError(f"not the same workloads, so their figures say nothing about each other: {'; '.join(wrong)}")
    return common


def _notes(old: Summary, new: Summary) -> Iterator[str]:
    """What is in one file alone, and what else but the code may have made a difference."""
    for side, one, other in (("old", old, new), ("new", new, old)):
        for what, names, others in (
            ("workload", one.result.workloads, other.result.workloads),
            ("arm", one.result.arms, other.result.arms),
        ):
            alone = sorted({item.name for item in names} - {item.name for item in others})
            if alone:
                yield f"in the {side} file alone: {what} {', '.join(alone)}"
    was, now = old.result.environment, new.result.environment
    for name in ("cpu", "cores", "memory_bytes", "kernel", "java"):
        if getattr(was, name) != getattr(now, name):
            yield f"another machine or system: {name} was {getattr(was, name)}, and now is {getattr(now, name)}"
    for name in sorted(old.result.versions.keys() | new.result.versions.keys()):
        before, after = (one.result.versions.get(name, "none") for one in (old, new))
        if before != after:
            yield f"version of {name}: {before}, now {after}"
    for run in new.unequal():
        yield f"not equal to its source in the new file: {run.arm}, {run.workload}, round {run.round}"
