"""What is wrong between two logs, and between two reads of one: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from .logs import Log, Record


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be. `what` names its kind, the same for each schedule that shows it."""

    invariant: str
    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.what}: {self.detail}"

    @property
    def kind(self) -> str:
        """What two schedules that show the same fault have in common."""
        return f"{self.invariant} {self.what}"


@dataclass(slots=True)
class Allowed:
    """What need not be equal in one partition. `start`: the copy's log may begin there, since somebody made records
    expire on the target, or a setting that both sides have; None: anywhere. `losses`: recorded ranges of the source's
    offsets. `history`: what the source held last, by offset, and `former`: what it held there before. `copied`: what
    was seen on the target at any time; None: nobody looked. `confirmed`: a person took the copy for whole up to there,
    with what somebody else wrote. `own_times`: the target's broker dates records.
    """

    start: int | None = 0
    losses: tuple[tuple[int, int], ...] = ()
    history: Mapping[int, Record] = field(default_factory=dict)
    former: Mapping[int, Collection[Record]] = field(default_factory=dict)
    copied: Mapping[int, Collection[Record]] | None = None
    confirmed: int = 0
    own_times: bool = False
    compacted: bool = False

    def held(self, offset: int) -> Iterator[Record]:
        """What the source held there before its log began behind it."""
        yield from (self.history[offset],) if offset in self.history else ()
        yield from self.former.get(offset, ())

    def lost(self, offset: int) -> bool:
        """Whether the journal says that it is missing."""
        return any(first <= offset < following for first, following in self.losses)

    def begins(self, copy: Log, source: Log) -> int:
        """Where the copy's log may begin at the latest."""
        return copy.start if self.start is None else max(self.start, source.start)


def differences(place: str, source: Log, copy: Log, allowed: Allowed) -> Iterator[Finding]:
    """Where a copy with the source's offsets is said to be equal and is not; the first of each kind."""
    if copy.end != source.stable:
        what = "the copy ends early" if copy.end < source.stable else "the copy ends late"
        yield Finding("I2", what, f"{place}: at {copy.end}, the source at {source.stable}")
    if copy.start > (latest := allowed.begins(copy, source)):
        yield Finding("I2", "the copy begins late", f"{place}: at {copy.start}, the source at {latest}")
    if copy.stable != copy.end:
        yield Finding("I2", "a transaction hangs", f"{place}: stable up to {copy.stable}, the end is {copy.end}")
    wanted = {offset: one for offset, one in source.records.items() if offset < source.stable}
    missing = [
        offset
        for offset in wanted
        if offset >= copy.start
        and offset not in copy.records
        and not allowed.lost(offset)
        and not (allowed.compacted and _superseded(offset, wanted, copy))
    ]
    if missing:
        yield Finding("I2", "records are missing", f"{place}: {_some(missing)}")
    strange = [
        offset
        for offset in copy.records
        if offset >= max(source.start, allowed.confirmed) and offset not in wanted and not allowed.compacted
    ]
    if strange:
        yield Finding("I2", "records of nobody", f"{place}: {_some(strange)}: {copy.records[strange[0]].text}")
    copied = None if allowed.start is None or allowed.compacted else allowed.copied
    never = [
        offset
        for offset, one in wanted.items()
        if copied is not None
        and offset < copy.start
        and not any(_same(seen, one, allowed) for seen in copied.get(offset, ()))
        and not allowed.lost(offset)
    ]
    if never:
        yield Finding("I2", "records were never copied", f"{place}: {_some(never)}")
    others = [
        offset
        for offset, one in copy.records.items()
        if offset not in strange
        and offset >= allowed.confirmed
        and not any(
            _same(one, theirs, allowed) for theirs in ((wanted[offset],) if offset in wanted else allowed.held(offset))
        )
    ]
    if others:
        first = copy.records[others[0]].text
        theirs = wanted.get(others[0], allowed.history.get(others[0]))
        detail = f"{place}: {_some(others)}: {first}, the source's is {theirs.text if theirs else 'none'}"
        yield Finding("I2", "records are others", detail)


def moved_differences(place: str, source: Log, copy: Log, allowed: Allowed) -> Iterator[Finding]:
    """The same where offsets move: the source's records are the last ones of the copy, in their order."""
    wanted = [one for offset, one in sorted(source.records.items()) if offset < source.stable]
    before = sorted({*allowed.history, *allowed.former})
    known = [one for offset in before if offset < source.start for one in allowed.held(offset)] + wanted
    places: dict[tuple[object, ...], list[int]] = {}
    for number, one in enumerate(known):
        places.setdefault(text_of(one, allowed), []).append(number)
    unknown, numbers = 0, list[int]()
    for _, one in sorted(copy.records.items()):
        if not (alike := places.get(text_of(one, allowed))):
            unknown += 1
            continue
        # without their times, two tombstones of a key are alike: the next one is meant where there is one
        numbers.append(next((number for number in alike if not numbers or number > numbers[-1]), alike[0]))
    if unknown and not allowed.compacted:
        yield Finding("I2", "records of nobody", f"{place}: {unknown}")
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        yield Finding("I2", "records are repeated or out of order", f"{place}: {numbers[:20]}")
    first = min(numbers, default=0) if allowed.start is None or allowed.start > 0 else 0
    missing = set(range(max(first, len(known) - len(wanted)), len(known))) - set(numbers)
    gone = [text_of(one, allowed) for offset, one in source.records.items() if allowed.lost(offset)]
    lost = {number for one in gone for number in places.get(one, ())}
    if (missing := missing - lost) and not allowed.compacted and not (allowed.start != 0 and not numbers):
        yield Finding("I2", "records are missing", f"{place}: {len(missing)} of {len(wanted)}")
    if copy.stable != copy.end:
        yield Finding("I2", "a transaction hangs", f"{place}: stable up to {copy.stable}, the end is {copy.end}")


def vanished(
    place: str, before: Log, after: Log, start: int | None, end: int | None, *, compacted: bool = False
) -> Iterator[Finding]:
    """What is gone of a copy, or another one, since a read before, besides what may be: all below `start` (None: any),
    and all from `end` on (None: nothing).
    """
    until = before.end if end is None else end
    if after.end < until:
        yield Finding("I1", "a log got shorter", f"{place}: {before.end}, now {after.end}")
    begins = before.start if start == 0 else after.start if start is None else max(start, before.start)
    if min(after.start, before.end) > begins:  # of what was there
        yield Finding("I1", "records were deleted", f"{place}: its log began at {before.start}, now at {after.start}")
    gone = [
        offset
        for offset, one in before.records.items()
        if begins <= offset < until
        and after.start <= offset
        and after.records.get(offset) != one
        and not (compacted and _superseded(offset, before.records, after))
    ]
    if gone:
        yield Finding("I1", "records are gone", f"{place}: {_some(gone)}")


def _superseded(offset: int, wanted: Mapping[int, Record], copy: Log) -> bool:
    """Whether a cleaner may have taken a record: a later one has its key."""
    key = wanted[offset].key
    return any(later > offset and one.key == key for later, one in copy.records.items())


def _same(one: Record, other: Record | None, allowed: Allowed) -> bool:
    return other is not None and text_of(one, allowed) == text_of(other, allowed)


def text_of(one: Record, allowed: Allowed) -> tuple[object, ...]:
    """What of a record is compared."""
    return one[1:] if allowed.own_times else tuple(one)


def _some(offsets: Iterable[int]) -> str:
    every = sorted(offsets)
    return f"{len(every)} at offsets {every[0]} to {every[-1]}"
