"""Batches in a row that become one: tiny ones where the flow asks for it, and messages of magic 0 and 1 in any case.

A broker takes one batch of a partition at a time, so tiny batches bound the throughput of a partition, and each costs
a header of 61 bytes. Messages that were stored without compression before Kafka 0.11 are batches of one record each.

The batches of a group are of one leader epoch. Whoever resumes behind the group looks up its first batch in the source
and sends the source's broker that batch's epoch as the last one it has; were the rest of the group of a later epoch,
the broker would take it for records that it lost (KIP-595), and the partition would stop as TRUNCATED.

Where a group ends is a function of the batches since the last one that joined no group, so two writers form the same
groups (invariant P2 in `replication/decide.py`); only at the end of what the source has, a group goes out as it is,
since a record must not wait for others.
"""

from __future__ import annotations

from typing import Final

from mirror.policy.rules import Rules
from mirror.records.header import RawBatch
from mirror.replication.classifier import LEGACY, Action, Verdict

#: What messages of magic 0 and 1 become unless the flow says otherwise, in bytes.
LEGACY_BYTES: Final = 64 * 1024
#: A batch is tiny if this many of its size fit into what is wanted.
TINY: Final = 4

COALESCED: Final = Verdict(Action.REWRITE, "coalesced")

Together = tuple[Verdict, tuple[RawBatch, ...]]


class Coalescer:
    """One partition's; ask it about every batch in order."""

    __slots__ = ("_alone", "_largest", "_limit", "_size", "_waiting")

    def __init__(self, rules: Rules) -> None:
        """Batches join as the rules say."""
        self._largest = rules.coalesce_bytes // TINY
        self._limit = min(rules.coalesce_bytes or LEGACY_BYTES, rules.max_message_bytes)
        self._waiting: list[RawBatch] = []
        self._alone = COALESCED
        self._size = 0

    @property
    def next_offset(self) -> int:
        """The offset behind what waits for more, 0 where nothing does."""
        return self._waiting[-1].header.next_offset if self._waiting else 0

    def offer(self, verdict: Verdict, raw: RawBatch) -> tuple[Together, ...]:
        """What can be carried out now that this batch has come, in order."""
        joins = self._joins(verdict, raw)
        if not joins and not self._waiting:
            return ((verdict, (raw,)),)
        before = () if joins and self._fits(raw) else self.rest()
        if not joins:
            return (*before, (verdict, (raw,)))
        self._alone = COALESCED if self._waiting else verdict
        self._waiting.append(raw)
        self._size += raw.header.size
        return before

    def rest(self) -> tuple[Together, ...]:
        """What waits for more."""
        if not self._waiting:
            return ()
        raws = tuple(self._waiting)
        self._waiting.clear()
        self._size = 0
        return ((LEGACY if raws[0].header.magic < 2 else self._alone, raws),)

    def _joins(self, verdict: Verdict, raw: RawBatch) -> bool:
        if verdict is LEGACY:
            return not raw.header.codec
        return raw.header.size <= self._largest and verdict.action is Action.RESTAMP

    def _fits(self, raw: RawBatch) -> bool:
        if not self._waiting:
            return True
        last, header = self._waiting[-1].header, raw.header
        return (
            header.base_offset == last.next_offset
            and (header.codec, header.magic) == (last.codec, last.magic)
            and header.partition_leader_epoch == last.partition_leader_epoch
            and self._size + header.size <= self._limit
        )
