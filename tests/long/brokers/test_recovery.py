"""A whole cluster is lost, and comes back from its disks: records, settings, and groups that go on where they were."""

from __future__ import annotations

import base64
import json
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from brokerlogs import folders_of
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient, NewTopic
from groupoffsets import commit, committed
from helpers import config_file, make_topic, produce, settings_between
from running import wait_for
from samerecords import read
from transactional import transactions

from mirror.commands import restore as command
from mirror.commands.restore_view import Report
from mirror.config import Settings, load
from mirror.errors import ExitCode
from mirror.kafka.admin import Admin, Creation
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.groups import Committed
from mirror.kafka.topic_configs import ConfigValue
from mirror.lab.embedded import Cluster
from mirror.policy.rules import Rules
from mirror.policy.selection import TopicPair
from mirror.replication.assignment import Assignment
from mirror.segments.cluster_logs import Commit, GroupOffsets
from mirror.segments.file_cluster import Bounds
from mirror.segments.restore import KEEPING, RestoredPartition, found_groups
from mirror.spark.restore import Restored
from mirror.topics.configs import plan_settings

SETTINGS = {
    "orders": {"cleanup.policy": "compact", "max.message.bytes": "2000000", "min.insync.replicas": "1"},
    "clicks": {"retention.ms": "86400000", "segment.ms": "3600000"},
    "plain": {},
}
#: What is not set before everything is checked.
HELD = {"clicks": {"retention.ms": "86400000"}}


def now(**values: str) -> dict[str, ConfigValue]:
    """Settings of a copy as a restore makes it, and some by their brokers' default."""
    made = {name: ConfigValue(value=value, is_default=False) for name, value in KEEPING.items()}
    return made | {name: ConfigValue(value=value, is_default=True) for name, value in values.items()}


def test_what_is_set_held_and_left() -> None:
    found = {
        "cleanup.policy": "compact",
        "retention.ms": "7",
        "message.timestamp.type": "LogAppendTime",
        "segment.ms": "9",
        "min.insync.replicas": "2",
        "remote.storage.enable": "true",
        "of.another.kafka": "x",
        "flush.ms": "3",
    }
    there = now(**{"segment.ms": "1", "min.insync.replicas": "1", "remote.storage.enable": "false"})
    there["flush.ms"] = ConfigValue(value="4", is_default=False)  # somebody set it
    plan = plan_settings("orders", found, there, KEEPING, replicas=1, is_own=True)
    assert {one.name: one.after for one in plan.changes} == {"cleanup.policy": "compact", "segment.ms": "9"}
    assert plan.held == {"retention.ms": "7", "message.timestamp.type": "LogAppendTime"}
    assert plan.by_default == ("retention.bytes",)
    assert plan.left.keys() == {"min.insync.replicas", "remote.storage.enable", "of.another.kafka", "flush.ms"}
    foreign = plan_settings("orders", found, there, KEEPING, replicas=3, is_own=False)
    assert (foreign.changes, foreign.by_default) == ((), ())
    assert foreign.held.keys() == found.keys() - {"remote.storage.enable", "of.another.kafka"}


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_is_not_set_of_a_topic_in_part_is_said_with_its_command(
    capsys: pytest.CaptureFixture[str], *, dry_run: bool
) -> None:
    """Also by a dry run, and what may never be whole is not said to come with another restore alone."""
    at = TopicPartition("orders", 0)
    settings = plan_settings("orders", {"cleanup.policy": "compact"}, now(), KEEPING, replicas=1, is_own=True)
    plan: Any = SimpleNamespace(
        pairs=[TopicPair(source="orders", target="orders", partitions=1)], creations=(), findings=(), target_topics={}
    )
    report = Report(plan, Endpoint("target", ()), {}, {at: []}, [], dry_run, settings={"orders": settings})
    mine = Assignment(source=at, target=at, topic_id=None, rules=Rules())
    report.results.append(Restored(assignment=mine, at_risk=True))
    report.unset = command.unset_in_part(report)
    report.print()
    printed = " ".join(capsys.readouterr().out.split())
    done = "would not be set" if dry_run else "not set"
    assert f"orders: {done} as on the lost cluster: cleanup.policy=compact: the topic is not there whole" in printed
    assert re.search(
        "where nothing more is to be found, set them yourself. To set them: kafka-configs.*=compact", printed
    )
    said = report.as_dict()["settings"]["orders"]
    assert (said["applied"], said["not_applied"]) == ({}, {"cleanup.policy": "compact"})


def fill(bootstrap: str, topic: str, partitions: int) -> None:
    """Keyed records, some of them overwritten, in each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "compression.type": "zstd"})
    for partition in range(partitions):
        for number in range(200):
            producer.produce(topic, b"value %d" % number, key=b"key %d" % (number % 50), partition=partition)
        producer.flush(60)
    assert not len(producer)


def commit_in_transaction(bootstrap: str, group: str, topic: str, offset: int, *, ends_well: bool) -> None:
    """Offsets that count only with their transaction."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    client = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{group}-{uuid4().hex}"})
    client.init_transactions(60)
    client.begin_transaction()
    client.send_offsets_to_transaction([At(topic, 0, offset)], consumer.consumer_group_metadata(), 60)
    (client.commit_transaction if ends_well else client.abort_transaction)(60)
    consumer.close()


def next_value(bootstrap: str, group: str, topic: str) -> tuple[int, bytes]:
    """Offset and value of what a consumer of a group reads first in partition 0; a group without an offset fails."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    try:
        (at,) = consumer.committed([At(topic, 0)], timeout=60)
        consumer.assign([at])
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None, message.error()
        return message.offset() or 0, message.value() or b""
    finally:
        consumer.close()


def test_files_that_end_before_what_a_group_had_read_are_not_whole() -> None:
    """The records were committed, whatever a checkpoint of the high watermark, which may be older, says."""
    at = TopicPartition("orders", 0)
    one = RestoredPartition(assignment=Assignment(at, at, None, Rules()), bounds=Bounds(None, 0, 14, 14))
    for offset, is_whole in ((14, True), (15, False)):
        stored = GroupOffsets({"readers": {at: Commit(Committed(offset), None)}})
        report = found_groups(stored, [re.compile(".*")], [one])
        assert (report.is_whole, len(report.beyond)) == (is_whole, not is_whole)


def test_what_the_files_lack_of_groups_is_not_whole() -> None:
    """Offsets that nobody can read, those of a transaction without an end, and groups that no commit puts anywhere."""
    at, topic_id = TopicPartition("orders", 0), uuid4()
    one = RestoredPartition(assignment=Assignment(at, at, topic_id, Rules()), bounds=Bounds(topic_id, 0, 14, 14))
    commits = {at: Commit(Committed(5), None)}
    stored = {
        "whole": GroupOffsets(
            {"readers": commits}, share={"shared": {"clicks": uuid4()}, "former": {"orders": uuid4()}}
        ),
        "lacking": GroupOffsets({"readers": commits}, is_whole=False),
        "undecided": GroupOffsets({"readers": commits}, undecided={"readers": {at}}),
        "share": GroupOffsets({"readers": commits}, share={"shared": {"orders": topic_id}}),
        "streams": GroupOffsets({"readers": commits, "flow": {at: Commit(Committed(20), None)}}, streams={"flow"}),
    }
    for name, of in stored.items():
        report = found_groups(of, [re.compile(".*")], [one])
        assert report.is_whole is (name == "whole"), name
        assert report.offsets == {"readers": {at: Committed(5)}}
        named = {"share": [("shared", "it read orders-0")], "streams": [("flow", "it read orders-0 at offset 20")]}
        assert [(blocker.group, blocker.detail) for blocker in report.blockers] == named.get(name, [])
    assert found_groups(stored["share"], [re.compile("readers")], [one]).is_whole


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_a_cluster_that_is_lost_goes_on_elsewhere(
    own_target: Cluster, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three brokers, killed together; their disks; another cluster. Topics have settings of their own, groups offsets,
    some of these by transactions.
    """
    target = own_target.bootstrap
    with Cluster.start(nodes=3, name="lost", folder=tmp_path / "lost") as lost:
        source = lost.bootstrap.split(",", maxsplit=1)[0]
        topics = {kind: f"{kind}-{topic_name}" for kind in SETTINGS}
        ours = settings_between(lost.bootstrap, target, list(topics.values()))
        theirs = Admin(ours.source)
        theirs.create_topics(
            [
                Creation(topic=topics[kind], partitions=2, replication_factor=3, configs=configs)
                for kind, configs in SETTINGS.items()
            ]
        )
        for kind in ("orders", "plain"):
            fill(source, topics[kind], 2)
        transactions(source, topics["clicks"], [True, False, True, False])
        groups = {kind: f"{kind}-of-{topic_name}" for kind in ("plain", "committed", "aborted", "end")}
        commit(source, groups["plain"], topics["orders"], 70)
        commit(source, groups["plain"], topics["orders"], 120)
        commit(source, groups["aborted"], topics["orders"], 40)
        commit(source, groups["end"], topics["clicks"], 24)
        commit_in_transaction(source, groups["committed"], topics["orders"], 150, ends_well=True)
        commit_in_transaction(source, groups["aborted"], topics["orders"], 160, ends_well=False)
        wanted = {name: [list(read(source, name, number)) for number in range(2)] for name in topics.values()}
        for number in range(3):
            lost.kill(number)

        disks = [node.data for node in lost.nodes]
        config = load(config_file(tmp_path, lost.bootstrap, target, list(topics.values()), flow=topic_name))

        def restore(**more: bool) -> tuple[int, Any]:
            capsys.readouterr()
            code = command.restore(config, disks, command.Wanted(**more), as_json=True)
            return code, json.loads(capsys.readouterr().out)

        code, planned = restore(dry_run=True)
        assert code == 10, planned
        code, reported = restore()
    assert code == 0, reported
    assert {name: [list(read(target, name, number)) for number in range(2)] for name in topics.values()} == wanted

    copies = Admin(ours.target).topic_configs(topics.values())
    for kind, configs in SETTINGS.items():
        held = HELD.get(kind, {})
        applied = {name: value for name, value in configs.items() if name not in held}
        for report in (planned, reported):
            found = report["settings"][topics[kind]]
            assert (found["found"], found["applied"], found["held"]) == (configs, applied, held)
        assert {name: copies[topics[kind]][name].value for name in applied} == applied
        assert copies[topics[kind]]["retention.ms"].value == "-1"
    assert "retention.ms=86400000" in reported["never_expire"][topics["clicks"]]
    assert reported["never_expire"][topics["clicks"]].endswith(",retention.bytes=BYTES"), "the lost brokers' default"

    stood = {"plain": 120, "committed": 150, "aborted": 40}
    assert {kind: committed(target, groups[kind], topics["orders"]) for kind in stood} == stood
    assert committed(target, groups["end"], topics["clicks"]) == 24
    for kind, offset in stood.items():
        assert next_value(target, groups[kind], topics["orders"]) == (offset, b"value %d" % offset)
    assert (reported["groups"]["not_reached"], reported["groups"]["blockers"]) == ([], [])

    commit(target, groups["plain"], topics["orders"], 180)  # it has read on
    code, again = restore()
    assert code == 0, again
    assert sum(one["records"] for one in again["partitions"]) == 0
    assert committed(target, groups["plain"], topics["orders"]) == 180
    assert again["settings"][topics["orders"]]["applied"] == {}, "what is set is not set again"


def restored(
    capsys: pytest.CaptureFixture[str], config: Settings, folders: Sequence[Path], *, dry_run: bool = False
) -> tuple[int, Any]:
    """The exit code, and what is reported of the only partition."""
    capsys.readouterr()
    code = command.restore(config, folders, command.Wanted(dry_run=dry_run), as_json=True)
    (found,) = json.loads(capsys.readouterr().out)["partitions"]
    return code, found


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_a_replica_that_had_fallen_behind_is_not_whole(
    own_target: Cluster, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records were committed without it: the metadata log of another node knows who was in sync, and its own does not.
    With the disk of one that was, everything is there.
    """
    with Cluster.start(nodes=3, name="behind", folder=tmp_path / "behind") as lost:
        first, other, behind = (node.id for node in lost.nodes)
        client = AdminClient({"bootstrap.servers": lost.bootstrap})
        placed = NewTopic(topic_name, 1, replica_assignment=[[other, behind]], config={"min.insync.replicas": "1"})
        client.create_topics([placed])[topic_name].result(60)
        produce(lost.bootstrap, topic_name, [b"before"] * 20)
        lost.suspend(2)
        produce(lost.bootstrap, topic_name, [b"since"] * 10)
        for number in range(3):
            lost.kill(number)
    config = load(config_file(tmp_path, lost.bootstrap, own_target.bootstrap, [topic_name], flow=topic_name))
    disks = {node.id: node.data for node in lost.nodes}

    def restore(*nodes: int, dry_run: bool = False) -> tuple[int, Any]:
        return restored(capsys, config, [disks[node] for node in nodes], dry_run=dry_run)

    for dry_run in (True, False):
        code, found = restore(first, behind, dry_run=dry_run)
        assert (code, found["at_risk"], found["committed_end"]) == (ExitCode.DATA_AT_RISK, True, 20)
        assert f"those of brokers {other} were" in str(found["notes"])
    code, found = restore(behind, dry_run=True)  # its own metadata log ends before that
    assert (code, found["at_risk"]) == (ExitCode.DATA_AT_RISK, True)
    assert f"the metadata logs of controllers {first}, {other}: records may be missing" in str(found["notes"])
    assert restore(first, behind, other, dry_run=True)[0] == ExitCode.CHANGES
    code, found = restore(first, behind, other)
    assert (code, found["at_risk"], found["next_offset"]) == (ExitCode.DONE, False, 30)


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_an_old_disk_of_a_broker_is_no_replica_of_it(
    own_target: Cluster, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was replaced, the broker fetched all again and was in sync with what it has now. Both disks: all is there."""
    with Cluster.start(nodes=3, name="replaced", folder=tmp_path / "replaced") as lost:
        client = AdminClient({"bootstrap.servers": lost.bootstrap})
        numbers = [node.id for node in lost.nodes]
        client.create_topics([NewTopic(topic_name, 1, replica_assignment=[numbers[1:]])])[topic_name].result(60)
        produce(lost.bootstrap, topic_name, [b"before"] * 20)
        lost.kill(2)
        shelf = tmp_path / "shelf"
        shutil.copytree(lost.nodes[2].data, shelf)
        for entry in lost.nodes[2].data.glob(f"{topic_name}-*"):
            shutil.rmtree(entry)
        meta = lost.nodes[2].data / "meta.properties"
        anew = base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        meta.write_text(re.sub("directory.id=.*", f"directory.id={anew}", meta.read_text()))
        lost.restart(2)
        wait_for(
            lambda: len(client.list_topics(topic_name, timeout=10).topics[topic_name].partitions[0].isrs) == 2,
            60,
            lambda: "the broker did not catch up",
        )
        produce(lost.bootstrap, topic_name, [b"since"] * 10)
        for number in range(3):
            lost.kill(number)
    for node in lost.nodes[1:]:
        shutil.move(node.data / f"{topic_name}-0", tmp_path / f"current-{node.id}")
    config = load(config_file(tmp_path, lost.bootstrap, own_target.bootstrap, [topic_name], flow=topic_name))
    folders = [shelf, *(node.data for node in lost.nodes)]

    code, found = restored(capsys, config, folders, dry_run=True)
    assert (code, found["at_risk"]) == (ExitCode.DATA_AT_RISK, True)
    assert "were in other data folders than these" in str(found["notes"])
    shutil.move(tmp_path / f"current-{numbers[2]}", lost.nodes[2].data / f"{topic_name}-0")
    code, found = restored(capsys, config, folders)
    assert (code, found["at_risk"], found["next_offset"]) == (ExitCode.DONE, False, 30)


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_groups_by_a_replica_that_had_fallen_behind_are_not_whole(
    own_target: Cluster, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The records are all there, and where groups stood is on the disk of a broker alone that had died before."""
    with Cluster.start(nodes=3, name="behind", folder=tmp_path / "behind") as lost:
        client = AdminClient({"bootstrap.servers": lost.bootstrap})
        placed = NewTopic(topic_name, 1, replica_assignment=[[lost.nodes[0].id, lost.nodes[1].id]])
        client.create_topics([placed])[topic_name].result(60)
        produce(lost.bootstrap, topic_name, [b"before"] * 20)
        commit(lost.bootstrap, topic_name, topic_name, 5)
        lost.suspend(2)
        commit(lost.bootstrap, topic_name, topic_name, 15)
        for number in range(3):
            lost.kill(number)
    for node in lost.nodes[:2]:
        for folder in node.data.glob("__consumer_offsets-*"):
            shutil.rmtree(folder)
    config = load(config_file(tmp_path, lost.bootstrap, own_target.bootstrap, [topic_name], flow=topic_name))
    folders, groups = [node.data for node in lost.nodes], config.groups
    ungrouped = config.model_copy(update={"groups": groups.model_copy(update={"include": []})})
    assert command.restore(ungrouped, folders, command.Wanted(dry_run=True), as_json=True) == ExitCode.CHANGES
    capsys.readouterr()
    code = command.restore(config, folders, command.Wanted(), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["partitions"][0]["whole"]
    assert "may have committed further" in str(found["notes"])
    assert committed(own_target.bootstrap, topic_name, topic_name) == 5
    assert code == ExitCode.DATA_AT_RISK


@pytest.mark.brokers
@pytest.mark.usefixtures("without_spark")
def test_a_group_that_cannot_be_put_where_it_stood_is_named(
    own_source: Cluster,
    own_target: Cluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One had read what is damaged now: it goes on at the copy's end. One has a member on the target: it stays."""
    source, target = own_source.bootstrap, own_target.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, [b"%d" % number for number in range(100)])
    ahead, active = f"{topic_name}-ahead", f"{topic_name}-active"
    for group in (ahead, active):
        commit(source, group, topic_name, 80)
    disk = tmp_path / "disk"
    for path in folders_of(own_source, topic_name)[0][0].parent.glob("__consumer_offsets-*"):
        shutil.copytree(path, disk / path.name)
    shutil.copytree(folders_of(own_source, topic_name)[0][0], disk / f"{topic_name}-0")
    segment = next((disk / f"{topic_name}-0").glob("*.log"))
    stored = bytearray(segment.read_bytes())
    stored[len(stored) // 2] ^= 1
    segment.write_bytes(stored)
    config = load(config_file(tmp_path, source, target, [topic_name], flow=topic_name))
    make_topic(target, f"{topic_name}-other")
    member = Consumer({"bootstrap.servers": target, "group.id": active})
    try:
        member.subscribe([f"{topic_name}-other"])
        deadline = time.monotonic() + 60
        while not member.assignment():
            member.poll(0.1)
            assert time.monotonic() < deadline
        assert command.restore(config, [disk], command.Wanted(), as_json=True) == 4
    finally:
        member.close()
    output = json.loads(capsys.readouterr().out)
    (end,) = [one["committed_end"] for one in output["partitions"]]
    assert 0 < end < 80
    (gap,) = output["groups"]["not_reached"]
    assert (gap["group"], gap["reached"]) == (active, None)
    assert "it has members on the target" in gap["cause"]
    assert [(one["group"], one["offset"], one["goes_on_at"]) for one in output["groups"]["beyond"]] == [
        (active, 80, end),
        (ahead, 80, end),
    ]
    assert committed(target, ahead, topic_name) == end
    assert committed(target, active, topic_name) < 0
