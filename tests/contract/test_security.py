"""Every way into a cluster, on real listeners: the right one opens, and each wrong one is refused by its name."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

import pytest
from certificates import Authority
from secured import USERS, Guarded
from webserver import send, serving

from mirror.config import ClusterSettings
from mirror.errors import ClusterError, ClusterUnreachable, ConnectionLost, NotAuthenticated
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import Cluster, Endpoint
from mirror.kafka.connection import Connection
from mirror.kafka.protocol import METADATA

pytest_plugins = ["guardedbroker"]

ALICE: Final = {"sasl_username": "alice", "sasl_password": USERS["alice"]}


def reached(found: ClusterSettings) -> str:
    """Return the cluster's id, as tasks learn it."""

    async def asked() -> str:
        async with Cluster(Endpoint.of(found)) as wire:
            await wire.refresh()
            return wire.cluster_id or ""

    return asyncio.run(asked())


def refused(found: ClusterSettings) -> ClusterError:
    """Return the error, which tasks and administration give."""
    with pytest.raises(ClusterError) as by_wire:
        reached(found)
    with pytest.raises(ClusterError) as by_admin:
        Admin(found).cluster_id()
    assert type(by_admin.value) is type(by_wire.value)
    us = f"cluster us ({found.bootstrap_servers}): "
    assert str(by_admin.value) == f"{us}cannot read the cluster's id: {str(by_wire.value).removeprefix(us)}"
    return by_wire.value


# --- ways in ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "protocol", "keys"),
    [
        ("TLS", "SSL", {}),
        ("SCRAM", "SASL_SSL", {"sasl_mechanism": "SCRAM-SHA-256", **ALICE}),
        ("SHA512", "SASL_SSL", {"sasl_mechanism": "SCRAM-SHA-512", **ALICE}),
        ("PLAIN", "SASL_SSL", {"sasl_mechanism": "PLAIN", **ALICE}),
        ("OPEN", "SASL_PLAINTEXT", {"sasl_mechanism": "SCRAM-SHA-256", **ALICE}),
        ("ELSEWHERE", "SSL", {"ssl_endpoint_identification_algorithm": "none"}),
    ],
)
def test_a_way_in(guarded_cluster: Guarded, listener: str, protocol: str, keys: dict[str, str]) -> None:
    found = guarded_cluster.by(listener, protocol, **keys)
    assert reached(found) == Admin(found).cluster_id() == guarded_cluster.cluster.cluster_id


@pytest.mark.parametrize(
    ("listener", "protocol", "why"),
    [
        ("ELSEWHERE", "SSL", "its certificate is for another address: connect by a name in its subjectAltName"),
        ("EXPIRED", "SSL", "its certificate has expired: renew it"),
        ("UNKNOWN", "SSL", "its certificate is of a CA that ssl.ca.location does not hold"),
        ("SELFMADE", "SSL", "its certificate is self-signed: have a CA sign it"),
        ("MUTUAL", "SSL", "it wants a client certificate that it trusts: set ssl.certificate.location"),
        ("PLAINTEXT", "SSL", "does it speak TLS? Compare the port and security.protocol"),
        ("TLS", "PLAINTEXT", "it speaks TLS: set security.protocol to SSL or SASL_SSL"),
    ],
)
def test_a_bad_peer_is_refused_by_name(guarded_cluster: Guarded, listener: str, protocol: str, why: str) -> None:
    error = refused(guarded_cluster.by(listener, protocol))
    assert isinstance(error, ClusterUnreachable)
    assert why in str(error)


@pytest.mark.parametrize(
    ("listener", "keys", "why"),
    [
        (
            "SCRAM",
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "alice", "sasl_password": "not-hers"},
            "invalid credentials with SASL mechanism SCRAM-SHA-256. Check sasl.username and sasl.password",
        ),
        (
            "PLAIN",
            {"sasl_mechanism": "PLAIN", "sasl_username": "mallory", "sasl_password": "guessed"},
            "PLAIN was refused: Authentication failed: Invalid username or password. Check sasl.username",
        ),
        ("SHA512", {"sasl_mechanism": "SCRAM-SHA-256", **ALICE}, "set sasl.mechanism to one of: SCRAM-SHA-512"),
        ("TLS", {"sasl_mechanism": "SCRAM-SHA-256", **ALICE}, "its listener asks for no SASL"),
    ],
)
def test_a_login_that_is_refused_is_named_without_its_password(
    guarded_cluster: Guarded, listener: str, keys: dict[str, str], why: str
) -> None:
    error = refused(guarded_cluster.by(listener, "SASL_SSL", **keys))
    assert isinstance(error, NotAuthenticated)
    assert why in str(error)
    assert keys["sasl_password"] not in str(error)


def test_files_are_read_again_when_they_change(guarded_cluster: Guarded, tmp_path: Path) -> None:
    """A renewed certificate serves the next connection of a running mirror."""
    stranger = Authority(tmp_path, "stranger").issue("client")
    found = guarded_cluster.by_files(stranger.certificate, stranger.key)
    endpoint = Endpoint.of(found)

    async def asked() -> str | None:
        async with Cluster(endpoint) as wire:
            await wire.refresh()
            return wire.cluster_id

    with pytest.raises(ClusterUnreachable, match=r"refuses the client certificate|wants a client certificate"):
        asyncio.run(asked())
    for new, old in (("ours.pem", stranger.certificate), ("ours.key", stranger.key)):
        shutil.copyfile(guarded_cluster.folder / new, tmp_path / "renewed")
        (tmp_path / "renewed").replace(old)
    assert asyncio.run(asked()) == guarded_cluster.cluster.cluster_id
    stranger.key.unlink()
    with pytest.raises(ClusterUnreachable, match=rf"{stranger.key}: No such file or directory. Check the files"):
        asyncio.run(asked())


@pytest.mark.parametrize("user", ["alice", "mallory"])
def test_a_session_is_renewed_among_requests_or_ends_its_connection(guarded_cluster: Guarded, user: str) -> None:
    """KIP-368. The request that sets it off goes ahead; those behind are held, and answered in their order, or fail
    with the connection.
    """
    found = guarded_cluster.by("RENEWED", "SASL_SSL", sasl_mechanism="SCRAM-SHA-256", **ALICE)
    names = [f"no-such-topic-{number}" for number in range(5)]

    async def asked() -> list[Any]:
        async with Cluster(Endpoint.of(found)) as wire:
            await wire.refresh()
            connection = await wire.connection(0)
            connection._security = Endpoint.of(found.model_copy(update={"sasl_username": user})).security
            connection._renew_at = 0.0
            sent = [connection.send(METADATA, _metadata_of(connection, names[0]))]
            while connection._held is None:
                await asyncio.sleep(0)
            sent += [connection.send(METADATA, _metadata_of(connection, name)) for name in names[1:]]
            answers: list[Any] = await asyncio.gather(*sent, return_exceptions=True)
            assert connection.is_open == (user == "alice")
            return answers

    first, *others = asyncio.run(asked())
    assert first.topics[0].name == names[0]
    if user == "alice":
        assert [one.topics[0].name for one in others] == names[1:]
        return
    for problem in others:
        assert isinstance(problem, ConnectionLost)
        assert "the session could not be renewed: SCRAM-SHA-256 was refused" in str(problem)


def _metadata_of(connection: Connection, topic: str) -> Any:
    version = connection.version(METADATA)
    named = METADATA.schema(version, "request").MetadataRequestTopic
    return METADATA.request(version)(
        topics=(named(topic_id=None, name=topic),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


class Provider:
    """An identity provider on loopback, whose tokens are unsigned: what Kafka's own unsecured validator takes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.status, self.seconds, self.url = 200, 3600, ""

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self.asked.append((handler.headers["Authorization"], body.decode()))
        send(handler, json.dumps({"access_token": self.token(), "expires_in": self.seconds}).encode(), self.status)

    def token(self) -> str:
        now = int(time.time())
        claims = {"sub": "alice", "iat": now, "exp": now + self.seconds, "scope": "kafka"}
        parts = [
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in ({"alg": "none"}, claims)
        ]
        return ".".join(parts) + "."


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()
    with serving(found.answer) as found.url:
        yield found


def test_tokens_come_from_an_identity_provider(guarded_cluster: Guarded, provider: Provider) -> None:
    keys = {
        "sasl_oauthbearer_method": "oidc",
        "sasl_oauthbearer_client_id": "mirror",
        "sasl_oauthbearer_client_secret": "between-us-two",
        "sasl_oauthbearer_token_endpoint_url": provider.url,
        "sasl_oauthbearer_scope": "kafka",
    }
    found = guarded_cluster.by("OAUTH", "SASL_SSL", sasl_mechanism="OAUTHBEARER", **keys)
    assert reached(found) == guarded_cluster.cluster.cluster_id
    for authorization, body in provider.asked:
        assert base64.b64decode(authorization.removeprefix("Basic ")) == b"mirror:between-us-two"
        assert "grant_type=client_credentials" in body
    asked = len(provider.asked)
    assert reached(found) == guarded_cluster.cluster.cluster_id
    assert len(provider.asked) == asked, "the process keeps a token for all its connections"
    for other, status, seconds, why in (
        ("second", 401, 3600, "gives no token to second: HTTP 401. Check sasl.oauthbearer.client.id"),
        ("third", 200, -60, "OAUTHBEARER was refused"),
    ):
        provider.status, provider.seconds = status, seconds
        error = refused(found.model_copy(update={"sasl_oauthbearer_client_id": other}))
        assert isinstance(error, NotAuthenticated)
        assert why in str(error)
        assert "between-us-two" not in str(error)
