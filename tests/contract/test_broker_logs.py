"""What `mirror restore` reads of a broker's own logs: topics and settings, and the offsets of consumer groups."""

from __future__ import annotations

from uuid import uuid4

import pytest
from brokerlogs import folders_of
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as At
from groupoffsets import commit
from helpers import make_topic, produce, remove_topics
from pair import Shared
from syncing import admin_of
from waiting import until

from mirror.kafka.cluster import TopicPartition
from mirror.kafka.topic_configs import ConfigChange
from mirror.segments.cluster_logs import METADATA, ClusterTopics, offsets_in, topics_in


@pytest.mark.proves("mirror restore")
def test_the_metadata_log_has_topics_and_settings_as_brokers_report_them(
    source_cluster: Shared, topic_name: str
) -> None:
    """A topic that was deleted is known to be."""
    admin, gone = admin_of(source_cluster.bootstrap), f"{topic_name}-gone"
    make_topic(source_cluster.bootstrap, topic_name, 3, {"cleanup.policy": "compact", "retention.ms": "77"})
    make_topic(source_cluster.bootstrap, gone, 1, {"retention.ms": "1"})
    gone_id = admin.describe([gone])[gone].topic_id
    change = ConfigChange(topic=topic_name, name="retention.ms", before="77", after=None)
    admin.alter_configs([change, ConfigChange(topic=topic_name, name="segment.ms", before=None, after="604800001")])
    remove_topics(admin, gone)

    def known() -> ClusterTopics | None:
        found = topics_in(folders_of(source_cluster, METADATA.topic)[0])
        topic = found.topics.get(topic_name) if found else None
        is_current = topic is not None and "segment.ms" in topic.configs and found and gone not in found.topics
        return found if is_current else None

    found = until(known)
    assert found is not None
    topic = found.topics[topic_name]
    assert (topic.partition_count, topic.configs) == (3, {"cleanup.policy": "compact", "segment.ms": "604800001"})
    assert topic.topic_id == admin.describe([topic_name])[topic_name].topic_id
    assert gone_id in found.removed


@pytest.mark.proves("mirror restore")
def test_group_offsets_count_as_their_transactions_ended(source_cluster: Shared, topic_name: str) -> None:
    """The newest commit, one of a transaction that was committed, none of one that was aborted or is open."""
    bootstrap, at = source_cluster.bootstrap, TopicPartition(topic_name, 0)
    make_topic(bootstrap, topic_name)
    produce(bootstrap, topic_name, [b"%d" % number for number in range(40)])
    for offset in (5, 12):
        commit(bootstrap, f"{topic_name}-plain", topic_name, offset)
    held = []
    for kind, ends_well in {"committed": True, "aborted": False, "open": None}.items():
        group = f"{topic_name}-{kind}"
        commit(bootstrap, group, topic_name, 3)
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        client = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{group}-{uuid4().hex}"})
        client.init_transactions(180)
        client.begin_transaction()
        client.send_offsets_to_transaction([At(topic_name, 0, 30)], consumer.consumer_group_metadata(), 180)
        if ends_well is None:
            held.append((client, consumer))
            continue
        (client.commit_transaction if ends_well else client.abort_transaction)(180)
        consumer.close()

    def offsets() -> dict[str, int]:
        found = offsets_in(folders_of(source_cluster, "__consumer_offsets")).groups
        of_topic = {group: of[at].committed.offset for group, of in found.items() if at in of}
        return {group.removeprefix(f"{topic_name}-"): offset for group, offset in of_topic.items()}

    try:
        until(lambda: offsets().get("committed") == 30)
        assert offsets() == {"plain": 12, "committed": 30, "aborted": 3, "open": 3}
        found = offsets_in(folders_of(source_cluster, "__consumer_offsets"))
        assert found.undecided[f"{topic_name}-open"] == {at}
        assert not found.undecided.keys() & {f"{topic_name}-{kind}" for kind in ("plain", "committed", "aborted")}
    finally:
        for client, consumer in held:
            client.abort_transaction(180)
            consumer.close()
