"""What administration meets on clusters of several brokers, behind elections, and where there are many topics."""

from __future__ import annotations

from pathlib import Path

from configured_flow import ConfiguredFlow
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from helpers import make_topic, remove_topics
from syncing import admin_of
from topicadmin import configs_of
from waiting import DEADLINE_S, until

from mirror.errors import ExitCode
from mirror.kafka.admin import Creation, Span
from mirror.kafka.topic_configs import MAX_REQUEST
from mirror.lab.embedded import Cluster, Spec, start_many


def test_brokers_that_do_not_agree_on_a_default_change_no_copy(
    own_target: Cluster, tmp_path: Path, topic_name: str
) -> None:
    """As in a rolling change of a default, which may be taken back: whichever broker is asked."""
    (two,) = start_many([Spec(name="two", nodes=2)])
    with two:
        client = AdminClient({"bootstrap.servers": two.bootstrap})
        flow, later = ConfiguredFlow(two, own_target, tmp_path, topic_name), f"{topic_name}-later"

        def keep(node: int, retention: str) -> None:
            entry = ConfigEntry("log.retention.ms", retention, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.BROKER, str(node), incremental_configs=[entry])
            for done in client.incremental_alter_configs([resource]).values():
                done.result(DEADLINE_S)
            until(lambda: default_of(node) == retention)

        def default_of(node: int) -> str:
            (found,) = client.describe_configs([ConfigResource(ConfigResource.Type.BROKER, str(node))]).values()
            return str(found.result(DEADLINE_S)["log.retention.ms"].value)

        nodes = sorted(client.list_topics(timeout=DEADLINE_S).brokers)
        make_topic(two.bootstrap, topic_name)
        assert flow.once().exit_code == ExitCode.DONE
        make_topic(two.bootstrap, later)
        for node in nodes:
            keep(node, "60000")
            plan = flow.plan()[1]
            assert (plan["configs"], plan["refused"]) == ([], [])
            (created,) = plan["create"]
            assert created["configs"]["retention.ms"] == "604800000"
            assert any("do not agree on retention.ms" in text for text in plan["advice"])
            keep(node, "604800000")
        for node in nodes:
            keep(node, "60000")
        assert [(one["name"], one["after"]) for one in flow.plan()[1]["configs"]] == [("retention.ms", "60000")]
        assert flow.once().exit_code == ExitCode.DONE
        assert configs_of(flow.target, topic_name)["retention.ms"] == "60000"


def test_where_partitions_begin_and_end_is_known_behind_an_election(topic_name: str) -> None:
    """Each start of a broker is one: who asks with the leader epoch of before is refused."""
    with Cluster.start(name="elected") as broker:
        admin = admin_of(broker.bootstrap)
        make_topic(broker.bootstrap, topic_name, 2)
        expected = {(topic_name, number): Span(start=0, end=0) for number in range(2)}
        assert admin.spans(admin.describe([topic_name]).values()) == expected
        broker.kill(0)
        broker.restart(0)
        until(lambda: admin.spans(admin.describe([topic_name]).values()) == expected)


def test_more_topics_are_made_than_a_controller_takes_at_once(own_target: Cluster, topic_name: str) -> None:
    """Each topic sets all of its configs: 400 of them cost more than the 10,000 metadata records of one request."""
    admin = admin_of(own_target.bootstrap)
    make_topic(own_target.bootstrap, topic_name)
    configs = configs_of(own_target.bootstrap, topic_name)
    del configs[MAX_REQUEST]  # the broker's own, which is in effect for each topic
    names = [f"{topic_name}-{number}" for number in range(400)]
    creations = [Creation(topic=name, partitions=1, replication_factor=1, configs=configs) for name in names]
    assert sum(2 + len(one.configs) for one in creations) > 10_000
    try:
        assert not admin.create_topics(creations)
        assert admin.create_topics(creations) == set(names), "they are all there"
    finally:
        remove_topics(admin, *names)
