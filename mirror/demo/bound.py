"""A process that ends with this one, however this one dies: SIGKILL included. The brokers' guard sees to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Final

from mirror.embedded.node import GUARD

#: What the guard grants the process beyond the grace, to see its end.
_MARGIN_S: Final = 2.0


class Bound(AbstractContextManager["Bound"]):
    """A command that runs until it ends, is stopped, or loses its parent. All its output goes to `log`."""

    def __init__(self, command: Sequence[str], log: Path, *, grace: float, folder: Path | None = None) -> None:
        """`grace`: seconds from SIGTERM to SIGKILL. `folder` is removed if nobody else is left to do so."""
        self.log, self._grace = log, grace
        guarded = [sys.executable, "-S", "-E", str(GUARD), "bound", str(grace), str(folder or ""), *command]
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                guarded, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True
            )
        assert self._guard.stdout is not None
        with self._guard.stdout as reported:
            self.pid = int(reported.readline())

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self._guard.stdin is not None
        self._guard.stdin.close()

    @property
    def exit_code(self) -> int | None:
        """As a shell gives it; None while it runs."""
        return self._guard.poll()

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        return self._guard.wait()

    def stop(self) -> int:
        """SIGTERM, then SIGKILL after the grace; the exit code, which is 137 if it came to that."""
        if self.exit_code is None:
            self._guard.terminate()
        return self._guard.wait(self._grace + _MARGIN_S)

    def tail(self, lines: int = 20) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
