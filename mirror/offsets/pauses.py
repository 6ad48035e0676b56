"""Topics that rest because a person said so: `pause/<source topic>` in the flow's journal, until that is deleted."""

from __future__ import annotations

import json
import time
from typing import Final, NamedTuple

from mirror.offsets.journal import Entry

_PAUSE: Final = b"pause/"


class Pause(NamedTuple):
    """What a record says of a source topic: that it rests, or that it goes on."""

    topic: str
    rests: bool


def pause_entry(topic: str) -> tuple[bytes, bytes]:
    """The record that lets a topic rest."""
    return _PAUSE + topic.encode(), json.dumps({"at_ms": int(time.time() * 1000)}).encode()


def resume_entry(topic: str) -> tuple[bytes, None]:
    """The record that lets it go on."""
    return _PAUSE + topic.encode(), None


def read_pause(record: Entry) -> Pause | None:
    """What a record says; None where it is about something else. Raises ValueError for a name that is none."""
    if not record.key.startswith(_PAUSE):
        return None
    return Pause(record.key[len(_PAUSE) :].decode(), record.value is not None)
