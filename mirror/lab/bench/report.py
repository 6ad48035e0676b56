"""`mirror bench run`, `page`, `compare`, and `table`: a comparison while it runs, and what its figures come to."""

from __future__ import annotations

import signal
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mirror.errors import ConfigError, ExitCode
from mirror.lab.bench.compare import Change, Changes, compare
from mirror.lab.bench.compare import table as markdown
from mirror.lab.bench.page import page
from mirror.lab.bench.play import Plan, play
from mirror.lab.bench.plots import need_library
from mirror.lab.bench.result import ComparisonResult, Latency, MeasuredRun, Point
from mirror.lab.bench.summary import Summary, figure, ranged, short_copies
from mirror.rendering import console, plain, print_json, table

# --- `mirror bench page`, `compare` and `table` -----------------------------------------------------------------------


def read(file: Path) -> ComparisonResult:
    """Raw figures. Raises ConfigError where the file cannot be read, or holds none."""
    try:
        return ComparisonResult.from_json(file.read_bytes(), str(file))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def raw_beside(report: Path) -> Path:
    """Where the raw figures of a page go. Raises ConfigError where that is the page itself."""
    raw = report.with_suffix(".json")
    if raw == report:
        raise ConfigError(f"{report}: the raw figures go there; give the page another name, such as {raw.stem}.html")
    return raw


def write_report(result: ComparisonResult, report: Path) -> Path:
    """Writes the raw figures and then the page beside them; returns where the raw figures are.

    Raises ConfigError where a file cannot be written, or the library for plots is missing.
    """
    raw = raw_beside(report)
    try:
        raw.write_text(result.to_json(), encoding="utf-8")
        report.write_text(page(result, raw.name), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from None
    return raw


def make_page(raw: Path, report: Path) -> ExitCode:
    """`mirror bench page`."""
    beside = write_report(read(raw), report)
    console().print(f"{report}, with the raw figures beside it in {beside.name}")
    return ExitCode.DONE


def show_table(raw: Path) -> ExitCode:
    """`mirror bench table`."""
    print(markdown(Summary(read(raw))), end="")
    return ExitCode.DONE


def show_changes(old: Path, new: Path, *, as_json: bool) -> ExitCode:
    """`mirror bench compare`: exit code 5 where one of the mirror's figures became worse beyond noise."""
    found = compare(Summary(read(old)), Summary(read(new)))
    if as_json:
        print_json({"changes": [_fields(change) for change in found.changes], "notes": found.notes})
    else:
        _print_changes(found)
    return ExitCode.DIFFERENT if found.worse else ExitCode.DONE


def _fields(change: Change) -> dict[str, object]:
    return {**asdict(change), "arm": change.arm.name, "kind": change.arm.kind}


def _print_changes(found: Changes) -> None:
    out = console()
    shown = table("where", "arm", "figure", ("old", "right"), ("new", "right"), ("new / old", "right"), "")
    for change in found.changes:
        style = {"better": "green", "worse": "red"}.get(change.verdict, "dim")
        ratio = f"{figure(change.ratio)} ({figure(change.least)} to {figure(change.most)})"
        shown.add_row(
            *(plain(text) for text in (change.where, change.arm.title, f"{change.what}, {change.unit}")),
            *(ranged(spread) for spread in (change.old, change.new)),
            ratio,
            f"[{style}]{change.verdict}[/]",
        )
    out.print(shown)
    for note in found.notes:
        out.print(f"note: {plain(note)}", markup=False)
    better, worse, noise, single = (
        sum(change.verdict == verdict for change in found.changes)
        for verdict in ("better", "worse", "noise", "one round")
    )
    summary = f"{better} better and {worse} worse beyond noise, {noise} within it"
    out.print(summary + (f", {single} of one round alone, of which nothing can be said" if single else ""))


# --- `mirror bench run` -----------------------------------------------------------------------------------------------


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
    narrator = BenchNarrator(Console(stderr=True, highlight=False))
    outcome = play(plan, narrator)
    _write(outcome.result, report, raw, narrator)
    if short := short_copies(Summary(outcome.result)):
        narrator.step(short)
    for text in (*outcome.unequal, *outcome.failures):
        narrator.failed(text)
    if outcome.unequal:
        return ExitCode.DIFFERENT
    return ExitCode.BUG if outcome.failures else ExitCode.DONE


def _write(result: ComparisonResult, report: Path | None, raw: Path | None, narrator: BenchNarrator) -> None:
    if raw is not None:
        raw.write_text(result.to_json(), encoding="utf-8")
        narrator.step(f"raw figures: {raw}")
    if report is not None:
        beside = write_report(result, report)
        narrator.step(f"page: {report}; raw figures: {beside}")


class BenchNarrator:
    """One line for each run, with the seconds since the beginning."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._began = time.monotonic()

    def step(self, text: str) -> None:
        """Something begins."""
        self._say(text, "dim")

    def run(self, run: MeasuredRun, stored_bytes: int) -> None:
        """A copy was measured, and is equal."""
        speed, cpu = stored_bytes / 1e6 / run.copy_s, run.copy_cpu_s / stored_bytes * 1e9
        sides = (run.copy_source_cpu_s, run.copy_target_cpu_s)
        brokers = "".join(f" + {seconds / stored_bytes * 1e9:.2f}" for seconds in sides if seconds is not None)
        self._say(
            f"round {run.round} {run.workload:<20} {run.arm:<15} {run.wall_s:6.1f} s, first record {run.start_s:5.1f} s"
            f" {speed:7.1f} MB/s {cpu:8.2f} CPU-s/GB{brokers} {run.peak_rss_bytes / 1e6:6.0f} MB"
        )

    def latency(self, found: Latency) -> None:
        """A trickle was copied."""
        cores = (f"{value:.2f}" for value in (found.cores, found.source_cores, found.target_cores) if value is not None)
        self._say(
            f"round {found.round} {f'{found.rate:.0f}/s, {found.partitions} partitions':<20} {found.arm:<15}"
            f" cores: {', '.join(cores)} (copy, source, target);"
            f" added: p50 {found.added_p50_ms:.1f} ms, p99 {found.added_p99_ms:.1f} ms"
        )

    def point(self, found: Point) -> None:
        """A point of scaling was measured."""
        speed = f"{found.bytes_per_s / 1e6:.1f} MB/s, {found.cpu_s_per_gb:.2f} CPU-s/GB"
        self._say(f"{found.axis} {found.value:g}: {speed}")

    def failed(self, text: str) -> None:
        """Something could not be measured, or is worth nothing."""
        self._say(text, "bold red")

    def _say(self, text: str, style: str = "") -> None:
        seconds = time.monotonic() - self._began
        self._out.print(Text(f"{seconds:7.1f} s ", "dim").append(text, style or "none"), soft_wrap=True)
