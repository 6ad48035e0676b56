"""Addresses that lead to another cluster: whoever speaks to one keeps to it, and a copy is of the one it came from."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from groupoffsets import commit, committed
from helpers import RECENT_MS, config_file, make_topic, produce, settings_between
from rekey_story import Story, begun, story
from rekeychecker import read_committed
from running import TIMEOUT, forked, wait_for
from samerecords import read
from sparkless import run_once
from typer.testing import CliRunner

from mirror import config
from mirror.cli import app
from mirror.config import ClusterSettings
from mirror.driver.flow import prepare
from mirror.errors import ClusterError, ClusterUnreachable, ExitCode, PreflightError
from mirror.kafka.admin import Admin, Creation
from mirror.kafka.cluster import Cluster as Wire
from mirror.kafka.cluster import Endpoint
from mirror.lab.embedded import Cluster, Spec
from mirror.lab.embedded.node import Node
from mirror.topics.history import keeping_to_known

__all__ = ["story"]

pytestmark = pytest.mark.brokers

OTHER = r"a broker of cluster \S+ answers there, and not one of "


def records(name: str, count: int) -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


def config_of(folder: Path, source: str, target: str, topic: str, group: str) -> Path:
    file = config_file(folder, source, target, [topic], topic)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"groups": {"include": [group]}}))
    return file


def settings(cluster: Cluster, cluster_id: str | None = None) -> ClusterSettings:
    fields = {"alias": "any", "bootstrap.servers": cluster.bootstrap, "cluster_id": cluster_id}
    return ClusterSettings.model_validate(fields)


def test_another_cluster_than_the_configured_one_is_refused(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """Asked or ordered something, by the wire and by librdkafka, and by each command."""
    expected = settings(own_source, own_target.cluster_id)

    async def refreshed() -> None:
        async with Wire(Endpoint.of(expected)) as cluster:
            await cluster.refresh()

    with pytest.raises(ClusterUnreachable, match=OTHER):
        asyncio.run(refreshed())
    admin = Admin(expected)
    for ask in (admin.topic_names, admin.groups, admin.broker_configs):
        with pytest.raises(ClusterError, match=OTHER):
            ask()
    with pytest.raises(ClusterError, match=OTHER):
        admin.create_topics([Creation(topic=topic_name, partitions=1, replication_factor=1)])
    assert topic_name not in AdminClient({"bootstrap.servers": own_source.bootstrap}).list_topics(timeout=20).topics

    make_topic(own_source.bootstrap, topic_name)
    file = config_file(tmp_path, own_source.bootstrap, own_target.bootstrap, [topic_name], topic_name)
    output = json.loads(file.read_text())
    output["source"]["cluster_id"] = own_source.cluster_id
    output["target"]["cluster_id"] = own_source.cluster_id
    file.write_text(json.dumps(output))
    for command in ("plan", "verify", "status"):
        done = CliRunner().invoke(app, [command, str(file)])
        assert isinstance(done.exception, ClusterUnreachable), (command, done.output, done.exception)
        assert re.search(OTHER, str(done.exception)), done.exception


@pytest.fixture
def look_alikes() -> Iterator[tuple[Cluster, Cluster]]:
    """Two clusters at the same addresses, of which one can run at a time."""
    with ExitStack() as stack:
        one = stack.enter_context(Cluster(Spec(name="twin-one")))
        other = stack.enter_context(Cluster(Spec(name="twin-other")))
        other.nodes = tuple(
            Node(node.id, (node.port, node.controller_port), other.folder / f"node-{node.id}", other._runtime, ())
            for node in one.nodes
        )
        yield one, other


def test_a_mirror_keeps_to_the_source_that_it_found(
    look_alikes: tuple[Cluster, Cluster], own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """Another cluster answers at its address, with topics and groups of the same names: nothing of it gets over, not a
    group's offset either. The mirror says so, and goes on as soon as its source is back.
    """
    one, other = look_alikes
    bootstrap, target, group = one.bootstrap, own_target.bootstrap, f"{topic_name}-readers"
    other.launch()
    other.await_ready()
    make_topic(bootstrap, topic_name)
    produce(bootstrap, topic_name, records("foreign", 100))
    commit(bootstrap, group, topic_name, 90)
    other.kill(0)
    one.launch()
    one.await_ready()
    make_topic(bootstrap, topic_name)
    produce(bootstrap, topic_name, records("ours", 100))
    commit(bootstrap, group, topic_name, 10)
    file = config_of(tmp_path, bootstrap, target, topic_name, group)
    with forked(file, tmp_path / "log") as mirror:
        wait_for(lambda: committed(target, group, topic_name) == 10, TIMEOUT, lambda: mirror.log)
        one.kill(0)
        other.restart(0)
        wait_for(lambda: f"not one of {one.cluster_id}" in mirror.log, TIMEOUT, lambda: mirror.log)

        def state() -> tuple[str, str]:
            result = CliRunner().invoke(app, ["status", str(file), "--json"])
            (partition,) = json.loads(result.stdout)["partitions"]
            return partition["state"], partition["detail"]

        wait_for(lambda: state()[0] == "UNAVAILABLE" and one.cluster_id in state()[1], TIMEOUT, lambda: str(state()))
        assert committed(target, group, topic_name) == 10
        other.kill(0)
        one.restart(0)
        produce(bootstrap, topic_name, records("more", 5))
        commit(bootstrap, group, topic_name, 104)
        wait_for(lambda: committed(target, group, topic_name) == 104, TIMEOUT, lambda: mirror.log)
    assert [one[4] for one in read(target, topic_name, 0)] == records("ours", 100) + records("more", 5)


def test_a_failover_takes_no_other_cluster_for_its_source(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """The source's name leads to the target already, or to some other cluster with these topics."""
    source, target, group = own_source.bootstrap, own_target.bootstrap, f"{topic_name}-readers"
    make_topic(source, topic_name)
    produce(source, topic_name, records("ours", 40))
    commit(source, group, topic_name, 12)
    run_once(config.load(config_of(tmp_path, source, target, topic_name, group)))
    produce(source, topic_name, records("late", 7))
    commit(target, group, topic_name, 3)
    file = config_of(tmp_path, target, target, topic_name, group)
    for command in (["accept", str(file), topic_name], ["offsets", "translate", str(file), topic_name, "0", "5"]):
        refused = CliRunner().invoke(app, command).exception
        assert isinstance(refused, ClusterError), refused
        assert f"not one of {own_source.cluster_id}" in str(refused), "no topic was made anew"
    for options in (["--rehearse"], []):
        result = CliRunner().invoke(app, ["failover", str(file), "--json", *options])
        account = json.loads(result.stdout)
        assert result.exit_code == ExitCode.DATA_AT_RISK, result.output
        assert f"not one of {own_source.cluster_id}" in account["source_problem"]
        assert account["whole"] is False
    assert committed(target, group, topic_name) == 3


def test_a_flow_is_of_one_source(own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path) -> None:
    """Two flows have one name, or the address leads astray: the other cluster would have had its topics mirrored, and
    those that it lacks reported as deleted. What is advised is done.
    """
    source, target, more = own_source.bootstrap, own_target.bootstrap, f"{topic_name}-more"
    make_topic(source, topic_name)
    produce(source, topic_name, records("ours", 10), begin_ms=RECENT_MS)

    def mirror(command: str, bootstrap: str, *arguments: str, flow: str = topic_name) -> tuple[int, str]:
        file = config_file(tmp_path, bootstrap, target, [f"{topic_name}.*"], flow)
        done = CliRunner().invoke(app, [command, str(file), *arguments])
        return done.exit_code, done.output

    def once(bootstrap: str, flow: str = topic_name) -> None:
        assert run_once(settings_between(bootstrap, target, [f"{topic_name}.*"], flow)).exit_code == ExitCode.DONE

    once(source)
    with Cluster.start(name="astray") as other:
        make_topic(other.bootstrap, more)
        code, said = mirror("plan", other.bootstrap)
        assert code == ExitCode.PREFLIGHT, said
        assert f"{topic_name}: mirrored from cluster {own_source.cluster_id}" in said
        with pytest.raises(PreflightError, match=f"the source is cluster {other.cluster_id}"):
            run_once(settings_between(other.bootstrap, target, [f"{topic_name}.*"], topic_name))
        assert more not in Admin(settings(own_target)).topic_names()
        assert mirror("plan", source)[0] == ExitCode.DONE, "where it belongs"
        once(other.bootstrap, f"{topic_name}-2")  # by another name
        make_topic(other.bootstrap, topic_name)
        produce(other.bootstrap, topic_name, records("ours", 10), begin_ms=RECENT_MS)  # it took the place of the source
        assert mirror("failover", other.bootstrap)[0] == ExitCode.DATA_AT_RISK, "what the old source had is not known"
        code, said = mirror("adopt", other.bootstrap, topic_name, flow=f"{topic_name}-2")
        assert code == ExitCode.DONE, said
        produce(other.bootstrap, topic_name, records("new", 1))
        once(other.bootstrap, f"{topic_name}-2")
    assert [one[4] for one in read(target, topic_name, 0)] == records("ours", 10) + records("new", 1)


def test_a_re_keyed_topic_is_of_one_source(story: Story, tmp_path: Path) -> None:
    """It was RECREATED, and whoever did what that advises deleted a good copy for a wrong address. What is advised here
    is done.
    """
    name, target, rules = story.topic, story.target, [{"match": story.topic, "partitions": 4}]
    story.fill(0, 20)
    story.copied()
    with Cluster.start(name="astray-rekeyed") as other:
        make_topic(other.bootstrap, name)
        astray = settings_between(other.bootstrap, target, [name], name, rules=rules)
        ids = f"{name}: re-keyed from cluster .*, and the source is cluster {other.cluster_id}"
        with pytest.raises(PreflightError, match=ids):
            prepare(astray)
        assert asyncio.run(keeping_to_known(astray)).source.cluster_id not in (None, other.cluster_id)
        assert prepare(settings_between(story.source, target, [name], name, rules=rules)).rekeyed, "where it belongs"
        named = {"rules": rules, "naming": {"prefix": "new."}}
        begun(settings_between(other.bootstrap, target, [name], f"{name}-2", **named))  # by another name
        file = config_file(tmp_path, other.bootstrap, target, [name], name, rules=rules)
        assert CliRunner().invoke(app, ["failover", str(file)]).exit_code == ExitCode.DATA_AT_RISK
    assert len(read_committed(target, name)) == 20
