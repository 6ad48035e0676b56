"""An independent judge of a mirrored topic: reads both sides with kafka-python, shares no code with the mirror.

    findings = check(source, target, "orders")          # nothing to say: an empty list

`reading` takes a dump of one side (C1 to C4 need nothing else), `comparing` is pure and names each difference, `groups`
compares the positions of consumer groups. What is compared:

    C1  committed records: offset, key, value, headers in their order, timestamp, and its type where it means anything
    C2  what an uncommitted reader of the target sees: just the committed records, nothing of what was aborted
    C3  where the logs start and end
    C4  no transaction of the target hangs: the last stable offset is the high watermark
    C5  offsets that no reader sees: the same on both sides, and declared gaps are the real ones
    C6  positions of groups: never ahead, never behind by more than what is allowed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .comparing import Expected, compare
from .findings import Finding, Kind
from .groups import compare_groups
from .reading import Dump, Record, dump

__all__ = ["Dump", "Expected", "Finding", "Kind", "Record", "check", "compare", "compare_groups", "dump"]


def check(
    source: str,
    target: str,
    topic: str,
    *,
    target_topic: str = "",
    groups: Iterable[str] = (),
    expected: Expected | None = None,
    before: Mapping[int, Dump] | None = None,
) -> list[Finding]:
    """Everything in which a target topic is not what its source topic is; `source` and `target` are bootstrap.servers.

    `before` holds dumps of the source by partition, taken before it deleted its oldest records; they are laid under
    what the source still holds. Raises kafka-python's errors where a side cannot be read at all.
    """
    name = target_topic or topic
    theirs, mine = dump(source, topic, uncommitted=False), dump(target, name)
    found = [
        Finding(Kind.PARTITIONS, name, -1, -1, -1, f"the source has {len(theirs)} partitions, the target {len(mine)}")
    ] * (theirs.keys() != mine.keys())
    for partition in sorted(theirs.keys() & mine.keys()):
        known = theirs[partition].over(before[partition]) if before else theirs[partition]
        found += compare(known, mine[partition], name, partition, expected or Expected())
    for group in groups:
        found += compare_groups(source, target, group, {topic: name})
    return found
