"""Many schedules on shared clusters, some side by side, and what is enough of those that show something."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from time import monotonic
from typing import Final

from .memory import Played
from .mends import Mend, without
from .operations import Op, Schedule, written
from .play import play
from .world import World

#: How many schedules are played side by side.
AT_ONCE: Final = 4
#: Of how many in a row those that restart brokers are played together; and by which factor more of these at once, since
#: they wait for each other most of the time.
_BLOCK: Final = 80
_WAITING: Final = 2
#: In how many tries at most the fewest operations are looked for.
_MOST_TRIES: Final = 60


def hunt(
    world: World, schedules: Sequence[Schedule], at_once: int = AT_ONCE, until: float = float("inf")
) -> Iterator[Played[Schedule]]:
    """Play schedules, in the order in which they end; begin none after a time of the monotonic clock."""
    left, running = deque(_grouped(schedules)), set[Future[Played[Schedule]]]()
    with ThreadPoolExecutor(at_once * _WAITING) as threads:
        while running or (left and monotonic() < until):
            while left and monotonic() < until and len(running) < at_once * (_WAITING if left[0].disturbs else 1):
                running.add(threads.submit(play, world, left.popleft()))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _grouped(schedules: Sequence[Schedule]) -> Iterator[Schedule]:
    """Give the schedules block by block, those that restart brokers last: a restart waits until every schedule that is
    being played waits for one, and is one for all of these.
    """
    for start in range(0, len(schedules), _BLOCK):
        yield from sorted(schedules[start : start + _BLOCK], key=lambda schedule: schedule.disturbs)


def play_mend(world: World, mend: Mend) -> Played[Schedule]:
    """Play what must show nothing as long as a mend is there."""
    return play(world, written(mend.plays, **mend.flow))


def play_without(world: World, mend: Mend) -> Played[Schedule]:
    """Play the same with the mend taken out."""
    with without(mend):
        return play(world, written(mend.plays, **mend.flow), mend.timeout_s)


def shrink(world: World, found: Played[Schedule]) -> Schedule:
    """Return the operations that are enough to show what was found."""

    def shows(operations: Sequence[Op]) -> bool:
        return bool({*play(world, replace(found.schedule, operations=(*operations,))).kinds} & {*found.kinds})

    return replace(found.schedule, operations=(*shrunk(found.schedule.operations, shows),))


def shrunk(operations: Sequence[Op], shows: Callable[[Sequence[Op]], bool]) -> list[Op]:
    """Return the fewest operations found that still show it, by delta debugging (Zeller's ddmin)."""
    left, size, tries = [*operations], max(1, len(operations) // 2), 0
    while True:
        start = 0
        while start < len(left) and tries < _MOST_TRIES:
            fewer = left[:start] + left[start + size :]
            tries += 1
            if fewer and shows(fewer):
                left = fewer
            else:
                start += size
        if size == 1 or tries >= _MOST_TRIES:
            return left
        size = max(1, size // 2)
