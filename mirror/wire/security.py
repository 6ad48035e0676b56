"""How connections to a cluster are protected: TLS around them, and a proof of who we are at their beginning."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Protocol

from mirror.config import ClusterSettings
from mirror.wire.sasl import Conversation, Gssapi, OAuthBearer, Plain, Scram
from mirror.wire.tls import Tls


class Security(Protocol):
    """Implementations pickle, since lanes carry them, and hold every secret as one that does not print."""

    def tls(self) -> ssl.SSLContext | None:
        """The context to wrap a socket with, or None for a bare one. Raises TlsRefused."""

    async def proof(self, host: str) -> Conversation | None:
        """A conversation that proves who we are to the broker at `host`, or None where nobody asks.

        Raises ConnectionLost and NotAuthenticated where a third party's word is needed and not to be had.
        """

    def was_old(self, proof: Conversation) -> bool:
        """Whether a proof that a broker refused was one that is kept, and another one is worth a try."""


class Plaintext:
    """Neither TLS nor SASL."""

    def tls(self) -> ssl.SSLContext | None:
        """No context."""
        return None

    async def proof(self, host: str) -> Conversation | None:  # noqa: ARG002 -- the protocol's
        """Nothing to prove."""
        return None

    def was_old(self, proof: Conversation) -> bool:  # noqa: ARG002 -- the protocol's
        """Nothing is kept."""
        return False


@dataclass(frozen=True, slots=True)
class Secured:
    """TLS or SASL or both, as `settings` say."""

    settings: ClusterSettings

    def tls(self) -> ssl.SSLContext | None:
        """A context with what the files hold now, where TLS is spoken."""
        return Tls.of(self.settings).context() if self.settings.uses_tls else None

    async def proof(self, host: str) -> Conversation | None:
        """By the mechanism that was configured, where SASL is asked for."""
        settings = self.settings
        if not settings.uses_sasl:
            return None
        user, password = settings.sasl_username or "", settings.sasl_password
        match settings.sasl_mechanism:
            case "PLAIN" if password is not None:
                return Plain(user, password)
            case "SCRAM-SHA-256" | "SCRAM-SHA-512" as mechanism if password is not None:
                return Scram(mechanism, user, password)
            case "OAUTHBEARER":
                from mirror.wire.oidc import Oidc  # noqa: PLC0415 -- an HTTP client, which other flows do not load

                return OAuthBearer(await Oidc.of(settings).token())
            case "GSSAPI":
                return Gssapi(settings.sasl_kerberos_service_name or "kafka", host)
        raise AssertionError("the configuration's check lets no other settings pass")

    def was_old(self, proof: Conversation) -> bool:
        """Tokens are kept, and nothing else."""
        if not isinstance(proof, OAuthBearer):
            return False
        from mirror.wire.oidc import Oidc  # noqa: PLC0415 -- the same

        return Oidc.of(self.settings).was_old(proof.token)


def security_of(settings: ClusterSettings) -> Security:
    """What a configured cluster asks for."""
    return Plaintext() if settings.security_protocol == "PLAINTEXT" else Secured(settings)
