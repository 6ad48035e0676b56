"""Copies that begin behind padding."""

from __future__ import annotations

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Watermark
from confluent_kafka.admin import AdminClient
from waiting import DEADLINE_S

from mirror.lab.embedded import Cluster


def trimmed(cluster: Cluster, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # kept until the answer is there
    (deleted,) = admin.delete_records([Watermark(topic, 0, before)]).values()
    assert deleted.result(DEADLINE_S).low_watermark == before


def read_all(cluster: Cluster, topic: str) -> list[tuple[int, bytes | None]]:
    """What a consumer that begins at the earliest offset gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "any",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        start, end = consumer.get_watermark_offsets(Watermark(topic, 0), timeout=DEADLINE_S)
        consumer.assign([Watermark(topic, 0, start)])
        found: list[tuple[int, bytes | None]] = []
        while start < end and (not found or found[-1][0] < end - 1):
            message = consumer.poll(DEADLINE_S)
            assert message is not None
            assert message.error() is None
            found.append((message.offset() or 0, message.value()))
        return found
    finally:
        consumer.close()
