"""A process that ends with this one, however this one dies: SIGKILL included. The brokers' guard sees to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from mirror.embedded.node import GUARD


class Bound(AbstractContextManager["Bound"]):
    """A command that runs until it ends, is stopped, or loses its parent. All its output goes to `log`."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        grace: float,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`grace`: seconds from SIGTERM to SIGKILL. `folder` is removed if nobody else is left to do so. `environment`
        is laid over this process's.
        """
        self.log = log
        guarded = [sys.executable, "-S", "-E", str(GUARD), "bound", str(grace), str(folder or ""), *command]
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                guarded,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
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

    def stop(self) -> int:
        """SIGTERM, then SIGKILL after the grace; the exit code, which is 137 if it came to that."""
        if self.exit_code is None:
            self._guard.terminate()
        return self._guard.wait()

    def tail(self, lines: int = 20) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
