"""What `mirror plan` refuses, and the commands that it advises."""

from __future__ import annotations

from mirror.kafka.cluster import Endpoint
from mirror.policy.remedies import allow


def test_rights_are_given_by_one_command() -> None:
    cluster = Endpoint("us", (("us1", 9092), ("us2", 9093)))
    begin = "kafka-acls.sh --bootstrap-server us1:9092,us2:9093 --add --allow-principal User:PRINCIPAL --operation "
    assert allow(cluster, "CREATE", "DESCRIBE_CONFIGS", topic="beats") == (
        begin + "Create --operation DescribeConfigs --topic beats"
    )
    assert allow(cluster, "ALTER") == begin + "Alter --cluster"
