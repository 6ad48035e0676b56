"""Work that blocks, beside the event loop, in a thread that the end of the program does not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """What `work` returns, or raises. Whoever is cancelled meanwhile leaves it to end by itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, failure: BaseException | None) -> None:
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
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, daemon=True, name="mirror-background").start()
    return await done
