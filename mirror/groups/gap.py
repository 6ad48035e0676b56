"""Where a group does not go on at the target as it stands on the source, and why (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from mirror.kafka.cluster import TopicPartition

#: Of all groups, where their source is away.
GROUPS_STAY: Final = (
    "groups stay where the mirror last put them, since the source cannot be asked: one that the target's brokers forgot"
    " since (offsets.retention.minutes) is not there"
)
#: Why a group is beyond where it stands on the source.
FURTHER: Final = "it is further on the target: it read on there, or was put back on the source since"
#: Why a group is there that stands in what the target lost (F5).
LOST_THERE: Final = (
    "the target lost what it had read, and other records are at these offsets by now: end its members there, and put it"
    " to offset {} (kafka-consumer-groups.sh --reset-offsets --to-offset)"
)
#: Why a group misses what is written next to a copy (F6).
BEHIND_END: Final = (
    "it stands behind the end of the copy, which lost what it had read: before anybody writes there, put it to offset"
    " {end} (kafka-consumer-groups.sh --reset-offsets --to-offset)"
)
#: Why a group stands elsewhere that nobody follows.
UNFOLLOWED_SHARE: Final = (
    "share groups are not followed: put it where it is to go on (kafka-share-groups.sh --reset-offsets) before it"
    " begins there"
)
#: The same; Kafka's own tool for these resets only what has an offset there (`StreamsGroupCommand`).
UNFOLLOWED_STREAMS: Final = (
    "streams groups are not followed: put it where it is to go on (kafka-consumer-groups.sh --reset-offsets"
    " --to-offset; kafka-streams-groups.sh passes over a group without offsets) before it begins there"
)
#: Why a group does not follow where nothing more is known.
UNVERIFIED: Final = "the target is not known to hold the source's records"
#: Why a group has no offset in a re-keyed topic.
REKEYED: Final = (
    "the topic is re-keyed, so that no offset there goes with one of the source: put it where it is to go on"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetGap:
    """One partition of a group that does not go on at the target where it stands on the source.

    `topic` is the source's, `source_offset` too, None where nobody asked there; `reached` is the group's offset on the
    target, None where it has none, and `cause` says why it is not another. `reads_again` and `misses` are in records,
    at most; both are given for a group without an offset, whose `auto.offset.reset` chooses: the first for earliest,
    the second for latest.
    """

    group: str
    topic: str
    partition: int
    target_topic: str
    source_offset: int | None
    reached: int | None
    reads_again: int
    misses: int
    cause: str

    @property
    def place(self) -> tuple[str, str, int]:
        """Which group it is of, and where."""
        return self.group, self.topic, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEnds:
    """What the target holds of one partition, in its own offsets (`start`, `end`), and what the source does, in those
    of the target: `source_start` is its first record, `source_end` is behind its last committed one; None for one that
    is not known.
    """

    start: int
    end: int
    source_start: int | None = None
    source_end: int | None = None

    def due(self, offset: int) -> tuple[int, int]:
        """From where to where a reader may go on that stands at an offset: what the source never had, or not committed
        yet, nobody has read, and what it deleted from there on nobody misses.
        """
        first = offset if self.source_end is None else min(offset, self.source_end)
        return first, first if self.source_start is None else max(first, self.source_start)

    def gap(self, due: tuple[int, int], reached: int | None) -> tuple[int, int] | None:
        """How many records a group reads again, and how many it misses, that is to go on from where to where `due`
        says, and goes on at `reached`, all offsets of the target; None where it does. What the target lacks, nobody
        reads again there.
        """
        first, last = due
        if reached is None:
            again, missed = min(first, self.end) - self.start, max(self.end, self.start) - last
        else:
            found = max(reached, self.start)
            if first <= found <= last:
                return None
            again, missed = min(first, self.end) - found, found - last
        return max(0, again), max(0, missed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where one partition of a group stands: at `source_offset` of `at` on the source, which is `wanted` in offsets of
    the target, and at `reached` of `target_topic`, None where it has no offset there. `before`: where it was `wanted`
    when it was put there; None where that is now.

    Up to `holds`, in offsets of the target, it has all that the source does; -1 where that is not known. `since`: the
    source offset at which the mirror began. `doubt`: why the copy is not verified; empty where it is. `is_active`: the
    group has members on the target; `is_lost`: it stands in a tail that the target lost. `unfollowed`: why nobody
    follows the group; empty where the mirror does.
    """

    group: str
    at: TopicPartition
    target_topic: str
    source_offset: int
    wanted: int
    reached: int | None
    ends: CopyEnds
    before: int | None = None
    holds: int = -1
    since: int = 0
    doubt: str = ""
    is_active: bool = False
    is_lost: bool = False
    unfollowed: str = ""

    def gap(self) -> OffsetGap | None:
        """None where the group goes on where it should, or reads on there by itself."""
        reached, ends = self.reached, self.ends
        due = [*ends.due(self.wanted), *(ends.due(self.before) if self.before is not None else ())]
        # behind the target's last record there is nothing to read on either side
        due = [min(one, ends.end) if one <= self.holds else one for one in due]
        first, last = min(due), max(due)
        gap = ends.gap((first, last), reached)
        is_further = reached is not None and reached > last
        if gap is None or (self.is_active and is_further and not self.is_lost):
            return None
        if self.unfollowed:
            cause = self.unfollowed
        elif self.source_offset < self.since:
            cause = f"it stands below offset {self.since} of the source, where the mirror began"
        elif self.doubt:
            cause = self.doubt
        elif self.is_lost and is_further:
            cause = LOST_THERE.format(max(ends.start, min(first, ends.end)))
        elif self.is_active:
            cause = "it has members on the target, so that it reads on there by itself"
        elif reached == ends.start > last:
            still = "may still have" if ends.source_start is None else "still has"
            cause = f"the target deleted its next records, of which the source {still} {ends.start - last}"
        elif is_further:
            cause = FURTHER
        elif first > ends.end:
            cause = f"the target ends at offset {ends.end}"
        else:
            cause = "its offset was not committed there"
        return OffsetGap(
            group=self.group,
            topic=self.at.topic,
            partition=self.at.partition,
            target_topic=self.target_topic,
            source_offset=self.source_offset,
            reached=self.reached,
            reads_again=gap[0],
            misses=gap[1],
            cause=cause,
        )


def with_stranded(gaps: Iterable[OffsetGap], stranded: Iterable[OffsetGap]) -> tuple[OffsetGap, ...]:
    """Return all gaps in order; one that is stranded behind the end of its copy says so as its cause."""
    found = {gap.place: gap for gap in gaps}
    for gap in stranded:
        before = found.get(gap.place)
        found[gap.place] = replace(before, cause=gap.cause) if before else gap
    return tuple(sorted(found.values(), key=lambda gap: gap.place))
