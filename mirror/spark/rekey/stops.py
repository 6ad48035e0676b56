"""How a task tells the driver why it gave up: Spark hands on the text of an exception, so the text holds the facts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, Self

from mirror.errors import MirrorError
from mirror.states import REKEYED_BY, Remedy, State

_MARK: Final = "mirror-stop:"
_FOUND: Final = re.compile(re.escape(_MARK) + r"(\[.*?\])(?:$|\n)", re.MULTILINE)


class Stopped(MirrorError):
    """A source partition cannot be re-keyed from `offset` on, -1 where that is not known. `remedies` are what resolves
    it, by default all that does in its state.
    """

    def __init__(self, state: State, partition: int, offset: int, detail: str, *remedies: Remedy) -> None:
        self.state, self.partition, self.offset, self.detail = state, partition, offset, detail
        self.remedies = remedies or REKEYED_BY[state]
        names = [one.name for one in self.remedies]
        super().__init__(_MARK + json.dumps([state, partition, offset, detail, names]))

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.state, self.partition, self.offset, self.detail, *self.remedies)

    def told(self, values: Mapping[str, object]) -> str:
        """What is wrong, and what to do."""
        known = {**values, "partition": self.partition}
        return ". ".join((self.detail, *(one.told(known) for one in self.remedies)))

    @staticmethod
    def found_in(failure: Exception) -> Stopped | None:
        """The stop that a failed job ended with, if it was one."""
        found = _FOUND.search(str(failure))
        if found is None:
            return None
        state, partition, offset, detail, names = json.loads(found[1])
        return Stopped(State(state), int(partition), int(offset), str(detail), *(Remedy[name] for name in names))
