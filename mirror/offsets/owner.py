"""Which process runs a flow, as the journal tells it (`owner`, `ended`).

U1  claims have numbers, each one more than the one before. Of two with one number the first in the log holds; a
    record with a number that is not greater is a repetition, or has lost a race: it changes nothing. So a record
    that the wire sends again, and that lands late, ends nobody
U2  records without a number are of a version before 0.2: one of an instance that was not seen before counts as a
    new claim
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from typing import Final

import psutil

from mirror.observe.jsonrecords import NOT_OURS, parsed

#: What process ids and times in ms are below, on any machine: anybody may write to a topic.
_PIDS: Final = 2**31
_TIMES: Final = 2**63
#: More claims than any flow sees. The bound leaves room for the next one.
_CLAIMS: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that last took the flow; `at_ms`: when, Unix time. `claim`: the number of its claim, None where the
    record has none.
    """

    instance: str
    host: str
    pid: int
    at_ms: int
    claim: int | None = None

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"

    @classmethod
    def here(cls, instance: str, claim: int | None = None) -> Owner:
        """This process, now."""
        now = int(time.time() * 1000)
        return cls(instance=instance, host=socket.gethostname(), pid=os.getpid(), at_ms=now, claim=claim)

    @classmethod
    def read(cls, value: bytes) -> Owner:
        """From the journal. Raises one of `NOT_OURS` where it is none of a mirror."""
        told = parsed(value)
        instance = str(told["instance"])  # which tells whether it is an object at all
        claim = told.get("claim")
        found = cls(
            instance=instance,
            host=str(told["host"]),
            pid=int(told["pid"]),
            at_ms=int(told["at_ms"]),
            claim=None if claim is None else int(claim),
        )
        if not 0 <= found.pid < _PIDS or abs(found.at_ms) >= _TIMES or not 0 <= (found.claim or 0) < _CLAIMS:
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

    @property
    def is_gone(self) -> bool:
        """Its process is known to have ended; in a container that was started anew, ours may have its number."""
        return self.is_here and (self.pid == os.getpid() or not self.lives)


@dataclass(slots=True, eq=False)
class Claims:
    """Which process has the flow, by its owner records in the journal's order (U1, U2)."""

    owner: Owner | None = None
    highest: int = 0
    _seen: set[str] = field(default_factory=set)

    def learn(self, owner: Owner) -> bool:
        """One more record; whether it is a new claim."""
        number = owner.claim
        if number is None:
            number = 0 if owner.instance in self._seen else self.highest + 1
        self._seen.add(owner.instance)
        if number <= self.highest:
            return False
        self.owner, self.highest = owner, number
        return True

    def knows(self, instance: str) -> bool:
        """Whether a record of this instance was seen."""
        return instance in self._seen


def reporter(value: bytes | None) -> str | None:
    """The instance that a record names, whatever it reports; None where it names none."""
    if value is None or b'"instance"' not in value:
        return None
    try:
        told = parsed(value)
        return told["instance"] if isinstance(told["instance"], str) else None
    except NOT_OURS:
        return None


def ended_instance(value: bytes) -> str:
    """The instance that an `ended` record is about. Raises as `Owner.read` does."""
    return str(parsed(value)["instance"])
