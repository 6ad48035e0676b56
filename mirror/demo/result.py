"""What the demonstration found, as values, and whether it holds (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from mirror.observe.figures import Figures
from mirror.verify.report import TopicReport

#: Verdicts that append a batch's bytes as they are stored.
AS_STORED: Final = ("PASS/", "RESTAMP/")
#: The verdict on what no reader gets.
DROPPED: Final = "DROP/"
#: What librdkafka makes of a batch that compression would not shrink, as small ones may be.
UNCOMPRESSED: Final = "none"
STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One topic. `wanted` and `written` are the producer's codec and number of records; the rest was found afterwards.

    `bytes` are those of the batches as stored. `judged` batches had a verdict that copies them, `passed` of them one
    that does not decompress; an epoch's last batches may lack one, where a lane could not wait for their
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
        return cls(
            topic=report.topic,
            partitions=report.partitions,
            wanted=wanted,
            written=written,
            codecs=report.codecs,
            records=report.records,
            batches=report.batches,
            bytes=report.bytes,
            judged=sum(count for verdict, count in verdicts.items() if not verdict.startswith(DROPPED)),
            passed=sum(count for verdict, count in verdicts.items() if verdict.startswith(AS_STORED)),
            identical=report.identical,
            offsets_equal=report.offsets_equal,
            hidden=report.hidden,
            lag=report.lag,
            different=report.different,
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
    counts shared pages once; None where the system does not tell.
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


def verdicts_of(figures: Iterable[Figures]) -> dict[str, Counter[str]]:
    """Verdict counts by topic."""
    found: dict[str, Counter[str]] = {}
    for one in figures:
        found.setdefault(one.topic, Counter()).update(one.verdicts)
    return found
