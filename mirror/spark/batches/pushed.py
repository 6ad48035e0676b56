"""A query's filters as what need not be read. Spark applies every filter again: here, too much may be read and nothing
too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from mirror.spark.batches.wanted import Wanted

_Narrow = Callable[[Wanted, Any], Wanted]


def _milliseconds(value: object) -> int:
    """A time as Kafka has it, rounded down; a number is one already."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000)
    return int(str(value))


def _since(wanted: Wanted, value: object) -> Wanted:
    return wanted.of_times(since=_milliseconds(value))


def _until(wanted: Wanted, value: object) -> Wanted:
    return wanted.of_times(until=_milliseconds(value) + 1)


def _at_offset(wanted: Wanted, value: int) -> Wanted:
    return wanted.of_offsets(first=value, before=value + 1)


def _from_offset(wanted: Wanted, value: int) -> Wanted:
    return wanted.of_offsets(first=value)


def _to_offset(wanted: Wanted, value: int) -> Wanted:
    return wanted.of_offsets(before=value + 1)


_OFFSETS: Final = ("base_offset", "last_offset")
#: Which filters on which column narrow what is read. A base offset that is greater than a value has a last offset that
#: is, too; the two are told apart by nothing else, and Spark looks again.
_TABLE: Final[Mapping[tuple[type[Filter], str], _Narrow]] = {
    **{(EqualTo, column): _at_offset for column in _OFFSETS},
    **{(kind, column): _from_offset for kind in (GreaterThan, GreaterThanOrEqual) for column in _OFFSETS},
    **{(kind, column): _to_offset for kind in (LessThan, LessThanOrEqual) for column in _OFFSETS},
    **{
        (kind, column): _since
        for kind in (EqualTo, GreaterThan, GreaterThanOrEqual)
        for column in ("max_timestamp", "max_time")
    },
    **{
        (kind, column): _until
        for kind in (EqualTo, LessThan, LessThanOrEqual)
        for column in ("base_timestamp", "base_time")
    },
    (EqualTo, "topic"): lambda wanted, value: wanted.of_topics(frozenset([value])),
    (EqualTo, "partition"): lambda wanted, value: wanted.of_partitions(frozenset([value])),
    (In, "topic"): lambda wanted, values: wanted.of_topics(frozenset(values)),
    (In, "partition"): lambda wanted, values: wanted.of_partitions(frozenset(values)),
}


def narrowed(wanted: Wanted, filters: Iterable[Filter]) -> Wanted:
    """What is left to read where all `filters` hold; one that says nothing about that is passed over."""
    for one in filters:
        column: tuple[str, ...] = getattr(one, "attribute", ())
        if len(column) != 1 or (narrow := _TABLE.get((type(one), column[0]))) is None:
            continue
        value = getattr(one, "value", None)
        if isinstance(one, In):
            value = tuple(each for each in one.value if each is not None)
        if value is not None:
            wanted = narrow(wanted, value)
    return wanted
