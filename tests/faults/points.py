"""Named places in the mirror where a process may die or freeze: functions wrapped before the mirror starts.

The product knows nothing of it: `arm` replaces functions in a child process that exists to be killed. A point is either
a moment of a request (sending, sent, answered), for every kind of request that the mirror makes, or the begin or end of
a function.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mirror.kafka.connection import Connection
from mirror.kafka.protocol import HotRequest

#: NAME:COUNT, or NAME:COUNT:FILE to strike only where FILE does not exist yet, and to make it.
VARIABLE: Final = "MIRROR_KILL_POINT"

#: Request name -> its key in the protocol.
REQUESTS: Final[Mapping[str, int]] = {
    "produce": 0,
    "fetch": 1,
    "list-offsets": 2,
    "metadata": 3,
    "api-versions": 18,
    "delete-records": 21,
    "leader-epoch": 23,
    "markers": 27,
    "describe-producers": 61,
}
MOMENTS: Final = ("sending", "sent", "answered")

#: Step of the mirror -> where it is: module, name inside it. Each gives two points, `before-` and `after-`.
STEPS: Final[dict[str, tuple[str, str]]] = {
    "crc": ("mirror.replication.fetcher", "Fetcher._cut"),
    "arrival": ("mirror.replication.fetcher", "Fetcher._take"),
    "verdict": ("mirror.replication.pipeline", "classify"),
    "restamp": ("mirror.replication.partition_writer", "restamp"),
    "queue": ("mirror.replication.partition_writer", "PartitionWriter.append"),
    "gap": ("mirror.replication.partition_writer", "PartitionWriter.fill"),
    "rewrite": ("mirror.records.rewrite", "build"),
    "ack": ("mirror.replication.writer", "Writer._acknowledged"),
    "count": ("mirror.replication.partition_writer", "PartitionCounters.add"),
    "filled": ("mirror.replication.writer", "Writer._filled"),
    "replicated-end": ("mirror.replication.observe", "replicated_end"),
    "tail": ("mirror.replication.observe", "batch_at"),
    "stamp": ("mirror.replication.observe", "Observer._producers"),
    "resume": ("mirror.replication.start", "resume"),
    "begin": ("mirror.replication.start", "Start.start"),
    "padding": ("mirror.replication.log_start", "padding"),
    "pad": ("mirror.replication.log_start", "append"),
    "trim": ("mirror.replication.log_start", "delete_records"),
    "align": ("mirror.replication.log_start", "align"),
    "journal": ("mirror.journal.journal", "Journal.append"),
    "drain": ("mirror.replication.pipeline", "Pipeline._drained"),
    "figures": ("mirror.replication.pipeline", "Pipeline.figures"),
    "result": ("mirror.spark.task", "run_task"),
}
#: Reached only where the target must be made to begin where the source does.
PADDING: Final = frozenset(
    f"{when}-{step}" for step in ("padding", "pad", "trim", "align") for when in ("before", "after")
) | {f"delete-records-{moment}" for moment in MOMENTS}
#: Reached only where the target's log holds no batch.
BEGINNING: Final = frozenset(f"describe-producers-{moment}" for moment in MOMENTS)

POINTS: Final[tuple[str, ...]] = (
    *(f"{request}-{moment}" for request in REQUESTS for moment in MOMENTS),
    *(f"{when}-{step}" for step in STEPS for when in ("before", "after")),
)

#: The same for what is done only where offsets move. `reported` is what follows once runs are recorded.
MOVING_STEPS: Final[dict[str, tuple[str, str]]] = {
    "recall": ("mirror.journal.offset_maps", "OffsetMapStore.recall"),
    "found-position": ("mirror.replication.start", "resume_translated"),
    "checked-tail": ("mirror.replication.offset_map_recovery", "MapObserver._check_tail"),
    "own-stamp": ("mirror.replication.decide", "stamp_of"),
    "retrace": ("mirror.replication.offset_map_recovery", "MapObserver._retrace"),
    "alike": ("mirror.replication.offset_map_recovery", "_alike"),
    "landed": ("mirror.replication.partition_writer", "PartitionWriter.landed"),
    "passed-over": ("mirror.replication.partition_writer", "PartitionWriter._pass_over"),
    "record": ("mirror.journal.offset_maps", "OffsetMapStore.record"),
    "recorded": ("mirror.replication.offset_map", "OffsetMap.recorded"),
    "reported": ("mirror.journal.positions", "StandingLog.changes"),
}
MOVING_POINTS: Final[tuple[str, ...]] = tuple(f"{when}-{step}" for step in MOVING_STEPS for when in ("before", "after"))
#: Reached only where runs were not recorded.
RETRACING: Final = frozenset(f"{when}-{step}" for step in ("retrace", "alike") for when in ("before", "after"))


@dataclass(frozen=True, slots=True)
class Strike:
    """What happens at the `count`th passing of a point: SIGKILL, or SIGSTOP, to the process itself.

    `once` is a file that the strike leaves, and that keeps others from striking: for points in processes that are
    started again by themselves.
    """

    point: str
    count: int = 1
    number: signal.Signals = signal.SIGKILL
    once: str = ""

    @classmethod
    def from_environment(cls, text: str) -> Strike:
        """Read `NAME:COUNT[:FILE]`."""
        point, count, *rest = text.split(":", 2)
        return cls(point, int(count), once=rest[0] if rest else "")


@dataclass(slots=True)
class _Countdown:
    strike: Strike
    left: int

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            if self.strike.once:
                try:
                    Path(self.strike.once).touch(exist_ok=False)
                except FileExistsError:
                    return
            os.kill(os.getpid(), self.strike.number)


def arm(strike: Strike) -> None:
    """Let this process die or freeze at a point. Raises KeyError for one that does not exist."""
    strikes = _Countdown(strike, strike.count)
    when, _, step = strike.point.partition("-")
    if when in {"before", "after"}:
        _wrap(*(STEPS | MOVING_STEPS)[step], strikes, before=when == "before")
        return
    request, _, moment = strike.point.rpartition("-")
    _wrap_requests(REQUESTS[request], MOMENTS[MOMENTS.index(moment)], strikes)


def _wrap(module: str, path: str, strikes: Callable[[], None], before: bool) -> None:
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    inner = getattr(owner, name)

    @functools.wraps(inner)
    async def coroutine(*args: Any, **more: Any) -> Any:
        if before:
            strikes()
        result = await inner(*args, **more)
        if not before:
            strikes()
        return result

    @functools.wraps(inner)
    def function(*args: Any, **more: Any) -> Any:
        if before:
            strikes()
        result = inner(*args, **more)
        if not before:
            strikes()
        return result

    setattr(owner, name, coroutine if inspect.iscoroutinefunction(inner) else function)


def _wrap_requests(key: int, moment: str, strikes: Callable[[], None]) -> None:
    inner = Connection._put

    def put(self: Connection, request: Any, future: Any, decoder: Callable[[memoryview], Any], *more: Any) -> Any:
        made_by_hand = isinstance(request, HotRequest)
        if (request.api.key if made_by_hand else request.__api_key__) != key:
            return inner(self, request, future, decoder, *more)
        if moment == "sending":
            strikes()
        if moment != "answered":
            sent = inner(self, request, future, decoder, *more)
            if moment == "sent":
                strikes()
            return sent

        def decoded(frame: memoryview) -> Any:
            strikes()
            return decoder(frame)

        return inner(self, request, future, decoded, *more)

    Connection._put = put  # type: ignore[method-assign, assignment] # that is the point
