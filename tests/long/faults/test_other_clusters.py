"""Another cluster takes the place of a running mirror's source, at its address and with its topics and groups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from groupoffsets import commit, committed
from helpers import config_file, make_topic, produce
from running import forked
from samerecords import read
from typer.testing import CliRunner
from waiting import until

from mirror.cli import app
from mirror.lab.embedded import Cluster, Spec
from mirror.lab.embedded.node import Node


def records(name: str, count: int) -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


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
    """Nothing of the other one gets over, not a group's offset either; it goes on as soon as its source is back."""
    one, other = look_alikes
    bootstrap, target, group = one.bootstrap, own_target.bootstrap, f"{topic_name}-readers"
    for cluster, name, offset in ((other, "foreign", 90), (one, "ours", 10)):
        cluster.launch()
        cluster.await_ready()
        make_topic(bootstrap, topic_name)
        produce(bootstrap, topic_name, records(name, 100))
        commit(bootstrap, group, topic_name, offset)
        if cluster is other:
            cluster.kill(0)
    sections = {"groups": {"include": [group]}}
    file = config_file(tmp_path, bootstrap, target, [topic_name], topic_name, sections=sections)

    def state() -> tuple[str, str]:
        result = CliRunner().invoke(app, ["status", str(file), "--json"])
        (partition,) = json.loads(result.stdout)["partitions"]
        return partition["state"], partition["detail"]

    with forked(file, tmp_path / "log") as mirror:
        until(lambda: committed(target, group, topic_name) == 10, lambda: mirror.log)
        one.kill(0)
        other.restart(0)
        until(lambda: f"not one of {one.cluster_id}" in mirror.log, lambda: mirror.log)
        until(lambda: state()[0] == "UNAVAILABLE" and one.cluster_id in state()[1], state)
        assert committed(target, group, topic_name) == 10
        other.kill(0)
        one.restart(0)
        produce(bootstrap, topic_name, records("more", 5))
        commit(bootstrap, group, topic_name, 104)
        until(lambda: committed(target, group, topic_name) == 104, lambda: mirror.log)
    assert [one[4] for one in read(target, topic_name, 0)] == records("ours", 100) + records("more", 5)
