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
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from mirror.lab.bench.arms import MIRROR
from mirror.lab.bench.play import Plan, play
from mirror.lab.bench.report import BenchNarrator
from mirror.lab.bench.summary import METRICS, Summary, ranged
from mirror.lab.bench.workloads import Shape

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
    """Measure and print the median and the range of each figure."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders that pytest puts there
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    from sparkcluster import spark_cluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000, help="uncompressed size of the topic")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
    shape = Shape(name="load", megabytes=options.megabytes, partitions=PARTITIONS, keyed=0)
    with tempfile.TemporaryDirectory() as folder, spark_cluster(Path(folder), WORKERS) as spark:
        arms = [
            replace(MIRROR, name="local", title="local", spark={"tasks": TASKS}),
            replace(MIRROR, name="standalone", spark=spark_of(spark.address), beside=spark.pids),
        ]
        plan = Plan(shapes=[shape], arms=arms, rounds=options.rounds)
        summary = Summary(play(plan, BenchNarrator(Console(stderr=True, highlight=False))).result)
    for metric in METRICS:
        for arm in arms:
            print(f"{arm.name:12}{metric.title}, {metric.unit}: {ranged(summary.spread(metric, shape.name, arm.name))}")


if __name__ == "__main__":
    main()
