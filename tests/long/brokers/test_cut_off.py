"""A broker of the source that lost its controllers, and goes on answering: what it says of leaders, settings and topics
is old. Nothing is believed of it, whatever it is asked.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from cutoff import Trio, trio
from helpers import config_file, make_topic, produce, settings_between
from remedyworld import until
from sparkless import run_once
from typer.testing import CliRunner

from mirror.cli import app
from mirror.config import ClusterSettings, load
from mirror.errors import ExitCode
from mirror.kafka.admin import Admin
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.states import State

pytestmark = pytest.mark.brokers

#: The broker that is cut off: it led the topics in `_LED`, whose names say what for.
_OLD = 1
_LED = ("co-once", "co-stands", "co-over", "co-alone")
_DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def source() -> Iterator[Trio]:
    """Cut off behind a hundred records of each topic; the leaders of now have fifty more."""
    with trio("cut-off") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for topic in (*_LED, "co-kept"):
            made = NewTopic(topic, 1, replica_assignment=[[_OLD, 2, 0]], config={"retention.ms": str(_DAY_MS)})
            admin.create_topics([made])[topic].result(30)
        until(lambda: _in_sync(admin), lambda: "replicas are not in sync")
        for topic in _LED:
            produce(cluster.bootstrap, topic, (b"%06d" % number for number in range(100)))
        yield cluster


@pytest.fixture(scope="module")
def deposed(source: Trio, own_target: Cluster) -> Trio:
    """The same, when it is cut off."""
    for topic in _LED:
        assert (found := _once(source, own_target, topic)).state is State.CAUGHT_UP, found
    source.cut_off(_OLD)
    admin = AdminClient({"bootstrap.servers": _live(source), "log_level": 0})
    until(lambda: not {-1, _OLD} & {_leader(admin, topic) for topic in _LED}, lambda: "no others lead")
    for topic in _LED:
        produce(_live(source), topic, (b"new%06d" % number for number in range(50)))
    raised = ConfigEntry("retention.ms", str(60 * _DAY_MS), incremental_operation=AlterConfigOpType.SET)
    kept = ConfigResource(ResourceType.TOPIC, "co-kept", incremental_configs=[raised])
    admin.incremental_alter_configs([kept])[kept].result(30)
    return source


@pytest.fixture(autouse=True)
def asks_the_old_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom one asks is chosen by chance: by the worst one."""
    monkeypatch.setattr(random, "shuffle", lambda _: None)


def _live(source: Trio) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in source.nodes if node.id != _OLD)


def _first(source: Trio) -> str:
    return f"127.0.0.1:{source.nodes[_OLD].port},{_live(source)}"


def _in_sync(admin: AdminClient) -> bool:
    topics = admin.list_topics(timeout=30).topics.values()
    return all(len(one.isrs) == 3 for topic in topics for one in topic.partitions.values())


def _leader(admin: AdminClient, topic: str) -> int:
    return int(admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader)


def _once(source: Trio, target: Cluster, topic: str) -> PartitionStatus:
    (found,) = run_once(settings_between(_first(source), target.bootstrap, [topic], topic)).figures.values()
    return found


def test_a_copy_is_whole_by_the_leader_of_now(deposed: Trio, own_target: Cluster) -> None:
    found = _once(deposed, own_target, "co-once")
    assert (found.state, found.next_offset, found.log_end) == (State.CAUGHT_UP, 150, 150)


def test_a_leader_of_long_ago_is_no_log_that_was_cut_back(deposed: Trio, own_target: Cluster) -> None:
    for _ in range(2):
        found = _once(deposed, own_target, "co-stands")
        assert (found.state, found.next_offset) == (State.CAUGHT_UP, 150), found.detail


def test_a_failover_takes_what_the_leader_of_now_has(deposed: Trio, own_target: Cluster, tmp_path: Path) -> None:
    config = config_file(tmp_path, _first(deposed), own_target.bootstrap, ["co-over"], "co-over")
    done = CliRunner().invoke(app, ["failover", str(config), "--json"])
    assert done.exit_code == ExitCode.DONE, done.output
    assert '"source_end":150' in done.output


def test_administration_gets_the_settings_of_now(deposed: Trio) -> None:
    admin = Admin(ClusterSettings.model_validate({"alias": "eu", "bootstrap.servers": _first(deposed)}))
    for _ in range(3):
        assert admin.topic_configs(["co-kept"])["co-kept"]["retention.ms"].value == str(60 * _DAY_MS)
    make_topic(_live(deposed), "co-young")
    assert "co-young" in admin.topic_names()
    assert _OLD not in admin._nodes("list brokers")


def test_nothing_is_certain_where_the_old_one_alone_answers(
    deposed: Trio, own_target: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirror.kafka.cluster.CONNECT_TIMEOUT", 1.0)  # each command meets two brokers that are silent
    monkeypatch.setattr("mirror.failover.drain.STRETCH_SECONDS", 3.0)
    others = [node.id for node in deposed.nodes if node.id != _OLD]
    config = config_file(tmp_path, _first(deposed), own_target.bootstrap, ["co-alone"], "co-alone")
    content = json.loads(config.read_text()) | {"groups": {"include": []}}
    config.write_text(json.dumps(content))
    for node in others:
        deposed.suspend(node)
    try:
        copied = run_once(load(config))  # which follows no groups: these would wait, too
        compared = CliRunner().invoke(app, ["verify", str(config), "--json", "--no-spark", "--wait", "0"])
        done = CliRunner().invoke(app, ["failover", str(config), "--json"])
    finally:
        for node in others:
            deposed.resume(node)
    admin = AdminClient({"bootstrap.servers": _live(deposed), "log_level": 0})
    until(lambda: _leader(admin, "co-alone") in others, lambda: "no other leads")
    assert "may know of other leaders" in copied.incomplete
    assert copied.exit_code == ExitCode.CLUSTER
    assert compared.exit_code == ExitCode.NOT_WHOLE, compared.output
    assert "may know of other leaders" in json.loads(compared.stdout)["not_whole"][0]["reason"]
    assert done.exit_code == ExitCode.DATA_AT_RISK, done.output
    output = json.loads(done.stdout)
    assert "may know of other leaders" in " ".join(output["warnings"])
    assert (output["rpo"]["certain"], output["rpo"]["seconds"], output["partitions"][0]["certain"]) == (
        False,
        None,
        False,
    )
