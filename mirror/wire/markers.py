"""WriteTxnMarkers: control markers on one partition, each of which takes one offset and is seen by no consumer.

Transaction coordinators write them with this request (KIP-98); whoever may ALTER the cluster may, too (KIP-1037, from
Kafka 3.8 on). A broker appends the markers of a request one by one in their order, and answers with one code for each
producer id, that of the id's last marker: an answer without an error does not say that all were appended, only the
log's end does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mirror.wire.cluster import TopicPartition
from mirror.wire.protocol import WRITE_TXN_MARKERS

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
