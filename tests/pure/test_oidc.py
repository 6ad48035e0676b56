"""An identity provider that is slow, wrong or hostile: a named error in time, and the secret stays where it belongs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fakebroker import in_loop
from pydantic import SecretStr
from waiting import MovableClock, until_true

from mirror.errors import ConnectionLost
from mirror.kafka import auth
from mirror.kafka.auth import Oidc
from mirror.suspension import clocks

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def provider(answer: Answer, asked: list[str] | None = None) -> Iterator[str]:
    """A server that answers each POST so; the paths that it was asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            with suppress(ConnectionError):
                answer(self)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/token"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sends(body: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

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
    with provider(sends(body)) as url, pytest.raises(ConnectionLost, match="gives no token") as caught:
        await client(url).token()
    assert "between-us-two" not in str(caught.value)


@in_loop
async def test_an_answer_that_drips(clock: MovableClock) -> None:
    def drips(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while True:
            handler.wfile.write(b" ")
            clock.move(100)

    with provider(drips) as url, pytest.raises(ConnectionLost, match="takes longer"):
        await client(url).token()


@in_loop
async def test_connections_that_give_up_waiting_for_a_token_leave_one_request_behind() -> None:
    """Not one, and a thread, for each of them, however often they try."""
    goes_on, asked = threading.Event(), list[str]()

    def hangs(handler: BaseHTTPRequestHandler) -> None:
        goes_on.wait()
        sends(b'{"access_token": "late", "expires_in": 60}')(handler)

    with provider(hangs, asked) as url:
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
    token = sends(b'{"access_token": "a"}')
    with provider(token) as url, provider(token, seen) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        assert (await client(url).token()).get_secret_value() == "a"
    assert seen == []


@in_loop
async def test_a_kept_token_that_is_refused_is_asked_for_anew_and_a_new_one_is_not(clock: MovableClock) -> None:
    asked: list[str] = []
    with provider(sends(b'{"access_token": "a", "expires_in": 3600}'), asked) as url:
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
    with provider(sends(b'{"access_token": "a", "expires_in": 3600}'), asked) as url:
        oidc = client(url)
        await oidc.token()
        now[clock] = 2600.0
        await oidc.token()
        assert len(asked) == 1
        now[clock] = 2800.0
        await oidc.token()
        assert len(asked) == 2
