"""What a client demands of a broker before it believes it: SCRAM proves both sides, and TLS is of this century."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from certificates import Authority, Certificate
from pydantic import SecretStr
from scramp import ScramMechanism
from secured import settings

from mirror.errors import ClusterUnreachable, NotAuthenticated
from mirror.kafka.auth import Scram
from mirror.kafka.cluster import Cluster, Endpoint


def test_a_broker_that_does_not_know_the_password_is_distinguished_from_one_that_does() -> None:
    """SCRAM works both ways: whoever takes any password in proves nothing."""
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

        async def asked() -> None:
            async with Cluster(Endpoint.of(found)) as cluster:
                await cluster.refresh()

        with pytest.raises(ClusterUnreachable, match=r"it speaks no TLS from 1\.2 on"):
            asyncio.run(asked())
