"""Which process runs a flow, as the journal tells it (`owner`, `ended`).

U1  claims have numbers, each one more than the one before. Of two with one number the first in the log holds; a
    record with a number that is not greater is a repetition, or has lost a race: it changes nothing. So a record
    that the wire sends again, and that lands late, ends nobody
U2  records without a number are of a version before 0.2: one of an instance that was not seen before counts as a
    new claim
U3  a process's number tells whether it lives only where it was given: on the same boot of a machine, in the same
    namespace of process ids. Two containers may have one host name, and each a process 1 that lives
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import psutil

from mirror.observe.jsonrecords import NOT_OURS, parsed

#: What process ids and times in ms are below, on any machine: anybody may write to a topic.
_PIDS: Final = 2**31
_TIMES: Final = 2**63
#: More claims than any flow sees. The bound leaves room for the next one.
_CLAIMS: Final = 2**53
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")


@cache
def place_of_numbers() -> str:
    """What this process shares with those whose numbers it can look up (U3); empty where the system does not tell."""
    try:
        return f"{_BOOT.read_text().strip()}/{_NAMESPACE.readlink()}"
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that last took the flow; `at_ms`: when, Unix time. `claim`: the number of its claim, None where the
    record has none. `place`: where its number means anything (U3), empty where that is not known.
    """

    instance: str
    host: str
    pid: int
    at_ms: int
    claim: int | None = None
    place: str = ""

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"

    @classmethod
    def here(cls, instance: str, claim: int | None = None) -> Owner:
        """This process, now."""
        now = int(time.time() * 1000)
        host = socket.gethostname()
        return cls(instance=instance, host=host, pid=os.getpid(), at_ms=now, claim=claim, place=place_of_numbers())

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
            place=str(told.get("place", "")),
        )
        if not 0 <= found.pid < _PIDS or abs(found.at_ms) >= _TIMES or not 0 <= (found.claim or 0) < _CLAIMS:
            raise ValueError("numbers beyond any machine's")
        return found

    def to_json(self) -> bytes:
        """For the journal."""
        return json.dumps(asdict(self)).encode()

    @property
    def is_here(self) -> bool:
        """It ran where this process does, so its own can be looked at (U3)."""
        here = place_of_numbers()
        return self.host == socket.gethostname() and (not self.place or not here or self.place == here)

    @property
    def is_this_process(self) -> bool:
        """It is the process that asks."""
        return self.is_here and self.pid == os.getpid()

    @property
    def lives(self) -> bool:
        """There is such a process here."""
        return self.is_here and psutil.pid_exists(self.pid)

    @property
    def is_gone(self) -> bool:
        """Its process is known to have ended; ours may have its number by now."""
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
