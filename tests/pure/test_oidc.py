"""An identity provider that is slow, wrong or hostile: a named error in time, and the secret stays where it belongs."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler

import pytest
from fakebroker import in_loop
from pydantic import SecretStr
from waiting import MovableClock, until_true
from webserver import Answer, send, serving

from mirror.errors import ConnectionLost
from mirror.kafka import auth
from mirror.kafka.auth import Oidc
from mirror.suspension import clocks


def gives(body: bytes, asked: list[str] | None = None) -> Answer:
    """Answer so; note the paths that were asked for."""

    def answer(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        if asked is not None:
            asked.append(handler.path)
        send(handler, body)

    return answer


@pytest.fixture(autouse=True)
def nobody_hurries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "TIMEOUT", 1000.0)


def client(url: str) -> Oidc:
    return Oidc(url, "mirror", SecretStr("between-us-two"), None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"access_token": 7}',
        b'{"access_token": "a", "expires_in": NaN}',
        b'{"access_token": "a", "expires_in": Infinity}',
        b'{"access_token": "a", "expires_in": ' + b"9" * 400 + b"}",
        b'{"access_token": "a", "expires_in": ' + b"9" * 5000 + b"}",
        b'{"a":' * 100_000,
    ],
    ids=["empty", "list", "no text", "nan", "infinity", "huge", "huger", "deep"],
)
@in_loop
async def test_an_answer_that_is_none(body: bytes) -> None:
    with serving(gives(body)) as url, pytest.raises(ConnectionLost, match="gives no token") as caught:
        await client(url).token()
    assert "between-us-two" not in str(caught.value)


@in_loop
async def test_an_answer_that_drips(clock: MovableClock) -> None:
    def drips(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while True:
            handler.wfile.write(b" ")
            clock.move(100)

    with serving(drips) as url, pytest.raises(ConnectionLost, match="takes longer"):
        await client(url).token()


@in_loop
async def test_connections_that_give_up_waiting_for_a_token_leave_one_request_behind() -> None:
    """Not one, and a thread, for each of them, however often they try."""
    goes_on, asked = threading.Event(), list[str]()

    def hangs(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        asked.append(handler.path)
        goes_on.wait()
        send(handler, b'{"access_token": "late", "expires_in": 60}')

    with serving(hangs) as url:
        for _ in range(3):
            tries = [asyncio.create_task(client(url).token()) for _ in range(20)]
            await until_true(lambda: asked)
            for attempt in tries:
                attempt.cancel()
            await asyncio.wait(tries)
        goes_on.set()
        assert (await client(url).token()).get_secret_value() == "late"
        assert len(asked) == 1


@in_loop
async def test_a_proxy_does_not_learn_what_goes_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    token = b'{"access_token": "a"}'
    with serving(gives(token)) as url, serving(gives(token, seen)) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        assert (await client(url).token()).get_secret_value() == "a"
    assert seen == []


@in_loop
async def test_a_kept_token_that_is_refused_is_asked_for_anew_and_a_new_one_is_not(clock: MovableClock) -> None:
    asked: list[str] = []
    with serving(gives(b'{"access_token": "a", "expires_in": 3600}', asked)) as url:
        oidc = client(url)
        token = await oidc.token()
        assert not oidc.was_old(token), "another one would be refused, too"
        token = await oidc.token()
        assert (await oidc.token(), len(asked)) == (token, 2), "kept"
        clock.move(auth.NEW_SECONDS + 1)
        assert oidc.was_old(token)
        await oidc.token()
        assert len(asked) == 3
        assert oidc.was_old(SecretStr("the one before")), "somebody else has asked for another one already"
        await oidc.token()
        assert len(asked) == 3


@pytest.mark.parametrize("clock", [0, 1])
@in_loop
async def test_a_token_grows_old_while_the_machine_is_suspended(clock: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever clock goes on meanwhile."""
    asked: list[str] = []
    now = [0.0, 0.0]
    monkeypatch.setattr(auth, "clocks", lambda: tuple(at + more for at, more in zip(clocks(), now, strict=True)))
    with serving(gives(b'{"access_token": "a", "expires_in": 3600}', asked)) as url:
        oidc = client(url)
        await oidc.token()
        now[clock] = 2600.0
        await oidc.token()
        assert len(asked) == 1
        now[clock] = 2800.0
        await oidc.token()
        assert len(asked) == 2
