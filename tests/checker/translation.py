"""Where offsets moved to: what the journal says of it, read here anew, against what both sides hold (pure).

recorded = read_recorded(journal_records, "orders", 0)         # records `runs/...` and `loss/...` that are in force
pairs, found = paired(source_records, target_records)  # which record is which, and what is wrong with the rest
found += compare_claims(recorded, pairs)               # what the journal says
found += compare_translation(Lookup(recorded), pairs, end) # every offset, both ways
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from .comparing import Differences, field_differences, named, type_differences
from .findings import Kind
from .reading import Dump, Record


class Claim(NamedTuple):
    """One record of the journal: from target offset `begin` on, the source offset of each record; the source has
    nothing more below `until`.
    """

    begin: int
    sources: tuple[int, ...]
    until: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a journal says of one target partition: claims in the order of writing, and offsets [from, to) that are
    declared as lost. `unreadable` are keys whose value makes no sense.
    """

    claims: tuple[Claim, ...]
    losses: tuple[tuple[int, int], ...]
    unreadable: tuple[str, ...] = ()

    @property
    def places(self) -> dict[int, int]:
        """Target offset to source offset; the later claim counts."""
        return {claim.begin + index: source for claim in self.claims for index, source in enumerate(claim.sources)}


class Translation(Protocol):
    """Whatever says where offsets moved to."""

    def to_target(self, source: int, /) -> int:
        """Where the first record at or behind a source offset is, or will be."""
        ...

    def to_source(self, target: int, /) -> int | None:
        """Where the record at a target offset came from."""
        ...


class Lookup:
    """A translation by nothing but what is recorded."""

    def __init__(self, expected: Recorded) -> None:
        self._places = expected.places
        self._targets = sorted(self._places)
        self._sources = [self._places[target] for target in self._targets]

    def to_target(self, source: int) -> int:
        """As in `Translation`."""
        at = bisect_left(self._sources, source)
        if at < len(self._targets):
            return self._targets[at]
        return self._targets[-1] + 1 if self._targets else 0

    def to_source(self, target: int) -> int | None:
        """As in `Translation`."""
        return self._places.get(target)


class Pair(NamedTuple):
    """The same record on both sides."""

    source: int
    target: int


class Places:
    """Where source offsets are on the target, by pairs in offset order."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._sources, self._targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
        self._end = pairs[-1].target + 1 if pairs else 0

    def between(self, offset: int) -> tuple[int, int]:
        """The first and the last target offset that stand for what a reader at a source offset reads next: the same
        one, unless the source deleted records there.
        """
        at = bisect_left(self._sources, offset)
        lowest = self._targets[at - 1] + 1 if at else 0
        return lowest, self._targets[at] if at < len(self._targets) else self._end


def read_recorded(journal: Iterable[Record], topic: str, partition: int) -> Recorded:
    """From the records of a journal, in their order. A later value of a key is in force, and none deletes it."""
    newest: dict[str, bytes] = {}
    for record in journal:
        key = (record.key or b"").decode(errors="replace")
        newest.pop(key, None)
        if record.value is not None:
            newest[key] = record.value
    claims: list[Claim] = []
    losses: list[tuple[int, int]] = []
    unreadable: list[str] = []
    for key, value in newest.items():
        kind, _, rest = key.partition("/")
        where, _, number = rest.rpartition("/")
        if where != f"{topic}/{partition}" or kind not in {"runs", "loss"}:
            continue
        try:
            fields = json.loads(value)
            if kind == "loss":
                losses.append((fields["first"], fields["next"]))
            else:
                claims.append(_claim(fields, int(number)))
        except (ValueError, KeyError, TypeError):
            unreadable.append(key)
    return Recorded(tuple(claims), tuple(losses), tuple(unreadable))


def _claim(expected: dict[str, object], begin: int) -> Claim:
    """Raises ValueError, KeyError or TypeError where it makes no sense."""
    source, lengths, until = expected["source"], expected["runs"], expected["next"]
    if expected["target"] != begin or not isinstance(source, int) or not isinstance(until, int):
        raise ValueError("another key's value")
    if not isinstance(lengths, list) or len(lengths) % 2 == 0:
        raise ValueError("a length more than skips")
    sources: list[int] = []
    for index, length in enumerate(lengths):
        if index % 2 == 0:
            sources += range(source, source + length)
        source += length
    return Claim(begin, tuple(sources), until)


def paired(
    source: Sequence[Record], target: Sequence[Record], losses: Sequence[tuple[int, int]]
) -> tuple[list[Pair], Differences]:
    """Which record of the target is which of the source, in the order of both, and what is wrong elsewhere, by target
    offset. Records of the source in `losses`, from and to before, are not missed.
    """
    theirs, ours = [named(one) for one in source], [named(one) for one in target]
    lost = {offset for first, end in losses for offset in range(first, end)}
    homes: dict[object, int] = {}
    for index, name in enumerate(theirs):
        homes.setdefault(name, index)
    places = {name: index for index, name in enumerate(ours)}  # the last one: whether it still comes
    pairs: list[Pair] = []
    found: list[tuple[Kind, int, str]] = []
    i = j = 0
    while i < len(source) and j < len(target):
        wanted, got = source[i], target[j]
        if theirs[i] == ours[j]:
            if wanted.offset in lost:
                found.append((Kind.GAP_UNTRUE, got.offset, f"source offset {wanted.offset} is declared as lost"))
            pairs.append(Pair(wanted.offset, got.offset))
            found += type_differences(wanted, got)
            i, j = i + 1, j + 1
        elif wanted.offset in lost:
            i += 1
        elif theirs[i + 1 : i + 2] == ours[j : j + 1] and theirs[i : i + 1] == ours[j + 1 : j + 2]:
            found.append((Kind.SWAPPED, got.offset, f"source offset {wanted.offset} comes behind it"))
            i, j = i + 2, j + 2
        elif homes.get(ours[j], len(source)) < i:
            found.append((Kind.REPEATED, got.offset, f"source offset {source[homes[ours[j]]].offset} came before"))
            j += 1
        elif ours[j] in homes and places.get(theirs[i], -1) < j:
            found.append((Kind.LOST, got.offset, f"source offset {wanted.offset} is missing before it"))
            i += 1
        elif ours[j] not in homes and places.get(theirs[i], -1) > j:
            found.append((Kind.EXTRA, got.offset, "the source has no such record"))
            j += 1
        elif ours[j] in homes:
            found.append((Kind.SHIFTED, got.offset, f"it is at source offset {source[homes[ours[j]]].offset}"))
            i += 1
        else:
            found += field_differences(wanted, got)
            i, j = i + 1, j + 1
    for record in source[i:]:
        if record.offset not in lost:
            at = len(target)
            found.append((Kind.TAIL_LOST, at, f"source offset {record.offset} and what follows are missing"))
            break
    for index, record in enumerate(target[j:], j):
        again = ours[index] in homes
        detail = "the source's records end before" if not again else "a record that came before"
        found.append((Kind.REPEATED if again else Kind.EXTRA, record.offset, detail))
    return pairs, found


def compare_dense(target: Dump) -> Differences:
    """What is not a record of the offsets from 0 to the log's end, for readers of both kinds."""
    for kind, records in ((Kind.NOT_DENSE, target.committed), (Kind.VISIBLE_UNCOMMITTED, target.uncommitted)):
        offsets = {record.offset for record in records}
        yield from ((kind, offset, "no record is here") for offset in range(target.end) if offset not in offsets)


def compare_claims(expected: Recorded, pairs: Sequence[Pair]) -> Differences:
    """What is wrong with what a journal says: no claim may lie, and together they cover every record, in order.

    `pairs` in offset order; the target ends behind the last one. Differences are by target offset.
    """
    yield from ((Kind.RUNS_UNREADABLE, -1, key) for key in expected.unreadable)
    truth = {pair.target: pair for pair in pairs}
    for claim in expected.claims:  # each by itself: none may lie, whichever counts
        yield from _lies(claim, truth)
    places = expected.places
    for (_, one), (target, other) in pairwise(sorted(places.items())):
        if one >= other:
            yield Kind.RUNS_WRONG, target, f"source offset {other} here, and {one} before"
    for target in sorted(truth.keys() ^ places.keys()):
        if target in truth:
            yield Kind.RUNS_MISSING, target, "no run says where this record came from"
        else:
            yield Kind.RUNS_WRONG, target, "a run names a record that is not there"


def compare_translation(translation: Translation, pairs: Sequence[Pair], end: int) -> Differences:
    """What is wrong with the translation of any source offset from 0 to `end`, and of any target offset."""
    where = Places(pairs)
    for offset in range(end + 1):
        lowest, highest = where.between(offset)
        got = translation.to_target(offset)
        if not lowest <= got <= highest:
            wanted = lowest if lowest == highest else f"{lowest} to {highest}"
            yield Kind.TRANSLATION, got, f"source offset {offset} is translated to it, and not to {wanted}"
    for pair in pairs:
        source = translation.to_source(pair.target)
        if source != pair.source:
            yield Kind.TRANSLATION, pair.target, f"it is translated to source offset {source}, and not {pair.source}"


def _lies(claim: Claim, truth: Mapping[int, Pair]) -> Iterator[tuple[Kind, int, str]]:
    for target, source in enumerate(claim.sources, claim.begin):
        pair = truth.get(target)
        if pair is not None and pair.source != source:
            detail = f"source offset {source} by the runs from {claim.begin} on, and it is {pair.source}"
            yield Kind.RUNS_WRONG, target, detail
    following = truth.get(claim.begin + len(claim.sources))
    if following is not None and following.source < claim.until:
        detail = f"nothing below source offset {claim.until} is left, it says, and {following.source} is"
        yield Kind.RUNS_WRONG, following.target, detail
