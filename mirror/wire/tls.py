"""TLS: what we show and whom we trust, and each refusal by its name.

A context is made anew when one of its files has changed, so a renewed certificate serves the next connection without
a restart. Nothing older than TLS 1.2 is spoken, and a broker's certificate must be for the name that was connected to
(RFC 9525), unless `ssl.endpoint.identification.algorithm` says otherwise.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

from pydantic import SecretStr

from mirror.config import ClusterSettings
from mirror.errors import TlsRefused

#: OpenSSL's `X509_V_ERR_*` -> what it means for whoever runs the mirror.
_CERTIFICATE: Final = {
    9: "its certificate is not valid yet: check both clocks",
    10: "its certificate has expired: renew it",
    18: "its certificate is self-signed: have a CA sign it, or name the certificate itself in ssl.ca.location",
    19: "its certificate is of a CA that ssl.ca.location does not hold: add that CA if you trust it",
    20: "its certificate is of a CA that ssl.ca.location does not hold: add that CA if you trust it",
    62: "its certificate is for another name: connect by a name in its subjectAltName, or have one added",
    64: "its certificate is for another address: connect by a name in its subjectAltName, or have one added",
}
#: Beginnings of OpenSSL's reasons -> the same.
_REASONS: Final = (
    (("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH", "RECORD_LAYER"), "it does not speak TLS"),
    (("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"), "it speaks no TLS from 1.2 on: enable TLSv1.2 or 1.3"),
    (
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_HANDSHAKE_FAILURE"),
        "it wants a client certificate that it trusts: set ssl.certificate.location and ssl.key.location",
    ),
    (
        ("TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_CERTIFICATE"),
        "it refuses the client certificate in ssl.certificate.location: have one signed that it trusts",
    ),
)
#: A TLS alert where an answer's length should be: its type and the first byte of its version (RFC 8446, 5.1).
_ALERT: Final = 0x1503


@dataclass(frozen=True, slots=True)
class Tls:
    """Names of PEM files, and whether the broker's name is checked. `ca` is a file, a folder, or None: the system's."""

    ca: str | None
    certificate: str | None
    key: str | None
    key_password: SecretStr | None
    checks_name: bool

    @classmethod
    def of(cls, settings: ClusterSettings) -> Self:
        """As configured."""
        return cls(
            ca=settings.ssl_ca_location,
            certificate=settings.ssl_certificate_location,
            key=settings.ssl_key_location,
            key_password=settings.ssl_key_password,
            checks_name=settings.ssl_endpoint_identification_algorithm != "none",
        )

    def context(self) -> ssl.SSLContext:
        """A context with what the files hold now. Raises TlsRefused where one of them cannot be used."""
        try:
            return _context(self, tuple(map(_stamp, (self.ca, self.certificate, self.key))))
        except (OSError, ValueError) as problem:  # SSLError is an OSError; a wrong password may be a ValueError
            names = ", ".join(filter(None, (self.ca, self.certificate, self.key)))
            raise TlsRefused(f"no TLS with {names}: {_reason(problem)}. Check the files and ssl.key.password") from None


def _stamp(name: str | None) -> tuple[int, int] | None:
    if name is None:
        return None
    told = Path(name).stat()
    return told.st_mtime_ns, told.st_ino  # a file may be written again, or another one be moved to its place


@lru_cache(maxsize=8)
def _context(tls: Tls, _stamps: tuple[tuple[int, int] | None, ...]) -> ssl.SSLContext:
    is_folder = tls.ca is not None and Path(tls.ca).is_dir()
    context = ssl.create_default_context(cafile=None if is_folder else tls.ca, capath=tls.ca if is_folder else None)
    context.verify_flags = ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST  # alike for every Python; 3.13 asks for more
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.checks_name
    if tls.certificate:
        password = tls.key_password.get_secret_value() if tls.key_password else ""
        context.load_cert_chain(tls.certificate, tls.key, password)  # never None: OpenSSL would ask on the terminal
    return context


def _reason(problem: Exception) -> str:
    return str(getattr(problem, "reason", None) or getattr(problem, "strerror", None) or type(problem).__name__)


def refusal(problem: BaseException | None, *, in_handshake: bool) -> str:
    """Why a connection with TLS ended, and what to do; empty where that was no matter of TLS."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return _CERTIFICATE.get(problem.verify_code, f"its certificate is refused: {problem.verify_message}")
    if isinstance(problem, ssl.SSLError) and (reason := problem.reason):
        known = (text for starts, text in _REASONS if reason.startswith(starts))
        return next(known, f"TLS failed: {reason}")
    if in_handshake and isinstance(problem, ConnectionError | ssl.SSLEOFError):
        return "it ended the TLS handshake: does it speak TLS? Compare the port and security.protocol"
    return ""


def is_alert(size: int) -> bool:
    """Whether the length of a frame is the beginning of a TLS alert: the peer expects TLS."""
    return size >> 16 == _ALERT
