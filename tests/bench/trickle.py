"""The trickle of `mirror bench`, for an earlier commit, too, and any size of it.

    python -m tests.bench.trickle [--rate 4000] [--partitions 100] [--seconds 40] [--rounds 3] [--against COMMIT]

The mirror, and an earlier commit of it where one is named, beside MirrorMaker 2 as it comes, in turn. For each the
cores that its processes take, those of both sides' brokers, and how much later records come than to a consumer of the
source. A line each, and the medians.
"""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from mirror.lab.bench.arms import ARMS
from mirror.lab.bench.latency import Pace
from mirror.lab.bench.play import Plan, play
from mirror.lab.bench.report import BenchNarrator
from mirror.lab.bench.summary import TRICKLE, Spread, Summary

from .against import mirrors


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=4000)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", metavar="COMMIT")
    options = parser.parse_args()
    pace = Pace(options.rate, options.seconds, options.partitions)
    with mirrors(options.against) as arms:
        plan = Plan(arms=(), rounds=options.rounds, paces=[pace], live_arms=[*arms, ARMS["mm2"]])
        summary = Summary(play(plan, BenchNarrator(Console(stderr=True, highlight=False))).result)
    for arm in summary.live_arms((options.rate, options.partitions)):
        late = {metric.key: summary.late(metric, (options.rate, options.partitions), arm.name) for metric in TRICKLE}
        medians = {key: round(spread.median, 3) for key, found in late.items() if (spread := Spread.of(found.values()))}
        print(json.dumps({"median": arm.name} | medians))


if __name__ == "__main__":
    main()
