"""That a flow was failed over, as its journal tells it under `failover`: its target topics are in use, and no mirror
may write to them any more.

A running mirror that reads the record ends in good order, and none begins while it stands. Stock brokers know no topic
that is read-only or writable: the mirror being the sole writer is what makes a target topic a copy, and this record is
what ends that. It is taken back by deleting it.

A record that cannot be read counts as one that stands: whatever made it so, to write on where a failover may have been
is worse than to ask a person.

With it the flow lets go of the topics that it made (`firstseen.py`), for good: whoever uses them owns them, so a flow
that runs again must not delete one because its source is gone, which a failback asks for.

A failover does more behind that record, and may be lost in the midst of it: as long as the journal keeps no account of
one (`commands/failoverkept.py`), whoever calls it again finishes it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final, Self

from mirror.errors import PreflightError
from mirror.observe.jsonrecords import NOT_OURS, read_fields
from mirror.offsets.firstseen import FirstSeen, seen_in
from mirror.offsets.journal import Change
from mirror.offsets.owner import Owner

KEY: Final = b"failover"
_NEEDED: Final[Mapping[str, tuple[type, ...]]] = {"at_ms": (int,), "host": (str,), "pid": (int,)}
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {**_NEEDED, "silent": (list,)}
#: Milliseconds up to the year 9999, which is as far as a time can be told.
_TIMES: Final = 253_402_300_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOver:
    """When, in Unix ms, and from where the flow was failed over; `silent` names mirrors of which nobody knew then that
    they had ended.
    """

    at_ms: int
    host: str
    pid: int
    silent: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"at {datetime.fromtimestamp(self.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC from {self.host}"

    @classmethod
    def here(cls, silent: Iterable[str] = ()) -> Self:
        """From this process, now."""
        owner = Owner.here("")
        return cls(at_ms=int(time.time() * 1000), host=owner.host, pid=owner.pid, silent=tuple(silent))

    @classmethod
    def read(cls, value: bytes) -> Self:
        """From the journal. Raises one of `NOT_OURS` where it is none of a mirror."""
        told = read_fields(value, _KINDS, _NEEDED, "a failover")
        if not 0 <= told["at_ms"] < _TIMES:
            raise ValueError("a failover in a year that is not known")
        silent = told.pop("silent", [])
        if not all(type(one) is str for one in silent):
            raise ValueError("mirrors that are silent must have names")
        return cls(**told, silent=tuple(silent))

    def to_json(self) -> bytes:
        """For the journal."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def standing(cls, known: Mapping[bytes, bytes]) -> Self | Garbled | None:
        """What the newest records of a journal say; None where the flow may run."""
        return None if (value := known.get(KEY)) is None else cls.told(value)

    @classmethod
    def told(cls, value: bytes) -> Self | Garbled:
        """What the record says, whatever it holds."""
        try:
            return cls.read(value)
        except NOT_OURS as problem:
            return Garbled(repr(problem))


@dataclass(frozen=True, slots=True)
class Garbled:
    """A record of a failover that cannot be read, for the reason given; nothing is written while it stands."""

    reason: str

    def __str__(self) -> str:
        return f"as far as is known: the record `{KEY.decode()}` of its journal cannot be read ({self.reason})"


def ending(known: Mapping[bytes, bytes], silent: Iterable[str] = ()) -> list[Change]:
    """The records that end a flow, to be appended in order; `known` are the newest records of its journal, `silent` as
    in `FailedOver`. The failover comes last: a flow that goes on since that failed has let go of topics, which only
    stay when their sources are gone.
    """
    made = {topic: seen for topic, seen in seen_in(known).items() if seen.made}
    released = [(FirstSeen.key(topic), replace(seen, made=False).to_json()) for topic, seen in made.items()]
    return [*released, (KEY, FailedOver.here(silent).to_json())]


def refuse_failed_over(flow: str, known: Mapping[bytes, bytes]) -> None:
    """Raise PreflightError where the newest records of a flow's journal say that it was failed over."""
    if done := FailedOver.standing(known):
        raise PreflightError(
            f"{flow}: failed over {done}: its target topics may be in use, so this flow writes there no more. "
            "Mirror back with a flow in the other direction (RUNBOOK: Failback), or, where nobody has written to the "
            "target, let this one go on: mirror failover CONFIG --undo"
        )
