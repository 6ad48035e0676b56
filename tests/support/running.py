"""`mirror run` as a process of its own, watched until something has come about."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
from adversary.driving import Command
from waiting import DEADLINE_S, until


class Running:
    """A `mirror run` under way; its log so far."""

    process: subprocess.Popen[bytes] | Child

    def __init__(self, config: Path, log: Path, *options: str) -> None:
        self.log_file = log
        with log.open("w") as out:
            self.process = subprocess.Popen([sys.executable, "-m", "mirror", "run", str(config), *options], stderr=out)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def until(self, pattern: str) -> None:
        until(lambda: re.search(pattern, self.log) or self.process.poll() is not None, lambda: self.log)
        assert re.search(pattern, self.log), self.log

    def ended(self, seconds: float = DEADLINE_S) -> int:
        return self.process.wait(seconds)


class Forked(Running):
    """The same in a process forked from one that has imported it, and without a JVM, whose start costs seconds: for
    what does not hang on Spark.
    """

    def __init__(self, config: Path, log: Path, *options: str) -> None:
        self._command = Command(log.parent, "run", str(config), *options)
        self.process = Child(self._command)

    @property
    def log(self) -> str:
        return self._command.logged


class Child:
    """A forked command with as much of the ways of `subprocess.Popen` as is asked for here."""

    def __init__(self, command: Command) -> None:
        self._command, self.pid = command, command.pid
        self.send_signal, self.kill = command.send, command.end

    def poll(self) -> int | None:
        return self._command.wait(0)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def wait(self, seconds: float | None = None) -> int:
        code = self._command.wait(seconds)
        assert code is not None, f"it has not ended within {seconds} s"
        return code


@contextmanager
def running(config: Path, log: Path, *options: str, kind: type[Running] = Running) -> Iterator[Running]:
    mirror = kind(config, log, *options)
    tree = []
    try:
        yield mirror
        tree = psutil.Process(mirror.process.pid).children(recursive=True) if mirror.process.poll() is None else []
    finally:
        mirror.process.kill()
        mirror.process.wait()
        psutil.wait_procs(tree, timeout=10)


#: A mirror whose tasks run in threads of the driver.
forked = partial(running, kind=Forked)


def values(count: int) -> list[bytes]:
    return [b"%06d" % number + b"." * 300 for number in range(count)]
