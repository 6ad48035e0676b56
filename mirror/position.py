"""Where a partition stands, read from the target's log alone.

    P1  the mirror is the only writer of a mirrored partition; what is in the target's log was put there by this flow
    P2  a batch's verdict and bytes are a function of the source log, so every writer of the flow appends the same
        batches
    P3  what a batch is stamped with follows from the target's log below it: the last batch, data or marker, says
        which producer id, epoch and sequence come next (`restamp.Stamp`). Two writers then send the same batch under
        the same number, and the leader keeps one
    P4  in `preserve`, position = the target's log end offset, once all in-sync replicas have it (a shorter high
        watermark could still be cut back)
    P5  the last batch in the target equals its source batch, or nothing is written. Where the target was a source
        before (a failback), its last records do

Decision: the stamp is read from the batch at the log's end, and is not asked of the leader. A number that the leader
names a moment after the log's end was read could be one batch further, if a zombie appended in between, and the batch
would go in twice. Where the log holds no batch, the leader is asked between two looks at the log's end that agree.

Decision: a log that ends with a marker is looked at twice. A broker goes on with a dead mirror's request for a thousand
markers for up to half a second, and whoever began in its midst would take the rest for somebody else's.

Decision: the producer id is computed, not asked for with InitProducerId. A broker takes any id on a partition where
it is unknown (Kafka `ProducerAppendInfo.checkSequence`), ids are told apart per partition log only, and coordinators
count up from 0 and will not reach 2^52. So even two mirrors that start together on an empty partition carry the same
id, which ids handed out by a coordinator could not give. The 20 low bits are left to `Stamp.then`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from mirror.batch.header import RawBatch, split
from mirror.batch.likeness import batch_difference, is_our_padding, marker_difference
from mirror.batch.restamp import ERAS, Stamp
from mirror.errors import BadRecords, BrokerError, ClusterUnreachable, MalformedBatch, PartitionStop
from mirror.policy.aborted import Aborted
from mirror.states import State
from mirror.wire.cluster import CALL_TIMEOUT, OFFSET_OUT_OF_RANGE, Cluster, TopicPartition
from mirror.wire.fetch import fetch_at
from mirror.wire.queries import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offset, log_end, producers

#: Pause between two looks at a high watermark that lags the log end, in seconds.
_SETTLE_PAUSE: Final = 0.05
#: Pause between two looks at a log that ends with a marker; a broker writes several markers in a millisecond.
_MARKERS_PAUSE: Final = 0.2
#: How far the markers at a log's end are looked through: two mirrors that write at once notice it after two requests of
#: a thousand at the latest. And how many bytes are fetched at a time.
_LOOK_BACK: Final = 2000
_LOOK_BYTES: Final = 1 << 20
#: The least producer id of any flow; the largest is below twice that.
_FIRST_ID: Final = 1 << 52
SOMEBODY_ELSE: Final = (
    "Somebody else wrote to the target, or the source topic is another one; mirror into an empty topic"
)


@dataclass(frozen=True, slots=True)
class Position:
    """Where to go on: the next offset of the source, in `preserve` the target's as well, and the next batch's stamp.

    `known` says that the leader remembers the producer. `last_epoch` is the source leader epoch of the last mirrored
    batch, or -1. `begin` is where the target must be made to begin first, since all before it is padding or missing,
    and -1 where nothing is to be done. `lost_until` is where the source goes on, where it lost the records from
    `next_offset` up to there; -1 where not. `lands` is where the next batch lands in the target if that is not at
    `next_offset`, the source's.
    """

    next_offset: int
    stamp: Stamp
    known: bool
    last_epoch: int
    begin: int = -1
    lost_until: int = -1
    lands: int = -1

    @property
    def end(self) -> int:
        """Where the target's log ends."""
        return self.next_offset if self.lands < 0 else self.lands


def producer_id(flow: str, target: TopicPartition) -> int:
    """The flow's first producer id for one target partition: between 2^52 and 2^53, exact in any tool that reads
    JSON, and a multiple of `ERAS`.
    """
    digest = hashlib.sha256(f"{flow}\0{target.topic}\0{target.partition}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") % (_FIRST_ID // ERAS)) * ERAS + _FIRST_ID


@dataclass(frozen=True, slots=True)
class Logs:
    """Both logs of a partition as they were when its position was read: where the source's begins and ends, and the
    target's; `tail` is the target's last batch. `own` is what the flow's producer begins with. `since` is where the
    flow began in the source, with an empty target; 0 where that was its first record.
    """

    source: TopicPartition
    start: int
    readable: int
    target_start: int
    end: int
    tail: RawBatch | None
    own: Stamp
    since: int = 0

    @property
    def begin(self) -> int:
        """The first offset of the source that is to be mirrored, whether or not the source still has it."""
        return self.since or self.start

    @property
    def furthest_begin(self) -> int:
        """The highest offset at which the copy may have been made to begin, as sources begin ever later."""
        return max(self.since, self.start)

    @property
    def is_unaligned(self) -> bool:
        """The target holds nothing, or nothing but padding, and is to begin behind that."""
        if self.tail is None:  # it may have deleted padding by itself
            return self.end == 0 < self.begin or self.end < self.since
        return self.end <= self.begin and is_our_padding(self.tail, self.own)

    @property
    def tail_is_ours(self) -> bool:
        """This flow wrote the target's last batch."""
        return self.tail is not None and self.own.is_kin(self.tail.header.producer_id)

    def is_accepted(self, at: int, accepted: tuple[int, int] | None) -> bool:
        """Whether the source may have deleted what came from offset `at` on, by the offsets `accepted`."""
        first, upto = accepted or (at, at)
        return first <= at and self.start <= upto

    def retention_gap(self, at: int) -> PartitionStop:
        """The stop where that is not accepted."""
        return self.stop(
            State.RETENTION_GAP,
            at,
            f"the source deleted offsets {at} to {self.start - 1} before they were mirrored",
            f"Run `mirror accept CONFIG {self.source.topic}` to go on behind them, "
            "or recreate the target topic to begin again",
        )

    def padded_twice(self, upto: int) -> PartitionStop:
        """The stop for padding over records that were never mirrored, as two mirrors at a time may leave it."""
        detail = f"the target has padding up to offset {upto}, and the source has records from {self.furthest_begin} on"
        return self.stop(State.DIVERGED, self.furthest_begin, detail, "Recreate the target topic to begin again")

    def truncated(self, at: int, detail: str) -> PartitionStop:
        """The stop for a source that was cut back below what was mirrored."""
        advice = "The source lost records that were mirrored; keep or delete the target topic"
        return self.stop(State.TRUNCATED, at, detail, advice)

    def unlike(self, at: int, detail: str, twin: RawBatch | None) -> PartitionStop:
        """The stop where the target's last batch is not the source's, `twin`. Where we wrote it and the topic has seen
        elections since, one of these was unclean, most likely.
        """
        marker = self.tail is not None and self.tail.header.is_control
        epoch = twin.header.partition_leader_epoch if twin is not None else 0
        if self.tail_is_ours and not marker and epoch > 0:
            return self.truncated(at, f"{detail}; the source was cut back, and went on in leader epoch {epoch}")
        return self.stop(State.DIVERGED, at, detail, SOMEBODY_ELSE)

    def stop(self, state: State, offset: int, detail: str, advice: str) -> PartitionStop:
        """The stop at a source offset."""
        return PartitionStop(state, self.source.topic, self.source.partition, offset, detail, advice)


async def look_at_logs(
    flow: str,
    source: Cluster,
    source_partition: TopicPartition,
    target: Cluster,
    target_partition: TopicPartition,
    since: int = 0,
) -> Logs:
    """Raises MalformedBatch for what cannot be read, and ClusterUnreachable, AccessDenied, BrokerError."""
    end = await settled_end(target, target_partition)
    start, readable = await asyncio.gather(
        list_offset(source, source_partition, EARLIEST), list_offset(source, source_partition, LATEST)
    )
    target_start = await list_offset(target, target_partition, EARLIEST)
    tail = await batch_at(target, target_partition, end - 1) if end > target_start else None
    if tail is None and end > target_start:
        raise ClusterUnreachable(
            f"{target}: {target_partition}: nothing came back for offset {end - 1}, the last of the log"
        )
    own = Stamp(producer_id(flow, target_partition))
    return Logs(source_partition, start, readable, target_start, end, tail, own, since)


async def resume(
    flow: str,
    source: Cluster,
    source_partition: TopicPartition,
    target: Cluster,
    target_partition: TopicPartition,
    accepted: tuple[int, int] | None = None,
    since: int = 0,
) -> Position:
    """The position of one partition, with the check that both logs agree on its last batch (P5).

    What the source lost before it was mirrored is passed over where it lies between the offsets `accepted`. Below
    `since` nothing is mirrored.
    Raises PartitionStop (DIVERGED, TRUNCATED, RETENTION_GAP, REFUSED), and as `look_at_logs` does.
    """
    logs = await look_at_logs(flow, source, source_partition, target, target_partition, since)
    start, readable, target_start, end = logs.start, logs.readable, logs.target_start, logs.end
    tail, own, ours = logs.tail, logs.own, logs.tail_is_ours

    if end > readable:
        detail = f"the target's log ends at {end}, the source's at {readable}"
        if ours or (tail is None and end == since):
            raise logs.truncated(end, detail)
        advice = "Somebody else wrote to the target topic; mirror into an empty topic, or by another name"
        raise logs.stop(State.DIVERGED, end, detail, advice)
    if logs.is_unaligned:
        stamp, known = await next_stamp(target, target_partition, own, end, tail)
        return Position(end, stamp, known, last_epoch=-1, begin=logs.begin)
    if tail is not None and end > logs.furthest_begin and is_our_padding(tail, own):
        raise logs.padded_twice(end)
    if end < start and not (logs.is_accepted(end, accepted) and (ours or tail is None)):
        raise logs.retention_gap(end)
    last_epoch = -1
    if tail is not None and tail.header.base_offset >= start:
        twin = await batch_at(source, source_partition, tail.header.base_offset, READ_COMMITTED)
        sides = source, source_partition, target, target_partition
        if tail.header.is_control:
            judge = _run_difference if ours else _foreign_difference
            difference = await judge(*sides, max(start, target_start, end - _LOOK_BACK), end)
        else:
            difference = batch_difference(tail, twin, may_be_rewritten=ours or _is_a_mirrors(twin))
        if difference:
            detail = f"the target's last batch, at offset {tail.header.base_offset}, is not the source's: {difference}"
            raise logs.unlike(end, detail, twin)
        if twin is not None and twin.header.base_offset < end:
            last_epoch = twin.header.partition_leader_epoch
    stamp, known = await next_stamp(target, target_partition, own, end, tail if ours else None)
    begin = target_start
    if target_start < logs.begin:
        begin = await _padding_end(target, target_partition, target_start, own)
    if begin > max(target_start, logs.furthest_begin):
        raise logs.padded_twice(begin)
    begin = begin if begin > target_start else -1
    return Position(end, stamp, known, last_epoch, begin, lost_until=start if end < start else -1)


async def next_stamp(
    target: Cluster, partition: TopicPartition, own: Stamp, end: int, tail: RawBatch | None
) -> tuple[Stamp, bool]:
    """What comes after `tail`, a batch of ours at the log's end, and whether the leader knows the producer (P3)."""
    found = [p for p in await producers(target, partition) if own.is_kin(p.producer_id)]
    is_marker = tail is not None and tail.header.is_control
    if is_marker:
        await asyncio.sleep(_MARKERS_PAUSE)
    if (tail is None or is_marker) and await settled_end(target, partition) != end:
        raise ClusterUnreachable(f"{target}: {partition}: the log grew while its position was read")
    if tail is not None:
        last = tail.header
        stamp = Stamp(last.producer_id, last.producer_epoch, last.base_sequence)
        stamp = stamp.then() if is_marker else stamp.after(last.last_offset_delta)
        return stamp, any(p.producer_id == stamp.producer_id for p in found)
    if not found:
        return own, False
    newest = max(found, key=lambda p: (p.producer_id, p.epoch))
    stamp = Stamp(newest.producer_id, newest.epoch, newest.last_sequence)
    return (stamp.after(0) if newest.last_sequence >= 0 else stamp.then()), True


async def _run_difference(
    source: Cluster,
    source_partition: TopicPartition,
    target: Cluster,
    target_partition: TopicPartition,
    oldest: int,
    end: int,
) -> str:
    """What is wrong with the markers at the end of the target's log, those from `oldest` on, or the empty string.

    The last one alone does not tell: two mirrors that fill a gap at once write it twice, and what is too much may reach
    over the records behind the gap into the next one.
    """
    first = oldest
    async for raw, _ in batches(target, target_partition, oldest, end, READ_UNCOMMITTED):
        if not raw.header.is_control:
            first = raw.header.next_offset
    return await _gap_difference(source, source_partition, first, end)


async def _foreign_difference(
    source: Cluster,
    source_partition: TopicPartition,
    target: Cluster,
    target_partition: TopicPartition,
    oldest: int,
    end: int,
) -> str:
    """What is wrong with a target's log that ends with the marker of a transaction that was its own, as one does that
    was a source before, or the empty string: its last records from `oldest` on must be the source's, and behind them
    there are none.
    """
    last, first = None, oldest
    async for raw, is_aborted in batches(target, target_partition, oldest, end, READ_COMMITTED):
        if not (raw.header.is_control or is_aborted):
            last, first = raw, raw.header.next_offset
    difference = await _gap_difference(source, source_partition, first, end)
    if difference or last is None:
        return difference
    twin = await batch_at(source, source_partition, last.header.base_offset, READ_COMMITTED)
    return batch_difference(last, twin, may_be_rewritten=_is_a_mirrors(twin))


async def _gap_difference(source: Cluster, partition: TopicPartition, first: int, end: int) -> str:
    """What is wrong with a target that has no record from `first` to before `end`, or the empty string."""
    async for raw, is_aborted in batches(source, partition, first, end, READ_COMMITTED):
        if difference := marker_difference(first, end, None if is_aborted else raw):
            return difference
    return ""


def _is_a_mirrors(raw: RawBatch | None) -> bool:
    """Whether a mirror wrote the batch, of whatever flow: only such a one may hold the records in other batches."""
    return raw is not None and _FIRST_ID <= raw.header.producer_id < 2 * _FIRST_ID


async def batches(
    cluster: Cluster, partition: TopicPartition, offset: int, end: int, isolation: int
) -> AsyncIterator[tuple[RawBatch, bool]]:
    """The batches that hold offsets from `offset` to before `end`; for a committed read, whether each was aborted."""
    while offset < end:
        fetched = await fetch_at(cluster, partition, offset, max_bytes=_LOOK_BYTES, isolation=isolation)
        aborted, before = Aborted(fetched.aborted), offset
        with _damage_of(cluster):
            found = [(raw, aborted.covers(raw)) for raw in split(fetched.records)]
        for raw, is_aborted in found:
            if raw.header.last_offset < offset:
                continue
            if raw.header.base_offset >= end:
                return
            yield raw, is_aborted
            offset = raw.header.next_offset
        if offset == before:
            return


async def _padding_end(target: Cluster, partition: TopicPartition, start: int, own: Stamp) -> int:
    """Where the padding with which a log starts ends; `start` where there is none.

    A broker notes once a minute where its logs begin (Kafka `LogManager.checkpointLogStartOffsets`): one that crashes
    before brings padding back that was deleted.
    """
    at = start
    while (first := await batch_at(target, partition, at)) is not None:
        if not is_our_padding(first, own):
            break
        at = first.header.next_offset
    return at


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


async def batch_at(
    cluster: Cluster, partition: TopicPartition, offset: int, isolation: int = READ_UNCOMMITTED
) -> RawBatch | None:
    """The batch that holds `offset`, or the next one; None where the log ends before."""
    try:
        fetched = await fetch_at(cluster, partition, offset, isolation=isolation)
    except BrokerError as problem:
        if problem.code == OFFSET_OUT_OF_RANGE:
            return None
        raise
    with _damage_of(cluster):
        return next((raw for raw in split(fetched.records) if raw.header.last_offset >= offset), None)


@contextmanager
def _damage_of(cluster: Cluster) -> Iterator[None]:
    """Say of which cluster the batches are that cannot be read."""
    try:
        yield
    except (MalformedBatch, BadRecords) as damage:
        position = damage.position if isinstance(damage, MalformedBatch) else 0
        raise MalformedBatch(f"{cluster}: {damage.detail}", position, damage.offset) from damage
