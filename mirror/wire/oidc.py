"""Tokens for OAUTHBEARER by the client-credentials grant (RFC 6749, 4.4): an identity provider's word for who we are.

A token serves every connection of the process until three quarters of its life are over. A session lasts no longer
than its token, and is renewed after four fifths at the earliest, so a renewal never comes with an old one. A token that
a broker refuses is asked for anew, unless it was new: keys are rotated, tokens revoked, and machines suspended.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

from pydantic import SecretStr

from mirror.background import in_background
from mirror.config import ClusterSettings
from mirror.errors import ConnectionLost, NotAuthenticated

TIMEOUT: Final = 5.0
LARGEST_ANSWER: Final = 1 << 20
#: Share of its life after which a token is asked for anew.
USED_FOR: Final = 0.75
#: The life of a token whose provider does not tell, in seconds.
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

_locks: defaultdict[Oidc, threading.Lock] = defaultdict(threading.Lock)
_tokens: dict[Oidc, _Token] = {}


@dataclass(frozen=True, slots=True)
class _Token:
    """A token, when it was asked for by each clock of `_clocks`, and for how many seconds it is used."""

    text: SecretStr
    asked_at: tuple[float, float]
    used_for: float

    @property
    def age(self) -> float:
        """Seconds by the clock that went further: no clock goes on through every kind of suspension."""
        return max(now - then for now, then in zip(_clocks(), self.asked_at, strict=True))


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
        return await in_background(self._kept)

    def was_old(self, token: SecretStr) -> bool:
        """A broker refused this token: whether another one is worth a try, since it was not new. It is used no more."""
        known = _tokens.get(self)
        if known is None or known.text != token:
            return True
        is_old = known.age > NEW_SECONDS
        del _tokens[self]
        return is_old

    def _kept(self) -> SecretStr:
        with _locks[self]:  # connections that open together share one
            known = _tokens.get(self)
            if known is None or known.age >= known.used_for:
                known = _tokens[self] = self._asked()
            return known.text

    def _asked(self) -> _Token:
        began, asked_at = time.monotonic(), _clocks()
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
                told = json.loads(_read(answer, began + TIMEOUT))
            return _Token(SecretStr(_text(told)), asked_at, USED_FOR * _life(told))
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


def _clocks() -> tuple[float, float]:
    """Seconds of the time of day, and since the machine began, suspension included where the system counts it."""
    return time.time(), time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """All of an answer. Raises TimeoutError where it drips: a socket's own timeout begins anew with each byte."""
    read = b""
    while len(read) < LARGEST_ANSWER and (more := answer.read1(LARGEST_ANSWER - len(read))):
        read += more
        if time.monotonic() > deadline:
            raise TimeoutError(f"its answer takes longer than {TIMEOUT:g} s")
    return read


def _life(told: Any) -> float:
    life = float(told.get("expires_in", UNKNOWN_LIFE))
    if not math.isfinite(life):
        raise ValueError(f"expires_in is {life}")
    return min(life, LONGEST_LIFE)


def _text(told: Any) -> str:
    token = told["access_token"]
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
