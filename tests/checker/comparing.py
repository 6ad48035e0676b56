"""The comparison of two dumps: pure. Whatever differs is found by its offset; content only names it better."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

from .findings import Finding, Kind
from .reading import Dump, Record

#: Kind, offset on the target, and what.
Differences = Iterable[tuple[Kind, int, str]]

_FIELDS = {"key": Kind.KEY, "value": Kind.VALUE, "headers": Kind.HEADERS, "timestamp": Kind.TIMESTAMP}


def compare(source: Dump, target: Dump, topic: str, partition: int) -> list[Finding]:
    """Every difference, with runs of the same kind shown as one."""

    def finding(kind: Kind, first: int, last: int, detail: str) -> Finding:
        return Finding(kind, topic, partition, first, last, detail)

    found = [
        finding(Kind.UNREADABLE, -1, -1, f"{side}: {item.error}")
        for side, item in (("source", source), ("target", target))
        if item.error
    ]
    if target.start != source.start:
        found.append(finding(Kind.LOG_START, target.start, target.start, f"the source's log starts at {source.start}"))
    if target.end != source.end:
        found.append(finding(Kind.LOG_END, target.end, target.end, f"the source's log ends at {source.end}"))
    if target.stable != target.end:
        detail = f"the last stable offset is {target.stable}, the high watermark {target.end}"
        found.append(finding(Kind.HANGING, target.stable, target.stable, detail))
    found += joined(_differences(source.committed, target.committed), finding)
    if [r.offset for r in target.uncommitted] != [r.offset for r in target.committed if r.offset < target.end]:
        seen = {record.offset for record in target.uncommitted} ^ {record.offset for record in target.committed}
        detail = "offsets that one kind of reader of the target sees and the other does not"
        found += joined(((Kind.VISIBLE_UNCOMMITTED, offset, detail) for offset in sorted(seen)), finding)
    return found


def _differences(source: Iterable[Record], target: Iterable[Record]) -> Iterator[tuple[Kind, int, str]]:
    """Differences by offset, in their order: (kind, offset on the target, what)."""
    mine: dict[int, Record] = {}
    for record in target:
        if record.offset in mine:
            yield Kind.REPEATED, record.offset, "the offset came twice"
        mine.setdefault(record.offset, record)
    for one, other in pairwise(mine):
        if other < one:
            yield Kind.SWAPPED, other, f"came after offset {one}"
    theirs = {record.offset: record for record in source}
    places: dict[object, int] = {}
    for record in source:
        places.setdefault(named(record), record.offset)
    last = max(mine, default=-1)
    for offset in sorted(theirs.keys() | mine.keys()):
        yield from _difference(offset, theirs, mine, places, last)


def _difference(
    offset: int,
    theirs: Mapping[int, Record],
    mine: Mapping[int, Record],
    places: Mapping[object, int],
    last: int,
) -> Iterator[tuple[Kind, int, str]]:
    wanted, got = theirs.get(offset), mine.get(offset)
    if got is None:
        yield (Kind.TAIL_LOST if offset > last else Kind.LOST), offset, "the source has a record here"
        return
    if wanted is not None and named(wanted) == named(got):
        yield from type_differences(wanted, got)
        return
    home = places.get(named(got))
    if home is not None and home != offset:
        at_home = mine.get(home)
        if at_home is not None and named(at_home) == named(got):
            yield Kind.REPEATED, offset, f"this record is at offset {home} too"
        elif at_home is not None and wanted is not None and named(at_home) == named(wanted):
            yield Kind.SWAPPED, offset, f"the source has this record at offset {home}, and there is this offset's"
        else:
            yield (
                Kind.SHIFTED,
                offset,
                f"the source has this record {abs(offset - home)} offsets " + ("earlier" if home < offset else "later"),
            )
        return
    if wanted is None:
        yield Kind.EXTRA, offset, "the source has no record here"
        return
    yield from field_differences(wanted, got)


def field_differences(wanted: Record, got: Record) -> Iterator[tuple[Kind, int, str]]:
    """In what two records differ that should be the same."""
    for name, kind in _FIELDS.items():
        if getattr(wanted, name) != getattr(got, name):
            yield kind, got.offset, "another than the source's"


def type_differences(wanted: Record, got: Record) -> Iterator[tuple[Kind, int, str]]:
    """Whether the timestamps of two equal records are of the same type."""
    if wanted.timestamp_type != got.timestamp_type:
        yield Kind.TIMESTAMP_TYPE, got.offset, f"{got.timestamp_type}, the source's is {wanted.timestamp_type}"


def named(record: Record) -> object:
    """What makes a record the same record, wherever it is."""
    return record.timestamp, *record[3:]


def joined(differences: Differences, finding: Callable[[Kind, int, int, str], Finding]) -> Iterator[Finding]:
    """One finding for each run of differences that say the same."""
    run: tuple[Kind, int, int, str] | None = None
    for kind, offset, detail in differences:
        if run and (kind, detail) == (run[0], run[3]):
            run = (kind, run[1], offset, detail)
            continue
        if run:
            yield finding(*run)
        run = (kind, offset, offset, detail)
    if run:
        yield finding(*run)
