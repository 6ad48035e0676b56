"""How the consumer groups of a flow stand, as its driver reports on the flow's topic under the key `groups`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Final

from mirror.observe.jsonrecords import read_fields

KEY: Final = b"groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """The groups that have committed offsets for mirrored partitions.

    `instance`: the process that reports; `at_ms`: wall clock of the look at all of them, Unix ms. `groups` is the sum
    of `synced`; `held_back`, until records are mirrored; `ahead`, having consumed on the target; `expired`, at the
    target's log start, since what they would read next is deleted there; `active`, with members there; and `hindered`,
    by what the log says.
    """

    instance: str
    at_ms: int
    groups: int = 0
    synced: int = 0
    held_back: int = 0
    ahead: int = 0
    active: int = 0
    hindered: int = 0
    expired: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """All but who reports, and when."""
        return self.groups, self.synced, self.held_back, self.ahead, self.active, self.hindered, self.expired

    def to_json(self) -> bytes:
        """The record value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> GroupFigures:
        """Read a record value. `ValueError` when it is not one; unknown keys are ignored."""
        return cls(**read_fields(data, _KINDS, {"instance", "at_ms"}, "figures of groups"))


_KINDS: Final = {one.name: (str,) if one.name == "instance" else (int,) for one in fields(GroupFigures)}
