"""A function over Arrow's record batches as a step of a query: `DataFrame.mapInArrow` without pandas.

PySpark asks for pandas before it builds this plan, and never uses it for one (`pandas/map_ops.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

#: Record batches of one task to those that come out of it.
Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, step: Step, schema: str) -> DataFrame:
    """The rows that `step` makes of all columns of `frame`, by a schema in Spark's DDL."""
    made: Any = UserDefinedFunction(step, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = made(*[frame[name] for name in frame.columns])
    # the plan node takes the function and no barrier and no resource profile
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
