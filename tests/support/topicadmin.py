"""Topics of a cluster, changed and read as a person does."""

from __future__ import annotations

from confluent_kafka import TopicPartition as Watermark
from confluent_kafka.admin import AdminClient
from helpers import make_topic
from syncing import admin_of, delete_topics
from waiting import DEADLINE_S, until

from mirror.kafka.admin import Growth
from mirror.kafka.topic_configs import ConfigChange


def recreate(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    """Delete a topic, and make another one by its name; settings with `_` for `.`."""
    delete_topics(bootstrap, topic)
    make_topic(bootstrap, topic, partitions, {name.replace("_", "."): value for name, value in configs.items()})


def partitions_of(bootstrap: str, topic: str) -> int:
    """How many partitions a topic has; 0 where there is none."""
    found = admin_of(bootstrap).describe([topic])
    return len(found[topic].partitions) if topic in found else 0


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    growth = Growth(topic=topic, before=partitions_of(bootstrap, topic), partitions=partitions)
    admin_of(bootstrap).create_partitions([growth])
    until(lambda: partitions_of(bootstrap, topic) == partitions)


def configs_of(bootstrap: str, topic: str) -> dict[str, str]:
    """The settings in effect."""
    return {name: found.value for name, found in admin_of(bootstrap).topic_configs([topic])[topic].items()}


def configure(bootstrap: str, topic: str, **configs: str | None) -> None:
    """Set settings of a topic, with `_` for `.`, or remove those that are None; returns when they are in effect."""
    wanted = {name.replace("_", "."): value for name, value in configs.items()}
    changes = [ConfigChange(topic=topic, name=name, before=None, after=value) for name, value in wanted.items()]
    admin_of(bootstrap).alter_configs(changes)
    until(lambda: all(configs_of(bootstrap, topic)[name] == value for name, value in wanted.items() if value))


def delete_records(bootstrap: str, topic: str, before: int, partition: int = 0) -> None:
    """Delete what a partition holds below an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept until the answer is there
    (deleted,) = admin.delete_records([Watermark(topic, partition, before)]).values()
    assert deleted.result(DEADLINE_S).low_watermark == before


def held(bootstrap: str, topic: str) -> tuple[int, int]:
    """Where partition 0 begins and ends."""
    admin = admin_of(bootstrap)
    span = admin.spans(admin.describe([topic]).values())[topic, 0]
    return span.start, span.end
