"""A copy over a long link: batches of 8 KB to a target, or from a source, that is far away.

    python -m tests.bench.link [--far target|source] [--round-trip 80] [--partitions 1 16] [--megabytes 20] [--rounds 3]
        [--against COMMIT]

The mirror, and an earlier commit of it where one is named, beside MirrorMaker 2 as it comes, in turn: MB/s as stored.
The link delays (`mirror/lab/bench/delay.py`); it has no limit of its own, as a socket's buffers are on a real one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from mirror.lab.bench.arms import Arm, MirrorMaker
from mirror.lab.bench.copies import copied, removed, source_of
from mirror.lab.bench.play import far_cluster
from mirror.lab.bench.workloads import Shape
from mirror.lab.embedded import Spec
from mirror.lab.embedded.cluster import started

from .trickle import ROOT, Of, tree_of


def main() -> None:
    """Print a line a copy, and the medians."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--far", choices=("target", "source"), default="target")
    arguments.add_argument("--round-trip", type=float, default=80)
    arguments.add_argument("--partitions", type=int, nargs="+", default=[1, 16])
    arguments.add_argument("--megabytes", type=int, default=20)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--against", metavar="COMMIT")
    arguments.add_argument("--alone", action="store_true", help="without MirrorMaker 2")
    asked = arguments.parse_args()
    speeds: dict[tuple[int, str], list[float]] = {}
    with ExitStack() as stack:
        arms: dict[str, Arm] = {"mirror": Of(ROOT)}
        if not asked.alone:
            arms["mm2"] = MirrorMaker(tuned=False)
        if asked.against:
            arms["earlier"] = Of(stack.enter_context(tree_of(asked.against)))
        for arm in arms.values():
            arm.prepare()
        near = stack.enter_context(started(Spec(name="bench-near", jit="full")))
        far = stack.enter_context(far_cluster())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirror-bench-")))
        source, target = (near, far.cluster) if asked.far == "target" else (far.cluster, near)
        for partitions in asked.partitions:
            shape = Shape(
                name=f"far-{partitions}",
                title="8 KB batches, lz4",
                codec="lz4",
                batch_bytes=8_000,
                megabytes=asked.megabytes,
                partitions=partitions,
            )
            with far.away(0, folder):
                filled = source_of(source, shape)
            with far.away(asked.round_trip, folder):
                for round_ in range(asked.rounds):
                    for name, arm in arms.items():
                        done, _ = copied(arm, filled, target, f"{name}{round_}")
                        speed = filled.workload.stored_bytes / done.copy_s / 1e6
                        speeds.setdefault((partitions, name), []).append(speed)
                        found = {"partitions": partitions, "arm": name, "MB/s": round(speed, 2)}
                        print(json.dumps(found), flush=True)
            with far.away(0, folder):
                removed(source, filled.topic)
    for (partitions, name), every in speeds.items():
        print(json.dumps({"partitions": partitions, "arm": name, "median MB/s": round(statistics.median(every), 2)}))


if __name__ == "__main__":
    main()
