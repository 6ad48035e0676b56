"""Seeded schedules of faults, and every point at which a mirror may die; `python -m tests.faults.run` plays more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from checker import Kind
from faults.play import BROKERS, Player, _Play
from faults.points import MOVING_POINTS, POINTS
from faults.schedule import Fault, schedule
from faults.singles import Points
from helpers import produce
from waiting import DEADLINE_S

from mirror.lab.embedded import Cluster, Spec, start_many

#: Seeds whose schedules have something of every kind in them, and some more.
SAMPLE = (3, 6, 8, 10, 20, 23, 30, 44, 64, 70, 82, *range(1000, 1010))


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    """A pair that may be frozen and killed."""
    source, target = start_many([Spec(name=f"faults-{side}", config=BROKERS) for side in ("source", "target")])
    with source, target:
        yield source, target


@pytest.fixture(scope="module")
def player(clusters: tuple[Cluster, Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with Player(*clusters, tmp_path_factory.mktemp("faults")) as found:
        yield found


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_schedule_of_faults_loses_nothing(seed: int, player: Player) -> None:
    played = player.play(schedule(seed))
    print(played)
    assert played.is_good


def test_what_is_wrong_on_the_target_is_found(
    player: Player, clusters: tuple[Cluster, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of a fault, a stranger writes to the target: the mirror stops, for no cause in the schedule."""

    def strange(self: _Play, _: Fault) -> None:
        self._start().wait(DEADLINE_S)
        produce(clusters[1].bootstrap, self._played.topic, [b"foreign"])

    monkeypatch.setattr(_Play, "_suffer", strange)
    plan = schedule(4, moves=False)
    played = player.play(replace(plan, partitions=1, rounds=plan.rounds[:1]))
    assert not played.is_good
    assert played.stops
    assert {Kind.EXTRA, Kind.LOG_END} <= {finding.kind for finding in played.findings}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("points", "moves"), [(POINTS, False), (MOVING_POINTS, True)], ids=["equal", "translated"])
def test_a_kill_at_every_point(
    points: tuple[str, ...], moves: bool, clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    ran = Points(*clusters, tmp_path, Random(seed), moves=moves).kill_at(points)
    assert ran.findings == []
    assert ran.missed == [], "the mirror did not pass these points, so nothing was tested there"
    assert ran.died == len(points)
