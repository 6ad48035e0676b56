"""Topics with replicas of one's choice."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic
from waiting import DEADLINE_S, until

from mirror.lab.embedded import Cluster


def create(cluster: Cluster, topic: str, replicas: list[list[int]], configs: dict[str, str] | None = None) -> None:
    """Create a topic with these replicas, and wait until it has leaders."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(topic, num_partitions=len(replicas), replica_assignment=replicas, config=configs or {})
    client.create_topics([new])[topic].result(DEADLINE_S)

    def has_leaders() -> bool:
        found = client.list_topics(timeout=DEADLINE_S).topics.get(topic)
        partitions = found.partitions.values() if found else ()
        return len(partitions) == len(replicas) and all(one.leader >= 0 for one in partitions)

    until(has_leaders, lambda: f"{topic} was not created")
