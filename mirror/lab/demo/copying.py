"""The mirror at work, seen from outside, and what was found, as values.

Ten times a second the target's log ends and the process tree are looked at, so the moments of the first and the last
mirrored record of the backlog are known to a tenth of a second, with the CPU-seconds spent by then.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from mirror.errors import ClusterError, WireError
from mirror.journal.journal import Journal, journal_topic
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.lab.demo.processes import Bound, Tree
from mirror.lab.demo.producers import Ends, Live
from mirror.observability.status import PREFIX as STATE
from mirror.observability.status import PartitionStatus
from mirror.states import State
from mirror.verify.report import TopicReport

if TYPE_CHECKING:
    from mirror.lab.commands.demo import Narrator

# --- What the demonstration found, as values, and whether it holds (pure) ---------------------------------------------

#: Verdicts that append a batch's bytes as they are stored.
AS_STORED: Final = "RESTAMP/"
#: The verdict on what no reader gets.
DROPPED: Final = "DROP/"
#: What librdkafka makes of a batch that compression would not shrink, as small ones may be.
UNCOMPRESSED: Final = "none"
STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One topic. `wanted` and `written` are the producer's codec and number of records; the rest was found afterwards.

    `bytes` are those of the batches as stored. `judged` batches had a verdict that copies them, `passed` of them one
    that does not decompress; an epoch's last batches may lack one, where a task could not wait for their
    acknowledgements. `hidden` batches hold no record for a reader: markers and what was aborted.
    """

    topic: str
    partitions: int
    wanted: str
    written: int
    codecs: tuple[str, ...]
    records: int
    batches: int
    bytes: int
    judged: int
    passed: int
    identical: int
    offsets_equal: bool
    hidden: int
    lag: int
    different: int

    @classmethod
    def of(cls, report: TopicReport, verdicts: Mapping[str, int], wanted: str, written: int) -> Line:
        """From what the comparison and the mirror's own figures say of a topic."""
        own = {"wanted", "written", "judged", "passed"}
        return cls(
            **{one.name: getattr(report, one.name) for one in fields(cls) if one.name not in own},
            wanted=wanted,
            written=written,
            judged=sum(count for verdict, count in verdicts.items() if not verdict.startswith(DROPPED)),
            passed=sum(count for verdict, count in verdicts.items() if verdict.startswith(AS_STORED)),
        )

    @property
    def all_identical(self) -> bool:
        """Every batch has the same bytes on both sides, and there is one."""
        return self.identical == self.batches > 0 and not self.different

    @property
    def passed_share(self) -> float:
        """0 to 1."""
        return self.passed / self.judged if self.judged else 0.0

    def objections(self) -> Iterator[str]:
        """Why this topic proves nothing, or proves the contrary."""
        if self.records != self.written:
            yield f"{self.topic}: {self.written:,} records were written, {self.records:,} were compared"
        if self.wanted not in self.codecs or set(self.codecs) - {self.wanted, UNCOMPRESSED}:
            yield f"{self.topic}: written with {self.wanted}, stored with {', '.join(self.codecs) or 'nothing'}"
        if self.lag:
            yield f"{self.topic}: {self.lag:,} records are not mirrored"
        if not self.all_identical:
            yield f"{self.topic}: {self.identical:,} of {self.batches:,} batches are identical"
        if not self.offsets_equal:
            yield f"{self.topic}: the offsets differ"
        if self.passed != self.judged or not self.judged:
            yield f"{self.topic}: {self.passed:,} of {self.judged:,} verdicts did without decompression"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the mirror took: its whole process tree, Spark's JVM and the Python processes.

    `start_*`: to the first mirrored record. `backlog_*`: what lay ready when it started, from its first mirrored record
    to its last; `backlog_bytes` are those of batches as stored, `record_bytes` those of all keys and values. `peak_pss`
    counts shared pages once; None where the system does not progress.
    """

    start_s: float
    start_cpu_s: float
    backlog_s: float
    backlog_cpu_s: float
    backlog_bytes: int
    record_bytes: int
    peak_rss: int
    peak_pss: int | None
    stop_s: float
    exit_code: int

    @property
    def mb_per_s(self) -> float:
        """Of batches as stored."""
        return self.backlog_bytes / max(self.backlog_s, 1e-3) / 1e6

    @property
    def cpu_s_per_gb(self) -> float:
        """Of batches as stored, while the backlog was mirrored."""
        return self.backlog_cpu_s / max(self.backlog_bytes, 1) * 1e9

    def objections(self) -> Iterator[str]:
        """What is wrong with how the mirror ended."""
        if self.exit_code != 0:
            yield f"the mirror ended with exit code {self.exit_code} after SIGTERM"
        if self.stop_s > STOP_SECONDS:
            yield f"the mirror took {self.stop_s:.1f} s to stop, {STOP_SECONDS:.0f} are allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All of it. `seconds` by phase, in order; `downloads` is the part of them that waited for the network."""

    lines: tuple[Line, ...]
    cost: Cost
    misfits: tuple[str, ...]
    seconds: Mapping[str, float]
    downloads: float

    @property
    def total(self) -> float:
        """Seconds."""
        return sum(self.seconds.values())

    @property
    def objections(self) -> tuple[str, ...]:
        """Why the demonstration failed; empty when all holds."""
        lines = [objection for line in self.lines for objection in line.objections()]
        return (*self.misfits, *lines, *self.cost.objections())

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        cost, seconds = self.cost, {phase: round(value, 1) for phase, value in self.seconds.items()}
        return {
            "ok": not self.objections,
            "objections": self.objections,
            "topics": [
                {**asdict(line), "passed_share": line.passed_share, "identical_bytes": line.all_identical}
                for line in self.lines
            ],
            "flow": {
                **{name: round(v, 3) if isinstance(v, float) else v for name, v in asdict(cost).items()},
                "mb_per_s": round(cost.mb_per_s, 1),
                "cpu_s_per_gb": round(cost.cpu_s_per_gb, 2),
            },
            "seconds": {**seconds, "total": round(self.total, 1), "downloads": round(self.downloads, 1)},
        }


def verdicts_of(figures: Iterable[PartitionStatus]) -> dict[str, Counter[str]]:
    """Verdict counts by topic."""
    found: dict[str, Counter[str]] = {}
    for one in figures:
        found.setdefault(one.topic, Counter()).update(one.verdicts)
    return found


# --- The mirror at work, seen from outside ----------------------------------------------------------------------------

POLL_SECONDS: Final = 0.1
JOURNAL_SECONDS: Final = 0.5
#: Seconds in which something must move.
TIMEOUT_S: Final = 60.0

Reached = Mapping[tuple[str, int], int]


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
    figures: dict[TopicPartition, PartitionStatus] = field(default_factory=dict)


class Copying:
    """Watches one flow whose mirror has just been started."""

    def __init__(self, flow: str, target: Endpoint, mirror: Bound, ends: tuple[Ends, Ends], progress: Narrator) -> None:
        """`ends`: the source's and the target's."""
        self._flow, self._target, self._mirror, self._progress = flow, target, mirror, progress
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
                self._progress.step(
                    f"caught up; {live.topic} is written on for {seconds:.0f} s, past the end of an epoch"
                )
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    await self._poll(every, reading)
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
            await self._poll(topics, reading)
            now = Moment(time.monotonic(), self.tree.sample())
            done = sum(self._reached.values())
            if done and not course.first.at:
                course.first = before
                self._begun.set()
                self._progress.step(f"the first records are there, after {before.at - course.began.at:.1f} s")
            if done:
                self._progress.progress("mirroring", done, total)
            before = now
        course.last = before

    async def _until_said(self, topics: Mapping[str, int], ends: Reached, reading: asyncio.Task[None]) -> None:
        """Until the journal says of every partition that it has caught up with the source's end, and the logs agree."""
        while not (self._all_at(ends) and all(self._is_caught_up(at, end) for at, end in ends.items())):
            await self._poll(topics, reading)

    async def _poll(self, topics: Mapping[str, int], reading: asyncio.Task[None]) -> None:
        await asyncio.sleep(POLL_SECONDS)
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
        elif now - self._moved[0] > TIMEOUT_S:
            stops.append(f"nothing moved for {TIMEOUT_S:.0f} s")
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
                    figures = PartitionStatus.from_json(entry.value)
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
