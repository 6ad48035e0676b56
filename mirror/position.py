"""Where a partition stands, read from the target's log alone.

    P1  the mirror is the only writer of a mirrored partition; what is in the target's log was put there by this flow
    P2  a batch's verdict and bytes are a function of the source log, so every writer of the flow appends the same
        batches
    P3  every writer of the flow uses the same producer id for a partition (`producer_id`), in epoch 0, and the
        offset as the sequence; two writers then send the same batch under the same number and the leader keeps one
    P4  in `preserve`, position = the target's log end offset, once all in-sync replicas have it (a shorter high
        watermark could still be cut back)
    P5  the last batch in the target equals its source batch, or nothing is written

Decision: a sequence is its offset modulo 2^31, and is not asked of the leader. Whoever stamps a batch gives it the same
number, whenever it looked; a number read from the leader a moment after the log's end could be one batch further, if a
zombie appended in between, and the batch would go in twice.

Decision: the producer id is computed, not asked for with InitProducerId. A broker takes any id on a partition where
it is unknown (Kafka `ProducerAppendInfo.checkSequence`), ids are told apart per partition log only, and coordinators
count up from 0 and will not reach 2^52. So even two mirrors that start together on an empty partition carry the same
id, which ids handed out by a coordinator could not give.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Final

from mirror.batch.checksum import records_crc
from mirror.batch.header import APPEND_TIME, RawBatch, split
from mirror.batch.restamp import SEQUENCES
from mirror.errors import BrokerError, ClusterUnreachable, MalformedBatch, PartitionStop
from mirror.states import State
from mirror.wire.cluster import CALL_TIMEOUT, OFFSET_OUT_OF_RANGE, Cluster, TopicPartition
from mirror.wire.fetch import fetch_at
from mirror.wire.queries import EARLIEST, LATEST, READ_UNCOMMITTED, list_offset, log_end, producers

#: Pause between two looks at a high watermark that lags the log end, in seconds.
_SETTLE_PAUSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Position:
    """Where to go on: the next offset on both sides (they are equal in `preserve`), and what the next batch is
    stamped with.

    `known` says that the leader remembers the producer. `last_epoch` is the source leader epoch of the last mirrored
    batch, or -1.
    """

    next_offset: int
    producer_id: int
    sequence: int
    known: bool
    last_epoch: int


def producer_id(flow: str, target: TopicPartition) -> int:
    """The flow's producer id for one target partition (P3): between 2^52 and 2^53, exact in any tool that reads
    JSON.
    """
    digest = hashlib.sha256(f"{flow}\0{target.topic}\0{target.partition}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (1 << 52) + (1 << 52)


async def resume(
    flow: str, source: Cluster, source_partition: TopicPartition, target: Cluster, target_partition: TopicPartition
) -> Position:
    """The position of one partition, with the check that both logs agree on its last batch (P5).

    Raises PartitionStop (DIVERGED, TRUNCATED, RETENTION_GAP, REFUSED), and ClusterUnreachable, AccessDenied,
    BrokerError as queries do.
    """
    end = await settled_end(target, target_partition)
    own = producer_id(flow, target_partition)
    known = any(p.producer_id == own and p.last_sequence >= 0 for p in await producers(target, target_partition))
    start, readable = await asyncio.gather(
        list_offset(source, source_partition, EARLIEST), list_offset(source, source_partition, LATEST)
    )
    target_start = await list_offset(target, target_partition, EARLIEST)

    def stop(state: State, detail: str, advice: str) -> PartitionStop:
        return PartitionStop(state, source_partition.topic, source_partition.partition, end, detail, advice)

    tail = await _batch_at(target, target_partition, end - 1) if end > target_start else None
    if tail is None and end > target_start:
        raise ClusterUnreachable(
            f"{target}: {target_partition}: nothing came back for offset {end - 1}, the last of the log"
        )
    if end > readable:
        ours = tail is not None and tail.header.producer_id == own
        raise stop(
            State.TRUNCATED if ours else State.DIVERGED,
            f"the target's log ends at {end}, the source's at {readable}",
            "The source lost records that were mirrored; keep or delete the target topic"
            if ours
            else "Somebody else wrote to the target topic; mirror into an empty topic, or by another name",
        )
    if end < start:
        if end == 0:
            raise stop(
                State.REFUSED,
                f"the source begins at offset {start}, and an empty target topic begins at 0",
                "Aligning a target with a source that was trimmed is not supported yet",
            )
        raise stop(
            State.RETENTION_GAP,
            f"the source deleted offsets {end} to {start - 1} before they were mirrored",
            "Raise retention on the source; recreate the target topic to begin again",
        )
    last_epoch = -1
    if tail is not None and tail.header.base_offset >= start:
        twin = await _batch_at(source, source_partition, tail.header.base_offset)
        difference = _difference(tail, twin)
        if difference:
            raise stop(
                State.DIVERGED,
                f"the target's last batch, at offset {tail.header.base_offset}, is not the source's: {difference}",
                "Somebody else wrote to the target, or the source topic is another one; mirror into an empty topic",
            )
        assert twin is not None
        last_epoch = twin.header.partition_leader_epoch
    return Position(end, own, end % SEQUENCES, known, last_epoch)


async def settled_end(cluster: Cluster, partition: TopicPartition) -> int:
    """The log end, once every in-sync replica has it (P4). Raises ClusterUnreachable where that does not come about
    in time.
    """
    end = await log_end(cluster, partition)
    deadline = asyncio.get_running_loop().time() + CALL_TIMEOUT
    while (settled := await list_offset(cluster, partition, LATEST)) < end:
        if asyncio.get_running_loop().time() > deadline:
            raise ClusterUnreachable(
                f"{cluster}: {partition}: replicas hold {settled} of {end} offsets; is a broker down?"
            )
        await asyncio.sleep(_SETTLE_PAUSE)
        end = await log_end(cluster, partition)
    return end


async def _batch_at(cluster: Cluster, partition: TopicPartition, offset: int) -> RawBatch | None:
    """The batch that holds `offset`, or None where the log holds nothing there."""
    try:
        fetched = await fetch_at(cluster, partition, offset, isolation=READ_UNCOMMITTED)
    except BrokerError as problem:
        if problem.code == OFFSET_OUT_OF_RANGE:
            return None
        raise
    try:
        return next((raw for raw in split(fetched.records) if raw.header.last_offset >= offset), None)
    except MalformedBatch as damage:
        raise MalformedBatch(f"{cluster}: {damage.detail}", damage.position, damage.offset) from damage


def _difference(ours: RawBatch, theirs: RawBatch | None) -> str:
    """What differs between two batches that should be one, or the empty string."""
    if theirs is None:
        return "the source has no batch there"
    mine, its = ours.header, theirs.header
    names = ["base_offset", "count", "last_offset_delta", "base_timestamp", "max_timestamp"]
    if mine.attributes & APPEND_TIME:
        names.pop()  # an append-time target puts its own clock there
    for name in names:
        if getattr(mine, name) != getattr(its, name):
            return f"{name.replace('_', ' ')} {getattr(mine, name)} against {getattr(its, name)}"
    return "" if records_crc(ours) == records_crc(theirs) else "the records"
