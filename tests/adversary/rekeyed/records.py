"""A re-keyed copy held against its source: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rekeychecker import Seen, complaints, java_partition

from adversary.judging import Finding
from adversary.logs import Log, Record

from .scripts import Rule

#: What `complaints` says, and the kind of finding that it is.
_KINDS: Final = {
    "is of no source record": "records of nobody",
    "has not the key": "a record has another key",
    "is not in partition": "a record is in another partition",
    "has another timestamp": "records are others",
    "comes behind offset": "records are out of order",
    "is missing": "records are missing",
    "times": "records are repeated",
}


@dataclass(frozen=True, slots=True)
class Expected:
    """What a copy is to have. `held`: all that the source had of this topic, by partition and offset. `due`: from which
    offset on to before which it must be there, by partition. `losses`: ranges that are on record as lost. `cleared`:
    partitions of the copy of which somebody deleted records.
    """

    held: Mapping[int, Mapping[int, Record]]
    due: Mapping[int, tuple[int, int]]
    losses: Mapping[int, Collection[tuple[int, int]]]
    cleared: Collection[int] = ()

    def is_due(self, partition: int, offset: int) -> bool:
        """Whether a record must be there."""
        begin, until = self.due.get(partition, (0, 0))
        lost = any(first <= offset < following for first, following in self.losses.get(partition, ()))
        return begin <= offset < until and not lost


def differences(place: str, rule: Rule, expected: Expected, copy: Mapping[int, Log]) -> Iterator[Finding]:
    """In what a copy is not what the rule makes of its source: one finding of each kind."""
    there = [
        _seen(number, offset, one)
        for number, log in copy.items()
        for offset, one in log.records.items()
        if offset < log.stable  # behind it nobody reads who reads what is committed
    ]
    there.sort(key=lambda one: (one.partition, one.offset))
    values = {one.value for one in there}
    keys: dict[Seen, bytes | None] = {}
    for number, records in expected.held.items():
        for offset, one in records.items():
            seen, key = _seen(number, offset, one), rule.key_of(one)
            is_cleared = key is not None and java_partition(key, rule.partitions) in expected.cleared
            if seen.value in values or (expected.is_due(number, offset) and not is_cleared):
                keys[seen] = key
    found: dict[str, list[str]] = {}
    for text in complaints([*keys], there, rule.partitions, keys.__getitem__):
        kind = next(kind for words, kind in _KINDS.items() if words in text)
        found.setdefault(kind, []).append(text)
    for kind, texts in found.items():
        yield Finding("I2", kind, f"{place}: {len(texts)}: {texts[0]}")


def unburied(place: str, rule: Rule, expected: Expected, letters: Log, *, once: bool) -> Iterator[Finding]:
    """What is wrong with the topic of a rule's dead letters; `once`: the copy did not begin anew."""
    texts = [(one.timestamp, one.key, one.value) for one in letters.records.values()]
    bad = [
        (number, offset, (one.timestamp, one.key, one.value))
        for number, records in expected.held.items()
        for offset, one in records.items()
        if rule.is_bad(one) and expected.is_due(number, offset)
    ]
    if missing := [(number, offset) for number, offset, text in bad if text not in texts]:
        yield Finding("I2", "dead letters are missing", f"{place}: {len(missing)}: {missing[:3]}")
    if once and len(texts) > len(set(texts)):
        yield Finding("I2", "dead letters are repeated", f"{place}: {len(texts)}, of which {len(set(texts))} differ")


def _seen(partition: int, offset: int, one: Record) -> Seen:
    """As the checker knows records, which are distinguished by their values: tombstones by key and time."""
    value = one.value if one.value is not None else b"%d of " % one.timestamp + (one.key or b"").removeprefix(b"r-")
    return Seen(partition, offset, one.key, value, one.timestamp, one.headers)
