"""Targets: the layout of batches, which lies open to whoever sends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from mirror.errors import BadRecords, MalformedBatch
from mirror.records.header import HEADER_BYTES, LAST_OFFSET, LAYOUT, RawBatch, crc_holds, marker_type, parse_header
from mirror.records.header import split as cut
from mirror.records.segment import Walk
from mirror.records.transactions import Aborted, Outcomes, TransactionScan

#: Bytes of an entry of the aborted index in front of a record set: producer id and first offset, one byte each.
_ENTRY: Final = 2
_MOST_ENTRIES: Final = 8
#: Bytes that a scan takes at a time; so small that one ends inside a batch, too.
_WINDOW: Final = 100


def header(data: bytes) -> None:
    """One header, with as many bytes as `split` makes sure of."""
    whole = data.ljust(HEADER_BYTES, b"\0")
    try:
        found = parse_header(whole)
    except MalformedBatch:
        return
    assert found.next_offset == found.last_offset + 1
    assert 0 <= found.codec < 8
    if found.magic == 2:
        assert LAYOUT.pack(*found) == whole[:HEADER_BYTES]


def split(data: bytes) -> None:
    """A record set, cut into batches that are all of it up to a partial tail."""
    seen, least_offset = 0, 0
    try:
        for raw in cut(memoryview(data)):
            assert raw.data == data[seen : seen + raw.header.size]
            seen += len(raw.data)
            crc_holds(raw)
            if 0 <= raw.header.magic <= 2:
                assert least_offset <= raw.header.base_offset
                least_offset = raw.header.next_offset
                assert raw.header.base_offset < least_offset <= LAST_OFFSET
    except MalformedBatch:
        return


def segment(data: bytes) -> None:
    """A segment, walked up to where it is damaged, and entered again behind that."""
    view = memoryview(data)
    walk = Walk(view)
    at = least_offset = 0
    for raw in walk:
        assert raw.data == view[at : walk.position]
        assert crc_holds(raw)
        assert least_offset <= raw.header.base_offset < walk.next_offset == raw.header.next_offset
        at, least_offset = walk.position, walk.next_offset
    assert walk.position == at
    assert walk.rest == len(data) - at
    if walk.damage is None:
        assert walk.rest == walk.zeros
        assert not any(view[at:])
        return
    assert str(walk.damage)
    assert walk.damage.position == at
    found = walk.resume()
    if found is not None:
        assert found.position > at
        again = next(iter(Walk(view[found.position :], walk.next_offset)))
        assert again.header.base_offset == found.base_offset


def transactions(data: bytes) -> None:
    """A record set and the index of aborted transactions: number of entries, entries, record set."""
    entries = data[1 : 1 + _ENTRY * (data[0] % _MOST_ENTRIES)] if data else b""
    index = [(producer, first) for producer, first in zip(entries[::2], entries[1::2], strict=False)]
    view = memoryview(data)[1 + len(entries) :]
    aborted, outcomes, scan = Aborted(index), Outcomes(index), TransactionScan()
    for raw in _sound(view):
        with suppress(BadRecords):
            aborted.covers(raw)
        if raw.header.is_control:
            with suppress(BadRecords):
                marker_type(raw)
        outcomes.of(raw)
    assert scan.over(view) == len(view)
    in_pieces, at = TransactionScan(), 0
    while at < len(view):
        following = in_pieces.over(view, at, at + _WINDOW)
        assert following > at
        at = following
    whole, pieces = scan.outcomes(), in_pieces.outcomes()
    for raw in _sound(view):
        assert whole.of(raw) is pieces.of(raw)


def _sound(view: memoryview) -> Iterator[RawBatch]:
    """The batches before the first malformed one."""
    with suppress(MalformedBatch):
        yield from cut(view)
