"""Bringing an empty target topic to where its copy begins: padding up to that offset, then deleting the padding.

A log's offsets begin at 0, and no request moves them; but a log may begin later, once its first records were deleted.
So a source that begins at offset S, or is mirrored from there on, is given an equal target by S records of nothing, in
large compressed batches, and DeleteRecords up to S. All but the newest batch is deleted as it goes: brokers keep the
files of a few segments, and the newest batch shows whoever goes on that what the log held was padding. Padding is sent
like data, by the partition's own producer and at the position in the log, so whoever is interrupted goes on where the
log ends (P2 to P4 in `replication/decide.py`).

Decision: padding is compressed as it always was. A broker looks through every record, so that no codec costs it less
CPU, smaller batches cost more, and partitions that are padded at a time take as long in all as one after the other
(`python -m tests.bench.offsets --padding`). The best level of zstd takes a tenth less of the disk.

    - Padding follows padding or nothing, and ends at S; data follows only when every padding is deleted. Where a broker
      crashed and brought it back (`replication/decide.py`), it is deleted again before more data follows. A copy that
      holds no record, and never held one by its journal, is padded again where its source's log start moved: what was
      deleted there was never asked for.
    - One batch is under way at a time, and each must land where it belongs. It is sent once: without timestamps, a
      leader may forget its number at any moment, and would take it a second time. After an unclear answer the log's end
      says whether it is there.
    - Nothing is sent, and nothing deleted, by a process that was suspended, or where the topic or its leader is another
      one by now, before it has read the position again: the copy may be padded, filled or another one by then
      (`replication/writer.py`, W11 and W13). Metadata are read first: both requests know the topic by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirror.errors import BrokerError, PartitionStop
from mirror.kafka.cluster import Cluster
from mirror.kafka.produce import ACK_TIMEOUT, append
from mirror.kafka.queries import delete_records
from mirror.records.header import restamp
from mirror.records.rewrite import padding
from mirror.replication.assignment import Assignment
from mirror.replication.decide import Position
from mirror.states import Remedy, State

#: Bytes of padding behind which what lies below the newest batch is deleted: less than two segments of most topics.
DELETE_BYTES: Final = 32 << 20


async def align(
    cluster: Cluster,
    assignment: Assignment,
    position: Position,
    on_move: Callable[[int], None],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Pad from `position` up to where the copy begins, and delete the padding. `on_move` is called with how far the log
    reaches. `check` raises where the position has to be read again before anything more is sent.

    Raises PartitionStop (REFUSED where the target does not take padding or cannot delete it, FENCED where somebody
    else writes), and ClusterUnreachable, AccessDenied as queries do. Whoever then reads the position again goes on.
    """
    begin, at, stamp, size = position.begin, position.next_offset, position.stamp, 0
    if not assignment.rules.deletes:
        detail = f"the copy begins at offset {begin}, and a compacted target topic begins at 0 for ever"
        raise _stop(assignment, begin, State.REFUSED, detail, Remedy.ALLOW_DELETION)
    while at < begin:
        raw = padding(at, begin, codec=assignment.rules.codec, max_bytes=assignment.rules.max_message_bytes)
        check()  # beats: many that make padding in a row would look like a suspension, and begin anew for ever
        await cluster.refresh((assignment.target.topic,))
        try:
            parts = restamp(raw, stamp), raw.records
            landed = await append(cluster, assignment.target, parts, timeout=ACK_TIMEOUT, once=True, check=check)
        except BrokerError as problem:
            raise _stop(assignment, begin, State.REFUSED, str(problem), Remedy.FIT_TARGET) from problem
        if landed != at:
            detail = f"padding for offset {at} landed at offset {landed}"
            raise _stop(assignment, begin, State.FENCED, detail, Remedy.END_WRITER)
        at, stamp, size = raw.header.next_offset, stamp.after(raw.header.last_offset_delta), size + raw.header.size
        on_move(at)
        if size >= DELETE_BYTES and at < begin:
            size = 0
            await delete_records(cluster, assignment.target, landed, check)
    await delete_records(cluster, assignment.target, begin, check)


def _stop(assignment: Assignment, begin: int, state: State, detail: str, remedy: Remedy) -> PartitionStop:
    return PartitionStop(state, *assignment.source, begin, detail, remedy)
