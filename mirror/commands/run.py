"""`mirror run`: prepare the flow, start Spark, and show how it goes until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mirror import java
from mirror.commands.interrupts import deliver_held, end_in_time, end_on_signals
from mirror.config import Settings
from mirror.errors import ExitCode
from mirror.observe import logs
from mirror.observe.endpoint import serving
from mirror.observe.figures import Figures, Totals
from mirror.observe.metrics import Metrics
from mirror.observe.notify import live, notify
from mirror.wire.cluster import TopicPartition

T = TypeVar("T")

LINE_SECONDS = 10.0
#: What a JVM that was interrupted has to clear up.
JVM_SECONDS = 3.0


def run_flow(load: Callable[[], Settings], *, once: bool, until_caught_up: bool, take_over: bool = False) -> int:
    """Run the flow to its end; the exit code. `load` reads the configuration, again on SIGHUP. Raises MirrorError.

    What this machine lacks, or another process has, is found before anything is created on a cluster.
    """
    end_on_signals(holds_reloads=not once)  # until the supervisor listens itself
    settings = load()
    metrics = Metrics(settings.flow)
    with serving(settings.metrics.listen, metrics) if settings.metrics.listen else contextlib.nullcontext():
        return _run(settings, load, metrics, once=once, until_caught_up=until_caught_up, take_over=take_over)


def _run(  # noqa: PLR0915 -- the life of a mirror from its configuration to its end, told once
    settings: Settings,
    load: Callable[[], Settings],
    metrics: Metrics,
    *,
    once: bool,
    until_caught_up: bool,
    take_over: bool,
) -> int:
    java.find()
    # Late, since a wrong option or configuration should not wait for PySpark's import.
    from mirror.spark import handover
    from mirror.spark.compiled import ensure_compiled
    from mirror.spark.engine import close_in_time, end_jvm
    from mirror.spark.lookout import Lookout
    from mirror.spark.plan import MOST_LANES, lane_count
    from mirror.spark.prepare import prepare
    from mirror.spark.rekey.queries import check_rules, queries_for
    from mirror.spark.renewal import Renewal
    from mirror.spark.session import close_context, local_master, open_context
    from mirror.spark.supervisor import Supervisor

    def listening() -> None:
        end_in_time(end_jvm)
        deliver_held()
        notify("READY=1")

    log = logs.get("mirror.run")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has its own idea of the master
        local_master(settings.spark.master, 1)
    if not take_over:  # whoever stands by makes nothing on the target, and costs no JVM
        if asyncio.run(handover.wait_for_turn(settings, waits=not (once or until_caught_up))):
            return ExitCode.DONE
        end_on_signals(holds_reloads=not once)
        settings = load()  # it may have been long ago
    context = None
    try:
        if settings.topics.rules:  # Spark alone can tell whether their expressions will do
            lanes = lane_count(settings.spark.lanes, MOST_LANES)
            with _clearing_up():
                context = open_context(settings.spark, settings.flow, lanes, evaluates=True)
            check_rules(context, settings)
        flow = prepare(settings, once=once, until_caught_up=until_caught_up, take_over=take_over)
        ensure_compiled()
        log.info(
            "flow_prepared",
            flow=flow.name,
            partitions=len(flow.assignments),
            lanes=flow.lanes,
            rekeyed=[one.source for one in flow.rekeyed],
        )
        if context is None:
            with _clearing_up():
                context = open_context(settings.spark, flow.name, flow.lanes)
        log.info("spark_started", flow=flow.name, master=context.master, ui=context.uiWebUrl or "off")
        with _watching(flow.name) as watch:
            lookout = None if once else Lookout(Renewal(settings), load)
            queries = queries_for(context, flow)
            supervisor = Supervisor(context, flow, watch.show, metrics, lookout, queries, listening)
            outcome = asyncio.run(_supervised(supervisor.run()))
    finally:
        notify("STOPPING=1")
        if context is not None:
            close_in_time(partial(close_context, context))
    totals = Totals.of(outcome.figures.values())
    log.info(
        "flow_ended",
        flow=flow.name,
        exit_code=int(outcome.exit_code),
        partitions=totals.partitions,
        stopped=totals.stopped,
        records=totals.records,
        batches=totals.batches,
        bytes=totals.bytes,
        lag_records=totals.lag_records,
        lag_unknown=totals.lag_unknown,
        verdicts=dict(totals.verdicts),
    )
    if outcome.contended:
        log.error("flow_taken_over", flow=flow.name, by=outcome.contended, state="CONTENDED")
    if outcome.refused:
        left_out = {one.source: one.reason for one in outcome.refused}
        log.error("topics_refused", flow=flow.name, topics=sorted(left_out), reason=next(iter(left_out.values())))
    if outcome.incomplete:
        log.error("flow_incomplete", flow=flow.name, missing=outcome.incomplete)
    return outcome.exit_code


async def _supervised(running: Coroutine[Any, Any, T]) -> T:
    """Tell whoever watches over this process that it lives, as long as it does."""
    living = asyncio.create_task(live())
    try:
        return await running
    finally:
        living.cancel()


@contextlib.contextmanager
def _clearing_up() -> Iterator[None]:
    """PySpark leaves a JVM behind for ever when it is interrupted while that starts."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt):
        _end_children()
        raise


def _end_children() -> None:
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    _, stubborn = psutil.wait_procs(children, timeout=JVM_SECONDS)
    for child in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


class _Watch(AbstractContextManager["_Watch"]):
    """Shows figures as they come: a progress bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, flow: str, console: Console | None) -> None:
        self._flow, self._log = flow, logs.get("mirror.run")
        self._shown_at = time.monotonic()
        self._bar = (
            Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("records  {task.fields[rate]:.1f} MB/s  {task.fields[note]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
            if console
            else None
        )
        self._task = self._bar.add_task(flow, total=None, rate=0.0, note="") if self._bar else None
        self._before = (time.monotonic(), 0)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            with contextlib.suppress(OSError):  # the terminal is gone
                self._bar.stop()

    def show(self, figures: Mapping[TopicPartition, Figures]) -> None:
        """Called about once a second."""
        totals = Totals.of(figures.values())
        now = time.monotonic()
        then, bytes_then = self._before
        rate = max(0, totals.bytes - bytes_then) / max(now - then, 1e-3) / 1e6
        self._before = (now, totals.bytes)
        states = {str(state): count for state, count in sorted(totals.states.items())}
        if self._bar is not None and self._task is not None:
            done, note = totals.records, " ".join(f"{count} {state}" for state, count in states.items())
            self._bar.update(self._task, completed=done, total=done + (totals.lag_records or 0), rate=rate, note=note)
        elif figures and now - self._shown_at >= LINE_SECONDS:  # lanes report from their first second on
            self._shown_at = now
            self._log.info(
                "mirroring",
                flow=self._flow,
                records=totals.records,
                lag_records=totals.lag_records,
                lag_unknown=totals.lag_unknown,
                mb_per_s=round(rate, 1),
                states=states,
            )


def _watching(flow: str) -> _Watch:
    return _Watch(flow, Console(stderr=True) if sys.stderr.isatty() else None)
