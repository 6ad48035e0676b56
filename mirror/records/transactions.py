"""How transactions ended, batch by batch: committed, aborted, or not known here.

A fetch answer lists (producer id, first offset) of every aborted transaction that its batches may touch, in no promised
order. The index of one answer says nothing about the next: it is built anew from each. The rule is that of Kafka's
`CompletedFetch.nextFetchedRecord`.

A broker says with each read_committed fetch which transactions of the range were aborted, as pairs of producer id and
first offset (KIP-98; Kafka `AbortedTxn`). A segment file says the same through the control batches in it. Either way
`Outcomes` walks along and says of each batch what became of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from struct import Struct
from typing import Final

from mirror.errors import BadRecords
from mirror.records.header import (
    ABORT,
    CONTROL,
    HEADER_BYTES,
    LENGTH_PREFIX,
    SMALLEST_LENGTH,
    TRANSACTIONAL,
    RawBatch,
    marker_type,
    parse_header,
)

# --- Which batches belong to aborted transactions ---------------------------------------------------------------------


class Aborted:
    """The index of one answer; ask it about every batch of the answer, in order."""

    __slots__ = ("_active", "_coming")

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        """`transactions`: (producer id, first offset), repeats allowed."""
        self._coming = sorted(((first, producer) for producer, first in transactions), reverse=True)
        self._active: set[int] = set()

    def covers(self, raw: RawBatch) -> bool:
        """Whether a batch belongs to an aborted transaction. Raises BadRecords for a marker that cannot be read."""
        if not self._coming and not self._active:
            return False
        header = raw.header
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._active.add(self._coming.pop()[1])
        if header.is_control:
            # one without a record: compaction took it away, with what it aborted
            if header.count and header.producer_id in self._active and marker_type(raw) == ABORT:
                self._active.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._active


# --- How transactions ended, batch by batch ---------------------------------------------------------------------------

#: Base offset, length, magic, attributes, producer id: all that a pass over transactions needs of a header.
_SCAN: Final = Struct(">qi4xb4xh20xq")
_SMALLEST_NEW: Final = HEADER_BYTES - LENGTH_PREFIX


class Outcome(StrEnum):
    """What became of a batch's transaction; NONE for a batch of no transaction, and for a marker."""

    NONE = ""
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNDECIDED = "undecided"


class Outcomes:
    """Ask `of` for each batch once, in the order of the log.

    `aborted` are pairs of (producer id, first offset) as a fetch answer has them. `undecided` says, by producer id,
    from which offset on nobody knows.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]] = (), undecided: Mapping[int, int] | None = None) -> None:
        self._aborted = Aborted(aborted)
        self._undecided = undecided or {}

    def of(self, raw: RawBatch) -> Outcome:
        """The outcome of one batch's transaction."""
        header = raw.header
        if not header.is_transactional:
            return Outcome.NONE
        try:
            aborted = self._aborted.covers(raw)
        except BadRecords:  # a marker whose record compaction has removed; Kafka's consumer passes it over as well
            aborted = False
        if header.is_control:
            return Outcome.NONE
        if aborted:
            return Outcome.ABORTED
        if header.base_offset >= self._undecided.get(header.producer_id, header.base_offset + 1):
            return Outcome.UNDECIDED
        return Outcome.COMMITTED


class TransactionScan:
    """A pass over the headers of segments, in order, for how the transactions in them ended. No CRC is verified.

    One whose marker lies behind the last segment stays undecided. One that began before the first segment is found all
    the same, by what of it is there.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._aborted: list[tuple[int, int]] = []

    def over(self, data: memoryview, begin: int = 0, stop: int | None = None) -> int:
        """Read the batches that begin in `begin` to before `stop`, both bytes of one segment; where the next one
        begins. That is the segment's end where it ends, or where bytes come that cannot be a batch.
        """
        position, last = begin, len(data) - _SCAN.size
        last = last if stop is None else min(last, stop - 1)
        while position <= last:
            base_offset, length, magic, attributes, producer = _SCAN.unpack_from(data, position)
            following = position + LENGTH_PREFIX + length
            if length < (_SMALLEST_NEW if magic == 2 else SMALLEST_LENGTH) or following > len(data):
                return len(data)
            if magic == 2 and attributes & TRANSACTIONAL:
                if attributes & CONTROL:
                    self._end(RawBatch(parse_header(data, position), data[position:following]))
                else:
                    self._open.setdefault(producer, base_offset)
            position = following
        return position if stop is not None and position >= stop else len(data)

    @property
    def open(self) -> dict[int, int]:
        """Transactions whose end was not seen yet: the first offset that was seen of each, by producer id."""
        return dict(self._open)

    def outcomes(self) -> Outcomes:
        """What was seen, for a walk from the first segment on."""
        return Outcomes(self._aborted, self.open)

    def _end(self, marker: RawBatch) -> None:
        producer = marker.header.producer_id
        began = self._open.pop(producer, None)
        if began is not None and _aborts(marker):
            self._aborted.append((producer, began))


def _aborts(marker: RawBatch) -> bool:
    try:
        return marker_type(marker) == ABORT
    except BadRecords:  # a marker whose record compaction has removed, and the records of its transaction with it
        return False
