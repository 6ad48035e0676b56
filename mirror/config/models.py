"""The sections of a configuration as pydantic models, and the kinds of values that they hold."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from mirror import names

# --- The kinds of values that a configuration has, each with its own complaint ----------------------------------------

DEFAULT_EXCLUDE = ("__.*", r"mirror\..*")
#: Room for the longest name of a topic with every character escaped.
MAX_PATTERN = 2 * names.LONGEST
MAX_EXPRESSION = 10_000
MAX_FLOW_NAME = 200
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _topic_part(text: str) -> str:
    if not names.is_legal(text):
        raise ValueError("may hold letters, digits, '.', '_' and '-' only")
    return text


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` or `[IPv6]:port` as a pair; `ValueError` says what is wrong."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host:
        raise ValueError("each address must be host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address must stand in brackets, as in [::1]:9092")
    if not host or re.search(r"[\s\[\]/]", host):
        raise ValueError("each address must be host:port, without a scheme or spaces")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError("a port must be a number from 1 to 65535")
    return host, int(port)


def _address(text: str) -> str:
    parse_address(text)
    return text


def _listen(value: object) -> object:
    """A port alone is one of the loopback interface: figures are for everybody who can reach them."""
    is_port = isinstance(value, int) and not isinstance(value, bool)
    return f"127.0.0.1:{value}" if is_port or (isinstance(value, str) and value.isdigit()) else value


def _addresses(text: str) -> str:
    for address in text.split(","):
        parse_address(address)
    return text


def token_endpoint(text: str) -> str:
    """A URL that a client secret may be sent to; `ValueError` says what is wrong with another."""
    url = urlsplit(text)
    if not url.hostname or url.scheme not in ("https", "http"):
        raise ValueError("must be a URL such as https://identity.example.org/oauth2/token")
    if url.scheme == "http" and url.hostname not in _LOOPBACK:
        raise ValueError("must begin with https://, since the client secret is sent there")
    if url.username or url.password:
        raise ValueError("must hold no user and no password; use sasl.oauthbearer.client.id and client.secret")
    return text


def _prefix(text: str) -> str:
    return _topic_part(text) if text.strip(".") else text  # "." alone is no topic, but a fair beginning of one


_UNLIKE_JAVA: Final = "not the same to Java, which Kafka's tools are written in"


def _compile(value: object) -> re.Pattern[str]:
    value = value.pattern if isinstance(value, re.Pattern) else value
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATTERN:
        raise ValueError(f"a pattern must be text of 1 to {MAX_PATTERN} characters; put it in quotes")
    try:
        with warnings.catch_warnings(action="error", category=FutureWarning):
            compiled = re.compile(value, re.DOTALL)  # names of groups may hold line breaks
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from error
    except FutureWarning as warning:  # sets of sets, as Java has them
        raise ValueError(f"{_UNLIKE_JAVA}: {warning}") from warning
    if names.has_nested_set(value):
        raise ValueError(f"{_UNLIKE_JAVA}: a set of characters in another one; write \\[ for a bracket")
    if names.has_nested_repeat(value):
        raise ValueError("a repeated group may not hold a repeat or an alternative, write it flat")
    return compiled


def instant(value: object) -> datetime:
    """A time of ISO 8601, or a date for its midnight; UTC where it names no zone. `ValueError` for anything else."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    raise ValueError(f"{value!r} is not a time")


def _start(value: object) -> Literal["earliest", "latest"] | datetime:
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    try:
        return instant(value)
    except ValueError:
        raise ValueError("must be earliest, latest or an ISO time such as 2026-01-31T12:00:00Z") from None


def _plain_text(value: object) -> object:
    """Spark and YAML disagree about what needs quotes: numbers and booleans become Spark's text for them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not a yes or no")
    return value


def _expression(text: str) -> str:
    if not text.strip():
        raise ValueError("must be an expression of Spark SQL, such as get_json_object(string(value), '$.user')")
    return text


Expression = Annotated[str, Field(max_length=MAX_EXPRESSION), AfterValidator(_expression)]
FlowName = Annotated[str, Field(max_length=MAX_FLOW_NAME), AfterValidator(_topic_part)]
TopicPart = Annotated[str, Field(max_length=names.LONGEST), AfterValidator(_topic_part)]
Pattern = Annotated[re.Pattern[str], BeforeValidator(_compile)]
Whole = Annotated[int, BeforeValidator(_no_truth)]
Seconds = Annotated[float, Field(gt=0, le=86_400), BeforeValidator(_no_truth)]
Address = Annotated[str, AfterValidator(_address)]
Listen = Annotated[Address, BeforeValidator(_listen)]
Addresses = Annotated[str, AfterValidator(_addresses)]
Prefix = Annotated[str, Field(max_length=names.LONGEST), AfterValidator(_prefix)]
Start = Annotated[Literal["earliest", "latest"] | datetime, BeforeValidator(_start)]
#: How many replicas a new topic gets: as the target's brokers say, as many as the source topic has, or a number.
Replicas = Literal["target", "source"] | Annotated[int, Field(ge=1, le=100), BeforeValidator(_no_truth)]
PlainText = Annotated[str, BeforeValidator(_plain_text)]


# --- What every section of the configuration is -----------------------------------------------------------------------


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


# --- `source:` and `target:` ------------------------------------------------------------------------------------------

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]


class ClusterSettings(Section):
    """A cluster and how to connect to it, under librdkafka's names."""

    alias: TopicPart
    """Short name of the cluster, for messages; the two clusters need different ones."""
    bootstrap_servers: Addresses = Field(alias="bootstrap.servers")
    """Brokers to connect to first."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", alias="security.protocol"
    )
    """Protocol to talk to brokers."""
    sasl_mechanism: Mechanism | None = Field(
        default=None,
        validation_alias=AliasChoices("sasl.mechanism", "sasl.mechanisms"),
        serialization_alias="sasl.mechanism",
    )
    """SASL mechanism; required with SASL_PLAINTEXT and SASL_SSL."""
    sasl_username: str | None = Field(default=None, alias="sasl.username")
    """User name for PLAIN and SCRAM."""
    sasl_password: SecretStr | None = Field(default=None, alias="sasl.password")
    """Password for PLAIN and SCRAM."""
    sasl_kerberos_service_name: str | None = Field(default=None, alias="sasl.kerberos.service.name")
    """Kerberos service name of the brokers, for GSSAPI."""
    sasl_oauthbearer_method: Literal["oidc"] | None = Field(default=None, alias="sasl.oauthbearer.method")
    """How to get tokens for OAUTHBEARER: by the client-credentials grant."""
    sasl_oauthbearer_client_id: str | None = Field(default=None, alias="sasl.oauthbearer.client.id")
    """Client id at the identity provider."""
    sasl_oauthbearer_client_secret: SecretStr | None = Field(default=None, alias="sasl.oauthbearer.client.secret")
    """Client secret at the identity provider."""
    sasl_oauthbearer_token_endpoint_url: Annotated[str, AfterValidator(token_endpoint)] | None = Field(
        default=None, alias="sasl.oauthbearer.token.endpoint.url"
    )
    """Token endpoint of the identity provider; https, except on loopback."""
    sasl_oauthbearer_scope: str | None = Field(default=None, alias="sasl.oauthbearer.scope")
    """Scope to ask the identity provider for."""
    ssl_ca_location: str | None = Field(default=None, alias="ssl.ca.location")
    """PEM file or folder of trusted certificate authorities; by default the system's."""
    ssl_certificate_location: str | None = Field(default=None, alias="ssl.certificate.location")
    """PEM file of the client certificate, for mutual TLS."""
    ssl_key_location: str | None = Field(default=None, alias="ssl.key.location")
    """PEM file of the client certificate's private key."""
    ssl_key_password: SecretStr | None = Field(default=None, alias="ssl.key.password")
    """Password of the private key."""
    ssl_endpoint_identification_algorithm: Literal["none", "https"] | None = Field(
        default=None, alias="ssl.endpoint.identification.algorithm"
    )
    """`none` turns off the check of broker host names, and is warned of at each start."""
    client_id: str | None = Field(default=None, alias="client.id")
    """Client id in requests; brokers show it in logs and use it for quotas."""
    socket_timeout_ms: Whole | None = Field(default=None, alias="socket.timeout.ms", ge=1000, le=300_000)
    """Milliseconds to wait for an answer."""
    cluster_id: str | None = None
    """Id that the cluster must have, as `mirror plan` prints it: addresses that lead to another one are refused.
    Without it a mirror that runs keeps to the clusters that it found at its start.
    """

    differs_from: tuple[TopicPart, ...] | None = None
    """Aliases of other clusters that have the same cluster id, as one that was made of a copy of this one's disks. Not
    needed where topics have other ids there.
    """

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """The addresses to try first, as (host, port)."""
        return tuple(parse_address(address) for address in self.bootstrap_servers.split(","))

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether a connection begins with a proof of who we are."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def client(self) -> dict[str, str | int]:
        """What was set, under librdkafka's names and with secrets in clear: for a constructor, never for a log."""
        values = self.model_dump(by_alias=True, exclude_none=True, exclude={"alias", "cluster_id", "differs_from"})
        return {name: v.get_secret_value() if isinstance(v, SecretStr) else v for name, v in values.items()}


# --- The sections of a configuration, as pydantic models --------------------------------------------------------------


class Naming(Section):
    """Names of copies: one key or both; `identity` sets neither, so every copy has its source topic's name. A topic
    that the flow mirrors already gets another copy where `rename` lists it; where another prefix would give it one, it
    is refused.
    """

    prefix: Prefix = ""
    """Put this text in front of every source topic's name."""
    rename: dict[TopicPart, TopicPart] = Field(default_factory=dict)
    """Map source topic names to whole target topic names; a topic that is not listed is named as without it."""

    def target_of(self, topic: str) -> str:
        """The name on the target."""
        return self.rename.get(topic, self.prefix + topic)

    def source_of(self, copy: str) -> str:
        """The source topic whose name on the target this is, or would be."""
        renamed = {name: topic for topic, name in self.rename.items()}
        return renamed.get(copy, copy.removeprefix(self.prefix))


def _some(patterns: tuple[re.Pattern[str], ...]) -> tuple[re.Pattern[str], ...]:
    if not patterns:
        raise ValueError("at least one pattern is needed")
    return patterns


def _principals(value: object) -> object:
    """A list of patterns keeps the names; a map gives others."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(one, str | re.Pattern) for one in value):
        raise ValueError("each pattern of a list must be text, such as User:app without a space")
    return dict.fromkeys(value)


def _naming(value: object) -> object:
    if value == "identity":
        return {}
    if not isinstance(value, Mapping | Naming) or value == {}:
        raise ValueError('must be identity, {prefix: "..."}, {rename: {name: new-name}}, or one with both keys')
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
    may_compact: bool = False
    """Let the target topic be compacted by its own keys, so that it keeps the newest record of each alone, also where
    the source keeps more: by the keys that `rekey` gives, or where the source is not compacted.
    """

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
    exclude: tuple[Pattern, ...] = tuple(map(_compile, DEFAULT_EXCLUDE))
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
    replication_factor: Replicas = "target"
    """Replicas of topics that the mirror creates. `target`: the target brokers' `default.replication.factor`, and at
    least their `min.insync.replicas`. `source`: as many as the source topic has. Or a number.
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
    """What to do with a record that exceeds `max.message.bytes` of the target topic, or what the target's brokers take
    as one request (`socket.request.max.bytes`). `skip` leaves out that record alone and records the loss, unless the
    mirror is about to raise the topic's limit to the source's.
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

    include: tuple[Pattern, ...] = (_compile(".*"),)
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
    log_start: Literal["keep", "follow"] = "keep"
    """`follow` deletes from a copy what its source deleted below its log start (DeleteRecords, retention), never beyond
    what was mirrored. `keep` leaves that to the copy's own retention.
    """
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
    max_delay_ms: Whole = Field(default=5, ge=0, le=1_000)
    """Milliseconds that a record may wait for others, so that one request carries what trickles into many partitions.
    A record that comes alone does not wait.
    """


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
    tasks: Whole | None = Field(default=None, ge=1, le=10_000)
    """Number of tasks that copy at the same time; `null`: chosen by the planner."""
    epoch_s: Seconds = 60.0
    """Seconds after which the plan is made again; where it changes, a new Spark job begins."""


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

    def keeping_to(self, source_id: str | None, target_id: str | None) -> Self:
        """The same for these two clusters alone, wherever their addresses lead later on; None and empty for an id that
        is not known.
        """
        source, target = (
            cluster_settings.model_copy(update={"cluster_id": cluster_settings.cluster_id or known or None})
            for cluster_settings, known in ((self.source, source_id), (self.target, target_id))
        )
        return self.model_copy(update={"source": source, "target": target})
