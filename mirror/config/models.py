"""The sections of a configuration, as pydantic models: what may be set, to what, and what holds where it is not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from mirror.config.values import (
    DEFAULT_EXCLUDE,
    Address,
    Addresses,
    FlowName,
    Pattern,
    PlainText,
    Prefix,
    Seconds,
    Start,
    TopicPart,
    Whole,
    parse_address,
)


class Section(BaseModel):
    """A part of the file: frozen, with no keys beyond its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    @classmethod
    def keys(cls) -> dict[str, tuple[str, ...]]:
        """By the name of a field: the keys it may have in the file, the one it is shown by first."""
        found: dict[str, tuple[str, ...]] = {}
        for name, field in cls.model_fields.items():
            choices = field.validation_alias
            found[name] = (
                tuple(map(str, choices.choices)) if isinstance(choices, AliasChoices) else (field.alias or name,)
            )
        return found


class ClusterSettings(Section):
    """`source:` and `target:`: an alias and librdkafka's own names for the rest."""

    alias: TopicPart
    bootstrap_servers: Addresses = Field(alias="bootstrap.servers")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", alias="security.protocol"
    )
    sasl_mechanism: str | None = Field(
        default=None,
        validation_alias=AliasChoices("sasl.mechanism", "sasl.mechanisms"),
        serialization_alias="sasl.mechanism",
    )
    sasl_username: str | None = Field(default=None, alias="sasl.username")
    sasl_password: SecretStr | None = Field(default=None, alias="sasl.password")
    ssl_ca_location: str | None = Field(default=None, alias="ssl.ca.location")
    ssl_certificate_location: str | None = Field(default=None, alias="ssl.certificate.location")
    ssl_key_location: str | None = Field(default=None, alias="ssl.key.location")
    ssl_key_password: SecretStr | None = Field(default=None, alias="ssl.key.password")
    ssl_endpoint_identification_algorithm: Literal["none", "https"] | None = Field(
        default=None, alias="ssl.endpoint.identification.algorithm"
    )
    client_id: str | None = Field(default=None, alias="client.id")
    socket_timeout_ms: Whole | None = Field(default=None, alias="socket.timeout.ms", ge=10, le=300_000)

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """The addresses to try first, as (host, port)."""
        return tuple(parse_address(address) for address in self.bootstrap_servers.split(","))

    @property
    def client(self) -> dict[str, str | int]:
        """What was set, under librdkafka's names and with secrets in clear: for a constructor, never for a log."""
        values = self.model_dump(by_alias=True, exclude_none=True, exclude={"alias"})
        return {name: v.get_secret_value() if isinstance(v, SecretStr) else v for name, v in values.items()}


class Naming(Section):
    """The target's name for a source topic; `identity` is a naming with nothing set."""

    prefix: Prefix = ""
    rename: dict[TopicPart, TopicPart] = {}

    def target_of(self, topic: str) -> str:
        """The name on the target."""
        return self.rename.get(topic, self.prefix + topic)


def _some(patterns: tuple[re.Pattern[str], ...]) -> tuple[re.Pattern[str], ...]:
    if not patterns:
        raise ValueError("at least one pattern is needed")
    return patterns


def _naming(value: object) -> object:
    if value == "identity":
        return {}
    if not isinstance(value, Mapping | Naming) or (isinstance(value, Mapping) and len(value) != 1):
        raise ValueError('must be identity, {prefix: "..."} or {rename: {name: new-name}}')
    return value


class TopicRule(Section):
    """What is done differently for the topics that `match`."""

    match: Pattern
    rekey: str | None = None
    partitions: Whole | None = Field(default=None, ge=1)


class TopicSettings(Section):
    """Which topics are mirrored, to which names, from where."""

    include: Annotated[tuple[Pattern, ...], AfterValidator(_some)]
    exclude: tuple[Pattern, ...] = tuple(re.compile(pattern) for pattern in DEFAULT_EXCLUDE)
    naming: Annotated[Naming, BeforeValidator(_naming)] = Naming()
    offsets: Literal["preserve", "translate"] = "preserve"
    start: Start = "earliest"
    on_data_loss: Literal["stop", "continue"] = "stop"
    recompress: Literal["mirror", "target"] = "mirror"
    coalesce_bytes: Whole | None = Field(default=None, ge=1024)
    rules: tuple[TopicRule, ...] = ()


class GroupSettings(Section):
    """Consumer groups whose offsets follow (none where `include` is empty); seconds between two looks."""

    include: tuple[Pattern, ...] = (re.compile(".*"),)
    interval_s: Seconds = 1.0


class SyncSettings(Section):
    """What is kept equal besides records; seconds between two looks."""

    topics: bool = True
    configs: bool = True
    acls: bool = False
    interval_s: Seconds = 5.0


class LimitSettings(Section):
    """Bounds: bytes per second of the whole flow (None: unbounded), and buffer memory in MB."""

    bytes_per_second: Whole | None = Field(default=None, gt=0)
    memory_mb: Whole = Field(default=256, ge=16, le=1_000_000)


class MetricSettings(Section):
    """Where Prometheus would find the figures; None: nowhere."""

    listen: Address | None = None


class SparkSettings(Section):
    """Spark's master and settings; `lanes` None lets the planner choose; `epoch_s`: seconds one Spark job lasts."""

    master: str = "local[*]"
    conf: dict[str, PlainText] = {}
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
