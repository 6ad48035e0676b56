"""The last batch of a partition that was committed, found from its end backwards."""

from __future__ import annotations

from typing import Final

from mirror.batch.checksum import crc_holds
from mirror.batch.header import RawBatch, split
from mirror.errors import MalformedBatch
from mirror.policy.outcomes import Outcome, Outcomes
from mirror.wire.cluster import Cluster, TopicPartition
from mirror.wire.fetch import Fetched, fetch_below
from mirror.wire.queries import EARLIEST, LATEST, READ_COMMITTED, list_offset

#: Offsets that are looked at first; each further look, where only markers and aborted records are, takes twice as many.
FIRST_STEP: Final = 16
FETCH_BYTES: Final = 1 << 20


async def last_committed(cluster: Cluster, partition: TopicPartition) -> RawBatch | None:
    """The last batch with records that a consumer of committed data sees, as its broker stores it and with a sound CRC;
    None where there is none.

    What is behind an open transaction does not count yet. For a partition that one transactional id writes to, nothing
    is open once `Transaction.begin` has returned: by then the markers of all earlier ones are in the log.
    Raises ClusterUnreachable, AccessDenied, MalformedBatch, and BrokerError, with code 1 where the partition's oldest
    records were deleted meanwhile.
    """
    end = await list_offset(cluster, partition, LATEST, READ_COMMITTED)
    start = await list_offset(cluster, partition, EARLIEST)
    before, step = end, FIRST_STEP
    while before > start:
        begin = max(start, before - step)
        if (found := await _last_of(cluster, partition, begin, before, end)) is not None:
            return found
        before, step = begin, 2 * step
    return None


async def _last_of(cluster: Cluster, partition: TopicPartition, begin: int, before: int, end: int) -> RawBatch | None:
    """The last such batch of those that hold offsets from `begin` to before `before`."""
    found, at = None, begin
    while at < before:
        fetched = await _fetch(cluster, partition, at, end)
        outcomes = Outcomes(fetched.aborted)
        fetched_to = at
        for raw in split(fetched.records):
            outcome = outcomes.of(raw)
            header = raw.header
            if header.last_offset < at:
                continue
            fetched_to = header.next_offset
            if (
                header.base_offset < before
                and not header.is_control
                and header.count
                and outcome is not Outcome.ABORTED
            ):
                found = raw
        if fetched_to == at:
            break  # compaction left nothing from here to the end
        at = fetched_to
    if found is not None and not crc_holds(found):
        raise MalformedBatch(f"{cluster}: {partition}: the CRC does not hold", 0, found.header.base_offset)
    return found


async def _fetch(cluster: Cluster, partition: TopicPartition, at: int, end: int) -> Fetched:
    """From `at` on, of a leader that knows that all below `end` is decided: one just elected may not for a moment, and
    what it then leaves out would be taken for nothing.
    """
    return await fetch_below(cluster, partition, at, end, max_bytes=FETCH_BYTES)
