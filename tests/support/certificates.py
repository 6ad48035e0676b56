"""Certificates, and listeners with TLS and SASL, for embedded brokers of tests."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirror.errors import EmbeddedError

#: What brokers with the KRaft authorizer are started with: whoever comes by the plain listener may do everything, and
#: everybody else what an ACL says.
GUARDED: Final[Mapping[str, str | bool]] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": False,
    "super.users": "User:ANONYMOUS",
}
_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM files; `both` holds the two, as a broker's key store."""

    certificate: Path
    key: Path
    both: Path

    def served(self, trusted: Path | None = None, *, asks: str = "none") -> dict[str, str]:
        """A listener's settings that show this certificate. `asks` for the client's: none, requested or required, of
        the authority whose certificate is `trusted`.
        """
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(trusted)} if trusted else {}
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.both),
            "ssl.client.auth": asks,
            **trust,
        }


class Authority:
    """A certificate authority of one's own, in `folder`; `pem` is what others trust. Raises EmbeddedError."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._key = folder, folder / f"{name}.key"
        self.pem = folder / f"{name}.pem"
        new = ("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.pem, "-subj", f"/CN={name}", "-days", "2")
        _openssl(*new, "-addext", "basicConstraints=critical,CA:TRUE")

    def issue(self, name: str, hosts: Sequence[str] = ("IP:127.0.0.1", "DNS:localhost"), days: int = 2) -> Certificate:
        """A certificate for `hosts`, as subjectAltName has them; one of fewer than 0 days has expired."""
        made = _files(self._folder, name)
        asked = self._folder / f"{name}.csr"
        alternatives = ("-addext", f"subjectAltName={','.join(hosts)}")
        _openssl("req", *_NEW_KEY, "-keyout", made.key, "-out", asked, "-subj", f"/CN={name}", *alternatives)
        signed = ("x509", "-req", "-in", asked, "-CA", self.pem, "-CAkey", self._key, "-CAcreateserial")
        _openssl(*signed, "-copy_extensions", "copy", "-days", str(days), "-out", made.certificate)
        return _joined(made)


def self_signed(folder: Path, name: str) -> Certificate:
    """A self-signed certificate. Raises EmbeddedError."""
    made = _files(folder, name)
    new = ("req", "-x509", *_NEW_KEY, "-keyout", made.key, "-out", made.certificate, "-subj", f"/CN={name}")
    _openssl(*new, "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1")
    return _joined(made)


def sasl(mechanism: str, options: str = "", **config: str | int) -> dict[str, str | int]:
    """A listener's settings for one mechanism; `options` are the login module's, `config` the mechanism's own keys with
    `_` for `.`.
    """
    prefix = mechanism.lower()
    return {
        "sasl.enabled.mechanisms": mechanism,
        f"{prefix}.sasl.jaas.config": f"{_MODULES[mechanism]} required {options};",
        **{f"{prefix}.{key.replace('_', '.')}": value for key, value in config.items()},
    }


def _files(folder: Path, name: str) -> Certificate:
    return Certificate(folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}-both.pem")


def _joined(made: Certificate) -> Certificate:
    made.both.write_text(made.key.read_text("ascii") + made.certificate.read_text("ascii"), "ascii")
    return made


def _openssl(*arguments: str | Path) -> None:
    try:
        command = ["openssl", *map(str, arguments)]  # whichever PATH has: only certificates for trials come from it
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise EmbeddedError("certificates are made by the openssl command, which is not installed") from None
    if done.returncode:
        raise EmbeddedError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
