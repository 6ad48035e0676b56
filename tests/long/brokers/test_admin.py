"""Administration against real brokers: reading, creating, planning, and each way it fails."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from acls import every_acl, put_acls
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from remedyworld import until

from mirror.config import ClusterSettings, Settings
from mirror.errors import AccessDenied, BrokerError, ClusterUnreachable, ConfigError, MirrorError, PreflightError
from mirror.kafka import admin as client
from mirror.kafka.admin import Admin, Creation, Span, Wire, newest_version
from mirror.kafka.protocol import INIT_PRODUCER_ID
from mirror.kafka.topic_configs import ConfigChange
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.policy.rules import NO_LIMIT, Rules, Severity
from mirror.policy.selection import TopicPair
from mirror.topics.apply import TopicPlan, apply, ensure_flow_topic, plan_topics, rules_of
from mirror.topics.plan import plan_flow

pytestmark = pytest.mark.brokers

NOT_COPIED = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true", "compression.type": "gzip"}


def cluster_settings(alias: str, bootstrap: str, **more: object) -> ClusterSettings:
    return ClusterSettings.model_validate({"alias": alias, "bootstrap.servers": bootstrap, **more})


@pytest.fixture(scope="session")
def source(own_source: Cluster) -> Admin:
    return Admin(cluster_settings("eu", own_source.bootstrap))


@pytest.fixture(scope="session")
def target(own_target: Cluster) -> Admin:
    return Admin(cluster_settings("us", own_target.bootstrap))


def flow(
    source: Admin, target: Admin, include: list[str], sync: dict[str, bool] | None = None, **topics: Any
) -> Settings:
    sides = {"source": source.settings, "target": target.settings}
    fields = {"name": "eu-to-us", "topics": {"include": include, **topics}, "sync": sync or {}}
    return Settings.model_validate(sides | fields)


def refusals(plan: TopicPlan) -> list[str]:
    return [str(finding) for finding in plan.findings if finding.severity is Severity.REFUSE]


def advice(plan: TopicPlan) -> list[str]:
    return [str(finding) for finding in plan.findings if finding.severity is Severity.ADVISE]


def await_topics(admin: Admin, *names: str) -> None:
    deadline = time.monotonic() + 20
    while admin.describe(names).keys() != set(names):
        assert time.monotonic() < deadline, f"{names} not created"
        time.sleep(0.02)


def made(admin: Admin, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
    creation = Creation(topic=name, partitions=partitions, replication_factor=1, configs=configs or {})
    assert not admin.create_topics([creation])
    await_topics(admin, name)


# --- client ---------------------------------------------------------------------------------------------------------


def test_cluster(source: Admin, own_source: Cluster, target: Admin) -> None:
    assert source.cluster_id() == own_source.cluster_id != target.cluster_id()
    assert source.brokers() == 1


def test_topics_with_ids_leaders_and_replicas(source: Admin, own_source: Cluster, topic_name: str) -> None:
    made(source, topic_name, partitions=3)
    info = source.topics()[topic_name]
    assert [one.partition for one in info.partitions] == [0, 1, 2]
    assert all(one.replicas == (one.leader,) for one in info.partitions)
    assert info.replication_factor == 1
    direct = AdminClient({"bootstrap.servers": own_source.bootstrap})
    (described,) = direct.describe_topics(TopicCollection([topic_name])).values()
    assert info.topic_id is not None
    assert base64.b64encode(info.topic_id.bytes).decode().rstrip("=") == str(described.result().topic_id)


def test_where_partitions_begin_and_end_after_an_election(topic_name: str) -> None:
    """Of which each start of a broker is one: who asks with the leader epoch of before is refused."""
    with Cluster.start(name="elected") as broker:
        admin = Admin(cluster_settings("eu", broker.bootstrap))
        made(admin, topic_name, partitions=2)

        def spans() -> Mapping[tuple[str, int], Span]:
            return admin.spans(admin.describe([topic_name]).values())

        until(lambda: len(spans()) == 2, lambda: "no leaders")
        broker.kill(0)
        broker.restart(0)
        until(lambda: len(spans()) == 2, lambda: "no leaders")
        assert spans() == {(topic_name, number): Span(start=0, end=0) for number in range(2)}


def test_topics_that_do_not_exist_are_left_out(source: Admin, topic_name: str) -> None:
    made(source, topic_name)
    assert source.describe([topic_name, "no-such-topic"]).keys() == {topic_name}
    assert source.topic_configs([topic_name, "no-such-topic"]).keys() == {topic_name}
    assert source.describe([]) == {}
    assert source.topic_configs([]) == {}
    assert "no-such-topic" not in source.topics()


def test_configs_say_what_is_set_on_the_topic(source: Admin, topic_name: str) -> None:
    made(source, topic_name, configs={"retention.ms": "1234567", "cleanup.policy": "delete"})
    configs = source.topic_configs([topic_name])[topic_name]
    assert (configs["retention.ms"].value, configs["retention.ms"].is_default) == ("1234567", False)
    assert not configs["cleanup.policy"].is_default, "set, though to the default"
    assert (configs["segment.bytes"].value, configs["segment.bytes"].is_default) == ("1073741824", True)


def test_creating_twice_and_creating_badly(source: Admin, topic_name: str) -> None:
    made(source, topic_name)
    again = Creation(topic=topic_name, partitions=1, replication_factor=1)
    assert source.create_topics([again]) == {topic_name}
    good = Creation(topic=f"{topic_name}-good", partitions=1, replication_factor=1)
    bad = Creation(topic=f"{topic_name}-bad", partitions=1, replication_factor=9)
    with pytest.raises(BrokerError, match=rf"cluster eu .*cannot create topic {bad.topic}: .*38 INVALID_REPLICATION"):
        source.create_topics([bad, good])
    await_topics(source, good.topic)


def test_wrong_address(free_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    admin = Admin(cluster_settings("lost", f"127.0.0.1:{free_port}"))
    with pytest.raises(ClusterUnreachable) as caught:
        admin.topics()
    assert f"cluster lost (127.0.0.1:{free_port}): cannot list topics: no broker answered" in str(caught.value)
    assert "Check bootstrap.servers" in str(caught.value)
    assert str(free_port) not in "".join(capfd.readouterr())  # nothing that librdkafka has to say


def test_address_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "DEADLINE_S", 1.0)
    with pytest.raises(ClusterUnreachable, match="cannot read the cluster's id"):
        Admin(cluster_settings("lost", "no-such-host.invalid:9092")).cluster_id()


def test_orders_go_to_the_cluster_that_was_checked_alone(
    source: Admin, target: Admin, own_source: Cluster, own_target: Cluster, topic_name: str
) -> None:
    """The address names brokers of two clusters, which have topics of one name; librdkafka takes either."""
    for admin in (source, target):
        made(admin, topic_name, configs={"retention.ms": "-1"})
    both = f"{own_source.bootstrap},{own_target.bootstrap}"

    def is_kept(value: str) -> bool:
        return target.topic_configs([topic_name])[topic_name]["retention.ms"].value == value

    for kept in map(str, range(3_600_000, 3_600_008)):
        mixed = Admin(cluster_settings("us", both, cluster_id=own_target.cluster_id))
        mixed.alter_configs([ConfigChange(topic=topic_name, name="retention.ms", before="-1", after=kept)])
        until(partial(is_kept, kept), lambda: "not set")
        assert source.topic_configs([topic_name])[topic_name]["retention.ms"].value == "-1"


def test_files_that_the_client_cannot_use_now_are_asked_for_again() -> None:
    """As while a key is renewed: a new topic at that moment ended the mirror for good, as by a wrong configuration."""
    settings = cluster_settings("eu", "a:1", **{"security.protocol": "SSL", "ssl.ca.location": "/no/such/file"})
    with pytest.raises(ClusterUnreachable, match=r"cluster eu: client settings refused: .*ssl.ca.location"):
        Admin(settings)


def test_settings_that_the_client_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise KafkaException("No provider for SASL mechanism GSSAPI")

    monkeypatch.setattr("mirror.kafka.admin.AdminClient", refuses)
    for protocol in ("PLAINTEXT", "SASL_SSL"):
        with pytest.raises(ConfigError, match="cluster eu: client settings refused: No provider"):
            Admin(cluster_settings("eu", "a:1", **{"security.protocol": protocol}))


# --- plan and apply -------------------------------------------------------------------------------------------------


def test_plan_apply_and_plan_again(source: Admin, target: Admin, topic_name: str) -> None:
    configs = {
        "retention.ms": "-1",
        "max.message.bytes": "2000000",
        "segment.ms": "3600000",
        "min.compaction.lag.ms": "5",
        **NOT_COPIED,
    }
    made(source, topic_name, partitions=3, configs=configs)
    settings = flow(source, target, [topic_name], naming={"prefix": "eu."})

    plan = plan_topics(source, target, settings)
    copy = f"eu.{topic_name}"
    assert plan.pairs == (TopicPair(source=topic_name, target=copy, partitions=3),)
    assert plan.findings == ()
    assert plan.source_topics == source.describe([topic_name])
    (creation,) = plan.creations
    assert (creation.topic, creation.partitions, creation.replication_factor) == (copy, 3, 1)
    assert target.describe([copy]) == {}, "planning writes nothing"

    apply(target, plan)
    (info,) = target.describe([copy]).values()
    assert all(one.leader >= 0 for one in info.partitions)
    own = {name: v.value for name, v in target.topic_configs([copy])[copy].items() if not v.is_default}
    assert own == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": "2000000",
        "message.timestamp.after.max.ms": str(NO_LIMIT),
        "message.timestamp.before.max.ms": str(NO_LIMIT),
        "message.timestamp.type": "CreateTime",
        "min.compaction.lag.ms": "5",
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.ms": "3600000",
    }
    assert rules_of(target, plan.pairs, settings.topics) == {copy: Rules(max_message_bytes=2_000_000)}

    again = plan_topics(source, target, settings)
    assert (again.creations, again.findings) == ((), ())
    apply(target, again)


def test_configs_are_not_copied_when_that_is_switched_off(source: Admin, target: Admin, topic_name: str) -> None:
    made(source, topic_name, configs={"segment.ms": "3600000"})
    (creation,) = plan_topics(source, target, flow(source, target, [topic_name], {"configs": False})).creations
    assert creation.configs.keys() == {
        "compression.type",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
    }


def test_the_times_at_which_the_source_took_records_are_kept_and_reported(
    source: Admin, target: Admin, topic_name: str
) -> None:
    made(source, topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    plan = plan_topics(source, target, flow(source, target, [topic_name]))
    assert plan.creations[0].configs["message.timestamp.type"] == "CreateTime"
    (text,) = advice(plan)
    assert text.startswith(f"{topic_name}: keeps its source's append times as the records' own, for which every batch")
    plan = plan_topics(source, target, flow(source, target, [topic_name], append_time="target"))
    assert plan.creations[0].configs["message.timestamp.type"] == "LogAppendTime"
    (text,) = advice(plan)
    assert text.startswith(f"{topic_name}: stamps records itself")


def test_an_existing_target_topic_must_fit(source: Admin, target: Admin, topic_name: str) -> None:
    made(source, topic_name, partitions=2)
    made(target, topic_name, partitions=3, configs={"cleanup.policy": "compact", "compression.type": "zstd"})
    plan = plan_topics(source, target, flow(source, target, [topic_name], {"configs": False}))
    assert len(refusals(plan)) == 2
    assert any("has compression.type=zstd: batches of another codec are recompressed" in text for text in advice(plan))
    with pytest.raises(PreflightError) as caught:
        apply(target, plan)
    assert f"{topic_name}: has 3 partitions where {topic_name} has 2" in str(caught.value)
    assert f"{topic_name}: is compacted and its source is not" in str(caught.value)


def test_append_times_become_the_records_own_at_a_cost(source: Admin, target: Admin, topic_name: str) -> None:
    made(source, topic_name, configs={"message.timestamp.type": "LogAppendTime"})
    made(target, topic_name)
    plan = plan_topics(source, target, flow(source, target, [topic_name], {"configs": False}))
    assert refusals(plan) == []
    assert any("topics.append_time: target costs nothing" in text for text in advice(plan))


def test_every_wrong_name_is_reported(source: Admin, target: Admin, topic_name: str) -> None:
    made(source, topic_name)
    made(source, f"{topic_name}-2")
    include = [topic_name, f"{topic_name}-2", f"{topic_name}x"]
    naming = {"rename": {topic_name: "one", f"{topic_name}-2": "one", "unused": "other"}}
    plan = plan_topics(source, target, flow(source, target, include, naming=naming))
    assert any(
        f"{topic_name}x: no such topic on cluster eu; did you mean {topic_name}" in text for text in refusals(plan)
    )
    assert (
        f"one: would be the copy of {topic_name} and {topic_name}-2; change topics.naming, or exclude it"
        in refusals(plan)
    )
    assert "unused: is in topics.naming.rename and is not among the mirrored topics" in advice(plan)
    with pytest.raises(PreflightError):
        apply(target, plan)
    assert target.describe(["one"]) == {}


def test_patterns_that_match_nothing(source: Admin, target: Admin, topic_name: str) -> None:
    plan = plan_topics(source, target, flow(source, target, [f"{topic_name}.*"]))
    (text,) = refusals(plan)
    assert text.startswith(
        "no topic on cluster eu matches topics.include and escapes topics.exclude: to mirror nothing"
    )
    assert text.endswith("; change topics.include or topics.exclude")


def test_a_target_name_that_is_not_legal(source: Admin, target: Admin, topic_name: str) -> None:
    made(source, topic_name)
    plan = plan_topics(source, target, flow(source, target, [topic_name], naming={"prefix": "x" * 249}))
    assert any("is not legal; change topics.naming" in text for text in refusals(plan))


def test_missing_topics_are_refused_when_creating_is_switched_off(
    source: Admin, target: Admin, topic_name: str
) -> None:
    made(source, topic_name)
    plan = plan_topics(source, target, flow(source, target, [topic_name], {"topics": False}))
    assert plan.creations == ()
    assert refusals(plan) == [f"{topic_name}: does not exist and sync.topics is false; create it, or set that to true"]


@pytest.mark.parametrize("naming", ["identity", {"prefix": "copy-"}], ids=str)
def test_one_cluster_as_both_ends(source: Admin, topic_name: str, naming: Any) -> None:
    made(source, topic_name)
    other = Admin(cluster_settings("us", source.settings.bootstrap_servers))
    plan = plan_topics(source, other, flow(source, other, [topic_name], naming=naming))
    assert refusals(plan) == ["source and target are the same cluster, by its id; check bootstrap.servers of both"]


def test_a_topic_that_appears_between_plan_and_apply(source: Admin, target: Admin, topic_name: str) -> None:
    made(source, topic_name, partitions=2)
    plan = plan_topics(source, target, flow(source, target, [topic_name]))
    made(target, topic_name, partitions=2)
    with pytest.raises(PreflightError, match="somebody else created it just now"):
        apply(target, plan)
    failures: dict[str, MirrorError] = {}
    assert not apply(target, plan, failures)
    assert failures.keys() == {topic_name}


def test_flow_topic(target: Admin, topic_name: str) -> None:
    assert ensure_flow_topic(target, topic_name) == f"mirror.{topic_name}.offsets"
    name = ensure_flow_topic(target, topic_name)
    (info,) = target.describe([name]).values()
    assert len(info.partitions) == 1
    own = {key: found.value for key, found in target.topic_configs([name])[name].items() if not found.is_default}
    assert own == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "message.timestamp.after.max.ms": str(NO_LIMIT),
        "message.timestamp.before.max.ms": str(NO_LIMIT),
        "min.cleanable.dirty.ratio": "0.1",
        "segment.bytes": "8388608",
        "segment.ms": "3600000",
    }


@pytest.mark.parametrize(
    ("rights", "init_producer_id", "may"),
    [({"ALTER"}, 5, True), ({"ALTER"}, 4, False), ({"CLUSTER_ACTION"}, 4, True), ({"DESCRIBE"}, 5, False)],
)
def test_who_may_write_markers(
    target: Admin, monkeypatch: pytest.MonkeyPatch, rights: set[str], init_producer_id: int, may: bool
) -> None:
    monkeypatch.setattr(target, "rights", lambda: frozenset(rights))

    async def newest(*_: object, **__: object) -> int:
        return init_producer_id

    monkeypatch.setattr(client, "newest_version", newest)
    assert target.may_write_markers() is may


def test_the_newest_version_of_a_request_is_that_of_a_broker(target: Admin) -> None:
    asked = partial(newest_version, api=INIT_PRODUCER_ID)
    assert Wire(target.settings).ask("ask", 8.0, asked) >= 5
    nowhere = cluster_settings("us", "127.0.0.1:1")
    with pytest.raises(ClusterUnreachable, match=r"^cluster us \(127\.0\.0\.1:1\): cannot ask: "):
        Wire(nowhere).ask("ask", 0.2, asked)


# --- a cluster with rights and with defaults of its own ---------------------------------------------------------------


@pytest.fixture(scope="module")
def strict_cluster() -> Iterator[Cluster]:
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "min.insync.replicas": "2",
        "log.retention.ms": "60000",
    }
    with Cluster.start(name="strict", config=config) as cluster:
        yield cluster


@contextmanager
def denied(admin: Admin, kind: ResourceType, name: str, attempt: Callable[[], object]) -> Iterator[AccessDenied]:
    """While inside, nobody may describe these configs: entered when `attempt` is refused, left when it works again."""
    direct = AdminClient({"bootstrap.servers": admin.settings.bootstrap_servers})
    rule = (kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
    added = [
        AclBinding(*rule, AclOperation.DESCRIBE_CONFIGS, AclPermissionType.DENY),
        AclBinding(*rule, AclOperation.ALL, AclPermissionType.ALLOW),  # or the first rule would lock out everybody
    ]
    put_acls(direct, every_acl(kind, name), added)
    refused = awaited(attempt, lambda error: error is not None)
    assert refused is not None
    try:
        yield refused
    finally:
        put_acls(direct, every_acl(kind, name), [])
        awaited(attempt, lambda error: error is None)


def awaited(attempt: Callable[[], object], wanted: Callable[[AccessDenied | None], bool]) -> AccessDenied | None:
    deadline = time.monotonic() + 10
    while True:
        found = None
        try:
            attempt()
        except AccessDenied as error:
            found = error
        if wanted(found):
            return found
        assert time.monotonic() < deadline, f"still {found}"
        time.sleep(0.02)


def test_rights_that_are_missing(strict_cluster: Cluster, topic_name: str) -> None:
    strict = Admin(cluster_settings("strict", strict_cluster.bootstrap))
    made(strict, topic_name)
    with denied(strict, ResourceType.TOPIC, topic_name, lambda: strict.topic_configs([topic_name])) as error:
        assert str(error).startswith(f"cluster strict ({strict_cluster.bootstrap}): cannot describe configs of topic")
        assert topic_name in str(error)


def test_a_missing_right_is_refused_with_the_command_that_gives_it(
    strict_cluster: Cluster, target: Admin, topic_name: str
) -> None:
    strict = Admin(cluster_settings("strict", strict_cluster.bootstrap))
    made(strict, topic_name)
    with denied(strict, ResourceType.TOPIC, topic_name, lambda: strict.topic_configs([topic_name])):
        plan = plan_flow(flow(strict, target, [topic_name]))
    assert plan.topics is not None
    assert not plan.topics.allowed().has_topics, "the topic is refused by itself"
    by_itself, refusal = plan.refusals
    assert by_itself.startswith(f"{topic_name}: cluster strict")
    assert refusal == (
        f"no DESCRIBE_CONFIGS right on topic {topic_name} of cluster strict; grant it: kafka-acls.sh --bootstrap-server"
        f" {strict_cluster.bootstrap} --add --allow-principal User:PRINCIPAL --operation DescribeConfigs"
        f" --topic {topic_name}"
    )


def test_planning_without_the_right_to_read_broker_configs(
    source: Admin, strict_cluster: Cluster, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    strict = Admin(cluster_settings("strict", strict_cluster.bootstrap))
    made(source, topic_name)
    with denied(strict, ResourceType.BROKER, "kafka-cluster", strict.broker_configs):
        plan = plan_topics(source, strict, flow(source, strict, [topic_name]))
    assert plan.findings == ()
    assert plan.creations[0].configs["message.timestamp.after.max.ms"] == str(NO_LIMIT)
    assert "broker_configs_hidden" in capfd.readouterr().err


def test_defaults_of_the_target_are_taken_into_account(source: Admin, strict_cluster: Cluster, topic_name: str) -> None:
    strict = Admin(cluster_settings("strict", strict_cluster.bootstrap))
    made(source, topic_name)
    plan = plan_topics(source, strict, flow(source, strict, [topic_name]))
    assert refusals(plan) == []
    (advised,) = advice(plan)
    assert advised.startswith(f"{topic_name}: needs 2 in-sync replicas and has 1 in all")
    assert plan.creations[0].configs["retention.ms"] == "604800000", "the source's, not the target's default"


def test_the_sources_defaults_travel(strict_cluster: Cluster, target: Admin, topic_name: str) -> None:
    strict = Admin(cluster_settings("strict", strict_cluster.bootstrap))
    made(strict, topic_name)
    (creation,) = plan_topics(strict, target, flow(strict, target, [topic_name])).creations
    assert creation.configs["retention.ms"] == "60000"
    assert "min.insync.replicas" not in creation.configs


def test_brokers_that_do_not_agree_change_no_copy(target: Admin, topic_name: str) -> None:
    """As in a rolling change of a default, which brokers may begin and take back: whichever is asked."""
    (cluster,) = start_many([Spec(name="two", nodes=2)])
    with cluster:
        two = Admin(cluster_settings("two", cluster.bootstrap))
        client = AdminClient({"bootstrap.servers": cluster.bootstrap})

        def keep(node: int, retention: str) -> None:
            entry = ConfigEntry("log.retention.ms", retention, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.BROKER, str(node), incremental_configs=[entry])
            for future in client.incremental_alter_configs([resource]).values():
                future.result(20)
            until(lambda: said(node) == retention, lambda: f"{node}: {said(node)}")

        def said(node: int) -> str:
            (future,) = client.describe_configs([ConfigResource(ConfigResource.Type.BROKER, str(node))]).values()
            return str(future.result(20)["log.retention.ms"].value)

        nodes = sorted(client.list_topics(timeout=20).brokers)
        made(two, topic_name)
        made(two, f"{topic_name}-later")
        settings = flow(two, target, [topic_name])
        apply(target, plan_topics(two, target, settings))
        for node in nodes:
            keep(node, "60000")
            plan = plan_topics(two, target, settings)
            assert (plan.changes, refusals(plan)) == ((), [])
            later = plan_topics(two, target, flow(two, target, [f"{topic_name}-later"]))
            assert [one.configs["retention.ms"] for one in later.creations] == ["604800000"]
            (advised,) = advice(later)
            assert "brokers of cluster two do not agree on retention.ms of topic" in advised
            keep(node, "604800000")
        for node in nodes:
            keep(node, "60000")
        plan = plan_topics(two, target, settings)
        assert [(one.name, one.after) for one in plan.changes] == [("retention.ms", "60000")]
        apply(target, plan, source=two)
        assert target.topic_configs([topic_name])[topic_name]["retention.ms"].value == "60000"
