"""What the security settings of a cluster must have, each with the others: all of it known before anything starts."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirror.config import Settings, insecure, load
from mirror.driver.control import ControlAddress
from mirror.errors import ConfigError
from mirror.kafka.cluster import Endpoint
from mirror.spark.task import TaskAssignment

CANARY = "canary-7c1f"
USER = {"sasl.username": "alice", "sasl.password": "${env:CANARY}"}
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", **USER}
OIDC = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "mirror",
    "sasl.oauthbearer.client.secret": "${env:CANARY}",
    "sasl.oauthbearer.token.endpoint.url": "https://identity.example.org/token",
}
MUTUAL = {"security.protocol": "SSL", "ssl.certificate.location": "me.pem", "ssl.key.location": "me.key"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANARY", CANARY)
    for name in ("ca.pem", "me.pem", "me.key"):
        (tmp_path / name).touch(0o600)
    return tmp_path


def read(folder: Path, keys: dict[str, Any]) -> Settings:
    file = folder / "flow.yaml"
    source = {"alias": "eu", "bootstrap.servers": "a:1", **keys}
    target = {"alias": "us", "bootstrap.servers": "b:2"}
    file.write_text(yaml.safe_dump({"name": "f", "source": source, "target": target, "topics": {"include": ["a"]}}))
    return load(file)


def problems(folder: Path, keys: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, keys)
    assert CANARY not in str(caught.value)
    return [line.split("source.", 1)[1] for line in str(caught.value).splitlines()[1:]]


@pytest.mark.parametrize(
    "keys",
    [
        {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"},
        MUTUAL,
        SCRAM,
        {**SCRAM, "security.protocol": "SASL_PLAINTEXT"},
        OIDC,
        {**OIDC, "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:8080/token"},
    ],
)
def test_what_is_complete_is_taken(folder: Path, keys: dict[str, Any]) -> None:
    assert read(folder, keys).source.security_protocol == keys["security.protocol"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"ssl.ca.location": "ca.pem"}, "ssl.ca.location: has no effect with security.protocol PLAINTEXT; remove it"),
        ({**USER}, "sasl.password: has no effect with security.protocol PLAINTEXT; remove it"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism: required with SASL_SSL: PLAIN, SCRAM-SHA-256"),
        ({**SCRAM, "sasl.username": ""}, "sasl.username: required with SCRAM-SHA-512"),
        ({**SCRAM, "sasl.mechanism": "MD5"}, "sasl.mechanism: must be 'PLAIN', 'SCRAM-SHA-256', "),
        (
            {**SCRAM, "sasl.mechanism": "PLAIN", "security.protocol": "SASL_PLAINTEXT"},
            "security.protocol: PLAIN sends what proves who you are in clear: use SASL_SSL",
        ),
        ({**OIDC, **USER}, "sasl.username: has no effect with OAUTHBEARER; remove it"),
        ({**SCRAM, "sasl.oauthbearer.scope": "x"}, "sasl.oauthbearer.scope: has no effect with SCRAM-SHA-512"),
        (
            {key: value for key, value in OIDC.items() if "url" not in key},
            "sasl.oauthbearer.token.endpoint.url: required with OAUTHBEARER",
        ),
        (
            {**OIDC, "sasl.oauthbearer.token.endpoint.url": "http://identity.example.org/token"},
            "sasl.oauthbearer.token.endpoint.url: must begin with https://, since the client secret is sent there",
        ),
        (
            {**OIDC, "sasl.oauthbearer.token.endpoint.url": "https://me:it@identity.example.org/"},
            "sasl.oauthbearer.token.endpoint.url: must hold no user and no password",
        ),
        (
            {**OIDC, "sasl.oauthbearer.client.secret": "plain"},
            "sasl.oauthbearer.client.secret: a secret may not stand in this file",
        ),
        ({**MUTUAL, "ssl.key.location": ""}, "ssl.key.location: required with ssl.certificate.location"),
        ({"security.protocol": "SSL", "ssl.key.password": "${env:CANARY}"}, "ssl.key.location: required with ssl.key"),
        ({"socket.timeout.ms": 999}, "socket.timeout.ms: must be greater than or equal to 1000"),
    ],
)
def test_what_is_missing_void_or_unsafe_is_named(folder: Path, keys: dict[str, Any], expected: str) -> None:
    found = problems(folder, keys)
    assert any(problem.startswith(expected) for problem in found), found


def test_a_file_that_is_not_there_or_open_to_others_is_named_by_its_whole_path(folder: Path) -> None:
    (found,) = problems(folder, {"security.protocol": "SSL", "ssl.ca.location": "no.pem"})
    assert found == f"ssl.ca.location: {folder}/no.pem cannot be read: No such file or directory"
    assert read(folder, MUTUAL).source.ssl_key_location == f"{folder}/me.key"
    (folder / "me.key").chmod(0o640)
    (found,) = problems(folder, MUTUAL)
    assert found.endswith(f"is open to other users (mode 0640): chmod 600 {folder}/me.key")


def test_what_lowers_the_guard_is_said(folder: Path) -> None:
    assert list(insecure(read(folder, SCRAM).source)) == []
    (reported,) = insecure(read(folder, {**SCRAM, "ssl.endpoint.identification.algorithm": "none"}).source)
    assert reported.startswith("ssl.endpoint.identification.algorithm: none: any certificate of the CA is taken")
    (reported,) = insecure(read(folder, {**SCRAM, "security.protocol": "SASL_PLAINTEXT"}).source)
    assert reported.startswith("security.protocol: SASL_PLAINTEXT: records travel in clear")


@pytest.mark.parametrize("keys", [SCRAM, OIDC, {**MUTUAL, "ssl.key.password": "${env:CANARY}"}])
def test_a_task_carries_secrets_and_prints_none(folder: Path, keys: dict[str, Any]) -> None:
    """What Spark shows of a task, and a traceback of a frame, is the repr; the task itself still gets in."""
    settings = read(folder, keys)
    end = Endpoint.of(settings.source)
    task = TaskAssignment(
        flow="f",
        instance="i",
        number=0,
        source=end,
        target=end,
        assignments=(),
        seconds=60.0,
        memory_bytes=1,
        stop_mark=ControlAddress("127.0.0.1", 1, b""),
        so_far={},
    )
    carried = pickle.loads(pickle.dumps(task))  # noqa: S301 -- ours
    assert carried == task
    assert CANARY in "".join(map(str, carried.source.security.settings.client.values()))
    for shown in (task, carried, end, end.security, settings, copy.copy(settings.source)):
        assert CANARY not in f"{shown!r} {shown}"
