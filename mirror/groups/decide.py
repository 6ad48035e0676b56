"""What to commit for one partition of one group, so that the target follows the source (pure).

F1  never ahead: what is committed is at most the source's offset, and at most the end of what was mirrored; but never
    below the target's log start, where a consumer would fall back on its `auto.offset.reset`
F2  never back, but where the group itself was put back on the source: its offset there is below the one that the
    two sides last agreed on, and the target still holds what they agreed on
F3  a target that is ahead for another reason consumed there by itself, and is left alone
F4  once the target holds what was decided, the same sources lead to no commit
F5  where a target lost its tail and holds other records there by now, as offsets that move may have it, nobody reads
    on there: an offset that was committed in what was lost counts as none. The leader epoch that was committed with it
    says so; without one, how far the log reached
F6  nobody reads on behind the end of a copy, which lost its tail then: where the source has read as far as the copy
    goes, an offset there counts as none, and the group follows as the tail is copied again. One that has read on at
    the target by itself is left alone (F3), and named by a failover
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mirror.kafka.groups import Committed
from mirror.policy.rules import NO_LIMIT

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
#: Why a group stands elsewhere that nobody follows (G9 in `groups/sync.py`).
UNFOLLOWED: Final = (
    "share groups and streams groups are not followed: put it where it is to go on (kafka-share-groups.sh or"
    " kafka-streams-groups.sh, --reset-offsets) before it begins there"
)
#: Why a group has no offset in a re-keyed topic.
REKEYED: Final = (
    "the topic is re-keyed, so that no offset there goes with one of the source: put it where it is to go on"
)


class Standing(StrEnum):
    """How the target's offsets stand to the source's."""

    SYNCED = "synced"
    #: As far as records were mirrored, and no further.
    HELD_BACK = "held_back"
    #: The group has read further on the target (F3).
    AHEAD = "ahead"
    #: At the target's log start: the records that it would read next are deleted there.
    EXPIRED = "expired"
    #: The group has members on the target.
    ACTIVE = "active"
    #: A right is missing, a coordinator moves, a broker is away.
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the source had committed when the target was last known to hold what follows from it, and that."""

    source: Committed
    target: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to commit, if anything, how the partition stands after that, and what is then agreed."""

    commit: Committed | None
    standing: Standing
    agreed: Agreement | None


def decide(
    source: Committed,
    end: int,
    target: Committed | None,
    agreed: Agreement | None,
    start: int = 0,
    known_until: int = NO_LIMIT,
) -> Decision:
    """`source` is in offsets of the target, `end` is the target's high watermark, asked after `target`, and `start` its
    log start, `target` None where the group has committed nothing there; `agreed` is from the last decision that was
    carried out, and up to `known_until` it is known what offsets mean.
    """
    is_stranded = target is not None and target.offset > end
    end = max(start, min(end, known_until))
    if source.offset < start:
        wanted, standing = Committed(start), Standing.EXPIRED
    elif source.offset > end:
        # The text belongs to its own offset: Kafka Streams keeps times in it that would be wrong for another one.
        wanted, standing = Committed(end), Standing.HELD_BACK
    else:
        wanted, standing = source, Standing.SYNCED
    following = Agreement(source, wanted.offset)
    if target is None or target.offset < wanted.offset or (is_stranded and source.offset >= end):
        return Decision(wanted, standing, following)
    if target.offset == wanted.offset:
        known = agreed is not None and agreed.source == source  # then a broker that refused the text has been asked
        if target.metadata != wanted.metadata and standing is Standing.SYNCED and not known:
            return Decision(wanted, standing, following)
        return Decision(None, standing, agreed if standing is Standing.HELD_BACK else following)
    put_back = agreed is not None and source.offset < agreed.source.offset and target.offset == agreed.target
    if put_back:
        return Decision(wanted, standing, following)
    return Decision(None, Standing.AHEAD, agreed)


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

    def within(self, offset: int) -> int:
        """Where a reader of the source goes on that stands at an offset, among the records that the source has: what it
        deleted nobody misses, and what it never had, or not committed yet, nobody has read.
        """
        offset = offset if self.source_end is None else min(offset, self.source_end)
        return offset if self.source_start is None else max(offset, self.source_start)

    def gap(self, wanted: int, reached: int | None) -> tuple[int, int] | None:
        """How many records a group reads again, and how many it misses, that is to go on at `wanted` and goes on at
        `reached`, both offsets of the target; None where it goes on where it should. What the target lacks, nobody
        reads again there.
        """
        if reached is None:
            again, missed = min(wanted, self.end) - self.start, max(self.end, self.start) - wanted
        else:
            found = max(reached, self.start)
            if found == wanted:
                return None
            again, missed = min(wanted, self.end) - found, found - wanted
        return max(0, again), max(0, missed)
