"""Where a group stands on a broker, asked and set by librdkafka's consumer: its admin client takes the process down
where a coordinator only just starts (rd_kafka_cgrp_op).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from waiting import DEADLINE_S

T = TypeVar("T")

_STARTS: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
    }
)


def commit(bootstrap: str, group: str, topic: str, offset: int, partition: int = 0) -> None:
    """Put the group at this offset."""
    at = TopicPartition(topic, partition, offset)
    _asked(bootstrap, group, lambda consumer: consumer.commit(offsets=[at], asynchronous=False))


def committed(bootstrap: str, group: str, topic: str) -> int:
    """Where the group is; negative where nothing is committed."""
    at = [TopicPartition(topic, 0)]
    (found,) = _asked(bootstrap, group, lambda consumer: consumer.committed(at, timeout=DEADLINE_S))
    return int(found.offset)


@contextmanager
def consuming(bootstrap: str, group: str, topic: str, **more: str) -> Iterator[Consumer]:
    """A member of the group that reads committed records of the topic from where the group stands."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            **more,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def read_on(bootstrap: str, group: str, topic: str, count: int, **more: str) -> list[bytes]:
    """Read the group's next `count` records, and commit."""
    with consuming(bootstrap, group, topic, **more) as consumer:
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, f"{len(found)} of {count} records"
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
        consumer.commit(asynchronous=False)
        return found


def _asked(bootstrap: str, group: str, request: Callable[[Consumer], T]) -> T:
    """The answer, once the coordinator has started."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    deadline = time.monotonic() + DEADLINE_S
    try:
        while True:
            try:
                return request(consumer)
            except KafkaException as problem:
                if problem.args[0].code() not in _STARTS or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)
    finally:
        consumer.close()
