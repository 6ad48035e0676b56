"""From one mirror of a flow to the next, over the flow's journal.

The younger writes its name, and the older, when it reads that, ends its lanes and says so. The younger waits for that:
data that both send is harmless, since the broker knows it again by its number, but control markers have none, and two
mirrors that fill one gap fill it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterable
from typing import Final

from mirror.errors import ClusterError
from mirror.observe.figures import PREFIX as STATE
from mirror.observe.figures import Figures
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets.journal import ENDED, OWNER, Entry, Journal, newest
from mirror.offsets.owner import Owner, ended_instance

#: How long the younger waits: an older one that works reads the journal every second and ends within a few.
PATIENCE_SECONDS: Final = 8.0
#: A mirror on another machine whose reports are older than that is taken for dead.
_SILENT_MS: Final = 15_000
_LOOK_SECONDS: Final = 0.2


async def claim(journal: Journal, owner: Owner) -> int:
    """Take the flow; the offset behind the record that says so."""
    return await journal.append([(OWNER, owner.to_json())]) + 1


async def older_ended(
    journal: Journal, claimed: int, stopping: asyncio.Event
) -> tuple[Owner | None, dict[bytes, bytes]]:
    """Wait until the mirror that had the flow before `claimed` has ended; that mirror, where it did not in time, and
    the newest value of every key as of then.

    Raises ClusterError, MalformedBatch as reading the journal does.
    """
    entries, offset = await journal.read()
    every = list(entries)
    older = predecessor(entries, claimed, int(time.time() * 1000))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while older is not None and not stopping.is_set():
        if older.instance in _ended(entries) or _is_gone(older):
            break
        if time.monotonic() > deadline:
            return older, newest(every)
        await asyncio.sleep(_LOOK_SECONDS)
        entries, offset = await journal.read(offset)
        every += entries
    return None, newest(every)


def predecessor(entries: Iterable[Entry], claimed: int, now_ms: int) -> Owner | None:
    """The owner before offset `claimed`, unless the journal says that it ended, or it was silent for long."""
    owners, ended, heard = list[Owner](), _ended(entries := list(entries)), dict[str, int]()
    for entry in entries:
        with contextlib.suppress(*NOT_OURS):
            if entry.key == OWNER and entry.value and entry.offset < claimed - 1:
                owners.append(Owner.read(entry.value))
            elif entry.key.startswith(STATE) and entry.value:
                figures = Figures.from_json(entry.value)
                heard[figures.instance] = max(figures.at_ms, heard.get(figures.instance, 0))
    if not owners or owners[-1].instance in ended:
        return None
    last = owners[-1]
    return last if now_ms - max(last.at_ms, heard.get(last.instance, 0)) < _SILENT_MS else None


def _is_gone(owner: Owner) -> bool:
    """Its process is known to have ended; in a container that was started anew, ours may have its number."""
    return owner.is_here and (owner.pid == os.getpid() or not owner.lives)


def _ended(entries: Iterable[Entry]) -> set[str]:
    """The instances that ended in good order."""
    found = set()
    for entry in entries:
        with contextlib.suppress(*NOT_OURS):
            if entry.key == ENDED and entry.value:
                found.add(ended_instance(entry.value))
    return found


async def sign_off(journal: Journal, instance: str) -> None:
    """Say that this is an end and not a crash; a target that is away then just sees us go silent."""
    with contextlib.suppress(ClusterError, TimeoutError):
        async with asyncio.timeout(1.0):
            await journal.append([(ENDED, json.dumps({"instance": instance}).encode())])
