"""The mirror at work, seen from outside: a process, the flow's journal, and the log ends of both clusters.

Ten times a second the target's log ends and the process tree are looked at, so the moments of the first and the last
mirrored record of the backlog are known to a tenth of a second, with the CPU-seconds spent by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from mirror.demo.bound import Bound
from mirror.demo.producers import Ends, Live
from mirror.demo.usage import Tree
from mirror.errors import ClusterError, WireError
from mirror.observe.figures import PREFIX as STATE
from mirror.observe.figures import Figures
from mirror.offsets.journal import Journal, journal_topic
from mirror.states import State
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition

LOOK_SECONDS: Final = 0.1
JOURNAL_SECONDS: Final = 0.5
#: Seconds in which something must move.
PATIENCE_S: Final = 60.0

Reached = Mapping[tuple[str, int], int]


class Tell(Protocol):
    """Where the demonstration says what it does."""

    def step(self, text: str) -> None:
        """Something is done, or begins."""

    def progress(self, doing: str, done: int, total: int) -> None:
        """How many records of how many; told as often as one likes."""


class MirrorFailed(Exception):
    """The mirror ended, stopped a partition, or made no headway; the message says why and ends with its log."""


@dataclass(slots=True)
class Moment:
    """Seconds on the monotonic clock, and the tree's CPU-seconds by then."""

    at: float = 0.0
    cpu_s: float = 0.0


@dataclass(slots=True)
class Course:
    """How the copy went: `first` and `last` are the moments around the backlog's records, `figures` the newest ones."""

    began: Moment
    first: Moment = field(default_factory=Moment)
    last: Moment = field(default_factory=Moment)
    figures: dict[TopicPartition, Figures] = field(default_factory=dict)


class Copying:
    """Watches one flow whose mirror has just been started."""

    def __init__(self, flow: str, target: Endpoint, mirror: Bound, ends: tuple[Ends, Ends], tell: Tell) -> None:
        """`ends`: the source's and the target's."""
        self._flow, self._target, self._mirror, self._tell = flow, target, mirror, tell
        self._source_ends, self._target_ends = ends
        self.tree = Tree(mirror.pid)
        self.course = Course(Moment(time.monotonic(), self.tree.sample()))
        self._reached: Reached = {}
        self._begun = asyncio.Event()
        self._moved = (time.monotonic(), -1)

    async def run(self, backlog: Mapping[str, int], live: Live, partitions: int, seconds: float) -> None:
        """Until all of `backlog` (topics, with their numbers of partitions) is mirrored; then for `seconds`; then until
        all that the live producer wrote to its `partitions` is mirrored too.

        Raises MirrorFailed, EmbeddedError.
        """
        every = {**backlog, live.topic: partitions}
        async with Cluster(self._target) as cluster:
            reading = asyncio.create_task(self._read(Journal(cluster, self._flow)))
            try:
                ends = await asyncio.to_thread(self._source_ends.of, backlog)
                await self._backlog(backlog, ends, reading)
                await self._until_said(backlog, ends, reading)
                self._tell.step(f"caught up; {live.topic} is written on for {seconds:.0f} s, past the end of an epoch")
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    await self._look(every, reading)
                await asyncio.to_thread(live.stop)
                ends = await asyncio.to_thread(self._source_ends.of, every)
                await self._until_said(every, ends, reading)
            finally:
                reading.cancel()
                await asyncio.wait([reading])

    async def _backlog(self, topics: Mapping[str, int], ends: Reached, reading: asyncio.Task[None]) -> None:
        """Until the target's logs end where the source's do; notes the moments around it."""
        course, total = self.course, sum(ends.values())
        before = course.began
        while not self._all_at(ends):
            await self._look(topics, reading)
            now = Moment(time.monotonic(), self.tree.sample())
            done = sum(self._reached.values())
            if done and not course.first.at:
                course.first = before
                self._begun.set()
                self._tell.step(f"the first records are there, after {before.at - course.began.at:.1f} s")
            if done:
                self._tell.progress("mirroring", done, total)
            before = now
        course.last = before

    async def _until_said(self, topics: Mapping[str, int], ends: Reached, reading: asyncio.Task[None]) -> None:
        """Until the journal says of every partition that it has caught up with the source's end, and the logs agree."""
        while not (self._all_at(ends) and all(self._is_caught_up(at, end) for at, end in ends.items())):
            await self._look(topics, reading)

    async def _look(self, topics: Mapping[str, int], reading: asyncio.Task[None]) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        self._reached = await asyncio.to_thread(self._target_ends.of, topics, growing=True)
        self.tree.sample()
        self._judge()
        if reading.done():
            reading.result()

    def _judge(self) -> None:
        """Raises MirrorFailed where waiting on is in vain."""
        now = time.monotonic()
        standing = sum(self._reached.values()) + sum(figures.at_ms for figures in self.course.figures.values())
        if standing != self._moved[1]:
            self._moved = (now, standing)
        stops = [f"{at}: {f.state}: {f.detail}" for at, f in self.course.figures.items() if f.state.is_stop]
        if self._mirror.exit_code is not None:
            stops.append(f"the mirror ended by itself with exit code {self._mirror.exit_code}")
        elif now - self._moved[0] > PATIENCE_S:
            stops.append(f"nothing moved for {PATIENCE_S:.0f} s")
        if stops:
            raise MirrorFailed("\n".join([*stops, "the end of its log:", self._mirror.tail()]))

    async def _read(self, journal: Journal) -> None:
        """The newest figures of every partition, for as long as this task runs."""
        await self._begun.wait()  # before that, the flow's topic may not be there
        await journal.cluster.refresh([journal_topic(self._flow)])
        offset = None
        while True:
            try:
                entries, offset = await journal.read(offset)
            except (ClusterError, WireError) as problem:
                raise MirrorFailed(f"the flow's journal cannot be read: {problem}") from problem
            for entry in entries:
                if entry.key.startswith(STATE) and entry.value:
                    figures = Figures.from_json(entry.value)
                    self.course.figures[TopicPartition(figures.topic, figures.partition)] = figures
            await asyncio.sleep(JOURNAL_SECONDS)

    def _all_at(self, ends: Reached) -> bool:
        return all(self._reached.get(partition, 0) >= end for partition, end in ends.items())

    def _is_caught_up(self, partition: tuple[str, int], end: int) -> bool:
        figures = self.course.figures.get(TopicPartition(*partition))
        return (
            figures is not None
            and figures.state is State.CAUGHT_UP
            and figures.next_offset >= end
            and figures.log_end >= end
        )
