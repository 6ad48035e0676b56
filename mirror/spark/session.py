"""A SparkContext with the settings that tasks need, and Spark's JVM as the driver's event loop sees it.

Decision: a SparkContext and not a SparkSession. The live task moves no rows, so it pays neither the start of the SQL
engine nor its memory. The JVM does almost nothing, hence the quick compiler and the serial collector.

- No call to the JVM is made on the event loop; each has a deadline, after which nobody waits for it any more.
- A JVM that has not answered for `HANGS_SECONDS` is lost: it is ended, and the mirror with it, or the command that
  waits for its jobs. Its tasks, which are processes of their own, end when the driver does.
- Folders of Spark's scratch space that are gone are made again before an epoch's job, and every `ASK_SECONDS` for the
  jobs of re-key queries and commands; nothing that is needed is kept in them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil
from pyspark import SparkConf, SparkContext

from mirror import clock, host
from mirror.background import in_background
from mirror.config import SparkSettings
from mirror.driver.scheduling import task_count
from mirror.errors import ConfigError, EngineLost
from mirror.observability import logs
from mirror.spark import class_archive, compat, launch
from mirror.spark.compat import is_alive

# --- A SparkContext with the settings that tasks need, on this machine or under `spark-submit` ------------------------

T = TypeVar("T")

#: A task that fails is tried this often within its epoch; the next epoch tries again.
ATTEMPTS: Final = 4
LOOPBACK: Final = "127.0.0.1"
_SPARE_SLOTS: Final = 2
#: Characters of an error that are shown.
_READABLE: Final = 300
#: The last line of a traceback: an error with its words, or without any.
_ERROR: Final = re.compile(r"^\s*(?:\w+\.)*(\w+): (.+)$|^(?:\w+\.)*(\w+)$", re.MULTILINE)
#: What py4j puts before what the JVM says.
_CALLING: Final = "An error occurred while calling "
#: No JVM has much to do: the driver's plans and counts, an executor's starts Python and waits for it. So start fast,
#: and give memory back (195 MB resident for the driver, against 280 with Java's own choices).
_SERIAL: Final = "-XX:+UseSerialGC -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20 -Xss512k"
_QUICK_JVM: Final = f"-XX:TieredStopAtLevel=1 {_SERIAL}"
_YOUNG: Final = "-Xms48m -Xmn24m"
#: Where it evaluates expressions, it has: with the second compiler a record takes six tenths of the CPU. Ten times the
#: usual thresholds keep that compiler, which is dear, away from whatever runs at the start alone.
#: How a scratch folder's name begins that is of one process alone.
_SCRATCH: Final = "mirror-scratch-"
_EVALUATING_JVM: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    f" -XX:Tier4BackEdgeThreshold=400000 {_SERIAL}"
)


def open_context(
    settings: SparkSettings, flow: str, tasks: int, *, evaluates: bool = False, archive: str = ""
) -> SparkContext:
    """Start, or join what `spark-submit` started; `evaluates`: there are expressions for Spark to evaluate. `archive`:
    what Java gets of an archive of classes, instead of where one is.

    Raises ConfigError where Java is missing or too old, slots are too few, or Spark refuses its settings;
    EngineUnavailable where it does not start.
    """
    host.find()
    # Workers must run this interpreter, or the one that was named for them: a python3 from PATH would not find our
    # packages. PySpark looks at the environment alone.
    os.environ.setdefault("PYSPARK_PYTHON", settings.conf.get("spark.pyspark.python", sys.executable))
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started the JVM: take its settings
        compat.join_submitted_jvm()
    conf = SparkConf()
    submitted = conf.get("spark.master")
    master = local_master(submitted or settings.master, tasks)
    jvm = _EVALUATING_JVM if evaluates else _QUICK_JVM
    archive = archive or class_archive.option("queries" if evaluates else "tasks")
    defaults = {
        "spark.app.name": f"mirror {flow}",
        "spark.python.daemon.module": "mirror.spark.rekey.daemon" if evaluates else "mirror.spark.daemon",
        "spark.task.maxFailures": str(ATTEMPTS),
        "spark.speculation": "false",
        "spark.dynamicAllocation.enabled": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.showConsoleProgress": "false",
        # A record for which an expression asks for more memory than there is fails its task, and the engine goes on.
        "spark.executor.killOnFatalError.depth": "0" if evaluates else "5",
        "spark.ui.killEnabled": "false",  # any page that a browser shows beside Spark's could end an epoch
        "spark.log.level": "WARN",
        "spark.driver.extraJavaOptions": f"{jvm} {_YOUNG} {archive} "
        f"-Dlog4j2.configurationFile={Path(str(files('mirror.spark') / 'log4j2.properties')).as_uri()}",
        "spark.executor.extraJavaOptions": jvm,
    }
    if master.startswith("local"):
        if "SPARK_LOCAL_DIRS" not in os.environ:
            parents = conf.get("spark.local.dir") or settings.conf.get("spark.local.dir") or tempfile.gettempdir()
            os.environ["SPARK_LOCAL_DIRS"] = _own_scratch(parents)
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # the UI binds to it
        defaults |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.memory": "512m",
        }
    for key, value in (defaults | dict(settings.conf)).items():
        conf.setIfMissing(key, value)
    conf.setMaster(master)
    return launch.start(conf, end_jvm)


def _own_scratch(parents: str) -> str:
    """Make a scratch folder of this process in each of these, which end with it: in one place Spark's folders do not
    show which mirror's they are.
    """
    folders = list[str]()
    for parent in parents.split(","):
        with contextlib.suppress(OSError):  # Spark says what it cannot use
            Path(parent).mkdir(parents=True, exist_ok=True)  # as Spark does
            folders.append(tempfile.mkdtemp(prefix=_SCRATCH, dir=parent))
            atexit.register(shutil.rmtree, folders[-1], ignore_errors=True)
    return ",".join(folders) or parents


def is_local(context: SparkContext) -> bool:
    """Whether tasks run on this machine, in as many slots as were asked for."""
    return str(context.master).startswith("local")


def slots_of(context: SparkContext, settings: SparkSettings, tasks: int) -> int:
    """How many of `tasks`, each a job of its own, run at a time."""
    if is_local(context):
        return task_count(settings.tasks, tasks)
    return max(1, min(tasks, settings.tasks or context.defaultParallelism))


def failure_text(failure: Exception) -> str:
    """What a failure says, without the stacks, and cut where it is beyond reading: of an exception in a task's Python
    its own words, which come last.
    """
    text = str(failure).split("\n\tat ", 1)[0]
    if "Traceback (most recent call last)" in text and (found := _ERROR.findall(text)):
        kind, words, bare = found[-1]
        return (f"{kind}: {words}" if kind else bare)[:_READABLE]
    lines = [line for line in text.strip().split("\n") if not line.startswith(_CALLING)]
    return (lines[0].removeprefix(": ") if lines else "")[:_READABLE] or type(failure).__name__


def close_context(context: SparkContext) -> None:
    """Stop Spark; a JVM that is gone already is as stopped as can be."""
    if is_alive(context):
        context.stop()


def local_master(master: str, tasks: int) -> str:
    """`master` with slots for every task and two more, and retries, where it is a local one; another one as it is.

    Tasks mostly wait on sockets, so there may be more of them than cores. Plain `local[N]` never tries a task again,
    hence `local[N,4]`. Raises ConfigError for `local[N]` with N too small.
    """
    if not master.startswith("local"):
        return master
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if match is None:
        raise ConfigError(
            f"spark.master {master} is not one that mirror can extend: use local[*], local[N] or a cluster's address"
        )
    needed = tasks + _SPARE_SLOTS
    if match[1] and match[1] != "*" and int(match[1]) < needed:
        raise ConfigError(f"spark.master {master} has too few slots for {tasks} tasks: use local[*] or local[{needed}]")
    slots = needed if match[1] in (None, "*") else int(match[1])
    return f"local[{slots},{ATTEMPTS}]"


# --- Spark's JVM as the driver's event loop sees it -------------------------------------------------------------------

#: How often the JVM is asked whether it lives, how long it may take to say so, and how long it may say nothing.
ASK_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 10.0
HANGS_SECONDS: Final = 60.0
#: How long Spark may take to stop.
STOP_SECONDS: Final = 4.0

_log = logs.get("mirror.supervisor")


async def asked(work: Callable[[], T], seconds: float) -> T:
    """Return what a call to the JVM gives. Raises TimeoutError where it takes longer, and what the call raises."""
    async with asyncio.timeout(seconds):
        return await in_background(work)


async def may_live(context: SparkContext) -> bool:
    """False where the JVM is dead, or has stopped its side. One that does not answer may only hang."""
    try:
        return await asked(partial(is_alive, context), ANSWER_SECONDS)
    except TimeoutError:
        return True


class Engine:
    """One context's JVM."""

    def __init__(self, context: SparkContext) -> None:
        """To be made before the event loop runs."""
        self.context, self._scratch = context, Scratch.of(context)
        self._silent_since: float | None = None

    async def watch(self) -> None:
        """Until cancelled, also for its scratch folders. Raises EngineLost where the JVM hangs."""
        while True:
            with contextlib.suppress(TimeoutError):  # a disk that hangs is not the JVM
                await asked(self.mend_scratch, ANSWER_SECONDS)
            try:
                await asked(partial(is_alive, self.context), ANSWER_SECONDS)
                self._silent_since = None
            except TimeoutError:
                self._silent_since = self._silent_since or clock.monotonic() - ANSWER_SECONDS
                silent = clock.monotonic() - self._silent_since
                _log.error("engine_silent", seconds=round(silent), text="Spark's JVM does not answer")
                if silent >= HANGS_SECONDS:
                    end_jvm()
                    raise EngineLost(
                        f"Spark's JVM hangs: it has not answered for {silent:.0f} s, and was ended. Nothing is lost:"
                        " start the mirror again"
                    ) from None
            await asyncio.sleep(ASK_SECONDS)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch while a command waits for jobs in threads, without a loop of its own: their calls fail when a JVM that
        hangs is ended.
        """
        loop = asyncio.new_event_loop()
        watching = loop.create_task(self.watch())

        def watch() -> None:
            with contextlib.suppress(EngineLost, asyncio.CancelledError):  # whoever waits gets it from his call
                loop.run_until_complete(watching)

        thread = threading.Thread(target=watch, daemon=True, name="mirror-watching")
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(watching.cancel)
            thread.join()
            loop.close()

    def mend_scratch(self) -> None:
        """Make what is gone of Spark's scratch folders."""
        if made := self._scratch.mend():
            _log.error("scratch_folders_gone", made_again=made, text="something removed Spark's scratch folders")


class Scratch:
    """The folders that Spark made for itself on this machine; it remembers them, and does not look whether they are
    there.
    """

    def __init__(self, roots: list[Path]) -> None:
        self._roots, self._known, self._mending = roots, set[Path](), threading.Lock()
        self.mend()

    @classmethod
    def of(cls, context: Any) -> Scratch:
        """Find those of a context in local mode: one of the driver, and one for blocks beside it, where both are in a
        folder of this process; in one that others use (SPARK_LOCAL_DIRS), the driver's alone.
        """
        own = compat.scratch_folder(context)  # .../spark-UUID/pyspark-UUID
        if own is None or not str(context.master).startswith("local"):
            return cls([])
        spark = own.parent
        return cls([spark.parent if spark.parent.name.startswith(_SCRATCH) else spark])

    def mend(self) -> int:
        """Make again what was there and is not; how many that were. One thread does, and none waits for it."""
        made = 0
        if not self._mending.acquire(blocking=False):
            return made
        try:
            for folder in sorted(self._known):
                with contextlib.suppress(OSError):  # the disk is full, or gone: the job reports it
                    if not folder.is_dir():
                        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                        made += 1
            for root in self._roots:
                self._known |= {Path(folder) for folder, _, _ in os.walk(root)}
        finally:
            self._mending.release()
        return made


def end_jvm() -> None:
    """Kill the JVM that this process started, and what that started."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def close_in_time(close: Callable[[], None]) -> None:
    """Stop Spark by `close`; where that hangs, kill its JVM."""
    closing = threading.Thread(target=close, daemon=True, name="mirror-closing")
    closing.start()
    closing.join(STOP_SECONDS)
    if closing.is_alive():
        _log.error("engine_killed", reason=f"Spark's JVM did not stop within {STOP_SECONDS:g} s")
        end_jvm()
