"""Brokers of a source of three that die: what does not need them goes on, and what does is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded import create
from helpers import mirror_once, produce, settings_between
from livemirror import LiveMirror, values

from mirror.commands.verify import verify
from mirror.errors import ExitCode
from mirror.lab.embedded import Cluster

#: The broker that dies, and the one that leads what must go on.
DIES, STAYS = 0, 2


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster.start(nodes=3, name="dead-brokers") as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _all_alive(three: Cluster) -> Iterator[None]:
    yield
    if not three.nodes[DIES].alive:
        three.restart(DIES)


def test_verify_goes_on_past_a_partition_without_a_leader(
    three: Cluster, own_target: Cluster, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = three.bootstrap, own_target.bootstrap
    create(three, topic_name, [[DIES], [STAYS]])
    for partition in (0, 1):
        produce(source, topic_name, values(0, 100), partition=partition)
    assert mirror_once(source, target, [topic_name])
    three.kill(DIES)
    settings = settings_between(source, target, [topic_name])
    assert verify(settings, (), as_json=True) is ExitCode.CLUSTER
    found = json.loads(capsys.readouterr().out)
    assert found["equal"]
    assert [(one["partition"], one["records"]) for one in found["partitions"]] == [(1, 100)]
    (left,) = found["not_verified"]
    assert (left["topic"], left["partition"]) == (topic_name, 0)
    produce(target, topic_name, [b"foreign"], partition=1)
    assert verify(settings, (), as_json=False) is ExitCode.DIFFERENT, "a difference comes before what is not known"
    assert f"not verified: {topic_name}-0: cluster eu" in capsys.readouterr().out


def test_the_one_broker_that_the_configuration_names_may_go_while_a_mirror_runs(
    three: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """The tasks of the next epoch find the others, which the driver has met."""
    live = LiveMirror(three, own_target, topic_name, tmp_path)
    live.settings["source"]["bootstrap.servers"] = three.bootstrap.partition(",")[0]
    create(three, topic_name, [[STAYS]])
    live.fill(0, 100)
    with live.running():
        live.until_equal(values(0, 100))
        three.kill(DIES)
        for number in range(1, 5):  # over several epochs
            live.fill(100 * number, 100 * number + 100)
            live.until_equal(values(0, 100 * number + 100))
