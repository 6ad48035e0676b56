"""Behaviours of MirrorMaker 2 that no other test shows, and that the table of them (`conformance.md`) holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from helpers import make_topic, mirror_once, produce
from transactional import transactions

from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.states import State

FOLDER = Path(__file__).parents[1]
TABLE = (FOLDER / "conformance.md").read_text(encoding="utf-8")


def test_every_behaviour_has_a_row() -> None:
    rows = re.findall(r"^\| (I\d+) \| .+ \| .{10,} \|$", TABLE, re.MULTILINE)
    assert rows == [f"I{number}" for number in range(1, 20)]


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(test_\w+\.py::\w+)`", TABLE))))
def test_every_test_that_is_named_exists(named: str) -> None:
    file, _, test = named.partition("::")
    (path,) = FOLDER.rglob(file)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test for node in tree.body)


def held(bootstrap: str, topic: str) -> tuple[set[str], int]:
    """A cluster's topics, and how far the one goes."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"})
    try:
        _, end = consumer.get_watermark_offsets(Place(topic, 0), timeout=20)
        return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).topics), end
    finally:
        consumer.close()


@pytest.mark.brokers
@pytest.mark.parametrize("offsets", ["preserve", "translate"])
def test_the_source_is_only_read(
    source_cluster: Cluster, target_cluster: Cluster, topic_name: str, offsets: str
) -> None:
    """No topic of state, no marker, no record: it is as it was."""
    topic = topic_name.replace("[", "-").replace("]", "-")
    make_topic(source_cluster.bootstrap, topic)
    transactions(source_cluster.bootstrap, topic, [True, False, True])
    before = held(source_cluster.bootstrap, topic)
    (found,) = mirror_once(
        source_cluster.bootstrap, target_cluster.bootstrap, [topic], flow=topic, offsets=offsets
    ).values()
    assert (found.state, found.records) == (State.CAUGHT_UP, 10)
    topics, end = held(source_cluster.bootstrap, topic)
    assert not {name for name in topics - before[0] if not name.startswith("__")}, "those of other tests may go"
    assert end == before[1]


@pytest.mark.brokers
def test_two_directions_under_the_same_names_do_not_go_round(
    source_cluster: Cluster, target_cluster: Cluster, topic_name: str
) -> None:
    """What came from there equals what is there: it is found again, and not copied back."""
    one, other = source_cluster.bootstrap, target_cluster.bootstrap
    make_topic(one, topic_name)
    produce(one, topic_name, [b"%d" % index for index in range(30)])
    for _ in range(3):
        there = mirror_once(one, other, [topic_name], flow=f"{topic_name}-there")[TopicPartition(topic_name, 0)]
        back = mirror_once(other, one, [topic_name], flow=f"{topic_name}-back")[TopicPartition(topic_name, 0)]
        assert (there.state, back.state, back.records) == (State.CAUGHT_UP, State.CAUGHT_UP, 0)
    assert held(one, topic_name)[1] == held(other, topic_name)[1] == 30
