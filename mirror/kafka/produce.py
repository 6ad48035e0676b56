"""Produce and WriteTxnMarkers: raw batches and control markers to a target broker.

Versions 9 to 13 (topic ids from 13 on). A broker refuses two batches in one partition's entry, and loses the first
of two entries for the same partition without an error (Kafka `KafkaApis.handleProduceRequest`), so a request is made
of a mapping and cannot say that. It is written by hand, and so is a plain answer read, since a task does little else;
any other answer is kio's.

Transaction coordinators write them with this request (KIP-98); whoever may ALTER the cluster may, too (KIP-1037, from
Kafka 3.8 on). A broker appends the markers of a request one by one in their order, and answers with one code for each
producer id, that of the id's last marker: an answer without an error does not say that all were appended, only the
log's end does.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, NamedTuple

from mirror.errors import MalformedFrame
from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, TopicPartition
from mirror.kafka.protocol import (
    HEADER,
    NO_ERROR,
    NO_TAGS,
    NOT_PLAIN,
    PART,
    PRODUCE,
    WRITE_TXN_MARKERS,
    Api,
    Buffer,
    HotRequest,
    decode,
    id_bytes,
    named,
    read_topics,
    to_varint,
)

# --- Produce ----------------------------------------------------------------------------------------------------------

ACKS_ALL: Final = -1
#: What the leader may wait for its followers, in seconds; the connection waits longer.
ACK_TIMEOUT: Final = 30.0
_BY_ID: Final = 13
_ACKS: Final = struct.Struct(">hi")
_THROTTLE: Final = struct.Struct(">i")
_LAST_TIME_MS: Final = 253_402_300_799_999  # of the year 9999
_NO_ERRORS: Final = b"\x01\x00\x00"  # no errors of records, no message, no tagged field
#: What `append` goes over a connection of its own for: a quota that mutes it (`producer_byte_rate`) mutes nothing else.
_PURPOSE: Final = "append"
#: And what may not wait for it, by which others know that this process lives: brokers append before they mute.
_SIGN_OF_LIFE: Final = "sign of life"


class Ack(NamedTuple):
    """One partition's part of a produce answer. `append_time_ms` is -1 where the topic keeps the producers' timestamps;
    for a batch that a leader takes for a repetition it is the largest timestamp of the one that it has (Kafka
    `UnifiedLog.append`).
    """

    partition: TopicPartition
    error_code: Any
    message: str  # of the broker, about an error
    base_offset: int
    append_time_ms: int = -1


#: A topic as an answer names it, a partition's number, and the fields of `Ack` but for the partition.
Part = tuple[str | bytes, int, Any, str, int, int]


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """A produce answer of any version."""

    throttle_time: timedelta
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class ProduceRequest(HotRequest):
    """A produce request: one batch for each partition, each given in pieces that are sent as they are."""

    api: ClassVar[Api] = PRODUCE
    version: int
    batches: Mapping[TopicPartition, tuple[Buffer, ...]]
    topic_ids: Mapping[str, uuid.UUID | None]
    transactional_id: str | None = None  # batches of a transaction need it

    def body(self) -> list[Buffer]:
        """Return what follows the header, as Kafka's ProduceRequest.json has it."""
        topics: dict[str, list[tuple[int, tuple[Buffer, ...]]]] = {}
        for partition, pieces in self.batches.items():
            topics.setdefault(partition.topic, []).append((partition.partition, pieces))
        transactional_id = b"\x00" if self.transactional_id is None else named(self.transactional_id, None, by_id=False)
        parts: list[Buffer] = [
            transactional_id,
            _ACKS.pack(ACKS_ALL, round(ACK_TIMEOUT * 1000)),
            to_varint(len(topics) + 1),
        ]
        for name, entries in topics.items():
            parts += named(name, self.topic_ids.get(name), by_id=self.version >= _BY_ID), to_varint(len(entries) + 1)
            for index, pieces in entries:
                parts += index.to_bytes(4, "big"), to_varint(sum(map(len, pieces)) + 1), *pieces, NO_TAGS
            parts.append(NO_TAGS)
        parts.append(NO_TAGS)
        return parts

    def read(self, frame: memoryview) -> ProduceAnswer:
        """Return the answer that a frame holds. Raises MalformedFrame."""
        return plain_produce(self.version, frame) or produce_of(decode(PRODUCE.response(self.version), frame))


def plain_produce(version: int, frame: memoryview) -> ProduceAnswer | None:
    """Return an answer without errors and tagged fields, which is nearly every one; None for any other."""
    try:
        parts, position = read_topics(frame, HEADER, _part, by_id=version >= _BY_ID)
        (throttle_ms,) = _THROTTLE.unpack_from(frame, position)
    except NOT_PLAIN:
        return None
    if bytes(frame[position + _THROTTLE.size :]) != NO_TAGS:
        return None
    return ProduceAnswer(timedelta(milliseconds=throttle_ms), parts)


def _part(topic: str | bytes, frame: memoryview, position: int) -> tuple[Part, int]:
    index, code, base_offset, append_time_ms, _ = PART.unpack_from(frame, position)
    end = position + PART.size + len(_NO_ERRORS)
    is_time = -1 <= append_time_ms <= _LAST_TIME_MS
    if code or not is_time or bytes(frame[position + PART.size : end]) != _NO_ERRORS:
        raise MalformedFrame("an error, tagged fields, or a time that is none")
    return (topic, index, NO_ERROR, "", base_offset, append_time_ms), end


def produce_of(answer: Any) -> ProduceAnswer:
    """Return an answer that kio has read."""
    by_id = answer.__version__ >= _BY_ID
    parts: list[Part] = []
    for topic in answer.responses:
        name = id_bytes(topic.topic_id) if by_id else topic.name
        for part in topic.partition_responses:
            details = [part.error_message or ""]
            details += [error.batch_index_error_message or "" for error in part.record_errors[:1]]
            time = part.log_append_time
            time_ms = -1 if time is None else round(time.timestamp() * 1000)
            parts.append(
                (name, part.index, part.error_code, " ".join(filter(None, details)), part.base_offset, time_ms)
            )
    return ProduceAnswer(answer.throttle_time, parts)


def read_produce(answer: ProduceAnswer, topic_ids: Mapping[str, uuid.UUID | None]) -> Iterator[Ack]:
    """Yield the acks of an answer."""
    names: dict[str | bytes, str] = {topic_id.bytes: name for name, topic_id in topic_ids.items() if topic_id}
    for topic, index, *fields in answer.parts:
        name = names.get(topic, "") if isinstance(topic, bytes) else topic
        yield Ack._make((TopicPartition(name, index), *fields))


async def append(
    cluster: Cluster,
    partition: TopicPartition,
    parts: tuple[Buffer, ...],
    *,
    doing: str = "Produce",
    timeout: float = CALL_TIMEOUT,
    once: bool = False,
    check: Callable[[], None] = lambda: None,
    waits: bool = True,
) -> int:
    """Append one batch, given in pieces, and wait for it: the offset where it landed.

    Sent again where no answer came, so a batch without a producer id, or one that the leader forgets at once for its
    age, may land twice; unless it may be sent only `once`. Raises ClusterUnreachable, AccessDenied and BrokerError as
    `Cluster.call_leader` does, and whatever `check` raises, which is called each time before it is sent. Without
    `waits` no quota holds it back: for a few bytes at times, which show that this process lives.
    """
    topic_ids: dict[str, uuid.UUID | None] = {}

    def build(version: int, _epoch: int) -> Any:
        check()
        topic_ids[partition.topic] = cluster.topic_id(partition.topic)  # asked anew each time, as the leader is
        return ProduceRequest(version, {partition: parts}, topic_ids)

    def read(answer: ProduceAnswer) -> Ack:
        return next(read_produce(answer, topic_ids))

    ack: Ack = await cluster.call_leader(
        partition,
        PRODUCE,
        build=build,
        read=read,
        doing=doing,
        timeout=timeout,
        once=once,
        purpose=_PURPOSE if waits else _SIGN_OF_LIFE,
    )
    if not waits:  # the next one goes over another connection where a quota mutes this one
        used = await cluster.connection(cluster.leader(partition).node, _SIGN_OF_LIFE)
        if used.is_muted:
            used.close()
    return ack.base_offset


# --- WriteTxnMarkers --------------------------------------------------------------------------------------------------

_COMMIT: Final = True


def markers_request(version: int, partition: TopicPartition, stamps: Iterable[tuple[int, int]]) -> Any:
    """Commit markers for one partition, one for each (producer id, epoch) of `stamps`."""
    schema = WRITE_TXN_MARKERS.schema(version, "request")
    topics = (schema.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=(partition.partition,)),)
    return schema.WriteTxnMarkersRequest(
        markers=tuple(
            schema.WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_result=_COMMIT,
                topics=topics,
                coordinator_epoch=0,
            )
            for producer_id, epoch in stamps
        )
    )


def read_markers(answer: Any) -> Any:
    """The first error code of an answer for one partition, None where there is none."""
    codes = (part.error_code for marker in answer.markers for topic in marker.topics for part in topic.partitions)
    return next((code for code in codes if code), None)
