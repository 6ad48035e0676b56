"""The mirror's own commands, each in a process forked from one that has imported them, and without a JVM: a stand-in
for SparkContext runs tasks in threads of the driver. Everything else is the command line as people call it.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

from forking import Forked

from .mends import VARIABLE, replace_decision, take_out

#: Imported before the fork: commands, and all that they import late.
PRELOADED: Final = ("adversary.driving", "adversary.preloaded")
#: How long an answer is waited for, so that one that is lost is found out in seconds.
ANSWER_SECONDS: Final = 3.0
#: What changes something on a cluster, by the names under which it is called.
ORDERS: Final = (
    *(f"mirror.kafka.admin.Admin.{name}" for name in ("alter_configs", "create_partitions")),
    *(f"mirror.kafka.admin.Admin.{name}" for name in ("create_topics", "delete_topics")),
    *(f"mirror.journal.journal.Journal.{name}" for name in ("append", "append_all")),
    "mirror.groups.side.commit_offsets",
    "mirror.replication.log_start.delete_records",
)


class Command(Forked):
    """One command that runs or ran: `mirror ARGUMENTS...`."""

    def __init__(self, folder: Path, *arguments: str, halts_before: int | None = None) -> None:
        """Start it; what it prints goes to files in `folder`. It is suspended right before the order of that number to
        the target's brokers (`ORDERS`), counted from 0. A mend may be taken out (`mends.without`).
        """
        self.arguments = arguments
        self._output = folder / f"{arguments[0]}-{uuid.uuid4().hex[:6]}"
        mend = os.environ.get(VARIABLE, "")
        super().__init__(PRELOADED, _main, str(self._output), arguments, halts_before, mend)
        self.began = time.time()

    @property
    def printed(self) -> str:
        """What it printed."""
        return _text(self._output.with_suffix(".out"))

    @property
    def logged(self) -> str:
        """What it logged, one JSON object a line where it was asked to."""
        return _text(self._output.with_suffix(".err"))


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


class SparkInThreads:
    """As much of a SparkContext as the driver uses; each partition of a job runs in a thread."""

    master = "local[2]"
    defaultParallelism = 2  # noqa: N815 -- Spark's name
    uiWebUrl = None  # noqa: N815 -- the same
    applicationId = "adversary"  # noqa: N815 -- the same
    version = "4.0.0"

    def __init__(self) -> None:
        self._jsc = _Jvm()

    def getConf(self) -> dict[str, str]:  # noqa: N802 -- Spark's name
        """No settings: the defaults hold."""
        return {}

    def _pass(self, *_: Any, **__: Any) -> None:
        """Threads cannot be cancelled; tasks end by their stop mark."""

    setJobGroup = cancelAllJobs = cancelJobGroup = stop = _pass  # noqa: N815 -- Spark's names

    def parallelize(self, rows: Sequence[Any], slices: int = 1) -> _Job:
        """Take rows, as many as there are slices."""
        return _Job([[row] for row in rows] if slices else [])


class _Jvm:
    def sc(self) -> Self:
        return self

    def isStopped(self) -> bool:  # noqa: N802 -- Spark's name
        return False


class _Job:
    def __init__(self, parts: Sequence[Sequence[Any]]) -> None:
        self._parts = parts
        self._work = list[Callable[[Iterable[Any]], Iterator[Any]]]()

    def mapPartitions(self, work: Callable[[Iterable[Any]], Iterator[Any]]) -> Self:  # noqa: N802 -- Spark's name
        """Take what to do with them."""
        self._work.append(work)
        return self

    def collect(self) -> list[Any]:
        """Do it, all partitions at once."""

        def done(rows: Iterable[Any]) -> list[Any]:
            return [*functools.reduce(lambda rows, work: work(rows), self._work, rows)]

        with ThreadPoolExecutor(max(1, len(self._parts))) as threads:
            return [result for results in threads.map(done, self._parts) for result in results]


def _halt_before(number: int) -> None:
    """Let this process be suspended right before the order of that number."""
    orders = itertools.count()

    def halting(order: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(order)
        def given(*args: Any, **options: Any) -> Any:
            if next(orders) == number:
                os.kill(os.getpid(), signal.SIGSTOP)
            return order(*args, **options)

        return given

    for order in ORDERS:
        replace_decision(order, halting)


def _main(output: str, arguments: Sequence[str], halts_before: int | None, mend: str) -> None:
    """In the forked process."""
    for number, suffix in ((1, ".out"), (2, ".err")):
        with Path(output).with_suffix(suffix).open("w", buffering=1) as file:
            os.dup2(file.fileno(), number)
    assert "mirror.spark.session" in sys.modules, "nothing was imported before the fork: this would start a JVM"
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1, closefd=False), os.fdopen(2, "w", 1, closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    from mirror import cli, host
    from mirror.replication import fetcher, writer  # loaded before the fork, and not by a schedule's player

    for name in [name for name in sys.modules if name.startswith("mirror.spark.")]:
        if hasattr(sys.modules[name], "open_context"):
            opened: Callable[..., Any] = lambda *_, **__: SparkInThreads()  # noqa: E731
            vars(sys.modules[name]).update(open_context=opened, close_context=SparkInThreads.stop)
    host.find = lambda *_, **__: "java"
    fetcher.FETCH_TIMEOUT = ANSWER_SECONDS  # type: ignore[misc] # only how long one waits
    writer.ANSWER_TIMEOUT = ANSWER_SECONDS  # type: ignore[misc] # the same
    if mend:
        take_out(mend)
    if halts_before is not None:
        _halt_before(halts_before)
    sys.argv = ["mirror", *arguments]
    code: int | str | None = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
