"""All that is not public in PySpark, or not the same from 3.5 to 4.3: one function for each thing.

No other module uses a private name of PySpark (`tests/pure/docs/test_layers.py`). What a version cannot do is refused
by name before anything is made on the target (`require`).
"""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import pyspark
from py4j.protocol import Py4JError
from pyspark import RDD, SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import CPickleSerializer

from mirror.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

T = TypeVar("T")

# --- Which Spark this is ----------------------------------------------------------------------------------------------

#: Major and minor version of the PySpark in use.
VERSION: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


def require(feature: str, since: str) -> None:
    """Raise ConfigError where this Spark is older than `since`, such as 4.0."""
    if tuple(int(part) for part in since.split(".")) > VERSION:
        raise ConfigError(f"{feature} needs Spark {since} or newer, and this is Spark {pyspark.__version__}")


# --- The JVM ----------------------------------------------------------------------------------------------------------


def has_jvm() -> bool:
    """Return True where this process has a JVM, or `spark-submit` brought one."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def join_submitted_jvm() -> None:
    """Connect to the JVM that `spark-submit` started, so that SparkConf reads its settings."""
    SparkContext._ensure_initialized()


def launch_jvm(public: SparkConf, output: int) -> None:
    """Start a JVM with these settings, which PySpark writes into its command line, and let it print to the descriptor
    `output`. It gets a session of its own: what a terminal sends to all its processes is for the driver to see to.
    """
    launch: Any = launch_gateway
    gateway = launch(public, {"start_new_session": True, "stdout": output, "stderr": output})
    SparkContext._ensure_initialized(gateway=gateway, conf=public)


def jvm_process() -> subprocess.Popen[bytes]:
    """Return the process of the JVM that `launch_jvm` started. It ends when its standard input is closed."""
    gateway: Any = SparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def is_alive(context: SparkContext) -> bool:
    """Return True while the JVM answers and has not stopped its side of the context."""
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def scratch_folder(context: Any) -> Path | None:
    """Return the folder in which PySpark keeps temporary files of this context, `.../spark-UUID/pyspark-UUID`."""
    own = getattr(context, "_temp_dir", None)
    return None if own is None else Path(own)


def _jvm_of(context: SparkContext) -> Any:
    return context._jvm


def rows_of(context: Any, rows: Sequence[T]) -> RDD[T]:
    """Return rows for a job, one a task. They go through the JVM's memory: `SparkContext.parallelize` writes them to a
    file in Spark's scratch folder first, and these hold secrets. `context` may be what stands for one.
    """
    if not isinstance(context, SparkContext):
        found: RDD[T] = context.parallelize(rows, len(rows))
        return found
    jvm = _jvm_of(context)
    taken, pickled = jvm.java.util.ArrayList(), CPickleSerializer()
    for row in rows:
        taken.add(bytearray(pickle.dumps(row, pickle.HIGHEST_PROTOCOL)))
    return RDD(context._jsc.parallelize(taken, max(1, len(rows))), context, pickled)


def serve_workers() -> None:
    """Fork Python workers until Spark ends this process (`spark.python.daemon.module`)."""
    import pyspark.daemon  # noqa: PLC0415 -- in the daemon alone
    import pyspark.worker  # noqa: PLC0415 -- workers are forked with it

    pyspark.daemon.manager()


# --- Queries ----------------------------------------------------------------------------------------------------------

#: `PythonEvalType.SQL_MAP_ARROW_ITER_UDF`, which each version has in another module.
_MAP_ARROW_ITER: Final = 207
#: Record batches of one task to those that come out of it.
Step = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def map_in_arrow(frame: DataFrame, step: Step, schema: str) -> DataFrame:
    """Return the rows that `step` makes of all columns of `frame`, by a schema in Spark's DDL.

    `DataFrame.mapInArrow` asks for pandas before it builds this plan, and never uses it for one.
    """
    from pyspark.sql import DataFrame  # noqa: PLC0415 -- a plain copy waits for none of it
    from pyspark.sql.udf import UserDefinedFunction  # noqa: PLC0415

    made: Any = UserDefinedFunction(step, schema, evalType=_MAP_ARROW_ITER)
    column = made(*[frame[name] for name in frame.columns])
    if VERSION >= (4, 0):  # the plan node takes the function and no barrier and no resource profile
        plan = frame._jdf.mapInArrow(column._jc, False, None)
    else:
        plan = frame._jdf.pythonMapInArrow(column._jc.expr(), False)
    return DataFrame(plan, frame.sparkSession)


def try_eval(session: SparkSession, column: Column) -> Column:
    """Return null where evaluating `column` fails, which without this fails the task. It is what `try_add` and its kin
    are made of; Spark has no function for any expression (`TryEval`).
    """
    from pyspark.sql import Column  # noqa: PLC0415

    jvm = _jvm_of(session.sparkContext)
    caught = jvm.org.apache.spark.sql.catalyst.expressions.TryEval
    if VERSION >= (4, 0):
        made = jvm.org.apache.spark.sql.classic.ExpressionUtils
        evaluated = made.column(caught(made.expression(column._jc)))
    else:
        evaluated = jvm.org.apache.spark.sql.Column(caught(cast("Any", column._jc).expr()))
    return Column(evaluated)


def analyzed_plan(frame: DataFrame) -> Any:
    """Return Catalyst's analyzed plan of a query, an object of the JVM."""
    return frame._jdf.queryExecution().analyzed()


def partitioned_by_slot(frame: DataFrame, count: int) -> DataFrame:
    """Return the rows of `frame` in `count` partitions, those with slot i in partition i.

    Spark 4.3 has `repartitionById` for it; older ones place a row by a hash alone (`HashPartitioning`), so each id goes
    by a number whose hash is the wanted one. Adaptive execution, which may put partitions together, must be off.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    numbers: dict[int, int] = {}
    candidate = 0
    while len(numbers) < count:
        numbers.setdefault(_murmur3(candidate) % count, candidate)
        candidate += 1
    placed = functions.array(*(functions.lit(numbers[id_]) for id_ in range(count)))
    return frame.repartition(count, functions.element_at(placed, functions.col("slot") + 1))


def _murmur3(number: int) -> int:
    """Return Spark's hash of an integer, a signed number of 32 bits (`Murmur3_x86_32.hashInt`)."""
    mixed = _rotated(number * 0xCC9E2D51, 15) * 0x1B873593
    found = _rotated(_SEED ^ (mixed & _32_BITS), 13) * 5 + 0xE6546B64
    found = (found & _32_BITS) ^ 4  # bytes
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        found = ((found ^ (found >> shift)) * factor) & _32_BITS
    return found - (1 << 32) if found >> 31 else found


def _rotated(number: int, bits: int) -> int:
    number &= _32_BITS
    return (number << bits | number >> (32 - bits)) & _32_BITS


_32_BITS: Final = 0xFFFFFFFF
_SEED: Final = 42
