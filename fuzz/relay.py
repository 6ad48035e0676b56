"""Targets: record sets on their way to the target, through the code that carries them.

`classified` and `rewritten` are damaged from the outside; `inside` and `inside_legacy` take the input for what lies
below length and CRC, and put both right, as somebody would who means harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import Any, Final
from zlib import crc32

import numpy as np
from crc32c import crc32c

from fuzz.limits import CAP
from fuzz.payloads import same, within
from mirror.errors import BadRecords, MalformedBatch, PartitionStop
from mirror.kafka.cluster import TopicPartition
from mirror.policy.rules import Rules
from mirror.records.codecs import compress
from mirror.records.columns import Records, joined
from mirror.records.header import (
    APPEND_TIME,
    CODECS,
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    LAYOUT,
    LENGTH_PREFIX,
    MAGIC_AT,
    SMALLEST_LENGTH,
    ProducerState,
    RawBatch,
    crc_holds,
    records_crc,
    split,
)
from mirror.records.rewrite import read
from mirror.records.transactions import Aborted
from mirror.replication.classifier import VERDICTS, Action, classify
from mirror.replication.decide import Position
from mirror.replication.partition_writer import Gap, PartitionWriter, PendingBatch
from mirror.replication.writer import Writer

_PARTITION: Final = TopicPartition("fuzzed", 0)
_SHORT: Final = 200

#: Targets of every kind; inputs choose by number.
RULES: Final = (
    Rules(),
    Rules(target_append_time=True),
    Rules(max_message_bytes=_SHORT),
    Rules(max_message_bytes=_SHORT, coalesce_bytes=800, codec=0),
    Rules(coalesce_bytes=1 << 14),
    *(Rules(codec=codec) for codec in range(len(CODECS))),
)

#: In front of a record set: which rules; where the mirror goes on, in offsets from the first batch's own on, which in
#: old formats is its last; first offset of an aborted transaction of producer 0, from there on (255: none).
CHOICE: Final = Struct(">BbB")
#: In front of a payload: 1 if it is to be compressed (else it is taken as it is), attributes, last offset delta,
#: count, base timestamp, max timestamp, producer id.
PAYLOAD: Final = Struct(">BBiiqqb")
#: In front of a message set: 1 if it is to be compressed, magic, attributes, wrapper's offset, timestamp.
MESSAGES: Final = Struct(">BBBqq")

_WRAPPER: Final = (Struct(">qiIbBii"), Struct(">qiIbBqii"))
_LENGTH: Final = Struct(">i")


def classified(data: bytes) -> None:
    """A record set (see `CHOICE`) as the relay takes it: verdicts, batches and gaps in a queue."""
    choice, view = _chosen(data)
    if choice is not None:
        _relayed(view, *choice)


def rewritten(data: bytes) -> None:
    """The same, and every rewritten batch is read again: its records are those of its source."""
    choice, view = _chosen(data)
    if choice is not None:
        _assert_same_records(view, _relayed(view, *choice))


def inside(data: bytes) -> None:
    """A payload of magic 2 (see `CHOICE` and `PAYLOAD`) below a right length and a right CRC."""
    if len(data) < CHOICE.size + PAYLOAD.size:
        return
    compressed, attributes, delta, count, base_timestamp, max_timestamp, producer = PAYLOAD.unpack_from(
        data, CHOICE.size
    )
    payload = data[CHOICE.size + PAYLOAD.size :]
    codec = attributes & 7
    if compressed & 1 and codec < len(CODECS):
        payload = compress(codec, payload)
    whole = bytearray(
        LAYOUT.pack(
            *(1000, HEADER_BYTES - LENGTH_PREFIX + len(payload), 0, 2, 0, attributes, delta),
            *(base_timestamp, max_timestamp, producer, 0, 0, count),
        )
    )
    whole += payload
    whole[CRC_AT:CRC_FROM] = crc32c(whole[CRC_FROM:]).to_bytes(4, "big")
    rewritten(data[: CHOICE.size] + whole)


def inside_legacy(data: bytes) -> None:
    """A message set of magic 0 or 1 (see `CHOICE` and `MESSAGES`), all CRCs right, inside a wrapper."""
    if len(data) < CHOICE.size + MESSAGES.size:
        return
    compressed, magic, attributes, offset, timestamp = MESSAGES.unpack_from(data, CHOICE.size)
    magic &= 1
    codec = attributes & 7
    value: bytes = data[CHOICE.size + MESSAGES.size :]
    if compressed & 1 and codec < len(CODECS):
        value = compress(codec, _with_right_crcs(value))
    clock = (timestamp,) if magic else ()
    head = _WRAPPER[magic]
    length = head.size - LENGTH_PREFIX + len(value)
    whole = bytearray(head.pack(abs(offset) >> 1, length, 0, magic, attributes, *clock, -1, len(value)) + value)
    whole[LENGTH_PREFIX:MAGIC_AT] = crc32(whole[MAGIC_AT:]).to_bytes(4, "big")
    rewritten(data[: CHOICE.size] + whole)


def _with_right_crcs(messages: bytes) -> bytes:
    """The set with the CRC of each message put right, as far as lengths lead."""
    mended = bytearray(messages)
    at = 0
    while at + LENGTH_PREFIX + SMALLEST_LENGTH <= len(mended):
        (length,) = _LENGTH.unpack_from(mended, at + 8)
        following = at + LENGTH_PREFIX + length
        if length < SMALLEST_LENGTH or following > len(mended):
            break
        mended[at + LENGTH_PREFIX : at + MAGIC_AT] = crc32(mended[at + MAGIC_AT : following]).to_bytes(4, "big")
        at = following
    return bytes(mended)


def _chosen(data: bytes) -> tuple[tuple[Rules, int, Aborted] | None, memoryview]:
    """Rules, first offset and aborted index that the input asks for, None where it is too short; and the record set."""
    if len(data) < CHOICE.size + LENGTH_PREFIX:
        return None, memoryview(b"")
    rules, ahead, aborted = CHOICE.unpack_from(data)
    view = memoryview(data)[CHOICE.size :]
    first = max(int.from_bytes(view[:8], "big", signed=True) + ahead, 0)
    index = Aborted([(0, first + aborted)] if aborted < 255 else ())
    return (RULES[rules % len(RULES)], first, index), view


def _relayed(view: memoryview, rules: Rules, first_offset: int, aborted: Aborted) -> PartitionWriter:
    """What fetcher, pipeline and writer make of a record set: a partition writer whose queue would be sent."""
    partition_writer = PartitionWriter(
        _PARTITION, _PARTITION, Position(first_offset, ProducerState(7), True, -1), rules
    )
    writer = _writer()
    with suppress(BadRecords, PartitionStop):
        for raw in _sound(view):
            due = partition_writer.tail.next_offset
            verdict = classify(raw.header, rules, next_offset=due, aborted=aborted.covers(raw))
            assert verdict in VERDICTS
            for together in partition_writer.tail.coalescer.offer(verdict, raw):
                writer.carry_out(*together, partition_writer)
        for together in partition_writer.tail.coalescer.rest():
            writer.carry_out(*together, partition_writer)
    _assert_in_order(partition_writer, first_offset)
    return partition_writer


def _writer() -> Writer:
    """A writer that never sends: it queues, which needs no cluster."""
    unused: Any = None
    return Writer(unused, unused, unused, CAP)


def _sound(view: memoryview) -> Iterator[RawBatch]:
    """The batches that the fetcher lets pass."""
    try:
        for raw in split(view):
            if 0 <= raw.header.magic <= 2 and not crc_holds(raw):
                return
            yield raw
    except MalformedBatch:
        return


def _assert_in_order(partition_writer: PartitionWriter, first_offset: int) -> None:
    """The queue goes on from offset to offset, and a broker would take each batch in it."""
    at = first_offset
    for queued in partition_writer.queue:
        if isinstance(queued, Gap):
            assert queued.first == at < queued.next_offset
        else:
            stamped = queued.header + bytes(queued.raw.records)
            (again,) = split(memoryview(stamped))
            assert queued.raw.header.base_offset == at
            assert again.header.base_offset == 0
            assert again.header.is_dense
            assert (
                again.header.size <= partition_writer.rules.max_message_bytes
                or queued.verdict.action is not Action.REWRITE
            )
            assert crc_holds(again)
            assert records_crc(again) == records_crc(queued.raw)
        at = queued.next_offset
    assert partition_writer.tail.next_offset == at
    assert partition_writer.flight.held == sum(
        len(one.raw.data) for one in partition_writer.queue if isinstance(one, PendingBatch)
    )


def _assert_same_records(view: memoryview, partition_writer: PartitionWriter) -> None:
    """Each record of a rewritten batch is the source's record of its offset."""
    made = [
        one.raw
        for one in partition_writer.queue
        if isinstance(one, PendingBatch) and one.verdict.action is Action.REWRITE
    ]
    if not made:
        return
    ours = joined([read(raw, 2 * CAP) for raw in made])
    within(ours, len(ours.data))
    lowest, highest = ours.offsets[0], ours.offsets[-1]
    theirs: list[Records] = []
    next_offset = 0
    for raw in _sound(view):
        try:
            found = read(raw, CAP)
        except BadRecords:  # it was passed on unread, or ended the relay: either way it is none of those rewritten
            continue
        assert raw.header.magic < 2 or not raw.header.attributes & APPEND_TIME or len(set(found.timestamps)) <= 1
        # sets of old formats overlap where an offset is wrong; a consumer, too, leaves out what it has had
        theirs.append(found.rows(int(np.searchsorted(found.offsets, next_offset)), len(found)))
        next_offset = max(raw.header.next_offset, int(found.offsets.max(initial=-1)) + 1)
        if next_offset > highest:
            break
    source = joined(theirs)
    wanted = np.isin(source.offsets, ours.offsets) & (source.offsets >= lowest)
    same(ours, _picked(source, wanted))


def _picked(found: Records, wanted: np.ndarray[Any, np.dtype[np.bool_]]) -> Records:
    return Records(found.data, *(column[wanted] for column in found._columns()))
