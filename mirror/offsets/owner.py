"""Which process runs a flow, as the journal tells it (`owner`, `ended`)."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from typing import Final

import psutil

from mirror.observe.jsonrecords import parsed

#: What process ids and times in ms are below, on any machine: anybody may write to a topic.
_PIDS: Final = 2**31
_TIMES: Final = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that last took the flow; `at_ms`: when, Unix time."""

    instance: str
    host: str
    pid: int
    at_ms: int

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"

    @classmethod
    def here(cls, instance: str) -> Owner:
        """This process, now."""
        return cls(instance=instance, host=socket.gethostname(), pid=os.getpid(), at_ms=int(time.time() * 1000))

    @classmethod
    def read(cls, value: bytes) -> Owner:
        """From the journal. Raises one of `NOT_OURS` where it is none of a mirror."""
        told = parsed(value)
        found = cls(
            instance=str(told["instance"]), host=str(told["host"]), pid=int(told["pid"]), at_ms=int(told["at_ms"])
        )
        if not 0 <= found.pid < _PIDS or abs(found.at_ms) >= _TIMES:
            raise ValueError("numbers beyond any machine's")
        return found

    def to_json(self) -> bytes:
        """For the journal."""
        return json.dumps(asdict(self)).encode()

    @property
    def is_here(self) -> bool:
        """It ran on this machine, so its process can be looked at."""
        return self.host == socket.gethostname()

    @property
    def is_this_process(self) -> bool:
        """It is the process that asks."""
        return self.is_here and self.pid == os.getpid()

    @property
    def lives(self) -> bool:
        """There is such a process on this machine."""
        return self.is_here and psutil.pid_exists(self.pid)


def ended_instance(value: bytes) -> str:
    """The instance that an `ended` record is about. Raises as `Owner.read` does."""
    return str(parsed(value)["instance"])
