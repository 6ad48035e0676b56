"""A whole cluster is lost, and comes back from its disks: records, settings, and groups that go on where they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from brokerlogs import folders_of
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient, NewTopic
from groupoffsets import commit, committed
from helpers import config_file, make_topic, produce, settings_between
from samerecords import read
from transactional import transactions
from waiting import DEADLINE_S, until

from mirror.commands import restore as command
from mirror.config import load
from mirror.errors import ExitCode
from mirror.kafka.admin import Admin, Creation
from mirror.lab.embedded import Cluster

pytestmark = [pytest.mark.usefixtures("without_spark")]

SETTINGS = {
    "orders": {"cleanup.policy": "compact", "max.message.bytes": "2000000", "min.insync.replicas": "1"},
    "clicks": {"retention.ms": "86400000", "segment.ms": "3600000"},
    "plain": {},
}
#: What is not set before everything is checked.
HELD = {"clicks": {"retention.ms": "86400000"}}


def fill(bootstrap: str, topic: str, partitions: int) -> None:
    """Keyed records, some of them overwritten, in each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "compression.type": "zstd"})
    for partition in range(partitions):
        for number in range(200):
            producer.produce(topic, b"value %d" % number, key=b"key %d" % (number % 50), partition=partition)
        producer.flush(DEADLINE_S)
    assert not len(producer)


def commit_in_transaction(bootstrap: str, group: str, topic: str, offset: int, *, ends_well: bool) -> None:
    """Offsets that count only with their transaction."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    client = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{group}-{uuid4().hex}"})
    client.init_transactions(DEADLINE_S)
    client.begin_transaction()
    client.send_offsets_to_transaction([At(topic, 0, offset)], consumer.consumer_group_metadata(), 60)
    (client.commit_transaction if ends_well else client.abort_transaction)(60)
    consumer.close()


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
        groups = {kind: f"{kind}-of-{topic_name}" for kind in ("plain", "committed", "aborted")}
        commit(source, groups["plain"], topics["orders"], 70)
        commit(source, groups["plain"], topics["orders"], 120)
        commit(source, groups["aborted"], topics["orders"], 40)
        commit_in_transaction(source, groups["committed"], topics["orders"], 150, ends_well=True)
        commit_in_transaction(source, groups["aborted"], topics["orders"], 160, ends_well=False)
        wanted = {name: [list(read(source, name, number)) for number in range(2)] for name in topics.values()}
        for number in range(3):
            lost.kill(number)

        disks = [node.data for node in lost.nodes]
        config = load(config_file(tmp_path, lost.bootstrap, target, list(topics.values()), flow=topic_name))

        def restore(**more: bool) -> tuple[int, Any]:
            capsys.readouterr()
            code = command.restore(config, disks, **more, as_json=True)
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
    assert (reported["groups"]["not_reached"], reported["groups"]["blockers"]) == ([], [])

    commit(target, groups["plain"], topics["orders"], 180)  # it has read on
    code, again = restore()
    assert code == 0, again
    assert sum(one["records"] for one in again["partitions"]) == 0
    assert committed(target, groups["plain"], topics["orders"]) == 180
    assert again["settings"][topics["orders"]]["applied"] == {}, "what is set is not set again"


def test_a_replica_that_had_fallen_behind_is_not_taken(
    own_target: Cluster, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records were committed without it: the metadata log of another node knows who was in sync, and its own does not.
    With the disk of one that was, everything is there; named alone, the replica is restored as it is.
    """
    with Cluster.start(nodes=3, name="behind", folder=tmp_path / "behind") as lost:
        first, other, behind = (node.id for node in lost.nodes)
        client = AdminClient({"bootstrap.servers": lost.bootstrap})
        placed = NewTopic(topic_name, 1, replica_assignment=[[other, behind]], config={"min.insync.replicas": "1"})
        client.create_topics([placed])[topic_name].result(DEADLINE_S)
        produce(lost.bootstrap, topic_name, [b"before"] * 20)
        lost.suspend(2)
        produce(lost.bootstrap, topic_name, [b"since"] * 10)
        for number in range(3):
            lost.kill(number)
    config = load(config_file(tmp_path, lost.bootstrap, own_target.bootstrap, [topic_name], flow=topic_name))
    disks = {node.id: node.data for node in lost.nodes}

    def restore(*nodes: int, dry_run: bool = False) -> tuple[int, Any]:
        return restore_from(*(disks[node] for node in nodes), dry_run=dry_run)

    def restore_from(*folders: Path, dry_run: bool = False) -> tuple[int, Any]:
        capsys.readouterr()
        code = command.restore(config, folders, dry_run=dry_run, as_json=True)
        (found,) = json.loads(capsys.readouterr().out)["partitions"]
        return code, found

    code, found = restore(first, behind)
    assert (code, found["at_risk"], found["next_offset"]) == (ExitCode.DATA_AT_RISK, True, None)
    assert f"those of brokers {other} were" in str(found["notes"])
    alone = disks[behind] / f"{topic_name}-0"
    assert f"--from {alone} alone restores what is there" in str(found["notes"])
    _, found = restore_from(alone)
    assert (found["next_offset"], found["folders"]) == (20, [str(alone)]), found["notes"]
    code, found = restore(behind, dry_run=True)  # its own metadata log ends before that
    assert (code, found["at_risk"]) == (ExitCode.DATA_AT_RISK, True)
    assert f"the metadata logs of controllers {first}, {other}: records may be missing" in str(found["notes"])
    code, found = restore(first, behind, other)
    assert (code, found["at_risk"], found["next_offset"]) == (ExitCode.DONE, False, 30)
    assert found["folders"] == [str(disks[other] / f"{topic_name}-0")]


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
        until(lambda: member.poll(0.1) or member.assignment())
        assert command.restore(config, [disk], as_json=True) == 4
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
