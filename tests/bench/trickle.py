"""A live trickle, as most clusters have it most of the day: many partitions, and a record or two a batch.

    python -m tests.bench.trickle [--rate 4000] [--partitions 100] [--seconds 40] [--rounds 3] [--against COMMIT]

The mirror, and an earlier commit of it where one is named, beside MirrorMaker 2 as it comes, in turn. For each the
cores that its processes take, those of the target's broker, and how much later records come than to a consumer of the
source.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mirror.lab.bench import latency
from mirror.lab.bench.arms import Arm, Job, Mirror, MirrorMaker
from mirror.lab.bench.measuring import BrokerCpu
from mirror.lab.demo.processes import Bound, Tree
from mirror.lab.embedded import Cluster, Spec, start_many

ROOT = Path(__file__).resolve().parents[2]


class Of(Mirror):
    """The mirror of another tree."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree

    def start(self, job: Job) -> Bound:
        """Begin with this tree's code."""
        with patch.dict("os.environ", PYTHONPATH=str(self._tree), PYTHONSAFEPATH="1"):  # not the folder of now
            return super().start(job)


class Cores:
    """Cores that an arm and the target's broker take between the first and the last call."""

    def __init__(self, target: Cluster) -> None:
        self._target = target
        self._tree: Tree | None = None

    def __call__(self, process: Bound) -> None:
        if self._tree is None:
            self._tree, self._brokers, self._began = Tree(process.pid), BrokerCpu(self._target), time.monotonic()
            self._before = self._tree.sample()
        self._spent, self._seconds = self._tree.sample() - self._before, time.monotonic() - self._began
        self._target_spent = self._brokers.used

    @property
    def figures(self) -> dict[str, float]:
        """Of both."""
        return {"cores": self._spent / self._seconds, "target_cores": self._target_spent / self._seconds}


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """A checkout of a commit, for the moment."""
    with tempfile.TemporaryDirectory(prefix="mirror-bench-") as folder:
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, commit], cwd=ROOT, check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


def main() -> None:
    """Print a line a round, and the medians."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--rate", type=float, default=4000)
    arguments.add_argument("--partitions", type=int, default=100)
    arguments.add_argument("--seconds", type=float, default=40)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--against", metavar="COMMIT")
    asked = arguments.parse_args()
    pace = latency.Pace(asked.rate, asked.seconds, asked.partitions, "lz4")
    runs: dict[str, list[dict[str, Any]]] = {}
    with ExitStack() as stack:
        arms: dict[str, Arm] = {"mirror": Of(ROOT), "mm2": MirrorMaker(tuned=False)}
        if asked.against:
            arms["earlier"] = Of(stack.enter_context(tree_of(asked.against)))
        for arm in arms.values():
            arm.prepare()
        for round_ in range(asked.rounds):
            for name, arm in arms.items():
                with ExitStack() as clusters:
                    source, target = map(clusters.enter_context, start_many([Spec(name="a"), Spec(name="b")]))
                    cores = Cores(target)
                    found = latency.measured(arm, source, target, f"{name}{round_}", pace, round_, cores)
                figures = cores.figures | {"p50": found.added_p50_ms, "p99": found.added_p99_ms, "max": found.max_ms}
                runs.setdefault(name, []).append(figures)
                print(json.dumps({"arm": name} | {key: round(value, 3) for key, value in figures.items()}), flush=True)
    for name, rounds in runs.items():
        medians = {key: round(statistics.median(figures[key] for figures in rounds), 3) for key in rounds[0]}
        print(json.dumps({"median": name} | medians))


if __name__ == "__main__":
    main()
