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

from mirror.kafka.groups import Committed
from mirror.policy.rules import NO_LIMIT


class GroupStanding(StrEnum):
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
    standing: GroupStanding
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
        wanted, standing = Committed(start), GroupStanding.EXPIRED
    elif source.offset > end:
        # The text belongs to its own offset: Kafka Streams keeps times in it that would be wrong for another one.
        wanted, standing = Committed(end), GroupStanding.HELD_BACK
    else:
        wanted, standing = source, GroupStanding.SYNCED
    following = Agreement(source, wanted.offset)
    if target is None or target.offset < wanted.offset or (is_stranded and source.offset >= end):
        return Decision(wanted, standing, following)
    if target.offset == wanted.offset:
        known = agreed is not None and agreed.source == source  # then a broker that refused the text has been asked
        if target.metadata != wanted.metadata and standing is GroupStanding.SYNCED and not known:
            return Decision(wanted, standing, following)
        return Decision(None, standing, agreed if standing is GroupStanding.HELD_BACK else following)
    put_back = agreed is not None and source.offset < agreed.source.offset and target.offset == agreed.target
    if put_back:
        return Decision(wanted, standing, following)
    return Decision(None, GroupStanding.AHEAD, agreed)
