"""`mirror bench`: real copies of little data, of which one is not equal, and the command from its start to an
interruption.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from waiting import DEADLINE_S

from mirror.errors import ExitCode, UnequalCopy
from mirror.lab.bench.arms import ARMS, Arm, Job
from mirror.lab.bench.copies import attempted, copied, run_of, source_of
from mirror.lab.bench.play import Measuring
from mirror.lab.bench.result import ComparisonResult
from mirror.lab.bench.workloads import Shape
from mirror.lab.embedded import Cluster

TINY = Shape(name="tiny", megabytes=1, batch_bytes=50_000, partitions=2)


def wrong(arm: Arm, job: Job) -> Sequence[str]:
    """Copy a topic of the same name from another cluster: the same records, written at another time."""
    return ARMS["loop"].command(arm, replace(job, source=job.target))


WRONG = replace(ARMS["loop"], command=wrong)


def children() -> set[int]:
    """The processes that this one started."""
    return {one.pid for one in psutil.Process().children(recursive=True)}


def test_copies_are_measured_and_compared(own_source: Cluster, own_target: Cluster, topic_name: str) -> None:
    before = children()
    source = source_of(own_source, TINY, topic_name)
    assert source.content.bytes == source.workload.uncompressed_bytes > source.workload.stored_bytes
    for name in ("loop", "mirror"):
        copy = attempted(ARMS[name], source, own_target, f"{topic_name[-8:]}-{name}")
        run = run_of(ARMS[name], source, copy, round_=1, turn=0)
        assert run.equal, run.checked
        assert run.records == source.workload.records == source.content.records
        assert 0 < run.start_s < run.wall_s
        assert 0 < run.copy_s <= run.wall_s - run.start_s
        assert 0 <= run.start_cpu_s <= run.cpu_s  # a start of 0.1 s may have no tick of the clock of CPU times
        assert run.java_cpu_s > 0 if name == "mirror" else run.java_cpu_s == 0
        assert run.peak_rss_bytes > (10_000_000 if name == "mirror" else 0)  # one of a second may be seen but once
    assert source_of(own_target, TINY, topic_name).content.bytes == source.content.bytes
    with pytest.raises(UnequalCopy, match=r"tiny: loop: its copy is not equal .* 0: timestamps differ"):
        copied(WRONG, source, own_target, f"{topic_name[-8:]}-wrong")
    reported = SimpleNamespace(failed=lambda _: None)
    plan: Any = None
    measuring = Measuring(plan, cast("Any", reported), own_source, own_target)
    measuring.copy(WRONG, source, 1, 0)
    assert [(one.equal, one.arm) for one in measuring.runs] == [(False, "loop")]
    assert measuring.unequal
    assert not measuring.failures
    assert children() == before


def command(raw: Path, *arms: str, rounds: int) -> list[str]:
    """A comparison of little data."""
    words = ["--workload", "1MB-zstd", *(word for arm in arms for word in ("--arm", arm)), "--megabytes", "5"]
    words += ["--rounds", str(rounds), "--no-scaling", "--no-latency", "--json", str(raw)]
    return [sys.executable, "-m", "mirror", "bench", *words]


@pytest.mark.proves("mirror bench", "mirror bench run")
def test_the_command_measures_each_way_to_copy_and_compares_the_copies(tmp_path: Path) -> None:
    raw, arms = tmp_path / "raw.json", ("loop", "mirror", "mirror-rekey")
    done = subprocess.run(command(raw, *arms, rounds=1), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    runs = {run.arm: run for run in ComparisonResult.from_json(raw.read_bytes(), str(raw)).runs}
    assert set(runs) == set(arms)
    assert all(run.equal for run in runs.values())
    assert "each once" in runs["mirror-rekey"].checked


def test_an_interrupted_comparison_leaves_nothing_but_its_figures(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    with subprocess.Popen(command(raw, "loop", rounds=99), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("round 1" in line for line in process.stderr)
        tree = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, output = process.communicate()
    assert process.returncode == ExitCode.BUG
    assert "interrupted: what was not measured" in output
    assert ComparisonResult.from_json(raw.read_text()).runs
    _, alive = psutil.wait_procs(tree, timeout=DEADLINE_S)
    assert not alive
