"""The options of `kafka-batches`, checked whole before anything is read.

    path                a segment file, a partition's folder, a broker's data folder, or an address that Arrow opens
    config, side        a flow's file, and which of its clusters: source (the default) or target
    bootstrap.servers   a cluster, with the other settings of a cluster under librdkafka's names
    topic, partition    names or numbers, separated by commas
    from, before        offsets: the first of interest, and the first that is not
    since, until        times: the same, in ISO 8601 (without a zone: UTC) or ms since 1970
    data                true: the bytes of each batch in column data
    uncompressed        none, stated (the default; by a payload's framing) or measured (by decompressing it)
    damage              fail (the default) or flag, where bytes come that are no batch
    bytes_per_second    what each task may read of a cluster; without it there is no bound
    pushdown            true: a query's filters narrow what is read, for a DataFrame that serves one query alone

One of path, config and bootstrap.servers says where to read. A secret is a reference, `${env:NAME}` or `${file:PATH}`:
options can be seen in plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal, TypeVar

from mirror import config as configuration
from mirror.batch.header import LAST_OFFSET
from mirror.config import ClusterSettings, Settings
from mirror.errors import ConfigError
from mirror.names import did_you_mean
from mirror.spark.batches.wanted import Wanted

_WHERE: Final = ("path", "config", "bootstrap.servers")
_OWN: Final = (
    *("path", "config", "side", "topic", "partition", "from", "before", "since", "until"),
    *("data", "uncompressed", "damage", "bytes_per_second", "pushdown"),
)
_SWITCH: Final = {"true": True, "false": False}
_CLUSTER: Final = tuple(key for keys in ClusterSettings.keys().values() for key in keys if key != "alias")

Value = TypeVar("Value")


class Sizes(StrEnum):
    """Where column `uncompressed` comes from."""

    NONE = "none"
    STATED = "stated"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What a row holds besides the header's fields; `flags` damage as a row of its own instead of failing."""

    data: bool = False
    sizes: Sizes = Sizes.STATED
    flags: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where to read what. Without a `path`, `cluster` says where; `flow` is there where a flow's file was named, and
    `side` says which cluster of it.
    """

    wanted: Wanted
    detail: Detail
    pushdown: bool = False
    bytes_per_second: int | None = None
    path: str | None = None
    flow: Settings | None = field(default=None, repr=False)
    side: Literal["source", "target"] = "source"
    settings: ClusterSettings | None = field(default=None, repr=False)

    @property
    def cluster(self) -> ClusterSettings:
        """The cluster to read."""
        found = self.settings
        if self.flow is not None:
            found = self.flow.target if self.side == "target" else self.flow.source
        assert found is not None, "there is a path"
        return found


def parse(given: Mapping[str, str]) -> Options:
    """Options as Spark hands them over, in any case. Raises ConfigError."""
    values = {key.lower(): value for key, value in given.items()}
    for key in values:
        if key not in _OWN and key not in _CLUSTER:
            known = (*_OWN, *_CLUSTER)
            hint = did_you_mean(key, known, most=1) or f"; valid: {', '.join(_OWN)}, and a cluster's settings"
            raise ConfigError(f"kafka-batches: unknown option {key}{hint}")
    if len(where := [key for key in _WHERE if key in values]) != 1:
        told = f"and not {' and '.join(where)} together" if where else "so that there is something to read"
        raise ConfigError(f"kafka-batches: give one of the options {', '.join(_WHERE)}, {told}")
    connection = {key: value for key, value in values.items() if key in _CLUSTER}
    if connection and "bootstrap.servers" not in connection:
        raise ConfigError(f"kafka-batches: {', '.join(connection)} go with bootstrap.servers alone")
    if "side" in values and "config" not in values:
        raise ConfigError("kafka-batches: side chooses between the clusters of a config")
    return Options(
        wanted=_wanted(values),
        detail=Detail(
            data=_one(values, "data", _SWITCH, False),
            sizes=_one(values, "uncompressed", {one.value: one for one in Sizes}, Sizes.STATED),
            flags=_one(values, "damage", {"fail": False, "flag": True}, False),
        ),
        pushdown=_one(values, "pushdown", _SWITCH, False),
        bytes_per_second=_read(values, "bytes_per_second", _positive, "a number above 0"),
        path=values.get("path"),
        flow=configuration.load(values["config"]) if "config" in values else None,
        side=_one(values, "side", {"source": "source", "target": "target"}, "source"),
        settings=configuration.cluster(connection, "unnamed") if connection else None,
    )


def milliseconds(text: str) -> int:
    """A time as ISO 8601, in UTC where it names no zone, or as ms since 1970. Raises ValueError."""
    if text.isascii() and text.isdigit():
        return int(text)
    return int(configuration.instant(text).timestamp() * 1000)


def folder_of(path: str) -> str:
    """An absolute path, or an address as it is."""
    return path if "://" in path else str(Path(path).absolute())


def _wanted(values: Mapping[str, str]) -> Wanted:
    time = "a time such as 2026-01-31T12:00:00Z"
    topics = _read(values, "topic", lambda text: [name.strip() for name in text.split(",")], "names")
    partitions = _read(values, "partition", lambda text: [int(number) for number in text.split(",")], "numbers")
    return Wanted(
        topics=None if topics is None else frozenset(topics),
        partitions=None if partitions is None else frozenset(partitions),
        since=_read(values, "since", milliseconds, time),
        until=_read(values, "until", milliseconds, time),
    ).of_offsets(
        _read(values, "from", int, "an offset") or 0,
        LAST_OFFSET if (before := _read(values, "before", int, "an offset")) is None else before,
    )


def _read(values: Mapping[str, str], key: str, convert: Callable[[str], Value], what: str) -> Value | None:
    if key not in values:
        return None
    try:
        return convert(values[key])
    except ValueError as problem:
        raise ConfigError(f"kafka-batches: option {key} is {values[key]!r}, which is not {what}") from problem


def _positive(text: str) -> int:
    if (number := int(text)) <= 0:
        raise ValueError(text)
    return number


def _one(values: Mapping[str, str], key: str, known: Mapping[str, Value], default: Value) -> Value:
    if key not in values:
        return default
    chosen = values[key].lower()
    if chosen not in known:
        raise ConfigError(f"kafka-batches: option {key} is {values[key]!r}: use {' or '.join(known)}")
    return known[chosen]
