"""What `mirror plan` prints, line by line, and the commands that it advises."""

from __future__ import annotations

from mirror.commands.plan import created, folded
from mirror.kafka.admin import Creation
from mirror.kafka.cluster import Endpoint
from mirror.policy.remedies import allow


def test_rights_are_given_by_one_command() -> None:
    cluster = Endpoint("us", (("us1", 9092), ("us2", 9093)))
    begin = "kafka-acls.sh --bootstrap-server us1:9092,us2:9093 --add --allow-principal User:PRINCIPAL --operation "
    assert allow(cluster, "CREATE", "DESCRIBE_CONFIGS", topic="beats") == (
        begin + "Create --operation DescribeConfigs --topic beats"
    )
    assert allow(cluster, "ALTER") == begin + "Alter --cluster"
    assert allow(cluster, "WRITE", transactional_id="flow/0") == begin + "Write --transactional-id flow/0"


def test_a_long_line_is_folded_between_words_and_a_command_is_not() -> None:
    line = "+ create orders: 3 partitions, 1 replica; cleanup.policy=delete, retention.ms=604800000, segment.ms=3600000"
    assert folded(line, 60) == [
        "+ create orders: 3 partitions, 1 replica;",
        "    cleanup.policy=delete, retention.ms=604800000,",
        "    segment.ms=3600000",
    ]
    command = "refused: no READ right; grant it: " + allow(Endpoint("us", (("us1", 9092),)), "READ", topic="orders")
    assert folded(command, 60) == [command], "to be copied in one piece"


def test_settings_that_all_new_topics_have_alike_are_shown_once() -> None:
    each = {"cleanup.policy": "delete", "retention.ms": "1000"}
    made = [Creation(topic=name, partitions=2, replication_factor=1, configs=each) for name in ("a", "b")]
    other = Creation(topic="c", partitions=1, replication_factor=3, configs={**each, "retention.ms": "5"})
    assert list(created([*made, other])) == [
        "+ create a: 2 partitions, 1 replica; retention.ms=1000",
        "+ create b: 2 partitions, 1 replica; retention.ms=1000",
        "+ create c: 1 partition, 3 replicas; retention.ms=5",
        "+ each of these 3 topics with cleanup.policy=delete",
    ]
    assert list(created(made[:1])) == ["+ create a: 2 partitions, 1 replica; cleanup.policy=delete, retention.ms=1000"]
    assert list(created([])) == []
