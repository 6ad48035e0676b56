"""Where a command's results go: stdout, which may be closed, on a disk that is full, or a pipe whose reader has gone.

What a command did, and its exit code, stand whatever becomes of its words: a failover is one though nobody reads it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from mirror.errors import ExitCode

#: What a shell gets from a command whose reader has gone: 128 and SIGPIPE.
READER_GONE: Final = 141
_STDOUT: Final = 1


class Results:
    """Stands for `sys.stdout`. What cannot be written is dropped, and reported when the command ends; a reader that has
    gone ends it, since nobody waits for the rest.
    """

    def __init__(self, file: TextIO | None) -> None:
        """`file`: stdout; None where the shell closed it."""
        self._file = file if file is not None else Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        self._problem: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        """All else is the file's."""
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write as a file does. Raises SystemExit where the reader has gone."""
        self._attempt(self._file.write, text)
        return len(text)

    def flush(self) -> None:
        """Flush as a file does. Raises SystemExit where the reader has gone."""
        self._attempt(self._file.flush)

    def end(self, code: int) -> int:
        """Write what is left; the exit code of a command that ended with this one."""
        with contextlib.suppress(SystemExit):
            self.flush()
        if self._problem is None:
            return code
        if isinstance(self._problem, BrokenPipeError):
            return code or READER_GONE
        with contextlib.suppress(OSError, ValueError):  # stderr may be as full; the code still says it
            reason = self._problem.strerror or self._problem
            print(f"mirror: what this command printed could not be written: {reason}", file=sys.stderr, flush=True)
        return code or ExitCode.BUG

    def _attempt(self, act: Callable[..., object], *given: str) -> None:
        if self._problem is not None:
            return
        try:
            act(*given)
        except OSError as problem:
            self._problem = problem
            with contextlib.suppress(OSError):  # the interpreter flushes once more when it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
            if isinstance(problem, BrokenPipeError):
                raise SystemExit(READER_GONE) from None
