"""What to commit for one partition of one group, so that the target follows the source (pure).

F1  never ahead: what is committed is at most the source's offset, and at most the end of what was mirrored
F2  never back, but where the group itself was put back on the source: its offset there is below the one that the
    two sides last agreed on, and the target still holds what they agreed on
F3  a target that is ahead for another reason consumed there by itself, and is left alone
F4  once the target holds what was decided, the same sources lead to no commit
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirror.wire.groups import Committed


class Standing(StrEnum):
    """How the target's offsets stand to the source's."""

    SYNCED = "synced"
    #: As far as records were mirrored, and no further.
    HELD_BACK = "held_back"
    #: The group has read further on the target (F3).
    AHEAD = "ahead"
    #: The group has members on the target.
    ACTIVE = "active"
    #: A right is missing, a coordinator moves, a broker is away.
    HINDERED = "hindered"


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


def decide(source: Committed, end: int, target: Committed | None, agreed: Agreement | None) -> Decision:
    """`source` is in offsets of the target, `end` is the target's high watermark, `target` None where the group has
    committed nothing there; `agreed` is from the last decision that was carried out.
    """
    within = source.offset <= end
    # The text belongs to its own offset: Kafka Streams keeps times in it that would be wrong for an earlier one.
    wanted = source if within else Committed(end)
    standing = Standing.SYNCED if within else Standing.HELD_BACK
    following = Agreement(source, wanted.offset)
    if target is None or target.offset < wanted.offset:
        return Decision(wanted, standing, following)
    if target.offset == wanted.offset:
        known = agreed is not None and agreed.source == source  # then a broker that refused the text has been asked
        if target.metadata != wanted.metadata and within and not known:
            return Decision(wanted, standing, following)
        return Decision(None, standing, following if within else agreed)
    put_back = agreed is not None and source.offset < agreed.source.offset and target.offset == agreed.target
    if put_back:
        return Decision(wanted, standing, following)
    return Decision(None, Standing.AHEAD, agreed)
