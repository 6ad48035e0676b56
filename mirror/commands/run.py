"""`mirror run`: prepare the flow, start Spark, and show how it goes until it ends; signals and the service manager.

PySpark forks to start its JVM. What a handler raises while Python runs its hooks for that is swallowed there, in the
parent and in the child, and may leave the lock of `logging` held for ever. So a signal that comes then waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mirror import clock, host
from mirror.config import Settings
from mirror.driver.flow import Flow, RunOutcome, prepare
from mirror.driver.scheduling import MOST_TASKS, task_count
from mirror.driver.topic_watcher import Replanner, TopicWatcher
from mirror.errors import ExitCode, FlowRuns
from mirror.journal.ownership import wait_for_turn
from mirror.kafka.cluster import TopicPartition
from mirror.observability import logs
from mirror.observability.metrics import Metrics, serving
from mirror.observability.status import PartitionStatus, Totals
from mirror.spark.compiled import ensure_compiled
from mirror.suspension import look_again

_log = logs.get("mirror.run")

# --- Signals ----------------------------------------------------------------------------------------------------------

#: How long a signal waits before it is checked again, in seconds.
_LATER: Final = 0.05

#: How long a mirror that was asked to end may take for that: what is under way, the journal, consumer groups, Spark.
END_SECONDS: Final = 10.0


class _State:
    """Of this process: whether it forks now, the signal that waits for the end of that, whether it began on a terminal,
    and whether a SIGHUP is held.
    """

    forking = False
    waiting = 0
    has_terminal = False
    held = False


def end_on_signals(*, holds_reloads: bool = False) -> None:
    """From now on SIGINT, SIGTERM and SIGHUP raise SystemExit with 128 and the signal's number, until somebody else
    listens. With `holds_reloads` a SIGHUP waits for `deliver_held`, but for that of a terminal that was closed.
    """
    _watch_forks()
    _State.has_terminal = _State.has_terminal or os.isatty(0)
    signal.signal(signal.SIGALRM, _again)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` wants it
            signal.signal(number, _held if holds_reloads and number == signal.SIGHUP else _ended)


def deliver_held() -> None:
    """Send this process the SIGHUP that was held, if one was: somebody listens now."""
    if _State.held:
        _State.held = False
        os.kill(os.getpid(), signal.SIGHUP)


def end_in_time(kill: Callable[[], None]) -> None:
    """From now on the process ends `END_SECONDS` after the first SIGINT or SIGTERM whatever hangs, and at once at the
    second one; before that `kill` ends other processes. For whoever listens in an event loop, which may be what hangs.
    """
    signals: list[int] = []

    def end_hard(number: int) -> NoReturn:
        with contextlib.suppress(Exception):  # the signal may have come in the midst of another line
            _log.error("ended_hard", signal=number, reason="asked twice" if signals[1:] else "too slow")
        try:
            kill()
        finally:
            os._exit(128 + number)

    def on_signal(number: int, _: FrameType | None) -> None:
        signals.append(number)
        if signals[1:]:
            end_hard(number)
        timer = threading.Timer(END_SECONDS, end_hard, [number])
        timer.daemon = True
        timer.start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


@cache
def _watch_forks() -> None:
    """Hooks that are registered last run first before a fork, and last behind it: the others are in between."""
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)


def _before_fork() -> None:
    _State.forking = True


def _after_fork() -> None:
    _State.forking = False


def _ended(number: int, frame: FrameType | None) -> None:
    in_hook = frame is not None and frame.f_code in (_before_fork.__code__, _after_fork.__code__)
    if _State.forking or in_hook or _is_in_finalizer(frame):  # also in the child, until it is another program
        _State.waiting = number
        signal.setitimer(signal.ITIMER_REAL, _LATER)
        return
    _end(number)


def _held(number: int, frame: FrameType | None) -> None:
    if _State.has_terminal and not os.isatty(0):
        _ended(number, frame)
    else:
        _State.held = True


def _again(_: int, frame: FrameType | None) -> None:
    if _State.waiting:
        _ended(_State.waiting, frame)


def _is_in_finalizer(frame: FrameType | None) -> bool:
    """Python passes over what is raised in a `__del__`."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def _end(number: int) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, 0)  # of a signal that came twice: nobody listens to it when Python ends
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it says at length that it was interrupted
    raise SystemExit(128 + number)


# --- What a service manager gets (sd_notify(3)) -----------------------------------------------------------------------


def notify(state: str) -> bool:
    """Notify systemd, where it listens: `READY=1`, `WATCHDOG=1`, `STOPPING=1`. False where nobody listens."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.setblocking(False)
        link.sendto(state.encode(), f"\0{where[1:]}" if where.startswith("@") else where)
        return True
    return False


async def live() -> None:
    """Until cancelled: report that the event loop turns, twice in the time that systemd gives (WatchdogSec)."""
    given = os.environ.get("WATCHDOG_USEC", "")
    is_ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    while given.isdigit() and int(given) and is_ours:
        notify("WATCHDOG=1")
        await asyncio.sleep(int(given) / 2e6)


# --- `mirror run` -----------------------------------------------------------------------------------------------------

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
        host.find()
        run = _MirrorRun(settings, load, metrics, once=once, until_caught_up=until_caught_up, take_over=take_over)
        return run.run()


@dataclass(slots=True)
class _MirrorRun:
    """Holds what the life of a mirror depends on, from its configuration to its end."""

    settings: Settings
    #: Reads the configuration again.
    load: Callable[[], Settings]
    metrics: Metrics
    _: KW_ONLY
    once: bool
    until_caught_up: bool
    take_over: bool
    #: Spark's, once it was needed.
    context: Any = None

    @property
    def is_bounded(self) -> bool:
        """Return True where the mirror ends by itself."""
        return self.once or self.until_caught_up

    def run(self) -> int:
        """Run the flow to its end, and return the exit code. Raises MirrorError."""
        # Late, since a wrong option or configuration should not wait for PySpark's import, nor a turn that comes.
        importlib.import_module("mirror.spark.supervisor")
        from mirror.spark.launch import check as check_engine
        from mirror.spark.session import close_context, close_in_time, local_master

        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has its own idea of the master
            check_engine(local_master(self.settings.spark.master, 1), self.settings.spark.conf)
        outcome = None
        try:
            while outcome is None:
                if not self.take_over and (ended := self._stand_by()) is not None:
                    return ended
                flow = self._prepare()
                outcome = self._mirror(flow)
        finally:
            notify("STOPPING=1")
            if self.context is not None:
                close_in_time(partial(close_context, self.context))
        _log_end(flow.name, outcome)
        return outcome.exit_code

    def _stand_by(self) -> int | None:
        """Wait while another mirror runs the flow, without a JVM, and with nothing made on the target. Return the exit
        code where a signal ended that.
        """
        if number := asyncio.run(wait_for_turn(self.settings, waits=not self.is_bounded)):
            if not self.is_bounded:
                return ExitCode.DONE
            _log.error("flow_incomplete", flow=self.settings.flow, missing="everything: ended while it stood by")
            return 128 + number
        end_on_signals(holds_reloads=not self.once)
        self.settings = self.load()  # it may have been long ago
        return None

    def _prepare(self) -> Flow:
        """Prepare the flow, and start Spark."""
        from mirror.spark.rekey.queries import check_rules

        settings = self.settings
        if settings.topics.rules:  # Spark alone knows whether their expressions will do
            self._start_engine(task_count(settings.spark.tasks, MOST_TASKS))
            check_rules(self.context, settings)
        preparing = partial(prepare, settings, once=self.once, until_caught_up=self.until_caught_up)
        flow = look_again(partial(preparing, take_over=self.take_over, start_engine=self._start_engine))
        ensure_compiled()
        rekeyed = [rule.source for rule in flow.rekeyed]
        _log.info("flow_prepared", flow=flow.name, partitions=len(flow.assignments), tasks=flow.tasks, rekeyed=rekeyed)
        _log.info("spark_started", flow=flow.name, master=self.context.master, ui=self.context.uiWebUrl or "off")
        return flow

    def _start_engine(self, tasks: int) -> None:
        from mirror.spark.session import open_context

        if self.context is None:
            settings = self.settings
            with _clearing_up():
                self.context = open_context(settings.spark, settings.flow, tasks, evaluates=bool(settings.topics.rules))

    def _mirror(self, flow: Flow) -> RunOutcome | None:
        """Mirror to the end of the flow, and return how it ended; None where another that stood by was quicker."""
        from mirror.spark.rekey.queries import queries_for
        from mirror.spark.session import end_jvm
        from mirror.spark.supervisor import Supervisor

        def listening() -> None:
            end_in_time(end_jvm)
            deliver_held()

        ids = flow.source.cluster_id, flow.target.cluster_id
        with _Watch(flow.name, Console(stderr=True) if sys.stderr.isatty() else None) as watch:
            watcher = None
            if not self.once:
                watcher = TopicWatcher(Replanner(self.settings.keeping_to(*ids)), lambda: self.load().keeping_to(*ids))
            queries, begun = queries_for(self.context, flow), partial(notify, "READY=1")
            supervisor = Supervisor(self.context, flow, watch.show, self.metrics, watcher, queries, listening, begun)
            try:
                return asyncio.run(_supervised(supervisor.run()))
            except FlowRuns:
                if self.is_bounded:
                    raise
                end_on_signals(holds_reloads=True)
        return None


def _log_end(flow: str, outcome: RunOutcome) -> None:
    totals = Totals.of(outcome.figures.values())
    code, verdicts = int(outcome.exit_code), dict(totals.verdicts)
    _log.info("flow_ended", flow=flow, exit_code=code, **totals.counts, verdicts=verdicts)
    if outcome.contended:
        _log.error("flow_taken_over", flow=flow, by=outcome.contended, state="FENCED")
    if outcome.refused:
        left_out = {refusal.source: refusal.reason for refusal in outcome.refused}
        _log.error("topics_refused", flow=flow, topics=sorted(left_out), reason=next(iter(left_out.values())))
    if outcome.incomplete:
        _log.error("flow_incomplete", flow=flow, missing=outcome.incomplete)


async def _supervised(running: Coroutine[Any, Any, T]) -> T:
    """Report to whoever watches over this process that it lives, as long as it does."""
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
        self._flow, self._shown_at = flow, clock.monotonic()
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
        self._before = (clock.monotonic(), 0)

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

    def show(self, figures: Mapping[TopicPartition, PartitionStatus]) -> None:
        """Called about once a second."""
        totals = Totals.of(figures.values())
        now = clock.monotonic()
        then, bytes_then = self._before
        rate = max(0, totals.bytes - bytes_then) / max(now - then, 1e-3) / 1e6
        self._before = (now, totals.bytes)
        states = {str(state): count for state, count in sorted(totals.states.items())}
        if self._bar is not None and self._task is not None:
            done, note = totals.records, " ".join(f"{count} {state}" for state, count in states.items())
            self._bar.update(self._task, completed=done, total=done + (totals.lag_records or 0), rate=rate, note=note)
        elif figures and now - self._shown_at >= LINE_SECONDS:  # tasks report from their first second on
            self._shown_at = now
            _log.info(
                "mirroring",
                flow=self._flow,
                records=totals.records,
                lag_records=totals.lag_records,
                lag_unknown=totals.lag_unknown,
                mb_per_s=round(rate, 1),
                states=states,
            )
