"""The CPU that a task's own code takes for a batch at a trickle: no sockets, no Spark, no reports.

Fetch answers name some of a hundred partitions, with one batch of one record each; every batch is acknowledged. With
`--against COMMIT` a checkout of that is measured in turn with this tree; it must have this module.

    python -m tests.bench.relay [--rounds 5] [--against COMMIT]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path

from mirror.kafka.cluster import TopicPartition

from .against import ROOT, tree_of

PARTITIONS = [TopicPartition(f"topic-{number // 10}", number % 10) for number in range(100)]
ANSWERS, IN_AN_ANSWER, SECTION = 1500, 20, bytes(500)


def measured() -> float:
    """Return microseconds of CPU a batch."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    from unconnected import fetch_frame, relay

    offsets, turns, frames = dict.fromkeys(PARTITIONS, 0), cycle(PARTITIONS), []
    for _ in range(ANSWERS):
        named = {partition: offsets[partition] for partition in islice(turns, IN_AN_ANSWER)}
        offsets |= {partition: offset + 1 for partition, offset in named.items()}
        frames.append(fetch_frame(named, SECTION))
    gc.collect()
    gc.freeze()  # as Spark's workers do
    began = time.process_time()
    batches = asyncio.run(relay(PARTITIONS, frames))
    assert batches == ANSWERS * IN_AN_ANSWER, batches
    return (time.process_time() - began) / batches * 1e6


def main() -> None:
    """Print the least of the rounds of each tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(measured())
        return
    with ExitStack() as stack:
        trees = {"this tree": ROOT}
        if asked.against:
            trees[asked.against] = stack.enter_context(tree_of(asked.against))
        found: dict[str, list[float]] = {name: [] for name in trees}
        for _ in range(asked.rounds):
            for name, tree in trees.items():
                command = [sys.executable, "-m", "tests.bench.relay", "--one"]
                done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
                found[name].append(float(done.stdout))
        for name, figures in found.items():
            print(f"{name}: {min(figures):.1f} us a batch (up to {max(figures):.1f})")


if __name__ == "__main__":
    main()
