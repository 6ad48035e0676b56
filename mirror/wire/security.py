"""The seam for TLS and SASL: what happens between a TCP connection and the first request.

`Plaintext` is what there is so far. A TLS variant returns a context, which asyncio wraps the socket with; a SASL
variant sends its handshake through the connection that it is given.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mirror.wire.connection import Connection


class Security(Protocol):
    """How a connection is protected. Implementations pickle, since lanes carry them."""

    def tls(self) -> ssl.SSLContext | None:
        """The context to wrap the socket with, or None for a bare one. The host name is checked by asyncio."""

    async def authenticate(self, connection: Connection) -> None:
        """Prove who we are. Raises AccessDenied."""


class Plaintext:
    """Neither TLS nor SASL."""

    def tls(self) -> ssl.SSLContext | None:
        """No context."""
        return None

    async def authenticate(self, connection: Connection) -> None:
        """Nothing to prove."""
