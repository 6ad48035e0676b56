"""A network that breaks, and one that turns bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.network import Network, Rule
from faults.points import REQUESTS
from helpers import make_topic, produce, settings_between
from livemirror import LiveMirror, values
from pair import Shared
from samerecords import assert_same_records
from sparkless import run_once

from mirror.errors import ExitCode
from mirror.replication.fetcher import DAMAGE_TRIES
from mirror.states import State

pytestmark = pytest.mark.brokers


@pytest.mark.proves("UNAVAILABLE", "never-silent")
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_cluster_that_is_away_is_reported_at_once_and_waited_for(
    side: str, source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path
) -> None:
    """Not only when the epoch ends, which here is after ten minutes; with the target, the journal is away."""
    live = LiveMirror(source_cluster, target_cluster, topic_name, tmp_path)
    live.create()
    live.fill(0, 100)
    with Network({"source": live.source, "target": live.target}[side]) as network:
        live.settings[side]["bootstrap.servers"] = network.bootstrap
        live.settings["spark"]["epoch_s"] = 600
        with live.running():
            live.until_equal(values(0, 100))
            network.cut()
            more = live.fill(100, 120)
            assert live.until(State.UNAVAILABLE).detail
            network.heal()
            live.until_equal(values(0, 100) + more)


@pytest.mark.proves("same-bytes", "exactly-once")
def test_what_arrives_damaged_is_fetched_again(source_cluster: Shared, target_cluster: Shared, topic_name: str) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    make_topic(source, topic_name)
    produce(source, topic_name, values(0, 100))
    with Network(source) as network:
        flips = [Rule("flip", REQUESTS["fetch"], 1) for _ in range(DAMAGE_TRIES - 1)]
        network.disturb(*flips)
        outcome = run_once(settings_between(network.bootstrap, target, [topic_name], topic_name))
    assert outcome.exit_code == ExitCode.DONE
    assert [flip.fired for flip in flips] == [1] * len(flips)
    assert assert_same_records(source, target, topic_name, 1) == 100
