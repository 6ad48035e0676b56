"""More topics than a controller takes in one request."""

from __future__ import annotations

from helpers import make_topic, remove_topics
from syncing import admin_of

from mirror.kafka.admin import Creation
from mirror.lab.embedded import Cluster


def test_more_topics_than_a_controller_takes_at_once_are_created(own_target: Cluster, topic_name: str) -> None:
    """Each topic sets all of its configs: 400 of them cost more than the 10,000 metadata records of one request."""
    admin = admin_of(own_target.bootstrap)
    make_topic(own_target.bootstrap, topic_name)
    configs = {name: found.value for name, found in admin.topic_configs([topic_name])[topic_name].items()}
    names = [f"{topic_name}-{number}" for number in range(400)]
    creations = [Creation(topic=name, partitions=1, replication_factor=1, configs=configs) for name in names]
    assert sum(2 + len(one.configs) for one in creations) > 10_000
    try:
        assert not admin.create_topics(creations)
        assert admin.create_topics(creations) == set(names), "they are all there"
    finally:
        remove_topics(admin, *names)
