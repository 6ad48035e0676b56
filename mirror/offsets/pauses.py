"""Topics that rest because a person said so: `pause/<source topic>` in the flow's journal, until that is deleted."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
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


def paused_in(known: Mapping[bytes, bytes]) -> frozenset[str]:
    """The source topics that rest, as the newest records of a journal tell it; names that are none are passed over."""
    found = set()
    for key, value in known.items():
        with contextlib.suppress(ValueError):
            if (pause := read_pause(Entry(0, key, value))) is not None:
                found.add(pause.topic)
    return frozenset(found)
