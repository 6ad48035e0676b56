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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self
from unittest.mock import patch

from forking import Forked, forget_server

#: Imported before the fork: commands, and all that they import late.
PRELOADED: Final = ("adversary.compiled", "adversary.driving", "adversary.preloaded")
#: How long an answer is waited for, so that one that is lost is found out in seconds.
ANSWER_SECONDS: Final = 3.0


@contextmanager
def package(folder: Path) -> Iterator[None]:
    """Take the mirror's package of the commands from a folder, where another one than the tests' own is, also of those
    that are no forks; no command may run as this begins or ends.
    """
    forget_server()
    sys.path.insert(0, str(folder))
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    try:
        with patch.dict(os.environ, {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}):
            yield
    finally:
        sys.path.remove(str(folder))
        forget_server()


class Command(Forked):
    """One command that runs or ran: `mirror ARGUMENTS...`."""

    def __init__(self, folder: Path, *arguments: str, late: float = 0.0, halts_before: int | None = None) -> None:
        """Start it; what it prints goes to files in `folder`. Its engine's first tasks begin `late`, by seconds. It is
        suspended right before the order of that number to the target's brokers (`_ORDERS`).
        """
        self.arguments = arguments
        self._output = folder / f"{arguments[0]}-{uuid.uuid4().hex[:6]}"
        super().__init__(PRELOADED, _main, str(self._output), arguments, late, halts_before)
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

    def __init__(self, late: float = 0.0) -> None:
        """Its first job's tasks begin so many seconds late."""
        self._jsc, self._late = _Jvm(), late

    def getConf(self) -> dict[str, str]:  # noqa: N802 -- Spark's name
        """No settings: the defaults hold."""
        return {}

    def setJobGroup(self, *_: Any, **__: Any) -> None:  # noqa: N802 -- Spark's name
        """Threads cannot be cancelled; tasks end by their stop mark."""

    def cancelAllJobs(self) -> None:  # noqa: N802 -- Spark's name
        """The same."""

    def cancelJobGroup(self, _group: str) -> None:  # noqa: N802 -- Spark's name
        """The same."""

    def stop(self) -> None:
        """Nothing to stop."""

    def parallelize(self, rows: Sequence[Any], slices: int = 1) -> _Job:
        """Take rows, as many as there are slices."""
        late, self._late = self._late, 0.0
        return _Job([[row] for row in rows] if slices else [], late)


class _Jvm:
    def sc(self) -> Self:
        return self

    def isStopped(self) -> bool:  # noqa: N802 -- Spark's name
        return False


class _Job:
    def __init__(self, parts: Sequence[Sequence[Any]], late: float) -> None:
        self._parts, self._late = parts, late
        self._work = list[Callable[[Iterable[Any]], Iterator[Any]]]()

    def mapPartitions(self, work: Callable[[Iterable[Any]], Iterator[Any]]) -> Self:  # noqa: N802 -- Spark's name
        """Take what to do with them."""
        self._work.append(work)
        return self

    def collect(self) -> list[Any]:
        """Do it, all partitions at once."""
        with ThreadPoolExecutor(max(1, len(self._parts))) as threads:
            return [result for results in threads.map(self._one, self._parts) for result in results]

    def _one(self, rows: Iterable[Any]) -> list[Any]:
        time.sleep(self._late)
        for work in self._work:
            rows = work(rows)
        return list(rows)


#: What changes something on a cluster, by module: functions and methods that are called right before.
_ORDERS: Final = {
    "mirror.kafka.admin": (
        "Admin.alter_configs",
        "Admin.create_partitions",
        "Admin.create_topics",
        "Admin.delete_topics",
    ),
    "mirror.kafka.groups": ("commit_offsets",),
    "mirror.kafka.queries": ("delete_records",),
    "mirror.journal.journal": ("Journal.append", "Journal.append_all"),
}


def _halt_before(number: int) -> None:
    """Let this process be suspended right before the order of that number, counted from 0."""
    orders = itertools.count()

    def halting(order: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(order)
        def given(*args: Any, **options: Any) -> Any:
            if next(orders) == number:
                os.kill(os.getpid(), signal.SIGSTOP)
            return order(*args, **options)

        return given

    loaded = [module for name, module in sys.modules.items() if name.startswith("mirror.")]
    for module, names in _ORDERS.items():
        for name in names:
            owner, _, method = name.rpartition(".")
            if owner:
                of = getattr(sys.modules[module], owner)
                setattr(of, method, halting(getattr(of, method)))
                continue
            order = getattr(sys.modules[module], name)
            replacement = halting(order)
            for one in loaded:  # each that imported it by name
                if vars(one).get(name) is order:
                    setattr(one, name, replacement)


def _main(output: str, arguments: Sequence[str], late: float, halts_before: int | None) -> None:
    """In the forked process."""
    for number, suffix in ((1, ".out"), (2, ".err")):
        with Path(output).with_suffix(suffix).open("w", buffering=1) as file:
            os.dup2(file.fileno(), number)
    assert "mirror.spark.session" in sys.modules, "nothing was imported before the fork: this would start a JVM"
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1, closefd=False), os.fdopen(2, "w", 1, closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    from mirror import cli, host
    from mirror.replication import fetcher, writer  # loaded before the fork, and not by a schedule's player

    def opened(*_: Any, **__: Any) -> Any:
        return SparkInThreads(late)

    def closed(context: Any) -> None:
        context.stop()

    for name in [name for name in sys.modules if name.startswith("mirror.spark.")]:
        if hasattr(sys.modules[name], "open_context"):
            vars(sys.modules[name]).update(open_context=opened, close_context=closed)
    host.find = lambda *_, **__: "java"
    fetcher.FETCH_TIMEOUT = ANSWER_SECONDS  # type: ignore[misc] # only how long one waits
    writer.ANSWER_TIMEOUT = ANSWER_SECONDS  # type: ignore[misc] # the same
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
