"""Transactions that are open on the source: what is written behind the first of them is not copied before it ends."""

from __future__ import annotations

from typing import Final

from mirror import clock

#: Seconds for which a transaction of the source holds back what follows it before that is reported.
HELD_SECONDS: Final = 3.0
HELD: Final = "what is written behind it is not copied before it ends"


def held_since(since: float | None, before: int, stable: int, written: int) -> float | None:
    """Since when (monotonic) readers of committed records get nothing from offset `stable` on though the log ends at
    `written`; None where they get all. `since` is what this said last, when `before` was the stable offset.
    """
    if stable >= written:
        return None
    return clock.monotonic() if since is None or stable != before else since


def held_from(offset: int) -> str:
    """What is reported of the first one, which begins at this offset."""
    return f"a transaction is open on the source from offset {offset} on, and {HELD}"


def held_note(since: float | None, stable: int) -> str:
    """The same once it has lasted; empty before."""
    return held_from(stable) if since is not None and clock.monotonic() - since > HELD_SECONDS else ""
