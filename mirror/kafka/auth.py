"""How connections are protected: TLS, SASL, and tokens for OAUTHBEARER.

A token serves every connection of the process until three quarters of its life are over. A session lasts no longer
than its token, and is renewed after four fifths at the earliest, so a renewal never comes with an old one. A token that
a broker refuses is asked for anew, unless it was new: keys are rotated, tokens revoked, and machines suspended.

A context is made anew when one of its files has changed, so a renewed certificate serves the next connection without
a restart. Nothing older than TLS 1.2 is spoken, and a broker's certificate must be for the name that was connected to
(RFC 9525), unless `ssl.endpoint.identification.algorithm` says otherwise.

A conversation knows one mechanism and no socket. SCRAM comes from `scramp`, GSSAPI from `gssapi` where that is
installed; both are imported when they are used, since most flows use neither.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import math
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Protocol, Self
from urllib.parse import quote, urlencode

from pydantic import SecretStr

from mirror import clock
from mirror.background import in_background
from mirror.config import ClusterSettings
from mirror.errors import ConnectionLost, NotAuthenticated, TlsRefused
from mirror.kafka.protocol import SASL_AUTHENTICATE, SASL_HANDSHAKE
from mirror.suspension import clocks

# --- Tokens for OAUTHBEARER by the client-credentials grant (RFC 6749, 4.4) -------------------------------------------

TIMEOUT: Final = 5.0
LARGEST_ANSWER: Final = 1 << 20
#: Share of its life after which a token is asked for anew.
USED_FOR: Final = 0.75
#: The life of a token whose provider does not say, in seconds.
UNKNOWN_LIFE: Final = 300.0
#: The longest life that is believed.
LONGEST_LIFE: Final = 86_400.0
#: What asking may raise where no token comes: a provider may send anything.
_NO_ANSWER: Final = (
    OSError,
    http.client.HTTPException,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    RecursionError,
    OverflowError,
)

#: A token of fewer seconds that is refused would be refused again.
NEW_SECONDS: Final = 10.0

_tokens: dict[Oidc, _Token] = {}
#: What connections that open together wait for: one request, however long it hangs, and not one for each of them.
_asking: dict[Oidc, Future[SecretStr]] = {}
os.register_at_fork(after_in_child=_asking.clear)  # its thread is the parent's


@dataclass(frozen=True, slots=True)
class _Token:
    """A token, when it was asked for by each clock of `clocks`, and for how many seconds it is used."""

    text: SecretStr
    asked_at: tuple[float, float]
    used_for: float

    @property
    def age(self) -> float:
        """Seconds by the clock that went further: no clock goes on through every kind of suspension."""
        return max(now - then for now, then in zip(clocks(), self.asked_at, strict=True))


@dataclass(frozen=True, slots=True)
class Oidc:
    """Where tokens come from, and as whom they are asked for."""

    url: str
    client_id: str
    secret: SecretStr
    scope: str | None

    @classmethod
    def of(cls, settings: ClusterSettings) -> Self:
        """As configured."""
        return cls(
            url=settings.sasl_oauthbearer_token_endpoint_url or "",
            client_id=settings.sasl_oauthbearer_client_id or "",
            secret=settings.sasl_oauthbearer_client_secret or SecretStr(""),
            scope=settings.sasl_oauthbearer_scope,
        )

    async def token(self) -> SecretStr:
        """One with a good part of its life before it. Raises ConnectionLost, NotAuthenticated."""
        known = _tokens.get(self)
        if known is not None and known.age < known.used_for:
            return known.text
        mine: Future[SecretStr] = Future()
        mine.set_running_or_notify_cancel()  # whoever gives up waiting does not end it for the others
        asking = _asking.setdefault(self, mine)
        if asking is mine:
            try:
                await in_background(partial(self._ask, mine))
            except RuntimeError as problem:  # no thread is to be had
                _asking.pop(self, None)
                mine.set_exception(ConnectionLost(f"{self.url} cannot be asked for a token: {problem}"))
        return await asyncio.wrap_future(asking)

    def was_old(self, token: SecretStr) -> bool:
        """A broker refused this token: whether another one is worth a try, since it was not new. It is used no more."""
        known = _tokens.get(self)
        if known is None or known.text != token:
            return True
        is_old = known.age > NEW_SECONDS
        del _tokens[self]
        return is_old

    def _ask(self, asking: Future[SecretStr]) -> None:
        try:
            token = _tokens[self] = self._asked()
        except BaseException as problem:  # handed over to whoever waits
            _asking.pop(self, None)
            asking.set_exception(problem)
        else:
            _asking.pop(self, None)
            asking.set_result(token.text)

    def _asked(self) -> _Token:
        began, asked_at = clock.monotonic(), clocks()
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        pair = f"{quote(self.client_id, safe='')}:{quote(self.secret.get_secret_value(), safe='')}"  # RFC 6749, 2.3.1
        request = urllib.request.Request(  # noqa: S310 -- the configuration takes https, and http on loopback
            self.url,
            data=urlencode(form).encode(),
            headers={
                "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
                "Accept": "application/json",
            },
        )
        try:
            with _opener().open(request, timeout=TIMEOUT) as answer:
                fields = json.loads(_read(answer, began + TIMEOUT))
            return _Token(SecretStr(_text(fields)), asked_at, USED_FOR * _life(fields))
        except urllib.error.HTTPError as refused:
            refused.close()
            if refused.code in (400, 401, 403):
                raise NotAuthenticated(
                    f"{self.url} gives no token to {self.client_id}: HTTP {refused.code}."
                    " Check sasl.oauthbearer.client.id, client.secret and scope"
                ) from None
            raise ConnectionLost(f"{self.url} gives no token: HTTP {refused.code}") from None
        except _NO_ANSWER as problem:
            raise ConnectionLost(f"{self.url} gives no token: {type(problem).__name__}: {problem}") from None


def _read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """All of an answer. Raises TimeoutError where it drips: a socket's own timeout begins anew with each byte."""
    read = b""
    while len(read) < LARGEST_ANSWER and (more := answer.read1(LARGEST_ANSWER - len(read))):
        read += more
        if clock.monotonic() > deadline:
            raise TimeoutError(f"its answer takes longer than {TIMEOUT:g} s")
    return read


def _life(fields: Any) -> float:
    life = float(fields.get("expires_in", UNKNOWN_LIFE))
    if not math.isfinite(life):
        raise ValueError(f"expires_in is {life}")
    return min(life, LONGEST_LIFE)


def _text(fields: Any) -> str:
    token = fields["access_token"]
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise ValueError("its answer has no access_token that is text")
    return token


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The secret goes where the configuration says and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        """A redirect is an error like another."""


def _opener() -> urllib.request.OpenerDirector:
    """A proxy gets nothing that is not encrypted."""
    proxies = {scheme: url for scheme, url in urllib.request.getproxies().items() if scheme == "https"}
    return urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler(proxies))


# --- TLS --------------------------------------------------------------------------------------------------------------

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
    status = Path(name).stat()
    return status.st_mtime_ns, status.st_ino  # a file may be written again, or another one be moved to its place


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


# --- SASL -------------------------------------------------------------------------------------------------------------

#: Codes of Kafka's `Errors`.
UNSUPPORTED_MECHANISM: Final = 33
ILLEGAL_STATE: Final = 34

#: Below this many rounds a password can be guessed from what was exchanged: the least that RFC 5802 recommends, and
#: that Kafka's own brokers take (`ScramMechanism.minIterations`).
FEWEST_ITERATIONS: Final = 4096
#: More would keep this side computing for seconds at every connection; Kafka's controllers take 16,384 at most.
MOST_ITERATIONS: Final = 1_000_000

#: Sends a request of these fields in the version spoken here, and waits for the answer.
Ask = Callable[..., Awaitable[Any]]


class Conversation(Protocol):
    """What one mechanism says. Each step may take its time, so it is called in a thread of its own."""

    mechanism: str
    check: str

    def begin(self) -> bytes:
        """The first message."""

    def reply(self, challenge: bytes) -> bytes | None:
        """The next message, or None when all is said. Raises NotAuthenticated where the broker proves nothing."""


async def authenticate(ask: Ask, who: Conversation) -> float:
    """Authenticate to a broker; for how many seconds it believes that, infinity where it does not say.

    Raises NotAuthenticated, whose message says what to check, and ConnectionLost.
    """
    answer = await ask(SASL_HANDSHAKE, mechanism=who.mechanism)
    if answer.error_code == UNSUPPORTED_MECHANISM:
        offered = ", ".join(answer.mechanisms) or "none"
        raise NotAuthenticated(f"{who.mechanism} is not one of its mechanisms; set sasl.mechanism to one of: {offered}")
    if answer.error_code == ILLEGAL_STATE:
        raise NotAuthenticated("its listener asks for no SASL: set security.protocol to SSL or PLAINTEXT")
    if answer.error_code:
        raise NotAuthenticated(f"{who.mechanism}: {answer.error_code.name}")
    message: bytes | None = await in_background(who.begin)
    while message is not None:
        answer = await ask(SASL_AUTHENTICATE, auth_bytes=message)
        if answer.error_code:
            why = answer.error_message or answer.error_code.name
            raise NotAuthenticated(f"{who.mechanism} was refused: {why}. Check {who.check}")
        message = await in_background(partial(who.reply, bytes(answer.auth_bytes)))
    return answer.session_lifetime.total_seconds() or math.inf


class Plain:
    """User and password in clear (RFC 4616); only over TLS."""

    mechanism = "PLAIN"
    check = "sasl.username and sasl.password"

    def __init__(self, user: str, password: SecretStr) -> None:
        self._user, self._password = user, password

    def begin(self) -> bytes:
        """All there is to say."""
        return f"\0{self._user}\0{self._password.get_secret_value()}".encode()

    def reply(self, challenge: bytes) -> None:
        """Nothing more."""


class Scram:
    """A proof that we know the password, and one that the broker knows it (RFC 5802)."""

    check = "sasl.username and sasl.password"

    def __init__(self, mechanism: str, user: str, password: SecretStr) -> None:
        from scramp import ScramClient  # noqa: PLC0415 -- see the module's first lines

        self.mechanism = mechanism
        self._client = ScramClient([mechanism], user, password.get_secret_value())
        self._proved = False

    def begin(self) -> bytes:
        """Our name and nonce."""
        return bytes(self._client.get_client_first().encode())

    def reply(self, challenge: bytes) -> bytes | None:
        """Our proof to the first challenge; the second one is the broker's proof."""
        from scramp import ScramException  # noqa: PLC0415 -- the same

        try:
            text = challenge.decode()
            if self._proved:
                self._client.set_server_final(text)
                return None
            self._proved = True
            self._client.set_server_first(text)
            iterations = int(str(self._client.iterations))
            # Checked before the proof is computed and goes out: it is what a password could be guessed from.
            if not FEWEST_ITERATIONS <= iterations <= MOST_ITERATIONS:
                raise NotAuthenticated(
                    f"{self.mechanism}: the broker asks for {iterations} iterations, and {FEWEST_ITERATIONS} to"
                    f" {MOST_ITERATIONS} are taken: fewer do not protect the password. Set the user's credential on the"
                    " brokers anew (kafka-configs.sh, iterations=4096 or more); is the broker yours?"
                )
            return bytes(self._client.get_client_final().encode())
        except (ScramException, UnicodeDecodeError) as problem:
            raise NotAuthenticated(f"{self.mechanism}: the broker's part is wrong: {problem}. Is it yours?") from None


class OAuthBearer:
    """A token that somebody else gave us (RFC 7628, KIP-255); only over TLS."""

    mechanism = "OAUTHBEARER"
    check = "the sasl.oauthbearer settings, and what the broker asks of a token"

    def __init__(self, token: SecretStr) -> None:
        self.token = token

    def begin(self) -> bytes:
        """The token."""
        return f"n,,\x01auth=Bearer {self.token.get_secret_value()}\x01\x01".encode()

    def reply(self, challenge: bytes) -> bytes | None:
        """A challenge is a refusal, which is to be acknowledged; the error comes after that (RFC 7628, 3.2.3)."""
        return b"\x01" if challenge else None


class Gssapi:
    """Kerberos (RFC 4752), by the tickets that this machine has."""

    mechanism = "GSSAPI"
    check = "the ticket (klist), and sasl.kerberos.service.name"

    def __init__(self, service: str, host: str) -> None:
        import gssapi  # noqa: PLC0415 -- an optional library

        name = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
        self._context = gssapi.SecurityContext(name=name, usage="initiate")
        self._error: type[Exception] = gssapi.exceptions.GSSError
        self._agreed = False

    def begin(self) -> bytes:
        """The ticket for the broker."""
        return self._step(None)

    def reply(self, challenge: bytes) -> bytes | None:
        """The context's own messages, then the choice of no protection beyond TLS's."""
        if not self._context.complete:
            return self._step(challenge)
        if self._agreed:
            return None
        self._agreed = True
        try:
            self._context.unwrap(challenge)
            return bytes(self._context.wrap(b"\x01\0\0\0", False).message)
        except self._error as problem:
            raise NotAuthenticated(f"GSSAPI: {problem}. Check {self.check}") from None

    def _step(self, challenge: bytes | None) -> bytes:
        try:
            return bytes(self._context.step(challenge) or b"")
        except self._error as problem:
            raise NotAuthenticated(f"GSSAPI: {problem}. Check {self.check}") from None


# --- How connections to a cluster are protected -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Security:
    """TLS or SASL or both, as the settings of a cluster say, or neither without them. It pickles, since tasks carry it,
    and holds every secret as one that does not print.
    """

    settings: ClusterSettings | None = None

    @classmethod
    def of(cls, settings: ClusterSettings) -> Security:
        """Return what a configured cluster asks for."""
        return cls(None if settings.security_protocol == "PLAINTEXT" else settings)

    def tls(self) -> ssl.SSLContext | None:
        """Return the context to wrap a socket with, of what the files hold now, or None for a bare one. Raises
        TlsRefused.
        """
        return Tls.of(self.settings).context() if self.settings and self.settings.uses_tls else None

    async def proof(self, host: str) -> Conversation | None:
        """Return a conversation that proves who we are to the broker at `host`, or None where nobody asks.

        Raises ConnectionLost and NotAuthenticated where a third party's word is needed and not to be had.
        """
        settings = self.settings
        if settings is None or not settings.uses_sasl:
            return None
        user, password = settings.sasl_username or "", settings.sasl_password
        match settings.sasl_mechanism:
            case "PLAIN" if password is not None:
                return Plain(user, password)
            case "SCRAM-SHA-256" | "SCRAM-SHA-512" as mechanism if password is not None:
                return Scram(mechanism, user, password)
            case "OAUTHBEARER":
                return OAuthBearer(await Oidc.of(settings).token())
            case "GSSAPI":
                return Gssapi(settings.sasl_kerberos_service_name or "kafka", host)
        raise AssertionError("the configuration's check lets no other settings pass")

    def was_old(self, proof: Conversation) -> bool:
        """Return whether a proof that a broker refused was one that is kept, as tokens are, and another one is worth a
        try.
        """
        return (
            self.settings is not None and isinstance(proof, OAuthBearer) and Oidc.of(self.settings).was_old(proof.token)
        )


PLAINTEXT: Final = Security()
