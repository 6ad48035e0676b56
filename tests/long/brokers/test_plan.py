"""`mirror plan`: what would change, in words and in JSON, and that nothing is left to do after a run (real brokers)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Watermark
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from helpers import config_file, make_topic, produce, settings_between
from hypothesis import given as given_by
from hypothesis import strategies as st
from sparkless import run_once
from syncing import delete_topics, made_by, write_journal
from typer.testing import CliRunner

from mirror.cli import app
from mirror.commands.plan import created, folded
from mirror.config import ClusterSettings, SyncSettings, parse_address
from mirror.driver.flow import prepare
from mirror.errors import ExitCode
from mirror.failover.drain import drain
from mirror.journal.entries import FirstSeen
from mirror.journal.journal import OWNER, Entry, Journal
from mirror.journal.ownership import KEY, FailedOver, Owner
from mirror.journal.positions import lifted_entry, stop_entry
from mirror.kafka.admin import Admin, Creation, Growth
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.topic_configs import ConfigChange, ConfigValue, agreed, plain_values
from mirror.lab.embedded import Cluster
from mirror.policy.remedies import allow
from mirror.policy.selection import TopicPair
from mirror.replication.assignment import KnownStop
from mirror.states import State
from mirror.topics.acls import Acl, given_entries, given_in, plan_acls, wanted
from mirror.topics.apply import ensure_flow_topic
from mirror.topics.configs import changes_to, configs_for, follows


def value(text: str, *, default: bool = False) -> ConfigValue:
    return ConfigValue(value=text, is_default=default)


# --- the command that gives rights (pure) -----------------------------------------------------------------------------


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
    parts = folded(line, 60)
    assert parts == [
        "+ create orders: 3 partitions, 1 replica;",
        "    cleanup.policy=delete, retention.ms=604800000,",
        "    segment.ms=3600000",
    ]
    expected = "refused: no READ right; grant it: " + allow(Endpoint("us", (("us1", 9092),)), "READ", topic="orders")
    assert folded(expected, 60) == [expected], "to be copied in one piece"


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
    assert list(created(made))[-1] == "+ each of these 2 topics with cleanup.policy=delete, retention.ms=1000"
    assert list(created(made[:1])) == ["+ create a: 2 partitions, 1 replica; cleanup.policy=delete, retention.ms=1000"]
    assert list(created([])) == []


# --- which settings follow (pure) -------------------------------------------------------------------------------------


def changed(theirs: dict[str, ConfigValue], ours: dict[str, ConfigValue], **sync: Any) -> list[tuple[str, str | None]]:
    settings = SyncSettings.model_validate(sync)
    return [(one.name, one.after) for one in changes_to("t", theirs, ours, settings)]


def test_whose_append_times_a_copy_shows_is_settled_when_it_is_made() -> None:
    def found(value: str) -> ConfigValue:
        return ConfigValue(value=value, is_default=False)

    name, sync = "message.timestamp.type", SyncSettings()
    stamps, creates = {name: found("LogAppendTime")}, {name: found("CreateTime")}
    assert list(changes_to("t", creates, stamps, sync)) == []
    assert list(changes_to("t", stamps, stamps, sync)) == []
    assert [one.after for one in changes_to("t", creates, stamps, sync, "target")] == ["LogAppendTime"]
    assert [one.after for one in changes_to("t", stamps, creates, sync)] == ["CreateTime"], "the source's own times"


def test_what_holds_on_the_source_is_set_on_the_target() -> None:
    """I11: of what decides which records exist, the source's defaults win."""
    assert changed({"retention.ms": value("1", default=True)}, {"retention.ms": value("2", default=True)}) == [
        ("retention.ms", "2")
    ]
    assert changed({"retention.ms": value("2", default=True)}, {"retention.ms": value("2")}) == []


def test_a_source_override_that_goes_resets_the_target() -> None:
    """I12: of the rest, the target's defaults hold where the source has none of its own."""
    assert changed({"segment.ms": value("5")}, {"segment.ms": value("7", default=True)}) == [("segment.ms", None)]
    assert changed({"segment.ms": value("9", default=True)}, {"segment.ms": value("7", default=True)}) == []
    assert changed({"segment.ms": value("9", default=True)}, {"segment.ms": value("7")}) == [("segment.ms", "7")]


def test_settings_that_the_user_excludes_or_adds() -> None:
    """I10: an excluded setting keeps the target's value."""
    theirs, ours = {"retention.ms": value("1")}, {"retention.ms": value("2")}
    assert changed(theirs, ours, configs_exclude=["retention.*"]) == []
    assert changed(theirs, ours, configs=False) == []
    theirs, ours = {"vendor.tier": value("a", default=True)}, {"vendor.tier": value("b")}
    assert changed(theirs, ours) == []
    assert changed(theirs, ours, configs_include=["vendor.*"]) == [("vendor.tier", "b")]


@pytest.mark.parametrize("name", ["min.insync.replicas", "follower.replication.throttled.replicas", "compression.type"])
def test_a_clusters_own_safety_is_never_copied(name: str) -> None:
    assert not follows(name, SyncSettings.model_validate({"configs_include": [".*"]}))


def test_a_setting_that_the_target_does_not_know_is_left_out() -> None:
    assert changed({}, {"retention.ms": value("2")}) == []


# --- ACLs (pure) ------------------------------------------------------------------------------------------------------


def acl(name: str, operation: AclOperation, *, deny: bool = False, prefixed: bool = False) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    kind = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, name, pattern, "User:a", "*", operation, kind)


PAIRS = (
    TopicPair(source="orders", target="eu.orders", partitions=1),
    TopicPair(source="other", target="eu.other", partitions=1),
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (acl("orders", AclOperation.READ), [("eu.orders", "READ", True)]),
        (acl("orders", AclOperation.WRITE), []),
        (acl("orders", AclOperation.ALL), [("eu.orders", "READ", True)]),
        (acl("orders", AclOperation.DELETE), []),
        (acl("orders", AclOperation.ALL, deny=True), [("eu.orders", "READ", False)]),
        (acl("orders", AclOperation.WRITE, deny=True), []),
        (acl("orders", AclOperation.ALTER, deny=True), []),
        (acl("ord", AclOperation.READ, prefixed=True), [("eu.orders", "READ", True)]),
        (acl("ord", AclOperation.READ), []),
        (acl("*", AclOperation.DESCRIBE), [("eu.orders", "DESCRIBE", True), ("eu.other", "DESCRIBE", True)]),
        (acl("secret", AclOperation.READ), []),
    ],
    ids=str,
)
def test_acls_of_copies(given: AclBinding, expected: list[tuple[str, str, bool]]) -> None:
    copies = [("topic", pair.source, pair.target) for pair in PAIRS]
    assert [(one.name, one.operation, one.allowed) for one in wanted([given], copies)] == expected


def test_acls_of_groups_are_of_groups() -> None:
    rule = AclBinding(
        ResourceType.GROUP,
        "app",
        ResourcePatternType.PREFIXED,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    found = wanted([rule, acl("app-1", AclOperation.READ)], [("group", "app-1", "app-1"), ("group", "other", "other")])
    assert [str(one) for one in found] == ["group app-1: allow READ to User:a from *"]


def test_principals_by_a_list_and_by_a_map() -> None:
    rules = [replace_principal(acl("orders", AclOperation.READ), name) for name in ("User:a", "User:app-1", "User:x")]
    copies = [("topic", "orders", "orders")]
    listed = SyncSettings.model_validate({"acl_principals": ["User:app-.*"]}).acl_principals
    mapped = SyncSettings.model_validate({"acl_principals": {"User:a": "User:b", "User:app-.*": None}}).acl_principals
    assert [one.principal for one in wanted(rules, copies, listed)] == ["User:app-1"]
    assert [one.principal for one in wanted(rules, copies, mapped)] == ["User:b", "User:app-1"]
    assert [one.principal for one in wanted(rules, copies)] == ["User:a", "User:app-1", "User:x"]


def replace_principal(one: AclBinding, principal: str) -> AclBinding:
    kinds = one.restype, one.name, one.resource_pattern_type
    return AclBinding(*kinds, principal, one.host, one.operation, one.permission_type)


def test_what_the_flow_did_not_give_or_mirrors_no_more_is_not_taken_back() -> None:
    """Nor anything where the source is another cluster than the one that copies come from."""

    def side(*rules: AclBinding) -> Any:
        return SimpleNamespace(has_authorizer=lambda: True, acls=lambda _: rules)

    there = [acl("eu.orders", AclOperation.READ), acl("eu.orders", AclOperation.DESCRIBE)]
    there.append(acl("eu.left", AclOperation.READ))
    given = {Acl("topic", name, "User:a", "*", "READ", True) for name in ("eu.orders", "eu.left", "eu.gone")}
    plan = plan_acls(side(), side(*there), PAIRS, given=given)
    assert [str(one) for one in plan.revoked] == ["eu.orders: allow READ to User:a from *"]
    assert not plan.missing
    assert plan.giving_alone((), "here") == plan
    elsewhere = plan.giving_alone(("there",), "here")
    assert (elsewhere.revoked, "copies come from cluster there" in elsewhere.blocker) == ((), True)


@given_by(
    st.dictionaries(
        st.binary() | st.sampled_from([b"acl/topic/orders", b"acl/group/app", b"acl/topic", b"acl//"]),
        st.binary() | st.sampled_from([b"[]", b"{}", b"[[1]]", b'[["User:a","*","READ",true]]', b'[["a","b","NO",1]]']),
    )
)
def test_what_was_given_is_read_from_any_journal(journal: dict[bytes, bytes]) -> None:
    given_in(journal)


def test_what_was_given_is_read_as_it_was_written() -> None:
    rules = {
        Acl("topic", "orders", "User:a", "*", "READ", True),
        Acl("group", "app/1", "User:ä", "h", "DESCRIBE", False),
    }
    entries = given_entries(rules, [one.resource for one in rules] + [("topic", "other")])
    assert given_in({key: value for key, value in entries if value is not None}) == rules
    assert (b"acl/topic/other", None) in entries


# --- the command ------------------------------------------------------------------------------------------------------


def planned(config: Path) -> tuple[int, dict[str, Any]]:
    shown = CliRunner().invoke(app, ["plan", str(config), "--json"])
    assert shown.exception is None or isinstance(shown.exception, SystemExit), shown.output
    return shown.exit_code, json.loads(shown.stdout)


@pytest.mark.brokers
def test_plan_then_run_then_nothing_to_do(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 2, {"retention.ms": "7200000", "segment.ms": "3600000"})
    produce(source, topic_name, [b"x"] * 30)
    trimmed(source, topic_name, 20)
    copy = f"eu.{topic_name}"

    ahead = config_file(
        tmp_path, source, target, [topic_name], f"{topic_name}-ahead", naming={"prefix": "eu."}, start="2999-01-01"
    )
    assert "is in the future: of what is there now nothing is mirrored" in planned(ahead)[1]["advice"][0]
    config = config_file(tmp_path, source, target, [topic_name], topic_name, naming={"prefix": "eu."})
    code, reported = planned(config)
    assert code == ExitCode.CHANGES
    assert (reported["source"]["cluster_id"], reported["target"]["cluster_id"]) == (
        own_source.cluster_id,
        own_target.cluster_id,
    )
    assert [(one["topic"], one["partitions"]) for one in reported["create"]] == [(copy, 2)]
    assert reported["own_topics"] == [f"mirror.{topic_name}.offsets", f"mirror.{topic_name}.heartbeats"]
    assert [(one["topic"], one["partition"], one["offsets"]) for one in reported["padding"]] == [(copy, 0, 20)]
    assert planned(config) == (code, reported), "planning changed something"
    shown = CliRunner().invoke(app, ["plan", str(config)])
    assert shown.exit_code == ExitCode.CHANGES
    assert f"+ create {copy}: 2 partitions, 1 replica" in shown.stdout
    assert f"~ {copy}-0: pad 20 offsets before its first record" in shown.stdout
    assert f"(cluster id {own_target.cluster_id})" in shown.stdout

    settings = settings_between(source, target, [topic_name], topic_name, naming={"prefix": "eu."})
    asyncio.run(drain(prepare(settings, once=True)))
    code, reported = planned(config)
    assert (code, reported["changes"]) == (ExitCode.DONE, False), reported
    assert CliRunner().invoke(app, ["plan", str(config)]).stdout.endswith("nothing to do\n")

    # What there is on both sides is compared, and what rests is named.
    produce(source, topic_name, [b"y"] * 5)
    assert CliRunner().invoke(app, ["pause", str(config), topic_name]).exit_code == 0
    code, reported = planned(config)
    assert (code, reported["paused"]) == (ExitCode.DONE, [topic_name])
    extent = {"source": topic_name, "target": copy, "source_offsets": 15, "target_offsets": 10, "behind": 5}
    assert reported["copies"] == [extent]
    shown = CliRunner().invoke(app, ["plan", str(config)])
    assert (
        f"  {topic_name}: 15 offsets, its copy {copy} 10; 5 offsets to copy\n1 copy there, of which 1" in shown.stdout
    )
    assert f"advice: {topic_name}: paused; nothing of it is mirrored before mirror resume CONFIG" in shown.stdout
    assert CliRunner().invoke(app, ["resume", str(config), topic_name]).exit_code == 0
    assert planned(config)[1]["paused"] == []

    # What changes on the source is the next plan.
    admin = Admin(settings.source)
    admin.create_partitions([Growth(topic=topic_name, before=2, partitions=3)])
    admin.alter_configs(
        [
            ConfigChange(topic=topic_name, name="segment.ms", before=None, after=None),
            ConfigChange(topic=topic_name, name="retention.ms", before=None, after="3600000"),
        ]
    )
    code, reported = planned(config)
    assert code == ExitCode.CHANGES
    assert reported["add_partitions"] == [{"topic": copy, "before": 2, "partitions": 3}]
    assert {(one["name"], one["before"], one["after"]) for one in reported["configs"]} == {
        ("segment.ms", "3600000", None),
        ("retention.ms", "7200000", "3600000"),
    }
    flow = prepare(settings)
    assert {(one.source.partition, one.target.topic) for one in flow.assignments} == {(n, copy) for n in range(3)}
    assert planned(config)[0] == ExitCode.DONE


@pytest.mark.brokers
def test_a_start_reads_the_journal_once(
    own_source: Cluster, own_target: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows with the number of partitions, and is read whole: what the start needs is taken from one reading."""
    make_topic(own_source.bootstrap, topic_name)
    settings = settings_between(own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    read, readings = Journal._read, list[str]()

    async def noted(journal: Journal, at: int, end: int) -> tuple[list[Entry], int, int, int]:
        if end > at == 0:  # the source may hold those of other flows
            readings.append(journal.flow)
        return await read(journal, at, end)

    monkeypatch.setattr(Journal, "_read", noted)
    prepare(settings)
    assert readings.count(topic_name) == 0, "there is none yet"
    write_journal(settings, (OWNER, Owner.here("this").to_json()))
    make_topic(own_source.bootstrap, f"{topic_name}-more")
    more = settings_between(own_source.bootstrap, own_target.bootstrap, [f"{topic_name}.*"], topic_name)
    prepare(more)  # which makes a topic, and looks right before whether the flow was failed over
    assert readings.count(topic_name) == 1


@pytest.mark.brokers
def test_everything_that_is_refused_is_reported(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    make_topic(own_source.bootstrap, topic_name)
    make_topic(own_target.bootstrap, topic_name, 2)
    config = config_file(
        tmp_path, own_source.bootstrap, own_target.bootstrap, [topic_name, f"{topic_name}x"], topic_name
    )
    code, reported = planned(config)
    assert code == ExitCode.PREFLIGHT
    assert any("has 2 partitions where" in text for text in reported["refused"])
    assert any("no such topic on cluster eu; did you mean" in text for text in reported["refused"])


@pytest.mark.brokers
def test_topics_that_were_recreated_or_deleted_are_named(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """With the ids and the command, as `mirror status` names them once a mirror has run."""
    source, target = own_source.bootstrap, own_target.bootstrap
    anew, gone = f"{topic_name}-anew", f"{topic_name}-gone"
    for name in (anew, gone):
        make_topic(source, name, 2)
    config = config_file(tmp_path, source, target, [f"{topic_name}-.*"], topic_name)
    settings = settings_between(source, target, [f"{topic_name}-.*"], topic_name)
    prepare(settings)
    seen = made_by(settings, [anew, gone])
    write_journal(settings, *((one.key(name), one.to_json()) for name, one in seen.items()))
    assert planned(config)[0] == ExitCode.DONE
    delete_topics(source, anew, gone)
    make_topic(source, anew)
    code, reported = planned(config)
    assert code == ExitCode.PREFLIGHT
    now = made_by(settings, [anew])[anew].topic_id
    (refusal,) = reported["refused"]
    assert refusal == (
        f"{anew}: RECREATED: the source topic was recreated: its id was {seen[anew].topic_id} and is {now}. To keep"
        " the copy and to mirror the topic into another one, name that in topics.naming.rename and send the mirror"
        f" SIGHUP. Where the new topic holds what the copy has, run `mirror adopt CONFIG {anew}`, which compares them."
        f" To begin anew with what the source has now: kafka-topics.sh --bootstrap-server {target} --delete"
        f" --topic {anew}"
    )
    assert (
        f"{gone}: the source topic was deleted, and its copy {gone} on cluster us is left as it is"
        in reported["advice"]
    )
    delete_topics(target, anew, gone)
    code, reported = planned(config)
    assert (code, reported["refused"], [one for one in reported["advice"] if gone in one]) == (ExitCode.CHANGES, [], [])


@pytest.mark.brokers
def test_a_stop_that_stands_is_named_until_it_is_lifted(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """Each partition's, in the words of `mirror status`; a policy may go on behind it, and another copy begins anew."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name, 3)
    settings = settings_between(source, target, [topic_name], topic_name)
    prepare(settings)
    seen = made_by(settings, [topic_name])[topic_name]
    cut, lost = (
        KnownStop(
            state=state,
            offset=7,
            detail="a log was cut",
            advice="Do this",
            source_topic_id=seen.topic_id,
            target_topic_id=seen.target_topic_id,
        )
        for state in (State.TRUNCATED, State.TARGET_LOST)
    )
    stopped = [TopicPartition(topic_name, number) for number in (1, 2)]
    entries = [stop_entry(at, stop) for at, stop in zip(stopped, (cut, lost), strict=True)]
    write_journal(settings, (seen.key(topic_name), seen.to_json()), *entries)
    goes_on = {"on_data_loss": "continue"}
    first, second = (
        f"{state}: {topic_name}-{number} at offset 7: a log was cut. Do this"
        for number, state in enumerate((State.TRUNCATED, State.TARGET_LOST), 1)
    )
    for more, named in (({}, [first, second]), (goes_on, [first]), ({"offsets": "translate"}, [first, second])):
        config = config_file(tmp_path, source, target, [topic_name], topic_name, **more)
        code, reported = planned(config)
        assert (code, reported["refused"]) == (ExitCode.PREFLIGHT, named)
    config = config_file(tmp_path, source, target, [topic_name], topic_name)
    write_journal(settings, lifted_entry(stopped[0]))
    assert planned(config)[1]["refused"] == [second]
    delete_topics(target, topic_name)
    code, reported = planned(config)
    assert (code, reported["refused"]) == (ExitCode.CHANGES, []), "the stop was another copy's"


@pytest.mark.brokers
def test_a_topic_that_comes_from_the_target_is_refused(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """A flow the other way names itself in its journal, which stands on our source; one that failed over let go."""
    make_topic(own_source.bootstrap, topic_name)
    other = f"{topic_name}-back"
    ensure_flow_topic(
        Admin(ClusterSettings.model_validate({"alias": "eu", "bootstrap.servers": own_source.bootstrap})), other
    )
    config = config_file(tmp_path, own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)

    def seen_by_the_other(key: bytes, text: bytes) -> None:
        async def append() -> None:
            async with Wire(Endpoint("eu", (parse_address(own_source.bootstrap),))) as cluster:
                await Journal(cluster, other).append([(key, text)])

        asyncio.run(append())

    seen = FirstSeen(source_topic=topic_name, topic_id=None, target_topic_id=None, cluster_id="elsewhere")
    seen_by_the_other(FirstSeen.key(topic_name), seen.to_json())
    assert planned(config)[0] == ExitCode.CHANGES, "it comes from a third cluster"
    seen = replace(seen, cluster_id=own_target.cluster_id)
    seen_by_the_other(FirstSeen.key(topic_name), seen.to_json())
    code, reported = planned(config)
    assert code == ExitCode.PREFLIGHT
    (refusal,) = reported["refused"]
    assert refusal.startswith(f"{topic_name}: comes from cluster us: flow {other} mirrors it")
    seen_by_the_other(KEY, b"{}")
    assert planned(config) == (code, reported), "a failover that cannot be read ends no flow"
    seen_by_the_other(KEY, FailedOver.here().to_json())
    assert planned(config)[0] == ExitCode.CHANGES
    back = config_file(tmp_path, own_target.bootstrap, own_source.bootstrap, [topic_name], other)
    make_topic(own_target.bootstrap, topic_name)
    code, reported = planned(back)
    assert (code, reported["refused"][0].startswith("the flow was failed over at 20")) == (ExitCode.PREFLIGHT, True)
    seen_by_the_other(KEY, b"{}")
    code, reported = planned(back)
    assert (code, "cannot be read (ValueError" in reported["refused"][0]) == (ExitCode.PREFLIGHT, True)


def trimmed(bootstrap: str, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_records([Watermark(topic, 0, before)]).values()
    deleted.result(20)


@pytest.mark.parametrize(
    ("name", "said", "value"),
    [
        ("retention.ms", ["60000", "604800000"], "604800000"),
        ("retention.bytes", ["1000", "-1", "5"], "-1"),
        ("cleanup.policy", ["delete", "compact"], "delete"),
    ],
)
def test_what_brokers_do_not_agree_on_keeps_the_most(name: str, said: list[str], value: str) -> None:
    answers = [{name: ConfigValue(value=one, is_default=True)} for one in said]
    assert agreed(answers) == {name: ConfigValue(value=value, is_default=True, is_disputed=True)}
    assert agreed(answers[:1]) == answers[0]


def test_a_copy_gets_a_value_of_its_own_where_its_brokers_do_not_agree() -> None:
    ours, theirs = (
        {"retention.ms": ConfigValue(value="60000", is_default=True, is_disputed=one)} for one in (False, True)
    )
    assert [(one.name, one.after) for one in changes_to("t", theirs, ours, SyncSettings())] == [
        ("retention.ms", "60000")
    ]
    assert list(changes_to("t", ours, theirs, SyncSettings())) == []


@pytest.mark.parametrize(("lag", "changed"), [("5", []), ("500", ["min.compaction.lag.ms"])])
def test_what_decides_together_which_records_there_are_changes_together(lag: str, changed: list[str]) -> None:
    """A topic became one that is deleted from while its brokers did not agree for how long: the copy was deleted from
    at once, by a retention that it had without effect.
    """
    own, default = partial(ConfigValue, is_default=False), partial(ConfigValue, is_default=True)
    theirs = {
        "cleanup.policy": own(value="compact"),
        "retention.ms": own(value="60000"),
        "min.compaction.lag.ms": own(value="50"),
        "max.message.bytes": own(value="1"),
    }
    ours = {
        "cleanup.policy": own(value="compact,delete"),
        "retention.ms": default(value="604800000", is_disputed=True),
        "min.compaction.lag.ms": own(value=lag),
        "max.message.bytes": own(value="2"),
    }
    changes = changes_to("t", theirs, ours, SyncSettings())
    assert [one.name for one in changes] == ["max.message.bytes", *changed]


@pytest.mark.parametrize("policy", ["compact", "delete,compact", "delete"])
def test_a_compacted_topic_is_compacted_when_its_source_is(policy: str) -> None:
    """Its source's brokers had another default: the copy was compacted a day sooner."""
    default = partial(ConfigValue, is_default=True)
    ours, theirs = (
        {"cleanup.policy": default(value=policy), "min.compaction.lag.ms": default(value=lag)}
        for lag in ("86400000", "0")
    )
    lag = {"min.compaction.lag.ms": "86400000"} if "compact" in policy else {}
    assert {one.name: one.after for one in changes_to("t", theirs, ours, SyncSettings())} == lag
    defaults = plain_values(theirs)
    made = configs_for(ours, defaults, SyncSettings())
    assert {name: made[name] for name in made if name.startswith("min.")} == lag
    assert "min.compaction.lag.ms" not in configs_for(ours, plain_values(ours), SyncSettings())


@pytest.mark.brokers
def test_what_the_source_deleted_before_it_was_mirrored_is_refused_until_it_is_accepted(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """What a start may find resolved is advice alone."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"x"] * 50)
    settings = settings_between(source, target, [topic_name], topic_name)
    run_once(settings)
    produce(source, topic_name, [b"x"] * 50)
    trimmed(source, topic_name, 80)
    assert [one.state for one in run_once(settings).stops] == [State.RETENTION_GAP]
    config = config_file(tmp_path, source, target, [topic_name], topic_name)
    code, reported = planned(config)
    (refusal,) = reported["refused"]
    assert (code, refusal.startswith(f"{topic_name}-0: RETENTION_GAP: ")) == (ExitCode.PREFLIGHT, True)
    assert f"mirror accept CONFIG {topic_name}" in refusal
    assert CliRunner().invoke(app, ["accept", str(config), topic_name]).exit_code == ExitCode.DONE
    code, reported = planned(config)
    assert (code, reported["refused"]) == (ExitCode.DONE, [])
    stopped = next(one for one in run_once(settings).figures.values())
    fenced = replace(stopped, state=State.FENCED, detail="another wrote")
    write_journal(settings, (fenced.key(), fenced.to_json()))
    code, reported = planned(config)
    assert (code, reported["refused"]) == (ExitCode.DONE, [])
    text = f"{topic_name}-0: FENCED: another wrote (when a mirror ran last; one that starts looks again)"
    assert text in reported["advice"]
