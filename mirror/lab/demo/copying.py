"""The mirror at work, seen from outside, and what was found, as values."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from mirror.config import Settings
from mirror.errors import ClusterError, WireError
from mirror.journal.snapshot import Follower
from mirror.kafka.cluster import Cluster, Endpoint, TopicPartition
from mirror.lab.demo.processes import Bound, Tree
from mirror.lab.demo.producers import Ends
from mirror.observability.status import PartitionStatus
from mirror.states import State
from mirror.verify.report import TopicReport

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
    """One topic, as it was found afterwards."""

    topic: str
    partitions: int
    wanted: str  # the producer's codec
    written: int  # records by the producer
    codecs: tuple[str, ...]
    records: int
    batches: int
    bytes: int  # of the batches as stored
    judged: int  # batches with a verdict that copies them
    passed: int  # those of them that are not decompressed
    identical: int  # batches with the same bytes on both sides
    offsets_equal: bool
    hidden: int  # batches without a record for a reader: markers, and what was aborted
    lag: int  # records
    different: int  # batches

    @classmethod
    def of(cls, report: TopicReport, verdicts: Mapping[str, int], wanted: str, written: int) -> Line:
        """From what the comparison and the mirror's own figures say of a topic."""
        own = {"wanted", "written", "judged", "passed"}
        return cls(
            **{field_.name: getattr(report, field_.name) for field_ in fields(cls) if field_.name not in own},
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
    """Holds what the mirror took: its whole process tree, Spark's JVM and the Python processes."""

    start_s: float  # to the first mirrored record
    start_cpu_s: float
    backlog_s: float  # of what lay ready: from its first mirrored record to its last
    backlog_cpu_s: float
    backlog_bytes: int  # of the batches as stored
    record_bytes: int  # of all keys and values
    peak_rss: int  # bytes
    peak_pss: int | None  # the same with shared pages once; None where the system does not say
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
class CopyResult:
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
    for status in figures:
        found.setdefault(status.topic, Counter()).update(status.verdicts)
    return found


# --- The mirror at work, seen from outside ----------------------------------------------------------------------------

POLL_SECONDS: Final = 0.5
#: Seconds in which something must move.
TIMEOUT_S: Final = 60.0


class MirrorFailed(Exception):
    """The mirror ended, stopped a partition, or made no headway; the message says why and ends with its log."""


@dataclass(slots=True)
class Following:
    """Follows the journal of a flow whose mirror has been started."""

    settings: Settings
    mirror: Bound
    tree: Tree
    source_ends: Ends
    statuses: dict[TopicPartition, PartitionStatus] = field(default_factory=dict)  # the newest of each partition

    async def until_caught_up(self, topics: Mapping[str, int]) -> None:
        """Wait until the journal has each partition of these topics caught up with the source's current end.

        Raises MirrorFailed, EmbeddedError.
        """
        ends = await asyncio.to_thread(self.source_ends.of, topics)
        moved, reported = time.monotonic(), -1
        async with Cluster(Endpoint.of(self.settings.target)) as cluster:
            follower = Follower(self.settings, cluster)
            while not all(self._is_caught_up(place, end) for place, end in ends.items()):
                await asyncio.sleep(POLL_SECONDS)
                self.tree.sample()
                try:
                    figures = (await follower.poll()).figures
                except (ClusterError, WireError) as problem:
                    raise MirrorFailed(f"the flow's journal cannot be read: {problem}") from problem
                self.statuses |= {status.source: status for status in figures}
                before, reported = reported, sum(status.at_ms for status in figures)
                moved = time.monotonic() if reported != before else moved
                stops = [
                    f"{partition}: {status.state}: {status.detail}"
                    for partition, status in self.statuses.items()
                    if status.state.is_stop
                ]
                if self.mirror.exit_code is not None:
                    stops.append(f"the mirror ended by itself with exit code {self.mirror.exit_code}")
                elif time.monotonic() - moved > TIMEOUT_S:
                    stops.append(f"nothing moved for {TIMEOUT_S:.0f} s")
                if stops:
                    raise MirrorFailed("\n".join([*stops, "the end of its log:", self.mirror.tail()]))

    def _is_caught_up(self, partition: tuple[str, int], end: int) -> bool:
        status = self.statuses.get(TopicPartition(*partition))
        if status is None or status.state is not State.CAUGHT_UP:
            return False
        return min(status.next_offset, status.log_end) >= end
