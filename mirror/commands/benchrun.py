"""`mirror bench run`: a line on stderr for each thing measured, then where the figures are."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mirror.bench.drawing import need_library
from mirror.bench.play import Plan, play
from mirror.bench.result import Axis, Latency, Point, Result, Run
from mirror.commands.benchreport import raw_beside, write_report
from mirror.errors import ConfigError, ExitCode


def measure(plan: Plan, *, report: Path | None, raw: Path | None) -> ExitCode:
    """Play the comparison and write what came of it. DIFFERENT when a copy was not equal to its source, BUG when
    something could not be measured. Raises MirrorError.
    """
    for file in (report, raw):
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(f"{file}: there is no such folder to write to")
    if report is not None:
        need_library()
        raw_beside(report)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us wants us to clear up as after Ctrl-C
    narrator = Narrator(Console(stderr=True, highlight=False))
    outcome = play(plan, narrator)
    _write(outcome.result, report, raw, narrator)
    for text in (*outcome.unequal, *outcome.failures):
        narrator.failed(text)
    if outcome.unequal:
        return ExitCode.DIFFERENT
    return ExitCode.BUG if outcome.failures else ExitCode.DONE


def _write(result: Result, report: Path | None, raw: Path | None, narrator: Narrator) -> None:
    if raw is not None:
        raw.write_text(result.to_json(), encoding="utf-8")
        narrator.step(f"raw figures: {raw}")
    if report is not None:
        beside = write_report(result, report)
        narrator.step(f"page: {report}; raw figures: {beside}")


class Narrator:
    """One line for each run, with the seconds since the beginning."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._began = time.monotonic()

    def step(self, text: str) -> None:
        """Something begins."""
        self._say(text, "dim")

    def run(self, run: Run, stored_bytes: int) -> None:
        """A copy was measured, and is equal."""
        speed, cpu = stored_bytes / 1e6 / run.copy_s, run.copy_cpu_s / stored_bytes * 1e9
        self._say(
            f"round {run.round} {run.workload:<20} {run.arm:<15} {run.wall_s:6.1f} s, first record {run.start_s:5.1f} s"
            f" {speed:7.1f} MB/s {cpu:8.2f} CPU-s/GB {run.peak_rss_bytes / 1e6:6.0f} MB"
        )

    def latency(self, found: Latency) -> None:
        """An arm's latency was measured."""
        self._say(
            f"round {found.round} {f'{found.rate:.0f} records/s':<20} {found.arm:<15}"
            f" added: p50 {found.added_p50_ms:.1f} ms, p99 {found.added_p99_ms:.1f} ms"
        )

    def point(self, axis: Axis, value: float, found: Point | str) -> None:
        """A point of scaling was measured, or could not be."""
        if isinstance(found, str):
            self.failed(f"{axis} {value:g}: {found}")
            return
        self._say(f"{axis} {value:g}: {found.bytes_per_s / 1e6:.1f} MB/s, {found.cpu_s_per_gb:.2f} CPU-s/GB")

    def failed(self, text: str) -> None:
        """Something could not be measured, or is worth nothing."""
        self._say(text, "bold red")

    def _say(self, text: str, style: str = "") -> None:
        seconds = time.monotonic() - self._began
        self._out.print(Text(f"{seconds:7.1f} s ", "dim").append(text, style or "none"), soft_wrap=True)
