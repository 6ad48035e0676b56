"""How the consumer groups of a flow stand, as its driver reports on the flow's topic under the key `groups`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Final

KEY: Final = b"groups"
_LARGEST: Final = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """The groups that have committed offsets for mirrored partitions.

    `instance`: the process that reports; `at_ms`: wall clock of the look at all of them, Unix ms. `groups` is the sum
    of `synced`; `held_back`, until records are mirrored; `ahead`, having consumed on the target; `active`, with
    members there; and `hindered`, by what the log says.
    """

    instance: str
    at_ms: int
    groups: int = 0
    synced: int = 0
    held_back: int = 0
    ahead: int = 0
    active: int = 0
    hindered: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """All but who reports, and when."""
        return self.groups, self.synced, self.held_back, self.ahead, self.active, self.hindered

    def to_json(self) -> bytes:
        """The record value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> GroupFigures:
        """Read a record value. `ValueError` when it is not one; unknown keys are ignored."""
        try:
            found = json.loads(data)
        except RecursionError as error:
            raise ValueError("figures of groups are nested too deeply") from error
        if not isinstance(found, dict):
            raise ValueError("figures of groups must be a JSON object")
        values = {one.name: found[one.name] for one in fields(cls) if one.name in found}
        for name, value in values.items():
            if not isinstance(value, str if name == "instance" else int) or isinstance(value, bool):
                raise ValueError(f"figures of groups: {name} is {value!r}")
        if any(isinstance(value, int) and not -_LARGEST <= value < _LARGEST for value in values.values()):
            raise ValueError("figures of groups: a number of more than 64 bits")
        if absent := {"instance", "at_ms"} - values.keys():
            raise ValueError(f"figures of groups lack {', '.join(sorted(absent))}")
        return cls(**values)
