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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mirror.lab.bench.arms import Arm, of_tree
from mirror.lab.bench.copies import Source, copied, source_of
from mirror.lab.bench.workloads import Shape, fill
from mirror.lab.embedded import Cluster, Spec, start_many

ROOT = Path(__file__).resolve().parents[2]
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
source, target, topic, prefix, settings = sys.argv[1:]
settings = {"naming": {"prefix": prefix}} | json.loads(settings)
def spent(name):
    cpu = time.process_time()
    every = mirror_once(source, target, [name], **settings).values()
    assert not any(found.lag_records for found in every), every
    return every, time.process_time() - cpu
spent("warm")
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
Amounts = dict[str, float]


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Check out a commit for the moment."""
    with tempfile.TemporaryDirectory(prefix="mirror-bench-") as folder:
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, commit], cwd=ROOT, check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


@contextmanager
def mirrors(commit: str | None) -> Iterator[list[Arm]]:
    """Yield the mirror of this tree, and that of a commit where one is named."""
    with ExitStack() as stack:
        earlier = [of_tree(stack.enter_context(tree_of(commit)), "earlier")] if commit else []
        yield [of_tree(ROOT, "mirror"), *earlier]


def fill_small(source: Cluster) -> Source:
    """Make the topics that a child copies first, and return one of them."""
    small, _ = (source_of(source, Shape(name=name, megabytes=1, partitions=1, keyed=0)) for name in ("small", "warm"))
    return small


def copied_by_child(tree: Path, ends: tuple[str, str], topic: str, prefix: str, **settings: Any) -> Amounts:
    """Copy a topic with the code of `tree`, without Spark."""
    command = [sys.executable, "-c", CHILD, *ends, topic, prefix, json.dumps(settings)]
    path = os.pathsep.join(map(str, (tree, tree / "tests", tree / "tests" / "support")))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the copy by {tree} failed:\n{done.stderr[-2000:]}")
    found: Amounts = json.loads(done.stdout.splitlines()[-1])
    return found


def ratios(turns: list[tuple[Amounts, Amounts]], figure: str) -> dict[str, Any]:
    """The figure of the second against the first: the median, and each."""
    every = [after[figure] / before[figure] for before, after in turns]
    return {"ratio": round(statistics.median(every), 3), "ratios": [round(ratio, 3) for ratio in every]}


def medians(turns: list[tuple[Amounts, Amounts]], value: Callable[[Amounts], float], digits: int) -> Amounts:
    """A figure of both sides."""
    sides = zip(("earlier", "now"), zip(*turns, strict=True), strict=True)
    return {side: round(statistics.median(map(value, found)), digits) for side, found in sides}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with ExitStack() as stack:
        earlier = stack.enter_context(tree_of(options.commit))
        source, target = map(stack.enter_context, start_many([Spec(name="source"), Spec(name="target")]))
        ends = source.bootstrap, target.bootstrap
        small = fill_small(source)
        result: dict[str, dict[str, Any]] = {}
        for number, (name, (codec, batch, megabytes)) in enumerate(WORKLOADS.items()):
            topic = f"load-{number}"
            shape = Shape(name=topic, codec=codec, batch_bytes=batch, megabytes=megabytes, partitions=1, keyed=0)
            fill(ends[0], topic, shape)
            turns = [
                (
                    copied_by_child(earlier, ends, topic, f"{topic}-{turn}-earlier-"),
                    copied_by_child(ROOT, ends, topic, f"{topic}-{turn}-now-"),
                )
                for turn in range(options.rounds)
            ]
            result[name] = ratios(turns, "cpu") | {
                "start": ratios(turns, "start"),
                "cpu_s_per_gb": medians(turns, lambda found: found["cpu"] / found["bytes"] * 1e9, 2),
                "cpu_us_per_batch": medians(turns, lambda found: found["cpu"] / found["batches"] * 1e6, 0),
            }
        arms = of_tree(earlier, "earlier"), of_tree(ROOT, "mirror")
        starts = [
            tuple({"seconds": copied(arm, small, target, f"start-{turn}-{arm.name}").start_s} for arm in arms)
            for turn in range(options.rounds)
        ]
        turns = [(before, after) for before, after in starts]
        seconds = medians(turns, lambda found: found["seconds"], 2)
        result["start to the first record"] = ratios(turns, "seconds") | {"seconds": seconds}
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
