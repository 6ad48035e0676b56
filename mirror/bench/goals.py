"""The goals of the mirror beside MirrorMaker 2: which a comparison meets, and what explains those it misses (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from mirror.bench.result import Arm, Latency, Workload
from mirror.bench.summary import (
    CPU,
    MEMORY,
    MIRROR,
    RECORDS,
    REPLAY,
    REWRITE,
    RIVALS,
    SPEED,
    START,
    Metric,
    Spread,
    Summary,
    figure,
    ranged,
)

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
    "memory": "Spark is there however little is copied: a JVM, and a Python process for the driver and each lane. "
    "Resident memory counts the pages that these share once for each of them.",
    "rewrite": "By a profile of a lane that rewrites 64 KB batches, of which compaction left half of the records: the "
    "codec has a fifth of its time, taking records apart and together again and noting where they went two fifths, "
    "and requests for the small batches that are left three tenths. With batches of 1 MB the codec has seven to nine "
    "tenths, decompressing and compressing; MirrorMaker 2 pays that as well.",
    "latency": "A lane rests while one epoch ends and the next is planned, 0.1 to 0.2 s once a minute; records that "
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
    told = f"{len(ours) - len(wrong)} of {len(ours)} copies" + (f"; not equal: {named}" if wrong else "")
    return _goal("equal", "every copy of the mirror equals its source", told, not wrong if ours else None)


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
    told = f"1/{ranged(ratio)}" if metric.less_is_better else f"{ranged(ratio)} times"
    limit = summary.spread(metric, load.name, REPLAY) if metric == SPEED else None
    most = f"; from memory the target takes {ranged(limit)}" if limit else ""
    return _goal(
        key,
        aim,
        f"{told}: {ours} against {theirs} {metric.unit} of {rival.title}, {load.title}{most}",
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
    told = f"{ranged(share)}: {ours} of {limit} MB/s, {load.title}"
    return _goal("limit", aim, told, share.median >= 0.95, _profile(summary, load, MIRROR))


def _latencies(summary: Summary) -> Iterator[Goal]:
    """At each rate: no slower than the quicker MirrorMaker 2, neither in the middle nor at the end."""
    seen = False
    for rate in summary.rates():
        arms = {arm.name: arm for arm in summary.waiting(rate)}
        rivals = [arms[name] for name in RIVALS if name in arms]
        if MIRROR not in arms or not rivals:
            continue
        seen = True
        told, met = [], True
        for name, value in (("p50", _added_p50), ("p99", _added_p99)):
            ours = summary.latency(MIRROR, rate, value)
            best, rival = _quickest(summary, rivals, rate, value)
            assert ours is not None, "the arm is among those with latencies"
            told.append(f"{name} {ranged(ours)} against {ranged(best)} ms of {rival.title}")
            met = met and ours.median <= best.median
        yield _goal(
            "latency",
            f"at {figure(rate)} records/s no more latency added than by MirrorMaker 2, p50 and p99",
            "; ".join(told),
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
