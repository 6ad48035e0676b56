"""What a comparison found, as values: differences, reports, digests, and the line that signs them off.

A batch of the source adds one term: SHA-256 over its magic, length, base offset, last offset delta, record count, base
and largest timestamp, codec and timestamp type, and the CRC-32C of its records section (byte 61 to the end; of magic 0
and 1, of all that follows the length). The digest is the sum of the terms modulo 2^256. Every term holds its batch's
own offset, so a sum loses no order, and ranges may be added up in any order and cut anywhere between two batches.

    - The source's digest is a function of the batches with records that its log holds between the offsets compared, and
      of nothing else: two proofs over the same offsets print the same one, whatever the target is.
    - The target's digest has the same term where its batch, or its records in other batches, were found equal, and
      another one for every difference and every accepted loss: the two digests are equal exactly where nothing differs
      and nothing is lost.
    - A checksum guards against faults: somebody who forges batches can forge it (CRC-32C has 32 bits).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from mirror import __version__
from mirror.errors import PartitionStop
from mirror.kafka.cluster import TopicPartition

# --- The digest of what a proof compared ------------------------------------------------------------------------------

_MODULUS: Final = 1 << 256


def term(text: bytes) -> int:
    """Return what a batch, or a difference, adds to a digest."""
    return int.from_bytes(hashlib.sha256(text).digest())


def digest_of(total: int) -> str:
    """Return the digest of a sum of terms: 64 hexadecimal digits."""
    return f"{total % _MODULUS:064x}"


def added_up(digests: Iterable[str]) -> str:
    """Return the digest of several ranges together."""
    return digest_of(sum(int(digest, 16) for digest in digests))


# --- What a comparison found, as values -------------------------------------------------------------------------------

#: What is shown of a side that has no record where the other has one.
NOTHING: Final = "nothing"
#: Differences kept of each partition; all are counted.
KEPT: Final = 100


class DifferenceKind(StrEnum):
    """In what two partitions differ.

    MISSING and EXTRA are records that one side lacks, or a log's end. UNREADABLE is a log that goes on and cannot be
    read, UNDECODABLE a batch whose payload is not what its header says. STRAY is what the target has from nobody knows
    where, in a topic whose offsets move. ORDER: records of a re-keyed topic that lie in another order.
    """

    TOPIC = "topic"
    MISSING = "missing"
    EXTRA = "extra"
    DELETED = "deleted"
    KEY = "key"
    VALUE = "value"
    HEADERS = "headers"
    TIMESTAMP = "timestamp"
    STORED_CRC = "stored CRC"
    UNREADABLE = "unreadable"
    UNDECODABLE = "undecodable"
    OPEN_TRANSACTION = "open transaction"
    STRAY = "stray"
    ORDER = "order"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference; `topic` is the source's name, `partition` and `offset` are -1 where it is about more than one.

    `source` and `target` say what is there, and are empty where there is nothing to say.
    """

    topic: str
    partition: int
    offset: int
    kind: DifferenceKind
    source: str
    target: str

    def __str__(self) -> str:
        where = self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"
        at = f" at offset {self.offset}" if self.offset >= 0 else ""
        sides = [f"{text} on the {side}" for text, side in ((self.source, "source"), (self.target, "target")) if text]
        return f"{where}{at}: {self.kind}: {', '.join(sides)}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A partition and its copy. `own_clock`: the copy is to show when its records were mirrored
    (`topics.append_time: target`), and not their own times.
    """

    source: TopicPartition
    target: TopicPartition
    own_clock: bool = False


@dataclass(frozen=True, slots=True)
class Unread:
    """A partition that was not verified, or not to its end, since it could not be read; `reason` names the cluster."""

    pair: Pair
    reason: str

    def __str__(self) -> str:
        return f"{self.pair.source}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Gone:
    """A topic that was mirrored and is not on the source any more, by its name there, and its copy, which is left."""

    topic: str
    target: str

    def __str__(self) -> str:
        return f"{self.topic}: is gone from the source; its copy {self.target} was compared with nothing"


class Lack(StrEnum):
    """Why a copy is not whole, though nothing that was compared differs.

    BEHIND: the source held it when the proof began, and the target does not yet. STOPPED: a mirror stopped there, in a
    state that needs a person. LOST: records that never came, which a person or a policy accepted. ABSENT: no such topic
    or partition on the target. LEFT_OUT: the flow began later (`topics.start`). NOT_VERIFIED: nothing was compared.
    """

    BEHIND = "not there yet"
    STOPPED = "stopped"
    LOST = "accepted loss"
    ABSENT = "missing on the target"
    LEFT_OUT = "before topics.start"
    NOT_VERIFIED = "not verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """One part of the source that the target lacks, or that nobody compared.

    `topic` and `target` are the names on both sides; `partition` is -1 for a whole topic. `first` and `next_offset` are
    the source's offsets, from and to before, -1 where they are not known; `offsets` is how many are meant, None where
    that is not known: at most as many records. `reason` says more.
    """

    kind: Lack
    topic: str
    target: str
    partition: int = -1
    first: int = -1
    next_offset: int = -1
    offsets: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        where = self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"
        parts = [f"{where}: {self.kind}"]
        if self.next_offset > self.first >= 0:
            parts.append(f"offsets {self.first} to {self.next_offset - 1} ({self.offsets:,})")
        elif self.offsets:
            parts.append(f"{self.offsets:,} offsets")
        return ": ".join((", ".join(parts), self.reason) if self.reason else (", ".join(parts),))


def covering(lost: Sequence[tuple[int, int]], first: int, last: int) -> tuple[int, int] | None:
    """The loss among `lost`, from and to before, that all offsets from `first` to `last` belong to."""
    return next((one for one in lost if one[0] <= first and last < one[1]), None)


@dataclass(frozen=True, slots=True)
class Mark:
    """The last batch that was read of one side of a range, as stored: it shows later that the log is the one
    that was compared. `epoch` is the leader epoch that the broker wrote into it; -1 before magic 2.
    """

    offset: int
    crc: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts what was compared of a partition or topic, in numbers that add up. Where nothing differs, `identical`,
    `own_timestamps` and `rewritten` together are all `batches`.
    """

    #: The source's batches, of those that a consumer of committed records gets.
    batches: int
    #: Its other batches: control markers, aborted and emptied ones.
    hidden: int
    #: The source's records.
    records: int
    #: The source's bytes.
    bytes: int
    #: Batches that have a counterpart on the target.
    identical: int
    #: Those among them whose counterpart has the same CRC, and so the same producer.
    as_stored: int
    #: Batches that are identical or rewritten but for timestamps, which the target's broker set by its own clock.
    own_timestamps: int
    #: Batches whose records are there in other batches.
    rewritten: int
    #: Offsets that the target does not hold yet.
    lag: int
    #: All differences.
    different: int


def _sums(reports: Iterable[Counts], **given: int) -> dict[str, int]:
    """Return the sum of each count over these, or what is `given` for it."""
    every = list(reports)
    return {field.name: sum(getattr(counts, field.name) for counts in every) for field in fields(Counts)} | given


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport(Counts):
    """Holds what was compared of one partition. The digests are equal exactly where nothing differs or is lost."""

    #: The partition and its copy.
    pair: Pair
    #: The first offset that was compared.
    begin: int
    #: The offset behind the last one.
    end: int
    #: The source's codecs.
    codecs: tuple[str, ...]
    #: Every record has the offset that it should have.
    offsets_equal: bool
    #: Of what was compared on the source.
    source_digest: str
    #: The same of the target.
    target_digest: str
    #: The first of all differences.
    differences: tuple[Difference, ...]
    #: What else is to be said.
    notes: tuple[str, ...]
    #: Accepted losses that were met, as source offsets from and to before.
    lost: tuple[tuple[int, int], ...] = ()
    #: Records that the source has there and the target has not.
    lost_records: int = 0
    #: The last batch that was read of the source; None where there was none.
    source_mark: Mark | None = None
    #: The same of the target.
    target_mark: Mark | None = None


def with_stray(report: PartitionReport, stop: PartitionStop) -> PartitionReport:
    """The report with what a mirror would stop for that starts now."""
    stray = Difference(stop.topic, stop.partition, stop.offset, DifferenceKind.STRAY, "", f"{stop.detail};")
    return replace(
        report,
        different=report.different + 1,
        differences=(*report.differences, stray),
        target_digest=digest_of(int(report.target_digest, 16) + term(str(stray).encode())),
    )


def joined(ranges: Sequence[PartitionReport]) -> PartitionReport:
    """The report of a partition from those of its ranges, which are in offset order and have no gaps."""
    first, last = ranges[0], ranges[-1]
    return PartitionReport(
        pair=first.pair,
        begin=first.begin,
        end=last.end,
        codecs=tuple(sorted({codec for range_ in ranges for codec in range_.codecs})),
        offsets_equal=all(range_.offsets_equal for range_ in ranges),
        source_digest=added_up(range_.source_digest for range_ in ranges),
        target_digest=added_up(range_.target_digest for range_ in ranges),
        differences=tuple(islice((difference for range_ in ranges for difference in range_.differences), KEPT)),
        notes=tuple(dict.fromkeys(note for range_ in ranges for note in range_.notes)),
        lost=tuple(sorted({lost for range_ in ranges for lost in range_.lost})),
        lost_records=sum(range_.lost_records for range_ in ranges),
        **_sums(ranges, lag=last.lag),
        source_mark=next((range_.source_mark for range_ in reversed(ranges) if range_.source_mark), None),
        target_mark=next((range_.target_mark for range_ in reversed(ranges) if range_.target_mark), None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeyedReport:
    """What was compared of a re-keyed topic. `records` of the source were computed once more and looked for, `buried`
    of them in the dead-letter topic; the target's `partitions` hold `target_records`. `different` counts all
    differences, `differences` holds the first of them. `own_timestamps`: those that are equal but for a time of the
    target's own, which may be.
    """

    topic: str
    target: str
    partitions: int
    records: int
    target_records: int
    buried: int
    different: int
    differences: tuple[Difference, ...]
    own_timestamps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport(Counts):
    """The partitions of one topic together."""

    #: Name on the source.
    topic: str
    #: Name on the target; empty where no partition was compared.
    target: str
    #: How many were compared.
    partitions: int
    #: The source's codecs.
    codecs: tuple[str, ...]
    #: Every record has the offset that it should have.
    offsets_equal: bool

    @property
    def equal(self) -> bool:
        """No difference in what was compared; see `own_timestamps` for what was not."""
        return not self.different


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """All of a flow. `misfits` are the differences between whole topics; `seconds` is how long the comparison took;
    `moved`: offsets are translated, and compared after that. `source_id` and `target_id` are the clusters' own ids,
    `begun_ms` (Unix time) is when the ends were fixed, `spark` says that Spark read, `resumed` how many ranges were
    found finished by an earlier run that was interrupted. `unread` are the partitions that could not be read, `gone`
    the topics that the source has no more. `shortfalls` is what the target lacks, or what was not compared. `rekeyed`
    are the topics whose records go by a rule.
    """

    flow: str
    source: str
    target: str
    partitions: tuple[PartitionReport, ...]
    misfits: tuple[Difference, ...]
    seconds: float
    moved: bool = False
    source_id: str = ""
    target_id: str = ""
    begun_ms: int = 0
    spark: bool = False
    resumed: int = 0
    unread: tuple[Unread, ...] = ()
    gone: tuple[Gone, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    rekeyed: tuple[RekeyedReport, ...] = ()

    @property
    def different(self) -> int:
        """How many differences there are, kept or not."""
        of_partitions = sum(report.different for report in self.partitions)
        return len(self.misfits) + of_partitions + sum(report.different for report in self.rekeyed)

    @property
    def equal(self) -> bool:
        """True when there is no difference in what was compared: see `is_whole`."""
        return not self.different

    @property
    def is_whole(self) -> bool:
        """True when all that was committed on the source when the proof began is on the target, and equal."""
        lacks = self.shortfalls or self.unread or any(partition.lag or partition.lost for partition in self.partitions)
        return self.equal and not lacks

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The differences that were kept, topics first."""
        of_rules = (difference for report in self.rekeyed for difference in report.differences)
        of_partitions = (difference for report in self.partitions for difference in report.differences)
        return (*self.misfits, *of_rules, *of_partitions)

    @property
    def sums(self) -> dict[str, int]:
        """Each count over all partitions, by its name."""
        return _sums(self.partitions)

    @property
    def topics(self) -> tuple[TopicReport, ...]:
        """One line for each topic, by name."""
        by_name: dict[str, list[PartitionReport]] = {}
        for report in self.partitions:
            by_name.setdefault(report.pair.source.topic, []).append(report)
        misfits = {misfit.topic: misfit for misfit in self.misfits}
        names = sorted(by_name.keys() | misfits.keys())
        return tuple(_topic_report(name, by_name.get(name, []), misfits.get(name)) for name in names)


def _topic_report(name: str, reports: Sequence[PartitionReport], misfit: Difference | None) -> TopicReport:
    return TopicReport(
        topic=name,
        target=reports[0].pair.target.topic if reports else "",
        partitions=len(reports),
        codecs=tuple(dict.fromkeys(codec for report in reports for codec in report.codecs)),
        offsets_equal=bool(reports) and misfit is None and all(report.offsets_equal for report in reports),
        **_sums(reports, different=sum(report.different for report in reports) + (misfit is not None)),
    )


# --- The line that signs a proof off ----------------------------------------------------------------------------------


#: What a line of each kind says, behind where it is.
_PROVED: Final = attrgetter("begin", "end", "records", "source_digest", "target_digest")
_RECORDS: Final = attrgetter("topic", "target", "records", "target_records", "different")
_LACKED: Final = attrgetter("kind", "topic", "target", "partition", "first", "next_offset", "offsets")


def facts(report: VerifyReport) -> dict[str, Any]:
    """Return which clusters were compared when, up to where, and what was found."""
    return {
        "flow": report.flow,
        "version": __version__,
        "begun": at(report.begun_ms),
        "source_id": report.source_id,
        "target_id": report.target_id,
        "different": report.different,
        "partitions": [[*one.pair.source, *one.pair.target, *_PROVED(one)] for one in report.partitions],
        "not_verified": [[*unread.pair.source, *unread.pair.target] for unread in report.unread],
        "gone": [[gone.topic, gone.target] for gone in report.gone],
        "rekeyed": [[*_RECORDS(rekeyed)] for rekeyed in report.rekeyed],
        "whole": report.is_whole,
        "not_whole": [[*_LACKED(shortfall)] for shortfall in report.shortfalls],
    }


def verdict(report: VerifyReport) -> str:
    """In a few words: equal or not, whole or not, and what is not covered."""
    sides = f"{report.source} and {report.target}"
    if not report.equal:
        many = f"{report.different:,} difference{'s' if report.different > 1 else ''}"
        return f"{sides} differ: {many}{_gaps(report)}"
    return f"{_likeness(report, sides)}{_gaps(report)}"


def _likeness(report: VerifyReport, sides: str) -> str:
    if not report.sums["batches"] and not any(topic.records for topic in report.rekeyed):
        return f"nothing {'to compare' if report.is_whole else 'was compared'} between {sides}"
    but = ", but for timestamps that the target set itself" if report.sums["own_timestamps"] else ""
    return f"{sides} are equal{but}"


def _gaps(report: VerifyReport) -> str:
    """What the verdict does not cover."""
    many, lacks = len(report.unread), lacking(report)
    unread = f"; {many:,} partition{'s were' if many > 1 else ' was'} not verified" if many else ""
    return f"{unread}; not whole: {lacks}" if lacks else unread


def _offsets(some: Iterable[Shortfall]) -> int:
    """How many offsets these shortfalls of a kind are about; those that several are about count once."""
    total, before = 0, ("", -1, -1)
    for one in sorted(some, key=lambda one: (one.target, one.partition, one.first)):
        place = one.target, one.partition
        if one.first < 0 or one.offsets != one.next_offset - one.first:  # it does not say which
            total += one.offsets or 0
            continue
        first = max(one.first, before[2]) if place == before[:2] else one.first
        total += max(0, one.next_offset - first)
        before = (*place, max(first, one.next_offset))
    return total


def lacking(report: VerifyReport) -> str:
    """What keeps a copy from being whole, by kind and in numbers; empty where nothing does."""
    parts = []
    for kind in Lack:
        some = [shortfall for shortfall in report.shortfalls if shortfall.kind is kind]
        if not some:
            continue
        offsets = _offsets(some)
        where = Counter(
            "topic" if part < 0 else "partition"
            for _, part in {(shortfall.target, shortfall.partition) for shortfall in some}
        )
        places = " and ".join(f"{many:,} {what}{'s' if many > 1 else ''}" for what, many in sorted(where.items()))
        count = f"{offsets:,} offset{'' if offsets == 1 else 's'} " if offsets else ""
        parts.append(f"{count}{kind} ({places})")
    return ", ".join(parts)


def headline(report: VerifyReport) -> str:
    """Whole, not whole or different, before all else."""
    since = f"everything that {report.source} held at {at(report.begun_ms)}"
    but = ", but for timestamps of its own" if any(partition.own_timestamps for partition in report.partitions) else ""
    if not report.equal:
        return f"DIFFERENT: {report.target} is not equal to {report.source}"
    if report.is_whole:
        return f"WHOLE: {report.target} holds {since}, equal{but}"
    return f"NOT WHOLE: {report.target} is not known to hold {since}; what was compared is equal{but}"


def at(milliseconds: int) -> str:
    """A Unix time as people and machines read it: 2026-01-31T12:00:00Z."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
