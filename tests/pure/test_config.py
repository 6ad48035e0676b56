"""The configuration file: what is read, and how each mistake is reported."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from mirror.config import ClusterSettings, Settings, TopicSettings, load
from mirror.config.models import Section
from mirror.config.reading import check
from mirror.config.yaml_tree import YamlTree, line_of
from mirror.errors import ConfigError, ExitCode

Load = Callable[[str], Settings]

SMALLEST = """\
name: eu-to-us
source: {alias: eu, bootstrap.servers: "a:1"}
target: {alias: us, bootstrap.servers: "b:2,[::1]:9092"}
topics: {include: [orders]}
"""


@pytest.fixture
def load_text(tmp_path: Path) -> Load:
    def read(text: str) -> Settings:
        file = tmp_path / "flow.yaml"
        file.write_text(text, encoding="utf-8")
        return load(file)

    return read


def problems(load_text: Load, text: str) -> list[str]:
    """The reported problems, each as `line: where: what`."""
    with pytest.raises(ConfigError) as caught:
        load_text(text)
    assert caught.value.exit_code is ExitCode.USAGE
    head, *rest = str(caught.value).splitlines()
    assert re.search(rf"flow\.yaml: {len(rest)} problems?$", head)
    return [line.split("flow.yaml:", 1)[1] for line in rest]


def test_defaults(load_text: Load) -> None:
    settings = load_text(SMALLEST)
    assert settings.flow == "eu-to-us"
    assert settings.source.alias == "eu"
    assert settings.target.bootstrap == (("b", 2), ("::1", 9092))
    assert settings.source.client == {"bootstrap.servers": "a:1", "security.protocol": "PLAINTEXT"}
    assert [pattern.pattern for pattern in settings.topics.exclude] == ["__.*", r"mirror\..*"]
    assert (settings.topics.offsets, settings.topics.start, settings.topics.on_data_loss) == (
        "preserve",
        "earliest",
        "stop",
    )
    assert settings.topics.naming.target_of("orders") == "orders"
    assert (settings.spark.master, settings.spark.tasks, settings.spark.epoch_s) == ("local[*]", None, 60)
    assert (settings.limits.bytes_per_second, settings.limits.memory_mb) == (None, 256)
    assert settings.metrics.listen is None
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 -- made one line above


@pytest.mark.parametrize(
    ("naming", "expected"),
    [
        ("identity", {"orders": "orders"}),
        ('{prefix: "eu."}', {"orders": "eu.orders"}),
        ("{rename: {orders: copy}}", {"orders": "copy", "clicks": "clicks"}),
        ("{prefix: eu., rename: {orders: copy}}", {"orders": "copy", "clicks": "eu.clicks"}),
    ],
)
def test_naming(load_text: Load, naming: str, expected: dict[str, str]) -> None:
    topics = load_text(SMALLEST.replace("[orders]", f"[orders], naming: {naming}")).topics
    assert {name: topics.naming.target_of(name) for name in expected} == expected


def test_all_problems_at_once_each_with_its_line(load_text: Load) -> None:
    assert problems(
        load_text,
        """\
name: eu/us
source:
  alias: eu
  bootstrap.server: "a:1"
target:
  alias: eu
  bootstrap.servers: "::1:9092"
topics:
  include:
    - orders
    - "(a+)*"
    - no
  excude: []
limits: {memory_mb: lots}
zzz: 1
""",
    ) == [
        "1: name: may hold letters, digits, '.', '_' and '-' only",
        "2: source.bootstrap.servers: required, but not given",
        "4: source.bootstrap.server: unknown key; did you mean bootstrap.servers?",
        "6: target.alias: the same as source.alias; the two clusters need different names",
        "7: target.bootstrap.servers: an IPv6 address must stand in brackets, as in [::1]:9092",
        "11: topics.include.1: a repeated group may not hold a repeat or an alternative, write it flat",
        "12: topics.include.2: a pattern must be text of 1 to 498 characters; put it in quotes",
        "13: topics.excude: unknown key; did you mean exclude?",
        "14: limits.memory_mb: must be a valid integer, unable to parse string as an integer",
        "15: zzz: unknown key; valid here: name, source, target, topics, groups, sync, limits, metrics, spark",
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("name: eu-to-us", "name: ..", "1: name: may hold"),
        ("name: eu-to-us", f"name: {'x' * 201}", "1: name: String should have at most 200 characters"),
        ("[orders]", "[]", "4: topics.include: at least one pattern is needed"),
        ("[orders]", "['(']", "4: topics.include.0: not a regular expression: missing )"),
        ("[orders]", "['[a-z&&[^bc]]+']", "4: topics.include.0: not the same to Java"),
        ("[orders]", "['x-[0-9[a-f]]+']", "4: topics.include.0: not the same to Java"),
        ("[orders]", "[a], naming: {rename: {a: 'b c'}}", "4: topics.naming.rename.a: may hold"),
        (
            "topics:",
            "sync: {acl_principals: [User: app]}\ntopics:",
            "4: sync.acl_principals: each pattern of a list must be",
        ),
        ('"a:1"}', '"a:1", security.protocol: SASL_SSL, sasl.mechanism: [PLAIN]}', "2: source.sasl.mechanism: must be"),
        ("[orders]", "[a], offsets: keep", "4: topics.offsets: must be 'preserve' or 'translate'"),
        ('"a:1"', '"a:0"', "2: source.bootstrap.servers: a port must be a number from 1 to 65535"),
        ("topics:", "spark: {epoch_s: .inf}\ntopics:", "4: spark.epoch_s: "),
        ("topics:", "metrics: {listen: 'here'}\ntopics:", "4: metrics.listen: each address must be host:port"),
        (
            "[orders]",
            "[a], start: yesterday",
            "4: topics.start: must be earliest, latest or an ISO time such as 2026-01",
        ),
        ("[orders]", "[a], rules: [{match: a}]", "4: topics.rules.0: does nothing: give it rekey, partitions, where"),
        (
            "[orders]",
            "[a], rules: [{match: a, partitions: 0}]",
            "4: topics.rules.0.partitions: must be greater than or",
        ),
        ("[orders]", "[a], rules: [{match: a, rekey: ' '}]", "4: topics.rules.0.rekey: must be an expression of Spark"),
        (
            "[orders]",
            "[a], rules: [{match: a, partitions: 2, on_bad_record: dead-letter}]",
            "4: topics.rules.0: on_bad_record: dead-letter and dead_letter, a topic of the target, go together",
        ),
        ("topics:", "limits: {bytes_per_second: 0}\ntopics:", "4: limits.bytes_per_second: must be greater than 0"),
        ("topics:", "limits: &l {memory_mb: *l}\ntopics:", "4: limits.memory_mb: YAML aliases are not supported"),
        ("topics:", "name: again\ntopics:", "1: name: given twice, again on line 4"),
        ("topics:", "? [a]\n: b\ntopics:", "1: : the key on line 4 must be plain text"),
    ],
)
def test_each_mistake_is_named_with_its_line(load_text: Load, old: str, new: str, expected: str) -> None:
    assert old in SMALLEST
    found = problems(load_text, SMALLEST.replace(old, new, 1))
    assert any(problem.startswith(expected) for problem in found), found


def places(section: type[Section] = Settings, where: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key that a configuration may have, with those around it."""
    for name, keys in section.keys().items():
        kinds = (section.model_fields[name].annotation, *get_args(section.model_fields[name].annotation))
        yield from ((*where, key) for key in keys)
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Section):
                yield from places(kind, (*where, keys[0]))


def with_value(where: tuple[str, ...], value: str) -> str:
    """A configuration with this value, as YAML, at one place."""
    data: dict[str, Any] = {"source": {"security.protocol": "SASL_SSL"}}
    at = data
    for key in where[:-1]:
        at = at.setdefault(key, [{}])[0] if key == "rules" else at.setdefault(key, {})
    at[where[-1]] = "the value"
    return line_of(data).replace('"the value"', value)


@pytest.mark.parametrize(
    "value",
    "{a: b}|[a: b]|[[a]]|{a: {b: c}}|{a: [b]}|{'(': b}|[null]|!!binary YQ==|!!set {a}|2026-01-31|.nan|'[::1'|'https://['"
    f"|{'9' * 5000}".split("|"),
)
def test_any_value_of_any_key_is_taken_or_refused_by_name(value: str) -> None:
    """A list with a map in it, by one blank too many, ended a running mirror with a trace when it was read again."""
    every = list(places())
    assert len(every) > 70
    for where in every:
        check(YamlTree(with_value(where, value), Path()), Path())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: the file must hold keys"),
        ("a: [", "1: expected the node content"),
        ("a: !!python/object:os.system x", "1: could not determine a constructor"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_what_is_no_configuration_at_all(load_text: Load, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
        load_text(text)
    assert "flow.yaml" in str(caught.value)


def test_references(load_text: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EU_HOST", "eu.example")
    monkeypatch.setenv("MEMORY", "512")
    (tmp_path / "port").write_text("9093\n", encoding="utf-8")
    (tmp_path / "alias").write_text("europe\r\n", encoding="utf-8")
    text = (
        SMALLEST.replace(
            'alias: eu, bootstrap.servers: "a:1"',
            'alias: "${file:alias}", bootstrap.servers: "${env:EU_HOST}:${file:port}"',
        )
        + 'limits: {memory_mb: "${env:MEMORY}"}\n'
    )
    settings = load_text(text)
    assert settings.source.bootstrap == (("eu.example", 9093),)
    assert settings.source.alias == "europe"
    assert settings.limits.memory_mb == 512


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("${env:MIRROR_NO_SUCH}", "environment variable MIRROR_NO_SUCH is not set"),
        ("${file:no-such}", "file no-such cannot be read: No such file or directory"),
        ("${secret:x}", "unknown reference ${secret:x}; write ${env:NAME} or ${file:PATH}"),
        ("${file:a\\0b}", "holds U+0000, which no name or setting can hold"),
        ("${file:nul}", "holds U+0000, which no name or setting can hold"),
    ],
)
def test_a_reference_that_fails_is_one_problem(load_text: Load, tmp_path: Path, reference: str, expected: str) -> None:
    (tmp_path / "nul").write_bytes(b"a\0b:1")
    (problem,) = problems(load_text, SMALLEST.replace('"a:1"', f'"{reference}"'))
    assert problem.startswith(f"2: source.bootstrap.servers: {expected}")


def test_secrets_stay_secret(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EU_PASSWORD", "hunter2-from-env")
    text = SMALLEST.replace('"a:1"}', '"a:1", sasl.password: hunter2, ssl.key.password: "${env:EU_PASSWORD}"}')
    found = "\n".join(problems(load_text, text))
    assert "source.sasl.password: a secret may not stand in this file; write ${env:NAME} or ${file:PATH}" in found
    assert "source.ssl.key.password: a secret" not in found
    assert "hunter2" not in found


def test_no_resolved_value_is_printed(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAK", "hunter2 ( [")
    everywhere = (
        SMALLEST.replace("eu-to-us", "'${env:LEAK}'").replace("a:1", "${env:LEAK}").replace("eu,", "'${env:LEAK}',")
    )
    everywhere = everywhere.replace("[orders]", "['${env:LEAK}'], naming: '${env:LEAK}', offsets: '${env:LEAK}'")
    found = problems(load_text, everywhere + "limits: {memory_mb: '${env:LEAK}'}\nmetrics: {listen: '${env:LEAK}'}\n")
    assert len(found) == 8, found
    assert "hunter2" not in "\n".join(found)


def test_secrets_reach_the_client_and_nobody_else() -> None:
    given = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.username": "me",
        "sasl.password": "hunter2",
        "socket.timeout.ms": 3000,
    }
    cluster = ClusterSettings.model_validate({"alias": "eu", **given, "sasl.mechanisms": "SCRAM-SHA-512"})
    assert cluster.client == {**given, "sasl.mechanism": "SCRAM-SHA-512"}
    assert "hunter2" not in f"{cluster!r} {cluster} {cluster.model_dump_json()}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("latest", "latest"),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_start(load_text: Load, given: str, expected: object) -> None:
    assert load_text(SMALLEST.replace("[orders]", f"[a], start: {given}")).topics.start == expected


@pytest.mark.parametrize("pattern", ["(a+)*", "(a|ab)+", "((a*)b){2,}", "(?:a?)*", "(?P<n>x{2}){3}", "x(.*,)*y"])
def test_patterns_that_may_never_end_are_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match="write it flat"):
        TopicSettings.model_validate({"include": [pattern]})
