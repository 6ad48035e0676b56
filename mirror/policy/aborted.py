"""Which batches belong to aborted transactions, from the index that comes with a committed read (KIP-98).

A fetch answer lists (producer id, first offset) of every aborted transaction that its batches may touch, in no promised
order. The index of one answer says nothing about the next: it is built anew from each. The rule is that of Kafka's
`CompletedFetch.nextFetchedRecord`.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirror.batch.control import ABORT, marker_type
from mirror.batch.header import RawBatch


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
