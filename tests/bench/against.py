"""This tree against an earlier commit: CPU of copying the same topics, taken turn and turn about in one run.

Both trees copy in a process of their own, without Spark, from the same source broker into fresh topics of the same
target. What counts is the CPU of the copying process, start-up left out: large batches give the cost per gigabyte,
small ones the cost per batch.

    python -m tests.bench.against COMMIT [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from mirror.bench.filling import fill
from mirror.bench.shapes import Shape
from mirror.embedded import Spec, start_many

ROOT = Path(__file__).resolve().parents[2]
#: Copies one topic twice: a small one first, so that imports and connections are made.
CHILD = """
import json, sys, time
from helpers import mirror_once
try:
    from mirror.heap import keep_what_is_freed
    keep_what_is_freed()  # as Spark's workers have it
except ImportError:
    pass
source, target, warm, topic, prefix, *more = sys.argv[1:]
settings = {"naming": {"prefix": prefix}} | json.loads(more[0] if more else "{}")
def copy(name):
    every = mirror_once(source, target, [name], **settings).values()
    assert not any(found.lag_records for found in every), every
    return every
copy(warm)
began, cpu = time.monotonic(), time.process_time()
every = copy(topic)
print(json.dumps({
    "cpu": time.process_time() - cpu,
    "wall": time.monotonic() - began,
    "batches": sum(found.batches for found in every),
    "bytes": sum(found.bytes for found in every),
}))
"""
WORKLOADS = {"1 MB zstd": ("zstd", 1_000_000, 800), "8 KB lz4": ("lz4", 8_000, 150)}


def copied(tree: Path, *arguments: str) -> dict[str, float]:
    """One copy by the code of `tree`: from and to which address, a topic to warm up with, the topic, a prefix, and
    more settings as JSON.
    """
    environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the copy by {tree} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirror-against-")))
        earlier = folder / "earlier"
        subprocess.run(["git", "worktree", "add", "--detach", str(earlier), options.commit], cwd=ROOT, check=True)
        stack.callback(subprocess.run, ["git", "worktree", "remove", "--force", str(earlier)], cwd=ROOT, check=False)
        source, target = (
            stack.enter_context(cluster) for cluster in start_many([Spec(name="source"), Spec(name="target")])
        )
        ends = source.bootstrap, target.bootstrap
        fill(ends[0], "warm", Shape(name="warm", megabytes=1, partitions=1, keyed=0))
        result = {}
        for number, (name, (codec, batch, megabytes)) in enumerate(WORKLOADS.items()):
            topic = f"load-{number}"
            shape = Shape(name=topic, codec=codec, batch_bytes=batch, megabytes=megabytes, partitions=1, keyed=0)
            fill(ends[0], topic, shape)
            runs: dict[str, list[dict[str, float]]] = {"earlier": [], "now": []}
            for turn in range(options.rounds):
                for tree, found in ((earlier, runs["earlier"]), (ROOT, runs["now"])):
                    prefix = f"{number}-{turn}-{'now' if tree is ROOT else 'earlier'}-"
                    found.append(copied(tree, *ends, "warm", topic, prefix))
            ratios = [now["cpu"] / before["cpu"] for before, now in zip(runs["earlier"], runs["now"], strict=True)]
            last = runs["now"][-1]
            cpu = {which: statistics.median(run["cpu"] for run in found) for which, found in runs.items()}
            result[name] = {
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
                "cpu_s_per_gb": {which: round(seconds / last["bytes"] * 1e9, 2) for which, seconds in cpu.items()},
                "cpu_us_per_batch": {which: round(seconds / last["batches"] * 1e6) for which, seconds in cpu.items()},
            }
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
