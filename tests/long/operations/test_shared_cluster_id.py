"""Clusters that share a cluster id, as those formatted with an image's default one do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from configured_flow import ConfiguredFlow
from helpers import make_topic, produce

from mirror.errors import ExitCode
from mirror.lab.embedded import Cluster, Spec, start_many
from mirror.lab.embedded.node import Listener
from mirror.policy.remedies import Fix

#: The default of the image apache/kafka.
SHARED_ID = "5L6g3nShT-eMCtK--X86sw"


@pytest.fixture(scope="module")
def trio() -> Iterator[tuple[Cluster, ...]]:
    other_door = (Listener(name="OTHER", protocol="PLAINTEXT"),)
    clusters = start_many([Spec(name=name, cluster_id=SHARED_ID, listeners=other_door) for name in ("a", "b", "c")])
    yield tuple(clusters)
    for cluster in clusters:
        cluster.stop()


def flow(name: str, source: Cluster, target: Cluster, folder: Path, topic: str) -> ConfiguredFlow:
    made = ConfiguredFlow(source, target, folder, name)
    made.topics = {"include": [topic], "naming": {"prefix": f"{name}."}}
    return made


@pytest.mark.proves("mirror plan", "mirror adopt", "same-bytes", "never-silent")
def test_a_chain_is_mirrored_and_a_circle_refused(trio: tuple[Cluster, ...], tmp_path: Path) -> None:
    first, second, third = trio
    make_topic(first.bootstrap, "orders")
    produce(first.bootstrap, "orders", [b"record"] * 20)
    there, on = flow("there", first, second, tmp_path, "orders"), flow("on", second, third, tmp_path, "there.orders")
    for one in (there, on):
        code, plan = one.plan()
        assert (code, len(plan["advice"])) == (10, 1)
        assert "share the cluster id" in plan["advice"][0]
        assert one.once().exit_code == ExitCode.DONE
        assert one.mirror("verify")[0] == ExitCode.DONE
    back, round_ = (
        flow("back", second, first, tmp_path, "there.orders"),
        flow("r", third, first, tmp_path, "on.there.orders"),
    )
    for one in (back, round_):
        code, plan = one.plan()
        assert code == ExitCode.PREFLIGHT
        assert "would be a loop" in plan["refused"][0]


@pytest.mark.proves("mirror plan", "never-silent")
def test_one_cluster_by_two_listeners_is_refused_unless_a_person_says_otherwise(
    trio: tuple[Cluster, ...], tmp_path: Path
) -> None:
    cluster = trio[0]
    make_topic(cluster.bootstrap, "bills")
    same = flow("same", cluster, cluster, tmp_path, "bills")
    for address, why in ((cluster.bootstrap, "both name"), (cluster.bootstrap_by("OTHER"), "on both")):
        same.target = address
        code, plan = same.plan()
        assert code == ExitCode.PREFLIGHT
        assert why in plan["refused"][0]
    assert Fix.OTHER_CLUSTER.value in plan["refused"][0]
    same.target_settings = {"differs_from": ["eu"]}
    assert "differs_from says so" in same.plan()[1]["advice"][0]
