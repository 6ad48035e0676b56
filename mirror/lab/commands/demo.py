"""`mirror demo`: what it does, line by line with the seconds elapsed, then one table and one sentence."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from mirror.errors import ExitCode
from mirror.lab.demo.copying import CopyResult, Line, MirrorFailed
from mirror.lab.demo.play import play
from mirror.rendering import console, number, print_json, size, table

LINE_SECONDS = 5.0


def demo(*, as_json: bool) -> ExitCode:
    """Play the demonstration and print what came out; DIFFERENT when any of it does not hold. Raises MirrorError."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us wants us to clear up as after Ctrl-C
    narrator = Narrator(Console(stderr=True, highlight=False) if as_json else console())
    try:
        with narrator:
            result = play(narrator)
    except MirrorFailed as failure:
        if as_json:
            print_json({"ok": False, "objections": [str(failure)]})
        else:
            print(f"mirror: the demonstration failed: {failure}", file=sys.stderr)
        return ExitCode.DIFFERENT
    if as_json:
        print_json(result.as_dict())
    else:
        show(result, console())
    return ExitCode.DIFFERENT if result.objections else ExitCode.DONE


class Narrator(AbstractContextManager["Narrator"]):
    """Steps as lines; progress as a bar on a terminal, and as a line now and then elsewhere."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._began = self._shown_at = time.monotonic()
        columns = (TextColumn("         {task.description}"), BarColumn(), TaskProgressColumn())
        self._bar = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def step(self, text: str) -> None:
        """Something is done, or begins."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        self._print(text)

    def progress(self, doing: str, done: int, total: int) -> None:
        """How many records of how many."""
        if not self._bar.disable:
            if self._task is None:
                self._task = self._bar.add_task(doing, total=total)
            self._bar.update(self._task, completed=done)
        elif time.monotonic() - self._shown_at >= LINE_SECONDS:
            self._print(f"{doing}: {done:,} of {total:,} records")

    def _print(self, text: str) -> None:
        self._shown_at = time.monotonic()
        self._out.print(Text(f"{self._shown_at - self._began:6.1f} s ", "dim").append(text, ""), soft_wrap=True)


def show(result: CopyResult, out: Console) -> None:
    """The table, and the verdict under it."""
    out.print()
    out.print(topics(result))
    out.print()
    out.print(costs(result))
    out.print(verdict(result))


def topics(result: CopyResult) -> Table:
    """One line for each topic, and the totals."""
    heads = ("parts", "records", "batches", "MB", "not de-\ncompressed", "identical\nbytes", "offsets\nequal")
    made = table(("topic", "no_wrap"), "codec", *((head, "right") for head in heads))
    for line in result.lines:
        made.add_row(*_row(line.topic, ", ".join(line.codecs), [line]))
    made.add_section()
    made.add_row(*_row("all", "", result.lines), style="bold")
    return made


def _row(topic: str, codec: str, lines: Sequence[Line]) -> tuple[str | Text, ...]:
    names = ("partitions", "records", "batches", "bytes", "passed", "judged")
    partitions, records, batches, stored, passed, judged = (
        sum(getattr(line, name) for line in lines) for name in names
    )
    return (
        *(topic, codec, number(partitions), number(records), number(batches), f"{stored / 1e6:.1f}"),
        _share(passed, judged),
        _yes(all(line.all_identical for line in lines)),
        _yes(all(line.offsets_equal for line in lines)),
    )


def costs(result: CopyResult) -> Table:
    """Speed, CPU and memory of the whole flow."""
    cost = result.cost
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column(style="dim")
    amount = f"{size(cost.backlog_bytes)} of batches ({size(cost.record_bytes)} of records) in {cost.backlog_s:.1f} s"
    made.add_row("speed", f"{cost.mb_per_s:.0f} MB/s", f"{amount}, from the first mirrored record to the last")
    made.add_row(
        "CPU",
        f"{cost.cpu_s_per_gb:.1f} CPU-s/GB",
        f"of batches meanwhile, Spark and Python; {cost.start_cpu_s:.1f} CPU-s in {cost.start_s:.1f} s to start",
    )
    shared = f"; {size(cost.peak_pss)} with shared pages counted once" if cost.peak_pss else ""
    made.add_row("memory", size(cost.peak_rss), f"resident at most, driver, JVM and workers{shared}")
    phases = ", ".join(f"{phase} {seconds:.0f}" for phase, seconds in result.seconds.items())
    made.add_row("time", f"{result.total:.0f} s", f"{phases}; {result.downloads:.0f} s of it downloads")
    return made


def verdict(result: CopyResult) -> Text:
    """One sentence of proof, or what speaks against it."""
    if result.objections:
        return Text(
            "\n".join(["", "This run proves nothing:", *(f"  {objection}" for objection in result.objections)]), "red"
        )
    batches, partitions = (sum(getattr(line, name) for line in result.lines) for name in ("batches", "partitions"))
    proof = f"all {batches:,} batches of {partitions} partitions are on the target, with the same bytes, at the same"
    hidden = sum(line.hidden for line in result.lines)
    markers = f" The {hidden:,} without records for a reader (ends of transactions, aborted data) left no gap."
    whole = f"{proof} offsets; none was decompressed on the way.{markers if hidden else ''}"
    return Text.assemble("\n", ("Proof: ", "bold green"), whole)


def _share(part: int, whole: int) -> Text:
    if part == whole > 0:
        return Text("100 %", "green")
    return Text(f"{min(99.9, 100 * part / whole):.1f} %" if whole else "-", "red")  # never rounded up to what it is not


def _yes(holds: bool) -> Text:
    return Text("yes", "green") if holds else Text("NO", "bold red")
