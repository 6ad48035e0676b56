"""Every way into a cluster, on real listeners: the right one opens, and each wrong one is refused by its name."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from secured import SESSION_MS, USERS, every_way_in, settings

from mirror.config import ClusterSettings
from mirror.errors import ClusterError, ClusterUnreachable, ConnectionLost, NotAuthenticated
from mirror.kafka.admin import Admin
from mirror.kafka.auth import Scram
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint
from mirror.kafka.connection import Connection
from mirror.kafka.protocol import METADATA
from mirror.lab.embedded import Cluster, start_many
from mirror.lab.embedded.node import Authority, Certificate

pytestmark = pytest.mark.brokers

ALICE = {"sasl_username": "alice", "sasl_password": USERS["alice"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the authorities `ca` and `second`, and what they vouch for."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    (found,) = start_many([every_way_in(folder)])
    with found:
        yield found


def by(cluster: Cluster, folder: Path, listener: str, protocol: str = "SSL", **keys: str) -> ClusterSettings:
    """Settings for a listener, whose authority is trusted unless `keys` say otherwise."""
    ca = {"ssl_ca_location": str(folder / ("ca.pem" if listener in {"TLS", "SCRAM"} else "second.pem"))}
    at = cluster.bootstrap if listener == "PLAINTEXT" else cluster.bootstrap_by(listener)
    return settings(at, security_protocol=protocol, **((ca if "SSL" in protocol else {}) | keys))


def reached(found: ClusterSettings) -> str:
    """The cluster's id, as both of our clients learn it."""

    async def asked() -> str:
        async with Wire(Endpoint.of(found)) as wire:
            await wire.refresh()
            return wire.cluster_id or ""

    by_wire = asyncio.run(asked())
    assert Admin(found).cluster_id() == by_wire
    return by_wire


def refused(found: ClusterSettings) -> ClusterError:
    """The error, which both clients give."""
    with pytest.raises(ClusterError) as by_wire:
        reached(found)
    with pytest.raises(ClusterError) as by_admin:
        Admin(found).cluster_id()
    assert type(by_admin.value) is type(by_wire.value)
    us = f"cluster us ({found.bootstrap_servers}): "
    assert str(by_wire.value).startswith(us)
    assert str(by_admin.value) == f"{us}cannot read the cluster's id: {str(by_wire.value).removeprefix(us)}"
    return by_wire.value


# --- what opens ------------------------------------------------------------------------------------------------------


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
def test_a_way_in(cluster: Cluster, folder: Path, listener: str, protocol: str, keys: dict[str, str]) -> None:
    assert reached(by(cluster, folder, listener, protocol, **keys)) == cluster.cluster_id


@pytest.fixture(scope="module")
def ours(cluster: Cluster, folder: Path) -> Certificate:
    """A client certificate that the listener MUTUAL trusts; `cluster` has made it."""
    assert cluster.nodes
    return Certificate(folder / "ours.pem", folder / "ours.key", folder / "ours-both.pem")


def mutual(cluster: Cluster, folder: Path, shown: Certificate) -> ClusterSettings:
    files = {"ssl_certificate_location": str(shown.certificate), "ssl_key_location": str(shown.key)}
    return by(cluster, folder, "MUTUAL", **files)


def test_both_sides_show_a_certificate(cluster: Cluster, folder: Path, ours: Certificate) -> None:
    assert reached(mutual(cluster, folder, ours)) == cluster.cluster_id


def test_files_are_read_again_when_they_change(
    cluster: Cluster, folder: Path, ours: Certificate, tmp_path: Path
) -> None:
    """The same settings, as a running mirror has them: a renewed certificate serves the next connection."""
    stranger = Authority(tmp_path, "stranger").issue("client")
    found = mutual(cluster, folder, stranger)
    endpoint = Endpoint.of(found)

    async def asked() -> str | None:
        async with Wire(endpoint) as wire:
            await wire.refresh()
            return wire.cluster_id

    with pytest.raises(ClusterUnreachable, match=r"refuses the client certificate|wants a client certificate"):
        asyncio.run(asked())
    for new, old in ((ours.certificate, stranger.certificate), (ours.key, stranger.key)):
        shutil.copyfile(new, tmp_path / "renewed")
        (tmp_path / "renewed").replace(old)
    assert asyncio.run(asked()) == cluster.cluster_id
    stranger.key.unlink()
    with pytest.raises(ClusterUnreachable, match=rf"{stranger.key}: No such file or directory. Check the files"):
        asyncio.run(asked())


# --- what does not ---------------------------------------------------------------------------------------------------


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
def test_a_bad_peer_is_refused_by_name(cluster: Cluster, folder: Path, listener: str, protocol: str, why: str) -> None:
    error = refused(by(cluster, folder, listener, protocol))
    assert isinstance(error, ClusterUnreachable)
    assert why in str(error)


@contextmanager
def old_server(certificate: Certificate) -> Iterator[int]:
    """The port of a TLS server of 2006; whatever it is asked, it never gets to answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.load_cert_chain(certificate.certificate, certificate.key)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1

    def serve() -> None:
        with suppress(OSError):
            while True:
                accepted, _ = listening.accept()
                with suppress(ssl.SSLError, ConnectionError), context.wrap_socket(accepted, server_side=True):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_peer_that_speaks_nothing_newer_than_tls_1_1(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    with old_server(ca.issue("old")) as port:
        found = settings(f"127.0.0.1:{port}", security_protocol="SSL", ssl_ca_location=str(ca.pem))
        assert "it speaks no TLS from 1.2 on" in str(refused(found))


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
def test_a_login_that_is_refused(cluster: Cluster, folder: Path, listener: str, keys: dict[str, str], why: str) -> None:
    error = refused(by(cluster, folder, listener, "SASL_SSL", **keys))
    assert isinstance(error, NotAuthenticated)
    assert why in str(error)
    assert keys["sasl_password"] not in str(error)


def test_a_listener_that_asks_for_a_login_which_nobody_configured(cluster: Cluster, folder: Path) -> None:
    """Such a broker answers the first question that every client has, and hangs up at the next one."""
    found = by(cluster, folder, "SCRAM", "SSL")

    async def asked() -> None:
        connection = await Connection.open(found.bootstrap[0], Endpoint.of(found).security)
        await connection.call(METADATA, metadata_request(connection, "any"), 30)

    with pytest.raises(ConnectionLost, match=r"its listener asks for SASL \(security.protocol\)"):
        asyncio.run(asked())


# --- the broker's proof ----------------------------------------------------------------------------------------------


def test_a_broker_that_does_not_know_the_password_is_distinguished_from_one_that_does() -> None:
    """SCRAM works both ways: whoever takes any password in proves nothing."""
    from scramp import ScramMechanism

    for known, is_right in (("the password", True), ("another", False)):
        mechanism = ScramMechanism("SCRAM-SHA-256")
        stored = mechanism.make_auth_info(known)
        server = mechanism.make_server(lambda _, stored=stored: stored)
        client = Scram("SCRAM-SHA-256", "alice", SecretStr("the password"))
        server.set_client_first(client.begin().decode())
        final = client.reply(server.get_server_first().encode())
        assert final
        if is_right:
            server.set_client_final(final.decode())
            assert client.reply(server.get_server_final().encode()) is None
        else:
            forged = base64.b64encode(b"\0" * 32)
            with pytest.raises(NotAuthenticated, match="the broker's part is wrong"):
                client.reply(b"v=" + forged)


def test_a_nonce_that_is_not_ours_is_refused() -> None:
    client = Scram("SCRAM-SHA-256", "alice", SecretStr("x"))
    client.begin()
    with pytest.raises(NotAuthenticated, match="the broker's part is wrong"):
        client.reply(b"r=somebody-elses,s=" + base64.b64encode(b"salt" * 4) + b",i=4096")


@pytest.mark.parametrize("iterations", [1, 100, 4095, 5_000_000])
def test_a_proof_that_is_easily_guessed_from_is_not_given(iterations: int) -> None:
    client = Scram("SCRAM-SHA-256", "alice", SecretStr("x"))
    nonce = client.begin().decode().rpartition("r=")[2]
    salt = base64.b64encode(b"salt" * 4).decode()
    with pytest.raises(NotAuthenticated, match=f"asks for {iterations} iterations|must not be < 4096"):
        client.reply(f"r={nonce}broker,s={salt},i={iterations}".encode())


# --- sessions --------------------------------------------------------------------------------------------------------


def metadata_request(connection: Connection, topic: str) -> Any:
    version = connection.version(METADATA)
    named = METADATA.schema(version, "request").MetadataRequestTopic
    return METADATA.request(version)(
        topics=(named(topic_id=None, name=topic),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def test_a_session_is_renewed_on_its_connection_under_load(cluster: Cluster, folder: Path) -> None:
    """KIP-368: two sessions' lives of pipelined requests over one connection, every answer to its request."""
    keys = {"sasl_mechanism": "SCRAM-SHA-256", **ALICE}
    found = by(cluster, folder, "RENEWED", "SASL_SSL", **keys)

    async def asked() -> int:
        async with Wire(Endpoint.of(found)) as wire:
            await wire.refresh()
            connection = await wire.connection(0)
            deadline = asyncio.get_running_loop().time() + 2.2 * SESSION_MS / 1000
            count = 0
            while asyncio.get_running_loop().time() < deadline:
                names = [f"no-such-topic-{count + number}" for number in range(5)]
                sent = [connection.send(METADATA, metadata_request(connection, name)) for name in names]
                assert [answer.topics[0].name for answer in await asyncio.gather(*sent)] == names
                count += len(names)
            assert await wire.connection(0) is connection
            return count

    assert asyncio.run(asked()) > 100


def test_a_renewal_that_is_refused_ends_the_connection(cluster: Cluster, folder: Path) -> None:
    """What was held fails with the connection; nobody waits for ever."""
    found = by(cluster, folder, "RENEWED", "SASL_SSL", sasl_mechanism="SCRAM-SHA-256", **ALICE)
    other = found.model_copy(update={"sasl_username": "mallory"})

    async def asked() -> None:
        async with Wire(Endpoint.of(found)) as wire:
            await wire.refresh()
            connection = await wire.connection(0)
            connection._security, connection._renew_at = Endpoint.of(other).security, 0.0
            sent = [connection.send(METADATA, metadata_request(connection, "none"))]
            while connection._held is None:  # the first one sets it off, and is sent ahead of it
                await asyncio.sleep(0)
            sent += [connection.send(METADATA, metadata_request(connection, "none")) for _ in range(3)]
            assert (await sent[0]).topics[0].name == "none"
            for problem in await asyncio.gather(*sent[1:], return_exceptions=True):
                assert isinstance(problem, ConnectionLost)
                assert "the session could not be renewed: SCRAM-SHA-256 was refused" in str(problem)
            assert not connection.is_open

    asyncio.run(asked())


# --- tokens ----------------------------------------------------------------------------------------------------------


class Provider:
    """An identity provider on loopback, whose tokens are unsigned: what Kafka's own unsecured validator takes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.status, self.seconds = 200, 3600
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                provider.asked.append((self.headers["Authorization"], body))
                reported = json.dumps({"access_token": provider.token(), "expires_in": provider.seconds}).encode()
                self.send_response(provider.status)
                self.send_header("Content-Length", str(len(reported)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(reported)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"

    def token(self) -> str:
        now = int(time.time())
        claims = {"sub": "alice", "iat": now, "exp": now + self.seconds, "scope": "kafka"}
        parts = (
            base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in ({"alg": "none"}, claims)
        )
        return ".".join(parts) + "."


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()
    thread = threading.Thread(target=found._server.serve_forever, daemon=True)
    thread.start()
    yield found
    found._server.shutdown()
    found._server.server_close()
    thread.join()


def oauth(cluster: Cluster, folder: Path, provider: Provider) -> ClusterSettings:
    return by(
        cluster,
        folder,
        "OAUTH",
        "SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_method="oidc",
        sasl_oauthbearer_client_id="mirror",
        sasl_oauthbearer_client_secret="between-us-two",
        sasl_oauthbearer_token_endpoint_url=provider.url,
        sasl_oauthbearer_scope="kafka",
    )


def test_a_token_of_an_identity_provider(cluster: Cluster, folder: Path, provider: Provider) -> None:
    found = oauth(cluster, folder, provider)
    assert reached(found) == cluster.cluster_id
    for authorization, body in provider.asked:
        assert base64.b64decode(authorization.removeprefix("Basic ")) == b"mirror:between-us-two"
        assert "grant_type=client_credentials" in body
        assert "scope=kafka" in body
    provider.asked.clear()
    for _ in range(3):

        async def asked() -> None:
            async with Wire(Endpoint.of(found)) as wire:
                await wire.refresh()

        asyncio.run(asked())
    assert provider.asked == [], "the process keeps a token for all its connections"


def test_a_provider_that_gives_no_token(cluster: Cluster, folder: Path, provider: Provider) -> None:
    provider.status = 401
    error = refused(oauth(cluster, folder, provider))
    assert isinstance(error, NotAuthenticated)
    assert "gives no token to mirror: HTTP 401. Check sasl.oauthbearer.client.id" in str(error)
    assert "between-us-two" not in str(error)


def test_a_token_that_the_broker_does_not_take(cluster: Cluster, folder: Path, provider: Provider) -> None:
    provider.seconds = -60
    error = refused(oauth(cluster, folder, provider))
    assert isinstance(error, NotAuthenticated)
    assert "OAUTHBEARER was refused" in str(error)
