"""The options of `kafka-batches`, checked whole before anything is read, and which batches they ask for.

    path                a segment file, a partition's folder, a broker's data folder, or an address that Arrow opens
    config, side        a flow's file, and which of its clusters: source (the default) or target
    bootstrap.servers   a cluster, with the other settings of a cluster under librdkafka's names
    topic, partition    names or numbers, separated by commas
    from, before        offsets: the first of interest, and the first that is not
    since, until        times: the same, in ISO 8601 (without a zone: UTC) or ms since 1970
    data                true: the bytes of each batch in column data
    uncompressed        none, stated (the default; by a payload's framing) or measured (by decompressing it)
    damage              fail (the default) or flag, where bytes come that are no batch
    deleted             fail (the default) or skip, where a cluster deletes records that were to be read
    bytes_per_second    what each task may read of a cluster; without it there is no bound
    pushdown            true: a query's filters narrow what is read, for a DataFrame that serves one query alone

One of path, config and bootstrap.servers says where to read. A secret is a reference, `${env:NAME}` or `${file:PATH}`:
options can be seen in plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal, TypeVar

from mirror import config as configuration
from mirror.config import ClusterSettings, Settings
from mirror.errors import ConfigError
from mirror.names import INTERNAL_PREFIX, did_you_mean
from mirror.records.header import DELETE_HORIZON, LAST_OFFSET, BatchHeader

# --- Which batches are asked for --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedBatches:
    """Topics and partitions (None: all), offsets from `first` to `before`, times in ms from `since` to `until`.

    A batch belongs to a range where it may hold a record of it: by its last and base offset, by its max and base
    timestamp. A batch that compaction emptied has no record of any time, and need not be found by one.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    before: int = LAST_OFFSET
    since: int | None = None
    until: int | None = None

    def has_topic(self, topic: str | None) -> bool:
        """Whether a topic is asked for, the brokers' own (`__consumer_offsets`) by name alone; None is that of a file
        whose folder does not say.
        """
        if self.topics is None:
            return topic is None or not topic.startswith(INTERNAL_PREFIX)
        return topic in self.topics

    def has_partition(self, partition: int | None) -> bool:
        """Whether a partition is asked for, likewise."""
        return self.partitions is None or partition in self.partitions

    def has(self, header: BatchHeader) -> bool:
        """Whether a batch may hold a record of both ranges."""
        if header.last_offset < self.first or header.base_offset >= self.before:
            return False
        if self.since is not None and header.max_timestamp < self.since:
            return False
        if self.until is None or header.attributes & DELETE_HORIZON:  # which stands where the base timestamp was
            return True
        base = header.base_timestamp if header.magic == 2 else header.max_timestamp
        return base < self.until

    def of_topics(self, names: frozenset[str]) -> WantedBatches:
        """With these topics alone, of those asked for."""
        return replace(self, topics=names if self.topics is None else self.topics & names)

    def of_partitions(self, numbers: frozenset[int]) -> WantedBatches:
        """With these partitions alone, likewise."""
        return replace(self, partitions=numbers if self.partitions is None else self.partitions & numbers)

    def of_offsets(self, first: int = 0, before: int = LAST_OFFSET) -> WantedBatches:
        """With no offsets beyond these."""
        return replace(self, first=max(self.first, first), before=min(self.before, before))

    def of_times(self, since: int | None = None, until: int | None = None) -> WantedBatches:
        """With no times beyond these, in ms."""
        starts = [one for one in (self.since, since) if one is not None]
        ends = [one for one in (self.until, until) if one is not None]
        return replace(self, since=max(starts, default=None), until=min(ends, default=None))


# --- The options of `kafka-batches`, checked whole before anything is read --------------------------------------------

_WHERE: Final = ("path", "config", "bootstrap.servers")
_OWN: Final = (
    *("path", "config", "side", "topic", "partition", "from", "before", "since", "until"),
    *("data", "uncompressed", "damage", "deleted", "bytes_per_second", "pushdown"),
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
    """What a row holds besides the header's fields; `flags` damage as a row of its own instead of failing, and `skips`
    what is deleted before it is read.
    """

    data: bool = False
    sizes: Sizes = Sizes.STATED
    flags: bool = False
    skips: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where to read what. Without a `path`, `cluster` says where; `flow` is there where a flow's file was named, and
    `side` says which cluster of it.
    """

    wanted: WantedBatches
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
        reason = f"and not {' and '.join(where)} together" if where else "so that there is something to read"
        raise ConfigError(f"kafka-batches: give one of the options {', '.join(_WHERE)}, {reason}")
    connection = {key: value for key, value in values.items() if key in _CLUSTER}
    if connection and "bootstrap.servers" not in connection:
        raise ConfigError(f"kafka-batches: {', '.join(connection)} go with bootstrap.servers alone")
    if "side" in values and "config" not in values:
        raise ConfigError("kafka-batches: side chooses between the clusters of a config")
    return Options(
        wanted=_wanted(values),
        detail=Detail(
            data=_one(values, "data", _SWITCH, False),
            sizes=_one(values, "uncompressed", {Siz.value: Siz for Siz in Sizes}, Sizes.STATED),
            flags=_one(values, "damage", {"fail": False, "flag": True}, False),
            skips=_one(values, "deleted", {"fail": False, "skip": True}, False),
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


def _wanted(values: Mapping[str, str]) -> WantedBatches:
    time = "a time such as 2026-01-31T12:00:00Z"
    topics = _read(values, "topic", lambda text: [name.strip() for name in text.split(",")], "names")
    partitions = _read(values, "partition", lambda text: [int(number) for number in text.split(",")], "numbers")
    return WantedBatches(
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
