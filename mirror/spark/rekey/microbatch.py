"""One micro-batch of a re-keyed topic: what the driver plans, and all that a task needs to carry it out (values)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from mirror.errors import ConfigError
from mirror.policy.rekeying import Rekeying
from mirror.wire.cluster import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Micro-batch `number`, which a slot carries out that has committed number `after` (R3).

    There are `slots` (R5). Of each source partition the records from `begin` to before `upto`; none of them is of a
    leader epoch after that in `epochs`. The topic ids are those of source and target when it was planned: another topic
    by the same name has other records. `abandoned`: the plan that this one takes the place of, if no slot had that.
    """

    number: int
    after: int
    begin: Mapping[int, int]
    upto: Mapping[int, int]
    epochs: Mapping[int, int]
    slots: int
    rule: Rekeying
    source_id: uuid.UUID | None
    target_id: uuid.UUID | None
    abandoned: Plan | None = None

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """(partition, first offset, offset behind the last), without those that are empty."""
        return tuple(
            (partition, self.begin[partition], upto)
            for partition, upto in sorted(self.upto.items())
            if upto > self.begin[partition]
        )

    @property
    def _by_partition(self) -> dict[str, Mapping[int, int]]:
        return {"begin": self.begin, "upto": self.upto, "epochs": self.epochs}

    def to_json(self) -> bytes:
        """The record's value."""
        return json.dumps(self._to_dict(), separators=(",", ":")).encode()

    def _to_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "after": self.after,
            **{name: {str(key): value for key, value in of.items()} for name, of in self._by_partition.items()},
            "slots": self.slots,
            "rule": self.rule.to_dict(),
            "source_id": self.source_id and str(self.source_id),
            "target_id": self.target_id and str(self.target_id),
            "abandoned": self.abandoned and self.abandoned._to_dict(),
        }

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Raises ConfigError for what no mirror wrote."""
        try:
            return cls._from_dict(json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise ConfigError(f"a plan of the re-key query cannot be read: {problem!r}") from problem

    @classmethod
    def _from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(
            number=int(values["number"]),
            after=int(values["after"]),
            **{
                name: {int(key): int(value) for key, value in values[name].items()}
                for name in ("begin", "upto", "epochs")
            },
            slots=int(values["slots"]),
            rule=Rekeying.from_dict(values["rule"]),
            source_id=uuid.UUID(values["source_id"]) if values["source_id"] else None,
            target_id=uuid.UUID(values["target_id"]) if values["target_id"] else None,
            abandoned=cls._from_dict(values["abandoned"]) if values["abandoned"] else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What tasks need besides their rows: the plan, both clusters, and how many slots there are (R5)."""

    flow: str
    plan: Plan
    source: Endpoint
    target: Endpoint
    slots: int

    def slot_of(self, partition: int) -> int:
        """Which slot writes a target partition."""
        return partition % self.slots
