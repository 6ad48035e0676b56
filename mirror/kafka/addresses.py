"""From a broker's name to a socket: the lookup apart from the connect, and every address of a name tried.

A lookup (`getaddrinfo`) blocks, for 5 s and more where a nameserver is dead, and says nothing meanwhile. So each runs
in a thread of its own, which nobody else's work waits for, and what it finds serves the whole process.

    - At most one lookup of a name runs at a time; whoever wants that name meanwhile shares it.
    - A lookup has `LOOKUP_SECONDS`, apart from what a connect may take; its error names the lookup and the name.
    - The last addresses that a lookup found are kept. They are used at once while the next one is slow, and for as long
      as lookups fail: a broker does not move because a nameserver is away.
    - Addresses are tried in turn, the next one `STAGGER` seconds after the one before it, or as soon as that failed;
      the first to connect wins (RFC 8305). One that served comes first the next time, one that did not comes last.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from mirror import clock

T = TypeVar("T")

#: How long a lookup may take: glibc asks each of three nameservers twice, and waits 5 s for each.
LOOKUP_SECONDS: Final = 30.0
#: How long an answer is as good as a new one.
FRESH_SECONDS: Final = 5.0
#: How long a new answer is waited for where there is an old one.
TIMEOUT_SECONDS: Final = 0.25
#: Between the beginnings of two attempts (RFC 8305, 5: Connection Attempt Delay).
STAGGER: Final = 0.25

#: An address without its port: the family, the host, and what else IPv6 has.
Address = tuple[int, tuple[Any, ...]]


class LookupFailed(OSError):
    """A name has no address, for all that is known; the message names both."""


@dataclass(slots=True, eq=False)
class _Name:
    """What is known of one name: its addresses, the best first, and the lookup that runs."""

    known: tuple[Address, ...] = ()
    found_at: float = float("-inf")
    running: Future[tuple[Address, ...]] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_names: dict[str, _Name] = {}
_names_lock = threading.Lock()


def _forked() -> None:
    """A child has no thread but its own: lookups that run are its parent's."""
    global _names_lock  # noqa: PLW0603 -- it may be held by a thread that is not there
    _names_lock = threading.Lock()
    for host, name in [*_names.items()]:
        _names[host] = _Name(name.known, name.found_at)


os.register_at_fork(after_in_child=_forked)


def _name(host: str) -> _Name:
    with _names_lock:
        return _names.setdefault(host, _Name())


def _asked(host: str, flags: int = 0) -> tuple[Address, ...]:
    """Raises gaierror, and UnicodeError for what is no name."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    return _interleaved(dict.fromkeys((int(family), (at[0], *at[2:])) for family, *_, at in found))


def _interleaved(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Families in turns, in the resolver's order otherwise (RFC 8305, 4): one that leads nowhere costs one attempt."""
    by_family: dict[int, list[Address]] = {}
    for address in addresses:
        by_family.setdefault(address[0], []).append(address)
    rounds = max(map(len, by_family.values()), default=0)
    return tuple(of[number] for number in range(rounds) for of in by_family.values() if number < len(of))


def _resolve(host: str, name: _Name) -> Future[tuple[Address, ...]]:
    """Return the lookup that runs, or one that begins now."""
    with name.lock:
        if name.running is not None:
            return name.running
        running = Future[tuple[Address, ...]]()
        name.running = running
        running.set_running_or_notify_cancel()  # whoever stops waiting does not end it for the others

    def run() -> None:
        failure: BaseException | None = None
        found: tuple[Address, ...] = ()
        try:
            found = _asked(host)
        except BaseException as problem:  # handed over to whoever waits
            failure = problem
        with name.lock:
            name.running = None
            if found:
                name.known = tuple(sorted(found, key=_order(name.known)))
                name.found_at = clock.monotonic()
        if failure is None:
            running.set_result(name.known)
        else:
            running.set_exception(failure)

    try:
        threading.Thread(target=run, daemon=True, name=f"lookup {host}").start()
    except RuntimeError as problem:  # there are too many, now
        with name.lock:
            name.running = None
        running.set_exception(OSError(f"{host} cannot be looked up: {problem}"))
    return running


def _order(before: tuple[Address, ...]) -> Any:
    """Addresses that were known stay in the order that experience gave them; new ones follow."""
    places = {address: place for place, address in enumerate(before)}
    return lambda address: places.get(address, len(places))


async def addresses_of(host: str) -> tuple[Address, ...]:
    """The addresses of a name, or of what is one itself, the best first. Raises LookupFailed; ValueError for what no
    resolver takes.
    """
    with contextlib.suppress(socket.gaierror):
        return _asked(host, socket.AI_NUMERICHOST)  # asks nobody
    name = _name(host)
    if clock.monotonic() - name.found_at < FRESH_SECONDS:
        return name.known
    lookup = asyncio.wrap_future(_resolve(host, name))
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS if name.known else LOOKUP_SECONDS):
            return await lookup
    except TimeoutError as slow:
        if not name.known:
            took = f"took longer than {LOOKUP_SECONDS:g} s: check the nameserver"
            raise LookupFailed(f"the lookup of the name {host} {took}") from slow
    except OSError as problem:
        if not name.known:
            raise LookupFailed(f"the lookup of the name {host} failed: {problem.strerror or problem}") from problem
    return name.known


async def resolved(hosts: Iterable[str]) -> Exception | None:
    """Wait until one of the names has an address; or why the last of them has none."""
    try:
        await in_turns([partial(addresses_of, host) for host in dict.fromkeys(hosts)], 0.0, (OSError, ValueError))
    except AllFailed as failed:
        return failed.problems[-1] if failed.problems else None
    return None


def served(host: str, at: str, *, well: bool) -> None:
    """Address `at` of the name answered as a broker does, or did not: it comes first, or last, from now on."""
    with _names_lock:
        name = _names.get(host)
    if name is None:
        return
    with name.lock:
        name.found_at = name.found_at if well else float("-inf")
        own = [address for address in name.known if address[1][0] == at]
        others = [address for address in name.known if address[1][0] != at]
        name.known = tuple((*own, *others) if well else (*others, *own))


async def connected(addresses: Iterable[Address], port: int) -> socket.socket:
    """A socket that is connected to one of these. Raises OSError: that of the address that was tried first."""
    tries = [partial(_connected, address, port) for address in addresses]
    try:
        return await in_turns(tries, STAGGER, OSError, socket.socket.close)
    except AllFailed as failed:
        raise failed.problems[0] from None


async def _connected(address: Address, port: int) -> socket.socket:
    family, (host, *rest) = address
    link = socket.socket(family, socket.SOCK_STREAM)
    try:
        link.setblocking(False)
        await asyncio.get_running_loop().sock_connect(link, (host, port, *rest))
    except BaseException:
        link.close()
        raise
    return link


class AllFailed(Exception):
    """Not one of several attempts came to its end; `problems` are theirs, in the order of the attempts."""

    def __init__(self, problems: Sequence[Exception]) -> None:
        self.problems = problems
        super().__init__(*problems)


async def in_turns(
    attempts: Sequence[Callable[[], Coroutine[Any, Any, T]]],
    stagger: float,
    retriable: type[Exception] | tuple[type[Exception], ...],
    discard: Callable[[T], object] = lambda _: None,
) -> T:
    """What the first attempt to succeed gives. Each begins `stagger` seconds after the one before it, or as soon as
    that failed; `discard` gets what came too late.

    Raises AllFailed where all failed by errors that are `retriable`; another error at once.
    """

    def drop(task: asyncio.Task[T]) -> None:
        if not task.cancelled() and task.exception() is None:
            discard(task.result())

    untried, begun = list(attempts), list[asyncio.Task[T]]()
    taken: asyncio.Task[T] | None = None
    try:
        while True:
            if untried:
                begun.append(asyncio.create_task(untried.pop(0)()))
            if under_way := [task for task in begun if not task.done()]:
                waits = stagger if untried else None
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED, timeout=waits)
            for attempt in begun:
                if attempt.done() and not isinstance(attempt.exception(), retriable):
                    taken = attempt
                    return attempt.result()
            if not untried and all(task.done() for task in begun):
                raise AllFailed([problem for task in begun if isinstance(problem := task.exception(), Exception)])
    finally:
        late = [task for task in begun if task is not taken]
        for attempt in late:
            attempt.add_done_callback(drop)  # also where whoever waits here is cancelled once more
            attempt.cancel()
        try:
            if late:
                await asyncio.wait(late)
        except BaseException:
            if taken is not None:
                discard(taken.result())
            raise
