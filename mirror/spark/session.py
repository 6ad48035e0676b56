"""A SparkContext with the settings that lanes need, on this machine or under `spark-submit`.

Decision: a SparkContext and not a SparkSession. The live lane moves no rows, so it pays neither the start of the SQL
engine nor its memory. The JVM does almost nothing, hence the quick compiler and the serial collector.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JError
from pyspark import RDD, SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import CPickleSerializer

from mirror import java
from mirror.config import SparkSettings
from mirror.config.secrets import is_secret
from mirror.errors import ConfigError
from mirror.spark import classes
from mirror.spark.plan import task_count

T = TypeVar("T")

#: A lane that fails is tried this often within its epoch; the next epoch tries again.
ATTEMPTS: Final = 4
LOOPBACK: Final = "127.0.0.1"
_SPARE_SLOTS: Final = 2
#: Characters of an error that are told.
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
_EVALUATING_JVM: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    f" -XX:Tier4BackEdgeThreshold=400000 {_SERIAL}"
)


def open_context(
    settings: SparkSettings, flow: str, lanes: int, *, evaluates: bool = False, archive: str = ""
) -> SparkContext:
    """Start, or join what `spark-submit` started; `evaluates`: there are expressions for Spark to evaluate. `archive`:
    what Java is told of an archive of classes, instead of where one is.

    Raises ConfigError where Java is missing or too old, or slots are too few.
    """
    java.find()
    # Workers must run this interpreter, or the one that was named for them: a python3 from PATH would not find our
    # packages. PySpark looks at the environment alone.
    os.environ.setdefault("PYSPARK_PYTHON", settings.conf.get("spark.pyspark.python", sys.executable))
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started the JVM: take its settings
        SparkContext._ensure_initialized()
    conf = SparkConf()
    submitted = conf.get("spark.master")
    master = local_master(submitted or settings.master, lanes)
    jvm = _EVALUATING_JVM if evaluates else _QUICK_JVM
    archive = archive or classes.option("queries" if evaluates else "lanes")
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
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # the UI binds to it
        defaults |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.memory": "512m",
        }
    for key, value in (defaults | dict(settings.conf)).items():
        conf.setIfMissing(key, value)
    conf.setMaster(master)
    _launch_jvm(conf)
    return SparkContext(conf=conf)


def _launch_jvm(conf: SparkConf) -> None:
    """Start the JVM without the secrets among the settings: PySpark writes all that it is given into the JVM's command
    line, which every user of the machine can read. SparkContext then sets them over the gateway's own connection. No-op
    where there is a JVM.
    """
    public = SparkConf()
    for key, value in conf.getAll():
        if not is_secret(("spark", "conf", key)):
            public.set(key, value)
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    # a session of its own: what a terminal sends to all its processes is for the driver to see to
    launch: Any = launch_gateway
    SparkContext._ensure_initialized(gateway=launch(public, {"start_new_session": True}), conf=public)


def rows_of(context: Any, rows: Sequence[T]) -> RDD[T]:
    """Rows for a job, one a task. Through the JVM's memory: `SparkContext.parallelize` writes them to a file in Spark's
    scratch folder first, and these hold secrets. `context` may be what stands for one.
    """
    if not isinstance(context, SparkContext):
        found: RDD[T] = context.parallelize(rows, len(rows))
        return found
    jvm: Any = context._jvm
    taken, pickled = jvm.java.util.ArrayList(), CPickleSerializer()
    for row in rows:
        taken.add(bytearray(pickle.dumps(row, pickle.HIGHEST_PROTOCOL)))
    return RDD(context._jsc.parallelize(taken, max(1, len(rows))), context, pickled)


def is_local(context: SparkContext) -> bool:
    """Whether tasks run on this machine, in as many slots as were asked for."""
    return str(context.master).startswith("local")


def slots_of(context: SparkContext, settings: SparkSettings, tasks: int) -> int:
    """How many of `tasks`, each a job of its own, run at a time."""
    if is_local(context):
        return task_count(settings.lanes, tasks)
    return max(1, min(tasks, settings.lanes or context.defaultParallelism))


def is_alive(context: SparkContext) -> bool:
    """Whether the JVM still answers and has not stopped its side."""
    try:
        return not context._jsc.sc().isStopped()  # no public way to ask
    except (Py4JError, OSError):
        return False


def told_by(failure: Exception) -> str:
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


def local_master(master: str, lanes: int) -> str:
    """`master` with slots for every lane and two more, and retries, where it is a local one; another one as it is.

    Lanes mostly wait on sockets, so there may be more of them than cores. Plain `local[N]` never tries a task again,
    hence `local[N,4]`. Raises ConfigError for `local[N]` with N too small.
    """
    if not master.startswith("local"):
        return master
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if match is None:
        raise ConfigError(
            f"spark.master {master} is not one that mirror can extend: use local[*], local[N] or a cluster's address"
        )
    needed = lanes + _SPARE_SLOTS
    if match[1] and match[1] != "*" and int(match[1]) < needed:
        raise ConfigError(f"spark.master {master} has too few slots for {lanes} lanes: use local[*] or local[{needed}]")
    slots = needed if match[1] in (None, "*") else int(match[1])
    return f"local[{slots},{ATTEMPTS}]"
