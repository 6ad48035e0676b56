"""From a name to a socket: lookups that are slow or fail, and names with several addresses, of which not all serve."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from fakebroker import HOST, FakeBroker, FakeCluster, FakeTopic, in_loop, scripted
from waiting import DEADLINE_S, MovableClock, until_true

from mirror.errors import ClusterUnreachable, ConnectionLost
from mirror.kafka import addresses
from mirror.kafka.addresses import LookupFailed, addresses_of, in_turns
from mirror.kafka.cluster import Cluster, Endpoint
from mirror.kafka.connection import Connection
from mirror.kafka.protocol import API_VERSIONS

NAME = "kafka.test"
#: Nobody listens there, on any port, and a connect to it hangs: its one place in the queue is taken.
OTHER = "127.0.0.2"


class Nameserver:
    """What a lookup of `NAME` finds, how long that takes, and how often it was asked."""

    def __init__(self) -> None:
        self.found: list[str] = [HOST]
        self.asked = 0
        self.fails = False
        self.answers = threading.Event()
        self.answers.set()

    def __call__(self, host: str, port: Any, *args: Any, **how: Any) -> Any:
        if host != NAME or how.get("flags"):
            return _getaddrinfo(host, port, *args, **how)
        self.asked += 1
        self.answers.wait(DEADLINE_S)
        if self.fails:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in self.found]


_getaddrinfo = socket.getaddrinfo


@pytest.fixture
def nameserver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nameserver]:
    server = Nameserver()
    monkeypatch.setattr(socket, "getaddrinfo", server)
    monkeypatch.setattr(addresses, "_names", {})
    monkeypatch.setattr(addresses, "FRESH_SECONDS", 0.0)
    yield server
    server.answers.set()


@pytest.fixture
def hole() -> Iterator[Callable[[int], None]]:
    """Makes connects to `OTHER` hang, as to an address whose packets are dropped: nobody accepts, the queue is full."""
    open_: list[socket.socket] = []

    def dig(port: int) -> None:
        listening = socket.socket()
        listening.bind((OTHER, port))
        listening.listen(0)
        open_.append(listening)
        for _ in range(3):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((OTHER, port))
            open_.append(one)

    yield dig
    for one in open_:
        one.close()


def a_cluster(broker: FakeBroker, *bootstrap: tuple[str, int]) -> Cluster:
    scripted(broker, FakeCluster({1: (NAME, broker.address[1])}, {"orders": FakeTopic()}))
    return Cluster(Endpoint("test", bootstrap or ((NAME, broker.address[1]),)))


@in_loop
async def test_a_slow_lookup_does_not_use_up_the_time_of_the_connect(
    nameserver: Nameserver, clock: MovableClock
) -> None:
    """A dead nameserver costs 5 s, which is all that a connect may take."""
    nameserver.answers.clear()
    async with FakeBroker() as broker, a_cluster(broker) as cluster:
        refresh = asyncio.create_task(cluster.refresh(["orders"], timeout=10))
        await until_true(lambda: nameserver.asked == 1)
        clock.move(20)
        await asyncio.sleep(0.001)  # behind every timer that is due
        assert not refresh.done()
        nameserver.answers.set()
        await refresh
        assert cluster.nodes == (1,)


@in_loop
async def test_all_who_ask_for_a_name_share_one_lookup(nameserver: Nameserver) -> None:
    nameserver.answers.clear()
    asked = [asyncio.create_task(addresses_of(NAME)) for _ in range(20)]
    await until_true(lambda: nameserver.asked == 1)
    asked[0].cancel()  # whoever gives up does not end it for the others
    nameserver.answers.set()
    assert {address[1] for one in asked[1:] for address in await one} == {(HOST,)}
    assert nameserver.asked == 1


@in_loop
async def test_the_last_good_answer_serves_while_lookups_are_slow_or_fail(nameserver: Nameserver) -> None:
    good = await addresses_of(NAME)
    nameserver.fails = True
    assert await addresses_of(NAME) == good
    nameserver.answers.clear()
    assert await addresses_of(NAME) == good, "it does not wait for the lookup"
    nameserver.fails, nameserver.found = False, [OTHER]
    nameserver.answers.set()
    while await addresses_of(NAME) == good:
        await asyncio.sleep(0.01)
    assert [address[1] for address in await addresses_of(NAME)] == [(OTHER,)]


@in_loop
async def test_the_message_names_the_lookup(nameserver: Nameserver, clock: MovableClock) -> None:
    nameserver.fails = True
    with pytest.raises(LookupFailed, match=rf"^the lookup of the name {NAME} failed: Temporary failure"):
        await addresses_of(NAME)
    nameserver.answers.clear()
    slow = f"{NAME}:9: the lookup of the name {NAME} took longer than 30 s: check the nameserver"
    async with Cluster(Endpoint("test", ((NAME, 9),))) as cluster:
        waiting = [asyncio.create_task(one) for one in (Connection.open((NAME, 9)), cluster.refresh())]
        while not all(one.done() for one in waiting):
            clock.move(5)
            await asyncio.sleep(0.001)
        opened, refreshed = (one.exception() for one in waiting)
    assert (type(opened), str(opened)) == (ConnectionLost, slow)
    assert isinstance(refreshed, ClusterUnreachable)
    assert slow.removeprefix(f"{NAME}:9: ") in str(refreshed)


@in_loop
async def test_a_silent_first_address_is_passed_by_and_what_worked_is_remembered(
    nameserver: Nameserver, hole: Callable[[int], None]
) -> None:
    async with FakeBroker() as broker:
        hole(broker.address[1])
        nameserver.found = [OTHER, HOST]
        connection = await Connection.open((NAME, broker.address[1]))
        connection.close()
        assert [address[1] for address in await addresses_of(NAME)] == [(HOST,), (OTHER,)]


@in_loop
async def test_an_address_that_connects_and_says_nothing_is_the_last_to_be_tried_again(
    nameserver: Nameserver, clock: MovableClock
) -> None:
    nameserver.found = [HOST, OTHER]
    async with FakeBroker({API_VERSIONS.key: lambda _: None}) as silent:
        opening = asyncio.create_task(Connection.open((NAME, silent.address[1])))
        await silent.called(API_VERSIONS)
        clock.move(10)
        with pytest.raises(ConnectionLost, match="no answer within"):
            await opening
        assert [address[1] for address in await addresses_of(NAME)] == [(OTHER,), (HOST,)]


@in_loop
async def test_a_refused_address_is_followed_by_the_next_at_once(nameserver: Nameserver) -> None:
    async with FakeBroker() as broker:
        nameserver.found = [OTHER, HOST]  # nobody listens there
        connection = await Connection.open((NAME, broker.address[1]))
        connection.close()


@in_loop
async def test_an_address_needs_no_lookup(nameserver: Nameserver) -> None:
    assert await addresses_of("127.0.0.1") == ((socket.AF_INET, ("127.0.0.1",)),)
    assert (await addresses_of("::1"))[0][0] == socket.AF_INET6
    assert nameserver.asked == 0


@in_loop
async def test_what_comes_too_late_is_discarded_and_other_errors_are_reported_at_once() -> None:
    discarded: list[int] = []

    async def after(seconds: float, result: int) -> int:
        with contextlib.suppress(asyncio.CancelledError):  # as one that is done already
            await asyncio.sleep(seconds)
        return result

    async def fails(problem: Exception) -> int:
        raise problem

    slow, quick = (lambda: after(5, 1)), (lambda: after(0, 2))
    assert await in_turns([slow, quick], 0.01, OSError, discarded.append) == 2
    assert discarded == [1]
    with pytest.raises(KeyError):
        await in_turns([lambda: fails(KeyError()), quick], 5, OSError)
    with pytest.raises(addresses.AllFailed) as failed:
        await in_turns([lambda: fails(OSError("a")), lambda: fails(OSError("b"))], 5, OSError)
    assert [str(one) for one in failed.value.problems] == ["a", "b"]


@pytest.mark.parametrize("again", [0, 1, 2, 3])
def test_what_came_is_taken_or_discarded_whenever_it_is_cancelled(again: int) -> None:
    """Also where it is cancelled once more while it clears up."""

    async def made(steps: int, name: str, gone: list[str]) -> str:
        for _ in range(steps):
            await asyncio.sleep(0)
        gone.append(name)
        return name

    async def cancelled_after(steps: int) -> None:
        came, over = list[str](), list[str]()
        tries = [partial(made, 3, "a", came), partial(made, 4, "b", came)]
        running = asyncio.create_task(in_turns(tries, 0.0, OSError, over.append))
        for pause in (steps, again):
            for _ in range(pause):
                await asyncio.sleep(0)
            running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            over.append(await running)
        for _ in range(10):
            await asyncio.sleep(0)
        assert sorted(over) == sorted(came), steps

    for steps in range(15):
        asyncio.run(cancelled_after(steps))
