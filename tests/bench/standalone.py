"""The same copy in local mode and on a Spark standalone cluster with two workers: speed and CPU, in one run, taken turn
and turn about.

Both read one source topic and write to topics of their own on one target. Speed and CPU per GB are those of the time
from the first record on the target to the last one; CPU is that of every process of the mirror and, on the cluster, of
the master, the workers, their executors and the tasks. All share one machine here: what a cluster's own machines would
add is not measured, only what its processes cost.

    python -m tests.bench.standalone [--megabytes 2000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from mirror.lab.bench.arms import MIRROR
from mirror.lab.bench.copies import copied, source_of
from mirror.lab.bench.result import Measured
from mirror.lab.bench.workloads import Shape
from mirror.lab.embedded import Spec, start_many

from .rekey import line

WORKERS: Final = 2
PARTITIONS: Final = 4
TASKS: Final = 2
_LOOPBACK: Final = "127.0.0.1"


def spark_of(master: str) -> dict[str, Any]:
    """A section `spark` with one task for each worker."""
    conf = {
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.cores.max": TASKS,
        "spark.executor.cores": 1,
        "spark.executor.memory": "512m",
    }
    return {"master": master, "tasks": TASKS, "conf": conf}


def main() -> None:
    """Measure and print a summary and, last, the raw figures as JSON."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders that pytest puts there
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    from sparkcluster import spark_cluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000, help="uncompressed size of the topic")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
    found: dict[str, list[Measured]] = {"local": [], "standalone": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        specs = [Spec(name="bench-source", jit="full"), Spec(name="bench-target", jit="full")]
        source, target = (stack.enter_context(cluster) for cluster in start_many(specs))
        spark = stack.enter_context(spark_cluster(folder, WORKERS))
        shapes = [
            Shape(name="warm", megabytes=options.megabytes // 10),
            Shape(name="load", megabytes=options.megabytes),
        ]
        warm, load = (source_of(source, replace(shape, partitions=PARTITIONS, keyed=0)) for shape in shapes)
        copied(MIRROR, warm, target, "warm-up")  # brokers compile what they are about to do
        ways = {
            "local": replace(MIRROR, spark={"tasks": TASKS}),
            "standalone": replace(MIRROR, spark=spark_of(spark.address), beside=spark.pids),
        }
        for number in range(options.rounds):
            for way, arm in ways.items():
                copy = copied(arm, load, target, f"{way}-{number}")
                found[way].append(copy)
                print(f"{way} {copy}", file=sys.stderr)
    size = load.workload.stored_bytes
    rows: dict[str, tuple[Callable[[Measured], float], str]] = {
        "MB/s of batches": (lambda copy: size / 1e6 / copy.copy_s, ".0f"),
        "CPU-s per GB of batches": (lambda copy: copy.copy_cpu_s / size * 1e9, ".2f"),
        "s from the start to the first record": (lambda copy: copy.start_s, ".1f"),
        "s from the start to the exit": (lambda copy: copy.wall_s, ".1f"),
        "CPU-s from the start to the exit": (lambda copy: copy.cpu_s, ".1f"),
        "MB resident at most, shared pages once": (lambda copy: (copy.peak_pss_bytes or 0) / 1e6, ".0f"),
    }
    print(f"{size / 1e6:.0f} MB of batches, {TASKS} tasks, {options.rounds} rounds")
    for way, copies in found.items():
        print(way)
        for name, (figure, form) in rows.items():
            print(line(name, [figure(copy) for copy in copies], form))
    pairs = zip(found["local"], found["standalone"], strict=True)
    ratios = [local.copy_s / cluster.copy_s for local, cluster in pairs]
    print("standalone beside local")
    print(line("speed", ratios, ".2f"))
    print(json.dumps({way: [asdict(copy) for copy in copies] for way, copies in found.items()}))


if __name__ == "__main__":
    main()
