"""How a task tells the driver why it gave up: Spark hands on the text of an exception, so the text holds the facts."""

from __future__ import annotations

import json
import re
from typing import Final, Self

from mirror.errors import MirrorError
from mirror.states import State

_MARK: Final = "mirror-stop:"
_FOUND: Final = re.compile(re.escape(_MARK) + r"(\[.*?\])(?:$|\n)", re.MULTILINE)


class Stopped(MirrorError):
    """A source partition cannot be re-keyed from `offset` on, -1 where that is not known."""

    def __init__(self, state: State, partition: int, offset: int, detail: str) -> None:
        self.state, self.partition, self.offset, self.detail = state, partition, offset, detail
        super().__init__(_MARK + json.dumps([state, partition, offset, detail]))

    def __reduce__(self) -> tuple[type[Self], tuple[State, int, int, str]]:
        return type(self), (self.state, self.partition, self.offset, self.detail)

    @staticmethod
    def found_in(failure: Exception) -> Stopped | None:
        """The stop that a failed job ended with, if it was one."""
        found = _FOUND.search(str(failure))
        if found is None:
            return None
        state, partition, offset, detail = json.loads(found[1])
        return Stopped(State(state), int(partition), int(offset), str(detail))
