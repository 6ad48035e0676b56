"""The long link of `mirror bench`, for an earlier commit, too: 8 KB batches to a target, or from a source, far away.

    python -m tests.bench.link [--far target|source] [--round-trip 80] [--partitions 1 16] [--megabytes 20] [--rounds 3]
        [--against COMMIT]

The mirror, and an earlier commit of it where one is named, beside MirrorMaker 2 as it comes, in turn: MB/s as stored.
A line each, and the medians.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from rich.console import Console

from mirror.lab.bench.arms import ARMS
from mirror.lab.bench.play import Plan, play
from mirror.lab.bench.report import BenchNarrator
from mirror.lab.bench.summary import SPEED, Summary
from mirror.lab.bench.workloads import SHAPES

from .against import mirrors


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--far", choices=("target", "source"), default="target")
    parser.add_argument("--round-trip", type=float, default=80)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--alone", action="store_true", help="without MirrorMaker 2")
    options = parser.parse_args()
    small = replace(SHAPES["8KB-lz4"], megabytes=options.megabytes, far=options.far, round_trip_ms=options.round_trip)
    shapes = [replace(small, name=f"far-{count}", partitions=count) for count in options.partitions]
    with mirrors(options.against) as arms:
        every = [*arms, *([] if options.alone else [ARMS["mm2"]])]
        plan = Plan(shapes=shapes, arms=every, rounds=options.rounds)
        summary = Summary(play(plan, BenchNarrator(Console(stderr=True, highlight=False))).result)
    for shape in shapes:
        for arm in summary.arms(shape.name):
            spread = summary.spread(SPEED, shape.name, arm.name)
            speed = round(spread.median, 2) if spread else None
            print(json.dumps({"partitions": shape.partitions, "arm": arm.name, "median MB/s": speed}))


if __name__ == "__main__":
    main()
