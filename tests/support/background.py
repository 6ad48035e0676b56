"""Servers beside a test, which have an event loop and a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Self

from waiting import DEADLINE_S


class BackgroundServers(ABC):
    """A context manager: listens while it is open, and cancels whatever is under way at its end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []

    @abstractmethod
    async def _listen(self) -> list[asyncio.Server]:
        """Start listening."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._servers = self._await(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._await(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for _ in range(3):  # what was accepted begins: a task that is cancelled before that leaves its socket open
            await asyncio.sleep(0)
        while True:  # what was accepted a moment ago begins meanwhile
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            every = tuple(self._loop._transports.values())  # type: ignore[attr-defined] # asyncio names it nowhere else
            left = [one for one in every if not one.is_closing()]
            if not others and not left:
                break
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            for one in left:
                one.abort()  # a task that was cancelled before it began has closed nothing
            for _ in range(3):  # closed at the next turn
                await asyncio.sleep(0)
