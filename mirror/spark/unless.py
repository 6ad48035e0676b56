"""Work that a mirror which is to end does not wait for: a cluster that is away would hold up a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


async def unless(stopping: asyncio.Event, work: Coroutine[object, object, None]) -> None:
    """Do it, unless `stopping` is set before it is done: then it is cancelled, and nothing is said. Raises what it
    raises.
    """
    doing, stop = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    try:
        if not stopping.is_set():
            await asyncio.wait([doing, stop], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
    finally:
        for task in (doing, stop):
            task.cancel()
        await asyncio.wait([doing, stop])
        _ = doing.cancelled() or doing.exception()  # looked at: what it met on its way out is of no interest
