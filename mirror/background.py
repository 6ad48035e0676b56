"""Work that blocks, beside the event loop, in threads that the end of the program does not wait for.

None waits for another: there is a thread for each that runs. A thread that is done serves again, since py4j and others
keep something for every thread that they meet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class _Worker:
    """A thread, which does one thing after another."""

    idle: list[_Worker] = []  # noqa: RUF012 -- of the process
    lock = threading.Lock()

    def __init__(self) -> None:
        self.todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="mirror-background").start()

    def _run(self) -> None:
        while True:
            self.todo.get()()
            with _Worker.lock:
                self.idle.append(self)


def _forked() -> None:
    """A child has no thread but its own."""
    _Worker.idle.clear()
    _Worker.lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


async def in_background(work: Callable[[], T]) -> T:
    """What `work` returns, or raises. Whoever is cancelled meanwhile leaves it to end by itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, failure: BaseException | None) -> None:
        if done.cancelled():
            return
        if failure is not None:
            done.set_exception(failure)
        else:
            done.set_result(result)  # type: ignore[arg-type] # None is a result where T is None

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as problem:  # handed over to whoever waits
            failure = problem
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            loop.call_soon_threadsafe(resolve, result, failure)

    with _Worker.lock:
        worker = _Worker.idle.pop() if _Worker.idle else None
    (worker or _Worker()).todo.put(run)
    return await done
