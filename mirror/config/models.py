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
    """Names of copies; `identity` sets neither key, so every copy has its source topic's name."""

    prefix: Prefix = ""
    """Put this text in front of every source topic's name."""
    rename: dict[TopicPart, TopicPart] = Field(default_factory=dict)
    """Map source topic names to target topic names; a topic that is not listed keeps its name."""

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
    """Send the topics that `match` through the re-key query.

    `rekey`, `where`, `value` and `headers` are Spark SQL expressions over key, value, headers, topic, partition, offset
    and timestamp. A rule needs at least one of them, or `partitions`.
    """

    match: Pattern
    """Apply the rule to the topics whose whole name matches. The first rule that matches a topic applies."""
    rekey: Expression | None = None
    """Spark SQL expression for the new key; without it, keys stay."""
    partitions: Whole | None = Field(default=None, ge=1, le=100_000)
    """Number of partitions of the target topic; without it, as many as the source has."""
    where: Expression | None = None
    """Spark SQL condition; records that do not meet it are not written."""
    value: Expression | None = None
    """Spark SQL expression for the new value."""
    headers: Expression | None = None
    """Spark SQL expression for the new headers: a map, or an array of structs with `key` and `value`."""
    codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = None
    """Compression codec of the batches that are written; by default that of the source batch."""
    on_bad_record: Literal["stop", "drop", "dead-letter"] = "stop"
    """What to do with a record for which an expression fails or `rekey` gives null: stop its partition, drop the
    record, or write it to `dead_letter`.
    """
    dead_letter: TopicPart | None = None
    """Target topic for bad records; required with `on_bad_record: dead-letter`, and not allowed without it."""

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
    """Mirror the topics whose whole name matches one of these. A name without special characters must exist on the
    source.
    """
    exclude: tuple[Pattern, ...] = tuple(re.compile(pattern) for pattern in DEFAULT_EXCLUDE)
    """Leave out topics that match; wins over `include`. A list of your own replaces the default."""
    naming: Annotated[Naming, BeforeValidator(_naming)] = Naming()
    """Name of the copy: `identity`, `{prefix: "eu."}` or `{rename: {orders: orders-copy}}`."""
    offsets: Literal["preserve", "translate"] = "preserve"
    """`preserve`: record N of the source is record N of the target. `translate`: the copy has no gaps, and every offset
    can be looked up.
    """
    start: Start = "earliest"
    """Where the first start of the flow begins, in the topics that exist then. A topic that appears later is copied
    from its first record.
    """
    on_data_loss: Literal["stop", "continue"] = "stop"
    """What to do when the source deleted records before they were mirrored, or the target lost records that the source
    no longer has. `continue` does what `mirror accept` does, without asking.
    """
    on_damage: Literal["stop", "skip"] = "stop"
    """What to do with a batch that is damaged in the source's log after three fetches, or that must be rewritten and
    cannot be decoded. `skip` leaves out that batch alone and records the loss.
    """
    on_too_large: Literal["stop", "skip"] = "stop"
    """What to do with a record that exceeds `max.message.bytes` of the target topic. `skip` leaves out that record
    alone and records the loss.
    """
    recompress: Literal["mirror", "target"] = "mirror"
    """Who compresses where the target topic has a `compression.type` of its own: the mirror or the target broker."""
    append_time: Literal["source", "target"] = "source"
    """Timestamps of topics with `LogAppendTime`. `source` keeps the source's times and rewrites the batches; `target`
    follows the source's topic setting, so the target broker writes its own clock at no cost.
    """
    coalesce_bytes: Whole | None = Field(default=None, ge=1024)
    """Join batches of up to a quarter of this size into batches of this size; `null` leaves small batches as they are.
    """
    rules: tuple[TopicRule, ...] = ()
    """Re-keying rules: other keys, partitions, values or headers for the topics that match."""


class GroupSettings(Section):
    """Consumer groups whose committed offsets follow to the target."""

    include: tuple[Pattern, ...] = (re.compile(".*"),)
    """Synchronize the offsets of the consumer groups whose whole name matches; `[]` for none."""
    interval_s: Seconds = 1.0
    """Seconds between two synchronizations."""


class SyncSettings(Section):
    """What is kept equal besides records, and what happens to a copy whose source topic is deleted."""

    topics: bool = True
    """Create topics and partitions that the target lacks."""
    configs: bool = True
    """Keep topic configurations such as retention, cleanup policy and size limits equal to the source's."""
    configs_include: tuple[Pattern, ...] = ()
    """Names of topic configurations to synchronize besides those of the built-in list."""
    configs_exclude: tuple[Pattern, ...] = ()
    """Names of topic configurations not to synchronize."""
    acls: bool = False
    """Copy ACLs that grant or deny reading; rights to write are never copied."""
    acl_principals: Annotated[dict[Pattern, str | None] | None, BeforeValidator(_principals)] = None
    """Copy the ACLs of these principals alone: a list of patterns, or a map from source to target principals. `null`:
    of all principals.
    """
    deletions: Literal["keep", "delete"] = "keep"
    """`delete` deletes a copy when its source topic is deleted, if the flow made the copy and every check passes."""
    interval_s: Seconds = 5.0
    """Seconds within which a change on the source is noticed. With more than a hundred topics, a changed configuration
    may take longer.
    """


class LimitSettings(Section):
    """Bounds on what the whole flow takes."""

    bytes_per_second: Whole | None = Field(default=None, gt=0)
    """Bytes per second that all tasks of the flow fetch together; `null`: unlimited."""
    memory_mb: Whole = Field(default=256, ge=16, le=1_000_000)
    """Memory for batches in flight, in MB, shared by all tasks of the flow."""


class MetricSettings(Section):
    """The Prometheus endpoint."""

    listen: Listen | None = None
    """Address of the Prometheus endpoint; a port alone binds to loopback; `null`: no endpoint. Each flow on a machine
    needs its own port.
    """


class SparkSettings(Section):
    """Spark's master and properties, and how the flow is divided into tasks."""

    master: str = "local[*]"
    """Spark master URL."""
    conf: dict[str, PlainText] = Field(default_factory=dict)
    """Further Spark properties, by name. The mirror sets its own."""
    lanes: Whole | None = Field(default=None, ge=1, le=10_000)
    """Number of tasks that copy at the same time; `null`: chosen by the planner."""
    epoch_s: Seconds = 60.0
    """Seconds that one Spark job runs before the plan is made again."""


class Settings(Section):
    """The whole file."""

    flow: FlowName = Field(alias="name")
    """Name of the flow; part of its journal's name, `mirror.<name>.offsets`, on the target."""
    source: ClusterSettings
    """The cluster to copy from. The mirror only reads here."""
    target: ClusterSettings
    """The cluster to copy to. The mirror keeps all of its state here."""
    topics: TopicSettings
    """Which topics are mirrored, to which names, from where."""
    groups: GroupSettings = GroupSettings()
    """Which consumer groups follow."""
    sync: SyncSettings = SyncSettings()
    """What is kept equal besides records."""
    limits: LimitSettings = LimitSettings()
    """Bounds on bandwidth and memory."""
    metrics: MetricSettings = MetricSettings()
    """Prometheus endpoint."""
    spark: SparkSettings = SparkSettings()
    """Spark's master, properties and tasks."""
