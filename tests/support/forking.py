"""The process that tests fork mirrors from, with what they need imported ahead."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import connection, forkserver, get_context
from pathlib import Path
from typing import Any, Final

_CONTEXT: Final = get_context("forkserver")
_server: Any = forkserver._forkserver  # there is no public way to ask or to stop it
_starting = threading.Lock()
#: Held by who asks how a process ended. `multiprocessing` asks for all of them whenever it starts one, and of two
#: threads that read the same answer one gets nothing.
_asking = threading.Lock()
#: What `multiprocessing` says where its server did not hear of the end of a process.
_LOST: Final = 255


class Forked:
    """A process that was forked, of which any thread may ask."""

    def __init__(self, preloaded: Sequence[str], target: Callable[..., None], *args: object) -> None:
        """Start it where these modules are imported, to call `target` there."""
        ensure_server(preloaded)
        self._process = _CONTEXT.Process(target=target, args=args, daemon=True)
        with _asking:
            self._process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """It runs, or is suspended."""
        with _asking:
            return self._process.is_alive()

    @property
    def is_suspended(self) -> bool:
        """It was stopped by a signal, and waits for another one."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def send(self, number: signal.Signals) -> None:
        """A signal, if it is still there."""
        if self.is_alive:
            os.kill(self.pid, number)

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code, negative for a signal; None where it does not end in time. RuntimeError where the server
        that forked it has lost it, which is no code of its own.
        """
        connection.wait([self._process.sentinel], seconds)
        with _asking:
            code = self._process.exitcode
        if code == _LOST:
            raise RuntimeError(f"nobody knows how process {self.pid} ended")
        return code

    def end(self) -> None:
        """SIGKILL, and wait."""
        with _asking:
            self._process.kill()
        connection.wait([self._process.sentinel])


def ensure_server(preloaded: Sequence[str]) -> None:
    """Start the process with these modules imported, unless it runs with them: there is one at a time. It gets this
    one's path. Python 3.11 does not hand that over, and passes over what cannot be imported ahead without a word.
    """
    path = {"PYTHONPATH": os.pathsep.join(one for one in sys.path if one), "PYTHONSAFEPATH": "1"}
    with _starting:
        if _server._preload_modules != [*preloaded]:
            forget_server()
            _CONTEXT.set_forkserver_preload([*preloaded])
        former = {name: os.environ.get(name) for name in path}
        os.environ |= path
        try:
            forkserver.ensure_running()
        finally:
            for name, value in former.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def forget_server() -> None:
    """Let the next process begin with a server of its own, which imports anew."""
    _server._stop()
