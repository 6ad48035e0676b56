"""Made-up comparisons for tests of what is made of them: no figure in here was measured."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from mirror.lab.bench.result import Arm, Environment, Kind, Latency, Point, Result, Run, Workload

#: Arm -> (kind, title, MB/s, CPU-s per GB, MB resident, seconds to the first record).
ARMS: dict[str, tuple[Kind, str, float, float, float, float]] = {
    "mirror": ("mirror", "mirror", 205, 1.5, 610, 8.4),
    "mirror-rewrite": ("mirror", "mirror, rewriting", 60, 15.4, 820, 9.1),
    "mm2": ("rival", "MirrorMaker 2, as it comes", 9.0, 84, 1370, 14.2),
    "mm2-tuned": ("rival", "MirrorMaker 2, tuned", 23, 80, 2100, 14.9),
    "loop": ("rival", "consume-produce loop", 40, 30, 120, 1.2),
    "spark-kafka": ("rival", "Spark's Kafka source and sink", 18, 95, 1900, 16.0),
    "replay": ("limit", "replay from memory", 212, 1.0, 80, 0.3),
}
#: Workload -> (title, codec, batch bytes, how much slower and dearer it is, transactional share).
LOADS: dict[str, tuple[str, str, int, float, float]] = {
    "1MB-zstd": ("1 MB batches, zstd", "zstd", 1_000_000, 1.0, 0.0),
    "8KB-lz4": ("8 KB batches, lz4", "lz4", 8_192, 2.6, 0.0),
    "1MB-none": ("1 MB batches, not compressed", "none", 1_000_000, 0.9, 0.0),
    "tx-zstd": ("1 MB batches, zstd, half of them in transactions", "zstd", 1_000_000, 1.3, 0.5),
}


def workload(name: str) -> Workload:
    """One of LOADS."""
    title, codec, batch_bytes, _, transactional = LOADS[name]
    return Workload(
        name=name,
        title=title,
        codec=codec,
        batch_bytes=batch_bytes,
        record_bytes=400,
        partitions=4,
        transactional=transactional,
        compacted=False,
        keyed=0.5,
        seed=7,
        records=2_500_000,
        batches=1000,
        uncompressed_bytes=1_000_000_000,
        stored_bytes=250_000_000,
    )


def arm(name: str) -> Arm:
    """One of ARMS."""
    kind, title, *_ = ARMS[name]
    return Arm(name=name, title=title, kind=kind, what=f"What {name} does.", settings=f"name: {name}\nrounds: many\n")


def run(load: str, name: str, number: int, **changes: object) -> Run:
    """A run near the figures of the tables above, within some per cent, by the names and the number alone."""
    dice = random.Random(f"{load} {name} {number}")
    _, _, speed, cpu, memory, start = ARMS[name]
    slower = LOADS[load][3] if name != "mirror-rewrite" else 1.0
    stored, records = workload(load).stored_bytes, workload(load).records
    copy_s = stored / 1e6 / speed * slower * dice.uniform(0.94, 1.07)
    copy_cpu_s = stored / 1e9 * cpu * slower * dice.uniform(0.96, 1.05)
    values: dict[str, object] = {
        "workload": load,
        "arm": name,
        "round": number,
        "turn": list(ARMS).index(name),
        "wall_s": start + copy_s + 1.0,
        "start_s": start * dice.uniform(0.97, 1.06),
        "copy_s": copy_s,
        "cpu_s": start + copy_cpu_s,
        "start_cpu_s": start,
        "copy_cpu_s": copy_cpu_s,
        "java_cpu_s": 0.0 if name in ("loop", "replay") else start / 2,
        "source_broker_cpu_s": 0.4,
        "target_broker_cpu_s": 2.2,
        "peak_rss_bytes": int(memory * 1e6 * dice.uniform(0.99, 1.02)),
        "peak_pss_bytes": int(memory * 0.8e6),
        "wire_in_bytes": None if name == "replay" else stored + 70_000,
        "wire_out_bytes": stored + 90_000,
        "copy_kernel_cpu_s": copy_cpu_s * 0.4,
        "copy_java_cpu_s": 0.0 if name in ("loop", "replay") else copy_cpu_s * 0.1,
        "copy_source_cpu_s": 0.1,
        "copy_target_cpu_s": 1.1,
        "records": records,
        "equal": True,
        "checked": "Every record of both sides by key, value, headers and timestamp.",
    }
    return Run(**(values | changes))  # type: ignore[arg-type]  # each value is of its field's type


def latency(name: str, rate: float, number: int) -> Latency:
    """A long-tailed distribution, worse for rivals."""
    dice = random.Random(f"{name} {rate} {number}")
    middle = {"mirror": 3.0, "loop": 6.0}.get(name, 9.0)
    seen = sorted(dice.lognormvariate(math.log(middle), 0.6) for _ in range(3000))
    bounds = [0.5 * 1.3**step for step in range(30)]
    buckets = tuple(
        (upper, sum(lower < one <= upper for one in seen))
        for lower, upper in zip([0.0, *bounds], [*bounds, math.inf][: len(bounds) + 1], strict=False)
    )
    p50, p90, p99 = (seen[int(share * len(seen))] for share in (0.5, 0.9, 0.99))
    return Latency(
        arm=name,
        rate=rate,
        round=number,
        records=len(seen),
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        max_ms=seen[-1],
        added_p50_ms=p50 - 1,
        added_p99_ms=p99 - 1.5,
        buckets=buckets,
    )


def points(rounds: int) -> list[Point]:
    """Speed that rises with partitions and falls with the round trip."""
    made = []
    for number in range(rounds):
        for name, top in (("mirror", 205.0), ("mm2-tuned", 23.0)):
            for partitions in (1, 2, 4, 8, 16):
                speed = top * (1 - 0.5**partitions) * (1 + 0.02 * number)
                made.append(_point("partitions", partitions, name, number, speed))
            made.extend(
                _point("round_trip_ms", round_trip, name, number, top / (1 + round_trip / 150))
                for round_trip in (0, 20, 100, 200)
            )
    return made


def _point(axis: str, value: float, name: str, number: int, speed: float) -> Point:
    return Point(
        axis=axis,  # type: ignore[arg-type]  # one of the two above
        value=value,
        arm=name,
        round=number,
        bytes_per_s=speed * 1e6,
        cpu_s_per_gb=ARMS[name][3] * 1.1,
    )


def result(
    loads: Sequence[str] = tuple(LOADS),
    arms: Sequence[str] = tuple(ARMS),
    rounds: int = 3,
    *,
    more: bool = True,
    seconds: float = 1500.0,
) -> Result:
    """A whole comparison; with `more`, latencies and scaling, too."""
    return Result(
        made="2026-01-31T12:34:56Z",
        seconds=seconds,
        command=f"mirror bench run --rounds {rounds}",
        environment=Environment(
            cpu="Made-up CPU at 3 GHz",
            cores=2,
            memory_bytes=24 << 30,
            kernel="6.1.0",
            system="Debian GNU/Linux 12",
            python="3.11.2",
            java="17.0.1",
            load=0.14,
        ),
        versions={"mirror": "0.1.0", "kafka": "4.3.0", "pyspark": "4.3.0"},
        workloads=tuple(map(workload, loads)),
        arms=tuple(map(arm, arms)),
        runs=tuple(
            run(load, name, number)
            for load in loads
            for number in range(rounds)
            for name in arms
            if name != "mirror-rewrite" or load == "1MB-zstd"
        ),
        latencies=tuple(
            latency(name, rate, number)
            for name in ("mirror", "mm2", "loop")
            if name in arms and more
            for rate in (100.0, 1000.0)
            for number in range(rounds)
        ),
        scaling=tuple(points(rounds)) if more else (),
    )
