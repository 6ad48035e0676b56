"""A cluster that is away for a while."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.network import Network
from livemirror import LiveMirror, values
from pair import Shared
from waiting import MovableClock, until

from mirror.states import State


@pytest.mark.proves("UNAVAILABLE", "never-silent")
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_cluster_that_is_away_is_reported_at_once_and_waited_for(
    side: str, source_cluster: Shared, target_cluster: Shared, topic_name: str, tmp_path: Path, clock: MovableClock
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

            def is_reported() -> bool:
                clock.move(0.5)  # ten seconds pass before that is said
                return live.status_is(State.UNAVAILABLE)

            until(is_reported)
            network.heal()
            live.until_equal(values(0, 100) + more)
