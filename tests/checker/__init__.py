"""An independent judge of a mirrored topic: reads both sides with kafka-python, shares no code with the mirror.

    findings = check(source, target, "orders")          # nothing to say: an empty list

`reading` takes a dump of one side (C1 to C4 need nothing else), `comparing` is pure and names each difference, `groups`
compares the positions of consumer groups; `translation` judges topics whose offsets move. What is compared:

    C1  committed records: offset, key, value, headers in their order, timestamp, and its type where it means anything
    C2  what an uncommitted reader of the target sees: just the committed records, nothing of what was aborted
    C3  where the logs start and end
    C4  no transaction of the target hangs: the last stable offset is the high watermark
    C5  offsets that no reader sees: the same on both sides
    C6  positions of groups: never ahead, never behind by more than what is allowed

and where offsets move, besides C4 and C6:

    C7  committed records: the same ones in the same order, with all that C1 compares but the offset
    C8  the target's offsets: a record at each of them from 0 on, for readers of both kinds
    C9  the translation of every offset, both ways, as the journal's records say: for one without a record, the
        record behind it. No record of the journal may lie, whether another one says better or not
    C10 declared losses are the real ones
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from .comparing import compare, joined
from .findings import Finding, Kind
from .groups import compare_groups
from .reading import Dump, Record, dump
from .translation import (
    Lookup,
    Pair,
    Places,
    Recorded,
    Translation,
    compare_claims,
    compare_dense,
    compare_translation,
    paired,
    read_recorded,
)

__all__ = [
    "Dump",
    "Finding",
    "Kind",
    "Pair",
    "Places",
    "Record",
    "Recorded",
    "check",
    "check_translated",
    "compare",
    "compare_groups",
    "compare_translated",
    "dump",
    "read_recorded",
]


def check(source: str, target: str, topic: str) -> list[Finding]:
    """Everything in which a target topic is not what its source topic is; `source` and `target` are bootstrap.servers.

    Raises kafka-python's errors where a side cannot be read at all.
    """
    theirs, mine = dump(source, topic, uncommitted=False), dump(target, topic)
    found = _partitions(topic, theirs, mine)
    for partition in sorted(theirs.keys() & mine.keys()):
        found += compare(theirs[partition], mine[partition], topic, partition)
    return found


def check_translated(
    source: str,
    target: str,
    topic: str,
    journal: str,
    *,
    groups: Iterable[str] = (),
    translations: Mapping[int, Translation] | None = None,
) -> list[Finding]:
    """Everything that is wrong where offsets move; `journal` is the name of the topic that says where to.

    `translations`, somebody's by partition, are judged besides the checker's own. Raises as `check` does.
    """
    theirs, mine = dump(source, topic, uncommitted=False), dump(target, topic)
    entries = [record for one in dump(target, journal).values() for record in one.uncommitted]
    found = _partitions(topic, theirs, mine)
    places: dict[int, Places] = {}
    for partition in sorted(theirs.keys() & mine.keys()):
        reported = read_recorded(entries, topic, partition)
        pairs, differences = compare_translated(theirs[partition], mine[partition], reported)
        places[partition] = Places(pairs)
        if not differences and partition in (translations or {}):
            differences += compare_translation((translations or {})[partition], pairs, theirs[partition].end)
        found += joined(differences, partial(_finding, topic, partition))
    for group in groups:
        found += compare_groups(source, target, group, topic, lambda partition, at: places[partition].between(at))
    return found


def compare_translated(source: Dump, target: Dump, message: Recorded) -> tuple[list[Pair], list[tuple[Kind, int, str]]]:
    """Which record is which, and what is wrong with one partition (pure). Whatever is wrong hides what follows from it:
    claims are judged where the records are right, and translations where the claims are.
    """
    found = [
        (Kind.UNREADABLE, -1, f"{side}: {one.error}")
        for side, one in (("source", source), ("target", target))
        if one.error
    ]
    if target.stable != target.end:
        found.append((Kind.HANGING, target.stable, f"the high watermark is {target.end}"))
    found += compare_dense(target)
    pairs, differences = paired(source.committed, target.committed, message.losses)
    found += differences
    if not found:
        found += compare_claims(message, pairs)
    if not found:
        found += compare_translation(Lookup(message), pairs, source.end)
    return pairs, found


def _partitions(topic: str, theirs: Mapping[int, Dump], mine: Mapping[int, Dump]) -> list[Finding]:
    if theirs.keys() == mine.keys():
        return []
    detail = f"the source has {len(theirs)} partitions, the target {len(mine)}"
    return [Finding(Kind.PARTITIONS, topic, -1, -1, -1, detail)]


def _finding(topic: str, partition: int, kind: Kind, first: int, last: int, detail: str) -> Finding:
    return Finding(kind, topic, partition, first, last, detail)
