"""A flow held by a command that is no mirror, for as long as it writes: claimed, claimed again, and given back.

The command's own work may block, so that the claim has a thread of its own. Whoever takes the flow over is seen by the
tasks themselves, each of which reads the journal (`restoring.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from mirror.config import Settings
from mirror.offsets.journal import Journal, JournalMissing
from mirror.offsets.owner import Owner
from mirror.spark.handover import RESTATE_SECONDS, Watched, restate, sign_off, stand_by, take
from mirror.wire.cluster import Cluster, Endpoint


@contextlib.contextmanager
def held(settings: Settings, *, take_over: bool) -> Iterator[Owner]:
    """Claim the flow, whose journal is there, and hold it while the body runs. A body that fails leaves no word of its
    end: some of its tasks may still write, and whoever comes next waits as for a mirror that was killed.

    Raises PreflightError where a mirror runs the flow and it is not to be taken over, or where it was failed over;
    ClusterError as reading the journal does.
    """
    taken: Future[Owner] = Future()
    over, is_done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            asyncio.run(_hold(settings, take_over, taken, over, is_done))
        except BaseException as problem:
            if taken.done():
                raise
            taken.set_exception(problem)

    with ThreadPoolExecutor(1, "claim") as threads:
        holding = threads.submit(hold)
        try:
            yield taken.result()
            is_done.set()
        finally:
            over.set()
            holding.result()


async def _hold(
    settings: Settings, take_over: bool, taken: Future[Owner], over: threading.Event, is_done: threading.Event
) -> None:
    async with Cluster(Endpoint.of(settings.target)) as target:
        journal = Journal(target, settings.flow)
        await target.refresh([journal.partition.topic])
        found = await take(journal, uuid.uuid4().hex[:12], asyncio.Event(), take_over=take_over, waits=False)
        assert found is not None, "nobody stops it"
        owner = found.owner
        taken.set_result(owner)
        while not await asyncio.to_thread(over.wait, RESTATE_SECONDS):
            if await successor(found.seen, owner) is None:
                await restate(journal, owner)
        if is_done.is_set():
            await sign_off(journal, owner.instance)


async def successor(seen: Watched, owner: Owner) -> Owner | None:
    """Whoever has taken the flow over from an owner, as far as the journal can be read."""
    await seen.look_if_possible()
    now = seen.claims.owner
    if now is None or now.instance == owner.instance or (now.claim or 0) <= (owner.claim or 0):
        return None
    return now


async def refuse_held(settings: Settings) -> None:
    """Raises PreflightError where a mirror runs the flow, or where it was failed over; ClusterError as `held`."""
    async with Cluster(Endpoint.of(settings.target)) as target:
        with contextlib.suppress(JournalMissing):
            await stand_by(Watched(Journal(target, settings.flow)), asyncio.Event(), waits=False)
