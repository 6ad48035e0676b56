"""The headline table of a comparison as Markdown: what stands in docs/benchmarks.md between two comments (pure)."""

from __future__ import annotations

from typing import Final

from mirror.bench.result import Arm, Workload
from mirror.bench.summary import CPU, MEMORY, SPEED, Metric, Summary, brief, figure
from mirror.commands.tables import count, size

#: Around the table in a document; the file's name tells which figures it is of.
BEGIN: Final = "<!-- mirror bench table docs/bench/latest.json -->"
END: Final = "<!-- end of the table -->"
_HEAD: Final = ("copying", "by", "MB/s", "CPU-s per GB", "memory, MB")


def table(summary: Summary) -> str:
    """A row for each workload and arm with medians, and how many times better than MirrorMaker 2 ours are; then a line
    about how and where.
    """
    rows = [_HEAD, ("---", "---", *["--:"] * 3)]
    for load in summary.result.workloads:
        for place, arm in enumerate(summary.arms(load.name)):
            figures = (_cell(summary, metric, load, arm) for metric in (SPEED, CPU, MEMORY))
            rows.append((_plain(load.title) if not place else "", _plain(arm.title), *figures))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", _below(summary), ""])


def _cell(summary: Summary, metric: Metric, load: Workload, arm: Arm) -> str:
    spread = summary.spread(metric, load.name, arm.name)
    if spread is None:
        return "–"
    wrong = "" if all(run.equal for run in summary.runs(load.name, arm.name).values()) else " (not equal)"
    times = summary.against(metric, load.name, arm.name) if arm.kind == "mirror" else None
    return f"{figure(spread.median)}{f' (**{brief(times.median)}×**)' if times else ''}{wrong}"


def _below(summary: Summary) -> str:
    machine, made = summary.result.environment, summary.result.made.partition("T")[0]
    return (
        f"Medians of {count(summary.rounds, 'round')}, {made}, {_plain(machine.cpu)}, {count(machine.cores, 'core')}, "
        f"{size(machine.memory_bytes)}, brokers on the same machine. × is how many times better than MirrorMaker 2, "
        "in that of its settings which does better there."
    )


def _plain(text: str) -> str:
    """No name of somebody else's becomes a column or markup."""
    return "".join(f"\\{char}" if char in r"\`*_{}[]<>|#" else char for char in " ".join(text.split()))
