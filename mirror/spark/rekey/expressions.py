"""A rule's expressions as columns of Spark.

An expression must give the same for the same record, whenever and wherever it is evaluated (K2), and look at nothing
but the record.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions, types

from mirror.errors import ConfigError
from mirror.policy.selection import Rekeying
from mirror.spark.compat import analyzed_plan, try_eval

# --- A rule's expressions ---------------------------------------------------------------------------------------------

#: What an expression sees of a record, with Spark's types.
RECORD: Final = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key: string, value: binary>>",
}
#: The column of what became of a record: null where an expression failed.
MADE: Final = "made"
IT: Final = "it"

_BYTES: Final = (types.StringType, types.BinaryType)
_HEADERS: Final = "array<struct<key: binary, value: binary>>"
#: Expressions of Spark that depend on the clock, though Spark calls them deterministic: within one query they are.
_CLOCKS: Final = ("CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now")
#: The same of who asks, and where.
_PLACES: Final = ("CurrentUser", "CurrentDatabase", "CurrentCatalog", "CurrentTimeZone", "SparkVersion")
#: Words that Spark reads as times of now where it wants a time: as a literal of such a type, when it reads the text.
_NOW: Final = frozenset({"now", "today", "tomorrow", "yesterday"})
_LITERAL_OF_NOW: Final = re.compile(rf"\b(?:date|timestamp\w*)\s*['\"]\s*(?:{'|'.join(sorted(_NOW))})\b", re.IGNORECASE)
_TIMES: Final = ("DATE", "TIMESTAMP")
_PLAIN_PLANS: Final = ("Project", "LocalRelation", "LogicalRDD")


def used_by(session: SparkSession, rule: Rekeying) -> frozenset[str]:
    """The columns of `RECORD` that a rule's expressions look at. Raises ConfigError for one that cannot be."""
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # the error says it, once
    nothing = session.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in RECORD.items()))
    used: set[str] = set()
    for name, text in rule.expressions.items():
        where = f"topics.rules: {rule.source}: {name}: {text}"
        if literal := _LITERAL_OF_NOW.search(text):
            raise ConfigError(f"{where}: must give the same whenever it is asked; {literal[0]}' does not")
        try:
            column = _converted(nothing, name, functions.expr(text))
            plan = analyzed_plan(nothing.select(column.alias(IT)))
        except PySparkException as problem:
            raise ConfigError(f"{where}: {_first_line(problem)}") from None
        except ConfigError as problem:
            raise ConfigError(f"{where}: {problem}") from None
        if foreign := sorted({kind for kind in _nodes(plan) if kind not in _PLAIN_PLANS}):
            raise ConfigError(f"{where}: must be about one record; {', '.join(foreign)} is about several")
        for expression in _each(plan.expressions()):
            for part in _tree(expression):
                kind = part.getClass().getSimpleName()
                moves = kind in _CLOCKS or kind in _PLACES or kind.endswith("Subquery")
                if moves or not part.deterministic() or _is_of_now(part, kind) or _draws_an_iv(part, kind):
                    raise ConfigError(f"{where}: must give the same whenever it is asked; {part.sql()} does not")
        used.update(one.name() for one in _each(plan.references().toSeq()))
    return frozenset(used & set(RECORD))


def _is_of_now(part: Any, kind: str) -> bool:
    """A word that Spark takes for a time of now, as it plans the query: once for each of them."""
    if not (kind.startswith("ParseTo") or (kind == "Cast" and part.dataType().sql().startswith(_TIMES))):
        return False
    words = (child.sql() for child in _each(part.children()) if child.getClass().getSimpleName() == "Literal")
    return any(word.strip("'").strip().lower() in _NOW for word in words)


def _draws_an_iv(part: Any, kind: str) -> bool:
    """Spark draws the initialization vector that an `aes_encrypt` is not given, and calls it deterministic."""
    if kind != "AesEncrypt":
        return False
    return part.mode().sql().strip("'").upper() != "ECB" and part.iv().sql() in {"''", "X''", "CAST('' AS BINARY)"}


def judged(records: DataFrame, rule: Rekeying) -> Column:
    """Null where an expression failed; else a struct whose `IT` is one of `keep` and, for records that are kept, those
    of `key`, `value` and `headers` that are made anew.
    """
    texts = {name: text for name, text in rule.expressions.items() if name != "where"}
    named = {"key" if name == "rekey" else name: name for name in texts}
    made = {field: _converted(records, name, functions.expr(texts[name])) for field, name in named.items()}
    kept = functions.struct(functions.lit(True).alias("keep"), *(made[field].alias(field) for field in made))
    if rule.where is not None:
        kinds = {"key": "binary", "value": "binary", "headers": _HEADERS}
        nothing = [functions.lit(None).cast(kinds[field]).alias(field) for field in made]
        left = functions.struct(functions.lit(False).alias("keep"), *nothing)
        kept = functions.when(functions.expr(rule.where), kept).otherwise(left)
    # in a struct of its own: the optimizer would move what catches failures into the branches of a CASE
    return try_eval(records.sparkSession, functions.struct(kept.alias(IT)))


def _converted(frame: DataFrame, name: str, column: Column) -> Column:
    """As the bytes of a key or a value, as headers, or as a truth. Raises ConfigError for another type."""
    kind = frame.select(column.alias(IT)).schema[IT].dataType
    if name == "where":
        if not isinstance(kind, types.BooleanType):
            raise ConfigError(f"gives {kind.simpleString()}, and must say true or false")
        return column
    if name in ("rekey", "value"):
        if not isinstance(kind, _BYTES):
            raise ConfigError(f"gives {kind.simpleString()}, and must give text or bytes: cast(... as string)")
        return column.cast("binary")
    if isinstance(kind, types.MapType):
        column = functions.map_entries(column)
    elif not isinstance(kind, types.ArrayType):
        raise ConfigError(
            f"gives {kind.simpleString()}, and must give a map, or an array of structs with key and value"
        )
    return column.cast(_HEADERS)


def _nodes(plan: Any) -> Iterator[str]:
    yield plan.getClass().getSimpleName()
    for child in _each(plan.children()):
        yield from _nodes(child)


def _tree(expression: Any) -> Iterator[Any]:
    yield expression
    for child in _each(expression.children()):
        yield from _tree(child)


def _each(several: Any) -> Iterator[Any]:
    """The members of a sequence of Scala's."""
    for index in range(several.size()):
        yield several.apply(index)


def _first_line(problem: Exception) -> str:
    return next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
