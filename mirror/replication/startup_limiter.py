"""Turns of the partitions of a task that begin together: each asks a dozen questions, and thousands at once would keep
the event loop from every answer for seconds, until answers that came in time count as late.

Decision: a turn ends after a moment even if its work does not. What waits for a broker that is gone costs no time of
the loop, and must not keep the others from beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StartupLimiter:
    """Use `async with turns.taken()`; `at_once` turns, each held for `seconds` at most."""

    def __init__(self, at_once: int, seconds: float) -> None:
        self._free, self._seconds = asyncio.Semaphore(at_once), seconds

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Wait for a turn, then go."""
        await self._free.acquire()
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._seconds, end)
        try:
            yield
        finally:
            timer.cancel()
            end()
