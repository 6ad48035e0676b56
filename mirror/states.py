"""The states of a mirrored partition, as `mirror status` prints them and the README lists them."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where one partition stands. A *stop* needs a person; everything else heals by itself."""

    STARTING = "STARTING"
    ALIGNING = "ALIGNING"
    MIRRORING = "MIRRORING"
    CAUGHT_UP = "CAUGHT_UP"
    PAUSED = "PAUSED"
    WAITING = "WAITING"

    TRUNCATED = "TRUNCATED"
    RECREATED = "RECREATED"
    RETENTION_GAP = "RETENTION_GAP"
    CORRUPT = "CORRUPT"
    REFUSED = "REFUSED"
    DIVERGED = "DIVERGED"
    CONTENDED = "CONTENDED"
    DENIED = "DENIED"
    TARGET_LOST = "TARGET_LOST"

    @property
    def is_stop(self) -> bool:
        """True for the states that the mirror does not leave on its own."""
        return self in _STOPS


_STOPS = frozenset(
    {
        State.TRUNCATED,
        State.RECREATED,
        State.RETENTION_GAP,
        State.CORRUPT,
        State.REFUSED,
        State.DIVERGED,
        State.CONTENDED,
        State.DENIED,
        State.TARGET_LOST,
    }
)
