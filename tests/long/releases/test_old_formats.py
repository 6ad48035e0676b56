"""Topics that an old broker stores as magic 0 and 1, mirrored to a broker that takes magic 2 alone."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from helpers import mirror_once, produce
from oldbroker import FORMATS, Magic, OldBroker
from samerecords import read
from waiting import DEADLINE_S

from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.states import State

VALUES = [b"value %d " % number + b"." * (number % 90) for number in range(3000)]


def copied(source: str, target: str, topic: str) -> PartitionStatus:
    found = mirror_once(source, target, [topic], naming={"prefix": "copy-"})[TopicPartition(topic, 0)]
    assert found.state is State.CAUGHT_UP, found
    return found


def assert_equal(source: str, target: str, topic: str, magic: Magic) -> None:
    """Key, value, offset, and the timestamp where the format has one; kafka-python reads both."""

    def facts(record: tuple[Any, ...]) -> tuple[Any, ...]:
        offset, timestamp, _, key, value, _ = record
        return offset, timestamp if magic else -1, key, value

    ours, theirs = (list(map(facts, read(at, name, 0))) for at, name in ((source, topic), (target, f"copy-{topic}")))
    assert theirs == ours
    assert ours


@pytest.mark.parametrize(("magic", "codec"), [(0, "none"), (0, "gzip"), (1, "none"), (1, "snappy")])
def test_a_topic_of_an_old_magic(
    old_broker: OldBroker, own_target: Cluster, topic_name: str, magic: Magic, codec: str
) -> None:
    old_broker.make_topic(topic_name, magic)
    produce(old_broker.bootstrap, topic_name, VALUES, codec=codec, batch=50)
    found = copied(old_broker.bootstrap, own_target.bootstrap, topic_name)
    assert set(found.verdicts) == {"REWRITE/legacy_magic"}
    assert found.records == len(VALUES)
    assert found.batches <= (60 if codec != "none" else 8), "messages without a codec become batches again"
    assert_equal(old_broker.bootstrap, own_target.bootstrap, topic_name, magic)
    produce(old_broker.bootstrap, topic_name, islice(VALUES, 100), codec=codec, batch=10)
    copied(old_broker.bootstrap, own_target.bootstrap, topic_name)
    assert_equal(old_broker.bootstrap, own_target.bootstrap, topic_name, magic)


def test_a_topic_whose_format_was_set_back(old_broker: OldBroker, own_target: Cluster, topic_name: str) -> None:
    """Its leader forgets all leader epochs, those of batches that have one as well."""
    old_broker.make_topic(topic_name, 2)
    produce(old_broker.bootstrap, topic_name, VALUES[:100])
    assert copied(old_broker.bootstrap, own_target.bootstrap, topic_name).records == 100
    admin = AdminClient({"bootstrap.servers": old_broker.bootstrap, "log_level": 0})
    entry = ConfigEntry("message.format.version", FORMATS[1], incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ResourceType.TOPIC, topic_name, incremental_configs=[entry])
    admin.incremental_alter_configs([asked])[asked].result(DEADLINE_S)
    produce(old_broker.bootstrap, topic_name, VALUES[:50])
    assert copied(old_broker.bootstrap, own_target.bootstrap, topic_name).records == 50
    assert_equal(old_broker.bootstrap, own_target.bootstrap, topic_name, 1)
