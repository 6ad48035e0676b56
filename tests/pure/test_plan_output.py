"""What `mirror plan` refuses, and the commands that it advises."""

from __future__ import annotations

from mirror.kafka.cluster import Endpoint
from mirror.policy.remedies import Fix, allow
from mirror.policy.rules import refused
from mirror.topics.acls import AclPlan
from mirror.topics.apply import TopicPlan
from mirror.topics.plan import FlowPlan, MissingRight


def test_rights_are_given_by_one_command() -> None:
    cluster = Endpoint("us", (("us1", 9092), ("us2", 9093)))
    begin = "kafka-acls.sh --bootstrap-server us1:9092,us2:9093 --add --allow-principal User:PRINCIPAL --operation "
    assert allow(cluster, "CREATE", "DESCRIBE_CONFIGS", topic="beats") == (
        begin + "Create --operation DescribeConfigs --topic beats"
    )
    assert allow(cluster, "ALTER") == begin + "Alter --cluster"
    assert allow(cluster, "WRITE", transactional_id="flow/0") == begin + "Write --transactional-id flow/0"


def test_whatever_keeps_a_start_from_mirroring_all_is_refused() -> None:
    topics = TopicPlan(
        pairs=(),
        creations=(),
        growths=(),
        changes=(),
        findings=(refused("a", "the topic", Fix.SELF_EXPLANATORY),),
        source_topics={},
        target_topics={},
        target_configs={},
        compacted={},
        withheld={"b": refused("b", "the last partitions", Fix.SELF_EXPLANATORY)},
    )
    plan = FlowPlan(
        flow="eu-to-us",
        source_id="1",
        target_id="2",
        topics=topics,
        own_topics=(),
        groups=(),
        acls=AclPlan(),
        padding=(),
        gaps=(),
        beginnings=(),
        rights=(MissingRight("us", "WRITE", "a", "grant it"),),
        failed_over="the failover",
        recreated=("the topic made anew",),
        gone=("gone",),
        stops=("the stop that stands",),
        stopped=("stopped",),
    )
    causes = (
        "the failover",
        "the topic",
        "the last partitions",
        "the topic made anew",
        "the stop that stands",
        "no WRITE",
    )
    assert len(plan.refusals) == len(causes)
    assert all(cause in refusal for cause, refusal in zip(causes, plan.refusals, strict=True))
