"""The sections of a configuration, as pydantic models: what may be set, to what, and what holds where it is not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mirror.config.clusters import ClusterSettings
from mirror.config.section import Section
from mirror.config.values import (
    DEFAULT_EXCLUDE,
    Expression,
    FlowName,
    Listen,
    Pattern,
    PlainText,
    Prefix,
    Seconds,
    Start,
    TopicPart,
    Whole,
)


class Naming(Section):
    """The target's name for a source topic; `identity` is a naming with nothing set."""

    prefix: Prefix = ""
    rename: dict[TopicPart, TopicPart] = Field(default_factory=dict)

    def target_of(self, topic: str) -> str:
        """The name on the target."""
        return self.rename.get(topic, self.prefix + topic)


def _some(patterns: tuple[re.Pattern[str], ...]) -> tuple[re.Pattern[str], ...]:
    if not patterns:
        raise ValueError("at least one pattern is needed")
    return patterns


def _principals(value: object) -> object:
    """A list of patterns keeps the names; a map gives others."""
    return dict.fromkeys(value) if isinstance(value, list) else value


def _naming(value: object) -> object:
    if value == "identity":
        return {}
    if not isinstance(value, Mapping | Naming) or (isinstance(value, Mapping) and len(value) != 1):
        raise ValueError('must be identity, {prefix: "..."} or {rename: {name: new-name}}')
    return value


class TopicRule(Section):
    """What is done differently for the topics that `match`: their records go through the re-key query.

    `rekey`, `where`, `value` and `headers` are expressions of Spark SQL over key, value, headers, topic, partition,
    offset and timestamp. The first rule that matches a topic holds.
    """

    match: Pattern
    rekey: Expression | None = None
    partitions: Whole | None = Field(default=None, ge=1, le=100_000)
    where: Expression | None = None
    value: Expression | None = None
    headers: Expression | None = None
    codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = None
    on_bad_record: Literal["stop", "drop", "dead-letter"] = "stop"
    dead_letter: TopicPart | None = None

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if all(one is None for one in (self.rekey, self.partitions, self.where, self.value, self.headers)):
            raise ValueError("does nothing: give it rekey, partitions, where, value or headers")
        if (self.dead_letter is not None) != (self.on_bad_record == "dead-letter"):
            raise ValueError("on_bad_record: dead-letter and dead_letter, a topic of the target, go together")
        return self


class TopicSettings(Section):
    """Which topics are mirrored, to which names, from where."""

    include: Annotated[tuple[Pattern, ...], AfterValidator(_some)]
    exclude: tuple[Pattern, ...] = tuple(re.compile(pattern) for pattern in DEFAULT_EXCLUDE)
    naming: Annotated[Naming, BeforeValidator(_naming)] = Naming()
    offsets: Literal["preserve", "translate"] = "preserve"
    start: Start = "earliest"
    on_data_loss: Literal["stop", "continue"] = "stop"
    on_damage: Literal["stop", "skip"] = "stop"
    on_too_large: Literal["stop", "skip"] = "stop"
    recompress: Literal["mirror", "target"] = "mirror"
    append_time: Literal["source", "target"] = "source"
    coalesce_bytes: Whole | None = Field(default=None, ge=1024)
    rules: tuple[TopicRule, ...] = ()


class GroupSettings(Section):
    """Consumer groups whose offsets follow (none where `include` is empty); seconds between two looks."""

    include: tuple[Pattern, ...] = (re.compile(".*"),)
    interval_s: Seconds = 1.0


class SyncSettings(Section):
    """What is kept equal besides records, and what becomes of a copy whose source topic is deleted.

    `configs_include` and `configs_exclude`: names of topic settings (regular expressions) that follow besides those
    that do by themselves, and that do not. A change is seen within `interval_s` seconds; where there are more than a
    hundred topics, one of a setting may take longer. `acl_principals`: a list of patterns, or a map from patterns to
    names on the target, of the principals whose ACLs follow; None: of all.
    """

    topics: bool = True
    configs: bool = True
    configs_include: tuple[Pattern, ...] = ()
    configs_exclude: tuple[Pattern, ...] = ()
    acls: bool = False
    acl_principals: Annotated[dict[Pattern, str | None] | None, BeforeValidator(_principals)] = None
    deletions: Literal["keep", "delete"] = "keep"
    interval_s: Seconds = 5.0


class LimitSettings(Section):
    """Bounds: bytes per second of the whole flow (None: unbounded), and buffer memory in MB."""

    bytes_per_second: Whole | None = Field(default=None, gt=0)
    memory_mb: Whole = Field(default=256, ge=16, le=1_000_000)


class MetricSettings(Section):
    """Where Prometheus finds the figures: `host:port`, or a port of this machine alone; None: nowhere."""

    listen: Listen | None = None


class SparkSettings(Section):
    """Spark's master and settings; `lanes` None lets the planner choose; `epoch_s`: seconds one Spark job lasts."""

    master: str = "local[*]"
    conf: dict[str, PlainText] = Field(default_factory=dict)
    lanes: Whole | None = Field(default=None, ge=1, le=10_000)
    epoch_s: Seconds = 60.0


class Settings(Section):
    """The whole file."""

    flow: FlowName = Field(alias="name")
    source: ClusterSettings
    target: ClusterSettings
    topics: TopicSettings
    groups: GroupSettings = GroupSettings()
    sync: SyncSettings = SyncSettings()
    limits: LimitSettings = LimitSettings()
    metrics: MetricSettings = MetricSettings()
    spark: SparkSettings = SparkSettings()
