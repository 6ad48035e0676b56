"""What the flow's journal says, read as any consumer may: records of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

STOPS = frozenset(
    {"TRUNCATED", "RECREATED", "RETENTION_GAP", "CORRUPT", "REFUSED", "DIVERGED", "TARGET_LOST", "FENCED"}
    | {"UNAUTHORIZED"}
)
#: Stops that end when somebody else does, or that are of the preflight, which asks again.
PASSING = frozenset({"FENCED", "UNAUTHORIZED", "REFUSED"})
#: Target topic and partition.
Place = tuple[str, int]


class Standing(NamedTuple):
    """What the newest report of a partition says."""

    state: str
    next_offset: int
    detail: str
    at_ms: int


@dataclass(slots=True)
class Recorded:
    """The newest reports by target partition, ranges of offsets that are recorded as lost (from, to before), and the
    target topics that the flow names as its copies, with their ids.
    """

    states: dict[Place, Standing] = field(default_factory=dict)
    losses: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)


def found_in(entries: Iterable[tuple[int, bytes, bytes | None]]) -> Recorded:
    """What the entries of a journal say, in their order."""
    found = Recorded()
    for _, key, value in entries:
        with suppress(ValueError, KeyError, TypeError, UnicodeDecodeError):
            _learn(found, key.decode(), value)
    return found


def _learn(found: Recorded, key: str, value: bytes | None) -> None:
    kind, _, rest = key.partition("/")
    if kind == "state":
        topic, _, partition = rest.rpartition("/")
        place = topic, int(partition)
        if value is None:
            found.states.pop(place, None)
            return
        fields: dict[str, Any] = json.loads(value)
        found.states[place] = Standing(
            fields["state"], int(fields["next_offset"]), str(fields.get("detail", "")), int(fields["at_ms"])
        )
    elif kind == "topic" and value is not None:
        found.copies[rest] = str(json.loads(value).get("target_topic_id"))
    elif kind == "loss":
        place_text, _, first = rest.rpartition("/")
        topic, _, partition = place_text.rpartition("/")
        losses = found.losses.setdefault((topic, int(partition)), [])
        if value is None:  # taken back
            losses[:] = [one for one in losses if one[0] != int(first)]
        else:
            losses.append((int(first), int(json.loads(value)["next"])))
