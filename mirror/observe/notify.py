"""What a service manager is told (sd_notify(3)): that the mirror is ready, that it lives, and that it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket


def notify(state: str) -> bool:
    """Tell systemd, where it listens: `READY=1`, `WATCHDOG=1`, `STOPPING=1`. False where nobody was told."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.setblocking(False)
        link.sendto(state.encode(), f"\0{where[1:]}" if where.startswith("@") else where)
        return True
    return False


async def live() -> None:
    """Until cancelled: tell that the event loop turns, twice in the time that systemd gives (WatchdogSec)."""
    given = os.environ.get("WATCHDOG_USEC", "")
    is_ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    while given.isdigit() and int(given) and is_ours:
        notify("WATCHDOG=1")
        await asyncio.sleep(int(given) / 2e6)
