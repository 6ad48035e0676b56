"""SASL: the proof at the beginning of a connection, and again before a session ends (KIP-43, KIP-152, KIP-368).

A conversation knows one mechanism and no socket. SCRAM comes from `scramp`, GSSAPI from `gssapi` where that is
installed; both are imported when they are used, since most flows use neither.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from pydantic import SecretStr

from mirror.background import in_background
from mirror.errors import NotAuthenticated
from mirror.wire.protocol import SASL_AUTHENTICATE, SASL_HANDSHAKE

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
    """Tell a broker who we are; for how many seconds it believes that, infinity where it does not say.

    Raises NotAuthenticated, whose message says what to check, and ConnectionLost.
    """
    told = await ask(SASL_HANDSHAKE, mechanism=who.mechanism)
    if told.error_code == UNSUPPORTED_MECHANISM:
        offered = ", ".join(told.mechanisms) or "none"
        raise NotAuthenticated(f"{who.mechanism} is not one of its mechanisms; set sasl.mechanism to one of: {offered}")
    if told.error_code == ILLEGAL_STATE:
        raise NotAuthenticated("its listener asks for no SASL: set security.protocol to SSL or PLAINTEXT")
    if told.error_code:
        raise NotAuthenticated(f"{who.mechanism}: {told.error_code.name}")
    message: bytes | None = await in_background(who.begin)
    while message is not None:
        told = await ask(SASL_AUTHENTICATE, auth_bytes=message)
        if told.error_code:
            why = told.error_message or told.error_code.name
            raise NotAuthenticated(f"{who.mechanism} was refused: {why}. Check {who.check}")
        message = await in_background(partial(who.reply, bytes(told.auth_bytes)))
    return told.session_lifetime.total_seconds() or math.inf


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
