"""Produce and WriteTxnMarkers: raw batches and control markers to a target broker.

Versions 9 to 13 (topic ids from 13 on). A broker refuses two batches in one partition's entry, and loses the first
of two entries for the same partition without an error (Kafka `KafkaApis.handleProduceRequest`), so a request is made
of a mapping and cannot say that.

Transaction coordinators write them with this request (KIP-98); whoever may ALTER the cluster may, too (KIP-1037, from
Kafka 3.8 on). A broker appends the markers of a request one by one in their order, and answers with one code for each
producer id, that of the id's last marker: an answer without an error does not say that all were appended, only the
log's end does.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from mirror.kafka.cluster import CALL_TIMEOUT, Cluster, TopicPartition
from mirror.kafka.protocol import PRODUCE, WRITE_TXN_MARKERS, Buffer, RecordSet

# --- Produce ----------------------------------------------------------------------------------------------------------

ACKS_ALL: Final = -1
#: What the leader may wait for its followers, in seconds; the connection waits longer.
ACK_TIMEOUT: Final = 30.0
_BY_ID: Final = 13
#: What `append` goes over a connection of its own for: a quota that mutes it (`producer_byte_rate`) mutes nothing else.
_PURPOSE: Final = "append"
#: And what may not wait for it, by which others know that this process lives: brokers append before they mute.
_SIGN_OF_LIFE: Final = "sign of life"


@dataclass(frozen=True, slots=True)
class Ack:
    """One partition's part of a produce answer. `append_time_ms` is -1 where the topic keeps the producers' timestamps;
    for a batch that a leader takes for a repetition it is the largest timestamp of the one that it has (Kafka
    `UnifiedLog.append`).
    """

    partition: TopicPartition
    error_code: Any
    message: str
    base_offset: int
    append_time_ms: int = -1


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
        return produce_request(version, {partition: parts}, topic_ids)

    def read(answer: Any) -> Ack:
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


def produce_request(
    version: int,
    batches: Mapping[TopicPartition, tuple[Buffer, ...]],
    topic_ids: Mapping[str, uuid.UUID | None],
    transactional_id: str | None = None,
) -> Any:
    """A request in kio's schema for `version`, one batch for each partition, each given in pieces that are sent as
    they are. Batches of a transaction need its `transactional_id`.
    """
    schema = PRODUCE.schema(version, "request")
    topics: dict[str, list[Any]] = {}
    for partition, parts in batches.items():
        data = schema.PartitionProduceData(index=partition.partition, records=RecordSet(parts))
        topics.setdefault(partition.topic, []).append(data)
    return schema.ProduceRequest(
        transactional_id=transactional_id,
        acks=ACKS_ALL,
        timeout=timedelta(seconds=ACK_TIMEOUT),
        topic_data=tuple(
            schema.TopicProduceData(
                partition_data=tuple(data),
                **({"topic_id": topic_ids.get(name)} if version >= _BY_ID else {"name": name}),
            )
            for name, data in topics.items()
        ),
    )


def read_produce(answer: Any, topic_ids: Mapping[str, uuid.UUID | None]) -> Iterator[Ack]:
    """The acks of an answer."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    for topic in answer.responses:
        name = names.get(topic.topic_id, "") if answer.__version__ >= _BY_ID else topic.name
        for part in topic.partition_responses:
            details = [part.error_message or ""]
            details += [error.batch_index_error_message or "" for error in part.record_errors[:1]]
            yield Ack(
                partition=TopicPartition(name, part.index),
                error_code=part.error_code,
                message=" ".join(filter(None, details)),
                base_offset=part.base_offset,
                append_time_ms=-1 if part.log_append_time is None else round(part.log_append_time.timestamp() * 1000),
            )


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
