"""The configuration: one YAML file, checked whole before anything starts.

Every problem is reported at once, each with its line, because a person who mends a file one error per run gives up.
Pydantic knows the values and YAML's node tree knows the lines (`yamltree`), so each complaint is looked up by its path.

- An unknown key is an error that names the nearest valid one; so are duplicate keys and YAML aliases.
- `${env:NAME}` and `${file:PATH}` (relative to the configuration file) may stand in any text value. Messages never show
  what a reference stands for; passwords may be given by reference only.
- Topic patterns are regular expressions that must match the whole name. They have at most 200 characters, and a repeat
  of a group that itself holds a repeat or an alternative, as in `(a+)*` or `(a|ab)*`, is refused (`names`).
- Without `exclude`, internal topics (`__.*`) and mirror's own (`mirror\\..*`) are excluded. A list replaces this one.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic import ValidationError as Invalid

from mirror import names, yamltree
from mirror.errors import ConfigError
from mirror.yamltree import Keys

DEFAULT_EXCLUDE = ("__.*", r"mirror\..*")
MAX_PATTERN = 200
MAX_FLOW_NAME = 200

_SECRET_KEYS = frozenset({"sasl.password", "ssl.key.password"})


# --- values -----------------------------------------------------------------------------------------------------------


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


def _addresses(text: str) -> str:
    for address in text.split(","):
        parse_address(address)
    return text


def _prefix(text: str) -> str:
    return _topic_part(text) if text.strip(".") else text  # "." alone is no topic, but a fair beginning of one


def _compile(value: object) -> re.Pattern[str]:
    value = value.pattern if isinstance(value, re.Pattern) else value
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATTERN:
        raise ValueError(f"a pattern must be text of 1 to {MAX_PATTERN} characters; put it in quotes")
    try:
        compiled = re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if names.has_nested_repeat(value):
        raise ValueError("a repeated group may not hold a repeat or an alternative, write it flat")
    return compiled


def _start(value: object) -> Literal["earliest", "latest"] | datetime:
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("must be earliest, latest or an ISO time such as 2026-01-31T12:00:00Z") from None
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    raise ValueError("must be earliest, latest or an ISO time such as 2026-01-31T12:00:00Z")


def _plain_text(value: object) -> object:
    """Spark and YAML disagree about what needs quotes: numbers and booleans become Spark's text for them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


FlowName = Annotated[str, Field(max_length=MAX_FLOW_NAME), AfterValidator(_topic_part)]
TopicPart = Annotated[str, Field(max_length=names.LONGEST), AfterValidator(_topic_part)]
Pattern = Annotated[re.Pattern[str], BeforeValidator(_compile)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


# --- models -----------------------------------------------------------------------------------------------------------


class Section(BaseModel):
    """A part of the file: frozen, with no keys beyond its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)


class ClusterSettings(Section):
    """`source:` and `target:`: an alias and librdkafka's own names for the rest."""

    alias: TopicPart
    bootstrap_servers: Annotated[str, AfterValidator(_addresses)] = Field(alias="bootstrap.servers")
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
    socket_timeout_ms: int | None = Field(default=None, alias="socket.timeout.ms", ge=10, le=300_000)

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

    prefix: Annotated[str, Field(max_length=names.LONGEST), AfterValidator(_prefix)] = ""
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
    partitions: int | None = Field(default=None, ge=1)


class TopicSettings(Section):
    """Which topics are mirrored, to which names, from where."""

    include: Annotated[tuple[Pattern, ...], AfterValidator(_some)]
    exclude: tuple[Pattern, ...] = tuple(re.compile(pattern) for pattern in DEFAULT_EXCLUDE)
    naming: Annotated[Naming, BeforeValidator(_naming)] = Naming()
    offsets: Literal["preserve", "translate"] = "preserve"
    start: Annotated[Literal["earliest", "latest"] | datetime, BeforeValidator(_start)] = "earliest"
    on_data_loss: Literal["stop", "continue"] = "stop"
    recompress: Literal["mirror", "target"] = "mirror"
    coalesce_bytes: int | None = Field(default=None, ge=1024)
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

    bytes_per_second: int | None = Field(default=None, gt=0)
    memory_mb: int = Field(default=256, ge=16)


class MetricSettings(Section):
    """Where Prometheus would find the figures; None: nowhere."""

    listen: Annotated[str, AfterValidator(_address)] | None = None


class SparkSettings(Section):
    """Spark's master and settings; `lanes` None lets the planner choose; `epoch_s`: seconds one Spark job lasts."""

    master: str = "local[*]"
    conf: dict[str, Annotated[str, BeforeValidator(_plain_text)]] = {}
    lanes: int | None = Field(default=None, ge=1, le=10_000)
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


# --- reading ----------------------------------------------------------------------------------------------------------


def load(path: str | Path) -> Settings:
    """Read and check a configuration file. `ConfigError` lists every problem as `file:line: where: what`."""
    path = Path(path)
    tree = yamltree.read(path)
    problems = [*tree.problems, *_careless(tree), *_inactive(tree.data)]
    settings = None
    try:
        settings = Settings.model_validate(tree.data)
    except Invalid as error:
        told = {where for where, _ in problems}  # a value that was complained of once needs no second complaint
        found = map(_explain, error.errors(include_url=False, include_input=False))
        problems += [(where, what) for where, what in found if where not in told]
    if settings is not None and not problems:
        return settings
    lines = sorted((tree.line(where), ".".join(map(str, where)), what) for where, what in problems)
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    told_lines = [f"  {path}:{line}: {where}: {what}" for line, where, what in lines]
    raise ConfigError("\n".join([f"{path}: {count}", *told_lines]))


def _careless(tree: yamltree.Tree) -> Iterator[tuple[Keys, str]]:
    """Values that are valid one by one and wrong all the same."""
    for side in ("source", "target"):
        for key in _SECRET_KEYS:
            raw = tree.raw.get((side, key))
            if raw and not yamltree.REFERENCE.fullmatch(raw):
                yield ((side, key), "a secret may not stand in this file; write ${env:NAME} or ${file:PATH}")
    alias = _at(tree.data, "source", "alias")
    if alias is not None and alias == _at(tree.data, "target", "alias"):
        yield (("target", "alias"), "the same as source.alias; the two clusters need different names")


def _inactive(data: object) -> Iterator[tuple[Keys, str]]:
    """What the format knows and the program cannot do yet: refused, so that no wish is dropped in silence."""
    for side in ("source", "target"):
        protocol = _at(data, side, "security.protocol") or "PLAINTEXT"
        if protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            yield ((side, "security.protocol"), f"{protocol} is not supported yet; only PLAINTEXT is")
        section = _at(data, side)
        for key in section if isinstance(section, dict) and protocol == "PLAINTEXT" else ():
            if key.startswith(("sasl.", "ssl.")) and key in _names(ClusterSettings):
                yield ((side, key), "has no effect with security.protocol PLAINTEXT; remove it")
    if _at(data, "topics", "start") not in (None, "earliest"):
        yield ("topics", "start"), "only earliest is supported yet"
    rules = _at(data, "topics", "rules")
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        for key in ("rekey", "partitions"):
            if _at(rule, key) is not None:
                yield (("topics", "rules", index, key), "rules are not supported yet; remove it")
    if _at(data, "limits", "bytes_per_second") is not None:
        yield ("limits", "bytes_per_second"), "is not supported yet; remove it"
    if _at(data, "sync", "acls") not in (None, False):
        yield ("sync", "acls"), "ACLs are not mirrored yet; set it to false"


def unserved(settings: Settings) -> Iterator[str]:
    """What was set, is valid, and has no effect yet or less than one may think: for a warning at each start."""
    if "interval_s" in settings.sync.model_fields_set:
        yield "sync.interval_s: topics and their configs are looked at when the mirror starts, and only then"
    for side, cluster in (("source", settings.source), ("target", settings.target)):
        for key, value in (("client.id", cluster.client_id), ("socket.timeout.ms", cluster.socket_timeout_ms)):
            if value is not None:
                yield f"{side}.{key}: holds where topics are looked at and created; the connections that copy ignore it"
    if settings.metrics.listen:
        yield f"metrics: nothing listens on {settings.metrics.listen} yet; `mirror status --json` has the figures"


def _at(data: object, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _explain(error: Any) -> tuple[Keys, str]:
    where: Keys = error["loc"]
    match error["type"]:
        case "missing":
            return where, "required, but not given"
        case "extra_forbidden":
            names = _names(_section_at(where[:-1]))
            near = difflib.get_close_matches(str(where[-1]), names, n=1, cutoff=0.5)
            return (
                where,
                f"unknown key; did you mean {near[0]}?" if near else f"unknown key; valid here: {', '.join(names)}",
            )
        case "value_error":
            return where, str(error["ctx"]["error"])
        case _:
            return where, str(error["msg"]).replace("Input should be", "must be")


def _section_at(where: Keys) -> type[Section]:
    """The model that reads the section at `where`."""
    section: type[Section] = Settings
    for key in where:
        for name, field in section.model_fields.items():
            if key in (name, field.alias):
                kinds = (field.annotation, *typing.get_args(field.annotation))
                section = next(
                    (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), section
                )
    return section


def _names(section: type[Section]) -> list[str]:
    """The keys a section may have, as written in the file."""
    names: list[str] = []
    for name, field in section.model_fields.items():
        choices = field.validation_alias
        names += map(str, choices.choices) if isinstance(choices, AliasChoices) else [field.alias or name]
    return names
