"""A process of its own for what may abort, hang or be killed: a fork, which has everything loaded already."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

_SHOWN_LINES: Final = 25
#: How libFuzzer's own lines behind a traceback begin.
_NOISE: Final = ("==", "stat::", "SUMMARY", "Base64", "MS:", "artifact_prefix")


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended: its exit code, the negative of a signal's number, or None where it had to be killed; and
    what it said.
    """

    code: int | None
    output: str

    def __str__(self) -> str:
        """The end, and the last lines of what was said, from the last traceback on where there is one."""
        lines = self.output.rstrip().splitlines()
        if marks := [number for number, line in enumerate(lines) if line.startswith("Traceback")]:
            lines = [line for line in lines[marks[-1] :] if not line.startswith(_NOISE)]
        return "\n".join([self._how(), *lines[-_SHOWN_LINES:]])

    def _how(self) -> str:
        if self.code is None:
            return "it did not end"
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


def forked(task: Callable[[], None], output: Path, limit: float) -> End:
    """Run `task` in a fork, for at most `limit` seconds of wall time; what it says goes through the file `output`."""
    process = get_context("fork").Process(target=_redirected, args=(task, output), daemon=True)
    process.start()
    process.join(limit)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    process.close()
    return End(code, output.read_text(errors="replace"))


def _redirected(task: Callable[[], None], output: Path) -> None:
    with output.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):  # libraries know the descriptors alone
            os.dup2(file.fileno(), stream.fileno())
    task()
