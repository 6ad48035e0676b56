"""Many schedules on shared clusters, some side by side, and what is enough of those that show something."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final, Self

from . import driving, mends
from .operations import Schedule, schedule
from .play import Played, play
from .rekeyed.play import play as rekeyed
from .rekeyed.scripts import Session, session
from .shrinking import shrunk
from .world import World

#: Of how many seeds in a row those that restart brokers are played together; and by which factor more of these at once:
#: they wait for each other most of the time.
_BLOCK: Final = 80
_WAITING: Final = 2


@dataclass(frozen=True, slots=True)
class Shown:
    """A seed, what kinds of findings it showed, and with which of its operations (empty: all)."""

    seed: int
    kinds: list[str]
    only: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Hunt:
    """A context manager, which has the clusters."""

    folder: Path
    ignored: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()
    repertoire: str = "clusters"
    found: Counter[str] = field(default_factory=Counter)
    by_operation: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    _world: World = field(init=False)

    def __enter__(self) -> Self:
        self._world = World(self.folder)
        self._world.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._world.__exit__()

    def one(self, seed: int, only: Sequence[int] = ()) -> Played[Schedule]:
        """Play the schedule of a seed, or a part of it."""
        whole = self._schedule(seed)
        return play(self._world, whole.part(only) if only else whole, self.ignored)

    def _schedule(self, seed: int) -> Schedule:
        return schedule(seed, self.repertoire, without=self.left_out)

    def play(
        self,
        seeds: Sequence[int],
        at_once: int,
        deadline: float = float("inf"),
        only: Sequence[int] = (),
        *,
        until_found: bool = False,
    ) -> Iterator[Played[Schedule]]:
        """Play them, so many side by side; in the order in which they end."""
        left, running = deque(self._grouped(seeds)), set[Future[Played[Schedule]]]()
        with ThreadPoolExecutor(at_once * _WAITING) as threads:
            is_over = False
            while True:
                while left and not is_over and monotonic() < deadline:
                    if len(running) >= at_once * (_WAITING if self._schedule(left[0]).disturbs else 1):
                        break
                    running.add(threads.submit(self.one, left.popleft(), only))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    played = future.result()
                    self._count(played)
                    is_over |= until_found and bool(played.findings)
                    yield played

    def _grouped(self, seeds: Sequence[int]) -> Iterator[int]:
        """Block by block, those that restart brokers behind the others: a restart waits until every schedule that is
        being played waits for one, too, and is one for all of these.
        """
        for start in range(0, len(seeds), _BLOCK):
            yield from sorted(seeds[start : start + _BLOCK], key=lambda seed: self._schedule(seed).disturbs)

    def seeds_of(self, mend: mends.Mend, at_once: int) -> Iterator[Played[Schedule] | Played[Session]]:
        """Play what a mend is to be missed in, until something is found."""
        seeds = range(mend.seed, mend.seed + mend.schedules)
        if mend.repertoire == mends.REKEYED:
            yield from (rekeyed(self._world, session(seed).part(mend.only, 0), verifies=False) for seed in seeds)
            return
        self.repertoire = mend.repertoire
        yield from self.play(seeds, at_once, only=mend.only, until_found=True)

    def without(self, mend: mends.Mend, at_once: int) -> Iterator[Played[Schedule] | Played[Session]]:
        """The same with the mend taken out."""
        with mends.without(mend.name) as folder, driving.package(folder):
            yield from self.seeds_of(mend, at_once)

    def _count(self, played: Played[Schedule]) -> None:
        self.failures += bool(played.failure)
        self.found.update(played.kinds)
        if played.findings:
            names = {op.name for op in played.schedule.operations[: len(played.steps)]}
            self.by_operation.update(names - {"run", "produce", "settle", "verify"})

    def shrunk(self, shown: Shown) -> str:
        """The operations that are enough, as `--only` takes them."""
        whole = self._schedule(shown.seed)

        def shows(places: Sequence[int]) -> bool:
            return bool(set(self.one(shown.seed, places).kinds) & set(shown.kinds))

        places = shrunk(shown.only or range(len(whole.operations)), shows)
        output = "; ".join(f"{place} {whole.operations[place]}" for place in places)
        return f"--only {','.join(map(str, places))}: {output}"

    def summary(self, played: int, seconds: float) -> None:
        """Print what was found, by kind."""
        each = seconds / played if played else 0.0
        print(f"{played} schedules in {seconds:.0f} s ({each:.1f} s each), {self.failures} not played to their end")
        for kind, times in self.found.most_common():
            print(f"  {times:4} {kind}")
        if self.by_operation:
            print(
                "  in schedules with " + ", ".join(f"{name} {times}" for name, times in self.by_operation.most_common())
            )
