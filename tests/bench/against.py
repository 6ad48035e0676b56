"""This tree against an earlier commit: CPU of copying the same topics, taken turn and turn about in one run.

Both trees copy in a process of their own, without Spark, from the same source broker into fresh topics of the same
target. What counts is the CPU of the copying process beyond that for a topic of one megabyte, which is that of a start:
large batches give the cost per gigabyte, small ones the cost per batch. Besides, that of a start, and how long a whole
mirror takes, Spark included, from the start of its process to the first record on the target.

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
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mirror.lab.bench.workloads import Shape, fill
from mirror.lab.demo.producers import Ends
from mirror.lab.embedded import Spec, start_many

from .trickle import ROOT, tree_of

#: Copies two small topics first: one so that imports and connections are made, and one for what a start takes.
CHILD = """
import gc, importlib, json, sys, time
from helpers import mirror_once
for module in ("mirror.host", "mirror.heap"):  # the second in older trees
    try:
        importlib.import_module(module).keep_what_is_freed()  # as Spark's workers have it
        break
    except ImportError:
        pass
source, target, topic, prefix, *more = sys.argv[1:]
settings = {"naming": {"prefix": prefix}} | json.loads(more[0] if more else "{}")
def copy(name):
    every = mirror_once(source, target, [name], **settings).values()
    assert not any(found.lag_records for found in every), every
    return every
def spent(name):
    cpu = time.process_time()
    return copy(name), time.process_time() - cpu
copy("warm")
gc.freeze()  # likewise: what was imported is looked through no more
_, start = spent("small")
began = time.monotonic()
every, cpu = spent(topic)
print(json.dumps({
    "wall": time.monotonic() - began,
    "cpu": cpu - start,
    "start": start,
    "batches": sum(found.batches for found in every),
    "bytes": sum(found.bytes for found in every),
}))
"""
WORKLOADS = {"1 MB zstd": ("zstd", 1_000_000, 800), "8 KB lz4": ("lz4", 8_000, 150)}
#: Seconds between two ends at the target, and until a mirror must have copied a record.
TICK, TIMEOUT = 0.02, 120.0


def environment(tree: Path) -> dict[str, str]:
    """What makes Python, and Spark's, import the code of a tree."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tree, tree / "tests", tree / "tests" / "support")))}


def fill_small(source: str) -> None:
    """The topics that a child copies first."""
    for name in ("warm", "small"):
        fill(source, name, Shape(name=name, megabytes=1, partitions=1, keyed=0))


def copied(tree: Path, *arguments: str) -> dict[str, float]:
    """One copy by the code of `tree`: from and to which address, the topic, a prefix, and more settings as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the copy by {tree} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def started(tree: Path, folder: Path, source: str, target: str, topic: str, prefix: str) -> dict[str, float]:
    """Seconds from the start of a mirror's process to the first record on the target."""
    flow = prefix.rstrip("-")
    config = folder / f"{flow}.yaml"
    sides = ("source", "eu", source), ("target", "us", target)
    ends = {side: {"alias": alias, "bootstrap.servers": servers} for side, alias, servers in sides}
    config.write_text(json.dumps({"name": flow, "topics": {"include": [topic], "naming": {"prefix": prefix}}} | ends))
    log_ends, copy = Ends(target), {f"{prefix}{topic}": 1}
    began = time.monotonic()
    with (
        (folder / f"{flow}.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "mirror", "run", str(config)],
            cwd=tree,
            env=environment(tree),
            stdout=log,
            stderr=log,
        ) as mirror,
    ):
        while not sum(log_ends.of(copy, growing=True).values()):
            if mirror.poll() is not None or time.monotonic() - began > TIMEOUT:
                mirror.kill()
                raise SystemExit(f"the mirror of {tree} copied nothing:\n{(folder / log.name).read_text()[-2000:]}")
            time.sleep(TICK)
        seconds = time.monotonic() - began
        mirror.terminate()
    return {"seconds": seconds}


def by_turns(
    trees: dict[str, Path], rounds: int, what: str, measure: Callable[[Path, str], dict[str, float]]
) -> dict[str, list[dict[str, float]]]:
    """What was measured with each tree, in turns: of a copy with a prefix of its own."""
    runs: dict[str, list[dict[str, float]]] = {which: [] for which in trees}
    for turn in range(rounds):
        for which, found in runs.items():
            found.append(measure(trees[which], f"{what}-{turn}-{which}-"))
    return runs


def ratios(runs: dict[str, list[dict[str, float]]], figure: str) -> dict[str, Any]:
    """The figure now against earlier: the median, and each."""
    every = [now[figure] / before[figure] for before, now in zip(runs["earlier"], runs["now"], strict=True)]
    return {"ratio": round(statistics.median(every), 3), "ratios": [round(one, 3) for one in every]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirror-against-")))
        earlier = stack.enter_context(tree_of(options.commit))
        source, target = (
            stack.enter_context(cluster) for cluster in start_many([Spec(name="source"), Spec(name="target")])
        )
        ends = source.bootstrap, target.bootstrap
        fill_small(ends[0])
        result: dict[str, dict[str, Any]] = {}
        trees = {"earlier": earlier, "now": ROOT}
        for number, (name, (codec, batch, megabytes)) in enumerate(WORKLOADS.items()):
            topic = f"load-{number}"
            shape = Shape(name=topic, codec=codec, batch_bytes=batch, megabytes=megabytes, partitions=1, keyed=0)
            fill(ends[0], topic, shape)

            def copy(tree: Path, prefix: str, topic: str = topic) -> dict[str, float]:
                return copied(tree, *ends, topic, prefix)

            runs = by_turns(trees, options.rounds, topic, copy)
            last = runs["now"][-1]
            cpu = {which: statistics.median(run["cpu"] for run in found) for which, found in runs.items()}
            result[name] = ratios(runs, "cpu") | {
                "start": ratios(runs, "start"),
                "cpu_s_per_gb": {which: round(seconds / last["bytes"] * 1e9, 2) for which, seconds in cpu.items()},
                "cpu_us_per_batch": {which: round(seconds / last["batches"] * 1e6) for which, seconds in cpu.items()},
            }
        runs = by_turns(
            trees, options.rounds, "start", lambda tree, prefix: started(tree, folder, *ends, "warm", prefix)
        )
        seconds = {which: round(statistics.median(run["seconds"] for run in found), 2) for which, found in runs.items()}
        result["start to the first record"] = ratios(runs, "seconds") | {"seconds": seconds}
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
