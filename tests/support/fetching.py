"""One fetch of a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from entities import encoded
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from mirror.kafka.protocol import FETCH

#: One partition of an answer: topic by name and by id, partition, fields other than the usual.
Part = tuple[str, uuid.UUID, int, dict[str, Any]]


def by_id(version: int) -> bool:
    return version >= 13


def fetched(version: int, parts: Sequence[Part], error: int = 0) -> Any:
    """A fetch answer with one topic entry for each part."""
    schema = FETCH.schema(version, "response")
    topics = []
    for name, topic_id, index, given in parts:
        values: dict[str, Any] = {
            "partition_index": index,
            "error_code": ErrorCode(0),
            "high_watermark": 1000,
            "last_stable_offset": 900,
            "log_start_offset": 10,
            "aborted_transactions": None,
            "records": b"records",
        }
        part = schema.PartitionData(**{**values, **given})
        named = {"topic_id": topic_id} if by_id(version) else {"topic": name}
        topics.append(schema.FetchableTopicResponse(partitions=(part,), **named))
    answer = schema.FetchResponse(
        throttle_time=timedelta(0), error_code=ErrorCode(error), session_id=0, responses=tuple(topics)
    )
    value, _ = entity_reader(type(answer))(encoded(answer), 0)
    return value
