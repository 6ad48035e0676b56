"""Whether this process was suspended: by SIGSTOP, with its machine, or by a hypervisor that paused it.

Whoever was suspended does not know what others did meanwhile: another mirror took the flow over, it was failed over. A
broker takes what is sent then as if it came in time, unless it still remembers the producer.

    Z1  a process that did not run for `SUSPENDED_SECONDS` checks again before it goes on: the journal before anything
        is sent or appended, and before it moves a group, the topics before it changes one; and after `LEASE_SECONDS`
        the logs before it sends
    Z2  a busy machine looks like a suspended one, so it is the check that decides, and whoever only has to look again
        does that by itself

Decision: by clocks of this machine alone, both that of the time of day and that which counts a machine's sleep, since a
hypervisor may set neither or one. A clock that is set forward looks like a suspension, which costs one check.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from mirror import clock
from mirror.errors import Suspended

#: Longer than work that keeps an event loop from its other tasks.
SUSPENDED_SECONDS: Final = 5.0
#: For how long nobody takes a silent mirror for dead: less than `LIVENESS_SECONDS` without the `RESTATE_SECONDS` that
#: its last word may be old (`journal/ownership.py`). What a task found in both logs holds good so long, unless somebody
#: who knows that its driver is gone has claimed the flow.
LEASE_SECONDS: Final = 10.0

#: How often a command looks again before it says that this machine is too busy.
_LOOKS: Final = 5

T = TypeVar("T")
Clocks = Callable[[], tuple[float, float]]


def clocks() -> tuple[float, float]:
    """Seconds of the time of day, and since the machine began, suspension included where the system counts it."""
    return clock.now_ms() / 1000, clock.since_boot()


class SuspensionDetector:
    """Beats while this process runs. `suspensions` counts how often it was found not to have run for
    `SUSPENDED_SECONDS`; `lapsed` is their number when it had not run for `LEASE_SECONDS` last.
    """

    def __init__(self, now: Clocks = clocks) -> None:
        self._now = now
        self._day, self._running = now()
        self.suspensions = self.lapsed = 0
        self._beating = threading.Lock()

    def since(self) -> Callable[[], bool]:
        """Whether the process has run without a suspension since now, to be asked at the last moment."""
        self.beat()
        before = self.suspensions

        def has_run() -> bool:
            self.beat()
            return self.suspensions == before

        return has_run

    async def keep_beating(self) -> None:
        """While something takes long that does not beat itself; to be cancelled."""
        while True:
            await asyncio.sleep(SUSPENDED_SECONDS / 5)
            self.beat()

    def beat(self) -> bool:
        """To be called every second or so, and with each request: whether the last time was too long ago."""
        with self._beating:
            day, running = self._now()
            seconds = max(day - self._day, running - self._running)
            self._day, self._running = day, running
            self.suspensions += seconds > SUSPENDED_SECONDS
            if seconds > LEASE_SECONDS:
                self.lapsed = self.suspensions
            return seconds > SUSPENDED_SECONDS


@contextmanager
def beating() -> Iterator[SuspensionDetector]:
    """One that beats in a thread of its own meanwhile, for who waits long for answers without beating."""
    detector, is_over = SuspensionDetector(), threading.Event()

    def beat() -> None:
        while not is_over.wait(SUSPENDED_SECONDS / 5):
            detector.beat()

    thread = threading.Thread(target=beat, name="suspension", daemon=True)
    thread.start()
    try:
        yield detector
    finally:
        is_over.set()
        thread.join()


async def always() -> bool:
    """For whom nobody else has to be asked."""
    return True


async def never() -> bool:
    """For what is begun anew behind a suspension (`look_again`). Raises Suspended."""
    raise Suspended("this process was suspended, or its machine too busy to run it: nothing was done. Run it again")


def look_again(work: Callable[[], T]) -> T:
    """Do some work that looks at the clusters before it acts, and do it again where it raises Suspended (Z2)."""
    for _ in range(_LOOKS - 1):
        with suppress(Suspended):
            return work()
    return work()


class Clearance:
    """Asked for once behind each suspension, and with `at_first` before the first time as well, by whoever comes first;
    `may_go_on` may raise anything.
    """

    def __init__(
        self, detector: SuspensionDetector, may_go_on: Callable[[], Awaitable[bool]], *, at_first: bool = False
    ) -> None:
        self._detector, self._may_go_on = detector, may_go_on
        self._asking, self._given = asyncio.Lock(), detector.suspensions - at_first

    @property
    def is_due(self) -> bool:
        """The process was suspended since it was given last."""
        self._detector.beat()
        return self._detector.suspensions > self._given

    async def given(self) -> bool:
        """Whether the process may go on, as often as it was suspended by now."""
        async with self._asking:
            while self.is_due:
                suspensions = self._detector.suspensions
                if not await self._may_go_on():
                    return False
                self._given = suspensions
        return True
