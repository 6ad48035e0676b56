"""The goals of the mirror, and two comparisons of the same workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

from mirror.errors import ConfigError
from mirror.lab.bench.result import (
    CPU,
    MEMORY,
    MIRROR,
    RECORDS,
    REPLAY,
    REWRITE,
    RIVALS,
    SPEED,
    START,
    Arm,
    Latency,
    Metric,
    Spread,
    Summary,
    Workload,
    brief,
    figure,
    ranged,
)
from mirror.rendering import count, size

# --- The goals of the mirror beside MirrorMaker 2 ---------------------------------------------------------------------

#: Batches of this many bytes and less are small: what is done for each of them is then most of the work.
SMALL: Final = 16_384
START_S: Final = 15.0

#: What was found out about a goal by profiles and other measurements (docs/benchmarks.md); shown where it is missed.
_WHY: Final = {
    "cpu": "All processes count, Spark's JVM and Python workers included. What is done for a batch, whatever it holds, "
    "is a checksum over the bytes as they came, another over those with the new header, and moving them through two "
    "sockets.",
    "speed": "On one machine the two brokers and the copy share the cores: a target's broker decompresses every batch "
    "once to validate it, and that is the largest consumer of CPU in a copy.",
    "limit": "The replay reads from its own memory: it needs no source broker and no reader, which share the cores "
    "with the target's broker here.",
    "small": "Batches are kept as they are, so the target's broker has as many to take as the source's had; who "
    "consumes records writes larger ones. A request takes one batch of each partition, so fewer partitions mean more "
    "requests. `topics.coalesce_bytes` lets the mirror join small batches, too, which costs a rewrite.",
    "memory": "Spark is there however little is copied: a JVM, and a Python process for the driver and each task. "
    "Resident memory counts the pages that these share once for each of them.",
    "rewrite": "By a profile of a task that rewrites 64 KB batches, of which compaction left half of the records: the "
    "codec has a fifth of its time, taking records apart and together again and noting where they went two fifths, "
    "and requests for the small batches that are left three tenths. With batches of 1 MB the codec has seven to nine "
    "tenths, decompressing and compressing; MirrorMaker 2 pays that as well.",
    "latency": "A task pauses while one epoch ends and the next is planned, 0.1 to 0.2 s once a minute; records that "
    "come in that time wait.",
    "start": "A start is mostly that of Spark: its JVM, then its Python workers.",
}


@dataclass(frozen=True, slots=True)
class Goal:
    """`met` is None where it was not measured; `why` explains a goal that is missed, and is empty otherwise."""

    name: str
    aim: str
    measured: str
    met: bool | None
    why: str


def goals(summary: Summary) -> list[Goal]:
    """All of them, in a fixed order."""
    main = summary.headline
    small = next(
        (
            load
            for load in summary.result.workloads
            if load.batch_bytes <= SMALL and not load.transactional and not load.compacted
        ),
        None,
    )
    changed = next(
        (load for load in (main, *summary.result.workloads) if load and summary.runs(load.name, REWRITE)), None
    )
    return [
        _equal(summary),
        _against(summary, "cpu", CPU, main, 50, "CPU per GB at most 1/50 of MirrorMaker 2's"),
        _against(summary, "speed", SPEED, main, 7, "at least 7 times as fast as MirrorMaker 2"),
        _limit(summary, main),
        _against(summary, "small", SPEED, small, 3, "small batches at least 3 times as fast as MirrorMaker 2"),
        _against(summary, "memory", MEMORY, main, 2, "resident memory at most half of MirrorMaker 2's"),
        _against(
            summary,
            "rewrite",
            RECORDS,
            changed,
            8,
            "rewriting at least 8 times MirrorMaker 2's records per CPU-second",
            arm=REWRITE,
        ),
        *_latencies(summary),
        _start(summary, main),
    ]


def _goal(key: str, aim: str, measured: str, met: bool | None, profile: str = "") -> Goal:
    return Goal(key, aim, measured, met, "" if met is not False else _WHY.get(key, "") + profile)


def _equal(summary: Summary) -> Goal:
    """Speed is worth nothing where something is missing."""
    ours = [run for run in summary.result.runs if run.arm.startswith(MIRROR)]
    wrong = [run for run in ours if not run.equal]
    named = "; ".join(f"{run.arm}, {run.workload}, round {run.round}: {run.checked}" for run in wrong)
    text = f"{len(ours) - len(wrong)} of {len(ours)} copies" + (f"; not equal: {named}" if wrong else "")
    return _goal("equal", "every copy of the mirror equals its source", text, not wrong if ours else None)


def _against(
    summary: Summary, key: str, metric: Metric, load: Workload | None, times: float, aim: str, arm: str = MIRROR
) -> Goal:
    """A figure that must be so many times better than that of the better MirrorMaker 2."""
    rival = summary.rival(metric, load.name) if load else None
    ratio = summary.against(metric, load.name, arm) if load else None
    if load is None or rival is None or ratio is None:
        return _goal(key, aim, "not measured", None)
    ours, theirs = (ranged(summary.spread(metric, load.name, one)) for one in (arm, rival.name))
    profile = "" if metric == MEMORY else _profile(summary, load, arm)
    text = f"1/{ranged(ratio)}" if metric.less_is_better else f"{ranged(ratio)} times"
    limit = summary.spread(metric, load.name, REPLAY) if metric == SPEED else None
    most = f"; from memory the target takes {ranged(limit)}" if limit else ""
    return _goal(
        key,
        aim,
        f"{text}: {ours} against {theirs} {metric.unit} of {rival.title}, {load.title}{most}",
        ratio.median >= times,
        profile,
    )


def _profile(summary: Summary, load: Workload, arm: str) -> str:
    """Who had the cores while this was measured; empty where it is not known."""
    found = summary.shares(load.name, arm)
    if found is None:
        return ""
    return (
        f" In this run, for each GB: the copy {figure(found.copy)} CPU-s, {found.kernel / found.copy:.0%} of them in"
        f" the system's kernel, which moves the bytes; the source's brokers {figure(found.source)}, the target's"
        f" {figure(found.target)}: together {figure(found.used)} of the {figure(found.whole)} that"
        f" {summary.result.environment.cores} cores had."
    )


def _limit(summary: Summary, load: Workload | None) -> Goal:
    """What a target takes at most is what a bare writer gets into it."""
    aim = "at least 0.95 of the speed at which the target takes the same batches from memory"
    share = summary.times(SPEED, load.name, MIRROR, REPLAY) if load else None
    if load is None or share is None:
        return _goal("limit", aim, "not measured", None)
    ours, limit = (ranged(summary.spread(SPEED, load.name, one)) for one in (MIRROR, REPLAY))
    text = f"{ranged(share)}: {ours} of {limit} MB/s, {load.title}"
    return _goal("limit", aim, text, share.median >= 0.95, _profile(summary, load, MIRROR))


def _latencies(summary: Summary) -> Iterator[Goal]:
    """At each rate: no slower than the quicker MirrorMaker 2, neither in the middle nor at the end."""
    seen = False
    for rate in summary.rates():
        arms = {arm.name: arm for arm in summary.waiting(rate)}
        rivals = [arms[name] for name in RIVALS if name in arms]
        if MIRROR not in arms or not rivals:
            continue
        seen = True
        parts, met = [], True
        for name, value in (("p50", _added_p50), ("p99", _added_p99)):
            ours = summary.latency(MIRROR, rate, value)
            best, rival = _quickest(summary, rivals, rate, value)
            assert ours is not None, "the arm is among those with latencies"
            parts.append(f"{name} {ranged(ours)} against {ranged(best)} ms of {rival.title}")
            met = met and ours.median <= best.median
        yield _goal(
            "latency",
            f"at {figure(rate)} records/s no more latency added than by MirrorMaker 2, p50 and p99",
            "; ".join(parts),
            met,
        )
    if not seen:
        yield _goal("latency", "no more latency added than by MirrorMaker 2, p50 and p99", "not measured", None)


def _added_p50(one: Latency) -> float:
    return one.added_p50_ms


def _added_p99(one: Latency) -> float:
    return one.added_p99_ms


def _quickest(
    summary: Summary, rivals: list[Arm], rate: float, value: Callable[[Latency], float]
) -> tuple[Spread, Arm]:
    spreads = ((summary.latency(arm.name, rate, value), arm) for arm in rivals)
    return min(((spread, arm) for spread, arm in spreads if spread), key=lambda pair: pair[0].median)


def _start(summary: Summary, load: Workload | None) -> Goal:
    """From the start of the process; a pager waits for it."""
    aim = f"the first record on the target within {START_S:.0f} s"
    took = summary.spread(START, load.name, MIRROR) if load else None
    if load is None or took is None:
        return _goal("start", aim, "not measured", None)
    return _goal("start", aim, f"{ranged(took)} s, {load.title}", took.median <= START_S)


# --- Two comparisons of the same workloads ----------------------------------------------------------------------------

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


# --- The headline table of a comparison as Markdown -------------------------------------------------------------------

#: Around the table in a document; the file's name says which figures it is of.
BEGIN: Final = "<!-- mirror bench table docs/bench/latest.json -->"
END: Final = "<!-- end of the table -->"
_HEAD: Final = ("copying", "by", "MB/s", "CPU-s per GB", "memory, MB")


def table(summary: Summary) -> str:
    """A row for each workload and arm with medians, and how many times better than MirrorMaker 2 ours are; then a line
    about how and where.
    """
    rows = [_HEAD, ("---", "---", *["--:"] * 3)]
    for load in summary.result.workloads:
        for place, arm in enumerate(summary.arms(load.name)):
            figures = (_cell(summary, metric, load, arm) for metric in (SPEED, CPU, MEMORY))
            rows.append((_plain(load.title) if not place else "", _plain(arm.title), *figures))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", _below(summary), ""])


def _cell(summary: Summary, metric: Metric, load: Workload, arm: Arm) -> str:
    spread = summary.spread(metric, load.name, arm.name)
    if spread is None:
        return "–"
    wrong = "" if all(run.equal for run in summary.runs(load.name, arm.name).values()) else " (not equal)"
    times = summary.against(metric, load.name, arm.name) if arm.kind == "mirror" else None
    return f"{figure(spread.median)}{f' (**{brief(times.median)}×**)' if times else ''}{wrong}"


def _below(summary: Summary) -> str:
    machine, made = summary.result.environment, summary.result.made.partition("T")[0]
    return (
        f"Medians of {count(summary.rounds, 'round')}, {made}, {_plain(machine.cpu)}, {count(machine.cores, 'core')}, "
        f"{size(machine.memory_bytes)}, brokers on the same machine. × is how many times better than MirrorMaker 2, "
        "in that of its settings which does better there."
    )


def _plain(text: str) -> str:
    """No name of somebody else's becomes a column or markup."""
    return "".join(f"\\{char}" if char in r"\`*_{}[]<>|#" else char for char in " ".join(text.split()))
