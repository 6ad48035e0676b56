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
    thread = threading.Thread(target=server.serve_forever, daemon=True)
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
async def test_an_answer_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "TIMEOUT", 0.3)
    enough = threading.Event()

    def drips(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not enough.wait(0.02):
            handler.wfile.write(b" ")

    with provider(drips) as url:
        with pytest.raises(ConnectionLost, match="takes longer"):
            await client(url).token()
        enough.set()


@in_loop
async def test_connections_that_give_up_waiting_for_a_token_leave_one_request_behind() -> None:
    """Not one, and a thread, for each of them, however often they try."""
    goes_on, asked = threading.Event(), list[str]()

    def hangs(handler: BaseHTTPRequestHandler) -> None:
        goes_on.wait()
        sends(b'{"access_token": "late", "expires_in": 60}')(handler)

    before = threading.active_count()
    with provider(hangs, asked) as url:
        try:
            for _ in range(5):
                tries = [asyncio.wait_for(client(url).token(), 0.05) for _ in range(20)]
                assert {type(one) for one in await asyncio.gather(*tries, return_exceptions=True)} == {TimeoutError}
            assert threading.active_count() <= before + 3, "the provider's two and one that asks"
        finally:
            goes_on.set()
        assert (await client(url).token()).get_secret_value() == "late"
        assert len(asked) == 1


@in_loop
async def test_a_token_is_asked_for_again_where_no_thread_was_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever came later waited for a request that was never sent."""

    async def none_left(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with provider(sends(b'{"access_token": "a", "expires_in": 60}')) as url:
        with monkeypatch.context() as patch:
            patch.setattr(auth, "in_background", none_left)
            with pytest.raises(ConnectionLost, match="can't start new thread"):
                await client(url).token()
        assert (await client(url).token()).get_secret_value() == "a"


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
async def test_a_kept_token_that_is_refused_is_asked_for_anew_and_a_new_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    with provider(sends(b'{"access_token": "a", "expires_in": 3600}'), asked) as url:
        ours = client(url)
        token = await ours.token()
        assert not ours.was_old(token), "another one would be refused, too"
        token = await ours.token()
        assert (await ours.token(), len(asked)) == (token, 2), "kept"
        monkeypatch.setattr(auth, "NEW_SECONDS", -1.0)
        assert ours.was_old(token)
        await ours.token()
        assert len(asked) == 3
        assert ours.was_old(SecretStr("the one before")), "somebody else has asked for another one already"
        await ours.token()
        assert len(asked) == 3


@pytest.mark.parametrize("clock", [0, 1])
@in_loop
async def test_a_token_grows_old_while_the_machine_is_suspended(clock: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever clock goes on meanwhile."""
    asked: list[str] = []
    now = [0.0, 0.0]
    monkeypatch.setattr(auth, "clocks", lambda: tuple(at + more for at, more in zip(clocks(), now, strict=True)))
    with provider(sends(b'{"access_token": "a", "expires_in": 3600}'), asked) as url:
        ours = client(url)
        await ours.token()
        now[clock] = 2600.0
        await ours.token()
        assert len(asked) == 1
        now[clock] = 2800.0
        await ours.token()
        assert len(asked) == 2
