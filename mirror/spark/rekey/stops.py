"""How a task tells the driver why it gave up: Spark hands on the text of an exception, so the text holds the facts."""

from __future__ import annotations

import json
import re
from typing import Final, Self

from mirror.errors import MirrorError
from mirror.states import State

_MARK: Final = "mirror-stop:"
#: Characters of a failure that are told.
_READABLE: Final = 300
_FOUND: Final = re.compile(re.escape(_MARK) + r"(\[.*?\])(?:$|\n)", re.MULTILINE)


_ERROR: Final = re.compile(r"^\s*(?:\w+\.)*(\w+): (.+)$", re.MULTILINE)


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


def told_by(failure: Exception) -> str:
    """What a failure says, without the stacks: of an exception in a task's Python its own words, which come last."""
    text = str(failure).split("\n\tat ", 1)[0]
    if "Traceback (most recent call last)" in text and (found := _ERROR.findall(text)):
        return f"{found[-1][0]}: {found[-1][1]}"[:_READABLE]
    return text.strip().split("\n", 1)[0][:_READABLE] or type(failure).__name__
